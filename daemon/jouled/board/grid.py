"""The grid: which power modes a job may choose from (ARCHITECTURE 6).

The points of a domain are the board's own table values from its floor to the base mode's cap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, Protocol

from jouled.board.board import Board
from jouled.errors import UsageError
from jouletune.space import Candidate, PowerMode, Space, Variant, choose_shape, log_even

AUTO: Literal["auto"] = "auto"
FULL: Literal["full"] = "full"
EMC_FLOOR_RATIO = 0.2  # lower memory clocks starve cameras and displays


class GridOptions(Protocol):
    """`[grid]` of the configuration. `shape` counts (EMC, GPU, CPU) points; an empty list: choose."""

    @property
    def size(self) -> int | Literal["full"]: ...
    @property
    def shape(self) -> tuple[int, int, int] | None: ...
    @property
    def cpu_hz(self) -> tuple[int, ...]: ...
    @property
    def gpu_hz(self) -> tuple[int, ...]: ...
    @property
    def emc_hz(self) -> tuple[int, ...]: ...
    @property
    def cores(self) -> tuple[int, ...]: ...
    @property
    def emc_floor_hz(self) -> int | Literal["auto"]: ...


@dataclass(frozen=True, slots=True)
class DomainPoints:
    """Points in range, ascending; a domain that cannot be set has the single value None."""

    emc_hz: tuple[int | None, ...]
    gpu_hz: tuple[int | None, ...]
    cpu_hz: tuple[int | None, ...]
    cores: tuple[int, ...]


def _between(table_hz: Sequence[int], floor_hz: float, cap_hz: int) -> tuple[int, ...]:
    return tuple(point_hz for point_hz in table_hz if floor_hz <= point_hz <= cap_hz) or (cap_hz,)


def domain_points(board: Board, emc_floor: int | Literal["auto"] = AUTO) -> DomainPoints:
    """All table values from each domain's floor to its cap; cores as in the base mode."""
    base, domains = board.base_mode, board.domains
    emc_hz: tuple[int | None, ...] = (None,)
    gpu_hz: tuple[int | None, ...] = (None,)
    if domains.emc is not None and base.emc_cap_hz is not None:
        floor_hz = EMC_FLOOR_RATIO * domains.emc.table_hz[-1] if emc_floor == AUTO else emc_floor
        emc_hz = _between(domains.emc.table_hz, floor_hz, base.emc_cap_hz)
    if domains.gpu is not None and base.gpu_cap_hz is not None:
        gpu_hz = _between(domains.gpu.table_hz, domains.gpu.table_hz[0], base.gpu_cap_hz)
    cpu_hz: tuple[int | None, ...] = (None,)
    if base.cpu_cap_hz is not None:
        cpu_hz = _between(domains.cpu.table_hz, base.cpu_min_hz, base.cpu_cap_hz)
    return DomainPoints(emc_hz, gpu_hz, cpu_hz, (base.cores,))


@dataclass
class _Domain:
    """One domain while the grid is made: what there is, and what was listed."""

    key: str
    points: tuple[int | None, ...]
    table: tuple[int, ...]
    listed: tuple[int, ...]
    chosen: tuple[int | None, ...] = field(default=())

    def check_list(self) -> None:
        top = self.points[-1]
        for value in self.listed:
            if top is None:
                raise UsageError(f"grid.{self.key}: this board's clock cannot be set; leave the list out")
            if value not in self.table or value > top:
                allowed = ", ".join(str(point) for point in self.table if point <= top)
                raise UsageError(f"grid.{self.key}: {value} is not one of the base mode's: {allowed}")

    def choose(self, count: int) -> None:
        numbers = [point for point in self.points if point is not None]
        if self.listed:
            self.chosen = tuple(sorted(set(self.listed)))
        else:
            self.chosen = log_even(numbers, count) if numbers else (None,)


def _domains(board: Board, options: GridOptions) -> tuple[_Domain, _Domain, _Domain, _Domain]:
    """EMC, GPU, CPU, cores."""
    points, found = domain_points(board, options.emc_floor_hz), board.domains
    emc_table = found.emc.table_hz if found.emc is not None else ()
    gpu_table = found.gpu.table_hz if found.gpu is not None else ()
    counts = tuple(range(1, board.base_mode.cores + 1))
    domains = (
        _Domain("emc_hz", points.emc_hz, emc_table, options.emc_hz),
        _Domain("gpu_hz", points.gpu_hz, gpu_table, options.gpu_hz),
        _Domain("cpu_hz", points.cpu_hz, found.cpu.table_hz, options.cpu_hz),
        _Domain("cores", points.cores, counts, options.cores),
    )
    for domain in domains:
        domain.check_list()
    return domains


def _counts(domains: Sequence[_Domain], options: GridOptions, variants: int) -> tuple[int, int, int]:
    """How many points of EMC, GPU and CPU; a listed domain is used whole and counts as one here."""
    if options.shape is not None:
        emc, gpu, cpu = options.shape
        return emc, gpu, cpu
    free = [1 if domain.listed else len(domain.points) for domain in domains[:3]]
    if options.size == FULL:
        return free[0], free[1], free[2]
    listed = math.prod(len(set(domain.listed)) for domain in domains if domain.listed) * variants
    limit = options.size // listed
    if limit < 1:
        raise UsageError(
            f"grid: the lists and variants alone make {listed} candidates, more than grid.size = {options.size}",
            hint='shorten the lists, or set size = "full"',
        )
    return choose_shape(free[0], free[1], free[2], limit)


def board_space(board: Board, options: GridOptions, variants: Sequence[Variant] = (Variant(),)) -> Space:
    """The job's candidates; the reference is always one of them, with the first variant.

    Raises UsageError for a listed value that the base mode does not allow, or for lists larger than `size`.
    """
    domains = _domains(board, options)
    emc, gpu, cpu, cores = domains
    for domain, count in zip(domains, (*_counts(domains, options, len(variants)), 1), strict=True):
        domain.choose(count)
    modes = [
        PowerMode(core_count, cpu_hz, gpu_hz, emc_hz)
        for core_count, emc_hz, gpu_hz, cpu_hz in product(cores.chosen, emc.chosen, gpu.chosen, cpu.chosen)
    ]
    candidates = [Candidate(mode, variant) for mode in modes for variant in variants]
    reference = Candidate(board.reference, variants[0])
    if reference not in candidates:  # lists may leave it out; it is measured all the same
        candidates.append(reference)
    return Space.of(candidates, reference)
