"""Is `joule` fitted to the recorded grids? Its constants, chosen without the grid on which they are scored.

    python -m bench.search_left_out FOLDER [--seeds 8] [--at 12]

Each constant that physics does not give is halved and doubled. For each source of grids (files that share a board and
a workload family) the setting is taken that does best on all others (share within 2 %, then within 1 %), and scored on
the one left out. Shares near those of the product's own constants say that no factor of two matters much; they do not
clear the constants themselves, around which the settings lie.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from bench.search import RATIOS, Task, run
from bench.search_tally import Run, groups, shares

# Constants by module, each a number or several; see there for what they mean.
CONSTANTS = {
    "jouletune.surrogate": ("_SMOOTH", "_ROUGH"),
    "jouletune.kernel": ("_REACH_CLOCK", "_REACH_COUNT", "_REACH_RANK"),
}
OWN = "own"
Setting = tuple[str, str, float]


def settings() -> dict[str, Setting | None]:
    """By name: nothing changed, then one constant at a time by a factor."""
    made: dict[str, Setting | None] = {OWN: None}
    for module, names in CONSTANTS.items():
        for name, factor in product(names, (0.5, 2.0)):
            made[f"{name.strip('_').lower()} x {factor:g}"] = (module, name, factor)
    return made


@contextmanager
def changed(setting: Setting | None) -> Iterator[None]:
    """With one constant other than it is."""
    if setting is None:
        yield
        return
    module, (name, factor) = importlib.import_module(setting[0]), setting[1:]
    before = getattr(module, name)
    other = tuple(factor * value for value in before) if isinstance(before, tuple) else factor * before
    setattr(module, name, other)
    try:
        yield
    finally:
        setattr(module, name, before)


def source(grid: str) -> str:
    """Board, workload: tx2-xception-200-96mode-semireal and -400- are one."""
    return "-".join(part for part in grid.split("-")[:3] if not part.isdecimal())


def merit(runs: Sequence[Run]) -> tuple[float, float]:
    """What settings are chosen by."""
    within = shares(runs)
    return within[1], within[0]


def left_out(by_setting: Mapping[str, Sequence[Run]]) -> dict[str, tuple[str, list[Run]]]:
    """Source → the setting that is best without it, and that setting's runs on it."""
    found = {}
    for name in dict.fromkeys(source(one.grid) for one in by_setting[OWN]):
        others = {key: [one for one in runs if source(one.grid) != name] for key, runs in by_setting.items()}
        best = max(others, key=lambda key: merit(others[key]))
        found[name] = best, [one for one in by_setting[best] if source(one.grid) == name]
    return found


def told(name: str, runs: Sequence[Run]) -> str:
    """One line."""
    within = "/".join(f"{100 * share:.0f}" for share in shares(runs))
    return f"{name:44} {within:>11}  slow {100 * sum(one.violates for one in runs) / len(runs):.2f} %"


def by_settings(paths: Sequence[Path], at: int, seeds: int) -> Iterator[tuple[str, list[Run]]]:
    """Each setting's runs on all grids."""
    tasks = [Task(path, "joule", "plain", ratio, at, seeds, track=False) for path, ratio in product(paths, RATIOS)]
    for name, setting in settings().items():
        with changed(setting):
            yield name, [one for task in tasks for one in run(task)]


def pooled(by_setting: Mapping[str, Sequence[Run]], at: int) -> dict[tuple[str, int], tuple[list[Run], list[Run]]]:
    """(kind, budget) → the runs with the product's constants, those with the constants chosen without the grid."""
    chosen = [one for _, runs in left_out(by_setting).values() for one in runs]
    kinds = groups(chosen, lambda one: (one.kind,))
    return {(kind, at): ([one for one in by_setting[OWN] if one.kind == kind], its) for (kind,), its in kinds.items()}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/data/grids"))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--at", type=int, default=12)
    options = parser.parse_args(arguments)
    paths = [path for path in sorted(options.folder.glob("*.csv")) if "latency-only" not in path.name]
    by_setting: dict[str, list[Run]] = {}
    for name, runs in by_settings(paths, options.at, options.seeds):
        by_setting[name] = runs
        print(told(name, runs), flush=True)
    for name, (best, its) in left_out(by_setting).items():
        print(told(f"without {name}: {best}", its))
    for (kind, _), (own, other) in pooled(by_setting, options.at).items():
        print(told(f"{kind} grids, own constants", own))
        print(told(f"{kind} grids, chosen without the source", other))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
