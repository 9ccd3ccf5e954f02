"""One writer at a time: the flock that everything which turns a knob holds, and who holds it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jouled.board.host import Host
from jouled.board.process import start_ticks
from jouled.board.statefile import read_no_follow, write_durably
from jouled.errors import BusyError, JouledError, NotPermittedError, StateError

log = logging.getLogger(__name__)


def _folder(host: Host) -> Path:
    return host.sysfs.real(host.run_dir)


def read_holder(host: Host) -> tuple[int, str] | None:
    """Pid and verb of the process that holds the board; None: nobody does, or who is not known.

    The file outlives a holder that was killed: one whose pid is another process by now, or none, is no holder.
    """
    try:
        data = read_no_follow(_folder(host) / "holder.json")
        document = json.loads(data or b"null")
        pid, began, verb = int(document["pid"]), int(document["start_ticks"]), str(document["verb"])
    except (JouledError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return (pid, verb) if start_ticks(pid) == began else None


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except PermissionError as error:
        raise NotPermittedError(f"{path}: the board's lock is root's", hint="run it with sudo") from error
    except OSError as error:
        raise StateError(
            f"{path}: the board's lock cannot be opened: {error.strerror}",
            hint=f"see what lies at {path} and remove it",
        ) from error


def _is_current(descriptor: int, path: Path) -> bool:
    """False when somebody replaced or removed the file between our open and our lock."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _lock(host: Host) -> int:
    path = _folder(host) / "board.lock"
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            holder = read_holder(host)
            who = "another process" if holder is None else f"pid {holder[0]} (jouled {holder[1]})"
            raise BusyError(
                f"{path}: {who} holds the board",
                hint="wait until it ends, or stop it (Ctrl-C, or kill its pid): it puts the board back",
            ) from None
        if _is_current(descriptor, path):
            return descriptor
        os.close(descriptor)


def _name_holder(host: Host, verb: str) -> None:
    text = json.dumps({"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "verb": verb})
    try:
        write_durably(_folder(host) / "holder.json", f"{text}\n".encode())
    except StateError as error:  # a full tmpfs must not keep a restore from its work
        log.warning("the holder of the board cannot be named: %s", error)


@contextmanager
def hold_board(host: Host, *, verb: str) -> Iterator[None]:
    """Be the one writer. Raises BusyError that names the holder, NotPermittedError, StateError.

    The kernel lets go when the process ends, however it ends. Not to be nested.
    """
    descriptor = _lock(host)
    try:
        _name_holder(host, verb)
        yield
    finally:
        with suppress(OSError):
            (_folder(host) / "holder.json").unlink(missing_ok=True)
        os.close(descriptor)
