"""The virtual board's tree: whole or not there at all, and a damaged one is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jouled.errors import StateError, UsageError
from jouled.virtual.faults import FOLDER, set_faults
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.specs import board_spec
from jouled.virtual.tree import is_tree, make_tree, tree_spec

START = """
import os, sys
from pathlib import Path
from jouled.virtual.machine import VirtualMachine
print("ready", flush=True)
sys.stdin.readline()
VirtualMachine(Path(sys.argv[1]), programs="in_process").close()
"""
DEEP = "[" * 200_000


def opened(root: Path, *, board: str = "agx-orin-64gb") -> VirtualMachine:
    return VirtualMachine(root, board=board, programs="in_process")


def test_boards_made_at_once_are_one_board(tmp_path: Path) -> None:
    root = tmp_path / "state" / "board"
    argv = [sys.executable, "-c", START, str(root)]
    starts = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for start in starts:
        assert start.stdout is not None
        assert start.stdout.readline() == "ready\n"
    for start in starts:
        assert start.stdin is not None
        start.stdin.write("go\n")
        start.stdin.flush()
    assert [start.communicate()[1] for start in starts] == ["", "", ""]
    assert [start.returncode for start in starts] == [0, 0, 0]
    assert os.listdir(root.parent) == ["board"]
    opened(root).close()


def test_tree_that_is_there_stays(tmp_path: Path) -> None:
    make_tree(tmp_path / "board", base_mode="MODE_30W")
    make_tree(tmp_path / "board", base_mode="MODE_15W")
    assert (tmp_path / "board/var/lib/nvpmodel/status").read_text() == "pmode:0002\n"


def test_half_a_tree_of_a_killed_start_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / ".board.new" / FOLDER).mkdir(parents=True)
    (tmp_path / ".board.new" / FOLDER / "board.json").write_text("{")
    opened(tmp_path / "board").close()
    assert tree_spec(tmp_path / "board") == board_spec("agx-orin-64gb")
    assert os.listdir(tmp_path) == ["board"]


def test_folder_of_somebody_else_is_no_board_and_stays(tmp_path: Path) -> None:
    (tmp_path / "board").mkdir()
    (tmp_path / "board" / "letter").write_text("dear")
    with pytest.raises(StateError, match="board: is not empty and holds no virtual board"):
        opened(tmp_path / "board")
    assert os.listdir(tmp_path / "board") == ["letter"]
    assert os.listdir(tmp_path) == ["board"]


def test_link_to_where_the_board_shall_lie_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "board").symlink_to("there")
    opened(tmp_path / "board").close()
    assert is_tree(tmp_path / "there")
    assert (tmp_path / "board").is_symlink()


@pytest.mark.parametrize("board", ["nope", "../x", ""])
def test_board_that_there_is_not_is_refused_whatever_lies_there(tmp_path: Path, board: str) -> None:
    opened(tmp_path / "board").close()
    for root in (tmp_path / "board", tmp_path / "absent"):
        with pytest.raises(UsageError, match=rf"no virtual board '{board}'; there are agx-orin-32gb, agx"):
            opened(root, board=board)
    assert not (tmp_path / "absent").exists()


STATE = '{"boot_id": "x", "boottime_s": %s, "boot_wall_s": %s, "temperature_c": %s}'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            (name, text)
            for name in ("board", "cpus", "state", "faults")
            for text in ("", "garb{age", "[]", "[" * 200_000)
        ),
        *((name, "{}") for name in ("board", "cpus", "state")),
        ("board", '{"modes": 5, "chips": [1]}'),
        ("cpus", '{"0": "x"}'),
        ("cpus", '{"../x": 0}'),
        ("state", STATE % ("NaN", 0, 40)),
        ("state", STATE % (-5, 0, 40)),
        ("state", STATE % (1e300, 0, 40)),
        ("state", STATE % (5, "NaN", 40)),
        ("state", STATE % (5, "Infinity", 40)),
        ("state", STATE % (5, 0, "NaN")),
        ("state", STATE % (5, '"soon"', 40)),
        ("state", '{"boot_id": 7, "boottime_s": 5, "boot_wall_s": 0, "temperature_c": null}'),
    ],
)
def test_damaged_file_of_the_tree_is_named_with_what_to_do(tmp_path: Path, name: str, text: str) -> None:
    root = tmp_path / "board"
    opened(root).close()
    (root / FOLDER / f"{name}.json").write_text(DEEP if text == "deep" else text)
    with pytest.raises(StateError, match=rf"\.virtual/{name}\.json: is damaged") as caught:
        opened(root).clock.sleep(1.0)
    assert caught.value.hint == f"remove the folder {root} to get a fresh board"


def test_folder_in_place_of_the_switches_is_damage(tmp_path: Path) -> None:
    opened(tmp_path / "board").close()
    (tmp_path / "board" / FOLDER / "faults.json").mkdir()
    with pytest.raises(StateError, match=r"faults\.json: is damaged"):
        opened(tmp_path / "board").clock.sleep(1.0)


def test_programs_are_found_where_the_path_of_the_tree_has_a_colon(tmp_path: Path) -> None:
    root = tmp_path / "a:b c" / "board"
    machine = VirtualMachine(root)
    processes = machine.processes()
    done = processes.run(["nvpmodel", "-q"], timeout_s=30.0)
    assert (done.returncode, "MAXN" in done.stdout) == (0, True)
    assert processes.find("jetson_clocks") == f"{root}/usr/bin/jetson_clocks"
    assert processes.find("sh") is None
    set_faults(str(root), absent=["nvpmodel"])
    assert processes.find("nvpmodel") is None
    (root / "usr/bin/jetson_clocks").chmod(0o644 if os.geteuid() else 0o000)
    assert processes.find("jetson_clocks") is None
