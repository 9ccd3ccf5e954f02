"""The daemon's sensors: one that fails takes no other along, is counted and said; joules add up."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jouled.board.board import Board, discover
from jouled.board.clock import SystemClock
from jouled.board.host import Host
from jouled.board.process import Processes
from jouled.board.sysfs import Sysfs
from jouled.config import load
from jouled.service.energy import EnergyCounter
from jouled.service.sensors import FIND_EVERY_S, Sensors
from jouled.service.view import View
from jouled.state import Readings
from jouled.virtual.tree import make_tree

RAIL = "VDD_GPU_SOC"


class Bench:
    """A virtual board's files and the sensors that read them."""

    def __init__(self, folder: Path) -> None:
        make_tree(folder / "board")
        self.sysfs = Sysfs(folder / "board")
        self.host = Host(self.sysfs, Processes(path=""), SystemClock(), folder, privileged=False)
        self.board: Board = discover(self.host)
        self.sensors = Sensors(self.sysfs, ())
        self.now_s = 1000.0

    def read(self, *, with_caps: bool = True) -> Readings:
        self.now_s += 10.0
        return self.sensors.read(self.board, 1.0, self.now_s, with_caps=with_caps)

    def place(self, pattern: str) -> Path:
        return self.sysfs.real(self.sysfs.glob(pattern)[0])

    def zone(self, kind: str) -> Path:
        zones = self.sysfs.glob("/sys/devices/virtual/thermal/thermal_zone*/type")
        return self.sysfs.real(next(path for path in zones if self.sysfs.read(path) == kind)).with_name("temp")


@pytest.fixture(name="bench")
def _bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def _break(path: Path) -> None:
    """Not even root reads a folder."""
    path.unlink()
    path.mkdir()


def test_of_sensors_that_work_none_is_counted_and_each_is_named(bench: Bench) -> None:
    found = bench.read()
    assert set(found.sensor_errors.values()) == {0}
    assert {"rails", "clocks", "caps", "oc1", *found.temperature_c} <= set(found.sensor_errors)
    assert set(found.rail_power_w) == {RAIL, "VDD_CPU_CV", "VIN_SYS_5V0"}
    assert set(found.clock_cap_hz) == {"cpu", "gpu", "emc"}


def test_a_zone_that_is_lost_is_counted_each_time_said_once_and_takes_no_other_along(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    before = bench.read()
    _break(bench.zone("tj-thermal"))
    found = [bench.read() for _ in range(3)][-1]
    assert found.sensor_errors["tj-thermal"] == 3
    assert sum(found.sensor_errors.values()) == 3
    assert set(before.temperature_c) - set(found.temperature_c) == {"tj-thermal"}
    assert (found.rail_power_w, found.clock_hz) == (before.rail_power_w, before.clock_hz)
    assert ["tj-thermal" in message for message in caplog.messages] == [True]


def test_a_rail_that_is_lost_takes_the_total_along_and_comes_back(bench: Bench) -> None:
    watts = bench.read().rail_power_w
    place = bench.place("/sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon*/curr1_input")
    text = place.read_text()
    _break(place)
    found = bench.read()
    assert (found.rail_power_w, found.sensor_errors["rails"]) == ({}, 1)
    assert found.temperature_c
    place.rmdir()
    place.write_text(text)
    assert (bench.read().rail_power_w, bench.read().sensor_errors["rails"]) == (watts, 1)


def test_a_rail_that_is_lost_from_the_start_is_looked_for_once_a_minute(bench: Bench) -> None:
    place = bench.place("/sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon*/curr1_input")
    text = place.read_text()
    place.write_text("banana\n")
    assert bench.read().sensor_errors["rails"] == 1
    place.write_text(text)
    assert bench.read().rail_power_w == {}
    bench.now_s += FIND_EVERY_S
    assert set(bench.read().rail_power_w) == {RAIL, "VDD_CPU_CV", "VIN_SYS_5V0"}


def test_rails_that_are_hidden_are_absent_and_not_lost(bench: Bench) -> None:
    for name in bench.sysfs.glob("/sys/class/hwmon/hwmon*/name"):
        if bench.sysfs.read(name) == "ina3221":
            bench.sysfs.real(name).write_text("none\n")
    found = bench.read()
    assert (found.rail_power_w, found.sensor_errors["rails"]) == ({}, 0)


class Refusing(Sysfs):
    """Answers `number` where a path ends so."""

    def __init__(self, root: Path, end: str, number: int) -> None:
        super().__init__(root)
        self._end, self._number, self.refused = end, number, 0

    def _read_bytes(self, path: str) -> bytes:
        if path.endswith(self._end):
            self.refused += 1
            raise OSError(self._number, os.strerror(self._number))
        return super()._read_bytes(path)


@pytest.mark.parametrize(
    ("end", "number", "sensor", "count"),
    [
        ("thermal_zone8/temp", errno.EAGAIN, "tj-thermal", 0),  # its unit is off
        ("thermal_zone8/temp", errno.EIO, "tj-thermal", 1),
        ("clk/emc/rate", errno.EACCES, "clocks", 0),  # debugfs is root's
        ("policy4/scaling_cur_freq", errno.ENOENT, "clocks", 0),  # its cores are offline
        ("17000000.gpu/cur_freq", errno.EIO, "clocks", 1),
        ("17000000.gpu/max_freq", errno.EIO, "caps", 1),
    ],
)
def test_what_is_off_or_another_users_is_absent_and_not_lost(
    bench: Bench, end: str, number: int, sensor: str, count: int
) -> None:
    assert bench.sysfs.read("/sys/class/thermal/thermal_zone8/type") == "tj-thermal"
    refusing = Refusing(bench.sysfs.root, end, number)
    bench.sensors = Sensors(refusing, ())
    found = bench.read()
    assert (found.sensor_errors[sensor], sum(found.sensor_errors.values())) == (count, count)
    assert refusing.refused == 1


def test_caps_are_knobs_and_read_only_when_told_to(bench: Bench, tmp_path: Path) -> None:
    cap_hz = bench.read().clock_cap_hz["gpu"]
    bench.place("/sys/class/devfreq/17000000.gpu/max_freq").write_text("306000000\n")
    assert bench.read(with_caps=False).clock_cap_hz["gpu"] == cap_hz
    assert bench.read().clock_cap_hz["gpu"] == 306_000_000


def test_a_board_that_cannot_be_read_keeps_its_counts(bench: Bench) -> None:
    _break(bench.zone("tj-thermal"))
    bench.read()
    found = bench.sensors.read(None, 1.0, bench.now_s, with_caps=True)
    assert (found.sensor_errors["tj-thermal"], found.rail_power_w) == (1, {})


# --- joules -------------------------------------------------------------------------------------------------


def test_joules_are_the_watts_over_the_time_between() -> None:
    counter = EnergyCounter()
    for at_s, watts in ((0.0, 10.0), (1.0, 10.0), (2.0, 20.0), (3.5, 20.0)):
        counter.add(at_s, {"a": watts, "b": 1.0}, period_s=1.0)
    assert counter.told() == pytest.approx({"a": 10.0 + 15.0 + 30.0, "b": 3.5})


def test_over_a_gap_nothing_is_guessed() -> None:
    counter = EnergyCounter()
    counter.add(0.0, {"a": 10.0}, period_s=1.0)
    counter.add(1.0, {}, period_s=1.0)
    counter.add(2.0, {"a": 10.0}, period_s=1.0)
    counter.add(60.0, {"a": 10.0}, period_s=1.0)
    counter.add(61.0, {"a": 10.0}, period_s=1.0)
    assert counter.told() == {"a": pytest.approx(10.0)}


@given(st.lists(st.tuples(st.floats(-1.0, 5.0), st.dictionaries(st.sampled_from("abc"), st.floats(0.0, 60.0)))))
def test_joules_never_go_down(readings: list[tuple[float, dict[str, float]]]) -> None:
    counter, now_s, before = EnergyCounter(), 0.0, dict[str, float]()
    for step_s, watts in readings:
        now_s += step_s
        counter.add(now_s, watts, period_s=1.0)
        told = counter.told()
        assert all(told[rail] >= joules for rail, joules in before.items())
        before = told


def test_a_view_counts_what_its_rails_take(bench: Bench) -> None:
    clock = bench.host.clock
    view = View(bench.host, load(None, {}))
    view.count_energy(1.0)  # no board yet: nothing
    view.refresh()
    begun_s = clock.monotonic_s()
    view.count_energy(1.0)
    while clock.monotonic_s() - begun_s < 0.02:
        os.sched_yield()
    view.count_energy(1.0)
    took_s = clock.monotonic_s() - begun_s
    found = view.readings(1.0)
    for rail, watts in found.rail_power_w.items():
        assert 0.0 < found.energy_j[rail] <= watts * took_s * 1.001
