"""Score the searches on recorded grids, as the search paper says: python bench/search_replay.py FOLDER.

Bound = ratio x the reference row's true latency; the best row is the one of least energy at <= 0.99 x bound; the gap is
how much more energy the chosen row takes; a violation is a true latency over 1.005 x bound. Each window carries
lognormal noise of 1 % in energy and 0.5 % in latency. A row counts as feasible where the one-sided 95 % upper bound of
its measured latency is within the bound, as in a job. Files whose name holds "semireal" are pooled apart.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jouletune.search import SAMPLERS, Measured, Search
from jouletune.table import Table, parse_table

RATIOS = (1.1, 1.25, 1.5)
ENERGY_NOISE = 0.01
LATENCY_NOISE = 0.005
UPPER = 1.645


@dataclass(frozen=True)
class Score:
    """One run at one number of measurements."""

    gap: float
    violates: bool


def window(table: Table, index: int, bound_s: float, draw: random.Random) -> Measured:
    """One noisy measurement of a row."""
    row = table.rows[index]
    energy_j = row.energy_j * math.exp(draw.gauss(0.0, ENERGY_NOISE))
    latency_s = row.latency_s * math.exp(draw.gauss(0.0, LATENCY_NOISE))
    upper_s = latency_s * (1.0 + UPPER * LATENCY_NOISE)
    power_w = energy_j * row.candidate.variant.batch / latency_s
    se_j, se_s = energy_j * ENERGY_NOISE, latency_s * LATENCY_NOISE
    return Measured(energy_j, se_j, latency_s, upper_s, se_s, power_w, feasible=upper_s <= bound_s)


def replay(
    table: Table, *, ratio: float, sampler: str, seed: int, at: Sequence[int], asked_s: list[float]
) -> dict[int, Score]:
    """One run: the score of what would be chosen after each number of measurements in `at`."""
    bound_s = ratio * table.rows[table.space.reference].latency_s
    best_j = min(row.energy_j for row in table.rows if row.latency_s <= 0.99 * bound_s)
    search = Search(table.space, sampler=sampler, bound_s=bound_s, seed=seed)
    draw = random.Random(f"{sampler} {seed}")
    scores: dict[int, Score] = {}
    for told in range(1, max(at) + 1):
        began_s = time.perf_counter()
        index = search.ask()
        asked_s.append(time.perf_counter() - began_s)
        if index is not None:
            search.tell(index, window(table, index, bound_s, draw))
        if told in at:
            row = table.rows[(search.best(1) or [table.space.reference])[0]]
            gap = max(0.0, row.energy_j / best_j - 1.0)
            scores[told] = Score(gap, row.latency_s > 1.005 * bound_s)
    return scores


def line(name: str, told: int, scores: Sequence[Score]) -> str:
    """One line of the result."""
    within = "/".join(f"{100 * sum(s.gap <= x for s in scores) / len(scores):.0f}" for x in (0.01, 0.02, 0.03))
    violations = 100 * sum(s.violates for s in scores) / len(scores)
    median = 100 * statistics.median(s.gap for s in scores)
    return f"{name:44s} at {told:2d}  {within:>11s}  violations {violations:4.2f} %  median gap {median:5.2f} %"


def main(arguments: Sequence[str]) -> int:
    """Replay every CSV with energies of the folder; print shares of runs within 1/2/3 % of the best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sampler", action="append", choices=sorted(SAMPLERS))
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--at", type=int, nargs="+", default=[8, 12, 15])
    parser.add_argument("--each", action="store_true", help="also each grid and bound")
    options = parser.parse_args(arguments)
    files = [path for path in sorted(options.folder.glob("*.csv")) if "latency-only" not in path.name]
    tables = {path.stem: parse_table(path.read_text(), where=str(path)) for path in files}
    for sampler in options.sampler or ["descent"]:
        pools: dict[tuple[str, int], list[Score]] = {}
        asked_s: list[float] = []
        for name, table in tables.items():
            kind = "semi-real" if "semireal" in name else "real"
            for ratio in RATIOS:
                for seed in range(options.seeds):
                    run = replay(table, ratio=ratio, sampler=sampler, seed=seed, at=options.at, asked_s=asked_s)
                    for told, score in run.items():
                        pools.setdefault((kind, told), []).append(score)
                        pools.setdefault((f"{name} x {ratio}", told), []).append(score)
        for (name, told), scores in sorted(pools.items()):
            if options.each or " x " not in name:
                print(f"{sampler:8s}", line(name, told, scores))
        print(f"{sampler:8s} one proposal, p95: {1e3 * statistics.quantiles(asked_s, n=20)[-1]:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
