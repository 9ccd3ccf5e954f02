"""The reference: what the limits of a job follow from, and whether the board still is what it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from jouled.board.apply import ClocksPolicy
from jouled.config import Config
from jouled.job.ending import FAILS_AS, Stopped
from jouled.job.events import Events
from jouled.job.request import LONGEST_WINDOW_S
from jouled.job.trials import Trials
from jouletune.decision import Decision, Outcome, ReasonCode, stopped
from jouletune.measurement import Measurement
from jouletune.quantiles import reachable_percentile
from jouletune.trial import Invalid, Limits, Purpose, Trial, judge_feasibility

_MOVED_RATIO = 0.08
_MORE_SETTLE_S = 120.0
_BOUND_IS_ODD = 100.0  # times the reference's latency: no application means that


class Yardstick:
    """The windows of one job's reference, which are never cut short. `first` and `bound_s` once it was measured."""

    def __init__(
        self,
        config: Config,
        trials: Trials,
        events: Events,
        *,
        rate_hz: float | None,
        warn: Callable[[str], None],
    ) -> None:
        self._config = config
        self._trials = trials
        self._events = events
        self._rate_hz = rate_hz
        self._warn = warn
        self.first: Measurement | None = None
        self.bound_s: float | None = None

    def measure(self) -> Trial:
        """The first window of the job, from which the limits follow. Raises Stopped."""
        self._events.emit("phase", phase="reference")
        trial = self._run()
        if trial.invalid is not None:
            raise Stopped(self._failed(trial))
        assert trial.measurement is not None
        self.first = trial.measurement
        self._set_bound(trial.measurement)
        self._doubt_bound(trial.measurement)
        self._check_rate(trial.measurement)
        self._check_percentile(trial.measurement)
        return replace(trial, infeasible=judge_feasibility(trial.measurement, self._trials.limits))

    def _failed(self, trial: Trial) -> Decision:
        assert trial.invalid is not None
        if trial.invalid is Invalid.TOO_FEW_INFERENCES:
            text = (
                "fewer than 20 inferences ended in the reference's window; a program that is faster than that most "
                "likely does not flush its output: one line for each inference, flushed (docs/workloads.md)"
            )
            return stopped(Outcome.NO_FEASIBLE, ReasonCode.PERCENTILE_UNREACHABLE, text)
        outcome = FAILS_AS.get(trial.invalid, Outcome.UNSTABLE)
        text = f"the reference could not be measured: {trial.invalid.value}"
        return stopped(outcome, ReasonCode(trial.invalid.value), f"{text}: {trial.detail}" if trial.detail else text)

    def _set_bound(self, reference: Measurement) -> None:
        target = self._config.target
        bounds_s = [target.latency_bound_s, target.max_latency_bound_s]
        if target.latency_bound_ratio is not None:
            bounds_s.append(target.latency_bound_ratio * reference.latency_s)
        known_s = [value for value in bounds_s if value is not None]
        self.bound_s = None if target.no_latency_bound or not known_s else min(known_s)
        self._trials.limits = Limits(self.bound_s, target.max_power_w, self._rate_hz)

    def _doubt_bound(self, reference: Measurement) -> None:
        """One that bounds nothing was most likely meant in milliseconds."""
        asked_s = self._config.target.latency_bound_s
        if asked_s is None or asked_s <= _BOUND_IS_ODD * reference.latency_s:
            return
        self._warn(
            f"a latency bound of {asked_s:g} s is {asked_s / reference.latency_s:.0f} x the reference's latency "
            f"({1000 * reference.latency_s:.3g} ms) and bounds nothing: the unit is seconds; "
            f"for {asked_s:g} ms: --latency-bound-s {asked_s / 1000:g}"
        )

    def _check_rate(self, reference: Measurement) -> None:
        """More than all that the base mode allows is not to be had from any candidate."""
        if judge_feasibility(reference, Limits(rate_hz=self._rate_hz)) is None:
            return
        text = (
            f"the board's own mode manages {reference.requests / reference.duration_s:.4g} requests a second of the "
            f"{self._rate_hz:g} that arrive (rate_not_reached), and no candidate is faster; lower the rate"
        )
        raise Stopped(stopped(Outcome.NO_FEASIBLE, ReasonCode.RATE_NOT_REACHED, text))

    def _check_percentile(self, reference: Measurement) -> None:
        if self.bound_s is None:
            return
        wanted = self._config.target.latency_percentile
        rate_hz = reference.requests / reference.duration_s
        highest = reachable_percentile(rate_hz, LONGEST_WINDOW_S, reference.latency_design)
        if highest is None or highest < wanted:
            most = "none at all" if highest is None else f"p{highest:g} at most"
            text = (
                f"p{wanted:g} cannot be bounded at {rate_hz:.2f} requests a second within {LONGEST_WINDOW_S:g} s: "
                f"{most}; ask for a lower --latency-percentile"
            )
            raise Stopped(stopped(Outcome.NO_FEASIBLE, ReasonCode.PERCENTILE_UNREACHABLE, text))

    def check(self, tell: Callable[[Trial], None]) -> None:
        """Measure it again; a board on which it moves by 8 % even after more settling cannot be tuned.

        Raises Stopped.
        """
        trial = self._run()
        tell(trial)
        if not self._has_moved(trial):
            return
        self._events.warn("the reference has moved; it is measured again after 120 s more of settling")
        again = self._run(more_settle_s=_MORE_SETTLE_S)
        tell(again)
        if again.invalid is not None:
            raise Stopped(self._failed(again))
        if self._has_moved(again):
            raise Stopped(stopped(Outcome.UNSTABLE, ReasonCode.UNSTEADY, self._moved_text(again)))

    def _run(self, *, more_settle_s: float = 0.0) -> Trial:
        index = self._trials.space.reference
        capped = ClocksPolicy.CAPPED
        return self._trials.run(index, Purpose.REFERENCE, capped, more_settle_s=more_settle_s, may_cut=False)

    def _has_moved(self, trial: Trial) -> bool:
        assert self.first is not None
        if trial.measurement is None or trial.invalid is not None:
            return False
        moved = math.log(trial.measurement.energy_j / self.first.energy_j)
        return abs(moved) > _MOVED_RATIO

    def _moved_text(self, trial: Trial) -> str:
        assert trial.measurement is not None
        assert self.first is not None
        return (
            f"the reference took {self.first.energy_j:.4g} J per inference first and "
            f"{trial.measurement.energy_j:.4g} J later, more than 8 % apart even after settling: "
            "something besides the power mode changes the board's draw"
        )
