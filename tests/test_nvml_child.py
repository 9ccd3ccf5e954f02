"""The reader of one GPU on a clock that is made up: edges where they are, few calls, absent fields absent, never 0."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gpu import standin

from jouled.board.nvml_child import Edge, Pace, Reader, find_edge
from jouled.board.nvml_device import Device, Reading, Unusable
from jouletune.trace import EnergyCounter, PowerTrace, RailTrace, counter_ratio, joules_at

CALL_S = 0.004  # as on an H200


@dataclass
class Bench:
    """A reader beside a GPU whose calls take `call_s` of a clock that moves in no other way than by them and by waits.

    `words`: (time, word), in order; the last one should be `end`.
    """

    words: list[tuple[float, str]]
    gpu: dict[str, Any] = field(default_factory=dict)
    call_s: float = CALL_S
    now_s: float = 1000.0
    said: list[dict[str, Any]] = field(default_factory=list)

    def rest(self, duration_s: float) -> None:
        self.now_s += duration_s

    def wait(self, duration_s: float) -> str | None:
        due_s = self.words[0][0] if self.words else math.inf
        if self.now_s + duration_s < due_s:
            self.now_s += duration_s
            return None
        self.now_s = max(self.now_s, due_s)
        return self.words.pop(0)[1]

    def nvml(self) -> ModuleType:
        return standin(now=lambda: self.now_s, rest=self.rest, call_s=self.call_s, **self.gpu)

    def run(self) -> ModuleType:
        nvml = self.nvml()
        device = Device(nvml, 0, lambda: self.now_s)
        Reader(device, nvml.NVMLError, now=lambda: self.now_s, wait=self.wait, say=self.said.append).run()
        return nvml

    def edges(self) -> list[tuple[float, float, float]]:
        return [edge for line in self.said for edge in line["edges"]]

    def trace(self) -> PowerTrace:
        power = np.array([one for line in self.said for one in line["power"]], dtype=np.float64)
        edges = np.array(self.edges(), dtype=np.float64)
        rail = RailTrace("nvml:GPU0", np.ones(len(power)), power[:, 1], 0.0, 0.001)
        counter = EnergyCounter(edges[:, 0], edges[:, 2], edges[:, 1])
        return PowerTrace(power[:, 0], (rail,), 0.125, 0.125, counter=counter)


def sampled(duration_s: float, **gpu: Any) -> Bench:
    """From 1000 s on, sampling."""
    call_s = gpu.pop("call_s", CALL_S)
    end_s = 1000.0 + duration_s
    return Bench([(1000.0, "start 1"), (end_s, "stop"), (end_s + 1.0, "end")], gpu, call_s)


# --- edges --------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 0.2), st.floats(0.0, 0.2), st.floats(0.0005, 0.006))
def test_edges_lie_where_the_counter_moved_within_what_they_say(step_s: float, phase_s: float, call_s: float) -> None:
    bench = sampled(20.0, step_s=step_s, phase_s=phase_s, call_s=call_s)
    bench.run()
    for t_s, width_s, joules in bench.edges():
        moved_s = joules / 300.0  # the stand-in draws 300 W from 0 s on
        assert abs(t_s - moved_s) <= width_s / 2 + 1e-5, (t_s, moved_s, width_s)


def test_every_step_is_caught_once_it_is_known_and_few_calls_are_made() -> None:
    bench = sampled(60.0)
    nvml = bench.run()
    late = [edge for edge in bench.edges() if edge[0] > 1010.0]
    steps = np.diff([edge[0] for edge in late])
    assert np.abs(steps - 0.1).max() < 0.02, "a step was missed"
    assert np.median([edge[1] for edge in late]) < 0.0125  # two calls and a breath
    busy = nvml._gpu.calls * CALL_S / (bench.now_s - 1000.0)
    assert busy < 0.45, f"{100 * busy:.0f} % of the time in NVML"


def test_energy_of_a_window_at_just_any_moments_is_the_closed_forms() -> None:
    def power_w(t_s: float) -> float:
        return 300.0 + 100.0 * math.sin(math.pi * t_s)

    def energy_j(t_s: float) -> float:
        return 300.0 * t_s - 100.0 / math.pi * math.cos(math.pi * t_s)

    bench = sampled(30.0, power_w=power_w, energy_j=energy_j)
    nvml = bench.run()
    trace = bench.trace()
    worst, naive = 0.0, 0.0
    for start_s in (1005.0 + 0.007 * number for number in range(15)):
        for length_s in (1.05, 5.05):
            end_s = start_s + length_s
            true_j = energy_j(end_s) - energy_j(start_s)
            got_j = float(np.diff(joules_at(trace, np.array([start_s, end_s])))[0])
            worst = max(worst, abs(got_j / true_j - 1.0) * length_s)
            bench.now_s = start_s
            first_mj = nvml._gpu.counted_mj()
            bench.now_s = end_s
            naive = max(naive, abs((nvml._gpu.counted_mj() - first_mj) / 1000 / true_j - 1.0))
    assert worst < 0.006  # of a second: the edges are known to some milliseconds
    assert naive > 0.04
    ratio = counter_ratio(trace, 1005.0, 1025.0)
    assert ratio is not None
    assert ratio == pytest.approx(1.0, abs=0.005)


def test_a_run_after_a_rest_takes_no_edge_over_the_rest() -> None:
    bench = Bench([(1000.0, "start 1"), (1005.0, "stop"), (1065.0, "start 2"), (1070.0, "stop"), (1071.0, "end")])
    bench.run()
    second = [edge for line in bench.said if line["run"] == 2 for edge in line["edges"]]
    assert len(second) >= 45
    assert max(edge[1] for edge in second) < 0.04
    assert [line["run"] for line in bench.said if line["stopped"]] == [1, 2]


def test_the_answer_to_a_start_holds_a_first_reading() -> None:
    bench = sampled(1.0)
    bench.run()
    first = next(line for line in bench.said if line["run"] == 1)
    assert len(first["power"]) == 1
    assert first["power"][0][0] == pytest.approx(1000.0, abs=0.05)


def test_a_rest_is_no_step_of_the_counter_however_many_there_are() -> None:
    pace = Pace()
    for number in range(20):
        pace.note(Edge(0.1 * number, 0.008, float(number)))
        pace.pause_s(0.1 * number + 0.004)
    for number in range(1, 20):
        pace.resume()
        pace.note(Edge(60.0 * number, 0.008, 1000.0 * number))
    assert pace.step_s == pytest.approx(0.1)


def test_a_counter_that_is_reset_makes_no_edge() -> None:
    low, high = (Reading(t_s, t_s + 0.004, joules, 100.0) for t_s, joules in ((1.0, 5.0), (0.9, 500.0)))
    assert find_edge(high, low) is None
    assert find_edge(low, Reading(1.1, 1.104, 5.0, 100.0)) is None
    assert find_edge(low, Reading(1.1, 1.104, 6.0, 100.0)) == Edge(1.052, 1.104 - 1.0, 6.0)


def test_a_counter_that_never_moves_is_not_chased() -> None:
    bench = sampled(30.0, energy_j=lambda t_s: 5.0)
    nvml = bench.run()
    assert bench.edges() == []
    assert bench.said[-1]["step_s"] is None
    assert nvml._gpu.calls * CALL_S / 30.0 < 0.35


def test_a_counter_that_moves_at_each_read_is_read_at_leisure() -> None:
    bench = sampled(20.0, step_s=1e-6, phase_s=0.0)
    bench.run()
    late = [edge for edge in bench.edges() if edge[0] > 1005.0]
    gaps = np.diff([edge[0] for edge in late])
    assert 0.01 < np.median(gaps) < 0.05
    assert float(np.diff(joules_at(bench.trace(), np.array([1006.0, 1016.0])))[0]) == pytest.approx(3000.0, rel=1e-3)


def test_the_guard_widens_when_an_edge_came_unawares_and_narrows_again() -> None:
    pace = Pace()

    def woken_before_s(number: int, width_s: float) -> float:
        """How long before the next edge it is read again, after one of this width at `number` steps."""
        pace.note(Edge(0.1 * number, width_s, float(number)))
        now_s = 0.1 * number + 0.08
        return 0.1 * (number + 1) - (now_s + pace.pause_s(now_s))

    steady_s = [woken_before_s(number, 0.008) for number in range(60)][-1]
    missed_s = woken_before_s(60, 0.03)
    again_s = [woken_before_s(number, 0.008) for number in range(61, 120)][-1]
    assert steady_s == pytest.approx(0.01)
    assert missed_s == pytest.approx(0.015)
    assert again_s == pytest.approx(0.01)


# --- what there is not --------------------------------------------------------------------------------------


def read(**gpu: Any) -> tuple[Device, Reading]:
    bench = Bench([], gpu)
    found = Device(bench.nvml(), 0, lambda: bench.now_s)
    return found, found.read()


def test_energy_and_instant_power_come_in_one_call() -> None:
    bench = Bench([])
    nvml = bench.nvml()
    found = Device(nvml, 0, lambda: bench.now_s)
    before = nvml._gpu.calls
    reading = found.read()
    assert nvml._gpu.calls == before + 1
    assert reading.power_w == 300.0
    assert reading.energy_j == pytest.approx(300.0 * 1000.0, rel=1e-3)
    assert reading.end_s - reading.begin_s == pytest.approx(CALL_S)


@pytest.mark.parametrize(
    ("absent", "source", "has_energy", "has_power"),
    [
        ([186], "average", True, True),
        ([83, 186], "average", True, True),  # the counter has a function of its own
        ([83, "nvmlDeviceGetTotalEnergyConsumption"], "instant", False, True),
        ([186, "nvmlDeviceGetPowerUsage"], None, True, False),
        (["nvmlDeviceGetFieldValues"], "average", True, True),
    ],
)
def test_a_field_that_is_not_supported_is_absent_and_never_zero(
    absent: list[Any], source: str | None, *, has_energy: bool, has_power: bool
) -> None:
    found, reading = read(absent=absent)
    assert found.power == source
    assert (reading.energy_j is not None) == has_energy
    assert (reading.power_w is not None) == has_power
    assert 0.0 not in (reading.energy_j, reading.power_w)


def test_a_look_tells_null_for_each_field_that_there_is_not() -> None:
    names = ["TemperatureV", "Temperature", "ClockInfo", "UtilizationRates", "CurrentClocksEventReasons"]
    names += ["CurrentClocksThrottleReasons", "ComputeRunningProcesses", "GraphicsRunningProcesses"]
    found, _ = read(absent=[f"nvmlDeviceGet{name}" for name in names])
    assert set(found.look().values()) == {None}


def test_older_drivers_and_bindings_are_asked_by_the_older_names() -> None:
    unknown = ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons"]
    found, _ = read(unknown=unknown, reasons=0x40, temperature_c=71)
    assert found.look()["temperature_c"] == 71
    assert found.look()["reasons"] == ["hw_thermal_slowdown"]
    bench = Bench([], {"reasons": 0x08})
    nvml = bench.nvml()
    for name in unknown:
        delattr(nvml, name)
    assert Device(nvml, 0, lambda: bench.now_s).look()["reasons"] == ["hw_slowdown"]


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x01, []),  # idle
        (0x02, []),  # clocks set by the operator
        (0x04, ["sw_power_cap"]),
        (0x08 | 0x80, ["hw_slowdown", "hw_power_brake"]),
        (0x20 | 0x40, ["hw_thermal_slowdown", "sw_thermal_slowdown"]),
    ],
)
def test_reasons_are_named(bits: int, names: list[str]) -> None:
    assert read(reasons=bits)[0].look()["reasons"] == names


def test_no_library_and_no_such_gpu_are_told_apart() -> None:
    with pytest.raises(Unusable, match="NVML Shared Library Not Found") as refused:
        read(no_library=True)
    assert refused.value.code == "no_nvml"
    bench = Bench([])
    with pytest.raises(Unusable, match="wanted GPU 3, NVML has 1"):
        Device(bench.nvml(), 3, lambda: bench.now_s)


def test_a_gpu_that_is_lost_is_counted_as_lost_reads_with_its_reason() -> None:
    bench = sampled(5.0)
    nvml = bench.nvml()
    found = Device(nvml, 0, lambda: bench.now_s)
    nvml._gpu.is_lost = True
    Reader(found, nvml.NVMLError, now=lambda: bench.now_s, wait=bench.wait, say=bench.said.append).run()
    assert sum(line["lost"] for line in bench.said) > 20
    assert {line["error"] for line in bench.said} == {"GPU is lost"}
    assert [line["look"] for line in bench.said if line["look"]] == []


def test_words_that_mean_nothing_are_left() -> None:
    bench = Bench([(1000.0, "stop"), (1000.5, "start x"), (1001.0, "reboot"), (1002.0, "end")])
    bench.run()
    assert all(line["run"] is None and not line["power"] for line in bench.said)
