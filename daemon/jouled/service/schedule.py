"""The daily window in which jobs may begin by themselves, in seconds since local midnight."""

from __future__ import annotations

_DAY_S = 86_400.0


def _ends_s(window: str) -> tuple[float, float]:
    """`02:00-05:00` in seconds."""
    ends = []
    for text in window.split("-"):
        hours, _, minutes = text.partition(":")
        ends.append(int(hours) * 3600.0 + int(minutes) * 60.0)
    return ends[0], ends[1]


def is_open(window: str | None, local_s: float) -> bool:
    """May a job begin now? Without a window always; one may reach over midnight."""
    if window is None:
        return True
    start_s, end_s = _ends_s(window)
    return (local_s - start_s) % _DAY_S < (end_s - start_s) % _DAY_S


def opens_in_s(window: str | None, local_s: float) -> float:
    """How long until it opens; 0 while it is open."""
    if window is None or is_open(window, local_s):
        return 0.0
    return (_ends_s(window)[0] - local_s) % _DAY_S
