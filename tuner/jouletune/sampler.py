"""What every sampler shares: how it is asked, what it may say of what it knows, candidates as Optuna's parameters."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial

from jouletune.earlier import Earlier
from jouletune.errors import SearchError
from jouletune.objective import Objective
from jouletune.plain import read_trial
from jouletune.space import Candidate, Space
from jouletune.standing import Noted, Standing, Standings, standings_of, told

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for: the least of `objective` at a latency of at most `bound_s` (None: no bound).

    `bound_se_s`: the bound's own standard error where it was derived from a measurement. `budget`: how many windows
    there will be in all; None: not known. `min_gain`: the least saving that would be applied, which says when
    looking on is not worth a window; 0: whatever can be had. `earlier`: windows of earlier jobs, a prior for samplers
    with a model. `max_power_w`: the most that the mean power may be, with the `rate_hz` at which requests arrive (None:
    back to back), from which a model knows power. `risk`: no candidate is started that breaks the latency bound with
    more probability, the reference and the incumbent apart; None: any, and all that a sampler without a model can do.
    """

    bound_s: float | None
    bound_se_s: float = 0.0
    budget: int | None = None
    incumbent: int | None = None
    seed: int = 0
    min_gain: float = 0.02
    earlier: tuple[Earlier, ...] = ()
    objective: Objective = Objective.ENERGY
    max_power_w: float | None = None
    rate_hz: float | None = None
    risk: float | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a model knows of the search. `expected_gain`: the share of the cost that one more window should save.

    `probability_better_exists`: that a feasible candidate costs clearly less than the one it would choose.
    `probability_feasible`: of each candidate. `barred`: the candidates that may not be started because of the risk
    alone, by the probability of a latency within the bound.
    """

    expected_gain: float
    probability_better_exists: float
    probability_feasible: Mapping[int, float]
    barred: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Belief:
    """What a model believes of one candidate's true energy and latency: the middle and a 90 % interval."""

    energy_j: float
    energy_interval_j: tuple[float, float]
    latency_s: float
    latency_interval_s: tuple[float, float]


class CandidateSampler(BaseSampler):
    """Proposes whole candidates: the reference, the incumbent, then what the subclass chooses.

    `has_model`: whether it knows anything of what was not measured, as it must to keep a risk.

    In a study of `jouletune.search.Search`, or in any other (docs/search.md, "In a study of your own"): the energy of
    an item is minimized, one window at a time.
    """

    has_model = False

    def __init__(self, space: Space, question: Question) -> None:
        if question.risk is not None and not self.has_model:
            raise SearchError(f"risk: wanted a sampler with a model, got {type(self).__name__}, which has none")
        self.space = space
        self.question = question
        self.bound_s = question.bound_s
        self.start = tuple(dict.fromkeys(i for i in (space.reference, question.incumbent) if i is not None))
        self.seed = question.seed
        self.reads_others = True  # trials that were not told by `Search`

    def choose(self, study: Study, trial: FrozenTrial | None, seen: Standings) -> int | None:
        """The next candidate, never one of `seen`; None: nothing left.

        Without a `trial` only whether it is None counts.
        """
        raise NotImplementedError

    def propose(self, study: Study, trial: FrozenTrial | None) -> int | None:
        """The next candidate to measure, None when the search has ended."""
        seen = self.standings(study)
        for index, standing in seen.items():
            if standing.retry:
                return index
        for index in self.start:
            if index not in seen:
                return index
        return self.choose(study, trial, seen)

    def best(self, study: Study, n: int) -> list[int]:
        """At most `n` candidates to choose, the best first: here the feasible ones by mean cost."""
        seen = self.standings(study)
        feasible = [index for index, standing in seen.items() if standing.feasible]
        return sorted(feasible, key=lambda index: seen[index].cost(self.question.objective))[:n]

    def windows(self, study: Study) -> Iterator[Noted]:
        """Candidate and observation of each window told, in order. Raises SearchError."""
        if not self.reads_others:
            return told(study)
        return told(study, lambda trial: read_trial(trial, self.space, self.bound_s))

    def standings(self, study: Study) -> dict[int, Standing]:
        """What the study says, by candidate. Raises SearchError."""
        return standings_of(self.windows(study))

    def outlook(self, study: Study) -> Outlook | None:
        """None: no model, no outlook."""
        return None

    def beliefs(self, study: Study) -> Mapping[int, Belief] | None:
        """None: no model, no belief."""
        return None

    def open(self, seen: Standings) -> list[int]:
        """The candidates that nothing was told of."""
        return [index for index in range(len(self.space)) if index not in seen]

    def random(self, study: Study) -> random.Random:
        """The same stream for the same seed and number of windows told."""
        return random.Random(f"{self.seed} {sum(1 for _ in self.windows(study))}")

    # --- a study of somebody's own ----------------------------------------------------------------------

    def candidate(self, trial: Trial) -> Candidate:
        """What `trial` is to measure. Raises SearchError where its ranks were set by hand and are a hole."""
        ranks = [trial.suggest_int(axis.name, 0, len(axis.values) - 1) for axis in self.space.axes]
        index = self.space.at(ranks)
        if index is None:
            raise SearchError(f"trial {trial.number}: wanted the ranks of a candidate, got a hole: {trial.params}")
        return self.space.candidates[index]

    def stop(self, study: Study, trial: FrozenTrial) -> None:
        """One of `callbacks` of `Study.optimize`: ends it when this search has ended."""
        if self.propose(study, None) is None:
            study.stop()

    # --- what Optuna asks -------------------------------------------------------------------------------

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return distributions(self.space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next candidate's ranks; once the search has ended, those of the choice again."""
        if study.directions != [StudyDirection.MINIMIZE]:
            raise SearchError(f"study {study.study_name}: wanted one energy to minimize, got {study.directions}")
        index = self.propose(study, trial)
        if index is None:
            index = next(iter(self.best(study, 1)), self.space.reference)
            log.warning("the search has ended: candidate %d, its choice, is measured again", index)
        return parameters(self.space, index)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise SearchError(f"axis {param_name}: wanted one of {', '.join(distributions(self.space))}")


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Each axis as an ordered integer rank."""
    return {axis.name: IntDistribution(0, len(axis.values) - 1) for axis in space.axes}


def parameters(space: Space, index: int) -> dict[str, int]:
    """The ranks of a candidate."""
    return {axis.name: rank for axis, rank in zip(space.axes, space.coordinates(index), strict=True)}
