"""Heat and over-current as the kernel shows them: zones by type, what throttles, counters, alarms.

Numbers of zones and hwmons mean nothing; types and names do. A zone whose unit is powered off answers EAGAIN and is
absent then, never 0. Over-current events do not show in any clock, only in their counters (JETSON 5).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jouled.board.channels import ina3221_folders
from jouled.board.sysfs import Sysfs
from jouled.errors import SysfsError

log = logging.getLogger(__name__)

IGNORED_COOLING = ("pwm-fan", "hot-surface-alert")  # they cool or warn, and slow nothing down
_JUNCTION = ("tj-thermal", "tj-therm")  # L4T 36 and later, L4T 35


@dataclass(frozen=True, slots=True)
class ThermalState:
    """One look. `zones_c`: °C by type; `cooling`: state by type of the devices that slow something down;
    `over_current`: events since boot by source (oc1 …); `alarms`: the alarms that stand, as hwmon paths.
    """

    zones_c: Mapping[str, float]
    cooling: Mapping[str, int]
    over_current: Mapping[str, int]
    alarms: tuple[str, ...]

    @property
    def throttling(self) -> tuple[str, ...]:
        """Types of the cooling devices that slow something down now."""
        return tuple(sorted(kind for kind, state in self.cooling.items() if state > 0))

    @property
    def hottest_c(self) -> float | None:
        """The junction's temperature, or the hottest zone's where there is none; None: no zone gives a value."""
        for name in _JUNCTION:
            if name in self.zones_c:
                return self.zones_c[name]
        return max(self.zones_c.values(), default=None)


def over_current_growth(before: ThermalState, after: ThermalState) -> dict[str, int]:
    """Events between two looks, by source; a source that one of them lacks is left out."""
    return {
        source: after.over_current[source] - count
        for source, count in before.over_current.items()
        if source in after.over_current
    }


def _source(path: str) -> str:
    return path.rpartition("/")[2].removesuffix("_event_cnt")


def _named(sysfs: Sysfs, pattern: str, attribute: str) -> list[tuple[str, str]]:
    """Folder and the text of `attribute` in it, for each folder that has one."""
    found: list[tuple[str, str]] = []
    for folder in sysfs.glob(pattern):
        try:
            found.append((folder, sysfs.read(f"{folder}/{attribute}")))
        except SysfsError as error:
            log.debug("%s", error)
    return found


class ThermalSensors:
    """Where this boot's sensors lie; found once, read often. `failed`: what gave no value at the last look."""

    def __init__(self, sysfs: Sysfs, *, ignored_cooling: Sequence[str] = IGNORED_COOLING) -> None:
        self._sysfs = sysfs
        self.failed: dict[str, SysfsError] = {}
        self._zones = _named(sysfs, "/sys/class/thermal/thermal_zone[0-9]*", "type")
        coolers = _named(sysfs, "/sys/class/thermal/cooling_device[0-9]*", "type")
        self._cooling = [(folder, kind) for folder, kind in coolers if kind not in ignored_cooling]
        hwmons = _named(sysfs, "/sys/class/hwmon/hwmon[0-9]*", "name")
        self._counters = [
            path
            for folder, name in hwmons
            if name == "soctherm_oc"
            for path in sysfs.glob(f"{folder}/oc[0-9]*_event_cnt")
        ]
        self._alarms = [path for folder in ina3221_folders(sysfs) for path in sysfs.glob(f"{folder}/curr*_crit_alarm")]

    def _values(self, found: Sequence[tuple[str, str]], attribute: str) -> dict[str, int]:
        """By type; of two devices of one type the larger value counts."""
        values: dict[str, int] = {}
        for folder, kind in found:
            value = self._integer(f"{folder}/{attribute}", kind)
            if value is not None:
                values[kind] = max(value, values.get(kind, value))
        return values

    def zones_c(self) -> dict[str, float]:
        """The temperatures alone, by type."""
        return {kind: value / 1000 for kind, value in self._values(self._zones, "temp").items()}

    def over_current(self) -> dict[str, int]:
        """The events alone, by source."""
        counts: dict[str, int] = {}
        for path in self._counters:
            source = _source(path)
            value = self._integer(path, source)
            if value is not None:
                counts[source] = value
        return counts

    def _integer(self, path: str, name: str) -> int | None:
        try:
            value = self._sysfs.read_int(path)
        except SysfsError as error:
            log.debug("%s", error)
            self.failed[name] = error
            return None
        self.failed.pop(name, None)
        return value

    @property
    def zones(self) -> tuple[str, ...]:
        """Their types."""
        return tuple(kind for _, kind in self._zones)

    @property
    def counters(self) -> tuple[str, ...]:
        """Sources of over-current events."""
        return tuple(_source(path) for path in self._counters)

    def read(self) -> ThermalState:
        """Look now. What cannot be read is absent from the answer."""
        return ThermalState(
            zones_c=self.zones_c(),
            cooling=self._values(self._cooling, "cur_state"),
            over_current=self.over_current(),
            alarms=tuple(path for path in self._alarms if self._integer(path, path) == 1),
        )


def read_thermal(sysfs: Sysfs, *, ignored_cooling: Sequence[str] = IGNORED_COOLING) -> ThermalState:
    """One look, finding everything anew."""
    return ThermalSensors(sysfs, ignored_cooling=ignored_cooling).read()
