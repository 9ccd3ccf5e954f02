"""Small JSON files that survive a crash at any moment, and that root may obey.

Written: fresh file, fsync, rename, fsync of the folder; a reader sees the old or the new one, never a part.
Read: no symbolic link, a schema that is known, a checksum that fits; everything else is a StateError that
names the file. Nothing here deletes a damaged file: `set_aside` renames it, which needs no space.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

from jouled.errors import NotPermittedError, StateError

log = logging.getLogger(__name__)

_MAX_BYTES = 4 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def checksum(body: Mapping[str, object]) -> str:
    """16 hex digits over the canonical JSON of `body`."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sync_folder(folder: Path) -> None:
    """Make renames and removals in `folder` outlive a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_hint(error: OSError, folder: Path, instead: str = "name another folder with --state-dir") -> str:
    """What to do about a file in `folder` that cannot be written."""
    if error.errno in _FULL:
        return f"free some space in {folder}"
    if error.errno in _REFUSED:
        return f"make {folder} writable for this user, or {instead}"
    return f"see what lies in {folder}, or {instead}"


def replace_text(path: Path, text: str) -> None:
    """A file of the user's as a whole, so that a full disk costs none that was there. Raises OSError.

    What is no file, such as /dev/stdout, is written to.
    """
    path = path.resolve()  # a link stays one
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, path)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_durably(path: Path, data: bytes, *, mode: int = 0o640) -> None:
    """Make or replace `path` as a whole. Raises StateError; the old file then still stands."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(fresh, flags, mode)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(fresh, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise StateError(
            f"{path}: cannot be written: {error.strerror} (errno {error.errno})",
            hint=f"{write_hint(error, path.parent)}; no knob was written for it",
        ) from error


def remove_durably(path: Path) -> bool:
    """Delete `path`; False when there was none. Needs no free space. Raises StateError."""
    try:
        path.unlink()
        sync_folder(path.parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StateError(
            f"{path}: cannot be deleted: {error.strerror} (errno {error.errno})",
            hint=f"{write_hint(error, path.parent)}; or delete it by hand",
        ) from error
    return True


def set_aside(path: Path) -> Path:
    """Rename `path` to the first free PATH.aside.N and return that. Raises StateError."""
    number = 1
    while (target := path.with_name(f"{path.name}.aside.{number}")).exists():
        number += 1
    try:
        os.rename(path, target)
        sync_folder(path.parent)
    except OSError as error:
        raise StateError(
            f"{path}: cannot be set aside as {target.name}: {error.strerror}",
            hint=f"{write_hint(error, path.parent)}; then move it away: mv {path} {target}",
        ) from error
    log.warning("%s set aside as %s", path, target.name)
    return target


def _damaged(path: Path, what: str) -> StateError:
    return StateError(
        f"{path}: {what}",
        hint=f"keep it for a look and move it away: mv {path} {path}.damaged",
    )


def read_no_follow(path: Path) -> bytes | None:
    """The bytes of an ordinary file; None when there is none. Raises StateError, NotPermittedError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        if error.errno in {errno.EACCES, errno.EPERM}:
            raise NotPermittedError(f"{path}: may not be read by this user", hint="run it with sudo") from error
        is_link = error.errno == errno.ELOOP
        what = "is a symbolic link" if is_link else f"cannot be opened: {error.strerror}"
        raise _damaged(path, what) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _damaged(path, "is no ordinary file")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(_MAX_BYTES)
    finally:
        os.close(descriptor)


class Fields:
    """The attributes of one JSON object, each of its type; a StateError names file and attribute."""

    def __init__(self, path: Path, values: Mapping[str, object], *, within: str = "") -> None:
        self.path = path
        self.values = values
        self._within = within

    def _wrong(self, name: str, wanted: str) -> StateError:
        got = f"{self.values[name]!r}"[:60] if name in self.values else "nothing"
        return _damaged(self.path, f"{self._within}{name}: wanted {wanted}, got {got}")

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def one_of(self, name: str, allowed: Collection[str]) -> str:
        value = self.text(name)
        if value not in allowed:
            raise self._wrong(name, f"one of {', '.join(allowed)}")
        return value

    def integer(self, name: str) -> int:
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "an integer")
        if value.bit_length() > 63:
            raise self._wrong(name, "an integer of 64 bits")
        return value

    def integer_or_none(self, name: str) -> int | None:
        return None if self.values.get(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number")
        try:
            return float(value)
        except OverflowError:
            raise self._wrong(name, "a number that a float can hold") from None

    def number_or_none(self, name: str) -> float | None:
        return None if self.values.get(name) is None else self.number(name)

    def fields(self, name: str) -> Fields:
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return Fields(self.path, value, within=f"{self._within}{name}.")

    def fields_or_none(self, name: str) -> Fields | None:
        return None if self.values.get(name) is None else self.fields(name)

    def list_of_fields(self, name: str) -> tuple[Fields, ...]:
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._wrong(name, "a list of objects")
        return tuple(
            Fields(self.path, item, within=f"{self._within}{name}[{number}].") for number, item in enumerate(value)
        )

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of texts")
        return tuple(value)

    def text_map(self, name: str) -> dict[str, str]:
        value = self.values.get(name)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise self._wrong(name, "an object of texts")
        return dict(value)


def write_state(path: Path, schema: str, content: Mapping[str, object]) -> None:
    """Make or replace the state file `path`. Raises StateError."""
    body = {"schema": schema, **content}
    text = json.dumps({**body, "checksum": checksum(body)}, indent=1, sort_keys=True, allow_nan=False)
    write_durably(path, f"{text}\n".encode())


def read_state(path: Path, schema: str) -> Fields | None:
    """The content of the state file `path`; None when there is none. Raises StateError, NotPermittedError."""
    data = read_no_follow(path)
    if data is None:
        return None
    try:
        document = json.loads(data)
        return _checked(path, schema, document)
    except (ValueError, RecursionError) as error:  # not JSON, or no JSON of ours: NaN, nested beyond all measure
        raise _damaged(path, f"is damaged: {error}") from error


def _checked(path: Path, schema: str, document: object) -> Fields:
    if not isinstance(document, dict):
        raise _damaged(path, "is damaged: wanted a JSON object")
    found = document.get("schema")
    if found != schema:
        raise _damaged(path, f"unknown schema: wanted {schema!r}, got {found!r}")
    body = {name: value for name, value in document.items() if name != "checksum"}
    if document.get("checksum") != checksum(body):
        raise _damaged(path, "is damaged or was edited: its checksum does not fit")
    return Fields(path, body)
