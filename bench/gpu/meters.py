"""The NVML meter alone: its counter beside integrated power, its edges, and whether the GPU is free."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from bench.gpu.place import Numbers, Place, StageError, runners_of, wait_until

_FREE_WITHIN_BYTES = 64 << 20
_FREE_MOST_S = 15.0
_LOAD_S = 8.0


def memory_used_bytes() -> int:
    """Of GPU 0, by NVML."""
    nvml: Any = import_module("pynvml")
    nvml.nvmlInit()
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).used)
    finally:
        nvml.nvmlShutdown()


def free_again(before_bytes: int, pid: int) -> Numbers:
    """Is no runner of process `pid` left, and the GPU's memory back? Waits a little, as a next job would."""
    runners: list[int] = []

    def is_free() -> bool:
        runners[:] = runners_of(pid)
        return not runners and memory_used_bytes() <= before_bytes + _FREE_WITHIN_BYTES

    began_s = time.monotonic()
    try:
        wait_until(is_free, _FREE_MOST_S, "the GPU free again")
    except StageError:
        return {"free": False, "runners": runners, "used_more_bytes": memory_used_bytes() - before_bytes}
    return {"free": True, "after_s": round(time.monotonic() - began_s, 2)}


def smoke_meter(place: Place) -> Numbers:
    """The meter over a busy GPU and over an idle one."""
    from jouled.board.clock import SystemClock
    from jouled.board.nvml import open_nvml
    from jouled.board.process import Processes

    clock = SystemClock()
    meter = open_nvml(Processes())
    try:
        numbers: Numbers = {"gpu": described(meter), "used_bytes": memory_used_bytes()}
        numbers["idle"] = sampled(meter, clock, 3.0)
        with product(place) as load:
            numbers["busy"] = sampled(meter, clock, _LOAD_S)
            numbers["products"] = load.poll() is None
    finally:
        meter.close()
    ratio = numbers["busy"]["counter_over_integrated"]
    place.say(f"  counter over integrated power, busy: {ratio}")
    return numbers


def described(meter: Any) -> Numbers:
    """The GPU without what names the one machine."""
    gpu = meter.gpu
    return {"name": gpu.name, "driver": gpu.driver, "power_limit_w": gpu.power_limit_w}


class product:
    """matmul.py while it runs; the GPU is busy when this is entered."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __enter__(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, str(Path(__file__).with_name("matmul.py"))]
        if self._place.standins:
            argv = [sys.executable, "-c", "import time; print('x', flush=True); time.sleep(600)"]
        self._child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        self._child.stdout.readline()
        return self._child

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()


def sampled(meter: Any, clock: Any, seconds: float) -> Numbers:
    """Counter and integrated power over some seconds, and how often the counter moved."""
    from jouletune.trace import counter_ratio

    sampling = meter.sampling(clock, rate_hz=5.0)
    sampling.start()
    time.sleep(seconds)
    trace = sampling.stop()
    numbers: Numbers = {"samples": int(trace.t_s.size), "lost": trace.lost, "last_error": str(sampling.last_error)}
    if trace.t_s.size:
        from jouletune.trace import total_power_w

        power_w = total_power_w(trace)
        numbers["power_w"] = {
            "mean": float(power_w.mean()),
            "least": float(power_w.min()),
            "most": float(power_w.max()),
        }
    counter = trace.counter
    numbers["counter_over_integrated"] = None
    if counter is not None and counter.t_s.size > 2:
        steps_s = [float(after - before) for before, after in pairwise(counter.t_s)]
        numbers["edges"] = {"n": int(counter.t_s.size), "median_s": median(steps_s), "longest_s": max(steps_s)}
        first_s, last_s = float(counter.t_s[0]), float(counter.t_s[-1])
        inside = trace.t_s[(trace.t_s >= first_s) & (trace.t_s <= last_s)]
        if np.size(inside) > 2:
            numbers["counter_over_integrated"] = counter_ratio(trace, first_s, last_s)
    return numbers
