"""What a program says of its inferences: lines or datagrams, as text or as JSON (docs/workloads.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass

from jouled.errors import FrameError

MOST_BYTES = 1 << 16
_MOST_ITEMS = 100_000
_TIMES = ("arrival_ns", "start_ns", "end_ns")


@dataclass(frozen=True, slots=True)
class Line:
    """One line: so many inferences have ended (None: those of one request). The times are the program's own."""

    items: int | None = None
    arrival_ns: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None


def parse_line(text: bytes) -> Line:
    """Any text is one inference; an object in JSON may say more. Raises FrameError for one that says it wrongly."""
    if not text.startswith(b"{"):
        return Line()
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return Line()
    items = told.get("items")
    if "items" in told and (not _is_count(items) or not 1 <= items <= _MOST_ITEMS):
        raise FrameError(f"line {text[:80]!r}: items: wanted 1 to {_MOST_ITEMS}, got {items!r}")
    times = {name: told[name] for name in _TIMES if name in told}
    for name, value in times.items():
        if not _is_count(value) or not 0 <= value < 1 << 63:
            raise FrameError(f"line {text[:80]!r}: {name}: wanted nanoseconds of CLOCK_MONOTONIC, got {value!r}")
    if times and not {"start_ns", "end_ns"} <= times.keys():
        raise FrameError(f"line {text[:80]!r}: wanted both start_ns and end_ns, or neither")
    return Line(items, times.get("arrival_ns"), times.get("start_ns"), times.get("end_ns"))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class LineReader:
    """Cuts a stream into lines, however it comes in pieces."""

    def __init__(self) -> None:
        self._left = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends; empty ones are none. Raises FrameError."""
        self._left += data
        *lines, rest = bytes(self._left).split(b"\n")
        self._left[:] = rest
        if len(rest) > MOST_BYTES:
            raise FrameError(f"wanted lines of at most {MOST_BYTES} bytes, got {rest[:40]!r}…")
        return [line for line in lines if line.strip()]
