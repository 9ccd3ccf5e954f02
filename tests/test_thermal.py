"""Heat and over-current: by type and name, absent where there is no value, never 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from jouled.board.sysfs import Sysfs
from jouled.board.thermal import ThermalSensors, ThermalState, over_current_growth, read_thermal
from jouled.virtual.faults import set_faults
from jouled.virtual.sysfs import VirtualSysfs
from jouled.virtual.tree import boot, make_tree

COOLING = "/sys/class/thermal/cooling_device*"
ZONE = "/sys/class/thermal/thermal_zone*"


@pytest.fixture
def board(tmp_path: Path) -> VirtualSysfs:
    make_tree(tmp_path / "board")
    return VirtualSysfs(tmp_path / "board")


def put(sysfs: Sysfs, pattern: str, kind: str, attribute: str, value: int) -> None:
    for folder in sysfs.glob(pattern):
        if sysfs.read(f"{folder}/type") == kind:
            sysfs.real(f"{folder}/{attribute}").write_text(f"{value}\n")
            return
    raise AssertionError(f"no {kind}")


def test_zones_are_read_by_type_in_degrees(board: VirtualSysfs) -> None:
    put(board, ZONE, "gpu-thermal", "temp", 51250)
    state = read_thermal(board)
    assert state.zones_c["gpu-thermal"] == 51.25
    assert state.zones_c["cpu-thermal"] == 45.0


def test_zone_of_a_unit_without_power_is_absent(board: VirtualSysfs) -> None:
    assert not [name for name in read_thermal(board).zones_c if name.startswith("cv")]  # EAGAIN


def test_junction_is_the_temperature_that_counts(board: VirtualSysfs) -> None:
    put(board, ZONE, "tj-thermal", "temp", 61000)
    put(board, ZONE, "soc0-thermal", "temp", 70000)
    assert read_thermal(board).hottest_c == 61.0


@pytest.mark.parametrize(
    ("zones_c", "hottest_c"),
    [({"tj-therm": 60.0, "CPU-therm": 70.0}, 60.0), ({"a": 50.0, "b": 70.0}, 70.0), ({}, None)],
)
def test_hottest_without_a_known_junction(zones_c: dict[str, float], hottest_c: float | None) -> None:
    assert ThermalState(zones_c, {}, {}, ()).hottest_c == hottest_c


@pytest.mark.parametrize("kind", ["cpufreq-cpu8", "devfreq-17000000.gpu", "gpu-throttle-alert"])
def test_active_cooling_device_is_throttling(board: VirtualSysfs, kind: str) -> None:
    assert read_thermal(board).throttling == ()
    put(board, COOLING, kind, "cur_state", 1)
    assert read_thermal(board).throttling == (kind,)


@pytest.mark.parametrize("kind", ["pwm-fan", "hot-surface-alert"])
def test_fan_and_surface_alert_are_no_throttling(board: VirtualSysfs, kind: str) -> None:
    put(board, COOLING, kind, "cur_state", 1)
    assert read_thermal(board).throttling == ()


def test_what_is_ignored_is_the_boards_to_say(board: VirtualSysfs) -> None:
    put(board, COOLING, "pwm-fan", "cur_state", 1)
    assert read_thermal(board, ignored_cooling=()).throttling == ("pwm-fan",)


def test_over_current_counters_are_found_whatever_their_number(board: VirtualSysfs) -> None:
    for _ in range(4):
        boot(board.root)
        sysfs = VirtualSysfs(board.root)
        (path,) = sysfs.glob("/sys/class/hwmon/hwmon*/oc2_event_cnt")
        sysfs.real(path).write_text("7\n")
        assert read_thermal(sysfs).over_current == {"oc1": 0, "oc2": 7, "oc3": 0}


def test_growth_is_by_source_and_only_where_both_looks_saw_it() -> None:
    before = ThermalState({}, {}, {"oc1": 1, "oc2": 5}, ())
    after = ThermalState({}, {}, {"oc1": 4, "oc3": 9}, ())
    assert over_current_growth(before, after) == {"oc1": 3}


def test_standing_alarm_is_named(board: VirtualSysfs) -> None:
    assert read_thermal(board).alarms == ()
    path = board.glob("/sys/class/hwmon/hwmon*/curr1_crit_alarm")[0]
    board.real(path).write_text("1\n")
    assert read_thermal(board).alarms == (path,)


def test_counter_that_cannot_be_read_is_absent(board: VirtualSysfs) -> None:
    set_faults(str(board.root), read_errors={"*oc1_event_cnt": "EIO"})
    assert set(read_thermal(board).over_current) == {"oc2", "oc3"}


def test_sensors_found_once_are_read_often(board: VirtualSysfs) -> None:
    sensors = ThermalSensors(board)
    sensors.read()
    types = sum(count for path, count in board.reads.items() if path.endswith("/type"))
    put_before = sensors.read().zones_c["gpu-thermal"]
    assert sum(count for path, count in board.reads.items() if path.endswith("/type")) == types
    put(board, ZONE, "gpu-thermal", "temp", 90000)
    assert sensors.read().zones_c["gpu-thermal"] == 90.0 != put_before


def test_board_without_any_sensor_gives_an_empty_look(tmp_path: Path) -> None:
    assert read_thermal(Sysfs(tmp_path)) == ThermalState({}, {}, {}, ())
