"""Pictures of jobs and of the service: everything fits, whatever the numbers, names and sizes; and what they tell."""

from __future__ import annotations

import io
import json
import os
import pty
import random
import re
import subprocess
import sys
import termios
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.face import JOB, NOW_S, STATUS

from jouled.cli import guard
from jouled.cli.boardpicture import Seen, service_picture
from jouled.cli.display import Display
from jouled.cli.jobpicture import job_picture
from jouled.cli.jobview import JobView
from jouled.cli.paper import Paper
from jouled.cli.progress import Progress
from jouled.cli.terminal import Size, Terminal, is_drawable, key_by_key, size_of
from jouled.state import State

KEYS = ("q stops and puts the board back", "q stops")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MODES = [
    [12, 2_201_600_000, 1_300_500_000, 3_199_000_000, None, 1, 1],
    [12, 1_497_600_000, 918_000_000, 2_133_000_000, None, 1, 1],
    [12, 729_600_000, 306_000_000, 2_133_000_000, None, 1, 1],
    [8, 1_190_400_000, 612_000_000, 2_133_000_000, None, 1, 1],
]


def _event(seq: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"v": 1, "seq": seq, "t_s": 100.0 + 20 * seq, "event": kind, "job": JOB, **fields}


def _trial(seq: int, index: int, purpose: str = "search", energy_j: float | None = 1.0, **more: Any) -> dict[str, Any]:
    cores, cpu_hz, gpu_hz, emc_hz, *variant = MODES[index]
    window = {"energy_j": energy_j, "power_w": 24.5, "latency_s": 0.0241, "latency_upper_s": 0.0246}
    trial = {
        "number": seq - 4,
        "attempt": 0,
        "purpose": purpose,
        "index": index,
        "candidate": {
            "mode": {"cores": cores, "cpu_hz": cpu_hz, "gpu_hz": gpu_hz, "emc_hz": emc_hz},
            "variant": dict(zip(("engine", "batch", "instances"), variant, strict=True)),
        },
        "policy": "capped",
        "measurement": None if energy_j is None else window,
        "invalid": None,
        "infeasible": None,
        "cut": energy_j is None,
        "detail": "",
        **more,
    }
    return _event(seq, "trial", trial=trial, temperature_c=51.5)


STORY: tuple[dict[str, Any], ...] = (
    _event(
        1,
        "job_started",
        board="agx-orin-64gb",
        base_mode="MAXN",
        grid_size=4,
        axes={"cpu_hz": [1, 2], "gpu_hz": [1, 2]},
        expected_s=600.0,
        budget=15,
        workload="detector",
        arrival="back_to_back",
        rail="VDD_IN",
        rail_coverage="module",
        space={"candidates": MODES, "reference": 0},
    ),
    _event(2, "phase", phase="reference"),
    _event(3, "mode_applied", index=0, policy="capped"),
    _trial(4, 0, "reference", 1.02),
    _event(5, "phase", phase="search", bound_s=0.033),
    _trial(6, 2, energy_j=None),
    _trial(7, 3, energy_j=None, invalid="throttled", detail="cpu-throttle-alert", cut=False),
    _event(8, "mode_applied", index=1, policy="capped"),
    _trial(9, 1, energy_j=0.8854),
    _event(10, "warning", text="the reference has moved"),
    _event(11, "decision", outcome="tuned", reason={"code": "converged", "text": "takes 13.2 % less"}),
    _event(12, "finished", result={"outcome": "tuned", "reason": {"code": "converged", "text": "takes 13.2 % less"}}),
)
NOW = _event(
    13,
    "progress",
    phase="window",
    elapsed_s=260.0,
    stretch_s=16.0,
    power_w=24.51,
    latency_s=0.0297,
    temperature_c=51.5,
    clock_hz={"cpu": 1_497_600_000, "gpu": 918_000_000, "emc": 2_133_000_000},
)


def _view(*events: Mapping[str, Any]) -> JobView:
    view = JobView()
    for event in events:
        view.take(event)
    return view


def _plain(lines: list[str]) -> list[str]:
    return [_COLOUR.sub("", line).rstrip() for line in lines]


def _drawn(view: JobView, columns: int = 80, rows: int = 24, encoding: str = "utf-8") -> list[str]:
    return _plain(job_picture(view, Paper(Size(columns, rows), encoding), KEYS))


# --- what is told ---------------------------------------------------------------------------------------------


def test_a_job_is_told_as_an_operator_asks_for_it() -> None:
    lines = _drawn(_view(*STORY[:10], NOW))
    assert lines == [
        "agx-orin-64gb, MAXN, detector, back_to_back                                4:00",
        "search: window, 0 of 16 s                               4 of at most 15 windows",
        "━" * 32 + "·" * 47,
        "mode      12-1497.6-918-2133  (cores-CPU-GPU-EMC, MHz)",
        "now        24.5 W   51.5 °C   CPU 1497.6, GPU 918, EMC 2133 MHz",
        "latency   29.7 ms, bound 33.0 ms ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━···· 90 %",
        "rail      VDD_IN (module)",
        "best      −13.2 % energy: 12-1497.6-918-2133, 885 mJ, <= 24.6 ms",
        "warning   the reference has moved",
        "",
        "  # power mode                energy   power     latency   change",
        "  1 12-2201.6-1300.5-3199     1.02 J  24.5 W  <= 24.6 ms    0.0 %",
        "  3 12-729.6-306-2133      too slow, cut short",
        "  4 8-1190.4-612-2133      thrown away: throttled cpu-throttle-alert",
        "  6 12-1497.6-918-2133        885 mJ  24.5 W  <= 24.6 ms  −13.2 %",
        "−13 %, 6 min left, q stops and puts the board back",
    ]


def test_a_small_terminal_keeps_what_the_job_is_about_and_what_keys_do() -> None:
    lines = _drawn(_view(*STORY[:10], NOW), 40, 4)
    assert lines[0].startswith("agx-orin-64gb, MAXN")
    assert lines[-1] == "−13 %, 6 min left, q stops"
    assert _drawn(_view(*STORY[:10], NOW), 40, 2) == ["−13 %, 6 min left, q stops"]


def test_what_breaks_the_bound_is_said_in_words() -> None:
    slow = {**NOW, "latency_s": 0.0363}
    assert any(line.endswith(" 110 %, too slow") for line in _drawn(_view(*STORY[:10], slow)))


def test_power_that_nobody_told_is_absent_and_not_zero() -> None:
    last = STORY[8]["trial"]
    silent = {**STORY[8], "trial": {**last, "measurement": {**last["measurement"], "power_w": None}}}
    shown = _drawn(_view(*STORY[:8], silent), 200)
    assert "0.0 W" not in "\n".join(shown)
    assert [line for line in shown if "885 mJ" in line]


def test_the_end_of_a_window_is_no_stretch_of_its_own() -> None:
    view = _view(*STORY[:10], NOW, {**NOW, "seq": 14, "t_s": 376.0}, {**NOW, "seq": 15, "t_s": 376.5, "stretch_s": 0.5})
    assert view.stretch() == ("window", 16.0, 16.0)


def test_an_event_that_was_heard_before_counts_once() -> None:
    assert _view(*STORY[:10], *STORY[:10]).windows == 4
    assert _view(*STORY).outcome == "tuned"


def test_where_only_variants_differ_they_are_what_is_told() -> None:
    started = {**STORY[0], "base_mode": "fixed", "axes": {"engine": ["a-fp16.plan", "a-int8.plan"], "batch": [1, 4]}}
    trial = _trial(4, 0, "reference", 1.02)
    trial["trial"]["candidate"] = {
        "mode": dict.fromkeys(("cores", "cpu_hz", "gpu_hz", "emc_hz")),
        "variant": {"engine": "a-int8.plan", "batch": 4, "instances": 1},
    }
    lines = _drawn(_view(started, *STORY[1:3], trial))
    assert any(line.startswith("variant") for line in lines)
    assert any(line.startswith("  # variant") for line in lines)
    assert any(line.startswith("  1 int8 b4 ") for line in lines)


def test_an_event_of_another_version_ends_nobody_who_shows_a_job() -> None:
    strange = [{"event": kind, "seq": 90 + seq} for seq, kind in enumerate(("trial", "phase", "progress", "decision"))]
    assert _drawn(_view(*STORY[:10], *strange)) == _drawn(_view(*STORY[:10]))


def test_thrown_away_and_infeasible_windows_are_never_the_best() -> None:
    wrong = (
        _trial(20, 2, energy_j=0.1, infeasible="latency"),
        _trial(21, 2, energy_j=0.1, invalid="throttled"),
    )
    best = _view(*STORY[:10], *wrong).best()
    assert best is not None
    assert best.row.name == "12-1497.6-918-2133"


@pytest.mark.parametrize(
    ("objective", "best"), [("energy", "12-1497.6-918"), ("throughput", "8-1190.4"), ("new", "12-1")]
)
def test_the_best_is_what_the_objective_calls_best(objective: str, best: str) -> None:
    measured = _trial(4, 0, "reference", 1.02), _trial(9, 1, energy_j=0.8), _trial(10, 3, energy_j=0.9)
    for trial, throughput_hz in zip(measured, (30.0, 25.0, 40.0), strict=True):
        trial["trial"]["measurement"]["throughput_hz"] = throughput_hz
    found = _view({**STORY[0], "objective": objective}, *measured).best()
    assert found is not None
    assert found.row.name.startswith(best)


# --- everything fits --------------------------------------------------------------------------------------------

_LETTERS = "aZ09 -_.,:;°µé漢字\u0301\u200b\u202e\x1b[31m\n\r\t\x00\x9b\U0001f600[bold]"


def _text(dice: random.Random) -> str:
    return "".join(dice.choice(_LETTERS) for _ in range(dice.choice([0, 3, 20, 120])))


def _number(dice: random.Random) -> float:
    return dice.choice([0.0, 1e-12, 0.999, 9.9996, 123.456, 1e9, 1e30, dice.random()])


def _any_view(dice: random.Random) -> JobView:
    started = {**STORY[0], "board": _text(dice), "workload": _text(dice), "rail": _text(dice)}
    started["axes"] = {"engine": [_text(dice), _text(dice)], "batch": [1, 64], "gpu_hz": [1, 2]}
    bound_s = dice.choice([None, _number(dice)])
    events = [started, _event(2, "phase", phase=dice.choice(["search", _text(dice)]), bound_s=bound_s)]
    for seq in range(4, 4 + dice.randrange(30)):
        trial = _trial(seq, dice.randrange(4), dice.choice(["reference", "search", _text(dice)]), _number(dice))
        trial["trial"]["candidate"]["variant"] |= {"engine": _text(dice), "batch": dice.choice([1, 10**6])}
        trial["trial"]["measurement"] |= {
            "power_w": _number(dice),
            "latency_upper_s": dice.choice([None, _number(dice)]),
        }
        trial["trial"] |= {"invalid": dice.choice([None, "throttled"]), "detail": _text(dice)}
        events.append(trial)
    seen = {"power_w": _number(dice), "latency_s": _number(dice), "stretch_s": _number(dice)}
    return _view(*events, {**NOW, "seq": 99, **seen}, _event(100, "warning", text=_text(dice)))


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    columns=st.integers(40, 240),
    rows=st.integers(1, 60),
    encoding=st.sampled_from(["utf-8", "ascii", "latin-1"]),
)
def test_no_line_is_wider_and_no_picture_higher_than_the_terminal(
    seed: int, columns: int, rows: int, encoding: str
) -> None:
    dice = random.Random(seed)
    paper, view, note = Paper(Size(columns, rows), encoding), _any_view(dice), _text(dice)
    status = {**replace(STATUS, state=State.TUNING, to_do=note, mismatches=(note,)).as_json(), "warnings": [note]}
    for lines in (
        job_picture(view, paper, KEYS, note),
        service_picture(Seen(status, None, NOW_S, note), paper, KEYS),
        service_picture(Seen(status, view, NOW_S, note), paper, KEYS),
        service_picture(Seen(None, None, NOW_S, note), paper, KEYS),
    ):
        assert len(lines) <= max(1, rows - 1)
        for line in lines:
            shown = _COLOUR.sub("", line)
            assert cell_len(shown) < columns
            assert shown.isprintable()


def test_a_terminal_without_our_signs_gets_others_of_the_same_width() -> None:
    view = _view(*STORY[:10], NOW)
    lines = _drawn(view, encoding="ascii")
    assert "\n".join(lines).isascii()
    assert [len(line) for line in lines] == [len(line) for line in _drawn(view)]


def test_no_color_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    paper, view = Paper(Size(80, 24), "utf-8"), _view(*STORY[:10], NOW)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[36m" in "".join(job_picture(view, paper, KEYS))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])[;m]", "".join(job_picture(view, paper, KEYS)))


# --- where it is drawn ------------------------------------------------------------------------------------------


def test_who_writes_to_a_file_or_a_dumb_terminal_gets_lines() -> None:
    assert not is_drawable(io.StringIO(), {"TERM": "xterm"})
    assert not is_drawable(None, {"TERM": "xterm"})
    master, slave = pty.openpty()
    with os.fdopen(master, "wb"), os.fdopen(slave, "w") as stream:
        assert is_drawable(stream, {"TERM": "xterm"})
        assert not is_drawable(stream, {"TERM": "dumb"})
        assert not is_drawable(stream, {})


def test_columns_and_lines_overrule_the_terminal() -> None:
    master, slave = pty.openpty()
    with os.fdopen(master, "wb"), os.fdopen(slave, "wb"):
        assert size_of(slave, {}) == Size(80, 24)
        assert size_of(slave, {"COLUMNS": "132", "LINES": "50"}) == Size(132, 50)
        assert size_of(slave, {"COLUMNS": "wide", "LINES": "-3"}) == Size(80, 24)


def test_lines_are_as_they_were_and_the_display_keeps_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Progress()
    for event in STORY:
        lines(event)
    printed = capsys.readouterr().err
    assert printed == (
        "  0:00  agx-orin-64gb in MAXN: 4 power modes, about 10 min\n"
        "  0:20  reference\n"
        "          #  cores-CPU-GPU-EMC, MHz      energy  power    latency   saves\n"
        "  1:00    1  12-2201.6-1300.5-3199        1.02 J  24.5 W <= 24.6 ms   +0.0 %\n"
        "  1:20  search, latency at most 33.0 ms\n"
        "  1:40    3  12-729.6-306-2133         too slow, cut short\n"
        "  2:00    4  8-1190.4-612-2133         thrown away: throttled cpu-throttle-alert\n"
        "  2:40    6  12-1497.6-918-2133           885 mJ  24.5 W <= 24.6 ms  +13.2 %\n"
        "  3:00  warning: the reference has moved\n"
    )
    master, slave = pty.openpty()
    with os.fdopen(master, "wb"), os.fdopen(slave, "w") as stream:
        terminal = Terminal(stream, None, {"TERM": "xterm"})
        display = Display(terminal, lambda: None, lambda: False)
        for event in STORY:
            display(event)
        terminal.close()
    assert display.kept.getvalue() == printed


# --- the guard --------------------------------------------------------------------------------------------------

_GUARD = Path(guard.__file__).read_text(encoding="utf-8")


def _guard(slave: int, *, ours: list[Any], before: list[Any], ends: str = "") -> None:
    told = {"before": guard.plain(before), "ours": guard.plain(ours), "text": "\x1b[?25h"}
    argv = [sys.executable, "-I", "-S", "-c", _GUARD]
    subprocess.run(argv, input=json.dumps(told).encode() + b"\n" + ends.encode(), stdout=slave, check=True, timeout=30)


def test_the_guard_puts_back_what_is_still_ours_and_leaves_what_a_shell_has_set_by_then() -> None:
    master, slave = pty.openpty()
    with os.fdopen(master, "rb"), os.fdopen(slave, "wb"):
        before = termios.tcgetattr(slave)
        ours = key_by_key(before)
        termios.tcsetattr(slave, termios.TCSANOW, ours)
        assert termios.tcgetattr(slave) != before
        _guard(slave, ours=ours, before=before, ends="\n")
        assert termios.tcgetattr(slave) != before, "we had ended in peace"
        _guard(slave, ours=ours, before=before)
        assert termios.tcgetattr(slave) == before
        shell = key_by_key(before)
        shell[0] &= ~termios.ICRNL
        termios.tcsetattr(slave, termios.TCSANOW, shell)
        _guard(slave, ours=ours, before=before)
        assert termios.tcgetattr(slave) == shell
        assert os.read(master, 100) == b"\x1b[?25h" * 2


def test_who_kills_by_name_does_not_kill_the_guard() -> None:
    assert "jouled" not in _GUARD
