"""docs/openapi.yaml and the server agree, and no request whatever brings the server down or changes what it may not.

JOULED_REQUESTS and JOULED_MALFORMED set how many random ones are sent (10,000 and 10,000 by hand).
"""

from __future__ import annotations

import gc
import os
import random
import re
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.face import JOB, STATUS, FakeFace, Reply, Serving, make_config, serving
from tests.wire import (
    DOCUMENT,
    answer_schema,
    body_schema,
    exchange,
    faults,
    malformed,
    operations,
    random_request,
    random_value,
    reply_of,
    resolve,
    statuses,
)

from jouled.control.app import ROUTES, Route
from jouled.control.peers import Peers
from jouled.control.problems import KINDS, TYPE_PREFIX
from jouled.errors import ApplyError
from jouled.job.result import EXIT_CODES, JobResult
from jouled.state import Conflict, Peer, State, Unavailable
from jouled.worker.credentials import HasOptions

REQUESTS = int(os.environ.get("JOULED_REQUESTS", "500"))
MALFORMED = int(os.environ.get("JOULED_MALFORMED", "1000"))
MOST_GROWTH_BYTES = 5 << 20
SCHEMAS = DOCUMENT["components"]["schemas"]
EXAMPLE = {"/v1/apply": {"target": "winner"}, "/v1/forget": {"held": True}}


def _check(operation: Mapping[str, Any], reply: Reply) -> None:
    """The document knows the answer and its shape."""
    content_type = reply.headers["content-type"].partition(";")[0]
    assert list(faults(answer_schema(operation, reply.status, content_type), reply.json)) == []


# --- routes and answers --------------------------------------------------------------------------------------


def test_the_document_has_the_servers_routes_and_no_others() -> None:
    assert set(operations()) == {(route.method, route.path) for route in ROUTES}


def test_each_operation_is_called_as_its_handler() -> None:
    for route in ROUTES:
        assert operations()[route.method, route.path]["operationId"] == route.handler


def test_the_document_has_the_servers_problems_and_no_others() -> None:
    assert set(SCHEMAS["Problem"]["properties"]["type"]["enum"]) == {TYPE_PREFIX + kind for kind in KINDS}


def test_the_document_has_the_states_and_outcomes_of_the_code() -> None:
    assert SCHEMAS["State"]["enum"] == [state.value for state in State]
    assert set(SCHEMAS["Outcome"]["enum"]) == set(EXIT_CODES)


def test_no_reference_of_the_document_leads_nowhere_and_no_schema_is_left_over() -> None:
    used: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, Mapping):
            if "$ref" in node:
                assert resolve(node) is not None
                used.add(str(node["$ref"]))
            for item in node.values():
                walk(item)
        elif isinstance(node, list):
            for item in node:
                walk(item)

    walk(DOCUMENT)
    assert {name.rpartition("/")[2] for name in used if "/schemas/" in name} == set(SCHEMAS)
    assert {name.rpartition("/")[2] for name in used if "/responses/" in name} == set(
        DOCUMENT["components"]["responses"]
    )


class _Reader(Peers):
    def of(self, sock: HasOptions) -> Peer:
        return replace(super().of(sock), may_change=False)


def _provoke(folder: Path, route: Route, status: int) -> Reply:
    """A request that gets this answer."""
    path = route.path.replace("{id}", "f" * 12 if status == 404 else JOB)
    face, peers, headers, raw, body = FakeFace(), Peers(""), "", None, EXAMPLE.get(route.path)
    if status == 400:
        headers = "Expect: nothing\r\n"
    elif status == 403:
        peers = _Reader("")
    elif status == 409:
        face.failing = Conflict("job x runs", job="x")
    elif status == 413:
        raw = b" " * 20_000
    elif status == 422 and route.body is None:
        path += "?limit=0"
    elif status == 422:
        body = {"no such key": 1}
    elif status == 500:
        face.failing = ApplyError("knobs differ") if route.is_change else ZeroDivisionError()
    elif status == 503:
        face.failing = Unavailable("no worker answers")
    most = 0 if status == 429 else 32
    with serving(folder, face, peers=peers, most_streams=most) as server:
        return server.ask(route.method, path, body, headers=headers, raw=raw)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.handler)
def test_the_server_gives_each_answer_of_the_document(tmp_path: Path, route: Route) -> None:
    operation = operations()[route.method, route.path]
    good = [status for status in map(int, operation["responses"]) if status < 300]
    assert good == [route.status]
    for status in map(int, operation["responses"]):
        if route.handler != "events" or status != 200:  # tests/test_control.py reads streams
            reply = _provoke(tmp_path, route, status)
            assert reply.status == status, reply.body
            _check(operation, reply)


def _plain(schema: Any) -> Any:
    """A schema without what says nothing of values, and with `type: [x, null]` for msgspec's anyOf."""
    schema = dict(schema)
    if "anyOf" in schema:
        one, null = schema.pop("anyOf")
        assert null == {"type": "null"}
        schema |= {**one, "type": [one["type"], "null"]}
    kept = {key: schema[key] for key in schema if key not in ("title", "description", "default", "required")}
    kept["required"] = sorted(schema.get("required", ()))
    if "properties" in kept:
        kept["properties"] = {name: _plain(item) for name, item in kept["properties"].items()}
    return kept


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.body is not None], ids=lambda route: route.handler
)
def test_the_document_has_the_servers_requests(route: Route) -> None:
    assert route.body is not None
    operation = operations()[route.method, route.path]
    (shape,) = msgspec.json.schema(route.body)["$defs"].values()
    assert _plain(body_schema(operation)) == _plain(shape)
    assert operation["requestBody"].get("required", False) == bool(shape["required"] or route.handler == "forget")


def test_only_requests_with_a_body_have_one_in_the_document() -> None:
    for route in ROUTES:
        assert (route.body is None) == (body_schema(operations()[route.method, route.path]) is None)


@pytest.mark.parametrize(
    "status",
    [
        STATUS,
        replace(STATUS, board=None, in_force=None, winner=None, last_job=None, readings=None),
        replace(STATUS, winner=replace(STATUS.winner, rail=None, saving_interval=None, reference=None, applied=None)),  # type: ignore[type-var]
    ],
    ids=["full", "empty", "without numbers"],
)
def test_every_status_is_as_the_document_has_it(status: Any) -> None:
    plain = msgspec.json.decode(msgspec.json.encode(status.as_json()))
    assert list(faults(SCHEMAS["Status"], plain)) == []


@pytest.mark.parametrize("outcome", sorted(EXIT_CODES))
def test_every_result_is_as_the_document_has_it(outcome: str) -> None:
    plain = msgspec.json.decode(msgspec.json.encode(JobResult(JOB, outcome=outcome).as_json()))
    assert list(faults(SCHEMAS["Result"], plain)) == []
    assert set(SCHEMAS["Result"]["properties"]) == set(plain)


def test_the_judge_of_schemas_knows_right_from_wrong() -> None:
    rng = random.Random(1)
    schema = SCHEMAS["RetuneRequest"]
    for _ in range(200):
        assert list(faults(schema, random_value(schema, rng))) == []
    wrongs: tuple[Any, ...] = (
        {"budget": 1},
        {"budget": True},
        {"x": 1},
        {"clocks": "locked\n"},
        [],
        {"latency_bound_s": "1"},
    )
    for wrong in wrongs:
        assert list(faults(schema, wrong))


_EXAMPLE = re.compile(r"^j (?:--\S+ )?http://jouled(/v1/\S+)(?: -d '(.*?)')?", re.MULTILINE)


def test_the_examples_of_the_handbook_work(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
    examples = _EXAMPLE.findall(text.replace("83bfdca6783b", JOB))
    assert len(examples) >= 14
    with serving(tmp_path) as server:
        for path, body in examples:
            is_change = f"{path} -d" in text.replace("83bfdca6783b", JOB)
            reply = server.ask("POST" if is_change else "GET", path, raw=body.encode())
            assert reply.status in (200, 202), (path, body, reply.body)
    named = {
        kind for kind in re.findall(r"`([a-z-]+)`", text.partition("| status |")[2]) if "-" in kind or kind in KINDS
    }
    assert named & set(KINDS) == set(KINDS)


# --- whatever is sent ---------------------------------------------------------------------------------------


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _ask_at_random(server: Serving, rng: random.Random, count: int) -> None:
    """`count` random requests; each is judged by the document."""
    for _ in range(count):
        server.face.calls.clear()
        request = random_request(rng)
        with server.connect() as client:
            answer = exchange(client, request.encode())
        found = statuses(answer)
        assert len(found) <= 1, (request, answer)
        status = found[0] if found else 0
        assert status < 500, (request, answer)
        assert bool(server.face.calls) <= (status in (200, 202)), (request, answer)
        operation = _operation(request.method, request.path)
        if operation is not None and status:
            _check(operation, reply_of(answer))
            _judge(operation, request.body, is_json=request.is_json, status=status)


def _operation(method: str, path: str) -> Mapping[str, Any] | None:
    parts = path.partition("?")[0].split("/")
    if len(parts) > 3 and parts[2] == "jobs":
        parts[3] = "{id}"
    return operations().get((method, "/".join(parts)))


def _judge(operation: Mapping[str, Any], body: Any, *, is_json: bool, status: int) -> None:
    """What is wrong by the document's own schema is never taken for right."""
    schema = body_schema(operation)
    if schema is not None and (not is_json or list(faults(schema, body))):
        assert 400 <= status < 500


def test_random_requests_are_answered_as_the_document_says(tmp_path: Path) -> None:
    seed = int(os.environ.get("JOULED_SEED", "1"))
    with serving(tmp_path, config=make_config(max_latency_bound_s=0.05)) as server:
        _ask_at_random(server, random.Random(seed), 100)
        before = _resident_bytes()
        _ask_at_random(server, random.Random(seed + 1), REQUESTS)
        assert _resident_bytes() - before <= MOST_GROWTH_BYTES
        assert server.ask("GET", "/v1/status").status == 200


def _send_malformed(server: Serving, rng: random.Random, count: int) -> None:
    """Many at a time, since those that are cut short are answered by the server's patience alone."""
    for _ in range(0, count, 50):
        clients: list[socket.socket] = [server.connect() for _ in range(50)]
        sent = [malformed(rng) for _ in clients]
        for client, data in zip(clients, sent, strict=True):
            client.settimeout(10)
            try:
                client.sendall(data)
            except ConnectionError:
                continue
        for client, data in zip(clients, sent, strict=True):
            with client:
                found = statuses(exchange(client, b""))
            assert all(status < 500 for status in found), (data, found)


def test_what_is_no_http_gets_no_5xx_and_changes_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, patience_s=0.3) as server:
        _send_malformed(server, random.Random(1), 100)
        before = _resident_bytes()
        _send_malformed(server, random.Random(2), MALFORMED)
        assert _resident_bytes() - before <= MOST_GROWTH_BYTES
        assert server.face.calls == []
        assert server.ask("GET", "/v1/status").status == 200


def test_slow_and_silent_clients_cost_next_to_nothing(tmp_path: Path) -> None:
    begun = (b"", b"GET ", b"POST /v1/apply HTTP/1.1\r\nHost: x\r\nContent-Length: 16000\r\n\r\n" + b"x" * 9000)
    with serving(tmp_path) as server:
        server.ask("GET", "/v1/status")
        before = _resident_bytes()
        clients = []
        for number in range(200):
            client = server.connect()
            client.sendall(begun[number % len(begun)])
            clients.append(client)
            assert server.ask("GET", "/v1/status").status == 200
        assert _resident_bytes() - before <= MOST_GROWTH_BYTES
        assert server.face.calls == []
        for client in clients:
            client.close()


def test_no_field_of_a_request_reaches_the_service_but_as_the_configuration_has_it(tmp_path: Path) -> None:
    """Paths, commands, units: nothing of the kind can be asked for."""
    rng = random.Random(3)
    with serving(tmp_path) as server:
        _ask_at_random(server, rng, 1)
        for path, key in (("/v1/retune", "workload"), ("/v1/apply", "target"), ("/v1/forget", "mode")):
            for text in ("/etc/passwd", "../x", "a b", "x;y", "$(x)", "detector\n", "\n", "x" * 65, "jouled.service"):
                assert server.ask("POST", path, {key: text}).status == 422
        assert server.face.calls == []
