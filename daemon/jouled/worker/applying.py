"""`apply winner|reference|MODE` and `rollback`: one change of what is in force, or the board as it was found.

Before the first write the snapshot lies on the disk, after the last one it goes: killed anywhere in between, a restore
puts knobs, applied.json and winner.json back.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from jouled.board.applied import Applied, delete_applied, read_applied, write_applied
from jouled.board.apply import Actuator, ClocksPolicy, Method, probe_method
from jouled.board.board import discover, fingerprint
from jouled.board.knobs import Knobs, read_knobs
from jouled.board.modename import mode_name, parse_mode_name
from jouled.board.pending import Standing, Why, note_apply, read_quarantine
from jouled.board.restore import restore_held
from jouled.board.snapshot import (
    ChildLog,
    Origin,
    Snapshot,
    boot_id,
    delete_snapshot,
    snapshot_path,
    write_origin_once,
    write_snapshot,
)
from jouled.board.support import require_tunable
from jouled.board.winner import (
    delete_winner,
    home_of,
    is_stale,
    read_winner,
    what_differs,
    winner_in_force,
)
from jouled.errors import ApplyError, JouledError, NotPermittedError, StateError, UsageError
from jouled.job.changes import APPLIED, RESTORED, ROLLED_BACK, Change, keep_change
from jouled.job.site import Site
from jouled.worker.standing import Enter, held_to_write, no_phase, should_be
from jouletune.space import Candidate, PowerMode

log = logging.getLogger(__name__)

REFERENCE, WINNER, OTHER = "reference", "winner", "other"
BY_HAND = "by hand"  # decision_id of a mode that no decision chose


def apply_target(
    site: Site, target: str, why: str = "user", who: str = "unknown", *, enter: Enter = no_phase
) -> dict[str, Any]:
    """Put `target` ("winner", "reference" or a mode's name) in force, verified; what was done.

    On any failure the board is as it was found. Raises UsageError (no winner, no such mode), NotPermittedError (stale,
    quarantined, held, switched off), ConfigError, BusyError, ApplyError, StuckError, RestoreError, StateError.
    `enter` hears of each phase.
    """
    with held_to_write(site, "apply", who=who, enter=enter) as mended:
        return _Changing(site, enter, who=who, why=why).run(target, mended.warnings)


def rollback(site: Site, who: str = "unknown", *, enter: Enter = no_phase) -> dict[str, Any]:
    """Apply the reference and reject the winner, in force or not. Raises as `apply_target`."""
    with held_to_write(site, "rollback", who=who, enter=enter) as mended:
        return _Changing(site, enter, who=who, why="rollback").run(REFERENCE, mended.warnings, rejects=True)


@dataclass(frozen=True, slots=True)
class _Goal:
    """What is to be in force; `applied` None: the reference."""

    mode: PowerMode
    policy: ClocksPolicy
    source: str
    applied: Applied | None


class _Changing:
    """One change on a board that is held and mended."""

    def __init__(self, site: Site, enter: Enter, *, who: str, why: str) -> None:
        self._site = site
        self._host = site.host
        self._enter = enter
        self._who = who
        self._why = why
        self._board = discover(site.host, site.config.board.base_mode)
        require_tunable(self._board.identity, self._board.file)
        self._marks = fingerprint(self._board, site.config.board.external_w)
        self._found = read_knobs(site.host.sysfs, self._board.domains)
        self._home = self._home_knobs()
        self._before = Actuator(site.host, self._board, self._home, Method.SYSFS).current()

    def _home_knobs(self) -> Knobs:
        """What rest means: of the winner in force; where a mismatch is mended, what verify compares with; as found."""
        in_force = winner_in_force(self._host, self._marks)
        if in_force is None and self._why == "mismatch":
            return should_be(self._host, self._board, None).home
        return home_of(self._found, in_force)

    # --- what is asked for ------------------------------------------------------------------------------

    def _goal(self, target: str) -> _Goal:
        if target == REFERENCE:
            return self._reference()
        goal = self._winner() if target == WINNER else self._named(target)
        self._check_target(goal, target)
        self._check_quarantine(goal.mode)
        return goal

    def _reference(self) -> _Goal:
        return _Goal(self._board.reference, ClocksPolicy.CAPPED, REFERENCE, None)

    def _winner(self) -> _Goal:
        winner = read_winner(self._host.state_dir) or read_applied(self._host.state_dir)
        if winner is None or winner.decision_id == BY_HAND:
            raise UsageError("there is no winner to apply", hint="jouled tune finds one")
        mode = winner.candidate.mode
        if is_stale(winner, self._marks):
            raise NotPermittedError(
                f"the winner {mode_name(mode)} was found on another ground ({what_differs(winner, self._marks)}): "
                "it is stale and not applied",
                hint=f"jouled tune again; or apply it all the same: jouled apply {mode_name(mode)}",
            )
        return _Goal(mode, ClocksPolicy(winner.policy), WINNER, winner)

    def _named(self, target: str) -> _Goal:
        mode = parse_mode_name(target)
        if mode == self._board.reference:
            return self._reference()
        by_hand = Applied(
            candidate=Candidate(mode),
            policy=ClocksPolicy.CAPPED.value,
            fingerprint=self._marks,
            workload="",
            latency_bound_s=None,
            latency_percentile=self._site.config.target.latency_percentile,
            decision_id=BY_HAND,
            wall_s=0.0,
            boot_id="",
            home=Knobs({}),
        )
        return _Goal(mode, ClocksPolicy.CAPPED, OTHER, by_hand)

    def _check_target(self, goal: _Goal, target: str) -> None:
        """Raise UsageError for a mode that this board, in its base mode, does not have."""
        try:
            Actuator(self._host, self._board, self._home, Method.SYSFS).target(goal.mode, goal.policy)
        except ApplyError as error:
            raise UsageError(f"{target}: {error}", hint="jouled modes prints the modes that there are") from error

    def _check_quarantine(self, mode: PowerMode) -> None:
        if read_quarantine(self._host.state_dir).standing(mode, self._marks) is Standing.QUARANTINED:
            raise NotPermittedError(
                f"{mode_name(mode)} is quarantined: the board went down in it",
                hint=f"to try it again all the same: jouled forget {mode_name(mode)}",
            )

    # --- the change -------------------------------------------------------------------------------------

    def run(self, target: str, warnings: tuple[str, ...], *, rejects: bool = False) -> dict[str, Any]:
        """Do it. Raises as `apply_target`."""
        goal = self._goal(target)
        host, rejected = self._host, None
        with self._undoable():
            method, reason = self._apply(goal)
            if goal.applied is None:
                delete_applied(host.state_dir)
            else:
                write_applied(host.state_dir, self._renewed(goal.applied))
            if rejects:
                rejected = read_winner(host.state_dir)
                delete_winner(host.state_dir)
            event = APPLIED if rejected is None else ROLLED_BACK
            more = self._more(goal, method, rejected)
            keep_change(host, Change(event, self._who, self._why, self._before, goal.mode, goal.source), **more)
            delete_snapshot(host.state_dir)
        if reason:
            warnings = (*warnings, f"jouled wrote the caps itself, since nvpmodel cannot be used: {reason}")
        return {
            "board": self._board.file.name,
            "base_mode": self._board.base_mode.name,
            "target": target,
            "mode": mode_name(goal.mode),
            "caps": asdict(goal.mode),
            "from": mode_name(self._before),
            "why": self._why,
            "who": self._who,
            "warnings": list(warnings),
            **more,
            "to_source": goal.source,
        }

    def _more(self, goal: _Goal, method: Method, rejected: Applied | None) -> Mapping[str, Any]:
        return {
            "policy": goal.policy.value,
            "method": method.value,
            "decision_id": None if goal.applied is None else goal.applied.decision_id,
            "rejected": None if rejected is None else mode_name(rejected.candidate.mode),
            "rejected_decision_id": None if rejected is None else rejected.decision_id,
        }

    def _apply(self, goal: _Goal) -> tuple[Method, str]:
        """Applied and verified: by which method, and why not by nvpmodel."""
        host, board = self._host, self._board
        why = Why.REFERENCE if goal.applied is None else Why.WINNER
        self._enter("apply")
        note_apply(host, goal.mode, why=why, fingerprint=self._marks)
        method, reason = probe_method(host, board, self._home, self._site.config.board.method)
        self._enter("apply")
        Actuator(host, board, self._home, method).apply(goal.mode, goal.policy)
        return method, reason

    def _renewed(self, applied: Applied) -> Applied:
        """In force since now, in this boot."""
        host = self._host
        return replace(applied, wall_s=host.clock.wall_s(), boot_id=boot_id(host.sysfs), home=self._home)

    @contextmanager
    def _undoable(self) -> Iterator[None]:
        """From here on knobs may be written; where the snapshot is still there on the way out, they are put back."""
        host, board, owner = self._host, self._board, uuid.uuid4().hex[:12]
        now_s, folder = host.clock.wall_s(), host.state_dir
        boot = boot_id(host.sysfs)
        write_origin_once(folder, Origin(board.conf_sha256, board.base_mode.name, self._home, now_s, boot))
        snapshot = Snapshot(
            boot_id=boot,
            job=owner,
            mark=owner,
            base_mode=board.base_mode.name,
            knobs=self._found,
            wall_s=now_s,
            applied=read_applied(folder),
            winner=read_winner(folder),
        )
        write_snapshot(folder, snapshot)
        before = host.processes.mark, host.processes.on_start
        host.processes.mark, host.processes.on_start = owner, ChildLog(folder)
        try:
            yield
        except JouledError as error:
            log.error("%s", error)
            raise
        finally:
            host.processes.mark, host.processes.on_start = before
            if snapshot_path(folder).exists():
                self._put_back(owner)

    def _put_back(self, owner: str) -> None:
        self._enter("restore")
        report = restore_held(self._host)
        try:
            change = Change(RESTORED, self._who, "apply_failed", self._before, None)
            keep_change(self._host, change, job=owner, changed=list(report.changed[:20]))
        except StateError as error:  # a full disk must not hide what went wrong first
            log.error("%s", error)
