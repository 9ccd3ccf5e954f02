"""The board's own power sensors as the total rail: the channels of its labels, and their sampling.

No chip has an energy counter. An INA3221 gives mV and mA, each the mean of the last 430 ms (nvpower.sh sets 512
averages); which chips there are is `channels`' matter.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from jouled.board.channels import Channel, Found, Rail, find_channels
from jouled.board.clock import Clock, Ticker
from jouled.board.sysfs import Sysfs
from jouled.errors import NotSupportedError, SensorError, SensorsHiddenError, SysfsError

if TYPE_CHECKING:
    from jouletune.measurement import PowerTrace

log = logging.getLogger(__name__)

DEFAULT_AVERAGING_S = 0.43
_RAILS_HINT = 'set board.total_rails to this board\'s labels, or board.on_partial_rails = "partial"'


class Readable(Protocol):
    """What a `Sampler` reads: rails whose volts and amperes are to be had one by one."""

    @property
    def averaging_s(self) -> float:
        """What one reading averages over."""

    @property
    def rails(self) -> tuple[Rail, ...]: ...

    def read(self) -> tuple[tuple[float, float], ...]:
        """Volts and amperes of each of `rails`, now. Raises SensorError."""


class RailMeter:
    """The sum of some channels."""

    observer = None
    gpu = None

    def __init__(self, sysfs: Sysfs, channels: Sequence[Channel], *, coverage: str, averaging_s: float) -> None:
        self._sysfs = sysfs
        self._channels = tuple(channels)
        self.coverage = coverage
        self.averaging_s = averaging_s
        self.rails = tuple(channel.rail for channel in self._channels)
        self.rail = "+".join(rail.name for rail in self.rails)

    def read(self) -> tuple[tuple[float, float], ...]:
        try:
            return tuple(channel.read(self._sysfs) for channel in self._channels)
        except SysfsError as error:
            raise SensorError(f"{self.rail}: no reading: {error}") from error

    def sampling(self, clock: Clock, *, rate_hz: float, external_w: float = 0.0) -> Sampler:
        """`rate_hz` readings a second, from `start` on."""
        return Sampler(clock, self, rate_hz=rate_hz, external_w=external_w)

    def close(self) -> None:
        """It holds nothing."""


# --- finding ------------------------------------------------------------------------------------------------


def _by_label(found: Found) -> dict[str, Channel]:
    by_label: dict[str, Channel] = {}
    for channel in found.channels:
        twin = by_label.setdefault(channel.rail.name, channel)
        if twin is not channel:
            raise NotSupportedError(
                f"rail {channel.rail.name} is measured twice: {twin.folder} and {channel.folder}",
                hint="one of them is no chip of the module; disable it, or name other board.total_rails",
            )
    return by_label


def _averaging_s(sysfs: Sysfs, channels: Sequence[Channel], least_s: float) -> float:
    """Newer kernels leave the averaging out of update_interval, so it can only lengthen `least_s`."""
    texts = (_text(sysfs, f"{folder}/update_interval") for folder in {c.folder for c in channels})
    return max([least_s, *(int(text) / 1000 for text in texts if text is not None and text.isdigit())])


def _text(sysfs: Sysfs, path: str) -> str | None:
    try:
        return sysfs.read(path)
    except SysfsError as error:
        log.debug("%s", error)
        return None


def _refusal(total_rails: Sequence[str], missing: Sequence[str], found: Found) -> NotSupportedError:
    what = f"the total rail {'+'.join(total_rails)} cannot be measured"
    if not found.chips and not found.hidden:
        return SensorsHiddenError(
            f"{what}: no power sensor is to be seen here (no INA3221, no INA238)",
            hint="in a container, give it the host's /sys; on a board, look whether the drivers are loaded: "
            "ls /sys/class/hwmon",
        )
    here = ", ".join(sorted(channel.rail.name for channel in found.channels)) or "none"
    text = f"{what}: no {', '.join(missing)}; rails here: {here}"
    if found.hidden:
        return SensorsHiddenError(f"{text}; not to be read: {found.hidden[0]}", hint=_RAILS_HINT)
    return NotSupportedError(text, hint=_RAILS_HINT)


def find_meter(
    sysfs: Sysfs,
    total_rails: Sequence[str],
    *,
    coverage: str = "module",
    averaging_s: float = DEFAULT_AVERAGING_S,
    allow_partial: bool = False,
) -> RailMeter:
    """The meter of the total rail, the sum of exactly `total_rails` (labels) and of no other.

    `averaging_s` is the least that one reading averages over. Raises NotSupportedError when a rail of the total is
    missing (with `allow_partial`: when all are) or when two chips have the same label, SensorsHiddenError where it may
    be missing because sensors cannot be read here.
    """
    found = find_channels(sysfs)
    by_label = _by_label(found)
    missing = [name for name in total_rails if name not in by_label]
    present = [by_label[name] for name in total_rails if name in by_label]
    if not present or (missing and not allow_partial):
        raise _refusal(total_rails, missing, found)
    if missing:
        coverage = f"partial, without {', '.join(missing)}"
        log.warning("the total leaves out %s", ", ".join(missing))
    return RailMeter(sysfs, present, coverage=coverage, averaging_s=_averaging_s(sysfs, present, averaging_s))


# --- sampling -----------------------------------------------------------------------------------------------


class Sampler:
    """Reads a meter at `rate_hz` between `start` and `stop`; failed reads are counted, never guessed."""

    def __init__(self, clock: Clock, meter: Readable, *, rate_hz: float, external_w: float = 0.0) -> None:
        self._clock = clock
        self._meter = meter
        self._period_s = 1.0 / rate_hz
        self._external_w = external_w
        self._times_s: list[float] = []
        self._readings: list[tuple[tuple[float, float], ...]] = []
        self._lost = 0
        self._ticker: Ticker | None = None
        self.last_error: SensorError | None = None

    def start(self) -> None:
        """Begin anew; the first reading is taken at once."""
        if self._ticker is not None:
            raise RuntimeError("the sampler runs already")
        self._times_s, self._readings, self._lost = [], [], 0
        self._ticker = self._clock.every(self._period_s, self._tick)

    def _tick(self, _: float) -> None:
        before_s = self._clock.monotonic_s()
        try:
            reading = self._meter.read()
        except SensorError as error:
            self._lost += 1
            self.last_error = error
            log.debug("%s", error)
            return
        at_s = (before_s + self._clock.monotonic_s()) / 2
        if self._times_s and at_s <= self._times_s[-1]:
            return
        self._readings.append(reading)
        self._times_s.append(at_s)

    @property
    def power_w(self) -> float | None:
        """The last reading of the total, `external_w` included; None before the first."""
        if not self._times_s:
            return None
        reading = self._readings[len(self._times_s) - 1]
        return sum(volts * amperes for volts, amperes in reading) + self._external_w

    def trace(self) -> PowerTrace:
        """What was read so far."""
        import numpy as np

        from jouletune.measurement import PowerTrace, RailTrace

        count = len(self._times_s)  # appended last: as many readings are whole
        values = np.array(self._readings[:count], dtype=np.float64).reshape(count, len(self._meter.rails), 2)
        rails = tuple(
            RailTrace(
                rail.name,
                values[:, number, 0].copy(),
                values[:, number, 1].copy(),
                rail.voltage_step_v,
                rail.current_step_a,
            )
            for number, rail in enumerate(self._meter.rails)
        )
        return PowerTrace(
            t_s=np.array(self._times_s[:count], dtype=np.float64),
            rails=rails,
            averaging_s=self._meter.averaging_s,
            period_s=self._period_s,
            external_w=self._external_w,
            lost=self._lost,
        )

    def stop(self) -> PowerTrace:
        """End it and give what was read. Raises what a reading raised besides SensorError."""
        if self._ticker is not None:
            ticker, self._ticker = self._ticker, None
            ticker.stop()
        return self.trace()
