"""A recorded arrival: a CSV with one column, the seconds at which requests came, played in a loop."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from jouled.errors import ConfigError
from jouled.workload.runner import Arrival

LONGEST_S = 150.0
MOST_ARRIVALS = 200_000  # each runner gets them in one line of JSON
_LARGEST_BYTES = 16 * 1024 * 1024
_HINT = "a trace has one column: the seconds at which requests came (docs/workloads.md)"


def read_trace(path: Path) -> Arrival:
    """The arrival recorded in the file at `path`. Raises ConfigError with file and line."""
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: wanted a file with a trace, got something else", hint="name the CSV itself")
        with open(path, "rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: the trace cannot be read: {error.strerror}", hint=_HINT) from error
    if len(data) > _LARGEST_BYTES:
        raise ConfigError(f"{path}: wanted at most {_LARGEST_BYTES} bytes, got more", hint="shorten the trace")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: wanted a CSV in UTF-8, got another byte at {error.start}", hint=_HINT) from error
    return parse_trace(text, where=str(path))


def parse_trace(text: str, *, where: str) -> Arrival:
    """One arrival a line, in seconds, never before the one above; a first line of words and lines with # are passed.

    Only what lies between arrivals counts: the first comes when the load begins, and from the last to the next loop's
    first it is as long as it is between two of them on average. Raises ConfigError.
    """
    times_s = tuple(_seconds(text, where=where))
    if len(times_s) > MOST_ARRIVALS:
        text = f"{where}: wanted at most {MOST_ARRIVALS} arrivals, got {len(times_s)}"
        raise ConfigError(text, hint="shorten the trace: it is played in a loop")
    span_s = times_s[-1] - times_s[0] if times_s else 0.0
    if span_s <= 0.0:
        text = f"{where}: wanted at least two arrivals, some time apart, got {len(times_s)} within {span_s:g} s"
        raise ConfigError(text, hint=_HINT)
    period_s = span_s * len(times_s) / (len(times_s) - 1)
    if period_s > LONGEST_S:
        text = f"{where}: wanted a trace of at most {LONGEST_S:g} s, got {period_s:.1f} s: each window plays it twice"
        raise ConfigError(text, hint="cut out a part that is typical")
    return Arrival("trace", times_s=tuple(at_s - times_s[0] for at_s in times_s), period_s=period_s)


def _seconds(text: str, *, where: str) -> Iterator[float]:
    before_s = -math.inf
    is_first = True
    for number, line in enumerate(text.splitlines(), start=1):
        cell = line.partition("#")[0].strip()
        if not cell:
            continue
        at_s = _number(cell)
        was_first, is_first = is_first, False
        if at_s is None and was_first and not any(sign in cell for sign in ",;\t"):
            continue  # the column's name
        if at_s is None or at_s < before_s:
            wanted = "one number of seconds" if at_s is None else f"at least the {before_s:g} s of the line before"
            raise ConfigError(f"{where}:{number}: wanted {wanted}, got {cell[:40]!r}", hint=_HINT)
        before_s = at_s
        yield at_s


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def dealt(arrival: Arrival, k: int, n: int) -> Arrival:
    """What comes to instance `k` of `n`, which take turns: request i of a trace is that of instance i mod n.

    Where the number of requests is no multiple of `n` the turns go on into the next loop: several loops make one.
    """
    if n == 1 or arrival.period_s is None:
        return arrival
    count = len(arrival.times_s)
    loops = n // math.gcd(n, count)
    turns = range(k, loops * count, n)
    times_s = tuple(i // count * arrival.period_s + arrival.times_s[i % count] for i in turns)
    return Arrival("trace", times_s=times_s, period_s=loops * arrival.period_s)
