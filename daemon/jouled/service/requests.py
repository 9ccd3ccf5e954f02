"""The daemon's own files, in `daemon/` below the state folder: what was asked for, and the pause.

A request is on the disk before it is answered. Root obeys nothing of what lies here.
"""

from __future__ import annotations

from pathlib import Path

from jouled.board.statefile import read_state, remove_durably, write_state
from jouled.errors import StateError
from jouled.ledger import Event, Ledger
from jouled.service.keeper import Pause

ROTATE_ABOVE_BYTES = 1 << 20
_PAUSE_SCHEMA = "jouled.pause/1"


def daemon_dir(state_dir: Path) -> Path:
    """Where the daemon may write."""
    return state_dir / "daemon"


class Requests(Ledger):
    """requests.jsonl: checksummed lines, each on the disk when `append` returns."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self.path = daemon_dir(state_dir) / "requests.jsonl"
        self.damaged_path = daemon_dir(state_dir) / "requests.damaged"

    def append(self, event: Event) -> None:
        try:
            super().append(event)
        except FileNotFoundError as error:
            raise StateError(
                f"{self.path.parent}: there is no such folder",
                hint="jouled install makes it; the daemon's user owns it",
            ) from error


def pause_path(state_dir: Path) -> Path:
    """Where pause.json lies."""
    return daemon_dir(state_dir) / "pause.json"


def write_pause(state_dir: Path, pause: Pause) -> None:
    """From now on the reference. Raises StateError."""
    fields = {"until_wall_s": pause.until_wall_s, "who": pause.who, "mode": pause.mode}
    write_state(pause_path(state_dir), _PAUSE_SCHEMA, fields)


def read_pause(state_dir: Path) -> Pause | None:
    """The pause, ended or not. Raises StateError."""
    fields = read_state(pause_path(state_dir), _PAUSE_SCHEMA)
    if fields is None:
        return None
    mode = fields.text("mode") if "mode" in fields.values else ""  # of a daemon before this one
    return Pause(fields.number_or_none("until_wall_s"), fields.text("who"), mode)


def delete_pause(state_dir: Path) -> bool:
    """No pause any more; False when there was none. Raises StateError."""
    return remove_durably(pause_path(state_dir))
