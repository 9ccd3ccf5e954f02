"""A workload run by processes that speak the runner protocol: one process for each instance of the variant."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jouled.board.process import Processes
from jouled.errors import WorkloadDiedError, WorkloadError
from jouled.workload.arrival import shares
from jouled.workload.child import Limits, RunnerChild
from jouled.workload.frames import DONE, INSPECTED, PROTOCOL, READY, Times
from jouled.workload.runner import Arrival, Loaded
from jouletune.measurement import Completions
from jouletune.space import Variant

log = logging.getLogger(__name__)

BUILD_S = 2700.0
_LEAD_NS = 50_000_000  # all instances begin together
_NS = 1e9
_RUNNER = "tensorrt_runner.py"


def runner_argv(python: str) -> tuple[str, ...]:
    """How the TensorRT runner is started: one file, by its path, in the Python that has tensorrt and pycuda."""
    return (python, "-B", str(Path(__file__).with_name(_RUNNER)), "--parent", str(os.getpid()))


def completions_of(parts: Sequence[Times], *, batch: int) -> Completions:
    """Times of several runners as one, in order of their end."""
    times = np.concatenate(parts) if parts else np.empty((0, 3), dtype=np.int64)
    times = times[np.argsort(times[:, 2], kind="stable")]
    arrival_s, start_s, end_s = (times[:, column] / _NS for column in range(3))
    return Completions(arrival_s, start_s, end_s, batch)


def build_plan(
    processes: Processes,
    *,
    argv: Sequence[str],
    spec: Mapping[str, Any],
    user: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = BUILD_S,
    beat: Callable[[], None] | None = None,
    limits: Limits | None = None,
) -> dict[str, Any]:
    """Let a runner build the plan that `spec` describes; what it says of it. Raises as `ProcessRunner.load`.

    `beat` is called each second; what it raises ends the build.
    """
    spawned = processes.spawn(argv, user=user, environment=environment)
    child = RunnerChild(spawned, name="plan builder", limits=limits or Limits())
    with _closed(child):
        child.say({"do": "build", "spec": spec}, DONE)
        return child.answer(timeout_s=timeout_s, beat=beat)


def about(
    processes: Processes,
    *,
    argv: Sequence[str],
    user: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> dict[str, Any]:
    """What a runner says of itself: versions, the GPU's name. Raises as `ProcessRunner.load`."""
    spawned = processes.spawn(argv, user=user, environment=environment)
    child = RunnerChild(spawned, name="tensorrt runner", limits=Limits())
    with _closed(child):
        return child.ask({"do": "about"}, DONE, timeout_s=timeout_s)


@contextmanager
def _closed(child: RunnerChild) -> Iterator[None]:
    try:
        yield
    except BaseException:
        child.end_at_once()
        raise
    finally:
        child.close()


class ProcessRunner:
    """Runs `argv` once for each instance; `make_spec` says what each is to load for a variant.

    `check_fits` gets what a runner says of its memory (and the number of instances) before any instance starts. `user`
    is whom they run as, `environment` is added to their clean one.
    """

    def __init__(
        self,
        processes: Processes,
        arrival: Arrival,
        *,
        argv: Sequence[str],
        make_spec: Callable[[Variant], Mapping[str, Any]],
        user: str | None = None,
        inference_name: str = "inference",
        workload: str = "tensorrt",
        check_fits: Callable[[Mapping[str, Any], int], None] | None = None,
        environment: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.arrival = arrival
        self._processes = processes
        self._argv = tuple(argv)
        self._make_spec = make_spec
        self._user = user
        self._inference_name = inference_name
        self._workload = workload
        self._check_fits = check_fits
        self._environment = dict(environment or {})
        self._limits = limits or Limits()
        self._inspected: dict[tuple[str | None, int], dict[str, Any]] = {}
        self._children: tuple[RunnerChild, ...] = ()
        self._loaded: tuple[Variant, Loaded] | None = None
        self._runs = False
        self.ready: tuple[dict[str, Any], ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the instances."""
        return tuple(child.pid for child in self._children)

    @property
    def log_lines(self) -> tuple[str, ...]:
        """What TensorRT has said at severity warning or worse, of all instances."""
        return tuple(line for child in self._children for line in child.log_lines)

    def load(self, variant: Variant) -> Loaded:
        """Start the instances and wait until each is ready; nothing to do where they are.

        Raises WorkloadError (with the runner's `code`), WorkloadDiedError, WorkloadHungError, what `check_fits` raises,
        ToolAbsentError, StuckError.
        """
        if self._loaded is not None and self._loaded[0] == variant and not self._runs:
            return self._loaded[1]
        self.close()
        shares(self.arrival, variant.instances)  # before anything is started: can it be shared out?
        spec = self._make_spec(variant)
        if self._check_fits is not None:
            self._check_fits(self._inspect(variant, spec), variant.instances)
        with self._ended_on_error():
            for number in range(variant.instances):
                self._children = (*self._children, self._start(number, variant.instances))
            for child in self._children:
                child.say({"do": "load", "spec": spec}, READY)
            ready = [child.answer(timeout_s=self._limits.load_s) for child in self._children]
            for child, told in zip(self._children, ready, strict=True):
                _check_ready(told, ready[0], variant, child.pid)
        self.ready = tuple(ready)
        loaded = self._describe(ready[0], variant)
        self._loaded = (variant, loaded)
        return loaded

    def begin(self) -> None:
        """Start the load. Raises WorkloadError before `load`, WorkloadDiedError, WorkloadHungError."""
        if self._loaded is None:
            raise WorkloadDiedError(f"{self._workload} runner: begin() with nothing loaded")
        at_ns = time.monotonic_ns() + _LEAD_NS
        parts = shares(self.arrival, len(self._children))
        with self._ended_on_error():
            for child, share in zip(self._children, parts, strict=True):
                child.begin(share, at_ns)
            self._runs = True

    def take(self) -> Completions:
        """What has ended since the last call, after `pause` too. Raises WorkloadDiedError, WorkloadHungError."""
        if self._loaded is None:
            raise WorkloadDiedError(f"{self._workload} runner: take() with nothing loaded")
        with self._ended_on_error():
            parts = [times for child in self._children for times in child.taken()]
        return completions_of(parts, batch=self._loaded[0].batch)

    def pause(self) -> None:
        """Stop the load and wait for what is in flight. Raises WorkloadDiedError, WorkloadHungError."""
        if not self._runs:
            return
        self._runs = False
        with self._ended_on_error():
            for child in self._children:
                child.ask_to_stop()
            for child in self._children:
                child.stopped()

    def close(self) -> None:
        """End the instances; idempotent. Raises StuckError."""
        children, self._children = self._children, ()
        self._loaded, self._runs, self.ready = None, False, ()
        for child in children:
            child.ask_to_end()
        _close(children)

    @contextmanager
    def _ended_on_error(self) -> Iterator[None]:
        """Where one instance fails all of them end, before the failure is told."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _start(self, number: int, instances: int) -> RunnerChild:
        which = "" if instances == 1 else f" {number + 1} of {instances}"
        spawned = self._processes.spawn(self._argv, user=self._user, environment=self._environment)
        return RunnerChild(spawned, name=f"{self._workload} runner{which}", limits=self._limits)

    def _inspect(self, variant: Variant, spec: Mapping[str, Any]) -> dict[str, Any]:
        """What one instance needs of memory, asked once for each engine and batch of a process of its own."""
        key = (variant.engine, variant.batch)
        if key not in self._inspected:
            child = self._start(0, 1)
            with _closed(child):
                numbers = child.ask({"do": "inspect", "spec": spec}, INSPECTED, timeout_s=self._limits.load_s)
            self._inspected[key] = numbers
        return self._inspected[key]

    def _describe(self, ready: Mapping[str, Any], variant: Variant) -> Loaded:
        sha256 = ready.get("engine_sha256") or "-"
        key = f"{self._workload}:{sha256}:b{variant.batch}:i{variant.instances}"
        versions = ready.get("versions")
        told = versions.items() if isinstance(versions, dict) else ()
        return Loaded(
            key,
            str(ready.get("description") or self._workload),
            self._inference_name,
            tuple((str(name), str(version)) for name, version in told if version is not None),
        )


def _close(children: Sequence[RunnerChild]) -> None:
    """Each of them, also when another does not die. Raises StuckError."""
    if children:
        try:
            children[0].close()
        finally:
            _close(children[1:])


def _check_ready(ready: Mapping[str, Any], first: Mapping[str, Any], variant: Variant, pid: int) -> None:
    """Raise WorkloadError where a runner has loaded another thing than was asked for, or than its siblings."""
    wanted = {"protocol": PROTOCOL, "batch": variant.batch, "engine_sha256": first.get("engine_sha256")}
    for name, value in wanted.items():
        if ready.get(name) != value:
            text = f"runner (pid {pid}): {name}: wanted {value!r}, got {ready.get(name)!r}"
            raise WorkloadError(text, code="bad_ready")
