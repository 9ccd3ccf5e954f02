"""A child that ends, or says things, in ways that nobody expects."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from jouled.board.orphans import end_orphans, find_orphans
from jouled.board.process import Child, Processes, start_ticks
from jouled.errors import StateError, WorkloadDiedError
from jouled.workload.command import CommandRunner
from jouled.workload.runner import Arrival
from jouletune.space import Variant

MARKED = f"test-{os.getpid()}-{start_ticks(os.getpid())}"
PATIENCE_S = 30.0
# It leaves a process in a session of its own, which writes on and on to the same standard output.
LEAVES_ONE = """
import os, time
if os.fork() == 0:
    os.setsid()
    while True: os.write(1, b"still here\\n" * 5000)
print("ready", flush=True)
time.sleep(0.3)
"""
EMPTY_DATAGRAMS = """
import os, socket, time
inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
inbox.connect(os.environ["JOULED_SOCKET"])
while True:
    inbox.send(b"")
    time.sleep(0.005)
"""


@pytest.fixture
def ends_what_is_left() -> Iterator[None]:
    yield
    end_orphans(MARKED, ())


def started(code: str) -> CommandRunner:
    return CommandRunner(Processes(mark=MARKED), Arrival(), argv=(sys.executable, "-S", "-c", code))


def take_on(runner: CommandRunner) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        runner.take()


@pytest.mark.usefixtures("ends_what_is_left")
def test_who_it_leaves_behind_keeps_nobody_from_seeing_that_it_has_ended() -> None:
    runner = started(LEAVES_ONE)
    runner.load(Variant())
    (pid,) = runner.pids
    os.kill(pid, signal.SIGKILL)
    try:
        with pytest.raises(WorkloadDiedError, match="was ended by signal 9"):
            take_on(runner)
    finally:
        runner.close()
    assert find_orphans(MARKED, ()) == ()


def test_a_child_that_cannot_be_written_down_does_not_go_on() -> None:
    started: list[Child] = []

    def refuse(child: Child) -> None:
        started.append(child)
        raise StateError("No space left on device")

    with pytest.raises(StateError):
        Processes(mark=MARKED, on_start=refuse).spawn(("sleep", "600"))
    assert start_ticks(started[0].pid) is None


PARENT = """
import sys, time
from jouled.board.process import Processes
from jouled.workload.command import CommandRunner
from jouled.workload.runner import Arrival
from jouletune.space import Variant
ticks = "import time\\nwhile True: time.sleep(0.01); print('tick', flush=True)"
runner = CommandRunner(Processes(mark=sys.argv[1]), Arrival(), argv=(sys.executable, "-S", "-c", ticks))
runner.load(Variant())
print("stands still", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
@pytest.mark.usefixtures("ends_what_is_left")
def test_a_program_that_stands_still_ends_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, MARKED], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"stands still\n"
        parent.kill()
        parent.wait()
        until_s = time.monotonic() + PATIENCE_S
        while find_orphans(MARKED, ()) and time.monotonic() < until_s:
            time.sleep(0.01)
        assert find_orphans(MARKED, ()) == ()


def test_an_empty_datagram_is_an_inference_as_any_other() -> None:
    runner = started(EMPTY_DATAGRAMS)
    try:
        runner.load(Variant())
        runner.begin()
        ended, until_s = 0, time.monotonic() + PATIENCE_S
        while ended < 20 and time.monotonic() < until_s:
            ended += len(runner.take().end_s)
        assert ended >= 20
    finally:
        runner.close()
