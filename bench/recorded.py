"""Whole jobs on boards made of recorded measurements: python bench/recorded.py [--grids FOLDER] [--seeds N].

Each run is `jouled tune --table GRID.csv --latency-bound-ratio 1.25` in one process: apply, windows, finals, decision.
What it puts in force is judged by the CSV: the gap to the row of least energy at <= 0.99 x bound, and whether the true
latency is within 1.005 x bound, the bound being 1.25 x the reference row's true latency. Exits 1 where a sampler that
is held to it (descent) leaves a median gap over 2 % on any grid or breaks the bound in more than 2 % of all runs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jouled.config import load
from jouled.job.cancel import Cancellation
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.virtual.recorded import RecordedMachine
from jouled.workload.runner import Arrival
from jouletune.table import Row

RATIO = 1.25
HELD = "descent"
MEDIAN_GAP = 0.02
VIOLATIONS = 0.02
DEFAULT_GRIDS = Path(__file__).resolve().parents[2] / "shared" / "data" / "grids"


@dataclass(frozen=True)
class Task:
    """One run."""

    path: Path
    sampler: str
    seed: int


@dataclass(frozen=True)
class Run:
    """What came of it."""

    task: Task
    outcome: str
    reason: str
    trials: int
    gap: float
    violates: bool


def tune(task: Task) -> Run:
    """One whole job."""
    with tempfile.TemporaryDirectory(prefix="jouled-bench-") as folder:
        state_dir = Path(folder)
        machine = RecordedMachine(state_dir / "board", task.path, seed=task.seed, programs="in_process")
        config = load(None, {"target.latency_bound_ratio": RATIO, "job.sampler": task.sampler})
        request = Request(
            config, machine.rail, lambda board: machine.space, seed=task.seed, total_rails=(machine.rail,)
        )
        runner = machine.runner(Arrival())
        result = run_job(machine.host(state_dir), request, runner, cancellation=Cancellation())
        return _judge(task, machine, result)


def _judge(task: Task, machine: RecordedMachine, result: JobResult) -> Run:
    rows = machine.table.rows
    bound_s = RATIO * rows[machine.space.reference].latency_s
    best_j = min(row.energy_j for row in rows if row.latency_s <= 0.99 * bound_s)
    chosen = _in_force(machine, result)
    gap = max(0.0, chosen.energy_j / best_j - 1.0)
    reason = result.reason_code or ""
    return Run(task, result.outcome, reason, result.trials, gap, chosen.latency_s > 1.005 * bound_s)


def _in_force(machine: RecordedMachine, result: JobResult) -> Row:
    """The row that the board is left in."""
    index = machine.space.reference
    if result.applied and result.winner is not None:
        index = machine.space.candidates.index(result.winner.candidate)
    return machine.table.rows[index]


def line(name: str, runs: Sequence[Run]) -> str:
    """One line of the table."""
    median = 100 * statistics.median(run.gap for run in runs)
    within = 100 * sum(run.gap <= 0.02 for run in runs) / len(runs)
    violations = 100 * sum(run.violates for run in runs) / len(runs)
    trials = statistics.fmean(run.trials for run in runs)
    ends = ", ".join(f"{end} {n}" for end, n in Counter(f"{r.outcome}/{r.reason}" for r in runs).most_common())
    return f"{name:42s} {median:6.2f} % {within:5.0f} % {violations:6.1f} % {trials:7.1f}   {ends}"


def main(arguments: Sequence[str]) -> int:
    """Run all, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grids", type=Path, default=DEFAULT_GRIDS)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sampler", action="append", help="default: descent and tpe")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    paths = [path for path in sorted(options.grids.glob("*.csv")) if "latency-only" not in path.name]
    if not paths:
        print(f"{options.grids}: wanted CSV files with energies, got none; name a folder with --grids", file=sys.stderr)
        return 2
    samplers = options.sampler or [HELD, "tpe"]
    tasks = [Task(path, sampler, seed) for sampler in samplers for path in paths for seed in range(options.seeds)]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        runs = pool.map(tune, tasks, chunksize=1)
    print(f"{'bound 1.25 x reference':42s} {'median':>8s} {'<= 2 %':>7s} {'late':>8s} {'trials':>7s}   endings")
    failed = False
    for sampler in samplers:
        mine = [run for run in runs if run.task.sampler == sampler]
        for path in paths:
            here = [run for run in mine if run.task.path == path]
            print(line(f"{sampler:7s} {path.stem}", here))
            failed |= sampler == HELD and statistics.median(run.gap for run in here) > MEDIAN_GAP
        print(line(f"{sampler:7s} all", mine))
        failed |= sampler == HELD and sum(run.violates for run in mine) > VIOLATIONS * len(mine)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
