"""`jouled front`: what latency buys, measured and predicted told apart."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jouled.board.modename import mode_name
from jouled.cli.ledgers import in_ledgers
from jouled.cli.output import FIXED, WIDTH, counted, percent, quantity, variant_name
from jouled.errors import StateError
from jouled.job.front import Measured, measured_front
from jouletune.front import Allowance, FrontRow, Interval
from jouletune.space import PowerMode

SCHEMA = 1
LEVEL = 0.9  # of every interval
_LIMITS = ("", "_low", "_high")


def front(arguments: argparse.Namespace) -> int:
    """Print what the ledger makes of a job and those before it; no board is touched. Raises JouledError."""
    found = in_ledgers(arguments, lambda folders: measured_front(folders, arguments.job))
    if arguments.csv is not None:
        _write(arguments.csv, _csv(found))
    if arguments.json:
        print(json.dumps(_json(found), allow_nan=False))
    elif arguments.csv is None or str(arguments.csv) != "-":
        print(_text(found))
    return 0


def _write(path: Path, text: str) -> None:
    if str(path) == "-":
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StateError(f"--csv: {path}: cannot be written: {error.strerror}", hint="name another file") from error


# --- for programs -------------------------------------------------------------------------------------------


def _states(found: Measured, row: FrontRow) -> list[str]:
    is_reference = row.index == found.of.space.reference
    is_winner = row.candidate == found.of.winner
    return [*(["reference"] if is_reference else []), *(["winner"] if is_winner else [])]


def _row(found: Measured, row: FrontRow) -> dict[str, Any]:
    mode, variant = row.candidate.mode, row.candidate.variant
    return {
        "mode": {"cores": mode.cores, "cpu_hz": mode.cpu_hz, "gpu_hz": mode.gpu_hz, "emc_hz": mode.emc_hz},
        "variant": {"engine": variant.engine, "batch": variant.batch, "instances": variant.instances},
        "state": _states(found, row),
        "measured": row.is_measured,
        "windows": row.windows,
        "latency_s": row.latency_s,
        "latency_interval_s": list(row.latency_interval_s),
        "energy_j": row.energy_j,
        "energy_interval_j": list(row.energy_interval_j),
        "saving_ratio": row.saving_ratio,
        "saving_interval": list(row.saving_interval),
    }


def _json(found: Measured) -> dict[str, Any]:
    of, started = found.of, found.of.started
    names = ("board", "base_mode", "rail", "rail_coverage", "workload", "arrival", "latency_percentile", "wall_s")
    return {
        "schema": SCHEMA,
        "job": of.job,
        **{name: started.get(name) for name in names},
        "latency_bound_s": of.bound_s,
        "policy": of.policy,
        "interval": LEVEL,
        "windows": len(of.windows),
        "earlier": {
            "windows": len(found.known.windows),
            "jobs": found.known.jobs,
            "not_used": dict(found.known.not_used),
        },
        "reference": _row(found, found.front.reference),
        "front": [_row(found, row) for row in found.front.rows],
        "curve": [
            {
                "latency_ratio": step.latency_ratio,
                "latency_bound_s": step.latency_bound_s,
                **_row(found, step.row),
            }
            for step in found.front.curve
        ],
    }


def _csv(found: Measured) -> str:
    """Every candidate, those of the front marked."""
    names = [f"{name}{limit}_{unit}" for name, unit in (("latency", "s"), ("energy", "j")) for limit in _LIMITS]
    names += [f"saving{limit}_ratio" for limit in _LIMITS]
    head = ["cores", "cpu_hz", "gpu_hz", "emc_hz", "engine", "batch", "instances", "windows", "on_front"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*head, *names])
    on_front = {row.index for row in found.front.rows}
    for row in found.front.candidates:
        mode, variant = row.candidate.mode, row.candidate.variant
        fixed = [mode.cores, mode.cpu_hz, mode.gpu_hz, mode.emc_hz, variant.engine, variant.batch, variant.instances]
        numbers = [
            *(row.latency_s, *row.latency_interval_s),
            *(row.energy_j, *row.energy_interval_j),
            *(row.saving_ratio, *row.saving_interval),
        ]
        writer.writerow([*fixed, row.windows, int(row.index in on_front), *(f"{value:.6g}" for value in numbers)])
    return out.getvalue()


# --- for people ---------------------------------------------------------------------------------------------


def _text(found: Measured) -> str:
    parts = [*_head(found), "", *_table(found), "", *_curve(found), "", *_notes()]
    return "\n".join(parts)


def _is_fixed(found: Measured) -> bool:
    return bool(found.of.started.get("base_mode") == FIXED)


def _home(found: Measured) -> str:
    return "the first variant" if _is_fixed(found) else str(found.of.started.get("base_mode"))


def _head(found: Measured) -> Iterator[str]:
    of, started = found.of, found.of.started
    where = "fixed mode" if _is_fixed(found) else _home(found)
    yield f"{started.get('board')} in {where}: {started.get('workload')}, {started.get('arrival')}"
    earlier = ""
    if found.known.windows:
        count, jobs = len(found.known.windows), found.known.jobs
        earlier = f" and {count} of {counted(jobs, 'job')} before it"
    yield f"  rail  {started.get('rail')} ({started.get('rail_coverage')})"
    yield f"  from  job {of.job}: {counted(len(of.windows), 'valid window')}{earlier}"


def _name(row: FrontRow) -> str:
    mode = "" if row.candidate.mode == PowerMode() else mode_name(row.candidate.mode)
    return " ".join(filter(None, (mode, variant_name(row.candidate.variant)))) or "the workload as it is"


def _half(interval: Interval, middle: float) -> str:
    return f"± {100 * (interval[1] - interval[0]) / 2 / middle:.1f} %"


def _saving(row: FrontRow) -> str:
    low, high = (100 * value for value in row.saving_interval)
    return f"{100 * row.saving_ratio:.1f} % ({low:.1f} to {high:.1f})"


def _known(row: FrontRow) -> str:
    return counted(row.windows, "window") if row.is_measured else "predicted"


def _table(found: Measured) -> Iterator[str]:
    """The front by latency; the reference stands first where it is beaten."""
    reference, rows = found.front.reference, list(found.front.rows)
    if reference not in rows:
        rows.insert(0, reference)
    percentile = found.of.started.get("latency_percentile")
    latency = "latency" if percentile is None else f"latency p{percentile:g}"
    what = "variant" if _is_fixed(found) else "cores-CPU-GPU-EMC, MHz"
    cells = [[what, latency, "", "energy", "saves", ""]]
    for row in rows:
        numbers = [quantity(row.latency_s, "s"), _half(row.latency_interval_s, row.latency_s)]
        saves = _saving(row) if row.index != reference.index else "-"
        states = ", ".join([_known(row), *_states(found, row)])
        cells.append([_name(row), *numbers, quantity(row.energy_j, "J"), saves, states])
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    for line in cells:
        yield "  " + " ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _curve(found: Measured) -> Iterator[str]:
    """A sentence for each bound from which on less energy is to be had."""
    reference, steps = found.front.reference, found.front.curve
    said: list[Allowance] = []
    for step in steps:
        if step.row.index != (said[-1].row.index if said else reference.index):
            said.append(step)
    if not said:
        yield f"more latency buys nothing: no candidate takes less energy than {_home(found)}"
        return
    yield f"what latency buys, against {quantity(reference.latency_s, 's')} in {_home(found)}:"
    for step in said:
        row, more = step.row, round(100 * (step.latency_ratio - 1.0))
        allowed = f"{more} % more latency buys" if more > 0 else "no more latency buys"
        how = "measured" if row.is_measured else "predicted"
        low, high = (percent(value) for value in row.saving_interval)
        yield f"  {allowed:24} {percent(row.saving_ratio)} ({low} to {high}, {how}): {_name(row)}"
    last = steps[-1]
    if found.front.rows[-1].index == last.row.index:
        yield f"  nothing more is expected beyond {quantity(last.latency_bound_s, 's')}"


def _notes() -> Sequence[str]:
    text = (
        "90 % intervals; a saving's leaves out what both modes' errors have in common. A mode is within a bound where "
        "its latency's upper limit is. What is predicted was never run: jouled tune with that bound measures it."
    )
    return textwrap.wrap(text, WIDTH)
