"""A job killed with SIGKILL: from the study that it left, or from its ledger alone, the search goes on the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from optuna.study import load_study

from jouled.board.grid import board_space
from jouled.config import load
from jouled.job.cancel import Cancellation
from jouled.job.events import Event, Sink
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.studies import rebuild_missing, space_of, study_name
from jouled.ledger import Ledger
from jouled.study import open_storage, study_path
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.runner import VirtualRunner
from jouled.workload.runner import Arrival
from jouletune.search import Search
from jouletune.standing import Noted, told

ROOT = Path(__file__).resolve().parents[1]
SEED = 4
BUDGET = 7
KEYS = {"target.latency_bound_ratio": 1.4, "job.budget": BUDGET, "job.sampler": "joule"}


def job(folder: Path, sink: Sink, machine: VirtualMachine | None = None) -> None:
    """A whole one on a board of the same noise each time."""
    machine = machine or VirtualMachine(folder / "board", programs="in_process", seed=SEED)
    config = load(None, KEYS)
    request = Request(config, "virtual:yolov8s-640", lambda board: board_space(board, config.grid), seed=SEED)
    run_job(
        machine.host(folder), request, VirtualRunner(machine, Arrival()), cancellation=Cancellation(), sinks=(sink,)
    )


def child(folder: str, kind: str, count: int) -> None:
    """Run a job in this process and die at the `count`th event of this kind."""
    seen: list[Event] = []

    def watch(event: Event) -> None:
        if event["event"] == kind:
            seen.append(event)
            if len(seen) == count:
                os.kill(os.getpid(), signal.SIGKILL)

    job(Path(folder), watch)


def searched(events: Sequence[Mapping[str, Any]]) -> list[int]:
    """The candidates that were tried, in order, until the finals."""
    return [
        event["trial"]["index"]
        for event in events
        if event["event"] == "trial" and event["trial"]["purpose"] in ("reference", "search")
    ]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a job has been that nobody killed."""
    folder = tmp_path_factory.mktemp("whole")
    job(folder, lambda _: None)
    return folder


@pytest.fixture(scope="module")
def whole(done: Path) -> list[int]:
    """What it tried."""
    tried = searched(Ledger(done).read().events)
    assert len(tried) >= BUDGET - 1
    return tried


def resumed(folder: Path) -> int | None:
    """The next proposal of a process that finds what lies there."""
    events = Ledger(folder).read().events
    started = next(event for event in events if event["event"] == "job_started")
    bound_s = next(event["bound_s"] for event in events if event.get("phase") == "search")
    with open_storage(folder) as storage:
        rebuild_missing(storage, events)
        search = Search(
            space_of(started["space"]),
            sampler="joule",
            bound_s=bound_s,
            seed=SEED,
            budget=BUDGET,
            storage=storage,
            study_name=study_name(started["job"]),
        )
        return search.ask()


@pytest.mark.parametrize(("kind", "count"), [("trial", 4), ("mode_applied", 5)])
def test_killed_job_goes_on_with_the_same_proposal(tmp_path: Path, whole: list[int], kind: str, count: int) -> None:
    code = "import sys; from tests.test_resume import child; child(sys.argv[1], sys.argv[2], int(sys.argv[3]))"
    argv = [sys.executable, "-c", code, str(tmp_path), kind, str(count)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    tried = searched(Ledger(tmp_path).read().events)
    assert tried == whole[: len(tried)]
    if kind == "mode_applied":  # a window has begun: the study has its trial, and the ledger all before
        assert resumed(tmp_path) == whole[len(tried)]
    study_path(tmp_path).unlink()
    assert resumed(tmp_path) == whole[len(tried)]


def test_study_made_anew_was_told_what_the_first_was_told(done: Path, tmp_path: Path, whole: list[int]) -> None:
    """With an incumbent, and a window that was repeated since somebody had changed a cap in it."""
    folder = tmp_path / "state"
    shutil.copytree(done, folder, symlinks=True)
    machine = VirtualMachine(folder / "board", programs="in_process", seed=SEED)
    phases: list[str] = []

    def meddle(event: Event) -> None:
        if event["event"] == "phase":
            phases.append(event["phase"])
        if event["event"] == "progress" and event["phase"] == "window" and phases[-1] == "search":
            phases.append("meddled")
            machine.sysfs.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", 1113600, why="test")

    job(folder, meddle, machine)
    events = Ledger(folder).read().events
    last = [event for event in events if event["event"] == "job_started"][-1]["job"]
    trials = [event["trial"] for event in events if event["event"] == "trial" and event["job"] == last]
    assert "incumbent" in {trial["purpose"] for trial in trials}
    assert any(trial["attempt"] for trial in trials if trial["purpose"] == "search")
    kept = windows_of(folder, last)
    assert len(kept) >= 3
    study_path(folder).unlink()
    with open_storage(folder) as storage:
        assert rebuild_missing(storage, events) == 2
    assert windows_of(folder, last) == kept


def windows_of(folder: Path, name: str) -> list[Noted]:
    with open_storage(folder) as storage:
        return list(told(load_study(study_name=study_name(name), storage=storage)))
