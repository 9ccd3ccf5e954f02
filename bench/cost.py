"""What processes cost: memory and CPU out of /proc."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS_HZ = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Of some processes so far. Pages that they share count for each in `resident_mib`, once in `shared_out_mib`."""

    cpu_s: float
    children_cpu_s: float
    resident_mib: float
    shared_out_mib: float


def cost(pids: Sequence[int]) -> Cost:
    """Now; memory is the highest so far. `children_cpu_s` is that of children which have ended."""
    ticks = [[int(value) for value in stat_fields(pid)[11:15]] for pid in pids]
    own, children = sum(sum(each[:2]) for each in ticks), sum(sum(each[2:]) for each in ticks)
    resident = sum(max(_kib(pid, "status", "VmRSS"), _kib(pid, "status", "VmHWM")) for pid in pids)
    shared_out = sum(_kib(pid, "smaps_rollup", "Pss") for pid in pids)
    return Cost(own / _TICKS_HZ, children / _TICKS_HZ, resident / 1024, shared_out / 1024)


def stat_fields(pid: int) -> list[str]:
    """Of /proc/PID/stat, from the state on (proc(5)'s field 3)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def _kib(pid: int, file: str, key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB$", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
    assert found is not None, (pid, file, key)
    return int(found[1])


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                parents[int(entry.name)] = int(stat_fields(int(entry.name))[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def lasting(pid: int) -> list[int]:
    """The family without those that only come and go."""
    before = family(pid)
    time.sleep(3.0)
    return sorted(set(before) & set(family(pid)))
