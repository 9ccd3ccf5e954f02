"""State files: whole or old after any crash, never obeyed when damaged, linked or unknown."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jouled.board.statefile import (
    Fields,
    checksum,
    read_state,
    remove_durably,
    set_aside,
    write_durably,
    write_hint,
    write_state,
)
from jouled.errors import StateError

SCHEMA = "jouled.test/1"


def write(path: Path, **content: object) -> Path:
    write_state(path, SCHEMA, content)
    return path


def read(path: Path) -> object:
    fields = read_state(path, SCHEMA)
    assert fields is not None
    return fields


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "deep" / "x.json", name="ä", number=0.1, none=None, many=["a"])
    fields = read_state(path, SCHEMA)
    assert fields is not None
    assert (fields.text("name"), fields.number("number"), fields.texts("many")) == ("ä", 0.1, ("a",))
    assert fields.integer_or_none("none") is None
    assert sorted(os.listdir(path.parent)) == ["x.json"]


def test_absent_file_is_none(tmp_path: Path) -> None:
    assert read_state(tmp_path / "x.json", SCHEMA) is None


@pytest.mark.parametrize("length", [0, 1, 20, 60])
def test_torn_file_is_named_and_kept(tmp_path: Path, length: int) -> None:
    path = write(tmp_path / "x.json", name="value")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(StateError, match=r"x\.json.*damaged") as caught:
        read(path)
    assert "mv " in caught.value.hint
    assert path.exists()


def test_edited_value_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", name="value")
    path.write_text(path.read_text().replace("value", "other"))
    with pytest.raises(StateError, match="edited"):
        read(path)


def test_unknown_schema_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_state(path, "jouled.test/2", {})
    with pytest.raises(StateError, match=r"wanted 'jouled\.test/1', got 'jouled\.test/2'"):
        read(path)


@pytest.mark.parametrize("text", ["[]", "null", '"x"', "7"])
def test_json_that_is_no_object_is_damage(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(StateError, match="JSON object"):
        read(path)


def test_link_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "real.json", name="value")
    (tmp_path / "x.json").symlink_to("real.json")
    with pytest.raises(StateError, match="symbolic link"):
        read(tmp_path / "x.json")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_ordinary_file_is_refused_at_once(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "x.json")
    with pytest.raises(StateError, match="no ordinary file"):
        read(tmp_path / "x.json")


def test_link_in_the_way_of_a_write_is_replaced_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("keep")
    for name in ("x.json", ".x.json.new"):
        (tmp_path / name).symlink_to("target")
    write(tmp_path / "x.json", name="value")
    assert target.read_text() == "keep"
    assert not (tmp_path / "x.json").is_symlink()


def test_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", name="old")
    (tmp_path / ".x.json.new").mkdir()  # in the way of the fresh file
    with pytest.raises(StateError, match=r"x\.json: cannot be written"):
        write(path, name="new")
    fields = read_state(path, SCHEMA)
    assert fields is not None
    assert fields.text("name") == "old"


def test_leftover_of_a_killed_write_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / ".x.json.new").write_text('{"half')
    write(tmp_path / "x.json", name="value")
    read(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("name", "reader"),
    [("a", "integer"), ("flag", "integer"), ("a", "number"), ("a", "fields"), ("number", "text"), ("gone", "text")],
)
def test_attribute_of_the_wrong_type_is_named(tmp_path: Path, name: str, reader: str) -> None:
    fields = read_state(write(tmp_path / "x.json", a="text", flag=True, number=1), SCHEMA)
    assert fields is not None
    with pytest.raises(StateError, match=rf"x\.json: {name}: wanted"):
        getattr(fields, reader)(name)


def test_text_that_is_none_of_those_allowed_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="policy: wanted one of capped, locked, got 'x'"):
        Fields(tmp_path / "x.json", {"policy": "x"}).one_of("policy", ["capped", "locked"])


def test_integer_that_no_word_holds_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cpu_hz: wanted an integer of 64 bits"):
        Fields(tmp_path / "x.json", {"cpu_hz": 10**400}).integer("cpu_hz")


def test_nested_attribute_is_named_with_its_place(tmp_path: Path) -> None:
    fields = read_state(write(tmp_path / "x.json", outer=[{"a": 1}, {"a": "x"}]), SCHEMA)
    assert fields is not None
    second = fields.list_of_fields("outer")[1]
    with pytest.raises(StateError, match=r"outer\[1\]\.a: wanted an integer"):
        second.integer("a")


def test_set_aside_keeps_every_earlier_one(tmp_path: Path) -> None:
    names = []
    for text in ("one", "two"):
        write_durably(tmp_path / "x.json", text.encode())
        names.append(set_aside(tmp_path / "x.json"))
    assert [name.read_text() for name in names] == ["one", "two"]
    assert not (tmp_path / "x.json").exists()


def test_numbers_that_are_none_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write(tmp_path / "x.json", number=float("nan"))
    assert not (tmp_path / "x.json").exists()


def test_remove_says_whether_there_was_one(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json")
    assert remove_durably(path)
    assert not remove_durably(path)


def test_file_is_readable_json_with_its_schema(tmp_path: Path) -> None:
    document = json.loads(write(tmp_path / "x.json", name="value").read_text())
    assert document["schema"] == SCHEMA
    assert document["name"] == "value"


def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def watch_fsync(descriptor: int) -> None:
        steps.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def watch_replace(source: Path, target: Path) -> None:
        steps.append(f"rename to {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "replace", watch_replace)
    write(tmp_path / "x.json", name="value")
    assert steps == ["sync .x.json.new", "rename to x.json", f"sync {tmp_path.name}"]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"schema": "jouled.test/1", "deep": ' + "[" * 900 + "]" * 900 + "}",
        '{"schema": "jouled.test/1", "number": NaN}',
        '{"schema": "jouled.test/1", "number": ' + "9" * 5000 + "}",
        '{"schema": "\\ud800"}',
    ],
    ids=["deepest", "deep", "nan", "number", "surrogate"],
)
def test_json_beyond_all_measure_is_damage(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(StateError, match=r"x\.json") as caught:
        read(path)
    assert "mv " in caught.value.hint


def test_integer_that_no_float_can_hold_is_named(tmp_path: Path) -> None:
    body: dict[str, object] = {"schema": SCHEMA, "number": 10**400}
    path = tmp_path / "x.json"
    path.write_text(json.dumps({**body, "checksum": checksum(body)}))
    fields = read_state(path, SCHEMA)
    assert fields is not None
    with pytest.raises(StateError, match=r"x\.json: number: wanted a number that a float can hold"):
        fields.number("number")


@pytest.mark.parametrize(
    ("number", "wanted", "unwanted"),
    [
        (errno.ENOSPC, "free some space in /var/lib/jouled", "--state-dir"),
        (errno.EDQUOT, "free some space in /var/lib/jouled", "--state-dir"),
        (errno.EROFS, "make /var/lib/jouled writable for this user, or name another folder with --state-dir", "free"),
        (errno.EACCES, "make /var/lib/jouled writable for this user, or name another folder with --state-dir", "free"),
        (errno.EISDIR, "see what lies in /var/lib/jouled", "free"),
    ],
)
def test_hint_about_a_failed_write_fits_its_cause(number: int, wanted: str, unwanted: str) -> None:
    hint = write_hint(OSError(number, os.strerror(number)), Path("/var/lib/jouled"))
    assert wanted in hint
    assert unwanted not in hint


def test_write_below_what_is_no_folder_hints_at_the_place_not_at_space(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="cannot be written") as caught:
        write(tmp_path / "file" / "x.json", name="value")
    assert "space" not in caught.value.hint
    assert "--state-dir" in caught.value.hint


@pytest.mark.parametrize("act", [remove_durably, set_aside])
def test_hint_about_a_file_that_cannot_go_fits_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], object]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    path = write(tmp_path / "x.json")
    for name in ("unlink", "rename"):
        monkeypatch.setattr(os, name, fail)
    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(StateError, match="Read-only file system") as caught:
        act(path)
    assert f"make {tmp_path} writable for this user" in caught.value.hint
