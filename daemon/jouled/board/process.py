"""The only door to child processes: list argv, time limit, stdin closed, output kept, every child findable later.

Each child carries its owner's mark in its environment (`MARK`), so that after a kill -9 of the parent a restore
finds it, and its own children, whatever it is called.
"""

from __future__ import annotations

import contextlib
import grp
import logging
import os
import pwd
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jouled.errors import ConfigError, NotPermittedError, StuckError, ToolAbsentError

log = logging.getLogger(__name__)

MARK = "JOULED_CHILD"
BOARD_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_GRACE_S = 2.0
_KILL_S = 5.0
_INSTALL = {
    "nvpmodel": "install NVIDIA's package nvidia-l4t-nvpmodel, or set board.method to sysfs",
    "jetson_clocks": 'install NVIDIA\'s package nvidia-l4t-tools, or set grid.clocks to "capped"',
}
_KEPT = ("LD_LIBRARY_PATH",)
_DEVICE_GROUPS = ("video", "render")  # those who may open the GPU


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


def _stuck(argv: tuple[str, ...], pid: int) -> StuckError:
    return StuckError(
        f"{argv[0]} (pid {pid}) does not end on SIGKILL: it hangs in the kernel",
        argv=argv,
        hint="no knob is written while it hangs; look at dmesg, and reboot the board if it stays",
    )


class Spawned:
    """A child that lives beside us, with a pipe at each of its three descriptors; who starts it ends and releases it.

    `exited` is a descriptor that becomes readable when the child has ended (a pidfd).
    """

    def __init__(self, child: subprocess.Popen[bytes], argv: tuple[str, ...]) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self._child = child
        self.argv = argv
        self.pid = child.pid
        self.stdin, self.stdout, self.stderr = child.stdin.fileno(), child.stdout.fileno(), child.stderr.fileno()
        self.exited = os.pidfd_open(child.pid)
        self._reaping = threading.Lock()

    def signal(self, number: int) -> None:
        """Send a signal to it and to all of its process group; nothing once it is reaped."""
        with self._reaping:
            self._signal(number)

    def _signal(self, number: int) -> None:
        if self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, less than 0 for a signal; None if it still runs after `timeout_s`.

        What it has left of its process group is killed first: a reaped pid may be another's.
        """
        if self._child.returncode is None:
            poll = select.poll()
            poll.register(self.exited, select.POLLIN)
            if not poll.poll(timeout_s * 1000):
                return None
        with self._reaping:
            self._signal(signal.SIGKILL)
            return self._child.wait()

    def close_stdin(self) -> None:
        """Its standard input ends; idempotent."""
        assert self._child.stdin is not None
        self._child.stdin.close()

    def kill(self) -> None:
        """SIGKILL to its group, and wait. Raises StuckError."""
        self.signal(signal.SIGKILL)
        if self.wait(_KILL_S) is None:
            raise _stuck(self.argv, self.pid)

    def release(self) -> None:
        """Close our ends of its pipes; idempotent. Nobody may use the descriptors any more."""
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            assert stream is not None
            stream.close()
        if self.exited >= 0:
            os.close(self.exited)
            self.exited = -1


@dataclass(frozen=True, slots=True)
class _Identity:
    """Whom a child runs as: None means as we do."""

    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] | None = None
    home: str = "/root"


def _identity(user: str | None) -> _Identity:
    """Raises ConfigError (no such user), NotPermittedError (only root may become another)."""
    if user is None:
        return _Identity(home=os.environ.get("HOME", "/"))
    try:
        found = pwd.getpwnam(user)
    except KeyError as error:
        hint = "sudo jouled install makes jouled-runner; or name an existing user (workloads.NAME.user)"
        raise ConfigError(f"user {user!r}: there is no such user on this machine", hint=hint) from error
    if found.pw_uid == os.geteuid():
        return _Identity(home=found.pw_dir)
    if os.geteuid() != 0:
        raise NotPermittedError(f"running a program as {user} needs root", hint="leave workloads.NAME.user out")
    wanted = {group.gr_gid for group in grp.getgrall() if group.gr_name in _DEVICE_GROUPS}
    return _Identity(found.pw_uid, found.pw_gid, tuple(sorted(wanted | {found.pw_gid})), found.pw_dir)


def uid_of(user: str | None) -> int:
    """The id of `user`, None being ourselves. Raises as `Processes.spawn`."""
    identity = _identity(user)
    return os.geteuid() if identity.user is None else identity.user


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
                hint=_INSTALL.get(argv[0], ""),
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

    def spawn(
        self, argv: Sequence[str], *, user: str | None = None, environment: Mapping[str, str] | None = None
    ) -> Spawned:
        """Start a program that goes on beside us, in a session of its own, as `user`, who gets the GPU's groups too.

        It inherits no descriptor and no variable but LD_LIBRARY_PATH (in a container the driver's libraries are often
        found by it alone); `environment` is added. Raises ToolAbsentError, ConfigError, NotPermittedError.
        """
        program = argv[0] if os.path.isabs(argv[0]) else shutil.which(argv[0], path=self.path)
        if program is None:
            raise ToolAbsentError(f"{argv[0]}: no such program on PATH {self.path}", argv=argv)
        identity = _identity(user)
        own = {"HOME": identity.home, "LC_ALL": "C.UTF-8"}
        own |= {name: os.environ[name] for name in _KEPT if name in os.environ}
        log.debug("spawn %s", " ".join(argv))
        try:
            child = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd="/",
                env={**self._environment(), **own, **(environment or {})},
                start_new_session=True,
                user=identity.user,
                group=identity.group,
                extra_groups=identity.groups,
            )
        except OSError as error:
            raise ToolAbsentError(f"{program}: cannot be started: {error.strerror}", argv=argv) from error
        spawned = Spawned(child, tuple(argv))
        try:
            if self.on_start is not None:
                self.on_start(Child(child.pid, start_ticks(child.pid) or 0))
        except BaseException:  # whom nobody could write down must not go on
            spawned.kill()
            spawned.release()
            raise
        return spawned

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
        raise _stuck(argv, child.pid)


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


def start_guard(argv: Sequence[str], terminal: int) -> Beside:
    """Start a program that hears us by a pipe and has `terminal` as its standard output, in a session of its own.

    The caller reaps it. Raises ToolAbsentError.
    """
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=terminal,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            env={"PATH": BOARD_PATH},
            start_new_session=True,
        )
    except OSError as error:
        raise ToolAbsentError(f"{argv[0]}: cannot be started: {error.strerror}", argv=argv) from error


def reap(child: Beside, timeout_s: float) -> None:
    """Wait for one that should end by itself; SIGKILL where it does not."""
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
