"""trtexec as a runner: one run a load, its times on the host's clock when it is over."""

from __future__ import annotations

import json
import math
import os
import shlex
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.virtual_trtexec import PROGRAM

from jouled.board.grid import board_space
from jouled.board.orphans import find_orphans
from jouled.board.process import BOARD_PATH, Processes, start_ticks
from jouled.config import load
from jouled.errors import ConfigError, ToolAbsentError, WorkloadDiedError, WorkloadError, WorkloadHungError
from jouled.job.cancel import Cancellation
from jouled.job.events import Event
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.runner import VirtualRunner
from jouled.workload import trtexec
from jouled.workload.child import Limits
from jouled.workload.runner import Arrival, Loaded
from jouled.workload.trtexec import TrtexecRunner, times_of
from jouletune.measurement import Completions
from jouletune.space import Variant

PATIENCE_S = 30.0
MARKED = f"test-{os.getpid()}-{start_ticks(os.getpid())}"


class CancelledByTest(Exception):
    """What a beat raises."""


def until(has_come: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if has_come():
            return
        pause.wait(0.005)
    raise AssertionError("it never came")


class Bench:
    """A folder with a virtual trtexec and a plan for it."""

    def __init__(self, folder: Path) -> None:
        self.plan = folder / "model.plan"
        self.options = folder / "options.json"
        self.program = folder / "trtexec"
        self.program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S {PROGRAM} "$@"\n')
        self.program.chmod(0o755)
        self.spec: dict[str, Any] = {"engine": str(self.plan)}
        self.made: list[TrtexecRunner] = []
        self.write()

    def write(self, **more: Any) -> None:
        self.plan.write_text(json.dumps({"latency_ms": 4.0, "options": str(self.options), **more}))

    def runner(self, **keys: Any) -> TrtexecRunner:
        keys = {"program": str(self.program), "stretch_s": 0.5, **keys}
        self.made.append(TrtexecRunner(Processes(mark=MARKED), Arrival(), make_spec=lambda _: self.spec, **keys))
        return self.made[-1]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for one in bench.made:
        one.close()
    assert find_orphans(MARKED, ()) == ()


def test_a_load_is_one_run_whose_times_come_at_its_end(bench: Bench) -> None:
    one = bench.runner()
    loaded = one.load(Variant(str(bench.plan), 2, 1))
    assert dict(loaded.versions) == {"tensorrt": "10.3.0"}
    before_s = time.monotonic()
    one.begin()
    begun_s = time.monotonic()
    assert len(one.take().end_s) == 0
    one.pause()
    done = one.take()
    assert done.batch == 2
    assert len(done.end_s) > 20
    assert before_s < done.end_s[0]
    assert begun_s < done.end_s[-1] <= time.monotonic()
    assert np.all(np.diff(done.end_s) >= 0.0)
    assert float(np.median(done.end_s - done.arrival_s)) >= 0.004
    assert len(one.take().end_s) == 0
    one.pause()
    one.begin()
    one.pause()
    assert one.take().end_s[0] > done.end_s[-1]


def test_two_instances_run_side_by_side(bench: Bench) -> None:
    one = bench.runner()
    one.load(Variant(None, 1, 2))
    one.begin()
    assert len(set(one.pids)) == 2
    one.pause()
    done = one.take()
    assert len(done.end_s) > 40
    assert np.all(np.diff(done.end_s) >= 0.0)


def test_it_is_told_what_the_variant_is(bench: Bench) -> None:
    bench.spec |= {"batch": 8, "shapes": {"input": [1, 3, 4, 4], "scale": [2]}, "sync": "spin", "cuda_graph": True}
    one = bench.runner()
    one.load(Variant(None, 8))
    told = json.loads(bench.options.read_text())
    assert told["shapes"] == "input:8x3x4x4,scale:2"
    assert {"useSpinWait", "useCudaGraph", "exposeDMA"} <= told.keys()
    bench.spec = {"engine": str(bench.plan), "sync": "blocking"}
    bench.runner().load(Variant())
    assert not {"shapes", "useSpinWait", "useCudaGraph"} & json.loads(bench.options.read_text()).keys()


def test_a_run_that_is_too_short_is_told_and_the_next_one_is_longer(bench: Bench) -> None:
    one = bench.runner()
    one.load(Variant())
    one.begin()
    with pytest.raises(WorkloadDiedError, match=r"run of 0\.5 s was over before the window was"):
        until(lambda: one.take() is None)
    one.load(Variant())
    one.begin()
    assert json.loads(bench.options.read_text())["duration"] == "1"
    one.pause()
    assert one.take().end_s[-1] - one._stretch_s > 0.0


def test_a_plan_that_it_cannot_run_is_refused_with_its_own_words(bench: Bench) -> None:
    bench.write(fails="Error Code 1: Serialization (magicTag does not match)")
    with pytest.raises(WorkloadError, match=r"exit code 1.*magicTag does not match"):
        bench.runner().load(Variant())
    bench.plan.unlink()
    with pytest.raises(WorkloadError, match=r"Error opening engine file.*Engine set up failed"):
        bench.runner().load(Variant())


def test_one_that_dies_is_named(bench: Bench) -> None:
    one = bench.runner()
    one.load(Variant())
    bench.write(dies=True)
    one.begin()
    with pytest.raises(WorkloadDiedError, match="signal 9"):
        one.pause()
    assert one.pids == ()
    one.begin()
    with pytest.raises(WorkloadDiedError, match="signal 9"):
        until(lambda: one.take() is None)


def test_one_that_does_not_end_is_killed(bench: Bench) -> None:
    bench.write(lasts_s=600.0)
    one = bench.runner(limits=Limits(load_s=20.0, stop_s=0.2))
    with pytest.raises(WorkloadHungError, match=r"did not end within 1\.2 s"):
        one.load(Variant())
    assert find_orphans(MARKED, ()) == ()


def test_waiting_beats_and_what_a_beat_raises_ends_it(bench: Bench) -> None:
    one = bench.runner(stretch_s=600.0)
    one.load(Variant())

    def beat() -> None:
        raise CancelledByTest

    one.beat = beat
    one.begin()
    with pytest.raises(CancelledByTest):
        one.pause()
    assert find_orphans(MARKED, ()) == ()


def test_only_back_to_back_is_possible() -> None:
    with pytest.raises(ConfigError, match="back to back only") as caught:
        TrtexecRunner(Processes(), Arrival("rate", 30.0), make_spec=lambda _: {})
    assert "pycuda" in caught.value.hint


def test_where_it_is_missing_the_line_to_install_is_said(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(ToolAbsentError, match="trtexec: no such program") as caught:
        bench.runner(program="trtexec-of-this-name").load(Variant())
    assert "libnvinfer-bin" in caught.value.hint
    assert str(tmp_path) not in BOARD_PATH


def exported(folder: Path, rows: Any) -> Path:
    path = folder / "times.json"
    path.write_text(json.dumps(rows))
    return path


def test_times_lie_between_the_start_and_the_end_that_were_seen(tmp_path: Path) -> None:
    rows = [{"endD2hMs": 10.0, "latencyMs": 4.0}, {"endD2hMs": 20.0, "latencyMs": 5.0}]
    second = 1_000_000_000
    times = times_of(exported(tmp_path, rows), second, second + 24_000_000)
    assert times[:, 2].tolist() == [second + 12_000_000, second + 22_000_000]  # 4 ms that nobody saw, halved
    assert (times[:, 2] - times[:, 0]).tolist() == [4_000_000, 5_000_000]
    late = times_of(exported(tmp_path, rows), second, second + 19_000_000)
    assert late[-1, 2] <= second + 19_000_000  # clocks that disagree: never in the future


def test_times_that_six_digits_have_rounded_back_stay_in_order(tmp_path: Path) -> None:
    rows = [{"endOutMs": 100001.0, "latencyMs": 0.4}, {"endOutMs": 100000.0, "latencyMs": 0.5}]
    times = times_of(exported(tmp_path, rows), 0, 200_000_000_000)
    assert times[0, 2] == times[1, 2]


def row(end_ms: float, latency_ms: float) -> dict[str, float]:
    return {"endD2hMs": end_ms, "latencyMs": latency_ms}


NO_EXPORTS = [[], {}, [{"latencyMs": 1.0}], [row(1.0, 0.0)], "x", [1], [row(1e300, 1.0)], [row(1.0, math.inf)]]


@pytest.mark.parametrize("rows", [*NO_EXPORTS, [row(10**400, 1.0)]])
def test_an_export_that_is_none_is_an_error(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(WorkloadDiedError, match="trtexec"):
        times_of(exported(tmp_path, rows), 0, 10**9)
    with pytest.raises(WorkloadDiedError, match="cannot be read"):
        times_of(tmp_path / "absent", 0, 10**9)


def _link(path: Path) -> None:
    path.symlink_to(exported(path.parent, [row(1.0, 1.0)]))


def _nested(path: Path) -> None:
    path.write_text("[" * 1_000_000)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 4 << 40)


@pytest.mark.parametrize("make", [_link, os.mkfifo, Path.mkdir, _nested, _sparse])
def test_what_another_user_may_have_put_in_the_place_of_an_export_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(trtexec, "_MOST_BYTES", 2 << 20)
    make(tmp_path / "0.json")
    with pytest.raises(WorkloadDiedError, match="cannot be read"):
        times_of(tmp_path / "0.json", 0, 10**9)


def test_who_runs_it_can_put_nothing_in_the_place_of_an_export(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: given.append(uid))
    monkeypatch.setattr(os, "fchown", lambda descriptor, uid, gid: given.append(os.fstat(descriptor).st_mode))
    one = bench.runner()
    one.load(Variant())
    assert [stat.S_ISREG(mode) for mode in given] == [True]  # the file is given away, its folder is not


class Late:
    """The virtual board's load as trtexec tells its own: nothing before the pause."""

    def __init__(self, virtual: VirtualRunner) -> None:
        self.virtual = virtual
        self.arrival = virtual.arrival
        self.left: Completions | None = None

    def load(self, variant: Variant) -> Loaded:
        return self.virtual.load(variant)

    def begin(self) -> None:
        self.left = None
        self.virtual.begin()

    def take(self) -> Completions:
        empty = np.empty(0)
        left, self.left = self.left, None
        return Completions(empty, empty, empty) if left is None else left

    def pause(self) -> None:
        if self.left is None:
            self.left = self.virtual.take()  # all since the beginning
        self.virtual.pause()

    def close(self) -> None:
        self.virtual.close()


def test_a_job_measures_as_well_by_times_that_come_late(tmp_path: Path) -> None:
    machine = VirtualMachine(tmp_path / "board", programs="in_process")
    config = load(None, {"target.latency_bound_ratio": 1.4, "job.budget": 4, "job.window_max_s": 40.0})
    request = Request(config, "virtual:yolov8s-640", lambda board: board_space(board, config.grid))
    events: list[Event] = []
    runner = Late(VirtualRunner(machine, Arrival()))
    result = run_job(machine.host(tmp_path), request, runner, cancellation=Cancellation(), sinks=(events.append,))
    assert result.outcome == "tuned"
    assert result.invalid == {}
    assert result.reference is not None
    truth = machine.truth(result.reference.candidate.mode, result.reference.policy)
    low_j, high_j = result.reference.energy_interval_j
    assert low_j < truth.energy_j < high_j
    windows = [event["trial"]["measurement"] for event in events if event["event"] == "trial"]
    assert all(window is not None and window["duration_s"] > 39.0 for window in windows)  # none was cut short
    machine.close()
