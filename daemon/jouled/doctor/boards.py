"""The board itself: what is known of it, its nvpmodel conf, TPC mask, clock tables and which clocks can be set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from jouled.board.basemode import base_mode_of
from jouled.board.board import About, Board
from jouled.board.identity import LEVELS, SUPER, Identity
from jouled.board.knobs import Kind, read_knobs
from jouled.board.nvpmodel import CONF_PATH
from jouled.board.snapshot import snapshot_path
from jouled.board.support import OBSERVE
from jouled.doctor.check import Check, Level, ok, unknown, warning
from jouled.doctor.patient import Patient
from jouled.errors import JouledError, NotSupportedError

# Which conf nvpower.sh links for which module (JETSON 1.1); `_super` may follow.
CONF_OF = {
    "p3701-0000": "p3701_0000",
    "p3701-0005": "p3701_0000",
    "p3701-0004": "p3701_0004",
    "p3767-0000": "p3767_0000",
    "p3767-0002": "p3767_0000",
    "p3767-0001": "p3767_0001",
    "p3767-0003": "p3767_0003",
    "p3767-0005": "p3767_0003",
    "p3767-0004": "p3767_0004",
    "p3834-0008": "p3834_0008",
    "p3834-0000": "p3834_0000",
}


_RESTORE = "sudo jouled restore   # first: a job was interrupted"


def facts(patient: Patient) -> Check:
    """How well jouled knows this kind of board, and whether it turns its knobs at all."""
    board = patient.board
    if board is None:
        assert patient.refusal is not None
        hint = (patient.refusal.hint,) if patient.refusal.hint else ()
        code = patient.refusal.exit_code
        return Check("board", Level.FAULT, str(patient.refusal), hint, code)
    if patient.untouched is not None:
        return Check("board", Level.FAULT, patient.untouched, (OBSERVE,), NotSupportedError.exit_code)
    if notes := board.told(About.BOARD):
        return warning("board", "; ".join(notes))
    return ok("board", f"{_known(board)}; unmeasured")


def _known(board: Board) -> str:
    """How well the facts of its file are known; tables are read from the board whatever stands there."""
    levels: dict[str, list[str]] = {}
    for topic, level in board.file.confidence.items():
        levels.setdefault(level, []).append(topic.removesuffix("_table").removeprefix("thermal_"))
    rest = [f"{level} {', '.join(levels[level])}" for level in LEVELS[:0:-1] if level in levels]
    return "; ".join(rest) or "all facts of it seen"


def conf(patient: Patient) -> Check:
    """The stock conf: whose it is, and what the next boot makes of it."""
    board = patient.board
    assert board is not None
    file = os.path.basename(os.path.realpath(patient.sysfs.real(CONF_PATH)))
    wanted = CONF_OF.get(board.identity.module)
    is_stock = file.startswith("nvpmodel_") and wanted is not None
    if is_stock and file not in (f"nvpmodel_{wanted}.conf", f"nvpmodel_{wanted}_super.conf"):
        return warning(
            "conf",
            f"{CONF_PATH} leads to {file}, which is not {board.identity.module}'s (a cloned image keeps the old link)",
            f"sudo ln -sf /etc/nvpmodel/nvpmodel_{wanted}{_suffix(board.identity)}.conf {CONF_PATH}   # then reboot",
        )
    if board.conf.by_id(board.conf.default) is None:
        text = f"{file}: DEFAULT={board.conf.default} is no mode of it: a boot without a recorded mode fails"
        return warning("conf", text, f"sudo nvpmodel -m {board.base_mode.id}   # records one")
    if notes := board.told(About.CONF):
        anew = f"sudo nvpmodel -m {board.base_mode.id}   # records the mode anew"
        return warning("conf", "; ".join(notes), _RESTORE if _is_left(patient) else anew)
    names = ", ".join(model.name for model in board.conf.models)
    return ok("conf", f"{file.removeprefix('nvpmodel_').removesuffix('.conf')}: {names}")


def _is_left(patient: Patient) -> bool:
    """Is a snapshot there, of a job or a probe that was interrupted? Then nothing else is right before a restore."""
    return os.path.lexists(snapshot_path(patient.site.host.state_dir))


def _suffix(identity: Identity) -> str:
    """What nvpower.sh adds to the conf's name for the Super configuration."""
    return "_super" if identity.keys[0].endswith(SUPER) else ""


def mask(patient: Patient) -> Check:
    """The TPC mask in force against the conf's, and which modes have another: those need a reboot."""
    board = patient.board
    assert board is not None
    live = board.base_mode.mask
    if board.domains.gpu is None or board.domains.gpu.mask_path is None:
        return ok("mask", "no TPC mask on this board")
    if notes := board.told(About.MASK):
        return warning("mask", notes[0], "sudo reboot")
    others = [name for name, other in _masks(board) if other not in (None, live)]
    apart = f"; another, by reboot only: {', '.join(others)}" if others else ""
    return ok("mask", f"{live}{apart}")


def _masks(board: Board) -> Iterator[tuple[str, int | None]]:
    for model in board.conf.models:
        try:
            yield model.name, base_mode_of(board.conf, model, board.domains, where=CONF_PATH).mask
        except JouledError:
            continue  # a mode that is not this board's decides nothing here


def _span(name: str, table_hz: Sequence[int]) -> str:
    return f"{name} {len(table_hz)} ({table_hz[0] / 1e6:.0f}-{table_hz[-1] / 1e6:.0f})"


def clocks(patient: Patient) -> Check:
    """The tables that modes are made of."""
    board = patient.board
    assert board is not None
    domains = board.domains
    spans = [_span("CPU", domains.cpu.table_hz)]
    spans += [_span("GPU", domains.gpu.table_hz)] if domains.gpu is not None else []
    spans += [_span("EMC", domains.emc.table_hz)] if domains.emc is not None else []
    if board.told(About.CLOCKS):
        return unknown("clocks", f"{', '.join(spans)} MHz; EMC as jouled knows it: only root reads its table")
    return ok("clocks", f"{', '.join(spans)} MHz")


def knobs(patient: Patient) -> Check:
    """Which domains can be set, how many modes that makes, and whether somebody has locked the clocks."""
    board = patient.board
    assert board is not None
    if notes := board.told(About.KNOBS):
        return warning("knobs", "; ".join(notes))
    if _is_locked(patient, board):
        text = "the clocks are locked at their caps (jetson_clocks); a job measures them unlocked"
        meant = "sudo jetson_clocks --restore   # if it was not meant"
        return warning("knobs", text, _RESTORE if _is_left(patient) else meant)
    if patient.untouched is not None:
        return ok("knobs", "CPU, GPU and EMC caps are there; none is turned here")
    size = len(patient.site.make_space(board))
    return ok("knobs", f"CPU, GPU and EMC caps; {size} power modes to choose from")


def _is_locked(patient: Patient, board: Board) -> bool:
    """Is the minimum of GPU and CPUs at the maximum? (A mode's own minimum never is, but for a table of one.)"""
    found = read_knobs(patient.sysfs, board.domains).of(Kind.CPU_LIMIT, Kind.GPU_LIMIT)
    pairs = {path: found.get(path.replace("min_freq", "max_freq")) for path in found if path.endswith("min_freq")}
    apart = len(board.domains.cpu.table_hz) > 1
    return apart and bool(pairs) and all(found[path] == top for path, top in pairs.items())
