"""What was seen of each candidate, and how it is kept in an Optuna study."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from jouletune.descent import Known
from jouletune.objective import Objective

OBSERVATION = "observation"
CANDIDATE = "candidate"
RETRY = "retry"
# One-sided 95 %: a latency is within the bound where its upper limit is, the bound's own error counted in.
_UPPER = 1.645


@dataclass(frozen=True, slots=True)
class Measured:
    """A valid window. `feasible`: judged by the job on latency, power and throughput alike."""

    energy_j: float
    energy_se_j: float
    latency_s: float
    latency_upper_s: float
    latency_se_s: float
    power_w: float
    feasible: bool

    def cost(self, objective: Objective) -> float:
        """What is minimised, of this window: power is energy x inferences per second."""
        return objective.cost(self.energy_j, self.latency_s, self.power_w / self.energy_j)


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Cut short as clearly too slow; nothing else is known."""


@dataclass(frozen=True, slots=True)
class Failed:
    """No measurement came of it."""

    reason: str


Observation = Measured | Infeasible | Failed

_STATES = {
    "measured": TrialState.COMPLETE,
    "infeasible": TrialState.PRUNED,
    "failed": TrialState.FAIL,
    RETRY: TrialState.FAIL,
}


@dataclass(slots=True)
class Standing:
    """All that was seen of one candidate."""

    measured: list[Measured] = field(default_factory=list)
    cut: int = 0
    failed: bool = False
    retry: bool = False

    @property
    def known(self) -> bool:
        """Was it ever measured or cut?"""
        return bool(self.measured) or self.cut > 0

    @property
    def energy_j(self) -> float:
        """The mean over its windows."""
        return self.cost(Objective.ENERGY)

    def cost(self, objective: Objective) -> float:
        """The mean over its windows."""
        return sum(window.cost(objective) for window in self.measured) / len(self.measured)

    @property
    def feasible(self) -> bool:
        """In more windows than not."""
        return 2 * sum(window.feasible for window in self.measured) > len(self.measured) + self.cut

    def breach(self, bound_s: float | None) -> float:
        """How far over the bound, in log-latency: ≤ 0 where feasible, 1 where no more than "infeasible" is known."""
        if bound_s is None or not self.measured:
            return -1.0 if self.feasible else 1.0
        mean = sum(breach(window, bound_s) for window in self.measured) / len(self.measured)
        return min(mean, 0.0) if self.feasible else mean

    def merit(self, bound_s: float | None, objective: Objective) -> Known:
        """For the descent: feasible by cost, then over a limit of power, then too slow."""
        if self.feasible:
            return Known((0, self.cost(objective)))
        if not self.measured:
            return Known((3, 0.0), slow=True)
        if bound_s is None or all(window.latency_upper_s <= bound_s for window in self.measured):
            return Known((1, sum(window.power_w for window in self.measured) / len(self.measured)))
        return Known((2, self.breach(bound_s)), slow=True)


def breach(window: Measured, bound_s: float | None) -> float:
    """As `Standing.breach`, of one window."""
    excess = -1.0 if bound_s is None else math.log(window.latency_upper_s / bound_s)
    if window.feasible:
        return min(excess, 0.0)
    return excess if excess > 0.0 else 1.0


Standings = Mapping[int, Standing]


def window_of(
    energy_j: float,
    energy_se_j: float,
    latency_s: float,
    latency_se_s: float,
    *,
    items: int,
    bound_s: float | None,
    bound_error: float = 0.0,
    max_power_w: float | None = None,
) -> Measured:
    """A window that only numbers are known of, judged by the limits; `bound_error`: the bound's own, relative.

    `energy_j` per item, `latency_s` of a request; `items` are under way at a time: a batch in each instance.
    """
    upper_s = latency_s * (1.0 + _UPPER * math.hypot(latency_se_s / latency_s, bound_error))
    power_w = energy_j * items / latency_s
    return Measured(
        energy_j=energy_j,
        energy_se_j=energy_se_j,
        latency_s=latency_s,
        latency_upper_s=upper_s,
        latency_se_s=latency_se_s,
        power_w=power_w,
        feasible=(bound_s is None or upper_s <= bound_s) and (max_power_w is None or power_w <= max_power_w),
    )


Noted = tuple[int, dict[str, Any]]
"""A candidate and an observation of it, encoded."""


def told(study: Study, read: Callable[[FrozenTrial], Noted | None] = lambda _: None) -> Iterator[Noted]:
    """Candidate and observation of each window told, in order; `read` knows trials that are not kept as ours are.

    A trial that a killed process left half told was closed as failed: its state and its observation do not agree.
    """
    for trial in study.get_trials(deepcopy=False):
        what = trial.user_attrs.get(OBSERVATION)
        if what is None:
            if (noted := read(trial)) is not None:
                yield noted
        elif trial.state is _STATES[what["kind"]]:
            yield trial.user_attrs[CANDIDATE], what


def standings(study: Study) -> dict[int, Standing]:
    """What a study of ours says, by candidate."""
    return standings_of(told(study))


def standings_of(windows: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[int, Standing]:
    """What windows as `told` gives them say, by candidate."""
    found: dict[int, Standing] = {}
    for index, what in windows:
        _note(found.setdefault(index, Standing()), what)
    return found


def _note(standing: Standing, what: Mapping[str, Any]) -> None:
    if what["kind"] == "measured":
        standing.measured.append(Measured(**{key: value for key, value in what.items() if key != "kind"}))
    elif what["kind"] == "infeasible":
        standing.cut += 1
    standing.failed = what["kind"] == "failed"
    standing.retry = what["kind"] == RETRY


def encode(observation: Observation) -> dict[str, Any]:
    """As it is kept in a trial's user attributes."""
    return {"kind": type(observation).__name__.lower(), **asdict(observation)}


def state_of(observation: Observation) -> TrialState:
    """Failed is never a number to Optuna, and a window cut short has none."""
    return _STATES[type(observation).__name__.lower()]
