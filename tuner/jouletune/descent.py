"""Axis descent: from the reference along one axis at a time, with steps that halve (stdlib only).

The walk is written as if every candidate could be looked up at once; `descend` runs it over what is known and
stops at the first candidate that is not. So it has no state but the measurements, and a search that was killed
goes on where it was.

Why the first step is a third of an axis: energy over the GPU clock is U-shaped with its least value at 55-77 % of
the top in public measurements. Where energy falls along one axis only because another one is high, no single step
helps: after the walk, pairs of axes are exchanged (one a step slower, the other a step faster).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from jouletune.space import Space

_ORDER = ("gpu_hz", "cpu_hz", "emc_hz", "batch", "instances", "cores", "engine")
# What makes a request slower: a lower clock, fewer cores, a larger batch. Engines have no order.
_SLOWER = {"gpu_hz": -1, "cpu_hz": -1, "emc_hz": -1, "cores": -1, "batch": 1, "instances": 1, "engine": 0}
_FIRST_STEP = 1 / 3
_WORST = (9, 0.0)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one candidate: `merit` (less is better, feasible first); `slow`: over the latency bound."""

    merit: tuple[int, float]
    slow: bool = False


Offset = tuple[int, ...]
Walk = Generator[int, Known, bool]


class _Walker:
    def __init__(self, space: Space, known: Mapping[int, Known], avoid: Collection[int]) -> None:
        self.space = space
        self.avoid = avoid
        self.sizes = tuple(len(axis.values) for axis in space.axes)
        self.order = sorted(range(len(self.sizes)), key=lambda a: _ORDER.index(space.axes[a].name))
        origin = space.coordinates(space.reference)
        self.away = tuple(-1 if at > (n - 1) / 2 else 1 for at, n in zip(origin, self.sizes, strict=True))
        self.slower = tuple(_SLOWER[axis.name] for axis in space.axes)
        any_feasible = any(what.merit[0] == 0 for what in known.values())
        self.slow = [space.coordinates(i) for i, what in known.items() if what.slow] if any_feasible else []
        self.known = known
        self.at = space.reference
        self.merit: tuple[int, float] = _WORST

    def start(self, places: Sequence[int]) -> None:
        """Begin at the best known of `places`."""
        for place in places:
            if place in self.known and self.known[place].merit < self.merit:
                self.at, self.merit = place, self.known[place].merit

    def walk(self) -> Walk:
        steps = [
            max(1, round((n - 1) * _FIRST_STEP)) if way else 1 for n, way in zip(self.sizes, self.slower, strict=True)
        ]
        while True:
            moved = False
            for axis in self.order:
                moved |= yield from self._along(axis, steps[axis])
            if not moved and max(steps, default=1) == 1:
                break
            steps = [max(1, step // 2) for step in steps]
        return (yield from self._polish())

    def _along(self, axis: int, step: int) -> Walk:
        """Steps along one axis, on and on while they help; away from the reference before back to it."""
        for way in (self.away[axis], -self.away[axis]):
            offset = self._offset((axis, way * step))
            if (yield from self._try(offset)):
                while (yield from self._try(offset)):
                    pass
                return True
        return False

    def _polish(self) -> Walk:
        moved = True
        while moved:
            moved = False
            for offset in self._fine_offsets():
                moved |= yield from self._try(offset)
            if not moved:
                moved = yield from self._leap()
        return False

    def _leap(self) -> Walk:
        """Over holes: where no neighbour exists, the nearest candidates there are."""
        here = self.space.coordinates(self.at)
        distances = {
            place: sum(abs(t - h) for t, h in zip(self.space.coordinates(place), here, strict=True))
            for place in range(len(self.space))
            if place != self.at and place not in self.avoid
        }
        nearest = sorted(distances, key=lambda place: distances[place])[: 2 * len(self.sizes)]
        for place in nearest:
            if (yield from self._move(place)):
                return True
        return False

    def _fine_offsets(self) -> Iterator[Offset]:
        for slow, fast in permutations(self.order, 2):
            yield self._offset((slow, self.away[slow]), (fast, -self.away[fast]))
        for size in (1, 2):
            for axis in self.order:
                yield self._offset((axis, self.away[axis] * size))
                yield self._offset((axis, -self.away[axis] * size))

    def _offset(self, *moves: tuple[int, int]) -> Offset:
        steps = dict(moves)
        return tuple(steps.get(axis, 0) for axis in range(len(self.sizes)))

    def _try(self, offset: Offset) -> Walk:
        return (yield from self._move(self._legal(offset)))

    def _move(self, place: int) -> Walk:
        """Move there if it is better than here."""
        if place == self.at or (place not in self.known and self._is_hopeless(place)):
            return False
        found = yield place
        if found.merit >= self.merit:
            return False
        self.at, self.merit = place, found.merit
        return True

    def _legal(self, offset: Offset) -> int:
        """The candidate at `offset` from here, held inside; over a hole, the next one on the way back."""
        here = self.space.coordinates(self.at)
        there = [min(max(at + d, 0), n - 1) for at, d, n in zip(here, offset, self.sizes, strict=True)]
        while (place := self.space.at(there)) is None or place in self.avoid:
            if place == self.at:
                break
            there = [t - (t > h) + (t < h) for t, h in zip(there, here, strict=True)]
        return self.at if place is None else place

    def _is_hopeless(self, place: int) -> bool:
        """Is it on no axis faster than one that was too slow?"""
        there = self.space.coordinates(place)
        return any(
            all((t - s) * way >= 0 if way else t == s for t, s, way in zip(there, slow, self.slower, strict=True))
            for slow in self.slow
        )


def descend(
    space: Space, known: Mapping[int, Known], *, start: Sequence[int], avoid: Collection[int] = ()
) -> int | None:
    """The next candidate to measure, never one of `known` or `avoid`; None: the descent has ended.

    It begins at the best of `start` that is known.
    """
    walker = _Walker(space, known, avoid)
    walker.start(start)
    walk = walker.walk()
    try:
        place = next(walk)
        while place in known:
            place = walk.send(known[place])
    except StopIteration:
        return None
    return place
