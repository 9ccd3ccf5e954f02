"""How the daemon talks to a worker: who speaks first, what is tried again, what hangs and what dies."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from jouled.errors import ConfigError
from jouled.service import notify, workers
from jouled.service.workers import ChildDoor, SocketDoor, WorkerBusy, WorkerDied, ask, converse
from jouled.state import Conflict, Failed, Refused, Unavailable

HELLO = b'{"hello": {"protocol": 1, "version": "0.1.0", "pid": 4711}}\n'
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _finished(result: dict[str, Any] | None = None, error: dict[str, Any] | None = None) -> bytes:
    return _line({"event": "finished", "ok": error is None, "result": result, "error": error})


def _with_worker(path: Path, serve: Serve, work: Callable[[SocketDoor], Coroutine[Any, Any, Any]]) -> Any:
    """Run `work` beside a listening worker."""

    async def both() -> Any:
        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_unix_server(one, path)
        try:
            return await work(SocketDoor(path))
        finally:
            server.close()
            await server.wait_closed()

    return asyncio.run(both())


def _answers(*lines: bytes, heard: list[dict[str, Any]] | None = None) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HELLO)
        command = await reader.readline()
        if heard is not None and command:
            heard.append(json.loads(command))
        for line in lines:
            writer.write(line)
        await writer.drain()

    return serve


def test_a_command_is_said_after_the_hello_and_its_result_comes_back(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    result = _with_worker(
        tmp_path / "w",
        _answers(_finished({"mismatches": []}), heard=heard),
        lambda door: ask(door, {"command": "verify"}, patience_s=0),
    )
    assert (result, heard) == ({"mismatches": []}, [{"command": "verify"}])


def test_nothing_is_written_before_the_hello(tmp_path: Path) -> None:
    early: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            early.append(await asyncio.wait_for(reader.read(1), 0.1))
        except asyncio.TimeoutError:
            writer.write(HELLO)
        await reader.readline()
        writer.write(_finished({}))

    _with_worker(tmp_path / "w", serve, lambda door: ask(door, {"command": "verify"}, patience_s=0))
    assert early == []


def test_busy_names_who_is_served(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_line({"busy": {"pid": 12, "verb": "tune"}}))

    with pytest.raises(WorkerBusy, match=r"pid 12 \(jouled tune\)") as caught:
        _with_worker(tmp_path / "w", serve, lambda door: converse(door, patience_s=0))
    assert (caught.value.pid, caught.value.verb) == (12, "tune")


def test_one_whose_last_peer_is_just_going_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_PAUSES_S", (0.01, 0.01, 0.01))
    tries: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(1)
        if len(tries) < 3:
            writer.write(_line({"busy": {"pid": 12, "verb": "waiting"}}))
        else:
            await _answers(_finished({}))(reader, writer)

    _with_worker(tmp_path / "w", serve, lambda door: ask(door, {"command": "verify"}, patience_s=0))
    assert len(tries) == 3


def test_a_connection_that_ends_before_the_hello_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_PAUSES_S", (0.01, 0.01, 0.01))
    tries: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(1)
        if len(tries) > 2:
            await _answers(_finished({}))(reader, writer)

    _with_worker(tmp_path / "w", serve, lambda door: ask(door, {"command": "verify"}, patience_s=1))
    assert len(tries) == 3


def test_a_worker_that_dies_before_it_accepts_is_started_once_without_patience(tmp_path: Path) -> None:
    tries: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(1)

    with pytest.raises(Unavailable, match="no worker answers"):
        _with_worker(tmp_path / "w", serve, lambda door: converse(door, patience_s=0))
    assert len(tries) == 1


def test_one_that_says_nothing_is_not_there_and_not_asked_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "FIRST_LINE_S", 0.05)
    tries: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(1)
        await reader.read()

    with pytest.raises(Unavailable, match="said nothing"):
        _with_worker(tmp_path / "w", serve, lambda door: converse(door, patience_s=60))
    assert len(tries) == 1


def test_no_socket_is_no_worker(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no worker answers") as caught:
        asyncio.run(converse(SocketDoor(tmp_path / "w"), patience_s=0))
    assert "systemctl status jouled-worker" in caught.value.hint


def test_what_is_no_hello_is_no_worker_of_ours(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_line({"hi": 1}))

    with pytest.raises(Unavailable, match="hello"):
        _with_worker(tmp_path / "w", serve, lambda door: converse(door, patience_s=60))


@pytest.mark.parametrize(
    "said",
    [
        *(b"garbage\n", b"\n", b"[]\n", b"\xff\n", b"{\n", b"x" * 70_000),
        *(b'{"hello": 1}\n', b'{"hello": {"protocol": 1, "pid": "x"}}\n', b'{"busy": {"pid": []}}\n', b'{"busy": 3}\n'),
    ],
)
def test_a_greeting_that_is_garbled_is_no_worker_and_not_the_clients_mistake(tmp_path: Path, said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)

    with pytest.raises(Unavailable, match="does not speak the protocol"):
        _with_worker(tmp_path / "w", serve, lambda door: ask(door, {"command": "verify"}, patience_s=60))


def test_a_worker_of_another_protocol_is_not_spoken_to(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_line({"hello": {"protocol": 2, "version": "9", "pid": 1}}))

    with pytest.raises(Unavailable, match="protocol 1") as caught:
        _with_worker(tmp_path / "w", serve, lambda door: converse(door, patience_s=60))
    assert "restart jouled" in caught.value.hint


@pytest.mark.parametrize(
    "said",
    [
        *(b"garbage\n", b"[]\n", b"{}\n", b'{"event": 5}\n'),
        _line({"event": "phase", "phase": {}}),
        _line({"event": "job_started", "expected_s": "soon"}),
        _line({"event": "finished", "ok": True, "result": [1]}),
        _line({"event": "finished", "ok": True, "result": {"outcome": [], "reason": "x"}}),
        _line({"event": "finished", "ok": True, "result": {"reason": "x"}}),
        _line({"event": "finished", "ok": True, "result": {"mismatches": 1}}),
        _line({"event": "finished", "ok": False, "error": "x"}),
        _line({"event": "finished", "ok": False, "error": {"exit_code": "x"}}),
        _line({"event": "finished", "ok": False, "error": {"kind": 1}}),
    ],
)
def test_an_answer_that_is_garbled_is_a_workers_death(tmp_path: Path, said: bytes) -> None:
    with pytest.raises(WorkerDied, match=r"pid 4711\) does not speak the protocol"):
        _with_worker(tmp_path / "w", _answers(said), lambda door: ask(door, {"command": "verify"}, patience_s=0))


def test_death_before_the_end_is_seen(tmp_path: Path) -> None:
    with pytest.raises(WorkerDied, match="ended before it had finished"):
        _with_worker(
            tmp_path / "w",
            _answers(_line({"event": "phase", "phase": "search"})),
            lambda door: ask(door, {"command": "restore"}, patience_s=0),
        )


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("ConfigError", ConfigError),
        ("NotPermittedError", Refused),
        ("BusyError", Conflict),
        ("StuckError", Failed),
        ("RestoreError", Failed),
    ],
)
def test_the_workers_errors_keep_text_and_hint(tmp_path: Path, kind: str, raised: type[Exception]) -> None:
    error = {"kind": kind, "text": "it did not work", "hint": "look at dmesg", "exit_code": 10}
    with pytest.raises(raised, match="it did not work") as caught:
        _with_worker(
            tmp_path / "w", _answers(_finished(None, error)), lambda door: ask(door, {"command": "x"}, patience_s=0)
        )
    assert getattr(caught.value, "hint", "") == "look at dmesg"
    if isinstance(caught.value, Failed):
        assert (caught.value.kind, caught.value.exit_code) == (kind, 10)


def test_lines_may_be_cut_anywhere_and_may_not_be_endless(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in HELLO:
            writer.write(bytes([byte]))
            await writer.drain()
        await reader.readline()
        writer.write(b"x" * (65 << 10))

    with pytest.raises(WorkerDied, match="longer"):
        _with_worker(tmp_path / "w", serve, lambda door: ask(door, {"command": "x"}, patience_s=0))


# --- a child ------------------------------------------------------------------------------------------------

CHILD = """
import socket, sys, time
peer = socket.socket(fileno=int(sys.argv[1]))
peer.sendall(b'{"hello": {"protocol": 1, "version": "0", "pid": 1}}\\n')
peer.recv(4096)
"""


def _child(tmp_path: Path, more: str, *, silence_s: float = 15.0) -> ChildDoor:
    script = tmp_path / "child.py"
    script.write_text(CHILD + more)
    return ChildDoor(lambda descriptor: [sys.executable, "-I", "-S", str(script), str(descriptor)], silence_s)


def test_a_child_serves_one_command_and_is_reaped(tmp_path: Path) -> None:
    door = _child(tmp_path, 'peer.sendall(b\'{"event": "finished", "ok": true, "result": {"n": 1}}\\n\')')
    assert asyncio.run(ask(door, {"command": "verify"}, patience_s=0)) == {"n": 1}


def test_a_childs_environment_names_no_socket_of_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jouled.service.notify import Notifier

    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.setenv(name, "1")
    Notifier()
    tell = "import os, json; names = [n for n in os.environ if n.startswith(('NOTIFY', 'WATCHDOG'))]\n"
    say = "peer.sendall(json.dumps({'event': 'finished', 'ok': True, 'result': {'names': names}}).encode() + b'\\n')"
    assert asyncio.run(ask(_child(tmp_path, tell + say), {"command": "x"}, patience_s=0)) == {"names": []}


def test_a_child_that_goes_silent_in_a_job_is_killed(tmp_path: Path) -> None:
    door = _child(tmp_path, "time.sleep(600)", silence_s=0.1)

    async def tune() -> None:
        conversation = await converse(door, patience_s=0)
        try:
            await conversation.send({"command": "tune", "job": "0123456789ab"})
            async for _ in conversation.events():
                pytest.fail("it has nothing to say")
        finally:
            await conversation.close()

    with pytest.raises(WorkerDied, match=r"said nothing for 0\.1 s"):
        asyncio.run(tune())


def test_a_program_that_cannot_be_started_is_no_worker(tmp_path: Path) -> None:
    door = ChildDoor(lambda descriptor: [str(tmp_path / "absent"), str(descriptor)])
    with pytest.raises(Unavailable, match="cannot be started"):
        asyncio.run(ask(door, {"command": "x"}, patience_s=0))


# --- systemd ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_is_told_by_datagrams(tmp_path: Path, *, is_abstract: bool) -> None:
    from jouled.service.notify import Notifier

    name = f"\0jouled-test-{tmp_path}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(name)
        heard.settimeout(5)
        environ = {"NOTIFY_SOCKET": name.replace("\0", "@"), "WATCHDOG_USEC": "3000000"}
        notifier = Notifier(environ)
        assert environ == {}
        notifier.ready()
        notifier.status("idle")
        notifier.status("idle")
        notifier.alive()
        notifier.extend(1.5)
        notifier.stopping()
        said = [heard.recv(100).decode() for _ in range(5)]
    assert said == ["READY=1", "STATUS=idle", "WATCHDOG=1", "EXTEND_TIMEOUT_USEC=1500000", "STOPPING=1"]


def test_systemd_python_sends_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "systemd"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "daemon.py").write_text(
        "import os\nsaid = []\ndef notify(text):\n    said.append((text, os.environ['NOTIFY_SOCKET']))\n"
    )
    (package / "journal.py").write_text(
        "import logging\nclass JournalHandler(logging.NullHandler):\n"
        "    def __init__(self, **fields):\n        super().__init__()\n        self.fields = fields\n"
    )
    for name in ("systemd", "systemd.daemon", "systemd.journal"):  # where the real one is installed, it was imported
        monkeypatch.setitem(sys.modules, name, sys)
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify.Notifier({"NOTIFY_SOCKET": "@jouled"}).ready()
    assert sys.modules["systemd.daemon"].said == [("READY=1", "@jouled")]
    assert "NOTIFY_SOCKET" not in os.environ
    handler = notify.journal_handler()
    assert handler is not None
    assert vars(handler)["fields"] == {"SYSLOG_IDENTIFIER": "jouled"}
    for name in ("systemd", "systemd.daemon", "systemd.journal"):
        monkeypatch.delitem(sys.modules, name)


def test_without_systemd_nothing_is_sent_and_a_gone_socket_is_no_matter(tmp_path: Path) -> None:
    from jouled.service.notify import Notifier

    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


@pytest.mark.parametrize(
    ("usec", "pid", "wanted"), [("3000000", "", True), ("0", "", False), ("", "", False), ("3000000", "1", False)]
)
def test_the_watchdog_is_fed_only_where_systemd_waits_for_it(usec: str, pid: str, *, wanted: bool) -> None:
    from jouled.service.notify import Notifier

    assert Notifier({"WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}).has_watchdog is wanted


def test_lines_without_systemd_python_still_say_their_priority() -> None:
    formatter = notify.PriorityFormatter()

    def line(level: int, text: str) -> str:
        return formatter.format(logging.LogRecord("jouled.x", level, "", 1, text, (), None))

    assert line(logging.INFO, "state idle") == "<6>jouled.x: state idle"
    assert line(logging.ERROR, "two\nlines") == "<3>jouled.x: two\n<3>lines"
    assert [line(level, "")[:3] for level in (logging.DEBUG, logging.WARNING, logging.CRITICAL)] == [
        "<7>",
        "<4>",
        "<2>",
    ]


def test_the_journal_is_told_from_a_file_that_stderr_was_sent_to(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        found = os.fstat(file.fileno())
        right = f"{found.st_dev}:{found.st_ino}"
        assert notify.is_journal(file.fileno(), {"JOURNAL_STREAM": right})
        assert not notify.is_journal(file.fileno(), {"JOURNAL_STREAM": f"{right}0"})
        assert not notify.is_journal(file.fileno(), {})
    assert not notify.is_journal(-1, {"JOURNAL_STREAM": right})
