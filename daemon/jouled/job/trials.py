"""One candidate after another: applied, verified, measured, judged, repeated where that is of use, written down."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

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
from jouled.job.account import Account
from jouled.job.judging import Judge
from jouled.job.measuring import Measurer, Taken, Wanted
from jouled.job.modes import Modes
from jouled.job.watch import SCATTER_RATIO
from jouled.workload.runner import Runner
from jouletune.space import Space, Variant
from jouletune.trial import Infeasible, Invalid, Limits, Purpose, Trial

log = logging.getLogger(__name__)

_WAIT_STEPS = (10, 40)  # seconds after a trial lost to the board: so many more each time in a row, and at most
# What a runner that says so would say again, in whatever mode (docs/workloads.md).
_STAYS_SO = frozenset(
    {
        *("bad_spec", "plan_unreadable", "plan_invalid", "shape_outside_profile", "output_mismatch"),
        *("no_tensorrt", "no_pycuda", "no_gpu", "inputs_invalid", "build_failed", OUT_OF_MEMORY),
    }
)


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
        self.may_repeat: Callable[[Trial], bool] = lambda _: True
        self.account = Account()
        self._judge = Judge(self.account, space.reference, runner.arrival, percentile, warn, Limits())

    @property
    def limits(self) -> Limits:
        """What windows are judged by."""
        return self._judge.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._judge.limits = limits

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
        return self._judge.weigh(blank, taken, self._modes.verify(mode, policy)), taken

    def _cutting_bound_s(self, plan: Plan) -> float | None:
        """What the running test of a window is held against; None: no test."""
        bound_s = self.limits.bound_s
        if bound_s is None or not plan.may_cut:
            return None
        return bound_s * (1.0 + SCATTER_RATIO) if plan.is_watch else bound_s

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


def _with_hint(text: str, error: JouledError) -> str:
    """A trial has one text: what to do is in it, too."""
    return f"{text}; {error.hint}" if error.hint else text
