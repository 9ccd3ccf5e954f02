"""Restore: the board as found, after any crash, killed at any point, on a full disk."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jouled.board import orphans
from jouled.board.applied import Applied, read_applied, write_applied
from jouled.board.clock import SystemClock
from jouled.board.discover import discover_domains
from jouled.board.host import Host
from jouled.board.knobs import CONF_PATH_PATH, STATUS_PATH, Knobs, differences, read_knobs
from jouled.board.lock import hold_board
from jouled.board.pending import Why, note_apply, note_boot, read_pending
from jouled.board.process import MARK, Child, Processes
from jouled.board.restore import Found, restore
from jouled.board.snapshot import (
    ChildLog,
    Origin,
    Snapshot,
    boot_id,
    read_origin,
    read_snapshot,
    snapshot_path,
    write_origin_once,
    write_snapshot,
)
from jouled.board.statefile import read_state, write_state
from jouled.board.sysfs import Sysfs
from jouled.errors import BusyError, RestoreError, StateError, StuckError
from jouled.virtual.faults import FOLDER, set_faults
from jouled.virtual.sysfs import VirtualSysfs
from jouled.virtual.tree import boot, make_tree
from jouletune.space import Candidate, PowerMode

CPU = "/sys/devices/system/cpu"
GPU = "/sys/class/devfreq/17000000.gpu"
EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
EMC_CAP = "/sys/kernel/nvpmodel_clk_cap/emc"
MODE = PowerMode(12, 1_497_600_000, 816_000_000, 3_199_000_000)

SYSTEMCTL = """#!/bin/sh
echo "$*" >> "${{0%/*}}/asked"
exit {code}
"""

RESTORER = """
import sys
from pathlib import Path
from jouled.board.clock import SystemClock
from jouled.board.host import Host
from jouled.board.process import Processes
from jouled.board.restore import restore
from jouled.virtual.sysfs import VirtualSysfs
root = Path(sys.argv[1])
restore(Host(VirtualSysfs(root), Processes(path=str(root / "bin")), SystemClock(), root / "state"))
print("whole")
"""


class Board:
    """A virtual board, a job's snapshot of it, and what a job does to it."""

    def __init__(self, root: Path) -> None:
        make_tree(root, base_mode="MODE_50W")
        (root / "bin").mkdir()
        self.root = root
        self.sysfs = VirtualSysfs(root)
        self.host = Host(self.sysfs, Processes(path=str(root / "bin")), SystemClock(), root / "state")
        self.domains = discover_domains(self.sysfs)
        self.found = read_knobs(self.sysfs, self.domains)
        self.mark = uuid.uuid4().hex

    def snapshot(self, **changes: object) -> Snapshot:
        snapshot = Snapshot(
            boot_id=boot_id(self.sysfs),
            job="job-1",
            mark=self.mark,
            base_mode="MODE_50W",
            knobs=self.found,
            wall_s=1.8e9,
        )
        snapshot = replace(snapshot, **changes)  # type: ignore[arg-type]
        write_snapshot(self.host.state_dir, snapshot)
        return snapshot

    def damage(self) -> None:
        """As jetson_clocks in a small mode and a foreign conf leave it."""
        for cpu in range(1, 12):
            self.sysfs.write(f"{CPU}/cpu{cpu}/cpuidle/state1/disable", 1, why="test")
            if cpu > 5:
                self.sysfs.write(f"{CPU}/cpu{cpu}/online", 0, why="test")
        for path, value in (
            (f"{CPU}/cpufreq/policy0/scaling_max_freq", 1113600),
            (f"{CPU}/cpufreq/policy0/scaling_min_freq", 1113600),
            (f"{GPU}/max_freq", 408000000),
            (f"{GPU}/min_freq", 408000000),
            (f"{GPU}/device/railgate_enable", 0),
            (EMC_CAP, 665600000),
            (f"{EMC}/mrq_rate_locked", 1),
        ):
            self.sysfs.write(path, value, why="test")
        self.sysfs.place(STATUS_PATH, "pmode:0001\n")
        self.sysfs.place(CONF_PATH_PATH, "/run/jouled/modes/x.conf\n")

    def systemctl(self, code: int = 0) -> None:
        path = self.root / "bin" / "systemctl"
        path.write_text(SYSTEMCTL.format(code=code))
        path.chmod(0o755)

    def asked(self) -> list[str]:
        path = self.root / "bin" / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def is_as_found(self) -> bool:
        return differences(self.sysfs, self.found) == {} and read_knobs(self.sysfs, self.domains).values.keys() == (
            self.found.values.keys()
        )

    def winner(self, decision_id: str) -> Applied:
        return Applied(
            candidate=Candidate(MODE),
            policy="capped",
            fingerprint={"module": "x"},
            workload="detector",
            latency_bound_s=0.05,
            latency_percentile=95.0,
            decision_id=decision_id,
            wall_s=1.8e9,
            boot_id=boot_id(self.sysfs),
            home=self.found,
        )


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path / "board")


# --- this boot ----------------------------------------------------------------------------------------------


def test_without_a_snapshot_nothing_is_touched(board: Board) -> None:
    board.damage()
    writes = board.sysfs.kernel.writes
    assert restore(board.host).found is Found.NOTHING
    assert board.sysfs.kernel.writes == writes
    assert not board.host.state_dir.exists()


def test_every_knob_comes_back_and_the_snapshot_goes(board: Board) -> None:
    board.snapshot()
    board.damage()
    report = restore(board.host)
    assert report.found is Found.THIS_BOOT
    assert report.job == "job-1"
    assert board.is_as_found()
    assert any(GPU in sentence for sentence in report.changed)
    assert read_snapshot(board.host.state_dir) is None
    assert restore(board.host).found is Found.NOTHING


def test_knob_that_does_not_obey_is_named_and_the_snapshot_stays(board: Board) -> None:
    board.snapshot()
    board.damage()
    set_faults(str(board.root), write_errors=[{"path": EMC_CAP, "errno": "EBUSY"}])
    with pytest.raises(RestoreError, match="nvpmodel_clk_cap/emc") as caught:
        restore(board.host)
    assert len(caught.value.mismatches) == 1
    set_faults(str(board.root))
    assert restore(board.host).found is Found.THIS_BOOT
    assert board.is_as_found()


def test_living_holder_is_not_disturbed(board: Board) -> None:
    board.snapshot()
    board.damage()
    writes = board.sysfs.kernel.writes
    with hold_board(board.host, verb="tune"), pytest.raises(BusyError, match="jouled tune"):
        restore(board.host)
    assert board.sysfs.kernel.writes == writes


@pytest.mark.parametrize("write", [1, 5, 12, 20, 27])
def test_restore_killed_in_a_write_is_finished_by_the_next(board: Board, write: int) -> None:
    board.snapshot()
    board.damage()
    set_faults(str(board.root), hold={"by": "sysfs", "write": write})
    with subprocess.Popen([sys.executable, "-c", RESTORER, str(board.root)], stdout=subprocess.PIPE) as first:
        held = board.root / FOLDER / "held"
        while not held.exists():
            assert first.poll() is None, "it ended before that write"
        first.kill()
        assert first.wait() == -9
    set_faults(str(board.root))
    assert not board.is_as_found()
    assert restore(board.host).found is Found.THIS_BOOT
    assert board.is_as_found()


def test_restore_works_on_a_full_disk(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.snapshot(applied=None)
    write_applied(board.host.state_dir, board.winner("new"))
    note_apply(board.host, MODE, why=Why.TRIAL, fingerprint={})
    board.damage()
    with hold_board(board.host, verb="tune"):
        pass  # the lock's file is there

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real_open = os.open

    def open_without_space(path: os.PathLike[str] | str, flags: int, mode: int = 0o777, **more: int) -> int:
        if flags & os.O_CREAT and not os.path.lexists(path):
            full()
        return real_open(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", open_without_space)
    monkeypatch.setattr(Path, "write_text", full)
    assert restore(board.host).found is Found.THIS_BOOT
    monkeypatch.undo()
    assert board.is_as_found()
    assert read_applied(board.host.state_dir) is None
    assert read_pending(board.host.state_dir) is None
    assert read_snapshot(board.host.state_dir) is None


def test_pending_of_this_boot_is_cleared(board: Board) -> None:
    board.snapshot()
    note_apply(board.host, MODE, why=Why.TRIAL, fingerprint={})
    restore(board.host)
    assert read_pending(board.host.state_dir) is None


# --- children -----------------------------------------------------------------------------------------------

Living = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def living() -> Living:
    def begin(mark: str) -> subprocess.Popen[bytes]:
        code = "import sys; print('up', flush=True); sys.stdin.read()"
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            env={MARK: mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        return child

    return begin


def end(child: subprocess.Popen[bytes]) -> int:
    child.kill()
    child.communicate()
    return child.returncode


def test_children_are_dead_before_a_knob_is_written(board: Board, living: Living) -> None:
    board.snapshot()
    board.damage()
    child = living(board.mark)

    class Watching(VirtualSysfs):
        def _write_bytes(self, path: str, data: bytes) -> None:
            assert child.poll() == -9, "a knob was written beside a living child"
            super()._write_bytes(path, data)

    try:
        report = restore(replace(board.host, sysfs=Watching(board.root)))
    finally:
        end(child)
    assert report.killed == (child.pid,)
    assert board.is_as_found()


def test_child_that_does_not_die_keeps_every_knob_as_it_is(
    board: Board, living: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.snapshot()
    board.damage()
    writes = board.sysfs.kernel.writes
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)
    monkeypatch.setattr(orphans, "_WAIT_S", 0.001)
    child = living(board.mark)
    try:
        with pytest.raises(StuckError, match=str(child.pid)):
            restore(board.host)
    finally:
        end(child)
    assert board.sysfs.kernel.writes == writes
    assert board.sysfs.read(STATUS_PATH) == "pmode:0001"
    assert read_snapshot(board.host.state_dir) is not None


def test_child_log_keeps_the_latest_children(board: Board) -> None:
    board.snapshot()
    log = ChildLog(board.host.state_dir, keep=2)
    for pid in (11, 12, 13):
        log(Child(pid, 7))
    snapshot = read_snapshot(board.host.state_dir)
    assert snapshot is not None
    assert snapshot.children == (Child(12, 7), Child(13, 7))
    assert snapshot.knobs == board.found


def test_child_log_without_space_does_not_stop_the_job(board: Board, caplog: pytest.LogCaptureFixture) -> None:
    board.snapshot()
    (board.host.state_dir / ".snapshot.json.new").mkdir()
    ChildLog(board.host.state_dir)(Child(11, 7))
    assert "11 is not noted" in caplog.text


# --- units and the winner -----------------------------------------------------------------------------------


def test_stopped_units_run_again(board: Board) -> None:
    board.systemctl()
    board.snapshot(stopped_units=("detector.service", "camera@1.service"))
    report = restore(board.host)
    assert report.started_units == ("detector.service", "camera@1.service")
    assert board.asked() == ["start -- detector.service", "start -- camera@1.service"]


def test_unit_that_does_not_start_is_a_warning_once_the_knobs_are_right(board: Board) -> None:
    board.systemctl(code=1)
    board.snapshot(stopped_units=("detector.service",))
    board.damage()
    report = restore(board.host)
    assert "detector.service was not started again" in report.warnings[0]
    assert board.is_as_found()


def test_units_are_started_also_where_a_knob_does_not_obey(board: Board) -> None:
    board.systemctl()
    board.snapshot(stopped_units=("detector.service",))
    board.damage()
    set_faults(str(board.root), ignore_writes=[EMC_CAP])
    with pytest.raises(RestoreError):
        restore(board.host)
    assert board.asked() == ["start -- detector.service"]


@pytest.mark.parametrize("unit", ["--now", "-x.service", "a b.service", "x.service; reboot", "../x.service", ""])
def test_text_that_is_no_unit_is_not_obeyed(board: Board, unit: str) -> None:
    board.systemctl()
    board.snapshot(stopped_units=(unit,))
    with pytest.raises(StateError, match="no name of a unit"):
        restore(board.host)
    assert board.asked() == []


@pytest.mark.parametrize("had_winner", [False, True])
def test_winner_of_an_unfinished_job_is_no_longer_in_force(board: Board, had_winner: bool) -> None:
    before = board.winner("before") if had_winner else None
    board.snapshot(applied=before)
    write_applied(board.host.state_dir, board.winner("of this job"))
    restore(board.host)
    assert read_applied(board.host.state_dir) == before


# --- another boot -------------------------------------------------------------------------------------------


def test_after_a_reboot_only_the_status_files_are_repaired(board: Board) -> None:
    board.snapshot()
    board.damage()
    boot(board.root)
    board.sysfs.write(f"{GPU}/max_freq", 612000000, why="the operator's own")
    report = restore(board.host)
    assert report.found is Found.OTHER_BOOT
    assert report.set_aside is not None
    assert report.set_aside.exists()
    assert [sentence.partition(":")[0] for sentence in report.changed] == [STATUS_PATH]  # the boot named its conf
    assert board.sysfs.read(f"{GPU}/max_freq") == "612000000"
    assert board.sysfs.real(STATUS_PATH).read_text() == board.found.values[STATUS_PATH]
    assert board.sysfs.real(CONF_PATH_PATH).read_text() == board.found.values[CONF_PATH_PATH]
    assert restore(board.host).found is Found.NOTHING


def test_pending_survives_a_restore_after_a_reboot_and_strikes(board: Board) -> None:
    board.snapshot()
    note_apply(board.host, MODE, why=Why.TRIAL, fingerprint={})
    boot(board.root)
    restore(board.host)
    assert note_boot(board.host).standing is not None


# --- what is not obeyed -------------------------------------------------------------------------------------


def forged(board: Board, path: str, value: str) -> None:
    """A snapshot with a right checksum and a wrong path in it."""
    board.snapshot()
    fields = read_state(snapshot_path(board.host.state_dir), "jouled.snapshot/1")
    assert fields is not None
    values = {**fields.values, "knobs": {**board.found.values, path: value}}
    values.pop("schema")
    write_state(snapshot_path(board.host.state_dir), "jouled.snapshot/1", values)


@pytest.mark.parametrize("path", ["/etc/passwd", "/sys/devices/platform/gpu.0/tpc_pg_mask"])
def test_path_that_is_no_knob_stops_the_restore_before_any_write(board: Board, path: str) -> None:
    forged(board, path, "1")
    board.damage()
    writes = board.sysfs.kernel.writes
    with pytest.raises(StateError, match="set aside") as caught:
        restore(board.host)
    assert path in str(caught.value)
    assert "reboot" in caught.value.hint
    assert board.sysfs.kernel.writes == writes


def test_damaged_snapshot_is_set_aside_and_a_reboot_finds_the_stock_mode(board: Board) -> None:
    board.snapshot()
    board.sysfs.place(CONF_PATH_PATH, "/run/jouled/modes/x.conf\n")
    path = snapshot_path(board.host.state_dir)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(StateError, match=r"set aside as snapshot\.json\.aside\.1"):
        restore(board.host)
    assert not board.sysfs.exists(CONF_PATH_PATH)
    boot(board.root)
    assert differences(board.sysfs, Knobs({**board.found.values, CONF_PATH_PATH: "/etc/nvpmodel.conf\n"})) == {}


def test_snapshot_behind_a_link_is_not_followed(board: Board, tmp_path: Path) -> None:
    board.snapshot()
    path = snapshot_path(board.host.state_dir)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    board.damage()
    writes = board.sysfs.kernel.writes
    with pytest.raises(StateError, match="symbolic link"):
        restore(board.host)
    assert board.sysfs.kernel.writes == writes


# --- the files ----------------------------------------------------------------------------------------------


def test_snapshot_is_read_as_it_was_written(board: Board) -> None:
    written = board.snapshot(
        applied=board.winner("x"), stopped_units=("a.service",), children=(Child(1, 2), Child(3, 4))
    )
    assert read_snapshot(board.host.state_dir) == written


def test_origin_is_written_once_and_kept(board: Board) -> None:
    first = Origin("aa", "MAXN", board.found, 1.0)
    assert write_origin_once(board.host.state_dir, first)
    assert not write_origin_once(board.host.state_dir, Origin("bb", "MODE_15W", board.found, 2.0))
    assert read_origin(board.host.state_dir) == first


def test_boot_id_is_the_boards(board: Board) -> None:
    before = boot_id(board.sysfs)
    boot(board.root)
    assert boot_id(board.sysfs) != before
    assert boot_id(Sysfs(board.root)) == boot_id(board.sysfs)
