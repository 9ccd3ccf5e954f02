"""What every test gets: a fast place for files, and a failure when it leaves a thread or a child process behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

# As the programs do before numpy is loaded: on matrices this small, threads of its BLAS wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_MEMORY = "/dev/shm"
_ENOUGH_BYTES = 1 << 30


def pytest_configure() -> None:
    """Trees of small files are 12 times faster in memory; programs in them must be allowed to run there."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    found = os.statvfs(_MEMORY)
    if found.f_bavail * found.f_frsize >= _ENOUGH_BYTES and not found.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)


def _children() -> set[str]:
    """The pids of this process's children, dead but unreaped ones too."""
    found: set[str] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a joined thread is in /proc for a moment longer
            found.update(task.read_text().split())
    return found


@pytest.fixture(autouse=True)
def _leaves_nothing_running() -> Iterator[None]:
    threads, children = set(threading.enumerate()), _children()
    yield
    left = [thread for thread in threading.enumerate() if thread not in threads]
    for thread in left:
        thread.join(timeout=5)
    alive = [thread.name for thread in left if thread.is_alive()]
    assert not alive, f"threads left running: {alive}"
    assert not _children() - children, f"child processes left: {_children() - children}"
