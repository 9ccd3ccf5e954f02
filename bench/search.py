"""Compare the samplers on recorded grids, as the search paper scores them.

    python -m bench.search FOLDER [--samplers joule,descent] [--at 8 12] [--seeds 40] [--conditions plain,outliers]
                           [--large] [--each] [--left-out 3] [--json RUNS.json] [--figures FOLDER] [--check]

Each run is one conversation (`jouletune.suggest`) with a budget: bound = ratio x the reference as it was measured,
ratios 1.1, 1.25, 1.5, noise 1 % in energy and 0.5 % in latency. Scored by the grid's true values: the gap is the
chosen row's energy over that of the best row at most 0.99 x bound, less 1; a violation ("slow") is a chosen row slower
than 1.005 x bound, "far" counts those over 1.02. Files whose name holds "semireal" are pooled apart.

Conditions: outliers (5 % of energies x or / 2.5), drift (energies walk by 0.3 % a window), invalid (10 % of windows),
cut (rows over 1.05 x bound are told as infeasible, without numbers). Intervals: how many of the true values of rows
with latency at most 1.2 x bound a sampler with a model has in its 90 % intervals. Times are the processor's, so that
another process beside this one costs nothing. At the end stand the search paper's targets, with `--left-out` beside
what joule comes to where its constants are chosen without the grid that is scored (bench.search_left_out).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import groupby, product
from pathlib import Path

# Before numpy is loaded: on matrices this small, threads of its BLAS wait for each other, ten times as long on a busy
# machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from bench.search_made import NAME as MADE
from bench.search_made import made
from bench.search_plain import NAME as PLAIN
from bench.search_plain import PlainDescent
from bench.search_tally import HEADER, LeftOut, Run, calibration, print_tally, verdict_line, verdicts

from jouletune.replay import Board, Disturbance, drive, score
from jouletune.sampler import Belief
from jouletune.search import SAMPLERS
from jouletune.suggest import Choice, Problem, Suggester, Told
from jouletune.table import Table, parse_table

RATIOS = (1.1, 1.25, 1.5)
CONDITIONS = {
    "plain": Disturbance(),
    "outliers": Disturbance(outlier_rate=0.05),
    "drift": Disturbance(drift=0.003),
    "invalid": Disturbance(invalid_rate=0.1),
    "cut": Disturbance(cut_ratio=1.05),
}
CALIBRATED_AT = (6, 8, 12)
NEAR = 1.2


class Watched(Suggester):
    """Notes how long each answer took (of the processor), and what was believed and would be chosen on the way."""

    def __init__(self, problem: Problem, table: Table, bound_s: float, *, track: bool, believe: bool) -> None:
        super().__init__(problem)
        self.asked_s: list[float] = []
        self.path: list[float | None] = []
        self.held: dict[int, tuple[int, int, int]] = {}
        self._table = table
        self._true_bound_s = bound_s
        self._track = track
        self._believe = believe
        self._peeked = False  # what was looked at makes the next answer cheap: it is not timed

    def ask(self) -> int | Choice:
        began_s = time.process_time()
        answer = super().ask()
        if not self._peeked:
            self.asked_s.append(time.process_time() - began_s)
        return answer

    def tell(self, index: int, told: Told) -> None:
        super().tell(index, told)
        self._peeked = self.search is not None and (
            self._track or (self._believe and self.measurements in CALIBRATED_AT)
        )
        if self._track and self.search is not None:
            best = next(iter(self.search.best(1)), self.problem.space.reference)
            found = score(self._table, best, self._true_bound_s)
            self.path.append(found.gap if found.within_bound else None)
        if self._believe and self.measurements in CALIBRATED_AT and self.search is not None:
            beliefs = self.search.beliefs()
            if beliefs is not None:
                self.held[self.measurements] = held(self._table, beliefs, self._true_bound_s)


def held(table: Table, beliefs: Mapping[int, Belief], bound_s: float) -> tuple[int, int, int]:
    """Rows that count, and in how many of them the energy and the latency lie in their intervals."""
    near = [index for index, row in enumerate(table.rows) if row.latency_s <= NEAR * bound_s]
    energies = latencies = 0
    for index in near:
        row, belief = table.rows[index], beliefs[index]
        energies += belief.energy_interval_j[0] <= row.energy_j <= belief.energy_interval_j[1]
        latencies += belief.latency_interval_s[0] <= row.latency_s <= belief.latency_interval_s[1]
    return len(near), energies, latencies


@dataclass(frozen=True)
class Task:
    """The runs of one process's turn."""

    path: Path
    sampler: str
    condition: str
    ratio: float
    budget: int
    seeds: int
    track: bool
    exact: bool = False


def run(task: Task) -> list[Run]:
    """One search for each seed."""
    table = made() if task.path.name == MADE else parse_table(task.path.read_text(), where=str(task.path))
    if task.sampler != PLAIN:
        return [one(task, table, seed) for seed in range(task.seeds)]
    SAMPLERS[PLAIN] = PlainDescent  # known only while it runs: it is no sampler of the product
    try:
        return [one(task, table, seed) for seed in range(task.seeds)]
    finally:
        del SAMPLERS[PLAIN]


def one(task: Task, table: Table, seed: int) -> Run:
    """One search and its score."""
    bound_s = task.ratio * table.rows[table.space.reference].latency_s
    told_s, ratio = (bound_s, None) if task.exact else (None, task.ratio)
    problem = Problem(table.space, told_s, ratio, budget=task.budget, seed=seed, sampler=task.sampler)
    believe = task.condition == "plain" and task.budget >= max(CALIBRATED_AT)
    watched = Watched(problem, table, bound_s, track=task.track, believe=believe)
    board = Board(table, CONDITIONS[task.condition], bound_s=bound_s, seed=f"{task.path.stem} {task.ratio} {seed}")
    choice = drive(watched, board.measure)
    found = score(table, choice.index, bound_s)
    return Run(
        grid=task.path.stem,
        sampler=task.sampler,
        condition=task.condition,
        ratio=task.ratio,
        budget=task.budget,
        seed=seed,
        row=table.rows[choice.index].number,
        gap=1.0 if found.gap is None else found.gap,
        latency_ratio=found.latency_ratio,
        measurements=watched.measurements,
        asked_s=watched.asked_s,
        path=watched.path,
        held=watched.held,
    )


def all_runs(tasks: Sequence[Task], jobs: int) -> Iterator[list[Run]]:
    """In this process, or in several."""
    if jobs == 1:
        yield from map(run, tasks)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(run, tasks)


def make_tasks(options: argparse.Namespace, paths: Sequence[Path]) -> list[Task]:
    """Every grid with every bound, budget, condition and sampler; the path is followed at the largest budget."""
    most = max(options.at)
    return [
        Task(
            path,
            sampler,
            condition,
            ratio,
            budget,
            options.seeds,
            track=options.figures is not None and budget == most,
            exact=options.exact_bound,
        )
        for sampler, condition, budget, path, ratio in product(
            options.samplers.split(","), options.conditions.split(","), options.at, paths, RATIOS
        )
    ]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/data/grids"))
    parser.add_argument("--samplers", default=",".join(SAMPLERS), help=f"%(default)s, or {PLAIN}, a control")
    parser.add_argument("--conditions", default="plain", help=f"of {','.join(CONDITIONS)}")
    parser.add_argument("--at", type=int, nargs="+", default=[8, 12], help="budgets")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--grids", default="", help="only files whose name holds one of these")
    parser.add_argument("--exact-bound", action="store_true", help="the bound is ratio x the row, not x its window")
    parser.add_argument("--large", action="store_true", help="also a made-up grid of 1,000 candidates, for the times")
    parser.add_argument("--each", action="store_true", help="also each grid and bound")
    parser.add_argument("--json", type=Path, help="write every run there")
    parser.add_argument("--figures", type=Path, help="draw the gap over windows of each grid there (needs matplotlib)")
    parser.add_argument("--left-out", type=int, default=0, metavar="SEEDS", help="so many for each setting; 0: not")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="end with 1 where joule misses its targets")
    return parser.parse_args(arguments)


def tallied(tasks: Sequence[Task], options: argparse.Namespace) -> list[Run]:
    """All runs; each group is printed as soon as it is whole, for it may take long."""
    print(HEADER)
    runs: list[Run] = []
    done = zip(tasks, all_runs(tasks, options.jobs), strict=True)
    for _, group in groupby(done, lambda pair: (pair[0].sampler, pair[0].condition, pair[0].budget)):
        whole = [one for _, part in group for one in part]
        print_tally(whole, each=options.each)
        runs += whole
    return runs


def wanted_paths(options: argparse.Namespace) -> list[Path]:
    """The grids with energies that were asked for, then the made-up one."""
    wanted = [name for name in options.grids.split(",") if name] or [""]
    with_energies = [path for path in sorted(options.folder.glob("*.csv")) if "latency-only" not in path.name]
    paths = [path for path in with_energies if any(name in path.name for name in wanted)]
    return [*paths, Path(MADE)] if options.large else paths


def scored_left_out(options: argparse.Namespace, paths: Sequence[Path]) -> LeftOut:
    """At each budget, where it was asked for."""
    from bench.search_left_out import by_settings, pooled

    recorded = [path for path in paths if path.name != MADE]
    found: dict[tuple[str, int], tuple[Sequence[Run], Sequence[Run]]] = {}
    for at in options.at if options.left_out else []:
        found |= pooled(dict(by_settings(recorded, at, options.left_out)), at)
    return found


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    paths = wanted_paths(options)
    if not paths:
        print(f"{options.folder}: no grid with energies", file=sys.stderr)
        return 1
    began_s = time.monotonic()
    runs = tallied(make_tasks(options, paths), options)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in runs]) + "\n")
    for line in calibration(runs):
        print(line)
    if options.figures:
        from bench.search_figures import draw

        draw(runs, options.figures)
    found = list(verdicts([one for one in runs if one.sampler == "joule"], scored_left_out(options, paths)))
    for verdict in found:
        print(verdict_line(verdict))
    print(f"{len(runs)} searches in {time.monotonic() - began_s:.0f} s on this machine")
    return 1 if options.check and not all(verdict.reached for verdict in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
