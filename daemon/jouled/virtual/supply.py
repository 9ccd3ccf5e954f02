"""The machine's power over time: pieces of constant setting, exact energy, one temperature, and what a sensor sees.

Within a piece the rails' power is linear in the temperature, and the temperature runs exponentially to where that power
holds it: both have closed forms, so nothing is integrated in steps. Noise multiplies the power, constant over one
average of the sensor (a block of 430 ms); a sensor's reading is therefore the exact mean of its block, and the energy
of any stretch of time is exact too.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jouled.virtual.operation import REFERENCE_C, Noise, Power, Thermal

BLOCK_S = 0.43
_CHUNK = 2048
_KEPT_CHUNKS = 12
_KEPT_PIECES = 4000


@dataclass(frozen=True, slots=True)
class Piece:
    """Constant power from `start_s` on; the temperature goes from `start_c` to `end_c` with time constant `time_s`."""

    start_s: float
    start_c: float
    end_c: float
    time_s: float
    power: Power

    def temperature_c(self, at_s: float) -> float:
        """The temperature at `at_s`, in this piece."""
        return self.end_c + (self.start_c - self.end_c) * math.exp(-(at_s - self.start_s) / self.time_s)

    def energy_j(self, rail: int, from_s: float, to_s: float) -> float:
        """The energy of one rail between two times of this piece, noise left out."""
        span_s = to_s - from_s
        slope = self.power.w_per_c[rail]
        steady_w = self.power.w[rail] + slope * (self.end_c - REFERENCE_C)
        if slope == 0.0:
            return steady_w * span_s
        away_c = self.temperature_c(from_s) - self.end_c
        return steady_w * span_s + slope * away_c * self.time_s * -math.expm1(-span_s / self.time_s)


def steady(power: Power, total: Sequence[int], thermal: Thermal) -> tuple[float, float]:
    """Where the temperature ends (°C) under `power`, and with which time constant (s); leakage is fed back."""
    leak = sum(power.w_per_c[rail] for rail in total)
    loop = 1.0 - thermal.c_per_w * leak
    cold_w = sum(power.w[rail] for rail in total) - leak * REFERENCE_C
    return (thermal.ambient_c + thermal.c_per_w * cold_w) / loop, thermal.time_s / loop


class BlockNoise:
    """Factors per block (n_rails,) and voltage offsets per block (n_rails,), the same whatever is asked and when."""

    def __init__(self, rng: np.random.Generator, noise: Noise, rails: int) -> None:
        self._rng = rng
        self._noise = noise
        self._rails = rails
        self._chunks: dict[int, tuple[list[list[float]], list[list[float]]]] = {}
        self._next = 0
        self._ripple = np.zeros(rails)
        self._drift = 0.0

    def _smooth(self, first: NDArray[np.float64], shocks: NDArray[np.float64], keep: float) -> NDArray[np.float64]:
        out = np.empty_like(shocks)
        value = first
        for index, shock in enumerate(shocks):
            value = keep * value + shock
            out[index] = value
        return out

    def _make(self) -> None:
        noise = self._noise
        keep = noise.ripple_correlation
        shocks = noise.ripple_sd * math.sqrt(1 - keep**2) * self._rng.standard_normal((_CHUNK, self._rails))
        ripple = self._smooth(self._ripple, shocks, keep)
        stay = math.exp(-BLOCK_S / noise.drift_time_s)
        pushes = noise.drift_sd * math.sqrt(1 - stay**2) * self._rng.standard_normal((_CHUNK, 1))
        drift = self._smooth(np.array([self._drift]), pushes, stay)
        self._ripple, self._drift = ripple[-1], float(drift[-1, 0])
        volts = noise.voltage_sd_v * self._rng.standard_normal((_CHUNK, self._rails))
        self._chunks[self._next] = ((1.0 + ripple + drift).tolist(), volts.tolist())
        self._chunks.pop(self._next - _KEPT_CHUNKS, None)
        self._next += 1

    def at(self, block: int) -> tuple[list[float], list[float]]:
        """Factors and voltage offsets of one block, counted from 0."""
        chunk, index = divmod(max(block, 0), _CHUNK)
        while chunk >= self._next:
            self._make()
        factors, volts = self._chunks[chunk]
        return factors[index], volts[index]


class Supply:
    """Power, temperature and sensor blocks from `start_s` on."""

    def __init__(
        self,
        *,
        rails: int,
        total: Sequence[int],
        noise: Noise,
        thermal: Thermal,
        rng: np.random.Generator,
        start_s: float,
        start_c: float,
    ) -> None:
        self.total = tuple(total)
        self._thermal = thermal
        self._origin_s = start_s - BLOCK_S * float(rng.uniform(2.0, 3.0))
        self._noise = BlockNoise(rng, noise, rails)
        self._start_c = start_c
        self._pieces: list[Piece] = []
        self._starts: list[float] = []

    def change(self, at_s: float, power: Power) -> None:
        """From `at_s` on the rails draw `power`; before the first change they drew the same, at one temperature."""
        end_c, time_s = steady(power, self.total, self._thermal)
        if not self._pieces:
            self._pieces.append(Piece(self._origin_s, self._start_c, self._start_c, time_s, power))
            self._starts.append(self._origin_s)
        start_c = self.temperature_c(at_s)
        if self._starts[-1] >= at_s:
            self._pieces.pop()
            self._starts.pop()
        self._pieces.append(Piece(at_s, start_c, end_c, time_s, power))
        self._starts.append(at_s)
        if len(self._pieces) > _KEPT_PIECES:
            del self._pieces[: _KEPT_PIECES // 2], self._starts[: _KEPT_PIECES // 2]

    def temperature_c(self, at_s: float) -> float:
        """The die's temperature."""
        return self._pieces[bisect.bisect_right(self._starts, at_s) - 1].temperature_c(at_s)

    def _clean_j(self, rail: int, from_s: float, to_s: float) -> float:
        index = max(bisect.bisect_right(self._starts, from_s) - 1, 0)
        energy_j = 0.0
        while from_s < to_s:
            last = index + 1 == len(self._pieces)
            until_s = to_s if last else min(to_s, self._starts[index + 1])
            energy_j += self._pieces[index].energy_j(rail, from_s, until_s)
            from_s = until_s
            index += 1
        return energy_j

    def energy_j(self, rail: int, from_s: float, to_s: float) -> float:
        """What the rail really drew between two times, noise included (the last hours are kept)."""
        energy_j = 0.0
        while from_s < to_s:
            block = self.block(from_s)
            until_s = min(to_s, self._origin_s + (block + 1) * BLOCK_S)
            if until_s <= from_s:  # the float of an edge
                block, until_s = block + 1, min(to_s, self._origin_s + (block + 2) * BLOCK_S)
            energy_j += self._noise.at(block)[0][rail] * self._clean_j(rail, from_s, until_s)
            from_s = until_s
        return energy_j

    def block(self, at_s: float) -> int:
        """The number of the sensor's block that `at_s` falls into."""
        return math.floor((at_s - self._origin_s) / BLOCK_S)

    def seen(self, block: int) -> tuple[list[float], list[float]]:
        """What the averages of a block are: watts and voltage offsets, each (n_rails,)."""
        factors, volts = self._noise.at(block)
        from_s = self._origin_s + block * BLOCK_S
        to_s = from_s + BLOCK_S
        watts = [factor * self._clean_j(rail, from_s, to_s) / BLOCK_S for rail, factor in enumerate(factors)]
        return watts, volts
