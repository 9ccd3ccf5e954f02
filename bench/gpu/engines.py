"""Engines through the product's own door: built once by the runner, then compared with a bare loop."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from bench.gpu.place import ROOT, Numbers, Place, call

SIDES = {"resnet50": (3, 224, 224), "tiny": (3, 64, 64)}
STANDIN_SIDES = (3, 4, 4)
MOST_ROWS = 16
_LEAD_S = 1.0
_SECONDS = 4.0
_ROUNDS = 6  # one process after another: where a core wakes late, a single pair is off by up to 10 %


def spec(place: Place, plan: Path, batch: int, name: str = "resnet50", **changed: Any) -> Numbers:
    """What the runner is told to load."""
    told: Numbers = {
        "engine": str(plan),
        "onnx": None,
        "plan_out": None,
        "batch": batch,
        "shapes": {},
        "inputs": str(place.models / f"{name}_inputs.npz"),
        "outputs": str(place.models / f"{name}_outputs.npz"),
        "tolerance": 0.01,
        "sync": "blocking",
        "cuda_graph": False,
        "device": 0,
        "seed": 0,
        "precision": None,
        "profile": {},
        "workspace_bytes": None,
    }
    return {**told, **changed}


def build(place: Place, name: str, precision: str, *, opt: int = 8) -> Numbers:
    """One dynamic engine (batch 1 to 16) by the runner's `build`."""
    from jouled.board.process import Processes
    from jouled.workload.process_runner import build_plan, runner_argv

    plan = place.models / f"{name}_{precision}.plan"
    sides = STANDIN_SIDES if place.standins else SIDES[name]
    shapes = {key: [rows, *sides] for key, rows in (("min", 1), ("opt", opt), ("max", MOST_ROWS))}
    told = spec(
        place,
        plan,
        1,
        name,
        engine=None,
        onnx=str(place.models / f"{name}.onnx"),
        plan_out=str(plan),
        inputs=None,
        outputs=None,
        precision=precision,
        profile={"input": shapes},
        tactic_sources=["EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"],
    )
    began_s = time.monotonic()
    done = build_plan(Processes(), argv=runner_argv(str(place.python)), spec=told, timeout_s=place.left_s())
    return {
        "built": done,
        "seconds": round(time.monotonic() - began_s, 1),
        "plan_bytes": plan.stat().st_size,
        "plan_sha256": hashlib.sha256(plan.read_bytes()).hexdigest(),
    }


def build_all(place: Place) -> Numbers:
    """ResNet-50 in both precisions, one after the other: builds time kernels and must not share the GPU."""
    numbers: Numbers = {}
    for precision, seconds in (("fp16", 90.0), ("fp32", 45.0)):
        place.need(seconds, f"build {precision}")
        numbers[precision] = build(place, "resnet50", precision)
        place.say(f"  {precision} built in {numbers[precision]['seconds']} s")
    return numbers


@contextmanager
def running(place: Place, told: Numbers, *, instances: int = 1) -> Iterator[Any]:
    """The product's parent side with runners that are loaded; always closed."""
    from jouled.board.process import Processes
    from jouled.workload.process_runner import ProcessRunner, runner_argv
    from jouled.workload.runner import Arrival
    from jouletune.space import Variant

    runner = ProcessRunner(
        Processes(), Arrival(), argv=runner_argv(str(place.python)), make_spec=lambda _: told, inference_name="image"
    )
    try:
        runner.load(Variant(str(told["engine"]), int(told["batch"]), instances))
        yield runner
    finally:
        runner.close()


def taken_in(runner: Any, seconds: float) -> Any:
    """Completions of some seconds of load, the first second of it left out."""
    runner.begin()
    time.sleep(_LEAD_S)
    runner.take()
    time.sleep(seconds)
    return runner.take()


def latencies_s(completions: Any) -> Any:
    """Array (n,)."""
    return np.asarray(completions.end_s) - np.asarray(completions.arrival_s)


def smoke_runner(place: Place) -> Numbers:
    """A tiny engine: built, loaded, checked, run and ended; a minute of device time finds most mistakes."""
    numbers: Numbers = {"build": build(place, "tiny", "fp32")}
    with running(place, spec(place, place.models / "tiny_fp32.plan", 4, "tiny")) as runner:
        taken = latencies_s(taken_in(runner, 2.0))
        numbers["ready"] = runner.ready
        numbers["n"], numbers["p50_s"] = int(taken.size), float(np.median(taken))
        runner.pause()
    return numbers


def compared(rounds: dict[str, list[float]]) -> Numbers:
    """The medians over the rounds, one over the other."""
    ratio = statistics.median(rounds["runner"]) / statistics.median(rounds["bare"])
    return {"p50_s": rounds, "runner_over_bare": ratio, "within_2_percent": abs(ratio - 1.0) <= 0.02}


def bare_loop(place: Place) -> Numbers:
    """p50 at batch 1 of the runner beside that of a bare loop on the same plan, in turns, both ways of waiting."""
    numbers: Numbers = {}
    script = ROOT / "bench" / "gpu" / "bare.py"
    for sync in ("blocking", "spin"):
        rounds: dict[str, list[float]] = {"bare": [], "runner": []}
        for _ in range(_ROUNDS):
            place.need(30.0, "bare loop")
            argv: list[str | Path] = [
                "/usr/bin/env",
                "-i",
                place.python,
                script,
                place.plan("fp16"),
                "1",
                f"{_SECONDS:g}",
                sync,
            ]
            said = call(place, argv, most_s=60.0, what="bare.py")
            rounds["bare"].append(json.loads(said.splitlines()[-1])["p50_s"])
            with running(place, spec(place, place.plan("fp16"), 1, sync=sync)) as runner:
                rounds["runner"].append(float(np.median(latencies_s(taken_in(runner, _SECONDS)))))
                numbers["output_check"] = runner.ready[0].get("output_check")
                runner.pause()
        numbers[sync] = compared(rounds)
        place.say(f"  p50 at batch 1, {sync}: runner over bare loop {numbers[sync]['runner_over_bare']:.4f}")
    return numbers
