"""A program that behaves as NVIDIA's trtexec is documented to: its options, its log, its export, its failures.

Written to samples/trtexec and samples/common of TensorRT's public sources (8.5 to 10.x): a log on standard output that
is not flushed line by line, times as floats of six digits, the export at the end of a run and never before.
The plan is JSON: {"latency_ms": …, "fails": TEXT}. This file is a program; nothing imports it but its path.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

PROGRAM = Path(__file__).resolve()
KNOWN = {
    "loadEngine",
    "duration",
    "warmUp",
    "avgRuns",
    "exportTimes",
    "shapes",
    "useSpinWait",
    "useCudaGraph",
    "exposeDMA",
}


# What stdbuf -oL does to a program of C: it sets this, and a library of its own reads it there.
IS_BY_LINE = os.environ.get("_STDBUF_O") == "L"


def say(text: str, severity: str = "I") -> None:
    print(f"[11/30/2026-12:00:00] [{severity}] {text}", flush=IS_BY_LINE)


def fail(text: str) -> int:
    say(text, "E")
    print("&&&& FAILED TensorRT.trtexec [TensorRT v100300] # trtexec")
    return 1


def main() -> int:
    print(f"&&&& RUNNING TensorRT.trtexec [TensorRT v100300] # {' '.join(sys.argv)}")
    options = dict(argument.removeprefix("--").partition("=")[::2] for argument in sys.argv[1:])
    if unknown := options.keys() - KNOWN:
        return fail(f"Unknown option: --{min(unknown)}")
    try:
        plan = json.loads(Path(options["loadEngine"]).read_text("utf-8"))
    except (OSError, ValueError):
        say("Error opening engine file: " + options["loadEngine"], "E")
        return fail("Engine set up failed")
    if plan.get("fails"):
        return fail(plan["fails"])
    if plan.get("options"):
        Path(plan["options"]).write_text(json.dumps(options), "utf-8")
    say("Starting inference")
    rows = run(plan, float(options["duration"]))
    if plan.get("dies"):
        os.kill(os.getpid(), 9)
    say(f"Warmup completed 3 queries over {options['warmUp']} ms")
    say(f"Timing trace has {len(rows)} queries over {options['duration']} s")
    say("=== Trace details ===")
    with open(options["exportTimes"], "w", encoding="utf-8") as file:
        file.write("[\n  " + ", ".join(rows) + "]\n")
    print(f"&&&& PASSED TensorRT.trtexec [TensorRT v100300] # {' '.join(sys.argv)}")
    return 0


def run(plan: dict[str, float], duration_s: float) -> list[str]:
    rows: list[str] = []
    began_s = time.monotonic()
    latency_ms = float(plan["latency_ms"])
    while time.monotonic() < began_s + float(plan.get("lasts_s", duration_s)):
        start_ms = 1000.0 * (time.monotonic() - began_s)
        time.sleep(latency_ms / 1000.0)
        end_ms = 1000.0 * (time.monotonic() - began_s)
        row = {"startH2dMs": start_ms, "endH2dMs": start_ms, "startD2hMs": end_ms, "endD2hMs": end_ms}
        row["latencyMs"] = end_ms - start_ms
        rows.append("{ " + ", ".join(f'"{name}" : {value:.6g}' for name, value in row.items()) + " }\n")
    return rows


if __name__ == "__main__":
    sys.exit(main())
