"""Jobs for what is not energy, under a limit of power or a risk, and over more than clocks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jouled.board.apply import Method, probe_method
from jouled.board.board import discover
from jouled.board.grid import board_space
from jouled.board.knobs import read_knobs
from jouled.config import load
from jouled.config.tables import GridTable
from jouled.errors import ConfigError
from jouled.job.cancel import Cancellation
from jouled.job.events import Event
from jouled.job.ground import check_size
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.plant import board_plant, load_workload
from jouled.virtual.runner import VirtualRunner
from jouled.workload.runner import Arrival
from jouletune.space import Candidate, PowerMode, Space, Variant

WORKLOAD = "yolov8s-640"
ENGINES = ("/opt/app/det-fp16.plan", "/opt/app/det-int8.plan")
SMALL = {
    **{
        "grid.size": 36,
        "job.budget": 8,
        "job.watch_s": 0,
        "job.finals_windows": 9,
        "job.pilot_s": 5,
        "job.settle_min_s": 5,
    },
    **{"job.sampler": "joule", "target.latency_bound_ratio": 1.4, "target.latency_percentile": 50},
}


class Bench:
    """A virtual AGX Orin that has `engines`, and jobs on it."""

    def __init__(self, folder: Path, engines: Sequence[str] = (), workload: str = WORKLOAD) -> None:
        self.folder = folder
        self.events: list[Event] = []
        plant = board_plant("agx-orin-64gb", load_workload(workload), tuple(engines))
        self.machine = VirtualMachine(folder / "board", plant=plant, programs="in_process")

    def run(
        self, keys: Mapping[str, object], variants: Sequence[Variant] = (Variant(),), *, dry_run: bool = False
    ) -> JobResult:
        config = load(None, {**SMALL, **keys})
        request = Request(config, WORKLOAD, lambda board: board_space(board, config.grid, variants), dry_run=dry_run)
        runner, sinks = VirtualRunner(self.machine, Arrival()), (self.events.append,)
        return run_job(self.machine.host(self.folder), request, runner, cancellation=Cancellation(), sinks=sinks)

    def home(self) -> PowerMode:
        """The reference."""
        return discover(self.machine.host(self.folder)).reference

    def trials(self) -> list[dict[str, Any]]:
        return [event["trial"] for event in self.events if event["event"] == "trial"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_energy_delay_is_what_is_minimised_and_the_saving_stays_one_of_energy(tmp_path: Path) -> None:
    """Of this load the mode of least energy x latency is another one than that of least energy."""
    bench = Bench(tmp_path, workload="preproc-heavy")
    free = {"target.latency_bound_ratio": None, "target.no_latency_bound": True, "grid.size": 24}
    result = bench.run({**free, "target.objective": "energy_delay"})
    assert (result.outcome, result.as_json()["objective"]) == ("tuned", "energy_delay")
    assert "less energy x latency per frame" in result.reason_text
    assert result.winner is not None
    truths = {mode: bench.machine.truth(mode) for mode in modes_of(bench, 24)}
    products = {mode: truth.energy_j / truth.throughput_hz for mode, truth in truths.items()}
    won, home = result.winner.candidate.mode, bench.home()
    assert products[won] <= 1.02 * min(products.values())
    assert min(truths, key=lambda mode: truths[mode].energy_j) != won, "what least energy alone would be"
    assert result.gain_ratio == pytest.approx(1.0 - products[won] / products[home], abs=0.02)
    assert result.saving_ratio == pytest.approx(1.0 - truths[won].energy_j / truths[home].energy_j, abs=0.02)


def modes_of(bench: Bench, size: int) -> list[PowerMode]:
    space = board_space(discover(bench.machine.host(bench.folder)), GridTable(size=size))
    return [candidate.mode for candidate in space.candidates]


def test_throughput_finds_the_fastest_mode_below_the_limit_of_power(bench: Bench) -> None:
    limit_w = 24.0
    result = bench.run({"target.objective": "throughput", "target.max_power_w": limit_w, "job.budget": 10})
    assert result.outcome == "tuned", result.reason_text
    assert result.winner is not None
    truths = [bench.machine.truth(mode) for mode in modes_of(bench, 36)]
    fastest = max(truth.throughput_hz for truth in truths if truth.power_w <= 0.99 * limit_w)
    won = bench.machine.truth(result.winner.candidate.mode)
    assert won.power_w <= 1.01 * limit_w
    assert won.throughput_hz >= 0.97 * fastest
    assert "least time" in result.reason_text  # the reference is over the limit: it need not be beaten


def test_throughput_of_requests_that_come_at_a_rate_is_refused(bench: Bench) -> None:
    config = load(None, {**SMALL, "target.objective": "throughput", "target.max_power_w": 20.0})
    request = Request(config, WORKLOAD, lambda board: board_space(board, config.grid))
    runner = VirtualRunner(bench.machine, Arrival("rate", 30.0))
    with pytest.raises(ConfigError, match="wanted requests back to back, got rate 30 Hz"):
        run_job(bench.machine.host(bench.folder), request, runner, cancellation=Cancellation())


def test_engines_batches_and_cores_are_found_that_no_clock_can_make_up_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ENGINES)
    variants = [Variant(engine, at_once, at_once) for engine in ENGINES for at_once in (1, 2)]
    keys = {"grid.size": 36 * 2 * len(variants), "grid.cores": [8, 12], "target.latency_bound_ratio": 3.0}
    result = bench.run({**keys, "job.budget": 12}, variants)
    assert (result.outcome, result.grid_size) == ("tuned", 288)
    assert {trial["candidate"]["mode"]["cores"] for trial in bench.trials()} == {8, 12}
    assert result.winner is not None
    assert result.reference is not None
    won = result.winner.candidate
    assert won.variant != variants[0]
    truth = bench.machine.truth(won.mode, variant=won.variant)
    clocks_alone = min(bench.machine.truth(mode, variant=variants[0]).energy_j for mode in modes_of(bench, 36))
    assert truth.energy_j < 0.8 * clocks_alone


def test_variants_that_leave_few_power_modes_are_said(bench: Bench) -> None:
    variants = [Variant(batch=batch) for batch in (1, 2, 4)]
    result = bench.run({}, variants, dry_run=True)
    assert "3 variants leave 12 power modes of grid.size = 36; as many as without variants: grid.size = 108" in (
        result.warnings
    )


def test_a_product_that_joule_cannot_score_is_refused_with_its_counts() -> None:
    modes = [PowerMode(gpu_hz=gpu, emc_hz=emc) for gpu in range(1, 201) for emc in range(1, 6)]
    space = Space.of([Candidate(mode, Variant(batch=batch)) for mode in modes for batch in (1, 2, 4)], 0)
    with pytest.raises(ConfigError, match=r"takes 2000 at most, got 3000 \(200 gpu x 5 emc x 3 batch\)") as refused:
        check_size(space, "joule")
    assert "lower grid.size" in str(refused.value.hint)
    check_size(space, "descent")
    check_size(replace(space, candidates=space.candidates[:2000]), "joule")


def test_a_risk_that_bars_everything_ends_the_job_and_says_so(bench: Bench) -> None:
    result = bench.run({"target.latency_bound_ratio": 1.01, "job.risk": 0.001})
    assert (result.outcome, result.reason_code, result.measurements, result.risk) == ("no_gain", "converged", 1, 0.001)
    assert "35 of 36 candidates were not started" in result.reason_text
    assert "job.risk = 0.001" in result.reason_text


def test_a_risk_goes_with_a_model_only() -> None:
    wrong: dict[str, Any] = {**SMALL, "job.risk": 0.1, "job.sampler": "descent"}
    with pytest.raises(ConfigError, match="only a sampler with a model knows the risk"):
        load(None, wrong)


def test_looking_whether_nvpmodel_works_is_not_said_as_an_apply(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    host = bench.machine.host(bench.folder)
    board = discover(host)
    with caplog.at_level(logging.INFO, logger="jouled.board.apply"):
        assert probe_method(host, board, read_knobs(host.sysfs, board.domains), "auto") == (Method.NVPMODEL, "")
    assert caplog.messages == []
