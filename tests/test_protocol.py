"""The lines between daemon and worker, and the deadlines that feed the watchdog."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jouled.errors import BusyError
from jouled.worker.deadlines import BUILD_S, LIMITS_S, STRETCH_MORE_S, Deadlines
from jouled.worker.protocol import (
    MAX_LINE_BYTES,
    Apply,
    Cancel,
    Forget,
    LineReader,
    ProtocolError,
    Restore,
    Rollback,
    Tune,
    Verify,
    encode,
    error_of,
    finished,
    fitting,
    parse_command,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
MESSAGES = st.dictionaries(st.text(max_size=8), JSON, max_size=5)


# --- lines --------------------------------------------------------------------------------------------------


@given(st.lists(MESSAGES, max_size=5), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(
    messages: list[dict[str, Any]], cuts: list[int]
) -> None:
    stream = b"".join(encode(message) for message in messages)
    reader, found, at, turn = LineReader(), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += reader.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert found == messages
    assert reader.feed(b"{}\n") == [{}]  # nothing is left before it


@given(st.binary(max_size=300))
def test_any_bytes_give_messages_or_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert all(isinstance(message, dict) for message in LineReader().feed(data + b"\n"))


@given(MESSAGES)
def test_any_message_is_a_command_or_a_protocol_error(message: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        parse_command(message)


@given(st.sampled_from(["tune", "apply", "rollback", "restore", "verify", "forget", "cancel"]), MESSAGES)
def test_any_fields_beside_a_known_command_are_taken_or_refused_by_name(name: str, fields: dict[str, Any]) -> None:
    with contextlib.suppress(ProtocolError):
        parse_command({**fields, "command": name})


def test_line_beyond_64_kib_is_refused_before_it_is_kept() -> None:
    reader = LineReader()
    reader.feed(b"x" * (MAX_LINE_BYTES - 1))
    with pytest.raises(ProtocolError, match="65536 bytes"):
        reader.feed(b"x")
    assert reader.feed(b"{}\n") == [{}]
    with pytest.raises(ProtocolError, match="65536 bytes"):
        encode({"x": "y" * MAX_LINE_BYTES})


@pytest.mark.parametrize(("count", "is_told"), [(1000, True), (2000, False)])
def test_a_space_too_large_for_a_line_is_left_to_the_ledger(count: int, *, is_told: bool) -> None:
    row = [12, 2201600000, 1300500000, 3199000000, None, 1, 1]
    event = {"event": "job_started", "board": "x", "space": {"reference": 0, "candidates": [row] * count}}
    assert fitting(event) == (event if is_told else {"event": "job_started", "board": "x"})
    encode(fitting(event))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_strict_json_cannot_hold_is_not_sent(value: object) -> None:
    with pytest.raises(ProtocolError):
        encode({"x": value})


# --- commands -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "command"),
    [
        ({"command": "tune", "job": "0123456789ab", "who": "w", "request": {"budget": 3}},
         Tune("0123456789ab", "w", {"budget": 3})),
        ({"command": "tune", "job": "0123456789ab"}, Tune("0123456789ab", "unknown", {})),
        ({"command": "apply", "target": "winner", "why": "boot", "who": "w"}, Apply("winner", "boot", "w")),
        ({"command": "apply", "target": "x-x-816-x", "why": "user"}, Apply("x-x-816-x", "user", "unknown")),
        ({"command": "rollback", "who": "w"}, Rollback("w")),
        ({"command": "restore"}, Restore("unknown")),
        ({"command": "verify"}, Verify()),
        ({"command": "forget", "mode": "12-1-2-3", "who": "w"}, Forget("12-1-2-3", False, "w")),
        ({"command": "forget", "mode": None, "held": True, "who": "w"}, Forget(None, True, "w")),
        ({"command": "cancel", "reason": "user"}, Cancel("user")),
    ],
)  # fmt: skip
def test_commands_are_read_as_they_are_meant(message: dict[str, Any], command: object) -> None:
    assert parse_command(message) == command


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({}, "command: wanted one of tune"),
        ({"command": ["tune"]}, "command: wanted"),
        ({"command": "tune", "job": "0123456789AB"}, "job: wanted 12 hexadecimal digits"),
        ({"command": "tune", "job": "0123456789ab\n"}, "job: wanted"),
        ({"command": "tune", "job": "0123456789ab", "request": []}, "request: wanted an object"),
        ({"command": "tune", "job": "0123456789ab", "unit": "sshd"}, "no such field: 'unit'"),
        ({"command": "apply", "target": "winner"}, "why: wanted one of user"),
        ({"command": "apply", "target": "a/b", "why": "user"}, "target: wanted"),
        ({"command": "apply", "target": "x" * 81, "why": "user"}, "target: wanted"),
        ({"command": "apply", "target": "winner", "why": "user", "who": 0}, "who: wanted a text"),
        ({"command": "forget"}, "both or neither"),
        ({"command": "forget", "mode": "1-1-1-1", "held": True}, "both or neither"),
        ({"command": "forget", "held": 1}, "held: wanted true or false"),
        ({"command": "cancel", "reason": "because"}, "reason: wanted one of"),
    ],
)
def test_wrong_command_is_refused_with_what_was_wanted(message: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        parse_command(message)


def test_asker_is_shown_in_one_short_printable_line() -> None:
    command = parse_command({"command": "rollback", "who": "a\nb\x1b[2J" + "x" * 500})
    assert isinstance(command, Rollback)
    assert command.who.startswith("a?b?[2J")
    assert len(command.who) == 120


def test_last_line_tells_kind_text_hint_and_exit_code() -> None:
    message = finished(None, error_of(BusyError("held", hint="wait")))
    assert json.loads(encode(message)) == {
        "event": "finished",
        "ok": False,
        "result": None,
        "error": {"kind": "BusyError", "text": "held", "hint": "wait", "exit_code": 12},
    }


# --- deadlines ----------------------------------------------------------------------------------------------


class Watch:
    """Deadlines with a clock that a test turns."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pings = 0
        self.told: list[str] = []
        self.deadlines = Deadlines(on_overdue=self.told.append, ping=self._ping, now_s=lambda: self.now_s)

    def _ping(self) -> None:
        self.pings += 1

    def event(self, event: str, **fields: Any) -> None:
        self.deadlines.follow({"event": event, **fields})

    def is_fed_after(self, passed_s: float) -> bool:
        before = self.pings
        self.now_s += passed_s
        self.deadlines.look()
        return self.pings > before


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_idle_worker_feeds_the_watchdog_for_ever(watch: Watch) -> None:
    assert watch.is_fed_after(1e6)
    watch.deadlines.enter("apply")
    watch.deadlines.leave()
    assert watch.is_fed_after(1e6)
    assert watch.told == []


@pytest.mark.parametrize("phase", LIMITS_S)
def test_phase_beyond_its_limit_starves_the_watchdog_and_is_said_once(watch: Watch, phase: str) -> None:
    watch.deadlines.enter(phase)
    assert watch.is_fed_after(LIMITS_S[phase])
    assert not watch.is_fed_after(0.1)
    assert not watch.is_fed_after(1.0)
    assert watch.told == [f"{phase} takes longer than it ever should"]


def test_phase_that_goes_on_after_all_is_fed_again(watch: Watch) -> None:
    watch.deadlines.enter("apply")
    assert not watch.is_fed_after(31.0)
    watch.deadlines.enter("restore")
    assert watch.is_fed_after(1.0)
    assert not watch.is_fed_after(60.0)
    assert len(watch.told) == 2


@pytest.mark.parametrize(
    ("event", "limit_s"),
    [
        ({"event": "phase", "phase": "search"}, 30.0),
        ({"event": "trial"}, 30.0),
        ({"event": "mode_applied"}, BUILD_S),
        ({"event": "job_started"}, BUILD_S),
        ({"event": "decision"}, 60.0),
        ({"event": "progress", "phase": "settle", "stretch_s": 10.0}, 90.0),
        ({"event": "progress", "phase": "settle", "stretch_s": 130.0}, 160.0),
        ({"event": "progress", "phase": "window", "stretch_s": 300.0}, 300.0 + STRETCH_MORE_S),
        ({"event": "progress", "phase": "watching", "stretch_s": 60.0}, 60.0 + STRETCH_MORE_S),
    ],
)
def test_each_event_of_a_job_gives_the_next_phase_its_limit(
    watch: Watch, event: dict[str, Any], limit_s: float
) -> None:
    watch.deadlines.follow(event)
    assert watch.is_fed_after(limit_s)
    assert not watch.is_fed_after(0.1)


def test_progress_within_a_stretch_does_not_move_its_deadline(watch: Watch) -> None:
    watch.event("progress", phase="window", stretch_s=16.0)
    for _ in range(46):
        assert watch.is_fed_after(1.0)
        watch.event("progress", phase="window", stretch_s=16.0)
    assert not watch.is_fed_after(0.1)


def test_window_of_the_next_trial_has_its_own_deadline(watch: Watch) -> None:
    for _ in range(20):
        for phase in ("settle", "pilot", "window"):
            watch.event("progress", phase=phase, stretch_s=16.0)
            assert watch.is_fed_after(16.0)
        watch.event("trial")
        watch.event("mode_applied")
    assert watch.told == []
