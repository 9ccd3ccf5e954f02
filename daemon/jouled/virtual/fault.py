"""A fault of a virtual board: what it does, how a job may end under it, and what its user then reads.

`--fault NAME[:ARGS]`; ARGS are separated by commas: the fault's own argument first (`jouled virtual faults` says which
it takes), then `after_s=N` and `for_s=N` (simulated seconds from the start; `for_s=inf`: to the end).
A file that is edited is so before the start, whatever `after_s` says, and what happens once has no `for_s`.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jouled.errors import UsageError
from jouled.virtual.mischief import Place

GOOD = frozenset({"tuned", "no_gain"})


@dataclass(frozen=True, slots=True)
class Effect:
    """What a fault does: `switches` (faults.py) while it lasts, `once` (schedule.py) when it begins, `edits` before."""

    switches: Mapping[str, Any] = field(default_factory=dict)
    once: Sequence[Mapping[str, Any]] = ()
    edits: Sequence[Callable[[Place], None]] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a board is in a bad state. `takes` says what its argument is; `for_s` inf: to the end.

    A right outcome is one of `outcomes`; `says` is a pattern of the sentence that the job's reason, warnings or trials
    hold, "" where nothing need be said because nothing is wrong with what came out; `is_quiet`: nor where the job ends
    well. `problems` are the entries of docs/field-problems.md that it is about.
    """

    name: str
    text: str
    does: Callable[[str], Effect]
    outcomes: frozenset[str] = GOOD
    says: str = ""
    is_quiet: bool = False
    takes: str = ""
    argument: str = ""
    after_s: float = 0.0
    for_s: float = math.inf
    problems: tuple[int, ...] = ()


def always(**switches: Any) -> Callable[[str], Effect]:
    """Switches that take no argument."""
    return lambda _: Effect(switches)


def edited(edit: Callable[[Place], None]) -> Callable[[str], Effect]:
    """One edit that takes no argument."""
    return lambda _: Effect(edits=(edit,))


def number(text: str) -> float:
    """An argument that is a number. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0.0:
        raise UsageError(f"wanted a number from 0, got {text!r}")
    return value


def one_of(text: str, known: Sequence[str]) -> str:
    """An argument that is a word. Raises UsageError."""
    if text not in known:
        raise UsageError(f"wanted one of {', '.join(known)}, got {text!r}")
    return text


def errno_name(text: str) -> str:
    """An argument that is an errno by name. Raises UsageError."""
    if text not in errno.errorcode.values():
        raise UsageError(f"wanted the name of an errno such as EAGAIN, got {text!r}")
    return text
