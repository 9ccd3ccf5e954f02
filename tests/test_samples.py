"""The raw samples of a job: what is in them, that its numbers follow from them, and that they are bounded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jouled.cli import main
from jouled.job.samples import FOLDER, Samples

JOB = ["--latency-bound-ratio", "1.2", "--budget", "2", "--grid", "1x2x1"]


def run_job(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    arguments = ["tune", "--virtual", "agx-orin-64gb", "--state-dir", str(folder), *JOB, "--json", *more]
    assert main(arguments) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_windows_energy_and_latency_follow_from_its_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_job(tmp_path, capsys, "--keep-samples")
    files = sorted((tmp_path / FOLDER / result["job"]).iterdir())
    assert len(files) == result["measurements"]
    with np.load(files[0]) as kept:
        trial = json.loads(str(kept["trial"]))
        window = trial["measurement"]
        assert list(kept["rails"]) == ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"]
        assert kept["voltage_v"].shape == kept["current_a"].shape == (kept["t_s"].size, 3)
        start_s, end_s = kept["window_s"]
        power_w = (kept["voltage_v"] * kept["current_a"]).sum(axis=1) + kept["external_w"]
        inside = (kept["t_s"] >= start_s) & (kept["t_s"] <= end_s)
        assert power_w[inside].mean() == pytest.approx(window["power_w"], rel=0.01)
        ended = (kept["end_s"] >= start_s) & (kept["end_s"] <= end_s)
        latency_s = (kept["end_s"] - kept["arrival_s"])[ended]
        assert np.percentile(latency_s, 95) == pytest.approx(window["latency_s"], rel=0.01)
        assert ended.sum() == pytest.approx(window["requests"], abs=1)


def test_the_end_of_a_job_says_where_they_lie(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = ["--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path)]
    assert main(["tune", *board, *JOB, "--keep-samples"]) == 0
    (folder,) = (tmp_path / FOLDER).iterdir()
    assert f"  samples   {folder}" in capsys.readouterr().out.splitlines()


def test_nothing_is_kept_unless_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_job(tmp_path, capsys)
    assert not (tmp_path / FOLDER).exists()


def test_samples_that_cannot_be_written_end_no_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    result = run_job(tmp_path, capsys, "--keep-samples")
    (warning,) = [text for text in result["warnings"] if "samples are not kept" in text]
    assert "from window 0 on" in warning


def test_the_oldest_jobs_samples_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jouled.job.samples.arrays_of", lambda trial, taken: {"a": np.zeros(3)})
    trial: Any = type("Trial", (), {"number": 7})
    for age, job in enumerate(("c", "a", "b")):  # names say nothing of their age
        Samples(tmp_path, job, 10).keep(trial, trial)
        os.utime(tmp_path / FOLDER / job, (1e9 + age, 1e9 + age))
    Samples(tmp_path, "d", 2).keep(trial, trial)
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == ["b", "d"]
    assert [path.name for path in (tmp_path / FOLDER / "d").iterdir()] == ["0007.npz"]


def test_arrays_hold_no_objects_so_that_no_pickle_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_job(tmp_path, capsys, "--keep-samples")
    for path in (tmp_path / FOLDER / result["job"]).iterdir():
        with np.load(path, allow_pickle=False) as kept:
            assert all(kept[name].dtype.kind in "fiU" for name in kept.files)
