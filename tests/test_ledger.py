"""The ledger: on the disk before `append` returns, damage set aside and said, nothing lost silently."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jouled.errors import StateError
from jouled.ledger import Ledger, decode_line, encode_line

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def filled(ledger: Ledger, count: int = 3) -> list[dict[str, object]]:
    events: list[dict[str, object]] = [{"event": "trial", "job": "a", "seq": number} for number in range(count)]
    for event in events:
        ledger.append(event)
    return events


def test_events_come_back_in_order(ledger: Ledger) -> None:
    events = filled(ledger)
    contents = ledger.read()
    assert list(contents.events) == events
    assert contents.damaged == ()


def test_absent_ledger_is_empty(ledger: Ledger) -> None:
    assert ledger.read().events == ()
    assert ledger.mend() == ()


@given(st.dictionaries(st.text().filter(lambda name: name != "checksum"), PLAIN))
def test_any_event_survives_its_line(event: dict[str, object]) -> None:
    line = encode_line(event)
    assert line.count(b"\n") == 1
    assert decode_line(line[:-1]) == event


@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    line = bytearray(encode_line({"event": "trial", "energy_j": 0.125, "mode": {"cores": 12}})[:-1])
    where = data.draw(st.integers(0, len(line) - 1))
    line[where] ^= data.draw(st.integers(1, 127))
    try:
        decoded = decode_line(bytes(line))
    except ValueError:
        return
    assert decoded == {"event": "trial", "energy_j": 0.125, "mode": {"cores": 12}}  # another spelling of the same


@pytest.mark.parametrize("cut", [1, 2, 10, 40])
def test_torn_tail_is_told_set_aside_and_written_past(ledger: Ledger, cut: int) -> None:
    events = filled(ledger)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:-cut])
    (damage,) = ledger.read().damaged
    assert damage.line == 3
    assert "torn" in damage.why
    (said,) = ledger.mend()
    assert "line 3" in said
    assert "ledger.damaged" in said
    torn = ledger.damaged_path.read_bytes()[:-1]
    assert whole.endswith(torn + whole[len(whole) - cut :])
    ledger.append({"event": "next"})
    assert list(ledger.read().events) == [*events[:2], {"event": "next"}]


def test_damaged_line_in_the_middle_costs_that_line_alone(ledger: Ledger) -> None:
    events = filled(ledger)
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"seq":1', b'"seq":7')
    ledger.path.write_bytes(b"".join(lines))
    contents = ledger.read()
    assert list(contents.events) == [events[0], events[2]]
    assert [(damage.line, damage.why) for damage in contents.damaged] == [(2, "its checksum does not fit")]
    assert len(ledger.mend()) == 1
    assert ledger.damaged_path.read_bytes() == lines[1]
    assert list(ledger.read().events) == [events[0], events[2]]
    assert ledger.mend() == ()


def test_torn_tail_swallows_no_event_even_without_mending(ledger: Ledger) -> None:
    filled(ledger)
    ledger.path.write_bytes(ledger.path.read_bytes()[:-5])
    ledger.append({"event": "next"})
    contents = ledger.read()
    assert contents.events[-1] == {"event": "next"}
    assert len(contents.damaged) == 1


def test_mending_that_fails_keeps_the_ledger(ledger: Ledger) -> None:
    filled(ledger)
    ledger.path.write_bytes(ledger.path.read_bytes()[:-5])
    before = ledger.path.read_bytes()
    ledger.damaged_path.mkdir()
    with pytest.raises(StateError, match=r"ledger\.damaged"):
        ledger.mend()
    assert ledger.path.read_bytes() == before


@pytest.mark.parametrize("event", [{"x": float("nan")}, {"x": float("inf")}, {"x": object()}, {"x": {1, 2}}])
def test_what_json_cannot_hold_is_refused_and_nothing_written(ledger: Ledger, event: dict[str, object]) -> None:
    filled(ledger)
    before = ledger.path.read_bytes()
    with pytest.raises(StateError, match="cannot hold"):
        ledger.append(event)
    assert ledger.path.read_bytes() == before


def test_line_that_does_not_fit_on_the_disk_is_taken_back(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(ledger)
    before = ledger.path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:7]))
    with pytest.raises(StateError, match="cannot be written"):
        ledger.append({"event": "long enough to be cut"})
    monkeypatch.undo()
    assert ledger.path.read_bytes() == before


def test_line_is_synced_before_append_returns(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    ledger.append({"event": "x"})
    assert ledger.path.stat().st_size in synced
    assert len(synced) == 2  # a new file: its folder too


def test_failed_sync_is_an_error(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StateError, match="Input/output error"):
        ledger.append({"event": "x"})


def test_link_in_place_of_the_ledger_is_not_followed(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("keep")
    ledger.path.symlink_to("elsewhere")
    with pytest.raises(StateError, match=r"ledger\.jsonl"):
        ledger.append({"event": "x"})
    with pytest.raises(StateError, match=r"ledger\.jsonl"):
        ledger.read()
    assert (tmp_path / "elsewhere").read_text() == "keep"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_ordinary_file_is_refused_at_once(ledger: Ledger, make: Callable[[Path], None]) -> None:
    make(ledger.path)
    for act in (ledger.read, ledger.mend, lambda: ledger.append({"event": "x"})):
        with pytest.raises(StateError, match=r"ledger\.jsonl: is no ordinary file") as caught:
            act()
        assert "mv " in caught.value.hint


@pytest.mark.parametrize("depth", [900, 200_000])
def test_line_nested_beyond_all_measure_is_damage(ledger: Ledger, depth: int) -> None:
    filled(ledger, 1)
    with ledger.path.open("a") as file:
        file.write('{"event": ' + "[" * depth + "]" * depth + "}\n")
    (damage,) = ledger.read().damaged
    assert damage.line == 2
    assert len(ledger.mend()) == 1
    assert len(ledger.read().events) == 1


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"file/state: cannot be made") as caught:
        Ledger(tmp_path / "file" / "state").mend()
    assert "--state-dir" in caught.value.hint


def test_full_disk_and_read_only_folder_get_different_hints(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    hints = []
    for number in (errno.ENOSPC, errno.EROFS):

        def fail(_: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(StateError) as caught:
            ledger.append({"event": "x"})
        hints.append(caught.value.hint)
    assert "free some space" in hints[0]
    assert "--state-dir" in hints[1]
    assert "space" not in hints[1]


def test_large_ledger_makes_room_and_keeps_the_old_one(ledger: Ledger) -> None:
    filled(ledger)
    old = ledger.path.read_bytes()
    (said,) = ledger.mend(rotate_above_bytes=10)
    assert "ledger.1.jsonl" in said
    assert ledger.path.with_name("ledger.1.jsonl").read_bytes() == old
    ledger.append({"event": "first"})
    assert ledger.read().events == ({"event": "first"},)


def test_events_of_one_job_and_kind(ledger: Ledger) -> None:
    for job, event in (("a", "trial"), ("b", "trial"), ("a", "decision"), ("a", "trial")):
        ledger.append({"job": job, "event": event})
    contents = ledger.read()
    assert len(contents.of_job("a")) == 3
    assert len(contents.of_job("a", "trial")) == 2


def test_each_line_is_json_that_others_can_read(ledger: Ledger) -> None:
    ledger.append({"event": "trial", "energy_j": 0.5})
    document = json.loads(ledger.path.read_text())
    assert document["energy_j"] == 0.5
    assert len(document["checksum"]) == 16
