"""A child that the kernel does not let go, and a worker that dies before its child: the real daemon, the real worker.

The kernel is played in the worker's process alone: while the file `stuck` lies in the state folder no signal that the
worker sends arrives, and each process counts as in uninterruptible sleep. The program that hangs is a real child, as
are the workers, one for each command; the daemon runs here, on a clock that is moved by hand.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jouled.board.applied import read_applied
from jouled.board.board import discover
from jouled.board.clock import SystemClock
from jouled.board.grid import board_space
from jouled.board.host import Host
from jouled.board.knobs import read_knobs
from jouled.board.pending import read_pending
from jouled.board.process import Processes
from jouled.board.snapshot import snapshot_path
from jouled.board.sysfs import Sysfs
from jouled.board.winner import read_winner
from jouled.config import load
from jouled.job.site import Site
from jouled.ledger import Ledger
from jouled.service.face import Service
from jouled.service.keeper import STUCK_EVERY_S
from jouled.service.notify import Notifier
from jouled.service.workers import ChildDoor, Line, WorkerBusy
from jouled.state import Failed, Peer, Refused, State
from jouled.virtual.faults import FOLDER, set_faults
from jouled.virtual.machine import VirtualMachine

PATIENCE_S = 60.0
PEER = Peer(1000, 1000, 7, "pepe", may_change=True)
REQUEST = {"latency_bound_ratio": 1.4, "budget": 5}
FOLDERS = ("etc", "var", "run/jouled/modes")

# argv: where, and which switches the board gets when the search begins (JSON); then the command line.
LAUNCHER = """
import json, os, shutil, signal, sys
from pathlib import Path
from jouled.board import orphans, process
from jouled.cli import main
from jouled.job.events import Events
from jouled.virtual.faults import set_faults
from jouled.job import mending
from jouled.worker import applying
told = json.loads(sys.argv.pop(1))
folder = Path(told["folder"])
root, stuck, hung, then = folder / "board", folder / "stuck", folder / "hung", folder / "then"
process._GRACE_S = orphans._WAIT_S = 0.05
emit, killpg, send = Events.emit, os.killpg, signal.pidfd_send_signal
def emitting(self, event, **fields):
    emit(self, event, **fields)
    if fields.get("phase") == "search" and event == "phase":
        set_faults(str(root), **told["faults"])
def killing(pid, number):
    if not stuck.exists():
        return killpg(pid, number)
    if not hung.exists():
        shutil.copytree(root, then, symlinks=True)
        hung.write_text(str(pid))
def sending(descriptor, number):
    if not stuck.exists():
        send(descriptor, number)
Events.emit, os.killpg, signal.pidfd_send_signal = emitting, killing, sending
orphans.is_uninterruptible = lambda pid: stuck.exists()
put_back = mending.restore_held
def putting_back(host):
    if (folder / "snapshot.json").exists():
        with (folder / "tries").open("a") as file:
            print(os.getpid(), file=file)
    return put_back(host)
mending.restore_held = applying.restore_held = putting_back
sys.exit(main(sys.argv[1:]))
"""


class Clock(SystemClock):
    """The system's, moved on by hand, long after boot."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s

    def boottime_s(self) -> float:
        return 100_000.0 + self.monotonic_s()

    def wall_s(self) -> float:
        return super().wall_s() + self.ahead_s


@dataclass(frozen=True)
class Doors:
    """The daemon's way to its workers, which remembers their pids."""

    door: ChildDoor
    pids: list[int] = field(default_factory=list)

    @property
    def silence_s(self) -> float | None:
        return PATIENCE_S

    async def open(self) -> Line:
        line = await self.door.open()
        assert line.child is not None
        self.pids.append(line.child.pid)
        return line


@dataclass
class Scene:
    """A virtual board as its operator left it, and the daemon on it. `faults`: of the board once a search begins."""

    folder: Path
    faults: Mapping[str, Any]
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        machine = VirtualMachine(self.root)
        sysfs = machine.host(self.folder).sysfs
        sysfs.write("/sys/devices/system/cpu/cpu5/cpuidle/state1/disable", "1", why="operator")
        sysfs.write("/sys/devices/system/cpu/cpufreq/policy4/scaling_min_freq", "1036800", why="operator")
        machine.close()
        self.host = Host(Sysfs(self.root), Processes(path=""), self.clock, self.folder, privileged=False)
        self.found = self.knobs()
        self.doors = Doors(ChildDoor(self._argv))

    def _argv(self, descriptor: int) -> list[str]:
        told = json.dumps({"folder": str(self.folder), "faults": self.faults})
        board = ["--virtual", "agx-orin-64gb", "--state-dir", str(self.folder)]
        return [sys.executable, "-c", LAUNCHER, told, "worker", "--fd", str(descriptor), *board]

    @property
    def root(self) -> Path:
        return self.folder / "board"

    def knobs(self) -> dict[str, str]:
        return dict(read_knobs(self.host.sysfs, discover(self.host).domains).values)

    def service(self) -> Service:
        config = load(None, {})
        site = Site(self.host, config, "virtual:yolov8s-640", lambda board: board_space(board, config.grid), _no_runner)
        return Service(site, self.doors, lambda asked: load(None, {}, request=asked), Notifier({}), tick_s=0.01)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Service]:
        """The daemon until the block ends, then stopped as by SIGTERM."""
        service = self.service()
        life = asyncio.get_running_loop().create_task(service.run())
        try:
            await until(lambda: service.status().in_force is not None or life.done())
            yield service
        finally:
            service.stop()
            await asyncio.wait_for(life, PATIENCE_S)

    def live(self, work: Callable[[Service], Awaitable[None]]) -> None:
        async def both() -> None:
            async with self.running() as service:
                await work(service)

        asyncio.run(both())

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in Ledger(self.folder).read().events if line["event"] == event]

    def assert_each_worker_tried_once(self) -> None:
        tried = (self.folder / "tries").read_text().split()
        assert len(tried) == len(set(tried)) > 1

    def assert_as_found(self) -> None:
        assert self.knobs() == self.found
        assert not snapshot_path(self.folder).exists()
        assert (read_applied(self.folder), read_winner(self.folder), read_pending(self.folder)) == (None, None, None)


def _no_runner(_: object) -> Any:
    raise AssertionError


async def until(condition: Callable[[], object]) -> None:
    """Wait for it; a minute is a failure."""

    async def look() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(look(), PATIENCE_S)


def picture(root: Path, knobs: Iterable[str]) -> dict[str, tuple[int, bytes]]:
    """Each knob and each file of nvpmodel's and ours on the board: when it was last written, and what it says."""
    paths = [Path(folder) / name for top in FOLDERS for folder, _, names in os.walk(root / top) for name in names]
    paths += [root / knob.lstrip("/") for knob in knobs if not knob.endswith("/emc/rate")]  # that one the board moves
    kept = [path for path in paths if path.is_file()]
    return {str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes()) for path in kept}


def kernel_writes(root: Path) -> int:
    """How often the virtual kernel has taken a write, whoever's it was."""
    return (root / FOLDER / "writes").stat().st_size


def is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in {"Z", "X"}


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def finished(events: AsyncIterator[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The job's last word."""
    async for event in events:
        if event["event"] == "finished":
            return event
    raise AssertionError("the daemon hung up on its listener")


# --- a child that does not die ------------------------------------------------------------------------------


@pytest.fixture
def hanging(tmp_path: Path) -> Any:
    """nvpmodel stands still after 24 writes in the first mode of the search, and nothing the worker does ends it."""
    scene = Scene(tmp_path / "state", {"hang": {"nvpmodel": 24}})
    (scene.folder / "stuck").touch()
    yield scene
    with suppress(FileNotFoundError):
        end(int((scene.folder / "hung").read_text()))


def assert_untouched(scene: Scene) -> None:
    """Nothing was written since the child began to hang."""
    then = scene.folder / "then"
    assert kernel_writes(scene.root) == kernel_writes(then) > 0
    assert picture(scene.root, scene.found) == picture(then, scene.found)


async def _tune_and_hang(scene: Scene, service: Service) -> int:
    """A job that ends since nvpmodel does not; its pid, once the daemon knows."""
    async with service.subscribe() as events:
        job = await service.retune(REQUEST, PEER)
        last = await asyncio.wait_for(finished(events), PATIENCE_S)
    hung = int((scene.folder / "hung").read_text())
    assert (last["job"], last["result"]["outcome"]) == (job, "board_fault")
    assert f"pid {hung}" in last["result"]["reason"]["text"]
    assert is_alive(hung)
    await until(lambda: service.status().state is State.STUCK)
    assert scene.knobs() != scene.found  # as the child left them
    assert_untouched(scene)
    return hung


async def _try_again(scene: Scene, service: Service) -> None:
    """Just before its time no worker is asked; then one is, and fails as the one before, for as long again."""
    before, due_s = len(scene.doors.pids), service.outlook.memory.retry_s
    scene.clock.ahead_s += due_s - scene.clock.monotonic_s() - 5.0
    service.wake()
    await until(lambda: service._look_due_s > 0.0)  # it has looked, and in the same breath acted or not
    assert (len(scene.doors.pids), service._action, service.status().state) == (before, None, State.STUCK)
    scene.clock.ahead_s += 5.0
    asked_s = scene.clock.monotonic_s()
    await until(lambda: service.outlook.memory.retry_s != due_s)
    assert asked_s <= service.outlook.memory.retry_s - STUCK_EVERY_S <= scene.clock.monotonic_s()
    assert (len(scene.doors.pids), service.status().state) == (before + 1, State.STUCK)
    assert_untouched(scene)


@pytest.mark.parametrize("is_killed_at_last", [False, True], ids=["it ends by itself", "the kernel lets go"])
def test_a_child_that_hangs_in_the_kernel_is_written_beside_by_nobody_until_it_is_gone(
    hanging: Scene, *, is_killed_at_last: bool
) -> None:
    async def work(service: Service) -> None:
        hung = await _tune_and_hang(hanging, service)
        for _ in range(2):
            assert f"pid {hung} (in the kernel)" in service.status().to_do
            await _try_again(hanging, service)
        assert is_alive(hung)
        if not is_killed_at_last:
            end(hung)
            await until(lambda: not is_alive(hung))
        (hanging.folder / "stuck").unlink()
        hanging.clock.ahead_s += STUCK_EVERY_S
        await until(lambda: service.status().state is State.IDLE)
        assert not is_alive(hung)
        assert "hang" not in service.status().to_do
        hanging.assert_as_found()

    hanging.live(work)
    hanging.assert_each_worker_tried_once()
    (line,) = hanging.lines("restored")[-1:]
    assert (line["who"], line["why"]) == ("jouled", "restore")


def test_while_a_child_hangs_whatever_people_ask_for_writes_nothing_either(hanging: Scene) -> None:
    async def work(service: Service) -> None:
        hung = await _tune_and_hang(hanging, service)
        refused = (
            lambda: service.retune(REQUEST, PEER),
            lambda: service.apply("reference", PEER),
            lambda: service.rollback(PEER),
        )
        for ask in refused:
            with pytest.raises(Refused, match="hangs in the kernel") as error:
                await ask()
            assert f"pid {hung}" in error.value.hint
        due_s = service.outlook.memory.retry_s
        await service.verify(PEER)
        await service.forget("12-1497.6-918-2133", False, PEER)
        await service.pause(60.0, PEER)
        assert service.status().state is State.STUCK
        assert service.outlook.memory.retry_s == due_s > hanging.clock.monotonic_s()
        assert_untouched(hanging)

    hanging.live(work)
    assert_untouched(hanging)


def test_a_child_that_hangs_while_a_mode_is_applied_by_hand_is_written_beside_by_nobody_either(hanging: Scene) -> None:
    """In the no-change probe already, which is the worker's first call of nvpmodel."""
    set_faults(str(hanging.root), **hanging.faults)

    async def work(service: Service) -> None:
        with pytest.raises(Failed) as failed:
            await service.apply("12-1497.6-816-2133", PEER)
        hung = int((hanging.folder / "hung").read_text())
        assert (failed.value.kind, f"pid {hung}" in str(failed.value)) == ("StuckError", True)
        await until(lambda: service.status().state is State.STUCK)
        assert f"pid {hung}" in service.status().to_do
        assert service.outlook.memory.retry_s > hanging.clock.monotonic_s() + STUCK_EVERY_S / 2
        assert len(hanging.doors.pids) == 1
        assert_untouched(hanging)
        (hanging.folder / "stuck").unlink()
        hanging.clock.ahead_s += STUCK_EVERY_S
        await until(lambda: service.status().state is State.IDLE)
        assert not is_alive(hung)
        hanging.assert_as_found()

    hanging.live(work)
    hanging.assert_each_worker_tried_once()


def test_a_worker_that_serves_somebody_else_does_not_hide_which_process_hangs(tmp_path: Path) -> None:
    service = Scene(tmp_path / "state", {}).service()

    async def refused() -> None:
        raise WorkerBusy(5, "verify")

    async def work() -> None:
        await service._guarded(refused())

    service._remember(stuck=True, trouble="pid 4711 does not end")
    asyncio.run(work())
    service.look()
    assert (service.status().state, service.status().to_do) == (State.STUCK, "pid 4711 does not end")


def test_a_daemon_that_starts_beside_a_hanging_child_finds_it_out(hanging: Scene) -> None:
    async def first(service: Service) -> None:
        await _tune_and_hang(hanging, service)

    async def second(service: Service) -> None:
        await until(lambda: service.status().state is State.STUCK)
        assert (hanging.folder / "hung").read_text() in service.status().to_do
        assert_untouched(hanging)

    hanging.live(first)
    hanging.live(second)


# --- a worker that dies before its child --------------------------------------------------------------------


@pytest.mark.parametrize("write", [1, 13, 24])
def test_a_worker_killed_beside_its_living_child_is_followed_by_one_that_ends_the_child_and_restores(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], write: int
) -> None:
    scene = Scene(tmp_path / "state", {"hold": {"by": "nvpmodel", "write": write}})
    held = scene.root / FOLDER / "held"

    async def work(service: Service) -> None:
        async with service.subscribe() as events:
            job = await service.retune(REQUEST, PEER)
            await until(held.exists)
            child, worker = int(held.read_text()), scene.doors.pids[-1]
            assert is_alive(child)
            os.kill(worker, signal.SIGKILL)
            last = await asyncio.wait_for(finished(events), PATIENCE_S)
        assert (last["job"], last["result"]["outcome"]) == (job, "interrupted")
        assert f"pid {worker}" in last["result"]["reason"]["text"]
        await until(lambda: service.status().state is State.IDLE)
        assert len(scene.doors.pids) == 2
        assert not is_alive(child)
        assert f"SIGKILL to pid {child}" in capfd.readouterr().err
        scene.assert_as_found()
        assert (await service.verify(PEER))["mismatches"] == []
        (line,) = scene.lines("restored")
        assert (line["who"], line["job"]) == ("jouled", job)

    try:
        scene.live(work)
    finally:
        with suppress(FileNotFoundError):
            end(int(held.read_text()))
