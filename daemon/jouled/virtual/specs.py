"""What a virtual board is made of: tables, supplies and stock modes, read from its file in boards/."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jouled.errors import UsageError
from jouled.virtual.layout import LAYOUTS, Layout

BOARDS = Path(__file__).parent / "boards"
PLANT_SECTIONS = ("wiring", "silicon", "thermal")  # of a board's file, those that are not its tree's


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
    """One input of a power sensor: its rail, the bus voltage that it sees, its shunt, the supply's droop.

    `rest_w` is what its files tell before a machine runs on the tree.
    """

    label: str
    bus_v: float
    shunt_uohm: int = 2000
    droop_ohm: float = 0.004
    rest_w: float = 0.0

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
    """One virtual board. `total_rails` are the rails whose sum is the module's power (Thor: the board's).

    `family` names the layout of its kernel. `tpcs` are those of the whole die; `fbp_mask` is what every mode's conf
    sets, None: it holds no such line. `cpu_params`: the conf has a clock section per cluster or per core. `engines`: it
    has DLA and PVA lines. `confidence`: how well each part is known (docs/boards.md).
    """

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
    family: str = "l4t36"
    tpcs: int = 8
    fbp_mask: int | None = None
    cpu_params: Literal["cluster", "core"] = "cluster"
    engines: bool = False
    confidence: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The whole spec as text, for the tree that is made of it."""
        return json.dumps(asdict(self), indent=1)

    @property
    def layout(self) -> Layout:
        """Where its kernel has its attributes."""
        return LAYOUTS[self.family]

    @property
    def assumed(self) -> tuple[str, ...]:
        """What of it is neither seen nor inferred."""
        return tuple(sorted(what for what, level in self.confidence.items() if level in ("assumed", "unknown")))

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


# --- the boards, one file each ------------------------------------------------------------------------------


def board_names() -> tuple[str, ...]:
    """The virtual boards that there are."""
    return tuple(sorted(path.stem for path in BOARDS.glob("*.toml")))


def board_data(name: str) -> dict[str, Any]:
    """What the file of the board called `name` holds. Raises UsageError with the names that there are."""
    if sys.version_info >= (3, 11):  # here, since the virtual programs import this module without any library
        import tomllib
    else:
        import tomli as tomllib
    if name not in board_names():
        raise UsageError(f"no virtual board {name!r}; there are {', '.join(board_names())}")
    return tomllib.loads((BOARDS / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def board_spec(name: str) -> BoardSpec:
    """The board called `name`. Raises UsageError with the names that there are."""
    fields = board_data(name)
    for section in PLANT_SECTIONS:
        fields.pop(section, None)
    modes = tuple(StockMode(**{k: _tuples(v) for k, v in mode.items()}) for mode in fields.pop("modes"))
    chips = tuple(
        Chip(**{**chip, "channels": tuple(Channel(**c) if c else None for c in chip["channels"])})
        for chip in fields.pop("chips")
    )
    return BoardSpec(name=name, modes=modes, chips=chips, **{k: _tuples(v) for k, v in fields.items()})


def rewired(spec: BoardSpec, channels: tuple[Channel, ...]) -> BoardSpec:
    """`spec` with other inputs on its first INA3221 (at most three), which together are its total."""
    return replace(
        spec, chips=(Chip(spec.chips[0].address, channels),), total_rails=tuple(channel.label for channel in channels)
    )
