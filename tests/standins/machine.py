"""What the stand-ins for tensorrt and pycuda share: settings, a GPU's memory, streams, and faults.

Work on a stream is done when somebody waits for it, as late as a real GPU may: who forgets to wait reads old memory.
`JOULED_STANDIN` is a JSON object: `tensorrt` (version), `faults`, `free_bytes`, `is_integrated`, `report` (a file that
says at the end what was left on the GPU).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SETTINGS: Mapping[str, Any] = json.loads(os.environ.get("JOULED_STANDIN", "{}"))
VERSION: str = SETTINGS.get("tensorrt", "8.5.3.1")
FAULTS: Mapping[str, Any] = SETTINGS.get("faults", {})
TOTAL_BYTES = 1 << 30
NAMES = json.loads((Path(__file__).parent.parent / "tensorrt_names.json").read_text("utf-8"))


class Machine:
    """The GPU of this process."""

    def __init__(self) -> None:
        self.free_bytes = int(SETTINGS.get("free_bytes", 900 << 20))
        self.memory: dict[int, bytearray] = {}
        self.streams: dict[int, list[Callable[[], None]]] = {}
        self.captured: dict[int, list[Callable[[], None]]] = {}
        self.thread: int | None = None
        self.flags: dict[str, int] = {}
        self.pinned = 0
        self.engines = 0
        self.enqueued = 0
        self.requests = 0
        self.is_broken = False
        self._next = 0x7F00_0000_0000

    def take(self, nbytes: int) -> bool:
        """Take memory; False where there is too little."""
        if nbytes > self.free_bytes:
            return False
        self.free_bytes -= nbytes
        return True

    def allocate(self, nbytes: int) -> int:
        """The address of new memory, or 0."""
        if not self.take(nbytes):
            return 0
        address, self._next = self._next, self._next + nbytes + 4096
        self.memory[address] = bytearray(nbytes)
        return address

    def release(self, address: int) -> None:
        """Give it back."""
        self.free_bytes += len(self.memory.pop(address))

    def at(self, address: int, nbytes: int) -> memoryview:
        """The bytes at a device address. KeyError where nothing lies, ValueError where it ends earlier."""
        memory = self.memory[address]
        if nbytes > len(memory):
            raise ValueError(f"{nbytes} bytes at {address:#x}, where {len(memory)} were allocated")
        return memoryview(memory)[:nbytes]

    def put(self, handle: int, work: Callable[[], None]) -> None:
        """Work for a stream; while it is captured, for the graph."""
        (self.captured if handle in self.captured else self.streams)[handle].append(work)

    def report(self) -> None:
        """Say what is left, where somebody asked for it."""
        path = SETTINGS.get("report")
        if path:
            left = {"allocated": len(self.memory), "pinned": self.pinned, "engines": self.engines}
            Path(path).write_text(json.dumps({**left, "flags": self.flags, "requests": self.requests}), "utf-8")


MACHINE = Machine()


def wait(seconds: float) -> None:
    """As long as a GPU would take."""
    time.sleep(seconds)


def hold(seconds: float) -> None:
    """Do nothing, without letting any other thread of this interpreter run."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))


def strike(request: int) -> None:
    """Faults that end or stop the process at a request (counted from 1; the first runs while it loads)."""
    if FAULTS.get("kill_at") == request:
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULTS.get("crash_at") == request:
        os.kill(os.getpid(), signal.SIGSEGV)
    if FAULTS.get("hang_at") == request:
        threading.Event().wait()


def forward(inputs: Mapping[str, NDArray[Any]], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The network of every plan: an item's mean over all inputs, and a hundredth for each place in the output."""
    items = shape[0] if shape else 1
    mean = np.zeros(items)
    for array in inputs.values():
        if array.ndim and len(array) == items:
            mean += array.reshape(items, -1).astype("float64").mean(axis=1)
    places = max(1, int(np.prod(shape[1:])))
    found: NDArray[np.float64] = (mean[:, None] + 0.01 * np.arange(places)).reshape(shape)
    return found


def keep_proven(module: dict[str, Any], name: str, version: str) -> None:
    """Leave in a stand-in's module only the public names that the real one has in that version and the runner uses."""
    listed, touched = NAMES["listed"][name][version], NAMES["touched"][name]
    for where, used in touched.items():
        owner = module
        for part in filter(None, where.split(".")):
            found = owner[part] if isinstance(owner, dict) else vars(owner)[part]
            owner = found
        own = dict(owner) if isinstance(owner, dict) else dict(vars(owner))
        for one in own:
            is_proven = one in used and one in listed[where]
            if one.startswith("_") or is_proven or f"{where}.{one}" in touched:
                continue
            if isinstance(owner, dict):
                if getattr(own[one], "__module__", None) == module["__name__"] and one not in touched:
                    del owner[one]
            else:
                delattr(owner, one)
