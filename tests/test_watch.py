"""The watch after an apply: what breaks it, and that the board is then as it was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jouled.board.applied import read_applied
from jouled.board.board import discover
from jouled.board.grid import board_space
from jouled.board.knobs import read_knobs
from jouled.board.pending import read_pending
from jouled.board.snapshot import snapshot_path
from jouled.board.winner import read_winner
from jouled.config import load
from jouled.job.cancel import Cancellation
from jouled.job.events import Event
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.job.watch import breach_of
from jouled.ledger import Ledger
from jouled.virtual.faults import set_faults
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.runner import VirtualRunner
from jouled.workload.runner import Arrival
from jouletune.decision import ReasonCode
from jouletune.measurement import Completions, Measurement
from jouletune.space import Candidate, PowerMode
from jouletune.trial import Infeasible, Invalid, Limits, Purpose, Trial

GPU_MAX = "/sys/class/devfreq/17000000.gpu/max_freq"

# --- what counts as a breach --------------------------------------------------------------------------------


def window(**fields: Any) -> Measurement:
    made = Measurement(
        rail="VDD_IN",
        start_s=0.0,
        duration_s=60.0,
        requests=1800,
        inferences=1800,
        energy_j=0.5,
        repeat_se_j=0.002,
        repeat_dof=20.0,
        sensor_se_j=0.001,
        between_se_j=0.002,
        between_dof=8.0,
        trend_ratio=0.0,
        power_w=15.0,
        throughput_hz=30.0,
        latency_percentile=95.0,
        latency_s=0.020,
        latency_lower_s=0.019,
        latency_upper_s=0.021,
        latency_se_s=0.0005,
        latency_samples=1800,
        latency_design=1.0,
        over_bound=0,
    )
    return replace(made, **fields)


def watched(measurement: Measurement | None = None, **fields: Any) -> Trial:
    made = Trial(0, 0, Purpose.FINALS, 1, Candidate(PowerMode()), "capped", 0.0, 60.0, measurement)
    return replace(made, **fields)


@pytest.mark.parametrize(
    ("trial", "limits", "code"),
    [
        (watched(window()), Limits(), None),
        (watched(window()), Limits(bound_s=0.025, max_power_w=16.0, rate_hz=30.0), None),
        (watched(window(latency_lower_s=0.0254, latency_s=0.026)), Limits(bound_s=0.025), ReasonCode.LATENCY),
        (watched(window(latency_lower_s=0.0252, latency_s=0.026)), Limits(bound_s=0.025), None),
        (watched(window(power_w=16.5)), Limits(max_power_w=16.0), ReasonCode.MAX_POWER),
        (watched(window(requests=1700)), Limits(rate_hz=30.0), ReasonCode.RATE_NOT_REACHED),
        (watched(None, cut=True, infeasible=Infeasible.LATENCY), Limits(bound_s=0.02), ReasonCode.LATENCY),
        (watched(None, invalid=Invalid.THROTTLED), Limits(), ReasonCode.THROTTLED),
        (watched(window(), invalid=Invalid.MODE_CHANGED, detail="max_freq"), Limits(), ReasonCode.MODE_CHANGED),
        (watched(None, invalid=Invalid.WORKLOAD_DIED), Limits(), ReasonCode.WORKLOAD_DIED),
        (watched(None, invalid=Invalid.WORKLOAD_HUNG), Limits(), ReasonCode.WORKLOAD_HUNG),
        (watched(window(), invalid=Invalid.CLOCKS_MOVED), Limits(), ReasonCode.CLOCKS_MOVED),
    ],
)
def test_breach_is_told_with_its_reason(trial: Trial, limits: Limits, code: ReasonCode | None) -> None:
    breach = breach_of(trial, limits)
    assert (None if breach is None else breach.code) == code
    assert breach is None or breach.text


@pytest.mark.parametrize(
    ("trial", "limits"),
    [
        (watched(window(latency_s=0.0255, latency_lower_s=0.0249)), Limits(bound_s=0.025)),
        (watched(window(latency_upper_s=float("inf"))), Limits(bound_s=0.025)),
        (watched(window(power_w=16.05)), Limits(max_power_w=16.0)),
    ],
)
def test_what_is_only_not_proven_is_no_breach(trial: Trial, limits: Limits) -> None:
    assert breach_of(trial, limits) is None


@pytest.mark.parametrize("reason", [Invalid.SENSOR_GAP, Invalid.SENSOR_STALLED, Invalid.SENSOR_ZERO])
def test_failing_sensor_shows_no_power_but_latency_still_counts(reason: Invalid) -> None:
    limits = Limits(bound_s=0.025, max_power_w=10.0)
    assert breach_of(watched(window(), invalid=reason), limits) is None
    slow = breach_of(watched(window(latency_lower_s=0.03), invalid=reason), limits)
    assert slow is not None
    assert slow.code is ReasonCode.LATENCY


@pytest.mark.parametrize("reason", [Invalid.UNSTEADY, Invalid.GPU_BUSY, Invalid.TOO_FEW_INFERENCES])
def test_window_that_says_little_is_no_breach(reason: Invalid) -> None:
    assert breach_of(watched(window(), invalid=reason), Limits(bound_s=0.025)) is None


# --- in a job -----------------------------------------------------------------------------------------------


class Slowing(VirtualRunner):
    """A workload whose requests take `more_s` longer from the moment somebody sets it."""

    more_s = 0.0

    def take(self) -> Completions:
        done = super().take()
        return Completions(done.arrival_s - self.more_s, done.start_s, done.end_s, done.batch)


class Bench:
    """Jobs on a virtual board; `act` is called when the watch begins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine = VirtualMachine(folder / "board", programs="in_process")
        self.host = self.machine.host(folder)
        self.runner = Slowing(self.machine, Arrival())
        self.cancellation = Cancellation()
        self.events: list[Event] = []
        self.host.sysfs.write("/sys/devices/system/cpu/cpufreq/policy4/scaling_min_freq", "1036800", why="operator")

    def run(self, act: Callable[[], None] = lambda: None, **keys: Any) -> JobResult:
        values = {"target.latency_bound_ratio": 1.4, "job.budget": 5}
        config = load(None, values | {key.replace("__", "."): value for key, value in keys.items()})
        request = Request(config, "w", lambda board: board_space(board, config.grid))

        def listen(event: Event) -> None:
            self.events.append(event)
            if event.get("phase") == "watching" and event["event"] == "phase":
                act()

        return run_job(
            self.host, request, self.runner, cancellation=self.cancellation, sinks=(listen,), who="uid 1000 (pepe)"
        )

    def knobs(self) -> dict[str, str]:
        return dict(read_knobs(self.host.sysfs, discover(self.host).domains).values)

    def faults(self, **faults: Any) -> None:
        set_faults(str(self.machine.root), **faults)

    def phases(self) -> list[str]:
        return [event["phase"] for event in self.events if event["event"] == "phase"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_winner_is_written_down_and_in_force_before_the_watch_and_the_snapshot_goes_after_it(bench: Bench) -> None:
    seen: list[bool] = []

    def look() -> None:
        applied = read_applied(bench.folder)
        seen.append(snapshot_path(bench.folder).exists() and applied is not None)
        assert applied == read_winner(bench.folder)
        assert read_pending(bench.folder) is not None

    result = bench.run(look)
    assert (result.outcome, result.applied, seen) == ("tuned", True, [True])
    assert not snapshot_path(bench.folder).exists()
    assert read_pending(bench.folder) is None
    watching = [event for event in bench.events if event.get("phase") == "watching"]
    assert watching[0]["watch_s"] == 60.0
    assert watching[-1]["t_s"] - watching[0]["t_s"] >= 59.0


def test_watch_of_no_length_is_left_out(bench: Bench) -> None:
    assert bench.run(job__watch_s=0.0).outcome == "tuned"
    assert bench.phases()[-1] == "apply"


@pytest.mark.parametrize(
    ("faults", "code"),
    [
        ({"oc_rate_hz": {"oc3": 40}}, "throttled"),
        ({"oc_rate_hz": {"oc1": 1}}, "throttled"),
        ({"workload_dies_s": 20}, "workload_died"),
        ({"workload_hangs_s": 5}, "workload_hung"),
        ({"values": {"/sys/class/thermal/thermal_zone*/temp": "99000"}}, "throttled"),
    ],
)
def test_breach_ends_rolled_back_with_everything_as_found(bench: Bench, faults: dict[str, Any], code: str) -> None:
    before = bench.knobs()
    result = bench.run(lambda: bench.faults(**faults))
    bench.faults()
    assert (result.outcome, result.reason_code, result.applied) == ("rolled_back", code, False)
    assert bench.knobs() == before
    assert read_applied(bench.folder) is None
    assert read_winner(bench.folder) is None
    assert read_pending(bench.folder) is None
    assert not snapshot_path(bench.folder).exists()
    assert [event["event"] for event in bench.events][-3:] == ["restored", "decision", "finished"]


def test_knob_changed_in_the_watch_is_a_breach_that_names_it(bench: Bench) -> None:
    before = bench.knobs()

    def meddle() -> None:
        bench.host.sysfs.write(GPU_MAX, "408000000", why="somebody")

    result = bench.run(meddle)
    assert (result.outcome, result.reason_code) == ("rolled_back", "mode_changed")
    assert "max_freq" in result.reason_text
    assert bench.knobs() == before


def test_requests_that_become_slow_in_the_watch_end_it_early(bench: Bench) -> None:
    def slow() -> None:
        bench.runner.more_s = 0.05

    result = bench.run(slow)
    assert (result.outcome, result.reason_code) == ("rolled_back", "latency")
    watching = [event["t_s"] for event in bench.events if event.get("phase") == "watching"]
    assert watching[-1] - watching[0] < 30.0


def test_earlier_winner_stays_in_force_when_its_successor_is_rolled_back(bench: Bench) -> None:
    worse: dict[str, Any] = {
        "grid__gpu_hz": [1122000000, 1300500000],
        "grid__cpu_hz": [2201600000],
        "grid__emc_hz": [3199000000],
    }
    assert bench.run(**worse).outcome == "tuned"
    first, before = read_applied(bench.folder), bench.knobs()
    assert first is not None
    bench.events.clear()
    result = bench.run(lambda: bench.faults(workload_dies_s=5), job__budget=8)
    bench.faults()
    assert result.outcome == "rolled_back", result.reason_text
    assert read_applied(bench.folder) == first
    assert read_winner(bench.folder) == first
    assert bench.knobs() == before


@pytest.mark.parametrize(("code", "outcome"), [("user", "cancelled"), ("daemon_gone", "interrupted")])
def test_job_cancelled_in_the_watch_leaves_the_board_as_found(bench: Bench, code: str, outcome: str) -> None:
    before = bench.knobs()
    result = bench.run(lambda: bench.cancellation.ask(code, "stop"))
    assert (result.outcome, result.applied) == (outcome, False)
    assert bench.knobs() == before
    assert read_applied(bench.folder) is None
    assert read_winner(bench.folder) is None


def test_sensor_that_fails_in_the_watch_is_said_and_the_winner_stays(bench: Bench) -> None:
    result = bench.run(lambda: bench.faults(read_errors={"/sys/class/hwmon/hwmon*/in*_input": "EIO"}))
    bench.faults()
    assert result.outcome == "tuned", result.reason_text
    assert any("the watch" in event["text"] for event in bench.events if event["event"] == "warning")


def test_rolled_back_winner_is_one_line_of_the_ledger(bench: Bench) -> None:
    bench.run(lambda: bench.faults(workload_dies_s=5))
    bench.faults()
    lines = [line for line in Ledger(bench.folder).read().events if line["event"] in ("applied", "rolled_back")]
    assert [line["event"] for line in lines] == ["applied", "rolled_back"]
    assert lines[1]["from"] == lines[0]["to"]
    assert (lines[1]["who"], lines[1]["why"], lines[1]["to"]) == ("uid 1000 (pepe)", "workload_died", "as found")


def test_watch_is_no_window_of_the_job(bench: Bench) -> None:
    result = bench.run()
    trials = [event for event in bench.events if event["event"] == "trial"]
    assert len(trials) == result.measurements
    assert np.isfinite(result.disturbed_s)
