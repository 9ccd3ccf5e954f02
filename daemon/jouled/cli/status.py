"""`jouled status` for people: within 80 columns and 24 lines, the most important first."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jouled.cli.output import WIDTH, mode_text, percent, quantity
from jouletune.space import PowerMode

HEIGHT = 23  # and a line for the shell's prompt
_LABEL = 10
_MOST_MISMATCHES = 3
_MOST_LINES_EACH = 3
_MOST_LINES_TO_DO = 5  # the command that helps stands at its end
_COMMAND = re.compile(r"(?<![\w./-])(?:sudo )?(?:\S*/)?jouled [a-z].*$")
_PEER = re.compile(r"uid \d+ \((.+)\)")

Record = Mapping[str, Any]

_STATES = {
    "idle": "idle",
    "waiting": "waiting",
    "tuning": "tuning: a job turns the knobs and measures",
    "watching": "watching: the job's winner is in force, on trial",
    "held": "held: the board went down twice in a row, no knob is written",
    "contested": "contested: something else changes the knobs",
    "stuck": "stuck: a process hangs in the kernel, no knob is written",
    "paused": "paused: the board's own mode is in force",
    "disabled": "disabled: no knob is ever written",
    "observe": "observing: no knob is ever written",
}


def status_text(status: Record, now_s: float) -> str:
    """What is in force, since when, what it saves, whether it holds, what happens next, what to do.

    `status` as /v1/status gives it; `now_s`: Unix time.
    """
    to_do = _to_do(status["to_do"].strip() or "nothing")
    room = HEIGHT - 1 - len(to_do)
    lines = [line for word, text in facts(status, now_s) for line in _said(word, text)][:room]
    return "\n".join([title(status), *lines, *to_do, *_remarks(status, room - len(lines))])


def facts(status: Record, now_s: float) -> list[tuple[str, str]]:
    """A word, and what is to be said of it; the most important first, what to do left out."""
    found = [
        ("state", _state(status, now_s)),
        ("in force", _in_force(status, now_s)),
        ("saves", _saves(status)),
        ("holds", _holds(status, now_s)),
        *(("wrong", text) for text in _few(status["mismatches"], _MOST_MISMATCHES, "knobs")),
        ("winner", _winner(status)),
        ("job", _job(status, now_s)),
        ("last job", _last_job(status, now_s)),
        ("next", _next(status, now_s)),
    ]
    return [(word, text) for word, text in found if text]


def _said(word: str, text: str) -> list[str]:
    head = f"  {word:{_LABEL}}"
    lines = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        max_lines=_MOST_LINES_TO_DO if word == "to do" else _MOST_LINES_EACH,
        placeholder=" …",
    )
    return lines or [head.rstrip()]


def _to_do(text: str) -> list[str]:
    """A command that does not fit beside its sentence has a line of its own, whole, so that it can be copied."""
    lines, command = _said("to do", text), _COMMAND.search(text)
    if len(lines) == 1 or command is None:
        return lines
    sentence, typed = text[: command.start()].rstrip(), text[command.start() :]
    said = _said("to do", sentence)[: _MOST_LINES_TO_DO - 1] if sentence else []
    return [*said, f"  {'' if said else 'to do':{_LABEL}}{typed}"]


def _few(texts: Sequence[str], most: int, what: str) -> list[str]:
    """The first of many, and how many more there are."""
    shown = list(texts[:most])
    return shown + ([f"and {len(texts) - most} more {what}: jouled status --json"] if len(texts) > most else [])


def title(status: Record) -> str:
    """Which board this is."""
    board = status["board"]
    if board is None:
        return "jouled: the board cannot be read"
    l4t = f", L4T {board['l4t']}" if board["l4t"] else ""
    return textwrap.shorten(f"{board['model'] or board['name']}, {board['base_mode']}{l4t}", WIDTH, placeholder=" …")


def ago(seconds: float) -> str:
    """A length of time in one unit, as people say it."""
    seconds = max(0.0, seconds)
    for unit_s, unit, enough in ((86_400, "d", 2 * 86_400), (3_600, "h", 5_400), (60, "min", 90)):
        if seconds >= enough:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def when(wall_s: float, now_s: float) -> str:
    """Local time: the hour today, else the day too."""
    at, now = time.localtime(wall_s), time.localtime(now_s)
    return time.strftime("%H:%M" if at[:3] == now[:3] else "%a %d %b %H:%M", at)


def person(who: str) -> str:
    """`uid 1000 (pepe)` of the records, as people say it."""
    found = _PEER.fullmatch(who)
    return who if found is None else found[1]


def _since(wall_s: float, now_s: float) -> str:
    return f"since {when(wall_s, now_s)}, {ago(now_s - wall_s)}"


def _state(status: Record, now_s: float) -> str:
    text = _STATES.get(status["state"]) or str(status["state"])
    until_s = status["paused_until_wall_s"]
    if status["state"] == "paused":
        text += " until further notice" if until_s is None else f" until {when(until_s, now_s)}"
    return f"{text} ({_since(status['since_wall_s'], now_s)})"


def _mode(found: Record) -> str:
    return f"{mode_text(PowerMode(**found['mode']))}, {found['policy']}"


def _in_force(status: Record, now_s: float) -> str:
    found = status["in_force"]
    if found is None:
        return "not known"
    source = {"winner": "the winner", "reference": "the board's own mode", "other": "a mode chosen by hand"}
    since_s = found["since_wall_s"]
    since = "" if since_s is None else f" ({_since(since_s, now_s)})"
    told = "should be " if status["mismatches"] else ""
    return f"{told}{source[found['source']]}: {_mode(found)}{since}"


def _saves(status: Record) -> str:
    found, winner = status["in_force"], status["winner"]
    if found is None or found["source"] != "winner" or winner is None or winner["saving_ratio"] is None:
        return ""
    ratio = winner["saving_ratio"]
    one = winner["inference_name"]
    text = f"{percent(ratio)} of the energy per {one}" if ratio >= 0 else f"nothing: {percent(-ratio)} more energy"
    if winner["saving_interval"] is not None:
        low, high = winner["saving_interval"]
        text += f" (95 %: {percent(low)} to {percent(high)})"
    return f"{text}; {_numbers(winner)}".rstrip("; ")


def _numbers(winner: Record) -> str:
    reference, applied = winner["reference"], winner["applied"]
    if reference is None or applied is None:
        return ""
    parts = [f"{quantity(reference['energy_j'], 'J')} -> {quantity(applied['energy_j'], 'J')}"]
    if applied["latency_upper_s"] is not None:
        bound_s = winner["latency_bound_s"]
        bound = "" if bound_s is None else f", bound {quantity(bound_s, 's')}"
        upper = quantity(applied["latency_upper_s"], "s")
        parts.append(f"latency p{winner['latency_percentile']:g} at most {upper}{bound}")
    return ", ".join(parts)


def _holds(status: Record, now_s: float) -> str:
    found = status["in_force"]
    if found is None:
        return "not known"
    seen_s, full_s = found["last_verify_wall_s"], found["last_full_verify_wall_s"]
    if status["mismatches"]:
        count = len(status["mismatches"])
        seen = "" if seen_s is None else f", read back {ago(now_s - seen_s)} ago"
        return f"no: {count} {'knob is' if count == 1 else 'knobs are'} wrong{seen}"
    if seen_s is None:
        return "not read back yet"
    if not found["verified"]:
        return f"not known, read back {ago(now_s - seen_s)} ago"
    text = f"yes, read back {ago(now_s - seen_s)} ago"
    if full_s is not None:
        return f"{text}; what only root may read, {ago(now_s - full_s)} ago"
    return text + (f"; {found['unknown']} knobs only root may read" if found["unknown"] else "")


def _winner(status: Record) -> str:
    found, winner = status["in_force"], status["winner"]
    if winner is None:
        last = status["last_job"]
        was_one = last is not None and last["outcome"] == "tuned"
        return "" if status["job"] is not None else "none: the last one was rejected" if was_one else "none yet"
    if winner["stale"]:
        return f"stale, not applied: {winner['stale']}"
    if found is not None and found["source"] == "winner":
        return ""
    return f"{_mode(winner)}, not in force"


def _job(status: Record, now_s: float) -> str:
    job = status["job"]
    if job is None:
        return ""
    text = f"{job['id']} of {person(job['who'])}: {job['phase']}, {job['trials']} trials"
    if job["eta_wall_s"] is not None:
        left_s = job["eta_wall_s"] - now_s
        text += f", about {ago(left_s)} to go" if left_s > 0 else ", longer than was expected"
    return f"{text} ({_since(job['started_wall_s'], now_s)})"


def _last_job(status: Record, now_s: float) -> str:
    job = status["last_job"]
    if job is None:
        return ""
    ended_s = job["ended_wall_s"]
    text = f"{job['id']} {job['outcome']}" + ("" if ended_s is None else f", {ago(now_s - ended_s)} ago")
    why = job["reason_text"]
    return text if job["outcome"] == "tuned" or why in ("", job["outcome"]) else f"{text}: {why}"


def _next(status: Record, now_s: float) -> str:
    found = status["next"]
    if not found["text"]:
        return ""
    due_s = found["due_wall_s"]
    if due_s is None:
        return str(found["text"])
    return f"{found['text']}, {'now' if due_s <= now_s else 'in ' + ago(due_s - now_s)}"


def _remarks(status: Record, room: int) -> list[str]:
    """What else there is to say, as far as it fits."""
    remarks = [("warning", text) for text in status["warnings"]]
    if status["quarantined"]:
        remarks.append(("set aside", f"{status['quarantined']} power modes are not tried again: jouled modes"))
    if not status["journal_fields"]:
        remarks.append(("journal", "plain lines only: python3-systemd is not installed"))
    lines: list[str] = []
    for count, (word, text) in enumerate(remarks):
        more = _said(word, text)
        is_last = count == len(remarks) - 1
        if len(lines) + len(more) > room - (0 if is_last else 1):
            return [*lines, *_said("", f"and {len(remarks) - count} more: jouled status --json")][:room]
        lines += more
    return lines
