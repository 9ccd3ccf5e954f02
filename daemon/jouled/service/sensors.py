"""The board's sensors as the daemon reads them: what gives no value is left out and counted, the rest is told.

A unit that is off answers EAGAIN, a sensor that is another user's EACCES: neither is lost, so neither is counted. A
part of the total rail is not the total: of its rails all are told, or none.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping, Sequence

from jouled.board.board import Board
from jouled.board.clocks import read_clocks
from jouled.board.rails import RailMeter, find_meter
from jouled.board.sysfs import Sysfs
from jouled.board.thermal import ThermalSensors
from jouled.board.verify import effective_emc_hz
from jouled.errors import AbsentError, ForbiddenError, JouledError, SensorsHiddenError, SysfsError
from jouled.service.energy import EnergyCounter
from jouled.state import Readings

log = logging.getLogger(__name__)

FIND_EVERY_S = 60.0
_KINDS = ("rails", "clocks", "caps")


class Sensors:
    """Those of one machine, over all its boots. `total_rails`: the configuration's; empty: the board's own."""

    def __init__(self, sysfs: Sysfs, total_rails: Sequence[str]) -> None:
        self._sysfs = sysfs
        self._total_rails = total_rails
        self._thermal: ThermalSensors | None = None
        self._meter: RailMeter | None = None
        self._find_due_s = 0.0
        self._missing: JouledError | None = None
        self._caps_hz: Mapping[str, int] = {}
        self._errors: dict[str, int] = {}
        self._silent: set[str] = set()
        self.energy = EnergyCounter()

    def renew(self) -> None:
        """The board was discovered anew: sensors may lie elsewhere."""
        self._thermal, self._meter, self._find_due_s, self._caps_hz = None, None, 0.0, {}

    def read(self, board: Board | None, wall_s: float, now_s: float, *, with_caps: bool) -> Readings:
        """All of them, now. Caps are knobs: they are read where that is wanted, else told as they were."""
        if board is None:
            return Readings(wall_s, sensor_errors=dict(self._errors), energy_j=self.energy.told())
        for name in _KINDS:
            self._errors.setdefault(name, 0)
        zones_c, events = self._heat()
        if with_caps:
            self._caps_hz = self._caps(board)
        return Readings(
            wall_s,
            rail_power_w=self.rails_w(board, now_s),
            clock_hz=self._clocks_hz(board),
            clock_cap_hz=self._caps_hz,
            temperature_c=zones_c,
            throttle_events=events,
            sensor_errors=dict(self._errors),
            energy_j=self.energy.told(),
        )

    def _heat(self) -> tuple[dict[str, float], dict[str, int]]:
        if self._thermal is None:
            self._thermal = ThermalSensors(self._sysfs)
        zones_c, events = self._thermal.zones_c(), self._thermal.over_current()
        for name in (*self._thermal.zones, *self._thermal.counters):
            self._judge(name, self._thermal.failed.get(name))
        return zones_c, events

    def rails_w(self, board: Board, now_s: float) -> dict[str, float]:
        """Watts of each rail of the total; empty where one gives no value."""
        try:
            meter = self._rails(board, now_s)
            found = () if meter is None else meter.read()
        except JouledError as error:
            self._judge("rails", error)
            return {}
        self._judge("rails", None)
        rails = () if meter is None else meter.rails
        return {rail.name: volts * amperes for rail, (volts, amperes) in zip(rails, found, strict=True)}

    def _rails(self, board: Board, now_s: float) -> RailMeter | None:
        """None: the board has no total that is known, or it is hidden. Looks each minute. Raises NotSupportedError."""
        rails = self._total_rails or board.file.total_rails
        if self._meter is None and rails and now_s >= self._find_due_s:
            self._find_due_s, self._missing = now_s + FIND_EVERY_S, None
            try:
                self._meter = find_meter(
                    self._sysfs, rails, coverage=board.file.coverage, averaging_s=board.file.rail_averaging_s
                )
            except SensorsHiddenError as error:
                log.debug("%s", error)
            except JouledError as error:
                self._missing = error
        if self._meter is None and self._missing is not None:
            raise self._missing
        return self._meter

    def _clocks_hz(self, board: Board) -> dict[str, int]:
        failed: list[SysfsError] = []
        found = read_clocks(self._sysfs, board.domains, failed=failed)
        # A cluster that is offline has no clock, and the memory's is root's to read.
        lost = [error for error in failed if not isinstance(error, AbsentError | ForbiddenError)]
        self._judge("clocks", lost[0] if lost else None)
        named = {"cpu": found.cpu_hz, "gpu": found.gpu_hz, "emc": found.emc_hz}
        return {name: value for name, value in named.items() if value is not None}

    def _caps(self, board: Board) -> dict[str, int]:
        sysfs, domains = self._sysfs, board.domains
        caps: dict[str, int] = {}
        try:
            cpu_khz = [
                sysfs.read_int(f"{path}/scaling_max_freq") for path, _ in domains.cpu.policies if sysfs.exists(path)
            ]
            if cpu_khz:
                caps["cpu"] = max(cpu_khz) * 1000
            if domains.gpu is not None:
                caps["gpu"] = sysfs.read_int(f"{domains.gpu.path}/max_freq")
            if domains.emc is not None:
                cap_hz = effective_emc_hz(sysfs.read(domains.emc.cap_path), domains.emc.table_hz)
                caps |= {} if cap_hz is None else {"emc": cap_hz}
        except SysfsError as error:
            self._judge("caps", error)
            return caps
        self._judge("caps", None)
        return caps

    def _judge(self, sensor: str, error: JouledError | None) -> None:
        """Count what is lost; the first time, say it."""
        count = self._errors.setdefault(sensor, 0)
        if error is None or (isinstance(error, SysfsError) and error.errno in (errno.EAGAIN, errno.EACCES)):
            self._silent.discard(sensor)
            return
        self._errors[sensor] = count + 1
        if sensor not in self._silent:
            self._silent.add(sensor)
            log.warning("sensor %s gives no value; its series is absent until it does: %s", sensor, error)
