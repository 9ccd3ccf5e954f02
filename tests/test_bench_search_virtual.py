"""The bench of whole jobs on the virtual board: what it counts, and what its file keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench.search_virtual import Job, Plan, Setting, in_force, jobs, keep, line, run, summary, tenth, truth

from jouled.job.result import JobResult, Side
from jouletune.space import Candidate, PowerMode

TOP, MIDDLE, LOW = (PowerMode(gpu_hz=hz) for hz in (3, 2, 1))
PLAN = Plan({TOP: (2.0, 0.010), MIDDLE: (1.6, 0.012), LOW: (1.0, 0.013)}, TOP, 0.012)
JOB = Job("joule", 0, "tuned", kept=1.0, latency_ratio=1.0, windows=15, disturbed_s=600.0, took_s=1.5)


def test_attainable_is_the_best_saving_within_the_bound() -> None:
    assert PLAN.attainable == pytest.approx(0.2)
    assert PLAN.saving(LOW) == pytest.approx(0.5)
    assert PLAN.saving(TOP) == 0.0


def test_summary_tells_median_tenth_worst_and_the_slow() -> None:
    done = [replace(JOB, kept=0.1 * at, disturbed_s=100.0 * at) for at in range(11)]
    done[3] = replace(done[3], outcome="no_gain", latency_ratio=1.006)
    found = summary(done)
    assert (found["jobs"], found["tuned"], found["slow"]) == (11, 10, 1)
    assert [found[f"kept_{name}"] for name in ("median", "p10", "worst")] == pytest.approx([0.5, 0.1, 0.0])
    assert (found["disturbed_median_s"], found["disturbed_p90_s"]) == (500.0, 900.0)
    assert line("joule", done).split()[:6] == ["joule", "11", "10", "50.0", "10.0", "0.0"]
    assert tenth([3.0]) == 3.0


@pytest.mark.parametrize(("applied", "mode"), [(True, MIDDLE), (False, TOP)])
def test_a_winner_that_was_rolled_back_saves_nothing(*, applied: bool, mode: PowerMode) -> None:
    side = Side(Candidate(MIDDLE), "capped", 1.6, 0.1, (1.5, 1.7), 0.012, 0.012, 900, 5.0, 80.0, 3)
    assert in_force(JobResult("job", winner=side, applied=applied), PLAN) == mode


def test_file_is_added_to_and_refuses_another_setting(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    keep(path, Setting(), PLAN, {"joule": [JOB], "tpe": [JOB]})
    keep(path, Setting(), PLAN, {"tpe": [replace(JOB, kept=0.5)] * 2})
    found = json.loads(path.read_text())
    assert {name: its["summary"]["jobs"] for name, its in found["samplers"].items()} == {"joule": 1, "tpe": 2}
    assert found["samplers"]["joule"]["jobs"] == [[0, "tuned", 1.0, 1.0, 15, 600.0]]
    assert len(found["columns"]) == 6
    with pytest.raises(ValueError, match=r"holds .*, wanted "):
        keep(path, Setting(ratio=1.5), PLAN, {"joule": [JOB]})


def test_a_whole_job_is_judged_by_the_plants_long_run() -> None:
    setting = Setting(modes=40, ratio=1.5)
    plan = truth(setting)
    assert len(plan.modes) == 36
    assert 0.05 < plan.attainable < 0.3
    found = run(setting, plan, "descent", 0)
    assert found.outcome == "tuned"
    assert 0.5 < found.kept <= 1.0
    assert found.latency_ratio <= 1.005
    assert found.disturbed_s > 300.0


def test_each_sampler_has_its_share_of_the_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.search_virtual.run", lambda _, __, name, seed: replace(JOB, sampler=name, seed=seed))
    done = [(one.sampler, one.seed) for one in jobs(Setting(), PLAN, ["joule", "tpe", "grid"], 4)]
    assert done == [*(("joule", at) for at in range(4)), *(("tpe", at) for at in range(3)), ("grid", 0)]
