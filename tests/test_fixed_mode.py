"""Fixed mode: variants compared on a machine whose knobs nobody touches; a made-up GPU whose truth is known exactly."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jouled.board.board import discover
from jouled.board.channels import Rail
from jouled.board.clocks import ClockReading
from jouled.board.gpuload import GpuClient
from jouled.board.host import Host
from jouled.board.knobs import read_knobs
from jouled.board.lock import hold_board
from jouled.board.meter import BoardMeters, Chosen
from jouled.board.nvml_link import GpuInfo
from jouled.board.process import MARK, Processes, start_ticks
from jouled.board.rails import Sampler
from jouled.board.statefile import write_state
from jouled.board.sysfs import Sysfs
from jouled.board.thermal import ThermalState
from jouled.cli import main
from jouled.cli.output import ending
from jouled.cli.progress import Progress
from jouled.config import Config, load
from jouled.errors import (
    ConfigError,
    SensorError,
    UsageError,
    WorkloadDiedError,
    WorkloadError,
    WorkloadHungError,
    WorkloadTooLargeError,
)
from jouled.job.cancel import Cancellation
from jouled.job.events import Event, encode
from jouled.job.fixed import children_path
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.ledger import Ledger
from jouled.virtual.clock import SimClock
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.runner import VirtualRunner
from jouled.workload.runner import Arrival, Loaded
from jouletune.measurement import Completions
from jouletune.space import Variant

IDLE_W = 80.0
FP32, FP16 = "/opt/app/resnet.fp32.plan", "/opt/app/resnet.fp16.plan"
VARIANTS = tuple(Variant(*each) for each in product((FP32, FP16), (1, 4, 16), (1, 2)))
QUICK = {
    "job.settle_min_s": 2.0,
    "job.settle_max_s": 2.0,
    "job.pilot_s": 2.0,
    "job.window_min_s": 5.0,
    "job.window_max_s": 5.0,
    "job.watch_s": 5.0,
    "job.budget": 13,
    "job.finals_windows": 9,
    "target.latency_bound_s": 0.010,
}


def energy_j(variant: Variant) -> float:
    """Exact joules per item: fp16 takes half, a batch shares its fixed part, a second instance hides the gaps."""
    each_j = 0.030 if variant.engine == FP16 else 0.060
    return (each_j + 0.060 / variant.batch) * (0.92 if variant.instances == 2 else 1.0)


def latency_s(variant: Variant) -> float:
    """Exact seconds a request."""
    alone_s = (0.0004 + 0.0004 * variant.batch) * (1.0 if variant.engine == FP16 else 2.0)
    return alone_s * variant.instances


class Gpu:
    """A GPU that exists in time: what it draws, and what the runner on it has ended."""

    def __init__(self) -> None:
        self.clock = SimClock(start_s=1000.0, boot_wall_s=1.7e9, passes=lambda to_s: None)
        self.running: Variant | None = None
        self.noise = np.random.default_rng(7)

    @property
    def power_w(self) -> float:
        if self.running is None:
            return IDLE_W
        items_hz = self.running.instances * self.running.batch / latency_s(self.running)
        return energy_j(self.running) * items_hz


class FakeMeter:
    """Volts are 1, so amperes are watts."""

    rail, coverage, averaging_s = "nvml:GPU0", "GPU board, as NVML counts it", 0.125
    rails = (Rail("nvml:GPU0", 0.0, 0.0),)
    gpu: GpuInfo | None = GpuInfo(0, "NVIDIA Made-Up 9000", "GPU-1234", "0000:01:00.0", "580.1", "instant")

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.observer: FakeObserver | None = FakeObserver()
        self.is_closed = False

    def read(self) -> tuple[tuple[float, float], ...]:
        return ((1.0, self._gpu.power_w * float(self._gpu.noise.normal(1.0, 0.002))),)

    def sampling(self, clock: Any, *, rate_hz: float, external_w: float = 0.0) -> Sampler:
        return Sampler(clock, self, rate_hz=8.0, external_w=external_w)

    def close(self) -> None:
        self.is_closed = True


class FakeObserver:
    by_design: frozenset[str] = frozenset()
    counts_over_current = False

    def thermal(self) -> ThermalState:
        return ThermalState({"gpu": 45.0}, {}, {}, ())

    def clocks(self) -> ClockReading:
        return ClockReading(None, None, None)

    def others(self, own: Collection[int]) -> tuple[GpuClient, ...]:
        return ()

    def load(self) -> float | None:
        return 0.0


@dataclass
class FakeRunner:
    """Requests that take exactly as long as the table says, give or take half a percent."""

    gpu: Gpu
    arrival: Arrival = field(default_factory=Arrival)
    refuses: dict[Variant, WorkloadError] = field(default_factory=dict)
    on_take: Callable[[], None] = lambda: None
    loads: list[Variant] = field(default_factory=list)
    _variant: Variant | None = None
    _due_s: list[float] = field(default_factory=list)

    def load(self, variant: Variant) -> Loaded:
        self.loads.append(variant)
        if variant in self.refuses:
            raise self.refuses[variant]
        self._variant = variant
        return Loaded("made up", "image", (("tensorrt", "10.3.0"),))

    def begin(self) -> None:
        assert self._variant is not None
        self.gpu.running = self._variant
        self._due_s = [self.gpu.clock.monotonic_s()] * self._variant.instances

    def take(self) -> Completions:
        self.on_take()
        assert self._variant is not None
        now_s, typical_s = self.gpu.clock.monotonic_s(), latency_s(self._variant)
        done: list[tuple[float, float]] = []
        for number, begins_s in enumerate(self._due_s):
            count = int((now_s - begins_s) / typical_s)
            took_s = typical_s * self.gpu.noise.uniform(0.99, 1.0, size=count)
            ends_s = begins_s + typical_s * np.arange(1, count + 1)
            done += list(zip(ends_s, took_s, strict=True))
            self._due_s[number] = begins_s + count * typical_s
        done.sort()
        end_s = np.array([end for end, _ in done], dtype=np.float64)
        start_s = end_s - np.array([took for _, took in done], dtype=np.float64)
        return Completions(start_s, start_s, end_s, self._variant.batch)

    def pause(self) -> None:
        self.gpu.running = None

    def close(self) -> None:
        self.gpu.running = None
        self._variant = None


class Bench:
    """A GPU host, and jobs on it."""

    def __init__(self, folder: Path, *, privileged: bool = False) -> None:
        self.folder = folder / "state"
        root = folder / "root"
        (root / "proc/sys/kernel/random").mkdir(parents=True)
        (root / "proc/sys/kernel/random/boot_id").write_text("boot\n")
        self.gpu = Gpu()
        self.meter = FakeMeter(self.gpu)
        self.runner = FakeRunner(self.gpu)
        self.host = Host(
            Sysfs(root), Processes(), self.gpu.clock, self.folder, run_dir="/run/mine", privileged=privileged
        )
        self.events: list[Event] = []

    def choose(self, processes: Processes, wanted: str, board: BoardMeters | None) -> Chosen:
        assert board is None, "this machine is no Jetson"
        return Chosen(self.meter, "made up")

    def config(self, **overrides: Any) -> Config:
        return load(None, {**QUICK, **{key.replace("__", "."): value for key, value in overrides.items()}})

    def request(self, *, variants: tuple[Variant, ...] = VARIANTS, **keys: Any) -> Request:
        return Request(
            self.config(**keys),
            "resnet",
            make_space=lambda board: pytest.fail("no board is asked"),
            fixed=True,
            variants=variants,
            choose_meter=self.choose,
            workload_marks=lambda: {FP16: "a" * 64},
        )

    def run(self, *, variants: tuple[Variant, ...] = VARIANTS, **keys: Any) -> JobResult:
        request = self.request(variants=variants, **keys)
        sinks = (self.events.append,)
        return run_job(self.host, request, self.runner, cancellation=Cancellation(), sinks=sinks, job="job1")

    def trials(self) -> list[dict[str, Any]]:
        return [event["trial"] for event in self.events if event["event"] == "trial"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def best(bound_s: float) -> Variant:
    """What an exhaustive look at the truth finds."""
    return min((one for one in VARIANTS if latency_s(one) <= bound_s), key=energy_j)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_variant_of_least_energy_within_the_bound_is_found_by_an_ordinary_user(bench: Bench) -> None:
    result = bench.run()
    assert result.outcome == "tuned", result.reason_text
    assert result.winner is not None
    assert result.winner.candidate.variant == best(0.010)
    low_j, high_j = result.winner.energy_interval_j
    assert low_j < energy_j(best(0.010)) < high_j
    assert result.exit_code(fail_on_no_gain=False) == 0


def test_the_machine_is_named_by_its_gpu_and_nothing_is_applied(bench: Bench) -> None:
    result = bench.run()
    document = result.as_json()
    assert (document["board"], document["base_mode"], document["method"]) == ("NVIDIA Made-Up 9000", "fixed", "fixed")
    assert document["applied"] is False
    assert document["rail"] == "nvml:GPU0"
    assert document["versions"]["driver"] == "580.1"
    assert document["winner"]["mode"] == {"cores": None, "cpu_hz": None, "gpu_hz": None, "emc_hz": None}
    assert document["winner"]["variant"] == {"engine": FP16, "batch": 16, "instances": 1}
    assert document["grid_size"] == len(VARIANTS)


def test_no_file_of_a_board_whose_knobs_are_turned_is_written(bench: Bench) -> None:
    bench.run()
    assert files(bench.folder) <= {"ledger.jsonl", "study.db"}
    assert bench.meter.is_closed


def test_what_was_measured_is_in_the_ledger_with_its_marks(bench: Bench) -> None:
    bench.run()
    events = Ledger(bench.folder).read().events
    started = next(event for event in events if event["event"] == "job_started")
    assert started["workload_marks"] == {FP16: "a" * 64}
    assert [row[4:] for row in started["space"]["candidates"]] == [
        [variant.engine, variant.batch, variant.instances] for variant in VARIANTS
    ]
    assert events[-1]["event"] == "finished"


def test_the_end_says_which_variant_to_deploy(bench: Bench) -> None:
    text = ending(bench.run(), undo="")
    assert "energy per image than the first variant" in text
    assert f"deploy {FP16}, batch 16, 1 instance (instead of {FP32}, batch 1, 1 instance)" in " ".join(text.split())
    assert "fixed mode touches no knob" in text
    assert "undo" not in text


def test_the_reason_names_the_first_variant_and_the_workloads_own_unit(bench: Bench) -> None:
    result = bench.run()
    assert result.outcome == "tuned"
    assert "less energy per image than the first variant" in result.reason_text


def test_the_reason_speaks_of_variants_where_none_is_better(bench: Bench) -> None:
    result = bench.run(variants=(best(0.010), VARIANTS[0]))
    assert result.outcome == "no_gain"
    assert re.match(r"the best other variant takes .* more than the first variant|no other", result.reason_text)


def test_a_machine_without_clocks_has_no_rows_for_them(bench: Bench) -> None:
    text = ending(bench.run(variants=VARIANTS[:1]), undo="")
    rows = [line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.split()]
    assert not {"cores", "CPU", "GPU", "EMC", "clocks"} & set(rows)
    assert {"engine", "batch", "instances", "energy"} <= set(rows)
    assert "first variant\n" in text
    assert "of 1 variant" in " ".join(text.split())


def test_a_workload_that_never_ran_has_no_table(bench: Bench) -> None:
    bench.runner.refuses[VARIANTS[0]] = WorkloadError("it says no", code="plan_invalid", hint="build it here")
    text = ending(bench.run(), undo="")
    assert "\n\n\n" not in text
    assert "errors" not in text
    assert "to do     build it here" in text


def test_progress_names_variants_where_there_are_no_clocks(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(variants=VARIANTS[:1])
    shown = Progress()
    for event in bench.events:
        shown(event)
    told = capsys.readouterr().err
    assert "fixed mode: 1 candidate, about" in told
    assert "#  variant " in told
    assert f"  1  {FP32.rpartition('/')[2]} " in told


def test_one_variant_alone_is_measured_and_stays(bench: Bench) -> None:
    result = bench.run(variants=VARIANTS[:1])
    assert (result.outcome, result.applied) == ("no_gain", False)
    assert result.reference is not None
    assert result.reference.energy_j == pytest.approx(energy_j(VARIANTS[0]), rel=0.01)


def test_energy_is_per_item_of_a_batch(bench: Bench) -> None:
    variant = Variant(FP16, 4, 2)
    result = bench.run(variants=(variant,))
    assert result.reference is not None
    assert result.reference.energy_j == pytest.approx(energy_j(variant), rel=0.01)
    assert result.reference.throughput_hz == pytest.approx(4 * 2 / latency_s(variant), rel=0.01)


# --- what does not load --------------------------------------------------------------------------------------


def test_variant_that_does_not_fit_is_infeasible_and_tried_once(bench: Bench) -> None:
    big = best(0.010)
    bench.runner.refuses[big] = WorkloadTooLargeError("9.1 GiB of device memory needed, 4 GiB")
    result = bench.run(job__sampler="grid", job__budget=20)
    tried = [trial for trial in bench.trials() if Variant(**trial["candidate"]["variant"]) == big]
    assert [(trial["infeasible"], trial["invalid"], trial["measurement"]) for trial in tried] == [
        ("memory", None, None)
    ]
    assert "9.1 GiB of device memory needed" in tried[0]["detail"]
    assert bench.runner.loads.count(big) == 1
    assert result.outcome == "tuned"
    assert result.winner is not None
    assert result.winner.candidate.variant != big


def test_what_did_not_fit_has_taken_no_window_of_the_budget(bench: Bench) -> None:
    for variant in VARIANTS[1:6]:
        bench.runner.refuses[variant] = WorkloadTooLargeError("too large")
    bench.run(job__sampler="grid", job__budget=4)
    searched = [trial for trial in bench.trials() if trial["purpose"] in ("reference", "search")]
    assert sum(trial["measurement"] is not None for trial in searched) == 4


def test_first_variant_that_does_not_fit_ends_the_job_by_name(bench: Bench) -> None:
    bench.runner.refuses[VARIANTS[0]] = WorkloadTooLargeError("9.1 GiB needed, 4 GiB", hint="a smaller batch")
    result = bench.run()
    assert (result.outcome, result.reason_code) == ("no_feasible", "memory")
    assert "9.1 GiB needed" in result.reason_text
    assert result.exit_code(fail_on_no_gain=False) == 3
    assert bench.meter.is_closed


def test_out_of_memory_as_found_counts_as_memory_too(bench: Bench) -> None:
    bench.runner.refuses[VARIANTS[0]] = WorkloadError("cuMemAlloc: out of memory", code="out_of_memory")
    assert bench.run().reason_code == "memory"


@pytest.mark.parametrize("code", ["plan_invalid", "shape_outside_profile", "output_mismatch"])
def test_what_would_fail_again_is_not_tried_again(bench: Bench, code: str) -> None:
    bad = VARIANTS[1]
    bench.runner.refuses[bad] = WorkloadError("as TensorRT says it", code=code)
    result = bench.run(job__sampler="grid", job__budget=20)
    tried = [trial for trial in bench.trials() if Variant(**trial["candidate"]["variant"]) == bad]
    assert [trial["invalid"] for trial in tried] == ["workload_died"]
    assert code in tried[0]["detail"]
    assert result.outcome == "tuned"


def test_what_may_go_well_the_next_time_is_tried_again(bench: Bench) -> None:
    bad = VARIANTS[1]
    bench.runner.refuses[bad] = WorkloadError("CUDA error 999", code="cuda_error")
    bench.run(job__sampler="grid", job__budget=20)
    assert bench.runner.loads.count(bad) == 3


def test_first_variant_that_cannot_be_loaded_is_a_failed_workload(bench: Bench) -> None:
    bench.runner.refuses[VARIANTS[0]] = WorkloadError("magic tag does not match", code="plan_invalid")
    result = bench.run()
    assert (result.outcome, result.exit_code(fail_on_no_gain=False)) == ("workload_failed", 9)
    assert "plan_invalid" in result.reason_text


def test_what_failed_is_said_once_and_a_command_stays_on_its_line(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    command = f"sudo setfacl -m u:jouled-runner:r /opt/{'a-long-name-' * 6}.plan"
    bench.runner.refuses[VARIANTS[0]] = WorkloadError("no", code="plan_unreadable", hint=command)
    assert f"  to do     {command}" in ending(bench.run(), undo="").splitlines()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_first_variant_that_hangs_while_it_loads_is_called_hung(bench: Bench) -> None:
    bench.runner.refuses[VARIANTS[0]] = WorkloadHungError("silent for 5 s")
    result = bench.run()
    assert (result.outcome, result.reason_code) == ("workload_failed", "workload_hung")


# --- how else it ends ----------------------------------------------------------------------------------------


def test_sensor_that_tells_too_little_in_a_pilot_comes_with_what_to_do(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sampling(clock: Any, *, rate_hz: float, external_w: float = 0.0) -> Sampler:
        return Sampler(clock, bench.meter, rate_hz=0.4, external_w=external_w)

    monkeypatch.setattr(bench.meter, "sampling", sampling)
    result = bench.run()
    assert (result.outcome, result.reason_code) == ("board_fault", "sensor_gap")
    assert "too few samples in the pilot of 2 s, got 1; raise job.pilot_s" in result.reason_text


def test_of_readings_that_fail_outright_no_longer_pilot_is_advised(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = bench.meter.read

    def fails() -> tuple[tuple[float, float], ...]:
        if bench.gpu.running is not None and bench.gpu.clock.monotonic_s() % 1.0 > 0.01:
            raise SensorError("the bus is stuck")
        return read()

    monkeypatch.setattr(bench.meter, "read", fails)
    result = bench.run()
    assert (result.outcome, result.reason_code) == ("board_fault", "sensor_gap")
    assert "readings failed: the bus is stuck" in result.reason_text
    assert "pilot_s" not in result.reason_text + result.hint


def test_program_that_keeps_its_lines_back_is_the_likely_cause_of_few_inferences(bench: Bench) -> None:
    take = bench.runner.take

    def few() -> Completions:
        done, now_s = take(), bench.gpu.clock.monotonic_s()
        count = 1 if int(now_s) % 20 == 0 else 0
        return replace(done, arrival_s=done.arrival_s[:count], start_s=done.start_s[:count], end_s=done.end_s[:count])

    bench.runner.take = few  # type: ignore[method-assign]
    result = bench.run()
    assert (result.outcome, result.reason_code) == ("no_feasible", "percentile_unreachable")
    assert "does not flush its output" in result.reason_text


def test_bound_that_was_meant_in_milliseconds_is_asked_about(bench: Bench) -> None:
    result = bench.run(variants=VARIANTS[:1], target__latency_bound_s=33.0)
    (warning,) = [text for text in result.warnings if "latency bound" in text]
    assert warning.endswith("for 33 ms: --latency-bound-s 0.033")
    assert not [text for text in bench.run(variants=VARIANTS[:1]).warnings if "latency bound" in text]


def test_winner_that_dies_while_it_is_watched_is_rolled_back(bench: Bench) -> None:
    def die_when_watched() -> None:
        if any(event["event"] == "phase" and event["phase"] == "watching" for event in bench.events):
            raise WorkloadDiedError("ended by signal 9")

    bench.runner.on_take = die_when_watched
    result = bench.run()
    assert (result.outcome, result.reason_code, result.applied) == ("rolled_back", "workload_died", False)
    assert not children_path(bench.folder).exists()


def test_job_of_the_same_user_waits_for_nobody_and_says_who_holds(bench: Bench) -> None:
    with hold_board(bench.host, verb="tune"):
        result = bench.run()
    assert (result.outcome, result.reason_code) == ("board_busy", "lock_held")


def test_job_that_turns_the_knobs_under_us_is_seen_from_its_holder_file(bench: Bench) -> None:
    system = replace(bench.host, run_dir="/run/jouled")
    with hold_board(system, verb="tune"):
        result = bench.run()
    assert (result.outcome, result.reason_code) == ("board_busy", "lock_held")
    assert "holds the board" in result.reason_text
    assert bench.trials() == []


@pytest.fixture
def forgotten() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"], env={MARK: "job0", "PATH": "/usr/bin:/bin"}) as child:
        yield child
        child.kill()


def test_what_a_killed_job_has_left_running_is_ended_first(bench: Bench, forgotten: subprocess.Popen[bytes]) -> None:
    child = {"pid": forgotten.pid, "start_ticks": start_ticks(forgotten.pid)}
    left = {"mark": "job0", "boot_id": "boot", "children": [child]}
    write_state(children_path(bench.folder), "jouled.children/1", left)
    result = bench.run(variants=VARIANTS[:1])
    assert forgotten.wait(timeout=30) == -9
    assert any("job0" in warning and str(forgotten.pid) in warning for warning in result.warnings)
    assert not children_path(bench.folder).exists()


def test_whoever_has_a_childs_pid_after_a_reboot_is_left_alone(bench: Bench) -> None:
    with subprocess.Popen(["sleep", "600"], env={"PATH": "/usr/bin:/bin"}) as other:
        child = {"pid": other.pid, "start_ticks": start_ticks(other.pid)}
        left = {"mark": "job0", "boot_id": "the boot before", "children": [child]}
        write_state(children_path(bench.folder), "jouled.children/1", left)
        result = bench.run(variants=VARIANTS[:1])
        assert other.poll() is None
        other.kill()
    assert not any("job0" in warning for warning in result.warnings)
    assert not children_path(bench.folder).exists()


def test_children_are_kept_with_the_boot_that_they_live_in(bench: Bench) -> None:
    seen: list[dict[str, Any]] = []

    def look() -> None:
        seen.append(json.loads(children_path(bench.folder).read_text()))

    bench.runner.on_take = look
    bench.run(variants=VARIANTS[:1])
    assert {kept["boot_id"] for kept in seen} == {"boot"}


def test_damaged_list_of_children_is_said_and_forgotten(bench: Bench) -> None:
    bench.folder.mkdir(parents=True)
    children_path(bench.folder).write_text("{")
    result = bench.run(variants=VARIANTS[:1])
    assert any("children.json" in warning for warning in result.warnings)
    assert not children_path(bench.folder).exists()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"grid__clocks": "locked"}, "touches no clock"),
        ({"job__stop_units": ["app.service"]}, "stops no unit"),
    ],
)
def test_what_would_write_to_the_machine_is_refused(bench: Bench, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench.run(**keys)


def test_more_variants_than_the_grid_may_hold_are_refused(bench: Bench) -> None:
    with pytest.raises(UsageError, match=r"12 variants .* more than grid\.size = 10"):
        bench.run(grid__size=10)
    assert bench.run(grid__size=12).outcome == "tuned"


def test_dry_run_runs_nothing_and_lets_the_meter_go(bench: Bench) -> None:
    request = replace(bench.request(), dry_run=True)
    result = run_job(bench.host, request, bench.runner, cancellation=Cancellation())
    assert result.plan is not None
    assert result.plan["grid_size"] == len(VARIANTS)
    assert bench.runner.loads == []
    assert bench.meter.is_closed


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_file_that_is_not_there_is_said_before_anything_is_waited_for(bench: Bench, *, dry_run: bool) -> None:
    def look() -> None:
        raise WorkloadError("/opt/a.plan: there is no such file", code="plan_unreadable", hint="is the path right?")

    request = replace(bench.request(), look=look, dry_run=dry_run)
    began_s = bench.gpu.clock.monotonic_s()
    result = run_job(bench.host, request, bench.runner, cancellation=Cancellation())
    assert (result.outcome, result.plan, result.hint) == ("workload_failed", None, "is the path right?")
    assert (bench.gpu.clock.monotonic_s(), bench.runner.loads, bench.meter.is_closed) == (began_s, [], True)


# --- on a Jetson ---------------------------------------------------------------------------------------------


def test_on_a_board_no_knob_is_written_and_its_own_rails_are_read(tmp_path: Path) -> None:
    machine = VirtualMachine(tmp_path / "board", programs="in_process")
    host = replace(machine.host(tmp_path), privileged=False)
    domains = discover(host).domains
    before, writes = read_knobs(host.sysfs, domains), machine.kernel.writes
    config = load(None, {"target.latency_bound_ratio": 20.0, "job.budget": 4})
    variants = (Variant(), Variant(batch=4), Variant(batch=8))
    request = Request(config, "w", make_space=lambda board: pytest.fail("no grid"), fixed=True, variants=variants)
    result = run_job(host, request, VirtualRunner(machine, Arrival()), cancellation=Cancellation())
    assert result.outcome == "tuned"
    assert result.winner is not None
    assert result.winner.candidate.variant.batch in (4, 8)
    assert (result.board, result.base_mode) == ("agx-orin-64gb", "MAXN")
    assert result.rail == "VDD_GPU_SOC+VDD_CPU_CV+VIN_SYS_5V0"
    assert result.winner.candidate.mode.gpu_hz == 1300500000
    assert read_knobs(host.sysfs, domains) == before
    assert machine.kernel.writes == writes
    assert files(tmp_path) == {"board", "ledger.jsonl", "study.db"}


def test_cap_that_changes_while_it_is_measured_makes_the_window_invalid(tmp_path: Path) -> None:
    machine = VirtualMachine(tmp_path / "board", programs="in_process")
    host = machine.host(tmp_path)
    gpu = discover(host).domains.gpu
    assert gpu is not None

    def cap(event: Event) -> None:
        if event["event"] == "progress" and event["phase"] == "window":
            host.sysfs.write(f"{gpu.path}/max_freq", 612000000, why="somebody else")

    config = load(None, {"target.no_latency_bound": True, "job.budget": 2})
    request = Request(config, "w", make_space=lambda board: pytest.fail("no grid"), fixed=True)
    result = run_job(host, request, VirtualRunner(machine, Arrival()), cancellation=Cancellation(), sinks=(cap,))
    assert (result.outcome, result.reason_code) == ("unstable", "mode_changed")


def test_the_whole_command_on_a_virtual_board(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[workloads.detector]\nengine = "/opt/app/a.plan"\nbatch = [1, 8]\narrival = "back_to_back"\n'
        "[job]\nbudget = 3\n[target]\nlatency_bound_ratio = 20.0\n"
    )
    board = ["--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path / "state"), "--config", str(config)]
    assert main(["tune", *board, "--virtual-workload", "tiny", "--fixed-mode", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["outcome"], result["applied"], result["method"]) == ("tuned", False, "fixed")
    assert result["winner"]["variant"] == {"engine": "/opt/app/a.plan", "batch": 8, "instances": 1}
    assert main(["tune", *board, "--virtual-workload", "tiny", "--fixed-mode"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert next(line.split()[2] for line in lines if line.split()[1:2] == ["1"]) == "b1"  # not the one power mode


def test_documented_table_of_every_variant_is_what_a_sweep_gives(bench: Bench, tmp_path: Path) -> None:
    bench.run(job__sampler="grid", job__budget=14, target__latency_bound_s=None, target__no_latency_bound=True)
    text = (Path(__file__).parents[1] / "docs" / "fixed-mode.md").read_text("utf-8")
    program = text.partition("```python\n")[2].partition("```")[0]
    told = "".join(f"{encode(event)}\n" for event in bench.events)
    done = subprocess.run([sys.executable, "-c", program], input=told, capture_output=True, text=True, check=True)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    seen = {Variant(row["engine"], int(row["batch"]), int(row["instances"])): row for row in rows}
    assert set(seen) == set(VARIANTS)
    for variant, row in seen.items():
        assert float(row["energy_j"]) == pytest.approx(energy_j(variant), rel=0.02)
        assert 0.0 < float(row["energy_se_j"]) < 0.02 * energy_j(variant)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--virtual", "agx-orin-64gb", "--fixed-mode", "--grid", "1x3x1"], "--grid"),
        (["--virtual", "agx-orin-64gb", "--engine", "/opt/a.plan"], "--engine"),
        (["--table", "grid.csv", "--fixed-mode"], "--table"),
    ],
)
def test_options_that_do_not_go_together_are_said(
    capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["tune", *options, "--no-latency-bound"]) == 2
    assert said in capsys.readouterr().err


def test_the_made_up_gpu_draws_what_its_table_says() -> None:
    """The test's own truth: power × time ÷ items is the table's joules."""
    gpu = Gpu()
    for variant in VARIANTS:
        gpu.running = variant
        items = variant.batch * variant.instances / latency_s(variant)
        assert math.isclose(gpu.power_w / items, energy_j(variant))
