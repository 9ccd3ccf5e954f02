"""Plans built from ONNX, once: two builds of one model may differ by a third, so what was measured is what is kept.

A plan is found again by the content of the ONNX file, the versions that built it, the GPU and the flags.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jouled.board.statefile import write_hint
from jouled.errors import StateError, WorkloadError
from jouled.workload.marks import content_mark

log = logging.getLogger(__name__)

FOLDER = "plans"
KEPT = 16

Build = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Has a runner build what a spec says, into its `plan_out`; the runner's answer."""


def profile_of(shapes: Mapping[str, Sequence[int]], batches: Sequence[int]) -> dict[str, dict[str, list[int]]]:
    """For each input the least, the usual and the largest shape over all batch sizes: a first dimension of 1 is it."""
    sizes = sorted(batches)
    wanted = {"min": sizes[0], "opt": sizes[len(sizes) // 2], "max": sizes[-1]}
    return {
        name: {which: [size, *shape[1:]] if shape[0] == 1 else list(shape) for which, size in wanted.items()}
        for name, shape in shapes.items()
    }


@dataclass(frozen=True)
class PlanCache:
    """The plans below a state folder. `user` is whom the builder runs as; None: as this process does."""

    state_dir: Path
    user: str | None = None

    @property
    def folder(self) -> Path:
        """Where they lie."""
        return self.state_dir / FOLDER

    def path_of(self, spec: Mapping[str, Any], about: Mapping[str, Any]) -> Path:
        """Where the plan of this `spec` lies, or will. Raises WorkloadError where its ONNX cannot be read."""
        onnx = str(spec["onnx"])
        mark = content_mark(onnx)
        if len(mark) != 64:
            raise WorkloadError(f"{onnx}: {mark}", code="plan_unreadable", hint="is the path right?")
        flags = {name: value for name, value in spec.items() if name not in ("onnx", "plan_out", "engine")}
        versions = about.get("versions") or {}
        ground = {
            "onnx": mark,
            "flags": flags,
            "tensorrt": versions.get("tensorrt"),
            "gpu": about.get("gpu_name"),
            "compute_capability": about.get("compute_capability"),
        }
        digest = hashlib.sha256(json.dumps(ground, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{Path(onnx).stem[:40]}-{digest[:24]}.plan"

    def plan(self, spec: Mapping[str, Any], about: Mapping[str, Any], build: Build) -> Path:
        """The plan, built now if it is not there. Raises StateError, WorkloadError and what `build` raises."""
        path = self.path_of(spec, about)
        try:
            if path.is_file():
                os.utime(path)  # used last now
                return path
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
                os.chmod(self.folder, 0o755)  # whatever the umask: another user reads there
            self._build(path, spec, build)
            self._forget_oldest()
        except OSError as error:
            hint = write_hint(error, self.folder)
            raise StateError(f"{self.folder}: a plan cannot be kept: {error.strerror}", hint=hint) from error
        return path

    def _build(self, path: Path, spec: Mapping[str, Any], build: Build) -> None:
        """In a folder of the builder's own; what it has left there is copied, so that nobody writes to it later."""
        place = Path(tempfile.mkdtemp(prefix=".build-", dir=self.folder))
        try:
            if self.user is not None:
                found = pwd.getpwnam(self.user)
                os.chown(place, found.pw_uid, found.pw_gid)
            log.info("building a plan of %s", spec["onnx"])
            made = place / "made.plan"
            build({**spec, "plan_out": str(made)})
            _copy(made, path)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _forget_oldest(self) -> None:
        plans = sorted(self.folder.glob("*.plan"), key=lambda plan: plan.stat().st_mtime, reverse=True)
        for plan in plans[KEPT:]:
            plan.unlink(missing_ok=True)


def _copy(made: Path, path: Path) -> None:
    """Raises OSError, also where a link lies in the place of the plan."""
    beside = path.with_name(f".{path.name}.new")
    with open(os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as source, open(beside, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
        target.flush()
        os.fsync(target.fileno())
    os.chmod(beside, 0o644)  # the runner, another user, reads it
    os.replace(beside, path)
