"""Instances side by side and engines of a virtual workload: throughput, latency and power by closed form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jouled.virtual.engines import BUILD_SPREAD, PRECISIONS, Pace, pace_of
from jouled.virtual.flow import Flow, arrivals_s, arrived_by
from jouled.virtual.instances import SharedFlow
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.operation import Clocks, Noise, Operation, Power
from jouled.virtual.plant import LayerPlant, _State, load_workload
from jouled.virtual.truth import load_share
from jouled.workload.runner import Arrival
from jouletune.measurement import Completions
from jouletune.space import PowerMode, Variant

QUIET = Noise(request_sd=0.0, slow_ratio=0.0)
TRACE = Arrival("trace", times_s=(0.0, 0.1, 0.1, 0.5), period_s=1.0)


def shared(instances: int, arrival: Arrival | None = None, noise: Noise = QUIET) -> SharedFlow:
    rng = np.random.default_rng(3)
    return SharedFlow(rng, noise, arrival or Arrival(), batch=1, instances=instances, start_s=0.0)


def latency_s(done: Completions) -> list[float]:
    return [float(value) for value in done.end_s - done.arrival_s]


@pytest.mark.parametrize(
    ("instances", "host_s", "gpu_s"),
    [(2, 0.002, 0.006), (2, 0.008, 0.002), (4, 0.003, 0.001), (3, 0.0, 0.004)],
    ids=["gpu-bound", "host-bound", "at-the-knee", "no-host"],
)
def test_full_load_ends_one_request_a_cycle_and_each_waits_for_all(instances: int, host_s: float, gpu_s: float) -> None:
    flow = shared(instances)
    flow.advance(10.0, host_s, gpu_s)
    done = flow.take()
    none = Power((), ())
    operation = Operation(host_s + gpu_s, none, none, Clocks(1, 1, 1), Clocks(1, 1, 1), host_s, instances)
    assert done.end_s.size == pytest.approx(10.0 / operation.cycle_s, abs=instances)
    settled = latency_s(done)[5 * instances :]
    assert settled == pytest.approx([instances * operation.cycle_s] * len(settled))
    assert np.all(np.diff(done.end_s) >= 0.0)


def test_one_instance_is_served_alike_by_both_flows() -> None:
    noise = Noise(slow_ratio=0.1)
    for arrival in (Arrival(), Arrival("rate", 120.0), TRACE):
        alone = Flow(np.random.default_rng(3), noise, arrival, batch=1, start_s=0.0)
        alone.advance(4.0, 0.007)
        alone.advance(9.0, 0.009)
        other = shared(1, arrival, noise)
        other.advance(4.0, 0.002, 0.005)
        other.advance(9.0, 0.002 * 9 / 7, 0.005 * 9 / 7)
        for one, same in zip(_columns(alone.take()), _columns(other.take()), strict=True):
            assert one == pytest.approx(same)


def _columns(done: Completions) -> tuple[list[float], list[float], list[float]]:
    return done.arrival_s.tolist(), done.start_s.tolist(), done.end_s.tolist()


def test_instances_take_turns_at_a_rate_and_none_waits_where_one_would() -> None:
    """A request takes 12 ms, one comes each 10 ms: a queue without end on one instance, none on two."""
    two, one = shared(2, Arrival("rate", 100.0)), shared(1, Arrival("rate", 100.0))
    two.advance(10.0, 0.008, 0.004)
    one.advance(10.0, 0.008, 0.004)
    assert latency_s(two.take()) == pytest.approx([0.012] * 999)
    assert latency_s(one.take())[-1] > 1.0


def test_request_under_way_goes_on_at_the_new_pace() -> None:
    flow = shared(2)
    flow.advance(0.5, 1.0, 2.0)  # both half through the host's part
    flow.advance(20.0, 3.0, 4.0)
    done = flow.take()
    assert done.end_s[:2].tolist() == pytest.approx([0.5 + 1.5 + 4.0, 0.5 + 1.5 + 8.0])


def test_trace_is_played_in_a_loop_and_counted_right() -> None:
    came_s = arrivals_s(TRACE, 2, 5)
    assert came_s is not None
    assert came_s.tolist() == pytest.approx([0.1, 0.5, 1.0, 1.1, 1.1])
    for passed_s in (0.0, 0.05, 0.1, 0.49, 0.5, 0.99, 1.0, 1.1, 7.7):
        all_s = arrivals_s(TRACE, 0, 100)
        assert all_s is not None
        assert arrived_by(TRACE, passed_s) == int((all_s <= passed_s + 1e-12).sum())


def test_burst_of_a_trace_waits_in_line() -> None:
    flow = Flow(np.random.default_rng(3), QUIET, TRACE, batch=1, start_s=0.0)
    flow.advance(1.0, 0.15)
    assert latency_s(flow.take()) == pytest.approx([0.15, 0.2, 0.35, 0.15])


def test_load_that_ends_nothing_has_no_completions() -> None:
    assert shared(2).take().end_s.size == 0


# --- the plant ----------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> VirtualMachine:
    plant = LayerPlant(load_workload("preproc-heavy"), engines=("a-fp32.plan", "a-fp16.plan"))
    return VirtualMachine(tmp_path, plant=plant, programs="in_process")


def operate(machine: VirtualMachine, **variant: object) -> Operation:
    return machine.plant.operate(machine.setting, Variant(**variant))  # type: ignore[arg-type]  # of a test's words


def test_second_instance_hides_the_hosts_work_and_costs_latency(machine: VirtualMachine) -> None:
    one, two = operate(machine), operate(machine, instances=2)
    assert one.host_s > one.gpu_s  # the workload is bound by its preprocessing
    assert two.cycle_s == pytest.approx(two.service_s / 2)
    assert two.gpu_s == pytest.approx(1.04 * one.gpu_s)
    assert 1.8 < one.cycle_s / two.cycle_s < 2.0
    assert sum(two.busy.w) > sum(one.busy.w)
    energy_j = [sum(each.busy.w) * each.cycle_s for each in (one, two)]
    assert energy_j[1] < energy_j[0]  # the idle watts are shared by twice as many


def test_energy_of_an_item_adds_up_where_instances_overlap(machine: VirtualMachine) -> None:
    """Over one cycle a request's own joules are spent whichever way its parts overlap; standing watts by the time."""
    plant = machine.plant
    assert isinstance(plant, LayerPlant)
    free = replace(plant, silicon=replace(plant.silicon, instance_overhead=0.0))
    one, two = (free.operate(machine.setting, Variant(instances=n)) for n in (1, 2))
    own_j = [float(sum(op.busy.w)) * op.cycle_s for op in (one, two)]
    saved_s = one.cycle_s - two.cycle_s
    standing_w = (own_j[0] - own_j[1]) / saved_s
    idle_w = sum(free._power(machine.setting, one.busy_clocks, _State(1.0, 0.05, 0.0, 0.0)).w)
    assert standing_w == pytest.approx(idle_w, rel=1e-6)


def test_measured_throughput_is_the_truths(machine: VirtualMachine) -> None:
    at = machine.setting
    mode = PowerMode(at.cores, at.cpu_cap_hz, at.gpu_cap_hz, at.emc_cap_hz)
    for variant in (Variant(), Variant(instances=2), Variant(instances=3, batch=4)):
        truth = machine.truth(mode, variant=variant)
        machine.start_load(variant, Arrival())
        machine.clock.sleep(60.0)
        done = machine.take()
        machine.stop_load()
        assert done.end_s.size * variant.batch / 60.0 == pytest.approx(truth.throughput_hz, rel=0.02)


def test_trace_loads_the_board_like_the_rate_that_it_has_on_average(machine: VirtualMachine) -> None:
    operation = operate(machine)
    by_rate = load_share(operation, QUIET, Arrival("rate", 4.0))
    assert load_share(operation, QUIET, TRACE) == pytest.approx(by_rate)
    assert by_rate < 1.0


# --- engines ------------------------------------------------------------------------------------------------


def test_first_engine_is_the_workload_as_written(machine: VirtualMachine) -> None:
    assert operate(machine, engine="a-fp32.plan") == operate(machine)


def test_engine_of_lower_precision_is_faster(machine: VirtualMachine) -> None:
    assert operate(machine, engine="a-fp16.plan").gpu_s < operate(machine, engine="a-fp32.plan").gpu_s


def test_two_builds_of_one_precision_differ_a_little_and_always_alike() -> None:
    pace = pace_of("/x/b.plan", "/x/a.plan")
    assert pace == pace_of("/other/b.plan", "/x/a.plan")  # the folder is no matter
    assert pace.compute != 1.0
    assert (1 - BUILD_SPREAD) / (1 + BUILD_SPREAD) <= pace.compute <= (1 + BUILD_SPREAD) / (1 - BUILD_SPREAD)
    assert pace.traffic == 1.0


def test_precision_is_the_last_word_of_the_name() -> None:
    assert pace_of("fp32-to-int8.plan", "x.plan").traffic == PRECISIONS["int8"].traffic
    assert pace_of(None, "x.plan") == pace_of("x.plan", "x.plan") == pace_of("x.plan", None) == Pace()
