"""The units that a job stops for its own time: usually the deployed application itself."""

from __future__ import annotations

from jouled.board.process import Processes
from jouled.errors import BusyError

_TIMEOUT_S = 60.0


def running_units(processes: Processes, units: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `units` that run now. Raises ToolAbsentError without systemctl."""
    argv = ["systemctl", "is-active", "--quiet", "--"]
    return tuple(unit for unit in units if processes.run([*argv, unit], timeout_s=_TIMEOUT_S).returncode == 0)


def stop_units(processes: Processes, units: tuple[str, ...]) -> None:
    """Stop them. Raises BusyError for one that goes on running."""
    for unit in units:
        done = processes.run(["systemctl", "stop", "--", unit], timeout_s=_TIMEOUT_S)
        if done.returncode != 0 or done.timed_out:
            raise BusyError(f"{unit} does not stop: {done.tail()}", hint=f"see: systemctl status {unit}")
