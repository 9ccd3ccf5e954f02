"""The real jtop service of jetson-stats on a virtual board, in a mount namespace of its own; for benches and tests.

jtop believes in a Jetson: the board's /sys, device tree and /etc lie over the machine's, nvpmodel and jetson_clocks are
the board's, /proc/stat has as many CPUs, the machine is called aarch64. The machine's own files stay as they are.
"""

from __future__ import annotations

import grp
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from jouled.virtual.programs import install

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / "build" / "jtop"
START_S = 60.0
_NAMESPACE = r"""
set -e
mount -t overlay overlay -o "lowerdir=$WORK/etc:/etc" /etc
mount -t overlay overlay -o "lowerdir=$WORK/bin:/usr/bin" /usr/bin
mount --bind "$BOARD/sys" /sys
mount --bind "$BOARD/proc/device-tree" /sys/firmware/devicetree/base
mount --bind "$WORK/stat" /proc/stat
mount -t tmpfs tmpfs /run
export PATH="$BOARD/usr/sbin:$PATH"
export JTOP_SERVICE=True
exec "$PYTHON" "$WORK/service.py"
"""
_SERVICE = r"""
import pathlib, platform, sys
platform.machine = lambda: "aarch64"
sys.base_prefix = str(pathlib.Path(__file__).parent)  # where it keeps its settings
sys.argv[1:] = ["--force"]
from jtop.__main__ import main
sys.exit(main())
"""


def why_not() -> str | None:
    """Why it cannot be run here; None: it can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in ("unshare", "nsenter", "mount") if shutil.which(name) is None]
    return f"needs {missing[0]}" if missing else None


def make_venv() -> str:
    """jetson-stats in a venv of its own; its version."""
    if not (VENV / "bin" / "jtop").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), "jetson-stats"], check=True)
    return version()


def version() -> str:
    """Of the jetson-stats in `VENV`."""
    code = "from importlib.metadata import version; print(version('jetson-stats'))"
    return subprocess.check_output([VENV / "bin" / "python", "-c", code], text=True).strip()


@dataclass(frozen=True)
class Peer:
    """A service that runs: its pid, its folder and what it has said."""

    pid: int
    work: Path

    @property
    def log(self) -> str:
        return (self.work / "log").read_text()

    @property
    def socket(self) -> Path:
        return Path("/proc", str(self.pid), "root", "run", "jtop.sock")

    def is_alive(self) -> bool:
        """Does it run and serve?"""
        state = Path(f"/proc/{self.pid}/stat")
        return self.socket.exists() and state.read_text().rpartition(") ")[2][0] != "Z"

    def inside(self, *argv: str) -> list[str]:
        """`argv` as a command in the board's namespace."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--", *argv]

    def python(self) -> Path:
        """An interpreter with jtop's client, in there."""
        path = self.work / "python"
        command = " ".join(self.inside(str(VENV / "bin" / "python")))
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o755)
        return path

    def client(self, source: str, *argv: str) -> list[str]:
        """A piece of Python with jtop's client, in there."""
        return self.inside(str(VENV / "bin" / "python"), "-I", "-c", source, *argv)


def lay_out(work: Path, board: Path) -> None:
    """What the namespace mounts, in `work`."""
    install(str(board))
    (board / "sys/firmware/devicetree/base").mkdir(parents=True, exist_ok=True)
    shutil.copytree(board / "etc", work / "etc", symlinks=True)
    groups = "" if any(each.gr_name == "jtop" for each in grp.getgrall()) else "jtop:x:64999:\n"
    (work / "etc" / "group").write_text(Path("/etc/group").read_text() + groups)
    (work / "bin").mkdir()
    (work / "bin" / "jetson_clocks").write_text(f'#!/bin/sh\nexec "{board}/usr/bin/jetson_clocks" "$@"\n')
    (work / "bin" / "jetson_clocks").chmod(0o755)
    cores = len(list((board / "sys/devices/system/cpu").glob("cpu[0-9]*")))
    rows = ["cpu", *(f"cpu{core}" for core in range(cores))]
    (work / "stat").write_text("".join(f"{row} 100 0 100 10000 0 0 0 0 0 0\n" for row in rows))
    (work / "service.py").write_text(_SERVICE)


def wait_until(is_there: Callable[[], bool], child: subprocess.Popen[bytes], what: str, said: Path) -> None:
    """Raises RuntimeError with what it said where `child` ends, or a minute passes, before `is_there`."""
    end_s = time.monotonic() + START_S
    while not is_there():
        if time.monotonic() > end_s or child.poll() is not None:
            raise RuntimeError(f"{what} did not start:\n{said.read_text()}")
        time.sleep(0.1)


@contextmanager
def jtop_service(work: Path, board: Path) -> Iterator[Peer]:
    """The service on the virtual board whose tree lies at `board`; `work` is a folder to be made."""
    work.mkdir()
    lay_out(work, board)
    env = {**os.environ, "WORK": str(work), "BOARD": str(board), "PYTHON": str(VENV / "bin" / "python")}
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _NAMESPACE]
    said = work / "log"
    with (
        said.open("w") as log,
        subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True) as child,
    ):
        peer = Peer(child.pid, work)
        try:
            wait_until(peer.socket.exists, child, "jtop's service", said)
            yield peer
        finally:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(5)
