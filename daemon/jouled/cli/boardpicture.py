"""The picture of the service: the board, what holds, and the job that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from jouled.cli.jobpicture import DOMAINS, fill, footer_line, job_facts, job_head
from jouled.cli.jobview import JobView
from jouled.cli.output import megahertz
from jouled.cli.paper import BAR, LABEL, Paper, bar, ends, first_that_fits, labelled, notice_lines, wrapped
from jouled.cli.status import facts, title

_HIGH = 40  # rows; here there is room for the board beside a job
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """What `watch` knows: the last status (None: none yet), the job that runs, and what is to be said besides."""

    status: Record | None
    job: JobView | None
    now_s: float
    notice: str = ""


def service_picture(seen: Seen, paper: Paper, footer: Sequence[str]) -> list[str]:
    """The board and what holds; while a job runs, the job below the most important of it."""
    width, status = paper.width, seen.status
    if status is None:
        lines = [Text(seen.notice or "waiting for the service", "bold yellow")]
        return paper.rendered([*lines, Text(footer[-1], "reverse")][: paper.height])
    head = _board_head(status, seen.now_s, width)
    last = notice_lines(seen.notice, width)
    if seen.job is not None:
        urgent = _to_do(status, width, 1) if status["to_do"] else []
        standing = [*_standing(status, seen.now_s, width), Text()] if paper.height >= _HIGH else []
        body = [*head, *urgent, *standing, *job_head(seen.job, width), *job_facts(seen.job, width)]
        return paper.rendered(fill(body, seen.job, paper, [*last, footer_line(seen.job, footer, width)]))
    lines = [*head, *_standing(status, seen.now_s, width), *_readings(status, width), *_to_do(status, width, 3)]
    warnings = [line for text in status["warnings"][:3] for line in wrapped("warning", text, width, 2, "yellow")]
    room = max(0, paper.height - len(last) - 1)
    return paper.rendered([*[*lines, *warnings][:room], *last, Text(first_that_fits(footer, width), "reverse")])


def _board_head(status: Record, now_s: float, width: int) -> list[Text]:
    return [ends(Text(title(status), "bold"), Text(str(status["state"]), "bold cyan"), width)]


def _standing(status: Record, now_s: float, width: int) -> list[Text]:
    lines = []
    for word, text in facts({**status, "job": None}, now_s):  # which has a picture of its own
        style = {"wrong": "bold yellow", "saves": "bold green"}.get(word, "")
        lines += wrapped(word, text, width, 2, style)
    winner = status["winner"]
    applied = None if winner is None or winner["stale"] else winner["applied"]
    if applied is not None and winner["latency_bound_s"] and applied["latency_upper_s"] is not None:
        share = applied["latency_upper_s"] / winner["latency_bound_s"]
        room = max(6, min(BAR, width - LABEL - 20))
        drawn = bar(share, room, "cyan" if share <= 1 else "bold yellow")
        lines.append(labelled("latency", drawn, f" {100 * share:.0f} % of the bound"))
    return lines


def _readings(status: Record, width: int) -> list[Text]:
    found = status["readings"]
    if found is None:
        return []
    seen, caps, rails = found["clock_hz"], found["clock_cap_hz"], found["rail_power_w"]
    clocks = [
        f"{name.upper()} {megahertz(seen.get(name))}{f' of {megahertz(caps[name])}' if name in caps else ''}"
        for name in DOMAINS
        if name in seen or name in caps
    ]
    each = ", ".join(f"{name} {value:.1f}" for name, value in rails.items())
    readings = {
        "clocks": f"{', '.join(clocks)} MHz" if clocks else "",
        "power": f"{sum(rails.values()):.1f} W" + (f"  ({each})" if len(rails) > 1 else f"  {next(iter(rails), '')}")
        if rails
        else "",
        "heat": ", ".join(
            f"{zone.removesuffix('-thermal').removesuffix('-therm')} {value:.1f}"
            for zone, value in sorted(found["temperature_c"].items(), key=lambda item: -item[1])[:8]
        ),
    }
    readings["heat"] += " °C" if readings["heat"] else ""
    return [line for word, text in readings.items() if text for line in wrapped(word, text, width, 1)]


def _to_do(status: Record, width: int, most: int) -> list[Text]:
    text = str(status["to_do"]).strip()
    return wrapped("to do", text or "nothing", width, most, "bold yellow" if text else "")
