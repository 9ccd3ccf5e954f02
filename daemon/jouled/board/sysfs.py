"""The only door to the board's files: /sys, /proc and what nvpmodel keeps in /etc and /var/lib.

A read that fails is one of three things, told apart because they call for different answers: *absent* (no such file, or
its device is gone), *forbidden* (there, but not for this user) and *broken* (any other answer of the kernel). None of
them is ever a 0. Each write is logged before it happens and read back after.
"""

from __future__ import annotations

import errno
import glob
import logging
import os
from pathlib import Path

from jouled.errors import AbsentError, BrokenError, ForbiddenError, SysfsError

log = logging.getLogger(__name__)

_ABSENT = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def _error(path: str, action: str, error: OSError) -> SysfsError:
    number = error.errno or 0
    text = f"{path}: cannot {action}: {os.strerror(number)} (errno {number})"
    kind: type[SysfsError] = BrokenError
    if number in _ABSENT:
        kind = AbsentError
    elif number in _FORBIDDEN:
        kind = ForbiddenError
    return kind(text, path=path, errno=number)


class Sysfs:
    """The board's files below `root`; all paths are the board's own, absolute ones.

    Subclasses replace `_read_bytes` and `_write_bytes` alone.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self._prefix = str(root).rstrip("/")

    def real(self, path: str) -> Path:
        """Where `path` of the board lies on this machine."""
        return self.root / path.lstrip("/")

    def _read_bytes(self, path: str) -> bytes:
        descriptor = os.open(f"{self._prefix}{path}", os.O_RDONLY | os.O_CLOEXEC)  # read often: no Path is made
        try:
            return os.read(descriptor, 1 << 20)
        finally:
            os.close(descriptor)

    def _write_bytes(self, path: str, data: bytes) -> None:
        descriptor = os.open(self.real(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def read_raw(self, path: str) -> bytes:
        """The bytes of `path` (device tree strings end in NUL). Raises AbsentError, ForbiddenError, BrokenError."""
        try:
            return self._read_bytes(path)
        except OSError as error:
            raise _error(path, "read", error) from error

    def read(self, path: str) -> str:
        """The text of `path` without surrounding white space. Raises AbsentError, ForbiddenError, BrokenError."""
        return self.read_raw(path).decode("utf-8", "replace").strip()

    def read_int(self, path: str) -> int:
        """The integer in `path`. Raises as `read`; BrokenError where it holds something else."""
        text = self.read(path)
        try:
            return int(text)
        except ValueError:
            raise BrokenError(f"{path}: wanted an integer, got {text[:60]!r}", path=path) from None

    def exists(self, path: str) -> bool:
        """Is there something at `path`, readable or not?"""
        return os.path.lexists(self.real(path))

    def glob(self, pattern: str) -> list[str]:
        """The board's paths that match, sorted; none is no error."""
        root = str(self.root).rstrip("/")
        return sorted(found[len(root) :] for found in glob.glob(glob.escape(root) + pattern))

    def write(self, path: str, value: str | int, *, why: str) -> str:
        """Write `value` and return what a read gives afterwards. Raises as `read`.

        Whether the read-back is what was wanted is for the caller to judge: the kernel rounds and clamps.
        """
        log.debug("write %s <- %s (%s)", path, value, why)
        try:
            self._write_bytes(path, f"{value}".encode())
        except OSError as error:
            raise _error(path, f"write {value!r}", error) from error
        return self.read(path)

    def place(self, path: str, text: str) -> None:
        """Make or replace an ordinary file of ours below the root (/run/jouled, nvpmodel's status), atomically."""
        target = self.real(path)
        log.debug("place %s", path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(f".{target.name}.new")
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, target)
        except OSError as error:
            raise _error(path, "place", error) from error
