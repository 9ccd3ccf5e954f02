"""The daemon beside a worker of ours, on a virtual board's files: what it asks for, says, keeps and survives."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from jouled.board.applied import Applied, applied_path, delete_applied, read_applied, write_applied
from jouled.board.board import Board, discover, fingerprint
from jouled.board.clock import SystemClock
from jouled.board.grid import board_space
from jouled.board.host import Host
from jouled.board.knobs import read_knobs
from jouled.board.modename import mode_name
from jouled.board.process import Processes, start_ticks
from jouled.board.snapshot import Snapshot, boot_id, snapshot_path, write_snapshot
from jouled.board.sysfs import Sysfs
from jouled.board.winner import read_winner, winner_path, write_winner
from jouled.cli import main
from jouled.config import load
from jouled.errors import ConfigError, StateError, UsageError
from jouled.job.site import Site
from jouled.ledger import Ledger, encode_line
from jouled.service import loop as service_loop
from jouled.service.configfile import ConfigFile
from jouled.service.face import Service
from jouled.service.notify import Notifier
from jouled.service.sole import sole_daemon
from jouled.service.workers import SocketDoor
from jouled.state import Conflict, Peer, Refused, Source, State, Unavailable
from jouled.virtual.tree import boot, make_tree
from jouletune.space import Candidate, PowerMode

MODE = PowerMode(12, 1_497_600_000, 816_000_000, 2_133_000_000)
NAME = "12-1497.6-816-2133"
PEER = Peer(1000, 1000, 7, "pepe", may_change=True)
GPU = "/sys/class/devfreq/17000000.gpu"
BOUND = {"latency_bound_s": 0.033}
JOB_LINE = {"v": 1, "t_s": 1.0}


class Clock(SystemClock):
    """The system's, moved on by hand; `boot_s` is the age of this boot."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.suspended_s = 0.0
        self.boot_s = 10_000.0
        self._began_s = SystemClock.monotonic_s(self)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s

    def boottime_s(self) -> float:
        return self.boot_s + self.monotonic_s() - self._began_s + self.suspended_s

    def wall_s(self) -> float:
        return super().wall_s() + self.ahead_s + self.suspended_s


Events = Callable[[Mapping[str, Any]], Awaitable[None]]


@dataclass
class Machine:
    """A board's files, and a worker that does to them what the real one does. `heard`: commands it was given."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    heard: list[dict[str, Any]] = field(default_factory=list)
    errors: dict[str, dict[str, Any]] = field(default_factory=dict)
    deaf: bool = False
    dies_at: str = ""
    obeys: bool = True
    busy: dict[str, Any] | None = None
    go: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: str = ""
    answers_tune: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        make_tree(self.folder / "board")
        self.sysfs = Sysfs(self.folder / "board")
        self.host = Host(self.sysfs, Processes(path=""), self.clock, self.folder, privileged=False)
        self.board: Board = discover(self.host)
        self.marks = fingerprint(self.board, 0.0)
        self.home = read_knobs(self.sysfs, self.board.domains)
        self.socket = self.folder / "worker.sock"

    def site(self, **overrides: Any) -> Site:
        config = load(None, {name.replace("__", "."): value for name, value in overrides.items()})
        return Site(self.host, config, "detector", lambda board: board_space(board, config.grid), _no_runner)

    def winner(self, boot: str | None = None) -> Applied:
        return Applied(
            Candidate(MODE), "capped", self.marks, "detector", None, 95.0, "0123456789ab", 1.0,
            boot or boot_id(self.sysfs), self.home,
        )  # fmt: skip

    def set_caps(self, mode: PowerMode) -> None:
        """As nvpmodel would."""
        assert mode.cpu_hz is not None
        for path, _ in self.board.domains.cpu.policies:
            self.sysfs.write(f"{path}/scaling_max_freq", mode.cpu_hz // 1000, why="test")
        self.sysfs.write(f"{GPU}/max_freq", str(mode.gpu_hz), why="test")
        emc = self.board.domains.emc
        assert emc is not None
        self.sysfs.write(emc.cap_path, str(mode.emc_hz), why="test")

    def put_in_force(self, boot: str | None = None) -> None:
        """A winner, applied in this boot or `boot`."""
        write_winner(self.folder, self.winner(boot))
        write_applied(self.folder, self.winner(boot))
        if boot is None:
            self.set_caps(MODE)

    def leave_snapshot(self, job: str = "0123456789ab") -> None:
        """As a job does that was killed."""
        write_snapshot(self.folder, Snapshot(boot_id(self.sysfs), job, job, "MAXN", self.home, 1.0))

    def commands(self) -> list[str]:
        """What it was asked for, briefly."""
        return [
            " ".join(str(heard[key]) for key in ("command", "target", "why") if key in heard) for heard in self.heard
        ]

    def ledger(self, **event: Any) -> None:
        Ledger(self.folder).append({**JOB_LINE, **event})

    # --- the worker

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(message: Mapping[str, Any]) -> None:
            writer.write(json.dumps(message).encode() + b"\n")
            await writer.drain()

        try:
            if self.busy is not None:
                await say({"busy": self.busy})
            elif not self.deaf:
                await say({"hello": {"protocol": 1, "version": "0", "pid": os.getpid()}})
                line = await reader.readline()
                if line:
                    await self.answer(json.loads(line), reader, say)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def answer(self, told: dict[str, Any], reader: asyncio.StreamReader, say: Events) -> None:
        self.heard.append(told)
        command = told["command"]
        if command == self.dies_at:
            return
        if command == "tune" and self.answers_tune:
            await say({"event": "finished", "ok": self.answers_tune["error"] is None, **self.answers_tune})
            return
        if command in self.errors:
            await say({"event": "finished", "ok": False, "result": None, "error": self.errors[command]})
            return
        result = await self.tune(told, reader, say) if command == "tune" else getattr(self, command)(told)
        if result is not None:
            await say({"event": "finished", "ok": True, "error": None, "job": told.get("job"), "result": result})

    async def tune(self, told: dict[str, Any], reader: asyncio.StreamReader, say: Events) -> dict[str, Any] | None:
        job = told["job"]
        self.leave_snapshot(job)
        started = {"event": "job_started", "job": job, "wall_s": self.clock.wall_s(), "expected_s": 600.0}
        self.ledger(**started)
        await say({**JOB_LINE, **started})
        await say({**JOB_LINE, "event": "phase", "phase": "search", "job": job})
        hang_up = asyncio.get_running_loop().create_task(reader.readline())
        going = asyncio.get_running_loop().create_task(self.go.wait())
        await asyncio.wait({hang_up, going}, return_when=asyncio.FIRST_COMPLETED)
        going.cancel()
        if self.dies_at == "search":
            hang_up.cancel()
            return None
        outcome = "tuned"
        if hang_up.done():
            told = json.loads(hang_up.result() or b'{"reason": "daemon_gone"}')
            self.cancelled = told["reason"]
            outcome = "interrupted" if self.cancelled == "daemon_gone" else "cancelled"
        hang_up.cancel()
        self.restore({})
        if outcome == "tuned":
            self.put_in_force()
        result = {"job": job, "outcome": outcome, "reason": {"code": None, "text": ""}, "applied": outcome == "tuned"}
        self.ledger(event="finished", job=job, result={**result, "duration_s": 5.0, "saving_ratio": 0.1})
        return result

    def restore(self, told: Mapping[str, Any]) -> dict[str, Any]:
        snapshot_path(self.folder).unlink(missing_ok=True)
        return {"found": "this_boot"}

    def apply(self, told: Mapping[str, Any]) -> dict[str, Any]:
        target, mode = told["target"], self.board.reference
        if target == "reference":
            delete_applied(self.folder)
        else:
            mode = MODE
            winner = read_winner(self.folder) or self.winner()
            write_applied(self.folder, replace(winner, boot_id=boot_id(self.sysfs)))
        if self.obeys:
            self.set_caps(mode)
        source = "reference" if target == "reference" else "winner"
        line = {"event": "applied", "wall_s": self.clock.wall_s(), "who": told["who"], "why": told["why"]}
        self.ledger(**line, **{"from": "x", "to": mode_name(mode), "to_source": source})
        return {"mode": mode_name(mode), "policy": "capped"}

    def rollback(self, told: Mapping[str, Any]) -> dict[str, Any]:
        winner_path(self.folder).unlink(missing_ok=True)
        return self.apply({"target": "reference", "why": "rollback", "who": told["who"]})

    def verify(self, told: Mapping[str, Any]) -> dict[str, Any]:
        return {"mismatches": [], "unknown": []}

    def forget(self, told: Mapping[str, Any]) -> dict[str, Any]:
        return {"forgotten": True}


def _no_runner(_: object) -> Any:
    raise AssertionError


async def until(condition: Callable[[], object]) -> None:
    """Wait for it; 20 s are a failure."""

    async def look() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(look(), 20)


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def _service(machine: Machine, notifier: Notifier | None = None, **overrides: Any) -> Service:
    site = machine.site(**overrides)

    def check(request: Mapping[str, Any]) -> Any:
        return load(None, {name.replace("__", "."): value for name, value in overrides.items()}, request=request)

    return Service(site, SocketDoor(machine.socket), check, notifier or Notifier({}), tick_s=0.01)


@asynccontextmanager
async def running(machine: Machine, *, has_worker: bool = True, **overrides: Any) -> AsyncIterator[Service]:
    """The daemon until the block ends, then stopped as by SIGTERM."""
    machine.go = asyncio.Event()
    server = await asyncio.start_unix_server(machine.serve, machine.socket) if has_worker else None
    service = _service(machine, **overrides)
    life = asyncio.get_running_loop().create_task(service.run())
    try:
        await until(lambda: service.status().in_force is not None or life.done())
        yield service
    finally:
        service.stop()
        try:
            await asyncio.wait_for(life, 20)
        finally:
            if server is not None:
                server.close()
                await server.wait_closed()


def live(machine: Machine, work: Callable[[Service], Awaitable[None]], **overrides: Any) -> None:
    """Run `work` beside the daemon."""

    async def both() -> None:
        async with running(machine, **overrides) as service:
            await work(service)

    asyncio.run(both())


# --- what is seen -------------------------------------------------------------------------------------------


def test_an_untouched_board_is_in_its_reference_and_nothing_is_asked_of_the_worker(machine: Machine) -> None:
    async def work(service: Service) -> None:
        status = service.status()
        assert status.in_force is not None
        assert (status.state, status.in_force.source, status.in_force.verified) == (State.IDLE, Source.REFERENCE, True)
        assert (status.in_force.mode, status.mismatches) == (machine.board.reference, ())
        assert "jouled retune" in status.to_do
        assert status.readings is not None
        assert status.readings.clock_cap_hz["gpu"] == machine.board.reference.gpu_hz

    live(machine, work)
    assert machine.heard == []


@pytest.mark.parametrize("name", ["ledger.jsonl", "daemon/requests.jsonl"])
@pytest.mark.parametrize(
    "line",
    [
        {"event": "request", "verb": "retune", "job": "ffffffffffff", "request": [], "who": 1},
        {"event": "ended", "job": "ffffffffffff", "outcome": "tuned", "reason": "none"},
        {"event": "ended", "job": "ffffffffffff", "outcome": ["tuned"]},
        {"event": "finished", "job": "ffffffffffff", "result": {"outcome": "tuned", "winner": {"mode": 1}}},
        {"event": "finished", "job": "ffffffffffff", "result": {"outcome": "tuned", "disturbed_s": "long"}},
        {"event": "finished", "job": "ffffffffffff", "result": {"outcome": "tuned", "saving_interval": [1]}},
        {"event": "trial", "job": "ffffffffffff", "trial": [1]},
        {"event": "job_started", "job": "ffffffffffff", "wall_s": "now"},
        {"event": "applied", "to": 1, "wall_s": None},
        {"no": "event"},
    ],
)
def test_a_line_whose_checksum_fits_and_whose_types_do_not_is_passed_over(
    machine: Machine, name: str, line: dict[str, Any]
) -> None:
    service = _service(machine)
    path = machine.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_line(line))
    service.look()
    assert any("damaged" in text for text in service.status().warnings)
    assert service.history(10) == []


def test_where_the_kernels_switch_cannot_be_seen_no_knob_is_written(machine: Machine) -> None:
    path = machine.folder / "board/proc/cmdline"
    path.unlink()
    path.mkdir()
    machine.leave_snapshot()

    async def work(service: Service) -> None:
        assert (service.status().state, "/proc/cmdline" in service.status().to_do) == (State.DISABLED, True)
        with pytest.raises(Refused):
            await service.apply("reference", PEER)

    live(machine, work)
    assert machine.heard == []


def test_a_look_discovers_the_board_only_when_something_it_rests_on_has_changed(machine: Machine) -> None:
    service = _service(machine)
    view = service.outlook.view
    for _ in range(5):
        service.look()
    assert view.discoveries == 1
    (machine.folder / "board/sys/devices/system/cpu/online").write_text("0-7\n")
    service.look()
    service.look()
    assert view.discoveries == 2
    conf = machine.folder / "board/etc/nvpmodel.conf"
    conf.write_text(conf.read_text() + "# touched\n")
    service.look()
    assert view.discoveries == 3
    boot(machine.folder / "board")
    service.look()
    service.look()
    assert view.discoveries == 4


def test_a_board_that_cannot_be_read_is_said_and_read_again_later(machine: Machine) -> None:
    (machine.folder / "board/proc/device-tree/compatible").rename(machine.folder / "away")
    service = _service(machine)
    service.look()
    status = service.status()
    assert (status.board, status.in_force) == (None, None)
    assert any("no Jetson" in text for text in status.warnings)
    (machine.folder / "away").rename(machine.folder / "board/proc/device-tree/compatible")
    service.look()
    assert service.status().board is not None


def test_knobs_of_a_winner_in_force_that_are_right_are_verified(machine: Machine) -> None:
    machine.put_in_force()
    service = _service(machine)
    service.look()
    status = service.status()
    assert status.in_force is not None
    assert status.winner is not None
    assert (status.in_force.source, status.in_force.verified, status.in_force.mode) == (Source.WINNER, True, MODE)
    assert status.winner.mode == MODE


def test_a_damaged_state_file_is_said_and_counts_as_none(machine: Machine) -> None:
    machine.put_in_force()
    winner_path(machine.folder).write_text("{")
    service = _service(machine)
    service.look()
    assert any("winner.json" in text for text in service.status().warnings)


def test_a_damaged_applied_json_puts_the_winner_in_force_again(machine: Machine) -> None:
    machine.put_in_force()
    applied_path(machine.folder).write_text("{")

    async def work(service: Service) -> None:
        await until(lambda: service.status().state is State.IDLE and machine.heard)
        assert service.status().warnings == ()

    live(machine, work)
    assert machine.commands() == ["apply winner boot"]


def test_a_damaged_quarantine_forbids_every_mode(machine: Machine) -> None:
    machine.put_in_force("another boot")
    (machine.folder / "quarantine.json").write_text("{")

    async def work(service: Service) -> None:
        assert service.status().state is State.DISABLED
        with pytest.raises(Refused):
            await service.apply("winner", PEER)

    live(machine, work)
    assert machine.heard == []


# --- by itself ----------------------------------------------------------------------------------------------


def test_after_a_reboot_the_winner_is_applied_when_the_delay_has_passed(machine: Machine) -> None:
    machine.put_in_force("another boot")
    machine.clock.boot_s = 20.0

    async def work(service: Service) -> None:
        status = service.status()
        assert status.in_force is not None
        assert (status.state, status.in_force.source) == (State.WAITING, Source.REFERENCE)
        assert status.next.due_wall_s is not None
        assert 30 < status.next.due_wall_s - machine.clock.wall_s() < 41
        assert machine.heard == []
        machine.clock.ahead_s += 40.0
        await until(lambda: service.status().state is State.IDLE)
        now = service.status().in_force
        assert now is not None
        assert (now.source, now.verified) == (Source.WINNER, True)
        assert now.last_full_verify_wall_s is not None

    live(machine, work)
    assert machine.commands() == ["apply winner boot"]


def test_a_mode_by_hand_is_shown_as_such_and_comes_back_by_its_name_after_a_reboot(machine: Machine) -> None:
    other = replace(machine.winner(), candidate=Candidate(replace(MODE, gpu_hz=1_020_000_000)))
    by_hand = replace(machine.winner("another boot"), decision_id="by hand", workload="")
    write_winner(machine.folder, other)
    write_applied(machine.folder, by_hand)

    async def work(service: Service) -> None:
        await until(lambda: machine.heard)

    live(machine, work)
    assert machine.commands() == [f"apply {NAME} boot"]
    write_applied(machine.folder, replace(by_hand, boot_id=boot_id(machine.sysfs)))
    for winner in (other, None):
        if winner is None:
            winner_path(machine.folder).unlink()
        service = _service(machine)
        service.look()
        in_force = service.status().in_force
        assert in_force is not None
        assert (in_force.source, in_force.mode, in_force.verified) == (Source.OTHER, MODE, True)


def test_a_knob_that_somebody_changed_is_set_again_and_counted(machine: Machine) -> None:
    machine.put_in_force()

    async def work(service: Service) -> None:
        machine.sysfs.write(f"{GPU}/max_freq", "1300500000", why="somebody")
        machine.clock.ahead_s += 10.0
        await until(lambda: service.status().counters.reapplies == 1 and service.status().state is State.IDLE)
        assert machine.sysfs.read(f"{GPU}/max_freq") == "816000000"

    live(machine, work)
    assert machine.commands() == ["apply winner mismatch"]


def test_a_knob_that_does_not_stay_is_contested_after_three_times_until_it_is_right(machine: Machine) -> None:
    machine.put_in_force()
    machine.obeys = False
    machine.sysfs.write(f"{GPU}/max_freq", "1300500000", why="somebody")

    async def work(service: Service) -> None:
        for _ in range(3):
            asked = len(machine.heard)
            await until(lambda asked=asked: len(machine.heard) > asked)  # type: ignore[misc]
            machine.clock.ahead_s += 11.0
        await until(lambda: service.status().state is State.CONTESTED)
        machine.clock.ahead_s += 700.0
        await until(lambda: service.status().in_force is not None)
        service.look()
        assert service.status().state is State.CONTESTED
        assert "max_freq" in service.status().to_do
        assert service.status().counters.reapplies == 3
        machine.set_caps(MODE)
        machine.clock.ahead_s += 10.0
        await until(lambda: service.status().state is State.IDLE)

    live(machine, work)
    assert machine.commands() == ["apply winner mismatch"] * 3


def test_after_resume_from_suspend_the_board_is_looked_at_at_once(machine: Machine) -> None:
    machine.put_in_force()

    async def work(service: Service) -> None:
        machine.sysfs.write(f"{GPU}/max_freq", "1300500000", why="the kernel, on resume")
        machine.clock.suspended_s += 3600.0
        await until(lambda: machine.heard)

    live(machine, work, keep__verify_interval_s=3600.0)
    assert machine.commands() == ["apply winner mismatch"]


def test_the_worker_looks_at_everything_each_hour(machine: Machine) -> None:
    async def work(service: Service) -> None:
        machine.clock.ahead_s += 3601.0
        await until(lambda: service.status().in_force and service.outlook.full is not None)

    live(machine, work)
    assert machine.commands() == ["verify"]


def test_a_failing_worker_is_asked_again_later_and_later(machine: Machine) -> None:
    machine.put_in_force("another boot")
    machine.errors["apply"] = {"kind": "ApplyError", "text": "EBUSY", "hint": "", "exit_code": 10}

    async def work(service: Service) -> None:
        for number, wait_s in enumerate((1.1, 2.1), 1):
            await until(lambda number=number: len(machine.heard) == number)  # type: ignore[misc]
            await until(lambda: service.status().next.due_wall_s)
            machine.clock.ahead_s += wait_s
        await until(lambda: service.status().state is State.CONTESTED)
        assert "EBUSY" in service.status().to_do

    live(machine, work)


def test_a_child_stuck_in_the_kernel_is_a_state_and_restore_is_tried_each_minute(machine: Machine) -> None:
    machine.leave_snapshot()
    machine.errors["restore"] = {"kind": "StuckError", "text": "nvpmodel hangs", "hint": "", "exit_code": 10}

    async def work(service: Service) -> None:
        await until(lambda: service.status().state is State.STUCK)
        machine.clock.ahead_s += 50.0
        service.look()
        assert len(machine.heard) == 1
        with pytest.raises(Refused, match="hangs in the kernel"):
            await service.retune({"latency_bound_s": 0.03}, PEER)
        machine.errors.clear()
        machine.clock.ahead_s += 11.0
        await until(lambda: service.status().state is State.IDLE)

    live(machine, work)
    assert machine.commands() == ["restore", "restore"]


def test_a_process_that_holds_the_board_is_waited_for(machine: Machine) -> None:
    holder = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    run_dir = machine.folder / "board/run/jouled"
    run_dir.mkdir(parents=True)
    named = {"pid": holder.pid, "start_ticks": start_ticks(holder.pid), "verb": "tune"}
    (run_dir / "holder.json").write_text(json.dumps(named))
    machine.leave_snapshot()

    async def work(service: Service) -> None:
        assert service.status().state is State.WAITING
        with pytest.raises(Conflict, match=rf"pid {holder.pid} \(jouled tune\)"):
            await service.retune(BOUND, PEER)
        assert (await service.verify(PEER))["busy"] is True
        assert machine.heard == []
        holder.communicate(b"\n")
        machine.clock.ahead_s += 3.0
        await until(lambda: machine.commands() == ["restore"])

    live(machine, work)


def test_if_untuned_begins_a_job_by_itself_once(machine: Machine) -> None:
    async def work(service: Service) -> None:
        await until(lambda: machine.heard)
        machine.go.set()
        await until(lambda: service.status().state is State.IDLE)

    live(machine, work, when__tune_on_start="if_untuned", target__latency_bound_s=0.03)
    assert [heard["command"] for heard in machine.heard] == ["tune"]
    assert machine.heard[0]["who"] == "jouled (untuned)"


# --- jobs ---------------------------------------------------------------------------------------------------


def _kept(machine: Machine) -> list[dict[str, Any]]:
    path = machine.folder / "daemon/requests.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_request_is_on_the_disk_before_it_is_accepted_and_its_end_in_the_history(machine: Machine) -> None:
    async def work(service: Service) -> None:
        job = await service.retune(BOUND, PEER)
        assert [(line["verb"], line["job"], line["request"]) for line in _kept(machine)] == [("retune", job, BOUND)]
        assert service.status().state is State.TUNING
        async with service.subscribe() as events:
            machine.go.set()
            seen = [event async for event in _until_finished(events)]
        assert seen[-1]["result"]["outcome"] == "tuned"
        await until(lambda: service.status().state is State.IDLE)
        status = service.status()
        assert status.in_force is not None
        assert status.last_job is not None
        assert (status.in_force.source, status.last_job.outcome, status.counters.jobs) == (
            Source.WINNER,
            "tuned",
            {"tuned": 1},
        )
        (entry,) = service.history(10)
        assert (entry["job"], entry["outcome"], entry["who"]) == (job, "tuned", "uid 1000 (pepe)")
        found = service.job(job)
        assert found is not None
        assert found["result"]["saving_ratio"] == 0.1
        assert service.trials(job) == []
        assert service.job("ffffffffffff") is None
        assert service.trials("ffffffffffff") is None
        assert service.job_events("ffffffffffff") is None
        assert service.job_events(job) is not None

    live(machine, work)
    told = machine.heard[0]
    assert (told["request"], told["who"], len(told["job"])) == (BOUND, "uid 1000 (pepe)", 12)


async def _until_finished(events: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[Mapping[str, Any]]:
    async for event in events:
        yield event
        if event["event"] == "finished":
            return


@pytest.mark.parametrize(
    ("answer", "outcome", "said"),
    [
        ({"result": {"outcome": None, "plan": {"expected_s": 600.0}, "reason": None}, "error": None}, None, ""),
        (
            {"result": None, "error": {"kind": "ConfigError", "text": "no such key", "hint": "", "exit_code": 2}},
            "interrupted",
            "no such key",
        ),
        (
            {"result": None, "error": {"kind": "BusyError", "text": "pid 7 holds", "hint": "", "exit_code": 12}},
            "board_busy",
            "pid 7 holds",
        ),
    ],
)
def test_what_is_not_in_the_ledger_is_kept_with_the_requests(
    machine: Machine, answer: dict[str, Any], outcome: str | None, said: str
) -> None:
    machine.answers_tune = answer

    async def work(service: Service) -> None:
        async with service.subscribe() as events:
            job = await service.retune({**BOUND, "dry_run": True}, PEER)
            seen = [event async for event in _until_finished(events)]
        assert seen[-1]["result"] == answer["result"]
        machine.clock.ahead_s += 30.0
        await until(lambda: not service.outlook.history.open_jobs())
        found = service.job(job)
        assert found is not None
        assert (found["outcome"], found["reason"]["text"], found["result"]) == (outcome, said, answer["result"])

    live(machine, work)
    fresh = _service(machine)
    fresh.look()
    fresh.settle_jobs()
    assert [entry["outcome"] for entry in fresh.history(5)] == [outcome]


def test_a_second_job_is_refused_with_the_first_ones_id(machine: Machine) -> None:
    async def work(service: Service) -> None:
        job = await service.retune(BOUND, PEER)
        for ask in (
            service.retune(BOUND, PEER),
            service.apply("reference", PEER),
            service.rollback(PEER),
            service.pause(60.0, PEER),
            service.forget(NAME, False, PEER),
        ):
            with pytest.raises(Conflict) as caught:
                await ask
            assert caught.value.job == job
        assert (await service.verify(PEER))["busy"] is True
        machine.go.set()

    live(machine, work)
    assert [heard["command"] for heard in machine.heard] == ["tune"]


def test_without_a_worker_no_job_is_accepted_nor_kept(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_loop, "PATIENCE_S", 0.0)

    async def work(service: Service) -> None:
        with pytest.raises(Unavailable, match="no worker answers"):
            await service.retune(BOUND, PEER)
        assert service.status().job is None
        found = await service.verify(PEER)
        assert (found["full"], found["mismatches"]) == (False, [])

    live(machine, work, has_worker=False)
    assert _kept(machine) == []


def test_a_worker_that_serves_somebody_else_is_a_conflict_that_names_it(machine: Machine) -> None:
    machine.busy = {"pid": 4711, "verb": "restore"}

    async def work(service: Service) -> None:
        with pytest.raises(Conflict, match=r"pid 4711 \(jouled restore\)"):
            await service.retune(BOUND, PEER)
        assert (await service.verify(PEER))["busy"] is True

    live(machine, work)
    assert _kept(machine) == []


def test_a_request_that_cannot_be_kept_is_not_carried_out(machine: Machine) -> None:
    (machine.folder / "daemon").write_text("in the way")

    async def work(service: Service) -> None:
        with pytest.raises(StateError):
            await service.retune(BOUND, PEER)
        with pytest.raises(StateError):
            await service.apply("reference", PEER)
        assert service.status().job is None

    live(machine, work)
    assert machine.heard == []


@pytest.mark.parametrize(
    ("request_", "overrides", "error", "said"),
    [
        ({"latency_bound_s": 0.04, "budgets": 3}, {}, ConfigError, "budget"),
        ({"latency_bound_s": "fast"}, {}, ConfigError, "latency_bound_s"),
        (
            {"latency_bound_s": 0.04},
            {"target__max_latency_bound_s": 0.03},
            ConfigError,
            r"at most target.max_latency_bound_s \(0.03 s\)",
        ),
        (BOUND, {"mode": "observe"}, Refused, "observe"),
    ],
)
def test_a_request_that_may_not_be_is_refused_before_a_worker_is_asked(
    machine: Machine,
    request_: Mapping[str, Any],
    overrides: Mapping[str, Any],
    error: type[Exception],
    said: str,
) -> None:
    async def work(service: Service) -> None:
        with pytest.raises(error, match=said):
            await service.retune(request_, PEER)

    live(machine, work, **overrides)
    assert machine.heard == []
    assert _kept(machine) == []


def test_cancel_reaches_the_worker_and_only_for_the_job_that_runs(machine: Machine) -> None:
    async def work(service: Service) -> None:
        with pytest.raises(UsageError):
            await service.cancel("0123456789ab", PEER)
        job = await service.retune(BOUND, PEER)
        with pytest.raises(UsageError):
            await service.cancel("0123456789ab", PEER)
        await service.cancel(job, PEER)
        await until(lambda: service.status().job is None)
        assert service.history(1)[0]["event" if "event" in service.history(1)[0] else "kind"]
        entry = service.job(job)
        assert entry is not None
        assert entry["outcome"] == "cancelled"

    live(machine, work)
    assert machine.cancelled == "user"


def test_cancel_of_a_job_whose_worker_has_just_gone_is_a_conflict(machine: Machine) -> None:
    async def work(service: Service) -> None:
        job = await service.retune(BOUND, PEER)
        assert service.running is not None
        service.running._conversation._line.writer.transport.abort()
        with pytest.raises(UsageError, match="is ending already"):
            await service.cancel(job, PEER)

    live(machine, work)


def test_the_operators_switch_ends_a_job_that_runs(machine: Machine) -> None:
    async def work(service: Service) -> None:
        await service.retune(BOUND, PEER)
        switch = machine.folder / "board/etc/jouled/disabled"
        switch.parent.mkdir(parents=True, exist_ok=True)
        switch.touch()
        machine.clock.ahead_s += 10.0
        await until(lambda: service.status().state is State.DISABLED)
        assert service.status().job is None

    live(machine, work)
    assert machine.cancelled == "user"


def test_a_worker_that_dies_in_a_job_is_followed_by_one_that_restores(machine: Machine) -> None:
    machine.dies_at = "search"

    async def work(service: Service) -> None:
        async with service.subscribe() as events:
            job = await service.retune(BOUND, PEER)
            await until(lambda: snapshot_path(machine.folder).exists())
            machine.go.set()
            seen = [event async for event in _until_finished(events)]
        assert seen[-1]["result"]["outcome"] == "interrupted"
        assert machine.commands()[1:] == ["restore"]
        entry = service.job(job)
        assert entry is not None
        assert (entry["outcome"], entry["reason"]["code"]) == ("interrupted", "worker_gone")
        assert "ended before it had finished" in entry["reason"]["text"]

    live(machine, work)


def test_what_was_accepted_before_a_crash_is_interrupted_once_the_board_is_put_back(machine: Machine) -> None:
    async def crash() -> str:
        machine.go = asyncio.Event()
        server = await asyncio.start_unix_server(machine.serve, machine.socket)
        machine.dies_at = "search"
        service = _service(machine)
        service.outlook.requests.mend()
        job = await service.retune(BOUND, PEER)
        await until(lambda: snapshot_path(machine.folder).exists())
        for task in service._tasks:
            task.cancel()
        await asyncio.gather(*service._tasks, return_exceptions=True)
        server.close()
        await server.wait_closed()
        return job

    job = asyncio.run(crash())
    machine.errors["restore"] = {"kind": "RestoreError", "text": "EBUSY", "hint": "", "exit_code": 10}

    async def work(service: Service) -> None:
        await until(lambda: machine.commands()[1:] == ["restore"])
        entry = service.job(job)
        assert entry is not None
        assert entry["outcome"] is None
        machine.errors.clear()
        machine.clock.ahead_s += 2.0
        await until(lambda: (service.job(job) or {})["outcome"] == "interrupted")

    live(machine, work)
    fresh = _service(machine)
    fresh.look()
    (entry,) = fresh.history(10)
    assert (entry["job"], entry["outcome"], entry["reason"]["code"]) == (job, "interrupted", "daemon_gone")


def test_the_ledgers_own_end_of_a_job_counts_before_ours(machine: Machine) -> None:
    service = _service(machine)
    service.outlook.requests.mend()
    service.keep_request("retune", "uid 0 (root)", job="0123456789ab", request=BOUND)
    machine.ledger(event="job_started", job="0123456789ab", wall_s=1.0)
    result = {"job": "0123456789ab", "outcome": "no_gain", "reason": {"code": "converged", "text": ""}}
    machine.ledger(event="finished", job="0123456789ab", result=result)
    service.look()
    service.settle_jobs()
    assert [entry["outcome"] for entry in service.history(5)] == ["no_gain"]


def test_a_jobs_own_last_word_overrules_what_was_presumed(machine: Machine) -> None:
    service = _service(machine)
    service.outlook.requests.mend()
    service.keep_request("retune", "uid 0 (root)", job="0123456789ab", request=BOUND)
    service.look()
    service.settle_jobs()
    assert service.status().counters.jobs == {"interrupted": 1}
    result = {"job": "0123456789ab", "outcome": "tuned", "reason": {"code": "converged", "text": ""}, "applied": True}
    machine.ledger(event="finished", job="0123456789ab", result=result)
    service.look()
    assert [entry["outcome"] for entry in service.history(5)] == ["tuned"]
    assert service.status().counters.jobs == {"interrupted": 1, "tuned": 1}  # a counter never goes down
    fresh = _service(machine)
    fresh.look()
    assert fresh.status().counters.jobs == {"tuned": 1}
    last = service.status().last_job
    assert last is not None
    assert last.outcome == "tuned"


@pytest.mark.parametrize("length", [(4 << 20) - 1, (4 << 20) + 1, 9 << 20])
def test_a_line_without_measure_is_passed_over_and_what_follows_is_read(machine: Machine, length: int) -> None:
    service = _service(machine)
    ledger = machine.folder / "ledger.jsonl"
    machine.ledger(event="job_started", job="0123456789ab", wall_s=1.0)
    with open(ledger, "ab") as file:
        file.write(b"x" * length)
    service.look()
    assert service.outlook.history.damaged == 0  # it may still be being written
    with open(ledger, "ab") as file:
        file.write(b"\n")
    result = {"job": "0123456789ab", "outcome": "no_gain", "reason": {"code": "converged", "text": ""}}
    machine.ledger(event="finished", job="0123456789ab", result=result)
    service.look()
    assert service.outlook.history.damaged == 1
    assert [entry["outcome"] for entry in service.history(5)] == ["no_gain"]


def test_a_job_without_gain_leaves_the_winners_numbers(machine: Machine) -> None:
    """A weekly job that ends with no_gain is the rule; what the winner saves is still known."""
    tuned = {"job": "0123456789ab", "outcome": "tuned", "applied": True, "duration_s": 5.0, "saving_ratio": 0.1}
    for result in (tuned, {**tuned, "job": "1123456789ab", "outcome": "no_gain", "applied": False}):
        machine.ledger(event="job_started", job=result["job"], wall_s=1000.0)
        machine.ledger(event="finished", job=result["job"], result=result)
    write_winner(machine.folder, machine.winner())

    async def work(service: Service) -> None:
        await until(lambda: service.status().winner is not None and service.status().last_job is not None)
        status = service.status()
        assert status.winner is not None
        assert status.last_job is not None
        assert (status.last_job.outcome, status.winner.saving_ratio) == ("no_gain", 0.1)

    live(machine, work)


def test_what_was_known_before_the_files_began_anew_is_known_after(machine: Machine) -> None:
    job, asked = "0123456789ab", {"latency_bound_s": 0.02}
    first = _service(machine)
    first.outlook.requests.mend()
    first.keep_request("retune", "uid 0 (root)", job=job, request=asked)
    machine.ledger(event="job_started", job=job, wall_s=1000.0)
    for _ in range(2):
        machine.ledger(event="trial", job=job, trial={"index": 3, "policy": "capped", "invalid": None})
    result = {"job": job, "outcome": "tuned", "applied": True, "duration_s": 5.0, "saving_ratio": 0.1}
    machine.ledger(event="finished", job=job, result=result | {"trials": 1, "invalid": {"throttled": 2}})
    write_winner(machine.folder, replace(machine.winner(), latency_bound_s=0.02))
    stop = {"event": "applied", "why": "stop", "from": "x", "to": "y", "to_source": "reference", "wall_s": 1010.0}
    machine.ledger(**stop)
    first.outlook.requests.mend(rotate_above_bytes=1)
    first.keep_request("retune", "uid 0 (root)", job="ffffffffffff", request={})
    first.outlook.requests.mend(rotate_above_bytes=1)
    Ledger(machine.folder).mend(rotate_above_bytes=1)

    async def work(service: Service) -> None:
        machine.clock.ahead_s += 20.0
        await until(lambda: machine.commands() == ["apply winner boot"])
        status = service.status()
        assert status.winner is not None
        assert (status.winner.stale, status.winner.saving_ratio) == ("", 0.1)
        assert status.counters.jobs["tuned"] == 1
        assert (status.counters.trials, status.counters.trials_invalid) == (1, {"throttled": 2})
        found = service.job(job)
        assert found is not None
        assert (found["outcome"], found["request"]) == ("tuned", asked)

    live(machine, work, target__latency_bound_s=0.03)


def test_of_many_jobs_the_oldest_are_forgotten_but_not_what_a_winner_was_asked_for(machine: Machine) -> None:
    requests = machine.folder / "daemon/requests.jsonl"
    requests.parent.mkdir()
    asked: dict[str, Any] = {"event": "request", "verb": "retune", "request": BOUND}
    told = [{**asked, "job": f"{number:012x}"} for number in range(1500)]
    told += [{"event": "request", "verb": "pause", "for_s": None} for _ in range(1200)]
    requests.write_bytes(b"".join(map(encode_line, told)))
    machine.ledger(event="finished", job="0" * 12, result={"outcome": "tuned", "applied": True})
    history = _service(machine).outlook.history
    history.follow()
    for number in range(1500, 1510):
        machine.ledger(event="job_started", job=f"{number:012x}")
    history.follow()
    assert len(history.entries(5000)) == 1000
    assert history.entry(f"{1:012x}") is None
    winner = history.entry("0" * 12)
    assert winner is not None
    assert (winner.outcome, winner.request) == ("tuned", BOUND)


def test_the_last_job_is_the_one_that_ended_last_even_if_the_clock_was_put_back(machine: Machine) -> None:
    history = _service(machine).outlook.history
    for job, wall_s in (("a" * 12, 4e9), ("b" * 12, 1e9)):
        machine.ledger(event="job_started", job=job, wall_s=wall_s)
        machine.ledger(event="finished", job=job, result={"outcome": "no_gain", "duration_s": 1.0})
        history.follow()
        last = history.last_job()
        assert last is not None
        assert last.id == job


def test_a_torn_line_of_the_requests_is_set_aside_and_said(machine: Machine) -> None:
    first = _service(machine)
    first.outlook.requests.mend()
    first.keep_request("retune", "uid 0 (root)", job="0123456789ab", request=BOUND)
    path = machine.folder / "daemon/requests.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event": "requ')

    async def work(service: Service) -> None:
        assert any("requests.damaged" in text for text in service.status().warnings)
        machine.clock.ahead_s += 10.0
        await until(lambda: service.history(5)[0]["outcome"] == "interrupted")

    live(machine, work)
    assert (machine.folder / "daemon/requests.damaged").read_bytes() == b'{"event": "requ\n'


# --- what people ask for ------------------------------------------------------------------------------------


def test_apply_and_rollback_are_kept_and_answered_when_done(machine: Machine) -> None:
    machine.put_in_force()

    async def work(service: Service) -> None:
        assert (await service.apply("reference", PEER))["mode"] == mode_name(machine.board.reference)
        status = service.status()
        assert status.in_force is not None
        assert (status.in_force.source, status.in_force.verified) == (Source.REFERENCE, True)
        machine.clock.ahead_s += 60.0
        await asyncio.sleep(0)
        assert (await service.apply("winner", PEER))["mode"] == NAME
        assert (await service.rollback(PEER))["policy"] == "capped"
        assert service.status().winner is None
        with pytest.raises(UsageError, match="no winner"):
            await service.apply("winner", PEER)
        with pytest.raises(UsageError):
            await service.apply("../../etc", PEER)

    live(machine, work)
    assert machine.commands() == ["apply reference user", "apply winner user", "rollback"]
    assert [line["verb"] for line in _kept(machine)] == ["apply", "apply", "rollback"]


def test_what_went_wrong_before_the_start_stays_in_the_status(machine: Machine) -> None:
    service = _service(machine)
    service.outlook.warnings = ("no metrics: the port is taken",)

    async def begin() -> tuple[str, ...]:
        service._begin()
        return service.status().warnings

    assert "no metrics: the port is taken" in asyncio.run(begin())


def test_a_mode_applied_by_hand_is_no_winner(machine: Machine) -> None:
    machine.put_in_force()
    applied = read_applied(machine.folder)
    assert applied is not None
    (machine.folder / "winner.json").unlink(missing_ok=True)
    write_applied(machine.folder, replace(applied, workload="", decision_id="by hand"))

    async def work(service: Service) -> None:
        status = service.status()
        assert status.winner is None
        assert status.in_force is not None
        assert (status.in_force.source, status.in_force.verified) == (Source.OTHER, True)

    live(machine, work)


def test_after_a_restart_history_and_the_last_job_are_those_of_the_clock(machine: Machine) -> None:
    """Requests are read before the ledger, so what is read last is not what happened last."""
    (machine.folder / "daemon").mkdir(exist_ok=True)
    requests = machine.folder / "daemon/requests.jsonl"
    told = [
        {"event": "request", "verb": "retune", "wall_s": 1000.0, "who": "x", "job": "aaaaaaaaaaaa", "request": {}},
        {"event": "request", "verb": "pause", "wall_s": 3000.0, "who": "x", "for_s": None},
        {"event": "request", "verb": "retune", "wall_s": 4000.0, "who": "x", "job": "bbbbbbbbbbbb", "request": {}},
        {"event": "ended", "job": "bbbbbbbbbbbb", "wall_s": 4001.0, "outcome": "board_busy", "presumed": False},
    ]
    requests.write_bytes(b"".join(encode_line(line) for line in told))
    machine.ledger(event="job_started", job="aaaaaaaaaaaa", wall_s=1000.0)
    result = {"outcome": "no_gain", "duration_s": 500.0, "job": "aaaaaaaaaaaa"}
    machine.ledger(event="finished", job="aaaaaaaaaaaa", result=result)
    machine.ledger(
        event="applied", wall_s=2000.0, who="x", why="user", **{"from": "a", "to": "b", "to_source": "other"}
    )

    async def work(service: Service) -> None:
        assert [entry["wall_s"] for entry in service.history(9)] == [4000.0, 3000.0, 2000.0, 1000.0]
        assert [entry["wall_s"] for entry in service.history(2)] == [4000.0, 3000.0]
        last = service.status().last_job
        assert last is not None
        assert (last.id, last.outcome) == ("bbbbbbbbbbbb", "board_busy")

    live(machine, work)


def test_a_stale_winner_is_shown_and_refused(machine: Machine) -> None:
    machine.put_in_force("another boot")

    async def work(service: Service) -> None:
        winner = service.status().winner
        assert winner is not None
        assert "now they are locked" in winner.stale
        with pytest.raises(Refused, match="no longer holds"):
            await service.apply("winner", PEER)

    live(machine, work, grid__clocks="locked")
    assert machine.heard == []


def test_a_pause_brings_the_reference_and_its_end_the_winner(machine: Machine) -> None:
    machine.put_in_force()

    async def work(service: Service) -> None:
        answer = await service.pause(60.0, PEER)
        assert answer["paused"] is True
        status = service.status()
        assert status.in_force is not None
        assert (status.state, status.in_force.source) == (State.PAUSED, Source.REFERENCE)
        with pytest.raises(Refused, match="paused"):
            await service.retune(BOUND, PEER)
        machine.clock.ahead_s += 61.0
        await until(lambda: read_applied(machine.folder) is not None)
        await until(lambda: service.status().state is State.IDLE)
        assert (await service.pause(None, PEER))["until_wall_s"] is None
        assert (await service.pause(0, PEER))["paused"] is False
        assert read_applied(machine.folder) is not None
        for wrong in (-1.0, float("inf"), float("nan")):
            with pytest.raises(UsageError):
                await service.pause(wrong, PEER)

    live(machine, work)
    assert machine.commands() == ["apply reference pause", "apply winner pause"] * 2


@pytest.mark.parametrize("ends_by_itself", [True, False])
@pytest.mark.parametrize("has_winner", [True, False])
def test_a_mode_that_was_applied_by_hand_comes_back_when_the_pause_ends(
    machine: Machine, *, ends_by_itself: bool, has_winner: bool
) -> None:
    by_hand = replace(machine.winner(), decision_id="by hand", workload="")
    if has_winner:
        write_winner(machine.folder, machine.winner())
    write_applied(machine.folder, by_hand)
    machine.set_caps(MODE)

    async def work(service: Service) -> None:
        await service.pause(3600.0, PEER)
        await service.pause(60.0, PEER)  # the second knows of the mode by the first
        assert read_applied(machine.folder) is None
        if ends_by_itself:
            machine.clock.ahead_s += 61.0
        else:
            await service.pause(0, PEER)
        await until(lambda: read_applied(machine.folder) is not None)
        await until(lambda: service.status().state is State.IDLE)

    live(machine, work)
    assert machine.commands() == ["apply reference pause", f"apply {NAME} pause"]


def test_what_somebody_applies_in_place_of_the_paused_mode_stays(machine: Machine) -> None:
    write_applied(machine.folder, replace(machine.winner(), decision_id="by hand", workload=""))
    machine.set_caps(MODE)

    async def work(service: Service) -> None:
        await service.pause(None, PEER)
        machine.errors["apply"] = {"kind": "UsageError", "text": "no such mode", "hint": "", "exit_code": 2}
        assert "no such mode" in (await service.pause(0, PEER))["to_do"]
        assert "jouled apply reference" in service.status().to_do
        del machine.errors["apply"]
        await service.apply("reference", PEER)
        assert service.status().state is State.IDLE

    live(machine, work)
    assert machine.commands()[-1] == "apply reference user"


def test_who_asks_for_a_verify_is_logged(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def work(service: Service) -> None:
        await service.verify(PEER)

    live(machine, work)
    assert "verify asked by uid 1000 (pepe)" in caplog.text


def test_a_configuration_that_was_changed_under_the_daemon_is_said_until_it_is_as_before(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    path = machine.folder / "config.toml"
    path.write_text("schema = 1\n")

    async def work(service: Service) -> None:
        service.outlook.config_file = ConfigFile(path)
        service.look()
        assert service.status().warnings == ()
        path.write_text("schema = 1\n[job]\nbudget = 9\n")
        service.look()
        (told,) = service.status().warnings
        assert told.startswith(f"{path} has changed since the daemon began: it takes effect with: sudo systemctl")
        path.unlink()
        service.look()
        assert "is gone since the daemon began" in service.status().warnings[0]
        path.write_text("schema = 1\n")
        service.look()
        assert service.status().warnings == ()

    live(machine, work)
    assert caplog.text.count("has changed since the daemon began") == 1
    assert f"{path} is as it was when the daemon began" in caplog.text


def test_a_second_daemon_of_one_state_folder_is_refused_with_the_firsts_pid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    where = ["--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path)]
    with sole_daemon(tmp_path):
        assert main(["run", *where, "--socket", str(tmp_path / "second.sock"), "--metrics-listen", ""]) == 12
    told = capsys.readouterr().err
    assert f"{tmp_path}: another daemon serves this state folder (pid {os.getpid()})" in told
    assert "--state-dir" in told
    assert not (tmp_path / "second.sock").exists()
    with sole_daemon(tmp_path):  # it goes with its holder
        pass


def test_a_folder_in_which_no_lock_can_be_made_is_served_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "daemon").write_text("in the way")
    with sole_daemon(tmp_path):
        assert "a second daemon would not be noticed" in caplog.text


def test_a_pause_outlives_the_daemon(machine: Machine) -> None:
    machine.put_in_force()

    async def pause(service: Service) -> None:
        await service.pause(None, PEER)

    async def look(service: Service) -> None:
        assert service.status().state is State.PAUSED

    live(machine, pause)
    live(machine, look)
    assert machine.commands() == ["apply reference pause"]


def test_forget_goes_to_the_worker(machine: Machine) -> None:
    async def work(service: Service) -> None:
        assert (await service.forget(NAME, False, PEER))["forgotten"] is True
        assert (await service.forget(None, True, PEER))["forgotten"] is True
        with pytest.raises(UsageError):
            await service.forget(None, False, PEER)
        with pytest.raises(UsageError):
            await service.forget("all", False, PEER)

    live(machine, work)
    assert [{**heard, "who": ""} for heard in machine.heard] == [
        {"command": "forget", "who": "", "mode": NAME},
        {"command": "forget", "who": "", "held": True},
    ]


def test_the_kill_switch_refuses_every_change(machine: Machine) -> None:
    switch = machine.folder / "board/etc/jouled/disabled"
    switch.parent.mkdir()
    switch.touch()

    async def work(service: Service) -> None:
        assert service.status().state is State.DISABLED
        for ask in (service.retune(BOUND, PEER), service.apply("reference", PEER), service.rollback(PEER)):
            with pytest.raises(Refused, match="no knob may be written"):
                await ask
        switch.unlink()
        machine.clock.ahead_s += 10.0
        await until(lambda: service.status().state is State.IDLE)

    live(machine, work)
    assert machine.heard == []


def test_a_trial_counts_once_a_job_however_many_windows_it_took(machine: Machine) -> None:
    tried = [("a", 1, "capped"), ("a", 1, "capped"), ("a", 2, "capped"), ("a", 2, "locked"), ("b", 1, "capped")]
    for job, index, policy in tried:
        machine.ledger(event="trial", job=job, trial={"index": index, "policy": policy, "invalid": "throttled"})
    machine.ledger(event="finished", job="b", result={"outcome": "cancelled", "trials": 1, "invalid": {"throttled": 1}})
    service = _service(machine)
    service.look()
    counters = service.status().counters
    assert (counters.trials, counters.trials_invalid) == (4, {"throttled": 5})


def test_who_asks_twice_in_a_second_is_told_the_same_readings_and_no_knob_is_read(machine: Machine) -> None:
    service = _service(machine)
    service.look()
    first = service.status().readings
    assert first is not None
    gpu = machine.sysfs.real(GPU)
    for name in ("cur_freq", "max_freq"):
        (gpu / name).write_text("408000000\n")
    assert service.status().readings is first
    machine.clock.ahead_s += 1.0
    second = service.status().readings
    assert second is not None
    assert (second.clock_hz["gpu"], second.clock_cap_hz["gpu"]) == (408_000_000, first.clock_cap_hz["gpu"])
    service.look()
    assert (service.status().readings or second).clock_cap_hz["gpu"] == 408_000_000


def test_modes_are_named_with_what_is_held_against_them(machine: Machine) -> None:
    machine.put_in_force()
    trial = {
        "candidate": {"mode": {"cores": 12, "cpu_hz": 1_497_600_000, "gpu_hz": 816_000_000, "emc_hz": 2_133_000_000},
                      "variant": {"engine": None, "batch": 1, "instances": 1}},
        "invalid": None,
        "measurement": {"energy_j": 0.1, "power_w": 20.0, "latency_s": 0.01, "throughput_hz": 90.0},
    }  # fmt: skip
    machine.ledger(event="trial", job="0123456789ab", trial=trial)
    service = _service(machine)
    service.look()
    modes = service.modes()
    assert modes["grid_size"] == len(modes["modes"]) == 96
    (row,) = [row for row in modes["modes"] if row["name"] == NAME]
    assert (row["state"], row["measured"]["energy_j"]) == (["in force"], 0.1)
    assert service.outlook.history.counters(reapplies=0).trials == 1


# --- events -------------------------------------------------------------------------------------------------


def test_a_slow_listener_is_dropped_and_the_others_hear_everything() -> None:
    from jouled.service.fanout import Fanout

    async def work() -> None:
        fanout = Fanout(most_waiting=3)
        async with fanout.subscribe() as slow, fanout.subscribe() as quick:
            for number in range(5):
                fanout.publish({"n": number})
                assert (await quick.__anext__())["n"] == number
            assert [event["n"] async for event in slow] == [0, 1, 2]
            assert fanout.listeners == 1
            fanout.close()
            assert [event async for event in quick] == []
        assert fanout.listeners == 0

    asyncio.run(work())


# --- the end ------------------------------------------------------------------------------------------------


async def _nothing(service: Service) -> None:
    assert service.status().in_force is not None


def test_a_stop_keeps_the_winner_by_default(machine: Machine) -> None:
    machine.put_in_force()
    live(machine, _nothing)
    assert machine.heard == []
    assert read_applied(machine.folder) is not None


@dataclass
class Slow(Machine):
    """Its worker carries nothing out before `go`."""

    async def answer(self, told: dict[str, Any], reader: asyncio.StreamReader, say: Events) -> None:
        if told.get("why") == "user":
            await self.go.wait()
        await super().answer(told, reader, say)


def test_the_end_waits_for_what_people_asked_for(tmp_path: Path) -> None:
    machine = Slow(tmp_path)
    machine.put_in_force()

    async def work(service: Service) -> None:
        applying = asyncio.ensure_future(service.apply("winner", PEER))
        await until(service.lock.locked)
        late = asyncio.ensure_future(service.apply("reference", PEER))
        service.stop()
        await until(service._stop.is_set)
        machine.go.set()
        assert (await applying)["mode"] == NAME
        with pytest.raises(Unavailable, match="ending"):
            await late

    live(machine, work, keep__on_stop="restore")
    assert machine.commands() == ["apply winner user", "apply reference stop"]
    assert read_applied(machine.folder) is None


def test_a_mistake_ends_the_daemon_and_leaves_the_board_to_the_next(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(*_: object) -> None:
        raise ZeroDivisionError

    async def work(service: Service) -> None:
        monkeypatch.setattr(Service, "_carry_out", wrong)
        machine.set_caps(PowerMode(12, 1_190_400_000, 714_000_000, 2_133_000_000))
        machine.clock.ahead_s += 10.0
        await until(lambda: service._mistake)

    machine.put_in_force()
    with pytest.raises(ZeroDivisionError):
        live(machine, work, keep__on_stop="restore")
    assert machine.heard == []


def test_on_stop_restore_applies_the_reference_and_the_next_start_the_winner(machine: Machine) -> None:
    machine.put_in_force()
    live(machine, _nothing, keep__on_stop="restore")
    assert machine.commands() == ["apply reference stop"]

    async def back(service: Service) -> None:
        await until(lambda: service.status().state is State.IDLE and len(machine.heard) == 2)

    live(machine, back)
    assert machine.commands()[1:] == ["apply winner boot"]


def test_at_a_system_shutdown_nothing_is_done(machine: Machine) -> None:
    machine.put_in_force()
    live(machine, _nothing, has_worker=False, keep__on_stop="restore")
    assert read_applied(machine.folder) is not None


def test_a_stop_in_a_job_cancels_it_and_hears_it_out(machine: Machine) -> None:
    async def work(service: Service) -> None:
        await service.retune(BOUND, PEER)
        await until(lambda: service.status().job is not None and snapshot_path(machine.folder).exists())

    live(machine, work)
    assert machine.cancelled == "daemon_gone"
    fresh = _service(machine)
    fresh.look()
    assert [entry["outcome"] for entry in fresh.history(1)] == ["interrupted"]


# --- weight -------------------------------------------------------------------------------------------------

WEIGH = """
import asyncio, sys
from jouled.cli import run
from jouled.cli.arguments import make_parser

arguments = make_parser().parse_args(["run", "--virtual", "agx-orin-64gb", "--state-dir", sys.argv[1]])
arguments.metrics_listen = ""
real = run.Service

class Once(real):
    def look(self):
        verdict = super().look()
        assert self.status().in_force.verified
        self.stop()
        return verdict

run.Service = Once
assert run.run(arguments) == 0
heavy = {"numpy", "scipy", "optuna", "sqlalchemy", "jouled.virtual.machine", "jouled.job.job"} & set(sys.modules)
print(sorted(heavy), "aiohttp" in sys.modules)
"""


def test_the_daemon_brings_no_heavy_library(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WEIGH, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("[] True", 0), done.stderr
