"""ledger.jsonl: every event of every job, one JSON object a line, never changed after. It is the truth.

Each line carries a checksum over the rest of it. `append` returns when the line is on the disk. A line that a power
cut tore, or that a bit changed, is set aside in ledger.damaged and said; the lines around it stay good.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jouled.board.statefile import checksum, sync_folder, write_durably, write_hint
from jouled.errors import NotPermittedError, StateError

log = logging.getLogger(__name__)

_SUM = "checksum"
ROTATE_ABOVE_BYTES = 32 << 20
LONGEST_LINE_BYTES = 4 << 20
_BUFFER_BYTES = 256 << 10

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that is none: its number (from 1), what is wrong with it, its bytes."""

    line: int
    why: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Contents:
    """The good events, in order, and what was found damaged between them."""

    events: tuple[dict[str, Any], ...] = ()
    damaged: tuple[Damage, ...] = ()

    def of_job(self, job: str, event: str | None = None) -> list[dict[str, Any]]:
        """The events that name `job`; of one kind only when `event` is given."""
        return [
            record
            for record in self.events
            if record.get("job") == job and (event is None or record.get("event") == event)
        ]


def encode_line(event: Event) -> bytes:
    """One line. Raises StateError for what strict JSON cannot hold (a NaN, an infinity, a foreign type)."""
    try:
        body = json.loads(json.dumps(dict(event), allow_nan=False))
        text = json.dumps({**body, _SUM: checksum(body)}, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StateError(
            f"the ledger cannot hold {str(event)[:120]}: {error}",
            hint="this is a mistake in jouled: report it; numbers that are none go in as null",
        ) from error
    return f"{text}\n".encode()


def decode_line(data: bytes) -> dict[str, Any]:
    """The event in one line (without its end). Raises ValueError that says what is wrong."""
    try:
        return _checked(json.loads(data))
    except RecursionError as error:
        raise ValueError(f"nested beyond all measure: {error}") from error


def _checked(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise ValueError("no JSON object")
    found = document.pop(_SUM, None)
    if found != checksum(document):
        raise ValueError("its checksum does not fit")
    return document


def rotated(path: Path) -> list[Path]:
    """What `path` was before it began anew, the oldest first."""
    return sorted(path.parent.glob(f"{path.stem}.[0-9]*.jsonl"), key=_number)


def _number(path: Path) -> int:
    text = path.name.split(".")[1]
    return int(text) if text.isdigit() else 0


def marked(path: Path, *marks: bytes) -> Iterator[dict[str, Any]]:
    """The good lines of a file that hold one of `marks`; only those are parsed, one at a time.

    A file that is not there has none. Raises StateError, NotPermittedError.
    """
    try:
        descriptor = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    with os.fdopen(descriptor, "rb", buffering=_BUFFER_BYTES) as file:
        for line in iter(lambda: file.readline(LONGEST_LINE_BYTES), b""):
            if line.endswith(b"\n") and any(mark in line for mark in marks):
                try:
                    yield decode_line(line)
                except ValueError:
                    continue


def _lines(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Number, bytes, whether the line is ended."""
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        yield number, line, True
    if lines[-1]:
        yield len(lines), lines[-1], False


def _parse(data: bytes) -> Contents:
    events: list[dict[str, Any]] = []
    damaged: list[Damage] = []
    for number, line, is_ended in _lines(data):
        try:
            if not is_ended:
                raise ValueError("it is torn: no end of line")
            events.append(decode_line(line))
        except ValueError as error:
            damaged.append(Damage(number, str(error), line))
    return Contents(tuple(events), tuple(damaged))


def _open(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o640)
    except FileNotFoundError:
        raise
    except IsADirectoryError as error:
        raise _no_file(path) from error
    except PermissionError as error:
        raise NotPermittedError(f"{path}: not for this user", hint="run it with sudo, or be in group jouled") from error
    except OSError as error:
        raise StateError(
            f"{path}: cannot be opened: {error.strerror}",
            hint=f"see what lies at {path} and its rights; or {write_hint(error, path.parent)}",
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_file(path)
    return descriptor


def _no_file(path: Path) -> StateError:
    return StateError(f"{path}: is no ordinary file", hint=f"move it away: mv {path} {path}.damaged")


def _append(path: Path, data: bytes) -> None:
    """All of `data` or, as far as a full disk lets us, none. Raises StateError."""
    descriptor = _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data  # a torn tail must not swallow the next line
        try:
            written = os.write(descriptor, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes fit")
            os.fsync(descriptor)
            if size == 0:
                sync_folder(path.parent)
        except OSError as error:
            os.ftruncate(descriptor, size)
            raise StateError(
                f"{path}: cannot be written: {error.strerror}", hint=write_hint(error, path.parent)
            ) from error
    finally:
        os.close(descriptor)


class Ledger:
    """The ledger in `state_dir`. Only who holds the board may `mend` and `append`; anyone may `read`."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "ledger.jsonl"
        self.damaged_path = state_dir / "ledger.damaged"

    def _bytes(self) -> bytes:
        try:
            descriptor = _open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return b""
        with os.fdopen(descriptor, "rb") as file:
            return file.read()

    def read(self) -> Contents:
        """Everything in the present file; damaged lines are told apart, never lost. Raises StateError."""
        return _parse(self._bytes())

    def mend(self, *, rotate_above_bytes: int = ROTATE_ABOVE_BYTES) -> tuple[str, ...]:
        """Set damaged lines aside before the first `append`, and begin a new file when this one is large.

        Returns one sentence for each thing done. May be killed at any point. Raises StateError.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"{self.path.parent}: cannot be made: {error.strerror}",
                hint=write_hint(error, self.path.parent),
            ) from error
        data = self._bytes()
        contents = _parse(data)
        said = [
            f"{self.path}: line {damage.line} set aside in {self.damaged_path.name}: {damage.why}"
            for damage in contents.damaged
        ]
        if contents.damaged:
            _append(self.damaged_path, b"".join(damage.data + b"\n" for damage in contents.damaged))
            bad = {damage.line for damage in contents.damaged}
            kept = b"".join(line + b"\n" for number, line, _ in _lines(data) if number not in bad)
            write_durably(self.path, kept)
        if len(data) > rotate_above_bytes:
            said.append(f"{self.path} is large and was renamed to {self._rotate().name}")
        for sentence in said:
            log.warning("%s", sentence)
        return tuple(said)

    def _rotate(self) -> Path:
        number = 1
        while (target := self.path.with_name(f"{self.path.stem}.{number}.jsonl")).exists():
            number += 1
        try:
            os.rename(self.path, target)
            sync_folder(self.path.parent)
        except OSError as error:
            raise StateError(f"{self.path}: cannot be renamed: {error.strerror}") from error
        return target

    def append(self, event: Event) -> None:
        """Keep `event`; it is on the disk when this returns. Raises StateError: then it is not kept."""
        _append(self.path, encode_line(event))
