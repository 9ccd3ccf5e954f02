"""The model behind bench/decisions_model.py, with fewer runs: three INA3221 rails of a random board."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench" / "decisions_model.py"


@pytest.fixture(scope="module")
def model() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("decisions_model", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def slack(rate: float, runs: int) -> float:
    """Three binomial standard errors."""
    return 3.0 * math.sqrt(rate * (1.0 - rate) / runs)


@pytest.mark.parametrize(("power_w", "most"), [(12.0, 0.035), (25.0, 0.02)])
def test_a_windows_interval_holds_the_truth_and_is_narrow(model: ModuleType, power_w: float, most: float) -> None:
    rng, runs = np.random.default_rng(1), 300
    boards = [model.draw_board(rng) for _ in range(runs)]
    held, half = model.interval_rates(rng, boards, power_w)
    assert held >= 0.93 - slack(0.07, runs)
    assert half <= most


def test_rails_at_20_v_that_stand_on_their_codes_are_said_to_be_uncertain(model: ModuleType) -> None:
    rng, runs = np.random.default_rng(2), 200
    board = model.Board(supply_v=20.0, between_ratio=0.0)
    arms = [model.Arm(model.draw_arm(rng, 12.0).rails_w, (0.0, 0.0, 0.0)) for _ in range(runs)]
    results = [model.interval_run(rng, board, arm) for arm in arms]
    assert np.mean([hit for hit, _ in results]) >= 0.95 - slack(0.05, runs)
    assert np.mean([half for _, half in results]) <= 0.035


@pytest.mark.parametrize("power_w", [12.0, 25.0])
def test_a_saving_of_exactly_min_gain_is_called_tuned_in_2_5_percent(model: ModuleType, power_w: float) -> None:
    rng, runs = np.random.default_rng(3), 120
    boards = [model.draw_board(rng) for _ in range(runs)]
    tuned, held = model.finals_rates(rng, boards, (0.02, 0.02), power_w)
    assert tuned <= 0.025 + slack(0.025, runs)
    assert held >= 0.95 - slack(0.05, runs)


@pytest.mark.parametrize("power_w", [12.0, 25.0])
def test_a_true_saving_of_6_percent_is_found_in_85_percent(model: ModuleType, power_w: float) -> None:
    rng, runs = np.random.default_rng(4), 120
    boards = [model.draw_board(rng) for _ in range(runs)]
    tuned, _ = model.finals_rates(rng, boards, (0.06, 0.04), power_w)
    assert tuned >= 0.85 - slack(0.15, runs)
