"""Whether a variant fits into the memory, foreseen from what a runner reads of its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jouled.board.sysfs import Sysfs
from jouled.errors import OUT_OF_MEMORY, BrokenError, WorkloadTooLargeError
from jouled.workload.memory import CONTEXT_BYTES, PROCESS_BYTES, MemoryNeed, available_bytes, check_fits

MIB = 1 << 20
GIB = 1 << 30
TOLD: dict[str, Any] = {
    "plan_bytes": 100 * MIB,
    "device_memory_bytes": 50 * MIB,
    "io_bytes": 10 * MIB,
    "pinned_bytes": 12 * MIB,
    "free_bytes": 4 * GIB,
    "total_bytes": 8 * GIB,
    "integrated": False,
}
EACH = 160 * MIB


def told(**more: Any) -> dict[str, Any]:
    return {**TOLD, **more}


def fits(numbers: dict[str, Any], instances: int, *, host: int = 64 * GIB, reserve: int = 0) -> bool:
    try:
        check_fits(MemoryNeed.of(numbers, instances), host_bytes=host, reserve_bytes=reserve)
    except WorkloadTooLargeError:
        return False
    return True


@pytest.mark.parametrize("instances", [1, 2, 5])
def test_a_discrete_gpu_holds_each_instance_and_the_contexts_that_are_not_there_yet(instances: int) -> None:
    exactly = instances * EACH + (instances - 1) * CONTEXT_BYTES
    assert fits(told(free_bytes=exactly), instances)
    assert not fits(told(free_bytes=exactly - 1), instances)


@pytest.mark.parametrize("instances", [1, 3])
def test_the_host_of_a_discrete_gpu_needs_what_is_page_locked_and_the_processes(instances: int) -> None:
    exactly = instances * (12 * MIB + PROCESS_BYTES)
    assert fits(TOLD, instances, host=exactly + GIB, reserve=GIB)
    assert not fits(TOLD, instances, host=exactly + GIB - 1, reserve=GIB)


@pytest.mark.parametrize("instances", [1, 2])
def test_on_a_jetson_everything_comes_out_of_one_memory_less_the_reserve(instances: int) -> None:
    shared = told(integrated=True, free_bytes=1)
    exactly = instances * (EACH + 12 * MIB + PROCESS_BYTES + CONTEXT_BYTES)
    assert fits(shared, instances, host=exactly + 512 * MIB, reserve=512 * MIB)
    assert not fits(shared, instances, host=exactly + 512 * MIB - 1, reserve=512 * MIB)


def test_weights_are_what_loading_has_taken_where_that_is_more_than_the_plan() -> None:
    assert MemoryNeed.of(told(loaded_free_bytes=4 * GIB - 300 * MIB), 1).weights_bytes == 300 * MIB
    assert MemoryNeed.of(told(loaded_free_bytes=4 * GIB - 1 * MIB), 1).weights_bytes == 100 * MIB


def test_what_a_runner_does_not_tell_counts_as_nothing() -> None:
    need = MemoryNeed.of({"free_bytes": "much", "plan_bytes": None, "io_bytes": -5}, 2)
    assert (need.device_bytes, need.free_bytes, need.host_bytes) == (0, 0, 2 * PROCESS_BYTES)


def test_refusal_says_the_numbers_and_what_to_do() -> None:
    with pytest.raises(WorkloadTooLargeError) as caught:
        check_fits(MemoryNeed.of(told(free_bytes=200 * MIB), 2), host_bytes=64 * GIB, reserve_bytes=0)
    text = str(caught.value)
    for number in ("576 MiB of device memory needed", "200 MiB", "2 instances", "plan 100 MiB", "50 MiB", "10 MiB"):
        assert number in text
    assert "smaller batch" in caught.value.hint
    assert caught.value.code == OUT_OF_MEMORY


def test_available_memory_is_the_kernels_own_word(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    meminfo = tmp_path / "proc/meminfo"
    meminfo.write_text("MemTotal:       65000000 kB\nMemFree:          100000 kB\nMemAvailable:    2048000 kB\n")
    assert available_bytes(Sysfs(tmp_path)) == 2048000 * 1024
    meminfo.write_text("MemTotal:       65000000 kB\n")
    with pytest.raises(BrokenError, match="MemAvailable"):
        available_bytes(Sysfs(tmp_path))
