"""Who uses the GPU, and how much, as far as the kernel tells."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from jouled.board.domains import GpuDomain
from jouled.board.sysfs import Sysfs
from jouled.errors import SysfsError

log = logging.getLogger(__name__)

_CLIENTS = "/sys/kernel/debug/nvmap/iovmm/clients"


@dataclass(frozen=True, slots=True, order=True)
class GpuClient:
    """A process with GPU memory."""

    name: str
    pid: int

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def read_gpu_load(sysfs: Sysfs, gpu: GpuDomain) -> float | None:
    """The load now, 0 to 1 (the file holds tenths of a percent); None where this kernel does not tell."""
    try:
        return sysfs.read_int(f"{gpu.path}/device/load") / 1000
    except SysfsError as error:
        log.debug("%s", error)
        return None


def read_gpu_clients(sysfs: Sysfs) -> tuple[GpuClient, ...]:
    """Processes with GPU memory; none where the table is not to be read (without root, absent on Thor).

    Source: columns client, process, pid, size of nvmap's table (JETSON 6).
    """
    try:
        rows = [line.split() for line in sysfs.read(_CLIENTS).splitlines()]
    except SysfsError as error:
        log.debug("%s", error)
        return ()
    return tuple(GpuClient(row[1], int(row[2])) for row in rows if len(row) >= 4 and row[2].isdigit())
