"""The power sensors in the tree of a virtual board: INA3221 and INA238 in hwmon, INA3221 in IIO (JETSON 4.1, 4.2).

Each makes its files at boot and names the live ones among them, by the board's paths.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jouled.virtual.specs import BoardSpec, Channel, Chip

INA3221, INA238, INA3221X = "ina3221", "ina238", "ina3221x"
VOLTAGE_STEP_MV = 8
_POWER_STEP_UW = 1000
_IIO = "iio:device"


@dataclass(frozen=True, slots=True)
class Made:
    """One device: the files of its folder, which is `class_folder`N of `device`, and links to the device."""

    device: str
    folder: str
    attributes: Mapping[str, str]
    driver_link: str


@dataclass(frozen=True, slots=True)
class Live:
    """A file that tells a rail's `quantity` ("mv", "ma", "mw" or "uw")."""

    path: str
    label: str
    quantity: str


def device_of(spec: BoardSpec, chip: Chip) -> str:
    """The chip's device folder."""
    return f"{spec.layout.i2c}/{chip.address}"


def made(spec: BoardSpec, chip: Chip, number: int) -> Made:
    """The files of `chip` as device `number`."""
    device = device_of(spec, chip)
    if chip.kind == INA3221X:
        attributes = {"name": "ina3221x"} | _merged(_iio_input(index, c) for index, c in enumerate(chip.channels))
        return Made(device, f"{device}/{_IIO}{number}", attributes, f"/sys/bus/i2c/drivers/ina3221x/{chip.address}")
    folder = f"{device}/hwmon/hwmon{number}"
    if chip.kind == INA238:
        (channel,) = chip.channels
        assert channel is not None
        return Made(device, folder, _ina238(channel), f"/sys/bus/i2c/drivers/ina238/{chip.address}")
    attributes = {"name": INA3221, "samples": "512", "update_interval": "430"}
    attributes |= _merged(_ina3221_input(index, c) for index, c in enumerate(chip.channels, 1))
    attributes |= {"in7_label": "sum of shunt voltages", "in7_input": "0"}
    return Made(device, folder, attributes, f"/sys/bus/i2c/drivers/ina3221/{chip.address}")


def _merged(parts: Iterator[dict[str, str]]) -> dict[str, str]:
    return {name: text for part in parts for name, text in part.items()}


def _ina3221_input(index: int, channel: Channel | None) -> dict[str, str]:
    if channel is None:
        return {f"in{index}_label": "NC", f"in{index}_enable": "0", f"in{index}_input": "0", f"curr{index}_input": "0"}
    return {
        f"in{index}_label": channel.label,
        f"in{index}_enable": "1",
        f"in{index}_input": _rest_mv(channel),
        f"curr{index}_input": _rest_ma(channel),
        f"curr{index}_crit": "32760",
        f"curr{index}_max": "32760",
        f"curr{index}_crit_alarm": "0",
        f"curr{index}_max_alarm": "0",
        f"shunt{index}_resistor": str(channel.shunt_uohm),
        f"in{index + 3}_input": "0",
    }


def _ina238(channel: Channel) -> dict[str, str]:
    texts = {"name": INA238, "in0_input": "0", "in1_input": _rest_mv(channel), "curr1_input": _rest_ma(channel)}
    return texts | {"power1_input": str(round(channel.rest_w * 1e6)), "label": channel.label}


def _iio_input(index: int, channel: Channel | None) -> dict[str, str]:
    """Names end in a number; limits carry their unit."""
    if channel is None:
        return {f"rail_name_{index}": "NC"}
    return {
        f"rail_name_{index}": channel.label,
        f"in_voltage{index}_input": _rest_mv(channel),
        f"in_current{index}_input": _rest_ma(channel),
        f"in_power{index}_input": str(round(channel.rest_w * 1000)),
        f"warn_current_limit_{index}": "32760 ma",
        f"crit_current_limit_{index}": "32760 ma",
    }


def _rest_mv(channel: Channel) -> str:
    return str(round(channel.bus_v * 1000 / VOLTAGE_STEP_MV) * VOLTAGE_STEP_MV)


def _rest_ma(channel: Channel) -> str:
    """The current until a machine runs on the tree."""
    codes = round(channel.rest_w / channel.bus_v / channel.current_step_a)
    return str(round(codes * channel.current_step_a * 1000))


def live(root: str, spec: BoardSpec, chip: Chip) -> Iterator[Live]:
    """What a running machine computes of `chip`, by the number that it has since this boot."""
    device = device_of(spec, chip)
    quantities: tuple[tuple[str, str], ...] = (("in{}_input", "mv"), ("curr{}_input", "ma"))
    if chip.kind == INA3221X:
        (name,) = (each for each in os.listdir(root + device) if each.startswith(_IIO))
        quantities = (("in_voltage{}_input", "mv"), ("in_current{}_input", "ma"), ("in_power{}_input", "mw"))
        folder, first = f"{device}/{name}", 0
    else:
        (name,) = os.listdir(f"{root}{device}/hwmon")
        if chip.kind == INA238:
            quantities = (*quantities, ("power{}_input", "uw"))
        folder, first = f"{device}/hwmon/{name}", 1
    for index, channel in enumerate(chip.channels, first):
        if channel is not None:
            for pattern, quantity in quantities:
                yield Live(f"{folder}/{pattern.format(index)}", channel.label, quantity)


def converted(chip: Chip, channel: Channel, watts: float, offset_v: float) -> dict[str, int]:
    """One conversion of `watts`, by quantity.

    An INA3221 rounds the bus voltage to 8 mV and the shunt voltage to 40 µV; an INA238 multiplies at full width and
    rounds the power, here to 1 mW (its step follows from a shunt that is not known).
    """
    bus_v = channel.bus_v - channel.droop_ohm * watts / channel.bus_v + offset_v
    codes = round(watts / bus_v / channel.current_step_a)
    bus_mv = round(bus_v * 1000 / VOLTAGE_STEP_MV) * VOLTAGE_STEP_MV
    current_ma = round(codes * channel.current_step_a * 1000)
    if chip.kind == INA238:
        power_uw = round(watts * 1e6 / _POWER_STEP_UW) * _POWER_STEP_UW
        return {"mv": round(bus_v * 1000), "ma": round(1000 * watts / bus_v), "uw": power_uw}
    return {"mv": bus_mv, "ma": current_ma, "mw": bus_mv * current_ma // 1000}
