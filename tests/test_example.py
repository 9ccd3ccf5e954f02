"""The robotics engineer's example, as she runs it and reads it: on a terminal, word by word."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from jouled.cli.output import short_names
from jouled.config import load

ROOT = Path(__file__).resolve().parents[1]
CAMERA = ROOT / "docs" / "examples" / "camera-30fps.toml"
WIDTH = 100


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """Exit code and all that a terminal of 100 columns shows (each line once, as it was printed)."""
    ours, its = pty.openpty()
    os.set_inheritable(its, True)
    argv = [sys.executable, "-m", "jouled.cli", *arguments]
    plain = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "dumb"}  # another one gets a display that is drawn over
    with subprocess.Popen(argv, stdin=its, stdout=its, stderr=its, env=plain) as child:
        os.close(its)
        shown = b""
        while True:
            piece = b""
            with suppress(OSError):  # EIO: the terminal's last program has ended
                piece = os.read(ours, 65536)
            if not piece:
                break
            shown += piece
        os.close(ours)
        code = child.wait(timeout=60)
    return code, shown.decode().replace("\r\n", "\n")


def rows_of(shown: str) -> dict[str, list[str]]:
    """The ending's table: label → cells."""
    lines = shown.splitlines()
    first = next(number for number, line in enumerate(lines) if "before (MAXN)" in line)
    last = next(number for number, line in enumerate(lines) if number > first and not line)
    split = (re.split(r" {2,}", line.strip()) for line in lines[first + 1 : last])
    return {label: cells for label, *cells in split}


def number(cell: str, unit: str) -> float:
    found = re.match(rf"([\d.]+) {re.escape(unit)}(?![a-z])", cell)
    assert found is not None, f"{cell!r} is no number of {unit}"
    return float(found[1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    state = str(tmp_path_factory.mktemp("camera"))
    return on_a_terminal("tune", "--config", str(CAMERA), "--virtual", "agx-orin-64gb", "--state-dir", state)


def test_example_is_a_whole_configuration_of_a_camera() -> None:
    config = load(CAMERA)
    entry = config.chosen()
    assert entry is not None
    assert (entry.arrival, entry.rate_hz, entry.inference_name) == ("rate", 30.0, "frame")
    assert (config.target.latency_percentile, config.target.latency_bound_s) == (99.0, 0.025)


def test_she_reads_watts_milliseconds_and_frames(run: tuple[int, str]) -> None:
    code, shown = run
    assert code == 0
    rows = rows_of(shown)
    before_w, after_w = (number(cell, "W") for cell in rows["power at this load"])
    assert after_w < 0.9 * before_w
    for power_w, cell in zip((before_w, after_w), rows["energy per frame"], strict=True):
        assert number(cell, "mJ") == pytest.approx(1000 * power_w / 30.0, rel=0.01)  # the idle watts are in it
        assert re.search(r"± [\d.]+ %", cell)
    assert [number(cell, "/s") for cell in rows["frames"]] == pytest.approx([30.0, 30.0], abs=0.1)
    assert all(number(cell, "ms") < 25.0 for cell in rows["latency p99"])
    assert re.search(r"^tuned: [\d.]+ % less energy per frame than before \(95 %: ", shown, re.MULTILINE)


def test_she_reads_how_much_is_left_below_the_bound(run: tuple[int, str]) -> None:
    rows = rows_of(run[1])
    assert rows["bound"] == ["25.0 ms", "25.0 ms"]
    for upper, headroom in zip(rows["upper limit"], rows["headroom"], strict=True):
        left_ms = 25.0 - number(upper, "ms")
        assert upper.endswith(", kept")
        assert number(headroom, "ms") == pytest.approx(left_ms, abs=0.06)
        assert headroom.endswith(f"({100 * left_ms / 25.0:.0f} %)")


def test_it_says_that_the_load_is_simulated_and_how_to_undo(run: tuple[int, str]) -> None:
    shown = run[1]
    assert "  load      detector, simulated by virtual:yolov8s-640, rate 30 Hz\n" in shown
    assert "jouled rollback --virtual agx-orin-64gb --state-dir " in shown
    assert "Traceback" not in shown


def test_no_line_but_a_command_is_wider_than_a_narrow_terminal(run: tuple[int, str]) -> None:
    commands = ("  undo ", "next: ")
    wide = [line for line in run[1].splitlines() if len(line) > 80 and not line.startswith(commands)]
    assert wide == []


@pytest.mark.parametrize(
    ("engines", "short"),
    [
        (["/a/det-fp32.plan", "/a/det-fp16.plan"], ["fp32", "fp16"]),
        (["/a/det.plan", "/b/det.plan"], ["det.plan", "det.plan"]),
        (["/a/det.plan", "/a/det-fp16.plan"], ["det.plan", "det-fp16.plan"]),
        (["/a/yolo_s.plan", "/a/vit_b.plan"], ["yolo-s", "vit-b"]),
        (["/a/det.plan"], ["det.plan"]),
    ],
)
def test_engines_are_told_apart_by_the_words_that_differ(engines: list[str], short: list[str]) -> None:
    assert list(short_names(engines).values()) == short


# --- variants -----------------------------------------------------------------------------------------------

VARIANTS = """
[target]
no_latency_bound = true
[workloads.detector]
engine = ["/opt/robot/detector-fp32.plan", "/opt/robot/detector-fp16.plan"]
instances = [1, 2]
arrival = "back_to_back"
inference_name = "frame"
[grid]
shape = "1x3x1"
"""


def test_engines_and_instances_are_searched_and_the_table_says_which(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(VARIANTS)
    where = ["--config", str(tmp_path / "config.toml"), "--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path)]
    code, shown = on_a_terminal("tune", *where)
    assert code == 0
    rows = rows_of(shown)
    assert rows["engine"] == ["detector-fp32.plan", "detector-fp16.plan"]
    assert rows["instances"] == ["1", "2"]
    assert "batch" not in rows  # the same in both
    assert re.search(r"12-2201\.6-[\d.]+-3199 fp16 x2 +[\d.]+ mJ", shown)  # of a name only what differs
    done = subprocess.run(
        [sys.executable, "-m", "jouled.cli", "tune", *where, "--json"], capture_output=True, check=True, timeout=120
    )
    told = json.loads(done.stdout)
    assert told["incumbent"]["variant"] == {
        "engine": "/opt/robot/detector-fp16.plan",
        "batch": 1,
        "instances": 2,
    }
    assert told["outcome"] == "no_gain"  # it is in force


def test_winner_of_another_workload_is_met_with_this_ones_variant(tmp_path: Path) -> None:
    """What is in force is its power mode; the engines of the workload that found it are not run again."""
    (tmp_path / "config.toml").write_text(VARIANTS)
    board = ["--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path)]
    assert on_a_terminal("tune", "--config", str(tmp_path / "config.toml"), *board)[0] == 0
    done = subprocess.run(
        [sys.executable, "-m", "jouled.cli", "tune", *board, "--no-latency-bound", "--json"],
        capture_output=True,
        check=True,
        timeout=120,
    )
    told = json.loads(done.stdout)
    assert told["incumbent"]["variant"] == {"engine": None, "batch": 1, "instances": 1}
    assert told["incumbent"]["mode"] != told["reference"]["mode"]
