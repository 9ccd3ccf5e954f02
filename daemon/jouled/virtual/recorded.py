"""A board made of recorded measurements: its tables are the values of a CSV, its plant answers with the CSV's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jouled.errors import UsageError
from jouled.virtual.specs import AGX_ORIN_64GB, BoardSpec, Channel, Chip, StockMode
from jouletune.errors import SpaceError
from jouletune.table import COLUMNS, Table, parse_table

BASE_MODE = "RECORDED"
_CLUSTER = 4
# A supply whose steps are small beside any board's power: 1 mA at 4 V is 4 mW, 8 mV at 2 A is 16 mW.
_BUS_V = 4.0
_SHUNT_UOHM = 40_000


def read_table(path: Path) -> Table:
    """The CSV at `path`. Raises UsageError with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", hint="--table wants a CSV file") from error
    try:
        return parse_table(text, where=str(path))
    except SpaceError as error:
        raise UsageError(str(error), hint=f"the columns are {','.join(COLUMNS)}; see docs/recorded.md") from error


def rail_of(path: Path) -> str:
    """The name of the one rail."""
    return f"recorded:{path.stem}"


def _distinct(table: Table, name: str) -> tuple[int, ...]:
    """The column's values, ascending; none where it was not recorded."""
    values = {getattr(row.candidate.mode, name) for row in table.rows}
    return tuple(sorted(values - {None}))


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
    cpu_khz = _in_khz(_distinct(table, "cpu_hz"), "cpu_hz", where=path) or AGX_ORIN_64GB.cpu_table_khz
    emc_hz = _distinct(table, "emc_hz")
    _in_khz(emc_hz, "emc_hz", where=path)
    return replace(
        AGX_ORIN_64GB,
        name="recorded",
        model=f"Recorded measurements ({path.name})",
        compatible=("nvidia,p0000-0000", "nvidia,tegra234"),
        conf_name="nvpmodel_recorded.conf",
        clusters=tuple(
            tuple(range(first, min(first + _CLUSTER, cores))) for first in range(0, cores, _CLUSTER)
        ),
        cpu_table_khz=cpu_khz,
        cpu_floor_khz=min(cpu_khz),
        gpu_table_hz=_distinct(table, "gpu_hz") or AGX_ORIN_64GB.gpu_table_hz,
        emc_table_hz=emc_hz or AGX_ORIN_64GB.emc_table_hz,
        modes=(StockMode(0, BASE_MODE, cores),),
        default_mode=BASE_MODE,
        boot_mode=BASE_MODE,
        chips=(Chip("1-0040", (Channel(rail_of(path), _BUS_V, _SHUNT_UOHM, 0.0), None, None)),),
        total_rails=(rail_of(path),),
    )
