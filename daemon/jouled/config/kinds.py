"""Kinds of values: what is wanted, said in words, and how a TOML value becomes one.

A kind takes what TOML or a command line gives (bool, int, float, str, list, dict, dates) and returns the value as the
product uses it, or raises `Unfit`. Nothing else ever comes out, whatever goes in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

T = TypeVar("T")
U = TypeVar("U")

_LONGEST_TEXT = 4096
_LONGEST_LIST = 256
_HUGE = 10**30
_SHOWN_CHARS = 48


class Unfit(Exception):
    """A value that is not of its kind; the text, if any, says what to do."""


class Shape(NamedTuple):
    """How many points a grid has along each domain."""

    emc: int
    gpu: int
    cpu: int

    def __str__(self) -> str:
        return "x".join(str(count) for count in self)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """What a key takes. `wanted` completes the sentence "wanted …"."""

    wanted: str
    take: Callable[[object], T]


def shown(value: object) -> str:
    """Any value in TOML's clothes, cut to what fits a message."""
    if isinstance(value, str) and len(value) > _SHOWN_CHARS:
        value = f"{value[:_SHOWN_CHARS]}…"
    text = toml(value[:20] if isinstance(value, (list, tuple)) and not isinstance(value, Shape) else value, 3)
    return text if len(text) <= 60 else f"{text[:57]}…"


def toml(value: object, depth: int = 3) -> str:
    """A value as TOML; what no kind lets through (dates, deeper nesting) is abbreviated."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < _HUGE else "an integer of more than 30 digits"
    if isinstance(value, (Shape, os.PathLike)):
        return _quoted(str(value))
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (list, tuple, dict)) and depth == 0:
        return "…"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml(item, depth - 1) for item in value)}]"
    if isinstance(value, dict):
        pairs = (f"{_name(name)} = {toml(item, depth - 1)}" for name, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return str(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def _name(name: object) -> str:
    """A key, bare where TOML allows it."""
    text = str(name)
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _quoted(text)


def _within(low: float, high: float, unit: str) -> str:
    spelled = f" {unit}" if unit else ""
    return f"from {low:g} to {high:g}{spelled}"


def _unquoted(value: object) -> str:
    is_number = isinstance(value, str) and re.fullmatch(r"[-+]?[0-9.]+(e[0-9]+)?", value, re.ASCII)
    return "write it without quotes" if is_number else ""


def number(low: float, high: float, unit: str = "") -> Kind[float]:
    """A finite number in [low, high]; an integer is one too."""

    def take(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise Unfit(_unquoted(value))
        return float(value)

    return Kind(f"a number {_within(low, high, unit)}", take)


def integer(low: int, high: int, unit: str = "") -> Kind[int]:
    """An integer in [low, high]; 1.2e9 is one too."""

    def take(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise Unfit(_unquoted(value))
        if isinstance(value, float) and not value.is_integer():
            raise Unfit
        return int(value)

    spelled = f" {unit}" if unit else ""
    return Kind(f"an integer {low} to {high}{spelled}" if low < high else f"{low}{spelled}", take)


def flag() -> Kind[bool]:
    """true or false."""

    def take(value: object) -> bool:
        if not isinstance(value, bool):
            raise Unfit("write it without quotes" if value in ("true", "false") else "")
        return value

    return Kind("true or false", take)


def choice(names: Sequence[str], advice: str = "") -> Kind[Any]:
    """One of the names. Typed by whoever declares the key (a Literal of the same names)."""

    def take(value: object) -> str:
        if not isinstance(value, str) or value not in names:
            raise Unfit(advice)
        return value

    return Kind(" | ".join(names), take)


def _plain_text(value: object) -> str:
    if not isinstance(value, str):
        raise Unfit
    if len(value) > _LONGEST_TEXT:
        raise Unfit(f"at most {_LONGEST_TEXT} characters")
    if not value.isprintable():
        raise Unfit("only printable characters")
    return value


def text(pattern: str, wanted: str, advice: str = "") -> Kind[str]:
    """Printable text that matches the whole pattern."""
    compiled = re.compile(pattern)

    def take(value: object) -> str:
        found = _plain_text(value)
        if compiled.fullmatch(found) is None:
            raise Unfit(advice)
        return found

    return Kind(wanted, take)


def path(suffix: str = "") -> Kind[str]:
    """An absolute path; whether the file is there is asked where it is used.

    A `Path` (which no file holds, but a command line does) is taken from the working directory.
    """

    def take(value: object) -> str:
        found = _plain_text(os.path.abspath(value) if isinstance(value, os.PathLike) else value)
        if not found.startswith("/"):
            raise Unfit("write the whole path: the worker does not run in your folder")
        if not found.endswith(suffix):
            raise Unfit
        return found

    return Kind(f"an absolute path in quotes{f' that ends in {suffix}' if suffix else ''}", take)


def many(kind: Kind[T], *, of: str, empty: bool = True, distinct: bool = True) -> Kind[tuple[T, ...]]:
    """A list of what `kind` takes."""

    def take(value: object) -> tuple[T, ...]:
        if not isinstance(value, (list, tuple)):
            raise Unfit("put it in [ ]" if not isinstance(value, dict) else "")
        if len(value) > _LONGEST_LIST or (not value and not empty):
            raise Unfit(f"at most {_LONGEST_LIST} of them" if value else "name at least one")
        items = tuple(kind.take(item) for item in value)
        if distinct and len(set(items)) != len(items):
            raise Unfit("name each one once")
        return items

    return Kind(f"a list of {of}", take)


def one_or_many(kind: Kind[T], *, of: str) -> Kind[tuple[T, ...]]:
    """What `kind` takes, or a list of it (an axis of the search)."""
    several = many(kind, of=of, empty=False)

    def take(value: object) -> tuple[T, ...]:
        return several.take(value) if isinstance(value, (list, tuple)) else (kind.take(value),)

    return Kind(f"{kind.wanted}, or {several.wanted}", take)


def or_word(kind: Kind[T], word: str) -> Kind[Any]:
    """What `kind` takes, or one word. Typed by whoever declares the key."""

    def take(value: object) -> T | str:
        return word if value == word and isinstance(value, str) else kind.take(value)

    return Kind(f'{kind.wanted}, or "{word}"', take)


def optional(kind: Kind[T]) -> Kind[T | None]:
    """The same kind for a key that may be left out (TOML has no null: what is there must fit)."""
    return cast("Kind[T | None]", kind)


def shape() -> Kind[Shape]:
    """EMC × GPU × CPU points as "3x8x4"."""

    def take(value: object) -> Shape:
        found = value if isinstance(value, str) and len(value) <= 20 else ""
        match = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})x([1-9][0-9]{0,3})", found, re.ASCII)
        if match is None:
            raise Unfit
        emc, gpu, cpu = (int(count) for count in match.groups())
        return Shape(emc, gpu, cpu)

    return Kind('EMC x GPU x CPU points in quotes, such as "3x8x4"', take)


def tensor_shapes() -> Kind[dict[str, tuple[int, ...]]]:
    """Input name → its dimensions."""
    dimensions = many(integer(1, 1_000_000), of="dimensions", empty=False, distinct=False)

    def take(value: object) -> dict[str, tuple[int, ...]]:
        if not isinstance(value, dict) or len(value) > _LONGEST_LIST:
            raise Unfit
        return {_plain_text(name): dimensions.take(item) for name, item in value.items()}

    return Kind("input names with their dimensions, such as { input = [1, 3, 640, 640] }", take)


def address() -> Kind[str]:
    """HOST:PORT, or "" for none."""

    def take(value: object) -> str:
        found = _plain_text(value)
        match = re.fullmatch(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", found, re.ASCII)
        if found and (match is None or not 1 <= int(match[1]) <= 65535):
            raise Unfit
        return found

    return Kind('HOST:PORT in quotes, or "" for none', take)


def daily_window() -> Kind[str]:
    """ "HH:MM-HH:MM", local time; it may span midnight."""
    clock = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
    within = text(rf"{clock}-{clock}", 'local times in quotes, such as "02:00-05:00"')

    def take(value: object) -> str:
        found = within.take(value)
        begin, _, end = found.partition("-")
        if begin == end:
            raise Unfit("begin and end must differ; leave the key out for any time")
        return found

    return Kind(within.wanted, take)
