"""Ends what a dead job has left running, before anybody writes a knob beside it."""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from jouled.board.process import MARK, Child, is_uninterruptible, start_ticks
from jouled.errors import StuckError

log = logging.getLogger(__name__)

_WAIT_S = 5.0
_ROUNDS = 20  # a child may fork between the look and the kill


def _is_dead(pid: int) -> bool:
    """Gone, or a zombie: it writes nothing any more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rpartition(")")[2].split()[0] in {"Z", "X"}


def _carries(pid: int, mark: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return f"{MARK}={mark}".encode() in environment


def _marked(mark: str) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _carries(int(folder.name), mark):
            yield int(folder.name)


def find_orphans(mark: str, children: tuple[Child, ...]) -> tuple[int, ...]:
    """Living processes that carry `mark` in their environment or are among `children`; never this one."""
    found = set(_marked(mark)) if mark else set()
    found |= {child.pid for child in children if start_ticks(child.pid) == child.start_ticks}
    return tuple(sorted(pid for pid in found if pid != os.getpid() and not _is_dead(pid)))


def _open(pid: int, is_meant: bool) -> int | None:
    if not is_meant:
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _kill_and_wait(pids: tuple[int, ...], mark: str, children: tuple[Child, ...]) -> None:
    """A pidfd pins the process, so a pid that was given to another since is never hit."""
    poll = select.poll()
    with ExitStack() as stack:
        waiting: set[int] = set()
        for pid in pids:
            descriptor = _open(pid, is_meant=True)
            if descriptor is None:
                continue
            stack.callback(os.close, descriptor)
            if pid not in find_orphans(mark, children):
                continue
            log.warning("SIGKILL to pid %d, which the last job left", pid)
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            poll.register(descriptor, select.POLLIN)
            waiting.add(descriptor)
        until_s = time.monotonic() + _WAIT_S
        while waiting and (left_s := until_s - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left_s * 1000):
                poll.unregister(descriptor)
                waiting.discard(descriptor)


def end_orphans(mark: str, children: tuple[Child, ...]) -> tuple[int, ...]:
    """SIGKILL them, wait, and return the pids that were ended. Raises StuckError when one does not die."""
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        pids = find_orphans(mark, children)
        if not pids:
            return tuple(sorted(ended))
        _kill_and_wait(pids, mark, children)
        ended |= set(pids)
        if any(is_uninterruptible(pid) for pid in pids):
            break
    left = find_orphans(mark, children)
    if not left:
        return tuple(sorted(ended))
    stuck = ", ".join(f"{pid}{' (in the kernel)' if is_uninterruptible(pid) else ''}" for pid in left)
    raise StuckError(
        f"the last job's children do not end on SIGKILL: pid {stuck}; no knob was written",
        argv=(f"pid {left[0]}",),
        hint="try again in a minute; look at dmesg, and reboot the board if they stay",
    )
