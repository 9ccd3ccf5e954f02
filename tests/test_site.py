"""Which board a command acts on, where its state lies, and what is said where neither can be had."""

from __future__ import annotations

import errno
import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from jouled.cli import main
from jouled.cli.arguments import make_parser
from jouled.cli.site import TREE, open_site, overrides_of, read_config, state_home
from jouled.errors import ConfigError, NotSupportedError, StateError, UsageError
from jouled.virtual import machine

BOARD = ["--virtual", "agx-orin-64gb"]
HEADER = "cores,cpu_hz,gpu_hz,emc_hz,batch,latency_s,energy_j\n"


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ("²", r"grid\.shape: wanted EMC x GPU x CPU points"),
        ("١٢", r"grid\.shape: wanted EMC x GPU x CPU points"),
        ("9" * 5000, r"grid\.size: wanted an integer 2 to 100000"),
        ("9" * 12, r"grid\.size: wanted an integer 2 to 100000"),
    ],
    ids=["superscript", "arabic", "endless", "large"],
)
def test_grid_that_is_no_count_is_a_sentence(grid: str, said: str) -> None:
    arguments = make_parser().parse_args(["tune", *BOARD, "--grid", grid])
    with pytest.raises(ConfigError, match=said) as caught:
        read_config(arguments, is_real=False)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("grid", "key", "value"), [("96", "size", 96), ("full", "size", "full"), ("3x8x4", "shape", "3x8x4")]
)
def test_grid_is_a_count_the_word_full_or_a_shape(grid: str, key: str, value: object) -> None:
    arguments = make_parser().parse_args(["tune", *BOARD, "--grid", grid])
    assert overrides_of(arguments) == {f"grid.{key}": value}


def test_state_lies_in_the_users_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/users/somebody")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert state_home() == Path("/users/somebody/.local/state/jouled")
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert state_home() == Path("/x/jouled")


@pytest.mark.parametrize("home", ["~nouser-of-that-name", "relative", None])
def test_user_without_a_home_is_told_of_the_option(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    def no_entry(_: int) -> NoReturn:
        raise KeyError

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv("HOME", home)
    with pytest.raises(StateError, match="home of this user is not known") as caught:
        open_site(make_parser().parse_args(["modes", *BOARD]))
    assert "--state-dir" in caught.value.hint


@pytest.mark.parametrize("board", ["nope", "../x", ""])
def test_board_that_there_is_not_is_refused_on_a_state_folder_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], board: str
) -> None:
    state = ["--state-dir", str(tmp_path)]
    assert main(["virtual", "reboot", *BOARD, *state]) == 0
    assert main(["modes", "--virtual", board, *state]) == UsageError.exit_code
    assert f"no virtual board '{board}'; there are agx-orin-32gb, agx" in capsys.readouterr().err


def test_state_folder_of_a_recorded_board_is_refused_to_a_virtual_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text(HEADER + ",,300000000,,1,0.2,2\n,,600000000,,1,0.1,3\n")
    state = ["--state-dir", str(tmp_path / "state")]
    assert main(["virtual", "reboot", "--table", str(tmp_path / "a.csv"), *state]) == 0
    assert main(["modes", *BOARD, *state]) == UsageError.exit_code
    told = capsys.readouterr().err
    assert "holds the board recorded" in told
    assert "--state-dir" in told


@pytest.mark.parametrize(
    ("number", "to_do"),
    [
        (errno.ENOSPC, "free some space in"),
        (errno.EROFS, "writable for this user, or name another folder with --state-dir"),
        (errno.ENOENT, "to get a fresh board"),
    ],
)
def test_hint_about_a_board_that_cannot_be_kept_fits_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, to_do: str
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number), "file")

    monkeypatch.setattr(machine, "make_tree", fail)
    with pytest.raises(StateError, match="cannot be kept there") as caught:
        open_site(make_parser().parse_args(["modes", *BOARD, "--state-dir", str(tmp_path)]))
    assert to_do in caught.value.hint


def test_board_whose_write_found_no_room_is_said_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(machine, "make_tree", fail)
    with pytest.raises(StateError, match=r"cannot be kept there: No space left on device$"):
        open_site(make_parser().parse_args(["modes", *BOARD, "--state-dir", str(tmp_path)]))


def test_folder_that_cannot_be_is_no_board_to_remove() -> None:
    with pytest.raises(StateError, match="cannot be kept there") as caught:
        open_site(make_parser().parse_args(["modes", *BOARD, "--state-dir", "/proc/nowhere"]))
    assert "remove the folder" not in caught.value.hint


def test_board_that_lost_its_files_is_said_with_what_to_do(tmp_path: Path) -> None:
    arguments = make_parser().parse_args(["modes", *BOARD, "--state-dir", str(tmp_path)])
    open_site(arguments).close()
    (tmp_path / TREE / "proc/sys/kernel/random/boot_id").unlink()
    with pytest.raises(StateError, match="boot_id") as caught:
        open_site(arguments)
    assert caught.value.hint == f"remove the folder {tmp_path / TREE} to get a fresh board"


def test_status_file_with_garbage_is_named_with_the_call_that_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ["--state-dir", str(tmp_path)]
    assert main(["virtual", "reboot", *BOARD, *state]) == 0
    (tmp_path / TREE / "var/lib/nvpmodel/status").write_text("garbage\n")
    code = main(["tune", *BOARD, *state, "--no-latency-bound"])
    assert code == NotSupportedError.exit_code
    told = capsys.readouterr()
    assert "/var/lib/nvpmodel/status: holds 'garbage" in told.err + told.out
    assert "sudo nvpmodel -m ID" in told.err + told.out


def test_a_board_is_tried_out_under_a_locale_that_knows_ascii_only(tmp_path: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    state = tmp_path / "a:b ü"
    argv = [
        sys.executable,
        "-m",
        "jouled.cli",
        "tune",
        *BOARD,
        "--state-dir",
        str(state),
        "--latency-bound-ratio",
        "1.2",
    ]
    done = subprocess.run(
        [*argv, "--budget", "3", "--json"], env=environment, capture_output=True, timeout=120, check=False
    )
    assert done.stderr.count(b"Traceback") == 0, done.stderr
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "nvpmodel"  # it is found, although PATH knows no colon
