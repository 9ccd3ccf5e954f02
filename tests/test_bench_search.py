from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest
from bench.search import CONDITIONS, Task, held, run
from bench.search_figures import gaps_after
from bench.search_left_out import Setting, changed, left_out
from bench.search_left_out import settings as settings_of_joule
from bench.search_made import made
from bench.search_tally import Run, calibration, coverage, failures, shares

from jouletune.sampler import Belief
from jouletune.search import SAMPLERS

HEADER = "cores,cpu_hz,gpu_hz,emc_hz,batch,latency_s,energy_j\n"
RUN = Run("a", "joule", "plain", 1.25, 12, 0, 3, 0.0, 0.9, 10, [0.01], [], {})


def runs(*gaps: float, budget: int = 12, grid: str = "a") -> list[Run]:
    return [replace(RUN, gap=gap, budget=budget, grid=grid) for gap in gaps]


def test_shares_are_of_runs_within_one_two_and_three_percent() -> None:
    assert shares(runs(0.0, 0.01, 0.015, 0.5)) == [0.5, 0.75, 0.75]


def test_targets_that_are_kept_are_no_failures() -> None:
    assert failures([*runs(*[0.0] * 20), *runs(*[0.025] * 20, budget=8), *runs(0.02, grid="b-semireal")]) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"gap": 0.03}, "plain, real grids at 12: 0.0 % within 1 %, target 93 %"),
        ({"gap": 0.04, "budget": 8}, "plain, real grids at 8: 0.0 % within 3 %, target 95 %"),
        ({"latency_ratio": 1.006}, "plain, real grids at 12: 1 of 1 too slow, target 0.3 %, none by 2 %"),
        ({"asked_s": [0.06]}, "one proposal takes 60 ms (p95), target 50 ms"),
        ({"held": {6: (10, 7, 9)}}, "90 % intervals after 6 windows hold 70.0 % of energies, target 80 to 97 %"),
        ({"held": {6: (10, 9, 10)}}, "90 % intervals after 6 windows hold 100.0 % of latencies, target 80 to 97 %"),
        ({"condition": "outliers", "gap": 0.5}, "outliers, all grids at 12: 0.0 % within 2 %, target 92 %"),
    ],
)
def test_each_missed_target_is_named(change: dict[str, object], text: str) -> None:
    assert text in failures([replace(RUN, **change)])  # type: ignore[arg-type]


def test_slow_proposals_are_judged_by_the_size_of_the_grid() -> None:
    assert failures([replace(RUN, grid="made-1000", asked_s=[0.19])]) == []
    slow = failures([replace(RUN, grid="made-1000", asked_s=[0.21])])
    assert slow == ["one proposal takes 210 ms (p95), target 200 ms"]


def test_coverage_is_pooled_over_runs() -> None:
    pooled = [replace(RUN, held={6: (10, 9, 8)}), replace(RUN, held={6: (30, 25, 30), 8: (1, 1, 1)})]
    assert list(coverage(pooled)) == [("joule", 6, 40, 34, 38), ("joule", 8, 1, 1, 1)]
    assert next(iter(calibration(pooled))).startswith("joule: 90 % intervals after  6 windows hold 85.0 % of energies")


def test_only_rows_near_the_bound_or_faster_count_for_the_intervals() -> None:
    table = made()
    beliefs = {
        index: Belief(row.energy_j, (0.9 * row.energy_j, 1.1 * row.energy_j), 1.0, (2.0, 3.0))
        for index, row in enumerate(table.rows)
    }
    bound_s = table.rows[table.space.reference].latency_s
    near = sum(row.latency_s <= 1.2 * bound_s for row in table.rows)
    assert 0 < near < len(table.rows)
    assert held(table, beliefs, bound_s) == (near, near, 0)


def test_made_up_grid_has_a_thousand_candidates_and_its_fastest_as_reference() -> None:
    table = made()
    assert len(table.rows) == 1000
    assert min(table.rows, key=lambda row: row.latency_s) is table.rows[table.space.reference]


def test_gaps_after_each_window_go_on_as_they_ended() -> None:
    ended = replace(RUN, path=[0.2, 0.1])
    longer = replace(RUN, path=[None, 0.3, 0.0])
    assert gaps_after([ended, longer]) == ([60.0, 20.0, 5.0], [100.0, 30.0, 10.0])


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_task_runs_one_search_a_seed_against_the_truth(tmp_path: Path, condition: str) -> None:
    path = tmp_path / "small.csv"
    path.write_text(HEADER + "".join(f",,{gpu},,1,{1 / gpu},{abs(gpu - 6) + 5}\n" for gpu in range(1, 9)))
    task = Task(path, "descent", condition, ratio=1.5, budget=8, seeds=3, track=True)
    found = run(task)
    assert [(one.grid, one.seed, one.condition) for one in found] == [("small", seed, condition) for seed in range(3)]
    assert all(len(one.path) == one.measurements <= 8 for one in found if condition != "invalid")
    if condition == "plain":
        assert [(one.row, one.gap) for one in found] == [(5, 0.0)] * 3
        assert found == [replace(one, asked_s=found[at].asked_s) for at, one in enumerate(run(task))]


def test_constants_are_chosen_without_the_source_that_they_are_scored_on() -> None:
    def with_gaps(first: float, second: float) -> list[Run]:
        return runs(first, grid="tx2-vgg19-gpu-emc") + runs(second, grid="tx2-xception-200-96mode-semireal")

    found = left_out({"own": with_gaps(0.0, 0.5), "smooth x 2": with_gaps(0.5, 0.0)})
    assert {name: (best, [one.gap for one in its]) for name, (best, its) in found.items()} == {
        "tx2-vgg19-gpu": ("smooth x 2", [0.5]),
        "tx2-xception": ("own", [0.5]),
    }


@pytest.mark.parametrize(("name", "setting"), settings_of_joule().items())
def test_a_setting_changes_one_constant_and_puts_it_back(name: str, setting: Setting | None) -> None:
    if setting is None:
        return
    module = importlib.import_module(setting[0])
    before = getattr(module, setting[1])
    with changed(setting):
        assert getattr(module, setting[1]) != before, name
    assert getattr(module, setting[1]) == before


def test_the_control_is_no_sampler_of_the_product(tmp_path: Path) -> None:
    path = tmp_path / "small.csv"
    path.write_text(HEADER + "".join(f",,{gpu},,1,{1 / gpu},{abs(gpu - 6) + 5}\n" for gpu in range(1, 9)))
    found = run(Task(path, "plain", "plain", ratio=1.5, budget=8, seeds=1, track=False))
    assert (found[0].row, found[0].gap) == (5, 0.0)
    assert "plain" not in SAMPLERS
