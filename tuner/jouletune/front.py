"""What latency buys: the energy–latency front of a board with a workload, measured and predicted told apart.

Pure: from what is believed of every candidate to rows. A candidate is within a bound where its latency's upper limit
is (95 %, one-sided), so that a prediction has to be better than a measurement to take its place. Savings refer to the
reference, and their intervals leave out what its energy's error and the candidate's have in common. All intervals are
90 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jouletune.earlier import Earlier
from jouletune.mixture import Mixture
from jouletune.space import Candidate, Space
from jouletune.surrogate import ENERGY, LATENCY, Reading, Surrogate

RATIOS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.75, 2.0)
_AT = (0.05, 0.5, 0.95)

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class FrontRow:
    """One candidate. `windows`: how many valid ones were taken of it; 0: it is predicted."""

    index: int
    candidate: Candidate
    latency_s: float
    latency_interval_s: Interval
    energy_j: float
    energy_interval_j: Interval
    saving_ratio: float
    saving_interval: Interval
    windows: int

    @property
    def is_measured(self) -> bool:
        return self.windows > 0


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a bound of `latency_ratio` x the reference's latency allows: the row of least energy within it."""

    latency_ratio: float
    latency_bound_s: float
    row: FrontRow


@dataclass(frozen=True, slots=True)
class Front:
    """`rows` by latency: none takes more energy than a faster one. `curve` by bound, to where nothing more is gained.

    `candidates`: all that were weighed, by index.
    """

    reference: FrontRow
    rows: tuple[FrontRow, ...]
    curve: tuple[Allowance, ...]
    candidates: tuple[FrontRow, ...]


def front_of(
    space: Space,
    windows: Sequence[Earlier],
    *,
    earlier: Sequence[Earlier] = (),
    seed: int = 0,
    cut: Sequence[int] = (),
    bound_s: float | None = None,
) -> Front:
    """The front by the valid windows of one job, in their order, and those of jobs before it.

    `cut`: candidates of windows that were cut short as slower than `bound_s`, which is all that is known of them.
    """
    readings = [_reading(window, at=float(at)) for at, window in enumerate(windows)]
    before = [_reading(window, earlier=True) for window in earlier]
    slow = [] if bound_s is None else [Reading(index, None, 0.0, None, 0.0) for index in cut]
    bound = None if bound_s is None else math.log(bound_s)
    mixture = Mixture(Surrogate(space, seed=seed).fit([*before, *readings, *slow], bound=bound))
    return front(mixture, Counter(window.index for window in (*windows, *earlier)))


def _reading(window: Earlier, *, at: float = 0.0, earlier: bool = False) -> Reading:
    return Reading(
        window.index,
        math.log(window.latency_s),
        window.latency_se_s / window.latency_s,
        math.log(window.energy_j),
        window.energy_se_j / window.energy_j,
        window=at,
        earlier=earlier,
        age_s=window.age_s,
    )


def front(mixture: Mixture, windows: Mapping[int, int], *, ratios: Sequence[float] = RATIOS) -> Front:
    """The front by a belief. `windows`: how many were taken of each candidate that was measured."""
    candidates = tuple(_candidates(mixture, windows))
    reference = candidates[mixture.reference]
    rows: list[FrontRow] = []
    for row in sorted(candidates, key=lambda row: (row.latency_interval_s[1], row.energy_j)):
        if not rows or row.energy_j < rows[-1].energy_j:
            rows.append(row)
    return Front(reference, tuple(rows), tuple(_curve(reference, rows, sorted(ratios))), candidates)


def _candidates(mixture: Mixture, windows: Mapping[int, int]) -> Iterator[FrontRow]:
    latency = np.exp(mixture.quantiles(LATENCY, _AT))
    energy = np.exp(mixture.quantiles(ENERGY, _AT))
    ratio = np.exp(mixture.energies_over(mixture.reference, _AT))
    ratio[:, mixture.reference] = 1.0
    for index, candidate in enumerate(mixture.space.candidates):
        yield FrontRow(
            index=index,
            candidate=candidate,
            latency_s=float(latency[1, index]),
            latency_interval_s=(float(latency[0, index]), float(latency[2, index])),
            energy_j=float(energy[1, index]),
            energy_interval_j=(float(energy[0, index]), float(energy[2, index])),
            saving_ratio=float(1.0 - ratio[1, index]),
            saving_interval=(float(1.0 - ratio[2, index]), float(1.0 - ratio[0, index])),
            windows=windows.get(index, 0),
        )


def _curve(reference: FrontRow, rows: Sequence[FrontRow], ratios: Sequence[float]) -> Iterator[Allowance]:
    """Up to the first bound that allows the last row; the reference is within any of at least its own latency."""
    for ratio in ratios:
        bound_s = ratio * reference.latency_s
        within = [row for row in rows if row.latency_interval_s[1] <= bound_s]
        if ratio >= 1.0:
            within.append(reference)
        if not within:
            continue
        yield Allowance(ratio, bound_s, min(within, key=lambda row: row.energy_j))
        if rows[-1] in within:
            return
