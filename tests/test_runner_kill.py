"""kill -9 of the runner at moments chosen by event: the job names it, and the board ends as found or in a winner.

The runner is a real process; the numbers are the virtual board's, so that a whole job takes seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.scripted_runner import PROGRAM

from jouled.board.applied import read_applied
from jouled.board.apply import Actuator, ClocksPolicy, Method
from jouled.board.board import discover
from jouled.board.grid import board_space
from jouled.board.knobs import read_knobs
from jouled.board.orphans import find_orphans
from jouled.board.snapshot import snapshot_path
from jouled.config import load
from jouled.job.cancel import Cancellation
from jouled.job.events import Event
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.ledger import Ledger
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.runner import VirtualRunner
from jouled.workload.process_runner import ProcessRunner
from jouled.workload.runner import Arrival, Loaded
from jouletune.measurement import Completions
from jouletune.space import Variant

PATIENCE_S = 20.0
NO_GAIN = {"target.min_gain": 0.5}  # nothing is applied: the board ends as found


def wait_dead(pid: int) -> None:
    """Until it is no more than a zombie."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.002)):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):  # reaped before it was opened, or before it was read
            return
        if state == "Z":
            return
        pause.wait(0.002)
    raise AssertionError("SIGKILL did not end it")


@dataclass
class Beside:
    """A real process beside the virtual load: the one may die, the other has the numbers.

    `on_call(name, count)` comes before each call.
    """

    real: ProcessRunner
    virtual: VirtualRunner
    on_call: Callable[[str, int], None]
    arrival: Arrival
    counts: dict[str, int]

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        self.on_call(name, self.counts[name])

    def load(self, variant: Variant) -> Loaded:
        self._count("load")
        self.real.load(variant)
        return self.virtual.load(variant)

    def begin(self) -> None:
        self._count("begin")
        self.real.begin()
        self.virtual.begin()

    def take(self) -> Completions:
        self._count("take")
        self.real.take()
        return self.virtual.take()

    def pause(self) -> None:
        self._count("pause")
        self.virtual.pause()
        self.real.pause()

    def close(self) -> None:
        self.real.close()
        self.virtual.close()


class Scene:
    """A virtual board whose operator has set something, and a runner that is killed there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine = VirtualMachine(folder / "board", programs="in_process")
        self.host = self.machine.host(folder)
        self.host.sysfs.write("/sys/class/devfreq/17000000.gpu/min_freq", "408000000", why="operator")
        self.found = self.knobs()
        self.events: list[Event] = []
        self.scripts: list[dict[str, Any]] = []  # of the loads to come; then none
        self.killed: list[int] = []
        real = ProcessRunner(self.host.processes, Arrival(), argv=(sys.executable, str(PROGRAM)), make_spec=self._spec)
        self.runner = Beside(real, VirtualRunner(self.machine, Arrival()), self._called, Arrival(), {})
        self.call: tuple[str, int] | None = None
        self.is_moment: Callable[[Event], bool] = lambda _: False
        self.kills = 1

    def _spec(self, variant: Variant) -> dict[str, Any]:
        script = {"service_s": 0.01, **(self.scripts.pop(0) if self.scripts else {})}
        return {"batch": variant.batch, "script": script}

    def _called(self, name: str, count: int) -> None:
        if (name, count) == self.call:
            self.kill()

    def _seen(self, event: Event) -> None:
        self.events.append(event)
        if len(self.killed) < self.kills and self.is_moment(event):
            self.kill()

    def kill(self) -> None:
        for pid in set(self.runner.real.pids) - set(self.killed):
            os.kill(pid, signal.SIGKILL)
            wait_dead(pid)
            self.killed.append(pid)

    def knobs(self) -> dict[str, str]:
        return dict(read_knobs(self.host.sysfs, discover(self.host).domains).values)

    def run(self, **overrides: Any) -> JobResult:
        values = {"target.latency_bound_ratio": 1.4, "job.budget": 5, "job.watch_s": 20.0}
        config = load(None, values | overrides)
        request = Request(config, "virtual:yolov8s-640", lambda board: board_space(board, config.grid))
        home = read_knobs(self.host.sysfs, discover(self.host).domains)
        result = run_job(self.host, request, self.runner, cancellation=Cancellation(), sinks=(self._seen,))
        self.check_aftermath(result, home)
        return result

    def check_aftermath(self, result: JobResult, home: Any) -> None:
        """Nothing of the job is left; the board is as found, or in a winner that verifies."""
        assert not snapshot_path(self.folder).exists()
        assert find_orphans(result.job, ()) == ()
        assert self.runner.real.pids == ()
        applied = read_applied(self.folder)
        assert result.applied == (applied is not None)
        if applied is None:
            assert self.knobs() == self.found
        else:
            actuator = Actuator(self.host, discover(self.host), home, Method.SYSFS)
            assert actuator.verify(applied.candidate.mode, ClocksPolicy(applied.policy)) == ()

    def died(self) -> list[dict[str, Any]]:
        """The trials that the ledger keeps as ended by the runner's death."""
        kept = [event["trial"] for event in Ledger(self.folder).read().events if event["event"] == "trial"]
        return [trial for trial in kept if trial["invalid"] == "workload_died"]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.runner.close()
    scene.machine.close()


def nth(count: int, **wanted: Any) -> Callable[[Event], bool]:
    """The n-th event that holds what is wanted."""
    seen: list[Event] = []

    def is_moment(event: Event) -> bool:
        if all(event.get(name) == value for name, value in wanted.items()):
            seen.append(event)
            return len(seen) == count
        return False

    return is_moment


def after_trials(trials: int, **wanted: Any) -> Callable[[Event], bool]:
    """The first event that holds what is wanted once so many trials are over."""
    seen: list[Event] = []

    def is_moment(event: Event) -> bool:
        if event["event"] == "trial":
            seen.append(event)
        return len(seen) >= trials and all(event.get(name) == value for name, value in wanted.items())

    return is_moment


MOMENTS: dict[str, Callable[[], Callable[[Event], bool]]] = {
    "the reference is applied": lambda: nth(1, event="mode_applied"),
    "the reference settles": lambda: nth(3, event="progress", phase="settle"),
    "the reference's pilot": lambda: nth(2, event="progress", phase="pilot"),
    "the reference's window begins": lambda: nth(1, event="progress", phase="window"),
    "the reference's window": lambda: nth(9, event="progress", phase="window"),
    "the reference is measured": lambda: nth(1, event="trial"),
    "a candidate is applied": lambda: nth(2, event="mode_applied"),
    "a candidate settles": lambda: after_trials(1, event="progress", phase="settle"),
    "a candidate's pilot": lambda: after_trials(1, event="progress", phase="pilot"),
    "a candidate's window": lambda: after_trials(1, event="progress", phase="window"),
    "the next candidate's window": lambda: after_trials(2, event="progress", phase="window"),
    "a late candidate settles": lambda: after_trials(4, event="progress", phase="settle"),
    "the finals settle": lambda: after_trials(5, event="progress", phase="settle"),
    "the finals' window": lambda: after_trials(6, event="progress", phase="window"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_when(scene: Scene, moment: str) -> None:
    scene.is_moment = MOMENTS[moment]()
    result = scene.run(**NO_GAIN)
    assert len(scene.killed) == 1
    assert result.outcome == "no_gain"
    (died,) = scene.died()
    assert f"pid {scene.killed[0]}" in died["detail"]
    assert "ended by signal 9" in died["detail"]
    assert result.invalid == {"workload_died": 1}


@pytest.mark.parametrize("call", [("begin", 1), ("begin", 2), ("pause", 1), ("take", 20)])
def test_killed_just_before_it_is_asked_to(scene: Scene, call: tuple[str, int]) -> None:
    scene.call = call
    result = scene.run(**NO_GAIN)
    assert (len(scene.killed), result.outcome) == (1, "no_gain")
    assert [f"pid {scene.killed[0]}" in trial["detail"] for trial in scene.died()] == [True]


@pytest.mark.parametrize("moment", ["load", "ready"])
def test_killed_while_it_loads_for_the_first_time(scene: Scene, moment: str) -> None:
    scene.scripts = [{"at": moment, "do": "signal:9"}] * 2
    result = scene.run()
    if moment == "load":
        assert (result.outcome, result.reason_code) == ("workload_failed", "workload_died")
        assert "signal 9" in result.reason_text
    else:  # it was ready, and dead when it was to begin: the reference is tried again
        assert result.outcome == "tuned"
        assert len(scene.died()) == 2


def test_killed_in_the_watch(scene: Scene) -> None:
    scene.is_moment = nth(5, event="progress", phase="watching")
    result = scene.run()
    assert (result.outcome, result.reason_code) == ("rolled_back", "workload_died")
    assert not result.applied


def test_killed_at_each_try_of_the_reference(scene: Scene) -> None:
    scene.kills, scene.is_moment = 99, lambda event: event.get("phase") == "pilot"
    result = scene.run()
    assert (result.outcome, result.reason_code) == ("workload_failed", "workload_died")
    assert len(scene.died()) == 3
