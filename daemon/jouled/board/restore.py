"""Finishes what a crash left: the board as it was found, by deletes and knob writes alone.

Every step may be killed and done again; the snapshot is deleted last, so that until then the next restore
begins anew. It needs no configuration, no discovery and no free disk space.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from jouled.board.applied import Applied, delete_applied, read_applied, write_applied
from jouled.board.host import Host
from jouled.board.knobs import CONF_PATH_PATH, differences, nvpmodel_files, put_back, repair_status
from jouled.board.lock import hold_board
from jouled.board.orphans import end_orphans, own_cgroup
from jouled.board.pending import clear_pending, pending_path
from jouled.board.snapshot import (
    Snapshot,
    boot_id,
    delete_snapshot,
    read_snapshot,
    snapshot_path,
)
from jouled.board.statefile import read_state, remove_durably, set_aside, write_state
from jouled.board.winner import delete_winner, read_winner, write_winner
from jouled.errors import AbsentError, BoardError, RestoreError, StateError

log = logging.getLogger(__name__)

_UNIT_TIMEOUT_S = 60.0
UNRESTORED = "unrestored.json"
_UNRESTORED_SCHEMA = "jouled.unrestored/1"


class Found(str, Enum):
    """Which snapshot a restore has met."""

    NOTHING = "nothing"
    THIS_BOOT = "this_boot"
    OTHER_BOOT = "other_boot"


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was done. `changed`: a sentence a knob that was not as found; `set_aside`: the old snapshot."""

    found: Found
    job: str | None = None
    killed: tuple[int, ...] = ()
    changed: tuple[str, ...] = ()
    started_units: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    set_aside: Path | None = None


def _fail(left: tuple[str, ...]) -> RestoreError:
    shown = "; ".join(left[:4]) + (f"; and {len(left) - 4} more" if len(left) > 4 else "")
    return RestoreError(
        f"{len(left)} knobs are not as found: {shown}",
        mismatches=left,
        hint="try again: jouled restore; a reboot returns the board to its operator's mode in any case",
    )


def start_units(host: Host, units: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Units started, and a warning for each that was not: the board itself is right by then."""
    started: list[str] = []
    warnings: list[str] = []
    for unit in units:
        try:
            done = host.processes.run(["systemctl", "start", "--", unit], timeout_s=_UNIT_TIMEOUT_S)
        except BoardError as error:
            warnings.append(f"{unit} was not started again: {error}")
            continue
        if done.returncode == 0 and not done.timed_out:
            started.append(unit)
        else:
            warnings.append(f"{unit} was not started again: {done.tail() or f'exit code {done.returncode}'}")
    return tuple(started), tuple(warnings)


def _is_as_found(read: Callable[[Path], Applied | None], folder: Path, as_found: Applied | None) -> bool:
    try:
        return read(folder) == as_found
    except StateError as error:
        log.warning("%s; made anew as it was found", error)
        return False


def _put_back_winner(host: Host, snapshot: Snapshot) -> tuple[str, ...]:
    """applied.json and winner.json as when the job began: what it has written there neither stands nor is in force."""
    folder = host.state_dir
    files = (
        (snapshot.applied, read_applied, write_applied, delete_applied),
        (snapshot.winner, read_winner, write_winner, delete_winner),
    )
    try:
        for as_found, read, write, delete in files:
            if _is_as_found(read, folder, as_found):
                continue
            if as_found is None:
                delete(folder)
            else:
                write(folder, as_found)
    except StateError as error:
        return (f"{folder} does not name the winner as before the job: {error}",)
    return ()


def _of_this_boot(host: Host, snapshot: Snapshot) -> RestoreReport:
    killed = end_orphans(snapshot.mark, snapshot.children, own_cgroup())
    changed = tuple(differences(host.sysfs, snapshot.knobs).values())
    put_back(host.sysfs, snapshot.knobs, why="restore")
    started, warnings = start_units(host, snapshot.stopped_units)  # also where a knob does not obey
    left = put_back(host.sysfs, snapshot.knobs, why="restore")  # a unit may have set knobs of its own
    if left:
        raise _fail(left)
    warnings += _put_back_winner(host, snapshot)
    warnings += _forget_pending(host)
    delete_snapshot(host.state_dir)
    return RestoreReport(Found.THIS_BOOT, snapshot.job, killed, changed, started, warnings)


def _of_other_boot(host: Host, snapshot: Snapshot) -> RestoreReport:
    """The reboot has put the knobs back; only nvpmodel's files can still be another mode's."""
    killed = end_orphans(snapshot.mark, (), own_cgroup())  # pids of another boot say nothing
    changed = tuple(differences(host.sysfs, nvpmodel_files(snapshot.knobs)).values())
    left = repair_status(host.sysfs, snapshot.knobs)
    if left:
        raise _fail(left)
    warnings = _put_back_winner(host, snapshot)
    aside = set_aside(snapshot_path(host.state_dir))
    return RestoreReport(Found.OTHER_BOOT, snapshot.job, killed, changed, (), warnings, aside)


def _give_up_on(host: Host, error: StateError) -> StateError:
    """The snapshot cannot be used: see to it that a reboot still finds the stock mode, and say so."""
    content = {"boot_id": boot_id(host.sysfs), "why": str(error)}
    write_state(host.state_dir / UNRESTORED, _UNRESTORED_SCHEMA, content)  # before the snapshot goes: it stays known
    aside = set_aside(snapshot_path(host.state_dir))
    conf_path = host.sysfs.real(CONF_PATH_PATH)
    try:
        if host.sysfs.read(CONF_PATH_PATH).startswith(f"{host.run_dir}/"):
            remove_durably(conf_path)  # it names a conf of ours, which is gone after the reboot
    except AbsentError:
        log.debug("%s is absent", CONF_PATH_PATH)
    return StateError(
        f"{error}; set aside as {aside.name}; no knob was put back",
        hint="reboot the board: that alone returns its operator's mode",
    )


def _check_unrestored(host: Host) -> None:
    """Raise BoardError while what a job has set may still be in force and nobody knows what it was before."""
    path = host.state_dir / UNRESTORED
    fields = read_state(path, _UNRESTORED_SCHEMA)
    if fields is None:
        return
    if fields.text("boot_id") == boot_id(host.sysfs):
        raise BoardError(
            f"a job's power mode may still be in force, and its snapshot was damaged: {fields.text('why')}",
            hint="reboot the board: that alone returns its operator's mode",
        )
    remove_durably(path)


def _forget_pending(host: Host) -> tuple[str, ...]:
    try:
        clear_pending(host)
    except StateError as error:
        aside = set_aside(pending_path(host.state_dir))
        return (f"{error}; set aside as {aside.name}",)
    return ()


def restore_held(host: Host) -> RestoreReport:
    """As `restore`, for who holds the board already."""
    try:
        snapshot = read_snapshot(host.state_dir)
    except StateError as error:
        raise _give_up_on(host, error) from error
    if snapshot is None:
        _check_unrestored(host)
        return RestoreReport(Found.NOTHING)
    if snapshot.boot_id == boot_id(host.sysfs):
        report = _of_this_boot(host, snapshot)
    else:
        report = _of_other_boot(host, snapshot)
    log.info("restored after job %s (%s): %d knobs differed", report.job, report.found.value, len(report.changed))
    for warning in report.warnings:
        log.warning("%s", warning)
    return report


def restore(host: Host) -> RestoreReport:
    """Put the board back as the last job found it, if it left a snapshot.

    Raises BusyError when a living process holds the board; StuckError (nothing written) when a child of the
    dead job does not die; RestoreError when a knob does not obey (the snapshot stays: try again); StateError
    when the snapshot cannot be used (it is set aside); NotPermittedError.
    """
    left = (snapshot_path(host.state_dir), host.state_dir / UNRESTORED)
    if not any(os.path.lexists(path) for path in left):
        return RestoreReport(Found.NOTHING)
    with hold_board(host, verb="restore"):
        return restore_held(host)
