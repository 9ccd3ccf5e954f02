"""Power sensors of each kind: the virtual chip answers as the kernel's driver, and the total is read from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jouled.board.channels import find_channels
from jouled.board.identity import find_board_file, read_identity
from jouled.board.rails import find_meter
from jouled.errors import NotSupportedError, SensorError, SensorsHiddenError
from jouled.virtual.faults import set_faults
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.runner import VirtualRunner
from jouled.virtual.specs import Channel, Chip, board_names, board_spec
from jouled.workload.runner import Arrival
from jouletune.measurement import mean_power_w
from jouletune.space import Variant

# The plant's three rails, as other boards' chips would measure them.
INA238 = Chip("1-0044", (Channel("VDD_GPU_SOC", 19.832),), "ina238")
IIO = Chip("6-0040", (Channel("VIN_SYS_5V0", 4.968, shunt_uohm=5000), None, Channel("VDD_CPU_CV", 19.8)), "ina3221x")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[VirtualMachine]:
    spec = replace(board_spec("agx-orin-64gb"), chips=(INA238, IIO))
    machine = VirtualMachine(tmp_path / "board", board=spec, programs="in_process")
    yield machine
    machine.close()


def path_of(machine: VirtualMachine, pattern: str) -> str:
    (path,) = machine.sysfs.glob(pattern)
    return path


def test_an_ina238_tells_microwatts_and_its_label_is_its_rails(machine: VirtualMachine) -> None:
    meter = find_meter(machine.sysfs, ("VDD_GPU_SOC",))
    told_uw = machine.sysfs.read_int(path_of(machine, "/sys/class/hwmon/hwmon*/power1_input"))
    assert told_uw > 1_000_000
    assert meter.read() == ((1.0, told_uw * 1e-6),)
    assert (meter.rails[0].voltage_step_v, meter.rails[0].current_step_a) == (0.0, 0.0)  # its shunt is not told


def test_an_ina238_without_a_label_is_the_boards_input(machine: VirtualMachine) -> None:
    machine.sysfs.real(path_of(machine, "/sys/class/hwmon/hwmon*/label")).unlink()
    assert find_meter(machine.sysfs, ("VIN",)).rail == "VIN"


def test_two_unlabelled_ina238_are_not_guessed_between(tmp_path: Path) -> None:
    chips = tuple(replace(INA238, address=address) for address in ("1-0044", "1-0045"))
    spec = replace(board_spec("agx-orin-64gb"), chips=chips)
    machine = VirtualMachine(tmp_path / "board", board=spec, programs="in_process")
    with pytest.raises(NotSupportedError, match="measured twice"):
        find_meter(machine.sysfs, ("VDD_GPU_SOC",))
    machine.close()


def test_the_iio_driver_of_l4t_32_tells_milliwatts(machine: VirtualMachine) -> None:
    folder = path_of(machine, "/sys/bus/i2c/drivers/ina3221x/6-0040/iio:device*")
    assert machine.sysfs.read(f"{folder}/rail_name_0") == "VIN_SYS_5V0"
    told_mw = machine.sysfs.read_int(f"{folder}/in_power0_input")
    volts = machine.sysfs.read_int(f"{folder}/in_voltage0_input") / 1000
    amperes = machine.sysfs.read_int(f"{folder}/in_current0_input") / 1000
    assert told_mw > 1000
    assert told_mw / 1000 == pytest.approx(volts * amperes, abs=0.001)
    assert find_meter(machine.sysfs, ("VIN_SYS_5V0",)).read() == ((1.0, told_mw / 1000),)


def test_rails_of_all_kinds_add_up_to_one_total(machine: VirtualMachine) -> None:
    meter = find_meter(machine.sysfs, machine.spec.total_rails)
    runner = VirtualRunner(machine, Arrival())
    runner.load(Variant())
    runner.begin()
    machine.clock.sleep(5.0)
    sampling = meter.sampling(machine.clock, rate_hz=5.0)
    sampling.start()
    began_s = machine.clock.monotonic_s()
    machine.clock.sleep(30.0)
    trace = sampling.stop()
    told_w = mean_power_w(trace, float(trace.t_s[0]), float(trace.t_s[-1]))
    drawn_w = machine.energy_j(began_s, machine.clock.monotonic_s()) / 30.0
    assert told_w == pytest.approx(drawn_w, rel=0.01)
    runner.close()


@pytest.mark.parametrize("name", board_names())
def test_each_boards_own_sensors_tell_what_it_draws(tmp_path: Path, name: str) -> None:
    machine = VirtualMachine(tmp_path / "board", board=name, programs="in_process")
    file = find_board_file(read_identity(machine.sysfs))
    assert file is not None
    meter = find_meter(machine.sysfs, file.total_rails)
    assert meter.rail == "+".join(machine.spec.total_rails)
    sampling = meter.sampling(machine.clock, rate_hz=5.0)
    sampling.start()
    began_s = machine.clock.monotonic_s()
    machine.clock.sleep(60.0)
    trace = sampling.stop()
    told_w = mean_power_w(trace, float(trace.t_s[0]), float(trace.t_s[-1]))
    drawn_w = machine.energy_j(began_s, machine.clock.monotonic_s()) / 60.0
    steps_w = sum(channel.bus_v * channel.current_step_a for channel in of_total(machine))
    assert told_w == pytest.approx(drawn_w, rel=0.01, abs=steps_w / 2)  # an idle rail may sit between two codes
    machine.close()


def of_total(machine: VirtualMachine) -> list[Channel]:
    channels = [channel for chip in machine.spec.chips for channel in chip.channels if channel is not None]
    return [channel for channel in channels if channel.label in machine.spec.total_rails]


def test_a_channel_that_is_not_connected_is_no_rail(machine: VirtualMachine) -> None:
    names = sorted(channel.rail.name for channel in find_channels(machine.sysfs).channels)
    assert names == ["VDD_CPU_CV", "VDD_GPU_SOC", "VIN_SYS_5V0"]


@pytest.mark.parametrize("pattern", ["*/in_power0_input", "*/power1_input"])
@pytest.mark.parametrize("answer", ["EAGAIN", "ENODATA", "ENOENT", "EIO"])
def test_a_reading_that_fails_is_absent_and_never_zero(machine: VirtualMachine, pattern: str, answer: str) -> None:
    meter = find_meter(machine.sysfs, machine.spec.total_rails)
    set_faults(str(machine.root), read_errors={pattern: answer})
    with pytest.raises(SensorError, match="no reading"):
        meter.read()


def test_numbers_of_devices_mean_nothing(machine: VirtualMachine) -> None:
    for _ in range(4):
        machine.reboot()
        meter = find_meter(machine.sysfs, machine.spec.total_rails)
        assert meter.rail == "VDD_GPU_SOC+VDD_CPU_CV+VIN_SYS_5V0"
        assert all(amperes > 0 for _, amperes in meter.read())


# --- why not ------------------------------------------------------------------------------------------------


def test_a_rail_that_is_missing_is_missing_and_not_hidden(machine: VirtualMachine) -> None:
    with pytest.raises(NotSupportedError, match="rails here: VDD_CPU_CV, VDD_GPU_SOC, VIN_SYS_5V0") as refused:
        find_meter(machine.sysfs, ("VDD_IN",))
    assert not isinstance(refused.value, SensorsHiddenError)


def test_sensors_that_this_user_may_not_read_are_hidden(machine: VirtualMachine) -> None:
    set_faults(str(machine.root), read_errors={"*/power1_input": "EACCES"})
    with pytest.raises(SensorsHiddenError, match=r"no VDD_GPU_SOC; .*not to be read: .*power1_input: cannot read"):
        find_meter(machine.sysfs, machine.spec.total_rails)


def test_a_machine_that_shows_no_sensor_at_all_hides_them(tmp_path: Path) -> None:
    spec = replace(board_spec("agx-orin-64gb"), chips=())
    machine = VirtualMachine(tmp_path / "board", board=spec, programs="in_process")
    with pytest.raises(SensorsHiddenError, match="no power sensor is to be seen here") as refused:
        find_meter(machine.sysfs, machine.spec.total_rails)
    assert "container" in refused.value.hint
    machine.close()
