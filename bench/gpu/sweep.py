"""Every variant for the same time, without the tuner: the truth that the job's winner is compared with."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
from bench.gpu.engines import latencies_s, running, spec
from bench.gpu.meters import described
from bench.gpu.place import Numbers, Place, StageError
from bench.gpu.tuning import BATCHES, INSTANCES, PERCENTILE, PRECISIONS

SETTLE_S = 2.0
WINDOW_S = 7.5
_TRAIL_S = 0.5
_MOST_APART = 1.01
_LEAST_GAP = 1.1


def sweep(place: Place) -> Numbers:
    """12 variants, about 10 s of load each; chooses the bound that the job is then given."""
    from jouled.board.clock import SystemClock
    from jouled.board.nvml import open_nvml
    from jouled.board.process import Processes

    clock, rows = SystemClock(), list[Numbers]()
    meter = open_nvml(Processes())
    numbers: Numbers = {"gpu": described(meter), "settle_s": SETTLE_S, "window_s": WINDOW_S, "rows": rows}
    try:
        for precision, batch, instances in product(PRECISIONS, BATCHES, INSTANCES):
            place.need(20.0, "sweep")
            rows.append({"precision": precision, "batch": batch, "instances": instances})
            try:
                rows[-1].update(one(place, meter, clock, rows[-1]))
            except Exception as error:  # noqa: BLE001  # the other variants are worth having
                rows[-1]["error"] = f"{type(error).__name__}: {error}"
            place.say("  " + line(rows[-1]))
            place.keep("sweep-so-far", numbers)
    finally:
        meter.close()
    whole = [row for row in rows if "error" not in row]
    ratios = [row["counter_over_integrated"] for row in whole if row["counter_over_integrated"]]
    numbers["counter_within_1_percent"] = bool(ratios) and all(abs(ratio - 1.0) <= 0.01 for ratio in ratios)
    numbers["bound"] = choose_bound(whole)
    place.keep_here("bound", numbers["bound"])
    place.keep_here("sweep", numbers)
    return numbers


def one(place: Place, meter: Any, clock: Any, row: Numbers) -> Numbers:
    """One variant's joules per image by the counter and by integrated power, and its latencies."""
    from jouletune.trace import counter_ratio, joules_at

    told = spec(place, place.plan(row["precision"]), row["batch"])
    sampling = meter.sampling(clock, rate_hz=5.0)
    began_s = time.monotonic()
    with running(place, told, instances=row["instances"]) as runner:
        loaded_s = time.monotonic() - began_s
        runner.begin()
        time.sleep(SETTLE_S)
        sampling.start()
        time.sleep(_TRAIL_S)
        runner.take()
        start_s = time.monotonic()
        time.sleep(WINDOW_S)
        completions = runner.take()
        time.sleep(_TRAIL_S)
        trace = sampling.stop()
        runner.pause()
        ready = runner.ready
    end_s = np.sort(np.asarray(completions.end_s))
    inside = end_s[end_s >= start_s]
    if inside.size < 20:
        raise StageError(f"wanted 20 requests in {WINDOW_S} s, got {inside.size}")
    first_s, last_s = float(inside[0]), float(inside[-1])
    joules = np.diff(joules_at(trace, np.array([first_s, last_s])))[0]
    taken_s, images = latencies_s(completions), (inside.size - 1) * row["batch"]
    return {
        "loaded_in_s": round(loaded_s, 2),
        "energy_j": float(joules) / images,
        "power_w": float(joules) / (last_s - first_s),
        "throughput_hz": images / (last_s - first_s),
        "p50_s": float(np.percentile(taken_s, 50)),
        "p99_s": float(np.percentile(taken_s, PERCENTILE)),
        "requests": int(taken_s.size),
        "counter_over_integrated": counter_ratio(trace, first_s, last_s),
        "counter_edges": 0 if trace.counter is None else int(trace.counter.t_s.size),
        "output_check": [each.get("output_check") for each in ready],
        "device_memory_bytes": ready[0].get("device_memory_bytes"),
        "free_bytes": ready[0].get("free_bytes"),
    }


def line(row: Numbers) -> str:
    """For the terminal."""
    name = f"{row['precision']} batch {row['batch']:2} x {row['instances']}"
    if "error" in row:
        return f"{name}  {row['error']}"
    counted = row["counter_over_integrated"]
    return (
        f"{name}  {row['energy_j'] * 1e3:8.2f} mJ/image  {row['power_w']:6.1f} W  {row['throughput_hz']:8.0f} images/s"
        f"  p50 {row['p50_s'] * 1e3:.3f} p99 {row['p99_s'] * 1e3:.3f} ms  counter/integrated {counted}"
    )


def choose_bound(rows: Sequence[Numbers]) -> Numbers:
    """A p99 bound that forbids the variant which is best without one and lies in a wide gap between the others.

    In a gap, since noise would otherwise decide who is within the bound. Raises StageError.
    """
    if len(rows) < 3:
        raise StageError(f"a bound: wanted at least 3 measured variants, got {len(rows)}")
    best = min(rows, key=lambda row: float(row["energy_j"]))
    p99s = sorted(float(row["p99_s"]) for row in rows)
    gaps = [(above / below, math.sqrt(above * below)) for below, above in pairwise(p99s[2:])]
    below_best = [gap for gap in gaps if gap[1] < best["p99_s"] and gap[0] >= _LEAST_GAP]
    gap, bound_s = max(below_best or gaps)
    within = [row for row in rows if row["p99_s"] <= bound_s]
    chosen = min(within, key=lambda row: float(row["energy_j"]))
    names = ("precision", "batch", "instances", "energy_j", "p99_s")
    return {
        "bound_s": round(bound_s, 6),
        "gap_ratio": gap,
        "within": len(within),
        "best": {name: chosen[name] for name in names},
        "best_without_bound": {name: best[name] for name in names},
    }


def compare(place: Place) -> Numbers:
    """The job's winner beside the sweep's, by the sweep's own joules."""
    swept, job = place.kept("sweep"), place.kept("tune")
    result, bound = job["result"], swept["bound"]
    side = result.get("winner") or result.get("incumbent") or {}
    variant = side.get("variant") or {}
    found = next((row for row in swept["rows"] if _is(place, row, variant)), None)
    if found is None or "energy_j" not in found:
        raise StageError(f"the job's winner {variant} is no row of the sweep")
    ratio = found["energy_j"] / bound["best"]["energy_j"]
    same = all(found[name] == bound["best"][name] for name in ("precision", "batch", "instances"))
    counters = [event["counter_ratio"] for event in job["trials"] if event.get("counter_ratio")]
    numbers = {
        "outcome": result.get("outcome"),
        "winner": {name: found[name] for name in ("precision", "batch", "instances", "energy_j", "p99_s")},
        "winner_as_the_job_measured_it": side,
        "sweep_best": bound["best"],
        "same_variant": same,
        "energy_ratio": ratio,
        "within_1_percent": same or ratio <= _MOST_APART,
        "within_bound": found["p99_s"] <= bound["bound_s"],
        "job_counter_over_integrated": counters,
    }
    place.say(f"  winner {numbers['winner']}, sweep {bound['best']}: energy ratio {ratio:.4f}")
    return numbers


def _is(place: Place, row: Numbers, variant: Numbers) -> bool:
    engine, batch, instances = variant.get("engine"), variant.get("batch"), variant.get("instances")
    plan = place.plan(row["precision"])
    return str(engine) in (str(plan), plan.name, plan.stem) and (batch, instances) == (row["batch"], row["instances"])
