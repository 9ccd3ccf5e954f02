"""The inputs of a board's power sensors: INA3221 and INA238 as hwmon devices, INA3221 as the IIO device of L4T 32.

hwmon and IIO numbers differ from boot to boot, so nothing goes by number. Source: JETSON 4.1, 4.2.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from jouled.board.sysfs import Sysfs
from jouled.errors import ForbiddenError, SysfsError

log = logging.getLogger(__name__)

_INPUTS = (1, 2, 3)  # of an INA3221; in4 … in6 are shunt voltages in µV, in7 a sum: no rails
_VOLTAGE_STEP_V = 0.008
_SHUNT_STEP_V = 40e-6
_UW, _MW = 1e-6, 1e-3
_HWMON = "/sys/class/hwmon/hwmon*/name"
_IIO = "/sys/bus/i2c/drivers/ina3221x/*/iio:device*/rail_name_*"
_LABELS = ("power1_label", "in1_label", "label")
SYSTEM_INPUT = "VIN"  # what the one INA238 of a Jetson measures (Thor's carrier), where no label says so


@dataclass(frozen=True, slots=True)
class Rail:
    """One measured supply and its sensor's steps (0: not known)."""

    name: str
    voltage_step_v: float
    current_step_a: float


class Channel(Protocol):
    """One input of a chip in `folder`."""

    @property
    def folder(self) -> str: ...

    @property
    def rail(self) -> Rail: ...

    def read(self, sysfs: Sysfs) -> tuple[float, float]:
        """Volts and amperes, now. Raises SysfsError."""


@dataclass(frozen=True, slots=True)
class PairChannel:
    """A voltage and a current, input `number` of an INA3221: power is their product."""

    folder: str
    number: int
    rail: Rail

    def read(self, sysfs: Sysfs) -> tuple[float, float]:
        voltage_mv = sysfs.read_int(f"{self.folder}/in{self.number}_input")
        current_ma = sysfs.read_int(f"{self.folder}/curr{self.number}_input")
        return voltage_mv / 1000, current_ma / 1000


@dataclass(frozen=True, slots=True)
class PowerChannel:
    """A power that the chip has multiplied itself: told as that many amperes at 1 V."""

    folder: str
    attribute: str
    unit_w: float
    rail: Rail

    def read(self, sysfs: Sysfs) -> tuple[float, float]:
        return 1.0, sysfs.read_int(f"{self.folder}/{self.attribute}") * self.unit_w


@dataclass
class Found:
    """What a look for channels came to. `hidden`: what is there, but not for this user."""

    channels: list[Channel] = field(default_factory=list)
    chips: int = 0
    hidden: list[str] = field(default_factory=list)


class _Look:
    """One look at all chips."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self.found = Found()

    def text(self, path: str) -> str | None:
        """None: it is not there, or cannot be read."""
        try:
            return self._sysfs.read(path)
        except SysfsError as error:
            self._note(error)
            return None

    def _note(self, error: SysfsError) -> None:
        log.debug("%s", error)
        if isinstance(error, ForbiddenError):
            self.found.hidden.append(str(error))

    def try_channel(self, channel: Channel) -> None:
        """Keep it if it gives a value (an input that is switched off answers ENODATA)."""
        try:
            channel.read(self._sysfs)
        except SysfsError as error:
            log.warning("rail %s is left out: %s", channel.rail.name, error)
            self._note(error)
            return
        self.found.channels.append(channel)

    def hwmon(self) -> None:
        makers: dict[str | None, Callable[[str], Iterator[Channel]]] = {
            "ina3221": self._ina3221,
            "ina238": self._ina238,
        }
        for path in self._sysfs.glob(_HWMON):
            make = makers.get(self.text(path))
            if make is not None:
                self.found.chips += 1
                for channel in make(path.rpartition("/")[0]):
                    self.try_channel(channel)

    def _ina3221(self, folder: str) -> Iterator[Channel]:
        for number in _INPUTS:
            label = self.text(f"{folder}/in{number}_label")
            if label is None or label == "NC" or self.text(f"{folder}/in{number}_enable") == "0":
                continue
            shunt_uohm = self.text(f"{folder}/shunt{number}_resistor") or ""
            known = shunt_uohm.isdigit() and int(shunt_uohm) > 0
            step_a = _SHUNT_STEP_V / (int(shunt_uohm) * 1e-6) if known else 0.0
            yield PairChannel(folder, number, Rail(label, _VOLTAGE_STEP_V, step_a))

    def _ina238(self, folder: str) -> Iterator[Channel]:
        """One input. Its steps follow from a shunt that the driver does not tell."""
        labels = (self.text(f"{folder}/{name}") for name in _LABELS)
        label = next((label for label in labels if label), SYSTEM_INPUT)
        yield PowerChannel(folder, "power1_input", _UW, Rail(label, 0.0, 0.0))

    def iio(self) -> None:
        folders = set()
        for path in self._sysfs.glob(_IIO):
            folder, _, name = path.rpartition("/")
            label, number = self.text(path), name.removeprefix("rail_name_")
            folders.add(folder)
            if label and label != "NC" and number.isdigit():
                self.try_channel(PowerChannel(folder, f"in_power{number}_input", _MW, Rail(label, 0.0, 0.0)))
        self.found.chips += len(folders)


def find_channels(sysfs: Sysfs) -> Found:
    """Every input that gives a value, of every chip that is known here."""
    look = _Look(sysfs)
    look.hwmon()
    look.iio()
    return look.found


def ina3221_folders(sysfs: Sysfs) -> tuple[str, ...]:
    """The hwmon folders of all INA3221 chips."""
    look = _Look(sysfs)
    return tuple(path.rpartition("/")[0] for path in sysfs.glob(_HWMON) if look.text(path) == "ina3221")
