"""What a job stands on: the board as it is, its reference's knobs, its meter, and whether it may be touched at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jouled.board.applied import Applied
from jouled.board.apply import ClocksPolicy
from jouled.board.board import Board, discover, fingerprint
from jouled.board.gpuload import read_gpu_clients, read_gpu_load
from jouled.board.host import Host
from jouled.board.jetson_clocks import TOOL as JETSON_CLOCKS
from jouled.board.knobs import Knobs, read_knobs
from jouled.board.meter import Meter
from jouled.board.pending import read_quarantine
from jouled.board.rails import find_meter
from jouled.board.winner import home_of, winner_in_force
from jouled.errors import BoardError, BusyError, ConfigError, ToolAbsentError
from jouled.job.blocks import Arm
from jouled.job.cancel import Cancellation
from jouled.job.request import Request
from jouletune.space import Space

LEAST_AVERAGINGS = 32  # at least 8 batches of 4 averages
_BUSY_LOAD = 0.05
_LOOKS = 5
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Ground:
    """`found`: the knobs when the job began; `home`: those of the reference, other than `found` under a winner."""

    board: Board
    space: Space
    meter: Meter
    fingerprint: Mapping[str, str]
    found: Knobs
    home: Knobs
    incumbent: Arm
    applied: Applied | None


def survey(host: Host, request: Request) -> Ground:
    """Find out all that a job needs, writing nothing. Raises NotSupportedError, ConfigError, BoardError, StateError."""
    config = request.config
    if config.mode == "observe":
        raise ConfigError(
            'mode: wanted "tune", got "observe": no knob is ever written', hint="change it, or do not tune"
        )
    board = discover(host, config.board.base_mode)
    meter = find_meter(
        host.sysfs,
        request.total_rails or config.board.total_rails or board.file.total_rails,
        coverage=board.file.coverage,
        averaging_s=board.file.rail_averaging_s,
        allow_partial=config.board.on_partial_rails == "partial",
    )
    least_s = LEAST_AVERAGINGS * meter.averaging_s
    if config.job.window_min_s < least_s:
        raise ConfigError(
            f"job.window_min_s: wanted at least {least_s:.1f} s (32 averages of this sensor), "
            f"got {config.job.window_min_s:g} s",
            hint="leave job.window_min_s out",
        )
    marks = fingerprint(board, config.board.external_w)
    applied = winner_in_force(host, marks)
    found = read_knobs(host.sysfs, board.domains)
    space = _without_quarantined(host, request.make_space(board), marks)
    space, incumbent = _with_incumbent(space, applied)
    return Ground(board, space, meter, marks, found, home_of(found, applied), incumbent, applied)


def _without_quarantined(host: Host, space: Space, marks: Mapping[str, str]) -> Space:
    """A mode that took the board down is no candidate; the reference always is."""
    quarantine = read_quarantine(host.state_dir)
    if quarantine.is_held(host.clock.wall_s()):
        raise BoardError(
            "the board went down twice within 30 min while modes of jouled were in force: no knob is written for 24 h",
            hint="find out why it went down; then: jouled forget --held",
        )
    banned = set(quarantine.quarantined(marks))
    reference = space.candidates[space.reference]
    kept = [one for one in space.candidates if one == reference or one.mode not in banned]
    return space if len(kept) == len(space) else Space.of(kept, reference)


def _with_incumbent(space: Space, applied: Applied | None) -> tuple[Space, Arm]:
    if applied is None:
        return space, Arm(space.reference, ClocksPolicy.CAPPED)
    space = space.with_candidate(applied.candidate)
    index = space.index_of(applied.candidate)
    assert index is not None
    return space, Arm(index, ClocksPolicy(applied.policy))


def check_locking(host: Host, clocks: str) -> None:
    """Raise ToolAbsentError where jetson_clocks will be needed and is not there: now, and not in the finals."""
    if clocks != ClocksPolicy.CAPPED.value and host.processes.find(JETSON_CLOCKS) is None:
        raise ToolAbsentError(
            f"{JETSON_CLOCKS}: no such program on PATH, and grid.clocks = {clocks!r} needs it",
            argv=[JETSON_CLOCKS],
            hint='install nvidia-l4t-tools, or leave grid.clocks at "capped"',
        )


def check_gpu_is_free(host: Host, board: Board, cancellation: Cancellation) -> None:
    """Raise BusyError, with who, where something else loads the GPU: it would be measured too."""
    if board.domains.gpu is None:
        return
    loads = []
    for _ in range(_LOOKS):
        cancellation.sleep(host.clock, _LOOK_EVERY_S)
        load = read_gpu_load(host.sysfs, board.domains.gpu)
        if load is None:
            return
        loads.append(load)
    mean = sum(loads) / len(loads)
    if mean > _BUSY_LOAD:
        who = (
            ", ".join(str(client) for client in read_gpu_clients(host.sysfs))
            or "somebody that the kernel does not name here"
        )
        raise BusyError(
            f"the GPU is {100 * mean:.0f} % busy before the job has begun: {who}",
            hint="stop it, or name its unit in job.stop_units",
        )
