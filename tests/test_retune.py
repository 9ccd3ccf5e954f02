"""What a retune gains, on a made-up table; and the bench that measures it on recorded ones."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import fmean

import pytest
from bench import search_retune
from bench.search_retune import ROWS_OFF, Retune, failures, first, one, quantile, tilted, with_rows_off

from jouletune.table import Table, parse_table

PAIRS = ((1.1, 1.25), (1.25, 1.5), (1.5, 1.1), (1.5, 1.25))
HIT = Retune("a", "retune", (1.1, 1.25), (False, False, True), slow=False)


def made() -> Table:
    """Compute, memory and host work one after the other; power a cubic of each clock above 8 W; rough by row."""
    draw = random.Random(10)
    lines = ["cores,cpu_hz,gpu_hz,emc_hz,batch,latency_s,energy_j"]
    for cpu in (0.8, 1.4, 2.0):
        for gpu in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3):
            for emc in (1.6, 3.2):
                latency_s = 0.01 / gpu + 0.003 / cpu + 0.003 / emc
                energy_j = (8.0 + 6.0 * gpu**3 + 1.0 * cpu**3 + 0.6 * emc) * latency_s
                latency_s *= math.exp(draw.gauss(0.0, 0.03))
                energy_j *= math.exp(draw.gauss(0.0, 0.03))
                lines.append(f",{cpu * 1e9:.0f},{gpu * 1e9:.0f},{emc * 1e9:.0f},1,{latency_s},{energy_j}")
    return parse_table("\n".join(lines), where="made")


@pytest.fixture(scope="module", name="retunes")
def _retunes() -> dict[str, list[Retune]]:
    table = made()
    return {
        condition: [
            one(table, "made", condition, ratios, seed, most=6, first_old=False) for seed, ratios in enumerate(PAIRS)
        ]
        for condition in ("cold", "retune", "changed")
    }


def test_a_retune_with_another_bound_is_within_2_percent_in_three_windows(retunes: dict[str, list[Retune]]) -> None:
    assert sum(retune.reached() <= 3 for retune in retunes["retune"]) >= len(PAIRS) - 1
    cold, warm = (fmean(retune.reached() for retune in retunes[name]) for name in ("cold", "retune"))
    assert warm < cold


def test_what_a_changed_board_measured_costs_at_most_two_windows(retunes: dict[str, list[Retune]]) -> None:
    cold, changed = (fmean(retune.reached() for retune in retunes[name]) for name in ("cold", "changed"))
    assert changed <= cold + 2
    assert not any(retune.slow for retune in retunes["changed"])


def test_a_changed_board_is_tilted_by_ten_percent_and_three_of_its_rows_are_off() -> None:
    table = made()
    ratios = [a.energy_j / b.energy_j for a, b in zip(tilted(table, random.Random(1)).rows, table.rows, strict=True)]
    assert max(ratios) / min(ratios) == pytest.approx(1.105, abs=0.002)
    earlier, incumbent = first(table, 1.25, "made", 0)
    off = with_rows_off(earlier, random.Random(1))
    assert len({a.index for a, b in zip(earlier, off, strict=True) if a != b}) == ROWS_OFF
    assert incumbent in {window.index for window in earlier}


def test_windows_are_counted_until_the_choice_is_good() -> None:
    assert HIT.reached() == 3
    assert replace(HIT, hit=(False, False)).reached() == 3
    assert quantile([1] * 9 + [7], 0.9) == 1
    assert quantile([1] * 8 + [7, 7], 0.9) == 7


def test_each_missed_target_of_a_retune_is_named() -> None:
    late = replace(HIT, hit=(False, False, False))
    assert failures([HIT] * 9 + [late]) == []
    assert failures([HIT] * 8 + [late] * 2) == ["retune: 80 % within 2 % in at most 3 windows, target 90 %"]
    cold = replace(HIT, condition="cold", hit=(True,))
    changed = replace(HIT, condition="changed", hit=(False, False, False, True))
    assert failures([cold, changed]) == [
        "changed: 3.0 windows more than cold in the mean, target 2",
        "changed: 3.0 windows more than cold for 90 %, target 2",
    ]
    assert failures([cold, replace(changed, hit=(False, False, True))]) == []


def test_the_bench_says_shares_after_each_window(capsys: pytest.CaptureFixture[str]) -> None:
    search_retune.print_tally([HIT, replace(HIT, hit=(False, True, True))], each=True)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["retune,", "real", "0", "50", "100", "2.50", "3", "0.00"],
        ["a", "1.1->1.25", "0", "50", "100", "2.50", "3", "0.00"],
    ]
