"""The board in a job's hands: what a crash left is mended, a way back is kept, and the decision is put in force.

Two kinds: of a board whose knobs are turned (here), and of one whose knobs are left alone (`fixed.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from jouled.board.applied import read_applied
from jouled.board.apply import Actuator, probe_method
from jouled.board.board import Board
from jouled.board.host import Host
from jouled.board.pending import Why, note_apply
from jouled.board.restore import RestoreReport, restore_held
from jouled.board.snapshot import (
    ChildLog,
    Origin,
    Snapshot,
    boot_id,
    read_snapshot,
    write_origin_once,
    write_snapshot,
)
from jouled.board.winner import read_winner
from jouled.errors import RestoreError
from jouled.job.enforcement import Enforcement
from jouled.job.events import Events
from jouled.job.ground import Ground, survey
from jouled.job.lastround import Finding
from jouled.job.mending import mend
from jouled.job.modes import BoardModes, Modes
from jouled.job.request import Request
from jouled.job.trials import Trials
from jouled.job.units import running_units, stop_units
from jouled.workload.runner import Runner

log = logging.getLogger(__name__)

RESTORE_MOST_S = 40.0  # how long a knob may be gone at the end of a job
_RESTORE_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Charge:
    """One job, as its custody needs to know it."""

    host: Host
    request: Request
    runner: Runner
    events: Events
    warn: Callable[[str], None]
    job: str
    who: str


class Custody(Protocol):
    """What happens to a board from the lock to the end of a job, besides the trials."""

    def mend(self) -> None:
        """Finish what a crash left, the ledger included. Raises RestoreError, StateError, StuckError."""

    def survey(self) -> Ground:
        """What the job stands on, nothing written. Raises NotSupportedError, ConfigError, BoardError, StateError."""

    def left_by(self) -> str | None:
        """The job that was interrupted and will be mended first."""

    def kept(self, ground: Ground) -> AbstractContextManager[None]:
        """In here knobs may be turned; on the way out the board is as decided, or as found."""

    def modes(self, ground: Ground) -> Modes:
        """How modes come into force in this job."""

    def enforce(
        self, ground: Ground, finding: Finding, trials: Trials, modes: Modes, workload_marks: Mapping[str, str]
    ) -> bool:
        """Put the decision in force; was it? Raises Stopped where what was chosen breaks a limit."""


class BoardCustody:
    """Of a board whose knobs are turned: a snapshot before the first write, until the decision is in force."""

    def __init__(self, charge: Charge) -> None:
        self._charge = charge
        self._host = charge.host
        self._units: tuple[str, ...] = ()
        self._is_applied = False

    def mend(self) -> None:
        """Finish what a crash left, judge what the last boot left."""
        for sentence in mend(self._host, who=self._charge.who, why="tune").warnings:
            self._charge.warn(sentence)

    def survey(self) -> Ground:
        """As `Custody.survey`."""
        return survey(self._host, self._charge.request)

    def left_by(self) -> str | None:
        """As `Custody.left_by`."""
        left = read_snapshot(self._host.state_dir)
        return None if left is None else left.job

    @contextmanager
    def kept(self, ground: Ground) -> Iterator[None]:
        """From here on knobs may be written; on the way out the board is a verified winner's or as found."""
        host = self._host
        units = self._write_snapshot(ground, _board(ground))
        host.processes.mark = self._charge.job
        host.processes.on_start = ChildLog(host.state_dir)
        try:
            stop_units(host.processes, units)
            self._units = units
            yield
        finally:
            host.processes.on_start = None
            self._charge.runner.close()
            if not self._is_applied:
                self._put_back()

    def _write_snapshot(self, ground: Ground, board: Board) -> tuple[str, ...]:
        """On the disk when it returns; the units that are to be stopped."""
        host, now_s = self._host, self._host.clock.wall_s()
        boot = boot_id(host.sysfs)
        origin = Origin(board.conf_sha256, board.base_mode.name, ground.found, now_s, boot)
        write_origin_once(host.state_dir, origin)
        units = running_units(host.processes, self._charge.request.config.job.stop_units)
        snapshot = Snapshot(
            boot_id=boot,
            job=self._charge.job,
            mark=self._charge.job,
            base_mode=board.base_mode.name,
            knobs=ground.found,
            wall_s=now_s,
            applied=read_applied(host.state_dir),
            winner=read_winner(host.state_dir),
            stopped_units=units,
        )
        write_snapshot(host.state_dir, snapshot)
        return units

    def _put_back(self) -> None:
        report = self._restored()
        self._charge.events.emit("restored", changed=len(report.changed), started_units=report.started_units)
        for warning in report.warnings:
            self._charge.warn(warning)

    def _restored(self) -> RestoreReport:
        """A device may be gone for a moment, as a policy is while its cores go off: then it is tried again."""
        clock = self._host.clock
        until_s = clock.monotonic_s() + RESTORE_MOST_S
        while True:
            try:
                return restore_held(self._host)
            except RestoreError as error:
                if clock.monotonic_s() >= until_s or not self._is_some_knob_gone():
                    raise
                log.warning("%s; tried again", error)
                clock.sleep(_RESTORE_AGAIN_S)

    def _is_some_knob_gone(self) -> bool:
        snapshot = read_snapshot(self._host.state_dir)
        return snapshot is not None and not all(map(self._host.sysfs.exists, snapshot.knobs.values))

    def modes(self, ground: Ground) -> BoardModes:
        """The reference is applied once, to see whether nvpmodel can be used."""
        host, board = self._host, _board(ground)
        note_apply(host, board.reference, why=Why.REFERENCE, fingerprint=ground.fingerprint)
        method, why = probe_method(host, board, ground.home, self._charge.request.config.board.method)
        if why:
            self._charge.warn(f"jouled writes the caps itself, since nvpmodel cannot be used: {why}")
        return BoardModes(Actuator(host, board, ground.home, method), ground.fingerprint)

    def enforce(
        self, ground: Ground, finding: Finding, trials: Trials, modes: Modes, workload_marks: Mapping[str, str]
    ) -> bool:
        """The snapshot goes when the decision is verified and written down."""
        charge, decision = self._charge, finding.decision
        enforcement = Enforcement(
            charge.host,
            charge.request,
            ground,
            modes,
            trials,
            charge.runner,
            charge.events,
            self._units,
            charge.job,
            charge.who,
            workload_marks,
        )
        if decision.winner is not None:
            arm = finding.arms[decision.winner]
            self._is_applied, warnings = enforcement.apply_winner(arm, finding.bound_s)
        elif decision.use_reference:
            self._is_applied, warnings = enforcement.apply_reference()
        else:
            return False
        for warning in warnings:
            charge.warn(warning)
        return self._is_applied


def _board(ground: Ground) -> Board:
    assert ground.board is not None, "only a board with knobs comes here"
    return ground.board
