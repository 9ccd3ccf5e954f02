"""One figure for each grid: how far from the best row the choice would be after each window (needs matplotlib)."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.search_tally import Run, groups

_TOO_SLOW = 1.0
_MOST = 30.0  # percent; what lies above is drawn at the edge
# Okabe and Ito's colours, told apart with every kind of colour blindness, and a mark for print.
_LOOKS = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#000000", "x"), ("#56B4E9", "v"))
_CONDITION = "plain"


def draw(runs: Sequence[Run], folder: Path, *, kind: str = "svg") -> list[Path]:
    """Write GRID.svg for each grid: median (line) and 90th percentile (dashes) of the gap, over bounds and seeds."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "jouled"  # the same runs, the same file
    pyplot = importlib.import_module("matplotlib.pyplot")
    folder.mkdir(parents=True, exist_ok=True)
    tracked = [one for one in runs if one.path and one.condition == _CONDITION]
    written = []
    for (grid,), mine in groups(tracked, lambda one: (one.grid,)).items():
        figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
        by_sampler = groups(mine, lambda one: (one.sampler,))
        for (colour, mark), ((sampler,), its) in zip(_LOOKS, by_sampler.items(), strict=False):
            _line(axes, its, label=sampler, color=colour, marker=mark, markersize=4)
        _finish(axes, grid, mine)
        written.append(folder / f"{grid}.{kind}")
        figure.savefig(written[-1], dpi=150, metadata={"Date": None} if kind == "svg" else None)
        pyplot.close(figure)
    return written


def _line(axes: Any, runs: Sequence[Run], **look: Any) -> None:
    middle, high = gaps_after(runs)
    windows = range(1, len(middle) + 1)
    axes.plot(windows, [min(_MOST, gap) for gap in middle], **look)
    axes.plot(windows, [min(_MOST, gap) for gap in high], **{**look, "label": None, "marker": "", "linestyle": "--"})


def _finish(axes: Any, grid: str, runs: Sequence[Run]) -> None:
    ratios, seeds = ({getattr(one, name) for one in runs} for name in ("ratio", "seed"))
    bounds = ", ".join(f"{ratio:g}" for ratio in sorted(ratios))
    axes.set_title(f"{grid}\nbounds {bounds} x reference, {len(seeds)} seeds each", fontsize=10)
    axes.set(xlabel="windows measured", ylabel="energy over the best mode's, %")
    axes.set(xlim=(0.5, None), ylim=(0, 1.02 * _MOST))
    axes.axhline(2.0, color="#999999", linewidth=0.8, zorder=0)
    axes.grid(visible=True, color="#e5e5e5", linewidth=0.6)
    title = f"median; dashed:\n90th percentile;\ngrey: 2 %; too slow\nor over {_MOST:g} %: at the top"
    axes.figure.legend(title=title, loc="outside right upper", frameon=False, fontsize=9, title_fontsize=8)


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
