"""What was found: origin.json (before the first write ever) and snapshot.json (before a job's first write).

While snapshot.json lies there, the board may be other than its operator left it; `restore` ends that.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path

from jouled.board.applied import Applied, applied_from_fields, applied_to_plain, knobs_from_fields
from jouled.board.knobs import Knobs
from jouled.board.process import Child
from jouled.board.statefile import Fields, read_state, remove_durably, write_state
from jouled.board.sysfs import Sysfs
from jouled.errors import StateError

log = logging.getLogger(__name__)

_SNAPSHOT_SCHEMA = "jouled.snapshot/1"
_UNIT = re.compile(r"[A-Za-z0-9@_.:\\-]{1,200}\.[a-z]+")
_ORIGIN_SCHEMA = "jouled.origin/1"


def boot_id(sysfs: Sysfs) -> str:
    """This boot's random id. Raises SysfsError."""
    return sysfs.read("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Origin:
    """How the board was before this program wrote to it for the first time. `wall_s`: Unix time."""

    conf_sha256: str
    base_mode: str
    knobs: Knobs
    wall_s: float
    boot_id: str = ""

    def holds(self, *, conf_sha256: str, base_mode: str, boot_id: str) -> bool:
        """Is rest still as it was found? What an operator wrote by hand went with its boot."""
        return (self.conf_sha256, self.base_mode, self.boot_id) == (conf_sha256, base_mode, boot_id)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a restore needs, and nothing else.

    `mark` is what the job's children carry in their environment (Processes.mark); it must be the job's alone,
    since restore kills whatever carries it. `applied` and `winner` are applied.json and winner.json as the job found
    them, of whatever boot.
    """

    boot_id: str
    job: str
    mark: str
    base_mode: str
    knobs: Knobs
    wall_s: float
    applied: Applied | None = None
    winner: Applied | None = None
    stopped_units: tuple[str, ...] = ()
    children: tuple[Child, ...] = ()


def snapshot_path(state_dir: Path) -> Path:
    """Where the snapshot lies."""
    return state_dir / "snapshot.json"


def origin_path(state_dir: Path) -> Path:
    """Where the origin lies."""
    return state_dir / "origin.json"


def _units(fields: Fields) -> tuple[str, ...]:
    units = fields.texts("stopped_units")
    for unit in units:
        if _UNIT.fullmatch(unit) is None or unit.startswith("-"):
            raise StateError(
                f"{fields.path}: stopped_units: {unit[:60]!r} is no name of a unit; nothing was started",
                hint="the file was edited: set it aside and reboot the board",
            )
    return units


def write_origin_once(state_dir: Path, origin: Origin) -> bool:
    """Keep `origin` unless one is kept already (then False). Raises StateError."""
    path = origin_path(state_dir)
    if read_state(path, _ORIGIN_SCHEMA) is not None:
        return False
    content = {
        "conf_sha256": origin.conf_sha256,
        "base_mode": origin.base_mode,
        "knobs": dict(origin.knobs.values),
        "wall_s": origin.wall_s,
        "boot_id": origin.boot_id,
    }
    write_state(path, _ORIGIN_SCHEMA, content)
    return True


def read_origin(state_dir: Path) -> Origin | None:
    """What was found before the first write ever; None: nothing was ever written. Raises StateError."""
    fields = read_state(origin_path(state_dir), _ORIGIN_SCHEMA)
    if fields is None:
        return None
    return Origin(
        conf_sha256=fields.text("conf_sha256"),
        base_mode=fields.text("base_mode"),
        knobs=knobs_from_fields(fields, "knobs"),
        wall_s=fields.number("wall_s"),
        boot_id=fields.text("boot_id") if "boot_id" in fields.values else "",
    )


def write_snapshot(state_dir: Path, snapshot: Snapshot) -> None:
    """Make or replace snapshot.json; when it returns, it is on the disk. Raises StateError."""
    snapshot.knobs.check()
    content = {
        "boot_id": snapshot.boot_id,
        "job": snapshot.job,
        "mark": snapshot.mark,
        "base_mode": snapshot.base_mode,
        "knobs": dict(snapshot.knobs.values),
        "wall_s": snapshot.wall_s,
        "applied": None if snapshot.applied is None else applied_to_plain(snapshot.applied),
        "winner": None if snapshot.winner is None else applied_to_plain(snapshot.winner),
        "stopped_units": list(snapshot.stopped_units),
        "children": [{"pid": child.pid, "start_ticks": child.start_ticks} for child in snapshot.children],
    }
    write_state(snapshot_path(state_dir), _SNAPSHOT_SCHEMA, content)


def read_snapshot(state_dir: Path) -> Snapshot | None:
    """The snapshot; None: no job left one. Raises StateError, also for a path in it that is no known knob."""
    fields = read_state(snapshot_path(state_dir), _SNAPSHOT_SCHEMA)
    if fields is None:
        return None
    applied, winner = fields.fields_or_none("applied"), fields.fields_or_none("winner")
    children = fields.list_of_fields("children")
    return Snapshot(
        boot_id=fields.text("boot_id"),
        job=fields.text("job"),
        mark=fields.text("mark"),
        base_mode=fields.text("base_mode"),
        knobs=knobs_from_fields(fields, "knobs"),
        wall_s=fields.number("wall_s"),
        applied=None if applied is None else applied_from_fields(applied),
        winner=None if winner is None else applied_from_fields(winner),
        stopped_units=_units(fields),
        children=tuple(Child(child.integer("pid"), child.integer("start_ticks")) for child in children),
    )


def delete_snapshot(state_dir: Path) -> bool:
    """The job is over and the board is as it should be; False when there was none. Raises StateError."""
    return remove_durably(snapshot_path(state_dir))


class ChildLog:
    """Keeps the job's children in its snapshot (`Processes.on_start`), the last `keep` of them."""

    def __init__(self, state_dir: Path, *, keep: int = 8) -> None:
        self._state_dir = state_dir
        self._keep = keep

    def __call__(self, child: Child) -> None:
        try:
            snapshot = read_snapshot(self._state_dir)
            if snapshot is not None:
                children = (*snapshot.children, child)[-self._keep :]
                write_snapshot(self._state_dir, replace(snapshot, children=children))
        except StateError as error:
            log.warning("child %d is not noted (its mark still finds it): %s", child.pid, error)
