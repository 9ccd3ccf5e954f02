"""The last decision's winner, and whether it is in force.

winner.json is written with a decision and stays while the winner stands, in force or not; applied.json is there while
something other than the reference is in force. Only a rollback, a `forget` of its mode or another decision ends a
winner's standing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jouled.board.applied import Applied, applied_from_fields, applied_path, applied_to_plain, read_applied
from jouled.board.host import Host
from jouled.board.knobs import Knobs, nvpmodel_files
from jouled.board.snapshot import boot_id
from jouled.board.statefile import read_state, remove_durably, set_aside, write_state
from jouled.errors import StateError

_SCHEMA = "jouled.winner/1"
_HOLDS_FOR = ("base_mode", "conf_sha256")


def winner_path(state_dir: Path) -> Path:
    """Where it lies."""
    return state_dir / "winner.json"


def write_winner(state_dir: Path, winner: Applied) -> None:
    """`winner` stands from now on. Raises StateError."""
    write_state(winner_path(state_dir), _SCHEMA, applied_to_plain(winner))


def read_winner(state_dir: Path) -> Applied | None:
    """The winner that stands; None: there is none. Raises StateError."""
    fields = read_state(winner_path(state_dir), _SCHEMA)
    return None if fields is None else applied_from_fields(fields)


def delete_winner(state_dir: Path) -> bool:
    """No winner stands from now on; False when none did. Raises StateError."""
    return remove_durably(winner_path(state_dir))


def is_stale(winner: Applied, marks: Mapping[str, str]) -> bool:
    """Was it found on another board, base mode, stock conf or release than `marks`, the fingerprint of this one?"""
    return dict(winner.fingerprint) != dict(marks)


def what_differs(winner: Applied, marks: Mapping[str, str]) -> str:
    """The marks in which a stale winner's board differs from this one, for a sentence."""
    names = sorted({*winner.fingerprint, *marks})
    return ", ".join(
        f"{name} {winner.fingerprint.get(name, 'unknown')[:24]} -> {marks.get(name, 'unknown')[:24]}"
        for name in names
        if winner.fingerprint.get(name) != marks.get(name)
    )


def set_damaged_aside(state_dir: Path) -> tuple[str, ...]:
    """Put an applied.json or winner.json that cannot be read out of the way: a sentence for each. Raises StateError."""
    said = []
    for path, read in ((applied_path(state_dir), read_applied), (winner_path(state_dir), read_winner)):
        try:
            read(state_dir)
        except StateError as error:
            said.append(f"{error}; set aside as {set_aside(path).name}")
    return tuple(said)


# --- in force -----------------------------------------------------------------------------------------------


def winner_in_force(host: Host, marks: Mapping[str, str]) -> Applied | None:
    """The winner that is in force, if one is. Raises StateError.

    One of an earlier boot went with that boot, and one found under another base mode or stock conf went when the
    operator changed that: what nvpmodel has set since is the reference.
    """
    applied = read_applied(host.state_dir)
    if applied is None or applied.boot_id != boot_id(host.sysfs):
        return None
    return applied if all(applied.fingerprint.get(key) == marks.get(key) for key in _HOLDS_FOR) else None


def home_of(found: Knobs, applied: Applied | None) -> Knobs:
    """The reference's knobs. nvpmodel's own files are those that were found: they are never an earlier job's."""
    if applied is None:
        return found
    return Knobs({**applied.home.values, **nvpmodel_files(found).values})
