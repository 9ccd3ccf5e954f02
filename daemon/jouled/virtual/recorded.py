"""A board made of recorded measurements: its tables are the values of a CSV, its plant answers with the CSV's rows.

Between windows, that is from one start of the load or change of the knobs to the next, energy and latency vary by a
lognormal factor each; each request varies around its window's latency. What was not recorded is made up and stated
here: power at rest is half the least recorded, and a setting without a row (passed on the way from mode to mode) runs
like the nearest row.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from jouled.errors import UsageError, WorkloadError
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.operation import Clocks, Noise, Operation, Power, Setting, Thermal
from jouled.virtual.runner import VirtualRunner
from jouled.virtual.specs import BoardSpec, Channel, Chip, StockMode, board_spec
from jouled.workload.runner import Arrival
from jouletune.errors import SpaceError
from jouletune.space import PowerMode, Space, Variant
from jouletune.table import COLUMNS, Row, Table, parse_table

BASE_MODE = "RECORDED"
_CLUSTER = 4
# A supply whose steps are small beside any board's power: 1 mA at 4 V is 4 mW, 8 mV at 2 A is 16 mW.
_BUS_V = 4.0
_SHUNT_UOHM = 40_000
_REST_SHARE = 0.5


def read_table(path: Path) -> Table:
    """The CSV at `path`. Raises UsageError with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{path}: cannot be read: {why}", hint="--table wants a CSV file") from error
    try:
        return parse_table(text, where=str(path))
    except SpaceError as error:
        raise UsageError(str(error), hint=f"one row a mode; the columns are {','.join(COLUMNS)}") from error


def rail_of(path: Path) -> str:
    """The name of the one rail."""
    return f"recorded:{path.stem}"


def _distinct(table: Table, name: str) -> tuple[int, ...]:
    """The column's values, ascending; none where it was not recorded."""
    values = {getattr(row.candidate.mode, name) for row in table.rows}
    return tuple(sorted(values - {None}))


def _digest(table: Table) -> str:
    """Another one for other measurements, the same for another spelling of the same."""
    lines = (f"{row.candidate} {row.latency_s!r} {row.energy_j!r}\n" for row in table.rows)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:8]


def _in_khz(clocks_hz: Sequence[int], name: str, *, where: Path) -> tuple[int, ...]:
    odd = next((hz for hz in clocks_hz if hz % 1000), None)
    if odd is not None:
        raise UsageError(f"{where}: {name}: wanted whole kHz, as the kernel counts them, got {odd} Hz")
    return tuple(hz // 1000 for hz in clocks_hz)


def recorded_spec(table: Table, path: Path) -> BoardSpec:
    """A board whose tables are the CSV's values; an axis that was not recorded keeps AGX Orin's table.

    Its only mode is the reference's. Raises UsageError.
    """
    cores = max(_distinct(table, "cores"), default=_CLUSTER)
    orin = board_spec("agx-orin-64gb")
    cpu_khz = _in_khz(_distinct(table, "cpu_hz"), "cpu_hz", where=path) or orin.cpu_table_khz
    emc_hz = _distinct(table, "emc_hz")
    _in_khz(emc_hz, "emc_hz", where=path)
    return replace(
        orin,
        name="recorded",
        model=f"Recorded measurements ({path.name})",
        compatible=("nvidia,p0000-0000", "nvidia,tegra234"),
        conf_name=f"nvpmodel_recorded_{_digest(table)}.conf",
        clusters=tuple(tuple(range(first, min(first + _CLUSTER, cores))) for first in range(0, cores, _CLUSTER)),
        cpu_table_khz=cpu_khz,
        cpu_floor_khz=min(cpu_khz),
        gpu_table_hz=_distinct(table, "gpu_hz") or orin.gpu_table_hz,
        emc_table_hz=emc_hz or orin.emc_table_hz,
        modes=(StockMode(0, BASE_MODE, cores),),
        default_mode=BASE_MODE,
        boot_mode=BASE_MODE,
        chips=(Chip("1-0040", (Channel(rail_of(path), _BUS_V, _SHUNT_UOHM, 0.0), None, None)),),
        total_rails=(rail_of(path),),
    )


def _noise(energy_sd: float, latency_sd: float, request_sd: float) -> Noise:
    # Energy is power times latency, so its own noise is what latency leaves over.
    return Noise(
        request_sd=request_sd,
        slow_ratio=0.0,
        ripple_sd=0.0,
        energy_between_sd=math.sqrt(max(0.0, energy_sd**2 - latency_sd**2)),
        latency_between_sd=latency_sd,
        drift_sd=0.0,
        voltage_sd_v=0.0,
    )


def _log_distance(row: Row, at: PowerMode) -> float:
    mode = row.candidate.mode
    pairs = ((mode.cores, at.cores), (mode.cpu_hz, at.cpu_hz), (mode.gpu_hz, at.gpu_hz), (mode.emc_hz, at.emc_hz))
    return sum(math.log(a / b) ** 2 for a, b in pairs if a is not None and b is not None)


class RecordedPlant:
    """Answers with the rows of `table`. The noises are standard deviations of logarithms."""

    def __init__(self, table: Table, rail: str, *, name: str, noise: Noise) -> None:
        self._table = table
        self.rails: tuple[str, ...] = (rail,)
        self.total = self.rails
        self.noise = noise
        self.thermal = Thermal(ambient_c=45.0, c_per_w=0.0)
        self.workload = name
        self.inference_name = "inference"

    def row(self, setting: Setting, variant: Variant) -> Row:
        """The row that is in force. Raises WorkloadError where nothing was recorded of `variant`."""
        at = PowerMode(setting.cores, setting.cpu_cap_hz, setting.gpu_cap_hz, setting.emc_cap_hz)
        rows = [row for row in self._table.rows if row.candidate.variant == variant]
        if not rows:
            raise WorkloadError(f"{self.rails[0]}: wanted a recorded batch size, got {variant}")
        return min(rows, key=lambda row: _log_distance(row, at))

    def operate(self, setting: Setting, variant: Variant) -> Operation:
        """As recorded."""
        row = self.row(setting, variant)
        clocks = Clocks(setting.cpu_cap_hz, setting.gpu_cap_hz, setting.emc_cap_hz)
        return Operation(row.latency_s, _on_rail(row.power_w), self._rest, clocks, clocks)

    def rest(self, setting: Setting) -> tuple[Power, Clocks]:
        """No load."""
        return self._rest, Clocks(setting.cpu_min_hz, setting.gpu_min_hz, setting.emc_cap_hz)

    @cached_property
    def _rest(self) -> Power:
        return _on_rail(_REST_SHARE * min(row.power_w for row in self._table.rows))


def _on_rail(power_w: float) -> Power:
    return Power((power_w,), (0.0,))


class RecordedMachine(VirtualMachine):
    """The board recorded in the CSV at `path`, with its tree at `root`. Raises UsageError.

    `space` holds exactly its rows; the reference is the row with the highest clocks and the smallest batch.
    """

    def __init__(
        self,
        root: Path,
        path: Path,
        *,
        seed: int = 0,
        programs: Literal["children", "in_process"] = "children",
        energy_sd: float = 0.01,
        latency_sd: float = 0.005,
        request_sd: float = 0.005,
        wall_s: Callable[[], float] | None = None,
    ) -> None:
        self.table = read_table(path)
        spec = recorded_spec(self.table, path)
        noise = _noise(energy_sd, latency_sd, request_sd)
        plant = RecordedPlant(self.table, rail_of(path), name=path.stem, noise=noise)
        self._path = path
        super().__init__(root, board=spec, seed=seed, plant=plant, programs=programs, wall_s=wall_s)

    def _refuse_other(self, wanted: BoardSpec) -> None:
        super()._refuse_other(wanted)
        if self.spec == wanted:
            return
        what = f"holds the board {self.spec.model!r}, wanted the one made of {self._path}"
        if self.spec.model == wanted.model:
            what = f"was made of {self._path}, whose contents have changed since"
        raise UsageError(
            f"{self.root}: {what}", hint=f"name another folder with --state-dir, or remove the folder {self.root}"
        )

    @property
    def space(self) -> Space:
        """The candidates: the rows."""
        return self.table.space

    @property
    def rail(self) -> str:
        """The name of the one rail."""
        return self.spec.total_rails[0]

    def runner(self, arrival: Arrival) -> VirtualRunner:
        """Its workload, back to back: power between requests was not recorded. Raises UsageError."""
        if arrival.kind != "back_to_back":
            raise UsageError(
                f"{self.rail}: wanted arrival back_to_back, got {arrival.kind}",
                hint="a recorded board knows its power while busy only; leave --rate-hz out",
            )
        return VirtualRunner(self, arrival)
