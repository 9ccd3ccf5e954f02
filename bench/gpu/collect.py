"""One file of results out of what the stages have written: bench/results/DATE-GPU.json.

    python3 bench/gpu/collect.py FOLDER > bench/results/DATE-GPU.json

FOLDER holds the stages' files, in folders of their own if need be; of a stage that ran twice the later one counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LEFT_OUT = ("trace", "stderr", "log", "pid", "uuid", "driver_folder", "programs", "site_packages", "job")
SKIPPED = ("look", "begin-models")


def without(value: Any) -> Any:
    """`value` without what says nothing of the GPU."""
    if isinstance(value, dict):
        return {key: without(each) for key, each in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [without(each) for each in value]
    return round(value, 9) if isinstance(value, float) else value


def collected(folder: Path) -> dict[str, Any]:
    """Stage → its numbers."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*.json")):
        numbers = json.loads(path.read_text())
        stage = numbers.get("stage") if isinstance(numbers, dict) else None
        if stage is None or stage in SKIPPED or found.get(stage, {}).get("date", "") > numbers["date"]:
            continue
        found[stage] = without(numbers)
    return found


def main() -> int:
    stages = collected(Path(sys.argv[1]))
    print(json.dumps({"schema": "jouled.gpu_host/1", "stages": stages}, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
