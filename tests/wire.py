"""What can be sent to the control socket, made from docs/openapi.yaml: right requests, wrong ones, no HTTP at all."""

from __future__ import annotations

import json
import random
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from tests.face import JOB, Reply, parse, read_all

DOCUMENT: Mapping[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "docs" / "openapi.yaml").read_text())
TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


# --- the document -------------------------------------------------------------------------------------------


def resolve(node: Any) -> Any:
    """What a $ref stands for."""
    while isinstance(node, Mapping) and "$ref" in node:
        found: Any = DOCUMENT
        for part in str(node["$ref"]).removeprefix("#/").split("/"):
            found = found[part]
        node = found
    return node


def operations() -> dict[tuple[str, str], Mapping[str, Any]]:
    """(METHOD, path) → operation."""
    found = {}
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                found[method.upper(), path] = operation
    return found


def body_schema(operation: Mapping[str, Any]) -> Any:
    """The schema of a request's body; None: it takes none."""
    body = operation.get("requestBody")
    return None if body is None else resolve(body["content"]["application/json"]["schema"])


def answer_schema(operation: Mapping[str, Any], status: int, content_type: str) -> Any:
    """The schema of an answer. Raises KeyError where the document knows no such answer."""
    return resolve(resolve(operation["responses"][str(status)])["content"][content_type]["schema"])


# --- JSON Schema, as far as the document uses it --------------------------------------------------------------


def faults(schema: Any, value: Any, where: str = "$") -> Iterator[str]:
    """Each thing about `value` that is not as the schema has it."""
    schema = resolve(schema)
    if "anyOf" in schema:
        tried = [list(faults(one, value, where)) for one in schema["anyOf"]]
        if all(tried):
            yield from tried[0]
        return
    if "const" in schema and value != schema["const"]:
        yield f"{where}: wanted {schema['const']!r}, got {value!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: wanted one of {schema['enum']}, got {value!r}"
    if "type" in schema and not _is_type(schema["type"], value):
        yield f"{where}: wanted {schema['type']}, got {value!r}"
        return
    yield from _scalar_faults(schema, value, where)
    if isinstance(value, dict):
        yield from _object_faults(schema, value, where)
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{where}: {len(value)} items"
        for index, item in enumerate(value):
            yield from faults(schema.get("items", {}), item, f"{where}[{index}]")


def _is_type(wanted: str | list[str], value: Any) -> bool:
    names = [wanted] if isinstance(wanted, str) else wanted
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, TYPES[name]) for name in names)


def _scalar_faults(schema: Any, value: Any, where: str) -> Iterator[str]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{where}: {value!r} is out of range"
    if isinstance(value, str):
        if len(value) > schema.get("maxLength", len(value)):
            yield f"{where}: too long"
        if "pattern" in schema and not re.search(schema["pattern"].replace("$", r"\Z"), value):
            yield f"{where}: {value!r} does not match"


def _object_faults(schema: Any, value: dict[str, Any], where: str) -> Iterator[str]:
    yield from (f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value)
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in known:
            yield from faults(known[name], item, f"{where}.{name}")
        elif others is False:
            yield f"{where}: {name} is not known"
        elif isinstance(others, Mapping):
            yield from faults(others, item, f"{where}.{name}")


# --- random requests ----------------------------------------------------------------------------------------

_JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3.5, 1e308, -1e308, 10**40, "", "x", "1", "\n", "\x00", "é", "winner", "reference"),
    *("../../etc/passwd", "/bin/sh -c true", "$(reboot)", "jouled.service", "detector\n", "%s%n", "12-1497.6-918-2133"),
    *([], [1], {}, {"a": {"b": []}}, "x" * 3000),
)
_PATHS = (
    "",
    "/",
    "/v1",
    "/v1/",
    "/v1/jobs/",
    "/v1/../status",
    "//v1/status",
    "/v1/status?x=1",
    "/v1/%00",
    "/metrics",
    "*",
)
_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT")


@dataclass(frozen=True)
class Request:
    """One request. `body` is what its bytes say, where they say anything; `is_json`: they say something."""

    method: str
    path: str
    data: bytes
    body: Any = None
    is_json: bool = True

    def encode(self) -> bytes:
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: jouled\r\nConnection: close\r\n"
        if self.data or self.method == "POST":
            head += f"Content-Length: {len(self.data)}\r\n"
        return head.encode("utf-8", "surrogatepass") + b"\r\n" + self.data


def random_request(rng: random.Random) -> Request:
    """A request that the document would call right as often as wrong."""
    if rng.random() < 0.06:
        return Request(rng.choice(_METHODS), rng.choice(_PATHS), b"")
    method, template = rng.choice(sorted(operations()))
    if (method, template) == ("GET", "/v1/events"):
        template = "/v1/health"  # a stream does not end by itself
    schema = body_schema(operations()[method, template])
    path = template.replace("{id}", rng.choice((JOB, JOB, "ffffffffffff", "x" * 40, "%2e%2e", "%00", "a%0d%0ab")))
    if template == "/v1/history" and rng.random() < 0.7:
        path += f"?limit={rng.choice((1, 5, 1000, 0, 1001, -3, 'x', '', '1e3', '%31'))}"
    if schema is None:
        return Request(method, path, b"" if rng.random() < 0.9 else b'{"a": 1}', {})
    if rng.random() < 0.1:
        data = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 60)))
        return Request(method, path, data, is_json=False)
    body = random_value(schema, rng) if rng.random() < 0.95 else rng.choice(_JUNK)
    if isinstance(body, dict) and rng.random() < 0.4:
        body = _spoiled(body, schema, rng)
    return Request(method, path, json.dumps(body).encode(), body)


def _spoiled(body: dict[str, Any], schema: Any, rng: random.Random) -> dict[str, Any]:
    """One key changed, added or taken away."""
    names = [*schema["properties"], "engine", "argv", "config", "__class__", ""]
    name = rng.choice(names)
    if name in body and rng.random() < 0.3:
        return {key: value for key, value in body.items() if key != name}
    return {**body, name: rng.choice(_JUNK)}


def random_value(schema: Any, rng: random.Random) -> Any:
    """Something that fits the schema."""
    schema = resolve(schema)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kind = rng.choice(kinds)
    if kind == "object":
        chosen = [name for name in schema["properties"] if name in schema.get("required", ()) or rng.random() < 0.35]
        return {name: random_value(schema["properties"][name], rng) for name in chosen}
    if kind == "null":
        return None
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "integer":
        return rng.choice((schema["minimum"], schema["maximum"], rng.randint(schema["minimum"], schema["maximum"])))
    if kind == "number":
        edges = (schema["minimum"], schema["maximum"])
        return rng.choice((*edges, rng.uniform(*edges)))
    return _random_text(schema["pattern"], rng)


def _random_text(pattern: str, rng: random.Random) -> str:
    """Text that fits a pattern of the document."""
    known = ["winner", "reference", "capped", "locked", "both", "detector", "other", "12-1497.6-918-2133", "x-x-x-x"]
    known += ["1-2-3", "x", "4-729.6-306-665.6", "0-0-0-0", "9" * 40, "A_b-1"]
    return rng.choice([text for text in known if re.search(pattern, text)])


# --- no HTTP ------------------------------------------------------------------------------------------------

_SEEDS = (
    b"GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b'POST /v1/apply HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 20\r\n\r\n{"target": "nothing"}',
    b'POST /v1/retune HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"x":\r\n2\r\n1}\r\n0\r\n\r\n',
    b"POST /v1/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{]",
    b"POST /v1/verify HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 2\r\n\r\n{}\n",
    b"GET /v1/health HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x05abcde",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
)
_BITS = (
    b"\r\n",
    b"\r",
    b"\n",
    b"\x00",
    b":",
    b" ",
    b"\xff\xfe",
    b"HTTP/1.1",
    b"chunked",
    b"-1",
    b"%",
    b"GET ",
    b"{",
    b"9" * 30,
)


def malformed(rng: random.Random) -> bytes:
    """Bytes that are hardly a request."""
    data = bytearray(rng.choice(_SEEDS))
    for _ in range(rng.randrange(1, 8)):
        at = rng.randrange(len(data) + 1)
        action = rng.randrange(5)
        if action == 0:
            data[at:at] = rng.choice(_BITS)
        elif action == 1 and data:
            del data[at : at + rng.randrange(1, 12)]
        elif action == 2 and at < len(data):
            data[at] = rng.randrange(256)
        elif action == 3:
            data[at:at] = data[: rng.randrange(1, 40)]
        else:
            data[at:at] = bytes([rng.randrange(256)]) * rng.choice((1, 70, 5000))
    return bytes(data)


def exchange(client: socket.socket, data: bytes) -> bytes:
    """Send all of it, whatever the other end does; what came back."""
    with suppress(ConnectionError):
        client.sendall(data)
    return read_all(client)


def statuses(answer: bytes) -> list[int]:
    """The status of each answer in what came back."""
    return [int(found) for found in re.findall(rb"(?:^|\n|\})HTTP/1\.[01] (\d{3}) ", answer)]


def reply_of(answer: bytes) -> Reply:
    """The one answer that came back."""
    return parse(answer)
