"""The finals of a job: who meets whom, what is decided, and what is said where there is nobody to meet."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from jouled.board.apply import ClocksPolicy
from jouled.job.blocks import Arm, run_blocks
from jouled.job.ending import FAILS_AS
from jouled.job.events import Events
from jouled.job.request import Request
from jouled.job.trials import Trials
from jouletune.decision import Decision, Outcome, ReasonCode, Words, decide, stopped
from jouletune.finals import Finals
from jouletune.search import Search
from jouletune.trial import Infeasible, Purpose, judge_feasibility

_WINDOW_MARGIN = 1.02
_ROUND_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """What a job came to: the decision, whose `winner` and `best` are numbers of `arms`."""

    decision: Decision
    arms: dict[int, Arm]
    incumbent: Arm
    bound_s: float | None
    best_seen: Arm | None


class LastRound:
    """What follows a search. `has_time` says whether one more window of an arm fits; `barred`, what was too risky."""

    def __init__(
        self,
        request: Request,
        trials: Trials,
        incumbent: Arm,
        events: Events,
        *,
        bound_s: float | None,
        words: Words,
        barred: str,
        has_time: Callable[[Arm], bool],
    ) -> None:
        self._config = request.config
        self._request = request
        self._trials = trials
        self._space = trials.space
        self._incumbent = incumbent
        self._events = events
        self._bound_s = bound_s
        self._words = words
        self._barred = barred
        self._has_time = has_time
        self._policy = request.searched_policy

    @property
    def _reference(self) -> Arm:
        return Arm(self._space.reference, ClocksPolicy.CAPPED)

    def run(self, search: Search, ended: ReasonCode) -> Finding:
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
            in_time = run_blocks(self._trials, finals, arms, random.Random(self._request.seed), self._has_time)
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
            objective=self._request.objective,
        )
        return arms, finals

    def _best(self, search: Search) -> list[int]:
        """Those measured under the policy that is searched, the least cost first; the reference never is locked."""
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
        return stopped(FAILS_AS.get(reason, Outcome.UNSTABLE), ReasonCode(reason.value), text)

    def _no_contest(self, finals: Finals, ended: ReasonCode) -> Decision | None:
        """Where nobody can replace the incumbent there is nothing to play for."""
        if finals.contenders:
            return None
        loss = self._loss_of(self._incumbent)
        if loss is None:
            return stopped(Outcome.NO_GAIN, ended, self._with_barred("no other feasible candidate was found"))
        if self._incumbent != self._reference and self._loss_of(self._reference) is None:
            text = f"what was in force is infeasible ({loss.value}); the board's own mode is not, and replaces it"
            decision = stopped(Outcome.TUNED, ended, text)
            return replace(decision, winner=finals.reference, best=finals.reference)
        codes = {"max_power": ReasonCode.MAX_POWER, "rate_not_reached": ReasonCode.RATE_NOT_REACHED}
        text = f"neither {self._words.incumbent} ({loss.value}) nor any candidate tried keeps the limits"
        decision = stopped(Outcome.NO_FEASIBLE, codes.get(loss.value, ended), self._with_barred(text))
        return replace(decision, use_reference=self._incumbent != self._reference)

    def _with_barred(self, text: str) -> str:
        return "; ".join(filter(None, (text, self._barred)))

    def _loss_of(self, arm: Arm) -> Infeasible | None:
        """The limit that it is shown to break; one that it merely might break is none."""
        windows = self._trials.account.valid(arm.index, arm.policy.value)
        last = windows[-1].measurement if windows else None
        if last is None:
            return None
        loss = judge_feasibility(last, self._trials.limits)
        might = loss is Infeasible.LATENCY and self._bound_s is not None and last.latency_lower_s <= self._bound_s
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
