"""jetson_clocks, which pins the clocks at the caps in force.

Only its action without arguments is used: its store and restore prompt, exit 0 on failure, and keep half of what
changes (JETSON 2.2); jouled keeps its own snapshot. What it printed is not parsed: the format drifts with every
release, the knobs do not.
"""

from __future__ import annotations

from jouled.board.process import Processes
from jouled.errors import ApplyError

TOOL = "jetson_clocks"
TIMEOUT_S = 20.0


def lock_clocks(processes: Processes) -> None:
    """Pin CPU, GPU and memory at their caps. The caller verifies: a GPU error stops the tool before the memory.

    Raises ApplyError when it fails or hangs, ToolAbsentError, StuckError.
    """
    done = processes.run([TOOL], timeout_s=TIMEOUT_S)
    if done.timed_out:
        raise ApplyError(
            f"{TOOL} did not end within {TIMEOUT_S:g} s and was killed: {done.tail() or 'it said nothing'}"
        )
    if done.returncode != 0:
        raise ApplyError(
            f"{TOOL} failed with exit code {done.returncode}: {done.tail() or 'it said nothing'}",
            hint='run `sudo jetson_clocks` by hand, or use clocks = "capped"',
        )
