from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import pytest

from jouletune.__main__ import main
from jouletune.earlier import Earlier
from jouletune.errors import SpaceError
from jouletune.replay import Board, Disturbance, Noted, drive, score, with_reference
from jouletune.search import Failed, Infeasible
from jouletune.suggest import Problem, Suggester, Window
from jouletune.table import Table, parse_table

HEADER = "cores,cpu_hz,gpu_hz,emc_hz,batch,latency_s,energy_j\n"
ROWS = ",,300,10,1,0.4,1\n,,600,10,1,0.2,\n,,600,20,1,0.2,2\n,,900,20,1,0.1,4\n,,900,10,1,0.11,3\n"
QUIET = Disturbance(noise_energy=0.0, noise_latency=0.0)


@pytest.fixture(name="table")
def _table() -> Table:
    return parse_table(HEADER + ROWS, where="a.csv")


@pytest.fixture(name="grid")
def _grid(tmp_path: Path) -> str:
    path = tmp_path / "small.csv"
    path.write_text(HEADER + ROWS)
    return str(path)


def board(table: Table, how: Disturbance, seed: str = "1") -> Board:
    return Board(table, how, bound_s=0.15, seed=seed)


def energies(table: Table, how: Disturbance, windows: int) -> list[float]:
    """Log of measured over true energy, of windows on one row."""
    one = board(table, how)
    told = [one.measure(0) for _ in range(windows)]
    return [math.log(window.energy_j / table.rows[0].energy_j) for window in told if isinstance(window, Window)]


def test_without_noise_a_window_is_its_row(table: Table) -> None:
    assert board(table, QUIET).measure(1) == Window(2.0, 0.0, 0.2, 0.0)


def test_noise_is_lognormal_and_its_size_is_told(table: Table) -> None:
    off = energies(table, Disturbance(noise_energy=0.02), 1000)
    assert fmean(off) == pytest.approx(0.0, abs=0.003)
    assert stdev(off) == pytest.approx(0.02, rel=0.1)
    window = board(table, Disturbance(noise_energy=0.02, noise_latency=0.01)).measure(2)
    assert isinstance(window, Window)
    assert window.energy_se_j == pytest.approx(0.02 * window.energy_j)
    assert window.latency_se_s == pytest.approx(0.01 * window.latency_s)


def test_outliers_are_two_and_a_half_times_off_either_way(table: Table) -> None:
    off = energies(table, Disturbance(noise_energy=0.0, outlier_rate=0.1), 1000)
    high, low = (sum(math.isclose(value, sign * math.log(2.5)) for value in off) for sign in (1, -1))
    assert 70 < high + low < 130
    assert min(high, low) > 30
    assert sum(abs(value) < 1e-9 for value in off) == 1000 - high - low


def test_drift_walks_over_all_rows(table: Table) -> None:
    one = board(table, Disturbance(noise_energy=0.0, drift=0.01))
    walk = []
    for count in range(400):
        window = one.measure(count % 4)
        assert isinstance(window, Window)
        walk.append(math.log(window.energy_j / table.rows[count % 4].energy_j))
    steps = [after - before for before, after in pairwise(walk)]
    assert stdev(steps) == pytest.approx(0.01, rel=0.15)
    assert max(map(abs, walk)) > 0.05


def test_invalid_windows_have_a_reason_and_no_numbers(table: Table) -> None:
    one = board(table, Disturbance(invalid_rate=0.25))
    failed = sum(one.measure(0) == Failed("throttled") for _ in range(1000))
    assert 200 < failed < 300


def test_slow_rows_can_be_cut_short(table: Table) -> None:
    one = board(table, Disturbance(cut_ratio=1.05))
    assert one.measure(0) == Infeasible()
    assert isinstance(one.measure(3), Window)


def test_nth_window_of_a_row_is_the_same_whatever_was_measured_between(table: Table) -> None:
    first, second = board(table, Disturbance()), board(table, Disturbance())
    alone = [first.measure(0), first.measure(0)]
    between = [second.measure(0), second.measure(2), second.measure(0)]
    assert alone == [between[0], between[2]]
    assert alone[0] != alone[1]
    assert board(table, Disturbance(), seed="2").measure(0) != alone[0]


@pytest.mark.parametrize(
    ("index", "bound_s", "gap", "within"),
    [
        (2, 0.15, 1 / 3, True),
        (3, 0.15, 0.0, True),
        (1, 0.2, 0.0, True),  # at the bound itself: less than the best at 0.99 x bound, and not too slow
        (0, 0.15, 0.0, False),
        (2, 0.1, None, True),
        (1, 0.1995, 0.0, True),
        (1, 0.1989, 0.0, False),
    ],
)
def test_score_is_against_the_best_row_clearly_within_the_bound(
    table: Table, index: int, bound_s: float, gap: float | None, *, within: bool
) -> None:
    found = score(table, index, bound_s)
    assert found.gap == (None if gap is None else pytest.approx(gap))
    assert found.within_bound is within


def test_another_row_can_be_the_reference(table: Table) -> None:
    moved = with_reference(table, 2)
    assert moved.space.candidates[moved.space.reference] == table.rows[1].candidate
    with pytest.raises(SpaceError, match="wanted a row with an energy, got 1"):
        with_reference(table, 1)


def test_drive_finds_the_best_of_a_small_table(table: Table) -> None:
    suggester = Suggester(Problem(table.space, bound_ratio=1.5, sampler="grid"))
    choice = drive(suggester, board(table, QUIET).measure)
    assert (choice.index, suggester.measurements) == (3, 4)


def test_replay_says_row_windows_gap_and_bound_of_each_search(grid: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--bound-ratio", "1.5", "--budget", "4", "--seeds", "2", "--sampler", "grid", "--json"]
    assert main(["replay", grid, *options]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    row = {"grid": "small", "row": 4, "measurements": 4, "energy_gap": 0.0, "within_bound": True}
    assert runs == [{"seed": 0, **row}, {"seed": 1, **row}]


def test_replay_takes_the_bound_from_the_fastest_row_or_from_another_reference(
    grid: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["replay", grid, "--seeds", "1", "--budget", "5", "--sampler", "grid", "--json", "--bound-ratio"]
    assert main([*common, "2.1", "--bound-ratio-to", "fastest"]) == 0
    assert main([*common, "2.1", "--reference-row", "2"]) == 0
    rows = [json.loads(line)["runs"][0]["row"] for line in capsys.readouterr().out.splitlines()]
    assert rows == [2, 0]


def test_valid_windows_are_kept_for_a_later_search(table: Table) -> None:
    noted = Noted(board(table, QUIET).measure)
    for index in (1, 0, 1):
        noted.measure(index)
    slow = Noted(board(table, Disturbance(cut_ratio=1.0)).measure)
    slow.measure(1)
    assert noted.earlier(60.0) == tuple(
        Earlier(index, table.rows[index].energy_j, 0.0, table.rows[index].latency_s, 0.0, 60.0) for index in (1, 0, 1)
    )
    assert slow.earlier(60.0) == ()


def test_replay_of_a_retune_knows_what_the_first_search_has_found(
    grid: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--bound-ratio", "1.2", "--budget", "3", "--seeds", "3", "--sampler", "joule", "--json"]
    assert main(["replay", grid, *options, "--retune-from", "2.5"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["measurements"], run["row"]) for run in runs] == 3 * [(3, 4)]


def test_replay_minimises_what_is_asked_for_below_a_limit_of_power(
    grid: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    aims = ["--objective", "throughput", "--max-power-w", "24", "--sampler", "grid", "--budget", "9"]
    quiet = ["--noise-energy", "0", "--noise-latency", "0", "--seeds", "1", "--json"]
    assert main(["replay", grid, "--bound-ratio", "9", *aims, *quiet]) == 0
    run = json.loads(capsys.readouterr().out)["runs"][0]
    kept = [row for row in table.rows if row.power_w <= 24]
    assert run["row"] == min(kept, key=lambda row: row.latency_s).number
    assert run["energy_gap"] == 0.0
    assert main(["replay", grid, "--bound-ratio", "9", "--objective", "throughput"]) == 2
    assert "--max-power-w" in capsys.readouterr().err


def test_replay_for_people_is_one_line_a_grid(grid: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", grid, grid, "--bound-ratio", "1.5", "--seeds", "3", "--sampler", "grid"]) == 0
    line = "small: within 1/2/3 % of the best: 100/100/100 %; too slow: 0 of 3; windows: 4.0\n"
    assert capsys.readouterr().out == 2 * line


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["no-such.csv", "--bound-ratio", "1.5"], 1, "jouletune: [Errno 2] No such file or directory: 'no-such.csv'"),
        (["{grid}", "--bound-ratio", "1.5", "--reference-row", "1"], 2, "jouletune: reference row: wanted a row"),
    ],
)
def test_replay_says_what_it_cannot_read(
    grid: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert main(["replay", *(argument.format(grid=grid) for argument in arguments)]) == code
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("ratio", ["0", "nan", "x", "-1"])
def test_replay_refuses_a_ratio_that_is_none(grid: str, ratio: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["replay", grid, "--bound-ratio", ratio])
