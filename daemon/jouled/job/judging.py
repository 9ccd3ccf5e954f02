"""What a window that was taken comes to: its numbers, valid or not, feasible or not."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from jouled.job.account import Account
from jouled.job.measuring import Taken
from jouled.workload.runner import Arrival
from jouletune.errors import MeasurementError
from jouletune.latency import is_beyond
from jouletune.measurement import Measurement, measure
from jouletune.trial import Evidence, Infeasible, Invalid, Limits, Trial, judge_feasibility, judge_validity

log = logging.getLogger(__name__)

_SILENT_PERIODS = 10.0
_SILENT_S = 0.5


@dataclass
class Judge:
    """Judges windows by `limits`, and by what the trials in `account` have shown. `reference`: its index."""

    account: Account
    reference: int
    arrival: Arrival
    percentile: float
    warn: Callable[[str], None]
    limits: Limits

    def weigh(self, blank: Trial, taken: Taken, mismatches: tuple[str, ...]) -> Trial:
        """The trial that `taken` makes of `blank`; `mismatches` as the verify after the window found them."""
        evidence = replace(taken.evidence, mismatches=mismatches)
        if taken.cut:
            invalid = judge_validity(
                evidence,
                None,
                Infeasible.LATENCY,
                normal_over_current_hz=self.account.normal_over_current_hz,
            )
            return replace(
                blank,
                cut=invalid is None,
                invalid=invalid,
                infeasible=None if invalid is not None else Infeasible.LATENCY,
                detail=_detail(evidence, invalid),
            )
        measurement = self._measure(taken)
        gap_s = self.arrival.longest_gap_s
        if measurement is not None and (silent_s := _silent_s(taken, measurement, gap_s)) > 0.0:
            detail = f"nothing ended in {silent_s:.1f} s of the window"
            return replace(blank, invalid=Invalid.WORKLOAD_HUNG, detail=detail)
        infeasible = self._infeasible(taken, measurement)
        is_reference = blank.index == self.reference
        normal_hz = self.account.normal_over_current_hz
        if is_reference and evidence.over_current_s > 0.0:
            normal_hz = max(normal_hz, evidence.over_current / evidence.over_current_s)
        invalid = judge_validity(evidence, measurement, infeasible, normal_over_current_hz=normal_hz)
        if is_reference and invalid is None:
            self._adopt_over_current(normal_hz)
        return replace(
            blank,
            measurement=measurement,
            invalid=invalid,
            infeasible=None if invalid is not None else infeasible,
            detail=_detail(evidence, invalid),
        )

    def _adopt_over_current(self, normal_hz: float) -> None:
        """Boards where over-current events are normal take the reference's rate as normal, and say so."""
        if normal_hz > 0.0 and self.account.normal_over_current_hz == 0.0:
            self.warn(
                f"the board counts {normal_hz:.2g} over-current events a second in its own mode; "
                "that many are taken as normal (on an Orin Nano Super they are; elsewhere look at the supply)"
            )
        self.account.normal_over_current_hz = normal_hz

    def _measure(self, taken: Taken) -> Measurement | None:
        assert taken.trace is not None
        try:
            measurement = measure(
                taken.trace,
                taken.completions,
                taken.start_s,
                taken.end_s,
                percentile=self.percentile,
                clustering=self.account.clustering,
                between=self.account.between(),
                bound_s=self.limits.bound_s,
                period_s=self.arrival.period_s,
            )
            return measurement if math.isfinite(measurement.repeat_se_j) else None
        except MeasurementError as error:
            log.info("no numbers from this window: %s", error)
            return None

    def _infeasible(self, taken: Taken, measurement: Measurement | None) -> Infeasible | None:
        if measurement is not None:
            return judge_feasibility(measurement, self.limits)
        bound_s = self.limits.bound_s
        if bound_s is None:
            return None
        latency_s = taken.completions.end_s - taken.completions.arrival_s
        too_slow = is_beyond(latency_s, bound_s, self.percentile, self.account.clustering.design)
        return Infeasible.LATENCY if too_slow else None


def _silent_s(taken: Taken, measurement: Measurement, longest_gap_s: float) -> float:
    """How long the runner was silent at an edge of the window, where that is no accident; else 0."""
    ended_s = taken.completions.end_s
    ended_s = ended_s[(ended_s >= taken.start_s) & (ended_s <= taken.end_s)]
    silent_s = float(max(taken.end_s - ended_s[-1], ended_s[0] - taken.start_s))
    usual_s = measurement.duration_s / max(measurement.requests, 1)
    return silent_s if silent_s > _SILENT_PERIODS * usual_s + _SILENT_S + longest_gap_s else 0.0


def _detail(evidence: Evidence, invalid: Invalid | None) -> str:
    if invalid is Invalid.MODE_CHANGED:
        return "; ".join(evidence.mismatches[:3])
    if invalid is Invalid.THROTTLED:
        counted = f"{evidence.over_current} over-current events" if evidence.over_current else ""
        return ", ".join(filter(None, (*evidence.throttling, counted)))
    if invalid is Invalid.CLOCKS_MOVED:
        moved = [clock for clock in evidence.clocks if clock.moved]
        return ", ".join(
            f"{clock.domain} up to {max(clock.seen_hz):.0f} Hz of {clock.wanted_hz:.0f}" for clock in moved
        )
    if invalid is Invalid.GPU_BUSY:
        return ", ".join(evidence.strangers)
    return ""
