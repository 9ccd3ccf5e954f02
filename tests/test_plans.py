"""The kept plans under adversity: builders that leave something else, models that change, disks that are full."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from jouled.errors import StateError, WorkloadError
from jouled.workload.plans import KEPT, PlanCache, weight_files

Build = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@pytest.fixture
def cache(tmp_path: Path) -> PlanCache:
    (tmp_path / "model.onnx").write_bytes(b"a model")
    return PlanCache(tmp_path / "state")


def spec_of(cache: PlanCache, batch: int = 1) -> dict[str, Any]:
    return {"onnx": str(cache.state_dir.parent / "model.onnx"), "batch": batch}


def built(spec: Mapping[str, Any]) -> dict[str, Any]:
    Path(spec["plan_out"]).write_bytes(b"plan")
    return {}


def test_a_job_of_many_plans_keeps_all_of_its_own(cache: PlanCache) -> None:
    plans = [cache.plan(spec_of(cache, batch), {}, built) for batch in range(1, KEPT + 5)]
    assert all(plan.is_file() for plan in plans)


def test_what_a_killed_build_has_left_goes_with_the_next(cache: PlanCache) -> None:
    left = cache.folder / ".build-left"
    left.mkdir(parents=True)
    (left / "made.plan.123").write_bytes(b"half")
    (cache.folder / ".model-1.plan.new").write_bytes(b"half")
    plan = cache.plan(spec_of(cache), {}, built)
    assert list(cache.folder.iterdir()) == [plan]


def test_a_model_that_is_exchanged_during_its_build_leaves_no_plan(cache: PlanCache) -> None:
    def exchanged(spec: Mapping[str, Any]) -> dict[str, Any]:
        Path(spec["onnx"]).write_bytes(b"another model")
        return built(spec)

    with pytest.raises(WorkloadError, match="another file than it was"):
        cache.plan(spec_of(cache), {}, exchanged)
    assert list(cache.folder.iterdir()) == []


def named(name: bytes) -> bytes:
    """An entry of onnx.proto's TensorProto.external_data, amid other bytes."""
    value = b"\x0a\x08location\x12" + bytes([len(name)]) + name
    return b"\x6a" + bytes([len(value)]) + value + b"\x70\x01"


def test_other_weights_beside_the_same_model_are_another_plan(cache: PlanCache) -> None:
    model = cache.state_dir.parent / "model.onnx"
    model.write_bytes(b"graph" + named(b"model.onnx.data") + b"more" + named(b"model.onnx.data"))
    weights = cache.state_dir.parent / "model.onnx.data"
    paths = [cache.path_of(spec_of(cache), {})]
    for content in (b"weights", b"other weights"):
        weights.write_bytes(content)
        paths.append(cache.path_of(spec_of(cache), {}))
    assert len(set(paths)) == 3
    assert cache.path_of(spec_of(cache), {}) == paths[-1]


@pytest.mark.parametrize("before", [0, (1 << 20) - 150, (1 << 20) - 60, (1 << 20) - 30, (1 << 20) - 11, 1 << 20])
def test_weight_files_are_found_wherever_they_are_named(tmp_path: Path, before: int) -> None:
    model, name = tmp_path / "model.onnx", b"weights/" + b"w" * 110
    model.write_bytes(b"\0" * before + named(name) + b"\0" * 500)
    assert weight_files(str(model)) == (name.decode(),)


def test_a_full_disk_is_said_and_not_kept_full(cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Any, target: Any, length: int) -> None:
        target.write(b"part of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(StateError, match="No space left"):
        cache.plan(spec_of(cache), {}, built)
    assert list(cache.folder.iterdir()) == []


def _pipe(made: Path) -> None:
    os.mkfifo(made)


def _folder(made: Path) -> None:
    made.mkdir()


def _second_name(made: Path) -> None:
    secret = made.parents[2] / "secret"
    secret.write_bytes(b"for nobody else")
    os.link(secret, made)


def _empty(made: Path) -> None:
    made.touch()


@pytest.mark.parametrize("leave", [_pipe, _folder, _second_name, _empty])
def test_nothing_but_a_file_of_the_builders_own_becomes_a_plan(cache: PlanCache, leave: Callable[[Path], None]) -> None:
    def build(spec: Mapping[str, Any]) -> dict[str, Any]:
        leave(Path(spec["plan_out"]))
        return {}

    problems: list[BaseException] = []

    def make() -> None:
        try:
            cache.plan(spec_of(cache), {}, build)
        except (StateError, WorkloadError) as error:
            problems.append(error)

    maker = threading.Thread(target=make, daemon=True)
    maker.start()
    maker.join(10.0)
    assert not maker.is_alive(), "it waits for a pipe"
    assert len(problems) == 1
    assert list(cache.folder.iterdir()) == []
