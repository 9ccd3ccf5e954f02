"""What a job measures the total rail with: the board's own sensors, jtop's service or NVML, chosen once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from jouled.board.clock import Clock
from jouled.board.nvml import open_nvml
from jouled.board.nvml_link import GpuInfo
from jouled.board.observer import Observer, SysfsObserver, Together
from jouled.board.process import Processes
from jouled.board.thermal import IGNORED_COOLING
from jouled.errors import NotSupportedError, SensorError, SensorsHiddenError

if TYPE_CHECKING:
    from jouled.board.domains import Domains
    from jouled.board.sysfs import Sysfs
    from jouletune.measurement import PowerTrace

log = logging.getLogger(__name__)


class Sampling(Protocol):
    """Readings of a meter between `start` and `stop`; failed ones are counted, never guessed."""

    @property
    def last_error(self) -> SensorError | None:
        """Why the last reading that failed did."""

    @property
    def power_w(self) -> float | None:
        """The last reading of the total, `external_w` included; None before the first."""

    def start(self) -> None:
        """Begin anew; the first reading is taken at once. Raises SensorError."""

    def trace(self) -> PowerTrace:
        """What was read so far."""

    def stop(self) -> PowerTrace:
        """End it and give what was read."""


class Meter(Protocol):
    """What measures the total rail. `rail` is its name, part of every result; `coverage` what it covers."""

    @property
    def rail(self) -> str: ...

    @property
    def coverage(self) -> str: ...

    @property
    def averaging_s(self) -> float:
        """What one reading averages over."""

    @property
    def observer(self) -> Observer | None:
        """What its own source tells besides power, if anything."""

    @property
    def gpu(self) -> GpuInfo | None:
        """The GPU that it measures; None: a board's rails."""

    def sampling(self, clock: Clock, *, rate_hz: float, external_w: float = 0.0) -> Sampling:
        """Not begun yet. `rate_hz` is a wish: a counter is read when it moves."""

    def close(self) -> None:
        """Let go of what it holds; idempotent."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A meter, and in one sentence why it is this one. `is_fallback`: the first choice was not to be had."""

    meter: Meter
    why: str
    is_fallback: bool = False


@dataclass(frozen=True, slots=True)
class BoardMeters:
    """How a Jetson's total may be measured: by its sensors as the kernel shows them, or by jtop's service."""

    sysfs: Callable[[], Meter]
    jtop: Callable[[], Meter]


def choose_meter(processes: Processes, wanted: str, board: BoardMeters | None, *, device: int = 0) -> Chosen:
    """The meter that `board.meter` asks for. `auto`: the board's own sensors; jtop where they are hidden; then NVML.

    `board` None: this machine is no Jetson. `device` is NVML's index of the GPU. Raises NotSupportedError.
    """
    if wanted == "nvml":
        return Chosen(open_nvml(processes, device=device), "board.meter says nvml")
    if board is None:
        if wanted in ("sysfs", "jtop"):
            raise NotSupportedError(
                f'board.meter = "{wanted}": this machine is no Jetson and has none of its sensors',
                hint='set board.meter to "nvml" or "auto"',
            )
        return Chosen(open_nvml(processes, device=device), "this machine is no Jetson: its GPU is measured by NVML")
    if wanted == "sysfs":
        return Chosen(board.sysfs(), "board.meter says sysfs")
    if wanted == "jtop":
        return Chosen(board.jtop(), "board.meter says jtop")
    return _first_of_board(processes, board, device)


def _first_of_board(processes: Processes, board: BoardMeters, device: int) -> Chosen:
    """NVML counts less than the board's total (the GPU alone), so it comes last and is said."""
    try:
        return Chosen(board.sysfs(), "the board's own sensors measure its total")
    except NotSupportedError as error:
        others: list[Callable[[], Meter]] = [lambda: open_nvml(processes, device=device)]
        if isinstance(error, SensorsHiddenError):  # jtop reads the same sensors: it has no other rails
            others.insert(0, board.jtop)
        for find in others:
            try:
                meter = find()
            except NotSupportedError as other:
                log.info("%s", other)
                last = other
                continue
            by = "jtop" if find is board.jtop else "NVML"
            return Chosen(meter, f"measured by {by} ({meter.coverage}), since {error}", is_fallback=True)
        raise error from last


def observer_of(
    sysfs: Sysfs, domains: Domains | None, meter: Meter, *, ignored_cooling: Sequence[str] = IGNORED_COOLING
) -> Observer:
    """Who looks beside `meter`: the Jetson's kernel where there is one (`domains`), with NVML where that measures.

    Elsewhere NVML alone: zones and cooling devices of a PC tell nothing of its GPU. Raises NotSupportedError where
    there is neither.
    """
    if domains is None:
        if meter.observer is None:
            raise NotSupportedError(f"{meter.rail}: nothing here tells heat and throttling of the GPU")
        return meter.observer
    own = SysfsObserver(sysfs, domains, ignored_cooling=ignored_cooling)
    return own if meter.observer is None else Together(own, meter.observer)


def measure_idle_w(
    clock: Clock, meter: Meter, wait: Callable[[], None], *, rate_hz: float, external_w: float = 0.0
) -> float:
    """Mean power of the total while `wait` waits and nothing is asked of the board.

    Raises SensorError when no reading was to be had, and what `wait` raises.
    """
    from jouletune.measurement import mean_power_w
    from jouletune.trace import total_power_w

    sampling = meter.sampling(clock, rate_hz=rate_hz, external_w=external_w)
    sampling.start()
    try:
        wait()
    finally:
        trace = sampling.stop()
    if trace.t_s.size == 0:
        raise SensorError(f"{meter.rail}: no reading of the idle board: {sampling.last_error}")
    if trace.t_s.size == 1:
        return float(total_power_w(trace)[0])
    return mean_power_w(trace, float(trace.t_s[0]), float(trace.t_s[-1]))
