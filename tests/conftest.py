"""What every test gets: it fails when it leaves a thread or a child process behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


def _children() -> set[str]:
    """The pids of this process's children, dead but unreaped ones too."""
    return {pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()}


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
