"""What a winner holds for besides its board: engines by their content, variants, arrival, how it is run.

Marks are name → text, compared one by one, so that a sentence can say what has changed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jouled.config.tables import WorkloadEntry

if TYPE_CHECKING:  # which brings numpy: not into the daemon
    from jouled.workload.runner import Arrival

RUNTIME = "runtime"
"""The mark that only the runner can give: who does not run it leaves it out."""
ABSENT = "absent"

_PIECE_BYTES = 1 << 20
_LOOK_BYTES = 64 << 20

_Signature = tuple[int, int, int, int]


def files_of(entry: WorkloadEntry) -> tuple[str, ...]:
    """The files whose content is the workload: also those that a program's arguments name (a script, a model)."""
    named = dict.fromkeys((*entry.argv[:1], *filter(None, map(_named, entry.argv[1:]))))
    return (*entry.engine, *entry.onnx, *named, *((entry.trace,) if entry.trace is not None else ()))


def _named(argument: str) -> str | None:
    """The ordinary file that an argument names, whole or behind `--name=`; one that we may not see counts as one."""
    option, is_option, value = argument.partition("=")
    path = os.path.join("/", value if is_option and option.startswith("-") else argument)  # it is run in /
    try:
        return path if stat.S_ISREG(os.stat(path).st_mode) else None
    except PermissionError:
        return path
    except (OSError, ValueError):
        return None


def told_arrival(entry: WorkloadEntry) -> str:
    """As the entry tells it; of a trace only that it is one: its times are a file's content."""
    return f"rate {entry.rate_hz:g} Hz" if entry.arrival == "rate" else entry.arrival


def settings_of(entry: WorkloadEntry, arrival: str) -> dict[str, str]:
    """All marks that need no file."""
    batches, instances = (" ".join(map(str, values)) for values in (entry.batch, entry.instances))
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in sorted(entry.shapes.items()))
    return {
        "kind": entry.kind,
        "variants": f"batch {batches}, instances {instances}",
        "arrival": arrival,
        "run": " ".join(filter(None, (entry.sync, "graph" if entry.cuda_graph else "", entry.precision or "", shapes))),
        "program": " ".join(entry.argv),
    }


def workload_marks(entry: WorkloadEntry, arrival: Arrival) -> dict[str, str]:
    """All marks, read now: takes as long as reading the files does."""
    told = arrival.kind if arrival.kind == "trace" else str(arrival)
    return {**settings_of(entry, told), **{path: content_mark(path) for path in files_of(entry)}}


def content_mark(path: str) -> str:
    """The SHA-256 of the file's content, or "absent", or what keeps it from being read."""
    try:
        with open(path, "rb", opener=_opener) as file:
            digest = hashlib.sha256()
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
    except FileNotFoundError:
        return ABSENT
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return digest.hexdigest()


def _opener(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def differing(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """The names in which they differ. One that either does not know is no difference, except for a file."""
    for name in (*then, *(name for name in now if name not in then)):
        before, after = then.get(name), now.get(name)
        is_known = before is not None and after is not None
        if before != after and name != RUNTIME and (is_known or name.startswith("/")):
            yield name


def what_changed(name: str, then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What differs, for people."""
    if name not in then:
        return f"{name} has been added"
    if name.startswith("/"):
        return f"{name} is {'gone' if now.get(name) in (None, ABSENT) else 'another file than it was'}"
    return f"{name} was {then[name]!r} and is {now.get(name)!r}"


class FileWatch:
    """Content marks of files that are looked at again and again: cheap while they stay as they are.

    A file whose size, times and inode are as before is not read. A new one is read a piece at each look, so that no
    look takes long; until it is through, its mark is the one before.
    """

    def __init__(self, *, look_bytes: int = _LOOK_BYTES) -> None:
        self._look_bytes = look_bytes
        self._known: dict[str, tuple[_Signature | None, str]] = {}
        self._reading: dict[str, _Reading] = {}
        self.bytes_read = 0

    def marks(self, entry: WorkloadEntry, then: Mapping[str, str]) -> dict[str, str]:
        """All marks of a workload now; a file whose content is not known is taken to be as it was `then`."""
        found = settings_of(entry, told_arrival(entry))
        for path in files_of(entry):
            mark = self.mark(path) or then.get(path)
            if mark is not None:
                found[path] = mark
        return found

    def mark(self, path: str) -> str | None:
        """Its content mark; None while that is not known yet, or where it cannot be read."""
        try:
            signature = _sign(path)
        except PermissionError:
            return None
        known = self._known.get(path)
        if known is not None and known[0] == signature:
            self._reading.pop(path, None)
            return known[1]
        if signature is None:
            self._known[path] = (None, ABSENT)
            return ABSENT
        done = self._go_on(path, signature)
        if done is not None:
            self._known[path] = (signature, done)
            del self._reading[path]
            return done
        return None if known is None else known[1]

    def _go_on(self, path: str, signature: _Signature) -> str | None:
        reading = self._reading.get(path)
        if reading is None or reading.signature != signature:
            reading = self._reading[path] = _Reading(signature)
        try:
            count = reading.read(path, self._look_bytes)
        except OSError:
            return None
        self.bytes_read += count
        return reading.digest.hexdigest() if reading.is_through else None


class _Reading:
    """A file that is being read over several looks."""

    def __init__(self, signature: _Signature) -> None:
        self.signature = signature
        self.digest = hashlib.sha256()
        self.is_through = False
        self._offset = 0

    def read(self, path: str, most_bytes: int) -> int:
        begun = self._offset
        with open(path, "rb", opener=_opener) as file:
            file.seek(self._offset)
            while self._offset - begun < most_bytes:
                piece = file.read(min(_PIECE_BYTES, most_bytes - (self._offset - begun)))
                if not piece:
                    self.is_through = True
                    break
                self.digest.update(piece)
                self._offset += len(piece)
        return self._offset - begun


def _sign(path: str) -> _Signature | None:
    """None: there is no such file. Raises PermissionError where that cannot be seen."""
    try:
        found = Path(path).stat()
    except PermissionError:
        raise
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
