"""One daemon a state folder: a lock in the daemon's own folder, which goes with the process however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jouled.errors import BusyError
from jouled.service.requests import daemon_dir

log = logging.getLogger(__name__)

_MOST_BYTES = 20


def lock_path(state_dir: Path) -> Path:
    """The lock, which holds the daemon's pid."""
    return daemon_dir(state_dir) / "daemon.lock"


@contextmanager
def sole_daemon(state_dir: Path) -> Iterator[None]:
    """Be the daemon of `state_dir`. Raises BusyError that names the one there is.

    Where no lock can be made (a full or read-only disk) that is said, and no reason not to serve.
    """
    path = lock_path(state_dir)
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
    except OSError as error:
        log.warning("%s: %s: a second daemon would not be noticed", path, error.strerror)
        yield
        return
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, _MOST_BYTES, 0).decode("ascii", "replace").strip() or "unknown"
        raise BusyError(
            f"{path.parent.parent}: another daemon serves this state folder (pid {pid})",
            hint="ask that one (jouled status), stop it, or name another folder with --state-dir",
        ) from None
    with contextlib.suppress(OSError):  # full: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
