"""The picture of a job, from its view. The most important comes first, so that a small terminal loses the least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from jouled.cli.jobview import Best, JobView, Row
from jouled.cli.output import duration, megahertz, quantity
from jouled.cli.paper import (
    BAR,
    LABEL,
    Paper,
    bar,
    clock,
    ends,
    first_that_fits,
    labelled,
    notice_lines,
    saves,
    wrapped,
)

DOMAINS = ("cpu", "gpu", "emc")
_WIDE = 120
_MODE = "cores-CPU-GPU-EMC, MHz"


def job_picture(view: JobView, paper: Paper, footer: Sequence[str], notice: str = "") -> list[str]:
    """All of a job in one picture; `footer`: what keys do, the longest first."""
    lines = [*job_head(view, paper.width), *job_facts(view, paper.width)]
    last = [*notice_lines(notice, paper.width), footer_line(view, footer, paper.width)]
    return paper.rendered(fill(lines, view, paper, last))


def fill(lines: list[Text], view: JobView, paper: Paper, last: list[Text]) -> list[Text]:
    """Between the first lines and the last ones as many trials as fit."""
    room = paper.height - len(last)
    notices = [line for text in view.notices[-2:] for line in wrapped("warning", text, paper.width, 1, "yellow")]
    trials = _trials(view, paper.width, room - len(lines) - len(notices) - 1)
    body = [*lines, *notices, *([Text(), *trials] if trials else [])]
    return [*body[:room], *last][-paper.height :] if paper.height > len(last) else last[-paper.height :]


def job_head(view: JobView, width: int) -> list[Text]:
    started = view.started
    load = ", ".join(str(started[name]) for name in ("workload", "arrival") if started.get(name))
    where = [str(started[name]) for name in ("board", "base_mode") if started.get(name)]
    name = Text(", ".join([*where, load]) if where else f"job {view.job}".rstrip(), "bold")
    stretch = view.stretch()
    course = view.course
    if stretch is not None:
        what, passed_s, most_s = stretch
        course += f": {what}, {passed_s:.0f} of {'at most ' if what == 'settling' else ''}{most_s:.0f} s"
    if view.is_over:
        course = f"{view.outcome}: {view.reason}" if view.reason and view.reason != view.outcome else view.outcome
    elif view.outcome:
        course = f"{course} ({view.outcome})"
    return [
        ends(name, Text(clock(view.elapsed_s), "bold"), width),
        ends(Text(course, "cyan"), Text(_count(view)), width),
        _progress(view, width),
    ]


def _count(view: JobView) -> str:
    budget = view.started.get("budget")
    most = f" of at most {budget}" if budget and view.phase in ("reference", "incumbent", "search") else ""
    return f"{view.windows}{most} windows"


def _progress(view: JobView, width: int) -> Text:
    expected_s = view.started.get("expected_s")
    if view.is_over or not expected_s:
        return bar(float(view.is_over), width, "cyan")
    return bar(view.elapsed_s / float(expected_s), width, "cyan")


def job_facts(view: JobView, width: int) -> list[Text]:
    now = view.now
    mode = view.mode + (", locked" if view.policy == "locked" else "") if view.mode else "-"
    unit = f"  ({_MODE})" if width >= 72 and view.mode.count("-") == 3 else ""
    label = view.candidates_are.split()[-1]
    lines = [labelled(label, (mode, "bold"), (unit, "dim")), _now(now, width), _latency(view, width)]
    rail = str(view.started.get("rail") or "")
    if rail and width >= 72:
        lines.append(labelled("rail", f"{rail} ({view.started.get('rail_coverage')})"))
    return [*lines, _best(view)]


def _now(now: Mapping[str, Any], width: int) -> Text:
    """Clocks, watts and heat, in order of what a narrow terminal keeps."""
    watts = f"{now['power_w']:.1f} W" if now.get("power_w") is not None else "- W"
    heat = f"{now['temperature_c']:.1f} °C" if now.get("temperature_c") is not None else ""
    seen = now.get("clock_hz") or {}
    clocks = [f"{name.upper()} {megahertz(seen[name])}" for name in DOMAINS if seen.get(name)]
    parts = [f"{watts:>7}", heat, ", ".join(clocks) + (" MHz" if clocks else "")]
    return labelled("now", "   ".join(part for part in parts if part))


def _latency(view: JobView, width: int) -> Text:
    latency_s, bound_s = view.now.get("latency_s"), view.bound_s
    if latency_s is None:
        return labelled("latency", "-" if bound_s is None else f"-  bound {quantity(bound_s, 's')}")
    if not bound_s:
        return labelled("latency", quantity(latency_s, "s"))
    share = latency_s / bound_s
    style = "cyan" if share <= 1 else "bold yellow"
    text = f"{quantity(latency_s, 's')}, bound {quantity(bound_s, 's')} "
    judged = f" {100 * share:.0f} %" + ("" if share <= 1 else ", too slow")
    room = min(BAR, width - LABEL - len(text) - len(judged))
    drawn = bar(share, room, style) if room >= 6 else Text()
    return labelled("latency", text, drawn, (judged, style if share > 1 else ""))


def _best(view: JobView) -> Text:
    best = view.best()
    if best is None or best.row.purpose == "reference":
        return labelled("best", "nothing to compare yet" if best is None else "the board's own mode so far")
    upper_s = best.row.latency_upper_s
    numbers = [quantity(best.energy_j, "J")]
    numbers += [f"<= {quantity(upper_s, 's')}"] if upper_s is not None else []
    rest = f" {view.objective.noun}: {', '.join([best.row.name, *numbers])}"
    return labelled("best", (saves(best.saves), "bold green"), rest)


def footer_line(view: JobView, keys: Sequence[str], width: int) -> Text:
    """As one says it: −13 %, 6 min left, q stops and puts the board back."""
    best, left_s = view.best(), view.left_s
    saved = [] if best is None else [saves(best.saves, places=0)]
    is_ending = view.is_over or view.is_stopping or bool(view.outcome)
    left = [] if is_ending or left_s is None else [f"{duration(left_s)} left"]
    texts = [", ".join([*saved, *left, key]) for key in keys]
    return Text(first_that_fits([*texts, *keys], width), "reverse")


# --- trials ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Columns:
    """Which there are on this width, and how wide the name's is."""

    name: int
    energy: bool
    latency: bool
    power: bool
    more: bool

    @classmethod
    def of(cls, rows: Sequence[Row], width: int) -> _Columns:
        longest = max((Text(row.name).cell_len for row in rows), default=0)
        energy, latency, power, more = width >= 54, width >= 66, width >= 78, width >= _WIDE
        taken = 4 + 2 + 9 + energy * 10 + latency * 12 + power * 8 + more * (11 + 8)
        return cls(max(6, min(longest, width - taken)), energy, latency, power, more)


def _trials(view: JobView, width: int, room: int) -> list[Text]:
    """The last ones, with a head."""
    if room < 2 or not view.rows:
        return []
    rows = view.rows[-(room - 1) :]
    columns = _Columns.of(rows, width)
    most_j = max((row.energy_j or 0.0 for row in view.rows), default=0.0)
    scale = _Scale(view.reference_cost(), most_j, view.best(), width)
    lines = [_row(row, columns, scale) for row in rows]
    return [_head(columns, view.candidates_are), *lines]


def _head(columns: _Columns, of: str) -> Text:
    parts = [f"{'#':>3} {of:{columns.name}.{columns.name}}  "]
    parts += [f"{'for':11}"] if columns.more else []
    parts += [f"{'energy':>9} "] if columns.energy else []
    parts += [f"{'power':>7} "] if columns.power else []
    parts += [f"{'latency':>11} "] if columns.latency else []
    parts += [f"{'°C':>7} "] if columns.more else []
    return Text("".join([*parts, f"{'change':>8}"]).rstrip(), "dim")


@dataclass(frozen=True, slots=True)
class _Scale:
    """What a row's numbers are held against."""

    reference: float | None
    most_j: float
    best: Best | None
    width: int


def _row(row: Row, columns: _Columns, scale: _Scale) -> Text:
    name = Text(row.name)
    name.truncate(columns.name, overflow="ellipsis", pad=True)
    is_best = scale.best is not None and scale.best.row.key == row.key and row.counts
    name.stylize("bold green" if is_best else "")
    head = Text.assemble((f"{row.number:3d} ", "dim"), name)
    head.append(" L" if row.policy == "locked" else "  ")
    if columns.more:
        head.append(f"{row.purpose:11}", "dim")
    if row.energy_j is None:
        return Text.assemble(head, (row.verdict, "yellow"))
    upper = "" if row.latency_upper_s is None else f"<= {quantity(row.latency_upper_s, 's')}"
    head.append(f"{quantity(row.energy_j, 'J'):>9} " if columns.energy else "")
    power = "" if row.power_w is None else f"{row.power_w:5.1f} W"
    head.append(f"{power:7} " if columns.power else "")
    head.append(f"{upper:>11} " if columns.latency else "")
    if columns.more:
        head.append(f"{'' if row.temperature_c is None else f'{row.temperature_c:.1f}':>7} ")
    change = "" if not scale.reference or row.cost is None else saves(1 - row.cost / scale.reference)
    head.append(f"{change:>8}", "bold" if is_best else "")
    head.append(f"  {row.verdict}", "yellow") if row.verdict else None
    room = min(2 * BAR, scale.width - head.cell_len - 3)
    if columns.more and room >= 10 and scale.most_j > 0 and not row.verdict:
        head.append_text(Text.assemble("  ", bar(row.energy_j / scale.most_j, room, "green" if is_best else "cyan")))
    return head
