"""The bare loop that the runner is compared with: one engine, one stream, page-locked I/O, nothing else.

    TRT_PYTHON bare.py PLAN BATCH SECONDS blocking|spin

Each request copies its input to the device, runs the engine, copies the output back and waits. Prints one JSON object
with the latencies' percentiles. Knows nothing of jouled; runs where tensorrt and pycuda are (Python >= 3.8).
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any, List, Tuple  # noqa: UP035  # Python 3.8

import numpy as np

WARM_S = 1.0
TYPES = {"FLOAT": np.float32, "HALF": np.float16, "INT32": np.int32, "INT8": np.int8, "BOOL": np.bool_}
Buffers = List[Tuple[bool, Any, Any]]  # noqa: UP006  # as above

cuda: Any = import_module("pycuda.driver")
trt: Any = import_module("tensorrt")


class Log(trt.ILogger):  # type: ignore[misc]  # TensorRT's base is known only where it is
    """Errors to standard error."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)

    def log(self, severity: Any, msg: str) -> None:
        if severity.name in ("ERROR", "INTERNAL_ERROR"):
            print(msg, file=sys.stderr)


def made(value: Any, what: str) -> Any:
    """TensorRT answers None or False, and logs."""
    if value is None or value is False:
        raise SystemExit(f"bare.py: {what} failed")
    return value


def buffers(engine: Any, execution: Any, batch: int) -> Buffers:
    """(is it an input, page-locked bytes, device memory) of each tensor."""
    found = []
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    inputs = {name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT}
    for name in inputs:
        shape = (batch, *tuple(engine.get_tensor_shape(name))[1:])
        made(execution.set_input_shape(name, shape), f"set_input_shape {name}")
    for name in names:
        shape, kind = tuple(execution.get_tensor_shape(name)), TYPES[engine.get_tensor_dtype(name).name]
        values: Any = np.random.default_rng(0).standard_normal(shape).astype(kind)
        host = cuda.pagelocked_empty(values.nbytes, np.uint8)
        host[...] = values.reshape(-1).view(np.uint8)
        device = cuda.mem_alloc(values.nbytes)
        made(execution.set_tensor_address(name, int(device)), f"set_tensor_address {name}")
        found.append((name in inputs, host, device))
    return found


def loop(execution: Any, stream: Any, done: Any, tensors: Buffers, seconds: float) -> List[float]:  # noqa: UP006
    """Latencies in seconds."""
    latencies: List[float] = []  # noqa: UP006
    ends = time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        if began >= ends:
            return latencies
        for is_input, host, device in tensors:
            if is_input:
                cuda.memcpy_htod_async(int(device), host, stream)
        made(execution.execute_async_v3(stream.handle), "execute_async_v3")
        for is_input, host, device in tensors:
            if not is_input:
                cuda.memcpy_dtoh_async(host, int(device), stream)
        done.record(stream)
        done.synchronize()
        latencies.append(time.perf_counter() - began)


def measured(plan: str, batch: int, seconds: float, sync: str) -> Any:
    """Latencies on this plan, array (n,), after a second of warming up."""
    runtime = trt.Runtime(Log())
    with open(plan, "rb") as file:
        engine = made(runtime.deserialize_cuda_engine(file.read()), "deserialize_cuda_engine")
    execution = made(engine.create_execution_context(), "create_execution_context")
    tensors = buffers(engine, execution, batch)
    stream = cuda.Stream(1)  # CU_STREAM_NON_BLOCKING
    wait = int(cuda.event_flags.BLOCKING_SYNC) if sync == "blocking" else 0
    done = cuda.Event(int(cuda.event_flags.DISABLE_TIMING) | wait)
    loop(execution, stream, done, tensors, WARM_S)
    return np.array(loop(execution, stream, done, tensors, seconds))


def main() -> int:
    plan, batch, seconds, sync = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    cuda.init()
    flags = cuda.ctx_flags.SCHED_BLOCKING_SYNC if sync == "blocking" else cuda.ctx_flags.SCHED_SPIN
    context = cuda.Device(0).make_context(int(flags))
    try:
        taken = measured(plan, batch, seconds, sync)
    finally:
        context.detach()
    p50, p99 = np.percentile(taken, [50, 99])
    print(json.dumps({"sync": sync, "batch": batch, "n": len(taken), "p50_s": float(p50), "p99_s": float(p99)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
