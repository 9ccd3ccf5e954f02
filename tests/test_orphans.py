"""What a dead job left running is found by its mark or its start time, and by nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest

from jouled.board import orphans
from jouled.board.orphans import end_orphans, find_orphans
from jouled.board.process import MARK, Child, start_ticks
from jouled.errors import StuckError

Start = Callable[[str], "subprocess.Popen[bytes]"]
WAITS = "import sys; print('up', flush=True); sys.stdin.read()"
FORKS = "import os, sys; os.fork() or os.fork(); print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[subprocess.Popen[bytes]] = []

    def begin(mark: str, code: str = WAITS) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            env={MARK: mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        running.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        return child

    yield begin
    for child in running:
        child.kill()
        child.communicate()


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


def child_of(process: subprocess.Popen[bytes]) -> Child:
    return Child(process.pid, start_ticks(process.pid) or 0)


def test_marked_child_is_killed_and_others_live(start: Start, mark: str) -> None:
    mine, other = start(mark), start(f"{mark}x")
    assert end_orphans(mark, ()) == (mine.pid,)
    assert mine.wait() == -9
    assert other.poll() is None


def test_its_own_children_die_with_it(start: Start, mark: str) -> None:
    begin: Callable[..., subprocess.Popen[bytes]] = start
    parent = begin(mark, FORKS)
    assert len(find_orphans(mark, ())) >= 2
    ended = end_orphans(mark, ())
    assert parent.pid in ended
    assert len(ended) >= 2
    assert find_orphans(mark, ()) == ()


def test_recorded_child_without_the_mark_is_killed(start: Start, mark: str) -> None:
    child = start("")
    assert end_orphans(mark, (child_of(child),)) == (child.pid,)
    assert child.wait() == -9


def test_pid_that_another_process_has_got_since_is_spared(start: Start, mark: str) -> None:
    child = start("")
    stale = Child(child.pid, (start_ticks(child.pid) or 0) - 1)
    assert end_orphans(mark, (stale,)) == ()
    assert child.poll() is None


def test_this_process_is_never_killed(mark: str) -> None:
    me = Child(os.getpid(), start_ticks(os.getpid()) or 0)
    assert end_orphans(mark, (me,)) == ()


def test_zombie_counts_as_dead(start: Start, mark: str) -> None:
    child = start(mark)
    recorded = child_of(child)
    end_orphans(mark, (recorded,))  # nobody has waited for it
    assert find_orphans(mark, (recorded,)) == ()


def test_empty_mark_matches_nobody(start: Start) -> None:
    child = start("")
    assert child.pid not in find_orphans("", ())


def test_one_that_does_not_die_is_named(start: Start, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    child = start(mark)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)  # as the kernel does in state D
    monkeypatch.setattr(orphans, "_WAIT_S", 0.001)
    with pytest.raises(StuckError, match=rf"{child.pid}.*no knob was written"):
        end_orphans(mark, ())


def test_what_shares_the_workers_cgroup_is_killed_and_nobody_else(
    start: Start, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = start(""), start("")
    places = {mine.pid: "/system.slice/jouled-worker.service", os.getpid(): "/system.slice/jouled-worker.service"}
    monkeypatch.setattr(orphans, "_cgroup_of", lambda pid: places.get(int(pid), ""))
    assert end_orphans(mark, (), places[mine.pid]) == (mine.pid,)
    assert mine.wait() == -9
    assert other.poll() is None


@pytest.mark.parametrize(
    ("memberships", "wanted"),
    [
        ("0::/system.slice/jouled-worker.service\n", "/system.slice/jouled-worker.service"),
        ("0::/system.slice/jouled-worker.service/control\n", "/system.slice/jouled-worker.service"),
        (
            "4:memory:/system.slice/jouled-worker.service\n1:name=systemd:/system.slice/jouled-worker.service\n0::/\n",
            "/system.slice/jouled-worker.service",
        ),
        ("4:memory:/system.slice/jouled-worker.service\n1:name=systemd:/user.slice\n0::/\n", ""),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", ""),
        ("0::/system.slice/jouled.service\n", ""),
        ("0::/system.slice/not-jouled-worker.service\n", ""),
        ("", ""),
    ],
)
def test_the_workers_cgroup_is_told_from_a_shells(memberships: str, wanted: str) -> None:
    assert orphans.worker_cgroup(memberships) == wanted


def test_a_test_is_not_in_the_workers_cgroup() -> None:
    assert orphans.own_cgroup() == ""
