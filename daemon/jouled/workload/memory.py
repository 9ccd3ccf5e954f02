"""Would a variant fit into the memory? Asked before anything of it is started: on a Jetson CPU and GPU share one.

What one instance needs is what the runner has read of the plan: the weights, the working memory of a context and the
tensors of a request, on the device and page-locked; and what a process with a CUDA context takes by itself. The job's
own processes run already, so what is available is less by them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jouled.board.sysfs import Sysfs
from jouled.errors import BrokenError, WorkloadTooLargeError

MEMINFO_PATH = "/proc/meminfo"

# An interpreter with TensorRT's libraries, on the host, and a CUDA context, on the device. An estimate that is meant
# to be on the safe side; one that is too small shows as out_of_memory when the instance is loaded.
PROCESS_BYTES = 256 << 20
CONTEXT_BYTES = 256 << 20

_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Of `instances` copies, each: weights, working memory, tensors on the device, the same page-locked on the host.

    `free_bytes` of the device's `total_bytes`, as an instance sees it that has a context already. `integrated`: the
    device's memory is the host's.
    """

    instances: int
    weights_bytes: int
    context_bytes: int
    io_bytes: int
    pinned_bytes: int
    free_bytes: int
    integrated: bool

    @classmethod
    def of(cls, told: Mapping[str, Any], instances: int) -> MemoryNeed:
        """From what a runner tells when it inspects a plan; what it leaves out counts as nothing."""
        free_bytes, plan_bytes = _count(told, "free_bytes"), _count(told, "plan_bytes")
        loaded_bytes = free_bytes - _count(told, "loaded_free_bytes") if "loaded_free_bytes" in told else 0
        io_bytes = _count(told, "io_bytes")
        return cls(
            instances=instances,
            weights_bytes=max(plan_bytes, loaded_bytes),
            context_bytes=_count(told, "device_memory_bytes"),
            io_bytes=io_bytes,
            pinned_bytes=_count(told, "pinned_bytes") if "pinned_bytes" in told else io_bytes,
            free_bytes=free_bytes,
            integrated=bool(told.get("integrated")),
        )

    @property
    def device_bytes(self) -> int:
        """What all instances take of the device, besides their CUDA contexts."""
        return self.instances * (self.weights_bytes + self.context_bytes + self.io_bytes)

    @property
    def host_bytes(self) -> int:
        """What all instances take of the host's memory."""
        return self.instances * (self.pinned_bytes + PROCESS_BYTES)

    def parts(self) -> str:
        """For a sentence."""
        each = (
            f"plan {_size(self.weights_bytes)}, working memory {_size(self.context_bytes)}, "
            f"tensors {_size(self.io_bytes)} and {_size(self.pinned_bytes)} page-locked"
        )
        return f"{self.instances} instance{'s' if self.instances > 1 else ''} of {each}"


def _count(told: Mapping[str, Any], name: str) -> int:
    value = told.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _size(count: int) -> str:
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"


def available_bytes(sysfs: Sysfs) -> int:
    """What the kernel can give without swapping. Raises SysfsError."""
    found = _AVAILABLE.search(sysfs.read(MEMINFO_PATH))
    if found is None:
        raise BrokenError(f"{MEMINFO_PATH}: holds no MemAvailable", path=MEMINFO_PATH)
    return int(found[1]) * 1024


def check_fits(need: MemoryNeed, *, host_bytes: int, reserve_bytes: int) -> None:
    """Raise WorkloadTooLargeError, with the numbers, where it would not fit beside `reserve_bytes` left free.

    `host_bytes` are available on the host.
    """
    left_bytes = host_bytes - reserve_bytes
    left = f"{_size(max(left_bytes, 0))} of {_size(host_bytes)} available less job.memory_reserve_bytes"
    if need.integrated:
        total_bytes = need.device_bytes + need.host_bytes + need.instances * CONTEXT_BYTES
        _require(total_bytes, left_bytes, "memory", left, need)
        return
    contexts_bytes = (need.instances - 1) * CONTEXT_BYTES  # the first one's is not free already
    _require(need.device_bytes + contexts_bytes, need.free_bytes, "device memory", _size(need.free_bytes), need)
    _require(need.host_bytes, left_bytes, "host memory", left, need)


def _require(need_bytes: int, have_bytes: int, what: str, left: str, need: MemoryNeed) -> None:
    if need_bytes > have_bytes:
        raise WorkloadTooLargeError(
            f"{_size(need_bytes)} of {what} needed, {left}: {need.parts()}",
            hint="a smaller batch, fewer instances, or a smaller engine",
        )
