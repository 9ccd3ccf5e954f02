"""Whole jobs on the virtual board: what they end with, and what the tree holds then."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import RDBStorage
from optuna.study import load_study

from jouled.board.applied import read_applied
from jouled.board.apply import Actuator, ClocksPolicy, Method
from jouled.board.board import Board, discover
from jouled.board.grid import board_space
from jouled.board.host import Host
from jouled.board.knobs import CONF_PATH_PATH, STATUS_PATH, Knobs, read_knobs
from jouled.board.lock import hold_board
from jouled.board.pending import pending_path, read_quarantine
from jouled.board.restore import Found, restore
from jouled.board.snapshot import Snapshot, boot_id, read_origin, snapshot_path, write_snapshot
from jouled.board.switches import DISABLED_PATH
from jouled.config import Config, load
from jouled.errors import (
    BoardError,
    ConfigError,
    NotPermittedError,
    StateError,
    UsageError,
    WorkloadDiedError,
    WorkloadError,
)
from jouled.job.cancel import Cancellation
from jouled.job.events import Event
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.job.studies import study_name
from jouled.ledger import Ledger
from jouled.study import open_storage, study_path
from jouled.virtual.faults import set_faults
from jouled.virtual.machine import BoardReset, VirtualMachine
from jouled.virtual.plant import LayerPlant, load_workload
from jouled.virtual.runner import VirtualRunner
from jouled.worker.deadlines import Deadlines
from jouled.workload.runner import Arrival, Loaded
from jouletune.measurement import Completions
from jouletune.space import PowerMode, Variant
from jouletune.standing import Standing, standings

RATIO = 1.4


class Bench:
    """A virtual board and jobs on it."""

    def __init__(self, folder: Path, **machine: Any) -> None:
        self.folder = folder
        self.machine = VirtualMachine(folder / "board", programs="in_process", **machine)
        self.host: Host = self.machine.host(folder)
        self.events: list[Event] = []
        self.cancellation = Cancellation()

    def config(self, **overrides: Any) -> Config:
        values = {"target.latency_bound_ratio": RATIO, "job.budget": 8}
        return load(None, values | {key.replace("__", "."): value for key, value in overrides.items()})

    def run(
        self, *, arrival: Arrival | None = None, on_event: Callable[[Event], None] | None = None, **keys: Any
    ) -> JobResult:
        config = self.config(**keys)
        request = Request(config, "virtual:yolov8s-640", lambda board: board_space(board, config.grid))
        sinks = (self.events.append,) if on_event is None else (self.events.append, on_event)
        runner = VirtualRunner(self.machine, arrival or Arrival())
        return run_job(self.host, request, runner, cancellation=self.cancellation, sinks=sinks)

    def board(self) -> Board:
        return discover(self.host)

    def knobs(self) -> dict[str, str]:
        return dict(read_knobs(self.host.sysfs, self.board().domains).values)

    def trials(self) -> list[dict[str, Any]]:
        return [event["trial"] for event in self.events if event["event"] == "trial"]

    def faults(self, **faults: Any) -> None:
        set_faults(str(self.machine.root), **faults)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def on_trial(count: int, act: Callable[[], None]) -> Callable[[Event], None]:
    """Act once, when `count` trials are over."""
    seen: list[Event] = []

    def watch(event: Event) -> None:
        if event["event"] == "trial":
            seen.append(event)
            if len(seen) == count:
                act()

    return watch


def test_tuned_ends_in_a_verified_winner_that_saves_energy(bench: Bench) -> None:
    status = bench.host.sysfs.read(STATUS_PATH), bench.host.sysfs.read(CONF_PATH_PATH)
    home = read_knobs(bench.host.sysfs, bench.board().domains)
    result = bench.run()
    assert result.outcome == "tuned"
    assert result.applied
    assert result.winner is not None
    assert result.reference is not None
    assert result.saving_interval is not None
    assert result.saving_interval[0] > 0.02
    applied = read_applied(bench.folder)
    assert applied is not None
    assert applied.candidate == result.winner.candidate
    assert (
        Actuator(bench.host, bench.board(), home, Method.SYSFS).verify(applied.candidate.mode, ClocksPolicy.CAPPED)
        == ()
    )
    assert (bench.host.sysfs.read(STATUS_PATH), bench.host.sysfs.read(CONF_PATH_PATH)) == status
    assert not snapshot_path(bench.folder).exists()
    assert not pending_path(bench.folder).exists()


def test_measured_energies_agree_with_the_plant(bench: Bench) -> None:
    result = bench.run()
    for side in (result.reference, result.winner):
        assert side is not None
        truth = bench.machine.truth(side.candidate.mode, side.policy)
        low_j, high_j = side.energy_interval_j
        assert low_j < truth.energy_j < high_j
        assert side.latency_upper_s >= 0.99 * truth.latency_s(95.0)


def test_winner_keeps_the_bound_by_the_plants_own_truth(bench: Bench) -> None:
    result = bench.run()
    assert result.winner is not None
    assert result.latency_bound_s is not None
    truth = bench.machine.truth(result.winner.candidate.mode, "capped")
    assert truth.latency_s(95.0) <= 1.005 * result.latency_bound_s


def test_reboot_alone_returns_the_stock_mode(bench: Bench) -> None:
    before = bench.knobs()
    assert bench.run().outcome == "tuned"
    assert bench.knobs() != before
    bench.machine.reboot()
    assert bench.knobs() == before


def test_second_job_takes_the_winner_as_incumbent_and_leaves_it(bench: Bench) -> None:
    first = bench.run()
    assert first.winner is not None
    in_force = bench.knobs()
    second = bench.run()
    assert second.outcome == "no_gain"
    assert second.incumbent is not None
    assert second.incumbent.candidate == first.winner.candidate
    assert bench.knobs() == in_force
    applied = read_applied(bench.folder)
    assert applied is not None
    assert applied.candidate == first.winner.candidate


def test_winner_found_under_another_winner_goes_back_to_the_same_rest(bench: Bench) -> None:
    limit_w = 0.8 * bench.machine.truth(bench.board().reference, "capped").power_w
    first_result = bench.run(grid__clocks="locked", target__latency_bound_ratio=3.0, target__max_power_w=limit_w)
    assert first_result.outcome == "tuned"
    first = read_applied(bench.folder)
    assert first is not None
    assert first.policy == "locked"
    second = bench.run(target__latency_bound_ratio=2.5, job__budget=15)
    applied = read_applied(bench.folder)
    assert second.outcome == "tuned"
    assert applied is not None
    assert applied.policy == "capped"
    assert applied.home == first.home


def test_infeasible_bound_ends_no_feasible_with_knobs_as_found(bench: Bench) -> None:
    before = bench.knobs()
    result = bench.run(target__latency_bound_ratio=None, target__latency_bound_s=0.0001)
    assert result.outcome == "no_feasible"
    assert result.exit_code(fail_on_no_gain=False) == 3
    assert result.reference is not None
    assert bench.knobs() == before
    assert not snapshot_path(bench.folder).exists()


def test_infeasible_reference_is_replaced_by_a_feasible_candidate(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    truth = bench.machine.truth(bench.board().reference, "capped")
    result = bench.run(
        target__latency_bound_ratio=None, target__no_latency_bound=True, target__max_power_w=0.8 * truth.power_w
    )
    assert result.outcome == "tuned"
    assert result.winner is not None
    assert result.winner.power_w < 0.8 * truth.power_w


def test_unreachable_percentile_ends_after_the_references_window(bench: Bench) -> None:
    result = bench.run(arrival=Arrival("rate", 0.5), target__latency_percentile=99.0)
    assert (result.outcome, result.reason_code) == ("no_feasible", "percentile_unreachable")
    assert "p9" in result.reason_text
    assert {trial["purpose"] for trial in bench.trials()} == {"reference"}


def test_cancelled_job_puts_every_knob_back(bench: Bench) -> None:
    before = bench.knobs()
    result = bench.run(on_event=on_trial(3, lambda: bench.cancellation.ask("user", "stopped by a test")))
    assert result.outcome == "cancelled"
    assert result.exit_code(fail_on_no_gain=False) == 13
    assert bench.knobs() == before
    assert result.reference is not None
    assert not snapshot_path(bench.folder).exists()


def test_job_killed_by_a_mode_never_tries_it_again(bench: Bench) -> None:
    bench.run()
    tried = [trial["candidate"]["mode"] for trial in bench.trials() if trial["index"] != bench.trials()[0]["index"]]
    bench.machine.reboot()
    bad = PowerMode(**tried[1])
    bench.faults(board_reset={name: getattr(bad, name) for name in ("cores", "cpu_hz", "gpu_hz", "emc_hz")})
    with pytest.raises(BoardReset):
        bench.run()
    again = Bench(bench.folder)
    result = again.run()
    assert result.outcome == "tuned"
    assert [entry.mode for entry in read_quarantine(bench.folder).entries] == [bad]
    assert bad not in [PowerMode(**trial["candidate"]["mode"]) for trial in again.trials()]
    assert result.winner is not None
    assert result.winner.candidate.mode != bad
    assert any("went down" in warning for warning in result.warnings)


def test_outside_change_of_a_cap_makes_the_trial_invalid(bench: Bench) -> None:
    meddled: list[Event] = []

    def meddle(event: Event) -> None:
        if event["event"] == "progress" and event["phase"] == "window" and len(bench.trials()) >= 2 and not meddled:
            meddled.append(event)
            bench.host.sysfs.write(f"{bench.board().domains.cpu.policies[0][0]}/scaling_max_freq", 1113600, why="test")

    result = bench.run(on_event=meddle)
    assert result.invalid["mode_changed"] >= 1
    assert result.outcome in ("tuned", "no_gain", "unstable")
    reasons = {trial["invalid"] for trial in bench.trials()}
    assert reasons <= {None, "mode_changed"}


def test_workload_that_dies_ends_workload_failed_with_knobs_as_found(bench: Bench) -> None:
    before = bench.knobs()
    bench.faults(workload_dies_s=15.0)
    result = bench.run()
    assert (result.outcome, result.reason_code) == ("workload_failed", "workload_died")
    assert len(bench.trials()) == 3
    assert bench.knobs() == before


def test_what_to_do_about_a_workload_that_fails_in_a_window_is_in_the_ending(bench: Bench) -> None:
    class Chatty(VirtualRunner):
        def take(self) -> Completions:
            raise WorkloadDiedError("writes more lines than it was asked for", hint="read a line, write a line")

    config = bench.config()
    request = Request(config, "w", lambda board: board_space(board, config.grid))
    runner = Chatty(bench.machine, Arrival())
    result = run_job(bench.host, request, runner, cancellation=bench.cancellation)
    assert result.reason_text.endswith("writes more lines than it was asked for; read a line, write a line")


def test_workload_that_hangs_is_told_apart(bench: Bench) -> None:
    bench.faults(workload_hangs_s=15.0)
    result = bench.run()
    assert (result.outcome, result.reason_code) == ("workload_failed", "workload_hung")


def test_under_voltage_leaves_the_mode_at_once(bench: Bench) -> None:
    bench.faults(oc_rate_hz={"oc1": 1.0})
    result = bench.run()
    assert result.outcome == "unstable"
    assert result.reason_code == "throttled"
    assert "OC1" in result.reason_text
    assert len(bench.trials()) == 1


def test_over_current_events_of_the_reference_are_normal_and_others_are_not(bench: Bench) -> None:
    bench.faults(oc_rate_hz={"oc3": 10.0})
    assert bench.run().outcome == "tuned"


def test_sensor_at_zero_is_no_saving(bench: Bench) -> None:
    bench.faults(values={"*/curr[123]_input": "0"})
    result = bench.run()
    assert (result.outcome, result.reason_code) == ("board_fault", "sensor_zero")


def test_busy_gpu_ends_board_busy_before_a_knob_is_written(bench: Bench) -> None:
    before = bench.knobs()
    bench.faults(values={"*/load": "600"})
    result = bench.run()
    assert (result.outcome, result.reason_code) == ("board_busy", "gpu_busy")
    assert "60 %" in result.reason_text
    assert bench.trials() == []
    assert bench.knobs() == before


def test_held_board_ends_board_busy_and_writes_no_ledger(bench: Bench) -> None:
    with hold_board(bench.host, verb="tune"):
        result = bench.run()
    assert (result.outcome, result.reason_code) == ("board_busy", "lock_held")
    assert result.exit_code(fail_on_no_gain=False) == 12
    assert Ledger(bench.folder).read().events == ()


@pytest.mark.parametrize("switch", [DISABLED_PATH, "/proc/cmdline"])
def test_kill_switch_refuses(bench: Bench, switch: str) -> None:
    bench.host.sysfs.place(switch, "quiet jouled=off\n")
    with pytest.raises(NotPermittedError, match="no knob is written"):
        bench.run()


def test_dry_run_says_the_plan_and_writes_no_knob(bench: Bench) -> None:
    config = bench.config()
    request = Request(config, "w", lambda board: board_space(board, config.grid), dry_run=True)
    before = bench.knobs()
    writes = bench.machine.kernel.load("/proc/sys/kernel/random/boot_id")
    result = run_job(bench.host, request, VirtualRunner(bench.machine, Arrival()), cancellation=bench.cancellation)
    assert result.plan is not None
    assert result.plan["grid_size"] == 96
    assert 600 < result.plan["expected_s"] <= 1800
    assert bench.knobs() == before
    assert bench.machine.kernel.load("/proc/sys/kernel/random/boot_id") == writes
    assert not snapshot_path(bench.folder).exists()
    assert read_origin(bench.folder) is None


def test_bound_is_required(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="no bound"):
        bench.run(target__latency_bound_ratio=None)


def test_other_base_mode_is_refused_with_the_way_to_it(bench: Bench) -> None:
    with pytest.raises(UsageError, match="the board is in MAXN"):
        bench.run(board__base_mode="MODE_30W")


def test_time_budget_ends_the_search_early_and_says_so(bench: Bench) -> None:
    result = bench.run(job__max_duration_s=900.0, job__budget=15)
    assert result.reason_code == "time"
    assert result.duration_s <= 900.0
    assert result.outcome in ("tuned", "no_gain")


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_every_sampler_ends_by_the_rules(bench: Bench, sampler: str) -> None:
    result = bench.run(job__sampler=sampler, job__budget=5)
    assert result.outcome in ("tuned", "no_gain")
    searched = [trial["index"] for trial in bench.trials() if trial["purpose"] == "search"]
    assert len(searched) == len(set(searched))


def test_both_policies_meet_in_the_finals(bench: Bench) -> None:
    bench.run(grid__clocks="both")
    finals = {trial["policy"] for trial in bench.trials() if trial["purpose"] == "finals"}
    assert finals == {"capped", "locked"}
    assert {trial["policy"] for trial in bench.trials() if trial["purpose"] == "search"} == {"capped"}


def test_ledger_tells_the_whole_story(bench: Bench) -> None:
    result = bench.run()
    kept = Ledger(bench.folder).read().of_job(result.job)
    kinds = [event["event"] for event in kept]
    assert kinds[0] == "job_started"
    assert kinds[-1] == "finished"
    assert kinds.count("trial") == result.measurements
    assert kept[-1]["result"] == json.loads(json.dumps(result.as_json()))
    numbers = [event["seq"] for event in kept if event["event"] != "applied"]
    assert numbers == sorted(numbers)
    (applied,) = [event for event in kept if event["event"] == "applied"]
    assert (applied["who"], applied["why"], applied["to_source"]) == ("user", "tuned", "winner")


def test_json_holds_every_key_of_the_contract(bench: Bench) -> None:
    keys = [
        *("schema", "job", "outcome", "reason", "board", "base_mode", "rail", "rail_coverage", "workload"),
        *("inference_name", "arrival"),
        *(
            "clocks",
            "method",
            "grid_size",
            "trials",
            "measurements",
            "earlier_measurements",
            "invalid",
            "duration_s",
            "disturbed_s",
            "idle_power_w",
        ),
        *("latency_percentile", "latency_bound_s", "objective", "max_power_w", "risk", "applied"),
        *("reference", "incumbent", "winner", "best_seen", "saving_ratio", "saving_interval"),
        *("gain_ratio", "gain_interval", "seed", "warnings", "versions"),
    ]
    side = ["mode", "variant", "policy", "energy_j", "energy_se_j", "latency_s", "latency_upper_s", "latency_samples"]
    side += ["power_w", "throughput_hz", "windows"]
    body = bench.run().as_json()
    assert list(body) == keys
    assert list(body["winner"]) == side
    assert list(JobResult(job="x").as_json()) == keys


def test_settle_waits_for_a_slow_board_and_not_for_a_quick_one(tmp_path: Path) -> None:
    durations = {}
    for name, seconds in (("quick", 1.0), ("slow", 30.0)):
        plant = LayerPlant(load_workload("yolov8s-640"))
        bench = Bench(tmp_path / name, plant=replace(plant, thermal=replace(plant.thermal, time_s=seconds)))
        bench.run(job__budget=2)
        durations[name] = bench.trials()[0]["duration_s"]
    assert durations["slow"] > durations["quick"] + 15.0


def test_operators_change_of_mode_under_a_winner_outlives_the_next_job(bench: Bench) -> None:
    assert bench.run().outcome == "tuned"
    done = bench.host.processes.run(["nvpmodel", "-m", "3"], timeout_s=10.0)
    assert done.returncode == 0, done.stderr
    assert bench.host.sysfs.read(STATUS_PATH) == "pmode:0003"
    result = bench.run()
    assert result.base_mode == "MODE_50W"
    assert result.incumbent == result.reference
    assert "apply_failed" not in result.invalid
    assert bench.host.sysfs.read(STATUS_PATH) == "pmode:0003"
    bench.machine.reboot()
    assert bench.board().base_mode.name == "MODE_50W"


def test_dry_run_leaves_what_a_crash_left(bench: Bench) -> None:
    before = bench.knobs()
    bench.faults(board_reset={"gpu_hz": 816000000})
    with pytest.raises(BoardReset):
        bench.run()
    again = Bench(bench.folder)
    config = again.config()
    request = Request(config, "w", lambda board: board_space(board, config.grid), dry_run=True)
    run_job(again.host, request, VirtualRunner(again.machine, Arrival()), cancellation=again.cancellation)
    assert snapshot_path(bench.folder).exists()
    assert pending_path(bench.folder).exists()
    assert again.knobs() == before


def test_samples_lost_at_the_end_of_the_pilot_cost_a_window_and_not_the_job(bench: Bench) -> None:
    def lose(event: Event) -> None:
        in_pilot = event["event"] == "progress" and event["phase"] == "pilot" and len(bench.trials()) == 1
        bench.faults(**({"read_errors": {"*/curr1_input": "EAGAIN"}} if in_pilot else {}))

    result = bench.run(on_event=lose)
    assert result.outcome in ("tuned", "no_gain")
    assert bench.trials()[1]["invalid"] == "sensor_gap"


def test_alarm_is_not_tried_again_and_cools_down_in_the_reference(bench: Bench) -> None:
    def heat(event: Event) -> None:
        in_window = event["event"] == "progress" and event["phase"] == "window" and len(bench.trials()) == 1
        bench.faults(**({"values": {"*/thermal_zone[0-9]/temp": "95000"}} if in_window else {}))

    result = bench.run(on_event=heat)
    hot = [trial for trial in bench.trials() if trial["invalid"] == "throttled"]
    assert len(hot) == 1
    assert "95.0 °C" in hot[0]["detail"]
    assert result.outcome in ("tuned", "no_gain")


def test_odd_answer_of_a_clock_file_is_no_clock_and_no_end(bench: Bench) -> None:
    bench.faults(values={"*/cur_freq": "banana"})
    assert bench.run().outcome == "tuned"


def test_listener_that_goes_away_is_dropped(bench: Bench) -> None:
    heard: list[Event] = []

    def listen(event: Event) -> None:
        heard.append(event)
        raise BrokenPipeError("gone")

    assert bench.run(on_event=listen).outcome == "tuned"
    assert len(heard) == 1
    assert Ledger(bench.folder).read().events[-1]["event"] == "finished"


def test_variant_that_cannot_be_loaded_is_a_failed_trial(bench: Bench) -> None:
    class Picky(VirtualRunner):
        def load(self, variant: Variant) -> Loaded:
            if variant.batch != 1:
                raise WorkloadError("no plan for this batch")
            return super().load(variant)

    config = bench.config(grid__shape="1x3x1")
    variants = (Variant(), Variant(batch=2))
    request = Request(config, "w", lambda board: board_space(board, config.grid, variants))
    runner = Picky(bench.machine, Arrival())
    sinks = (bench.events.append,)
    result = run_job(bench.host, request, runner, cancellation=bench.cancellation, sinks=sinks)
    assert result.outcome in ("tuned", "no_gain")
    assert {trial["invalid"] for trial in bench.trials() if trial["candidate"]["variant"]["batch"] == 2} == {
        "workload_died"
    }


def test_missing_jetson_clocks_is_said_before_a_knob_is_written(bench: Bench) -> None:
    bench.faults(absent=["jetson_clocks"])
    before = bench.knobs()
    again = Bench(bench.folder)
    result = again.run(grid__clocks="both")
    assert (result.outcome, result.reason_code) == ("board_fault", "tool_absent")
    assert again.trials() == []
    assert again.knobs() == before


def test_infeasible_winner_gives_way_to_a_feasible_reference(bench: Bench) -> None:
    assert bench.run(target__latency_bound_ratio=2.0).outcome == "tuned"
    result = bench.run(target__latency_bound_ratio=1.05, job__budget=3)
    assert result.outcome == "tuned"
    assert result.winner == result.reference
    assert read_applied(bench.folder) is None
    assert bench.knobs() == read_origin_knobs(bench)


def read_origin_knobs(bench: Bench) -> dict[str, str]:
    origin = read_origin(bench.folder)
    assert origin is not None
    return dict(origin.knobs.values)


@pytest.mark.parametrize(("longest_s", "tries"), [(1800.0, 3), (140.0, 1)])
def test_reference_is_tried_again_only_while_there_is_time(bench: Bench, longest_s: float, tries: int) -> None:
    bench.faults(workload_dies_s=15.0)
    result = bench.run(job__max_duration_s=longest_s)
    assert (result.outcome, result.reason_code) == ("workload_failed", "workload_died")
    assert result.measurements == tries
    assert result.duration_s < longest_s


@pytest.mark.parametrize(("spare_s", "tries"), [(5.0, 1), (60.0, 3)])
def test_repeat_of_a_trial_does_not_take_the_finals_time(tmp_path: Path, spare_s: float, tries: int) -> None:
    """Jobs alike but for their time: after the reference one has 5 s beyond what the finals need, one has 60 s."""

    def run(folder: Path, longest_s: float) -> Bench:
        bench = Bench(folder)
        bench.run(
            job__max_duration_s=longest_s,
            job__budget=4,
            on_event=on_trial(1, lambda: bench.faults(workload_dies_s=10.0)),
        )
        return bench

    first = run(tmp_path / "first", 1800.0)
    reference = next(event for event in first.events if event["event"] == "trial")
    reserve_s = 12 * (reference["trial"]["duration_s"] - 10.0) + 60.0 + 60.0
    began_s = first.events[0]["t_s"]
    second = run(tmp_path / "second", reference["t_s"] - began_s + reserve_s + spare_s)
    searched = [trial for trial in second.trials() if trial["purpose"] == "search"]
    assert [trial["invalid"] for trial in searched] == ["workload_died"] * tries


def test_rate_that_the_own_mode_cannot_reach_ends_after_its_window(bench: Bench) -> None:
    result = bench.run(arrival=Arrival("rate", 1000.0))
    assert (result.outcome, result.reason_code) == ("no_feasible", "rate_not_reached")
    assert len(bench.trials()) == 1
    assert not any("lacked" in warning for warning in bench.run(job__budget=2).warnings)  # it never had a study


def test_short_windows_are_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="32 averages"):
        bench.run(job__window_min_s=2.0)


def test_what_a_dead_job_left_is_put_back_first_and_written_down(bench: Bench) -> None:
    cap = "/sys/class/devfreq/17000000.gpu/max_freq"
    write_snapshot(
        bench.folder, Snapshot(boot_id(bench.host.sysfs), "dead", "dead-mark", "MAXN", Knobs(bench.knobs()), 1.0)
    )
    bench.host.sysfs.write(cap, "408000000", why="the dead job")
    result = bench.run()
    assert result.warnings[0] == "job dead was interrupted; 1 knobs were put back first"
    events = Ledger(bench.folder).read().events
    (change,) = (event for event in events if event["event"] == "restored" and event["job"] == "dead")
    assert (change["why"], change["who"]) == ("tune", "user")
    assert change["changed"] == [f"{cap}: wanted '1300500000', got '408000000'"]


def test_damaged_snapshot_stops_everything_until_a_reboot(bench: Bench) -> None:
    found = bench.knobs()
    bench.faults(board_reset={"gpu_hz": 816000000})
    with pytest.raises(BoardReset):
        bench.run()
    again = Bench(bench.folder)
    snapshot = snapshot_path(bench.folder)
    content = json.loads(snapshot.read_text())
    snapshot.write_text(snapshot.read_text()[:500])
    assert content["boot_id"] != again.host.sysfs.read("/proc/sys/kernel/random/boot_id")
    with pytest.raises(StateError, match="set aside"):
        restore(again.host)
    for _ in range(2):
        with pytest.raises(BoardError, match="may still be in force"):
            restore(again.host)
    result = again.run()
    assert (result.outcome, result.applied) == ("board_fault", False)
    assert "reboot" in result.hint
    again.machine.reboot()
    assert restore(Bench(bench.folder).host).found is Found.NOTHING
    assert bench.folder.joinpath("unrestored.json").exists() is False
    assert Bench(bench.folder).knobs() == found


def test_modes_that_cannot_be_applied_are_a_fault_and_no_verdict(bench: Bench) -> None:
    bench.faults(ignore_writes=["*devfreq*max_freq", "*scaling_max_freq", "*nvpmodel_clk_cap*"])
    result = bench.run()
    assert (result.outcome, result.reason_code) == ("board_fault", "apply_failed")


def test_after_an_apply_that_failed_the_next_waits_longer_each_time_under_a_deadline_of_its_own(bench: Bench) -> None:
    bench.faults(ignore_writes=["*devfreq*max_freq", "*scaling_max_freq", "*nvpmodel_clk_cap*"])
    now_s = [0.0]
    late: list[str] = []
    deadlines = Deadlines(on_overdue=late.append, ping=lambda: None, now_s=lambda: now_s[0])

    def follow(event: Event) -> None:
        now_s[0] = event["t_s"]
        deadlines.look()
        deadlines.follow(event)

    bench.run(on_event=follow)
    failed = [trial for trial in bench.trials() if trial["invalid"] == "apply_failed"]
    pauses_s = [trial["duration_s"] for trial in failed]
    assert len(failed) >= 3
    assert [round(pause_s, -1) for pause_s in pauses_s[:3]] == [0.0, 10.0, 20.0]
    assert late == []


def test_workload_that_dies_in_every_candidate_is_a_failure_and_no_verdict(bench: Bench) -> None:
    def die(event: Event) -> None:
        if event["event"] == "trial":
            bench.faults(workload_dies_s=5.0)  # sooner than a slow one is cut short

    result = bench.run(on_event=die)
    assert (result.outcome, result.reason_code) == ("workload_failed", "workload_died")


def test_time_that_ends_before_the_finals_is_no_fault(bench: Bench) -> None:
    assert bench.run().outcome == "tuned"
    result = bench.run(job__max_duration_s=200.0)
    assert (result.outcome, result.reason_code) == ("no_gain", "time")


def test_blind_temperature_guard_is_said(bench: Bench) -> None:
    bench.faults(read_errors={"*thermal_zone*/temp": "EAGAIN"})
    result = bench.run(job__budget=2)
    assert any("max_temp_c guards nothing" in warning for warning in result.warnings)


@pytest.mark.parametrize("steps", [2, 6, 12])
def test_window_in_which_the_runner_fell_silent_is_no_measurement(bench: Bench, steps: int) -> None:
    def hang(event: Event) -> None:
        if event["event"] == "progress" and event["phase"] == "window":
            seconds.append(event["t_s"])
            if len(seconds) == steps:
                bench.faults(workload_hangs_s=0.0)

    seconds: list[float] = []
    result = bench.run(job__budget=2, on_event=hang)
    first = bench.trials()[0]
    assert (first["purpose"], first["invalid"], first["measurement"]) == ("reference", "workload_hung", None)
    assert (result.outcome, result.reason_code) == ("workload_failed", "workload_hung")


@pytest.mark.parametrize("damage", ["lost", "torn"])
def test_study_database_is_made_anew_from_the_ledger(bench: Bench, damage: str) -> None:
    first = bench.run()
    path = study_path(bench.folder)
    with open_storage(bench.folder) as storage:
        before = standings_of(storage, first.job)
    if damage == "lost":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-5000])
    result = bench.run()
    assert any("lacked 1 earlier jobs" in warning for warning in result.warnings)
    with open_storage(bench.folder) as storage:
        assert standings_of(storage, first.job) == before
        assert len(before) >= 3
    assert not any("lacked" in warning for warning in bench.run().warnings)


def standings_of(storage: RDBStorage, job: str) -> dict[int, Standing]:
    return standings(load_study(study_name=study_name(job), storage=storage))
