"""How far a request over the control socket reaches: the real service behind its real socket, and a worker of ours.

Every field of every change is filled with what looks like a path, a command, an option, a unit. None of it may arrive
anywhere: not at the worker, not in a file's name, not in a kept line. An audit hook sees whatever this process opens.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from jouled.board.clock import SystemClock
from jouled.board.grid import board_space
from jouled.board.host import Host
from jouled.board.process import Processes
from jouled.board.sysfs import Sysfs
from jouled.config import Config, load
from jouled.control.app import ROUTES
from jouled.control.schema import RetuneRequest
from jouled.control.server import bound_socket, control_server
from jouled.job.site import Site
from jouled.service.face import Service
from jouled.service.notify import Notifier
from jouled.service.workers import SocketDoor
from jouled.virtual.tree import make_tree

SEED = 7
PATIENCE_S = 60.0
TOKEN = "zqxj"  # in each hostile text that is free to hold it: it must never be met again
CONFIG = """
[target]
latency_bound_ratio = 1.2
[workloads.detector]
kind = "command"
argv = ["/opt/app/bench", "--loop"]
arrival = "back_to_back"
[job]
stop_units = ["camera.service"]
"""
HOSTILE_TEXTS = (
    f"../../{TOKEN}",
    "/etc/passwd",
    "/etc/jouled/config.toml",
    f"{TOKEN}/../detector",
    f";touch /tmp/{TOKEN}",
    f"$(touch /tmp/{TOKEN})",
    f"`{TOKEN}`",
    f"detector; {TOKEN}",
    f"--virtual={TOKEN}",
    "--virtual",
    "-f",
    "detector.service",
    "camera.service",
    f"{TOKEN}.service",
    f"{TOKEN}",
    f"detector\x00{TOKEN}",
    f"detector\n{TOKEN}",
    f"\u202e{TOKEN}\u0000",
    "d\u0435tector",  # a Cyrillic letter
    "\ud800",
    f"{TOKEN}" * 900,
    "%2e%2e%2f" + TOKEN,
    "${HOME}/" + TOKEN,
    "12-1497.6-918-2133;" + TOKEN,
    "file:///etc/passwd",
)
HOSTILE: tuple[Any, ...] = (
    *HOSTILE_TEXTS,
    [f"/bin/{TOKEN}", "-c", "true"],
    {"argv": ["/bin/sh", TOKEN]},
    {"detector": {"engine": f"/opt/{TOKEN}"}},
    [[[[f"../{TOKEN}"]]]],
    {TOKEN: None},
)
HOSTILE_KEYS = ("argv", "engine", "config", "state_dir", "stop_units", "job", "who", "why", f"../{TOKEN}", "--virtual")
KEYS: Mapping[str, tuple[str, ...]] = {
    route.path: route.body.__struct_fields__ for route in ROUTES if route.method == "POST" and route.body is not None
}
RIGHT: Mapping[str, tuple[dict[str, Any], ...]] = {
    "/v1/retune": ({"workload": "detector", "budget": 5}, {"latency_bound_ratio": 1.5, "clocks": "both"}, {}),
    "/v1/apply": ({"target": "reference"}, {"target": "12-1497.6-918-2133"}),
    "/v1/forget": ({"mode": "12-1497.6-918-2133"}, {"held": True}),
    "/v1/pause": ({"for_s": 0},),
    "/v1/rollback": ({},),
    "/v1/verify": ({},),
}
# Every text and every key that a worker may ever be sent.
SAID = {"tune", "apply", "rollback", "verify", "forget", "restore", "cancel", "user", "winner", "reference"}
SAID |= {"detector", "capped", "locked", "both", "jouled"}
SAID_KEYS = {"command", "who", "target", "why", "mode", "held", "job", "request", *RetuneRequest.__struct_fields__}
MADE = re.compile(r"[0-9a-f]{12}|[0-9x]+-[0-9x.]+-[0-9x.]+-[0-9x.]+|uid \d+ \([\w-]+\)")


# --- what this process does ---------------------------------------------------------------------------------


@dataclass
class Watch:
    """What was touched while `is_on`: files opened to be written or made, changed otherwise; programs started."""

    is_on: bool = False
    written: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on or not event.startswith(("open", "os.", "subprocess.", "shutil.", "pty.", "socket.connect")):
            return
        texts = [os.fsdecode(one) for one in arguments if isinstance(one, str | bytes | os.PathLike)]
        self.texts += texts
        if event == "open":
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
                self.written += texts[:1]
        elif event in _CHANGES:
            self.written += texts
        elif event.startswith(_STARTS):
            self.others.append(f"{event}: {arguments!r:.200}")


_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_CHANGES |= {"os.chown", "os.utime", "os.setxattr"}
_STARTS = ("subprocess.", "os.exec", "os.posix_spawn", "os.system", "os.fork", "os.spawn", "os.kill", "pty.", "shutil.")
WATCH = Watch()  # a hook stays for good, so there is one
sys.addaudithook(WATCH)


@contextmanager
def watching() -> Iterator[Watch]:
    """What this process does within the block."""
    WATCH.written, WATCH.others, WATCH.texts, WATCH.is_on = [], [], [], True
    try:
        yield WATCH
    finally:
        WATCH.is_on = False


# --- the daemon and its worker ------------------------------------------------------------------------------


@dataclass
class Scene:
    """A daemon on a virtual board's files in `folder`. `heard`: each line that its worker was sent."""

    folder: Path
    heard: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        make_tree(self.folder / "board")
        (self.folder / "config.toml").write_text(CONFIG)
        self.config = self.check({})
        self.own = self.folder / "daemon"

    def check(self, request: Mapping[str, Any]) -> Config:
        return load(self.folder / "config.toml", {}, request=request)

    async def work(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A worker that does nothing and says that it has."""
        writer.write(b'{"hello": {"protocol": 1, "version": "0", "pid": 1}}\n')
        if line := await reader.readline():
            told = json.loads(line)
            self.heard.append(told)
            result = {"job": told.get("job"), "outcome": "no_gain", "reason": {"code": None, "text": ""}}
            answer = {"event": "finished", "ok": True, "error": None, "job": told.get("job"), "result": result}
            writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()

    def service(self) -> Service:
        sysfs = Sysfs(self.folder / "board")
        host = Host(sysfs, Processes(path=""), SystemClock(), self.folder, privileged=False)
        site = Site(host, self.config, "detector", lambda board: board_space(board, self.config.grid), _no_runner)
        return Service(site, SocketDoor(self.folder / "worker.sock"), self.check, Notifier({}), tick_s=0.02)

    async def ask(self, path: str, data: bytes) -> tuple[int, bytes]:
        """One POST on a connection of its own: the status, the body."""
        reader, writer = await asyncio.open_unix_connection(self.folder / "control.sock")
        head = f"POST {path} HTTP/1.1\r\nHost: jouled\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
        await writer.wait_closed()
        head, _, body = answer.decode("utf-8", "replace").partition("\r\n\r\n")
        return int(head.split()[1]), body.encode()

    def live(self, work: Callable[[Service], Awaitable[None]]) -> None:
        """Run `work` beside the daemon, which is then stopped as by SIGTERM."""
        asyncio.run(self._live(work))

    async def _live(self, work: Callable[[Service], Awaitable[None]]) -> None:
        worker = await asyncio.start_unix_server(self.work, self.folder / "worker.sock")
        service = self.service()
        control = control_server(service, self.config)
        await control.start(bound_socket(self.folder / "control.sock"))
        life = asyncio.get_running_loop().create_task(service.run())
        try:
            await until(lambda: service.status().in_force is not None or life.done())
            await work(service)
        finally:
            service.stop()
            await asyncio.wait_for(life, PATIENCE_S)
            await control.stop()
            worker.close()
            await worker.wait_closed()


def _no_runner(_: object) -> Any:
    raise AssertionError


async def until(condition: Callable[[], object]) -> None:
    """Wait for it; a minute is a failure."""

    async def look() -> None:
        while not condition():
            await asyncio.sleep(0.002)

    await asyncio.wait_for(look(), PATIENCE_S)


@pytest.fixture(name="scene")
def _scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # what is imported late would be written beside its source
    return Scene(tmp_path)


# --- what is sent -------------------------------------------------------------------------------------------


def hostile_requests(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """(path, body): each field of each change with each text, beside fields that are right; keys; paths; bodies."""
    for path, keys in KEYS.items():
        for key in keys:
            for value in HOSTILE:
                yield _job_path(path), _body({**_some_right(path, rng), key: value})
        for key in HOSTILE_KEYS:
            yield _job_path(path), _body({**_some_right(path, rng), key: rng.choice(HOSTILE)})
        yield _job_path(path), _body(rng.choice(HOSTILE_TEXTS))
        yield _job_path(path), f"/bin/{TOKEN} --virtual".encode()
    for text in HOSTILE_TEXTS:
        yield f"/v1/jobs/{quote(text[:2000], safe='', errors='replace')}/cancel", b"{}"
        yield f"/v1/{quote(text[:2000], safe='', errors='replace')}", b"{}"


def _job_path(path: str) -> str:
    return path.replace("{id}", "0123456789ab")


def _body(content: Any) -> bytes:
    return json.dumps(content).encode()


def _some_right(path: str, rng: random.Random) -> dict[str, Any]:
    return dict(rng.choice(RIGHT.get(path, ({},))))


def texts_of(value: Any) -> Iterator[str]:
    """Each text within what JSON has told, keys left out; `keys_of` gives those."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts_of(item)


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from keys_of(item)
    elif isinstance(value, dict):
        yield from value
        yield from (key for item in value.values() for key in keys_of(item))


def files_of(folder: Path) -> set[str]:
    return {os.path.join(where, name) for where, folders, names in os.walk(folder) for name in (*folders, *names)}


def assert_only_ours(scene: Scene, watch: Watch) -> None:
    """The daemon writes below its own folder and nowhere else, starts nothing, and met no hostile text in a path."""
    own = f"{scene.own}/"
    outside = [path for path in watch.written if not os.path.abspath(path).startswith(own) and path != str(scene.own)]
    assert (outside, watch.others) == ([], [])
    bad = [text for text in watch.texts if TOKEN in text or text in HOSTILE_TEXTS]
    assert bad == []


# --- the claims ---------------------------------------------------------------------------------------------


def test_nothing_that_looks_like_a_path_or_a_command_gets_past_the_control_socket(scene: Scene) -> None:
    requests = list(hostile_requests(random.Random(SEED)))
    assert len(requests) >= 300
    before = files_of(scene.folder / "board") | files_of(Path("/run/jouled")) | files_of(Path("/etc/jouled"))

    async def work(service: Service) -> None:
        with watching() as watch:
            for path, data in requests:
                status, body = await scene.ask(path, data)
                assert 400 <= status < 500, (path, data[:200], status, body[:300])
                assert isinstance(json.loads(body)["detail"], str) or status in (404, 405), (path, body)
                assert scene.heard == [], (path, data[:200])
        assert_only_ours(scene, watch)

    scene.live(work)
    assert not (scene.own / "requests.jsonl").exists() or TOKEN not in (scene.own / "requests.jsonl").read_text()
    after = files_of(scene.folder / "board") | files_of(Path("/run/jouled")) | files_of(Path("/etc/jouled"))
    assert after == before


def test_what_a_worker_is_sent_names_nothing_but_what_the_configuration_names(scene: Scene) -> None:
    """Right requests among hostile ones: they arrive, so the test above has not looked at a deaf worker."""
    rng = random.Random(SEED + 1)
    hostile = list(hostile_requests(rng))
    right = [(path, body) for path, bodies in RIGHT.items() for body in bodies] * 4
    rng.shuffle(right)

    async def work(service: Service) -> None:
        with watching() as watch:
            for path, body in right:
                for bad_path, bad in rng.sample(hostile, 3):
                    assert 400 <= (await scene.ask(bad_path, bad))[0] < 500
                status, answer = await scene.ask(path, _body(body))
                assert status in (200, 202), (path, body, status, answer)
                await until(lambda: service.running is None)
        assert_only_ours(scene, watch)
        assert watch.written != []

    scene.live(work)
    verbs = {"/v1/retune": "tune", "/v1/apply": "apply", "/v1/forget": "forget", "/v1/rollback": "rollback"}
    verbs["/v1/verify"] = "verify"
    assert [heard["command"] for heard in scene.heard] == [verbs[path] for path, _ in right if path in verbs]
    said = {text for heard in scene.heard for text in texts_of(heard)}
    assert "detector" in said
    assert [text for text in sorted(said - SAID) if MADE.fullmatch(text) is None] == []
    assert {key for heard in scene.heard for key in keys_of(heard)} <= SAID_KEYS
    kept = (scene.own / "requests.jsonl").read_text()
    assert "retune" in kept
    assert TOKEN not in kept


def test_the_cancel_of_a_job_that_runs_is_reached_by_its_own_id_alone(scene: Scene) -> None:
    reasons: list[str] = []

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"hello": {"protocol": 1, "version": "0", "pid": 1}}\n')
        if line := await reader.readline():
            told = json.loads(line)
            reasons.append(told["command"])
            reasons.append(json.loads(await reader.readline())["reason"])
            result = {"job": told["job"], "outcome": "cancelled", "reason": {"code": "user", "text": ""}}
            answer = {"event": "finished", "ok": True, "error": None, "job": told["job"], "result": result}
            writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()

    scene.work = hold  # type: ignore[method-assign]

    async def work(service: Service) -> None:
        status, answer = await scene.ask("/v1/retune", b"{}")
        assert status == 202
        job = json.loads(answer)["job"]
        with watching() as watch:
            spoiled = [f"{job}%00", f"{job}%0a", f"..%2f{job}", f"{job}%2f..%2f{job}", job.upper() + "x", job[:-1], "*"]
            for name in [*spoiled, *(quote(text[:2000], safe="", errors="replace") for text in HOSTILE_TEXTS)]:
                assert 400 <= (await scene.ask(f"/v1/jobs/{name}/cancel", b"{}"))[0] < 500, name
                assert (reasons, service.running is not None) == (["tune"], True)
        assert_only_ours(scene, watch)
        assert (await scene.ask(f"/v1/jobs/{job}/cancel", b"{}"))[0] == 202
        await until(lambda: service.running is None)

    scene.live(work)
    assert reasons == ["tune", "user"]


def test_the_watch_sees_what_it_is_there_for(tmp_path: Path) -> None:
    with watching() as watch:
        (tmp_path / "made").write_text("x")
        os.close(os.open(tmp_path / "made", os.O_WRONLY))
        (tmp_path / "made").rename(tmp_path / TOKEN)
        os.close(os.open(tmp_path / TOKEN, os.O_RDONLY))
    names = [Path(path).name for path in watch.written]
    assert names == ["made", "made", "made", TOKEN]
    scene = Scene(tmp_path / "other")
    with pytest.raises(AssertionError):
        assert_only_ours(scene, watch)
