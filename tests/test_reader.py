"""A child that says lines of JSON, as it is heard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from jouled.board.process import Processes, start_ticks
from jouled.board.reader import Reader

PATIENCE_S = 30.0


def test_lines_are_heard_and_what_is_none_is_left(caplog: pytest.LogCaptureFixture) -> None:
    script = """printf '{"a": 1}\\n{"b"'; printf ': 2}\\nSegmentation fault\\n{"c": 3}\\n'; echo "it broke" >&2"""
    child = Processes().spawn(["/bin/sh", "-c", script])
    heard: list[Mapping[str, Any]] = []
    reader = Reader(child, source="a test", hear=heard.append)
    reader.start()
    try:
        assert reader.wait(lambda: len(heard) == 3, PATIENCE_S)
        assert not reader.wait(lambda: False, PATIENCE_S)  # until it has ended
        assert heard == [{"a": 1}, {"b": 2}, {"c": 3}]
        assert not reader.is_alive
        assert reader.last_words() == "its reader has ended: it broke"
        assert "the reader of a test said what is no line of its protocol: b'Segmentation fault'" in caplog.text
    finally:
        reader.close(PATIENCE_S)


@pytest.mark.parametrize("line", ["[]", "5", "null", '"a"', '{"wrong": 1}', "Segmentation fault"])
def test_a_line_that_is_none_of_the_protocol_is_told_and_ends_nothing(line: str) -> None:
    child = Processes().spawn(["/bin/sh", "-c", f"echo '{line}'; read go; echo '{{\"a\": 1}}'; read go"])
    heard: list[int] = []
    reader = Reader(child, source="a test", hear=lambda said: heard.append(said["a"]))
    reader.start()
    try:
        assert reader.wait(lambda: bool(reader.nonsense), PATIENCE_S)
        assert reader.nonsense == repr(line.encode())
        assert reader.is_alive
        reader.say("go")
        assert reader.wait(lambda: heard == [1], PATIENCE_S)
        assert reader.nonsense == ""
    finally:
        reader.close(PATIENCE_S)


def test_one_that_does_not_end_by_itself_is_killed() -> None:
    child = Processes().spawn(["/bin/sh", "-c", "echo '{}'; sleep 600"])
    heard: list[Mapping[str, Any]] = []
    reader = Reader(child, source="a test", hear=heard.append)
    reader.start()
    assert reader.wait(lambda: bool(heard), PATIENCE_S)
    assert reader.is_alive
    reader.close(0.1)
    assert start_ticks(child.pid) is None
    reader.close(0.1)
