"""The virtual machine: simulated time, exact energy, sensors with the INA3221's flaws, a load, boots and resets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jouled.board.sysfs import Sysfs
from jouled.errors import BrokenError, UsageError, WorkloadDiedError, WorkloadError, WorkloadHungError
from jouled.virtual.clock import SimClock
from jouled.virtual.faults import FOLDER, set_faults
from jouled.virtual.fixed import FixedMode, FixedPlant
from jouled.virtual.flow import Flow
from jouled.virtual.kernel import CPU, DEVFREQ, EMC, EMC_CAP, GPU
from jouled.virtual.knobs import wanted_setting
from jouled.virtual.machine import BoardReset, VirtualMachine
from jouled.virtual.operation import Noise, Power, Setting, Thermal
from jouled.virtual.plant import LayerPlant, load_workload
from jouled.virtual.runner import VirtualRunner
from jouled.virtual.specs import Channel, board_spec, rewired
from jouled.virtual.supply import BLOCK_S, Supply, steady
from jouled.virtual.truth import long_run
from jouled.workload.runner import Arrival
from jouletune.measurement import Completions
from jouletune.space import PowerMode, Variant

MAXN = PowerMode(12, 2_201_600_000, 1_300_500_000, 3_199_000_000)
SAVING = PowerMode(12, 1_651_200_000, 1_020_000_000, 3_199_000_000)
QUIET = Noise(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 600.0, 0.0)
CHIP = "/sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon*"


def machine_at(root: Path, **options: Any) -> VirtualMachine:
    """A board whose programs run in this process."""
    return VirtualMachine(root, programs="in_process", **options)


@pytest.fixture
def machine(tmp_path: Path) -> VirtualMachine:
    """A fresh board in MAXN."""
    return machine_at(tmp_path / "board", seed=1)


def rails_of(machine: VirtualMachine) -> list[tuple[str, str]]:
    """(voltage file, current file) of the three rails of the total."""
    chip = machine.sysfs.glob(CHIP)[0]
    return [(f"{chip}/in{index}_input", f"{chip}/curr{index}_input") for index in (1, 2, 3)]


def total_w(machine: VirtualMachine) -> float:
    """The module's power as its sensors have it now."""
    return sum(machine.sysfs.read_int(v) * machine.sysfs.read_int(a) * 1e-6 for v, a in rails_of(machine))


def sample(machine: VirtualMachine, duration_s: float, period_s: float = 0.2) -> list[float]:
    """Powers read at the period, the first one now."""
    powers: list[float] = []
    ticker = machine.clock.every(period_s, lambda _: powers.append(total_w(machine)))
    machine.clock.sleep(duration_s)
    ticker.stop()
    return powers


def started(machine: VirtualMachine, arrival: Arrival | None = None, *, warm_s: float = 90.0) -> VirtualRunner:
    """A load that has run for `warm_s`."""
    runner = VirtualRunner(machine, arrival or Arrival())
    runner.load(Variant())
    runner.begin()
    machine.clock.sleep(warm_s)
    runner.take()
    return runner


# --- clock


def test_ticks_come_in_order_and_the_last_moment_belongs_to_the_next_sleep() -> None:
    clock = SimClock(start_s=5.0, boot_wall_s=1000.0, passes=lambda _: None)
    seen: list[tuple[str, float]] = []
    fast = clock.every(0.2, lambda now_s: seen.append(("fast", now_s)))
    slow = clock.every(0.5, lambda now_s: seen.append(("slow", now_s)))
    clock.sleep(1.0)
    assert [t for name, t in seen if name == "fast"] == pytest.approx([5.0, 5.2, 5.4, 5.6, 5.8])
    assert [t for name, t in seen if name == "slow"] == pytest.approx([5.0, 5.5])
    assert [t for _, t in seen[2:]] == sorted(t for _, t in seen[2:])
    assert (clock.monotonic_s(), clock.wall_s()) == (6.0, 1006.0)
    fast.stop()
    clock.sleep(1.0)
    slow.stop()
    assert len(seen) == 9


def test_error_in_a_tick_ends_it_and_is_raised_by_stop() -> None:
    clock = SimClock(start_s=0.0, boot_wall_s=0.0, passes=lambda _: None)
    calls: list[float] = []

    def tick(now_s: float) -> None:
        calls.append(now_s)
        if now_s > 0.5:
            raise BrokenError("no sensor", path="/sys/x")

    ticker = clock.every(0.3, tick)
    clock.sleep(3.0)
    assert calls == pytest.approx([0.0, 0.3, 0.6])
    with pytest.raises(BrokenError, match="no sensor"):
        ticker.stop()


def test_late_tick_is_not_made_up_for() -> None:
    clock = SimClock(start_s=0.0, boot_wall_s=0.0, passes=lambda _: None)
    calls: list[float] = []

    def tick(now_s: float) -> None:
        calls.append(now_s)
        if now_s == 0.0:
            clock.sleep(1.05)

    ticker = clock.every(0.2, tick)
    clock.sleep(0.5)
    ticker.stop()
    assert calls[0] == 0.0
    assert calls[1:] == pytest.approx([1.05, 1.2, 1.4])


# --- sensors


def test_window_of_20_s_reads_each_sensor_file_exactly_100_times(machine: VirtualMachine) -> None:
    started(machine)
    machine.sysfs.reads.clear()
    assert len(sample(machine, 20.0)) == 100
    assert {machine.sysfs.reads[path] for pair in rails_of(machine) for path in pair} == {100}


def test_readings_are_whole_codes_of_the_converter(machine: VirtualMachine) -> None:
    started(machine, warm_s=5.0)
    for _ in range(50):
        machine.clock.sleep(0.5)
        for voltage, current in rails_of(machine):
            assert machine.sysfs.read_int(voltage) % 8 == 0
            assert machine.sysfs.read_int(current) % 20 == 0


def test_polling_faster_than_430_ms_repeats_values(machine: VirtualMachine) -> None:
    started(machine)
    path = rails_of(machine)[0][1]
    values: list[tuple[int, int]] = []
    supply = machine.supply
    ticker = machine.clock.every(0.01, lambda now_s: values.append((supply.block(now_s), machine.sysfs.read_int(path))))
    machine.clock.sleep(8.6)
    ticker.stop()
    blocks = {block for block, _ in values}
    assert len(blocks) in (20, 21)
    assert all(len({value for b, value in values if b == block}) == 1 for block in blocks)
    assert len({value for _, value in values}) > 2


def test_step_of_the_load_needs_a_whole_average_to_appear(tmp_path: Path) -> None:
    machine = machine_at(tmp_path / "board", plant=replace(LayerPlant(load_workload("yolov8s-640")), noise=QUIET))
    machine.clock.sleep(10.0)
    idle_w = total_w(machine)
    machine.start_load(Variant(), Arrival())
    began_s = machine.clock.monotonic_s()
    powers = np.array(sample(machine, 2.0, 0.01))
    times_s = began_s + 0.01 * np.arange(len(powers))
    edge_s = machine.supply._origin_s + BLOCK_S * (machine.supply.block(began_s) + 1)
    busy_w = powers[-1]
    assert powers[times_s < edge_s - 0.005] == pytest.approx(idle_w)
    mixed = powers[(times_s > edge_s + 0.005) & (times_s < edge_s + BLOCK_S - 0.005)]
    share = (edge_s - began_s) / BLOCK_S
    assert mixed == pytest.approx(idle_w + share * (busy_w - idle_w), abs=0.6)
    assert powers[times_s > edge_s + BLOCK_S + 0.005] == pytest.approx(busy_w, abs=0.45)


def test_disabled_channel_of_a_running_machine_is_enodata(machine: VirtualMachine) -> None:
    voltage, current = rails_of(machine)[1]
    assert machine.sysfs.read_int(voltage) > 19000
    machine.sysfs.write(voltage.replace("_input", "_enable"), 0, why="test")
    machine.clock.sleep(0.1)
    with pytest.raises(BrokenError):
        machine.sysfs.read(current)


def test_vddq_lies_inside_the_5_v_rail(machine: VirtualMachine) -> None:
    truth = machine.truth(MAXN)
    watts = dict(zip(truth.rails, truth.rail_w, strict=True))
    assert watts["VDDQ_VDD2_1V8AO"] < watts["VIN_SYS_5V0"]
    assert truth.power_w == pytest.approx(watts["VDD_GPU_SOC"] + watts["VDD_CPU_CV"] + watts["VIN_SYS_5V0"], rel=1e-12)


def test_over_current_counters_publish_every_two_seconds(machine: VirtualMachine) -> None:
    set_faults(str(machine.root), oc_rate_hz={"oc3": 5.0})
    path = machine.sysfs.glob("/sys/class/hwmon/hwmon*/oc3_event_cnt")[0]
    values = []
    for _ in range(40):
        values.append(machine.sysfs.read_int(path))
        machine.clock.sleep(0.5)
    assert set(np.diff(values)) == {0, 10}
    assert machine.sysfs.read_int(path.replace("oc3", "oc1")) == 0


def test_published_files_hold_what_the_machine_says(machine: VirtualMachine) -> None:
    started(machine)
    seen = {path: machine.sysfs.read(path) for pair in rails_of(machine) for path in pair}
    machine.close()
    plain = Sysfs(machine.root)
    assert {path: plain.read(path) for path in seen} == seen
    assert plain.read(f"{DEVFREQ}/cur_freq") == "1300500000"


# --- clocks and load


def test_current_clocks_follow_the_load(machine: VirtualMachine) -> None:
    cpu = f"{CPU}/cpufreq/policy0/scaling_cur_freq"
    paths = (cpu, f"{DEVFREQ}/cur_freq", f"{EMC}/rate", f"{GPU}/load")
    assert [machine.sysfs.read_int(path) for path in paths] == [729600, 306000000, 665600000, 0]
    runner = started(machine, warm_s=1.0)
    assert [machine.sysfs.read_int(path) for path in paths] == [2201600, 1300500000, 3199000000, 1000]
    machine.sysfs.write(EMC_CAP, 2133000000, why="test")
    assert machine.sysfs.read_int(f"{EMC}/rate") == 2133000000
    runner.pause()
    machine.processes().run(["jetson_clocks"], timeout_s=10.0)
    assert [machine.sysfs.read_int(path) for path in paths] == [2201600, 1300500000, 2133000000, 0]


def test_lock_costs_power_between_requests(machine: VirtualMachine) -> None:
    arrival = Arrival("rate", 30.0)
    capped, locked = (machine.truth(MAXN, policy, arrival) for policy in ("capped", "locked"))
    assert locked.power_w > 1.3 * capped.power_w
    assert locked.latency_s(95.0) == pytest.approx(capped.latency_s(95.0))


def test_change_of_a_knob_changes_the_pace_of_a_running_load(machine: VirtualMachine) -> None:
    runner = started(machine)
    machine.clock.sleep(10.0)
    before = len(runner.take().end_s)
    machine.sysfs.write(f"{DEVFREQ}/max_freq", 612000000, why="test")
    machine.clock.sleep(10.0)
    after = runner.take()
    assert len(after.end_s) < 0.6 * before
    assert np.all(np.diff(after.end_s) > 0)


def test_child_that_writes_knobs_is_followed(tmp_path: Path) -> None:
    machine = VirtualMachine(tmp_path / "a board", seed=1)
    started(machine, warm_s=1.0)
    began_s = machine.clock.monotonic_s()
    assert machine.processes().run(["nvpmodel", "-m", "3"], timeout_s=10.0).returncode == 0
    assert machine.clock.monotonic_s() - began_s == pytest.approx(0.12)
    assert machine.sysfs.read_int(f"{DEVFREQ}/cur_freq") == 816000000


def test_gpu_counts_as_used_once_a_load_has_run(machine: VirtualMachine) -> None:
    started(machine, warm_s=1.0).close()
    done = machine.processes().run(["nvpmodel", "-m", "2"], timeout_s=10.0)
    assert done.returncode == 234
    assert "REBOOT NOW" in done.stdout


def test_back_to_back_requests_follow_each_other(machine: VirtualMachine) -> None:
    runner = started(machine)
    machine.clock.sleep(10.0)
    done = runner.take()
    assert np.array_equal(done.arrival_s, done.start_s)
    assert done.start_s[1:] == pytest.approx(done.end_s[:-1], abs=1e-9)


def test_rate_arrivals_are_punctual_and_wait_for_the_one_before() -> None:
    noise = replace(QUIET, slow_ratio=0.2, slow_factor=3.0)
    flow = Flow(np.random.default_rng(1), noise, Arrival("rate", 10.0), batch=1, start_s=0.0)
    taken: list[Completions] = []
    for step in range(1, 400):
        flow.advance(0.037 * step, 0.06)
        taken.append(flow.take())
    arrival_s, start_s, end_s = (
        np.concatenate([getattr(part, name) for part in taken]) for name in ("arrival_s", "start_s", "end_s")
    )
    assert arrival_s == pytest.approx(0.1 * np.arange(len(arrival_s)))
    assert start_s[1:] == pytest.approx(np.maximum(arrival_s[1:], end_s[:-1]))
    assert set(np.round(end_s - start_s, 9)) == {0.06, 0.18}
    assert len(end_s) > 140


@pytest.mark.parametrize("kind", ["rate", "back_to_back"])
def test_completions_do_not_depend_on_how_often_they_are_taken(kind: str) -> None:
    arrival = Arrival(kind, 7.0 if kind == "rate" else None)
    ends = []
    for steps in (1, 7, 1000):
        flow = Flow(np.random.default_rng(3), Noise(), arrival, batch=1, start_s=2.0)
        parts = []
        for step in range(1, steps + 1):
            flow.advance(2.0 + 100.0 * step / steps, 0.13)
            parts.append(flow.take().end_s)
        ends.append(np.concatenate(parts))
    assert ends[1] == pytest.approx(ends[0])
    assert ends[2] == pytest.approx(ends[0])


def test_request_under_a_change_of_pace_keeps_what_is_done() -> None:
    flow = Flow(np.random.default_rng(0), QUIET, Arrival(), batch=1, start_s=0.0)
    flow.advance(1.5, 2.0)  # three quarters done
    flow.advance(10.0, 4.0)  # the last quarter takes a second
    done = flow.take()
    assert done.end_s == pytest.approx([2.5, 6.5])
    assert done.start_s == pytest.approx([0.0, 2.5])


def test_slow_requests_cluster_as_told() -> None:
    noise = replace(QUIET, slow_ratio=0.05, slow_factor=2.0, slow_clustering=0.6)
    flow = Flow(np.random.default_rng(5), noise, Arrival(), batch=1, start_s=0.0)
    flow.advance(2000.0, 0.01)
    done = flow.take()
    slow = (done.end_s - done.start_s) > 0.015
    again = slow[1:][slow[:-1]].mean()
    assert slow.mean() == pytest.approx(0.05, abs=0.006)
    assert (again - 0.05) / 0.95 == pytest.approx(0.6, abs=0.04)


def test_overload_shows_the_servers_rate(machine: VirtualMachine) -> None:
    arrival = Arrival("rate", 500.0)
    truth = machine.truth(MAXN, "capped", arrival)
    assert truth.throughput_hz == pytest.approx(machine.truth(MAXN).throughput_hz)
    runner = started(machine, arrival)
    machine.clock.sleep(20.0)
    assert len(runner.take().end_s) / 20.0 == pytest.approx(truth.throughput_hz, rel=0.01)


def test_batch_makes_requests_longer_and_each_inference_cheaper(machine: VirtualMachine) -> None:
    one, eight = (machine.truth(MAXN, "capped", Arrival(), Variant(batch=batch)) for batch in (1, 8))
    assert eight.latency_s(50.0) > 4 * one.latency_s(50.0)
    assert eight.energy_j < one.energy_j


# --- energy and its truth


@pytest.mark.parametrize("arrival", [Arrival(), Arrival("rate", 30.0)], ids=["back_to_back", "rate"])
def test_energy_per_inference_agrees_with_the_truth(machine: VirtualMachine, arrival: Arrival) -> None:
    truth = machine.truth(MAXN, "capped", arrival)
    ratios, latencies = [], []
    for _ in range(40):
        runner = started(machine, arrival, warm_s=60.0)
        began_s = machine.clock.monotonic_s()
        machine.clock.sleep(20.0)
        done = runner.take()
        ratios.append(machine.energy_j(began_s, machine.clock.monotonic_s()) / len(done.end_s) / truth.energy_j)
        latencies.append(float(np.percentile(done.end_s - done.arrival_s, 95.0)) / truth.latency_s(95.0))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.003)
    assert 0.003 < np.std(ratios, ddof=1) < 0.008
    assert np.mean(latencies) == pytest.approx(1.0, abs=0.003)


@pytest.mark.parametrize("arrival", [Arrival(), Arrival("rate", 150.0)], ids=["back_to_back", "rate"])
def test_slow_requests_are_part_of_the_truth(tmp_path: Path, arrival: Arrival) -> None:
    noise = replace(QUIET, slow_ratio=0.2, slow_factor=2.0)
    machine = machine_at(tmp_path / "board", plant=replace(LayerPlant(load_workload("yolov8s-640")), noise=noise))
    truth = machine.truth(MAXN, "capped", arrival)
    runner = started(machine, arrival, warm_s=150.0)
    began_s = machine.clock.monotonic_s()
    machine.clock.sleep(60.0)
    done = runner.take()
    seen_j = machine.energy_j(began_s, machine.clock.monotonic_s()) / len(done.end_s)
    assert len(done.end_s) / 60.0 == pytest.approx(truth.throughput_hz, rel=0.01)
    assert seen_j == pytest.approx(truth.energy_j, rel=0.01)
    assert np.percentile(done.end_s - done.arrival_s, 95.0) == pytest.approx(truth.latency_s(95.0), rel=0.02)


def test_sensors_and_exact_energy_agree_within_the_converters_steps(machine: VirtualMachine) -> None:
    started(machine)
    machine.clock.sleep(1.0)
    began_s = machine.clock.monotonic_s()
    seen_w = float(np.mean(sample(machine, 300.0)))
    exact_w = machine.energy_j(began_s, machine.clock.monotonic_s()) / 300.0
    assert seen_w == pytest.approx(exact_w, rel=0.012)


def test_energy_of_parts_is_the_energy_of_the_whole(machine: VirtualMachine) -> None:
    began_s = machine.clock.monotonic_s()
    runner = started(machine, warm_s=17.3)
    machine.sysfs.write(f"{DEVFREQ}/max_freq", 816000000, why="test")
    machine.clock.sleep(11.1)
    runner.pause()
    machine.clock.sleep(5.0)
    ended_s = machine.clock.monotonic_s()
    edges = np.linspace(began_s, ended_s, 98)
    parts = sum(machine.energy_j(a, b) for a, b in pairwise(edges))
    assert parts == pytest.approx(machine.energy_j(began_s, ended_s), rel=1e-9)


def test_power_is_the_integral_of_leakage_over_a_warming_die() -> None:
    thermal = Thermal(ambient_c=25.0, c_per_w=0.5, time_s=30.0)
    power = Power((20.0, 5.0), (0.1, 0.0))
    supply = Supply(
        rails=2, total=(0, 1), noise=QUIET, thermal=thermal, rng=np.random.default_rng(0), start_s=0.0, start_c=25.0
    )
    supply.change(0.0, Power((0.0, 0.0), (0.0, 0.0)))
    supply.change(10.0, power)
    step_s, temperature_c, energy_j = 0.001, 25.0, 0.0
    for _ in range(60_000):  # the differential equation itself, in small steps
        watts = 20.0 + 0.1 * (temperature_c - 45.0) + 5.0
        energy_j += watts * step_s
        temperature_c += step_s * (25.0 + 0.5 * watts - temperature_c) / 30.0
    assert supply.temperature_c(70.0) == pytest.approx(temperature_c, abs=0.01)
    assert sum(supply.energy_j(rail, 10.0, 70.0) for rail in (0, 1)) == pytest.approx(energy_j, rel=1e-4)
    end_c, _ = steady(power, (0, 1), thermal)
    assert end_c == pytest.approx(25.0 + 0.5 * (25.0 + 0.1 * (end_c - 45.0)))


def test_transient_of_30_s_can_be_had(tmp_path: Path) -> None:
    plant = replace(LayerPlant(load_workload("yolov8s-640")), noise=QUIET, thermal=Thermal(27.0, 0.6, 30.0))
    machine = machine_at(tmp_path / "board", plant=plant)
    zone = next(p for p in machine.sysfs.glob("/sys/class/thermal/*/type") if machine.sysfs.read(p) == "tj-thermal")
    start_c = machine.sysfs.read_int(zone.replace("type", "temp")) / 1000
    machine.start_load(Variant(), Arrival())
    temperatures = []
    for _ in range(20):
        machine.clock.sleep(10.0)
        temperatures.append(machine.sysfs.read_int(zone.replace("type", "temp")) / 1000)
    share = (temperatures[2] - start_c) / (temperatures[-1] - start_c)
    assert share == pytest.approx(1 - math.exp(-1.0), abs=0.03)
    assert temperatures[-1] == pytest.approx(machine.truth(MAXN).temperature_c + 0.9, abs=0.2)


# --- the plant's shape (MEASUREMENT "Known sizes")


def grid_truths(machine: VirtualMachine) -> Iterator[tuple[PowerMode, float, float]]:
    """(mode, J, mean seconds) of a coarse grid of MAXN."""
    cpus = (729_600_000, 1_190_400_000, 1_651_200_000, 2_201_600_000)
    spec = board_spec("agx-orin-64gb")
    for emc_hz, gpu_hz, cpu_hz in product(spec.emc_table_hz[1:], spec.gpu_table_hz, cpus):
        mode = PowerMode(12, cpu_hz, gpu_hz, emc_hz)
        truth = machine.truth(mode)
        yield mode, truth.energy_j, 1.0 / truth.throughput_hz


def test_default_workload_saves_8_to_25_percent_within_the_usual_bounds(machine: VirtualMachine) -> None:
    rows = list(grid_truths(machine))
    energy_j, time_s = next((e, t) for mode, e, t in rows if mode == MAXN)
    for ratio in (1.2, 1.25, 1.3):
        best_j = min(e for _, e, t in rows if t <= ratio * time_s)
        assert 0.08 <= 1 - best_j / energy_j <= 0.25
    best, best_j, _ = min(rows, key=lambda row: row[1])
    assert 1.07 <= energy_j / best_j <= 1.28
    assert best.gpu_hz is not None
    assert 0.55 <= best.gpu_hz / 1_300_500_000 <= 0.77
    assert best.cpu_hz is not None
    assert 729_600_000 < best.cpu_hz < 2_201_600_000


def test_board_idles_and_loads_at_watts_of_an_agx_orin(machine: VirtualMachine) -> None:
    power, _ = machine.plant.rest(machine.setting)
    assert 8.0 <= sum(power.w[:3]) <= 12.0
    assert 30.0 <= machine.truth(MAXN).power_w <= 50.0


def test_every_domain_makes_the_workload_slower(machine: VirtualMachine) -> None:
    fast = machine.truth(MAXN)
    for lower in (
        replace(MAXN, gpu_hz=306_000_000),
        replace(MAXN, cpu_hz=729_600_000),
        replace(MAXN, emc_hz=665_600_000),
    ):
        slow = machine.truth(lower)
        assert slow.throughput_hz < 0.9 * fast.throughput_hz
        assert slow.power_w < fast.power_w


def test_mask_of_the_base_mode_is_part_of_the_truth(tmp_path: Path) -> None:
    mode = PowerMode(8, 1_728_000_000, 612_000_000, 3_199_000_000)
    half = machine_at(tmp_path / "half", base_mode="MODE_30W").truth(mode)
    whole = machine_at(tmp_path / "whole").truth(mode)
    assert half.throughput_hz < 0.75 * whole.throughput_hz


# --- a scripted plant


def test_fixed_plant_measures_what_was_scripted(tmp_path: Path) -> None:
    channels = (Channel("A", 20.0), Channel("B", 20.0), Channel("C", 5.0))
    spec = rewired(board_spec("agx-orin-64gb"), channels)
    modes = {
        (2_201_600_000, 1_300_500_000, 3_199_000_000): FixedMode(0.625, 0.04),
        (2_201_600_000, 1_020_000_000, 3_199_000_000): FixedMode(0.588, 0.045),
    }
    plant = FixedPlant(modes, ("A", "B", "C"), (0.6, 0.2, 0.2), noise=replace(Noise(), energy_between_sd=0.0))
    machine = machine_at(tmp_path / "board", board=spec, plant=plant, seed=3)
    assert machine.truth(MAXN).energy_j == pytest.approx(0.625)
    assert machine.truth(replace(MAXN, gpu_hz=1_020_000_000)).energy_j == pytest.approx(0.588)
    runner = started(machine)
    began_s = machine.clock.monotonic_s()
    machine.clock.sleep(600.0)
    seen = machine.energy_j(began_s, machine.clock.monotonic_s()) / len(runner.take().end_s)
    assert seen == pytest.approx(0.625, rel=0.006)
    assert machine.truth(MAXN).rail_w == pytest.approx([0.6 * 15.47, 0.2 * 15.47, 0.2 * 15.47], rel=0.02)


def test_fixed_plant_takes_the_nearest_mode_on_the_way(tmp_path: Path) -> None:
    plant = FixedPlant({(2_201_600_000, 1_300_500_000, 3_199_000_000): FixedMode(1.0, 0.1)}, ("VDD_GPU_SOC",), (1.0,))
    machine = machine_at(tmp_path / "board", plant=plant)
    assert machine.truth(SAVING).energy_j == pytest.approx(1.0)


# --- the same seed, another seed, another process, a boot


def run_of(root: Path, seed: int) -> tuple[list[float], list[float]]:
    """Powers and end times of a short run."""
    machine = machine_at(root, seed=seed)
    runner = started(machine, warm_s=5.0)
    return sample(machine, 10.0), list(runner.take().end_s)


def test_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    first, again, other = (run_of(tmp_path / name, seed) for name, seed in (("a", 7), ("b", 7), ("c", 8)))
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]


def test_next_machine_on_the_tree_goes_on_with_knobs_time_and_temperature(tmp_path: Path) -> None:
    machine = machine_at(tmp_path / "board", seed=1)
    started(machine, warm_s=33.0)
    machine.sysfs.write(f"{DEVFREQ}/max_freq", 816000000, why="test")
    machine.clock.sleep(60.0)
    now_s, wall_s = machine.clock.monotonic_s(), machine.clock.wall_s()
    warm_c = machine.supply.temperature_c(now_s)
    machine.close()
    later = machine_at(tmp_path / "board", seed=1, base_mode="MODE_15W")
    assert later.sysfs.read_int(f"{DEVFREQ}/max_freq") == 816000000
    assert (later.clock.monotonic_s(), later.clock.wall_s()) == (now_s, wall_s)
    assert later.supply.temperature_c(now_s) == pytest.approx(warm_c)


def test_machine_of_a_killed_process_loses_at_most_ten_seconds(tmp_path: Path) -> None:
    machine = machine_at(tmp_path / "board")
    for _ in range(200):
        machine.clock.sleep(0.7)
    later = machine_at(tmp_path / "board")
    assert 0.0 <= machine.clock.monotonic_s() - later.clock.monotonic_s() <= 10.7


def test_reboot_returns_the_operators_mode_and_a_young_clock(tmp_path: Path) -> None:
    machine = machine_at(tmp_path / "board", base_mode="MODE_50W")
    started(machine, warm_s=20.0)
    machine.sysfs.write(f"{DEVFREQ}/max_freq", 408000000, why="test")
    machine.sysfs.place("/run/jouled/modes/x.conf", "text")
    wall_s, boot_id = machine.clock.wall_s(), machine.sysfs.read("/proc/sys/kernel/random/boot_id")
    machine.reboot()
    assert machine.sysfs.read("/proc/sys/kernel/random/boot_id") != boot_id
    assert machine.sysfs.read_int(f"{DEVFREQ}/max_freq") == 816000000
    assert not machine.sysfs.exists("/run/jouled")
    assert machine.clock.boottime_s() == 30.0
    assert machine.clock.wall_s() > wall_s
    assert not machine.is_loaded
    assert total_w(machine) < 14.0
    later = machine_at(tmp_path / "board")
    assert later.clock.wall_s() == pytest.approx(machine.clock.wall_s())


def test_mode_that_takes_the_board_down_resets_it_when_time_passes(machine: VirtualMachine) -> None:
    set_faults(str(machine.root), board_reset={"gpu_hz": 816000000, "emc_hz": 3199000000})
    boot_id = machine.sysfs.read("/proc/sys/kernel/random/boot_id")
    machine.sysfs.write(f"{DEVFREQ}/max_freq", 714000000, why="test")
    machine.clock.sleep(1.0)
    machine.sysfs.write(f"{DEVFREQ}/max_freq", 816000000, why="test")
    with pytest.raises(BoardReset):
        machine.clock.sleep(1.0)
    for door in (
        lambda: machine.sysfs.read(EMC_CAP),
        lambda: machine.sysfs.write(EMC_CAP, 204000000, why="test"),
        lambda: machine.sysfs.place("/run/jouled/holder.json", "{}"),
        lambda: machine.clock.sleep(0.1),
        machine.take,
    ):
        with pytest.raises(BoardReset):
            door()
    later = machine_at(machine.root)
    assert later.sysfs.read("/proc/sys/kernel/random/boot_id") != boot_id
    assert later.sysfs.read_int(f"{DEVFREQ}/max_freq") == 1300500000


def test_machine_notices_that_its_tree_was_booted_by_another(machine: VirtualMachine) -> None:
    machine_at(machine.root).reboot()
    with pytest.raises(BoardReset):
        machine.clock.sleep(0.1)


def test_hotplug_forgets_the_caps_of_a_cluster(machine: VirtualMachine) -> None:
    policy = f"{CPU}/cpufreq/policy4"
    machine.sysfs.write(f"{policy}/scaling_max_freq", 1113600, why="test")
    for value in (0, 1):
        for cpu in range(4, 8):
            machine.sysfs.write(f"{CPU}/cpu{cpu}/online", value, why="test")
    assert machine.sysfs.read_int(f"{policy}/scaling_max_freq") == 2201600


# --- faults that are the machine's


def test_service_that_runs_again_resets_the_caps(machine: VirtualMachine) -> None:
    set_faults(str(machine.root), service_rerun_s=5.0)
    machine.sysfs.write(f"{DEVFREQ}/max_freq", 816000000, why="test")
    machine.clock.sleep(4.0)
    assert machine.sysfs.read_int(f"{DEVFREQ}/max_freq") == 816000000
    machine.clock.sleep(2.0)
    assert machine.sysfs.read_int(f"{DEVFREQ}/max_freq") == 1300500000


def test_machine_can_be_held_at_a_simulated_time(machine: VirtualMachine) -> None:
    set_faults(str(machine.root), hold={"by": "clock", "after_s": 3.0})
    machine.clock.sleep(2.0)
    assert not (machine.root / FOLDER / "held").exists()
    (machine.root / FOLDER / "release").touch()  # it would wait for this
    machine.clock.sleep(2.0)
    assert (machine.root / FOLDER / "held").exists()


def test_sensor_can_stall_and_fail(machine: VirtualMachine) -> None:
    started(machine)
    voltage, current = rails_of(machine)[0]
    set_faults(str(machine.root), values={"*/curr1_input": "80"}, read_errors={"*/in1_input": "EAGAIN"})
    for _ in range(5):
        machine.clock.sleep(1.0)
        assert machine.sysfs.read(current) == "80"
    with pytest.raises(BrokenError):
        machine.sysfs.read(voltage)


def test_runner_dies_and_hangs_on_demand(machine: VirtualMachine) -> None:
    set_faults(str(machine.root), workload_hangs_s=2.0)
    runner = started(machine, warm_s=1.0)
    machine.clock.sleep(5.0)
    assert runner.take().end_s.max() <= machine.clock.monotonic_s() - 4.0
    machine.clock.sleep(30.0)
    with pytest.raises(WorkloadHungError):
        runner.take()
    set_faults(str(machine.root), workload_dies_s=2.0)
    runner.begin()
    machine.clock.sleep(3.0)
    with pytest.raises(WorkloadDiedError):
        runner.take()


def test_runner_refuses_what_makes_no_sense(machine: VirtualMachine) -> None:
    with pytest.raises(WorkloadError, match="begin"):
        VirtualRunner(machine, Arrival()).begin()
    with pytest.raises(WorkloadError, match="take"):
        VirtualRunner(machine, Arrival()).take()
    runner = VirtualRunner(machine, Arrival("trace"))
    runner.load(Variant())
    with pytest.raises(WorkloadError, match="trace"):
        runner.begin()


@pytest.mark.parametrize(
    ("workload", "gpu", "cpu", "emc"),
    [
        ("yolov8s-640", 1.75, 1.24, 1.09),
        ("resnet50", 2.02, 1.08, 1.01),
        ("vit-b16", 2.05, 1.07, 1.00),
        ("llm-decode", 1.21, 1.01, 1.48),
        ("preproc-heavy", 1.11, 1.88, 1.00),
        ("tiny", 1.00, 1.98, 1.00),
    ],
)
def test_workload_is_bound_by_what_its_name_says(
    machine: VirtualMachine, workload: str, gpu: float, cpu: float, emc: float
) -> None:
    plant = LayerPlant(load_workload(workload))
    paces = [
        plant.operate(wanted_setting(machine.setting, board_spec("agx-orin-64gb"), mode, "capped"), Variant()).service_s
        for mode in (
            MAXN,
            replace(MAXN, gpu_hz=612_000_000),
            replace(MAXN, cpu_hz=1_113_600_000),
            replace(MAXN, emc_hz=2_133_000_000),
        )
    ]
    assert [pace / paces[0] for pace in paces[1:]] == pytest.approx([gpu, cpu, emc], abs=0.01)


def test_unknown_workload_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no virtual workload 'bert'; there are .*yolov8s-640"):
        load_workload("bert")


def test_locked_setting_has_minima_at_the_caps() -> None:
    now = Setting(12, 2_201_600_000, 729_600_000, 1_300_500_000, 306_000_000, 3_199_000_000)
    locked = wanted_setting(now, board_spec("agx-orin-64gb"), SAVING, "locked")
    assert (locked.cpu_min_hz, locked.gpu_min_hz, locked.emc_lock_hz) == (1_651_200_000, 1_020_000_000, 3_199_000_000)
    assert not locked.idle_states
    assert wanted_setting(now, board_spec("agx-orin-64gb"), PowerMode(), "capped") == now


def test_truth_of_a_mode_is_that_of_the_tree_in_it(machine: VirtualMachine) -> None:
    for path, value in ((f"{DEVFREQ}/max_freq", 1_020_000_000), (EMC_CAP, 2_133_000_000)):
        machine.sysfs.write(path, value, why="test")
    machine.processes().run(["jetson_clocks"], timeout_s=10.0)
    machine.clock.sleep(0.1)
    mode = PowerMode(12, 2_201_600_000, 1_020_000_000, 2_133_000_000)
    here = long_run(machine.plant, machine.plant.operate(machine.setting, Variant()), Arrival(), batch=1)
    assert machine.truth(mode, "locked").energy_j == pytest.approx(here.energy_j)


def test_the_wall_clock_is_that_of_who_opens_the_board_however_long_the_board_thinks_it_was(tmp_path: Path) -> None:
    now_s = 1_800_000_000.0
    machine = VirtualMachine(tmp_path, wall_s=lambda: now_s)
    machine.clock.sleep(1000.0)
    assert machine.clock.wall_s() == now_s
    machine.close()
    again = VirtualMachine(tmp_path)  # without one it is simulated, and never behind what it was
    assert again.clock.wall_s() >= now_s + 1000.0
    again.close()
