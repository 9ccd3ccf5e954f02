"""The front of energy and latency, the job in time, and power over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from jouletune.front import FrontRow
from jouletune.report import ink
from jouletune.report.canvas import Plot, plain
from jouletune.report.facts import Job, Point, Window
from jouletune.report.words import counted, quantity, scale_of
from jouletune.trial import Purpose

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS = {"reference": "D", "incumbent": "P", "winner": "*", "best_seen": "*"}
_SIZES = {"D": 6.5, "P": 7.5, "*": 12.0, "o": 5.0}
_BEYOND = 1.45  # times the bound: how much of what is too slow is shown
_DEARER, _LOWEST = 1.7, 0.85  # times the least energy


def _colour(role: str) -> str:
    return ink.light({"best_seen": "winner"}.get(role, role or "other"))


@dataclass(frozen=True, slots=True)
class _Scales:
    """What one unit of each axis is, and its prefix."""

    energy: tuple[float, str]
    latency: tuple[float, str]


def _scales(points: Sequence[Point]) -> _Scales:
    energies = [point.energy_j for point in points if point.energy_j is not None]
    latencies = [point.latency_s for point in points if point.latency_s is not None]
    return _Scales(scale_of(min(energies)), scale_of(min(latencies)))


def lower_left(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those of (latency, energy) that no other undercuts in both, by latency."""
    front: list[tuple[float, float]] = []
    for place in sorted(places):
        if not front or place[1] < front[-1][1]:
            front.append(place)
    return front


# --- the front ----------------------------------------------------------------------------------------------


def front(job: Job) -> Plot | None:
    """None where nothing was measured whole."""
    points = [point for point in job.points if point.energy_j is not None and point.latency_s is not None]
    if not points:
        return None
    predicted = "" if job.front is None else " Hollow circles are predictions, the dashed line their front."
    bound = "" if job.bound_s is None else f" The bound is {quantity(job.bound_s, 's')}."
    return Plot(
        name="front",
        title=f"Energy per {job.noun} against latency {job.percentile}",
        description=f"{counted(len(points), 'candidate')} measured.{bound}{predicted}",
        caption="",
        draw=partial(_draw_front, job, points),
        height_in=(4.5, 4.6),
    )


def _draw_front(job: Job, points: Sequence[Point], figure: Figure, is_narrow: bool) -> None:
    axes, scales = figure.add_subplot(), _scales(points)
    plain(axes)
    _draw_predicted(axes, job, points, scales)
    _draw_measured(axes, job, points, scales)
    left, right = _latency_range(job, points)
    axes.set_xlim(left / scales.latency[0], right / scales.latency[0])
    low, high = _energy_range(job, points, right)
    axes.set_ylim(low / scales.energy[0], high / scales.energy[0])
    if job.bound_s is not None:
        bound = job.bound_s / scales.latency[0]
        axes.axvspan(bound, right / scales.latency[0], color=ink.light("wash"), zorder=0, linewidth=0)
        axes.axvline(bound, color=ink.light("ink"), linewidth=1.2, linestyle=(0, (6, 2)), label="latency bound")
    axes.set_xlabel(f"latency {job.percentile}, {scales.latency[1]}s")
    axes.set_ylabel(f"energy per {job.noun}, {scales.energy[1]}J")
    _legend(figure, axes, columns=2 if is_narrow else 4)


def _latency_range(job: Job, points: Sequence[Point]) -> tuple[float, float]:
    """What was measured and, where the model says something of it, what a looser bound would allow."""
    uppers = [max(point.latency_s or 0.0, point.latency_upper_s or 0.0) for point in points]
    end_s = None if job.bound_s is None else _BEYOND * job.bound_s
    shown = [upper for upper in uppers if end_s is None or upper <= end_s] or uppers
    right = max([*shown, *([] if end_s is None else [end_s if job.front else job.bound_s or 0.0])])
    left = min(point.latency_s or right for point in points)
    room = 0.06 * max(right - left, 0.3 * right)
    return max(0.0, left - room), right + room


def _energy_range(job: Job, points: Sequence[Point], right_s: float) -> tuple[float, float]:
    known = [(point.energy_j, point.half_j) for point in points if point.energy_j is not None]
    least = min(energy_j for energy_j, _ in known)
    near = [(energy_j, half_j) for energy_j, half_j in known if energy_j <= _DEARER * least]
    low, high = min(e - h for e, h in near), max(e + h for e, h in near)
    rows = [row for row in (job.front.rows if job.front else ()) if row.latency_s <= right_s]
    low = min([low, *(max(row.energy_interval_j[0], _LOWEST * least) for row in rows)])
    room = 0.1 * max(high - low, 0.03 * high)
    return max(0.0, low - room), high + 2 * room


def _draw_predicted(axes: Axes, job: Job, points: Sequence[Point], scales: _Scales) -> None:
    if job.front is None:
        return
    measured = {point.index for point in points}
    style: dict[str, Any] = {"color": ink.light("predicted"), "markersize": 4, "markerfacecolor": "none"}
    open_ = [row for row in job.front.candidates if row.index not in measured]
    if open_:
        x, y = _places(open_, scales)
        axes.plot(x, y, linestyle="none", marker="o", markeredgewidth=0.9, label="predicted", **style)
    x, y = _places(job.front.rows, scales)
    dashes = (0, (3, 2))
    axes.plot(x, y, drawstyle="steps-post", linewidth=1.1, linestyle=dashes, label="front, predicted", **style)
    for row in job.front.rows:
        if row.index not in measured:
            low, high = (edge / scales.energy[0] for edge in row.energy_interval_j)
            axes.vlines(row.latency_s / scales.latency[0], low, high, color=style["color"], linewidth=0.8)


def _places(rows: Sequence[FrontRow], scales: _Scales) -> tuple[list[float], list[float]]:
    return [row.latency_s / scales.latency[0] for row in rows], [row.energy_j / scales.energy[0] for row in rows]


def _draw_measured(axes: Axes, job: Job, points: Sequence[Point], scales: _Scales) -> None:
    edge = lower_left([(point.latency_s or 0.0, point.energy_j or 0.0) for point in points])
    x, y = [place[0] / scales.latency[0] for place in edge], [place[1] / scales.energy[0] for place in edge]
    axes.plot(x, y, drawstyle="steps-post", color=ink.light("muted"), linewidth=1.1, label="front, measured")
    roles, told = job.roles(), set[str]()
    for point in sorted(points, key=lambda one: (one.index, one.policy) in roles):
        role = roles.get((point.index, point.policy), "")
        name = job.role_title(role) if role else "measured" if point.feasible else "measured, breaks a limit"
        mark = _MARKS.get(role, "o")
        upper_s = max(point.latency_upper_s or 0.0, point.latency_s or 0.0)
        axes.errorbar(
            (point.latency_s or 0.0) / scales.latency[0],
            (point.energy_j or 0.0) / scales.energy[0],
            xerr=[[0.0], [(upper_s - (point.latency_s or 0.0)) / scales.latency[0]]],
            yerr=point.half_j / scales.energy[0],
            marker=mark,
            markersize=_SIZES[mark],
            markerfacecolor=_colour(role) if point.feasible or role else "none",
            color=_colour(role),
            elinewidth=1.1,
            capsize=2,
            linestyle="none",
            label=f"_{name}" if name in told else name,
        )
        told.add(name)


def _legend(figure: Figure, axes: Axes, *, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    kept = [(handle, label) for handle, label in zip(handles, labels, strict=True) if not label.startswith("_")]
    if kept:
        shown, names = zip(*kept, strict=True)
        figure.legend(shown, names, loc="outside lower center", ncols=min(columns, len(kept)), handlelength=1.8)


# --- the job in time ----------------------------------------------------------------------------------------


def course(job: Job) -> Plot | None:
    """None where no window was taken."""
    if not job.windows:
        return None
    whole = sum(window.trial.measurement is not None and window.trial.invalid is None for window in job.windows)
    lost = sum(window.trial.invalid is not None for window in job.windows)
    return Plot(
        name="course",
        title="The windows of the job in time",
        description=f"{counted(len(job.windows), 'window')}: {whole} valid and whole, {lost} invalid, the others cut "
        "short as too slow. Below: the reference measured again and again, and the board's temperature.",
        caption="",
        draw=partial(_draw_course, job),
        height_in=(5.6, 6.4),
    )


def _middle_min(window: Window) -> float:
    return (window.trial.t_s + window.trial.duration_s / 2) / 60


def _draw_course(job: Job, figure: Figure, is_narrow: bool) -> None:
    has_drift, has_heat = len(_references(job)) > 0, any(w.temperature_c is not None for w in job.windows)
    heights = [3.0, *([1.3] if has_drift else []), *([1.1] if has_heat else [])]
    grid = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
    panels: list[Axes] = list(grid[:, 0])
    _draw_windows(panels[0], job)
    at = 1
    if has_drift:
        _draw_drift(panels[at], job)
        at += 1
    if has_heat:
        _draw_heat(panels[at], job)
    _shade_finals(panels, job)
    last = job.windows[-1].trial
    panels[-1].set_xlim(0.0, 1.02 * (last.t_s + last.duration_s) / 60)
    panels[-1].set_xlabel("minutes since the first window")
    _legend(figure, panels[0], columns=2 if is_narrow else 5)
    figure.align_ylabels(panels)


def _references(job: Job) -> list[Window]:
    return [
        window
        for window in job.windows
        if job.space is not None
        and window.trial.index == job.space.reference
        and window.trial.policy == "capped"
        and window.trial.measurement is not None
        and window.trial.invalid is None
    ]


def _draw_windows(axes: Axes, job: Job) -> None:
    plain(axes)
    whole = [window for window in job.windows if window.trial.measurement is not None and not window.trial.invalid]
    scale, prefix = scale_of(min((w.trial.measurement.energy_j for w in whole if w.trial.measurement), default=1.0))
    roles, told = job.roles(), set[str]()
    for window in whole:
        trial = window.trial
        assert trial.measurement is not None
        role = roles.get((trial.index, trial.policy), "")
        name = job.role_title(role) if role else "another candidate" if trial.infeasible is None else "breaks a limit"
        mark = _MARKS.get(role, "o")
        low, high = trial.measurement.interval()
        axes.errorbar(
            _middle_min(window),
            trial.measurement.energy_j / scale,
            yerr=(high - low) / 2 / scale,
            marker=mark,
            markersize=_SIZES[mark] - 0.5,
            markerfacecolor=_colour(role) if role or trial.infeasible is None else "none",
            color=_colour(role),
            elinewidth=1.1,
            capsize=2,
            linestyle="none",
            label=f"_{name}" if name in told else name,
        )
        told.add(name)
    _draw_lost(axes, job)
    axes.set_ylabel(f"{prefix}J per {job.noun}" if whole else "")
    if not whole:
        axes.set_yticks([])


def _draw_lost(axes: Axes, job: Job) -> None:
    """At the foot, since they have no energy."""
    cut = [w for w in job.windows if w.trial.measurement is None and w.trial.invalid is None]
    lost = [w for w in job.windows if w.trial.invalid is not None]
    for windows, mark, colour, name in (
        (cut, "v", "muted", "cut short: breaks a limit"),
        (lost, "x", "bad", "invalid"),
    ):
        if windows:
            axes.plot(
                [_middle_min(window) for window in windows],
                [0.07] * len(windows),
                transform=axes.get_xaxis_transform(),
                linestyle="none",
                marker=mark,
                markersize=6,
                markeredgewidth=1.6 if mark == "x" else 0.0,
                color=ink.light(colour),
                label=name,
            )
    if cut or lost:
        axes.margins(y=0.2)


def _draw_drift(axes: Axes, job: Job) -> None:
    plain(axes)
    windows = _references(job)
    first = windows[0].trial.measurement
    assert first is not None
    axes.axhline(0.0, color=ink.light("muted"), linewidth=0.8)
    for window in windows:
        measured = window.trial.measurement
        assert measured is not None
        low, high = measured.interval()
        axes.errorbar(
            _middle_min(window),
            100 * (measured.energy_j / first.energy_j - 1),
            yerr=100 * (high - low) / 2 / first.energy_j,
            marker="D",
            markersize=5,
            color=ink.light("reference"),
            elinewidth=1.1,
            capsize=2,
            linestyle="none",
        )
    _few_ticks(axes)
    axes.set_ylabel("reference\nmoved, %", labelpad=6)


def _draw_heat(axes: Axes, job: Job) -> None:
    plain(axes)
    read = [(_middle_min(window), window.temperature_c) for window in job.windows if window.temperature_c is not None]
    minutes, degrees = zip(*read, strict=True)
    axes.plot(minutes, degrees, color=ink.light("other"), linewidth=1.1, marker="o", markersize=3)
    low, high = min(degrees), max(degrees)
    room = max(1.0, 0.15 * (high - low))
    axes.set_ylim(low - room, high + room)
    _few_ticks(axes)
    axes.set_ylabel("hottest\nzone, °C", labelpad=6)


def _few_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, steps=[1, 2, 5, 10]))


def _shade_finals(panels: Sequence[Axes], job: Job) -> None:
    finals = [window.trial for window in job.windows if window.trial.purpose is Purpose.FINALS]
    if not finals:
        return
    begin, end = finals[0].t_s / 60, (finals[-1].t_s + finals[-1].duration_s) / 60
    for axes in panels:
        axes.axvspan(begin, end, color=ink.light("wash"), zorder=0, linewidth=0)
    panels[0].text(begin, 1.0, " finals", transform=panels[0].get_xaxis_transform(), va="bottom", fontsize=8)


# --- power over time ----------------------------------------------------------------------------------------


def power(job: Job) -> Plot | None:
    """None where no trace was kept."""
    if not job.traces:
        return None
    named = "; ".join(f"{job.role_title(trace.role)}, window {trace.number}" for trace in job.traces)
    return Plot(
        name="power",
        title=f"Power on rail {job.result.get('rail')} over one window each",
        description=f"{named}. Before 0 s lies the pilot, which is in no number.",
        caption="",
        draw=partial(_draw_power, job),
        height_in=(3.7, 3.7),
    )


def _draw_power(job: Job, figure: Figure, is_narrow: bool) -> None:
    axes = figure.add_subplot()
    plain(axes)
    for trace in job.traces:
        inside = [w for t, w in zip(trace.t_s, trace.power_w, strict=True) if 0.0 <= t <= trace.window_s]
        mean_w = sum(inside) / len(inside) if inside else float("nan")
        colour = _colour(trace.role)
        name = f"{job.role_title(trace.role)}: {mean_w:.1f} W"
        style = "-" if trace.role == "reference" else (0, (5, 1))
        axes.plot(trace.t_s, trace.power_w, color=colour, linewidth=1.1, linestyle=style, label=name)
        axes.hlines(mean_w, 0.0, trace.window_s, color=colour, linewidth=0.9, linestyle=(0, (1, 1.5)))
    begin = min(0.0, *(trace.t_s[0] for trace in job.traces))
    if begin < 0.0:
        axes.axvspan(begin, 0.0, color=ink.light("wash"), zorder=0, linewidth=0)
        axes.text(begin, 1.0, " pilot", transform=axes.get_xaxis_transform(), va="bottom", fontsize=8)
    idle_w = job.result.get("idle_power_w")
    if idle_w is not None:
        axes.axhline(
            idle_w, color=ink.light("other"), linewidth=1.0, linestyle=(0, (4, 3)), label=f"idle: {idle_w:.1f} W"
        )
    axes.set_ylim(bottom=0.0)
    axes.set_xlim(begin, max(trace.t_s[-1] for trace in job.traces))
    axes.set_xlabel("seconds since the window's begin")
    axes.set_ylabel("W, total rail")
    _legend(figure, axes, columns=1 if is_narrow else 4)
