"""The control socket: rights by peer, every answer, event streams, and clients that behave badly."""

from __future__ import annotations

import asyncio
import grp
import json
import logging
import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.face import JOB, FakeFace, Reply, Serving, make_config, read_all, serving

from jouled.cli import main
from jouled.cli.client import Client
from jouled.config import REQUEST_KEYS
from jouled.config.kinds import Unfit
from jouled.config.tables import keys_of, kind_of
from jouled.control.app import ROUTES
from jouled.control.connections import Connection
from jouled.control.events import message
from jouled.control.peers import Peers, is_member, user_name
from jouled.control.problems import CONTENT_TYPE, TYPE_PREFIX
from jouled.control.schema import RetuneRequest
from jouled.control.server import Server, bound_socket, inherited_socket
from jouled.errors import ApplyError, BusyError, ConfigError, StateError, UnreachableError, UsageError
from jouled.state import Failed, Peer, Refused, Unavailable
from jouled.worker.credentials import HasOptions, credentials

GOOD_BODY = {"/v1/apply": {"target": "winner"}, "/v1/forget": {"held": True}}
CHANGES = [route for route in ROUTES if route.is_change]


class Reader(Peers):
    """Everybody is a member of group jouled and of nothing else."""

    def of(self, sock: HasOptions) -> Peer:
        return replace(super().of(sock), may_change=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as running:
        yield running


def _path(path: str) -> str:
    return path.replace("{id}", JOB)


def _kind(reply: Reply) -> str:
    assert reply.headers["content-type"] == CONTENT_TYPE
    assert reply.json["status"] == reply.status
    assert {"title", "detail", "hint", "exit_code"} <= set(reply.json)
    kind: str = reply.json["type"]
    return kind.removeprefix(TYPE_PREFIX)


# --- peers --------------------------------------------------------------------------------------------------


def test_the_kernel_says_who_connected() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert credentials(here) == (os.getpid(), os.geteuid(), os.getegid())


def test_a_user_is_a_member_of_its_primary_group() -> None:
    user = pwd.getpwuid(os.geteuid())
    assert is_member(user.pw_uid, grp.getgrgid(user.pw_gid).gr_name)


def test_a_user_is_a_member_of_a_supplementary_group() -> None:
    listed = [(group.gr_name, name) for group in grp.getgrall() for name in group.gr_mem]
    users = {user.pw_name: user.pw_uid for user in pwd.getpwall()}
    group, name = next(((group, name) for group, name in listed if name in users), ("", ""))
    if group:
        assert is_member(users[name], group)


def test_nobody_is_a_member_of_a_group_that_is_not_there() -> None:
    assert not is_member(os.geteuid(), "no-such-group-here")
    assert not is_member(2_000_000_000, grp.getgrgid(0).gr_name)


def test_a_user_without_a_name_is_called_by_its_number() -> None:
    assert user_name(2_000_000_000) == "uid 2000000000"


class _Socket:
    """A connected socket of any user."""

    def __init__(self, uid: int) -> None:
        self.uid = uid

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes:
        return b"".join(value.to_bytes(4, sys.byteorder) for value in (4711, self.uid, 100))


@pytest.mark.parametrize(("uid", "may_change"), [(0, True), (4001, True), (4002, False)])
def test_root_and_members_of_the_change_group_may_change_things(uid: int, *, may_change: bool) -> None:
    peers = Peers("operators", member=lambda uid, group: (uid, group) == (4001, "operators"))
    assert peers.of(_Socket(uid)).may_change is may_change


def test_without_a_change_group_nobody_but_root_may_change_things() -> None:
    assert not Peers("", member=lambda uid, group: True).of(_Socket(4001)).may_change


def test_the_daemons_own_user_may_change_things() -> None:
    assert Peers("").of(_Socket(os.geteuid())).may_change


def test_a_new_member_is_noticed_within_seconds() -> None:
    members: set[int] = set()
    now_s = [100.0]
    peers = Peers("operators", member=lambda uid, _: uid in members, now_s=lambda: now_s[0])
    assert not peers.of(_Socket(4001)).may_change
    members.add(4001)
    now_s[0] += 4.9
    assert not peers.of(_Socket(4001)).may_change
    now_s[0] += 0.2
    assert peers.of(_Socket(4001)).may_change


# --- rights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", CHANGES, ids=lambda route: route.handler)
def test_a_plain_group_member_changes_nothing(tmp_path: Path, route: Any) -> None:
    with serving(tmp_path, peers=Reader("operators")) as server:
        reply = server.ask(route.method, _path(route.path), GOOD_BODY.get(route.path))
        assert (reply.status, _kind(reply)) == (403, "not-permitted")
        assert reply.json["exit_code"] == 6
        assert f"usermod -aG operators {user_name(os.geteuid())}" in reply.json["hint"]
        assert server.face.calls == []


@pytest.mark.parametrize("route", [route for route in ROUTES if not route.is_change], ids=lambda route: route.handler)
def test_a_plain_group_member_reads_everything_and_verifies(tmp_path: Path, route: Any) -> None:
    with serving(tmp_path, peers=Reader("")) as server:
        if route.handler == "events":
            with server.connect() as client:
                client.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
                assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
        else:
            assert server.ask(route.method, _path(route.path)).status == 200


@pytest.mark.parametrize("route", CHANGES, ids=lambda route: route.handler)
def test_who_may_change_things_reaches_the_service_with_name_and_number(server: Serving, route: Any) -> None:
    reply = server.ask(route.method, _path(route.path), GOOD_BODY.get(route.path))
    assert reply.status == route.status
    (call,) = server.face.calls
    peer = call[-1]
    assert (call[0], peer.uid, peer.pid) == (route.handler, os.geteuid(), os.getpid())


def test_a_change_is_logged_once_with_its_peer_and_a_read_never(
    server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.ask("GET", "/v1/status")
    server.ask("GET", "/v1/nothing")
    assert caplog.messages == []
    server.ask("POST", "/v1/rollback")
    (line,) = caplog.messages
    assert line == f"/v1/rollback by uid {os.geteuid()} ({user_name(os.geteuid())}), pid {os.getpid()}: done"


def test_a_request_that_means_nothing_is_not_logged_a_forbidden_one_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with serving(tmp_path) as server:
        server.ask("POST", "/v1/apply", {"target": "best"})
        assert caplog.messages == []
        server.face.failing = Refused("the board is held")
        server.ask("POST", "/v1/rollback")
    (line,) = caplog.messages
    assert line.endswith("403 the board is held")


def test_changes_that_wait_are_bounded(tmp_path: Path) -> None:
    face, gate = FakeFace(), threading.Semaphore(0)

    async def rollback(peer: Peer) -> dict[str, Any]:
        while not gate.acquire(blocking=False):
            await asyncio.sleep(0.005)
        return {}

    face.rollback = rollback  # type: ignore[method-assign]
    with serving(tmp_path, face) as server:
        waiting = [server.connect() for _ in range(8)]
        for client in waiting:
            client.sendall(b"POST /v1/rollback HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        while (reply := server.ask("POST", "/v1/pause")).status != 409:
            assert reply.status == 200
        assert server.ask("POST", f"/v1/jobs/{JOB}/cancel").status == 202
        for client in waiting:
            client.close()
        gate.release(8)
        while server.ask("POST", "/v1/pause").status != 200:
            assert server.ask("GET", "/v1/status").status == 200


def test_a_refused_change_is_logged_in_one_line_whatever_its_path_holds(
    server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "jouled")
    server.ask("POST", "/v1/jobs/a%0Ab%0D/cancel")
    (line,) = caplog.messages
    assert line.splitlines() == [line]


# --- answers ------------------------------------------------------------------------------------------------


def test_what_is_no_number_is_null(server: Serving) -> None:
    assert server.ask("GET", "/v1/decision").json["decision"]["winner"]["latency_upper_s"] is None


def test_status_is_the_snapshot_with_every_key(server: Serving) -> None:
    assert server.ask("GET", "/v1/status").json == json.loads(json.dumps(server.face.status().as_json()))


def test_health_says_state_and_version(server: Serving) -> None:
    assert server.ask("GET", "/v1/health").json == {"schema": 1, "status": "ok", "state": "idle", "version": "0.1.0"}


def test_history_is_cut_to_what_was_asked_for(server: Serving) -> None:
    server.face.entries = [{"event": "applied", "wall_s": float(i)} for i in range(200)]
    assert len(server.ask("GET", "/v1/history").json["history"]) == 100
    assert len(server.ask("GET", "/v1/history?limit=3").json["history"]) == 3


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "limit=", "limit=-1", "limit=%D9%A1", "last=3"])
def test_a_query_that_means_nothing_is_said_so(server: Serving, query: str) -> None:
    reply = server.ask("GET", f"/v1/history?{query}")
    assert (reply.status, _kind(reply)) == (422, "invalid")


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v2/status", "/v1/status/", "/v1/jobs", "/metrics", "/v1/job%73"]
)
def test_an_unknown_path_is_404(server: Serving, path: str) -> None:
    reply = server.ask("GET", path)
    assert (reply.status, _kind(reply)) == (404, "no-such-path")


@pytest.mark.parametrize("path", ["/v1/jobs/ffffffffffff", "/v1/jobs/..", "/v1/jobs/%2e%2e%2fstatus", "/v1/jobs/a b"])
def test_an_unknown_job_is_404(server: Serving, path: str) -> None:
    for each in (path, f"{path}/trials", f"{path}/events"):
        assert server.ask("GET", each.replace(" ", "%20")).status == 404
    assert server.ask("POST", f"{path.replace(' ', '%20')}/cancel").status == 404
    assert server.face.calls == []


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
def test_a_wrong_method_is_405_with_those_that_are_right(server: Serving, method: str) -> None:
    reply = server.ask(method, "/v1/status")
    assert (reply.status, reply.headers["allow"]) == (405, "GET")


def test_a_body_over_16_kib_is_413_whether_its_length_is_told_or_not(server: Serving) -> None:
    large = b'{"workload": "' + b"a" * 17_000 + b'"}'
    told = server.ask("POST", "/v1/retune", raw=large)
    assert (told.status, _kind(told)) == (413, "too-large")
    with server.connect() as client:
        client.sendall(
            b"POST /v1/retune HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        client.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(large), large))
        assert b" 413 " in read_all(client).splitlines()[0]
    assert server.face.calls == []


@pytest.mark.parametrize(
    "raw", [b"{", b"\xff\xfe", b'{"budget": NaN}', b'{"budget": 3,}', b"{'budget': 3}", b"[" * 16_000, b'{"a":' * 3000]
)
def test_what_is_no_json_is_400(server: Serving, raw: bytes) -> None:
    reply = server.ask("POST", "/v1/retune", raw=raw)
    assert reply.status in (400, 422)
    assert server.face.calls == []


@pytest.mark.parametrize(
    ("path", "body", "key", "got"),
    [
        ("/v1/retune", {"bugdet": 3}, "bugdet", "a key that is not known"),
        ("/v1/retune", {"budget": "3"}, "budget", '"3"'),
        ("/v1/retune", {"budget": 3.5}, "budget", "3.5"),
        ("/v1/retune", {"budget": True}, "budget", "true"),
        ("/v1/retune", {"budget": 1}, "budget", "1"),
        ("/v1/retune", {"budget": 10**40}, "budget", "an integer of more than 30 digits"),
        ("/v1/retune", {"latency_percentile": 99.95}, "latency_percentile", "99.95"),
        ("/v1/retune", {"latency_bound_s": -1}, "latency_bound_s", "-1"),
        ("/v1/retune", {"clocks": "turbo"}, "clocks", '"turbo"'),
        ("/v1/retune", {"workload": "other"}, "workload", '"other"'),
        ("/v1/retune", {"workload": "../../etc/passwd"}, "workload", '"../../etc/passwd"'),
        ("/v1/retune", {"workload": "detector\n"}, "workload", '"detector\\U0000000a"'),
        ("/v1/retune", {"dry_run": 1}, "dry_run", "1"),
        (
            "/v1/retune",
            {"latency_bound_s": 0.03, "latency_bound_ratio": 1.2},
            "latency_bound_ratio",
            "latency_bound_s too",
        ),
        ("/v1/retune", [], "the body", "[]"),
        ("/v1/retune", 7, "the body", "7"),
        ("/v1/apply", {}, "target", "nothing"),
        ("/v1/apply", {"target": "best"}, "target", '"best"'),
        ("/v1/apply", {"target": "1-2-3"}, "target", '"1-2-3"'),
        ("/v1/apply", {"target": "/etc/passwd"}, "target", '"/etc/passwd"'),
        ("/v1/pause", {"for_s": -1}, "for_s", "-1"),
        ("/v1/pause", {"for_s": "2h"}, "for_s", '"2h"'),
        ("/v1/forget", {}, "mode", "neither"),
        ("/v1/forget", {"mode": "1-2-3-4", "held": True}, "mode", "both"),
        ("/v1/verify", {"full": True}, "full", "a key that is not known"),
    ],
)
def test_a_wrong_key_is_422_with_what_was_wanted_and_what_came(
    server: Serving, path: str, body: Any, key: str, got: str
) -> None:
    reply = server.ask("POST", path, body)
    assert (reply.status, _kind(reply)) == (422, "invalid")
    assert (reply.json["key"], reply.json["got"]) == (key, got)
    assert reply.json["detail"] == f"{key}: wanted {reply.json['wanted']}, got {got}"
    assert reply.json["wanted"] != "something else"
    assert server.face.calls == []


def test_a_request_reaches_the_service_with_what_was_given_alone(server: Serving) -> None:
    body = {"workload": "detector", "latency_bound_s": 0.03, "budget": 20, "max_power_w": None, "dry_run": False}
    assert server.ask("POST", "/v1/retune", body).json == {"schema": 1, "job": JOB}
    assert server.face.calls[0][1] == {"workload": "detector", "latency_bound_s": 0.03, "budget": 20}


def test_a_bound_looser_than_the_configurations_is_403(tmp_path: Path) -> None:
    with serving(tmp_path, config=make_config(max_latency_bound_s=0.05)) as server:
        reply = server.ask("POST", "/v1/retune", {"latency_bound_s": 0.0501})
        assert (reply.status, _kind(reply)) == (403, "looser-bound")
        assert server.face.calls == []
        assert server.ask("POST", "/v1/retune", {"latency_bound_s": 0.05}).status == 202


def test_without_a_bound_anywhere_it_is_422(tmp_path: Path) -> None:
    with serving(tmp_path, config=make_config(latency_bound_ratio=None)) as server:
        reply = server.ask("POST", "/v1/retune")
        assert (reply.status, _kind(reply)) == (422, "no-bound")
        assert server.ask("POST", "/v1/retune", {"latency_bound_ratio": 1.2}).status == 202


def test_a_second_job_is_409_with_the_first_ones_id(server: Serving) -> None:
    server.face.running = "ba9876543210"
    reply = server.ask("POST", "/v1/retune")
    assert (reply.status, _kind(reply), reply.json["job"]) == (409, "conflict", "ba9876543210")
    assert reply.json["exit_code"] == 12


@pytest.mark.parametrize(
    ("error", "status", "kind", "exit_code"),
    [
        (ConfigError("x: wanted y, got z", hint="w"), 422, "invalid", 2),
        (UsageError("no"), 422, "invalid", 2),
        (Refused("the board is held"), 403, "not-permitted", 6),
        (BusyError("pid 5 holds the board"), 409, "conflict", 12),
        (Unavailable("no worker answers"), 503, "unavailable", 10),
        (ApplyError("knobs differ"), 500, "board-fault", 10),
        (Failed("no such board", kind="NotSupportedError", exit_code=8), 409, "conflict", 8),
        (StateError("disk full"), 500, "failed", 1),
    ],
)
def test_what_the_service_says_becomes_a_problem(
    server: Serving, error: Any, status: int, kind: str, exit_code: int
) -> None:
    server.face.failing = error
    reply = server.ask("POST", "/v1/apply", {"target": "winner"})
    assert (reply.status, _kind(reply), reply.json["exit_code"]) == (status, kind, exit_code)
    assert (reply.json["detail"], reply.json["hint"]) == (str(error), error.hint)


def test_cancel_of_a_job_that_is_over_is_a_conflict(server: Serving) -> None:
    async def cancel(job: str, peer: Peer) -> None:
        raise UsageError("it has ended")

    server.face.cancel = cancel  # type: ignore[method-assign]
    assert server.ask("POST", f"/v1/jobs/{JOB}/cancel").status == 409


def test_an_error_that_nobody_thought_of_is_a_problem_too_and_logged(
    server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    server.face.failing = ZeroDivisionError("secret")
    reply = server.ask("POST", "/v1/rollback")
    assert (reply.status, _kind(reply)) == (500, "failed")
    assert b"secret" not in reply.body
    assert any(record.exc_info and "secret" in str(record.exc_info[1]) for record in caplog.records)


def test_an_expectation_that_is_not_known_is_a_problem(server: Serving) -> None:
    assert _kind(server.ask("GET", "/v1/status", headers="Expect: the unexpected\r\n")) == "bad-http"


def test_what_is_no_http_is_a_problem(server: Serving) -> None:
    answer = server.send(b"\x16\x03\x01\x02\x00hello\r\n\r\n")
    assert b" 400 " in answer.splitlines()[0]
    assert CONTENT_TYPE.encode() in answer


def test_the_name_of_the_host_does_not_matter(server: Serving) -> None:
    assert server.send(b"GET /v1/health HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert server.send(b"GET /v1/health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200 ")


def test_one_connection_asks_many_times(server: Serving) -> None:
    with server.connect() as client:
        for _ in range(5):
            client.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")


# --- the schema against the configuration -------------------------------------------------------------------


def _limits(name: str) -> dict[str, Any]:
    (shape,) = msgspec.json.schema(RetuneRequest)["$defs"].values()
    found = shape["properties"][name]
    plain: dict[str, Any] = found["anyOf"][0] if "anyOf" in found else found
    return plain


def test_a_request_may_name_what_the_configuration_lets_it_and_dry_run() -> None:
    assert set(RetuneRequest.__struct_fields__) == {*REQUEST_KEYS, "dry_run"}


@pytest.mark.parametrize("name", [name for name in REQUEST_KEYS if name not in ("workload", "clocks")])
def test_a_requests_ranges_are_the_configurations(name: str) -> None:
    table, _, key = REQUEST_KEYS[name].partition(".")
    kind = kind_of(keys_of(table)[key])
    limits = _limits(name)
    assert limits["description"] == kind.wanted
    step = 1 if limits["type"] == "integer" else 1e-9
    for edge, outside in ((limits["minimum"], -step), (limits["maximum"], step)):
        assert kind.take(edge) == edge
        with pytest.raises(Unfit):
            kind.take(edge + outside)


def test_a_requests_clocks_policies_are_the_configurations() -> None:
    kind = kind_of(keys_of("grid")["clocks"])
    assert kind.wanted == _limits("clocks")["description"]


# --- events -------------------------------------------------------------------------------------------------


def _listen(server: Serving) -> socket.socket:
    client = server.connect()
    client.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
    seen = b""
    while b": jouled\n\n" not in seen:
        seen += client.recv(4096)
    assert b"text/event-stream" in seen
    return client


def _until(client: socket.socket, mark: bytes) -> bytes:
    seen = b""
    while mark not in seen:
        chunk = client.recv(4096)
        assert chunk, f"closed before {mark!r}: {seen!r}"
        seen += chunk
    return seen


def test_an_event_goes_out_to_all_who_listen(server: Serving) -> None:
    event = {"v": 1, "seq": 7, "t_s": 3.5, "event": "phase", "job": JOB, "phase": "search"}
    with _listen(server) as one, _listen(server) as other:
        server.call(server.face.publish, event)
        for client in (one, other):
            seen = _until(client, b"}\n\n")
            assert f"id: {JOB}:7\nevent: phase\ndata: ".encode() in seen
            assert json.loads(seen.split(b"data: ")[1].split(b"\n")[0]) == event


def test_a_stream_shows_that_it_is_alive(tmp_path: Path) -> None:
    with serving(tmp_path, heartbeat_s=0.02) as server, _listen(server) as client:
        _until(client, b": alive\n\n")
        server.call(server.face.publish, {"event": "state"})
        _until(client, b"id: 1\nevent: state\n")


def test_a_stream_ends_when_the_service_drops_it(server: Serving) -> None:
    with _listen(server) as client:
        server.call(server.face.publish, None)
        read_all(client)


def test_streams_end_when_the_server_stops(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = _listen(server)
    with client:
        read_all(client)
    assert server.face.queues == []


def test_streams_are_counted_and_a_place_is_free_again(server: Serving) -> None:
    clients = [_listen(server) for _ in range(32)]
    try:
        assert _kind(server.ask("GET", "/v1/events")) == "too-many-streams"
        assert server.ask("GET", "/v1/status").status == 200
    finally:
        for client in clients:
            client.close()
    while server.face.queues:  # a stream notices that its reader has gone when it writes
        server.call(server.face.publish, {"event": "state"})
    _listen(server).close()


def test_a_line_break_in_an_event_cannot_end_it() -> None:
    sent = message({"event": "a\nb", "job": "x\r\ny", "seq": 1, "text": "one\n\ntwo"}, 1)
    assert sent.endswith(b"\n\n")
    assert sent.count(b"\n\n") == 1
    assert sent.splitlines()[:2] == [b"id: x y:1", b"event: a b"]


# --- clients that behave badly ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /v1/sta",
        b"GET /v1/status HTTP/1.1\r\nHost: x\r\n",
        b"POST /v1/retune HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
    ],
    ids=["silent", "line", "head", "body"],
)
def test_a_client_that_does_not_finish_its_request_is_dropped(tmp_path: Path, begun: bytes) -> None:
    with serving(tmp_path, patience_s=0.05) as server, server.connect() as client:
        client.sendall(begun)
        assert read_all(client) == b""
        assert server.face.calls == []


def _push(client: socket.socket, data: bytes) -> None:
    """Send until the other end has had enough."""
    while True:
        client.sendall(data)


def test_a_client_that_trickles_is_dropped(tmp_path: Path) -> None:
    with serving(tmp_path, patience_s=0.1) as server, server.connect() as client, pytest.raises(ConnectionError):
        _push(client, b"X-A: b\r\n")


def test_a_client_that_goes_away_in_mid_request_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path) as server:
        for _ in range(20):
            with server.connect() as client:
                client.sendall(b"POST /v1/retune HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        assert server.ask("GET", "/v1/status").status == 200
    assert caplog.messages == []


def test_an_idle_connection_is_dropped(tmp_path: Path) -> None:
    with serving(tmp_path, patience_s=0.1) as server, server.connect() as client:
        client.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    face = FakeFace(entries=[{"event": "x" * 60_000} for _ in range(1000)])
    with serving(tmp_path, face, patience_s=0.2) as server, server.connect() as client:
        client.sendall(b"GET /v1/history?limit=1000 HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        with pytest.raises(ConnectionError):
            _push(client, b"x")
        assert len(read_all(client)) < 60_000_000


def test_a_client_that_does_not_read_is_not_answered_in_advance(tmp_path: Path) -> None:
    """Beyond what lies in the socket nothing is made for it."""
    asked: list[int] = []

    class Counting(FakeFace):
        def history(self, limit: int) -> Any:
            asked.append(limit)
            return [{"event": "x" * 20_000}]

    with serving(tmp_path, Counting(), patience_s=0.5) as server, server.connect() as client:
        room = client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        client.sendall(b"GET /v1/history HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        with pytest.raises(ConnectionError):
            _push(client, b"x")
    assert len(asked) <= room / 20_000 + 2


def test_what_comes_is_read_in_pieces_no_larger_than_a_body(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    real = Connection.data_received

    def data_received(connection: Connection, data: bytes) -> None:
        lengths.append(len(data))
        real(connection, data)

    monkeypatch.setattr(Connection, "data_received", data_received)
    assert server.ask("POST", "/v1/pause", raw=b"x" * 100_000).status == 413
    assert 0 < max(lengths) <= 16 * 1024


def test_silent_clients_give_way_to_those_who_ask(server: Serving) -> None:
    silent = [server.connect() for _ in range(200)]
    try:
        assert server.ask("GET", "/v1/status").status == 200
        assert read_all(silent[0]) == b""
    finally:
        for client in silent:
            client.close()


def test_a_stream_does_not_give_way_to_those_who_come_later(server: Serving) -> None:
    with _listen(server) as client:
        silent = [server.connect() for _ in range(200)]
        assert server.ask("GET", "/v1/status").status == 200
        server.call(server.face.publish, {"event": "state"})
        _until(client, b"event: state")
        for each in silent:
            each.close()


# --- listening ----------------------------------------------------------------------------------------------


def test_the_socket_is_for_owner_and_group(tmp_path: Path) -> None:
    path = tmp_path / "run" / "control.sock"
    with bound_socket(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_dead_daemons_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    bound_socket(path).close()
    with bound_socket(path), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))


def test_of_daemons_that_start_at_once_on_a_dead_ones_socket_one_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    for _ in range(30):
        bound_socket(path).close()
        together = threading.Barrier(4)
        made: list[socket.socket] = []
        refused: list[BusyError] = []

        def start(together: threading.Barrier, made: list[socket.socket], refused: list[BusyError]) -> None:
            together.wait()
            try:
                made.append(bound_socket(path))
            except BusyError as error:
                refused.append(error)

        threads = [threading.Thread(target=start, args=(together, made, refused)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for listening in made:
            listening.close()
        assert (len(made), len(refused)) == (1, 3)


def test_a_daemons_socket_goes_while_it_still_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies there once it does not answer any more may be the next daemon's."""
    there: list[bool] = []
    path, stop = tmp_path / "control.sock", Server.stop

    async def stopping(server: Server) -> None:
        there.append(path.exists())
        await stop(server)

    def end_it() -> None:
        found = None
        while found is None:
            with suppress(UnreachableError):
                found = Client(path).get("/v1/status")["in_force"]
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Server, "stop", stopping)
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    thread = threading.Thread(target=end_it)
    thread.start()
    options = ["--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path / "state"), "--socket", str(path)]
    assert main(["run", *options, "--metrics-listen", ""]) == 0
    thread.join()
    assert (there, path.exists()) == ([False], False)


def test_a_living_daemons_socket_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with bound_socket(path), pytest.raises(BusyError, match="another daemon answers"):
        bound_socket(path)


@pytest.mark.parametrize("name", ["file", "x" * 120, "file/control.sock"])
def test_where_no_socket_can_be_made_it_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="no socket could be made there"):
        bound_socket(tmp_path / name)
    assert (tmp_path / "file").read_text() == ""


_HANDED_OVER = """
import os, socket, sys
from jouled.control.server import inherited_socket
from jouled.errors import StateError
kind = getattr(socket, sys.argv[2])
made = socket.socket(kind, socket.SOCK_STREAM)
made.bind(sys.argv[1] if kind == socket.AF_UNIX else ("127.0.0.1", 0))
made.listen()
if made.fileno() != 3: os.dup2(made.fileno(), 3)
environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x"}
try:
    found = inherited_socket(environ)
except StateError as error:
    sys.exit(str(error))
assert found.getsockname() == sys.argv[1]
assert not environ and inherited_socket(environ) is None
"""


@pytest.mark.parametrize(("family", "text"), [("AF_UNIX", ""), ("AF_INET", "wanted a listening UNIX stream socket")])
def test_systemds_socket_is_taken_once(tmp_path: Path, family: str, text: str) -> None:
    argv = [sys.executable, "-c", _HANDED_OVER, str(tmp_path / "s"), family]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert text in done.stderr
    assert done.returncode == bool(text), done.stderr


def test_a_socket_for_another_process_is_not_taken() -> None:
    assert inherited_socket({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) is None
    assert inherited_socket({}) is None
