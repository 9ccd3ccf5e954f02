"""One thing that was looked at: how it stands, in a sentence, and what to type about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from jouled.errors import ForbiddenError, JouledError, NotPermittedError

ONLY_ROOT = "only root sees that"


class Level(str, Enum):
    """`warning`: it works, in another way or with a risk. `fault`: no job can run. `unknown`: it cannot be seen."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """`to_do`: lines to be typed. `exit_code`: what a fault makes doctor end with."""

    name: str
    level: Level
    text: str
    to_do: tuple[str, ...] = ()
    exit_code: int = 0


def ok(name: str, text: str) -> Check:
    """As it should be."""
    return Check(name, Level.OK, text)


def warning(name: str, text: str, *to_do: str) -> Check:
    """It works, but."""
    return Check(name, Level.WARNING, text, tuple(line for line in to_do if line))


def unknown(name: str, text: str = ONLY_ROOT, *to_do: str) -> Check:
    """It cannot be seen from here."""
    return Check(name, Level.UNKNOWN, text, to_do)


def fault_of(name: str, error: JouledError) -> Check:
    """What a job would end with."""
    return Check(name, Level.FAULT, str(error), (error.hint,) if error.hint else (), error.exit_code)


def guarded(name: str, look: Callable[[], Check]) -> Check:
    """What `look` finds; what it may not see is unknown, never wrong."""
    try:
        return look()
    except (NotPermittedError, ForbiddenError):
        return unknown(name)
    except JouledError as error:
        return fault_of(name, error)
