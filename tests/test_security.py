"""docs/security.md: every claim in it has its test, and those that had none have it here."""

from __future__ import annotations

import ast
import asyncio
import re
import socket
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from jouled.board.applied import applied_path, read_applied
from jouled.board.pending import pending_path, quarantine_path, read_pending, read_quarantine
from jouled.board.snapshot import origin_path, read_origin, read_snapshot, snapshot_path
from jouled.board.statefile import write_state
from jouled.board.winner import read_winner, set_damaged_aside, winner_path
from jouled.config import Config
from jouled.control.metrics_port import MetricsPort
from jouled.errors import StateError
from jouled.service.requests import pause_path, read_pause
from jouletune.report.markup import element, told

ROOT = Path(__file__).parents[1]
PAPER = ROOT / "docs/security.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_test_that_the_paper_names_is_there() -> None:
    named = NAMED.findall(PAPER.read_text(encoding="utf-8"))
    assert len(named) > 50
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path}::{name}"


def test_every_claim_of_the_paper_names_a_test() -> None:
    claims = [line for line in PAPER.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    tables = [line for line in claims if line.count(" | ") == 1 and not line.startswith(("| who |", "| claim |"))]
    bare = [line for line in tables if not NAMED.search(line) and not line.endswith("| the same |")]
    assert [line.split(" | ")[0] for line in bare] == [
        *("| root", "| a member of `control.change_group` (and of `jouled`)", "| a member of `jouled`"),
        "| user `jouled`: the daemon, which parses what everybody sends",
        "| user `jouled-runner`: what opens CUDA and runs engines",
        *("| another local user", "| the network"),
    ]


# --- metrics ------------------------------------------------------------------------------------------------


def test_by_default_the_metrics_are_for_this_machine() -> None:
    assert Config().metrics.listen.rpartition(":")[0] == "127.0.0.1"


async def _ask(port: int, request: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{request} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    first = await reader.readline()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    return first.split()[1]


def test_on_the_metrics_port_nothing_but_the_metrics_can_be_asked_for(unused_port: int) -> None:
    said: list[str] = []

    async def ask() -> list[bytes]:
        port = MetricsPort(lambda: b"x 1.0\n", f"127.0.0.1:{unused_port}", said.append)
        await port.start()
        try:
            paths = ("/v1/retune", "/v1/apply", "/v1/status", "/metrics/../v1/pause")
            asked = [f"{method} {path}" for method in ("GET", "POST") for path in paths]
            return [
                await _ask(unused_port, request) for request in (*asked, "POST /metrics", "PUT /", "DELETE /metrics")
            ]
        finally:
            await port.stop()

    assert set(asyncio.run(ask())) <= {b"404", b"405"}
    assert said == []


@pytest.fixture
def unused_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_metrics_name_no_user_no_path_and_no_process() -> None:
    text = (ROOT / "tests/metrics.prom").read_text(encoding="utf-8")
    labels = dict(re.findall(r'(\w+)="([^"]*)"', text))
    assert not labels.keys() & {"user", "uid", "pid", "path", "file", "engine", "host", "peer", "who"}
    assert not [value for value in re.findall(r'\w+="([^"]*)"', text) if value.startswith("/")]


# --- state --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "schema", "read"),
    [
        (applied_path, "applied", read_applied),
        (winner_path, "winner", read_winner),
        (pending_path, "pending", read_pending),
        (quarantine_path, "quarantine", read_quarantine),
        (snapshot_path, "snapshot", read_snapshot),
        (origin_path, "origin", read_origin),
        (pause_path, "pause", read_pause),
    ],
)
@pytest.mark.parametrize("version", [0, 2])
def test_state_of_another_version_is_said_and_obeyed_by_nobody(
    tmp_path: Path, path: Callable[[Path], Path], schema: str, read: Callable[[Path], object], version: int
) -> None:
    path(tmp_path).parent.mkdir(exist_ok=True)
    write_state(path(tmp_path), f"jouled.{schema}/{version}", {})
    with pytest.raises(
        StateError, match=f"unknown schema: wanted 'jouled.{schema}/1', got 'jouled.{schema}/{version}'"
    ):
        read(tmp_path)
    assert path(tmp_path).exists()


def test_a_winner_of_another_version_is_kept_aside_and_the_reference_stays_in_force(tmp_path: Path) -> None:
    for path, schema in ((applied_path, "applied"), (winner_path, "winner")):
        write_state(path(tmp_path), f"jouled.{schema}/2", {})
    said = set_damaged_aside(tmp_path)
    assert len(said) == 2
    assert all("unknown schema" in text and "set aside as" in text for text in said)
    assert read_applied(tmp_path) is None
    assert read_winner(tmp_path) is None
    assert len(list(tmp_path.glob("*.aside.1"))) == 2


# --- reports ------------------------------------------------------------------------------------------------


class _Seen(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onload='x", "]]><b>", "&lt;b&gt;<b>"]
)
def test_what_a_workload_is_called_cannot_become_markup_in_a_report(name: str) -> None:
    page = element("p", name, told({"workload": name}, "workload", name), title=name)
    seen = _Seen(page)
    assert seen.tags == ["p", "data"]
    assert set(seen.attributes) == {"title", "data-json", "value"}
