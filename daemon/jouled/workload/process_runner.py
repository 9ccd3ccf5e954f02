"""A workload run by processes that speak the runner protocol: one process for each instance of the variant."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jouled.board.process import Processes
from jouled.errors import WorkloadError
from jouled.workload.arrival import shares
from jouled.workload.child import Limits, RunnerChild
from jouled.workload.frames import DONE, INSPECTED, PROTOCOL, READY
from jouled.workload.instances import Instances
from jouled.workload.runner import Arrival, Loaded
from jouletune.measurement import Completions
from jouletune.space import Variant

log = logging.getLogger(__name__)

BUILD_S = 2700.0
_LEAD_S = 0.05  # all instances begin together
_RUNNER = "tensorrt_runner.py"


def runner_argv(python: str) -> tuple[str, ...]:
    """How the TensorRT runner is started: one file, by its path, in the Python that has tensorrt and pycuda."""
    return (python, "-B", str(Path(__file__).with_name(_RUNNER)), "--parent", str(os.getpid()))


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
    beat: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """What a runner says of itself: versions, the GPU's name. Raises as `ProcessRunner.load`, and what `beat` does."""
    spawned = processes.spawn(argv, user=user, environment=environment)
    child = RunnerChild(spawned, name="tensorrt runner", limits=Limits())
    with _closed(child):
        child.say({"do": "about"}, DONE)
        return child.answer(timeout_s=timeout_s, beat=beat)


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
    is whom they run as, `environment` is added to their clean one; `beat` is called each second of a wait for them, and
    may raise.
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
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self.arrival = arrival
        self.beat = beat
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
        self._sha256: dict[tuple[str | None, int], object] = {}
        self._instances = Instances(batch=1)
        self._children: tuple[RunnerChild, ...] = ()
        self._loaded: tuple[Variant, Loaded] | None = None
        self.ready: tuple[dict[str, Any], ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the instances."""
        return tuple(child.pid for child in self._instances.children)

    @property
    def log_lines(self) -> tuple[str, ...]:
        """What TensorRT has said at severity warning or worse, of all instances."""
        return tuple(line for child in self._children for line in child.log_lines)

    def load(self, variant: Variant) -> Loaded:
        """Start the instances and wait until each is ready; nothing to do where they are.

        Raises WorkloadError (with the runner's `code`), WorkloadDiedError, WorkloadHungError, what `check_fits` raises,
        ToolAbsentError, StuckError.
        """
        if self._loaded is not None and self._loaded[0] == variant and self._instances.children:
            return self._loaded[1]
        self.close()
        shares(self.arrival, variant.instances)  # before anything is started: can it be shared out?
        spec = self._make_spec(variant)
        if self._check_fits is not None:
            self._check_fits(self._inspect(variant, spec), variant.instances)
        self._instances = Instances(batch=variant.batch, lead_s=_LEAD_S)
        with self._instances.ended_on_error():
            self.ready = self._load_all(variant, spec)
            self._check_same(variant, self.ready[0])
        self._loaded = (variant, self._describe(self.ready[0]))
        return self._loaded[1]

    def begin(self) -> None:
        """Start the load. Raises WorkloadDiedError (also where nothing is loaded), WorkloadHungError."""
        self._instances.check(self._workload)
        self._instances.begin(self.arrival)

    def take(self) -> Completions:
        """What has ended since the last call, after `pause` too. Raises WorkloadDiedError, WorkloadHungError."""
        self._instances.check(self._workload)
        return self._instances.take()

    def pause(self) -> None:
        """Stop the load and wait for what is in flight. Raises WorkloadDiedError, WorkloadHungError."""
        self._instances.pause()

    def close(self) -> None:
        """End the instances; idempotent. Raises StuckError."""
        self._loaded, self._children, self.ready = None, (), ()
        self._instances.close()

    def _load_all(self, variant: Variant, spec: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        for number in range(variant.instances):
            child = self._start(number, variant.instances)
            self._children = (*self._children, child)
            self._instances.add(child)
        for child in self._children:
            child.say({"do": "load", "spec": spec}, READY)
        ready = tuple(child.answer(timeout_s=self._limits.load_s, beat=self.beat) for child in self._children)
        for child, told in zip(self._children, ready, strict=True):
            _check_ready(told, ready[0], variant, child.pid)
        return ready

    def _check_same(self, variant: Variant, ready: Mapping[str, Any]) -> None:
        """Raise WorkloadError where the plan is another one than it was: windows of two plans are not comparable."""
        now = ready.get("engine_sha256")
        before = self._sha256.setdefault((variant.engine, variant.batch), now)
        if now != before:
            text = f"{variant.engine}: another file than it was when it was first loaded (SHA-256 {before}, now {now})"
            raise WorkloadError(text, code="plan_changed", hint="let engines be while a job runs, and tune again")

    def _start(self, number: int, instances: int) -> RunnerChild:
        which = "" if instances == 1 else f" {number + 1} of {instances}"
        spawned = self._processes.spawn(self._argv, user=self._user, environment=self._environment)
        return RunnerChild(spawned, name=f"{self._workload} runner{which}", limits=self._limits)

    def _inspect(self, variant: Variant, spec: Mapping[str, Any]) -> dict[str, Any]:
        """What one instance needs of memory, asked once for each engine and batch of a process of its own."""
        key = (variant.engine, variant.batch)
        if key in self._inspected:
            self._inspected[key] = self._with_free_now(self._inspected[key])
        else:
            child = self._start(0, 1)
            with _closed(child):
                child.say({"do": "inspect", "spec": spec}, INSPECTED)
                numbers = child.answer(timeout_s=self._limits.load_s, beat=self.beat)
            self._inspected[key] = numbers
        return self._inspected[key]

    def _with_free_now(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """What is free of a discrete GPU changes as others come and go; a Jetson's memory is the host's, read anew."""
        if numbers.get("integrated"):
            return numbers
        told = about(self._processes, argv=self._argv, user=self._user, environment=self._environment, beat=self.beat)
        now, before = told.get("free_bytes"), numbers.get("free_bytes")
        if not isinstance(now, int) or not isinstance(before, int):
            return numbers
        moved = {name: numbers[name] + now - before for name in ("free_bytes", "loaded_free_bytes") if name in numbers}
        return numbers | moved

    def _describe(self, ready: Mapping[str, Any]) -> Loaded:
        versions = ready.get("versions")
        told = versions.items() if isinstance(versions, dict) else ()
        return Loaded(
            str(ready.get("description") or self._workload),
            self._inference_name,
            tuple((str(name), str(version)) for name, version in told if version is not None),
        )


def _check_ready(ready: Mapping[str, Any], first: Mapping[str, Any], variant: Variant, pid: int) -> None:
    """Raise WorkloadError where a runner has loaded another thing than was asked for, or than its siblings."""
    wanted = {"protocol": PROTOCOL, "batch": variant.batch, "engine_sha256": first.get("engine_sha256")}
    for name, value in wanted.items():
        if ready.get(name) != value:
            text = f"runner (pid {pid}): {name}: wanted {value!r}, got {ready.get(name)!r}"
            raise WorkloadError(text, code="bad_ready")
