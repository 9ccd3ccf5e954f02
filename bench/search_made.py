"""A made-up table of 1,000 candidates, for the time that a proposal takes; nothing is claimed about joules on it."""

from __future__ import annotations

from itertools import product

from jouletune.space import Candidate, PowerMode, Space, Variant
from jouletune.table import Row, Table

NAME = "made-1000"
_CPU_GHZ = (0.73, 1.19, 1.65, 1.97, 2.2)
_GPU_GHZ = tuple(0.3 + 0.1 * step for step in range(10))
_EMC_GHZ = (0.665, 1.6, 2.133, 3.199)
_BATCH = (1, 2, 4, 8, 16)


def made() -> Table:
    """4 EMC x 10 GPU x 5 CPU x 5 batch sizes; time is the sum of three parts, power rises faster than the clock."""
    rows: list[Row] = []
    for emc, gpu, cpu, batch in product(_EMC_GHZ, _GPU_GHZ, _CPU_GHZ, _BATCH):
        latency_s = 0.004 / cpu + batch * (0.006 / gpu + 0.005 / emc)
        power_w = 8.0 + 1.5 * cpu**2 + 12.0 * gpu**2.5 + 2.0 * emc
        mode = PowerMode(cpu_hz=round(1e9 * cpu), gpu_hz=round(1e9 * gpu), emc_hz=round(1e9 * emc))
        candidate = Candidate(mode, Variant(batch=batch))
        rows.append(Row(len(rows), candidate, latency_s, power_w * latency_s / batch))
    candidates = [row.candidate for row in rows]
    reference = max(candidates, key=lambda one: (one.mode, -one.variant.batch))
    return Table(tuple(rows), Space.of(candidates, reference))
