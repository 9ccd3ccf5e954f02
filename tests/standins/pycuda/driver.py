"""A stand-in for pycuda.driver, and for the few functions of libcuda.so.1 that the runner calls beside it."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from tests.standins.machine import FAULTS, MACHINE, SETTINGS, TOTAL_BYTES, keep_proven

_CDLL = ctypes.CDLL


class Error(Exception):
    """As pycuda's."""


class MemoryError(Error):
    """As pycuda's."""


class _LogicError(Error):
    """As pycuda's; what an unknown code becomes, an illegal address too."""


class _RuntimeError(Error):
    """As pycuda's."""


class ctx_flags:
    """As pycuda's."""

    SCHED_SPIN = 1
    SCHED_BLOCKING_SYNC = 4


class event_flags:
    """As pycuda's."""

    BLOCKING_SYNC = 1
    DISABLE_TIMING = 2


class device_attribute:
    """As pycuda's."""

    INTEGRATED = 18


def _check(routine: str) -> None:
    if MACHINE.is_broken:
        raise _LogicError(f"{routine} failed: an illegal memory access was encountered")
    if MACHINE.thread != threading.get_ident():
        raise _LogicError(f"{routine} failed: invalid device context")


def init(flags: int = 0) -> None:
    """As pycuda's."""
    if "cuda_init" in FAULTS:
        raise _RuntimeError(f"cuInit failed: {FAULTS['cuda_init']}")


def get_driver_version() -> int:
    """As pycuda's."""
    return 12060


def mem_get_info() -> tuple[int, int]:
    """As pycuda's."""
    _check("cuMemGetInfo")
    return MACHINE.free_bytes, TOTAL_BYTES


class Context:
    """As pycuda's."""

    def __init__(self) -> None:
        MACHINE.thread = threading.get_ident()

    def detach(self) -> None:
        """As pycuda's."""
        MACHINE.thread = None
        MACHINE.report()


class Device:
    """As pycuda's."""

    def __init__(self, ordinal: int) -> None:
        if ordinal:
            raise _LogicError("cuDeviceGet failed: invalid device ordinal")

    @staticmethod
    def count() -> int:
        """As pycuda's."""
        return int(FAULTS.get("count", 1))

    def name(self) -> str:
        """As pycuda's."""
        return "NVIDIA Stand-in"

    def compute_capability(self) -> tuple[int, int]:
        """As pycuda's."""
        return 8, 7

    def pci_bus_id(self) -> str:
        """As pycuda's."""
        return "0000:01:00.0"

    def get_attribute(self, attribute: int) -> int:
        """As pycuda's."""
        assert attribute == device_attribute.INTEGRATED
        return int(SETTINGS.get("is_integrated", False))

    def make_context(self, flags: int = 0) -> Context:
        """As pycuda's."""
        if FAULTS.get("make_context"):
            raise MemoryError("cuCtxCreate failed: out of memory")
        MACHINE.flags["context"] = int(flags)
        return Context()


class DeviceAllocation:
    """As pycuda's."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __int__(self) -> int:
        return self._address

    def free(self) -> None:
        """As pycuda's."""
        if not self._address:
            raise _LogicError("cuMemFree failed: invalid argument")
        MACHINE.release(self._address)
        self._address = 0


def mem_alloc(nbytes: int) -> DeviceAllocation:
    """As pycuda's."""
    _check("cuMemAlloc")
    if nbytes < 1:
        raise _LogicError("cuMemAlloc failed: invalid argument")
    address = MACHINE.allocate(nbytes)
    if not address:
        raise MemoryError("cuMemAlloc failed: out of memory")
    return DeviceAllocation(address)


class HostAllocation:
    """As pycuda's: the base of a page-locked array."""

    def __init__(self, nbytes: int) -> None:
        self._kept: NDArray[Any] | None = np.full(nbytes, 0xA5, dtype="uint8")
        MACHINE.pinned += 1

    @property
    def __array_interface__(self) -> dict[str, Any]:
        assert self._kept is not None
        return dict(self._kept.__array_interface__)

    def free(self) -> None:
        """As pycuda's."""
        if self._kept is None:
            raise _LogicError("cuMemFreeHost failed: invalid argument")
        self._kept = None
        MACHINE.pinned -= 1


def pagelocked_empty(shape: int, dtype: DTypeLike) -> NDArray[Any]:
    """As pycuda's, for one dimension of bytes."""
    _check("cuMemHostAlloc")
    assert np.dtype(dtype) == np.uint8
    return np.asarray(HostAllocation(shape))


class Stream:
    """As pycuda's."""

    def __init__(self, flags: int = 0) -> None:
        _check("cuStreamCreate")
        MACHINE.flags["stream"] = int(flags)
        MACHINE.streams[self.handle] = []

    @property
    def handle(self) -> int:
        """As pycuda's."""
        return id(self)

    def synchronize(self) -> None:
        """As pycuda's."""
        _check("cuStreamSynchronize")
        _work(self.handle, len(MACHINE.streams[self.handle]))


class Event:
    """As pycuda's."""

    def __init__(self, flags: int = 0) -> None:
        _check("cuEventCreate")
        MACHINE.flags["event"] = int(flags)
        self._after: tuple[int, int] | None = None

    def record(self, stream: Stream) -> Event:
        """As pycuda's."""
        _check("cuEventRecord")
        self._after = stream.handle, len(MACHINE.streams[stream.handle])
        return self

    def synchronize(self) -> Event:
        """As pycuda's."""
        _check("cuEventSynchronize")
        if self._after is not None:
            _work(*self._after)
        if FAULTS.get("break_at") == MACHINE.requests:
            MACHINE.is_broken = True
        _check("cuEventSynchronize")
        return self


def _work(handle: int, count: int) -> None:
    queue = MACHINE.streams[handle]
    for work in queue[:count]:
        work()
    del queue[:count]


def memcpy_htod_async(dest: int, src: NDArray[Any], stream: Stream) -> None:
    """As pycuda's."""
    _check("cuMemcpyHtoDAsync")
    assert src.flags["C_CONTIGUOUS"]

    def copy() -> None:
        MACHINE.at(dest, src.nbytes)[:] = src.tobytes()

    MACHINE.put(stream.handle, copy)


def memcpy_dtoh_async(dest: NDArray[Any], src: int, stream: Stream) -> None:
    """As pycuda's."""
    _check("cuMemcpyDtoHAsync")
    assert dest.flags["C_CONTIGUOUS"]

    def copy() -> None:
        dest.view("uint8")[:] = np.frombuffer(MACHINE.at(src, dest.nbytes), dtype="uint8")

    MACHINE.put(stream.handle, copy)


class _Driver:
    """The functions of libcuda.so.1 that capture, make and launch a graph; they get ctypes objects and references."""

    def __init__(self) -> None:
        if not FAULTS.get("is_old_cuda"):
            self.cuGraphInstantiateWithFlags = self._instantiate
        self.cuGraphInstantiate_v2 = self._instantiate

    def cuStreamBeginCapture_v2(self, stream: Any, mode: Any) -> int:
        """CUDA's."""
        assert mode.value in (0, 1, 2)
        MACHINE.captured[stream.value] = []
        return 0

    def cuStreamEndCapture(self, stream: Any, graph: Any) -> int:
        """CUDA's."""
        self._graph = MACHINE.captured.pop(stream.value)
        graph._obj.value = 0x6000
        return int(FAULTS.get("capture", 0))

    def _instantiate(self, executable: Any, graph: Any, *_: Any) -> int:
        assert graph.value == 0x6000
        executable._obj.value = 0x7000
        return 0

    def cuGraphLaunch(self, executable: Any, stream: Any) -> int:
        """CUDA's."""
        assert executable.value == 0x7000
        if FAULTS.get("launch_at") == MACHINE.requests:
            return 719
        MACHINE.streams[stream.value] += self._graph
        return 0

    def cuGraphExecDestroy(self, executable: Any) -> int:
        """CUDA's."""
        return 0

    def cuGraphDestroy(self, graph: Any) -> int:
        """CUDA's."""
        self._graph.clear()
        return 0


def _library(name: str | None, *arguments: Any, **options: Any) -> Any:
    return _Driver() if name == "libcuda.so.1" else _CDLL(name, *arguments, **options)


ctypes.CDLL = _library  # type: ignore[assignment,misc]

keep_proven(globals(), "pycuda.driver", "2026.1")
