"""Power modes, variants, candidates and the space that a search walks (stdlib only)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from jouletune.errors import SpaceError

GRID_SIZE = 96
_EMC_POINTS = 4
_POINTS_PER_DOMAIN = 8
_GPU_PER_CPU = 1.5

Value = int | str | None


@dataclass(frozen=True, slots=True, order=True)
class PowerMode:
    """One power mode. None: this axis is fixed or was not recorded."""

    cores: int | None = None
    cpu_hz: int | None = None
    gpu_hz: int | None = None
    emc_hz: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Variant:
    """One way of running a workload."""

    engine: str | None = None
    batch: int = 1
    instances: int = 1

    @property
    def items(self) -> int:
        """How many inferences are under way at a time, back to back."""
        return self.batch * self.instances


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """What one trial applies and runs."""

    mode: PowerMode
    variant: Variant = field(default_factory=Variant)


def log_even(points: Sequence[int], n: int) -> tuple[int, ...]:
    """`n` of `points` (any order, all > 0), even in log-frequency, both ends kept, ascending.

    All of them where `n` is as many or more; the top alone for `n` = 1. Raises SpaceError.
    """
    table = sorted(set(points))
    if not table or table[0] <= 0 or n < 1:
        raise SpaceError(f"wanted at least one of some points > 0, got {n} of {list(points)}")
    if n >= len(table):
        return tuple(table)
    if n == 1:
        return (table[-1],)
    bottom, span = math.log(table[0]), math.log(table[-1] / table[0])
    chosen = [0]
    for step in range(1, n - 1):
        wanted = bottom + span * step / (n - 1)
        # Room is left for the points still to come, so that no two targets snap to the same one.
        room = range(chosen[-1] + 1, len(table) - (n - 1 - step))
        chosen.append(min(room, key=lambda i: abs(math.log(table[i]) - wanted)))
    return (*(table[i] for i in chosen), table[-1])


def choose_shape(n_emc: int, n_gpu: int, n_cpu: int, limit: int = GRID_SIZE) -> tuple[int, int, int]:
    """How many points of each domain make the grid: (emc, gpu, cpu), from how many there are in range.

    The whole table where it has at most `limit` modes. Else every EMC point (at most 4) and the pair of GPU
    and CPU counts (at most 8 each, GPU before CPU) that fills `limit` best and, among equals, is nearest to 1.5
    GPU points for one of the CPU. Raises SpaceError.
    """
    if min(n_emc, n_gpu, n_cpu, limit) < 1:
        raise SpaceError(
            f"wanted at least one point a domain and a limit of at least 1, "
            f"got EMC {n_emc}, GPU {n_gpu}, CPU {n_cpu}, limit {limit}"
        )
    if n_emc * n_gpu * n_cpu <= limit:
        return n_emc, n_gpu, n_cpu
    emc = min(n_emc, _EMC_POINTS, limit)
    pairs = [
        (gpu, cpu)
        for gpu in range(1, min(n_gpu, _POINTS_PER_DOMAIN) + 1)
        for cpu in range(1, min(n_cpu, _POINTS_PER_DOMAIN) + 1)
        if gpu >= min(cpu, n_gpu) and emc * gpu * cpu <= limit
    ]
    gpu, cpu = max(pairs, key=lambda pair: (pair[0] * pair[1], -abs(pair[0] / pair[1] - _GPU_PER_CPU)))
    return emc, gpu, cpu


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that varies; `values` ascending (engines in the order in which they were named)."""

    name: str
    values: tuple[Value, ...]


def _value(candidate: Candidate, name: str) -> Value:
    owner = candidate.mode if hasattr(candidate.mode, name) else candidate.variant
    value: Value = getattr(owner, name)
    return value


_NAMES = ("cores", "cpu_hz", "gpu_hz", "emc_hz", "engine", "batch", "instances")


def _axis(candidates: Sequence[Candidate], name: str) -> Axis:
    values = list(dict.fromkeys(_value(candidate, name) for candidate in candidates))
    if len(values) > 1 and None in values:
        raise SpaceError(f"axis {name}: wanted a value in every candidate or in none, got only some")
    numbers = sorted(value for value in values if isinstance(value, int))
    return Axis(name, tuple(numbers) if len(numbers) == len(values) else tuple(values))


@dataclass(frozen=True)
class Space:
    """The candidates of a job, by index. Axes are those that vary; combinations may be missing (holes)."""

    candidates: tuple[Candidate, ...]
    axes: tuple[Axis, ...]
    reference: int
    _places: dict[tuple[int, ...], int] = field(init=False, repr=False, compare=False)
    _coordinates: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.reference < len(self.candidates):
            raise SpaceError(
                f"reference: wanted an index below {len(self.candidates)} (candidates), got {self.reference}"
            )
        ranks = [(axis.name, {value: rank for rank, value in enumerate(axis.values)}) for axis in self.axes]
        coordinates = tuple(
            tuple(rank[_value(candidate, name)] for name, rank in ranks) for candidate in self.candidates
        )
        places = {place: index for index, place in enumerate(coordinates)}
        if len(places) != len(self.candidates):
            twice = next(c for i, c in enumerate(self.candidates) if places[coordinates[i]] != i)
            raise SpaceError(f"candidates: wanted each once, got twice {twice}")
        object.__setattr__(self, "_coordinates", coordinates)
        object.__setattr__(self, "_places", places)

    @classmethod
    def of(cls, candidates: Sequence[Candidate], reference: Candidate | int) -> Space:
        """The space of `candidates`; `reference` is one of them, or its index. Raises SpaceError."""
        axes = tuple(axis for axis in (_axis(candidates, name) for name in _NAMES) if len(axis.values) > 1)
        if isinstance(reference, Candidate):
            if reference not in candidates:
                raise SpaceError(f"reference: wanted a candidate of {len(candidates)}, got {reference}")
            reference = list(candidates).index(reference)
        return cls(tuple(candidates), axes, reference)

    def __len__(self) -> int:
        return len(self.candidates)

    def coordinates(self, index: int) -> tuple[int, ...]:
        """The rank on each axis, in the order of `axes`. Raises SpaceError."""
        if not 0 <= index < len(self.candidates):
            raise SpaceError(f"candidate: wanted an index below {len(self.candidates)}, got {index}")
        return self._coordinates[index]

    def at(self, coordinates: Sequence[int]) -> int | None:
        """The candidate there; None: a hole, or outside."""
        return self._places.get(tuple(coordinates))

    def index_of(self, candidate: Candidate) -> int | None:
        """Its index; None: not in the space."""
        return self.candidates.index(candidate) if candidate in self.candidates else None

    def with_candidate(self, candidate: Candidate) -> Space:
        """The same space and indices with `candidate` at the end; itself where it is in already."""
        if candidate in self.candidates:
            return self
        return Space.of((*self.candidates, candidate), self.reference)
