"""What goes wrong on a real GPU: each fault ends a job with its own name, and the GPU is free afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from bench.gpu.meters import free_again, memory_used_bytes
from bench.gpu.place import Numbers, Place, runners_of
from bench.gpu.tuning import JOB, Hook, Job, entry, tune

_MOST_S = 75.0
_LEFT_BYTES = 3 << 30
QUICK: Mapping[str, float] = {**JOB, "budget": 3, "max_duration_s": 90}


def truncated(place: Place) -> tuple[Numbers, Hook | None]:
    """The first 60 % of a plan."""
    whole = place.plan("fp16").read_bytes()
    path = place.models / "truncated.plan"
    path.write_bytes(whole[: int(0.6 * len(whole))])
    return entry(place, engine=[str(path)], batch=[1], instances=[1]), None


def garbage(place: Place) -> tuple[Numbers, Hook | None]:
    """A file that never was a plan."""
    path = place.models / "garbage.plan"
    path.write_bytes(b"no plan at all " * 100_000)
    return entry(place, engine=[str(path)], batch=[1], instances=[1]), None


def outside_profile(place: Place) -> tuple[Numbers, Hook | None]:
    """Batch 32 with an engine for 1 to 16."""
    changed: dict[str, Any] = {"inputs": None, "outputs": None, "batch": [32], "instances": [1]}
    return entry(place, engine=[str(place.plan("fp16"))], **changed), None


def too_large(place: Place) -> tuple[Numbers, Hook | None]:
    """16 instances on a GPU that is full but for 3 GiB."""
    return entry(place, engine=[str(place.plan("fp16"))], batch=[16], instances=[16]), None


def wrong_outputs(place: Place) -> tuple[Numbers, Hook | None]:
    """A reference that the engine does not give."""
    wrong = str(place.models / "resnet50_wrong.npz")
    return entry(place, engine=[str(place.plan("fp16"))], batch=[4], instances=[1], outputs=wrong), None


def killed(place: Place) -> tuple[Numbers, Hook | None]:
    """kill -9 of the job's runners in every window."""

    def kill(event: Numbers, job: subprocess.Popen[str]) -> None:
        if event.get("event") == "progress" and event.get("phase") == "window":
            for pid in runners_of(job.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    return entry(place, engine=[str(place.plan("fp16"))], batch=[1, 4], instances=[1]), kill


Fault = Callable[[Place], tuple[Numbers, "Hook | None"]]

# fault → (what makes it, the outcome wanted, one of these in what is said)
FAULTS: Mapping[str, tuple[Fault, tuple[str, ...], tuple[str, ...]]] = {
    "plan_truncated": (truncated, ("workload_failed",), ("plan_invalid",)),
    "plan_garbage": (garbage, ("workload_failed",), ("plan_invalid",)),
    "shape_outside_profile": (outside_profile, ("workload_failed",), ("shape_outside_profile",)),
    "wrong_outputs": (wrong_outputs, ("workload_failed",), ("output_mismatch",)),
    "too_much_memory": (too_large, ("workload_failed", "no_feasible"), ("memory", "out_of_memory")),
    "runner_killed": (killed, ("workload_failed",), ("workload_died", "died", "killed")),
}


def faults(place: Place) -> Numbers:
    """All of them, one after the other; one that goes wrong does not stop the next."""
    numbers: Numbers = {}
    before_bytes = memory_used_bytes()
    for name in FAULTS:
        place.need(30.0, f"fault {name}")
        try:
            numbers[name] = one(place, name, before_bytes)
        except Exception as error:  # noqa: BLE001  # the other faults are worth having
            numbers[name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        short = {key: numbers[name].get(key) for key in ("ok", "outcome", "code", "gpu", "error")}
        place.say(f"  {name}: {json.dumps(short)}")
        place.keep("faults-so-far", numbers)
    numbers["all_ok"] = all(each["ok"] for each in numbers.values())
    return numbers


def one(place: Place, name: str, before_bytes: int) -> Numbers:
    """A job with this fault."""
    make, outcomes, words = FAULTS[name]
    workload, hook = make(place)
    with ExitStack() as stack:
        if name == "too_much_memory":
            hog(place, stack)
        done = tune(place, name, workload, ["--no-latency-bound"], hook=hook, job=QUICK, most_s=_MOST_S)
    result, said = done.result, done.said()
    free = free_again(before_bytes, done.pid)
    reasons = [trial.get("invalid") or trial.get("infeasible") for trial in done.trials]
    named = any(word in f"{said} {reasons}" for word in words)
    return {
        "ok": result.get("outcome") in outcomes and named and bool(free["free"]),
        "outcome": result.get("outcome"),
        "code": (result.get("reason") or {}).get("code"),
        "text": (result.get("reason") or {}).get("text"),
        "hint": result.get("hint"),
        "exit_code": done.exit_code,
        "trials": reasons,
        "seconds": done.seconds,
        "gpu": free,
        **_stderr(done),
    }


def _stderr(done: Job) -> Numbers:
    return {} if done.result else {"stderr": done.stderr[-1500:]}


def hog(place: Place, stack: ExitStack) -> None:
    """Hold the GPU's memory until `stack` ends."""
    if place.standins:
        return
    argv = [sys.executable, str(Path(__file__).with_name("hog.py")), str(_LEFT_BYTES)]
    child = stack.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    assert child.stdin is not None
    assert child.stdout is not None
    stack.callback(child.kill)
    place.say(f"  {child.stdout.readline().decode().strip()}")
