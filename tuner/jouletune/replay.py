"""Searches over recorded measurements: the truth is a table, each window of it is as noisy as is asked for."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from jouletune.earlier import Earlier
from jouletune.errors import SpaceError
from jouletune.objective import Objective
from jouletune.search import Failed, Infeasible
from jouletune.suggest import Choice, Suggester, Told, Window
from jouletune.table import Row, Table

WITHIN = 0.99  # the best row is the best of those at most this much of the bound, so that noise decides nothing
VIOLATED = 1.005
OUTLIER = 2.5
INVALID = "throttled"


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What lies between a row and a window of it.

    Lognormal noise in energy and latency; of `outlier_rate` windows the energy is 2.5 times too high or too low; the
    energy of all rows walks by `drift` (log, standard deviation a window); `invalid_rate` windows are no evidence; a
    row slower than `cut_ratio` x bound is cut short.
    """

    noise_energy: float = 0.01
    noise_latency: float = 0.005
    outlier_rate: float = 0.0
    drift: float = 0.0
    invalid_rate: float = 0.0
    cut_ratio: float | None = None


class Board:
    """Answers for a table. The n-th window of a row is the same for any search with the same `seed`."""

    def __init__(self, table: Table, disturbance: Disturbance, *, bound_s: float, seed: str) -> None:
        self._table = table
        self._disturbance = disturbance
        self._bound_s = bound_s
        self._seed = seed
        self._windows: Counter[int] = Counter()
        self._drift = 0.0
        self._walk = random.Random(f"{seed} drift")

    def measure(self, index: int) -> Told:
        """One window on the row of candidate `index`."""
        row, how = self._table.rows[index], self._disturbance
        draw = random.Random(f"{self._seed} {row.number} {self._windows[index]}")
        self._windows[index] += 1
        self._drift += self._walk.gauss(0.0, how.drift) if how.drift else 0.0
        energy_off = draw.gauss(0.0, how.noise_energy)
        latency_s = row.latency_s * math.exp(draw.gauss(0.0, how.noise_latency))
        if draw.random() < how.invalid_rate:
            return Failed(INVALID)
        if draw.random() < how.outlier_rate:
            energy_off += draw.choice((-1.0, 1.0)) * math.log(OUTLIER)
        if how.cut_ratio is not None and row.latency_s > how.cut_ratio * self._bound_s:
            return Infeasible()
        energy_j = row.energy_j * math.exp(energy_off + self._drift)
        return Window(energy_j, energy_j * how.noise_energy, latency_s, latency_s * how.noise_latency)


class Noted:
    """Measures as `measure` does, and keeps each window in its order."""

    def __init__(self, measure: Callable[[int], Told]) -> None:
        self._measure = measure
        self.windows: list[tuple[int, Told]] = []

    def measure(self, index: int) -> Told:
        """One window on candidate `index`."""
        told = self._measure(index)
        self.windows.append((index, told))
        return told

    def earlier(self, age_s: float) -> tuple[Earlier, ...]:
        """The valid ones, as a search that begins `age_s` later is told of them."""
        return tuple(
            Earlier(index, told.energy_j, told.energy_se_j, told.latency_s, told.latency_se_s, age_s)
            for index, told in self.windows
            if isinstance(told, Window)
        )


@dataclass(frozen=True, slots=True)
class Score:
    """A chosen row against the table. `gap`: cost over the best row's, less 1; None: no row keeps the limits."""

    gap: float | None
    latency_ratio: float
    power_ratio: float = 0.0  # of its limit

    @property
    def within_bound(self) -> bool:
        """Not slower than the bound, nor above the limit of power, by more than 0.5 %."""
        return self.latency_ratio <= VIOLATED and self.power_ratio <= VIOLATED


def score(
    table: Table,
    index: int,
    bound_s: float,
    *,
    objective: Objective = Objective.ENERGY,
    max_power_w: float = math.inf,
) -> Score:
    """How good it is to choose candidate `index`, by the table's true values."""
    chosen = table.rows[index]
    kept = [
        _cost(row, objective)
        for row in table.rows
        if row.latency_s <= WITHIN * bound_s and row.power_w <= WITHIN * max_power_w
    ]
    gap = max(0.0, _cost(chosen, objective) / min(kept) - 1.0) if kept else None
    return Score(gap, chosen.latency_s / bound_s, chosen.power_w / max_power_w)


def _cost(row: Row, objective: Objective) -> float:
    return objective.cost(row.energy_j, row.latency_s, row.power_w / row.energy_j)


def drive(suggester: Suggester, measure: Callable[[int], Told]) -> Choice:
    """Hold the whole conversation."""
    while not isinstance(answer := suggester.ask(), Choice):
        suggester.tell(answer, measure(answer))
    return answer


def with_reference(table: Table, number: int) -> Table:
    """The same table with the row of this number in the CSV as reference. Raises SpaceError."""
    index = next((index for index, row in enumerate(table.rows) if row.number == number), None)
    if index is None:
        raise SpaceError(f"reference row: wanted a row with an energy, got {number}")
    return Table(table.rows, replace(table.space, reference=index))
