"""The NVML meter with its reader as the process that it is; the GPU alone is a stand-in."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.gpu import STANDIN

from jouled.board import nvml
from jouled.board.clock import SystemClock
from jouled.board.meter import measure_idle_w
from jouled.board.nvml import NvmlMeter, NvmlSampling, child_argv, open_nvml
from jouled.board.process import MARK, Processes, Spawned, start_ticks
from jouled.errors import NotSupportedError, SensorError
from jouletune.measurement import mean_power_w
from jouletune.trace import counter_ratio


class Starter:
    """Starts readers of a GPU that is as said, and keeps what it started."""

    def __init__(self, **gpu: Any) -> None:
        self.gpu = gpu
        self.started: list[Spawned] = []

    def __call__(self) -> Spawned:
        environment = {"NVML_STANDIN": json.dumps(self.gpu)}
        self.started.append(Processes().spawn(child_argv(0, STANDIN), environment=environment))
        return self.started[-1]


@contextmanager
def opened(**gpu: Any) -> Iterator[tuple[NvmlMeter, Starter]]:
    starter = Starter(**gpu)
    meter = NvmlMeter(starter)
    try:
        yield meter, starter
    finally:
        meter.close()


def until(is_there: Callable[[], bool], most_s: float = 30.0) -> None:
    ends_s = time.monotonic() + most_s
    while not is_there():
        assert time.monotonic() < ends_s, "it never came"
        time.sleep(0.01)


def edges(sampling: NvmlSampling) -> int:
    counter = sampling.trace().counter
    return 0 if counter is None else len(counter.t_s)


def test_a_sampling_holds_power_and_the_counters_edges() -> None:
    with opened() as (meter, _):
        sampling = meter.sampling(SystemClock(), rate_hz=5.0, external_w=5.0)
        began_s = time.monotonic()
        sampling.start()
        assert sampling.power_w == pytest.approx(305.0)
        until(lambda: edges(sampling) >= 12)
        trace = sampling.stop()
        assert trace.counter is not None
        assert began_s <= trace.t_s[0]
        assert trace.t_s[-1] <= time.monotonic()
        first_s, last_s = float(trace.counter.t_s[0]), float(trace.counter.t_s[-1])
        assert mean_power_w(trace, first_s, last_s) == pytest.approx(305.0, rel=0.02)
        assert counter_ratio(trace, first_s, last_s) == pytest.approx(1.0, rel=0.02)
        assert (meter.rail, meter.averaging_s, trace.lost) == ("nvml:GPU0", 0.125, 0)


def test_it_says_which_gpu_it_measures() -> None:
    with opened() as (meter, _):
        gpu = meter.gpu
        assert (gpu.name, gpu.driver, gpu.power_limit_w) == ("NVIDIA Stand-in", "590.44.01", 700.0)
        assert gpu.pci_bus_id == "00000000:01:00.0"


def test_without_a_counter_the_power_is_integrated() -> None:
    with opened(absent=[83, "nvmlDeviceGetTotalEnergyConsumption"]) as (meter, _):
        sampling = meter.sampling(SystemClock(), rate_hz=5.0)
        sampling.start()
        until(lambda: len(sampling.trace().t_s) >= 20)
        trace = sampling.stop()
        assert trace.counter is None
        assert mean_power_w(trace, float(trace.t_s[0]), float(trace.t_s[-1])) == pytest.approx(300.0)


def test_where_only_the_mean_of_a_second_is_told_readings_average_over_it() -> None:
    with opened(absent=[186]) as (meter, _):
        assert (meter.gpu.power, meter.averaging_s) == ("average", 1.0)


def test_a_second_sampling_begins_with_nothing_of_the_first() -> None:
    with opened() as (meter, _):
        first = meter.sampling(SystemClock(), rate_hz=5.0)
        first.start()
        until(lambda: len(first.trace().t_s) >= 10)
        last_s = first.stop().t_s[-1]
        second = meter.sampling(SystemClock(), rate_hz=5.0)
        second.start()
        until(lambda: len(second.trace().t_s) >= 10)
        assert second.stop().t_s[0] > last_s


def test_a_sampling_is_not_begun_twice() -> None:
    with opened() as (meter, _):
        sampling = meter.sampling(SystemClock(), rate_hz=5.0)
        sampling.start()
        with pytest.raises(RuntimeError, match="runs already"):
            sampling.start()
        sampling.stop()


def test_idle_power_is_measured_by_it_like_by_any_meter() -> None:
    with opened() as (meter, starter):
        link = meter.linked()
        idle_w = measure_idle_w(SystemClock(), meter, lambda: until(lambda: len(link.run.edges) > 3), rate_hz=5.0)
        assert idle_w == pytest.approx(300.0, rel=0.02)
        assert len(starter.started) == 1


# --- what it sees beside power ------------------------------------------------------------------------------


def test_the_observer_tells_heat_throttling_clocks_and_load() -> None:
    with opened(reasons=0x40 | 0x04, temperature_c=83, load=42) as (meter, _):
        seen = meter.observer.thermal()
        assert seen.hottest_c == 83.0
        assert seen.throttling == ("hw_thermal_slowdown", "sw_power_cap")
        assert meter.observer.clocks().gpu_hz == 1_980_000_000
        assert meter.observer.clocks().cpu_hz is None
        assert meter.observer.load() == 0.42
        assert meter.observer.by_design == {"sw_power_cap"}


def test_a_temperature_that_is_not_told_is_absent() -> None:
    absent = ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", "nvmlDeviceGetUtilizationRates"]
    with opened(absent=absent) as (meter, _):
        assert meter.observer.thermal().zones_c == {}
        assert meter.observer.load() is None


def test_others_are_named_where_our_own_process_is_listed_too() -> None:
    me, parent = os.getpid(), os.getppid()
    with opened(pids=[me, parent]) as (meter, _):
        (other,) = meter.observer.others((me,))
        assert other.pid == parent
        assert other.name == Path(f"/proc/{parent}/comm").read_text().strip()


@pytest.mark.parametrize(("namespace", "is_named"), [("pid:[4026531836]", True), ("pid:[4026532200]", False)])
def test_before_anything_of_ours_runs_only_the_first_namespace_tells_who_is_there(
    namespace: str, is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "pid"
    link.symlink_to(namespace)
    monkeypatch.setattr(nvml, "_PID_NAMESPACE", str(link))
    parent = os.getppid()
    with opened(pids=[parent]) as (meter, _):
        assert [client.pid for client in meter.observer.others(())] == ([parent] if is_named else [])


def test_pids_of_another_namespace_name_nobody() -> None:
    with opened(pids=[1, 4_000_000]) as (meter, _):
        assert meter.observer.others((os.getpid(),)) == ()


# --- when it cannot -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "text"),
    [
        ({"no_library": True}, "NVML Shared Library Not Found"),
        ({"count": 0}, "wanted GPU 0, NVML has 0"),
        ({"absent": [186, "nvmlDeviceGetPowerUsage"]}, "NVIDIA Stand-in tells no power"),
        ({"is_lost": True}, "GPU is lost"),
        ({"no_such_field": 1}, "its reader has ended: .*no_such_field"),
    ],
)
def test_a_machine_without_a_gpu_to_measure_is_refused_with_the_reason(gpu: dict[str, Any], text: str) -> None:
    starter = Starter(**gpu)
    with pytest.raises(NotSupportedError, match=text) as refused:
        NvmlMeter(starter)
    assert "pip install" in refused.value.hint
    assert start_ticks(starter.started[0].pid) is None, "the reader was left"


def test_without_the_binding_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotSupportedError, match="no Python module pynvml") as refused:
        open_nvml(Processes())
    assert "jouled[nvml]" in refused.value.hint


def test_a_reader_that_is_killed_is_an_error_now_and_is_started_again_for_the_next_window() -> None:
    with opened() as (meter, starter):
        sampling = meter.sampling(SystemClock(), rate_hz=5.0)
        sampling.start()
        os.kill(starter.started[0].pid, signal.SIGKILL)
        until(lambda: not meter._link.is_alive)
        with pytest.raises(SensorError, match="its reader has ended"):
            meter.observer.thermal()
        sampling.stop()
        assert sampling.last_error is not None
        again = meter.sampling(SystemClock(), rate_hz=5.0)
        again.start()
        assert again.power_w == pytest.approx(300.0)
        again.stop()
        assert len(starter.started) == 2
        assert meter.observer.thermal().hottest_c == 50.0


def test_a_reader_that_is_killed_between_two_windows_is_started_again_by_who_looks_first() -> None:
    with opened() as (meter, starter):
        os.kill(starter.started[0].pid, signal.SIGKILL)
        until(lambda: not meter._link.is_alive)
        assert meter.observer.thermal().hottest_c == 50.0
        assert len(starter.started) == 2


def test_a_reader_that_died_in_a_window_is_started_again_by_who_looks_before_the_next() -> None:
    with opened() as (meter, starter):
        sampling = meter.sampling(SystemClock(), rate_hz=5.0)
        sampling.start()
        os.kill(starter.started[0].pid, signal.SIGKILL)
        until(lambda: not meter._link.is_alive)
        sampling.stop()
        assert meter.observer.clocks().gpu_hz is not None
        assert len(starter.started) == 2


def test_a_reader_that_hangs_between_two_windows_is_ended_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as (meter, starter):
        os.kill(starter.started[0].pid, signal.SIGSTOP)
        monkeypatch.setattr("jouled.board.nvml_link.SILENT_S", 1.0)
        until(lambda: meter._link.is_silent)
        assert meter.observer.thermal().hottest_c == 50.0
        assert start_ticks(starter.started[0].pid) is None


def test_a_call_that_hangs_in_the_driver_is_told_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jouled.board.nvml_link.SILENT_S", 0.5)
    with opened(hang_after=40) as (meter, starter):
        sampling = meter.sampling(SystemClock(), rate_hz=5.0)
        sampling.start()

        def is_told() -> bool:  # a look that has just not come yet is told first
            try:
                meter.observer.thermal()
            except SensorError as error:
                return "a call hangs in the driver" in str(error)
            return False

        until(is_told)
        sampling.stop()
        assert "a call hangs in the driver" in str(sampling.last_error)
    assert start_ticks(starter.started[0].pid) is None


def test_a_gpu_that_is_lost_on_the_way_gives_no_look_and_lost_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jouled.board.nvml_link.SILENT_S", 1.0)
    with opened(lost_after=60) as (meter, _):
        sampling = meter.sampling(SystemClock(), rate_hz=5.0)
        sampling.start()
        until(lambda: sampling.trace().lost > 3)
        with pytest.raises(SensorError, match="GPU is lost"):
            until(lambda: meter.observer.thermal() is None)
        assert sampling.stop().lost > 3


def test_the_reader_ends_when_its_parent_is_gone() -> None:
    starter = Starter()
    child = starter()
    assert os.read(child.stdout, 1 << 16)
    child.close_stdin()
    assert child.wait(10.0) == 0
    child.release()


def test_the_reader_is_isolated_and_marked() -> None:
    starter = Starter()
    child = starter()
    assert os.read(child.stdout, 1 << 16)
    arguments = Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")
    variables = Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")
    assert arguments[1] == b"-I"
    assert f"{MARK}=jouled".encode() in variables
    child.kill()
    child.release()
