from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench.search import CONDITIONS, Task, held, main, run
from bench.search_figures import draw, gaps_after
from bench.search_left_out import Setting, changed, left_out, pooled
from bench.search_left_out import settings as settings_of_joule
from bench.search_made import made
from bench.search_tally import Run, calibration, coverage, failures, shares, verdict_line, verdicts

from jouletune.sampler import Belief
from jouletune.search import SAMPLERS

HEADER = "cores,cpu_hz,gpu_hz,emc_hz,batch,latency_s,energy_j\n"
KINDS = ("semi-real", "real", "all")
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
        ({"latency_ratio": 1.006}, "plain, real grids at 12: 1 of 1 too slow, 0 by 2 %, target 0.3 %, none by 2 %"),
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


def test_verdicts_tell_reached_and_missed_with_the_left_out_beside() -> None:
    found = [verdict_line(one) for one in verdicts(runs(0.0, 0.015), {("real", 12): (runs(0.0), runs(0.0, 0.5, 0.5))})]
    assert found == [
        "MISSED   plain, real grids at 12: 50.0 % within 1 %, target 93 %; "
        "constants chosen without the grid: 33.3 %, own on the same seeds: 100.0 %",
        "reached  plain, real grids at 12: 100.0 % within 2 %, target 98 %; "
        "constants chosen without the grid: 33.3 %, own on the same seeds: 100.0 %",
        "reached  plain, real grids at 12: 0 of 2 too slow, 0 by 2 %, target 0.3 %, none by 2 %",
        "reached  one proposal takes 10 ms (p95), target 50 ms",
    ]


def test_left_out_runs_are_pooled_by_kind() -> None:
    first, second = runs(0.1, grid="tx2-vgg19-gpu-emc"), runs(0.2, grid="tx2-xception-200-96mode-semireal")
    other = [replace(one, seed=1) for one in [*first, *second]]
    found = pooled({"own": [*first, *second], "smooth x 2": other}, 12)
    assert found == {("real", 12): (first, first), ("semi-real", 12): (second, second)}


def test_times_are_of_answers_that_nobody_looked_ahead_of(tmp_path: Path) -> None:
    path = tmp_path / "small.csv"
    path.write_text(HEADER + "".join(f",,{gpu},,1,{1 / gpu},{abs(gpu - 6) + 5}\n" for gpu in range(1, 9)))
    (watched,) = run(Task(path, "descent", "plain", ratio=1.5, budget=4, seeds=1, track=True))
    (alone,) = run(Task(path, "descent", "plain", ratio=1.5, budget=4, seeds=1, track=False))
    assert (len(watched.asked_s), len(alone.asked_s)) == (1, 5)  # the reference; each window and the choice


def test_a_figure_for_each_grid_with_a_line_and_dashes_for_each_sampler(tmp_path: Path) -> None:
    made_runs = [
        replace(RUN, grid=grid, sampler=sampler, seed=seed, path=[0.2, None, 0.1 * seed, 0.0])
        for grid in ("a", "b-semireal")
        for sampler in ("joule", "descent")
        for seed in range(3)
    ]
    written = draw([*made_runs, replace(RUN, grid="c")], tmp_path / "figures")
    assert [path.name for path in written] == ["a.svg", "b-semireal.svg"]
    text = written[0].read_text()
    assert text.startswith("<?xml")
    assert all(word in text for word in ("#0072b2", "#d55e00", "stroke-dasharray"))
    first = written[0].read_bytes()
    draw(made_runs, tmp_path / "figures")
    assert written[0].read_bytes() == first


def test_the_command_draws_scores_and_checks_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = HEADER + "".join(f",,{gpu},,1,{1 / gpu},{abs(gpu - 6) + 5}\n" for gpu in range(1, 9))
    for name in ("small.csv", "other-semireal.csv", "none-latency-only.csv"):
        (tmp_path / name).write_text(text)
    figures, kept = tmp_path / "figures", tmp_path / "runs.json"
    options = ["--samplers", "grid,joule", "--at", "5", "--seeds", "1", "--check"]
    code = main([str(tmp_path), *options, "--figures", str(figures), "--json", str(kept)])
    out = capsys.readouterr().out
    assert code == 0
    assert sorted(path.name for path in figures.iterdir()) == ["other-semireal.svg", "small.svg"]
    assert len(json.loads(kept.read_text())) == 12
    assert [line.split()[:3] for line in out.splitlines()[1:4]] == [["grid", "plain", kind] for kind in KINDS]
    assert main([str(tmp_path / "figures")]) == 1
