"""kill -9 of the job at moments chosen by event: afterwards a restore, or else a reboot, leaves nothing behind.

Each moment is met five times in different places. The board was found with settings of its operator's own, so that
"as found" is not the same as the stock mode.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jouled.board.board import discover
from jouled.board.knobs import read_knobs
from jouled.board.nvpmodel import query
from jouled.board.snapshot import snapshot_path
from jouled.ledger import Ledger
from jouled.virtual.faults import FOLDER, set_faults
from jouled.virtual.machine import VirtualMachine

BOARD = ["--virtual", "agx-orin-64gb"]
TUNE = ["tune", *BOARD, "--latency-bound-ratio", "1.4", "--budget", "6", "--json-lines"]
PATIENCE_S = 60.0
KILL_BEFORE_STUDY = """
import os, signal, sys
import jouletune.search
from jouled.cli import main
tell, left = jouletune.search.Search.tell, [int(sys.argv.pop(1))]
def telling(self, index, observation):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    tell(self, index, observation)
jouletune.search.Search.tell = telling
sys.exit(main(sys.argv[1:]))
"""


@dataclass
class Scene:
    """A virtual board in `folder` as its operator left it."""

    folder: Path
    found: dict[str, str]
    stock: dict[str, str]

    @property
    def root(self) -> Path:
        return self.folder / "board"

    def jouled(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "jouled.cli", *arguments, *BOARD, "--state-dir", str(self.folder)]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def knobs(self) -> dict[str, str]:
        return knobs_of(self.folder)

    @property
    def out(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.out")

    def events(self) -> list[dict[str, Any]]:
        whole = self.out.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    @contextlib.contextmanager
    def started(
        self, *arguments: str, code: tuple[str, ...] = ("-m", "jouled.cli")
    ) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, *code, *arguments, "--state-dir", str(self.folder)]
        with self.out.open("wb") as out:
            child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        try:
            yield child
        finally:
            child.kill()
            child.wait(timeout=PATIENCE_S)

    def wait_for(self, child: subprocess.Popen[bytes], has_come: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.01)):
            if has_come():
                return
            assert child.poll() is None, "it ended before the moment came"
            pause.wait(0.01)
        raise AssertionError("the moment never came")

    def wait_for_trials(self, child: subprocess.Popen[bytes], count: int) -> None:
        self.wait_for(child, lambda: self.out.read_text().count('"event":"trial"') >= count)

    def kill_when_held(self, child: subprocess.Popen[bytes]) -> None:
        """kill -9 it as soon as it, or a child of it, stands still where the switches say."""
        self.wait_for(child, (self.root / FOLDER / "held").exists)
        child.send_signal(signal.SIGKILL)
        assert child.wait(timeout=PATIENCE_S) == -signal.SIGKILL

    def release(self) -> None:
        set_faults(str(self.root))
        (self.root / FOLDER / "held").unlink(missing_ok=True)


def knobs_of(folder: Path) -> dict[str, str]:
    machine = VirtualMachine(folder / "board")
    host = machine.host(folder)
    return dict(read_knobs(host.sysfs, discover(host).domains).values)


def make_scene(folder: Path) -> Scene:
    machine = VirtualMachine(folder / "board")
    stock = knobs_of(folder)
    sysfs = machine.host(folder).sysfs
    sysfs.write("/sys/devices/system/cpu/cpu5/cpuidle/state1/disable", "1", why="operator")
    sysfs.write("/sys/devices/system/cpu/cpufreq/policy4/scaling_min_freq", "1036800", why="operator")
    sysfs.write("/sys/class/devfreq/17000000.gpu/min_freq", "408000000", why="operator")
    machine.close()
    found = knobs_of(folder)
    assert found != stock
    return Scene(folder, found, stock)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return make_scene(tmp_path / "state")


def is_running(pid: int) -> bool:
    """Is there such a process, other than one that only waits to be reaped?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextlib.contextmanager
def rebooted_copy(scene: Scene, tmp_path: Path) -> Iterator[Path]:
    """The same disk, booted through the stock path instead of restored."""
    copy = tmp_path / "rebooted"
    shutil.copytree(scene.folder, copy, symlinks=True)
    set_faults(str(copy / "board"))
    VirtualMachine(copy / "board").reboot()
    yield copy


def check_aftermath(scene: Scene, tmp_path: Path) -> None:
    """The two ways out of it, each on the same remains."""
    held_pid = scene.root / FOLDER / "held"
    orphan = int(held_pid.read_text()) if held_pid.exists() else None
    with rebooted_copy(scene, tmp_path) as copy:
        assert knobs_of(copy) == scene.stock
        machine = VirtualMachine(copy / "board")
        assert query(machine.host(copy).processes) == ("MAXN", 0)
        machine.close()
    restored = scene.jouled("restore")
    assert restored.returncode == 0, restored.stderr
    assert "put back" in restored.stdout
    assert scene.knobs() == scene.found
    assert not snapshot_path(scene.folder).exists()
    assert orphan is None or not is_running(orphan), "a child of the dead job still runs"
    again = scene.jouled("restore")
    assert (again.returncode, "nothing to restore" in again.stdout) == (0, True)


@pytest.mark.parametrize(("trials", "write"), [(1, 24), (2, 14), (3, 20), (4, 23), (5, 25)])
def test_killed_during_nvpmodels_writes(scene: Scene, tmp_path: Path, trials: int, write: int) -> None:
    with scene.started(*TUNE) as child:
        scene.wait_for_trials(child, trials)
        set_faults(str(scene.root), hold={"by": "nvpmodel", "write": write})
        scene.kill_when_held(child)
    assert scene.knobs() != scene.found
    check_aftermath(scene, tmp_path)


@pytest.mark.parametrize(("trials", "write"), [(1, 1), (2, 1), (3, 2), (4, 30), (5, 39)])
def test_killed_between_nvpmodel_and_jetson_clocks(scene: Scene, tmp_path: Path, trials: int, write: int) -> None:
    with scene.started(*TUNE, "--clocks", "locked") as child:
        scene.wait_for_trials(child, trials)
        set_faults(str(scene.root), hold={"by": "jetson_clocks", "write": write})
        scene.kill_when_held(child)
    assert scene.knobs() != scene.found
    check_aftermath(scene, tmp_path)


@pytest.fixture(scope="module")
def window_moments(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Seconds after the start at which a rehearsal with the same seeds was in the middle of a candidate's window."""
    scene = make_scene(tmp_path_factory.mktemp("rehearsal"))
    with scene.started(*TUNE) as child:
        child.wait(timeout=PATIENCE_S)
    events = scene.events()
    first = next(i for i, event in enumerate(events) if event["event"] == "trial")
    moments = [event["t_s"] for event in events[first:] if event.get("phase") == "window"]
    return [moment - 120.0 for moment in moments]


@pytest.mark.parametrize("share", [0.02, 0.25, 0.5, 0.75, 0.98])
def test_killed_in_a_window(scene: Scene, tmp_path: Path, window_moments: list[float], share: float) -> None:
    moment_s = window_moments[int(share * (len(window_moments) - 1))]
    set_faults(str(scene.root), hold={"by": "clock", "after_s": moment_s})
    with scene.started(*TUNE) as child:
        scene.kill_when_held(child)
    assert [event["phase"] for event in scene.events() if event["event"] == "progress"][-1] == "window"
    scene.release()
    check_aftermath(scene, tmp_path)


@pytest.mark.parametrize("write", [1, 2, 5, 12, 25])
def test_killed_during_the_restore_itself(scene: Scene, tmp_path: Path, write: int) -> None:
    with scene.started(*TUNE, "--clocks", "locked") as child:
        scene.wait_for_trials(child, 3)
        set_faults(str(scene.root), hold={"by": "jetson_clocks", "write": 39})
        scene.kill_when_held(child)
    set_faults(str(scene.root), hold={"by": "sysfs", "write": write})
    with scene.started("restore", *BOARD) as restore:
        scene.kill_when_held(restore)
    scene.release()
    assert scene.knobs() != scene.found
    check_aftermath(scene, tmp_path)


@pytest.mark.parametrize("tell", [1, 2, 3, 4, 5])
def test_killed_between_ledger_and_study(scene: Scene, tmp_path: Path, tell: int) -> None:
    with scene.started(str(tell), *TUNE, code=("-c", KILL_BEFORE_STUDY)) as child:
        assert child.wait(timeout=PATIENCE_S) == -signal.SIGKILL
    kept = [event for event in Ledger(scene.folder).read().events if event["event"] == "trial"]
    assert [event["trial"]["number"] for event in kept] == list(range(tell))
    assert [event["event"] for event in scene.events()].count("trial") == tell
    check_aftermath(scene, tmp_path)
    again = scene.jouled("tune", "--latency-bound-ratio", "1.4", "--budget", "6", "--json")
    assert json.loads(again.stdout)["outcome"] == "tuned", again.stderr
