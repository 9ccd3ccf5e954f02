"""What a machine's long run would be: the number that measurements are judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jouled.virtual.instances import advance_flow, start_flow
from jouled.virtual.operation import REFERENCE_C, Noise, Operation, Plant, Power
from jouled.virtual.supply import steady
from jouled.workload.runner import Arrival

_REQUESTS = 200_000


@dataclass(frozen=True, slots=True)
class Truth:
    """Long-run values in thermal rest; energy and power are those of the module's total.

    `latency_s(percentile)` gives seconds, percentile as 95.0; `rail_w` all rails, in the plant's order.
    """

    energy_j: float
    power_w: float
    throughput_hz: float
    temperature_c: float
    rails: tuple[str, ...]
    rail_w: tuple[float, ...]
    latency_s: Callable[[float], float]


def load_share(operation: Operation, noise: Noise, arrival: Arrival) -> float:
    """The share of a full load: of one instance, the share of time in which a request is in service."""
    rate_hz = arrival.mean_rate_hz
    if rate_hz is None:
        return 1.0
    return min(1.0, rate_hz * operation.cycle_s * noise.mean_request)


def _latency(operation: Operation, noise: Noise, arrival: Arrival) -> Callable[[float], float]:
    """From a long simulated run, without what differs between windows."""

    def percentile_s(percentile: float) -> float:
        rng, instances = np.random.default_rng(0), operation.instances
        flow = start_flow(rng, noise, arrival, batch=1, instances=instances, start_s=0.0)
        each_s = operation.cycle_s * noise.mean_request
        if arrival.mean_rate_hz is not None:
            each_s = max(each_s, 1.0 / arrival.mean_rate_hz)
        advance_flow(flow, _REQUESTS * each_s, operation)
        done = flow.take()
        return float(np.percentile(done.end_s - done.arrival_s, percentile))

    return percentile_s


def long_run(plant: Plant, operation: Operation, arrival: Arrival, *, batch: int) -> Truth:
    """The truth of one operation of `plant`."""
    share = load_share(operation, plant.noise, arrival)
    power = operation.busy.mixed(operation.between, share)
    total = tuple(plant.rails.index(rail) for rail in plant.total)
    end_c, _ = steady(power, total, plant.thermal)
    rail_w = _at(power, end_c)
    power_w = sum(rail_w[rail] for rail in total)
    requests_hz = share / (operation.cycle_s * plant.noise.mean_request)
    throughput_hz = requests_hz * batch
    return Truth(
        energy_j=power_w / throughput_hz,
        power_w=power_w,
        throughput_hz=throughput_hz,
        temperature_c=end_c,
        rails=plant.rails,
        rail_w=rail_w,
        latency_s=_latency(operation, plant.noise, arrival),
    )


def _at(power: Power, temperature_c: float) -> tuple[float, ...]:
    above_c = temperature_c - REFERENCE_C
    return tuple(w + slope * above_c for w, slope in zip(power.w, power.w_per_c, strict=True))
