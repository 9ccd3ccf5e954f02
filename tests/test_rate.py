"""A fixed rate has another optimum than back to back: race to idle against slow and steady, and the reason for it.

Let a request take s(f) seconds at the clock f, the board draw P(f) watts meanwhile and p watts between two requests.
Back to back a request costs g(f) = P(f)·s(f). At r requests a second, r·s(f) < 1, it also pays for the pause after it:

    e(f) = P(f)·s(f) + p·(1/r - s(f)) = g(f) - p·s(f) + p/r

Standing watts are spent all the time whatever is chosen (p/r is a constant), so that being done sooner saves none of
them: the slower mode gets the rebate p·s(f). Let f' be the optimum back to back. Above it g(f) >= g(f'), and s falls,
so that e(f) >= e(f'): **at a rate the optimum is never faster**, and it is slower as soon as the watts that switching
costs fall faster with the clock than time grows. Back to back the board races, since a frame that takes longer pays
for its standing watts longer; at a rate it goes slow and steady. The cheaper the pause the smaller the rebate: with
p = 0 (a board that could switch itself off between frames) racing to idle is right at a rate, too.

That is so for each clock that falls in the pause. The memory's does not, so that p depends on it: one more reason
for a low one at a rate, which the whole grid shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from jouled.board.board import Board, discover
from jouled.board.grid import board_space
from jouled.config import Config, load
from jouled.job.cancel import Cancellation
from jouled.job.events import Event
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.operation import Operation, Thermal
from jouled.virtual.plant import LayerPlant, load_workload
from jouled.virtual.truth import Truth
from jouled.workload.runner import Arrival
from jouletune.space import PowerMode, Space, Variant

RATE_HZ = 60.0
CAMERA = Arrival("rate", RATE_HZ)


@dataclass
class Bench:
    """A virtual board whose GPU clock alone is searched, and its truth."""

    folder: Path
    machine: VirtualMachine
    config: Config

    @property
    def board(self) -> Board:
        return discover(self.machine.host(self.folder))

    @property
    def space(self) -> Space:
        return board_space(self.board, self.config.grid)

    @property
    def modes(self) -> list[PowerMode]:
        return sorted((candidate.mode for candidate in self.space.candidates), key=lambda mode: mode.gpu_hz or 0)

    def truth(self, mode: PowerMode, arrival: Arrival) -> Truth:
        return self.machine.truth(mode, arrival=arrival)

    def best(self, arrival: Arrival) -> PowerMode:
        return min(self.modes, key=lambda mode: self.truth(mode, arrival).energy_j)

    def run(self, arrival: Arrival, events: list[Event] | None = None) -> JobResult:
        sinks = () if events is None else (events.append,)
        host, runner = self.machine.host(self.folder), self.machine.runner(arrival)
        request = Request(self.config, "virtual:yolov8s-640", lambda board: board_space(board, self.config.grid))
        return run_job(host, request, runner, cancellation=Cancellation(), sinks=sinks)


def bench_in(folder: Path, *, grid: str = "1x8x1", thermal: Thermal | None = None, budget: int = 10) -> Bench:
    plant = LayerPlant(load_workload("yolov8s-640"), thermal=thermal or Thermal())
    machine = VirtualMachine(folder / "board", plant=plant, programs="in_process")
    config = load(None, {"target.no_latency_bound": True, "grid.shape": grid, "job.budget": budget})
    return Bench(folder, machine, config)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return bench_in(tmp_path)


def operate(bench: Bench, mode: PowerMode) -> Operation:
    from jouled.virtual.knobs import read_setting, wanted_setting

    setting = wanted_setting(read_setting(bench.machine.kernel, bench.machine.spec), bench.machine.spec, mode, "capped")
    return bench.machine.plant.operate(setting, Variant())


def watts(operation: Operation) -> tuple[float, float]:
    """Of the module: (busy, between two requests)."""
    return sum(operation.busy.w[:3]), sum(operation.between.w[:3])


# --- the reason ---------------------------------------------------------------------------------------------


def test_energy_at_a_rate_is_that_back_to_back_and_the_pause(tmp_path: Path) -> None:
    bench = bench_in(tmp_path, thermal=Thermal(ambient_c=45.0, c_per_w=0.0))  # leakage stays what it is
    for mode in bench.modes:
        one = operate(bench, mode)
        busy_w, between_w = watts(one)
        mean_s = one.service_s * bench.machine.plant.noise.mean_request
        alone_j = busy_w * mean_s
        assert bench.truth(mode, Arrival()).energy_j == pytest.approx(alone_j)
        expected_j = alone_j - between_w * mean_s + between_w / RATE_HZ
        assert bench.truth(mode, CAMERA).energy_j == pytest.approx(expected_j)


def test_standing_watts_are_the_same_whatever_gpu_clock_is_chosen(bench: Bench) -> None:
    assert len({watts(operate(bench, mode))[1] for mode in bench.modes}) == 1


def test_best_mode_at_a_rate_is_slower_than_the_best_back_to_back(bench: Bench) -> None:
    racing, steady = bench.best(Arrival()), bench.best(CAMERA)
    assert racing.gpu_hz is not None
    assert steady.gpu_hz is not None
    lowest, *_, highest = bench.modes
    assert lowest.gpu_hz is not None
    assert highest.gpu_hz is not None
    assert lowest.gpu_hz <= steady.gpu_hz < racing.gpu_hz < highest.gpu_hz
    lost = bench.truth(racing, CAMERA).energy_j / bench.truth(steady, CAMERA).energy_j - 1.0
    assert lost > 0.02
    assert bench.truth(steady, Arrival()).energy_j / bench.truth(racing, Arrival()).energy_j - 1.0 > 0.02


def test_on_the_whole_grid_the_wrong_arrival_costs_a_tenth_and_more(tmp_path: Path) -> None:
    bench = bench_in(tmp_path, grid="3x8x4")
    camera = Arrival("rate", 30.0)
    racing, steady = bench.best(Arrival()), bench.best(camera)
    assert bench.truth(racing, camera).energy_j > 1.1 * bench.truth(steady, camera).energy_j
    assert bench.truth(steady, Arrival()).energy_j > 1.1 * bench.truth(racing, Arrival()).energy_j
    assert (steady.emc_hz or 0) < (racing.emc_hz or 0)


def test_the_cheaper_the_pause_the_faster_the_best_mode(bench: Bench) -> None:
    """With a share of the pause's watts from all to nothing the optimum climbs from the steady to the racing one."""
    chosen = []
    for share in (1.0, 0.75, 0.5, 0.25, 0.0):

        def rated_j(mode: PowerMode, share: float = share) -> float:
            one = operate(bench, mode)
            busy_w, between_w = watts(one)
            return (busy_w - share * between_w) * one.service_s

        chosen.append(min(bench.modes, key=rated_j).gpu_hz or 0)
    assert chosen == sorted(chosen)
    assert (chosen[0], chosen[-1]) == (bench.best(CAMERA).gpu_hz, bench.best(Arrival()).gpu_hz)


# --- jobs ---------------------------------------------------------------------------------------------------


def test_job_finds_the_optimum_of_the_arrival_that_it_is_given(tmp_path: Path) -> None:
    found: dict[str, PowerMode] = {}
    for name, arrival in (("back", Arrival()), ("rate", CAMERA)):
        (tmp_path / name).mkdir()
        bench = bench_in(tmp_path / name)
        result = bench.run(arrival)
        assert result.outcome == "tuned"
        assert result.winner is not None
        found[name] = result.winner.candidate.mode
        least_j = bench.truth(bench.best(arrival), arrival).energy_j
        assert bench.truth(found[name], arrival).energy_j <= 1.02 * least_j
    assert (found["rate"].gpu_hz or 0) < (found["back"].gpu_hz or 0)


def test_power_and_energy_at_a_rate_are_those_of_the_whole_second(tmp_path: Path) -> None:
    bench = bench_in(tmp_path, budget=3)
    result = bench.run(CAMERA)
    assert result.reference is not None
    side = result.reference
    truth = bench.truth(side.candidate.mode, CAMERA)
    assert side.throughput_hz == pytest.approx(RATE_HZ, rel=0.002)
    assert side.power_w == pytest.approx(truth.power_w, rel=0.02)
    assert side.energy_j == pytest.approx(side.power_w / RATE_HZ, rel=0.005)


def test_job_on_a_trace_measures_bursts_queues_and_pauses(tmp_path: Path) -> None:
    """Five frames at once each second: the fifth waits for four; the energy is that of the whole second."""
    bench = bench_in(tmp_path, budget=4)
    arrival = Arrival("trace", times_s=(0.0, 0.0, 0.0, 0.0, 0.0), period_s=1.0)
    events: list[Event] = []
    result = bench.run(arrival, events)
    assert result.arrival == "trace of 5 requests in 1 s, 5 Hz"
    assert result.outcome in ("tuned", "no_gain")
    assert result.invalid == {}
    side = result.reference
    assert side is not None
    truth = bench.truth(side.candidate.mode, arrival)
    assert side.throughput_hz == pytest.approx(5.0)
    assert side.energy_j == pytest.approx(truth.energy_j, rel=0.03)
    service_s = operate(bench, side.candidate.mode).service_s
    assert side.latency_s == pytest.approx(5 * service_s, rel=0.03)
    windows = [event["trial"]["measurement"] for event in events if event["event"] == "trial"]
    assert all(window["requests"] == 5 * round(window["duration_s"]) for window in windows if window)


def test_trace_that_brings_more_than_the_board_can_do_is_no_case_for_tuning(tmp_path: Path) -> None:
    result = bench_in(tmp_path).run(Arrival("trace", times_s=tuple(i / 1000 for i in range(1000)), period_s=1.0))
    assert (result.outcome, result.reason_code) == ("no_feasible", "rate_not_reached")
