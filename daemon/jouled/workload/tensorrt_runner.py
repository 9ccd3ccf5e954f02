"""The process that runs a TensorRT plan, and tells when each request arrived, began and ended.

Started by its path with the interpreter that has tensorrt and pycuda (on a Jetson the system's), never imported by
jouled: one file, Python 3.8, the standard library, tensorrt, pycuda and the numpy that pycuda needs. One code for
TensorRT 8.5 to 11: attributes are asked for, versions are not (tests/tensorrt_names.json holds what exists where).
TensorRT says no by None, False or an exception, and says why only in its log: each call goes through `_ask` or `_tell`.
The protocol stands in docs/workloads.md.

    fd 0 ─▶ Control, a thread ─▶ the main thread, the only one that calls CUDA ─▶ Outbox, a thread ─▶ fd 1
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import hashlib
import importlib
import itertools
import json
import math
import os
import platform
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import zipfile
import zlib
from collections import deque
from typing import Any, Callable, Dict, Iterator, NoReturn, Sequence, Tuple

PROTOCOL = 1
_COMPLETIONS_A_FRAME = 256
_FLUSH_S = 0.2  # completions wait no longer than 0.25 s
_BEAT_S = 0.7  # a frame at least every second
_REQUEST_LIMIT_S = 10.0
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_F_SETPIPE_SZ = 1031
_LOG_FRAMES, _LOG_LINES = 200, 1000  # a TensorRT that warns with each request must not fill the pipes
_LOG_CHARS = 2000
_LOG_BYTES = 4000  # a frame below PIPE_BUF is written as one piece, beside the pacemaker's
_ERROR_CHARS = 20_000
_STREAM_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING; the default stream would make TensorRT synchronise
_CAPTURE_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, as trtexec
_OUT_OF_MEMORY = ("out of memory", "outofmemory", "could not be allocated", "memory allocation failed", "bad_alloc")
_NO_GPU = ("cuda initialization failure", "no cuda-capable device", "driver version is insufficient")

# TensorRT's own name of a type → numpy's type of what holds it, bits of one element. `trt.nptype` is of no use: with
# numpy 1.24 or newer TensorRT 8.5's asks for np.bool and fails.
_TYPES: dict[str, tuple[str, int]] = {
    "FLOAT": ("float32", 32),
    "HALF": ("float16", 16),
    "BF16": ("uint16", 16),
    "INT8": ("int8", 8),
    "INT32": ("int32", 32),
    "INT64": ("int64", 64),
    "BOOL": ("bool", 8),
    "UINT8": ("uint8", 8),
    "FP8": ("uint8", 8),
    "E8M0": ("uint8", 8),
    "INT4": ("uint8", 4),
    "FP4": ("uint8", 4),
}
_RAW = ("FP8", "E8M0", "INT4", "FP4")  # numpy has no arithmetic for these: bytes in, bytes out

Command = Dict[str, Any]
Completion = Tuple[int, int, int]


class RunnerError(Exception):
    """What ends this process; `code` is one of docs/workloads.md's."""

    def __init__(self, code: str, text: str, lines: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.code = code
        self.lines = list(lines)


# --- frames to the parent -----------------------------------------------------------------------------------


class Wire:
    """Frames: a byte of type, the payload's length (u32, little-endian), the payload."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.last_s = 0.0
        self._turn = threading.Lock()

    def send(self, kind: str, payload: bytes) -> None:
        """Write one frame whole."""
        with self._turn:
            left = memoryview(pack(kind, payload))
            while left:
                left = left[os.write(self.descriptor, left) :]
            self.last_s = time.monotonic()

    def tell(self, kind: str, document: Command) -> None:
        """Write one frame of JSON."""
        self.send(kind, json.dumps(document, allow_nan=False).encode())


def pack(kind: str, payload: bytes) -> bytes:
    """One frame as bytes."""
    return kind.encode() + struct.pack("<I", len(payload)) + payload


def _beat() -> Command:
    return {"t_ns": time.monotonic_ns()}


class Pacemaker:
    """A process that beats while this one loads and builds.

    Importing TensorRT, making a CUDA context and (in 8.5) an execution context hold the interpreter's lock, for seconds
    on a cold Jetson: no thread could beat. Its frames are shorter than PIPE_BUF, so they are whole beside others that
    are; before a longer frame it is told to pause, and answers.
    """

    def __init__(self, descriptor: int) -> None:
        self._orders, orders = socket.socketpair()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._orders.close()
                _die_with_parent(parent)
                _beat_alone(orders, descriptor)
            finally:
                os._exit(0)
        orders.close()

    def pause(self) -> None:
        """Returns when it writes nothing any more."""
        with contextlib.suppress(OSError):
            self._orders.sendall(b"p")
            self._orders.recv(1)

    def resume(self) -> None:
        """It beats again."""
        with contextlib.suppress(OSError):
            self._orders.sendall(b"g")

    def end(self) -> None:
        """Returns when it is gone; idempotent."""
        if self._pid > 0:
            self._orders.close()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = 0


def _beat_alone(orders: socket.socket, descriptor: int) -> None:
    """Beat until the other end of `orders` is closed, which the kernel does when that process dies."""
    is_beating = True
    while True:
        if select.select([orders], [], [], _BEAT_S)[0]:
            order = orders.recv(1)
            if not order:
                return
            is_beating = order == b"g"
            if not is_beating:
                orders.sendall(b"p")
        elif is_beating:
            os.write(descriptor, pack("B", json.dumps(_beat()).encode()))


class Outbox(threading.Thread):
    """Sends what the main thread only notes down, and beats when there is nothing to send.

    `begun_ns` is when the request in flight began, or 0: beats stop when it is too old, so that a hung GPU is silence.
    """

    def __init__(self, wire: Wire) -> None:
        super().__init__(name="outbox", daemon=True)
        self.done: deque[Completion] = deque()
        self.lines: deque[Command] = deque()
        self.begun_ns = 0
        self.limit_s = _REQUEST_LIMIT_S
        self.sent = 0
        self._wire = wire
        self._turn = threading.Lock()
        self._has_ended = threading.Event()

    def run(self) -> None:
        try:
            while not self._has_ended.wait(_FLUSH_S):
                self.turn()
        except OSError:
            os._exit(1)  # nobody reads: the parent is gone

    def turn(self) -> None:
        """Send what there is, or a beat where nothing was sent for long."""
        self.flush()
        if time.monotonic() - self._wire.last_s >= _BEAT_S - _FLUSH_S and not self._is_stuck():
            self._wire.tell("B", _beat())

    def flush(self) -> None:
        """Send everything noted so far, in order."""
        with self._turn:
            while self.lines:
                self._wire.tell("L", self.lines.popleft())
            while self.done:
                rows = [self.done.popleft() for _ in range(min(len(self.done), _COMPLETIONS_A_FRAME))]
                self._wire.send("C", struct.pack(f"<{3 * len(rows)}q", *itertools.chain.from_iterable(rows)))
                self.sent += len(rows)

    def end(self) -> None:
        """No more frames by itself."""
        self._has_ended.set()
        if self.is_alive():
            self.join()

    def _is_stuck(self) -> bool:
        begun_ns = self.begun_ns
        return begun_ns > 0 and time.monotonic_ns() - begun_ns > self.limit_s * 1e9


# --- what the parent says -----------------------------------------------------------------------------------


class Control(threading.Thread):
    """The parent's lines, one JSON object each. The end of the stream and SIGTERM mean `end`."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(name="control", daemon=True)
        self.commands: deque[Command] = deque()
        self._descriptor = descriptor
        self._rang = threading.Event()

    def run(self) -> None:
        with os.fdopen(self._descriptor, "rb") as lines:
            for line in lines:
                self.put(_command(line))
        self.put({"do": "end"})

    def put(self, command: Command) -> None:
        """As if the parent had said it."""
        self.commands.append(command)
        self._rang.set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until there is a command, or for `timeout_s`."""
        self._rang.wait(timeout_s)
        self._rang.clear()

    def next(self) -> Command:
        """The next command, when it comes."""
        while not self.commands:
            self.wait()
        return self.commands.popleft()


def _command(line: bytes) -> Command:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if isinstance(found, dict) and isinstance(found.get("do"), str):
        return found
    return {"do": "", "line": line[:200].decode("utf-8", "replace")}


class Given:
    """The keys of a JSON object, each asked for by its type."""

    def __init__(self, document: Any, where: str) -> None:
        if not isinstance(document, dict):
            raise RunnerError("bad_spec", f"{where}: wanted an object, got {document!r}")
        self._document = document
        self._where = where

    def number(self, key: str, default: float, least: float = -math.inf) -> float:
        """A finite number, at least `least`."""
        value = self._document.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < math.inf:
            self._refuse(key, f"a number of at least {least:g}")
        return float(value)

    def whole(self, key: str, default: int, least: int) -> int:
        """A whole number, at least `least`."""
        value = self._document.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self._refuse(key, f"a whole number of at least {least}")
        return int(value)

    def text(self, key: str) -> str | None:
        """A text, or None."""
        value = self._document.get(key)
        if value is not None and not isinstance(value, str):
            self._refuse(key, "a text or null")
        return None if value is None else str(value)

    def one_of(self, key: str, default: str | None, *choices: str | None) -> str | None:
        """One of `choices`."""
        value = self._document.get(key, default)
        if value not in choices:
            self._refuse(key, "one of " + ", ".join(json.dumps(choice) for choice in choices))
        return None if value is None else str(value)

    def flag(self, key: str) -> bool:
        """True or false; false where it is missing."""
        value = self._document.get(key, False)
        if not isinstance(value, bool):
            self._refuse(key, "true or false")
        return bool(value)

    def numbers(self, key: str) -> list[float]:
        """A list of numbers."""
        value = self._document.get(key)
        if not isinstance(value, list) or not all(isinstance(one, (int, float)) and one >= 0 for one in value):
            self._refuse(key, "a list of numbers of at least 0")
        return [float(one) for one in value or ()]

    def texts(self, key: str) -> list[str] | None:
        """A list of texts, or None."""
        value = self._document.get(key)
        if value is not None and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            self._refuse(key, "a list of texts or null")
        return value

    def shapes(self, key: str) -> dict[str, list[int]]:
        """Tensor name → its dimensions."""
        value = self._document.get(key) or {}
        if not isinstance(value, dict) or not all(_is_shape(shape) for shape in value.values()):
            self._refuse(key, "an object of lists of whole numbers")
        return dict(value)

    def profile(self, key: str) -> dict[str, dict[str, list[int]]]:
        """Tensor name → {"min", "opt", "max"} → dimensions."""
        value = self._document.get(key) or {}
        if not isinstance(value, dict) or not all(_is_range(one) for one in value.values()):
            self._refuse(key, 'an object of {"min": […], "opt": […], "max": […]}')
        return dict(value)

    def _refuse(self, key: str, wanted: str) -> NoReturn:
        got = self._document.get(key)
        raise RunnerError("bad_spec", f"{self._where}.{key}: wanted {wanted}, got {got!r}"[:_LOG_CHARS])


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(size, int) and size >= -1 for size in value)


def _is_range(value: Any) -> bool:
    return isinstance(value, dict) and sorted(value) == ["max", "min", "opt"] and all(map(_is_shape, value.values()))


class Spec:
    """What is to be run or built, checked."""

    def __init__(self, document: Any) -> None:
        given = Given(document, "spec")
        self.engine = given.text("engine")
        self.onnx = given.text("onnx")
        self.plan_out = given.text("plan_out")
        self.batch = given.whole("batch", 1, 1)
        self.shapes = given.shapes("shapes")
        self.inputs = given.text("inputs")
        self.outputs = given.text("outputs")
        self.tolerance = given.number("tolerance", 1e-2, 0.0)
        self.is_spinning = given.one_of("sync", "blocking", "blocking", "spin") == "spin"
        self.wants_graph = given.flag("cuda_graph")
        self.device = given.whole("device", 0, 0)
        self.seed = given.whole("seed", 0, 0)
        self.precision = given.one_of("precision", None, None, "fp32", "fp16", "int8")
        self.profile = given.profile("profile")
        self.workspace_bytes = int(given.number("workspace_bytes", 0.0, 0.0)) if document.get("workspace_bytes") else 0
        self.tactic_sources = given.texts("tactic_sources")
        self.request_limit_s = given.number("request_limit_s", _REQUEST_LIMIT_S, 0.1)


# --- TensorRT and CUDA, asked carefully ---------------------------------------------------------------------


class Log:
    """What TensorRT's logger says. Only its lines tell why a call answered None or False."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._last: deque[str] = deque(maxlen=30)
        self._since: deque[tuple[str, str]] = deque(maxlen=200)
        self._told = self._written = 0

    def take(self, level: str, text: str) -> None:
        """One message; called by TensorRT from whatever thread it likes."""
        if level == "VERBOSE":
            return
        line = _short(f"[{level}] {text}")
        self._written += 1
        if self._written <= _LOG_LINES:
            sys.stderr.write(line + "\n")
        if level == "INFO":
            return
        self._last.append(line)
        self._since.append((level, text.lower()))
        if self._told < _LOG_FRAMES:
            self._told += 1
            self._outbox.lines.append({"level": level.lower(), "text": line})

    def warn(self, text: str) -> None:
        """A warning of this file's own."""
        self._outbox.lines.append({"level": "warning", "text": _short(text)})

    def begin(self) -> None:
        """What is logged from here on belongs to the call that follows."""
        self._since.clear()

    def failure(self, code: str, text: str) -> RunnerError:
        """The error for a call that failed: memory and a missing GPU are told apart by what was logged."""
        said = [text.lower(), *(line for level, line in self._since if level != "WARNING")]
        if any(words in line for words in _OUT_OF_MEMORY for line in said):  # a build warns of memory and goes on
            code = "out_of_memory"
        elif any(words in line for words in _NO_GPU for _, line in self._since):  # of this TensorRT only warns
            code = "no_gpu"
        return RunnerError(code, text, self.lines())

    def lines(self) -> list[str]:
        """The last lines, warnings and worse."""
        return list(self._last)


def _short(text: str) -> str:
    """What one frame holds of it: in JSON a character outside ASCII takes six bytes, or twelve."""
    text = text[:_LOG_CHARS]
    while len(json.dumps(text)) > _LOG_BYTES:
        text = text[: -(len(text) // 8 + 1)]
    return text


class Libraries:
    """tensorrt, pycuda's driver and numpy of this interpreter; each is imported when it is first needed."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._loaded: dict[str, Any] = {}

    @property
    def trt(self) -> Any:
        """TensorRT, with a logger and its plugins ready."""
        if "trt" not in self._loaded:
            trt = _imported("tensorrt", "no_tensorrt")
            self._loaded["trt"] = trt
            self._loaded["logger"] = _logger(trt, self.log)
            register = getattr(trt, "init_libnvinfer_plugins", None)
            if register is not None and not register(self._loaded["logger"], ""):
                self.log.warn("TensorRT's own plugins could not be registered: an engine that uses one will not load")
        return self._loaded["trt"]

    @property
    def logger(self) -> Any:
        """The logger that each of TensorRT's makers wants."""
        return self.trt and self._loaded["logger"]

    @property
    def cuda(self) -> Any:
        """pycuda's driver, initialised; there is at least one GPU."""
        if "cuda" not in self._loaded:
            cuda = _imported("pycuda.driver", "no_pycuda")
            try:
                cuda.init()
                count = cuda.Device.count()
            except cuda.Error as error:
                raise RunnerError("no_gpu", f"CUDA finds no GPU: {error}") from error
            if count < 1:
                raise RunnerError("no_gpu", "CUDA finds no GPU")
            self._loaded["cuda"] = cuda
        return self._loaded["cuda"]

    @property
    def numpy(self) -> Any:
        """numpy, which pycuda needs too."""
        return _imported("numpy", "no_pycuda")

    def versions(self) -> dict[str, str]:
        """Of what has been loaded."""
        found = {"python": platform.python_version()}
        if "trt" in self._loaded:
            found["tensorrt"] = str(self.trt.__version__)
        if "cuda" in self._loaded:
            driver = int(self.cuda.get_driver_version())
            found["cuda_driver"] = f"{driver // 1000}.{driver % 1000 // 10}"
            found["pycuda"] = str(importlib.import_module("pycuda").VERSION_TEXT)
        return found


def _imported(name: str, code: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        text = f"{sys.executable} has no module {error.name}"
    except (ImportError, OSError, AttributeError) as error:  # a library that is not there, a numpy that is too new
        text = f"{sys.executable} cannot import {name}: {error}"
        if "libcuda.so" in text:
            code = "no_gpu"
    raise RunnerError(code, text)


def _logger(trt: Any, log: Log) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]  # TensorRT's base is known only here
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            log.take(str(severity.name), msg)

    return Logger()


def _ask(log: Log, code: str, doing: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """What TensorRT answers. None, False and an exception are a no."""
    answer = _tell(log, code, doing, call, *arguments)
    if answer is None or answer is False:
        raise log.failure(code, f"{doing}: TensorRT says no")
    return answer


def _tell(log: Log, code: str, doing: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """As `_ask`, for calls that answer None when all is well."""
    log.begin()
    try:
        return call(*arguments)
    except (RuntimeError, ValueError, TypeError, MemoryError) as error:
        # pybind11 says TypeError where a maker (Runtime, Builder) made nothing
        raise log.failure(code, f"{doing}: {error}") from error


@contextlib.contextmanager
def _cuda_calls(log: Log, cuda: Any, doing: str) -> Iterator[None]:
    """pycuda's errors as this file's."""
    try:
        yield
    except cuda.MemoryError as error:
        raise RunnerError("out_of_memory", f"{doing}: {error}", log.lines()) from error
    except cuda.Error as error:
        raise RunnerError("cuda_error", f"{doing}: {error}", log.lines()) from error


class Gpu:
    """The GPU, and a context of this process in it, current in the main thread."""

    def __init__(self, libraries: Libraries, *, is_spinning: bool) -> None:
        self.cuda = libraries.cuda
        self._log = libraries.log
        flags = self.cuda.ctx_flags
        with self.calls("a CUDA context"):
            device = self.cuda.Device(0)
            self.name = str(device.name())
            self.compute_capability = [int(part) for part in device.compute_capability()]
            self.is_integrated = bool(device.get_attribute(self.cuda.device_attribute.INTEGRATED))
            self.pci_bus_id = None if self.is_integrated else str(device.pci_bus_id())
            schedule = flags.SCHED_SPIN if is_spinning else flags.SCHED_BLOCKING_SYNC
            self._context = device.make_context(int(schedule))
            self.free_bytes, self.total_bytes = map(int, self.cuda.mem_get_info())

    def calls(self, doing: str) -> Any:
        """A block whose CUDA errors name what was being done."""
        return _cuda_calls(self._log, self.cuda, doing)

    def free_now_bytes(self) -> int:
        """Memory that is free now."""
        with self.calls("the free memory"):
            return int(self.cuda.mem_get_info()[0])

    def close(self) -> None:
        """Give the context back; idempotent."""
        context, self._context = self._context, None
        if context is not None:
            context.detach()


def _choose_device(index: int) -> None:
    """Let this process see one GPU, numbered as nvidia-smi numbers them; before CUDA is first called."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = seen.split(",") if seen else None
    if names is None and index > 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(index)
    elif names is not None and index < len(names):
        os.environ["CUDA_VISIBLE_DEVICES"] = names[index]
    elif names is not None:
        raise RunnerError("no_gpu", f"device {index}: CUDA_VISIBLE_DEVICES={seen} has no such GPU")


# --- a plan, loaded -----------------------------------------------------------------------------------------


class Tensor:
    """An input or output of the engine, with its memory on both sides once it has a shape."""

    def __init__(self, trt: Any, engine: Any, name: str) -> None:
        self.name = name
        self.is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        self.is_on_host = engine.get_tensor_location(name) == trt.TensorLocation.HOST
        self.kind = str(engine.get_tensor_dtype(name).name)
        self.declared = tuple(int(size) for size in engine.get_tensor_shape(name))
        self.shape = self.declared
        self.at_most_bytes = 0  # of an output whose shape depends on the data
        self.host: Any = None  # page-locked, or plain for a tensor that TensorRT reads on the host
        self.device: Any = None
        if self.kind not in _TYPES:
            raise RunnerError("plan_invalid", f"{name}: this runner does not know TensorRT's type {self.kind}")
        vector_axis = int(engine.get_tensor_vectorized_dim(name))
        self._vector = (vector_axis, int(engine.get_tensor_components_per_element(name))) if vector_axis >= 0 else None

    @property
    def is_linear(self) -> bool:
        """Do its elements lie one after the other?"""
        return self._vector is None or self._vector[1] <= 1

    @property
    def is_known(self) -> bool:
        """Does it have a shape?"""
        return all(size >= 0 for size in self.shape)

    @property
    def nbytes(self) -> int:
        """Of its memory, at least one (CUDA allocates no 0 bytes)."""
        if not self.is_known:
            return max(1, self.at_most_bytes)
        sizes = list(self.shape)
        if self._vector is not None and not self.is_linear:
            axis, width = self._vector
            sizes[axis] = -(-sizes[axis] // width) * width
        return max(1, -(-_volume(sizes) * _TYPES[self.kind][1] // 8))

    def as_array(self) -> Any:
        """Its memory on the host in its own shape; a view."""
        if self.kind in ("INT4", "FP4") or not self.is_linear:
            return self.host
        flat = self.host[: _volume(self.shape) * _TYPES[self.kind][1] // 8]
        return flat.view(_TYPES[self.kind][0]).reshape(self.shape)

    def described(self) -> Command:
        """For the parent."""
        mode = "input" if self.is_input else "output"
        return {"name": self.name, "mode": mode, "dtype": self.kind.lower(), "shape": list(self.shape)}


def _volume(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


class Plan:
    """A plan, deserialised; no memory for running it yet."""

    def __init__(self, libraries: Libraries, path: str | None) -> None:
        if not path:
            raise RunnerError("bad_spec", "spec.engine: wanted the path of a plan, got none")
        trt, log = libraries.trt, libraries.log
        data = _read(path, "plan")
        if not data:
            raise RunnerError("plan_invalid", f"{path}: the plan is empty")
        self.path = path
        self.nbytes = len(data)
        self.sha256 = hashlib.sha256(data).hexdigest()
        self._runtime = _ask(log, "cuda_error", "TensorRT's runtime", trt.Runtime, libraries.logger)
        load = self._runtime.deserialize_cuda_engine
        text = f"{path}: this TensorRT ({trt.__version__}) cannot load the plan on this GPU"
        self.engine = _ask(log, "plan_invalid", text, load, data)
        names = [str(self.engine.get_tensor_name(index)) for index in range(self.engine.num_io_tensors)]
        self.tensors = [Tensor(trt, self.engine, name) for name in names]
        self.inputs = [tensor for tensor in self.tensors if tensor.is_input]
        self.outputs = [tensor for tensor in self.tensors if not tensor.is_input]

    @property
    def context_bytes(self) -> int:
        """Device memory that one execution context needs."""
        newer = getattr(self.engine, "device_memory_size_v2", None)
        return int(self.engine.device_memory_size if newer is None else newer)

    def close(self) -> None:
        """Free it."""
        self.engine = self._runtime = None


def _read(path: str, what: str, most_bytes: int = -1) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(most_bytes)
    except OSError as error:
        text = f"{path}: the {what} cannot be read by uid {os.geteuid()}: {error.strerror}"
        raise RunnerError("plan_unreadable", text) from error


def choose_shapes(plan: Plan, spec: Spec) -> int:
    """Give each input its shape; the optimisation profile that has them all."""
    unknown = sorted(set(spec.shapes) - {tensor.name for tensor in plan.inputs})
    if unknown:
        names = ", ".join(tensor.name for tensor in plan.inputs)
        raise RunnerError("bad_spec", f"shapes names {', '.join(unknown)}, the engine's inputs are {names}")
    wanted = {tensor.name: _wanted_shape(tensor, spec) for tensor in plan.inputs}
    refused: list[str] = []
    for profile in range(max(1, int(plan.engine.num_optimization_profiles))):
        shapes = {tensor.name: _fitting(plan.engine, tensor, wanted[tensor.name], profile) for tensor in plan.inputs}
        why = [shape for shape in shapes.values() if isinstance(shape, str)]
        if not why:
            for tensor in plan.inputs:
                tensor.shape = tuple(int(size) for size in shapes[tensor.name])
            _check_batch(plan, spec)
            return profile
        refused += why
    raise RunnerError("shape_outside_profile", "; ".join(refused))


def _wanted_shape(tensor: Tensor, spec: Spec) -> list[int]:
    """As written; a dynamic first dimension that is not written, or written as 1, is the batch."""
    shape = list(spec.shapes.get(tensor.name, tensor.declared))
    if len(shape) != len(tensor.declared):
        text = f"{tensor.name}: wanted {len(tensor.declared)} dimensions as in {list(tensor.declared)}, got {shape}"
        raise RunnerError("shape_outside_profile", text)
    if shape and tensor.declared[0] == -1 and shape[0] in (-1, 1):
        shape[0] = spec.batch
    return shape


def _fitting(engine: Any, tensor: Tensor, wanted: list[int], profile: int) -> Any:
    """The shape within the profile, its open dimensions as the profile's best; or the sentence that says why not."""
    least = best = most = list(tensor.declared)
    if -1 in tensor.declared:
        least, best, most = (
            [int(size) for size in shape] for shape in engine.get_tensor_profile_shape(tensor.name, profile)
        )
    shape = [top if size == -1 else size for size, top in zip(wanted, best)]
    if all(low <= size <= high for low, size, high in zip(least, shape, most)):
        return shape
    bounds = f"from {least} to {most} (profile {profile})" if least != most else f"{most} and nothing else"
    return f"{tensor.name}: the engine takes {bounds}, wanted {shape}"


def _check_batch(plan: Plan, spec: Spec) -> None:
    """Energy is counted per item, so the batch must be what runs."""
    if any(tensor.shape and tensor.shape[0] == spec.batch for tensor in plan.inputs) or not plan.inputs:
        return
    if all(tensor.name in spec.shapes for tensor in plan.inputs):
        return  # the operator has written what one request is
    shapes = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in plan.inputs)
    text = f"wanted a batch of {spec.batch}, the engine runs {shapes}: set batch, or write shapes for every input"
    raise RunnerError("shape_outside_profile", text)


class Graph:
    """One request captured as a CUDA graph. pycuda has none: the driver's library is asked directly."""

    def __init__(self, log: Log, stream: Any, request: Callable[[], None]) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self._log = log
        self._graph, self.executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._stream = ctypes.c_void_p(int(stream.handle))
        self._call("cuStreamBeginCapture_v2", self._stream, ctypes.c_int(_CAPTURE_THREAD_LOCAL))
        try:
            request()
        finally:  # a stream left capturing refuses everything
            self._call("cuStreamEndCapture", self._stream, ctypes.byref(self._graph))
        if hasattr(self._lib, "cuGraphInstantiateWithFlags"):  # CUDA 11.4 and newer
            nothing = ctypes.c_ulonglong(0)
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(self.executable), self._graph, nothing)
        else:
            none, size = ctypes.c_void_p(), ctypes.c_size_t(0)
            self._call("cuGraphInstantiate_v2", ctypes.byref(self.executable), self._graph, none, none, size)

    def launcher(self) -> Callable[[], None]:
        """A function that puts the whole request on the stream."""
        launch, executable, stream = self._lib.cuGraphLaunch, self.executable, self._stream

        def put() -> None:
            code = launch(executable, stream)
            if code:
                raise RunnerError("cuda_error", f"cuGraphLaunch answers {code}", self._log.lines())

        return put

    def close(self) -> None:
        """Free it."""
        self._lib.cuGraphExecDestroy(self.executable)
        self._lib.cuGraphDestroy(self._graph)

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._lib, name)(*arguments))
        if code:
            text = f"the request cannot be captured as a CUDA graph: {name} answers {code}; set cuda_graph = false"
            raise RunnerError("cuda_error", text, self._log.lines())


class Session:
    """A plan ready to run: context, shapes, memory on both sides, a stream. `request()` runs one and waits for it."""

    def __init__(self, libraries: Libraries, spec: Spec) -> None:
        self._libraries, self._log, self._spec = libraries, libraries.log, spec
        self.gpu = Gpu(libraries, is_spinning=spec.is_spinning)
        self.plan: Any = None
        self.is_spinning = spec.is_spinning
        self.output_check: Command | None = None
        self._context: Any = None
        self._stream: Any = None
        self._event: Any = None
        self._graph: Graph | None = None
        self.request: Callable[[], None] = _not_loaded

    def load(self) -> None:
        """From the plan's file to one request that has run."""
        self.plan = Plan(self._libraries, self._spec.engine)
        profile = choose_shapes(self.plan, self._spec)
        cuda, flags = self.gpu.cuda, self.gpu.cuda.event_flags
        with self.gpu.calls("a CUDA stream"):
            self._stream = cuda.Stream(_STREAM_NON_BLOCKING)
            wait = 0 if self._spec.is_spinning else int(flags.BLOCKING_SYNC)
            self._event = cuda.Event(int(flags.DISABLE_TIMING) | wait)
        make = self.plan.engine.create_execution_context
        text = f"an execution context ({self.plan.context_bytes} bytes on the device)"
        self._context = _ask(self._log, "cuda_error", text, make)
        if profile:
            choose = self._context.set_optimization_profile_async
            handle = int(self._stream.handle)
            _ask(self._log, "shape_outside_profile", f"optimisation profile {profile}", choose, profile, handle)
            with self.gpu.calls(f"optimisation profile {profile}"):
                self._stream.synchronize()
        self._shape_and_allocate()
        self._first_request()

    def inspect(self) -> Command:
        """What it would need, without a context."""
        self.plan = Plan(self._libraries, self._spec.engine)
        choose_shapes(self.plan, self._spec)
        for tensor in self.plan.outputs:
            if tensor.declared and tensor.declared[0] == -1:
                tensor.shape = (self._spec.batch, *tensor.declared[1:])
        is_estimate = not all(tensor.is_known for tensor in self.plan.outputs)
        return dict(self.described(), io_is_estimate=is_estimate)

    def described(self) -> Command:
        """What was loaded, for the parent."""
        tensors, gpu = self.plan.tensors, self.gpu
        return {
            "protocol": PROTOCOL,
            "workload": "tensorrt",
            "description": self._description(),
            "batch": self._spec.batch,
            "device": self._spec.device,
            "gpu_name": gpu.name,
            "compute_capability": gpu.compute_capability,
            "pci_bus_id": gpu.pci_bus_id,
            "integrated": gpu.is_integrated,
            "engine_sha256": self.plan.sha256,
            "plan_bytes": self.plan.nbytes,
            "device_memory_bytes": self.plan.context_bytes,
            "io_bytes": sum(tensor.nbytes for tensor in tensors if not tensor.is_on_host),
            "pinned_bytes": sum(tensor.nbytes for tensor in tensors),
            "free_bytes": gpu.free_bytes,
            "loaded_free_bytes": gpu.free_now_bytes(),
            "total_bytes": gpu.total_bytes,
            "tensors": [tensor.described() for tensor in tensors],
            "versions": self._libraries.versions(),
            "output_check": self.output_check,
            "sync": "spin" if self._spec.is_spinning else "blocking",
            "cuda_graph": self._graph is not None,
            "pid": os.getpid(),
        }

    def close(self) -> None:
        """Free the GPU: what lies in the context before the context; idempotent."""
        if self._graph is not None:
            self._graph.close()
        self._graph, self.request, self._context = None, _not_loaded, None
        if self.plan is not None:
            for tensor in self.plan.tensors:
                if tensor.device is not None:
                    tensor.device.free()
                if tensor.host is not None and not tensor.is_on_host:
                    tensor.host.base.free()  # the array is of no use from here on
                tensor.host = tensor.device = None
            self.plan.close()
        self._event = self._stream = self.plan = None
        gc.collect()  # what lies in a circle of references, too
        self.gpu.close()

    def _description(self) -> str:
        shapes = {
            mode: ", ".join(f"{tensor.name} {list(tensor.shape)} {tensor.kind.lower()}" for tensor in tensors)
            for mode, tensors in (("in", self.plan.inputs), ("out", self.plan.outputs))
        }
        version = self._libraries.trt.__version__
        name = os.path.basename(self.plan.path)
        text = f"{name}, batch {self._spec.batch}: {shapes['in']} → {shapes['out']}; TensorRT {version}"
        return text[:_LOG_CHARS]

    def _shape_and_allocate(self) -> None:
        context, plan, log = self._context, self.plan, self._log
        for tensor in plan.inputs:
            if -1 in tensor.declared:
                text = f"{tensor.name}: shape {list(tensor.shape)}"
                _ask(log, "shape_outside_profile", text, context.set_input_shape, tensor.name, tensor.shape)
        values = input_values(self._libraries.numpy, plan.inputs, self._spec)
        for tensor in plan.inputs:
            self._allocate(tensor)
            tensor.as_array()[...] = values[tensor.name]
        missing = _tell(log, "shape_outside_profile", "the outputs' shapes", context.infer_shapes)
        if missing:
            raise RunnerError("shape_outside_profile", f"no shape is known for {', '.join(map(str, missing))}")
        for tensor in plan.outputs:
            tensor.shape = tuple(int(size) for size in context.get_tensor_shape(tensor.name))
            if not tensor.is_known:
                tensor.at_most_bytes = int(context.get_max_output_size(tensor.name))
                if tensor.at_most_bytes < 0:
                    raise RunnerError("plan_invalid", f"{tensor.name}: TensorRT knows no upper bound of this output")
            self._allocate(tensor)

    def _allocate(self, tensor: Tensor) -> None:
        numpy, cuda = self._libraries.numpy, self.gpu.cuda
        if tensor.is_on_host:
            tensor.host = numpy.zeros(tensor.nbytes, dtype="uint8")
            address = int(tensor.host.ctypes.data)
        else:
            with self.gpu.calls(f"{tensor.nbytes} bytes for {tensor.name}"):
                tensor.host = cuda.pagelocked_empty(tensor.nbytes, numpy.uint8)
                tensor.device = cuda.mem_alloc(tensor.nbytes)
            tensor.host[...] = 0
            address = int(tensor.device)
        _ask(
            self._log,
            "cuda_error",
            f"{tensor.name}: its address",
            self._context.set_tensor_address,
            tensor.name,
            address,
        )

    def _first_request(self) -> None:
        """Run once (what TensorRT does late it does now), capture if wanted, check the outputs of what will run."""
        put = self._eager()
        with self.gpu.calls("the first request"):
            self._log.begin()
            self.request = self._waited(put)
            self.request()
            if self._spec.wants_graph:
                self._graph = Graph(self._log, self._stream, put)
                self.request = self._waited(self._graph.launcher())
                for tensor in self.plan.outputs:
                    tensor.host[...] = 0
                self.request()
        numpy = self._libraries.numpy
        self.output_check = check_outputs(numpy, self.plan.outputs, self._spec, self._log)

    def _eager(self) -> Callable[[], None]:
        """A function that puts copies and inference on the stream."""
        cuda, stream, log = self.gpu.cuda, self._stream, self._log
        to_device, to_host = cuda.memcpy_htod_async, cuda.memcpy_dtoh_async
        moved = [tensor for tensor in self.plan.tensors if not tensor.is_on_host]
        inward = [(int(tensor.device), tensor.host) for tensor in moved if tensor.is_input]
        outward = [(tensor.host, int(tensor.device)) for tensor in moved if not tensor.is_input]
        run, handle = self._context.execute_async_v3, int(stream.handle)

        def put() -> None:
            for address, array in inward:
                to_device(address, array, stream)
            if not run(handle):
                raise log.failure("cuda_error", "a request: TensorRT says no")
            for array, address in outward:
                to_host(array, address, stream)

        return put

    def _waited(self, put: Callable[[], None]) -> Callable[[], None]:
        record, wait, stream = self._event.record, self._event.synchronize, self._stream

        def request() -> None:
            put()
            record(stream)
            wait()

        return request


def _not_loaded() -> None:
    raise RunnerError("internal", "nothing is loaded")


# --- what goes in, and what should come out -----------------------------------------------------------------


def input_values(numpy: Any, inputs: Sequence[Tensor], spec: Spec) -> dict[str, Any]:
    """Tensor name → its values: those of the file, or random ones."""
    if spec.inputs is not None:
        arrays = _arrays(numpy, spec.inputs, "inputs_invalid")
        wrong = sorted({tensor.name for tensor in inputs} ^ set(arrays))
        if wrong:
            text = f"{spec.inputs}: wanted one array for each input, these are missing or too many: {', '.join(wrong)}"
            raise RunnerError("inputs_invalid", text)
        return {tensor.name: _fitted(numpy, arrays[tensor.name], tensor, spec.inputs) for tensor in inputs}
    generator = numpy.random.default_rng(spec.seed)
    for tensor in inputs:
        if tensor.is_on_host:
            text = f"{tensor.name} holds a shape: its values must be given (inputs = FILE.npz)"
            raise RunnerError("inputs_invalid", text)
    return {tensor.name: _random(numpy, generator, tensor) for tensor in inputs}


def _random(numpy: Any, generator: Any, tensor: Tensor) -> Any:
    """Floats of a normal distribution; bytes of any value; whole numbers 0 and 1, which are in every vocabulary."""
    if not tensor.is_linear or tensor.kind in ("INT4", "FP4"):
        return generator.integers(0, 2, tensor.nbytes, dtype="uint8")
    if tensor.kind in ("FP8", "E8M0"):
        return generator.integers(0x30, 0x40, tensor.shape, dtype="uint8")  # small positive numbers, never NaN
    if tensor.kind == "BF16":
        return _bf16(numpy, generator.standard_normal(tensor.shape, dtype="float32"))
    if tensor.kind in ("FLOAT", "HALF"):
        return generator.standard_normal(tensor.shape, dtype="float32")
    low, high = {"UINT8": (0, 256), "INT8": (-128, 128)}.get(tensor.kind, (0, 2))
    return generator.integers(low, high, tensor.shape, dtype="int16")


def _bf16(numpy: Any, values: Any) -> Any:
    return (numpy.ascontiguousarray(values, dtype="float32").view("uint32") >> 16).astype("uint16")


# RuntimeError: encrypted, or (NotImplementedError) packed as it never is; too large for the memory or for a number
_NO_ARCHIVE = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, MemoryError, OverflowError)


def _arrays(numpy: Any, path: str, code: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            magic = file.read(2)
        if magic != b"PK":  # of other files numpy says that they are pickled
            raise ValueError(f"it begins with {magic!r}")
        with numpy.load(path, allow_pickle=False) as file:
            return {str(name): file[name] for name in file.files}
    except OSError as error:
        text = f"{path}: cannot be read by uid {os.geteuid()}: {error.strerror or error}"
    except (ValueError, AttributeError, TypeError, EOFError, KeyError) as error:
        text = f"{path}: wanted an .npz file with one array a tensor: {error}"
    except _NO_ARCHIVE as error:
        text = f"{path}: wanted an .npz file: {type(error).__name__}: {error}"
    raise RunnerError(code, text)


def _fitted(numpy: Any, array: Any, tensor: Tensor, path: str) -> Any:
    """The array in the tensor's shape and type; its first dimension repeated or cut: one sample does for all."""
    where = f"{path}: {tensor.name}"
    if tensor.kind in _RAW or not tensor.is_linear:
        if array.dtype != "uint8" or array.size != tensor.nbytes:
            text = f"{where}: wanted {tensor.nbytes} bytes (uint8), got {array.size} of {array.dtype}"
            raise RunnerError("inputs_invalid", text)
        return array.reshape(tensor.shape if tensor.kind in ("FP8", "E8M0") and tensor.is_linear else tensor.nbytes)
    if array.ndim != len(tensor.shape) or array.shape[1:] != tensor.shape[1:] or (array.ndim and not len(array)):
        raise RunnerError("inputs_invalid", f"{where}: wanted shape {list(tensor.shape)}, got {list(array.shape)}")
    kind = "float32" if tensor.kind == "BF16" else _TYPES[tensor.kind][0]
    if not numpy.can_cast(array.dtype, kind, casting="same_kind"):
        raise RunnerError("inputs_invalid", f"{where}: wanted {kind}, got {array.dtype}")
    if array.ndim and len(array) != tensor.shape[0]:
        array = numpy.take(array, numpy.arange(tensor.shape[0]) % len(array), axis=0)
    return _bf16(numpy, array) if tensor.kind == "BF16" else array.astype(kind)


def check_outputs(numpy: Any, outputs: Sequence[Tensor], spec: Spec, log: Log) -> Command:
    """The largest difference from what was expected, as a part of the largest expected value; the worst output."""
    if spec.outputs is None:
        for tensor in outputs:
            if _is_float(tensor) and not numpy.isfinite(_values(numpy, tensor)).all():
                log.warn(f"{tensor.name}: not every value is finite; the inputs may not be what the network expects")
        return {"checked": False, "max_error": None}
    arrays = _arrays(numpy, spec.outputs, "output_mismatch")
    known = {tensor.name: tensor for tensor in outputs}
    unknown = sorted(set(arrays) - set(known))
    if unknown or not arrays:
        text = f"{spec.outputs}: names {', '.join(unknown) or 'nothing'}, the engine's outputs are {', '.join(known)}"
        raise RunnerError("output_mismatch", text)
    errors = {name: _error(numpy, known[name], array, spec.outputs) for name, array in sorted(arrays.items())}
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] > spec.tolerance:
        text = f"{worst}: differs by {errors[worst]:.3g} of the largest expected value, allowed is {spec.tolerance:g}"
        raise RunnerError("output_mismatch", text)
    return {"checked": True, "max_error": errors[worst]}


def _is_float(tensor: Tensor) -> bool:
    return tensor.kind in ("FLOAT", "HALF", "BF16") and tensor.is_known and tensor.is_linear


def _values(numpy: Any, tensor: Tensor) -> Any:
    found = tensor.as_array()
    if tensor.kind == "BF16":
        found = (found.astype("uint32") << 16).view("float32")
    return found.astype("float64")


def _error(numpy: Any, tensor: Tensor, expected: Any, path: str) -> float:
    where = f"{path}: {tensor.name}"
    if not tensor.is_known or not tensor.is_linear or tensor.kind in _RAW:
        raise RunnerError("output_mismatch", f"{where}: an output of such a shape or type cannot be checked")
    shape = tensor.shape
    if expected.ndim != len(shape) or expected.shape[1:] != shape[1:] or (expected.ndim and not len(expected)):
        raise RunnerError(
            "output_mismatch", f"{where}: wanted {list(shape)}, expected values are {list(expected.shape)}"
        )
    if expected.ndim and len(expected) != shape[0]:
        expected = numpy.take(expected, numpy.arange(shape[0]) % len(expected), axis=0)
    found, expected = _values(numpy, tensor), expected.astype("float64")
    for which, array in (("of the engine's", found), ("expected", expected)):
        if not numpy.isfinite(array).all():
            raise RunnerError("output_mismatch", f"{where}: not every {which} value is finite")
    if not found.size:
        return 0.0
    return float(numpy.abs(found - expected).max() / max(float(numpy.abs(expected).max()), 1e-30))


# --- ONNX → plan --------------------------------------------------------------------------------------------


def build(libraries: Libraries, spec: Spec) -> Command:
    """Build a plan and write it; the answer for the parent."""
    begun_s = time.monotonic()
    if not spec.onnx or not spec.plan_out:
        raise RunnerError("bad_spec", "spec.onnx and spec.plan_out: wanted two paths")
    _read(spec.onnx, "ONNX file", 1)  # of a file that it cannot open TensorRT's parser says little
    trt, log = libraries.trt, libraries.log
    builder = _ask(log, "cuda_error", "TensorRT's builder", trt.Builder, libraries.logger)
    network = _ask(log, "build_failed", "an empty network", builder.create_network, _network_flags(trt))
    parser = _ask(log, "build_failed", "TensorRT's ONNX parser", trt.OnnxParser, network, libraries.logger)
    log.begin()
    if not parser.parse_from_file(spec.onnx):
        errors = [str(parser.get_error(index).desc()) for index in range(parser.num_errors)]
        raise log.failure("build_failed", f"{spec.onnx}: cannot be parsed: {'; '.join(errors)}"[:_LOG_CHARS])
    config = _ask(log, "build_failed", "a builder's configuration", builder.create_builder_config)
    _configure(trt, log, config, spec)
    _add_profile(log, builder, network, config, spec)
    text = f"{spec.onnx}: TensorRT could not build an engine"
    plan = _ask(log, "build_failed", text, builder.build_serialized_network, network, config)
    sha256 = _write_plan(spec.plan_out, memoryview(plan))
    seconds = time.monotonic() - begun_s
    answer = {"did": "build", "plan": spec.plan_out, "plan_bytes": int(plan.nbytes), "engine_sha256": sha256}
    return dict(answer, seconds=seconds, versions=libraries.versions())


def _network_flags(trt: Any) -> int:
    """Explicit batch where it is still a choice (8.x); since 10 there is nothing else, in 11 the name is gone."""
    explicit = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    return 0 if explicit is None else 1 << int(explicit)


def _configure(trt: Any, log: Log, config: Any, spec: Spec) -> None:
    for name in {"fp16": ("FP16",), "int8": ("FP16", "INT8")}.get(spec.precision or "", ()):
        flag = getattr(trt.BuilderFlag, name, None)
        if flag is None:
            text = f"TensorRT {trt.__version__} has no {name} flag: it takes the precision from the ONNX file alone"
            raise RunnerError("bad_spec", f"{text}; export it in that precision and leave precision out")
        _tell(log, "build_failed", f"flag {name}", config.set_flag, flag)
    if spec.workspace_bytes:
        pool = trt.MemoryPoolType.WORKSPACE
        _tell(log, "build_failed", "the workspace", config.set_memory_pool_limit, pool, spec.workspace_bytes)
    if spec.tactic_sources is not None:
        chosen = 0
        for name in spec.tactic_sources:
            source = getattr(trt.TacticSource, name, None)
            if source is None:
                raise RunnerError("bad_spec", f"TensorRT {trt.__version__} has no tactic source {name}")
            chosen |= 1 << int(source)
        _ask(log, "build_failed", "the tactic sources", config.set_tactic_sources, chosen)


def _add_profile(log: Log, builder: Any, network: Any, config: Any, spec: Spec) -> None:
    """One optimisation profile, where an input leaves a dimension open."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    unknown = sorted(set(spec.profile) - {str(tensor.name) for tensor in inputs})
    if unknown:
        names = ", ".join(str(tensor.name) for tensor in inputs)
        raise RunnerError("bad_spec", f"shapes names {', '.join(unknown)}, the network's inputs are {names}")
    profile = builder.create_optimization_profile()
    is_needed = False
    for tensor in inputs:
        name, shape = str(tensor.name), [int(size) for size in tensor.shape]
        if -1 in shape or (tensor.is_shape_tensor and name in spec.profile):
            put = profile.set_shape_input if tensor.is_shape_tensor else profile.set_shape
            _tell(log, "bad_spec", f"spec.profile.{name}", put, name, *_range(spec, name, shape))
            is_needed = True
    if is_needed and _tell(log, "bad_spec", "spec.profile", config.add_optimization_profile, profile) < 0:
        raise log.failure("bad_spec", f"spec.profile: TensorRT does not take {spec.profile!r}"[:_LOG_CHARS])


def _range(spec: Spec, name: str, shape: list[int]) -> tuple[Any, Any, Any]:
    """Smallest, best, largest shape of an input: as the profile says, or the one that will run."""
    if name in spec.profile:
        given = spec.profile[name]
        return tuple(given["min"]), tuple(given["opt"]), tuple(given["max"])
    wanted = list(spec.shapes.get(name, shape))
    if wanted and wanted[0] == -1:
        wanted[0] = spec.batch
    if -1 in wanted or len(wanted) != len(shape):
        text = f"{name}: {shape} leaves dimensions open: say them in shapes, {name} = [1, …] for one item"
        raise RunnerError("bad_spec", text)
    return tuple(wanted), tuple(wanted), tuple(wanted)


def _write_plan(path: str, data: memoryview) -> str:
    """Whole or not at all; its SHA-256."""
    beside = f"{path}.{os.getpid()}"
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        text = f"{path}: the plan cannot be written by uid {os.geteuid()}: {error.strerror}"
        raise RunnerError("build_failed", text) from error
    return hashlib.sha256(data).hexdigest()


# --- arrivals -----------------------------------------------------------------------------------------------


class AtRate:
    """Request k is due at start + offset + k / rate. A new rate holds from the next request that is not due yet."""

    def __init__(self, start_ns: int, given: Given) -> None:
        self._rate_hz = given.number("rate_hz", 0.0, 1e-6)
        self._base_ns = start_ns + given.number("offset_s", 0.0, 0.0) * 1e9
        self._base = 0
        self._later: tuple[int, float, float] | None = None

    def due_ns(self, k: int) -> int | None:
        """When request k is due; asked in order."""
        if self._later is not None and k >= self._later[0]:
            self._base, self._base_ns, self._rate_hz = self._later
            self._later = None
        return round(self._base_ns + (k - self._base) / self._rate_hz * 1e9)

    def change(self, rate_hz: float, k: int, now_ns: int) -> None:
        """Requests from k on that are not due at `now_ns` come `1 / rate_hz` apart."""
        waiting = max(0, math.floor((now_ns - self._base_ns) * self._rate_hz / 1e9) + 1)
        first = max(k, self._base + waiting)
        before_ns = self._base_ns + (first - 1 - self._base) / self._rate_hz * 1e9
        self._later = (first, max(float(now_ns), before_ns + 1e9 / rate_hz), rate_hz)


class AsTrace:
    """Request i of loop j is due at start + j × period + times[i]; without a period there is one loop."""

    def __init__(self, start_ns: int, given: Given) -> None:
        self._times_s = given.numbers("times_s")
        self._period_s = given.number("period_s", 0.0, 0.0)
        self._start_ns = start_ns
        if self._period_s and self._times_s and self._times_s[-1] > self._period_s:
            raise RunnerError(
                "bad_spec", f"a trace of {self._times_s[-1]} s does not fit a period of {self._period_s} s"
            )

    def due_ns(self, k: int) -> int | None:
        """When request k is due; None: never."""
        loop, index = divmod(k, max(1, len(self._times_s)))
        if not self._times_s or (loop and not self._period_s):
            return None
        return self._start_ns + round((loop * self._period_s + self._times_s[index]) * 1e9)


# --- the process --------------------------------------------------------------------------------------------


class Runner:
    """Does what the parent says, one command after the other."""

    def __init__(self, wire: Wire, control: Control, outbox: Outbox, pacemaker: Pacemaker) -> None:
        self._wire, self._control, self._outbox, self._pacemaker = wire, control, outbox, pacemaker
        self._libraries = Libraries(Log(outbox))
        self._session: Session | None = None
        self._has_chosen = False

    def run(self) -> None:
        """Until `end`."""
        while True:
            command = self._control.next()
            do = command["do"]
            if do == "end":
                return
            if do in ("about", "inspect", "build", "load") and self._session is None:
                self._prepare(do, command.get("spec", {}))
            elif do == "start" and self._session is not None:
                self._start(Given(command.get("arrival"), "arrival"), Given(command, do).whole("at_ns", 0, 0))
            elif do == "stop":
                self._answer("D", {"did": "stop", "sent": 0})
            elif do != "rate":  # a rate that comes when nothing runs is late, and of no use
                what = f"{do!r} is not expected here" if do else f"a line that is no command: {command.get('line')!r}"
                raise RunnerError("bad_spec", what)

    def close(self) -> None:
        """Free the GPU."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def fail(self, error: RunnerError) -> None:
        """Say why it ends; what had ended by then was said before."""
        self._pacemaker.pause()
        self._outbox.end()
        self._outbox.flush()
        lines = error.lines or self._libraries.log.lines()
        self._wire.tell("E", {"code": error.code, "text": str(error)[:_ERROR_CHARS], "log": lines})

    def _prepare(self, do: str, document: Any) -> None:
        spec = Spec(document)
        if not self._has_chosen:
            _choose_device(spec.device)
            self._has_chosen = True
        if do == "build":
            self._answer("D", build(self._libraries, spec))
            return
        self._session = Session(self._libraries, spec)
        if do == "load":
            self._session.load()
            self._outbox.limit_s = spec.request_limit_s
            self._answer("R", self._session.described(), is_last=True)
            return
        if do == "inspect":
            self._answer("I", self._session.inspect())
        else:
            self._answer("D", self._about(self._session.gpu, spec))
        self.close()

    def _about(self, gpu: Gpu, spec: Spec) -> Command:
        assert self._libraries.trt is not None  # its version is asked for
        found = {"gpu_name": gpu.name, "compute_capability": gpu.compute_capability, "device": spec.device}
        memory = {"integrated": gpu.is_integrated, "free_bytes": gpu.free_bytes, "total_bytes": gpu.total_bytes}
        return dict(found, did="about", versions=self._libraries.versions(), pci_bus_id=gpu.pci_bus_id, **memory)

    def _answer(self, kind: str, document: Command, *, is_last: bool = False) -> None:
        """A frame of any length, with everything that was noted before it. `is_last`: no more loading after this."""
        self._pacemaker.pause()
        if is_last:
            self._pacemaker.end()
        self._outbox.flush()
        self._wire.tell(kind, document)
        self._pacemaker.resume()

    def _start(self, given: Given, at_ns: int) -> None:
        session, outbox = self._session, self._outbox
        assert session is not None
        outbox.sent = 0
        kind = given.one_of("kind", None, "back_to_back", "rate", "trace")
        with session.gpu.calls("a request"):
            try:
                self._sleep_until(at_ns, session)
                if kind == "back_to_back":
                    back_to_back(session.request, outbox, self._control.commands)
                else:
                    self._keep(session, AtRate(at_ns, given) if kind == "rate" else AsTrace(at_ns, given))
            finally:
                outbox.begun_ns = 0
        outbox.flush()
        do = self._control.commands[0]["do"]
        if do == "stop":
            self._control.commands.popleft()
            self._answer("D", {"did": "stop", "sent": outbox.sent})
        elif do == "rate":
            raise RunnerError("bad_spec", f"rate: the arrival {kind} has none")

    def _keep(self, session: Session, arrival: Any) -> None:
        """Requests when they are due, or as soon as the one before has ended; none is dropped."""
        commands, outbox, request, now = self._control.commands, self._outbox, session.request, time.monotonic_ns
        k = 0
        while True:
            if commands:
                if commands[0]["do"] != "rate" or not isinstance(arrival, AtRate):
                    return
                arrival.change(Given(commands.popleft(), "rate").number("rate_hz", 0.0, 1e-6), k, now())
            due_ns = arrival.due_ns(k)
            if due_ns is None:
                self._control.wait()
            elif due_ns > now():
                self._sleep_until(due_ns, session)
            else:
                outbox.begun_ns = begun_ns = now()
                request()
                outbox.done.append((due_ns, begun_ns, now()))
                outbox.begun_ns = 0
                k += 1

    def _sleep_until(self, due_ns: int, session: Session) -> None:
        """Until then, or until the parent says something. Spinning, its last half millisecond is awake."""
        while not self._control.commands:
            left_s = (due_ns - time.monotonic_ns()) / 1e9 - (5e-4 if session.is_spinning else 0.0)
            if left_s > 0.0:
                self._control.wait(left_s)
            elif not session.is_spinning or time.monotonic_ns() >= due_ns:
                return


def back_to_back(request: Callable[[], None], outbox: Outbox, commands: deque[Command]) -> None:
    """One request after the other until there is a command. What the times cost: bench/runner_overhead.py."""
    now, keep = time.monotonic_ns, outbox.done.append
    while not commands:
        outbox.begun_ns = begun_ns = now()
        request()
        keep((begun_ns, begun_ns, now()))


def _die_with_parent(parent: int) -> None:
    """The kernel ends this process when the thread that started it ends."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # 50 µs of slack would be 50 µs of queueing
    if os.getppid() != parent:
        os._exit(1)  # it was gone before the kernel was asked


def _take_over_descriptors() -> tuple[int, int]:
    """(control, frames) under numbers of their own: what a library prints must not come between frames."""
    control, frames = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    with contextlib.suppress(OSError):
        fcntl.fcntl(frames, _F_SETPIPE_SZ, 1 << 20)
    return control, frames


def main() -> int:
    """The process's life."""
    told = sys.argv[2] if sys.argv[1:2] == ["--parent"] else os.environ.get("JOULED_PARENT")
    parent = int(told or os.getppid())
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # where memory is short this is the process to lose
    _die_with_parent(parent)
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]  # its neighbours are no libraries
    control_descriptor, frames_descriptor = _take_over_descriptors()
    wire = Wire(frames_descriptor)
    pacemaker = Pacemaker(frames_descriptor)  # forked before there are threads
    outbox, control = Outbox(wire), Control(control_descriptor)
    signal.signal(signal.SIGTERM, lambda _number, _frame: control.put({"do": "end"}))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outbox.start()
    control.start()
    runner = Runner(wire, control, outbox, pacemaker)
    code = 1
    try:
        runner.run()
        outbox.end()
        outbox.flush()
        code = 0
    except RunnerError as error:
        runner.fail(error)
    except Exception as error:  # noqa: BLE001  the parent is told of whatever it was
        traceback.print_exc()
        runner.fail(
            RunnerError("internal", f"{type(error).__name__}: {error}", traceback.format_exc().splitlines()[-8:])
        )
    finally:
        pacemaker.end()
        runner.close()
    return code


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # destructors of libraries at the interpreter's end have nothing left to free, and may crash
