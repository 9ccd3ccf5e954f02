"""Random physical models of a board under a workload: what latency and energy may look like before anything is known.

Each model is one draw of a few dimensionless numbers: how the reference's time splits into compute, memory traffic,
host work and a rest; how far these overlap; how its power splits into static, GPU, CPU and memory parts; how steep
the voltage is over the clock; how work grows with the batch. All is relative to the reference, so a model has no
scale. The priors are wide and come from no table: they only say what a board can do at all (work over a clock takes
its inverse in time, switching costs clock times voltage squared while something is busy, voltage has a floor).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jouletune.space import Space, Value

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Features:
    """What the models see of each candidate, relative to the reference: log clocks, cores, batch, instances.

    `engine` is a number per engine, 0 the reference's.
    """

    gpu: Array
    cpu: Array
    emc: Array
    cores: Array
    batch: Array
    instances: Array
    engine: NDArray[np.int64]
    engines: int


def features(space: Space) -> Features:
    """Of every candidate of `space`."""
    home = space.candidates[space.reference]
    modes = [candidate.mode for candidate in space.candidates]
    variants = [candidate.variant for candidate in space.candidates]
    engines = list(dict.fromkeys([home.variant.engine, *(variant.engine for variant in variants)]))
    return Features(
        gpu=_log([mode.gpu_hz for mode in modes], home.mode.gpu_hz),
        cpu=_log([mode.cpu_hz for mode in modes], home.mode.cpu_hz),
        emc=_log([mode.emc_hz for mode in modes], home.mode.emc_hz),
        cores=_log([mode.cores for mode in modes], home.mode.cores),
        batch=_log([variant.batch for variant in variants], home.variant.batch),
        instances=_log([variant.instances for variant in variants], home.variant.instances),
        engine=np.array([engines.index(variant.engine) for variant in variants]),
        engines=len(engines),
    )


def _log(values: Sequence[Value], home: Value) -> Array:
    """log(value / home); 0 where an axis is not set."""
    if not isinstance(home, int):
        return np.zeros(len(values))
    return np.log(np.array([value if isinstance(value, int) else home for value in values]) / home)


@dataclass(frozen=True)
class _Rows:
    """Ratios to the reference."""

    gpu: Array
    cpu: Array
    emc: Array
    cores: Array
    batch: Array
    instances: Array
    engine: NDArray[np.int64]


@dataclass(frozen=True)
class _Use:
    """How busy each domain is; the memory in traffic."""

    gpu: Array
    cpu: Array
    emc: Array


class Models:
    """`n` random models; `at` gives their log-latency and log-power of some candidates relative to the reference."""

    def __init__(self, space: Space, n: int, *, seed: int) -> None:
        self._features = features(space)
        self._n = n
        draw = np.random.default_rng(seed)

        def normal(middle: float, sd: float, *more: int) -> Array:
            return draw.normal(middle, sd, (n, 1, *more))

        def uniform(low: float, high: float) -> Array:
            return draw.uniform(low, high, (n, 1))

        # Time at the reference, before overlap: compute, memory, host and what no clock moves.
        self._compute, self._memory = np.exp(normal(0.0, 1.0)), np.exp(normal(-0.3, 1.0))
        self._host, self._rest = np.exp(normal(-0.7, 1.2)), np.exp(normal(-2.5, 1.2))
        self._device_norm = np.exp(uniform(0.0, np.log(8.0)))
        self._host_norm = np.exp(uniform(0.0, np.log(8.0)))
        self._bandwidth = uniform(0.4, 1.1)
        self._bandwidth_gpu = uniform(0.0, 0.5)
        self._parallel = uniform(0.0, 0.7)
        # Batches: launches and weights that every batch pays once, in items.
        self._fixed_compute, self._fixed_memory = np.exp(normal(-0.3, 1.2)), np.exp(normal(0.3, 1.2))
        self._fixed_host = np.exp(normal(0.7, 1.2))
        self._shared = uniform(0.6, 1.0)
        # Power at the reference: static, GPU, CPU and memory; how much of each switches when there is nothing to do.
        shares = draw.gamma((2.0, 2.5, 1.0, 0.7), 1.0, (n, 4)) + 0.02
        shares /= shares.sum(axis=1, keepdims=True)
        self._shares = tuple(shares[:, k : k + 1] for k in range(4))
        self._idle_gpu, self._idle_cpu = uniform(0.05, 0.6), uniform(0.1, 0.9)
        self._stalled = uniform(0.2, 1.0)
        self._traffic = uniform(0.0, 0.8)
        self._emc_power = uniform(0.4, 1.4)
        self._steep_gpu, self._steep_cpu = uniform(0.2, 1.0), uniform(0.2, 1.0)
        self._floor_gpu, self._floor_cpu = uniform(0.5, 0.9), uniform(0.5, 0.9)
        self._leak = uniform(0.0, 0.5)
        self._engine_compute = normal(0.0, 0.35, self._features.engines)[:, 0, :]
        self._engine_memory = normal(0.0, 0.35, self._features.engines)[:, 0, :]
        for shift in (self._engine_compute, self._engine_memory):
            shift[:, 0] = 0.0
        self._home = self._raw(np.zeros((1, 6)), np.zeros(1, dtype=np.int64), slice(None))

    def at(self, rows: Sequence[int], models: NDArray[np.int64] | slice = slice(None)) -> tuple[Array, Array]:
        """(log-latency, log-energy per item), each `(n_models, n_rows)`, relative to the reference."""
        f, pick = self._features, list(rows)
        columns = np.stack([f.gpu, f.cpu, f.emc, f.cores, f.batch, f.instances], axis=1)[pick]
        latency, power = self._raw(columns, f.engine[pick], models)
        latency = latency - self._home[0][models]
        power = power - self._home[1][models]
        return latency, latency + power - columns[:, 4] - columns[:, 5]

    def _raw(self, columns: Array, engine: NDArray[np.int64], models: NDArray[np.int64] | slice) -> tuple[Array, Array]:
        """Log-latency of a batch and log-power, up to a constant of each model."""
        gpu, cpu, emc, cores, batch, instances = np.exp(columns).T
        rows = _Rows(gpu, cpu, emc, cores, batch, instances, engine)
        compute, memory, host = self._times(rows, models)
        together = rows.instances ** self._shared[models]
        norm = self._device_norm[models]
        device = together * (compute**norm + memory**norm) ** (1.0 / norm)
        norm = self._host_norm[models]
        latency = (device**norm + host**norm) ** (1.0 / norm) + self._rest[models]
        use = _Use(
            gpu=(self._stalled[models] * device + (1.0 - self._stalled[models]) * together * compute) / latency,
            cpu=np.minimum(rows.instances * host / latency, 1.0),
            emc=together * memory * rows.emc ** self._bandwidth[models] / latency,
        )
        return np.log(latency), np.log(self._power(rows, use, models))

    def _times(self, rows: _Rows, models: NDArray[np.int64] | slice) -> tuple[Array, Array, Array]:
        """Compute, memory and host time of one batch."""

        def grown(fixed: Array) -> Array:
            return (rows.batch + fixed[models]) / (1.0 + fixed[models])

        compute = self._compute[models] * grown(self._fixed_compute) / rows.gpu
        memory = self._memory[models] * grown(self._fixed_memory)
        memory = memory * rows.emc ** -self._bandwidth[models] * rows.gpu ** -self._bandwidth_gpu[models]
        host = self._host[models] * grown(self._fixed_host) / rows.cpu * rows.cores ** -self._parallel[models]
        if self._features.engines > 1:
            compute = compute * np.exp(self._engine_compute[models][:, rows.engine])
            memory = memory * np.exp(self._engine_memory[models][:, rows.engine])
        return compute, memory, host

    def _power(self, rows: _Rows, use: _Use, models: NDArray[np.int64] | slice) -> Array:
        static, share_gpu, share_cpu, share_emc = (share[models] for share in self._shares)
        volt_gpu = _volts(rows.gpu, self._steep_gpu[models], self._floor_gpu[models])
        volt_cpu = _volts(rows.cpu, self._steep_cpu[models], self._floor_cpu[models])
        idle_gpu, idle_cpu = self._idle_gpu[models], self._idle_cpu[models]
        leak, moved = self._leak[models], self._traffic[models]
        power: Array = (
            static * (1.0 - leak + leak * volt_gpu)
            + share_gpu * rows.gpu * volt_gpu**2 * (idle_gpu + (1.0 - idle_gpu) * use.gpu)
            + share_cpu * rows.cpu * volt_cpu**2 * rows.cores * (idle_cpu + (1.0 - idle_cpu) * use.cpu)
            + share_emc * ((1.0 - moved) * rows.emc ** self._emc_power[models] + moved * use.emc)
        )
        return power


def _volts(clock: Array, steep: Array, floor: Array) -> Array:
    """Voltage relative to the reference's: a line over the clock with a floor."""
    volts: Array = np.maximum(1.0 - steep * (1.0 - clock), floor)
    return volts
