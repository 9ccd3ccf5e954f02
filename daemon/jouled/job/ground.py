"""What a job stands on: the board as it is, its reference's knobs, its meter, and whether it may be touched at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jouled.board.applied import Applied
from jouled.board.apply import ClocksPolicy
from jouled.board.board import Board, discover, fingerprint
from jouled.board.domains import Domains
from jouled.board.host import Host
from jouled.board.jetson_clocks import TOOL as JETSON_CLOCKS
from jouled.board.jtop_meter import open_jtop
from jouled.board.knobs import Knobs, read_knobs
from jouled.board.meter import BoardMeters, Meter, observer_of
from jouled.board.observer import Observer
from jouled.board.pending import read_quarantine
from jouled.board.rails import find_meter
from jouled.board.support import require_tunable
from jouled.board.winner import home_of, winner_in_force
from jouled.config import Config
from jouled.errors import BoardError, BusyError, ConfigError, JouledError, ToolAbsentError
from jouled.job.blocks import Arm
from jouled.job.cancel import Cancellation
from jouled.job.request import Request
from jouletune.space import Candidate, PowerMode, Space

MOST_SCORED = 2000
_FEW_MODES = 48
LEAST_AVERAGINGS = 32  # at least 8 batches of 4 averages
_BUSY_LOAD = 0.05
_LOOKS = 5
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Ground:
    """`found`: the knobs when the job began; `home`: those of the reference, other than `found` under a winner.

    `domains` None: the machine has no clocks that jouled knows; `board` None: it is no Jetson at all. `versions`: of
    what lies below the workload, such as L4T.
    """

    name: str
    base_mode: str
    domains: Domains | None
    board: Board | None
    space: Space
    meter: Meter
    meter_why: str
    fingerprint: Mapping[str, str]
    found: Knobs
    home: Knobs
    incumbent: Arm
    applied: Applied | None
    observer: Observer
    versions: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def reference(self) -> PowerMode:
        """The board's own mode."""
        return self.space.candidates[self.space.reference].mode


def survey(host: Host, request: Request) -> Ground:
    """Find out all that a job needs, writing nothing. Raises NotSupportedError, ConfigError, BoardError, StateError."""
    config = request.config
    if config.mode == "observe":
        raise ConfigError(
            'mode: wanted "tune", got "observe": no knob is ever written', hint="change it, or do not tune"
        )
    board = discover(host, config.board.base_mode)
    require_tunable(board.identity, board.file)
    marks = fingerprint(board, config.board.external_w)
    applied = winner_in_force(host, marks)
    found = read_knobs(host.sysfs, board.domains)
    space = request.make_space(board)
    check_size(space, config.job.sampler)
    thinned = _thinned(config, space)
    space = _without_quarantined(host, space, marks)
    space, incumbent = _with_incumbent(space, applied)
    opened = open_meter(host, request, board)  # last: from here on it must be closed
    return Ground(
        name=board.file.name,
        base_mode=board.base_mode.name,
        domains=board.domains,
        board=board,
        space=space,
        meter=opened.meter,
        meter_why=opened.why,
        observer=opened.observer,
        fingerprint=marks,
        found=found,
        home=home_of(found, applied),
        incumbent=incumbent,
        applied=applied,
        versions={"l4t": board.identity.l4t or "unknown"},
        warnings=(*board.warnings, *thinned, *opened.warnings),
    )


def check_size(space: Space, sampler: str) -> None:
    """Raise ConfigError for more candidates than the sampler scores in a second and 400 MB."""
    if sampler != "joule" or len(space) <= MOST_SCORED:
        return
    product = " x ".join(f"{len(axis.values)} {axis.name.removesuffix('_hz')}" for axis in space.axes)
    raise ConfigError(
        f"grid: the joule sampler scores each candidate and takes {MOST_SCORED} at most, got {len(space)} ({product})",
        hint="lower grid.size (or shape), shorten the lists of clocks, engines, batches or instances, or set sampler = "
        '"descent"',
    )


def _thinned(config: Config, space: Space) -> tuple[str, ...]:
    """Variants share the candidates of grid.size with the power modes: where that leaves few of these, say so."""
    variants = len({candidate.variant for candidate in space.candidates})
    modes = len({candidate.mode for candidate in space.candidates})
    size = config.grid.size
    if variants == 1 or size == "full" or modes >= _FEW_MODES or config.grid.shape is not None:
        return ()
    return (
        f"{variants} variants leave {modes} power modes of grid.size = {size}; as many as without variants: "
        f"grid.size = {size * variants}",
    )


@dataclass(frozen=True, slots=True)
class Opened:
    """A meter that runs, why it is this one, and what observes beside it."""

    meter: Meter
    why: str
    observer: Observer
    warnings: tuple[str, ...]


def open_meter(host: Host, request: Request, board: Board | None) -> Opened:
    """What measures the total: the board's own rails, as the kernel or jtop's service shows them, or NVML.

    Raises NotSupportedError, ConfigError, and leaves nothing open then.
    """
    config = request.config
    own = None if board is None else _board_meters(host, request, board)
    chosen = request.choose_meter(host.processes, config.board.meter, own)
    try:
        _check_windows(config, chosen.meter)
        if board is None:
            observer = observer_of(host.sysfs, None, chosen.meter)
        else:
            ignored = board.file.cooling_ignored
            observer = observer_of(host.sysfs, board.domains, chosen.meter, ignored_cooling=ignored)
    except JouledError:
        chosen.meter.close()
        raise
    return Opened(chosen.meter, chosen.why, observer, (chosen.why,) if chosen.is_fallback else ())


def _board_meters(host: Host, request: Request, board: Board) -> BoardMeters:
    config = request.config.board
    rails = request.total_rails or config.total_rails or board.file.total_rails
    coverage, averaging_s = board.file.coverage, board.file.rail_averaging_s
    partial = config.on_partial_rails == "partial"

    def by_sysfs() -> Meter:
        return find_meter(host.sysfs, rails, coverage=coverage, averaging_s=averaging_s, allow_partial=partial)

    def by_jtop() -> Meter:
        return open_jtop(host.processes, rails, coverage=coverage, averaging_s=averaging_s, allow_partial=partial)

    return BoardMeters(by_sysfs, by_jtop)


def _check_windows(config: Config, meter: Meter) -> None:
    """Raise ConfigError where a window would hold too few averages of the sensor."""
    least_s = LEAST_AVERAGINGS * meter.averaging_s
    if config.job.window_min_s < least_s:
        raise ConfigError(
            f"job.window_min_s: wanted at least {least_s:.1f} s (32 averages of this sensor), "
            f"got {config.job.window_min_s:g} s",
            hint=f"set job.window_min_s to {math.ceil(least_s)}",
        )


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
    candidate = applied.candidate
    _check_domains(candidate.mode, space.candidates[space.reference].mode)
    if all(candidate.variant != known.variant for known in space.candidates):  # it was found with another workload
        candidate = Candidate(candidate.mode, space.candidates[space.reference].variant)
    space = space.with_candidate(candidate)
    index = space.index_of(candidate)
    assert index is not None
    return space, Arm(index, ClocksPolicy(applied.policy))


def _check_domains(in_force: PowerMode, reference: PowerMode) -> None:
    """Raise BoardError where a clock that is capped now cannot be seen: nothing would be compared with it."""
    clocks = {"CPU": "cpu_hz", "GPU": "gpu_hz", "EMC": "emc_hz"}
    missing = [
        name for name, key in clocks.items() if (getattr(in_force, key) is None) != (getattr(reference, key) is None)
    ]
    if missing:
        raise BoardError(
            f"the winner in force was found with another set of clocks: {', '.join(missing)} cannot be seen now, or "
            "could not be seen then",
            hint="a GPU may appear after its first use; else put the board's own mode in force: jouled apply reference",
        )


def check_locking(host: Host, clocks: str) -> None:
    """Raise ToolAbsentError where jetson_clocks will be needed and is not there: now, and not in the finals."""
    if clocks != ClocksPolicy.CAPPED.value and host.processes.find(JETSON_CLOCKS) is None:
        raise ToolAbsentError(
            f"{JETSON_CLOCKS}: no such program on PATH, and grid.clocks = {clocks!r} needs it",
            argv=[JETSON_CLOCKS],
            hint='install nvidia-l4t-tools, or leave grid.clocks at "capped"',
        )


def check_gpu_is_free(host: Host, observer: Observer, cancellation: Cancellation) -> None:
    """Raise BusyError, with who, where something else loads the GPU: it would be measured too."""
    loads = []
    for _ in range(_LOOKS):
        cancellation.sleep(host.clock, _LOOK_EVERY_S)
        load = observer.load()
        if load is None:
            return
        loads.append(load)
    mean = sum(loads) / len(loads)
    if mean > _BUSY_LOAD:
        who = ", ".join(str(client) for client in observer.others(())) or "somebody that the kernel does not name here"
        raise BusyError(
            f"the GPU is {100 * mean:.0f} % busy before the job has begun: {who}",
            hint="stop it, or name its unit in job.stop_units",
        )
