"""Energy over CPU and GPU clocks, a map for each EMC clock: what was measured, and what the model makes of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from jouletune.front import FrontRow
from jouletune.report import ink
from jouletune.report.canvas import Plot
from jouletune.report.facts import Job, Point
from jouletune.report.words import axis_title, place_text, quantity, scale_of, value_text
from jouletune.space import Space

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

_FIRST = ("cpu_hz", "gpu_hz", "batch", "emc_hz", "instances", "engine", "cores")
_MOST_PANELS = 12
_CLIPPED_AT = 1.6  # times the least energy: beyond it, differences do not matter to anybody
_LEAST_CELL_IN = 0.3  # narrower ones have no room for a number
COLOURMAP = "cividis"


@dataclass(frozen=True, slots=True)
class Cell:
    """One candidate on a map. `energy_j`: measured, else predicted; None: neither. `role`: "" or a name of SIDES."""

    index: int
    x: int
    y: int
    energy_j: float | None
    is_measured: bool
    is_tried: bool
    is_slow: bool
    role: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One map: the place on the axes that it does not show, and its cells."""

    place: tuple[tuple[str, object], ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Maps:
    """All maps of a job over the same two axes, y None: there is one only. `left_out`: panels that are not shown."""

    space: Space
    x: int
    y: int | None
    panels: tuple[Panel, ...]
    left_out: int
    range_j: tuple[float, float]
    unit: tuple[float, str]
    noun: str


def maps_of(job: Job) -> Maps | None:
    """None where there is nothing to draw: no space, no axis, no number."""
    space = job.space
    if space is None or not space.axes:
        return None
    ranked = sorted(range(len(space.axes)), key=lambda at: _FIRST.index(space.axes[at].name))
    x, y = ranked[0], ranked[1] if len(ranked) > 1 else None
    beliefs = job.beliefs
    grouped: dict[tuple[tuple[str, object], ...], list[Cell]] = {}
    for index in range(len(space)):
        place = tuple(
            (axis.name, axis.values[rank])
            for at, (axis, rank) in enumerate(zip(space.axes, space.coordinates(index), strict=True))
            if at not in (x, y)
        )
        grouped.setdefault(place, []).append(_cell(job, space, index, (x, y), beliefs))
    energies = [cell.energy_j for cells in grouped.values() for cell in cells if cell.energy_j is not None]
    if not energies:
        return None
    shown, left_out = _worth_showing(grouped)
    unit = scale_of(min(energies))
    span = (min(energies), max(min(max(energies), _CLIPPED_AT * min(energies)), 1.001 * min(energies)))
    return Maps(space, x, y, shown, left_out, span, unit, job.noun)


def _worth_showing(grouped: Mapping[tuple[tuple[str, object], ...], Sequence[Cell]]) -> tuple[tuple[Panel, ...], int]:
    panels = [Panel(place, tuple(cells)) for place, cells in grouped.items()]
    if len(panels) > _MOST_PANELS:
        kept = [panel for panel in panels if any(cell.is_tried for cell in panel.cells)]
        kept = sorted(kept, key=lambda panel: -sum(cell.is_tried for cell in panel.cells))[:_MOST_PANELS]
        panels = [panel for panel in panels if panel in kept]
    return tuple(panels), len(grouped) - len(panels)


def _cell(job: Job, space: Space, index: int, over: tuple[int, int | None], beliefs: Mapping[int, FrontRow]) -> Cell:
    coordinates, (x, y) = space.coordinates(index), over
    points = [point for point in job.points if point.index == index]
    measured = next((point for point in points if point.energy_j is not None), None)
    belief = beliefs.get(index)
    is_slow = bool(points) and not any(point.feasible for point in points)
    if not points and belief is not None and job.bound_s is not None:
        is_slow = belief.latency_s > job.bound_s
    energy_j = measured.energy_j if measured else None if belief is None else belief.energy_j
    roles = job.roles()
    role = next((roles[index, point.policy] for point in _by_role(points) if (index, point.policy) in roles), "")
    at = 0 if y is None else coordinates[y]
    return Cell(index, coordinates[x], at, energy_j, measured is not None, bool(points), is_slow, role)


def _by_role(points: Sequence[Point]) -> list[Point]:
    return sorted(points, key=lambda point: point.policy != "locked")  # only a winner is locked


# --- drawing ------------------------------------------------------------------------------------------------


def plots(maps: Maps) -> list[Plot]:
    """A small figure for each panel, and all of them in one for a paper."""
    return [
        Plot(
            name=f"energy-map-{number}",
            title=_title(maps, panel),
            description=_description(maps, panel),
            caption=place_text(panel.place),
            draw=partial(_draw_one, maps, panel),
            height_in=(_size(maps)[1],) * 2,
            width_in=(_size(maps)[0],) * 2,
        )
        for number, panel in enumerate(maps.panels, 1)
    ]


def whole(maps: Maps) -> Plot:
    """All panels side by side, with the key."""
    width, height = _size(maps)
    columns = min(len(maps.panels), max(1, int(10.0 / width)))
    rows = -(-len(maps.panels) // columns)
    size = (columns * width, rows * height + 0.55)
    return Plot(
        name="energy-map",
        title=f"Energy per {maps.noun} of each power mode",
        description=" ".join(_description(maps, panel) for panel in maps.panels),
        caption="",
        draw=partial(_draw_all, maps, columns, rows),
        height_in=(size[1],) * 2,
        width_in=(size[0],) * 2,
    )


def _title(maps: Maps, panel: Panel) -> str:
    where = place_text(panel.place)
    return f"Energy per {maps.noun}" + (f" at {where}" if where else "")


def _description(maps: Maps, panel: Panel) -> str:
    measured = [cell for cell in panel.cells if cell.is_measured and cell.energy_j is not None]
    tried = sum(cell.is_tried for cell in panel.cells)
    text = f"{_title(maps, panel)}: {tried} of {len(panel.cells)} candidates were tried."
    if measured:
        best = min(measured, key=lambda cell: cell.energy_j or 0.0)
        ranks = maps.space.coordinates(best.index)
        place = [(maps.space.axes[at].name, maps.space.axes[at].values[ranks[at]]) for at in _axes(maps)]
        text += f" The least measured is {quantity(best.energy_j, 'J')} at {place_text(place)}."
    return text


def _axes(maps: Maps) -> list[int]:
    return [maps.x] if maps.y is None else [maps.x, maps.y]


def _counts(maps: Maps) -> tuple[int, int]:
    rows = 1 if maps.y is None else len(maps.space.axes[maps.y].values)
    return len(maps.space.axes[maps.x].values), rows


def _cell_in(maps: Maps) -> float:
    return min(0.53, max(2.75 / _counts(maps)[0], 0.12))


def _size(maps: Maps) -> tuple[float, float]:
    columns, rows = _counts(maps)
    labels = 0.0 if maps.y is None else 0.74
    cell_h = min(0.36, max(3.2 / rows, 0.12))
    return columns * _cell_in(maps) + labels + 0.1, rows * cell_h + 0.95


def _draw_one(maps: Maps, panel: Panel, figure: Figure, is_narrow: bool) -> None:
    _draw(figure.add_subplot(), maps, panel, title="")


def _draw_all(maps: Maps, columns: int, rows: int, figure: Figure, is_narrow: bool) -> None:
    for at, panel in enumerate(maps.panels):
        _draw(figure.add_subplot(rows, columns, at + 1), maps, panel, title=place_text(panel.place))
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale, prefix = maps.unit
    low, high = (value / scale for value in maps.range_j)
    shades = ScalarMappable(Normalize(low, high), COLOURMAP)
    bar = figure.colorbar(shades, ax=figure.axes, location="bottom", fraction=0.05, aspect=60, extend="max")
    bar.set_label(
        f"{prefix}J per {maps.noun}. Outlined: measured. Inset: predicted. "
        "Cut corner: predicted to break the bound. ×: tried, breaks a limit."
    )
    outline: Any = bar.outline  # its type is another one in older stubs of matplotlib
    outline.set_linewidth(0.4)


def _draw(axes: Axes, maps: Maps, panel: Panel, *, title: str) -> None:
    from matplotlib import colormaps

    columns, rows = _counts(maps)
    for cell in panel.cells:
        _draw_cell(axes, maps, cell, colormaps[COLOURMAP])
    for artist in (*axes.patches, *axes.texts, *axes.lines):
        artist.set_in_layout(False)  # none reaches beyond the axes, and there are hundreds
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(-0.5, rows - 0.5)
    across = maps.space.axes[maps.x]
    every = max(1, -(-columns // 12))
    axes.set_xticks(
        range(0, columns, every),
        [value_text(across.name, value) for value in across.values[::every]],
        rotation=0 if _cell_in(maps) >= 0.45 else 60,
    )
    axes.set_xlabel(axis_title(across.name))
    if maps.y is None:
        axes.set_yticks([])
    else:
        up = maps.space.axes[maps.y]
        axes.set_yticks(range(rows), [value_text(up.name, value) for value in up.values])
        axes.set_ylabel(axis_title(up.name))
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if title:
        axes.set_title(title)


def _draw_cell(axes: Axes, maps: Maps, cell: Cell, colours: Colormap) -> None:
    from matplotlib.patches import Rectangle

    if cell.energy_j is None:
        inner = Rectangle((cell.x - 0.44, cell.y - 0.42), 0.88, 0.84, facecolor="none", linewidth=0.6)
        inner.set_edgecolor(ink.light("line"))
        axes.add_patch(inner)
        if cell.is_tried:
            axes.plot(cell.x, cell.y, marker="x", color=ink.light("ink"), markersize=8, markeredgewidth=1.6)
        return
    low, high = maps.range_j
    shade = colours(min(1.0, (cell.energy_j - low) / (high - low)))
    grow = 0.43 if cell.is_measured else 0.36
    edge = ink.light("ink") if cell.is_measured else "none"
    axes.add_patch(
        Rectangle(
            (cell.x - grow, cell.y - grow),
            2 * grow,
            2 * grow,
            facecolor=shade,
            edgecolor=edge,
            linewidth=1.3 if cell.is_measured else 0.0,
        )
    )
    on_cell = "#000000" if _luminance(shade) > 0.36 else "#ffffff"
    _write(axes, maps, cell, on_cell)
    if cell.is_slow:
        _cut_corner(axes, cell, on_cell, grow, is_dense=_cell_in(maps) < _LEAST_CELL_IN)
    if cell.role:
        _frame(axes, cell)


def _write(axes: Axes, maps: Maps, cell: Cell, colour: str) -> None:
    if _cell_in(maps) < _LEAST_CELL_IN or cell.energy_j is None:
        return
    number = quantity(cell.energy_j / maps.unit[0], "").split()[0]
    weight, size = ("bold", 8.0) if cell.is_measured else ("normal", 6.8)
    axes.text(cell.x, cell.y, number, ha="center", va="center", color=colour, fontweight=weight, fontsize=size)


def _cut_corner(axes: Axes, cell: Cell, colour: str, grow: float, *, is_dense: bool) -> None:
    """In the upper right, beside the number. Tried: a cross there."""
    from matplotlib.patches import Polygon

    if cell.is_tried and is_dense:
        axes.plot(cell.x, cell.y, marker="x", color=colour, markersize=5, markeredgewidth=1.2)
        return
    if cell.is_tried:
        x, y, half = cell.x + grow - 0.1, cell.y + grow - 0.17, (0.055, 0.1)
        for up in (1, -1):
            axes.plot((x - half[0], x + half[0]), (y - up * half[1], y + up * half[1]), color=colour, linewidth=1.5)
        return
    x, y = cell.x + grow + 0.02, cell.y + grow + 0.02
    axes.add_patch(Polygon([(x - 0.26, y), (x, y), (x, y - 0.4)], facecolor=ink.light("paper"), linewidth=0))


def _frame(axes: Axes, cell: Cell) -> None:
    from matplotlib.patches import Rectangle

    role = "winner" if cell.role == "best_seen" else cell.role
    box = Rectangle((cell.x - 0.44, cell.y - 0.44), 0.88, 0.88, facecolor="none", linewidth=2.8, zorder=5)
    box.set_edgecolor(ink.light(role))
    axes.add_patch(box)


def _luminance(colour: tuple[float, ...]) -> float:
    red, green, blue = (_linear(channel) for channel in colour[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    return float(channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4)
