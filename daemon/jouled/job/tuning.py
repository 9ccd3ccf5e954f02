"""The course of a job between the snapshot and the decision: reference, incumbent, search, finals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

from jouled.board.apply import ClocksPolicy
from jouled.job.blocks import Arm, run_blocks
from jouled.job.events import Events
from jouled.job.measuring import COUNTERS_S
from jouled.job.request import LONGEST_WINDOW_S, REFERENCE_EVERY, Request
from jouled.job.trials import Trials
from jouletune.decision import Decision, Outcome, ReasonCode, Words, decide, stopped
from jouletune.finals import Finals
from jouletune.measurement import Measurement
from jouletune.quantiles import reachable_percentile
from jouletune.search import Failed, Infeasible, Measured, Observation, Search
from jouletune.space import Space
from jouletune.trial import Infeasible as Infeasibility
from jouletune.trial import Invalid, Limits, Purpose, Trial, judge_feasibility

_MOVED_RATIO = 0.08
_MORE_SETTLE_S = 120.0
_WINDOW_MARGIN = 1.02
_ROUND_BLOCKS = 3
_BOUND_IS_ODD = 100.0  # times the reference's latency: no application means that

_REFERENCE_FAILS = {
    Invalid.APPLY_FAILED: Outcome.BOARD_FAULT,
    Invalid.SENSOR_GAP: Outcome.BOARD_FAULT,
    Invalid.SENSOR_STALLED: Outcome.BOARD_FAULT,
    Invalid.SENSOR_ZERO: Outcome.BOARD_FAULT,
    Invalid.WORKLOAD_DIED: Outcome.WORKLOAD_FAILED,
    Invalid.WORKLOAD_HUNG: Outcome.WORKLOAD_FAILED,
    Invalid.GPU_BUSY: Outcome.BOARD_BUSY,
}


class Stopped(Exception):
    """The job ends before its finals, with this decision."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.text)
        self.decision = decision


@dataclass(frozen=True, slots=True)
class Finding:
    """What a job came to: the decision, whose `winner` and `best` are numbers of `arms`."""

    decision: Decision
    arms: dict[int, Arm]
    incumbent: Arm
    bound_s: float | None
    best_seen: Arm | None


def observation_of(trial: Trial, bound_s: float | None) -> Observation:
    """What the search is told of a trial; a failed one is never a number."""
    if trial.invalid is not None:
        return Failed(trial.invalid.value)
    window = trial.measurement
    if window is None or (math.isinf(window.latency_upper_s) and bound_s is not None):
        return Infeasible()
    upper_s = window.latency_upper_s if math.isfinite(window.latency_upper_s) else window.latency_s
    return Measured(
        energy_j=window.energy_j,
        energy_se_j=window.energy_se_j,
        latency_s=window.latency_s,
        latency_upper_s=upper_s,
        latency_se_s=window.latency_se_s,
        power_w=window.power_w,
        feasible=trial.infeasible is None,
    )


class Tuning:
    """One job's course. `make_search(bound_s)` opens the study; `elapsed_s` is the job's age."""

    def __init__(
        self,
        request: Request,
        space: Space,
        trials: Trials,
        incumbent: Arm,
        *,
        rate_hz: float | None,
        events: Events,
        elapsed_s: Callable[[], float],
        make_search: Callable[[float | None], Search],
        warn: Callable[[str], None],
        inference_name: str,
    ) -> None:
        self._request = request
        self._config = request.config
        self._space = space
        self._trials = trials
        self._incumbent = incumbent
        self._rate_hz = rate_hz
        self._events = events
        self._elapsed_s = elapsed_s
        self._make_search = make_search
        self._warn = warn
        held, arm = ("the first variant", "variant") if request.fixed else ("what is in force", "power mode")
        self._words = Words(held, arm, inference_name)
        self._bound_s: float | None = None
        self._first_reference: Measurement | None = None
        trials.may_repeat = self._has_time_to_repeat

    @property
    def _reference(self) -> Arm:
        return Arm(self._space.reference, ClocksPolicy.CAPPED)

    @property
    def _policy(self) -> ClocksPolicy:
        return ClocksPolicy.LOCKED if self._config.grid.clocks == "locked" else ClocksPolicy.CAPPED

    def run(self) -> Finding:
        """Measure, search, decide. Raises Stopped, Cancelled, and what Trials.run raises."""
        reference = self._measure_reference()
        search = self._make_search(self._bound_s)
        search.tell(self._space.reference, observation_of(reference, self._bound_s))
        self._measure_incumbent(search)
        self._events.emit("phase", phase="search", bound_s=self._bound_s)
        ended = self._search(search)
        return self._finals(search, ended)

    # --- reference and incumbent ------------------------------------------------------------------------

    def _measure_reference(self) -> Trial:
        self._events.emit("phase", phase="reference")
        trial = self._trials.run(self._reference.index, Purpose.REFERENCE, ClocksPolicy.CAPPED)
        if trial.invalid is not None:
            raise Stopped(self._reference_failed(trial))
        assert trial.measurement is not None
        self._first_reference = trial.measurement
        self._set_bound(trial.measurement)
        self._doubt_bound(trial.measurement)
        self._check_rate(trial.measurement)
        self._check_percentile(trial.measurement)
        return replace(trial, infeasible=judge_feasibility(trial.measurement, self._trials.limits))

    def _reference_failed(self, trial: Trial) -> Decision:
        assert trial.invalid is not None
        if trial.invalid is Invalid.TOO_FEW_INFERENCES:
            text = (
                "fewer than 20 inferences ended in the reference's window; a program that is faster than that most "
                "likely does not flush its output: one line for each inference, flushed (docs/workloads.md)"
            )
            return stopped(Outcome.NO_FEASIBLE, ReasonCode.PERCENTILE_UNREACHABLE, text)
        outcome = _REFERENCE_FAILS.get(trial.invalid, Outcome.UNSTABLE)
        text = f"the reference could not be measured: {trial.invalid.value}"
        return stopped(outcome, ReasonCode(trial.invalid.value), f"{text}: {trial.detail}" if trial.detail else text)

    def _set_bound(self, reference: Measurement) -> None:
        target = self._config.target
        bounds_s = [target.latency_bound_s, target.max_latency_bound_s]
        if target.latency_bound_ratio is not None:
            bounds_s.append(target.latency_bound_ratio * reference.latency_s)
        known_s = [value for value in bounds_s if value is not None]
        self._bound_s = None if target.no_latency_bound or not known_s else min(known_s)
        self._trials.limits = Limits(self._bound_s, target.max_power_w, self._rate_hz)

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
        if self._bound_s is None:
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

    def _measure_incumbent(self, search: Search) -> None:
        if self._incumbent == self._reference:
            return
        self._events.emit("phase", phase="incumbent")
        trial = self._trials.run(self._incumbent.index, Purpose.INCUMBENT, self._incumbent.policy, may_cut=False)
        if self._incumbent.policy is self._policy:  # under the other policy it is no candidate of this search
            search.tell(self._incumbent.index, observation_of(trial, self._bound_s))

    def _told(self, search: Search, index: int, purpose: Purpose, policy: ClocksPolicy) -> Trial:
        trial = self._trials.run(index, purpose, policy, may_cut=purpose is Purpose.SEARCH)
        search.tell(index, observation_of(trial, self._bound_s))
        return trial

    # --- search -----------------------------------------------------------------------------------------

    def _search(self, search: Search) -> ReasonCode:
        """Trials until the sampler, the budget or the time ends them: which of the three."""
        since_reference = self._windows()
        while True:
            spent = self._windows()
            if spent >= self._config.job.budget:
                return ReasonCode.BUDGET
            if not self._has_time():
                return ReasonCode.TIME
            if spent - since_reference >= REFERENCE_EVERY:
                self._check_reference(search)
                since_reference = self._windows()
                continue
            index = search.ask()
            if index is None:
                return ReasonCode.CONVERGED
            self._told(search, index, Purpose.SEARCH, self._policy)

    def _left_s(self) -> float:
        return self._config.job.max_duration_s - self._elapsed_s()

    def _windows(self) -> int:
        """Windows so far; a variant that did not fit into the memory has taken none."""
        return sum(trial.infeasible is not Infeasibility.MEMORY for trial in self._trials.account.trials)

    def _has_time(self) -> bool:
        return self._left_s() >= self._request.reserve_s(self._mean_trial_s())

    def _has_time_to_repeat(self, trial: Trial) -> bool:
        """A window of the search leaves the finals their time; without a reference, or in the finals, one must fit."""
        if trial.purpose is Purpose.FINALS or self._first_reference is None:
            return self._left_s() >= trial.duration_s + self._request.after_s()
        return self._has_time()

    def _mean_trial_s(self) -> float:
        return fmean(trial.duration_s for trial in self._trials.account.valid())

    def _check_reference(self, search: Search) -> None:
        """Measure it again; a board on which it moves by 8 % even after more settling cannot be tuned."""
        trial = self._told(search, self._reference.index, Purpose.REFERENCE, ClocksPolicy.CAPPED)
        if not self._has_moved(trial):
            return
        self._events.warn("the reference has moved; it is measured again after 120 s more of settling")
        again = self._trials.run(
            self._reference.index,
            Purpose.REFERENCE,
            ClocksPolicy.CAPPED,
            more_settle_s=_MORE_SETTLE_S,
            may_cut=False,
        )
        search.tell(self._reference.index, observation_of(again, self._bound_s))
        if again.invalid is not None:
            raise Stopped(self._reference_failed(again))
        if self._has_moved(again):
            raise Stopped(stopped(Outcome.UNSTABLE, ReasonCode.UNSTEADY, self._moved_text(again)))

    def _has_moved(self, trial: Trial) -> bool:
        assert self._first_reference is not None
        if trial.measurement is None or trial.invalid is not None:
            return False
        moved = math.log(trial.measurement.energy_j / self._first_reference.energy_j)
        return abs(moved) > _MOVED_RATIO

    def _moved_text(self, trial: Trial) -> str:
        assert trial.measurement is not None
        assert self._first_reference is not None
        return (
            f"the reference took {self._first_reference.energy_j:.4g} J per inference first and "
            f"{trial.measurement.energy_j:.4g} J later, more than 8 % apart even after settling: "
            "something besides the power mode changes the board's draw"
        )

    # --- finals -----------------------------------------------------------------------------------------

    def _finals(self, search: Search, ended: ReasonCode) -> Finding:
        """The best two meet what is in force; where all of them break a limit then, the next best do."""
        best = self._best(search)
        best_seen = self._arm(best[0], self._policy) if best else None
        windows = self._config.job.finals_windows
        while True:
            round_of = 2 if windows >= 3 * _ROUND_BLOCKS else 1
            arms, finals = self._line_up(best[:round_of], windows)
            decision = self._nothing_measured() or self._no_contest(finals, ended)
            if decision is not None:
                break
            self._events.emit("phase", phase="finals", reason=ended.value, arms=len(arms))
            in_time = run_blocks(self._trials, finals, arms, random.Random(self._request.seed), self._has_time_for)
            decision = decide(finals, ended=ended if in_time else ReasonCode.TIME, words=self._words)
            best, windows = best[round_of:], finals.windows_left
            if not (in_time and best and finals.all_contenders_lost and windows >= 2 * _ROUND_BLOCKS):
                break
        return Finding(decision, arms, self._incumbent, self._bound_s, best_seen)

    def _line_up(self, best: list[int], windows: int) -> tuple[dict[int, Arm], Finals]:
        """The arms by number, and the finals that they play in at most so many windows."""
        finalists = self._finalists(best)
        arms = dict(enumerate(dict.fromkeys((*finalists, self._incumbent_arm(), self._arm_of_reference()))))
        number_of = {(arm.index, arm.policy): number for number, arm in arms.items()}
        between = self._trials.account.between()
        finals = Finals(
            [number_of[arm.index, arm.policy] for arm in finalists],
            reference=number_of[self._reference.index, ClocksPolicy.CAPPED],
            incumbent=number_of[self._incumbent.index, self._incumbent.policy],
            min_gain=self._config.target.min_gain,
            percentile=None if self._bound_s is None else self._config.target.latency_percentile,
            between_ratio=between.ratio,
            between_dof=between.dof,
            max_windows=windows,
        )
        return arms, finals

    def _best(self, search: Search) -> list[int]:
        """Those measured under the policy that is searched, the least energy first; the reference never is locked."""
        policy = self._policy.value
        return [index for index in search.best(len(self._space)) if self._trials.account.valid(index, policy)]

    def _nothing_measured(self) -> Decision | None:
        """Where no candidate besides what is in force gave evidence, nothing is known to be right: say what failed."""
        tried = [trial for trial in self._trials.account.trials if trial.purpose is Purpose.SEARCH]
        reasons = [trial.invalid for trial in tried if trial.invalid is not None]
        if not reasons or len(reasons) < len(tried):
            return None
        reason = max(set(reasons), key=reasons.count)
        detail = next(trial.detail for trial in tried if trial.invalid is reason)
        text = f"none of {len(tried)} trials of another {self._words.arm} is valid ({reason.value}): {detail}"
        return stopped(_REFERENCE_FAILS.get(reason, Outcome.UNSTABLE), ReasonCode(reason.value), text)

    def _no_contest(self, finals: Finals, ended: ReasonCode) -> Decision | None:
        """Where nobody can replace the incumbent there is nothing to play for."""
        if finals.contenders:
            return None
        loss = self._loss_of(self._incumbent)
        if loss is None:
            return stopped(Outcome.NO_GAIN, ended, "no other feasible candidate was found")
        if self._incumbent != self._reference and self._loss_of(self._reference) is None:
            text = f"what was in force is infeasible ({loss.value}); the board's own mode is not, and replaces it"
            decision = stopped(Outcome.TUNED, ended, text)
            return replace(decision, winner=finals.reference, best=finals.reference)
        codes = {"max_power": ReasonCode.MAX_POWER, "rate_not_reached": ReasonCode.RATE_NOT_REACHED}
        text = f"neither {self._words.incumbent} ({loss.value}) nor any candidate tried keeps the limits"
        decision = stopped(Outcome.NO_FEASIBLE, codes.get(loss.value, ended), text)
        return replace(decision, use_reference=self._incumbent != self._reference)

    def _loss_of(self, arm: Arm) -> Infeasibility | None:
        """The limit that it is shown to break; one that it merely might break is none."""
        windows = self._trials.account.valid(arm.index, arm.policy.value)
        last = windows[-1].measurement if windows else None
        if last is None:
            return None
        loss = judge_feasibility(last, self._trials.limits)
        might = loss is Infeasibility.LATENCY and self._bound_s is not None and last.latency_lower_s <= self._bound_s
        return None if might else loss

    def _finalists(self, best: list[int]) -> list[Arm]:
        if self._config.grid.clocks != "both" or not best:
            return [self._arm(index, self._policy) for index in best]
        return [self._arm(best[0], policy) for policy in (ClocksPolicy.CAPPED, ClocksPolicy.LOCKED)]

    def _arm(self, index: int, policy: ClocksPolicy) -> Arm:
        """An arm with the window that its own trials have needed."""
        windows = self._trials.account.valid(index, policy.value)
        needed_s = [trial.measurement.duration_s for trial in windows if trial.measurement is not None]
        least_s = self._config.job.window_min_s
        return Arm(index, policy, max(least_s, *(_WINDOW_MARGIN * value for value in needed_s)) if needed_s else None)

    def _incumbent_arm(self) -> Arm:
        return self._arm(self._incumbent.index, self._incumbent.policy)

    def _arm_of_reference(self) -> Arm:
        return self._arm(self._reference.index, ClocksPolicy.CAPPED)

    def _has_time_for(self, arm: Arm) -> bool:
        job = self._config.job
        window_s = arm.window_s if arm.window_s is not None else job.pilot_s + job.window_max_s
        return self._left_s() >= job.settle_min_s + window_s + COUNTERS_S + self._request.after_s()
