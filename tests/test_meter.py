"""Which meter measures, and why; and what its observer makes of a measurement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from jouled.board.clock import Clock
from jouled.board.clocks import ClockReading
from jouled.board.discover import discover_domains
from jouled.board.domains import Domains
from jouled.board.gpuload import GpuClient
from jouled.board.grid import board_space
from jouled.board.meter import BoardMeters, Chosen, Meter, choose_meter, observer_of
from jouled.board.nvml_link import GpuInfo
from jouled.board.observer import Observer, SysfsObserver, Together
from jouled.board.process import Processes
from jouled.board.rails import RailMeter, find_meter
from jouled.board.thermal import ThermalState
from jouled.config import load
from jouled.errors import ConfigError, NotSupportedError, SensorError
from jouled.job.cancel import Cancellation, Cancelled
from jouled.job.events import Event
from jouled.job.job import run_job
from jouled.job.measuring import Measurer, MeasuringSettings, Taken, Wanted
from jouled.job.request import Request
from jouled.virtual.faults import set_faults
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.meters import simulated_meter
from jouled.virtual.runner import VirtualRunner
from jouled.workload.runner import Arrival
from jouletune.latency import Clustering
from jouletune.measurement import PowerTrace, RailTrace
from jouletune.space import PowerMode, Variant
from jouletune.trace import EnergyCounter
from jouletune.trial import Infeasible, Invalid, judge_validity

GPU = GpuInfo(0, "NVIDIA Test", "GPU-1", "00000000:01:00.0", "590.44.01", "instant", 700.0)


@dataclass
class FakeObserver:
    """Shows what it is told to."""

    throttling: tuple[str, ...] = ()
    temperature_c: float = 50.0
    clients: tuple[GpuClient, ...] = ()
    gone: bool = False
    by_design: frozenset[str] = frozenset({"sw_power_cap"})
    counts_over_current: bool = False

    def thermal(self) -> ThermalState:
        if self.gone:
            raise SensorError("NVML: its reader has ended")
        return ThermalState({"gpu": self.temperature_c}, dict.fromkeys(self.throttling, 1), {}, ())

    def clocks(self) -> ClockReading:
        return ClockReading(None, 1_980_000_000, 3_201_000_000)

    def others(self, own: Collection[int]) -> tuple[GpuClient, ...]:
        return tuple(client for client in self.clients if client.pid not in own)

    def load(self) -> float | None:
        return 0.0


@dataclass
class FakeMeter:
    """A GPU that draws 300 W, and whose counter says `gain` times as much."""

    observer: Observer | None = None
    gain: float = 1.0
    rail: str = "nvml:GPU0"
    coverage: str = "GPU board, as NVML counts it"
    averaging_s: float = 0.125
    gpu: GpuInfo | None = GPU
    closed: bool = False

    def sampling(self, clock: Clock, *, rate_hz: float, external_w: float = 0.0) -> FakeSampling:
        return FakeSampling(clock, self)

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeSampling:
    clock: Clock
    meter: FakeMeter
    began_s: float = 0.0
    last_error: SensorError | None = None
    power_w: float | None = 300.0

    def start(self) -> None:
        self.began_s = self.clock.monotonic_s()

    def trace(self) -> PowerTrace:
        t_s = np.arange(self.began_s, self.clock.monotonic_s() + 0.01, 0.05, dtype=np.float64)
        rail = RailTrace(self.meter.rail, np.ones(t_s.size), np.full(t_s.size, 300.0), 0.0, 0.001)
        edges_s = t_s[::2]
        counter = EnergyCounter(edges_s, 300.0 * self.meter.gain * edges_s, np.full(edges_s.size, 0.01))
        return PowerTrace(t_s, (rail,), 0.125, 0.125, counter=counter)

    def stop(self) -> PowerTrace:
        return self.trace()


def fake_nvml(monkeypatch: pytest.MonkeyPatch, answer: FakeMeter | str) -> None:
    def opened(processes: Processes, *, device: int = 0) -> Meter:
        if isinstance(answer, str):
            raise NotSupportedError(f"NVML: {answer}")
        return answer

    monkeypatch.setattr("jouled.board.meter.open_nvml", opened)


# --- which one ----------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> VirtualMachine:
    return VirtualMachine(tmp_path / "board", programs="in_process")


def rails(machine: VirtualMachine, *names: str) -> RailMeter:
    return find_meter(machine.sysfs, names or machine.spec.total_rails)


def no_jtop() -> Meter:
    raise NotSupportedError("jtop: there is no jetson-stats here")


def meters(machine: VirtualMachine, *names: str, jtop: Callable[[], Meter] = no_jtop) -> BoardMeters:
    return BoardMeters(lambda: rails(machine, *names), jtop)


def test_a_boards_own_sensors_come_first(machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, FakeMeter())
    for wanted in ("auto", "sysfs"):
        chosen = choose_meter(Processes(), wanted, meters(machine))
        assert chosen.meter.rail == "VDD_GPU_SOC+VDD_CPU_CV+VIN_SYS_5V0"
        assert not chosen.is_fallback
    machine.close()


def test_where_they_do_not_measure_the_total_nvml_does_and_it_is_said(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml(monkeypatch, FakeMeter())
    chosen = choose_meter(Processes(), "auto", meters(machine, "VIN"))
    assert chosen.meter.rail == "nvml:GPU0"
    assert chosen.is_fallback
    assert "GPU board" in chosen.why
    assert "no VIN" in chosen.why
    machine.close()


def test_where_neither_does_the_boards_own_reason_is_given(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml(monkeypatch, "power is not supported")  # as on Orin
    with pytest.raises(NotSupportedError, match="no VIN") as refused:
        choose_meter(Processes(), "auto", meters(machine, "VIN"))
    assert "power is not supported" in str(refused.value.__cause__)
    machine.close()


def test_sysfs_alone_falls_back_to_nothing(machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, FakeMeter())
    with pytest.raises(NotSupportedError, match="no VIN"):
        choose_meter(Processes(), "sysfs", meters(machine, "VIN"))
    machine.close()


@pytest.mark.parametrize("wanted", ["auto", "nvml"])
def test_a_machine_that_is_no_jetson_is_measured_by_nvml(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, FakeMeter())
    chosen = choose_meter(Processes(), wanted, None)
    assert (chosen.meter.rail, chosen.is_fallback) == ("nvml:GPU0", False)


def test_what_cannot_be_is_refused_with_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, "there is no Python module pynvml here")
    for wanted in ("sysfs", "jtop"):
        with pytest.raises(NotSupportedError, match="no Jetson") as refused:
            choose_meter(Processes(), wanted, None)
        assert '"nvml"' in refused.value.hint
    with pytest.raises(NotSupportedError, match="no Python module pynvml"):
        choose_meter(Processes(), "auto", None)


def hide(machine: VirtualMachine) -> None:
    set_faults(str(machine.root), read_errors={"/sys/class/hwmon/*/curr1_input": "EACCES"})


def test_jtop_measures_where_the_config_says_so_and_where_the_sensors_are_hidden(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml(monkeypatch, FakeMeter())
    found = meters(machine, jtop=lambda: FakeMeter(rail="VDD_IN", coverage="module, read by jtop"))
    assert choose_meter(Processes(), "jtop", found).meter.rail == "VDD_IN"
    assert choose_meter(Processes(), "auto", found).meter.rail == "VDD_GPU_SOC+VDD_CPU_CV+VIN_SYS_5V0"
    hide(machine)
    chosen = choose_meter(Processes(), "auto", found)
    assert (chosen.meter.rail, chosen.is_fallback) == ("VDD_IN", True)
    assert chosen.why.startswith("measured by jtop (module, read by jtop), since the total rail")
    assert "curr1_input: cannot read" in chosen.why
    machine.close()


def test_where_a_rail_is_missing_jtop_is_not_asked_since_it_reads_the_same_sensors(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml(monkeypatch, FakeMeter())
    chosen = choose_meter(Processes(), "auto", meters(machine, "VIN", jtop=lambda: pytest.fail("it was asked")))
    assert chosen.meter.rail == "nvml:GPU0"
    machine.close()


def test_where_jtop_is_not_there_either_nvml_comes_last(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml(monkeypatch, FakeMeter())
    hide(machine)
    chosen = choose_meter(Processes(), "auto", meters(machine))
    assert (chosen.meter.rail, chosen.is_fallback) == ("nvml:GPU0", True)
    fake_nvml(monkeypatch, "power is not supported")
    with pytest.raises(NotSupportedError, match="not to be read"):
        choose_meter(Processes(), "auto", meters(machine))
    machine.close()


def test_a_simulated_board_is_never_measured_by_this_machines_meters(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml(monkeypatch, FakeMeter())
    found = meters(machine, jtop=lambda: pytest.fail("it was asked"))
    for wanted in ("auto", "sysfs", "jtop", "nvml"):
        chosen = simulated_meter(Processes(), wanted, found)
        assert chosen.meter.rail == "VDD_GPU_SOC+VDD_CPU_CV+VIN_SYS_5V0"
        assert chosen.is_fallback == (wanted in ("jtop", "nvml"))
        assert (f'"{wanted}" is for a real one' in chosen.why) == chosen.is_fallback
    machine.close()


# --- who looks ----------------------------------------------------------------------------------------------


def test_a_pc_is_observed_by_nvml_alone_and_a_jetson_by_both(machine: VirtualMachine) -> None:
    observer, domains = FakeObserver(temperature_c=60.0, throttling=("hw_slowdown",)), discovered(machine)
    assert observer_of(machine.sysfs, None, FakeMeter(observer)) is observer
    assert isinstance(observer_of(machine.sysfs, domains, rails(machine)), SysfsObserver)
    both = observer_of(machine.sysfs, domains, FakeMeter(observer))
    assert isinstance(both, Together)
    seen = both.thermal()
    assert seen.zones_c["gpu"] == 60.0
    assert "tj-thermal" in seen.zones_c
    assert seen.throttling == ("hw_slowdown",)
    assert both.counts_over_current
    assert both.clocks() == SysfsObserver(machine.sysfs, domains).clocks()
    with pytest.raises(NotSupportedError, match="nothing here tells heat"):
        observer_of(machine.sysfs, None, FakeMeter(None))
    machine.close()


def discovered(machine: VirtualMachine) -> Domains:
    return discover_domains(machine.sysfs)


# --- what becomes of it -------------------------------------------------------------------------------------


@dataclass
class Bench:
    """A machine whose meter and observer are the fakes."""

    folder: Path
    observer: FakeObserver = field(default_factory=FakeObserver)
    gain: float = 1.0

    def __post_init__(self) -> None:
        self.machine = VirtualMachine(self.folder / "board", programs="in_process")
        runner = VirtualRunner(self.machine, Arrival())
        runner.load(Variant())
        settings = MeasuringSettings(
            settle_min_s=2.0, settle_max_s=2.0, pilot_s=2.0, window_min_s=5.0, window_max_s=5.0
        )
        self.measurer = Measurer(
            self.machine.host(self.folder),
            None,
            FakeMeter(self.observer, self.gain),
            runner,
            settings,
            cancellation=Cancellation(),
            progress=lambda *_: None,
        )

    def take(self, bound_s: float | None = None) -> Taken:
        return self.measurer.take(Wanted(PowerMode(), locked=False, bound_s=bound_s, clustering=Clustering()))

    def invalid(self) -> Invalid | None:
        evidence = self.take().evidence
        return judge_validity(replace(evidence, sensor=None), None, Infeasible.LATENCY)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.measurer.runner.close()
    made.machine.close()


def test_the_operators_power_limit_is_how_this_gpu_runs(bench: Bench) -> None:
    assert bench.invalid() is None
    bench.observer.throttling = ("sw_power_cap",)
    assert bench.invalid() is None


@pytest.mark.parametrize("kind", ["hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake"])
def test_any_other_slowdown_is_throttling_at_the_reference_too(bench: Bench, kind: str) -> None:
    bench.observer.throttling = (kind,)
    assert bench.invalid() is Invalid.THROTTLED


def test_a_cancelled_window_waits_for_no_request_in_flight(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(bench.measurer.runner, "close", lambda: calls.append("close"))
    monkeypatch.setattr(bench.measurer.runner, "pause", lambda: calls.append("pause"))
    bench.measurer.cancellation.ask("user", "enough")
    with pytest.raises(Cancelled, match="enough"):
        bench.take()
    assert calls[0] == "close"


def test_heat_beyond_the_limit_ends_a_window_at_once(bench: Bench) -> None:
    bench.observer.temperature_c = 91.0
    assert "91.0 °C, above board.max_temp_c = 90" in bench.take().alarm


def test_whoever_came_after_the_reference_is_a_stranger(bench: Bench) -> None:
    old, new = GpuClient("desktop", 10), GpuClient("miner", 11)
    bench.observer.clients = (old,)
    assert bench.invalid() is None
    bench.observer.clients = (old, new)
    assert bench.invalid() is Invalid.GPU_BUSY
    assert bench.take().evidence.strangers == ("miner (pid 11)",)


def test_an_observer_that_is_gone_ends_the_measurement_as_the_sensor_that_it_is(bench: Bench) -> None:
    bench.observer.gone = True
    with pytest.raises(SensorError, match="reader has ended"):
        bench.take()


def test_without_event_counters_nobody_waits_for_them(bench: Bench) -> None:
    taken = bench.take()
    assert bench.machine.clock.monotonic_s() - taken.end_s < 0.6  # the load's 0.5 s beyond the window
    bench.observer.counts_over_current = True
    taken = bench.take()
    assert bench.machine.clock.monotonic_s() - taken.end_s == pytest.approx(2.5, abs=0.01)


@pytest.mark.parametrize("gain", [0.97, 1.0, 1.04])
def test_what_the_counter_says_beside_the_power_is_taken_down(tmp_path: Path, gain: float) -> None:
    bench = Bench(tmp_path, gain=gain)
    assert bench.take().counter_ratio == pytest.approx(gain)
    bench.measurer.runner.close()
    bench.machine.close()


def test_a_window_of_five_seconds_is_enough_for_a_counter(bench: Bench) -> None:
    taken = bench.take()
    assert taken.end_s - taken.start_s == pytest.approx(5.0)
    assert taken.evidence.sensor is None


@pytest.mark.parametrize(("gain", "warnings"), [(1.0, 0), (1.04, 1)])
def test_a_job_says_once_where_counter_and_power_differ_and_lets_go_of_its_meter(
    machine: VirtualMachine, tmp_path: Path, gain: float, warnings: int
) -> None:
    meter, events = FakeMeter(gain=gain), list[Event]()
    config = load(None, {"target.latency_bound_ratio": 1.4, "job.budget": 3, "job.watch_s": 5.0})
    request = Request(
        config,
        "virtual",
        lambda board: board_space(board, config.grid),
        choose_meter=lambda *_: Chosen(meter, "the only one", is_fallback=True),
    )
    runner = VirtualRunner(machine, Arrival())
    result = run_job(machine.host(tmp_path), request, runner, cancellation=Cancellation(), sinks=(events.append,))
    assert result.rail == "nvml:GPU0"
    assert sum("energy counter differs by +4.0 %" in text for text in result.warnings) == warnings
    assert "the only one" in result.warnings
    ratios = [event["counter_ratio"] for event in events if event["event"] == "trial" and "counter_ratio" in event]
    assert len(ratios) > 3
    assert ratios == pytest.approx([gain] * len(ratios))
    assert meter.closed
    machine.close()


def test_a_job_that_cannot_begin_leaves_no_meter_open(machine: VirtualMachine, tmp_path: Path) -> None:
    meter = FakeMeter(averaging_s=1.0)
    config = load(None, {"target.latency_bound_ratio": 1.4, "job.window_min_s": 16.0})
    request = Request(
        config,
        "virtual",
        lambda board: board_space(board, config.grid),
        choose_meter=lambda *_: Chosen(meter, "the only one"),
    )
    with pytest.raises(ConfigError, match=r"wanted at least 32.0 s \(32 averages of this sensor\)"):
        run_job(machine.host(tmp_path), request, VirtualRunner(machine, Arrival()), cancellation=Cancellation())
    assert meter.closed
    machine.close()
