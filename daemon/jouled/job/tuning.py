"""The course of a job between the snapshot and the decision: reference, incumbent, search, finals."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from jouled.board.apply import ClocksPolicy
from jouled.job.blocks import Arm
from jouled.job.events import Events
from jouled.job.lastround import Finding, LastRound
from jouled.job.measuring import COUNTERS_S
from jouled.job.observation import observation_of
from jouled.job.request import REFERENCE_EVERY, Request
from jouled.job.trials import Trials
from jouled.job.yardstick import Yardstick
from jouletune.decision import ReasonCode, Words
from jouletune.search import Search
from jouletune.trial import Infeasible, Purpose, Trial


class Tuning:
    """One job's course. `make_search(bound_s)` opens the study; `elapsed_s` is the job's age."""

    def __init__(
        self,
        request: Request,
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
        self._trials = trials
        self._incumbent = incumbent
        self._events = events
        self._elapsed_s = elapsed_s
        self._make_search = make_search
        self._warn = warn
        self._reference = Yardstick(request.config, trials, events, rate_hz=rate_hz, warn=warn)
        held, arm = ("the first variant", "variant") if request.fixed else ("what is in force", "power mode")
        self._words = Words(held, arm, inference_name)
        self._barred = ""
        trials.may_repeat = self._has_time_to_repeat

    def run(self) -> Finding:
        """Measure, search, decide. Raises Stopped, Cancelled, and what Trials.run raises."""
        reference = self._reference.measure()
        bound_s = self._reference.bound_s
        search = self._make_search(bound_s)
        self._tell(search, reference)
        if self._comes_first(search):
            self._measure_incumbent(search)
        self._events.emit("phase", phase="search", bound_s=bound_s)
        ended = self._search(search)
        if self._owes_incumbent() and self._has_time():
            self._measure_incumbent(search)
        return LastRound(
            self._request,
            self._trials,
            self._incumbent,
            self._events,
            bound_s=bound_s,
            words=self._words,
            barred=self._barred,
            has_time=self._has_time_for,
        ).run(search, ended)

    def _tell(self, search: Search, trial: Trial) -> None:
        search.tell(trial.index, observation_of(trial, self._reference.bound_s))

    def _comes_first(self, search: Search) -> bool:
        """With another bound the search may know better what to try: then what is in force is measured at its end."""
        is_searched = self._incumbent.policy is self._request.searched_policy
        return self._owes_incumbent() and (not is_searched or search.incumbent == self._incumbent.index)

    def _owes_incumbent(self) -> bool:
        """What is in force, if that is not the reference, has a window before the finals."""
        incumbent = self._incumbent
        is_reference = incumbent == Arm(self._trials.space.reference, ClocksPolicy.CAPPED)
        tried = {(trial.index, trial.policy) for trial in self._trials.account.trials}
        return not is_reference and (incumbent.index, incumbent.policy.value) not in tried

    def _measure_incumbent(self, search: Search) -> None:
        self._events.emit("phase", phase="incumbent")
        trial = self._trials.run(self._incumbent.index, Purpose.INCUMBENT, self._incumbent.policy, may_cut=False)
        if self._incumbent.policy is self._request.searched_policy:  # else it is no candidate of this search
            self._tell(search, trial)

    # --- search -----------------------------------------------------------------------------------------

    def _search(self, search: Search) -> ReasonCode:
        """Trials until the sampler, the budget or the time ends them: which of the three."""
        since_reference = self._windows()
        while True:
            spent = self._windows()
            if spent + self._owes_incumbent() >= self._config.job.budget:
                return ReasonCode.BUDGET
            if not self._has_time():
                return ReasonCode.TIME
            if spent - since_reference >= REFERENCE_EVERY:
                self._reference.check(lambda trial: self._tell(search, trial))
                since_reference = self._windows()
                continue
            index = search.ask()
            if index is None:
                self._note_barred(search)
                return ReasonCode.CONVERGED
            self._tell(search, self._trials.run(index, Purpose.SEARCH, self._request.searched_policy))

    def _note_barred(self, search: Search) -> None:
        """A search that ends since nothing else may be started has not seen all that there was."""
        risk, outlook = self._config.job.risk, search.outlook()
        if risk is None or outlook is None or not outlook.barred:
            return
        least = 1.0 - max(outlook.barred.values())
        self._barred = (
            f"{len(outlook.barred)} of {len(self._trials.space)} candidates were not started: each may break the bound "
            f"with a probability over job.risk = {risk:g} ({least:.2g} and more)"
        )
        self._warn(self._barred)

    def _left_s(self) -> float:
        return self._config.job.max_duration_s - self._elapsed_s()

    def _windows(self) -> int:
        """Windows so far; a variant that did not fit into the memory has taken none."""
        return sum(trial.infeasible is not Infeasible.MEMORY for trial in self._trials.account.trials)

    def _has_time(self) -> bool:
        return self._left_s() >= self._request.reserve_s(self._mean_trial_s())

    def _has_time_to_repeat(self, trial: Trial) -> bool:
        """A window of the search leaves the finals their time; without a reference, or in the finals, one must fit."""
        if trial.purpose is Purpose.FINALS or self._reference.first is None:
            return self._left_s() >= trial.duration_s + self._request.after_s()
        return self._has_time()

    def _mean_trial_s(self) -> float:
        return fmean(trial.duration_s for trial in self._trials.account.valid())

    def _has_time_for(self, arm: Arm) -> bool:
        job = self._config.job
        window_s = arm.window_s if arm.window_s is not None else job.pilot_s + job.window_max_s
        return self._left_s() >= job.settle_min_s + window_s + COUNTERS_S + self._request.after_s()
