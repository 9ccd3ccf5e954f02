"""One figure for each grid: how far from the best row the choice would be after each window (needs matplotlib)."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Sequence
from pathlib import Path

from bench.search_tally import Run, groups

_TOO_SLOW = 1.0


def draw(runs: Sequence[Run], folder: Path) -> None:
    """Write GRID.svg for each grid: median (line) and 90th percentile (dashes) of the gap, over bounds and seeds."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    folder.mkdir(parents=True, exist_ok=True)
    tracked = [one for one in runs if one.path and one.condition == "plain"]
    for (grid,), mine in groups(tracked, lambda one: (one.grid,)).items():
        figure, axes = pyplot.subplots(figsize=(7, 4.5))
        for number, ((sampler,), its) in enumerate(groups(mine, lambda one: (one.sampler,)).items()):
            middle, high = gaps_after(its)
            windows = range(1, len(middle) + 1)
            axes.plot(windows, middle, color=f"C{number}", label=sampler)
            axes.plot(windows, high, color=f"C{number}", linestyle="--")
        axes.set(xlabel="windows", ylabel="energy over the best row's, %", title=grid, ylim=(0, 30))
        axes.legend(title="median, 90th percentile dashed")
        figure.savefig(folder / f"{grid}.svg")
        pyplot.close(figure)


def gaps_after(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    """Median and 90th percentile of the gap in percent after 1, 2, ... windows; a search that has ended stays."""
    length = max(len(one.path) for one in runs)
    paths = [one.path + [one.path[-1]] * (length - len(one.path)) for one in runs]
    middle, high = [], []
    for column in zip(*paths, strict=True):
        gaps = sorted(100 * (_TOO_SLOW if gap is None else gap) for gap in column)
        middle.append(statistics.median(gaps))
        high.append(gaps[min(len(gaps) - 1, int(0.9 * len(gaps)))])
    return middle, high
