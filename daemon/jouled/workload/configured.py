"""The workload that the configuration names, ready to be run: by which runner, as whom, with which plans."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from jouled.board.host import Host
from jouled.board.process import uid_of
from jouled.config.tables import Config, WorkloadEntry
from jouled.errors import NotPermittedError, ToolAbsentError, WorkloadError
from jouled.workload.access import refusals
from jouled.workload.command import CommandRunner
from jouled.workload.marks import workload_marks
from jouled.workload.memory import MemoryNeed, available_bytes, check_fits
from jouled.workload.plans import PlanCache, profile_of
from jouled.workload.process_runner import ProcessRunner, about, build_plan, runner_argv
from jouled.workload.runner import Arrival, Loaded, Runner
from jouled.workload.trtexec import GET_PYCUDA, LIMITS, TrtexecRunner, has_trtexec
from jouled.workload.trtexec import WARNING as TRTEXEC_WARNING
from jouled.workload.users import RUNNER_USER, runner_user
from jouletune.measurement import Completions
from jouletune.space import Variant

log = logging.getLogger(__name__)

# What Python lacks, by the runner's word for it, and how it gets it.
_WITHOUT_BINDINGS = {
    "no_tensorrt": "TensorRT's Python package is JetPack's, for the system's python3 alone: sudo apt install "
    "python3-libnvinfer; in a venv it is seen only with --system-site-packages",
    "no_pycuda": GET_PYCUDA,
}
# NVML counts GPUs along the PCI bus, CUDA by speed unless told otherwise: both must mean the same one.
_ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@dataclass
class ConfiguredWorkload:
    """One entry of [workloads]. `prepare` comes before the first `load`, in a job that runs it."""

    host: Host
    config: Config
    entry: WorkloadEntry
    arrival: Arrival
    argv: Sequence[str] = ()
    _plans: dict[tuple[str, int], str] = field(default_factory=dict)
    _runner: _Switched | None = None

    @property
    def user(self) -> str | None:
        """Whom it runs as; None: as this process does."""
        return runner_user(self.entry)

    def marks(self) -> Mapping[str, str]:
        """What a winner holds for besides the board."""
        return workload_marks(self.entry, self.arrival)

    # --- runners ----------------------------------------------------------------------------------------

    def runner(self) -> Runner:
        """The runner of its kind. Raises ConfigError (no such user), NotPermittedError (only root runs as another)."""
        if self._runner is None:
            uid_of(self.user)  # now, and not when the job has begun
            self._runner = _Switched(self._make())
        return self._runner

    def _make(self) -> _Beating:
        if self.entry.kind == "command":
            return CommandRunner(
                self.host.processes,
                self.arrival,
                argv=self.entry.argv,
                user=self.user,
                inference_name=self.entry.inference_name,
                environment=_ENVIRONMENT,
            )
        if self.entry.kind == "trtexec":
            return self._trtexec()
        return ProcessRunner(
            self.host.processes,
            self.arrival,
            argv=self._argv(),
            make_spec=self.spec_of,
            user=self.user,
            inference_name=self.entry.inference_name,
            check_fits=self._check_fits,
            environment=_ENVIRONMENT,
        )

    def _trtexec(self) -> TrtexecRunner:
        job = self.config.job
        return TrtexecRunner(
            self.host.processes,
            self.arrival,
            make_spec=self.spec_of,
            user=self.user,
            inference_name=self.entry.inference_name,
            environment=_ENVIRONMENT,
            stretch_s=job.settle_max_s + 15.0 + job.pilot_s + job.window_max_s,
        )

    def _argv(self) -> Sequence[str]:
        return self.argv or runner_argv(self.entry.python)

    def _check_fits(self, told: Mapping[str, Any], instances: int) -> None:
        host_bytes = available_bytes(self.host.sysfs)
        reserve_bytes = self.config.job.memory_reserve_bytes
        check_fits(MemoryNeed.of(told, instances), host_bytes=host_bytes, reserve_bytes=reserve_bytes)

    # --- what a runner is told --------------------------------------------------------------------------

    def spec_of(self, variant: Variant) -> dict[str, Any]:
        """What a runner loads for a variant."""
        entry = self.entry
        engine = variant.engine
        if engine is not None and entry.onnx:
            engine = self._plans.get((engine, variant.batch))
            if engine is None:
                raise WorkloadError(f"{variant.engine}: no plan of it was built for batch {variant.batch}")
        return {
            "engine": engine,
            "batch": variant.batch,
            "shapes": {name: list(shape) for name, shape in entry.shapes.items()},
            "inputs": entry.inputs,
            "outputs": entry.outputs,
            "tolerance": entry.tolerance,
            "sync": entry.sync,
            "cuda_graph": entry.cuda_graph,
            "device": 0,
            "seed": 0,
        }

    def build_spec(self, onnx: str, batch: int) -> dict[str, Any]:
        """What the builder is told. One plan serves all batch sizes where the inputs' shapes are known."""
        entry = self.entry
        spec: dict[str, Any] = {"onnx": onnx, "precision": entry.precision}
        if entry.shapes:
            spec["profile"] = profile_of(entry.shapes, entry.batch)
            spec["shapes"] = {name: list(shape) for name, shape in entry.shapes.items()}
        else:
            spec["batch"] = batch
        return spec

    # --- before the first window ------------------------------------------------------------------------

    def prepare(self, beat: Callable[[], None]) -> tuple[str, ...]:
        """See that the runner can work, and build what is to be built; sentences on what is done another way.

        Raises WorkloadError, StateError, and what `beat` raises.
        """
        said = []
        assert self._runner is not None, "a job has its runner before it prepares it"
        self.look()
        self._runner.beat = beat
        if self.user is None and os.geteuid() == 0:
            said.append(
                f"there is no user {RUNNER_USER} here: the workload runs as root (sudo jouled install makes it)"
            )
        if self.entry.kind != "tensorrt":
            return (*said, TRTEXEC_WARNING) if self.entry.kind == "trtexec" else tuple(said)
        try:
            with _program_named():
                told = about(
                    self.host.processes, argv=self._argv(), user=self.user, environment=_ENVIRONMENT, beat=beat
                )
        except WorkloadError as error:
            if error.code not in _WITHOUT_BINDINGS or self.entry.onnx:
                raise
            return (*said, self._fall_back(error))
        if self.entry.onnx:
            self._build(told, beat)
        return tuple(said)

    def look(self) -> None:
        """Raise WorkloadError for the first file that whoever runs it cannot use, with the line that lets it."""
        try:
            for refusal in refusals(self.host.processes, self.entry, self.user):
                hint = refusal.command or "is the path right? jouled check-config tries every file"
                raise WorkloadError(
                    refusal.text, code="plan_unreadable" if refusal.how == "r" else "bad_spec", hint=hint
                )
        except NotPermittedError as error:  # only root can try as another user: the runner will say it
            log.info("whether the workload's files can be read was not tried: %s", error)

    def _fall_back(self, error: WorkloadError) -> str:
        """trtexec is JetPack's own and needs no Python. Raises `error` where it cannot stand in either."""
        if self.arrival.kind != "back_to_back" or (self.entry.batch != (1,) and not self.entry.shapes):
            raise error
        if not has_trtexec(self.host.processes):
            raise WorkloadError(str(error), code=error.code, hint=_WITHOUT_BINDINGS[error.code]) from error
        log.warning("%s", error)
        assert self._runner is not None
        self._runner.switch(self._trtexec())
        return f"{LIMITS}; {_WITHOUT_BINDINGS[error.code]} ({error})"

    def _build(self, told: Mapping[str, Any], beat: Callable[[], None]) -> None:
        cache = PlanCache(self.host.state_dir, self.user)

        def build(spec: Mapping[str, Any]) -> Mapping[str, Any]:
            return build_plan(
                self.host.processes,
                argv=self._argv(),
                spec=spec,
                user=self.user,
                environment=_ENVIRONMENT,
                beat=beat,
            )

        for onnx in self.entry.onnx:
            for batch in self.entry.batch:
                self._plans[onnx, batch] = str(cache.plan(self.build_spec(onnx, batch), told, build))


@contextmanager
def _program_named() -> Iterator[None]:
    """A program that is not there is the workload's fault, not the board's."""
    try:
        yield
    except ToolAbsentError as error:
        hint = "see workloads.NAME.python or argv; jouled check-config tries them"
        raise WorkloadError(str(error), code="bad_spec", hint=hint) from error


class _Beating(Runner, Protocol):
    """A runner that may be waited for."""

    beat: Callable[[], None]


class _Switched:
    """A runner that may be exchanged before it is used."""

    def __init__(self, runner: _Beating) -> None:
        self._runner = runner
        self.arrival = runner.arrival

    @property
    def beat(self) -> Callable[[], None]:
        """What is called each second while the runner is waited for."""
        return self._runner.beat

    @beat.setter
    def beat(self, beat: Callable[[], None]) -> None:
        self._runner.beat = beat

    def switch(self, runner: _Beating) -> None:
        self._runner.close()
        runner.beat = self._runner.beat
        self._runner = runner

    def load(self, variant: Variant) -> Loaded:
        with _program_named():
            return self._runner.load(variant)

    def begin(self) -> None:
        self._runner.begin()

    def take(self) -> Completions:
        return self._runner.take()

    def pause(self) -> None:
        self._runner.pause()

    def close(self) -> None:
        self._runner.close()
