"""Can modes be set by nvpmodel? Tried as a job does: the board's own mode is applied to itself, under a snapshot."""

from __future__ import annotations

import uuid

from jouled.board.apply import Actuator, ClocksPolicy, Method, probe_method
from jouled.board.board import Board, fingerprint
from jouled.board.knobs import Kind, Knobs, read_knobs
from jouled.board.lock import hold_board, read_holder
from jouled.board.modename import mode_name
from jouled.board.nvpmodel import query
from jouled.board.pending import Why, note_apply, read_quarantine
from jouled.board.restore import restore_held
from jouled.board.snapshot import ChildLog, Origin, Snapshot, boot_id, read_snapshot, write_origin_once, write_snapshot
from jouled.board.switches import check_switches
from jouled.board.winner import read_winner, winner_in_force
from jouled.doctor.check import Check, Level, fault_of, ok, unknown, warning
from jouled.doctor.patient import Patient
from jouled.errors import BoardError, BusyError, NotPermittedError, SysfsError

_VERB = "doctor"
_REASON = 160


def state(patient: Patient) -> Check:
    """What a job or a crash has left, and what is in force. Raises StateError, NotPermittedError."""
    board, host = patient.board, patient.site.host
    assert board is not None
    try:
        check_switches(host.sysfs)
    except NotPermittedError as error:
        return fault_of("state", error)
    holder = read_holder(host)
    if holder is not None:
        return warning("state", f"pid {holder[0]} (jouled {holder[1]}) holds the board now", "jouled status")
    if read_quarantine(host.state_dir).is_held(host.clock.wall_s()):
        text = "held: the board went down twice within 30 min while modes of jouled were in force"
        return fault_of("state", BoardError(text, hint="find out why it went down; then: jouled forget --held"))
    left = read_snapshot(host.state_dir)
    if left is not None:
        return warning("state", f"job {left.job} was interrupted; its snapshot is there", "sudo jouled restore")
    applied = winner_in_force(host, fingerprint(board, patient.config.board.external_w))
    if applied is not None:
        return ok("state", f"the winner {mode_name(applied.candidate.mode)} is in force")
    return ok("state", f"nothing left to finish; {_in_force(patient, board)}")


def _in_force(patient: Patient, board: Board) -> str:
    """Never that the base mode is where nobody has looked: without root, or on a board whose knobs are left alone."""
    name = board.base_mode.name
    if patient.untouched is not None or not patient.site.host.privileged:
        return f"the base mode is {name}"
    try:
        return f"not all is as {name} sets it" if _first_wrong(patient, board) else f"{name} is in force"
    except SysfsError:
        return f"the base mode is {name}"  # `method` says what could not be read


def _first_wrong(patient: Patient, board: Board) -> str:
    """A knob that is not as the base mode sets it, or "". Raises SysfsError."""
    host = patient.site.host
    home = read_knobs(host.sysfs, board.domains)
    wrong = Actuator(host, board, home, Method.SYSFS).verify(board.reference, ClocksPolicy.CAPPED)
    return str(wrong[0]) if wrong else ""


def method(patient: Patient) -> Check:
    """nvpmodel, or jouled's own writes and why."""
    board, config = patient.board, patient.config
    assert board is not None
    if config.board.method == Method.SYSFS.value:
        return ok("method", "own writes, as board.method says")
    host = patient.site.host
    if config.board.method == "auto" and host.processes.find("nvpmodel") is None:
        text = "nvpmodel is not there: jouled writes the same knobs itself"
        return warning("method", text, "sudo apt install nvidia-l4t-nvpmodel")
    why = _why_not(patient, board)
    if why:
        answer = query(host.processes)
        told = f"nvpmodel -q says {answer[0]}" if answer is not None else "nvpmodel -q tells no mode"
        return unknown("method", f"{told}; not tried: {why}")
    chosen, reason = _tried(patient, board)
    if chosen is Method.NVPMODEL:
        return ok("method", f"nvpmodel obeys (tried: {board.base_mode.name} on itself)")
    told = reason if len(reason) <= _REASON else f"{reason[:_REASON]} …"  # it may quote all that nvpmodel said
    return warning("method", f"jouled's own writes, since nvpmodel cannot be used: {told}")


def _why_not(patient: Patient, board: Board) -> str:
    """Why nothing is written to this board now; "" where the probe is no risk."""
    host = patient.site.host
    if patient.untouched is not None:
        return "no knob of this board is turned"
    if not patient.may_probe:
        return "--no-probe"
    if patient.config.mode == "observe":
        return 'mode = "observe"'
    if not host.privileged:
        return "needs root"
    found = state(patient)
    if found.level is not Level.OK:
        return found.text
    marks = fingerprint(board, patient.config.board.external_w)
    if winner_in_force(host, marks) is not None:
        return "a winner is in force"
    wrong = _first_wrong(patient, board)
    return f"the board is not as {board.base_mode.name} sets it: {wrong}" if wrong else ""


def _tried(patient: Patient, board: Board) -> tuple[Method, str]:
    """As a job does it, so that a crash in here is mended like a job's. Raises as `probe_method`, BusyError."""
    host, mark = patient.site.host, f"doctor-{uuid.uuid4().hex[:8]}"
    try:
        with hold_board(host, verb=_VERB):
            found = read_knobs(host.sysfs, board.domains)
            _note(patient, board, found, mark)
            processes = host.processes
            processes.mark, processes.on_start = mark, ChildLog(host.state_dir)
            try:
                chosen = probe_method(host, board, found, patient.config.board.method)
                if chosen[0] is Method.SYSFS:
                    _write_anew(patient, found)
                return chosen
            finally:
                processes.on_start = None
                restore_held(host)
    except BusyError as error:
        raise BusyError(f"not tried: {error}", hint=error.hint) from error


def _write_anew(patient: Patient, found: Knobs) -> None:
    """Each cap is written as it stands. Raises BoardError where the kernel refuses our own writes, too."""
    for path, value in found.of(Kind.CPU_LIMIT, Kind.GPU_LIMIT, Kind.EMC_CAP).items():
        if path.endswith("min_freq"):
            continue
        try:
            patient.sysfs.write(path, value, why="doctor: can it be written?")
        except SysfsError as error:
            hint = "run jouled on the host itself; in a container /sys is read-only"
            raise BoardError(f"neither nvpmodel nor jouled can set the clocks: {error}", hint=hint) from error


def _note(patient: Patient, board: Board, found: Knobs, mark: str) -> None:
    """All that a restore needs is on the disk before anything is written to the board."""
    host, now_s = patient.site.host, patient.site.host.clock.wall_s()
    boot, name = boot_id(host.sysfs), board.base_mode.name
    write_origin_once(host.state_dir, Origin(board.conf_sha256, name, found, now_s, boot))
    snapshot = Snapshot(boot, mark, mark, name, found, now_s, winner=read_winner(host.state_dir))
    write_snapshot(host.state_dir, snapshot)
    marks = fingerprint(board, patient.config.board.external_w)
    note_apply(host, board.reference, why=Why.REFERENCE, fingerprint=marks)
