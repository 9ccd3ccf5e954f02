"""Make tables of boards that are unlike `joule`'s models, to see that it does nothing foolish on them.

    python -m bench.search_unlike FOLDER && python -m bench.search FOLDER --samplers joule,descent --seeds 3

A little simulator with what the models of `jouletune.physics` lack: hard maxima, memory that starves below a GPU clock,
batches in tiles of four, memory clocks with factors of their own and a top one that is slower, throttled modes, cores
that stop helping, idle time between arrivals, voltage tables with a knee, rows off by up to 4 %. Nothing in it was
chosen by how a search does; three tables of each of ten kinds, always the same ones.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from jouletune.space import Candidate, PowerMode, Variant
from jouletune.table import Row, render_table

KINDS = ("kink", "steps", "cores", "emc", "throttle", "rough", "host", "rate", "one", "wide")
TABLES = 3
_EMC_HZ = (204, 665, 800, 1331, 1600, 1866, 2133, 3199)
_STARVED = 0.35  # below this share of the GPU clock memory is slower
_TILE = 4
Values = Sequence[int | None]


@dataclass(frozen=True)
class Board:
    """The numbers of one board and workload: seconds and watts at full clocks."""

    compute_s: float
    memory_s: float
    host_s: float
    fixed: float
    gpu_w: float
    cpu_w: float
    emc_w: float
    static_w: float
    floor: float
    knee: float
    stalled: float
    overlaps: bool
    rough_time: float
    rough_power: float
    emc_factor: dict[int | None, float]


def clocks(draw: random.Random, n: int, low: float, high: float) -> list[int]:
    """`n` clocks in MHz steps, not quite even."""
    return [round((low + (high - low) * (i / (n - 1)) ** draw.uniform(0.9, 1.1)) / 1e6) * 10**6 for i in range(n)]


def axes(kind: str, draw: random.Random) -> tuple[Values, Values, Values, Values, Values]:
    """(GPU, EMC, CPU, cores, batch)."""
    gpu = clocks(draw, draw.choice([6, 8, 11, 13]), draw.uniform(0.1e9, 0.35e9), draw.uniform(0.9e9, 1.4e9))
    cpu = clocks(draw, draw.choice([3, 4, 6]), 0.3e9, 2.1e9)
    emc = sorted(1_000_000 * mhz for mhz in draw.sample(_EMC_HZ, draw.choice([3, 4])))
    no: Values = (None,)
    kinds: dict[str, tuple[Values, Values, Values, Values, Values]] = {
        "kink": (gpu, emc, cpu, no, no),
        "steps": (gpu, no, no, no, (1, 2, 4, 8, 16, 32)),
        "cores": (gpu[::2], no, cpu, (2, 4, 6, 8), no),
        "emc": (gpu, emc, no, no, no),
        "host": (gpu, no, clocks(draw, 10, 0.3e9, 2.1e9), no, no),
        "one": (clocks(draw, 14, 0.1e9, 1.3e9), no, no, no, no),
        "wide": (gpu[-8:], emc[-3:], cpu[-4:], no, (1, 2, 4, 8)),
    }
    return kinds.get(kind, (gpu, emc, cpu[-3:], no, no))


def board(kind: str, draw: random.Random, emc: Values) -> Board:
    """Drawn widely; "host" is bound by the CPU, "rough" has rows off by 2 to 4 %."""
    device, host = (0.2, 2.5) if kind == "host" else (1.0, 1.0)
    low, high = (0.02, 0.04) if kind == "rough" else (0.003, 0.025)
    factors = {value: draw.uniform(0.9, 1.1) for value in emc}
    if kind in ("emc", "throttle") and draw.random() < 0.6:
        factors[emc[-1]] *= 1.12
    return Board(
        compute_s=device * draw.uniform(0.002, 0.02),
        memory_s=device * draw.uniform(0.001, 0.015),
        host_s=host * draw.uniform(0.0005, 0.008),
        fixed=draw.uniform(0.2, 6.0),
        gpu_w=draw.uniform(4.0, 25.0),
        cpu_w=draw.uniform(0.8, 6.0),
        emc_w=draw.uniform(0.5, 4.0),
        static_w=draw.uniform(2.0, 9.0),
        floor=draw.uniform(0.55, 0.75),
        knee=draw.uniform(0.3, 0.6),
        stalled=draw.uniform(0.3, 1.0),
        overlaps=draw.random() < 0.5,
        rough_time=draw.uniform(low, high),
        rough_power=draw.uniform(low, high),
        emc_factor=factors,
    )


def times(kind: str, of: Board, share: Sequence[float], emc: int | None, batch: int) -> tuple[float, float, float]:
    """Compute, memory and host time of a batch; `share`: of the top GPU, EMC and CPU clock and of the cores."""
    gpu, memory, cpu, cores = share
    tiled = _TILE * math.ceil(batch / _TILE) if kind == "steps" and batch > 2 else batch
    compute_s = of.compute_s * (tiled + of.fixed) / (1.0 + of.fixed) / gpu
    memory_s = of.memory_s * (batch + of.fixed) / (1.0 + of.fixed) / memory**0.8 * of.emc_factor[emc]
    if gpu < _STARVED:
        memory_s *= (_STARVED / gpu) ** 0.7
    helps = 0.4 + 0.6 / cores if cores < 0.9 else 1.0
    return compute_s, memory_s, of.host_s * (batch + 8.0) / 9.0 / cpu * helps


def measured(kind: str, of: Board, share: Sequence[float], emc: int | None, batch: int) -> tuple[float, float]:
    """(latency of a batch, mean power)."""
    compute_s, memory_s, host_s = times(kind, of, share, emc, batch)
    gpu, memory, cpu, cores = share
    device_s = max(compute_s, memory_s)
    latency_s = device_s + host_s if of.overlaps else max(device_s, host_s) + 0.15 * min(compute_s, host_s)
    volts = of.floor + (1.0 - of.floor) * max(0.0, (gpu - of.knee) / (1.0 - of.knee))
    volts_cpu = 0.7 + 0.3 * max(0.0, 2.0 * cpu - 1.0) ** 1.5
    busy = min(1.0, (compute_s + of.stalled * max(0.0, memory_s - compute_s)) / latency_s)
    idle_w = of.static_w * (1.0 + 0.25 * volts) + 0.5 * of.emc_w * memory
    gpu_w, cpu_w = of.gpu_w * gpu * volts**2, of.cpu_w * cpu * volts_cpu**2 * (0.3 + 0.7 * cores)
    power_w = idle_w + gpu_w * (0.25 + 0.75 * busy) + cpu_w * (0.4 + 0.6 * min(1.0, host_s / latency_s))
    power_w += 0.5 * of.emc_w * memory * min(1.0, memory_s / latency_s)
    limit_w = 0.85 * (of.static_w + of.gpu_w + of.cpu_w + of.emc_w)
    if kind == "throttle" and power_w > limit_w:
        latency_s, power_w = latency_s * math.sqrt(power_w / limit_w), limit_w
    if kind == "rate":  # the next request comes later
        period_s = max(latency_s, 1.6 * (max(of.compute_s, of.memory_s) + of.host_s))
        waiting_w = idle_w + 0.3 * gpu_w + 0.5 * cpu_w
        power_w = (power_w * latency_s + waiting_w * (period_s - latency_s)) / latency_s
    return latency_s, power_w


def made(kind: str, number: int) -> list[Row]:
    """One table."""
    draw = random.Random(f"{kind} {number}")
    values = axes(kind, draw)
    of = board(kind, draw, values[1])
    tops = [max(value or 1 for value in axis) for axis in values[:4]]
    rows: list[Row] = []
    for gpu, emc, cpu, cores, batch in product(*values):
        share = [(value or top) / top for value, top in zip((gpu, emc, cpu, cores), tops, strict=True)]
        latency_s, power_w = measured(kind, of, share, emc, batch or 1)
        latency_s *= math.exp(draw.gauss(0.0, of.rough_time))
        energy_j = power_w * latency_s / (batch or 1) * math.exp(draw.gauss(0.0, of.rough_power))
        mode = PowerMode(cores=cores, cpu_hz=cpu, gpu_hz=gpu, emc_hz=emc)
        rows.append(Row(len(rows), Candidate(mode, Variant(batch=batch or 1)), latency_s, energy_j))
    return rows


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m bench.search_unlike FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for kind, number in product(KINDS, range(TABLES)):
        (folder / f"{kind}-{number}.csv").write_text(render_table(made(kind, number)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
