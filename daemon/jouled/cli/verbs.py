"""The verbs that look at a board or put it back: verify, restore, forget, virtual reboot."""

from __future__ import annotations

import argparse
import json
from typing import Any

from jouled.board.apply import ClocksPolicy
from jouled.board.board import Board, discover
from jouled.board.lock import hold_board
from jouled.board.modename import mode_name
from jouled.board.restore import Found
from jouled.cli.arguments import here
from jouled.cli.faults import list_faults
from jouled.cli.output import mode_text
from jouled.cli.site import open_site, open_to_restore, require_root
from jouled.errors import NotPermittedError, UsageError
from jouled.job.site import Site
from jouled.worker.commands import asker, restore_board, verify_board
from jouled.worker.commands import forget as lift
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
    if found["by_others"]:
        print(f"  by       {found['by_others']} (nvpmodel, jtop, jetson_clocks, a script)")
    if found["unknown"]:
        print(f"  unknown  {len(found['unknown'])} knobs that only root may read (sudo jouled verify tells)")
    if wrong:
        print(f"  to do    {found['to_do']}")
    return 5 if wrong else 0


def _verify(site: Site) -> dict[str, Any]:
    try:
        found = verify_board(site)
    except NotPermittedError:
        return _unknown(site, _discover(site))
    text = f"{mode_text(PowerMode(**found['caps']))}, {found['policy']}"
    return {**found, "name": found["mode"], "text": text, "to_do": here(found["to_do"], site.options)}


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
        "by_others": "",
    }


# --- putting back -------------------------------------------------------------------------------------------


def restore(arguments: argparse.Namespace) -> int:
    """Finish what a crash left; a configuration that is wrong does not keep it from that."""
    site = open_to_restore(arguments)
    try:
        require_root(site, "restore")
        report = restore_board(site, asker())
    finally:
        site.close()
    if arguments.json:
        print(json.dumps({"schema": 1, **report}))
        return 0
    print(_restored_text(Found(report["found"]), report["job"], len(report["changed"])))
    for sentence in report["changed"]:
        print(f"  was      {sentence}")
    for sentence in report["warnings"]:
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
    """Lift a quarantine, or the state held."""
    site = open_site(arguments)
    try:
        require_root(site, "forget")
        done = lift(site, arguments.mode, held=arguments.held, who=asker())
    finally:
        site.close()
    lifted = done["forgotten"]
    if arguments.json:
        print(json.dumps({"schema": 1, **done}))
    elif arguments.held:
        print("jobs may run again" if lifted else "the board was not held")
    else:
        name = arguments.mode
        print(f"{name} may be tried again" if lifted else f"nothing was held against {name}")
        if done["winner_removed"]:
            print(f"  and {name} is no winner any more: jouled tune finds one")
    return 0


def virtual(arguments: argparse.Namespace) -> int:
    """What can be done to a virtual board."""
    return list_faults() if arguments.action == "faults" else reboot(arguments)


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
