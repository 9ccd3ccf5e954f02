"""What a retune gains from what is known: another bound, the same bound a week later, and a board that was changed.

    python -m bench.search_retune [FOLDER] [--seeds 10] [--grids NAME,…] [--most 8] [--incumbent] [--each] [--check]

For each grid and each pair of bounds (1.1, 1.25, 1.5 x the reference as it was measured; other pairs than equal ones)
a first search of 15 windows is followed by one with the other bound, which is told of the first one's windows. With
another bound a job leaves it to the search whether the old winner is worth a window; with --incumbent it is asked for
right after the reference, as with the same bound. After each window of the second it is asked what it would choose
then: reached is a choice within 2 % of the best row (and not slower than 1.005 x bound); every window counts, the
reference too.

cold      the second search alone
retune    told of the first, of the same board
week      the same; between the two all energies moved by 2 % and each row by 1 % (standard deviations)
changed   the first was of another board: energies tilted by 10 % from one end of each axis to the other, one way or the
          other, and three of the rows that it measured off by 20 % in energy

Targets (--check): retune within 2 % in at most 3 windows in 90 % of searches; changed at most 2 windows more than cold,
in the mean and for 90 % of searches.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from pathlib import Path
from statistics import fmean

# Before numpy is loaded: on matrices this small, threads of its BLAS wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from jouletune.earlier import Earlier
from jouletune.replay import Board, Disturbance, Noted, drive, score
from jouletune.suggest import Choice, Problem, Suggester
from jouletune.table import Table, parse_table

RATIOS = (1.1, 1.25, 1.5)
CONDITIONS = ("cold", "retune", "week", "changed")
FIRST_BUDGET = 15
WEEK_S = 7 * 86400.0
WITHIN = 0.02
SHARE, AT, MORE = 0.9, 3, 2
TILT = 0.1
ROWS_OFF, OFF_BY = 3, 0.2
WEEK_ALL, WEEK_ROW = 0.02, 0.01


@dataclass(frozen=True)
class Retune:
    """One second search. `hit[n]`: its choice after n + 1 windows was good."""

    grid: str
    condition: str
    ratios: tuple[float, float]
    hit: tuple[bool, ...]
    slow: bool

    def reached(self) -> int:
        """Windows until its choice was good; one more than there were where it never was."""
        return next((n for n, good in enumerate(self.hit, 1) if good), len(self.hit) + 1)

    @property
    def kind(self) -> str:
        return "semi-real" if "semireal" in self.grid else "real"


def moved(table: Table, factors: Sequence[float]) -> Table:
    """The table with each row's energy changed."""
    rows = zip(table.rows, factors, strict=True)
    return Table(tuple(replace(row, energy_j=row.energy_j * factor) for row, factor in rows), table.space)


def tilted(table: Table, draw: random.Random) -> Table:
    """Energies from -5 to +5 % along all axes together, or the other way."""
    sides = [draw.choice((-1.0, 1.0)) for _ in table.space.axes]
    tops = [len(axis.values) - 1 for axis in table.space.axes]
    factors = []
    for index in range(len(table.space)):
        at = table.space.coordinates(index)
        place = fmean(side * (rank / top - 0.5) for side, rank, top in zip(sides, at, tops, strict=True))
        factors.append(math.exp(TILT * place))
    return moved(table, factors)


def with_rows_off(earlier: Sequence[Earlier], draw: random.Random) -> tuple[Earlier, ...]:
    """Three of the rows measured are off in all their windows."""
    rows = sorted({window.index for window in earlier})
    factors = {row: math.exp(draw.choice((-OFF_BY, OFF_BY))) for row in draw.sample(rows, min(ROWS_OFF, len(rows)))}
    return tuple(replace(window, energy_j=window.energy_j * factors.get(window.index, 1.0)) for window in earlier)


def a_week_later(table: Table, draw: random.Random) -> Table:
    """All energies moved together and each row by itself."""
    whole = draw.gauss(0.0, WEEK_ALL)
    return moved(table, [math.exp(whole + draw.gauss(0.0, WEEK_ROW)) for _ in table.rows])


@cache
def first(table: Table, ratio: float, name: str, seed: int) -> tuple[tuple[Earlier, ...], int]:
    """The windows of a first search, and its choice."""
    bound_s = ratio * table.rows[table.space.reference].latency_s
    problem = Problem(table.space, bound_ratio=ratio, budget=FIRST_BUDGET, seed=seed, sampler="joule")
    noted = Noted(Board(table, Disturbance(), bound_s=bound_s, seed=f"{name} {ratio} {seed} first").measure)
    choice = drive(Suggester(problem), noted.measure)
    return noted.earlier(WEEK_S), choice.index


def second(table: Table, problem: Problem, ratio: float, seed: str) -> tuple[tuple[bool, ...], bool]:
    """Whether each window's choice is good; whether the last one is too slow."""
    bound_s = ratio * table.rows[table.space.reference].latency_s
    board = Board(table, Disturbance(), bound_s=bound_s, seed=seed)
    suggester = Suggester(problem)
    hit: list[bool] = []
    best = table.space.reference
    while not isinstance(answer := suggester.ask(), Choice):
        suggester.tell(answer, board.measure(answer))
        if suggester.search is not None:
            best = next(iter(suggester.search.best(1)), table.space.reference)
        found = score(table, best, bound_s)
        hit.append(found.gap is not None and found.gap <= WITHIN and found.within_bound)
    hit += [hit[-1]] * (problem.budget - len(hit))  # it ended by itself, with what it chose
    return tuple(hit), not score(table, best, bound_s).within_bound


def one(
    table: Table, grid: str, condition: str, ratios: tuple[float, float], seed: int, *, most: int, first_old: bool
) -> Retune:
    """A first search and a second."""
    before, now = ratios
    name = f"{grid} {before} {now} {seed}"
    draw = random.Random(f"{name} {condition}")
    problem = Problem(table.space, bound_ratio=now, budget=most, seed=seed, sampler="joule")
    board = table
    if condition != "cold":
        of = tilted(table, draw) if condition == "changed" else table
        earlier, incumbent = first(of, before, grid, seed)
        if condition == "changed":
            earlier = with_rows_off(earlier, draw)
        problem = replace(problem, earlier=earlier, incumbent=incumbent if first_old else None)
        board = a_week_later(table, draw) if condition == "week" else table
    hit, slow = second(board, problem, now, name)
    return Retune(grid, condition, ratios, hit, slow)


def quantile(counts: Sequence[int], share: float) -> int:
    """The least count that so many are at or under."""
    return sorted(counts)[math.ceil(share * len(counts)) - 1]


def line(name: str, retunes: Sequence[Retune]) -> str:
    """Shares after each number of windows, and how many it took."""
    most = len(retunes[0].hit)
    shares = " ".join(f"{100 * fmean(retune.hit[n] for retune in retunes):4.0f}" for n in range(most))
    reached = [retune.reached() for retune in retunes]
    slow = 100 * fmean(retune.slow for retune in retunes)
    return f"{name:44} {shares}   {fmean(reached):5.2f} {quantile(reached, SHARE):4} {slow:6.2f}"


def failures(retunes: Sequence[Retune]) -> list[str]:
    """The targets that are missed."""
    by = {name: [retune for retune in retunes if retune.condition == name] for name in CONDITIONS}
    wrong = []
    if by["retune"]:
        share = fmean(retune.reached() <= AT for retune in by["retune"])
        if share < SHARE:
            wrong.append(f"retune: {100 * share:.0f} % within 2 % in at most {AT} windows, target {100 * SHARE:.0f} %")
    if by["cold"] and by["changed"]:
        cold, changed = ([retune.reached() for retune in by[name]] for name in ("cold", "changed"))
        for what, more in (
            ("in the mean", fmean(changed) - fmean(cold)),
            ("for 90 %", float(quantile(changed, SHARE) - quantile(cold, SHARE))),
        ):
            if more > MORE:
                wrong.append(f"changed: {more:.1f} windows more than cold {what}, target {MORE}")
    return wrong


def print_tally(retunes: Sequence[Retune], *, each: bool) -> None:
    """One condition: real and semi-real grids, then each grid."""
    condition = retunes[0].condition
    for kind in ("real", "semi-real"):
        mine = [retune for retune in retunes if retune.kind == kind]
        if mine:
            print(line(f"{condition}, {kind}", mine), flush=True)
    if not each:
        return
    keys = dict.fromkeys((retune.grid, retune.ratios) for retune in retunes)
    for grid, ratios in keys:
        mine = [retune for retune in retunes if (retune.grid, retune.ratios) == (grid, ratios)]
        print(line(f"  {grid[:28]} {ratios[0]:g}->{ratios[1]:g}", mine), flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/data/grids"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--most", type=int, default=8, help="windows of the second search")
    parser.add_argument("--grids", default="", help="only files whose name holds one of these")
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    parser.add_argument("--incumbent", action="store_true", help="the old winner is asked for after the reference")
    parser.add_argument("--each", action="store_true", help="also each grid and pair of bounds")
    parser.add_argument("--check", action="store_true", help="end with 1 where a target is missed")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    wanted = [name for name in options.grids.split(",") if name] or [""]
    paths = [
        path
        for path in sorted(options.folder.glob("*.csv"))
        if "latency-only" not in path.name and any(name in path.name for name in wanted)
    ]
    if not paths:
        print(f"{options.folder}: no grid with energies", file=sys.stderr)
        return 1
    windows = " ".join(f"{n:4}" for n in range(1, options.most + 1))
    print(f"{'within 2 % after so many windows, %':44} {windows}    mean  p90  slow %")
    tables = {path.stem: parse_table(path.read_text(), where=str(path)) for path in paths}
    done: list[Retune] = []
    for condition in options.conditions.split(","):
        mine = [
            one(table, grid, condition, ratios, seed, most=options.most, first_old=options.incumbent)
            for grid, table in tables.items()
            for ratios in permutations(RATIOS, 2)
            for seed in range(options.seeds)
        ]
        print_tally(mine, each=options.each)
        done += mine
    wrong = failures(done)
    for text in wrong:
        print(f"missed: {text}", file=sys.stderr)
    return 1 if wrong and options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
