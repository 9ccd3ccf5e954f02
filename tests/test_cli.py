"""The command line as its users meet it: what is printed where, exit codes, JSON, and who may do what."""

from __future__ import annotations

import ast
import itertools
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import jouled
from jouled.board.board import discover
from jouled.board.knobs import read_knobs
from jouled.board.lock import hold_board
from jouled.board.modename import mode_name, parse_mode_name
from jouled.board.pending import Why, note_apply, note_boot
from jouled.cli import main
from jouled.cli.arguments import make_parser
from jouled.errors import NotPermittedError, UsageError
from jouled.virtual.faults import FOLDER, set_faults
from jouled.virtual.machine import VirtualMachine
from jouletune.space import PowerMode

BOARD = ["--virtual", "agx-orin-64gb"]
PATIENCE_S = 60.0
AS_NOBODY = """
import os, sys
import jouled.cli.tune, jouled.cli.verbs, jouled.cli.check, jouled.cli.modes, jouled.cli.remote, jouled.board.clock
from jouled.cli import main
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def state(tmp_path: Path) -> list[str]:
    return [*BOARD, "--state-dir", str(tmp_path / "state")]


def tune_arguments(state: list[str], *more: str) -> list[str]:
    return ["tune", *state, "--latency-bound-ratio", "1.2", "--budget", "9", *more]


def read_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(capsys.readouterr().out)
    return body


def knobs(state: list[str]) -> dict[str, str]:
    folder = Path(state[-1])
    host = VirtualMachine(folder / "board").host(folder)
    return dict(read_knobs(host.sysfs, discover(host).domains).values)


def test_tune_verify_modes_and_reboot_tell_one_story(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tune_arguments(state, "--json")) == 0
    told = capsys.readouterr()
    result = json.loads(told.out)
    assert told.err == ""
    assert result["outcome"] == "tuned"
    assert result["applied"] is True
    name = mode_name(PowerMode(**result["winner"]["mode"]))
    assert main(["verify", *state, "--json"]) == 0
    assert read_json(capsys)["name"] == name
    assert main(["modes", *state, "--json"]) == 0
    rows = {row["name"]: row for row in read_json(capsys)["modes"]}
    assert len(rows) == result["grid_size"] == 96
    assert rows[name]["state"] == ["in force"]
    assert rows[name]["measured"]["energy_j"] == pytest.approx(result["winner"]["energy_j"], rel=0.05)
    assert main(["virtual", "reboot", *state]) == 0
    assert "MAXN" in capsys.readouterr().out
    assert main(["verify", *state]) == 0
    assert capsys.readouterr().out.startswith("ok: in force as it should be: the reference")


def test_ending_says_before_after_rail_and_the_way_back(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tune_arguments(state)) == 0
    told = capsys.readouterr()
    for wanted in (
        "less energy per frame",
        "before (MAXN)",
        "in force now",
        "energy per frame",
        "power at this load",
        "bound",
        "VDD_GPU_SOC+VDD_CPU_CV+VIN_SYS_5V0",
        "GPU cap 1300.5 -> ",
        f"jouled rollback {' '.join(state)}",
        f"next: jouled verify {' '.join(state)}",
    ):
        assert wanted in told.out
    assert max(len(line) for line in told.err.splitlines()) <= 80
    lines = told.out.splitlines()
    assert max(len(line) for line in lines if "jouled" not in line) <= 80
    assert "search, latency at most" in told.err


def test_no_gain_ends_with_0_or_with_4_where_asked(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tune", *state, "--latency-bound-ratio", "1.02", "--budget", "3"]
    assert main(arguments) == 0
    assert "changed   nothing: every knob is as it was found" in capsys.readouterr().out
    assert main([*arguments, "--fail-on-no-gain"]) == 4


def test_verify_names_the_knob_that_somebody_changed(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *state]) == 0
    host = VirtualMachine(Path(state[-1]) / "board").host(Path(state[-1]))
    host.sysfs.write("/sys/class/devfreq/17000000.gpu/max_freq", 816000000, why="somebody")
    capsys.readouterr()
    assert main(["verify", *state]) == 5
    out = capsys.readouterr().out
    assert "max_freq: wanted 1300500000" in out
    assert "816000000" in out


def test_restore_with_nothing_left_ends_with_0(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restore", *state]) == 0
    assert capsys.readouterr().out.startswith("nothing to restore")
    assert main(["restore", *state, "--json"]) == 0
    assert read_json(capsys)["found"] == "nothing"


def test_quarantined_mode_is_shown_and_forgotten_by_name(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(state[-1])
    machine = VirtualMachine(folder / "board")
    host = machine.host(folder)
    marks = {"module": "p3701-0005", "carrier": "p3737-0000"}
    bad = PowerMode(12, 1497600000, 1020000000, 2133000000)
    note_apply(host, bad, why=Why.TRIAL, fingerprint=marks)
    machine.reboot()
    note_boot(machine.host(folder))
    machine.close()
    assert main(["forget", *state, "12-1497.6-1020-2133"]) == 0
    assert "may be tried again" in capsys.readouterr().out
    assert main(["forget", *state, "12-1497.6-1020-2133", "--json"]) == 0
    assert read_json(capsys)["forgotten"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tune", *BOARD], 2, "no bound"),
        (["tune", "--virtual", "orin-giga", "--latency-bound-ratio", "1.2"], 2, "there are agx-orin-32gb, agx"),
        (["tune", *BOARD, "--base-mode", "30W", "--latency-bound-ratio", "1.2"], 2, "MODE_30W"),
        (["tune", *BOARD, "--latency-bound-ratio", "nan"], 2, "target.latency_bound_ratio: wanted a number"),
        (["tune", *BOARD, "--latency-bound-ratio", "1.2", "--grid", "3x"], 2, "grid.shape"),
        (["tune", *BOARD, "--latency-bound-ratio", "1.2", "--rate-hz", "0"], 2, "--rate-hz"),
        (["tune", *BOARD, "--latency-bound-ratio", "1.2", "--virtual-workload", "bert"], 2, "yolov8s-640"),
        (["tune", "--table", "/nowhere.csv", "--latency-bound-ratio", "1.2"], 2, "/nowhere.csv"),
        (["forget", *BOARD, "fast"], 2, "CORES-CPU-GPU-EMC"),
        (["check-config", "--config", "/nowhere.toml"], 2, "/nowhere.toml"),
        (["virtual", "reboot"], 2, "--virtual BOARD"),
    ],
)
def test_wrong_input_is_said_in_a_sentence_and_not_in_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    where = ["--state-dir", str(tmp_path / "state")] if "--virtual" in arguments or "--table" in arguments else []
    assert main([*arguments, *where]) == code
    told = capsys.readouterr()
    assert words in told.err
    assert told.err.startswith(f"jouled {arguments[0]}: ")
    assert told.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["tune", "--latency-bound-s", "1", "--latency-bound-ratio", "1"],
        ["tune", "--virtual", "a", "--table", "b"],
        ["tune", "--seed", "-1"],
        ["frobnicate"],
        [],
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: jouled" in capsys.readouterr().err


def test_error_is_one_json_object_where_asked_for(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *state, "--json"]) == 2
    assert read_json(capsys)["error"]["kind"] == "ConfigError"


def test_dry_run_says_the_plan(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tune_arguments(state, "--dry-run")) == 0
    out = capsys.readouterr().out
    assert "96 power modes (emc_hz 3, gpu_hz 8, cpu_hz 4)" in out
    assert "nothing was touched" in out


def test_json_lines_are_the_ledgers_events(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tune_arguments(state, "--json-lines")) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"v", "seq", "t_s", "event", "job"} <= set(events[0])
    kept = [json.loads(line) for line in (Path(state[-1]) / "ledger.jsonl").read_text().splitlines()]
    assert [event["seq"] for event in events if event["event"] != "progress"] == [
        line["seq"] for line in kept if "seq" in line
    ]
    gaps = [b["t_s"] - a["t_s"] for a, b in itertools.pairwise(events)]
    assert max(gaps) <= 5.0


def only_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (line,) = capsys.readouterr().out.splitlines()
    event: dict[str, Any] = json.loads(line)
    assert {"v", "seq", "t_s", "event", "job", "result"} <= set(event)
    assert event["event"] == "finished"
    return event


def test_json_lines_of_a_dry_run_are_the_plan(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tune_arguments(state, "--dry-run", "--json-lines")) == 0
    told = only_line(capsys)["result"]
    assert (told["outcome"], told["plan"]["grid_size"]) == (None, 96)


def test_json_lines_say_that_somebody_holds_the_board(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tune_arguments(state, "--dry-run", "--json")) == 0  # so that the board is there
    capsys.readouterr()
    with (
        closing(VirtualMachine(Path(state[-1]) / "board", on_reset="exit")) as machine,
        hold_board(machine.host(Path(state[-1])), verb="tune"),
    ):
        assert main(tune_arguments(state, "--json-lines")) == 12
    told = only_line(capsys)["result"]
    assert (told["outcome"], told["reason"]["code"]) == ("board_busy", "lock_held")


def test_json_and_json_lines_do_not_go_together(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(tune_arguments(state, "--json", "--json-lines"))
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_puts_every_knob_back(state: list[str], number: signal.Signals, code: int) -> None:
    before = knobs(state)
    root = Path(state[-1]) / "board"
    set_faults(str(root), hold={"by": "clock", "after_s": 150.0})
    command = [sys.executable, "-m", "jouled.cli", *tune_arguments(state, "--json")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if (root / FOLDER / "held").exists():
            break
        pause.wait(0.01)
    child.send_signal(number)
    (root / FOLDER / "release").touch()
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, err) == (code, "")
    body = json.loads(out)
    assert (body["outcome"], body["reason"]["code"]) == ("cancelled", "user")
    assert knobs(state) == before


def test_reader_that_goes_away_costs_no_knob(state: list[str]) -> None:
    before = knobs(state)
    command = [sys.executable, "-m", "jouled.cli", *tune_arguments(state, "--json-lines")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr is not None
    err = child.stderr.read()
    child.stderr.close()
    child.wait(timeout=PATIENCE_S)
    assert "Traceback" not in err
    if child.returncode != 0:
        assert knobs(state) == before


WITH_PEAK = """
import sys
from pathlib import Path
from jouled.cli import main
code = main(sys.argv[1:])
lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmHWM")), file=sys.stderr)
sys.exit(code)
"""


def test_job_stays_under_250_mib(state: list[str]) -> None:
    command = [sys.executable, "-c", WITH_PEAK, *tune_arguments(state, "--json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert int(done.stderr) / 1024 <= 250


# --- who may do what ----------------------------------------------------------------------------------------


def as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AS_NOBODY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("arguments", [["tune", "--latency-bound-ratio", "1.2"], ["restore"], ["forget", "1-1-1-1"]])
def test_other_users_are_told_the_sudo_line(arguments: list[str]) -> None:
    done = as_nobody(*arguments)
    assert done.returncode == 6, done.stderr
    assert f"sudo jouled {arguments[0]}" in done.stderr


@pytest.mark.parametrize("verb", ["modes", "verify"])
def test_other_users_may_look_at_a_machine_and_learn_that_it_is_no_jetson(verb: str) -> None:
    done = as_nobody(verb)
    assert done.returncode == 8, done.stderr
    assert "no Jetson" in done.stderr


def test_what_only_root_may_read_is_unknown_and_not_wrong(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["modes", *state]) == 0
    set_faults(str(Path(state[-1]) / "board"), user="nobody")
    capsys.readouterr()
    assert main(["verify", *state, "--json"]) == 0
    body = read_json(capsys)
    assert body["mismatches"] == []
    assert any("debug" in path for path in body["unknown"])
    assert main(["modes", *state]) == 0


def test_mode_names_are_read_back_as_printed() -> None:
    for mode in (PowerMode(12, 2201600000, 1300500000, 665600000), PowerMode(None, None, 918000000, None)):
        assert parse_mode_name(mode_name(mode)) == mode
    for wrong in ("", "12-1-1", "x-y-z-w", "1.5-1-1-1", "12-1497.6-918-2133-1"):
        with pytest.raises(UsageError):
            parse_mode_name(wrong)


def test_config_file_is_checked_and_its_bound_gives_way_to_the_command_line(
    tmp_path: Path, state: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    path.write_text("schema = 1\n[target]\nlatency_bound_s = 0.0001\n[job]\nbudget = 9\n")
    assert main(["check-config", "--config", str(path), "--print"]) == 0
    assert "latency_bound_s = 0.0001" in capsys.readouterr().out
    assert main(["tune", *state, "--config", str(path), "--json"]) == 3
    assert read_json(capsys)["outcome"] == "no_feasible"
    assert main(["tune", *state, "--config", str(path), "--latency-bound-ratio", "1.2", "--json"]) == 0
    assert read_json(capsys)["outcome"] == "tuned"
    path.write_text("schema = 1\n[target]\nlatency_bound = 0.1\n")
    assert main(["check-config", "--config", str(path)]) == 2
    assert "did you mean target.latency_bound_s?" in capsys.readouterr().err


def test_traces_of_a_configuration_are_read_when_it_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, trace = tmp_path / "config.toml", tmp_path / "t.csv"
    path.write_text(f"[workloads.detector]\nengine = '/a.plan'\narrival = 'trace'\ntrace = '{trace}'\n")
    assert main(["check-config", "--config", str(path)]) == 2
    assert "workloads.detector.trace:" in (told := capsys.readouterr().err)
    assert f"{trace}: the trace cannot be read: No such file" in told
    trace.write_text("0\n0.1\n0.05\n")
    assert main(["check-config", "--config", str(path)]) == 2
    assert "t.csv:3: wanted at least the 0.1 s of the line before" in capsys.readouterr().err
    trace.write_text("0\n0.1\n0.3\n")
    assert main(["check-config", "--config", str(path)]) == 0


def test_percentile_out_of_reach_is_said_and_not_a_traceback(
    state: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    slow = ["tune", *state, "--virtual-workload", "vit-b16", "--rate-hz", "2", "--latency-percentile", "99.9"]
    assert main([*slow, "--latency-bound-ratio", "1.2"]) == 3
    assert "p99.9 cannot be bounded" in capsys.readouterr().out
    assert main([*slow, "--no-latency-bound", "--budget", "3", "--json"]) == 0
    body = read_json(capsys)
    assert body["reference"]["latency_upper_s"] is None
    assert body["idle_power_w"] > 0.0


def test_verify_after_a_kill_names_restore(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(state[-1]) / "board"
    assert main(["verify", *state]) == 0
    set_faults(str(root), hold={"by": "clock", "after_s": 150.0})
    command = [sys.executable, "-m", "jouled.cli", *tune_arguments(state, "--json")]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if (root / FOLDER / "held").exists():
            break
        pause.wait(0.01)
    capsys.readouterr()
    assert main(["verify", *state]) == 5
    assert f"a job holds the board (pid {child.pid}" in capsys.readouterr().out
    child.kill()
    child.wait(timeout=PATIENCE_S)
    set_faults(str(root))
    assert main(["verify", *state]) == 5
    out = capsys.readouterr().out
    assert "was interrupted and has left a snapshot" in out
    assert f"jouled restore {' '.join(state)}" in out
    assert main(["restore", *state]) == 0
    assert main(["verify", *state]) == 0


def test_held_board_is_let_go_by_name(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forget", *state, "--held"]) == 0
    assert "was not held" in capsys.readouterr().out


def test_state_that_this_user_may_not_read_makes_nothing_wrong(
    state: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise NotPermittedError("state: may not be read by this user")

    assert main(tune_arguments(state, "--json")) == 0
    monkeypatch.setattr("jouled.worker.commands.winner_in_force", forbidden)
    monkeypatch.setattr("jouled.cli.modes.winner_in_force", forbidden)
    capsys.readouterr()
    assert main(["verify", *state, "--json"]) == 0
    body = read_json(capsys)
    assert (body["what"], body["mismatches"]) == ("unknown to this user", [])
    assert main(["modes", *state]) == 0
    assert "what was measured is not shown" in capsys.readouterr().err


def test_full_disk_behind_the_output_is_no_traceback(state: list[str]) -> None:
    for arguments in (["modes", *state], ["tune", *state, "--json"]):
        with open("/dev/full", "w", encoding="utf-8") as full:
            command = [sys.executable, "-m", "jouled.cli", *arguments]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr


def _hints() -> Iterator[str]:
    """What the product's hints and to-dos say, word by word of the source."""
    for path in Path(jouled.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg in ("hint", "to_do"):
                yield from (str(part.value) for part in ast.walk(node.value) if isinstance(part, ast.Constant))


def test_hints_name_no_verb_that_is_not_there_yet() -> None:
    verbs = {*next(action.choices for action in make_parser()._actions if action.choices and action.dest == "verb")}
    named = {verb for text in _hints() for verb in re.findall(r"\bjouled ([a-z][a-z-]*)", text)}
    assert {"retune", "pause", "status", "install"} <= named
    assert named & {"watch", "report", "front"} <= verbs  # doctor: board.found names it already
