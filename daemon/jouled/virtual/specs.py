"""What each virtual board is made of: tables, supplies and stock modes (facts: JETSON sections 1.3, 1.4, 3.1, 4.2)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from jouled.errors import UsageError


@dataclass(frozen=True, slots=True)
class StockMode:
    """One nvpmodel mode in the conf's own units: CPU kHz, everything else Hz; -1: no cap."""

    id: int
    name: str
    cores: int
    cpu_khz: int = -1
    gpu_hz: int = -1
    emc_hz: int = -1
    mask: int = 0
    dla_hz: tuple[int, int] = (-1, -1)
    pva_hz: tuple[int, int] = (-1, -1)


@dataclass(frozen=True, slots=True)
class Channel:
    """One input of an INA3221: its rail, the bus voltage that it sees, its shunt, the supply's droop."""

    label: str
    bus_v: float
    shunt_uohm: int = 2000
    droop_ohm: float = 0.004

    @property
    def current_step_a(self) -> float:
        """One code of the shunt converter (40 µV) as a current."""
        return 40.0 / self.shunt_uohm


@dataclass(frozen=True, slots=True)
class Chip:
    """One power sensor on its I2C address (`kind`: see chips); None is an input that is not connected."""

    address: str
    channels: tuple[Channel | None, ...]
    kind: str = "ina3221"


@dataclass(frozen=True, slots=True)
class BoardSpec:
    """One virtual board. `total_rails` are the rails whose sum is the module's power."""

    name: str
    model: str
    compatible: tuple[str, ...]
    l4t_line: str
    conf_name: str
    clusters: tuple[tuple[int, ...], ...]
    cpu_table_khz: tuple[int, ...]
    cpu_floor_khz: int
    gpu_table_hz: tuple[int, ...]
    emc_table_hz: tuple[int, ...]
    modes: tuple[StockMode, ...]
    default_mode: str
    boot_mode: str
    chips: tuple[Chip, ...]
    total_rails: tuple[str, ...]
    mem_total_kib: int = 64_313_676
    cpu_governor: str = "schedutil"

    def to_json(self) -> str:
        """The whole spec as text, for the tree that is made of it."""
        return json.dumps(asdict(self), indent=1)

    @property
    def cpus(self) -> tuple[int, ...]:
        """All cpu numbers, online or not."""
        return tuple(cpu for cluster in self.clusters for cpu in cluster)

    def mode(self, name: str) -> StockMode:
        """The stock mode called `name`. Raises UsageError with the names that there are."""
        for mode in self.modes:
            if mode.name == name:
                return mode
        known = ", ".join(mode.name for mode in self.modes)
        raise UsageError(f"{self.name}: no nvpmodel mode {name!r}; there are {known}")


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def spec_from_json(text: str) -> BoardSpec:
    """The inverse of `to_json`. Raises ValueError, TypeError, LookupError or AttributeError for another text."""
    fields = json.loads(text)
    modes = tuple(StockMode(**{k: _tuples(v) for k, v in mode.items()}) for mode in fields.pop("modes"))
    chips = tuple(_chip(chip) for chip in fields.pop("chips"))
    return BoardSpec(modes=modes, chips=chips, **{k: _tuples(v) for k, v in fields.items()})


def _chip(fields: dict[str, Any]) -> Chip:
    channels = tuple(None if channel is None else Channel(**channel) for channel in fields["channels"])
    return Chip(fields["address"], channels, fields["kind"])


def _mhz(*values: float) -> tuple[int, ...]:
    return tuple(round(value * 1e6) for value in values)


AGX_ORIN_64GB = BoardSpec(
    name="agx-orin-64gb",
    model="NVIDIA Jetson AGX Orin Developer Kit",
    compatible=("nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234"),
    l4t_line="# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64,"
    " DATE: Wed Jan  8 01:49:37 UTC 2025",
    conf_name="nvpmodel_p3701_0000.conf",
    clusters=((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)),
    cpu_table_khz=(*range(115200, 2188801, 76800), 2201600),
    cpu_floor_khz=729600,
    gpu_table_hz=(*range(306_000_000, 1_224_000_001, 102_000_000), 1_300_500_000),
    emc_table_hz=_mhz(204, 665.6, 2133, 3199),
    modes=(
        StockMode(0, "MAXN", 12),
        StockMode(
            1,
            "MODE_15W",
            4,
            1113600,
            408_000_000,
            2_133_000_000,
            mask=248,
            dla_hz=(614_400_000, 294_400_000),
            pva_hz=(307_200_000, 217_600_000),
        ),
        StockMode(
            2,
            "MODE_30W",
            8,
            1728000,
            612_000_000,
            mask=240,
            dla_hz=(1_369_600_000, 729_600_000),
            pva_hz=(512_000_000, 358_400_000),
        ),
        StockMode(
            3,
            "MODE_50W",
            12,
            1497600,
            816_000_000,
            dla_hz=(1_369_600_000, 729_600_000),
            pva_hz=(704_000_000, 486_400_000),
        ),
    ),
    default_mode="MODE_30W",
    boot_mode="MAXN",
    chips=(
        Chip(
            "1-0040",
            (
                Channel("VDD_GPU_SOC", 19.832),
                Channel("VDD_CPU_CV", 19.816),
                Channel("VIN_SYS_5V0", 4.968, droop_ohm=0.002),
            ),
        ),
        Chip("1-0041", (None, Channel("VDDQ_VDD2_1V8AO", 4.952, droop_ohm=0.002), None)),
    ),
    total_rails=("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),
)

BOARDS: dict[str, BoardSpec] = {AGX_ORIN_64GB.name: AGX_ORIN_64GB}


def board_spec(name: str) -> BoardSpec:
    """The board called `name`. Raises UsageError with the names that there are."""
    try:
        return BOARDS[name]
    except KeyError:
        raise UsageError(f"no virtual board {name!r}; there are {', '.join(sorted(BOARDS))}") from None


def rewired(spec: BoardSpec, channels: tuple[Channel, ...]) -> BoardSpec:
    """`spec` with other inputs on its first INA3221 (at most three), which together are its total."""
    return replace(
        spec, chips=(Chip(spec.chips[0].address, channels),), total_rails=tuple(channel.label for channel in channels)
    )
