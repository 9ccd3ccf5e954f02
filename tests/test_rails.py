"""The total rail: found by name and label, summed as the board says, sampled without a guess."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jouled.board.channels import Rail
from jouled.board.clock import Clock
from jouled.board.meter import measure_idle_w
from jouled.board.rails import RailMeter, Sampler, find_meter
from jouled.board.sysfs import Sysfs
from jouled.errors import NotSupportedError, SensorError
from jouled.virtual.clock import SimClock
from jouled.virtual.faults import set_faults
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.runner import VirtualRunner
from jouled.virtual.sysfs import VirtualSysfs
from jouled.virtual.tree import boot, make_tree
from jouled.workload.runner import Arrival
from jouletune.space import Variant

TOTAL = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")


@pytest.fixture
def board(tmp_path: Path) -> VirtualSysfs:
    make_tree(tmp_path / "board")
    return VirtualSysfs(tmp_path / "board")


def channel_path(sysfs: Sysfs, label: str, attribute: str) -> str:
    for path in sysfs.glob("/sys/class/hwmon/hwmon*/in[1-3]_label"):
        if sysfs.read(path) == label:
            number = path[-len("1_label")]
            return f"{path.rpartition('/')[0]}/{attribute.format(number)}"
    raise AssertionError(f"no {label}")


def set_raw(sysfs: Sysfs, label: str, *, voltage_mv: int, current_ma: int) -> None:
    sysfs.real(channel_path(sysfs, label, "in{}_input")).write_text(f"{voltage_mv}\n")
    sysfs.real(channel_path(sysfs, label, "curr{}_input")).write_text(f"{current_ma}\n")


def clock() -> SimClock:
    return SimClock(start_s=100.0, boot_wall_s=0.0, passes=lambda _: None)


class Scripted:
    """A meter of one rail: what it gives at each read; None is a read that fails."""

    rail, coverage, averaging_s = "X", "module", 0.43
    rails = (Rail("X", 0.008, 0.02),)
    observer = None
    gpu = None

    def __init__(self, *readings: float | None) -> None:
        self.readings = list(readings)

    def read(self) -> tuple[tuple[float, float], ...]:
        watts = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if watts is None:
            raise SensorError("X: no reading")
        return ((5.0, watts / 5.0),)

    def sampling(self, clock: Clock, *, rate_hz: float, external_w: float = 0.0) -> Sampler:
        return Sampler(clock, self, rate_hz=rate_hz, external_w=external_w)

    def close(self) -> None:
        pass


# --- which rails --------------------------------------------------------------------------------------------


def test_total_of_agx_orin_is_three_rails_and_leaves_vddq_out(board: VirtualSysfs) -> None:
    set_raw(board, "VDD_GPU_SOC", voltage_mv=20000, current_ma=500)
    set_raw(board, "VDD_CPU_CV", voltage_mv=19000, current_ma=200)
    set_raw(board, "VIN_SYS_5V0", voltage_mv=5000, current_ma=1000)
    set_raw(board, "VDDQ_VDD2_1V8AO", voltage_mv=5000, current_ma=900)  # inside VIN_SYS_5V0
    meter = find_meter(board, TOTAL)
    assert meter.rail == "VDD_GPU_SOC+VDD_CPU_CV+VIN_SYS_5V0"
    assert meter.coverage == "module"
    assert meter.read() == ((20.0, 0.5), (19.0, 0.2), (5.0, 1.0))
    assert sum(v * a for v, a in meter.read()) == pytest.approx(18.8)


def test_steps_come_from_the_shunt(board: VirtualSysfs) -> None:
    board.real(channel_path(board, "VDD_CPU_CV", "shunt{}_resistor")).write_text("5000\n")
    board.real(channel_path(board, "VIN_SYS_5V0", "shunt{}_resistor")).unlink()
    steps = {rail.name: rail.current_step_a for rail in find_meter(board, TOTAL).rails}
    assert steps == pytest.approx({"VDD_GPU_SOC": 0.020, "VDD_CPU_CV": 0.008, "VIN_SYS_5V0": 0.0})
    assert all(rail.voltage_step_v == 0.008 for rail in find_meter(board, TOTAL).rails)


def test_hwmon_numbers_mean_nothing(board: VirtualSysfs) -> None:
    for _ in range(6):  # each boot numbers them at random
        boot(board.root)
        meter = find_meter(VirtualSysfs(board.root), TOTAL)
        assert [rail.name for rail in meter.rails] == list(TOTAL)


def test_partial_total_is_refused_with_the_names(board: VirtualSysfs) -> None:
    board.real(channel_path(board, "VDD_CPU_CV", "in{}_label")).write_text("VDD_ODD\n")
    with pytest.raises(NotSupportedError, match="no VDD_CPU_CV") as caught:
        find_meter(board, TOTAL)
    for name in ("VDD_GPU_SOC", "VIN_SYS_5V0", "VDD_ODD", "VDDQ_VDD2_1V8AO"):
        assert name in str(caught.value)
    assert "total_rails" in caught.value.hint


def test_partial_total_is_named_as_such_when_allowed(board: VirtualSysfs) -> None:
    board.real(channel_path(board, "VDD_CPU_CV", "in{}_label")).write_text("VDD_ODD\n")
    meter = find_meter(board, TOTAL, allow_partial=True)
    assert meter.rail == "VDD_GPU_SOC+VIN_SYS_5V0"
    assert meter.coverage == "partial, without VDD_CPU_CV"


def test_nothing_of_the_total_is_refused_even_then(board: VirtualSysfs) -> None:
    with pytest.raises(NotSupportedError, match="no VDD_IN"):
        find_meter(board, ("VDD_IN",), allow_partial=True)


def test_switched_off_channel_is_no_rail(board: VirtualSysfs) -> None:
    board.real(channel_path(board, "VDD_GPU_SOC", "in{}_enable")).write_text("0\n")  # reads give ENODATA
    with pytest.raises(NotSupportedError, match="no VDD_GPU_SOC"):
        find_meter(board, TOTAL)


def test_channel_without_a_value_is_no_rail(board: VirtualSysfs) -> None:
    path = board.kernel.canonical(channel_path(board, "VDD_GPU_SOC", "curr{}_input"))
    set_faults(str(board.root), read_errors={f"*{path.rpartition('/')[2]}": "ENODATA"})
    with pytest.raises(NotSupportedError, match="VDD_GPU_SOC"):
        find_meter(board, TOTAL)


def test_chip_of_another_kind_is_not_asked(board: VirtualSysfs) -> None:
    folder = Path(channel_path(board, "VDD_GPU_SOC", "name")).parent
    board.real(f"{folder}/name").write_text("ina219\n")  # as on a UPS hat
    with pytest.raises(NotSupportedError, match="VDD_GPU_SOC"):
        find_meter(board, TOTAL)


def test_two_chips_with_one_label_are_refused(board: VirtualSysfs) -> None:
    board.real(channel_path(board, "VDDQ_VDD2_1V8AO", "in{}_label")).write_text("VDD_CPU_CV\n")
    with pytest.raises(NotSupportedError, match="VDD_CPU_CV is measured twice"):
        find_meter(board, TOTAL)


@pytest.mark.parametrize(("interval", "averaging_s"), [("430", 0.43), ("860", 0.86), ("1", 0.43), ("?", 0.43)])
def test_update_interval_only_lengthens_the_averaging(board: VirtualSysfs, interval: str, averaging_s: float) -> None:
    board.real(channel_path(board, "VDD_GPU_SOC", "update_interval")).write_text(f"{interval}\n")
    assert find_meter(board, TOTAL).averaging_s == averaging_s


def test_sensor_that_vanishes_is_an_error_and_no_zero(board: VirtualSysfs) -> None:
    meter = find_meter(board, TOTAL)
    board.real(channel_path(board, "VDD_CPU_CV", "curr{}_input")).unlink()
    with pytest.raises(SensorError, match=r"VDD_GPU_SOC\+VDD_CPU_CV\+VIN_SYS_5V0: no reading"):
        meter.read()


def test_text_that_is_no_number_is_an_error(board: VirtualSysfs) -> None:
    meter: RailMeter = find_meter(board, TOTAL)
    board.real(channel_path(board, "VDD_CPU_CV", "in{}_input")).write_text("\n")
    with pytest.raises(SensorError, match="wanted an integer"):
        meter.read()


# --- sampling -----------------------------------------------------------------------------------------------


def test_window_of_20_s_at_5_hz_is_100_readings(board: VirtualSysfs) -> None:
    time = clock()
    meter = find_meter(board, TOTAL)
    path = channel_path(board, "VDD_CPU_CV", "curr{}_input")
    before = board.reads[path]
    sampler = Sampler(time, meter, rate_hz=5.0)
    sampler.start()
    time.sleep(20.0)
    trace = sampler.stop()
    assert board.reads[path] - before == 100
    assert trace.t_s.size == 100
    assert np.diff(trace.t_s) == pytest.approx(0.2)
    assert [rail.name for rail in trace.rails] == list(TOTAL)
    assert trace.rails[1].current_step_a == pytest.approx(0.02)
    assert (trace.period_s, trace.averaging_s, trace.lost) == (0.2, 0.43, 0)


def test_failed_readings_are_counted_and_leave_a_gap() -> None:
    time = clock()
    sampler = Sampler(time, Scripted(10.0, None, None, 10.0), rate_hz=1.0)
    sampler.start()
    time.sleep(3.5)
    trace = sampler.stop()
    assert trace.lost == 2
    assert trace.t_s.tolist() == [100.0, 103.0]
    assert isinstance(sampler.last_error, SensorError)


def test_power_now_holds_the_last_reading_and_the_external_part() -> None:
    time = clock()
    sampler = Sampler(time, Scripted(10.0, 12.0), rate_hz=1.0, external_w=3.0)
    assert sampler.power_w is None
    sampler.start()
    assert sampler.power_w == pytest.approx(13.0)
    time.sleep(1.5)
    assert sampler.power_w == pytest.approx(15.0)
    trace = sampler.stop()
    assert trace.external_w == 3.0
    assert (trace.rails[0].voltage_v * trace.rails[0].current_a).tolist() == pytest.approx([10.0, 12.0])


def test_sampler_starts_anew_and_only_once_at_a_time() -> None:
    time = clock()
    sampler = Sampler(time, Scripted(10.0), rate_hz=1.0)
    sampler.start()
    with pytest.raises(RuntimeError, match="runs already"):
        sampler.start()
    time.sleep(1.5)
    sampler.stop()
    sampler.start()
    assert sampler.stop().t_s.size == 1


def test_mistake_within_a_reading_comes_out_of_stop() -> None:
    class Wrong(Scripted):
        def read(self) -> tuple[tuple[float, float], ...]:
            raise ZeroDivisionError

    sampler = Sampler(clock(), Wrong(1.0), rate_hz=1.0)
    sampler.start()
    with pytest.raises(ZeroDivisionError):
        sampler.stop()


def test_trace_without_a_reading_is_empty_and_well_formed() -> None:
    sampler = Sampler(clock(), Scripted(None), rate_hz=1.0)
    sampler.start()
    trace = sampler.stop()
    assert trace.t_s.shape == (0,)
    assert trace.rails[0].voltage_v.shape == (0,)


def test_idle_power_is_the_mean_over_its_time() -> None:
    time = clock()
    idle_w = measure_idle_w(time, Scripted(8.0, 10.0), lambda: time.sleep(2.0), rate_hz=1.0, external_w=1.0)
    assert idle_w == pytest.approx(10.0)


def test_idle_power_without_a_reading_is_an_error() -> None:
    time = clock()
    with pytest.raises(SensorError, match="no reading of the idle board"):
        measure_idle_w(time, Scripted(None), lambda: time.sleep(2.0), rate_hz=1.0)


def test_what_is_sampled_is_what_the_board_drew(tmp_path: Path) -> None:
    machine = VirtualMachine(tmp_path / "board", programs="in_process")
    runner = VirtualRunner(machine, Arrival())
    runner.load(Variant())
    runner.begin()
    machine.clock.sleep(5.0)
    meter = find_meter(machine.sysfs, TOTAL)
    began_s = machine.clock.monotonic_s()
    sampled_w = measure_idle_w(machine.clock, meter, lambda: machine.clock.sleep(60.0), rate_hz=5.0)
    drawn_w = machine.energy_j(began_s, machine.clock.monotonic_s()) / 60.0
    runner.close()
    machine.close()
    assert sampled_w == pytest.approx(drawn_w, rel=0.02)
    assert drawn_w > 10.0
