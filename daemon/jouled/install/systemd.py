"""What is asked of systemd, in one place."""

from __future__ import annotations

from pathlib import Path

from jouled.board.process import Processes
from jouled.errors import JouledError, NotSupportedError

_RUNNING = Path("/run/systemd/system")
_TIMEOUT_S = 180.0


def check_systemd(processes: Processes) -> None:
    """Raise NotSupportedError where systemd does not run."""
    if processes.find("systemctl") is None or not _RUNNING.is_dir():
        raise NotSupportedError(
            "systemd does not run on this machine, and the service is made of its units",
            hint="without systemd: jouled run, in the foreground",
        )


def call(processes: Processes, *argv: str, hint: str = "") -> str:
    """Run one of systemd's programs; what it printed. Raises JouledError with what it said."""
    done = processes.run(argv, timeout_s=_TIMEOUT_S)
    if done.timed_out or done.returncode != 0:
        said = "it takes too long" if done.timed_out else done.tail() or f"exit code {done.returncode}"
        raise JouledError(f"{' '.join(argv)}: {said}", hint=hint)
    return done.stdout
