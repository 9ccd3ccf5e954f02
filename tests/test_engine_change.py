"""A winner holds for the engines it was found with: how the daemon sees that one has changed, and what follows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jouled.board.applied import Applied, read_applied, write_applied
from jouled.board.board import Board, discover, fingerprint
from jouled.board.grid import board_space
from jouled.board.knobs import read_knobs
from jouled.board.snapshot import boot_id
from jouled.board.winner import read_winner, write_winner
from jouled.config import Config, load
from jouled.job.cancel import Cancellation
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.job.site import Site
from jouled.service.keeper import Do
from jouled.service.outlook import Outlook
from jouled.state import State
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.runner import VirtualRunner
from jouled.workload.marks import ABSENT, RUNTIME, FileWatch, differing, told_arrival, what_changed, workload_marks
from jouled.workload.runner import Arrival
from jouletune.space import Candidate, Space, Variant


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- looking at a file again and again -----------------------------------------------------------------------


def test_a_file_that_stays_as_it_is_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    path.write_bytes(b"x" * 1000)
    watch = FileWatch()
    assert watch.mark(str(path)) == sha256(b"x" * 1000)
    assert watch.mark(str(path)) == sha256(b"x" * 1000)
    assert watch.bytes_read == 1000


def test_a_new_file_is_seen_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    path.write_bytes(b"old")
    watch = FileWatch()
    watch.mark(str(path))
    (tmp_path / "new").write_bytes(b"new")
    os.replace(tmp_path / "new", path)
    assert watch.mark(str(path)) == sha256(b"new")


def test_a_file_that_was_only_touched_has_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    path.write_bytes(b"same")
    watch = FileWatch()
    before = watch.mark(str(path))
    os.utime(path, (1, 1))
    assert watch.mark(str(path)) == before
    assert watch.bytes_read == 8


def test_a_large_file_is_read_over_several_looks_and_nothing_is_said_until_then(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    path.write_bytes(b"a" * 25)
    watch = FileWatch(look_bytes=10)
    assert [watch.mark(str(path)) for _ in range(3)] == [None, None, sha256(b"a" * 25)]
    path.write_bytes(b"b" * 25)
    assert [watch.mark(str(path)) for _ in range(2)] == [sha256(b"a" * 25)] * 2
    assert watch.mark(str(path)) == sha256(b"b" * 25)


def test_a_file_that_changes_while_it_is_read_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    path.write_bytes(b"a" * 15)
    watch = FileWatch(look_bytes=10)
    assert watch.mark(str(path)) is None
    path.write_bytes(b"b" * 16)
    assert watch.mark(str(path)) is None
    assert watch.mark(str(path)) == sha256(b"b" * 16)


def test_a_file_that_is_gone_is_absent_and_one_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    watch = FileWatch()
    assert watch.mark(str(tmp_path / "none.plan")) == ABSENT
    (tmp_path / "folder.plan").mkdir()
    assert watch.mark(str(tmp_path / "folder.plan")) is None


# --- what differs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        ({"/a": "1", "arrival": "rate 30 Hz"}, {"/a": "1", "arrival": "rate 30 Hz"}, []),
        ({"/a": "1"}, {"/a": "2"}, ["/a"]),
        ({"/a": "1"}, {"/b": "1"}, ["/a", "/b"]),
        ({"arrival": "rate 30 Hz"}, {"arrival": "rate 60 Hz"}, ["arrival"]),
        ({"/a": "1", RUNTIME: "tensorrt 10.3.0"}, {"/a": "1"}, []),
        ({"/a": "1"}, {"/a": "1", "a mark of a later version": "x"}, []),
    ],
)
def test_marks_are_compared_one_by_one(then: Mapping[str, str], now: Mapping[str, str], found: list[str]) -> None:
    assert list(differing(then, now)) == found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/gone", "/gone is gone"),
        ("/other", "/other is another file than it was"),
        ("/new", "/new has been added"),
        ("arrival", "arrival was 'rate 30 Hz' and is 'rate 60 Hz'"),
    ],
)
def test_what_differs_is_a_sentence(name: str, said: str) -> None:
    then = {"/gone": "1", "/other": "1", "arrival": "rate 30 Hz"}
    now = {"/gone": ABSENT, "/other": "2", "/new": "3", "arrival": "rate 60 Hz"}
    assert what_changed(name, then, now) == said


@pytest.mark.parametrize(
    ("keys", "arrival"),
    [
        ('arrival = "rate"\nrate_hz = 30.5', Arrival("rate", 30.5)),
        ('arrival = "back_to_back"', Arrival()),
        ('arrival = "trace"\ntrace = "/opt/t.csv"', Arrival("trace", times_s=(0.0, 1.0), period_s=2.0)),
    ],
)
def test_the_daemon_tells_an_arrival_as_the_job_did(tmp_path: Path, keys: str, arrival: Arrival) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[workloads.detector]\nengine = "/a.plan"\n{keys}\n')
    entry = load(path).workloads["detector"]
    assert workload_marks(entry, arrival)["arrival"] == told_arrival(entry)


# --- the daemon ----------------------------------------------------------------------------------------------


def _never(_: Any) -> Any:
    raise AssertionError("the daemon makes no grid and runs nothing")


class Bench:
    """A virtual board with a winner in force, found with an engine that lies in a file."""

    def __init__(self, folder: Path, *, on_engine_change: str = "report") -> None:
        self.folder = folder
        self.engine = folder / "detector.plan"
        self.engine.write_bytes(b"the first build")
        self.machine = VirtualMachine(folder / "board", programs="in_process")
        self.host = self.machine.host(folder)
        self.config = self._config(on_engine_change)
        self.board = discover(self.host)
        winner = self._winner()
        write_winner(folder, winner)
        write_applied(folder, winner)
        site = Site(self.host, self.config, "detector", _never, _never)
        self.outlook = Outlook(site, journal_fields=False)

    def _config(self, on_engine_change: str) -> Config:
        path = self.folder / "config.toml"
        path.write_text(
            f'[target]\nlatency_bound_s = 0.033\n[when]\non_engine_change = "{on_engine_change}"\n'
            f'[workloads.detector]\nengine = "{self.engine}"\nrate_hz = 30.0\n'
        )
        return load(path)

    def _winner(self) -> Applied:
        return Applied(
            candidate=Candidate(self.board.reference, Variant(str(self.engine))),
            policy="capped",
            fingerprint=fingerprint(self.board, 0.0),
            workload="detector",
            latency_bound_s=0.033,
            latency_percentile=95.0,
            decision_id="0123456789ab",
            wall_s=1.0,
            boot_id=boot_id(self.host.sysfs),
            home=read_knobs(self.host.sysfs, self.board.domains),
            workload_marks=workload_marks(self.config.workloads["detector"], Arrival("rate", 30.0)),
        )

    def look(self) -> tuple[State, Do, str]:
        self.outlook.look(is_board_ours=False)
        verdict = self.outlook.decide(job_phase=None)
        return verdict.state, verdict.do, verdict.stale


def test_engine_that_is_as_it_was_leaves_the_winner_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.look() == (State.IDLE, Do.NOTHING, "")
    os.utime(bench.engine, (1, 1))
    assert bench.look() == (State.IDLE, Do.NOTHING, "")


def test_another_engine_makes_the_winner_stale_and_is_reported(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.engine.write_bytes(b"the second build")
    state, do, stale = bench.look()
    assert (state, do) == (State.IDLE, Do.NOTHING)
    assert stale == f"{bench.engine} is another file than it was"
    assert "jouled retune" in bench.outlook.verdict.to_do
    bench.engine.write_bytes(b"the first build")
    assert bench.look() == (State.IDLE, Do.NOTHING, "")


def test_another_engine_starts_a_job_where_the_configuration_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, on_engine_change="retune")
    assert bench.look()[1] is Do.NOTHING
    bench.engine.write_bytes(b"the second build")
    assert bench.look()[1] is Do.RETUNE
    assert bench.outlook.verdict.cause.startswith("engine: ")


def test_engine_that_is_gone_is_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.engine.unlink()
    assert bench.look()[2] == f"{bench.engine} is gone"


def test_winner_of_an_earlier_version_has_no_marks_and_holds(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    old = replace(bench._winner(), workload_marks={})
    write_winner(tmp_path, old)
    write_applied(tmp_path, old)
    bench.engine.write_bytes(b"the second build")
    assert bench.look() == (State.IDLE, Do.NOTHING, "")


def test_marks_are_kept_with_the_winner(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    kept: Any = read_applied(tmp_path)
    assert kept.workload_marks[str(bench.engine)] == sha256(b"the first build")
    assert kept.workload_marks["arrival"] == "rate 30 Hz"


# --- the job -------------------------------------------------------------------------------------------------


def run(machine: VirtualMachine, folder: Path, variants: tuple[Variant, ...], marks: Mapping[str, str]) -> JobResult:
    config = load(None, {"target.latency_bound_ratio": 1.4, "job.budget": 6, "grid.shape": "1x4x1"})

    def make_space(board: Board) -> Space:
        return board_space(board, config.grid, variants)

    request = Request(config, "detector", make_space, workload_marks=lambda: marks)
    runner = VirtualRunner(machine, Arrival())
    return run_job(machine.host(folder), request, runner, cancellation=Cancellation())


def test_a_job_keeps_what_its_winner_was_found_with(tmp_path: Path) -> None:
    machine = VirtualMachine(tmp_path / "board", programs="in_process")
    assert run(machine, tmp_path, (Variant(),), {"/a.plan": "1" * 64}).outcome == "tuned"
    for applied in (read_applied(tmp_path), read_winner(tmp_path)):
        assert applied is not None
        assert applied.workload_marks == {"/a.plan": "1" * 64}


def test_a_mode_in_force_from_another_workload_is_measured_with_the_new_one(tmp_path: Path) -> None:
    machine = VirtualMachine(tmp_path / "board", programs="in_process")
    first = run(machine, tmp_path, (Variant(),), {})
    assert first.winner is not None
    second = run(machine, tmp_path, (Variant("/b.plan"), Variant("/c.plan")), {})
    assert second.incumbent is not None
    assert second.incumbent.candidate == Candidate(first.winner.candidate.mode, Variant("/b.plan"))
