"""Where the bench works, how long it may, and what it writes down; stdlib only, for the host as it is found."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "daemon" / "jouled" / "workload" / "tensorrt_runner.py"
Numbers = dict[str, Any]


class StageError(Exception):
    """A stage cannot do its work; the next ones are tried all the same."""


@dataclass
class Place:
    """`at` keeps what stages hand to each other, `out` what comes back; `ends_s` is the command's end (monotonic).

    `standins`: a folder of modules in place of TensorRT, pycuda and pynvml; the figures then mean nothing.
    """

    at: Path
    out: Path
    ends_s: float
    standins: Path | None = None
    said: list[str] = field(default_factory=list)

    @property
    def python(self) -> Path:
        """The interpreter that has tensorrt and pycuda (a wrapper: it needs an environment of its own)."""
        return self.at / "trt-python"

    @property
    def pieces(self) -> Path:
        return self.at / "pieces"

    @property
    def models(self) -> Path:
        return self.at / "models"

    def plan(self, precision: str) -> Path:
        """ResNet-50's engine."""
        return self.models / f"resnet50_{precision}.plan"

    def left_s(self) -> float:
        return self.ends_s - time.monotonic()

    def need(self, seconds: float, what: str) -> None:
        """Raise StageError where the command would run past its end."""
        if self.left_s() < seconds:
            raise StageError(f"{what}: wanted {seconds:.0f} s, {self.left_s():.0f} s are left")

    def say(self, text: str) -> None:
        self.said.append(text)
        print(text, flush=True)

    def keep(self, name: str, numbers: Numbers) -> None:
        """Write a stage's numbers at once, whole or not at all."""
        self.out.mkdir(parents=True, exist_ok=True)
        fresh = self.out / f"{name}.new"
        fresh.write_text(json.dumps(numbers, indent=1, sort_keys=True, default=str) + "\n")
        fresh.rename(self.out / f"{name}.json")

    def keep_here(self, name: str, numbers: Numbers) -> None:
        """For a later stage."""
        self.at.mkdir(parents=True, exist_ok=True)
        (self.at / f"{name}.json").write_text(json.dumps(numbers, default=str))

    def kept(self, name: str) -> Numbers:
        """What an earlier stage has kept. Raises StageError."""
        try:
            numbers: Numbers = json.loads((self.at / f"{name}.json").read_text())
        except FileNotFoundError as error:
            raise StageError(f"the stage that makes {name} has not run") from error
        return numbers


def call(place: Place, argv: Sequence[str | Path], *, most_s: float = 600.0, what: str = "") -> str:
    """A child to its end, its output; nothing of it stays behind. Raises StageError."""
    text = [str(part) for part in argv]
    limit_s = max(1.0, min(most_s, place.left_s()))
    with subprocess.Popen(
        text, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as child:
        try:
            output, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(child.pid, signal.SIGKILL)
            raise StageError(f"{what or text[0]}: still running after {limit_s:.0f} s") from error
    said = output.decode(errors="replace")
    if child.returncode != 0:
        raise StageError(f"{what or text[0]}: exit {child.returncode}: {said[-1500:]}")
    return said


def wait_until(is_so: Callable[[], bool], most_s: float, what: str) -> float:
    """Seconds that it took. Raises StageError."""
    began_s = time.monotonic()
    while not is_so():
        if time.monotonic() - began_s > most_s:
            raise StageError(f"{what}: not within {most_s:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - began_s


def versions(*packages: str) -> dict[str, str]:
    """Of this interpreter and what it has."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def runners_of(pid: int) -> list[int]:
    """TensorRT runners that were started by process `pid`, alive or not; no one else's."""
    wanted = ["--parent", str(pid)]
    found = []
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_text(errors="replace").split("\0") if folder.name.isdigit() else []
        except OSError:
            continue
        if any(word.endswith(RUNNER.name) for word in words) and words[-3:-1] == wanted:
            found.append(int(folder.name))
    return sorted(found)


def import_path(place: Place) -> None:
    """Let this process and its children import the product, its wheels and the bench."""
    folders = [
        str(folder) for folder in (place.at / "site", place.standins, ROOT / "daemon", ROOT / "tuner", ROOT) if folder
    ]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)
