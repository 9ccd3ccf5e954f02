"""The worker as its peers meet it: a real process of `jouled worker`, a real socket, the virtual board.

Moments are chosen by event: the worker is told beforehand to stand still, or to kill itself, when a job says that a
phase begins. Nothing here sleeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jouled.board.applied import read_applied
from jouled.board.board import discover
from jouled.board.knobs import read_knobs
from jouled.board.pending import read_pending
from jouled.board.snapshot import snapshot_path
from jouled.board.winner import read_winner
from jouled.job.cancel import Cancelled
from jouled.ledger import Ledger
from jouled.virtual.faults import FOLDER, set_faults
from jouled.virtual.machine import VirtualMachine
from jouled.worker.peer import Peer

PATIENCE_S = 60.0
JOB = "0123456789ab"
GOOD = "12-1497.6-918-2133"
TUNE = {"command": "tune", "job": JOB, "who": "uid 1000 (pepe)", "request": {"latency_bound_ratio": 1.4, "budget": 5}}
VERIFY = {"command": "verify"}
MOMENTS = ("job_started", "reference", "window", "search", "finals", "apply", "watching")

# argv: what is overridden (JSON), then the command line. LISTEN_PID must be the worker's own pid, so it is set here.
LAUNCHER = """
import json, os, signal, sys, threading
from jouled.cli import main
import jouled.cli.worker
import jouled.worker.applying, jouled.worker.deadlines, jouled.worker.peer, jouled.worker.server, jouled.worker.sockets
from jouled.job.cancel import Cancellation
from jouled.job.events import Events
told = json.loads(sys.argv.pop(1))
jouled.worker.peer.FIRST_LINE_S = told.get("first_line_s", 10.0)
jouled.worker.server.SURVIVED_S = told.get("survived_s", 120.0)
jouled.worker.server.Server.__init__.__kwdefaults__["idle_s"] = told.get("idle_s", 60.0)
jouled.worker.deadlines.LIMITS_S.update(told.get("limits_s", {}))
made, emit, hit, pause = [], Events.emit, [], threading.Event()
make = Cancellation.__init__
def making(self):
    make(self)
    made.append(self)
def emitting(self, event, **fields):
    emit(self, event, **fields)
    if "moment" not in told or told["moment"] not in (event, fields.get("phase")) or hit:
        return
    hit.append(event)
    if told["act"] == "wait":
        while not any(one.asked for one in made):
            pause.wait(0.005)
    else:
        os.kill(os.getpid(), told["act"])
Cancellation.__init__, Events.emit = making, emitting
if "kill_before" in told:
    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(jouled.worker.applying, told["kill_before"], die)
if told.get("deaf"):
    jouled.worker.sockets.Peer = None
if told.get("mistake"):
    def apply_target(*_, **__):
        raise ZeroDivisionError("a mistake")
    jouled.worker.commands.apply_target = apply_target
if "listen" in told:
    os.dup2(told["listen"], 3)
    os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
sys.exit(main(sys.argv[1:]))
"""
AS_NOBODY = """
import os, socket, sys
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
with socket.socket(socket.AF_UNIX) as channel:
    channel.connect(sys.argv[1].replace("@", "\\0", 1))
    print(channel.makefile("rb").readline().decode().strip())
"""


class Client:
    """The daemon's side of one connection."""

    def __init__(self, channel: socket.socket) -> None:
        channel.settimeout(PATIENCE_S)
        self.channel = channel
        self._file = channel.makefile("rb")

    def line(self) -> dict[str, Any] | None:
        """The next line; None at the end."""
        data = self._file.readline()
        return json.loads(data) if data else None

    def say(self, message: dict[str, Any]) -> None:
        self.channel.sendall(json.dumps(message).encode() + b"\n")

    def until(self, event: str) -> dict[str, Any]:
        """The next event of that kind, or phase of that name."""
        while (said := self.line()) is not None:
            if event in (said.get("event"), said.get("phase")):
                return said
        raise AssertionError(f"it hung up before {event}")

    def rest(self) -> list[dict[str, Any]]:
        """Everything up to the end."""
        lines = []
        while (said := self.line()) is not None:
            lines.append(said)
        return lines

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """A whole command: its last line."""
        greeting = self.line()
        assert greeting is not None, "it hung up before hello"
        assert set(greeting) == {"hello"}, greeting
        self.say(message)
        return self.rest()[-1]

    def close(self) -> None:
        self._file.close()
        self.channel.close()


@dataclass
class Scene:
    """A virtual board as its operator left it, and workers on it."""

    folder: Path
    address: str
    found: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        machine = VirtualMachine(self.root)
        sysfs = machine.host(self.folder).sysfs
        sysfs.write("/sys/devices/system/cpu/cpu5/cpuidle/state1/disable", "1", why="operator")
        sysfs.write("/sys/devices/system/cpu/cpufreq/policy4/scaling_min_freq", "1036800", why="operator")
        machine.close()
        self.found = self.knobs()

    @property
    def root(self) -> Path:
        return self.folder / "board"

    @property
    def held(self) -> Path:
        return self.root / FOLDER / "held"

    def knobs(self) -> dict[str, str]:
        host = VirtualMachine(self.root).host(self.folder)
        return dict(read_knobs(host.sysfs, discover(host).domains).values)

    @contextlib.contextmanager
    def _started(self, given: socket.socket, options: list[str], told: dict[str, Any]) -> Iterator[Any]:
        site = ["--virtual", "agx-orin-64gb", "--state-dir", str(self.folder)]
        command = [sys.executable, "-c", LAUNCHER, json.dumps(told), "worker", *site, *options]
        child = subprocess.Popen(command, pass_fds=[given.fileno()], stderr=subprocess.PIPE, text=True)
        try:
            yield child
        finally:
            child.kill()
            child.communicate(timeout=PATIENCE_S)

    @contextlib.contextmanager
    def pair(self, **told: Any) -> Iterator[tuple[subprocess.Popen[str], Client]]:
        """A worker on one end of a socket pair, as `jouled run` starts it in the foreground."""
        here, there = socket.socketpair()
        with there, self._started(there, ["--fd", str(there.fileno())], told) as child:
            there.close()
            client = Client(here)
            try:
                yield child, client
            finally:
                client.close()

    @contextlib.contextmanager
    def listening(self, **told: Any) -> Iterator[subprocess.Popen[str]]:
        """A worker that systemd's socket unit starts."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address.replace("@", "\0", 1))
            listener.listen()
            with self._started(listener, [], {**told, "listen": listener.fileno()}) as child:
                yield child

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        channel = socket.socket(socket.AF_UNIX)
        channel.connect(self.address.replace("@", "\0", 1))
        made = Client(channel)
        try:
            yield made
        finally:
            made.close()

    def serve(self, message: dict[str, Any]) -> None:
        """A command that succeeds, as soon as the worker has noticed that others have gone."""
        greeting: dict[str, Any] | None = {}
        for _ in range(2000):
            with self.client() as client:
                greeting = client.line()
                if greeting is not None and "hello" in greeting:
                    client.say(message)
                    assert client.rest()[-1]["ok"] is True
                    return
        raise AssertionError(f"it goes on saying {greeting}")

    def ask(self, message: dict[str, Any], **told: Any) -> dict[str, Any]:
        """One command to a fresh worker on a socket pair."""
        with self.pair(**told) as (child, client):
            answer = client.ask(message)
            assert child.wait(timeout=PATIENCE_S) == 0
            return answer

    def wait_until_held(self, child: subprocess.Popen[str]) -> None:
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.01)):
            if self.held.exists():
                return
            assert child.poll() is None, "it ended before the moment came"
            pause.wait(0.01)
        raise AssertionError("the moment never came")

    def release(self) -> None:
        (self.root / FOLDER / "release").touch()

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in Ledger(self.folder).read().events if line["event"] == event]

    def assert_as_found(self) -> None:
        assert self.knobs() == self.found
        assert not snapshot_path(self.folder).exists()
        assert read_applied(self.folder) is None
        assert read_winner(self.folder) is None
        assert read_pending(self.folder) is None


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "state", f"@jouled-test-{os.getpid()}-{tmp_path.name}")


# --- one command --------------------------------------------------------------------------------------------


def test_job_ends_in_a_winner_and_every_event_comes_once_and_in_order(scene: Scene) -> None:
    with scene.pair() as (child, client):
        assert client.line() == {"hello": {"protocol": 1, "version": "0.1.0", "pid": child.pid}}
        client.say(TUNE)
        said = client.rest()
        assert child.wait(timeout=PATIENCE_S) == 0
    assert [one["event"] for one in said].count("finished") == 1, said[-1]
    last = said[-1]
    assert (last["event"], last["error"], last.get("job")) == ("finished", None, JOB)
    assert last["result"]["outcome"] == "tuned"
    numbers = [one["seq"] for one in said]
    assert numbers == sorted(set(numbers))
    phases = [one["phase"] for one in said if one["event"] == "phase"]
    assert phases == ["known", "reference", "search", "finals", "apply", "watching"]
    assert [line["result"] for line in scene.lines("finished")] == [last["result"]]
    assert scene.ask(VERIFY)["result"]["mismatches"] == []
    applied = read_applied(scene.folder)
    assert applied is not None
    assert applied == read_winner(scene.folder)
    assert applied.decision_id == JOB
    assert scene.lines("applied")[0]["who"] == "uid 1000 (pepe)"


def test_commands_of_one_service_life_follow_each_other_in_one_worker(scene: Scene) -> None:
    with scene.listening() as child:
        steps = (
            {"command": "restore", "who": "the daemon"},
            {"command": "apply", "target": GOOD, "why": "user", "who": "uid 0 (root)"},
            VERIFY,
            {"command": "apply", "target": "reference", "why": "stop", "who": "the daemon"},
            {"command": "rollback", "who": "uid 0 (root)"},
            {"command": "forget", "mode": GOOD, "who": "uid 0 (root)"},
        )
        answers = []
        for step in steps:
            with scene.client() as client:
                answers.append(client.ask(step))
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=PATIENCE_S) == 0
    assert [answer["ok"] for answer in answers] == [True] * len(steps)
    assert answers[2]["result"]["mode"] == GOOD
    assert answers[2]["result"]["mismatches"] == []
    scene.assert_as_found()


def test_dry_run_writes_nothing_and_tells_the_plan(scene: Scene) -> None:
    answer = scene.ask({**TUNE, "request": {"latency_bound_ratio": 1.4, "dry_run": True}})
    assert answer["result"]["plan"]["grid_size"] == 96
    assert (answer["result"]["job"], answer["result"]["outcome"]) == (JOB, None)
    scene.assert_as_found()
    assert not (scene.folder / "origin.json").exists()


@pytest.mark.parametrize(
    ("message", "kind", "exit_code"),
    [
        ({**TUNE, "request": {}}, "ConfigError", 2),
        ({**TUNE, "request": {"latency_bound_ratio": 1.2, "engine": "/etc/shadow"}}, "ConfigError", 2),
        ({**TUNE, "request": {"latency_bound_ratio": "1.2"}}, "ConfigError", 2),
        ({**TUNE, "request": {"latency_bound_ratio": 1.2, "dry_run": "no"}}, "ConfigError", 2),
        ({"command": "apply", "target": "winner", "why": "user", "who": "x"}, "UsageError", 2),
        ({"command": "apply", "target": "99-1-1-1", "why": "user", "who": "x"}, "UsageError", 2),
        ({**TUNE, "job": "../../../../x"}, "ProtocolError", 2),
        ({**TUNE, "argv": ["/bin/sh"]}, "ProtocolError", 2),
        ({"command": "apply", "target": "/etc/passwd", "why": "user", "who": "x"}, "ProtocolError", 2),
        ({"command": "exec"}, "ProtocolError", 2),
    ],
)
def test_command_that_is_wrong_is_answered_and_touches_nothing(
    scene: Scene, message: dict[str, Any], kind: str, exit_code: int
) -> None:
    answer = scene.ask(message)
    assert (answer["event"], answer["ok"], answer["result"]) == ("finished", False, None)
    assert (answer["error"]["kind"], answer["error"]["exit_code"]) == (kind, exit_code)
    assert answer["error"]["text"]
    scene.assert_as_found()


def test_mistake_in_the_code_is_answered_and_the_worker_lives_on(scene: Scene) -> None:
    with scene.listening(mistake=True):
        with scene.client() as client:
            answer = client.ask({"command": "apply", "target": "reference", "why": "user", "who": "x"})
        assert answer["error"]["kind"] == "InternalError"
        assert "ZeroDivisionError" in answer["error"]["text"]
        with scene.client() as client:
            assert client.ask(VERIFY)["ok"] is True


# --- who is served ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS)
def test_second_client_hears_busy_in_every_phase(scene: Scene, moment: str) -> None:
    with scene.listening(moment=moment, act="wait") as child, scene.client() as first:
        first.line()
        first.say(TUNE)
        first.until(moment)
        for _ in range(2):
            with scene.client() as second:
                assert second.rest() == [{"busy": {"pid": child.pid, "verb": "tune"}}]
        first.say({"command": "cancel", "reason": "user"})
        result = first.rest()[-1]["result"]
        assert (result["outcome"], result["reason"]["code"]) == ("cancelled", "user")
        with scene.client() as third:
            assert third.ask(VERIFY)["result"]["mismatches"] == []
    scene.assert_as_found()


def test_second_client_hears_busy_during_a_restore_too(scene: Scene) -> None:
    with scene.pair(moment="watching", act=signal.SIGKILL) as (child, client):
        client.line()
        client.say(TUNE)
        client.rest()
        assert child.wait(timeout=PATIENCE_S) == -signal.SIGKILL
    set_faults(str(scene.root), hold={"by": "sysfs", "write": 1})
    with scene.listening() as child, scene.client() as first:
        first.line()
        first.say({"command": "restore"})
        scene.wait_until_held(child)
        with scene.client() as second:
            assert second.rest() == [{"busy": {"pid": child.pid, "verb": "restore"}}]
        child.send_signal(signal.SIGTERM)
        scene.release()
        assert first.rest()[-1]["result"]["found"] == "this_boot"
        assert child.wait(timeout=PATIENCE_S) == 0
    set_faults(str(scene.root))
    scene.assert_as_found()


def test_job_of_another_process_is_named_before_any_hello(scene: Scene) -> None:
    set_faults(str(scene.root), hold={"by": "nvpmodel", "write": 3})
    with scene.pair() as (child, client):
        client.line()
        client.say(TUNE)
        scene.wait_until_held(child)
        with scene.listening(), scene.client() as other:
            assert other.rest() == [{"busy": {"pid": child.pid, "verb": "tune"}}]


def test_stranger_is_hung_up_on_without_a_word(scene: Scene) -> None:
    with scene.listening() as child:
        with scene.client() as client:
            assert client.ask(VERIFY)["ok"] is True
        heard = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, scene.address], capture_output=True, text=True, check=True
        )
        if os.geteuid() == 0:
            assert heard.stdout.strip() == ""
        else:
            assert "hello" in heard.stdout  # the worker's own user
        assert child.poll() is None


# --- peers that do not speak --------------------------------------------------------------------------------

BAD = {
    "garbage": b"\x00\xff\xfe not a line of this protocol\n",
    "no object": b"[1, 2]\n",
    "not UTF-8": b'{"command": "verify", "x": "\xff"}\n',
    "a NaN": b'{"command": "tune", "job": "0123456789ab", "request": {"budget": NaN}}\n',
    "nested": b"[" * 60_000 + b"\n",
    "long number": b'{"command": ' + b"9" * 5000 + b"}\n",
    "long line": b"x" * 70_000 + b"\n",
    "two commands": b'{"command": "verify"}\n{"command": "verify"}\n',
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One worker for all peers that do not speak: it must outlive them."""
    folder = tmp_path_factory.mktemp("shared")
    made = Scene(folder / "state", f"@jouled-test-{os.getpid()}-{folder.name}")
    with made.listening(first_line_s=0.3):
        yield made


@pytest.mark.parametrize("name", BAD)
def test_peer_that_sends_what_is_no_command_is_told_so_and_the_next_is_served(shared: Scene, name: str) -> None:
    with shared.client() as client:
        client.line()
        client.channel.sendall(BAD[name])
        last = client.rest()[-1]
    if name != "two commands":
        assert last["error"]["kind"] == "ProtocolError"
    with shared.client() as client:
        assert client.ask(VERIFY)["ok"] is True
    shared.assert_as_found()


def test_peer_that_never_ends_its_line_is_cut_off_early(shared: Scene) -> None:
    with shared.client() as client:
        client.line()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(1024):
                client.channel.sendall(b"x" * 1024)
        with contextlib.suppress(ConnectionResetError):
            assert client.rest()[-1]["error"]["kind"] == "ProtocolError"
    with shared.client() as client:
        assert client.ask(VERIFY)["ok"] is True


@pytest.mark.parametrize("data", [b"", b'{"command": "ver'])
def test_peer_that_goes_before_its_command_costs_nothing(shared: Scene, data: bytes) -> None:
    with shared.client() as client:
        client.line()
        client.channel.sendall(data)
    shared.serve(VERIFY)


@pytest.mark.parametrize("data", [b"", b'{"command": "ver'])
def test_peer_that_says_nothing_whole_is_given_up(shared: Scene, data: bytes) -> None:
    with shared.client() as client:
        client.line()
        client.channel.sendall(data)
        answer = client.rest()[-1]
    assert (answer["ok"], answer["error"]["kind"]) == (False, "ProtocolError")
    with shared.client() as client:
        assert client.ask(VERIFY)["ok"] is True


def test_line_that_comes_in_pieces_is_one_command(shared: Scene) -> None:
    with shared.client() as client:
        client.line()
        for piece in (b'{"comm', b'and": "ver', b'ify"}', b"\n"):
            client.channel.sendall(piece)
        assert client.rest()[-1]["ok"] is True


def test_peers_that_hang_up_as_they_are_hung_up_on_do_not_deafen_it(shared: Scene) -> None:
    for number in range(60):
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                client = stack.enter_context(shared.client())
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    client.channel.sendall(b'{"command": "forget", "held": true}\n' if number % 2 else b"nonsense\n")
    shared.serve(VERIFY)


def test_many_peers_at_once_are_each_greeted_or_told_busy(shared: Scene) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(shared.client()) for _ in range(20)]
        first = [client.line() for client in clients]
        greeted = [client for client, line in zip(clients, first, strict=True) if line is not None and "hello" in line]
        assert all(line is not None and set(line) <= {"hello", "busy"} for line in first)
        assert len(greeted) == 1
        greeted[0].say(VERIFY)
        assert greeted[0].rest()[-1]["ok"] is True


# --- peers that go ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS)
def test_daemon_that_goes_in_a_job_leaves_the_board_as_found(scene: Scene, moment: str) -> None:
    with scene.pair(moment=moment, act="wait") as (child, client):
        client.line()
        client.say(TUNE)
        client.until(moment)
        client.close()
        assert child.wait(timeout=PATIENCE_S) == 0
    (last,) = scene.lines("finished")
    assert (last["result"]["outcome"], last["result"]["reason"]["code"]) == ("interrupted", "daemon_gone")
    scene.assert_as_found()


def test_apply_that_has_begun_is_carried_to_its_end_without_its_asker(scene: Scene) -> None:
    set_faults(str(scene.root), hold={"by": "nvpmodel", "write": 3})
    with scene.pair() as (child, client):
        client.line()
        client.say({"command": "apply", "target": GOOD, "why": "boot", "who": "the daemon"})
        scene.wait_until_held(child)
        client.close()
        scene.release()
        assert child.wait(timeout=PATIENCE_S) == 0
    set_faults(str(scene.root))
    answer = scene.ask(VERIFY)
    assert (answer["result"]["mode"], answer["result"]["mismatches"]) == (GOOD, [])


def test_cancel_by_the_daemon_that_stops_ends_the_job_interrupted(scene: Scene) -> None:
    with scene.pair(moment="search", act="wait") as (child, client):
        client.line()
        client.say(TUNE)
        client.until("search")
        client.say({"command": "cancel", "reason": "daemon_gone"})
        assert client.rest()[-1]["result"]["outcome"] == "interrupted"
        assert child.wait(timeout=PATIENCE_S) == 0
    scene.assert_as_found()


# --- signals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS)
def test_sigterm_in_a_job_ends_it_interrupted_and_the_board_as_found(scene: Scene, moment: str) -> None:
    with scene.listening(moment=moment, act=signal.SIGTERM) as child, scene.client() as client:
        client.line()
        client.say(TUNE)
        last = client.rest()[-1]
        assert child.wait(timeout=PATIENCE_S) == 0
    assert last["event"] == "finished"
    assert (last["result"]["outcome"], last["result"]["reason"]["code"]) == ("interrupted", "daemon_gone")
    scene.assert_as_found()


def test_sigterm_while_idle_or_waiting_for_a_command_ends_it_at_once(scene: Scene) -> None:
    with scene.listening() as child, scene.client() as client:
        client.line()
        child.send_signal(signal.SIGTERM)
        assert client.rest() == []
        assert child.wait(timeout=PATIENCE_S) == 0


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_in_a_job_a_new_worker_puts_everything_back(scene: Scene, moment: str) -> None:
    with scene.pair(moment=moment, act=signal.SIGKILL) as (child, client):
        client.line()
        client.say(TUNE)
        client.rest()
        assert child.wait(timeout=PATIENCE_S) == -signal.SIGKILL
    answer = scene.ask({"command": "restore", "who": "the daemon"})
    assert answer["ok"] is True
    assert answer["result"]["job"] == JOB
    (line,) = scene.lines("restored")
    assert (line["who"], line["why"], line["to"]) == ("the daemon", "restore", "as found")
    scene.assert_as_found()


@pytest.mark.parametrize("write", [2, 13, 24])
def test_killed_in_nvpmodels_writes_while_applying_a_new_worker_puts_everything_back(scene: Scene, write: int) -> None:
    set_faults(str(scene.root), hold={"by": "nvpmodel", "write": write})
    with scene.pair() as (child, client):
        client.line()
        client.say({"command": "apply", "target": GOOD, "why": "user", "who": "x"})
        scene.wait_until_held(child)
        child.kill()
        assert client.rest() == []
    set_faults(str(scene.root))
    assert scene.ask({"command": "restore"})["result"]["found"] == "this_boot"
    scene.assert_as_found()


@pytest.mark.parametrize("step", ["note_apply", "probe_method", "write_applied", "keep_change", "delete_snapshot"])
def test_killed_before_any_step_of_applying_a_new_worker_puts_everything_back(scene: Scene, step: str) -> None:
    with scene.pair(kill_before=step) as (child, client):
        client.line()
        client.say({"command": "apply", "target": GOOD, "why": "user", "who": "x"})
        assert client.rest() == []
        assert child.wait(timeout=PATIENCE_S) == -signal.SIGKILL
    assert scene.ask({"command": "restore"})["result"]["found"] == "this_boot"
    scene.assert_as_found()


def test_command_after_a_kill_finishes_what_was_left_first(scene: Scene) -> None:
    with scene.pair(moment="finals", act=signal.SIGKILL) as (child, client):
        client.line()
        client.say(TUNE)
        client.rest()
        assert child.wait(timeout=PATIENCE_S) == -signal.SIGKILL
    answer = scene.ask({"command": "apply", "target": GOOD, "why": "user", "who": "x"})
    assert f"job {JOB} was interrupted" in answer["result"]["warnings"][0]
    assert scene.ask({"command": "apply", "target": "reference", "why": "user", "who": "x"})["ok"] is True
    scene.assert_as_found()


def test_restore_works_with_a_configuration_that_is_wrong(scene: Scene, tmp_path: Path) -> None:
    with scene.pair(moment="search", act=signal.SIGKILL) as (child, client):
        client.line()
        client.say(TUNE)
        client.rest()
        assert child.wait(timeout=PATIENCE_S) == -signal.SIGKILL
    config = tmp_path / "config.toml"
    config.write_text("[job]\nbudget = 'many'\n")
    here, there = socket.socketpair()
    with there, scene._started(there, ["--fd", str(there.fileno()), "--config", str(config)], {}):
        there.close()
        client = Client(here)
        assert client.ask({"command": "restore"})["result"]["found"] == "this_boot"
        client.close()
    scene.assert_as_found()


# --- its own life -------------------------------------------------------------------------------------------


def test_idle_worker_ends_by_itself(scene: Scene) -> None:
    with scene.listening(idle_s=0.1) as child:
        assert child.wait(timeout=PATIENCE_S) == 0


def test_worker_stays_after_an_apply_until_the_board_has_stood_the_mode(scene: Scene) -> None:
    with scene.listening(idle_s=0.1, survived_s=1.0) as child:
        with scene.client() as client:
            assert client.ask({"command": "apply", "target": GOOD, "why": "boot", "who": "x"})["ok"] is True
        assert read_pending(scene.folder) is not None
        assert child.wait(timeout=PATIENCE_S) == 0
    assert read_pending(scene.folder) is None


@pytest.mark.parametrize(("number", "is_clean"), [(signal.SIGTERM, True), (signal.SIGKILL, False)])
def test_clean_stop_clears_what_is_pending_and_a_kill_does_not(scene: Scene, number: int, *, is_clean: bool) -> None:
    with scene.listening() as child:
        with scene.client() as client:
            assert client.ask({"command": "apply", "target": GOOD, "why": "boot", "who": "x"})["ok"] is True
        assert read_pending(scene.folder) is not None
        child.send_signal(number)
        child.wait(timeout=PATIENCE_S)
    assert (read_pending(scene.folder) is None) == is_clean


def test_watchdog_is_fed_from_the_start(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"@jouled-notify-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(address.replace("@", "\0", 1))
        channel.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        with scene.pair() as (child, client):
            assert {channel.recv(100), channel.recv(100)} == {b"WATCHDOG=1", b"READY=1"}
            assert client.ask(VERIFY)["ok"] is True
            assert child.wait(timeout=PATIENCE_S) == 0


def test_phase_that_takes_too_long_ends_the_job_as_soon_as_it_goes_on(scene: Scene) -> None:
    with scene.pair(moment="reference", act="wait", limits_s={"apply": 0.0}) as (child, client):
        result = client.ask(TUNE)["result"]
        assert child.wait(timeout=PATIENCE_S) == 0
    assert (result["outcome"], result["reason"]["code"]) == ("interrupted", "time")
    scene.assert_as_found()


def test_worker_that_cannot_hear_any_more_ends(scene: Scene) -> None:
    with scene.listening(deaf=True) as child, scene.client() as client:
        assert client.rest() == []
        assert child.wait(timeout=PATIENCE_S) == 0


def test_peer_that_does_not_read_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jouled.worker.peer._SEND_S", 0.05)
    here, there = socket.socketpair()
    with there:
        peer = Peer(here)
        sent = 0
        while not peer.cancellation.asked:
            peer.send({"event": "progress", "filler": "x" * 10_000})
            sent += 1
            assert sent < 1000, "it blocks no more"
        with pytest.raises(Cancelled, match="does not listen"):
            peer.cancellation.check()
        peer.send({"event": "finished"})
        peer.close()


def test_worker_without_a_socket_says_who_starts_it(scene: Scene) -> None:
    command = [sys.executable, "-m", "jouled.cli", "worker", "--virtual", "agx-orin-64gb"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (told.returncode, "started by systemd" in told.stderr) == (2, True)
    told = subprocess.run([*command, "--fd", "0"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (told.returncode, "wanted a socket" in told.stderr) == (2, True)
