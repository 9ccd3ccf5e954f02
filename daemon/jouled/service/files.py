"""The state files as they lie there, each read only when it has changed. A damaged one is said, and counts as none."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jouled.board.applied import Applied, applied_path, read_applied
from jouled.board.host import Host
from jouled.board.lock import read_holder
from jouled.board.pending import Pending, Quarantine, pending_path, quarantine_path, read_pending, read_quarantine
from jouled.board.snapshot import snapshot_path
from jouled.board.switches import check_switches
from jouled.board.winner import read_winner, winner_path
from jouled.errors import JouledError, NotPermittedError, SysfsError
from jouled.service.keeper import Pause
from jouled.service.requests import pause_path, read_pause

log = logging.getLogger(__name__)

_Signature = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Known:
    """What the files say. `applied_wall_s`: since when applied.json lies there so; `damaged` names those that say
    nothing any more, `troubles` has a sentence for each.
    """

    applied: Applied | None = None
    applied_wall_s: float | None = None
    winner: Applied | None = None
    pending: Pending | None = None
    quarantine: Quarantine = field(default_factory=Quarantine)
    pause: Pause | None = None
    has_snapshot: bool = False
    damaged: frozenset[str] = frozenset()
    troubles: tuple[str, ...] = ()


def _sign(path: Path) -> _Signature:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class Files:
    """Reads them below one state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._kept: dict[str, tuple[_Signature, Any, str]] = {}

    def read(self) -> Known:
        """All of them. Raises nothing."""
        state_dir, troubles = self._state_dir, {}
        values: dict[str, Any] = {}
        readers: dict[str, tuple[Path, Callable[[Path], Any]]] = {
            "applied": (applied_path(state_dir), read_applied),
            "winner": (winner_path(state_dir), read_winner),
            "pending": (pending_path(state_dir), read_pending),
            "quarantine": (quarantine_path(state_dir), read_quarantine),
            "pause": (pause_path(state_dir), read_pause),
        }
        for name, (path, read) in readers.items():
            values[name], trouble = self._value(name, path, read)
            if trouble:
                troubles[name] = trouble
        values["quarantine"] = values["quarantine"] or Quarantine()
        signature = self._kept["applied"][0]
        values["applied_wall_s"] = None if signature is None else signature[1] / 1e9
        has_snapshot = os.path.lexists(snapshot_path(state_dir))
        return Known(
            **values, has_snapshot=has_snapshot, damaged=frozenset(troubles), troubles=tuple(troubles.values())
        )

    def _value(self, name: str, path: Path, read: Callable[[Path], Any]) -> tuple[Any, str]:
        signature = _sign(path)
        kept = self._kept.get(name)
        if kept is not None and kept[0] == signature:
            return kept[1], kept[2]
        value, trouble = None, ""
        if signature is not None:
            try:
                value = read(self._state_dir)
            except JouledError as error:
                trouble = str(error)
                log.warning("%s", error)
        self._kept[name] = (signature, value, trouble)
        return value, trouble


def switched_off(host: Host) -> str:
    """Why no knob may be written: the operator's switches, or that they cannot be seen; "" while none is set."""
    try:
        check_switches(host.sysfs)
    except (NotPermittedError, SysfsError) as error:
        return f"{error}; {error.hint}" if error.hint else str(error)
    return ""


def living_holder(host: Host) -> str:
    """Who holds the board, if a process that lives says so; it may have let go since."""
    found = read_holder(host)
    if found is None or found[0] == os.getpid():
        return ""
    pid, verb = found
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return f"pid {pid} (jouled {verb})"
