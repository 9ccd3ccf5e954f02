"""What the clocks are now, beside what they are capped at."""

from __future__ import annotations

from dataclasses import dataclass

from jouled.board.domains import Domains
from jouled.board.sysfs import Sysfs
from jouled.errors import AbsentError, ForbiddenError


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Current clocks; None: not to be read here (an offline cluster, debugfs without root)."""

    cpu_hz: int | None
    gpu_hz: int | None
    emc_hz: int | None


def _optional(sysfs: Sysfs, path: str) -> int | None:
    try:
        return sysfs.read_int(path)
    except (AbsentError, ForbiddenError):
        return None


def read_clocks(sysfs: Sysfs, domains: Domains) -> ClockReading:
    """The highest current clock of each domain. Raises BrokenError where the kernel answers with nonsense."""
    cpu_khz = [_optional(sysfs, f"{path}/scaling_cur_freq") for path, _ in domains.cpu.policies]
    known_khz = [value for value in cpu_khz if value is not None]
    gpu_hz = None if domains.gpu is None else _optional(sysfs, f"{domains.gpu.path}/cur_freq")
    emc_hz = None
    if domains.emc is not None and domains.emc.bpmp_path is not None:
        emc_hz = _optional(sysfs, f"{domains.emc.bpmp_path}/rate")
    return ClockReading(max(known_khz) * 1000 if known_khz else None, gpu_hz, emc_hz)
