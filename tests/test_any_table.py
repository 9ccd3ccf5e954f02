"""Properties of every sampler on any table: legal proposals, a clean end, a legal choice, and all of it repeatable."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jouletune.search import SAMPLERS, Failed, Infeasible
from jouletune.space import Candidate, PowerMode, Space, Variant
from jouletune.suggest import Choice, Problem, Suggester, Told, Window

KINDS = ("rough", "constant", "infeasible", "slow reference", "extreme", "one row", "sure", "vague", "alike but one")
BUDGET = 9
PLACES = st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=40, unique=True)
SEEDS, RATIOS = st.integers(0, 999), st.sampled_from([None, 1.1, 1.5])


@dataclass(frozen=True)
class Board:
    """A table with its bound; what comes of the n-th window on a row follows from `seed` alone."""

    space: Space
    rows: list[tuple[float, float]]
    kind: str
    seed: int
    bound_s: float | None
    bound_ratio: float | None

    def problem(self, sampler: str) -> Problem:
        return Problem(self.space, self.bound_s, self.bound_ratio, budget=BUDGET, seed=self.seed, sampler=sampler)

    def window(self, index: int, n: int) -> Told:
        draw = random.Random(f"{self.seed} {index} {n}")
        what = draw.random()
        if what < 0.1:
            return Failed(draw.choice(("throttled", "unsteady")))
        if what < 0.15:
            return Infeasible()
        energy_j, latency_s = (value * draw.lognormvariate(0.0, 0.01) for value in self.rows[index])
        error = {"sure": 0.0, "vague": 3.0}.get(self.kind, 0.01)
        return Window(energy_j, error * energy_j, latency_s, 0.5 * error * latency_s)


def board(places: list[tuple[int, int, int, int]], kind: str, seed: int, ratio: float | None) -> Board:
    """Holes are where the places are not."""
    draw = random.Random(seed)
    places = places[:1] if kind == "one row" else places
    candidates = [
        Candidate(PowerMode(cpu_hz=10**9 * (c + 1), gpu_hz=10**8 * (g + 1), emc_hz=e + 1), Variant(batch=2**b))
        for c, g, e, b in places
    ]
    space = Space.of(candidates, draw.randrange(len(candidates)))
    rows = [_row(kind, draw, first=not at) for at in range(len(candidates))]
    fastest, slowest = min(latency for _, latency in rows), max(latency for _, latency in rows)
    if kind == "slow reference":
        rows[space.reference] = rows[space.reference][0], 2.0 * slowest
    bounds = {"infeasible": 0.5 * fastest, "slow reference": 1.05 * slowest}
    return Board(space, rows, kind, seed, bounds.get(kind), None if kind in bounds else ratio)


def _row(kind: str, draw: random.Random, *, first: bool) -> tuple[float, float]:
    """(energy, latency) of one candidate."""
    if kind == "extreme":
        return 10.0 ** draw.uniform(-11, 11), 10.0 ** draw.uniform(-11, 11)
    if kind == "constant":
        return 1.0, 0.01
    if kind == "alike but one":
        return (1e-6, 0.01) if first else (1.0, 0.01)
    return draw.lognormvariate(0.0, 0.5), draw.lognormvariate(-4.0, 0.3)


BOARDS = st.builds(board, PLACES, st.sampled_from(KINDS), SEEDS, RATIOS)


def conversation(made: Board, sampler: str) -> Iterator[tuple[int, Told]]:
    """Each window until the end."""
    suggester = Suggester(made.problem(sampler))
    counts: Counter[int] = Counter()
    while not isinstance(index := suggester.ask(), Choice):
        told = made.window(index, counts[index])
        counts[index] += 1
        suggester.tell(index, told)
        yield index, told


def after(made: Board, sampler: str, windows: list[tuple[int, Told]]) -> int | Choice:
    """What a process that was told these windows alone says next."""
    suggester = Suggester(made.problem(sampler))
    for index, told in windows:
        suggester.tell(index, told)
    return suggester.ask()


def is_sound(made: Board, choice: Choice, windows: list[tuple[int, Told]]) -> bool:
    """The reference, or a candidate that was measured, below the bound at least once; probabilities are such."""
    chances = [p for p in (choice.probability_feasible, choice.probability_better_exists) if p is not None]
    gain = choice.expected_gain
    if not all(0.0 <= chance <= 1.0 for chance in chances) or not (gain is None or 0.0 <= gain < math.inf):
        return False
    seen = [told for index, told in windows if index == choice.index and isinstance(told, Window)]
    if choice.index == made.space.reference:
        return True
    return bool(seen) and (made.bound_s is None or min(one.latency_s for one in seen) <= made.bound_s)


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
@given(made=BOARDS, cut=st.integers(0, BUDGET))
@settings(max_examples=25, deadline=None)
def test_any_table_ends_in_a_sound_choice_and_any_moment_of_it_can_be_resumed(
    sampler: str, made: Board, cut: int
) -> None:
    windows = list(conversation(made, sampler))
    assert len(windows) <= BUDGET
    assert all(0 <= index < len(made.space) for index, _ in windows)
    choice = after(made, sampler, windows)
    assert isinstance(choice, Choice)
    assert is_sound(made, choice, windows)
    if cut < len(windows):
        assert after(made, sampler, windows[:cut]) == windows[cut][0]
