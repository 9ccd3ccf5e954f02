"""The only door to child processes: list argv, time limit, stdin closed, output kept, every child findable later.

Each child carries its owner's mark in its environment (`MARK`), so that after a kill -9 of the parent a restore
finds it, and its own children, whatever it is called.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jouled.errors import StuckError, ToolAbsentError

log = logging.getLogger(__name__)

MARK = "JOULED_CHILD"
BOARD_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Completed:
    """A child that has ended."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    duration_s: float
    timed_out: bool = False

    def tail(self) -> str:
        """The last lines of what it said, for a message."""
        lines = [line for line in (self.stdout + "\n" + self.stderr).splitlines() if line.strip()]
        return " | ".join(lines[-4:])


@dataclass(frozen=True, slots=True)
class Child:
    """Enough to find a child again without mistaking another process for it."""

    pid: int
    start_ticks: int


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat: when it started; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[19])


def is_uninterruptible(pid: int) -> bool:
    """Is it in uninterruptible sleep (state D)?"""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] == "D"


class Processes:
    """Starts the board's programs.

    `path` is a PATH; `mark` names the owner (a job id) in the environment of each child; `on_start` hears of each
    child as soon as it runs.
    """

    def __init__(
        self,
        *,
        path: str = BOARD_PATH,
        mark: str = "jouled",
        on_start: Callable[[Child], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.mark = mark
        self.on_start = on_start
        self._extra = dict(environment or {})

    def find(self, name: str) -> str | None:
        """The program's path, or None."""
        return shutil.which(name, path=self.path)

    def _environment(self) -> dict[str, str]:
        return {"PATH": self.path, "LC_ALL": "C", "HOME": "/root", MARK: self.mark, **self._extra}

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        """Run to its end or for `timeout_s`; the exit code is the caller's to judge.

        Raises ToolAbsentError when it cannot be started, StuckError when SIGKILL does not end it.
        """
        program = self.find(argv[0])
        if program is None:
            raise ToolAbsentError(
                f"{argv[0]}: no such program on PATH {self.path}",
                argv=argv,
                hint="install NVIDIA's packages nvidia-l4t-nvpmodel and nvidia-l4t-tools, or set board.method to sysfs",
            )
        log.debug("run %s", " ".join(argv))
        began_s = time.monotonic()
        try:
            child = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment(),
                start_new_session=True,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise ToolAbsentError(f"{program}: cannot be started: {error.strerror}", argv=argv) from error
        with child:
            return self._wait(child, tuple(argv), timeout_s=timeout_s, began_s=began_s)

    def _wait(
        self, child: subprocess.Popen[str], argv: tuple[str, ...], *, timeout_s: float, began_s: float
    ) -> Completed:
        if self.on_start is not None:
            self.on_start(Child(child.pid, start_ticks(child.pid) or 0))
        timed_out = False
        try:
            stdout, stderr = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            stdout, stderr = self._end(child, argv)
        return Completed(argv, child.returncode, stdout, stderr, time.monotonic() - began_s, timed_out)

    def _end(self, child: subprocess.Popen[str], argv: tuple[str, ...]) -> tuple[str, str]:
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(child.pid, number)
            try:
                return child.communicate(timeout=_GRACE_S)
            except subprocess.TimeoutExpired:
                log.warning("%s does not end on signal %d", argv[0], number)
        child.returncode = -signal.SIGKILL  # nothing more can be waited for
        raise StuckError(
            f"{argv[0]} (pid {child.pid}) does not end on SIGKILL: it hangs in the kernel",
            argv=argv,
            hint="no knob is written while it hangs; look at dmesg, and reboot the board if it stays",
        )


Beside = subprocess.Popen[bytes]
"""A program that goes on beside us."""


def start_with_socket(argv: Sequence[str], descriptor: int) -> Beside:
    """Start a program of ours that talks by `descriptor`, in a session of its own.

    Its standard output and error are ours; the caller reaps it. Raises ToolAbsentError.
    """
    try:
        return subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=None, pass_fds=(descriptor,), start_new_session=True
        )
    except OSError as error:
        raise ToolAbsentError(f"{argv[0]}: cannot be started: {error.strerror}", argv=argv) from error
