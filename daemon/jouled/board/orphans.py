"""Ends what a dead job has left running, before anybody writes a knob beside it."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from jouled.board.process import MARK, Child, is_uninterruptible, start_ticks
from jouled.errors import StuckError

log = logging.getLogger(__name__)

_WAIT_S = 5.0
_ROUNDS = 20  # a child may fork between the look and the kill


def _is_dead(pid: int) -> bool:
    """Gone, or a zombie: it writes nothing any more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
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


def _is_meant(pid: int, mark: str, children: tuple[Child, ...]) -> bool:
    """Of the dead job, and alive."""
    if pid == os.getpid() or _is_dead(pid):
        return False
    return (mark != "" and _carries(pid, mark)) or Child(pid, start_ticks(pid) or 0) in children


def find_orphans(mark: str, children: tuple[Child, ...]) -> tuple[int, ...]:
    """Living processes that carry `mark` in their environment or are among `children`; never this one."""
    found = (set(_marked(mark)) if mark else set()) | {child.pid for child in children}
    return tuple(sorted(pid for pid in found if _is_meant(pid, mark, children)))


def _kill(pid: int, mark: str, children: tuple[Child, ...]) -> int | None:
    """The pidfd of what was killed: it pins the process, so a pid given to another since is never hit."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if not _is_meant(pid, mark, children):
        os.close(descriptor)
        return None
    log.warning("SIGKILL to pid %d, which the last job left", pid)
    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself, which is as good
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    return descriptor


def _wait(descriptors: set[int]) -> None:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    waiting = set(descriptors)
    until_s = time.monotonic() + _WAIT_S
    while waiting and (left_s := until_s - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left_s * 1000):
            poll.unregister(descriptor)
            waiting.discard(descriptor)


def _kill_and_wait(pids: tuple[int, ...], mark: str, children: tuple[Child, ...]) -> None:
    killed = {descriptor for pid in pids if (descriptor := _kill(pid, mark, children)) is not None}
    try:
        _wait(killed)
    finally:
        for descriptor in killed:
            os.close(descriptor)


def end_orphans(mark: str, children: tuple[Child, ...]) -> tuple[int, ...]:
    """SIGKILL them, wait, and return the pids that were ended. Raises StuckError when one does not die."""
    ended: set[int] = set()
    pids = find_orphans(mark, children)
    for _ in range(_ROUNDS):
        if not pids:
            return tuple(sorted(ended))
        _kill_and_wait(pids, mark, children)
        left = find_orphans(mark, children)
        ended |= set(pids) - set(left)
        if set(pids) <= set(left):
            break  # none of them has died
        pids = left
    if not pids:
        return tuple(sorted(ended))
    stuck = ", ".join(f"{pid}{' (in the kernel)' if is_uninterruptible(pid) else ''}" for pid in pids)
    raise StuckError(
        f"the last job's children do not end on SIGKILL: pid {stuck}; no knob was written",
        argv=(f"pid {pids[0]}",),
        hint="try again in a minute; look at dmesg, and reboot the board if they stay",
    )
