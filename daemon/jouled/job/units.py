"""The units that a job stops for its own time: usually the deployed application itself."""

from __future__ import annotations

from jouled.board.process import Processes
from jouled.errors import BusyError

_TIMEOUT_S = 60.0


class UnitBusyError(BusyError):
    """A unit of `job.stop_units` that goes on running, or that nobody knows of."""


def running_units(processes: Processes, units: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `units` that run now. Raises ToolAbsentError without systemctl, UnitBusyError."""
    return tuple(unit for unit in units if _is_running(processes, unit))


def _is_running(processes: Processes, unit: str) -> bool:
    argv = ["systemctl", "is-active", "--quiet", "--", unit]
    done = processes.run(argv, timeout_s=_TIMEOUT_S)
    if done.timed_out:
        raise UnitBusyError(f"systemctl does not say whether {unit} runs", hint="systemctl status")
    return done.returncode == 0


def stop_units(processes: Processes, units: tuple[str, ...]) -> None:
    """Stop them. Raises UnitBusyError for one that goes on running."""
    for unit in units:
        done = processes.run(["systemctl", "stop", "--", unit], timeout_s=_TIMEOUT_S)
        if done.returncode != 0 or done.timed_out:
            raise UnitBusyError(f"{unit} does not stop: {done.tail()}", hint=f"see: systemctl status {unit}")
