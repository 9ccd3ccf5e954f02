"""How this very jouled is started by root and by user jouled, and whether they may trust it."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import jouled
import jouletune
from jouled.board.process import Processes
from jouled.config import check_owner
from jouled.errors import ConfigError, UsageError

_HINT = "put jouled where only root writes, e.g.: sudo python3 -m venv /opt/jouled, then pip install it there"
_TIMEOUT_S = 60.0


def own_command() -> tuple[str, ...]:
    """The argv that starts this jouled, isolated from the environment and the working folder."""
    return (sys.executable, "-I", "-m", "jouled.cli")


def check_command(processes: Processes) -> None:
    """Raise UsageError unless root may trust the own command, user jouled may run it, and it starts."""
    packages = [Path(package.__file__) for package in (jouled, jouletune) if package.__file__]
    script = Path(sys.executable).with_name("jouled")
    for path in (Path(sys.prefix), Path(sys.executable), *packages, *([script] if script.exists() else [])):
        try:
            check_owner(path)
        except ConfigError as error:
            raise UsageError(f"root would run code that others can change: {error}", hint=_HINT) from error
        _check_open(path)
        _check_open(path.resolve())
    done = processes.run([*own_command(), "--version"], timeout_s=_TIMEOUT_S)
    if done.returncode != 0:
        raise UsageError(f"{' '.join(own_command())} does not start: {done.tail()}", hint=_HINT)


def _check_open(path: Path) -> None:
    """Others must be able to enter each folder above `path`, for user jouled is one of them."""
    for place in path.absolute().parents:
        if not place.stat().st_mode & stat.S_IXOTH:
            raise UsageError(f"user jouled cannot run {path}: it may not enter {place}", hint=_HINT)
