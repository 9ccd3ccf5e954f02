"""A board's own measurements become a recorded board, and that one's the same again."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from jouled.cli import main
from jouled.config import Config
from jouled.errors import StateError, UsageError
from jouled.job.export import Export, check_export
from jouled.job.request import Request
from jouled.virtual.machine import VirtualMachine
from jouled.workload.runner import Arrival
from jouletune.measurement import Measurement
from jouletune.space import Candidate, PowerMode, Space, Variant
from jouletune.table import Row, parse_table, render_table
from jouletune.trial import Invalid, Purpose, Trial

GRID = ["--grid", "2x2x2", "--sampler", "grid", "--budget", "10", "--no-latency-bound"]
BACK_TO_BACK = Arrival()


def test_a_virtual_boards_grid_comes_back_as_a_recorded_board(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    where = ["--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path / "virtual")]
    assert main(["tune", *where, *GRID, "--export", str(first)]) == 0
    told = capsys.readouterr()
    assert f"{first}: 8 power modes as measured" in told.err
    table = parse_table(first.read_text(), where="first")
    truth = VirtualMachine(tmp_path / "virtual" / "board")
    assert [axis.name for axis in table.space.axes] == ["cpu_hz", "gpu_hz", "emc_hz"]
    assert table.space.candidates[table.space.reference].mode == PowerMode(
        12, 2_201_600_000, 1_300_500_000, 3_199_000_000
    )
    for row in table.rows:
        true = truth.truth(row.candidate.mode)
        assert row.energy_j == pytest.approx(true.energy_j, rel=0.04)
        assert row.power_w == pytest.approx(true.power_w, rel=0.04)

    again = ["--table", str(first), "--state-dir", str(tmp_path / "recorded")]
    options = [*GRID[2:], "--export", str(second)]
    capsys.readouterr()
    assert main(["tune", *again, *options]) == 0
    assert "\n  idle " not in capsys.readouterr().out  # a table knows of power under load alone
    recorded = {row.candidate: row for row in parse_table(second.read_text(), where="second").rows}
    assert recorded.keys() == {row.candidate for row in table.rows}
    for row in table.rows:
        assert recorded[row.candidate].energy_j == pytest.approx(row.energy_j, rel=0.05)
        assert recorded[row.candidate].latency_s == pytest.approx(row.latency_s, rel=0.025)


def test_a_table_is_read_back_as_it_was_written() -> None:
    rows = (
        Row(0, Candidate(PowerMode(None, None, 306_000_000, 665_600_000)), 0.0170063469, 0.186142239),
        Row(1, Candidate(PowerMode(None, None, 612_000_000, 665_600_000), Variant(batch=4)), 1.25, 2.0),
    )
    assert parse_table(render_table(rows), where="x").rows == rows


def make_trial(index: int, energy_j: float, **changed: Any) -> Trial:
    window = Measurement(
        rail="VDD_IN", start_s=0.0, duration_s=20.0, requests=100, inferences=100, energy_j=energy_j, repeat_se_j=0.01,
        repeat_dof=7.0, sensor_se_j=0.0, between_se_j=0.0, between_dof=8.0, trend_ratio=0.0, power_w=5 * energy_j,
        throughput_hz=5.0, latency_percentile=95.0, latency_s=0.4, latency_lower_s=0.3, latency_upper_s=0.5,
        latency_se_s=0.01, latency_samples=100, latency_design=1.0, over_bound=0,
    )  # fmt: skip
    given: dict[str, Any] = {"purpose": Purpose.SEARCH, "policy": "capped", "measurement": window} | changed
    candidate = Candidate(PowerMode(gpu_hz=100_000_000 * (index + 1)))
    return Trial(number=0, attempt=0, index=index, candidate=candidate, t_s=0.0, duration_s=30.0, **given)


def told(*trials: Trial) -> Export:
    export = Export()
    for trial in trials:
        export({"event": "trial", "trial": json.loads(json.dumps(trial.to_dict()))})
    export({"event": "phase", "phase": "finals"})
    return export


def test_latency_is_the_mean_of_a_request_and_power_what_was_drawn() -> None:
    (row,) = told(make_trial(0, 2.0)).rows()
    assert row.latency_s == pytest.approx(0.2)  # not the percentile's 0.4 s
    assert row.power_w == pytest.approx(10.0)


def test_finals_count_more_than_the_search_and_invalid_or_locked_windows_not_at_all() -> None:
    rows = told(
        make_trial(1, 3.0),
        make_trial(0, 1.0),
        make_trial(0, 2.0, purpose=Purpose.FINALS),
        make_trial(0, 9.0, policy="locked", purpose=Purpose.FINALS),
        make_trial(2, 4.0, invalid=Invalid.THROTTLED),
        make_trial(3, 4.0, measurement=None, cut=True),
    ).rows()
    assert [(row.number, row.candidate.mode.gpu_hz) for row in rows] == [(0, 100_000_000), (1, 200_000_000)]
    assert [row.energy_j for row in rows] == pytest.approx([2.0, 3.0])


def test_nothing_measured_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    path.write_text("mine")
    assert told().write(path) == 0
    assert path.read_text() == "mine"


def test_a_file_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be written"):
        told(make_trial(0, 2.0)).write(tmp_path)


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "grid.csv"
    path.write_text("mine")

    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", is_full)
    with pytest.raises(StateError, match="cannot be written: No space left on device"):
        told(make_trial(0, 2.0)).write(path)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StateError, match="cannot be written: No space left on device"):
        told(make_trial(0, 2.0)).write(Path("/dev/full"))


def test_a_disk_that_fills_during_the_job_hides_neither_outcome_nor_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("jouled.job.export.replace_text", is_full)
    path = tmp_path / "grid.csv"
    where = ["--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path / "s"), "--no-latency-bound"]
    assert main(["tune", *where, "--grid", "2x2x2", "--budget", "4", "--json", "--export", str(path)]) == 0
    told = capsys.readouterr()
    result = json.loads(told.out)
    assert result["outcome"] in ("tuned", "no_gain")
    assert f"warning: --export: {path}: cannot be written: No space left on device; free some space in" in told.err
    assert f"each window of job {result['job']} stands in {tmp_path / 's' / 'ledger.jsonl'}" in told.err
    assert result["job"] in (tmp_path / "s" / "ledger.jsonl").read_text()


def test_an_export_without_a_files_name_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path / "s"), "--no-latency-bound"]
    assert main(["tune", *where, "--export", ""]) == 2
    assert "--export: wanted the name of a file" in capsys.readouterr().err


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "grid.csv", tmp_path / "link.csv"
    link.symlink_to(target)
    assert told(make_trial(0, 2.0)).write(link) == 1
    assert link.is_symlink()
    assert parse_table(target.read_text(), where="target").rows


def test_a_board_does_not_write_over_the_table_that_it_is_made_of(tmp_path: Path) -> None:
    table, link = tmp_path / "grid.csv", tmp_path / "link.csv"
    table.write_text("mine")
    link.symlink_to(table)
    for path in (table, link):
        with pytest.raises(UsageError, match="the table that this board is made of"):
            check_export(path, make_request(), BACK_TO_BACK, table=table)
    check_export(tmp_path / "other.csv", make_request(), BACK_TO_BACK, table=table)


def make_request(variants: tuple[Variant, ...] = (Variant(),)) -> Request:
    space = Space.of([Candidate(PowerMode())], 0)
    return Request(config=Config(), workload="w", make_space=lambda _: space, variants=variants)


@pytest.mark.parametrize(
    ("request_", "arrival", "name", "words"),
    [
        (make_request(), Arrival("rate", 30.0), "a.csv", "back_to_back"),
        (make_request((Variant("a"), Variant("b"))), BACK_TO_BACK, "a.csv", "several engines"),
        (make_request((Variant(instances=2),)), BACK_TO_BACK, "a.csv", "several instances"),
        (make_request(), BACK_TO_BACK, "nowhere/a.csv", "no file can be written"),
        (make_request(), BACK_TO_BACK, ".", "no file can be written"),
    ],
)
def test_what_the_format_cannot_hold_is_refused_before_the_job(
    tmp_path: Path, request_: Request, arrival: Arrival, name: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        check_export(tmp_path / name, request_, arrival)


def test_batch_sizes_can_be_exported(tmp_path: Path) -> None:
    check_export(tmp_path / "a.csv", make_request((Variant(batch=1), Variant(batch=4))), BACK_TO_BACK)
