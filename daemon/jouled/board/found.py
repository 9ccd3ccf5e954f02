"""What can be seen of a board that jouled does not know, in lines for its refusal and for a report."""

from __future__ import annotations

from collections.abc import Iterator

from jouled.board.identity import Identity, board_files
from jouled.board.sysfs import Sysfs
from jouled.errors import NotSupportedError, SysfsError

_LABELS = ("/sys/class/hwmon/hwmon*/in[1-3]_label", "/sys/bus/i2c/drivers/ina3221x/*/iio:device*/rail_name_*")
_CAPS = ("/sys/kernel/nvpmodel_clk_cap/emc", "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap")

_TABLE = "recorded"  # the file of boards that `tune --table` makes: no module answers to it


def _text(sysfs: Sysfs, path: str) -> str:
    try:
        return sysfs.read(path).strip("\0\n ")
    except SysfsError:
        return ""


def _span(sysfs: Sysfs, path: str, per_mhz: float) -> str:
    values = [int(word) / per_mhz for word in _text(sysfs, path).split() if word.isdigit()]
    return f"{min(values):g} to {max(values):g} MHz in {len(values)} steps" if values else "no table"


def describe(sysfs: Sysfs) -> Iterator[str]:
    """One line each on cores, devfreq devices, the memory's cap and measured rails; nothing where there is none."""
    present = _text(sysfs, "/sys/devices/system/cpu/present")
    for path in sysfs.glob("/sys/devices/system/cpu/cpufreq/policy[0-9]*")[:1]:
        table = _span(sysfs, f"{path}/scaling_available_frequencies", 1e3)
        yield f"CPUs {present or 'not told'}, {table}"
    for path in sysfs.glob("/sys/class/devfreq/*"):
        yield f"devfreq {path.rpartition('/')[2]}, {_span(sysfs, f'{path}/available_frequencies', 1e6)}"
    for path in _CAPS:
        if sysfs.exists(path):
            yield f"memory cap {path}"
    rails = sorted({_text(sysfs, path) for pattern in _LABELS for path in sysfs.glob(pattern)} - {"", "NC"})
    if rails:
        yield f"rails {', '.join(rails)}"


def unknown_board(sysfs: Sysfs, identity: Identity) -> NotSupportedError:
    """The refusal of a board that no board file knows."""
    known = ", ".join(
        f"{board.name} ({', '.join(board.compatible)})" for board in board_files() if board.name != _TABLE
    )
    found = "; ".join(describe(sysfs)) or "no clocks and no rails"
    return NotSupportedError(
        f"board {identity.model!r} (module {identity.module}, carrier {identity.carrier}, {identity.soc}, "
        f"L4T {identity.l4t or 'not told'}) is not known to jouled; found: {found}; known: {known}",
        hint="please open an issue with the file that `sudo jouled doctor --report FILE` writes",
    )
