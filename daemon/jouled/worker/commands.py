"""The worker's commands on one site, as plain functions: the command line calls them too, without any socket."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from jouled.board.applied import Applied, read_applied
from jouled.board.apply import Actuator, Method
from jouled.board.board import Board, discover, fingerprint
from jouled.board.lock import hold_board, read_holder
from jouled.board.modename import mode_name, parse_mode_name
from jouled.board.pending import clear_survived, forget_held, pending_path, read_pending
from jouled.board.pending import forget as forget_mode
from jouled.board.restore import Found, RestoreReport
from jouled.board.snapshot import boot_id, read_snapshot, snapshot_path
from jouled.board.winner import delete_winner, read_winner, what_differs, winner_in_force
from jouled.errors import BusyError, NotPermittedError, StateError, UsageError
from jouled.job.cancel import Cancellation
from jouled.job.events import Sink
from jouled.job.mending import mend
from jouled.job.site import Site
from jouled.ledger import Ledger
from jouled.worker.applying import BY_HAND, apply_target, rollback
from jouled.worker.standing import Enter, no_phase, should_be

if TYPE_CHECKING:
    from jouled.workload.runner import Runner

__all__ = ["apply_target", "forget", "restore_board", "rollback", "tune", "verify_board"]

log = logging.getLogger(__name__)

_FAILED = ("workload_failed", "board_busy", "board_fault", "not_supported")


# --- putting back -------------------------------------------------------------------------------------------


def restore_board(site: Site, who: str = "unknown", *, enter: Enter = no_phase) -> dict[str, Any]:
    """Put every knob back where a job has left a snapshot, and judge what the last boot left pending.

    Asks neither switch nor configuration: it only undoes. Raises NotPermittedError, BusyError, StuckError,
    RestoreError, StateError.
    """
    if not site.host.privileged:
        raise NotPermittedError("restore writes to the board and needs root", hint="sudo jouled restore")
    if not _is_anything_left(site):
        return {**report_fields(RestoreReport(Found.NOTHING)), "warnings": []}
    with hold_board(site.host, verb="restore"):
        enter("restore")
        mended = mend(site.host, who=who, why="restore")
    return {**report_fields(mended.report), "warnings": list(mended.warnings)}


def _is_anything_left(site: Site) -> bool:
    """A snapshot, or a pending.json that this boot has not made (or that nobody can read): mending judges both."""
    host = site.host
    if snapshot_path(host.state_dir).exists():
        return True
    try:
        pending = read_pending(host.state_dir)
    except StateError:
        return True
    return pending is not None and pending.boot_id != boot_id(host.sysfs)


def report_fields(report: RestoreReport) -> dict[str, Any]:
    """A restore's report in JSON's own types."""
    aside = None if report.set_aside is None else str(report.set_aside)
    return {**asdict(report), "found": report.found.value, "set_aside": aside}


# --- looking ------------------------------------------------------------------------------------------------


def verify_board(site: Site) -> dict[str, Any]:
    """Compare every knob with what should be in force; nothing is written but the end of a survived pending.json.

    Raises BoardError, StateError, NotPermittedError (the state is not for this user).
    """
    host = site.host
    board = discover(host, site.config.board.base_mode)
    in_force = winner_in_force(host, fingerprint(board, site.config.board.external_w))
    wanted = should_be(host, board, in_force)
    found = Actuator(host, board, wanted.home, Method.SYSFS).compare(wanted.mode, wanted.policy)
    left, to_do = _what_jobs_left(site)
    to_do = to_do or f"{_again(in_force)}, or reboot: the board then comes back in its operator's mode"
    if host.privileged and pending_path(host.state_dir).exists():
        with suppress(BusyError, StateError), hold_board(host, verb="verify"):
            clear_survived(host)
    return {
        "board": board.file.name,
        "base_mode": board.base_mode.name,
        "what": _named(in_force),
        "mode": mode_name(wanted.mode),
        "caps": asdict(wanted.mode),
        "policy": wanted.policy.value,
        "mismatches": [*found.mismatches, *left],
        "unknown": list(found.unknown),
        "is_mask_wrong": found.is_mask_wrong,
        "to_do": to_do if found.mismatches or left else "",
        "by_others": _by_others(site, board, in_force, is_wrong=bool(found.mismatches) and not left),
    }


def _by_others(site: Site, board: Board, in_force: Applied | None, *, is_wrong: bool) -> str:
    """What must have been somebody else: every mode of jouled's own was read back when it was applied."""
    if is_wrong:
        return "" if in_force is None else "somebody else has written these knobs since jouled applied it"
    applied = read_applied(site.host.state_dir)
    if in_force is not None or applied is None or applied.boot_id != boot_id(site.host.sysfs):
        return ""
    differs = what_differs(applied, fingerprint(board, site.config.board.external_w))
    return f"somebody else has taken {mode_name(applied.candidate.mode)} out of force: {differs}"


def _named(in_force: Applied | None) -> str:
    if in_force is None:
        return "the reference"
    return "the mode applied by hand" if in_force.decision_id == BY_HAND else "the winner"


def _again(in_force: Applied | None) -> str:
    """What puts it in force once more."""
    if in_force is None:
        return "jouled apply reference"
    return f"jouled apply {mode_name(in_force.candidate.mode) if in_force.decision_id == BY_HAND else 'winner'}"


def _what_jobs_left(site: Site) -> tuple[list[str], str]:
    """Sentences on a job that runs or was interrupted, and what to do about it."""
    snapshot = read_snapshot(site.host.state_dir)
    if snapshot is None:
        return [], ""
    holder = read_holder(site.host)
    if holder is not None:
        text = f"a job holds the board (pid {holder[0]}, jouled {holder[1]}): its modes are in force"
        return [text], "wait for it to end"
    return [f"job {snapshot.job} was interrupted and has left a snapshot"], "jouled restore"


# --- forgetting ---------------------------------------------------------------------------------------------


def forget(site: Site, mode: str | None, *, held: bool = False, who: str = "unknown") -> dict[str, Any]:
    """Lift what is held against `mode` (its standing as winner goes with it), or end the state held.

    Raises UsageError, NotPermittedError, BusyError, StateError.
    """
    host = site.host
    if (mode is not None) == held:
        raise UsageError("forget: wanted either a mode or --held, got both or neither")
    if not host.privileged:
        raise NotPermittedError("forget changes root's files and needs root", hint="sudo jouled forget …")
    named = None if mode is None else parse_mode_name(mode)
    with hold_board(host, verb="forget"):
        removed = False
        if named is None:
            lifted = forget_held(host)
        else:
            lifted = forget_mode(host, named)
            winner = read_winner(host.state_dir)
            removed = winner is not None and winner.candidate.mode == named and delete_winner(host.state_dir)
        line = {"v": 1, "event": "forgotten", "wall_s": host.clock.wall_s(), "who": who, "mode": mode, "held": held}
        if lifted or removed:
            Ledger(host.state_dir).append(line)
            log.info("forgotten: %s, asked by %s", mode or "held", who)
    return {"mode": mode, "held": held, "forgotten": lifted, "winner_removed": removed}


# --- tuning -------------------------------------------------------------------------------------------------


def tune(
    site: Site,
    runner: Runner,
    *,
    job: str,
    who: str,
    dry_run: bool,
    cancellation: Cancellation,
    sinks: tuple[Sink, ...],
) -> Mapping[str, Any]:
    """Run the job called `job`; its result, or a dry run's `plan`. numpy and optuna come with it. Raises as run_job."""
    from jouled.job.job import run_job

    request = site.request(runner.arrival, dry_run=dry_run)
    result = run_job(site.host, request, runner, cancellation=cancellation, sinks=sinks, job=job, who=who)
    if result.plan is None:
        if result.outcome in _FAILED:
            log.error("job %s: %s: %s", job, result.outcome, result.reason_text)
        return result.as_json()
    return {**result.as_json(), "outcome": None, "plan": result.plan}  # nothing was run, so nothing came of it


def asker() -> str:
    """Who asks where nobody stands between: this process's user."""
    return f"uid {os.geteuid()}"
