"""NVIDIA's trtexec as a runner: for boards without pycuda. It tells its times only when a run is over.

A load is one run of `stretch_s`, started by `begin`; `pause` waits for its end, and what it exported can be taken then.
A run that ends before the window does is no use: the next one gets twice as long.

The format of what it exports and says is that of TensorRT's samples (samples/common/sampleReporting.cpp, 8.5 to 10.x).
Its times count from a mark on the GPU just after "Starting inference"; the host's clock is met halfway between that
line's coming and the last request's end before "Timing trace has".
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jouled.board.process import Processes, uid_of
from jouled.errors import ConfigError, ToolAbsentError, WorkloadDiedError
from jouled.workload.child import Limits
from jouled.workload.frames import Times
from jouled.workload.instances import Instances
from jouled.workload.program import FIRST_TO_GO
from jouled.workload.runner import Arrival, Loaded
from jouled.workload.stretch import StretchChild
from jouletune.measurement import Completions
from jouletune.space import Variant

log = logging.getLogger(__name__)

LIMITS = (
    "trtexec runs the engine, not TensorRT through pycuda: it tells its times only after a run, so that windows take "
    "longer and none is cut short; inputs are random, outputs are not checked"
)
GET_PYCUDA = "with the CUDA toolkit: sudo env PATH=/usr/local/cuda/bin:$PATH python3 -m pip install pycuda"
WARNING = f"{LIMITS}; {GET_PYCUDA}"
PLACES = ("/usr/src/tensorrt/bin/trtexec", "trtexec")
_LONGEST_S = 900.0  # it prints six digits: beyond 1000 s they are not even milliseconds
_TRY_S = 1
_MOST_BYTES = 512 << 20  # some 300 bytes a request: 2000 Hz for the longest run
_MOST_MS = 1e9
_VERSION = re.compile(r"TensorRT v(\d+)")


def has_trtexec(processes: Processes) -> bool:
    """Is NVIDIA's program on this machine?"""
    return _found(processes, PLACES) is not None


def _found(processes: Processes, places: Sequence[str]) -> str | None:
    return next(filter(None, (shutil.which(place, path=processes.path) for place in places)), None)


class TrtexecRunner:
    """Runs a plan by trtexec, once for each instance. `beat` is called each second of a wait, and may raise.

    `make_spec`, `user` and `environment` as for ProcessRunner; of a spec engine, batch, shapes, sync and cuda_graph are
    used.
    """

    def __init__(
        self,
        processes: Processes,
        arrival: Arrival,
        *,
        make_spec: Callable[[Variant], Mapping[str, Any]],
        program: str | None = None,
        user: str | None = None,
        inference_name: str = "inference",
        environment: Mapping[str, str] | None = None,
        stretch_s: float = 105.0,
        limits: Limits | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        if arrival.kind != "back_to_back":
            raise ConfigError(
                f'trtexec runs back to back only, got arrival "{arrival.kind}"',
                hint='install pycuda and use kind = "tensorrt", or set arrival = "back_to_back"',
            )
        self.arrival = arrival
        self.beat = beat
        self._processes = processes
        self._make_spec = make_spec
        self._program = program
        self._user = user
        self._inference_name = inference_name
        self._environment = dict(environment or {})
        self._stretch_s = min(stretch_s, _LONGEST_S)
        self._limits = limits or Limits()
        self._instances = Instances(batch=1)
        self._left: Completions | None = None
        self._spec: Mapping[str, Any] = {}
        self._loaded: tuple[Variant, Loaded] | None = None
        self._folder: Path | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the instances, while a run lasts."""
        return tuple(child.pid for child in self._instances.children)

    def load(self, variant: Variant) -> Loaded:
        """See that it can run the plan, by a run of a second. Raises WorkloadError, ToolAbsentError, StuckError."""
        if self._loaded is not None and self._loaded[0] == variant:
            return self._loaded[1]
        self.close()
        self._spec = self._make_spec(variant)
        self._folder = Path(tempfile.mkdtemp(prefix="jouled-"))
        self._folder.chmod(0o711)  # its user writes the files that we have made there, and can put none in their place
        said = self._try(variant)
        version = _VERSION.search(said)
        versions = () if version is None else (("tensorrt", _dotted(version[1])),)
        self._loaded = (variant, Loaded(f"trtexec {self._spec.get('engine')}", self._inference_name, versions))
        return self._loaded[1]

    def begin(self) -> None:
        """Start a run and wait until its inferences have begun. Raises WorkloadDiedError, WorkloadHungError."""
        if self._loaded is None:
            raise WorkloadDiedError("trtexec: nothing is loaded")
        variant = self._loaded[0]
        self._instances.close()
        self._left = None
        self._instances = Instances(batch=variant.batch)
        with self._instances.ended_on_error():
            children = [self._start(number, self._stretch_s) for number in range(variant.instances)]
            for child in children:
                child.wait_for_start(self.beat)
        self._instances.runs = True

    def take(self) -> Completions:
        """Nothing while a run lasts; all of it after `pause`. Raises WorkloadDiedError, WorkloadHungError."""
        if self._loaded is None:
            raise WorkloadDiedError("trtexec: nothing is loaded")
        left, self._left = self._left, None
        if left is not None:
            return left
        try:
            return self._instances.take()
        except WorkloadDiedError as error:
            if error.code == "too_short":
                self._stretch_s = min(2.0 * self._stretch_s, _LONGEST_S)
            raise

    def pause(self) -> None:
        """Wait for the end of the run. Raises WorkloadDiedError, WorkloadHungError, what `beat` raises."""
        if not self._instances.runs:
            return
        self._instances.pause()
        self._left = self._instances.take()
        self._instances.close()

    def close(self) -> None:
        """End the run; idempotent. Raises StuckError."""
        self._loaded, self._left = None, None
        self._instances.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _try(self, variant: Variant) -> str:
        self._instances = Instances(batch=variant.batch)
        with self._instances.ended_on_error():
            child = self._start(0, _TRY_S)
            child.wait_for_start(self.beat)
            child.ask_to_stop()
            child.stopped()
        self._instances.close()
        return child.said

    def _start(self, number: int, stretch_s: float) -> StretchChild:
        assert self._folder is not None
        exported = self._folder / f"{number}.json"
        _make_anew(exported, uid_of(self._user))
        argv = (*FIRST_TO_GO, "stdbuf", "-oL", self._find(), *self._options(stretch_s), f"--exportTimes={exported}")
        spawned = self._processes.spawn(argv, user=self._user, environment=self._environment)
        child = StretchChild(
            spawned,
            name="trtexec",
            limits=self._limits,
            stretch_s=stretch_s,
            read=lambda began_ns, ended_ns: times_of(exported, began_ns, ended_ns),
            beat=self.beat,
        )
        self._instances.add(child)
        return child

    def _find(self) -> str:
        found = _found(self._processes, (self._program,) if self._program is not None else PLACES)
        if found is not None:
            return found
        raise ToolAbsentError(
            f"trtexec: no such program: looked for {' and '.join(PLACES)}",
            argv=["trtexec"],
            hint='apt-get install libnvinfer-bin (JetPack has it), or install pycuda and use kind = "tensorrt"',
        )

    def _options(self, stretch_s: float) -> list[str]:
        spec = self._spec
        options = [
            f"--loadEngine={spec.get('engine')}",
            f"--duration={stretch_s:g}",
            "--warmUp=200",
            "--avgRuns=1000",
            "--exposeDMA",  # one request at a time, as the other runners do
        ]
        if shapes := spec.get("shapes"):
            named = (f"{name}:{_sized(shape, int(spec.get('batch', 1)))}" for name, shape in shapes.items())
            options.append(f"--shapes={','.join(named)}")
        if spec.get("sync") == "spin":
            options.append("--useSpinWait")
        if spec.get("cuda_graph"):
            options.append("--useCudaGraph")
        return options


def _sized(shape: list[int], batch: int) -> str:
    first, *others = shape
    return "x".join(map(str, (batch if first in (1, -1) else first, *others)))


def _dotted(number: str) -> str:
    """8502 is 8.5.2, 100300 is 10.3.0."""
    value = int(number)
    major, rest = (value // 1000, value % 1000) if value < 10_000 else (value // 10_000, value % 10_000)
    minor, patch = divmod(rest, 100)
    return f"{major}.{minor}.{patch}"


def _make_anew(exported: Path, uid: int) -> None:
    """An empty file that belongs to `uid`."""
    exported.unlink(missing_ok=True)
    descriptor = os.open(exported, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchown(descriptor, uid, -1)
    finally:
        os.close(descriptor)


def _read(exported: Path) -> bytes:
    """What another user has written, read by root: no link, no FIFO, not without end. Raises OSError, ValueError."""
    descriptor = os.open(exported, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no ordinary file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"wanted at most {_MOST_BYTES} bytes, got more")
    return data


def times_of(exported: Path, began_ns: int, ended_ns: int) -> Times:
    """What a run exported, on the host's clock; it began after `began_ns` and was over before `ended_ns`.

    The latency is its own, more exact than the difference of its times. Raises WorkloadDiedError.
    """
    try:
        rows = json.loads(_read(exported))
        end_ms = np.array([row["endD2hMs"] if "endD2hMs" in row else row["endOutMs"] for row in rows], dtype=np.float64)
        latency_ms = np.array([row["latencyMs"] for row in rows], dtype=np.float64)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise WorkloadDiedError(f"trtexec: what it exported cannot be read: {error!r}") from error
    are_times = np.all(np.abs(end_ms) < _MOST_MS) and np.all((latency_ms > 0.0) & (latency_ms < _MOST_MS))
    if not end_ms.size or not are_times:
        raise WorkloadDiedError(f"trtexec: it exported {end_ms.size} requests, or times that are none")
    end_ms = np.maximum.accumulate(end_ms)
    latest_ns = ended_ns - round(float(end_ms[-1]) * 1e6)
    zero_ns = (began_ns + latest_ns) // 2
    end_ns = np.minimum(zero_ns + np.rint(end_ms * 1e6).astype(np.int64), ended_ns)
    start_ns = end_ns - np.rint(latency_ms * 1e6).astype(np.int64)
    return np.stack([start_ns, start_ns, end_ns], axis=1)
