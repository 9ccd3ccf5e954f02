"""The metrics' port on loopback: what it serves, and that it opens as soon as it can."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

import pytest

from jouled.control.metrics_port import MetricsPort

TEXT = b"# TYPE x gauge\nx 1.0\n"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _get(port: int, path: str = "/metrics") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    data = await reader.read()
    writer.close()
    await writer.wait_closed()
    return data


async def _serving(listen: str, said: list[str], work: Callable[[MetricsPort], Awaitable[None]]) -> None:
    port = MetricsPort(lambda: TEXT, listen, said.append, retry_s=0.01)
    await port.start()
    try:
        await work(port)
    finally:
        await port.stop()


def test_the_metrics_are_served_where_the_configuration_says() -> None:
    number, said, answers = _free_port(), list[str](), list[bytes]()

    async def ask(port: MetricsPort) -> None:
        assert port.is_open
        answers.extend([await _get(number), await _get(number, "/v1/status"), await _get(number, "/")])

    asyncio.run(_serving(f"127.0.0.1:{number}", said, ask))
    metrics, other, front = answers
    assert b"\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in metrics
    assert metrics.endswith(TEXT)
    assert b" 404 " in other.splitlines()[0]
    assert b'<a href="/metrics">' in front
    for answer in answers:
        assert [line for line in answer.splitlines() if line.startswith(b"Server: ")] == [b"Server: jouled"]
    assert said == []


@pytest.mark.parametrize("listen", ["127.0.0.1:{port}", "no-such-host.invalid:1", "[::ffff:ffff]:1"])
def test_a_port_that_cannot_be_had_is_said_once_and_stops_nothing(
    listen: str, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []

    async def wait(port: MetricsPort) -> None:
        await asyncio.sleep(0.05)  # it is tried again meanwhile
        assert not port.is_open

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = listen.format(port=taken.getsockname()[1])
        asyncio.run(_serving(where, said, wait))
    assert len(said) == 1
    assert f"no metrics: metrics.listen {where} cannot be listened on: " in said[0]
    assert [record.levelno for record in caplog.records if where in record.getMessage()] == [logging.WARNING]


def test_a_port_that_becomes_free_is_served_and_the_trouble_is_over() -> None:
    said: list[str] = []

    async def free(port: MetricsPort) -> None:
        assert not port.is_open
        taken.close()
        while not port.is_open:
            await asyncio.sleep(0.005)
        assert (await _get(number)).endswith(TEXT)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        asyncio.run(asyncio.wait_for(_serving(f"127.0.0.1:{number}", said, free), 20))
    assert len(said) == 2
    assert said[1] == ""
