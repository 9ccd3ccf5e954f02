"""Plans built from ONNX, once: two builds of one model may differ by a third, so what was measured is what is kept.

A plan is found again by the content of the ONNX file, the versions that built it, the GPU and the flags.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pwd
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jouled.board.statefile import write_hint
from jouled.errors import StateError, WorkloadError
from jouled.workload.marks import content_mark

log = logging.getLogger(__name__)

FOLDER = "plans"
KEPT = 16
# A tensor whose values lie in another file says so by an entry {key: "location", value: NAME} (onnx.proto,
# StringStringEntryProto); the name's length is one byte below 128.
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f])", re.DOTALL)
_PIECE_BYTES = 1 << 20
_ENTRY_BYTES = 12 + 127

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


def weight_files(onnx: str) -> tuple[str, ...]:
    """The files beside a model that hold its weights, as it names them: a new one of them is a new model."""
    found: set[str] = set()
    left = b""
    with open(onnx, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            data = left + piece
            for entry in _LOCATION.finditer(data):
                name = data[entry.end() : entry.end() + entry[1][0]]
                if len(name) == entry[1][0]:  # else the next piece has all of it
                    found.add(name.decode("utf-8", "replace"))
            left = data[-_ENTRY_BYTES:]
    return tuple(sorted(name for name in found if "\0" not in name))


@dataclass(frozen=True)
class PlanCache:
    """The plans below a state folder. `user` is whom the builder runs as; None: as this process does."""

    state_dir: Path
    user: str | None = None
    _given: set[Path] = field(default_factory=set)

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
        weights = {name: content_mark(str(Path(onnx).parent / name)) for name in weight_files(onnx)}
        ground = {
            **({"weights": weights} if weights else {}),
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
        self._given.add(path)
        try:
            if path.is_file():
                os.utime(path)  # used last now
                return path
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
                os.chmod(self.folder, 0o755)  # whatever the umask: another user reads there
            self._forget_unfinished()
            self._build(path, spec, about, build)
            self._forget_oldest()
        except OSError as error:
            hint = write_hint(error, self.folder)
            raise StateError(f"{self.folder}: a plan cannot be kept: {error.strerror}", hint=hint) from error
        return path

    def _build(self, path: Path, spec: Mapping[str, Any], about: Mapping[str, Any], build: Build) -> None:
        """In a folder of the builder's own; what it has left there is copied, so that nobody writes to it later."""
        place = Path(tempfile.mkdtemp(prefix=".build-", dir=self.folder))
        uid = os.geteuid()
        try:
            if self.user is not None:
                found = pwd.getpwnam(self.user)
                uid = found.pw_uid
                os.chown(place, uid, found.pw_gid)
            log.info("building a plan of %s", spec["onnx"])
            made = place / "made.plan"
            build({**spec, "plan_out": str(made)})
            if self.path_of(spec, about) != path:
                text = f"{spec['onnx']}: another file than it was when its plan was begun"
                raise WorkloadError(text, code="build_failed", hint="try again, with a file that stays as it is")
            _copy(made, path, uid)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _forget_oldest(self) -> None:
        """Never one that this job has been given, however many it has."""
        plans = sorted(self.folder.glob("*.plan"), key=lambda plan: plan.stat().st_mtime, reverse=True)
        for plan in plans[KEPT:]:
            if plan not in self._given:
                plan.unlink(missing_ok=True)

    def _forget_unfinished(self) -> None:
        """What a kill -9 or a power cut has left of a build: one job at a time holds the board and this folder."""
        for left in (*self.folder.glob(".build-*"), *self.folder.glob(".*.plan.new")):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _copy(made: Path, path: Path, uid: int) -> None:
    """What user `uid` has made. Raises OSError; WorkloadError where something else lies in the place of the plan."""
    beside = path.with_name(f".{path.name}.new")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not hold us up
    try:
        with open(os.open(made, flags), "rb") as source, open(beside, "wb") as target:
            found = os.fstat(source.fileno())
            is_own = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid in (uid, os.geteuid())
            if not is_own or not found.st_size:
                raise WorkloadError(f"{made}: what the builder has left is no plan of its own", code="build_failed")
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        os.chmod(beside, 0o644)  # the runner, another user, reads it
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)  # on a full disk it would keep it full
