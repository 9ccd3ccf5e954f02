"""`jouled tune --fixed-mode` as a user types it, its events read as they come."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu.place import Numbers, Place, StageError

PRECISIONS = ("fp32", "fp16")
BATCHES = (1, 4, 16)
INSTANCES = (1, 2)
PERCENTILE = 99
# A short job, as in docs/fixed-mode.md.
JOB: Mapping[str, float] = {
    "settle_min_s": 2,
    "settle_max_s": 2,
    "pilot_s": 2,
    "window_min_s": 5,
    "window_max_s": 5,
    "budget": 8,
    "finals_windows": 9,
    "watch_s": 5,
    "max_duration_s": 480,
}
_END_S = 30.0
_STANDIN = """\
import os, time
while True:
    time.sleep(0.004 * int(os.environ["JOULED_BATCH"]))
    print("product", flush=True)
"""

Hook = Callable[[Numbers, "subprocess.Popen[str]"], None]


@dataclass
class Job:
    """What one job said."""

    events: list[Numbers] = field(default_factory=list)
    pid: int = 0
    exit_code: int | None = None
    seconds: float = 0.0
    stderr: str = ""

    @property
    def result(self) -> Numbers:
        """The `finished` event's; {} where the job never came so far."""
        found = [event["result"] for event in self.events if event.get("event") == "finished"]
        return dict(found[-1]) if found else {}

    @property
    def trials(self) -> list[Numbers]:
        return [event["trial"] for event in self.events if event.get("event") == "trial"]

    def said(self) -> str:
        """All that a reader of its ending would look at."""
        warnings = [str(event.get("text")) for event in self.events if event.get("event") == "warning"]
        return " | ".join((json.dumps(self.result.get("reason")), *warnings, self.stderr[-1500:]))


def entry(place: Place, **changed: Any) -> Numbers:
    """The workload's table: ResNet-50 in two precisions, batches and instances; `changed` keys, None to leave out."""
    table: Numbers = {
        "kind": "tensorrt",
        "engine": [str(place.plan(precision)) for precision in PRECISIONS],
        "python": str(place.python),
        "batch": list(BATCHES),
        "instances": list(INSTANCES),
        "inputs": str(place.models / "resnet50_inputs.npz"),
        "outputs": str(place.models / "resnet50_outputs.npz"),
        "tolerance": 0.01,
        "arrival": "back_to_back",
        "inference_name": "image",
    }
    table.update(changed)
    return {key: value for key, value in table.items() if value is not None}


def config(place: Place, name: str, workload: Numbers, job: Mapping[str, float] = JOB) -> Path:
    """A config.toml of that workload."""
    lines = ["schema = 1", "[workload]", f'default = "{name}"', f"[workloads.{name}]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in workload.items()]
    lines += ["[board]", 'meter = "nvml"', "[job]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in job.items()]
    path = place.at / f"{name}.toml"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path


def tune(
    place: Place,
    name: str,
    workload: Numbers,
    options: Sequence[str],
    *,
    hook: Hook | None = None,
    job: Mapping[str, float] = JOB,
    most_s: float = 480.0,
) -> Job:
    """Run it to its end; `hook` sees each event. Past `most_s` it is asked to stop, then killed."""
    argv = [sys.executable, "-m", "jouled.cli", "-v", "tune", "--fixed-mode", "--json-lines"]
    argv += ["--config", str(config(place, name, workload, job)), "--state-dir", str(place.at / f"state-{name}")]
    done, began_s = Job(), time.monotonic()
    with (place.at / f"{name}.log").open("w+") as log:
        with subprocess.Popen(
            [*argv, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
        ) as child:
            done.pid = child.pid
            ends = _ending(child, max(1.0, min(most_s, place.left_s() - _END_S)))
            try:
                _read(child, done, hook)
            finally:
                for timer in ends:
                    timer.cancel()
                if child.poll() is None:
                    child.wait(_END_S)
        log.seek(0)
        done.stderr = log.read()
    done.exit_code, done.seconds = child.returncode, round(time.monotonic() - began_s, 1)
    return done


def _ending(child: subprocess.Popen[str], most_s: float) -> tuple[threading.Timer, ...]:
    """SIGINT, later SIGKILL, should it take too long."""
    ask = threading.Timer(most_s, child.send_signal, [signal.SIGINT])
    end = threading.Timer(most_s + 0.7 * _END_S, child.kill)
    for timer in (ask, end):
        timer.daemon = True
        timer.start()
    return ask, end


def _read(child: subprocess.Popen[str], done: Job, hook: Hook | None) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        try:
            event: Numbers = json.loads(line)
        except ValueError:
            event = {"event": "no_json", "text": line.strip()}
        done.events.append(event)
        if hook is not None:
            hook(event, child)


def digest(job: Job) -> Numbers:
    """What is worth keeping of a job."""
    return {
        "exit_code": job.exit_code,
        "seconds": job.seconds,
        "result": job.result,
        "trials": [
            {"trial": event["trial"], "counter_ratio": event.get("counter_ratio"), "t_s": event.get("t_s")}
            for event in job.events
            if event.get("event") == "trial"
        ],
        "phases_s": phases(job),
        "stderr": [] if job.exit_code == 0 else job.stderr.splitlines()[-15:],
    }


def phases(job: Job) -> dict[str, float]:
    """Where its time went: seconds from the first to the last word of each phase, summed."""
    spent: dict[str, float] = {}
    before: Numbers | None = None
    for event in job.events:
        if before is not None and "t_s" in event and "t_s" in before:
            name = str(event.get("phase", event["event"]))
            spent[name] = round(spent.get(name, 0.0) + event["t_s"] - before["t_s"], 1)
        before = event
    return spent


def whole_job(place: Place) -> Numbers:
    """A job over all 12 variants, under the bound that the sweep chose."""
    place.need(150.0, "tune")
    bound_s = float(place.kept("bound")["bound_s"])
    options = ["--latency-bound-s", f"{bound_s:.6f}", "--latency-percentile", str(PERCENTILE)]
    done = tune(place, "resnet50", entry(place), options, most_s=place.left_s() - _END_S)
    numbers = digest(done)
    place.keep_here("tune", numbers)
    if not done.result:
        raise StageError(f"the job said no end: exit {done.exit_code}: {done.stderr[-1500:]}")
    return numbers


def smoke_command(place: Place) -> Numbers:
    """The same chain with a program in place of TensorRT, stopped after two windows: meter, search, cancelling."""
    program = [sys.executable, str(Path(__file__).with_name("matmul.py"))]
    if place.standins:
        program[1] = str(place.at / "product.py")
        Path(program[1]).write_text(_STANDIN)
    table = {
        "kind": "command",
        "argv": program,
        "batch": [1, 2],
        "arrival": "back_to_back",
        "inference_name": "product",
    }
    seen = 0

    def stop(event: Numbers, child: subprocess.Popen[str]) -> None:
        nonlocal seen
        seen += event.get("event") == "trial"
        if seen == 2 and child.poll() is None:
            os.kill(child.pid, signal.SIGINT)

    options = ["--no-latency-bound", "--budget", "4"]
    done = tune(place, "products", table, options, hook=stop, most_s=90.0)
    if not done.result:
        raise StageError(f"the job said no end: exit {done.exit_code}: {done.stderr[-1500:]}")
    return {**digest(done), "wanted": {"outcome": "cancelled"}}
