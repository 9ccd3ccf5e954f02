"""What latency buys: a front that can be believed, and `jouled front`, which shows it."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jouled.cli import main
from jouled.job.studies import space_record
from jouled.ledger import Ledger
from jouletune.earlier import Earlier
from jouletune.front import Front, FrontRow, front_of
from jouletune.measurement import Measurement
from jouletune.space import Candidate, PowerMode, Space
from jouletune.trial import Infeasible, Invalid, Purpose, Trial

CPU = (0.4e9, 0.8e9, 1.2e9, 1.6e9, 2.0e9)
GPU = (0.2e9, 0.4e9, 0.6e9, 0.8e9, 1.0e9, 1.2e9)
SPACE = Space.of([Candidate(PowerMode(cpu_hz=int(cpu), gpu_hz=int(gpu))) for cpu in CPU for gpu in GPU], 29)
HOME = SPACE.reference
TRIED = (29, 28, 22, 27, 21, 15, 26, 29, 28)


def truth(index: int) -> tuple[float, float]:
    """(energy, latency): host work and compute one after the other, a cubic of each clock above a base of 5 W."""
    mode = SPACE.candidates[index].mode
    gpu, cpu = (mode.gpu_hz or 0) / 1e9, (mode.cpu_hz or 0) / 1e9
    latency_s = 0.01 / gpu + 0.004 / cpu
    return (5.0 + 12.0 * gpu**3 + 1.0 * cpu**3) * latency_s, latency_s


def windows(tried: Sequence[int] = TRIED, *, age_s: float = 0.0, seed: int = 1) -> list[Earlier]:
    draw, taken = random.Random(seed), []
    for index in tried:
        energy_j, latency_s = truth(index)
        energy_j, latency_s = energy_j * math.exp(draw.gauss(0, 0.01)), latency_s * math.exp(draw.gauss(0, 0.005))
        taken.append(Earlier(index, energy_j, 0.01 * energy_j, latency_s, 0.005 * latency_s, age_s))
    return taken


@pytest.fixture(scope="module", name="found")
def _found() -> Front:
    return front_of(SPACE, windows())


def width(row: FrontRow) -> float:
    return row.saving_interval[1] - row.saving_interval[0]


# --- the front itself ---------------------------------------------------------------------------------------


def test_along_the_front_latency_rises_and_energy_falls(found: Front) -> None:
    assert len(found.rows) >= 4
    for fast, slow in pairwise(found.rows):
        assert fast.latency_interval_s[1] <= slow.latency_interval_s[1]
        assert fast.energy_j > slow.energy_j
    upper_s = {row.index: row.latency_interval_s[1] for row in found.candidates}
    for row in found.candidates:  # nobody off the front is better than all that are at least as fast
        faster = [one for one in found.rows if upper_s[one.index] <= upper_s[row.index]]
        assert min(one.energy_j for one in faster) <= row.energy_j


def test_measured_and_predicted_are_told_apart_and_the_measured_are_surer(found: Front) -> None:
    counts = Counter(TRIED)
    assert [row.windows for row in found.candidates] == [counts[index] for index in range(len(SPACE))]
    assert all(row.is_measured == (row.index in TRIED) for row in found.candidates)
    sure = [width(row) for row in found.candidates if row.is_measured and row.index != HOME]
    guessed = [width(row) for row in found.candidates if not row.is_measured]
    assert max(sure) < min(guessed) + 0.02
    assert sum(sure) / len(sure) < sum(guessed) / len(guessed) / 2


def test_savings_refer_to_the_reference_which_saves_nothing_without_doubt(found: Front) -> None:
    assert found.reference is found.candidates[HOME]
    assert (found.reference.saving_ratio, found.reference.saving_interval) == (0.0, (0.0, 0.0))
    for row in found.candidates:
        assert row.saving_interval[0] <= row.saving_ratio <= row.saving_interval[1]
        assert row.energy_interval_j[0] <= row.energy_j <= row.energy_interval_j[1]


def test_intervals_hold_the_truth_in_most_cases() -> None:
    held: Counter[str] = Counter()
    rows = 0
    for seed in range(4):
        for row in front_of(SPACE, windows(seed=seed), seed=seed).candidates:
            energy_j, latency_s = truth(row.index)
            if latency_s <= 2.0 * truth(HOME)[1] and row.index != HOME:
                rows += 1
                saving = 1.0 - energy_j / truth(HOME)[0]
                held["latency"] += row.latency_interval_s[0] <= latency_s <= row.latency_interval_s[1]
                held["saving"] += row.saving_interval[0] <= saving <= row.saving_interval[1]
    assert rows > 40
    assert all(count >= 0.8 * rows for count in held.values())


def test_what_all_windows_have_in_common_is_in_no_saving() -> None:
    """Energies that are all 20 % higher, from a sensor that reads too much, save the same."""
    more = [
        Earlier(w.index, 1.2 * w.energy_j, 1.2 * w.energy_se_j, w.latency_s, w.latency_se_s, 0.0) for w in windows()
    ]
    usual, biased = front_of(SPACE, windows()), front_of(SPACE, more)
    for row, other in zip(usual.candidates, biased.candidates, strict=True):
        assert other.saving_ratio == pytest.approx(row.saving_ratio, abs=1e-6)


def test_more_latency_never_buys_less_and_each_step_keeps_its_bound(found: Front) -> None:
    assert [step.latency_ratio for step in found.curve] == sorted(step.latency_ratio for step in found.curve)
    for tight, loose in pairwise(found.curve):
        assert tight.row.energy_j >= loose.row.energy_j
    for step in found.curve:
        assert step.latency_bound_s == pytest.approx(step.latency_ratio * found.reference.latency_s)
        assert step.row.index == HOME or step.row.latency_interval_s[1] <= step.latency_bound_s


def test_an_earlier_job_makes_the_front_surer() -> None:
    alone = front_of(SPACE, windows((29, 28, 27)))
    more = front_of(SPACE, windows((29, 28, 27)), earlier=windows(age_s=86_400.0, seed=2))
    assert more.candidates[15].windows == 1
    assert width(more.candidates[15]) < width(alone.candidates[15]) / 2


# --- jouled front -------------------------------------------------------------------------------------------


def measurement(window: Earlier) -> Measurement:
    return Measurement(
        rail="VDD_IN",
        start_s=0.0,
        duration_s=16.0,
        requests=800,
        inferences=800,
        energy_j=window.energy_j,
        repeat_se_j=window.energy_se_j,
        repeat_dof=7.0,
        sensor_se_j=0.0,
        between_se_j=0.0,
        between_dof=8.0,
        trend_ratio=0.0,
        power_w=window.energy_j / window.latency_s,
        throughput_hz=1.0 / window.latency_s,
        latency_percentile=95.0,
        latency_s=window.latency_s,
        latency_lower_s=0.99 * window.latency_s,
        latency_upper_s=1.01 * window.latency_s,
        latency_se_s=window.latency_se_s,
        latency_samples=800,
        latency_design=1.0,
        over_bound=0,
    )


def trials(taken: Sequence[Earlier], **changes: Any) -> list[dict[str, Any]]:
    return [
        Trial(
            number=number,
            attempt=0,
            purpose=Purpose.REFERENCE if window.index == HOME else Purpose.SEARCH,
            index=window.index,
            candidate=SPACE.candidates[window.index],
            policy="capped",
            t_s=60.0 * number,
            duration_s=40.0,
            **{"measurement": measurement(window), **changes},
        ).to_dict()
        for number, window in enumerate(taken)
    ]


def keep(
    folder: Path, job: str, told: Sequence[dict[str, Any]], *, wall_s: float = 1e9, winner: int | None = None
) -> None:
    """The events of one job, as the ledger has them."""
    ledger = Ledger(folder)
    board = {"fingerprint": {"module": "m"}, "board": "a board", "base_mode": "MAXN", "rail": "VDD_IN"}
    what = {"workload": "detector", "arrival": "back_to_back", "latency_percentile": 95.0, "rail_coverage": "module"}
    space = space_record(SPACE)
    ledger.append({"event": "job_started", "job": job, "wall_s": wall_s, "space": space, **board, **what})
    ledger.append({"event": "phase", "phase": "known", "job": job, "policy": "capped", "runtime": None})
    ledger.append({"event": "phase", "phase": "search", "job": job, "bound_s": 0.015})
    for trial in told:
        ledger.append({"event": "trial", "job": job, "trial": trial})
    mode = None if winner is None else SPACE.candidates[winner].mode
    side = (
        None
        if mode is None
        else {
            "mode": {"cores": None, "cpu_hz": mode.cpu_hz, "gpu_hz": mode.gpu_hz, "emc_hz": None},
            "variant": {"engine": None, "batch": 1, "instances": 1},
        }
    )
    ledger.append({"event": "finished", "job": job, "result": {"winner": side}})


def front(folder: Path, *options: str) -> int:
    return main(["front", "--virtual", "thor", "--state-dir", str(folder), *options])


@pytest.fixture(scope="module", name="kept")
def _kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two jobs and, after them, one whose only window is no evidence."""
    folder = tmp_path_factory.mktemp("front")
    keep(folder, "aaaa", trials(windows((29, 28, 27, 21), seed=2)), wall_s=1e9 - 86_400.0)
    keep(folder, "bbbb", trials(windows()), winner=22)
    keep(folder, "cccc", trials(windows((29,)), invalid=Invalid.THROTTLED), wall_s=1e9 + 9.0)
    return folder


def test_the_latest_job_that_measured_anything_is_shown_with_those_before_it(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front(kept, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["job"], told["board"], told["latency_bound_s"]) == (1, "bbbb", "a board", 0.015)
    assert (told["windows"], told["earlier"]) == (9, {"windows": 4, "jobs": 1, "not_used": {}})
    assert told["reference"]["state"] == ["reference"]
    assert told["reference"]["mode"]["gpu_hz"] == int(GPU[-1])
    rows = told["front"]
    assert [row["latency_s"] for row in rows] == sorted(row["latency_s"] for row in rows)
    assert {row["measured"] for row in rows} == {True, False}
    assert all(row["measured"] == (row["windows"] > 0) for row in rows)
    assert sum(row["state"] == ["winner"] for row in rows) <= 1
    assert {"latency_ratio", "latency_bound_s", "saving_ratio", "measured", "mode"} <= told["curve"][0].keys()
    assert main(["front", "aaaa", "--virtual", "thor", "--state-dir", str(kept), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["job"], told["windows"], told["earlier"]["windows"]) == ("aaaa", 4, 0)


def test_people_read_a_table_and_what_each_bound_buys(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert front(kept) == 0
    text = capsys.readouterr().out
    assert "a board in MAXN: detector, back_to_back\n" in text
    assert "job bbbb: 9 valid windows and 4 of 1 job before it" in text
    assert "window, winner" in text or "windows, winner" in text
    assert text.count("predicted") >= 2
    lines = [line for line in text.splitlines() if "% more latency buys" in line]
    assert len(lines) >= 2
    assert all(", measured)" in line or ", predicted)" in line for line in lines)
    modes = [line.split("): ")[1] for line in lines]
    assert len(set(modes)) == len(modes)


def test_a_spreadsheet_gets_every_candidate(kept: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert front(kept, "--csv", "-") == 0
    text = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(int(row["cpu_hz"]), int(row["gpu_hz"])) for row in rows] == [
        (one.mode.cpu_hz, one.mode.gpu_hz) for one in SPACE.candidates
    ]
    assert [int(row["windows"]) for row in rows][HOME] == 3
    assert 3 <= sum(row["on_front"] == "1" for row in rows) < len(rows)
    assert all(float(row["energy_low_j"]) <= float(row["energy_j"]) <= float(row["energy_high_j"]) for row in rows)
    assert front(kept, "--csv", str(tmp_path / "front.csv"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["job"] == "bbbb"
    assert (tmp_path / "front.csv").read_text() == text
    assert front(kept, "--csv", str(tmp_path / "none" / "front.csv")) == 1
    assert "--csv" in capsys.readouterr().err


def test_slow_windows_that_were_cut_short_count_as_slow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = trials(windows((11,)), measurement=None, cut=True, infeasible=Infeasible.LATENCY)
    for folder, more in ((tmp_path / "without", []), (tmp_path / "with", cut)):
        folder.mkdir()
        keep(folder, "bbbb", [*trials(windows((29, 28, 27))), *more])
    latency_s = []
    for name in ("without", "with"):
        assert front(tmp_path / name, "--csv", "-") == 0
        latency_s.append(float(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))[11]["latency_s"]))
    assert latency_s[1] > 1.05 * latency_s[0]


@pytest.mark.parametrize(
    ("options", "told", "message"),
    [
        ((), [], "nothing was measured yet in"),
        ((), trials(windows((29, 28)), invalid=Invalid.THROTTLED), "nothing was measured yet in"),
        ((), trials(windows((29, 28, 29))), "too little was measured for a front: wanted at least 3 candidates, got 2"),
        (("dddd",), trials(windows()), "no job 'dddd' with a valid window in"),
        ((), [{"number": 1}], "nothing was measured yet in"),
    ],
)
def test_without_data_there_is_no_front_but_what_to_do(
    options: Sequence[str],
    told: Sequence[dict[str, Any]],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if told:
        keep(tmp_path, "aaaa", told)
    assert front(tmp_path, *options, "--json") == 2
    said = capsys.readouterr()
    assert message in json.loads(said.out)["error"]["text"]
    assert "to do: " in said.err
    assert f"--virtual thor --state-dir {tmp_path}" in said.err


def test_a_ledger_that_began_anew_is_read_too(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ledger.1.jsonl").write_bytes((kept / "ledger.jsonl").read_bytes())
    assert front(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["earlier"]["windows"] == 4
