"""The verbs that look at a board or put it back: verify, restore, forget, virtual reboot."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from jouled.board.applied import Applied
from jouled.board.apply import Actuator, ClocksPolicy, Method
from jouled.board.board import Board, discover, fingerprint
from jouled.board.knobs import Knobs, read_knobs
from jouled.board.lock import hold_board, read_holder
from jouled.board.modename import mode_name, parse_mode_name
from jouled.board.pending import forget as forget_mode
from jouled.board.pending import forget_held
from jouled.board.restore import Found
from jouled.board.restore import restore as restore_board
from jouled.board.snapshot import boot_id, read_origin, read_snapshot
from jouled.board.winner import home_of, winner_in_force
from jouled.cli.arguments import here
from jouled.cli.output import mode_text
from jouled.cli.site import open_site, require_root
from jouled.errors import NotPermittedError, UsageError
from jouled.job.site import Site
from jouletune.space import PowerMode


def _discover(site: Site) -> Board:
    return discover(site.host, site.config.board.base_mode)


# --- verify -------------------------------------------------------------------------------------------------


def verify(arguments: argparse.Namespace) -> int:
    """Compare every knob with what should be in force; 5 where one is wrong."""
    site = open_site(arguments)
    try:
        found = _verify(site)
    finally:
        site.close()
    wrong = found["mismatches"]
    if arguments.json:
        print(json.dumps({"schema": 1, **found, "mode": found["name"]}))
        return 5 if wrong else 0
    head = "wrong: not in force as it should be" if wrong else "ok: in force as it should be"
    head = "unknown" if found["what"].startswith("unknown") else head
    print(f"{head}: {found['what']}, {found['text']}")
    for sentence in wrong:
        print(f"  wrong    {sentence}")
    if found["unknown"]:
        print(f"  unknown  {len(found['unknown'])} knobs that only root may read (sudo jouled verify tells)")
    if wrong:
        print(f"  to do    {found['to_do']}")
    return 5 if wrong else 0


def _verify(site: Site) -> dict[str, Any]:
    host = site.host
    board = _discover(site)
    try:
        winner = winner_in_force(host, fingerprint(board, site.config.board.external_w))
        mode, policy, home = _wanted(site, board, winner)
        snapshot = read_snapshot(host.state_dir)
    except NotPermittedError:
        return _unknown(site, board)
    comparison = Actuator(host, board, home, Method.SYSFS).compare(mode, policy)
    mismatches = list(comparison.mismatches)
    to_do = here("jouled tune again, or reboot: the board then comes back in its operator's mode", "")
    if snapshot is not None:
        holder = read_holder(host)
        if holder is not None:
            mismatches.append(f"a job holds the board (pid {holder[0]}, jouled {holder[1]}): its modes are in force")
            to_do = "wait for it to end"
        else:
            mismatches.append(f"job {snapshot.job} was interrupted and has left a snapshot")
            to_do = here("jouled restore", site.options)
    return {
        "board": board.file.name,
        "base_mode": board.base_mode.name,
        "what": "the reference" if winner is None else "the winner",
        "name": mode_name(mode),
        "text": f"{mode_text(mode)}, {policy.value}",
        "policy": policy.value,
        "mismatches": mismatches,
        "unknown": list(comparison.unknown),
        "to_do": to_do if mismatches else "",
    }


def _unknown(site: Site, board: Board) -> dict[str, Any]:
    """Who may not read jouled's state does not know what should be in force; nothing is called wrong then."""
    return {
        "board": board.file.name,
        "base_mode": board.base_mode.name,
        "what": "unknown to this user",
        "name": mode_name(board.reference),
        "text": f"the state in {site.host.state_dir} is for root and group jouled",
        "policy": ClocksPolicy.CAPPED.value,
        "mismatches": [],
        "unknown": [str(site.host.state_dir)],
        "to_do": "",
    }


def _wanted(site: Site, board: Board, winner: Applied | None) -> tuple[PowerMode, ClocksPolicy, Knobs]:
    """What should be in force, and what rest means (minima, idle states): as found before jouled's first write."""
    if winner is not None:
        home = home_of(read_knobs(site.host.sysfs, board.domains), winner)
        return winner.candidate.mode, ClocksPolicy(winner.policy), home
    origin = read_origin(site.host.state_dir)
    boot, sha256 = boot_id(site.host.sysfs), board.conf_sha256
    if origin is not None and origin.holds(conf_sha256=sha256, base_mode=board.base_mode.name, boot_id=boot):
        return board.reference, ClocksPolicy.CAPPED, origin.knobs
    return board.reference, ClocksPolicy.CAPPED, read_knobs(site.host.sysfs, board.domains)


# --- putting back -------------------------------------------------------------------------------------------


def restore(arguments: argparse.Namespace) -> int:
    """Finish what a crash left."""
    site = open_site(arguments)
    try:
        require_root(site, "restore")
        report = restore_board(site.host)
    finally:
        site.close()
    if arguments.json:
        aside = None if report.set_aside is None else str(report.set_aside)
        print(json.dumps({"schema": 1, **asdict(report), "found": report.found.value, "set_aside": aside}))
        return 0
    print(_restored_text(report.found, report.job, len(report.changed)))
    for sentence in report.changed:
        print(f"  was      {sentence}")
    for sentence in report.warnings:
        print(f"  warning  {sentence}")
    return 0


def _restored_text(found: Found, job: str | None, changed: int) -> str:
    if found is Found.NOTHING:
        return "nothing to restore: no job has left anything behind"
    if found is Found.OTHER_BOOT:
        return (
            f"job {job} was interrupted before the last boot, which has put the knobs back; its snapshot is set aside"
        )
    return f"job {job} was interrupted: {changed} knobs put back, every knob is as it was found"


def forget(arguments: argparse.Namespace) -> int:
    """Lift a quarantine."""
    site = open_site(arguments)
    try:
        require_root(site, "forget")
        mode = None if arguments.held else parse_mode_name(arguments.mode)
        with hold_board(site.host, verb="forget"):
            lifted = forget_held(site.host) if mode is None else forget_mode(site.host, mode)
    finally:
        site.close()
    name = "the state held" if mode is None else mode_name(mode)
    if arguments.json:
        print(json.dumps({"schema": 1, "mode": None if mode is None else name, "forgotten": lifted}))
    elif mode is None:
        print("jobs may run again" if lifted else "the board was not held")
    else:
        print(f"{name} may be tried again" if lifted else f"nothing was held against {name}")
    return 0


def reboot(arguments: argparse.Namespace) -> int:
    """Boot a virtual board again, as a reboot of a real one would."""
    if arguments.virtual is None and arguments.table is None:
        raise UsageError("virtual reboot: wanted --virtual BOARD or --table GRID.csv", hint="a real board: sudo reboot")
    site = open_site(arguments)
    assert site.reboot is not None
    try:
        with hold_board(site.host, verb="virtual reboot"):  # a job in mid-write would write on after the boot
            site.reboot()
        board = _discover(site)
    finally:
        site.close()
    if arguments.json:
        print(json.dumps({"schema": 1, "board": board.file.name, "base_mode": board.base_mode.name}))
    else:
        print(f"{board.file.name} has booted, in {board.base_mode.name}: {mode_text(board.reference)}")
    return 0
