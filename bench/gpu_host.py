"""The whole chain on a real NVIDIA GPU (by hand): real engines, the real runner, the real meter, jobs, and faults.

    python3 bench/gpu_host.py --at DIR --out DIR [--deadline-s 510] STAGE [STAGE …]

Stages, in order: look setup smoke-meter smoke-command begin-models unpack models smoke-runner build bare sweep tune
compare faults. Each writes OUT/STAGE.json at once; one that fails does not stop the next. The folder of --at keeps what
stages hand to each other. With --standins DIR modules there stand in for TensorRT, pycuda and pynvml, and the figures
mean nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.gpu.place import Numbers, Place, import_path  # the line above makes it importable

# Each stage is imported when its turn comes: before `setup` hardly anything can be.
STAGES: Mapping[str, str] = {
    "look": "setup:look",
    "setup": "setup:setup",
    "begin-models": "setup:begin_models",
    "smoke-meter": "meters:smoke_meter",
    "smoke-command": "tuning:smoke_command",
    "unpack": "setup:unpack",
    "models": "setup:models",
    "smoke-runner": "engines:smoke_runner",
    "build": "engines:build_all",
    "bare": "engines:bare_loop",
    "sweep": "sweep:sweep",
    "tune": "tuning:whole_job",
    "compare": "sweep:compare",
    "faults": "faults:faults",
}


def stage_of(name: str) -> Callable[[Place], Numbers]:
    """The function behind a stage's name."""
    module, _, function = STAGES[name].partition(":")
    found: Callable[[Place], Numbers] = getattr(import_module(f"bench.gpu.{module}"), function)
    return found


def run(place: Place, name: str) -> bool:
    """One stage, its numbers kept whether it ends well or not."""
    began_s = time.monotonic()
    numbers: Numbers = {"stage": name, "date": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    try:
        numbers.update(stage_of(name)(place))
        numbers["done"] = True
    except Exception as error:  # noqa: BLE001  # device time is dear: the next stage is tried all the same
        numbers |= {"done": False, "error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-3000:]}
    numbers["took_s"] = round(time.monotonic() - began_s, 1)
    place.keep(name, numbers)
    place.say(f"{name}: {'done' if numbers['done'] else numbers['error']} ({numbers['took_s']} s)")
    return bool(numbers["done"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", type=Path, required=True, help="work folder, kept between commands")
    parser.add_argument("--out", type=Path, required=True, help="where the results go")
    parser.add_argument("--deadline-s", type=float, default=510.0, help="for all stages together (default 510)")
    parser.add_argument("--standins", type=Path, help="folder of modules in place of the real ones")
    parser.add_argument("stages", nargs="+", choices=tuple(STAGES), metavar="STAGE", help=", ".join(STAGES))
    given = parser.parse_args()
    ends_s = time.monotonic() + given.deadline_s
    place = Place(given.at.resolve(), given.out.resolve(), ends_s, given.standins and given.standins.resolve())
    place.at.mkdir(parents=True, exist_ok=True)
    import_path(place)
    return 0 if all([run(place, name) for name in given.stages]) else 1


if __name__ == "__main__":
    sys.exit(main())
