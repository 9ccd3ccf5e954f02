"""Whole jobs on boards made of recorded measurements: how near does the winner come to the best row?

    python bench/recorded.py [FOLDER] [--ratio 1.25] [--seeds 20] [--samplers descent,tpe] [--json] [--check]

Each run is `jouled tune` with the default budget over the product's own path: nvpmodel with private confs (in this
process), read-back, settle, pilot, window, finals, decision. The truth is the CSV: E* is the least energy among rows
whose latency is at most 0.99 x bound, the gap is energy(chosen)/E* - 1 (never below 0), and a violation is a chosen row
slower than 1.005 x bound, the bound being ratio x the reference row's recorded latency. Chosen is what is in force at
the end: the winner, or the reference where there was none.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from jouled.config import load
from jouled.job.cancel import Cancellation
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.virtual.recorded import RecordedMachine
from jouled.workload.runner import Arrival
from jouletune.table import Row, Table

WITHIN = 0.99
VIOLATED = 1.005
MOST_GAP = 0.02
MOST_VIOLATED = 0.02


@dataclass(frozen=True)
class Run:
    """One job, scored against the rows."""

    grid: str
    sampler: str
    seed: int
    outcome: str
    reason: str | None
    gap: float
    latency_ratio: float
    windows: int
    minutes: float
    saving: float

    @property
    def violated(self) -> bool:
        return self.latency_ratio > VIOLATED


def has_energies(path: Path) -> bool:
    """Grids without energies are of no use here."""
    first = path.read_text().splitlines()[1]
    return not first.endswith(",")


def score(table: Table, chosen: Row, bound_s: float) -> tuple[float, float]:
    """(gap, latency over bound)."""
    best_j = min(row.energy_j for row in table.rows if row.latency_s <= WITHIN * bound_s)
    return max(0.0, chosen.energy_j / best_j - 1.0), chosen.latency_s / bound_s


def run(task: tuple[Path, str, int, float]) -> Run:
    """One job in a folder of its own."""
    path, sampler, seed, ratio = task
    logging.disable(logging.CRITICAL)
    config = load(None, {"target.latency_bound_ratio": ratio, "job.sampler": sampler})
    with tempfile.TemporaryDirectory() as folder:
        machine = RecordedMachine(Path(folder) / "board", path, seed=seed, programs="in_process")
        request = Request(config, machine.rail, lambda board: machine.space, seed=seed, total_rails=(machine.rail,))
        runner = machine.runner(Arrival())
        result = run_job(machine.host(Path(folder)), request, runner, cancellation=Cancellation())
        machine.close()
    rows = {row.candidate: row for row in machine.table.rows}
    reference = rows[machine.space.candidates[machine.space.reference]]
    chosen = reference if result.winner is None else rows[result.winner.candidate]
    gap, latency_ratio = score(machine.table, chosen, ratio * reference.latency_s)
    return Run(
        grid=path.stem,
        sampler=sampler,
        seed=seed,
        outcome=result.outcome,
        reason=result.reason_code,
        gap=gap,
        latency_ratio=latency_ratio,
        windows=result.measurements,
        minutes=result.duration_s / 60,
        saving=1.0 - chosen.energy_j / reference.energy_j,
    )


def line(runs: list[Run]) -> str:
    """One sampler on one grid."""
    gaps = sorted(one.gap for one in runs)
    within = [sum(gap <= limit for gap in gaps) / len(gaps) for limit in (0.01, 0.02, 0.03)]
    return (
        f"{runs[0].grid:38} {runs[0].sampler:8} {100 * statistics.median(gaps):6.2f} {100 * gaps[-1]:6.1f}   "
        + "/".join(f"{100 * share:3.0f}" for share in within)
        + f"   {sum(one.violated for one in runs):3d}/{len(runs):<3d}"
        + f"  {sum(one.outcome == 'tuned' for one in runs):3d}"
        + f"  {statistics.mean(one.windows for one in runs):5.1f}  {statistics.mean(one.minutes for one in runs):5.1f}"
        + f"  {100 * statistics.median(one.saving for one in runs):5.1f}"
    )


HEADER = (
    "grid                                   sampler  median  worst   within       violated  tuned windows minutes"
    "  saving\n"
    "                                                 gap, %  gap, %  1/2/3 %, %                          (board)"
    "  med., %"
)


def by_grid(runs: list[Run]) -> list[list[Run]]:
    """The runs of each grid."""
    return [[one for one in runs if one.grid == grid] for grid in dict.fromkeys(one.grid for one in runs)]


def print_tally(runs: list[Run], samplers: list[str]) -> None:
    """A line for each sampler and grid."""
    print(HEADER)
    for name in samplers:
        mine = [one for one in runs if one.sampler == name]
        for group in by_grid(mine):
            print(line(group))
        kept = sum(not one.violated for one in mine)
        print(f"{name}: within 1.005 x bound in {100 * kept / len(mine):.1f} % of {len(mine)} jobs\n")


def failures(runs: list[Run]) -> list[str]:
    """The limits that are missed: a grid's median gap over 2 %, or over 2 % of all runs slower than 1.005 x bound.

    One seed has no median of its own: then the median over all grids counts.
    """
    if not runs:
        return []
    groups = by_grid(runs) if len(runs) > len(by_grid(runs)) else [runs]
    medians = [(group[0].grid, statistics.median(one.gap for one in group)) for group in groups]
    wrong = [f"{grid}: median gap {100 * gap:.2f} %, limit 2 %" for grid, gap in medians if gap > MOST_GAP]
    slow = sum(one.violated for one in runs)
    if slow > MOST_VIOLATED * len(runs):
        wrong.append(f"{slow} of {len(runs)} jobs chose a row slower than 1.005 x bound, limit 2 %")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/data/grids"))
    parser.add_argument("--ratio", type=float, default=1.25)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--samplers", default="descent,tpe")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="every run, one JSON list")
    parser.add_argument("--check", action="store_true", help="end with 1 where descent misses its limits")
    arguments = parser.parse_args()
    grids = [path for path in sorted(arguments.folder.glob("*.csv")) if has_energies(path)]
    if not grids:
        print(f"{arguments.folder}: no grid with energies", file=sys.stderr)
        return 1
    names = arguments.samplers.split(",")
    tasks = [(path, name, seed, arguments.ratio) for name in names for path in grids for seed in range(arguments.seeds)]
    began_s = time.monotonic()
    with ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = list(pool.map(run, tasks))
    if arguments.json:
        print(json.dumps([asdict(one) | {"violated": one.violated} for one in runs]))
    else:
        print_tally(runs, names)
        print(f"{len(runs)} jobs in {time.monotonic() - began_s:.0f} s on this machine")
    wrong = failures([one for one in runs if one.sampler == "descent"])
    for text in wrong:
        print(f"missed: {text}", file=sys.stderr)
    return 1 if wrong and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
