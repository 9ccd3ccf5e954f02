"""What every sampler shares: how it is asked, what it may say of what it knows, candidates as Optuna's parameters."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from jouletune.earlier import Earlier
from jouletune.errors import SearchError
from jouletune.space import Space
from jouletune.standing import Standings, standings, told


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for: the least energy at a latency of at most `bound_s` (None: no bound).

    `bound_se_s`: the bound's own standard error where it was derived from a measurement. `budget`: how many windows
    there will be in all; None: not known. `min_gain`: the least saving that would be applied, which says when
    looking on is not worth a window; 0: whatever can be had. `earlier`: windows of earlier jobs, a prior for samplers
    with a model.
    """

    bound_s: float | None
    bound_se_s: float = 0.0
    budget: int | None = None
    incumbent: int | None = None
    seed: int = 0
    min_gain: float = 0.02
    earlier: tuple[Earlier, ...] = ()


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a model knows of the search. `expected_gain`: the share of energy that one more window should save.

    `probability_better_exists`: that a feasible candidate takes clearly less than the one it would choose.
    `probability_feasible`: of each candidate.
    """

    expected_gain: float
    probability_better_exists: float
    probability_feasible: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Belief:
    """What a model believes of one candidate's true energy and latency: the middle and a 90 % interval."""

    energy_j: float
    energy_interval_j: tuple[float, float]
    latency_s: float
    latency_interval_s: tuple[float, float]


class CandidateSampler(BaseSampler):
    """Proposes whole candidates: the reference, the incumbent, then what the subclass chooses."""

    def __init__(self, space: Space, question: Question) -> None:
        self.space = space
        self.question = question
        self.bound_s = question.bound_s
        self.start = tuple(dict.fromkeys(i for i in (space.reference, question.incumbent) if i is not None))
        self.seed = question.seed

    def choose(self, study: Study, trial: FrozenTrial | None, seen: Standings) -> int | None:
        """The next candidate, never one of `seen`; None: nothing left.

        Without a `trial` only whether it is None counts.
        """
        raise NotImplementedError

    def propose(self, study: Study, trial: FrozenTrial | None) -> int | None:
        """The next candidate to measure, None when the search has ended."""
        seen = standings(study)
        for index, standing in seen.items():
            if standing.retry:
                return index
        for index in self.start:
            if index not in seen:
                return index
        return self.choose(study, trial, seen)

    def best(self, study: Study, n: int) -> list[int]:
        """At most `n` candidates to choose, the best first: here the feasible ones by mean energy."""
        seen = standings(study)
        feasible = [index for index, standing in seen.items() if standing.feasible]
        return sorted(feasible, key=lambda index: seen[index].energy_j)[:n]

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
        return random.Random(f"{self.seed} {sum(1 for _ in told(study))}")

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return distributions(self.space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        index = self.propose(study, trial)
        if index is None:
            raise SearchError("asked for a candidate where none is left; Search.ask() says so with None")
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
