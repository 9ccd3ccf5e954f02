"""The bench for a real GPU, as far as it can be wrong without one: its stages, its configurations, its bound."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from bench.gpu import faults, sweep, tuning
from bench.gpu.place import Numbers, Place, StageError
from bench.gpu_host import STAGES, run, stage_of

from jouled.config import load


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Nothing is there yet."""
    made = Place(tmp_path / "at", tmp_path / "out", time.monotonic() + 60.0)
    made.models.mkdir(parents=True)
    return made


def _rows() -> list[Numbers]:
    """Three variants in each of two groups of latency; the slow ones take less energy."""
    fast = [{"energy_j": 0.05 - 0.001 * number, "p99_s": 0.001 * (1 + 0.05 * number)} for number in range(3)]
    slow = [{"energy_j": 0.02 - 0.001 * number, "p99_s": 0.004 * (1 + 0.05 * number)} for number in range(3)]
    names = [{"precision": "fp16", "batch": number, "instances": 1} for number in range(6)]
    return [{**name, **row} for name, row in zip(names, [*fast, *slow], strict=True)]


def test_every_stage_has_its_function() -> None:
    assert all(callable(stage_of(name)) for name in STAGES)


def test_bound_forbids_the_variant_that_is_best_without_one_and_lies_in_the_widest_gap() -> None:
    bound = sweep.choose_bound(_rows())
    assert bound["best_without_bound"]["batch"] == 5
    assert 0.0011 < bound["bound_s"] < 0.004
    assert (bound["within"], bound["best"]["batch"]) == (3, 2)


def test_bound_needs_variants_that_were_measured() -> None:
    with pytest.raises(StageError, match="at least 3"):
        sweep.choose_bound(_rows()[:2])


@pytest.mark.parametrize("name", ["resnet50", *faults.FAULTS])
def test_configuration_is_one_that_jouled_takes(place: Place, name: str) -> None:
    place.plan("fp16").write_bytes(b"plan" * 1000)
    workload = tuning.entry(place) if name == "resnet50" else faults.FAULTS[name][0](place)[0]
    config = load(tuning.config(place, name, workload), {})
    chosen = config.chosen()
    assert chosen is not None
    assert chosen.python == str(place.python)
    assert (config.job.pilot_s, config.job.settle_max_s, config.job.finals_windows) == (2.0, 2.0, 9)


def test_winner_of_the_job_is_judged_by_the_joules_of_the_sweep(place: Place) -> None:
    rows = _rows()
    place.keep_here("sweep", {"rows": rows, "bound": sweep.choose_bound(rows)})
    winner = {"variant": {"engine": str(place.plan("fp16")), "batch": 1, "instances": 1}}
    place.keep_here("tune", {"result": {"outcome": "tuned", "winner": winner}, "trials": []})
    seen = sweep.compare(place)
    assert seen["energy_ratio"] == pytest.approx(0.049 / 0.048)
    assert (seen["same_variant"], seen["within_1_percent"], seen["within_bound"]) == (False, False, True)


def test_failing_stage_is_written_down_and_raises_nothing(place: Place) -> None:
    assert not run(place, "compare")
    assert "has not run" in (place.out / "compare.json").read_text()
