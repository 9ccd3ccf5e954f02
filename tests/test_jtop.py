"""The meter that asks jtop's service, against a stand-in for its client: what is read, what is not, and how it ends."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import jouled.board.jtop_meter
from jouled.board.clock import SystemClock
from jouled.board.jtop_meter import JtopMeter, Link, interpreter, open_jtop
from jouled.board.process import Processes
from jouled.errors import NotSupportedError, SensorError
from jouletune.trace import total_power_w

STANDINS = Path(__file__).parent / "standins"
AGX = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")


def rail(volt: int, curr: int) -> dict[str, Any]:
    return {"volt": volt, "curr": curr, "power": volt * curr // 1000, "avg": 0, "online": True, "warn": 32760}


def agx(amperes: float) -> dict[str, Any]:
    """What the service reads of an AGX Orin: its `tot` is the sum of all rails, VDDQ once too often."""
    rails = {name: rail(5000, round(1000 * amperes)) for name in (*AGX, "VDDQ_VDD2_1V8AO")}
    return {"power": {"rail": rails, "tot": {"power": 20_000, "avg": 20_000}}, "mode": "MAXN"}


def nano(amperes: float) -> dict[str, Any]:
    """Of a board whose total is a rail: it is told as `tot` alone."""
    total = {**rail(5000, round(1000 * amperes)), "name": "VDD_IN"}
    return {"power": {"rail": {"VDD_SOC": rail(5000, 100)}, "tot": total}, "mode": "15W"}


Open = Callable[..., JtopMeter]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens a meter whose client does as `plan` says; ended after the test."""
    meters = []

    def open_it(rails: tuple[str, ...], **plan: Any) -> JtopMeter:
        path = tmp_path / "plan.json"
        path.write_text(json.dumps({"then": "end", "interval": 0.05, **plan}))
        python = tmp_path / "python"
        settings = f"JTOP_PLAN={path} PYTHONPATH={STANDINS}"
        python.write_text(f'#!/bin/sh\nshift  # -I\n{settings} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        partial = bool(plan.pop("allow_partial", False))
        meter = open_jtop(Processes(), rails, averaging_s=0.43, allow_partial=partial, find=lambda: str(python))
        meters.append(meter)
        return meter

    yield open_it
    for meter in meters:
        meter.close()


def sampled(meter: JtopMeter, samples: int) -> tuple[list[float], int]:
    """Watts of so many samples, and how many were lost."""
    sampling = meter.sampling(SystemClock(), rate_hz=5.0)
    sampling.start()
    link = meter.linked()
    while len(sampling.trace().t_s) + sampling.trace().lost < samples and link.is_alive:
        link.next_sample()
    trace = sampling.stop()
    return total_power_w(trace).tolist(), trace.lost


# --- what is read -------------------------------------------------------------------------------------------


def test_the_total_is_the_boards_rails_and_never_jtops_own(opened: Open) -> None:
    meter = opened(AGX, sets=[agx(1.0), agx(1.0), agx(2.0), agx(2.0)] * 20)
    assert meter.rail == "VDD_GPU_SOC+VDD_CPU_CV+VIN_SYS_5V0"
    assert meter.coverage == "module, read by jtop"
    watts, lost = sampled(meter, 6)
    assert set(watts) == {15.0, 30.0}
    assert lost == 0


def test_a_rail_that_jtop_takes_for_its_total_is_a_rail(opened: Open) -> None:
    watts, _ = sampled(opened(("VDD_IN",), sets=[nano(1.2)] * 100), 3)
    assert set(watts) == {6.0}


def test_the_constant_outside_the_rail_is_added(opened: Open) -> None:
    sampling = opened(("VDD_IN",), sets=[nano(1.0)] * 100).sampling(SystemClock(), rate_hz=5.0, external_w=2.5)
    assert sampling.power_w is None
    sampling.start()
    assert sampling.power_w == pytest.approx(7.5)
    assert total_power_w(sampling.stop())[0] == pytest.approx(7.5)


def test_times_are_of_the_systems_clock_and_one_sampling_sees_none_of_before(opened: Open) -> None:
    meter = opened(("VDD_IN",), sets=[nano(1.0)] * 200)
    sampled(meter, 3)
    clock = SystemClock()
    began_s = clock.monotonic_s()
    sampling = meter.sampling(clock, rate_hz=5.0)
    sampling.start()
    meter.linked().next_sample()
    times_s = sampling.stop().t_s
    assert times_s[0] >= began_s - 0.05  # the reader's time of a line that came just now
    assert times_s[-1] <= clock.monotonic_s()
    assert list(times_s) == sorted(times_s)


def test_an_average_is_no_shorter_than_the_service_reads(opened: Open) -> None:
    assert opened(AGX, sets=[agx(1.0)] * 50).averaging_s == 0.43
    slow = opened(AGX, sets=[agx(1.0)] * 50, interval=1.0)  # another client came first
    assert (slow.interval_s, slow.averaging_s) == (1.0, 1.0)


# --- what is not --------------------------------------------------------------------------------------------


def test_a_rail_that_could_not_be_read_costs_its_sample_and_is_never_zero(opened: Open) -> None:
    broken = agx(1.0)
    del broken["power"]["rail"]["VDD_CPU_CV"]
    sampling_sets = [agx(1.0), agx(1.0), broken, agx(1.0)] * 30
    watts, lost = sampled(opened(AGX, sets=sampling_sets), 8)
    assert set(watts) == {15.0}
    assert lost >= 1


def test_readings_that_stand_still_are_lost_and_said(opened: Open) -> None:
    meter = opened(AGX, sets=[agx(1.0)] * 6, then="stale")
    sampling = meter.sampling(SystemClock(), rate_hz=5.0)
    sampling.start()
    link = meter.linked()
    pause = threading.Event()
    while link.lost == 0 and link.is_alive:
        pause.wait(0.01)
    trace = sampling.stop()
    assert trace.lost >= 1
    assert len(trace.t_s) <= 6
    assert "nothing new" in str(sampling.last_error)


def test_a_service_that_goes_ends_the_samples_and_is_asked_again_next_time(opened: Open) -> None:
    meter = opened(AGX, sets=[agx(1.0)] * 4, then="lost")
    sampling = meter.sampling(SystemClock(), rate_hz=5.0)
    sampling.start()
    link = meter.linked()
    while link.is_alive:
        with suppress(SensorError):
            link.next_sample()
    with pytest.raises(SensorError, match="Lost connection"):
        link.next_sample()
    sampling.stop()
    assert "Lost connection with jtop server" in str(sampling.last_error)
    assert sampled(meter, 1)[0] == [15.0]  # a new reader
    assert meter.linked() is not link


ABOUT = {"about": {"version": "7.2.2", "interval_s": 0.1, "rails": ["VDD_IN"]}}


def scripted(*scripts: str) -> JtopMeter:
    """A meter whose readers are shell scripts, one after the other."""
    left = iter(scripts)
    start = lambda: Processes().spawn(["/bin/sh", "-c", f"echo '{json.dumps(ABOUT)}'; {next(left)}"])  # noqa: E731
    return JtopMeter(start, ("VDD_IN",), coverage="module", averaging_s=0.4, allow_partial=False)


def test_a_reader_that_was_silent_is_replaced_for_the_next_window(monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps({"t_s": 1.0, "rails": {"VDD_IN": {"mv": 5000, "ma": 1000}}})
    meter = scripted("read wait", f"while sleep 0.01; do echo '{line}'; done")
    monkeypatch.setattr(Link, "patience_s", 0.05)
    sampling = meter.sampling(SystemClock(), rate_hz=5.0)
    try:
        with pytest.raises(SensorError, match="jtop: its reader is silent"):
            sampling.start()
        monkeypatch.setattr(Link, "patience_s", 30.0)
        sampling.start()
        assert sampling.power_w == 5.0
    finally:
        meter.close()


@pytest.mark.parametrize("line", ["[1, 2]", '{"rails": 5, "t_s": 1}', '{"rails": {"VDD_IN": 5}, "t_s": 1}'])
def test_what_is_no_line_of_its_protocol_is_a_sensor_error_that_quotes_it(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    meter = scripted(f"echo '{line}'; read wait")
    monkeypatch.setattr(Link, "patience_s", 0.2)
    try:
        meter.linked().about()
        with pytest.raises(SensorError, match="said what is no line of its protocol") as caught:
            meter.sampling(SystemClock(), rate_hz=5.0).start()
        assert line in str(caught.value)
    finally:
        meter.close()


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("The jtop.service is not active. Please run:\nsudo jtop --install-service", "The jtop.service is not active"),
        ("I can't access jtop.service.\nPlease logout or reboot this board.", "I can't access jtop.service"),
        ("Mismatch version jtop service: [4.2.1] and client: [7.2.2].", "Mismatch version"),
    ],
)
def test_what_keeps_it_from_the_service_is_said_in_its_own_words(opened: Open, start: str, said: str) -> None:
    with pytest.raises(NotSupportedError, match=said) as refused:
        opened(AGX, sets=[], start=start)
    assert "\n" not in str(refused.value)
    assert "systemctl start jtop" in refused.value.hint


def test_rails_that_it_does_not_read_are_named(opened: Open) -> None:
    with pytest.raises(NotSupportedError, match=r"jtop 7.2.2 reads no VIN; it reads: VDDQ_VDD2_1V8AO, VDD_CPU_CV"):
        opened(("VIN",), sets=[agx(1.0)] * 20)
    partial = opened(("VIN", "VDD_GPU_SOC"), sets=[agx(1.0)] * 20, allow_partial=True)
    assert (partial.rail, partial.coverage) == ("VDD_GPU_SOC", "partial, without VIN, read by jtop")


# --- which python -------------------------------------------------------------------------------------------


def command(folder: Path, first_line: str) -> None:
    path = folder / "jtop"
    path.write_text(f"{first_line}\nimport sys\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_interpreter_is_that_of_the_command_jtop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert interpreter(str(tmp_path)) is None
    command(tmp_path, f"#!{sys.executable}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert interpreter(str(tmp_path)) == sys.executable
    for useless in ("#!/usr/bin/env python3", "#!/no/such/python", "", "#!python3"):
        command(tmp_path, useless)
        assert interpreter(str(tmp_path)) is None


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """We are root, to whom all belongs but the files that are named here; nobody else may write above `tmp_path`."""
    others: set[str] = set()
    real = Path.stat

    def told(path: Path, **keys: Any) -> os.stat_result:
        found: list[Any] = list(real(path, **keys))
        found[stat.ST_UID] = 1000 if path.name in others else 0
        if tmp_path not in path.parents:
            found[stat.ST_MODE] &= ~0o022
        return os.stat_result(found)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(Path, "stat", told)
    return others


def jtop_of_root(folder: Path) -> Path:
    """The command in a folder, its Python in another by a link into a third."""
    for name in ("bin", "venv", "real"):
        (folder / name).mkdir(mode=0o755)
    python = folder / "venv" / "python"
    python.symlink_to(folder / "real" / "python3")
    (folder / "real" / "python3").write_text("#!/bin/sh\n")
    (folder / "real" / "python3").chmod(0o755)
    command(folder / "bin", f"#!{python}")
    (folder / "bin" / "jtop").chmod(0o755)
    return python


@pytest.mark.parametrize("place", ["bin", "bin/jtop", "venv", "real", "real/python3"])
@pytest.mark.parametrize("more", [0o020, 0o002, 0])
def test_root_runs_no_interpreter_that_another_could_change(
    tmp_path: Path, roots: set[str], caplog: pytest.LogCaptureFixture, place: str, more: int
) -> None:
    python = jtop_of_root(tmp_path)
    assert interpreter(str(tmp_path / "bin")) == str(python)
    if more:
        (tmp_path / place).chmod(0o755 | more)
    else:
        roots.add((tmp_path / place).name)
    assert interpreter(str(tmp_path / "bin")) is None
    assert f"wanted {tmp_path / place} to be" in caplog.text


def test_without_jtop_it_says_what_to_install() -> None:
    with pytest.raises(NotSupportedError, match="no jetson-stats here") as refused:
        open_jtop(Processes(), AGX, averaging_s=0.43, find=lambda: None)
    assert "pip3 install jetson-stats" in refused.value.hint


def test_the_reader_imports_nothing_of_jouled_and_ends_with_its_parent(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"sets": [nano(1.0)] * 1000, "then": "end", "interval": 0.01}))
    source = Path(jouled.board.jtop_meter.__file__).with_name("jtop_child.py")
    env = {"PATH": "/usr/bin:/bin", "JTOP_PLAN": str(plan), "PYTHONPATH": str(STANDINS)}
    argv = [sys.executable, "-S", str(source), "0.01"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=tmp_path) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["about"]["rails"] == ["VDD_IN", "VDD_SOC"]
        child.stdin.close()  # as when the parent is killed
        assert child.wait(20) == 0
