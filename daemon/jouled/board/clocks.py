"""What the clocks are now, beside what they are capped at."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from jouled.board.domains import Domains
from jouled.board.sysfs import Sysfs
from jouled.errors import SysfsError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Current clocks; None: no value now (an offline cluster, debugfs without root, an odd answer)."""

    cpu_hz: int | None
    gpu_hz: int | None
    emc_hz: int | None


def _optional(sysfs: Sysfs, path: str, failed: list[SysfsError]) -> int | None:
    try:
        return sysfs.read_int(path)
    except SysfsError as error:
        log.debug("%s", error)
        failed.append(error)
        return None


def read_clocks(sysfs: Sysfs, domains: Domains, *, failed: list[SysfsError] | None = None) -> ClockReading:
    """The highest current clock of each domain. `failed` gains what was said instead of a value."""
    failed = [] if failed is None else failed
    cpu_khz = [_optional(sysfs, f"{path}/scaling_cur_freq", failed) for path, _ in domains.cpu.policies]
    known_khz = [value for value in cpu_khz if value is not None]
    gpu_hz = None if domains.gpu is None else _optional(sysfs, f"{domains.gpu.path}/cur_freq", failed)
    emc_hz = None
    if domains.emc is not None and domains.emc.bpmp_path is not None:
        emc_hz = _optional(sysfs, f"{domains.emc.bpmp_path}/rate", failed)
    return ClockReading(max(known_khz) * 1000 if known_khz else None, gpu_hz, emc_hz)
