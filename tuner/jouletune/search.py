"""What to measure next, by Optuna's ask and tell.

A study holds one trial for each window told. A sampler has no state of its own: what it proposes follows from
the study's finished trials and the seed, so a search that was killed goes on with the very proposal it would have
made.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import optuna
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from jouletune.descent import descend
from jouletune.earlier import Earlier, decode_earlier, encode_earlier
from jouletune.errors import SearchError
from jouletune.joule import JouleSampler
from jouletune.objective import Objective
from jouletune.sampler import Belief, CandidateSampler, Outlook, Question, distributions, parameters
from jouletune.space import Space
from jouletune.standing import (
    CANDIDATE,
    OBSERVATION,
    RETRY,
    Failed,
    Infeasible,
    Measured,
    Observation,
    Standings,
    breach,
    encode,
    standings,
    state_of,
)

__all__ = [
    "DEFAULT_SAMPLER",
    "SAMPLERS",
    "CandidateSampler",
    "Failed",
    "Infeasible",
    "Measured",
    "Observation",
    "Search",
]

DEFAULT_SAMPLER = "joule"

_SPACE = "space"
_EARLIER = "earlier"
_AXES = "axes"  # what the ranks mean, for people
_BREACH = "breach"
# TPE draws at random until it has seen this many; Optuna's own 10 is most of a job's budget.
_TPE_STARTUP = 4


class DescentSampler(CandidateSampler):
    """See `jouletune.descent`."""

    def choose(self, study: Study, trial: FrozenTrial | None, seen: Standings) -> int | None:
        objective = self.question.objective
        known = {index: s.merit(self.bound_s, objective) for index, s in seen.items() if s.known}
        return descend(self.space, known, start=self.start, avoid=seen.keys() - known.keys())


class RandomSampler(CandidateSampler):
    """Any candidate not seen yet."""

    def choose(self, study: Study, trial: FrozenTrial | None, seen: Standings) -> int | None:
        left = self.open(seen)
        return self.random(study).choice(left) if left else None


class GridSampler(CandidateSampler):
    """Every candidate, in order."""

    def choose(self, study: Study, trial: FrozenTrial | None, seen: Standings) -> int | None:
        return min(self.open(seen), default=None)


class TpeSampler(CandidateSampler):
    """Optuna's TPE on the ranks; for a hole or a candidate seen already, the nearest one that is open."""

    def choose(self, study: Study, trial: FrozenTrial | None, seen: Standings) -> int | None:
        left = self.open(seen)
        if not left or trial is None:
            return left[0] if left else None
        draw = self.random(study)
        tpe = TPESampler(
            n_startup_trials=_TPE_STARTUP, multivariate=True, constant_liar=False, seed=draw.getrandbits(32)
        )
        point = tpe.sample_relative(study, trial, distributions(self.space))
        if not point:
            return draw.choice(left)
        return min(left, key=lambda index: self._distance(index, point))

    def _distance(self, index: int, point: Mapping[str, int]) -> float:
        at = self.space.coordinates(index)
        return sum(
            ((rank - point[axis.name]) / (len(axis.values) - 1)) ** 2
            for axis, rank in zip(self.space.axes, at, strict=True)
        )


SAMPLERS: dict[str, type[CandidateSampler]] = {
    "joule": JouleSampler,
    "descent": DescentSampler,
    "tpe": TpeSampler,
    "random": RandomSampler,
    "grid": GridSampler,
}


def _digest(space: Space) -> str:
    return hashlib.sha256(repr((space.candidates, space.reference)).encode()).hexdigest()


class Search:
    """One search over `space` for the least of `objective` at a latency of at most `bound_s` (None: no bound).

    `bound_se_s`: the bound's own error; `budget`: windows in all, where that is known. `storage` and `study_name` as
    Optuna takes them; a study that exists is gone on with. `earlier`: windows of earlier jobs, a prior for samplers
    with a model; a study keeps them, and one that exists goes on with its own. The rest as in `Question`. Raises
    SearchError.
    """

    def __init__(
        self,
        space: Space,
        *,
        sampler: str = DEFAULT_SAMPLER,
        bound_s: float | None,
        seed: int = 0,
        incumbent: int | None = None,
        budget: int | None = None,
        min_gain: float = 0.02,
        bound_se_s: float = 0.0,
        earlier: Sequence[Earlier] = (),
        objective: Objective = Objective.ENERGY,
        max_power_w: float | None = None,
        rate_hz: float | None = None,
        risk: float | None = None,
        storage: str | BaseStorage | None = None,
        study_name: str | None = None,
    ) -> None:
        if sampler not in SAMPLERS:
            raise SearchError(f"sampler: wanted one of {', '.join(SAMPLERS)}, got {sampler!r}")
        if bound_s is not None and not bound_s > 0.0:
            raise SearchError(f"bound_s: wanted a latency above 0 s or None, got {bound_s}")
        self.space = space
        self.bound_s = bound_s
        for window in earlier:
            window.check(len(space))
        self.incumbent = incumbent
        self._asked: tuple[int, Trial] | None = None
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it tells the terminal of each new study
        self.study = optuna.create_study(
            storage=storage, study_name=study_name, direction="minimize", load_if_exists=True
        )
        self.earlier = self._open(earlier)
        question = Question(
            bound_s,
            bound_se_s,
            budget,
            incumbent,
            seed,
            min_gain,
            self.earlier,
            objective,
            max_power_w,
            rate_hz,
            risk,
        )
        self.objective = objective
        self.study.sampler = self._sampler = SAMPLERS[sampler](space, question)
        self._sampler.reads_others = False  # one without an observation is what a killed process left

    def _open(self, earlier: Sequence[Earlier]) -> tuple[Earlier, ...]:
        """Make the study this search's own, or see that it is; the earlier windows that it goes by."""
        attributes = self.study.user_attrs
        made_for = attributes.get(_SPACE)
        if made_for is None:
            if earlier:
                self.study.set_user_attr(_EARLIER, encode_earlier(earlier))
            self.study.set_user_attr(_AXES, {axis.name: list(axis.values) for axis in self.space.axes})
            self.study.set_user_attr(_SPACE, _digest(self.space))  # last: who was killed before it begins anew
            return tuple(earlier)
        if made_for != _digest(self.space):
            raise SearchError(f"study {self.study.study_name}: was made for another grid or reference")
        return decode_earlier(attributes.get(_EARLIER, ()), len(self.space))

    def ask(self) -> int | None:
        """The candidate to measure next; the same until it is told. None: nothing left to gain or to try."""
        if self._asked is not None:
            return self._asked[0]
        for left in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.study.tell(left.number, state=TrialState.FAIL)  # a process was killed before it could tell
        if self._sampler.propose(self.study, None) is None:
            return None
        trial = self.study.ask(distributions(self.space))
        index = self.space.at([trial.params[axis.name] for axis in self.space.axes])
        if index is None:
            raise SearchError(f"the sampler proposed a hole: {trial.params}")
        self._asked = (index, trial)
        return index

    def tell(self, index: int, observation: Observation) -> None:
        """What came of measuring `index`, asked or not (the reference again, a ledger told anew).

        Raises SearchError.
        """
        ranks = parameters(self.space, index)
        _check(index, observation)
        over = self._breach(observation)
        notes = {OBSERVATION: encode(observation), CANDIDATE: index, **_shown(observation, over)}
        value = observation.cost(self.objective) if isinstance(observation, Measured) else None
        state = state_of(observation)
        if self._asked is None or self._asked[0] != index:
            trial = create_trial(
                state=state,
                value=value,
                params=dict(ranks),
                distributions=distributions(self.space),
                user_attrs=notes,
                constraints=None if over is None else {_BREACH: over},
            )
            self.study.add_trial(trial)
            return
        live = self._asked[1]
        for key, what in notes.items():
            live.set_user_attr(key, what)
        if over is not None:
            live.set_constraint(_BREACH, over)
        self.study.tell(live, value, state=state)
        self._asked = None

    def _breach(self, observation: Observation) -> float | None:
        if isinstance(observation, Measured):
            return breach(observation, self.bound_s)
        return 1.0 if isinstance(observation, Infeasible) else None

    def retry(self, index: int) -> None:
        """Let a candidate that failed be asked for once more. Raises SearchError where it did not fail."""
        standing = standings(self.study).get(index)
        if standing is None or not standing.failed:
            raise SearchError(f"candidate {index}: wanted one whose last trial failed, to try it again")
        trial = create_trial(
            state=TrialState.FAIL,
            params=dict(parameters(self.space, index)),
            distributions=distributions(self.space),
            user_attrs={OBSERVATION: {"kind": RETRY}, CANDIDATE: index},
        )
        self.study.add_trial(trial)

    def best(self, n: int) -> list[int]:
        """At most `n` candidates to choose, the best first; empty: none is known to be feasible."""
        return self._sampler.best(self.study, n)

    def expected_gain(self) -> float | None:
        """The share of the cost that one more window should save; None: this sampler has no estimate."""
        outlook = self.outlook()
        if outlook is not None:
            return outlook.expected_gain
        ended = self._asked is None and self._sampler.propose(self.study, None) is None
        return 0.0 if ended else None

    def outlook(self) -> Outlook | None:
        """What the sampler's model knows of the search; None: it has no model, or too little was told."""
        return self._sampler.outlook(self.study)

    def beliefs(self) -> Mapping[int, Belief] | None:
        """What the sampler's model believes of each candidate; None as with `outlook`."""
        return self._sampler.beliefs(self.study)


def _shown(observation: Observation, over: float | None) -> dict[str, float]:
    """Numbers for who looks at the study in a table: optuna-dashboard knows no constraint by name."""
    shown = {"latency_s": observation.latency_s} if isinstance(observation, Measured) else {}
    return shown if over is None else {**shown, _BREACH: over}


def _check(index: int, observation: Observation) -> None:
    if not isinstance(observation, Measured):
        return
    for name in ("energy_j", "latency_s", "latency_upper_s", "power_w"):
        value = getattr(observation, name)
        if not (math.isfinite(value) and value > 0.0):
            raise SearchError(f"candidate {index}: wanted a finite {name} above 0, got {value}")
