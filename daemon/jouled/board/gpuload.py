"""Who uses the GPU, and how much, as far as the kernel tells."""

from __future__ import annotations

from jouled.board.domains import GpuDomain
from jouled.board.sysfs import Sysfs
from jouled.errors import SysfsError

_CLIENTS = "/sys/kernel/debug/nvmap/iovmm/clients"


def read_gpu_load(sysfs: Sysfs, gpu: GpuDomain) -> float | None:
    """The load now, 0 to 1 (the file holds tenths of a percent); None where this kernel does not tell."""
    try:
        return sysfs.read_int(f"{gpu.path}/device/load") / 1000
    except SysfsError:
        return None


def read_gpu_clients(sysfs: Sysfs) -> tuple[str, ...]:
    """Processes with GPU memory, `name (pid N)`; none where the table is not to be read (root, absent on Thor).

    Source: columns client, process, pid, size of nvmap's table (JETSON 6).
    """
    try:
        rows = [line.split() for line in sysfs.read(_CLIENTS).splitlines()]
    except SysfsError:
        return ()
    return tuple(f"{row[1]} (pid {row[2]})" for row in rows if len(row) >= 4 and row[2].isdigit())
