"""The tuner's command line: a search as a conversation, and searches over recorded measurements."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

# Before numpy is loaded: on matrices this small, threads of its BLAS wait for each other, ten times as long on a busy
# machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from jouletune.errors import JouletuneError, ProtocolError, SearchError, SpaceError
from jouletune.objective import Objective
from jouletune.replay import Board, Disturbance, Noted, Score, drive, score, with_reference
from jouletune.search import DEFAULT_SAMPLER, SAMPLERS
from jouletune.suggest import BUDGET, Problem, Suggester, converse
from jouletune.table import Table, parse_table

_SHARES = (0.01, 0.02, 0.03)
_WEEK_S = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Run:
    """One search. `row`: 0-based, of the CSV; `energy_gap` None: no row of the grid keeps the limits.

    With another objective the gap is that of its cost.
    """

    grid: str
    seed: int
    row: int
    measurements: int
    energy_gap: float | None
    within_bound: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the process's exit code."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.verb == "suggest":
            converse(sys.stdin, _say)
        else:
            _replay(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone; the interpreter's own last flush must not say so again
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130
    except (JouletuneError, OSError, UnicodeDecodeError) as error:
        return _complain(error, arguments.verb)
    return 0


def _complain(error: Exception, verb: str) -> int:
    """Where two programs speak, the other one is told too."""
    if verb == "suggest":
        _say(json.dumps({"error": str(error)}))
    sys.stderr.write(f"jouletune: {error}\n")
    return 2 if isinstance(error, SpaceError | ProtocolError | SearchError) else 1


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jouletune", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    suggest = verbs.add_parser("suggest", help="say what to measure next, one JSON object a line (docs/search.md)")
    suggest.add_argument("--stdio", action="store_true", required=True, help="over standard input and output")
    _add_replay(verbs.add_parser("replay", help="search recorded grids many times and score what is chosen"))
    return parser


def _add_replay(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("grids", metavar="GRID.csv", nargs="+", type=Path)
    replay.add_argument("--bound-ratio", type=_positive, required=True, metavar="R", help="latency bound, R x ...")
    replay.add_argument(
        "--bound-ratio-to", choices=("reference", "fastest"), default="reference", help="... this row's"
    )
    replay.add_argument("--budget", type=_count, default=BUDGET, metavar="N", help="windows in all (%(default)s)")
    replay.add_argument("--seeds", type=_count, default=40, metavar="S", help="searches of each grid (%(default)s)")
    replay.add_argument("--sampler", choices=sorted(SAMPLERS), default=DEFAULT_SAMPLER)
    replay.add_argument("--noise-energy", type=_size, default=0.01, metavar="X", help="lognormal (%(default)s)")
    replay.add_argument("--noise-latency", type=_size, default=0.005, metavar="Y", help="lognormal (%(default)s)")
    replay.add_argument("--outlier-rate", type=_size, default=0.0, metavar="P", help="energies x or / 2.5")
    replay.add_argument("--drift", type=_size, default=0.0, metavar="D", help="walk of the log-energy, sd a window")
    replay.add_argument("--invalid-rate", type=_size, default=0.0, metavar="P", help="windows without a measurement")
    replay.add_argument(
        "--reference-row", type=int, metavar="ROW", help="0-based; default: highest clocks, least batch"
    )
    replay.add_argument(
        "--retune-from",
        type=_positive,
        metavar="R",
        help="a retune: first a search of 15 windows with this bound ratio, told as a week old; its choice is the "
        "incumbent",
    )
    replay.add_argument("--objective", choices=[each.value for each in Objective], default=Objective.ENERGY.value)
    replay.add_argument("--max-power-w", type=_positive, metavar="W", help="the most that the mean power may be")
    replay.add_argument("--risk", type=_size, metavar="P", help="start no row that more likely breaks the bound")
    replay.add_argument("--json", action="store_true", help="each search, as one object")


def _positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"wanted a number above 0, got {text}")
    return value


def _size(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"wanted 0 to 1, got {text}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"wanted at least 1, got {text}")
    return value


def _replay(arguments: argparse.Namespace) -> None:
    if arguments.objective == Objective.THROUGHPUT and arguments.max_power_w is None:
        raise SearchError("--objective throughput: wanted a limit beside it, --max-power-w, got none")
    runs: list[Run] = []
    for path in arguments.grids:
        table = parse_table(path.read_text(encoding="utf-8"), where=str(path))
        if arguments.reference_row is not None:
            table = with_reference(table, arguments.reference_row)
        mine = [_search(path.stem, table, seed, arguments) for seed in range(arguments.seeds)]
        runs += mine
        if not arguments.json:
            _say(_summary(path.stem, mine))
    if arguments.json:
        _say(json.dumps({"runs": [asdict(run) for run in runs]}))


def _search(grid: str, table: Table, seed: int, arguments: argparse.Namespace) -> Run:
    disturbance = Disturbance(
        noise_energy=arguments.noise_energy,
        noise_latency=arguments.noise_latency,
        outlier_rate=arguments.outlier_rate,
        drift=arguments.drift,
        invalid_rate=arguments.invalid_rate,
    )
    problem, bound_s = _problem(table, arguments.bound_ratio, seed, arguments)
    if arguments.retune_from is not None:
        first, first_bound_s = _problem(table, arguments.retune_from, seed, arguments)
        before = Noted(Board(table, disturbance, bound_s=first_bound_s, seed=f"{grid} {seed} before").measure)
        incumbent = drive(Suggester(replace(first, budget=BUDGET)), before.measure).index
        problem = replace(problem, earlier=before.earlier(_WEEK_S), incumbent=incumbent)
    suggester = Suggester(problem)
    choice = drive(suggester, Board(table, disturbance, bound_s=bound_s, seed=f"{grid} {seed}").measure)
    found: Score = score(
        table, choice.index, bound_s, objective=problem.objective, max_power_w=arguments.max_power_w or math.inf
    )
    number = table.rows[choice.index].number
    return Run(grid, seed, number, suggester.measurements, found.gap, found.within_bound)


def _problem(table: Table, ratio: float, seed: int, arguments: argparse.Namespace) -> tuple[Problem, float]:
    """What is to be found, and the bound by the table's true values."""
    fastest = arguments.bound_ratio_to == "fastest"
    against_s = min(row.latency_s for row in table.rows) if fastest else table.rows[table.space.reference].latency_s
    problem = Problem(
        table.space,
        bound_s=ratio * against_s if fastest else None,
        bound_ratio=None if fastest else ratio,
        budget=arguments.budget,
        seed=seed,
        sampler=arguments.sampler,
        objective=Objective(arguments.objective),
        max_power_w=arguments.max_power_w,
        risk=arguments.risk,
    )
    return problem, ratio * against_s


def _summary(grid: str, runs: Sequence[Run]) -> str:
    """Shares of searches within 1, 2 and 3 % of the best row, violations, windows."""
    shares = [sum(run.energy_gap is not None and run.energy_gap <= most for run in runs) for most in _SHARES]
    within = "/".join(f"{100 * share / len(runs):.0f}" for share in shares)
    slow = sum(not run.within_bound for run in runs)
    windows = sum(run.measurements for run in runs) / len(runs)
    return f"{grid}: within 1/2/3 % of the best: {within} %; too slow: {slow} of {len(runs)}; windows: {windows:.1f}"


if __name__ == "__main__":
    sys.exit(main())
