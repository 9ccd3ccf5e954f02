"""A service that only remembers what it was asked, and a real server on a real socket in front of it."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from jouled.config import Config, WorkloadEntry
from jouled.config.tables import ControlTable, TargetTable
from jouled.control.app import Control
from jouled.control.events import Streams
from jouled.control.peers import Peers
from jouled.control.server import Server, bound_socket
from jouled.job.result import JobResult
from jouled.job.result import Side as JobSide
from jouled.state import (
    BoardInfo,
    Conflict,
    Counters,
    InForce,
    LastJob,
    Next,
    Peer,
    Readings,
    Side,
    Source,
    State,
    Status,
    Winner,
)
from jouletune.space import Candidate, PowerMode, Variant

MODE = PowerMode(12, 1_497_600_000, 918_000_000, 2_133_000_000)
JOB = "0123456789ab"
NOW_S = 1_800_000_000.0

WINNER = Winner(
    mode=MODE,
    policy="capped",
    workload="detector",
    job=JOB,
    decided_wall_s=NOW_S - 7_200,
    latency_bound_s=0.033,
    latency_percentile=95.0,
    inference_name="frame",
    rail="VDD_GPU_SOC+VDD_CPU_CV+VIN_SYS_5V0",
    saving_ratio=0.139,
    saving_interval=(0.121, 0.157),
    reference=Side(energy_j=1.02, latency_s=0.0241, latency_upper_s=0.0246, power_w=30.6),
    applied=Side(energy_j=0.878, latency_s=0.0287, latency_upper_s=0.0293, power_w=26.3),
)
STATUS = Status(
    state=State.IDLE,
    since_wall_s=NOW_S - 7_140,
    wall_s=NOW_S,
    board=BoardInfo(
        name="agx-orin-64gb",
        model="NVIDIA Jetson AGX Orin Developer Kit",
        module="p3701-0005",
        carrier="p3737-0000",
        soc="tegra234",
        l4t="36.4.3",
        base_mode="MAXN",
    ),
    in_force=InForce(
        source=Source.WINNER,
        mode=MODE,
        policy="capped",
        since_wall_s=NOW_S - 7_140,
        verified=True,
        last_verify_wall_s=NOW_S - 4,
        last_full_verify_wall_s=NOW_S - 720,
        unknown=3,
    ),
    winner=WINNER,
    last_job=LastJob(JOB, "tuned", None, "8.9 % less energy", NOW_S - 7_200, 0.139),
    next=Next("the worker reads every knob back", NOW_S + 2_880),
    counters=Counters(
        reapplies=2,
        rollbacks=1,
        jobs={"tuned": 3, "no_gain": 1},
        trials=61,
        trials_invalid={"throttled": 2, "sensor_gap": 1},
        disturbed_s=2_412.5,
        last_tune_wall_s=NOW_S - 7_200,
    ),
    readings=Readings(
        wall_s=NOW_S - 4,
        rail_power_w={"VDD_GPU_SOC": 12.5, "VDD_CPU_CV": 4.25, "VIN_SYS_5V0": 3.5},
        clock_hz={"cpu": 1_497_600_000, "gpu": 918_000_000},
        clock_cap_hz={"cpu": 1_497_600_000, "gpu": 918_000_000, "emc": 2_133_000_000},
        temperature_c={"cpu-thermal": 51.5, "tj-thermal": 52.25},
        throttle_events={"soctherm_oc1": 0, "soctherm_oc3": 4},
        sensor_errors={"caps": 0, "clocks": 0, "rails": 0, "cpu-thermal": 0, "cv0-thermal": 7, "tj-thermal": 0},
        energy_j={"VDD_GPU_SOC": 3_240_000.5, "VDD_CPU_CV": 1_101_600.25, "VIN_SYS_5V0": 907_200.0},
    ),
    versions={"jouled": "0.1.0"},
    journal_fields=True,
    started_wall_s=NOW_S - 260_000,
)


CHANGE = {
    "mode": "12-1497.6-918-2133",
    "policy": "capped",
    "from": "12-2201.6-1300.5-3199",
    "to_source": "winner",
    "method": "nvpmodel",
    "warnings": [],
}
VERIFIED = {
    "full": True,
    "busy": False,
    "holder": "",
    "mode": "12-1497.6-918-2133",
    "policy": "capped",
    "what": "the winner",
    "mismatches": [],
    "unknown": [],
    "warnings": [],
    "to_do": "",
}
MODES = {
    "board": "agx-orin-64gb",
    "base_mode": "MAXN",
    "grid_size": 1,
    "modes": [
        {
            "name": "12-1497.6-918-2133",
            "mode": asdict(MODE),
            "variant": asdict(Variant()),
            "state": ["in force"],
            "measured": {"energy_j": 0.878},
        }
    ],
}
ENTRIES = (
    {
        "kind": "change",
        "wall_s": NOW_S - 60,
        "event": "applied",
        "who": "uid 0 (root)",
        "from": "a",
        "to": "b",
        "why": "user",
    },
    {"kind": "request", "wall_s": NOW_S - 61, "verb": "apply", "who": "uid 0 (root)", "target": "winner"},
    {
        "kind": "job",
        "wall_s": NOW_S - 7_900,
        "job": JOB,
        "who": "uid 1000 (pepe)",
        "request": {"latency_bound_ratio": 1.2},
        "outcome": "tuned",
        "reason": {"code": "converged", "text": "takes 13.9 % less"},
        "saving_ratio": 0.139,
    },
)


def make_result(outcome: str | None = "tuned", **more: Any) -> dict[str, Any]:
    """A job's result as `tune --json` prints it."""
    side = JobSide(Candidate(MODE, Variant()), "capped", 1.02, 0.01, (1.0, 1.04), 0.024, 0.025, 900, 30.6, 30.0, 4)
    result = JobResult(JOB, reason_code="converged", reason_text="takes 13.9 % less")
    result.reference, result.winner = side, replace(side, energy_j=0.878, latency_upper_s=math.inf)
    result.saving_ratio, result.saving_interval = 0.139, (0.121, 0.157)
    return {**result.as_json(), "outcome": outcome, **more}


@dataclass
class FakeFace:
    """Answers as told; `calls` are the changes that it was asked for. `failing`: what everything raises."""

    current: Status = STATUS
    running: str = ""
    failing: Exception | None = None
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    queues: list[asyncio.Queue[Mapping[str, Any] | None]] = field(default_factory=list)
    jobs: dict[str, Mapping[str, Any]] = field(
        default_factory=lambda: {JOB: {**ENTRIES[2], "is_running": False, "result": make_result()}}
    )
    entries: Sequence[Mapping[str, Any]] = ENTRIES
    told: Sequence[Mapping[str, Any]] = ()
    verified: Mapping[str, Any] = field(default_factory=lambda: VERIFIED)

    def status(self) -> Status:
        self._check()
        return self.current

    def decision(self) -> Mapping[str, Any] | None:
        self._check()
        return make_result()

    def modes(self) -> Mapping[str, Any]:
        self._check()
        return MODES

    def history(self, limit: int) -> Sequence[Mapping[str, Any]]:
        self._check()
        return self.entries[:limit]

    def job(self, job: str) -> Mapping[str, Any] | None:
        self._check()
        return self.jobs.get(job)

    def trials(self, job: str) -> Sequence[Mapping[str, Any]] | None:
        self._check()
        return [{"index": 3}] if job in self.jobs else None

    def job_events(self, job: str) -> Sequence[Mapping[str, Any]] | None:
        self._check()
        return self.told if job in self.jobs else None

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        self._check()
        queue: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        self.queues.append(queue)
        try:
            yield _drain(queue)
        finally:
            self.queues.remove(queue)

    def publish(self, event: Mapping[str, Any] | None) -> None:
        for queue in self.queues:
            queue.put_nowait(event)

    async def retune(self, request: Mapping[str, Any], peer: Peer) -> str:
        self._note("retune", dict(request), peer)
        if self.running:
            raise Conflict(f"job {self.running} runs", job=self.running, hint=f"jouled cancel {self.running}")
        return JOB

    async def cancel(self, job: str, peer: Peer) -> None:
        self._note("cancel", job, peer)

    async def apply(self, target: str, peer: Peer) -> Mapping[str, Any]:
        self._note("apply", target, peer)
        return CHANGE

    async def rollback(self, peer: Peer) -> Mapping[str, Any]:
        self._note("rollback", peer)
        return {**CHANGE, "to_source": "reference"}

    async def verify(self, peer: Peer) -> Mapping[str, Any]:
        self._check()
        return self.verified

    async def pause(self, for_s: float | None, peer: Peer) -> Mapping[str, Any]:
        self._note("pause", for_s, peer)
        return {"paused": for_s != 0, "until_wall_s": None, "state": "paused", "to_do": ""}

    async def forget(self, mode: str | None, held: bool, peer: Peer) -> Mapping[str, Any]:
        self._note("forget", mode, held, peer)
        return {"mode": mode, "held": held, "forgotten": True}

    def _check(self) -> None:
        if self.failing is not None:
            raise self.failing

    def _note(self, *call: Any) -> None:
        self._check()
        self.calls.append(call)


async def _drain(queue: asyncio.Queue[Mapping[str, Any] | None]) -> AsyncIterator[Mapping[str, Any]]:
    while (event := await queue.get()) is not None:
        yield event


def make_config(*, change_group: str = "", **target: Any) -> Config:
    """A configuration with a bound by ratio and one workload; `target` replaces keys of its table."""
    table = TargetTable(**({"latency_bound_ratio": 1.2} | target))
    workloads = {"detector": WorkloadEntry()}
    return replace(Config(), target=table, workloads=workloads, control=ControlTable(change_group=change_group))


@dataclass
class Reply:
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Serving:
    """A server in a thread of its own."""

    path: Path
    face: FakeFace
    loop: asyncio.AbstractEventLoop

    def connect(self, timeout_s: float = 10.0) -> socket.socket:
        return connect_to(self.path, timeout_s)

    def send(self, data: bytes, *, timeout_s: float = 10.0) -> bytes:
        """Raw bytes in, all that comes back until the server closes."""
        with self.connect(timeout_s) as client:
            client.sendall(data)
            return read_all(client)

    def ask(self, method: str, path: str, body: Any = None, *, headers: str = "", raw: bytes | None = None) -> Reply:
        """One request on a connection of its own."""
        data = raw if raw is not None else (b"" if body is None else json.dumps(body).encode())
        head = f"{method} {path} HTTP/1.1\r\nHost: jouled\r\nConnection: close\r\n{headers}"
        if data:
            head += f"Content-Length: {len(data)}\r\n"
        with self.connect() as client:
            client.sendall(head.encode() + b"\r\n" + data)
            return parse(read_all(client))

    def call(self, function: Any, *arguments: Any) -> None:
        """Run something in the server's loop."""
        done = threading.Event()

        def run() -> None:
            function(*arguments)
            done.set()

        self.loop.call_soon_threadsafe(run)
        assert done.wait(10)


def connect_to(path: Path, timeout_s: float) -> socket.socket:
    """A connection; it waits for a place in the queue, which one with a time limit would not."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(path))
    client.settimeout(timeout_s)
    return client


def read_all(client: socket.socket) -> bytes:
    """What comes until the other end closes or resets."""
    data = b""
    try:
        while chunk := client.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def parse(data: bytes) -> Reply:
    """One answer with its head."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Reply(int(first.split()[1]), headers, body)


@contextmanager
def serving(
    folder: Path,
    face: FakeFace | None = None,
    config: Config | None = None,
    *,
    peers: Peers | None = None,
    heartbeat_s: float = 10.0,
    patience_s: float = 10.0,
    most_streams: int = 32,
) -> Iterator[Serving]:
    """A control server on a socket in `folder`, ended and joined at the end."""
    face = face or FakeFace()
    ready: list[Serving] = []
    is_up, stop = threading.Event(), asyncio.Event()

    async def run() -> None:
        control = Control(face, config or make_config(), peers)
        control.streams = Streams(face, most=most_streams, heartbeat_s=heartbeat_s)
        server = Server(control.app(), patience_s=patience_s)
        try:
            await server.start(bound_socket(folder / "control.sock"))
            ready.append(Serving(folder / "control.sock", face, asyncio.get_running_loop()))
            is_up.set()
            await stop.wait()
        finally:
            await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="server")
    thread.start()
    try:
        assert is_up.wait(10)
        yield ready[0]
    finally:
        if ready:
            ready[0].loop.call_soon_threadsafe(stop.set)
        thread.join(10)
