"""The unit files as they are laid on a machine: shipped with /usr/bin/jouled, installed with the real command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

SHIPPED = Path(__file__).parent / "units"
COMMAND = "/usr/bin/jouled"

SERVICE, SOCKET = "jouled.service", "jouled.socket"
WORKER, WORKER_SOCKET = "jouled-worker.service", "jouled-worker.socket"
RETUNE, RETUNE_TIMER = "jouled-retune.service", "jouled-retune.timer"
UNITS = (SERVICE, SOCKET, WORKER, WORKER_SOCKET, RETUNE, RETUNE_TIMER)
ENABLED = (WORKER_SOCKET, SOCKET, SERVICE)


def quoted(word: str) -> str:
    """One word of a command line of a unit, taken literally by systemd."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if escaped == word and not set(word) & set(" '\t;") else f'"{escaped}"'


def render(text: str, command: Sequence[str]) -> str:
    """The text of a unit with the command that starts jouled on this machine."""
    line = " ".join(quoted(word) for word in command)
    return text.replace(f"{COMMAND} ", f"{line} ")


def read_shipped(name: str) -> str:
    """A file of units/."""
    return (SHIPPED / name).read_text(encoding="utf-8")
