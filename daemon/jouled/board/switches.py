"""The operator's own switches: while one is set, no knob is ever written."""

from __future__ import annotations

from jouled.board.sysfs import Sysfs
from jouled.errors import AbsentError, NotPermittedError

DISABLED_PATH = "/etc/jouled/disabled"
KERNEL_ARGUMENT = "jouled=off"


def check_switches(sysfs: Sysfs) -> None:
    """Raise NotPermittedError where the operator has switched every write of a knob off."""
    if sysfs.exists(DISABLED_PATH):
        raise NotPermittedError(f"{DISABLED_PATH} is there: no knob is written", hint="remove it first")
    try:
        words = sysfs.read("/proc/cmdline").split()
    except AbsentError:
        return
    if KERNEL_ARGUMENT in words:
        raise NotPermittedError(
            f"the kernel argument {KERNEL_ARGUMENT} is set: no knob is written",
            hint="take it off the kernel's command line",
        )
