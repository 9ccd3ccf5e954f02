"""The search paper's axis descent, as a control: does this bench score as the paper did?

From the reference along one axis after the other (in the order of the CSV's columns), on and on while it helps, first
downwards; steps of a third of the axis, halved when no axis helps any more. A candidate is feasible when its measured
latency is within the bound, without a margin. The product's `descent` does more (see `jouletune.descent`).

The paper says its descent in one line; of some 220 readings of that line this one comes nearest to its figures on the
shared grids. So that they agree is weaker evidence than it looks (docs/search.md).
"""

from __future__ import annotations

from collections.abc import Generator

from optuna.study import Study
from optuna.trial import FrozenTrial

from jouletune.sampler import CandidateSampler
from jouletune.standing import Standing, Standings, standings

NAME = "plain"
Merit = tuple[int, float]


class PlainDescent(CandidateSampler):
    """See above."""

    def choose(self, study: Study, trial: FrozenTrial | None, seen: Standings) -> int | None:
        walk = self._walk(self._merit(seen[self.space.reference]))
        try:
            index = next(walk)
            while index in seen:
                index = walk.send(self._merit(seen[index]))
        except StopIteration:
            return None
        return index

    def best(self, study: Study, n: int) -> list[int]:
        merits = {index: self._merit(standing) for index, standing in standings(study).items()}
        return sorted((index for index, merit in merits.items() if merit[0] == 0), key=lambda i: merits[i])[:n]

    def _merit(self, standing: Standing) -> Merit:
        if not standing.measured:
            return 2, 0.0
        latency_s = sum(window.latency_s for window in standing.measured) / len(standing.measured)
        within = self.bound_s is None or latency_s <= self.bound_s
        return (0, standing.energy_j) if within else (1, latency_s)

    def _walk(self, merit: Merit) -> Generator[int, Merit, None]:
        at, sizes = self.space.reference, [len(axis.values) for axis in self.space.axes]
        steps = [max(1, size // 3) for size in sizes]
        while True:
            moved = False
            for axis in range(len(sizes)):
                for step in (-steps[axis], steps[axis]):
                    while (there := self._beside(at, axis, step)) is not None:
                        found = yield there
                        if found >= merit:
                            break
                        at, merit, moved = there, found, True
            if not moved and max(steps, default=1) == 1:
                return
            if not moved:
                steps = [max(1, step // 2) for step in steps]

    def _beside(self, at: int, axis: int, step: int) -> int | None:
        """The candidate a step away, held inside; None: a hole, or here."""
        place = list(self.space.coordinates(at))
        place[axis] = min(max(place[axis] + step, 0), len(self.space.axes[axis].values) - 1)
        there = self.space.at(place)
        return None if there == at else there
