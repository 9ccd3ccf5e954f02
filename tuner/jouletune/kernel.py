"""How alike two candidates are in what no physical model says of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jouletune.space import Axis, Space

Array = NDArray[np.float64]
Rows = Sequence[int] | NDArray[np.int64]

_ADDITIVE = 0.6  # the share of what each axis does on its own: measured energies are nearly log-additive
_REACH_CLOCK = 0.7  # in log clock: a factor of two
_REACH_COUNT = 1.4  # batch, instances, cores: a factor of four
_REACH_RANK = 1.5  # memory clocks have few points and no law: ordered, not continuous


class Kernel:
    """The correlation between any two candidates of `space`, 1 on the diagonal."""

    def __init__(self, space: Space) -> None:
        places = np.array([space.coordinates(index) for index in range(len(space))], dtype=np.int64)
        self._axes = [
            (_correlation(axis), places[:, place] if len(space.axes) else places)
            for place, axis in enumerate(space.axes)
        ]

    def among(self, rows: Rows, others: Rows) -> Array:
        """`(n_rows, n_others)`."""
        left, right = np.asarray(rows, dtype=np.int64), np.asarray(others, dtype=np.int64)
        if not self._axes:
            return np.ones((len(left), len(right)))
        parts = [axis[np.ix_(ranks[left], ranks[right])] for axis, ranks in self._axes]
        result: Array = _ADDITIVE * np.mean(parts, axis=0) + (1.0 - _ADDITIVE) * np.prod(parts, axis=0)
        return result


def _correlation(axis: Axis) -> Array:
    """Between the values of one axis: Matérn 3/2 over the logarithm, rougher over memory clocks, none over engines."""
    if axis.name == "engine":
        return np.eye(len(axis.values))
    if axis.name == "emc_hz":
        rank = np.arange(len(axis.values)) / _REACH_RANK
        return np.asarray(np.exp(-np.abs(rank[:, None] - rank[None, :])))
    reach = _REACH_CLOCK if axis.name in ("gpu_hz", "cpu_hz") else _REACH_COUNT
    at = np.log(np.array([float(value or 0) for value in axis.values])) / reach
    away = math.sqrt(3.0) * np.abs(at[:, None] - at[None, :])
    return np.asarray((1.0 + away) * np.exp(-away))
