"""One file of results out of what the stages have written: bench/results/DATE-GPU.json.

    python3 bench/gpu/collect.py FOLDER > bench/results/DATE-GPU.json

FOLDER holds the stages' files, in folders of their own if need be; of a stage that ran twice the later one counts, but
all the rounds of the bare loop do.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.engines import compared  # the line above makes it importable

LEFT_OUT = ("trace", "stderr", "log", "pid", "uuid", "driver_folder", "programs", "site_packages", "job")
Rounds = dict[str, dict[str, list[float]]]
SKIPPED = ("look", "begin-models")


def without(value: Any) -> Any:
    """`value` without what says nothing of the GPU."""
    if isinstance(value, dict):
        return {key: without(each) for key, each in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [without(each) for each in value]
    if isinstance(value, str):
        return re.sub(r"/tmp/\w+/", "", value)  # where the bench worked there
    return round(value, 9) if isinstance(value, float) else value


def pool(rounds: Rounds, numbers: dict[str, Any]) -> None:
    """The p50 of each round of one run of the stage, to those of the others."""
    for sync in ("blocking", "spin"):
        for who, values in numbers.get(sync, {"p50_s": {}})["p50_s"].items():
            rounds.setdefault(sync, {}).setdefault(who, []).extend(values)


def collected(folder: Path) -> dict[str, Any]:
    """Stage → its numbers."""
    found: dict[str, Any] = {}
    rounds: Rounds = {}
    for path in sorted(folder.rglob("*.json")):
        numbers = json.loads(path.read_text())
        stage = numbers.get("stage") if isinstance(numbers, dict) else None
        if stage == "bare":
            pool(rounds, numbers)
        if stage is None or stage in SKIPPED or found.get(stage, {}).get("date", "") > numbers["date"]:
            continue
        found[stage] = without(numbers)
    if rounds:
        found["bare"] |= without({sync: compared(each) for sync, each in rounds.items()})
    return found


def main() -> int:
    stages = collected(Path(sys.argv[1]))
    print(json.dumps({"schema": "jouled.gpu_host/1", "stages": stages}, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
