"""The board's lock: one writer, named to everybody else."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jouled.board.clock import SystemClock
from jouled.board.host import Host
from jouled.board.lock import hold_board, read_holder
from jouled.board.process import Processes
from jouled.board.sysfs import Sysfs
from jouled.errors import BusyError, StateError

HOLDER = """
import sys
from pathlib import Path
from jouled.board.clock import SystemClock
from jouled.board.host import Host
from jouled.board.lock import hold_board
from jouled.board.process import Processes
from jouled.board.sysfs import Sysfs
root = Path(sys.argv[1])
with hold_board(Host(Sysfs(root), Processes(), SystemClock(), root / "state"), verb="tune"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(Sysfs(tmp_path), Processes(), SystemClock(), tmp_path / "state")


def folder(host: Host) -> Path:
    return host.sysfs.real(host.run_dir)


def test_second_holder_is_told_who_the_first_is(host: Host) -> None:
    with hold_board(host, verb="tune"):
        with (
            pytest.raises(BusyError, match=rf"pid {os.getpid()} \(jouled tune\) holds the board"),
            hold_board(host, verb="x"),
        ):
            pytest.fail("two hold the board")
        assert read_holder(host) == (os.getpid(), "tune")


def test_board_is_free_again_after_the_holder(host: Host) -> None:
    with hold_board(host, verb="tune"):
        pass
    assert read_holder(host) is None
    with hold_board(host, verb="restore"):
        assert read_holder(host) == (os.getpid(), "restore")


def test_only_root_may_open_the_lock_and_only_its_group_read_the_holder(host: Host) -> None:
    with hold_board(host, verb="tune"):
        assert stat.S_IMODE((folder(host) / "board.lock").stat().st_mode) == 0o600
        assert stat.S_IMODE((folder(host) / "holder.json").stat().st_mode) & 0o137 == 0


def test_killed_holder_lets_go(host: Host, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BusyError, match=rf"pid {other.pid} "), hold_board(host, verb="restore"):
            pytest.fail("two hold the board")
        other.kill()
        other.wait()
    with hold_board(host, verb="restore"):
        assert read_holder(host) == (os.getpid(), "restore")


def test_damaged_holder_file_hides_a_name_and_nothing_else(host: Host) -> None:
    with hold_board(host, verb="tune"):
        (folder(host) / "holder.json").write_text("{")
        with pytest.raises(BusyError, match="another process holds the board"), hold_board(host, verb="x"):
            pytest.fail("two hold the board")


def test_holder_that_cannot_be_named_holds_all_the_same(host: Host) -> None:
    folder(host).mkdir(parents=True)
    (folder(host) / ".holder.json.new").mkdir()
    with hold_board(host, verb="restore"), pytest.raises(BusyError), hold_board(host, verb="x"):
        pytest.fail("two hold the board")


def test_link_in_place_of_the_lock_is_refused(host: Host, tmp_path: Path) -> None:
    folder(host).mkdir(parents=True)
    (folder(host) / "board.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match=r"board\.lock"), hold_board(host, verb="x"):
        pytest.fail("the lock was taken through a link")
    assert not (tmp_path / "elsewhere").exists()


def test_file_removed_between_open_and_lock_is_not_the_lock(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock
    removed: list[bool] = []

    def late(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(True)
            (folder(host) / "board.lock").unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with hold_board(host, verb="tune"), pytest.raises(BusyError), hold_board(host, verb="x"):
        pytest.fail("two hold the board")
    assert removed


def test_lock_file_replaced_meanwhile_excludes_nobody_twice(host: Host) -> None:
    with hold_board(host, verb="tune"):
        (folder(host) / "board.lock").unlink()  # as a boot empties /run
    with hold_board(host, verb="tune"):
        assert (folder(host) / "board.lock").exists()
        with pytest.raises(BusyError), hold_board(host, verb="x"):
            pytest.fail("two hold the board")


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"pid": 1e999}', '{"pid": Infinity}', "garbage"], ids=["deep", "huge", "inf", "text"]
)
def test_damaged_holder_file_names_nobody(host: Host, text: str) -> None:
    folder(host).mkdir(parents=True)
    (folder(host) / "holder.json").write_text(text)
    assert read_holder(host) is None
