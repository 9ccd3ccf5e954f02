"""One candidate after another: applied, verified, measured, judged, repeated where that is of use, written down."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from jouled.board.apply import ClocksPolicy
from jouled.board.host import Host
from jouled.board.pending import Why
from jouled.errors import (
    OUT_OF_MEMORY,
    ApplyError,
    JouledError,
    SensorError,
    ToolAbsentError,
    WorkloadDiedError,
    WorkloadError,
    WorkloadHungError,
)
from jouled.job.measuring import Measurer, Taken, Wanted
from jouled.job.modes import Modes
from jouled.job.watch import SCATTER_RATIO
from jouled.workload.runner import Runner
from jouletune.errors import MeasurementError
from jouletune.latency import Clustering, is_beyond
from jouletune.measurement import Between, Measurement, Replicate, between_spread, measure
from jouletune.space import Space, Variant
from jouletune.trial import (
    Evidence,
    Infeasible,
    Invalid,
    Limits,
    Purpose,
    Repeats,
    Trial,
    judge_feasibility,
    judge_validity,
)

log = logging.getLogger(__name__)

_WAIT_STEPS = (10, 40)  # seconds after a trial lost to the board: so many more each time in a row, and at most
_SILENT_PERIODS = 10.0
_SILENT_S = 0.5
# What a runner that says so would say again, in whatever mode (docs/workloads.md).
_STAYS_SO = frozenset(
    {
        *("bad_spec", "plan_unreadable", "plan_invalid", "shape_outside_profile", "output_mismatch"),
        *("no_tensorrt", "no_pycuda", "no_gpu", "inputs_invalid", "build_failed", OUT_OF_MEMORY),
    }
)


@dataclass
class Account:
    """What the trials of a job have shown so far."""

    clustering: Clustering = field(default_factory=Clustering)
    repeats: Repeats = field(default_factory=Repeats)
    invalid: Counter[str] = field(default_factory=Counter)
    trials: list[Trial] = field(default_factory=list)
    latencies_s: dict[tuple[int, str], list[NDArray[np.float64]]] = field(default_factory=dict)
    normal_over_current_hz: float = 0.0
    disturbed_s: float = 0.0

    def valid(self, index: int | None = None, policy: str | None = None) -> list[Trial]:
        """Trials with numbers that count, of one candidate (and policy) where it is named."""
        return [
            trial
            for trial in self.trials
            if trial.measurement is not None
            and trial.invalid is None
            and index in (None, trial.index)
            and policy in (None, trial.policy)
        ]

    def between(self) -> Between:
        """The spread between windows of one mode, from this job's replicates."""
        groups: dict[tuple[int, str], list[Replicate]] = {}
        for trial in self.valid():
            assert trial.measurement is not None
            window = trial.measurement
            replicate = Replicate(math.log(window.energy_j), window.repeat_se_j / window.energy_j)
            groups.setdefault((trial.index, trial.policy), []).append(replicate)
        return between_spread(list(groups.values()))


@dataclass(frozen=True, slots=True)
class Plan:
    """How one candidate is measured. What must be compared with is never cut short, however slow it looks."""

    window_s: float | None
    more_settle_s: float
    may_cut: bool
    is_watch: bool = False


class Trials:
    """Runs trials of the candidates of `space` under `limits`; `record` keeps each before anything follows from it."""

    def __init__(
        self,
        host: Host,
        space: Space,
        modes: Modes,
        measurer: Measurer,
        runner: Runner,
        *,
        percentile: float,
        record: Callable[[Trial, Taken | None], None],
        on_applied: Callable[[int, ClocksPolicy], None],
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        self._host = host
        self.space = space
        self._modes = modes
        self._measurer = measurer
        self._runner = runner
        self.percentile = percentile
        self._record = record
        self._on_applied = on_applied
        self._warn = warn
        self._began_s = host.clock.monotonic_s()
        self._loaded: Variant | None = None
        self._unloadable: dict[Variant, WorkloadError] = {}
        self._lost = 0
        self.limits = Limits()
        self.may_repeat: Callable[[Trial], bool] = lambda _: True
        self.account = Account()

    def run(
        self,
        index: int,
        purpose: Purpose,
        policy: ClocksPolicy,
        *,
        window_s: float | None = None,
        more_settle_s: float = 0.0,
        may_cut: bool = True,
    ) -> Trial:
        """Try a candidate, again while it is invalid and repeats are left; the last try.

        Raises Cancelled, StuckError and what the runner raises when it cannot be loaded.
        """
        plan = Plan(window_s, more_settle_s, may_cut)
        attempt = 0
        while True:
            blank = self._blank(index, purpose, policy, attempt)
            trial, taken = self._judged(blank, policy, plan)
            trial = replace(trial, duration_s=self._host.clock.monotonic_s() - self._began_s - trial.t_s)
            self._keep(trial, taken)
            reason = trial.invalid
            in_danger = taken is not None and taken.alarm != ""
            is_hopeless = trial.candidate.variant in self._unloadable
            if reason is None or in_danger or is_hopeless or not self.account.repeats.allows(reason, attempt):
                return trial
            if not self.may_repeat(trial):
                log.info("%s is not repeated: no time is left", reason.value)
                return trial
            self.account.repeats = self.account.repeats.spend(reason)
            attempt += 1

    def watch(self, index: int, policy: ClocksPolicy, duration_s: float) -> Trial:
        """What is in force already, under load for `duration_s` more: judged as any window is, and counted nowhere.

        Raises Cancelled, StuckError, WorkloadError.
        """
        blank = self._blank(index, Purpose.FINALS, policy, 0)
        self._load(blank.candidate.variant)
        return self._measured(blank, policy, Plan(duration_s, 0.0, may_cut=True, is_watch=True))[0]

    def _keep(self, trial: Trial, taken: Taken | None) -> None:
        account = self.account
        account.trials.append(trial)
        account.disturbed_s += trial.duration_s
        if trial.invalid is not None:
            if trial.invalid.value not in account.invalid and trial.detail:
                self._warn(f"a window is no evidence ({trial.invalid.value}): {trial.detail}")
            account.invalid[trial.invalid.value] += 1
        elif taken is not None and trial.measurement is not None:
            ended = (taken.completions.end_s >= taken.start_s) & (taken.completions.end_s <= taken.end_s)
            latency_s = (taken.completions.end_s - taken.completions.arrival_s)[ended]
            account.clustering = account.clustering.add(latency_s, self.percentile)
            account.latencies_s.setdefault((trial.index, trial.policy), []).append(latency_s)
        self._record(trial, taken)

    def _blank(self, index: int, purpose: Purpose, policy: ClocksPolicy, attempt: int) -> Trial:
        return Trial(
            number=len(self.account.trials),
            attempt=attempt,
            purpose=purpose,
            index=index,
            candidate=self.space.candidates[index],
            policy=policy.value,
            t_s=self._host.clock.monotonic_s() - self._began_s,
            duration_s=0.0,
        )

    def _judged(self, blank: Trial, policy: ClocksPolicy, plan: Plan) -> tuple[Trial, Taken | None]:
        refused = self._unloadable.get(blank.candidate.variant)
        if refused is not None:
            return self._not_loaded(blank, refused), None
        self._wait_until_it_may_work()
        try:
            self._apply(blank, policy)
        except (ApplyError, ToolAbsentError) as error:  # a tool may be gone while a package is being upgraded
            self._lost += 1
            return replace(blank, invalid=Invalid.APPLY_FAILED, detail=str(error)), None
        try:
            self._load(blank.candidate.variant)
        except WorkloadError as error:
            if blank.index == self.space.reference:
                raise
            if error.code in _STAYS_SO:
                self._unloadable[blank.candidate.variant] = error
            return self._not_loaded(blank, error), None
        return self._measured(blank, policy, plan)

    def _not_loaded(self, blank: Trial, error: WorkloadError) -> Trial:
        if error.code == OUT_OF_MEMORY:
            return replace(blank, infeasible=Infeasible.MEMORY, detail=_with_hint(str(error), error))
        return replace(blank, invalid=Invalid.WORKLOAD_DIED, detail=f"not loaded: {_with_hint(error.told, error)}")

    def _measured(self, blank: Trial, policy: ClocksPolicy, plan: Plan) -> tuple[Trial, Taken | None]:
        """Of a candidate that is in force and loaded."""
        mode = blank.candidate.mode
        wanted = Wanted(
            mode=mode,
            locked=policy is ClocksPolicy.LOCKED,
            bound_s=self._cutting_bound_s(plan),
            clustering=self.account.clustering,
            window_s=plan.window_s,
            more_settle_s=plan.more_settle_s,
            is_watch=plan.is_watch,
        )
        try:
            taken = self._measurer.take(wanted)
        except WorkloadDiedError as error:
            self._loaded = None
            return replace(blank, invalid=Invalid.WORKLOAD_DIED, detail=_with_hint(error.told, error)), None
        except WorkloadHungError as error:
            self._loaded = None
            return replace(blank, invalid=Invalid.WORKLOAD_HUNG, detail=_with_hint(str(error), error)), None
        except SensorError as error:
            self._lost += 1
            return replace(blank, invalid=Invalid.SENSOR_GAP, detail=_with_hint(str(error), error)), None
        self._lost = 0
        if taken.alarm:
            self._leave()
            return replace(blank, invalid=Invalid.THROTTLED, detail=taken.alarm), taken
        self._modes.survived()
        return self._weigh(blank, taken, self._modes.verify(mode, policy)), taken

    def _apply(self, blank: Trial, policy: ClocksPolicy) -> None:
        is_reference = blank.index == self.space.reference
        why = Why.REFERENCE if is_reference else Why.TRIAL
        self._modes.enter(blank.candidate.mode, policy, why)
        self._on_applied(blank.index, policy)

    def _wait_until_it_may_work(self) -> None:
        """What keeps modes from being applied or sensors from being read may pass; at once it is still there."""
        each, most = _WAIT_STEPS
        steps = min(each * self._lost, most)
        for _ in range(steps):
            self._measurer.cancellation.sleep(self._host.clock, 1.0)
            self._measurer.progress("retry", self._host.clock.monotonic_s(), float(steps))

    def _leave(self) -> None:
        """The board is in danger in this mode: back to the reference at once, and no load until it is not."""
        reference = self.space.candidates[self.space.reference]
        self._modes.enter(reference.mode, ClocksPolicy.CAPPED, Why.REFERENCE)
        self._measurer.cool_down()

    def _load(self, variant: Variant) -> None:
        if self._loaded != variant:
            self._loaded = None  # whatever was loaded ends before
            self._runner.load(variant)
            self._loaded = variant

    # --- judging ----------------------------------------------------------------------------------------

    def _weigh(self, blank: Trial, taken: Taken, mismatches: tuple[str, ...]) -> Trial:
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
        gap_s = self._runner.arrival.longest_gap_s
        if measurement is not None and (silent_s := _silent_s(taken, measurement, gap_s)) > 0.0:
            detail = f"nothing ended in {silent_s:.1f} s of the window"
            return replace(blank, invalid=Invalid.WORKLOAD_HUNG, detail=detail)
        infeasible = self._infeasible(taken, measurement)
        is_reference = blank.index == self.space.reference
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

    def _cutting_bound_s(self, plan: Plan) -> float | None:
        """What the running test of a window is held against; None: no test."""
        bound_s = self.limits.bound_s
        if bound_s is None or not plan.may_cut:
            return None
        return bound_s * (1.0 + SCATTER_RATIO) if plan.is_watch else bound_s

    def _adopt_over_current(self, normal_hz: float) -> None:
        """Boards where over-current events are normal take the reference's rate as normal, and say so."""
        if normal_hz > 0.0 and self.account.normal_over_current_hz == 0.0:
            self._warn(
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
                period_s=self._runner.arrival.period_s,
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


def _with_hint(text: str, error: JouledError) -> str:
    """A trial has one text: what to do is in it, too."""
    return f"{text}; {error.hint}" if error.hint else text


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
