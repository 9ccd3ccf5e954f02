"""What a risk starts and costs, and how near the other objectives come, over a folder of recorded grids.

    python -m bench.search_aims [FOLDER] [--seeds 10] [--budget 12] [--grids NAME,…]

risk       for none, 0.05, 0.1 and 0.2: how many of the rows started (the reference apart) are over the true bound, and
           the gap of the choice to the best row (median, mean, mean at each bound)
objective  energy x latency; then the time per item under a limit of power of 0.75 x the reference's:
           share of searches within 2 % of the best row's cost, and those whose choice breaks a limit by 0.5 %

Bounds are 1.1, 1.25 and 1.5 x the reference as measured. Real and semi-real grids are told apart, as everywhere.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

# Before numpy is loaded: on matrices this small, threads of its BLAS wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from jouletune.objective import Objective
from jouletune.replay import Board, Disturbance, Noted, drive, score
from jouletune.suggest import Problem, Suggester
from jouletune.table import Table, parse_table

RATIOS = (1.1, 1.25, 1.5)
RISKS = (None, 0.05, 0.1, 0.2)
WITHIN = 0.02
LIMIT = 0.75


@dataclass(frozen=True)
class Aim:
    """One way of asking."""

    name: str
    objective: Objective = Objective.ENERGY
    risk: float | None = None
    is_capped: bool = False


AIMS = (
    *(Aim("no risk" if risk is None else f"risk {risk:g}", risk=risk) for risk in RISKS),
    Aim("energy x latency", Objective.ENERGY_DELAY),
    Aim("time under a limit", Objective.THROUGHPUT, is_capped=True),
)


@dataclass(frozen=True)
class Outcome:
    """One search. `gap` None: no row keeps the limits."""

    kind: str
    ratio: float
    started: int
    over: int
    gap: float | None
    is_within: bool


def search(name: str, table: Table, aim: Aim, ratio: float, *, seed: int, budget: int) -> Outcome:
    """By the table's true values."""
    bound_s = ratio * table.rows[table.space.reference].latency_s
    limit_w = LIMIT * table.rows[table.space.reference].power_w if aim.is_capped else None
    problem = Problem(
        table.space,
        bound_ratio=ratio,
        budget=budget,
        seed=seed,
        sampler="joule",
        objective=aim.objective,
        max_power_w=limit_w,
        risk=aim.risk,
    )
    noted = Noted(Board(table, Disturbance(), bound_s=bound_s, seed=f"{name} {ratio} {seed}").measure)
    choice = drive(Suggester(problem), noted.measure)
    found = score(table, choice.index, bound_s, objective=aim.objective, max_power_w=limit_w or math.inf)
    started = [index for index, _ in noted.windows if index != table.space.reference]
    over = sum(table.rows[index].latency_s > bound_s for index in started)
    kind = "semi-real" if "semireal" in name else "real"
    return Outcome(kind, ratio, len(started), over, found.gap, found.within_bound)


def line(aim: Aim, outcomes: Sequence[Outcome]) -> str:
    """The figures of one way of asking; searches in which no row keeps the limits count nowhere."""
    known = [(one.gap, one.is_within) for one in outcomes if one.gap is not None]
    gaps = [gap for gap, _ in known]
    started, over = sum(one.started for one in outcomes), sum(one.over for one in outcomes)
    near = sum(gap <= WITHIN and is_within for gap, is_within in known)
    broken = sum(not is_within for _, is_within in known)
    return (
        f"{aim.name:20} started {started:5}, over the bound {over:4} ({100 * over / max(1, started):4.1f} %); "
        f"gap median {100 * median(gaps):4.1f} %, mean {100 * fmean(gaps):4.1f} % (by bound {_by_bound(outcomes)}); "
        f"within 2 % {100 * near / len(known):3.0f} %, breaks a limit {100 * broken / len(known):.1f} % of {len(known)}"
    )


def _by_bound(outcomes: Sequence[Outcome]) -> str:
    means = []
    for ratio in RATIOS:
        gaps = [one.gap for one in outcomes if one.ratio == ratio and one.gap is not None]
        means.append(f"{100 * fmean(gaps):.1f}" if gaps else "-")
    return " / ".join(means)


def tables(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, Table]]:
    """Those with energies."""
    for path in sorted(folder.glob("*.csv")):
        if "latency-only" not in path.stem and (not names or path.stem in names):
            yield path.stem, parse_table(path.read_text(encoding="utf-8"), where=path.name)


def main(arguments: Sequence[str]) -> int:
    """Print a line for each way of asking and kind of grid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("../shared/data/grids"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budget", type=int, default=12)
    parser.add_argument("--grids", default="", help="names, with commas")
    options = parser.parse_args(arguments)
    found = list(tables(options.folder, [name for name in options.grids.split(",") if name]))
    for aim in AIMS:
        outcomes = [
            search(name, table, aim, ratio, seed=seed, budget=options.budget)
            for name, table in found
            for ratio in RATIOS
            for seed in range(options.seeds)
        ]
        for kind in ("real", "semi-real"):
            of_kind = [one for one in outcomes if one.kind == kind]
            if of_kind:
                print(f"{kind:10}{line(aim, of_kind)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
