"""Recorded measurements: one row of a CSV is one candidate with its latency and energy (stdlib only)."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass

from jouletune.errors import SpaceError
from jouletune.space import Candidate, PowerMode, Space, Variant

COLUMNS = ("cores", "cpu_hz", "gpu_hz", "emc_hz", "batch", "latency_s", "energy_j")
_MODE_COLUMNS = COLUMNS[:4]
_BATCH_SIZES = 20
_MAX_LINE = 10_000
_MAX = {"cores": 1024}  # a board of so many is made for the table
_MAX_CLOCK_HZ = 999_999_999_999
_RANGES = {"latency_s": (1e-5, 1e5), "energy_j": (1e-9, 1e9)}  # a window holds each request
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. `number`: 0-based row of the CSV; `latency_s` of the whole batch, `energy_j` per item."""

    number: int
    candidate: Candidate
    latency_s: float
    energy_j: float

    @property
    def power_w(self) -> float:
        """While busy."""
        return self.energy_j * self.candidate.variant.batch / self.latency_s


@dataclass(frozen=True, slots=True)
class Table:
    """The rows that have an energy, in the order of `space.candidates`."""

    rows: tuple[Row, ...]
    space: Space


def parse_table(text: str, *, where: str) -> Table:
    """Read a CSV with the header of `COLUMNS` in any order; `where` names it in errors. Raises SpaceError.

    Rows without energy are left out, and of more than 20 batch sizes all but the powers of two. The reference is
    the row with the highest clocks and the smallest batch.
    """
    lines = _cells(text, where=where)
    header = [name.strip() for name in lines[0]] if lines else []
    if sorted(header) != sorted(COLUMNS):
        raise SpaceError(f"{where}:1: wanted the header {','.join(COLUMNS)}, got {','.join(header)[:200] or 'nothing'}")
    rows: list[Row] = []
    first_line: dict[Candidate, int] = {}
    for number, cells in enumerate(lines[1:]):
        at = f"{where}:{number + 2}"
        row = _row(number, header, cells, at=at) if cells else None
        if row is None:
            continue
        if row.candidate in first_line:
            raise SpaceError(f"{at}: wanted each mode and batch once, got those of line {first_line[row.candidate]}")
        first_line[row.candidate] = number + 2
        rows.append(row)
    return _table(_some_batches(rows), where=where)


def render_table(rows: Sequence[Row]) -> str:
    """The CSV that `parse_table` reads `rows` from, in their order; an axis that is None is an empty cell."""
    lines = [",".join(COLUMNS)]
    for row in rows:
        mode, batch = row.candidate.mode, row.candidate.variant.batch
        cells = (mode.cores, mode.cpu_hz, mode.gpu_hz, mode.emc_hz, batch)
        numbers = (f"{row.latency_s:.9g}", f"{row.energy_j:.9g}")
        lines.append(",".join([*("" if cell is None else str(cell) for cell in cells), *numbers]))
    return "\n".join(lines) + "\n"


def _cells(text: str, *, where: str) -> list[list[str]]:
    """The cells of each line. Raises SpaceError with line and column."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if "\0" in line:
            raise SpaceError(f"{where}:{number}:{line.index(chr(0)) + 1}: wanted text, got a NUL byte")
        if len(line) > _MAX_LINE:
            raise SpaceError(
                f"{where}:{number}:{_MAX_LINE + 1}: wanted at most {_MAX_LINE} characters a line, got {len(line)}"
            )
    reader = csv.reader(lines)
    try:
        return list(reader)
    except csv.Error as error:  # a quote that is never closed swallows line after line
        raise SpaceError(f"{where}:{reader.line_num}: wanted comma-separated cells: {error}") from error


def _table(rows: Sequence[Row], *, where: str) -> Table:
    if not rows:
        raise SpaceError(f"{where}: wanted at least one row with latency_s and energy_j, got none")
    reference = max(rows, key=_highest_clocks).candidate
    try:
        space = Space.of([row.candidate for row in rows], reference)
    except SpaceError as error:
        raise SpaceError(f"{where}: {error}") from error
    return Table(tuple(rows), space)


def _highest_clocks(row: Row) -> tuple[int, ...]:
    mode = row.candidate.mode
    clocks = (mode.gpu_hz or 0, mode.cpu_hz or 0, mode.emc_hz or 0, mode.cores or 0)
    return (*clocks, -row.candidate.variant.batch)


def _some_batches(rows: Sequence[Row]) -> list[Row]:
    sizes = {row.candidate.variant.batch for row in rows}
    if len(sizes) <= _BATCH_SIZES:
        return list(rows)
    return [row for row in rows if row.candidate.variant.batch.bit_count() == 1]


def _row(number: int, header: Sequence[str], cells: Sequence[str], *, at: str) -> Row | None:
    if len(cells) != len(header):
        raise SpaceError(f"{at}: wanted {len(header)} cells, got {len(cells)}")
    named = dict(zip(header, (cell.strip() for cell in cells), strict=True))
    mode = PowerMode(**{name: _integer(named, name, at=at) for name in _MODE_COLUMNS})
    batch = _integer(named, "batch", at=at)
    energy_j = _number(named, "energy_j", at=at)
    if energy_j is None:
        return None
    latency_s = _number(named, "latency_s", at=at)
    if latency_s is None:
        raise SpaceError(f"{at}: latency_s: wanted a number of seconds, got an empty cell")
    return Row(number, Candidate(mode, Variant(batch=1 if batch is None else batch)), latency_s, energy_j)


def _integer(named: dict[str, str], name: str, *, at: str) -> int | None:
    text = named[name]
    if text == "":
        return None
    if not (text.isascii() and text.isdecimal()) or not text.strip("0"):
        raise SpaceError(f"{at}: {name}: wanted a whole number of at least 1 or nothing, got {_shown(text)}")
    most = _MAX.get(name, _MAX_CLOCK_HZ)
    if len(text) > len(str(_MAX_CLOCK_HZ)) or int(text) > most:
        raise SpaceError(f"{at}: {name}: wanted at most {most}, got {_shown(text)}")
    return int(text)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}… ({len(text)} characters)"


def _number(named: dict[str, str], name: str, *, at: str) -> float | None:
    text = named[name]
    if text == "":
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0.0):
        raise SpaceError(f"{at}: {name}: wanted a number above 0 or nothing, got {_shown(text)}")
    least, most = _RANGES[name]
    if not least <= value <= most:
        raise SpaceError(f"{at}: {name}: wanted {least:g} to {most:g}, got {_shown(text)}")
    return value
