"""Ends what a dead job has left running, before anybody writes a knob beside it.

What is meant: processes that carry the job's mark, children that its snapshot names and, where this process runs in
the worker's own unit, everything else in that unit's cgroup. A child that forked twice and emptied its environment is
found by the last alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jouled.board.process import MARK, Child, is_uninterruptible, start_ticks
from jouled.errors import StuckError

log = logging.getLogger(__name__)

_WAIT_S = 5.0
_ROUNDS = 20  # a child may fork between the look and the kill
_WORKER_UNIT = "jouled-worker.service"


def _is_dead(pid: int) -> bool:
    """Gone, or a zombie: it writes nothing any more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rpartition(")")[2].split()[0] in {"Z", "X"}


def _carries(pid: int, variable: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return variable.encode() in environment


def _carriers(variable: str) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _carries(int(folder.name), variable):
            yield int(folder.name)


def worker_cgroup(memberships: str) -> str:
    """The path of the worker's unit in the text of a /proc/PID/cgroup; "" for a process that is not in it.

    systemd's own hierarchy counts: `0::PATH`, or `N:name=systemd:PATH` beside the controllers of cgroup v1 (L4T 35).
    """
    for line in memberships.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        names = path.split("/")
        if (number == "0" or controllers == "name=systemd") and _WORKER_UNIT in names:
            return "/".join(names[: names.index(_WORKER_UNIT) + 1])
    return ""


def _cgroup_of(pid: int | str) -> str:
    try:
        return worker_cgroup(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return ""


def own_cgroup() -> str:
    """The worker unit's cgroup where this process is in it: everything else there is the job's. "" anywhere else:
    a shell that types `jouled restore` is not to be killed by it."""
    return _cgroup_of("self")


def _of_cgroup(cgroup: str) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _cgroup_of(folder.name) == cgroup:
            yield int(folder.name)


@dataclass(frozen=True, slots=True)
class Meant:
    """Which processes are the dead job's: those that carry `variable` (NAME=VALUE) too; empty means nobody."""

    variable: str = ""
    children: tuple[Child, ...] = ()
    cgroup: str = ""

    def holds(self, pid: int) -> bool:
        """Is it one of them, and alive? Never this process."""
        if pid == os.getpid() or _is_dead(pid):
            return False
        if self.variable and _carries(pid, self.variable):
            return True
        return Child(pid, start_ticks(pid) or 0) in self.children or (
            self.cgroup != "" and _cgroup_of(pid) == self.cgroup
        )

    def find(self) -> tuple[int, ...]:
        """All that live now."""
        found = {child.pid for child in self.children}
        found |= set(_carriers(self.variable)) if self.variable else set()
        found |= set(_of_cgroup(self.cgroup)) if self.cgroup else set()
        return tuple(sorted(pid for pid in found if self.holds(pid)))


def find_orphans(mark: str, children: tuple[Child, ...], cgroup: str = "") -> tuple[int, ...]:
    """Living processes that carry `mark` in their environment, are among `children` or in `cgroup`; never this one."""
    return Meant(_marked(mark), children, cgroup).find()


def _marked(mark: str) -> str:
    return f"{MARK}={mark}" if mark else ""


def _kill(pid: int, meant: Meant) -> int | None:
    """The pidfd of what was killed: it pins the process, so a pid given to another since is never hit."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if not meant.holds(pid):
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


def _kill_and_wait(pids: tuple[int, ...], meant: Meant) -> None:
    killed = {descriptor for pid in pids if (descriptor := _kill(pid, meant)) is not None}
    try:
        _wait(killed)
    finally:
        for descriptor in killed:
            os.close(descriptor)


def end_orphans(mark: str, children: tuple[Child, ...], cgroup: str = "") -> tuple[int, ...]:
    """SIGKILL them, wait, and return the pids that were ended. Raises StuckError when one does not die."""
    return _end(Meant(_marked(mark), children, cgroup))


def end_carriers(variable: str) -> tuple[int, ...]:
    """The same to whatever has `variable` (NAME=VALUE) in its environment: who has left its process group, too."""
    return _end(Meant(variable))


def _end(meant: Meant) -> tuple[int, ...]:
    ended: set[int] = set()
    pids = meant.find()
    for _ in range(_ROUNDS):
        if not pids:
            return tuple(sorted(ended))
        _kill_and_wait(pids, meant)
        left = meant.find()
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
