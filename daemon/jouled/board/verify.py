"""Compare the board with what should be in force, knob by knob.

A knob that this user may not read is *unknown*; it is no mismatch. A cap, minimum or core that is gone is one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jouled.board.board import Board
from jouled.board.sysfs import Sysfs
from jouled.board.target import ClocksPolicy, Limits, Target, idle_paths, online_path
from jouled.errors import AbsentError, ForbiddenError, SysfsError


@dataclass(frozen=True, slots=True)
class Comparison:
    """One sentence for each knob that is wrong, the paths of those that could not be read, and whether the TPC mask
    is among the wrong ones (nothing that jouled may write puts that right)."""

    mismatches: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    is_mask_wrong: bool = False


@dataclass
class _Check:
    sysfs: Sysfs
    mismatches: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def read(self, path: str, wanted: str, *, optional: bool = False) -> str | None:
        """The text; None where there is none, which is noted. `optional`: a release may not have this knob."""
        try:
            return self.sysfs.read(path)
        except SysfsError as error:
            if isinstance(error, ForbiddenError) or (optional and isinstance(error, AbsentError)):
                self.unknown.append(path)
            else:
                self.mismatches.append(f"{path}: wanted {wanted}, got no value: {error}")
            return None

    def differs(self, path: str, wanted: str, got: str) -> None:
        self.mismatches.append(f"{path}: wanted {wanted}, got {got[:60]}")

    def knob(self, path: str, wanted: str, unit: str = "", *, optional: bool = False) -> None:
        got = self.read(path, wanted + unit, optional=optional)
        if got is not None and got != wanted:
            self.differs(path, wanted + unit, got + unit)


def _check_online(check: _Check, board: Board, target: Target) -> None:
    for cpu in board.domains.cpu.cpus:
        path = online_path(cpu)
        if cpu == 0 and not check.sysfs.exists(path):  # the boot core cannot be switched on most kernels
            continue
        check.knob(path, "1" if cpu in target.online else "0")


def _check_limits(check: _Check, limits: Limits, unit: str, table: Sequence[int]) -> None:
    """`table` in the kernel's unit. A cap between two of its points is the lower one: no clock lies between them."""
    wanted = str(limits.maximum)
    got = check.read(limits.path_max, wanted + unit)
    if got is not None and got != wanted and _point_below(got, table) != limits.maximum:
        check.differs(limits.path_max, wanted + unit, got + unit)
    check.knob(limits.path_min, str(limits.minimum), unit)


def _point_below(text: str, table: Sequence[int]) -> int | None:
    index = bisect_right(table, int(text)) if text.isascii() and text.isdigit() else 0
    return table[index - 1] if index > 0 else None


def effective_emc_hz(text: str, table_hz: tuple[int, ...]) -> int | None:
    """The cap that `text` of the cap file means: 0, negative and above the table are none. None: no number.

    The table was read in kHz: what differs from a point by less is that point.
    """
    try:
        cap_hz = int(text)
    except ValueError:
        return None
    if cap_hz <= 0 or cap_hz > table_hz[-1]:
        return table_hz[-1]
    return next((point_hz for point_hz in table_hz if abs(point_hz - cap_hz) < 1000), cap_hz)


def _check_emc(check: _Check, board: Board, target: Target) -> None:
    emc = board.domains.emc
    if emc is None or target.mode.emc_hz is None:
        return
    paths = [emc.cap_path]
    if target.policy is ClocksPolicy.LOCKED and emc.bpmp_path is not None:
        paths.append(f"{emc.bpmp_path}/rate")
    wanted = f"{target.mode.emc_hz} Hz"
    for path in paths:
        text = check.read(path, wanted)
        if text is not None and effective_emc_hz(text, emc.table_hz) != target.mode.emc_hz:
            check.differs(path, wanted, f"{text} Hz")


def _check_mask(check: _Check, board: Board) -> bool:
    gpu, mask = board.domains.gpu, board.base_mode.mask
    if gpu is None or gpu.mask_path is None or mask is None:
        return True
    got = check.read(gpu.mask_path, f"mask {mask}", optional=True)
    if got is None or got == str(mask):
        return True
    check.differs(gpu.mask_path, f"mask {mask}", got)
    return False


def _wanted_idle(sysfs: Sysfs, target: Target) -> Iterator[tuple[str, str]]:
    for path in idle_paths(sysfs, target.online):
        yield path, target.idle.get(path, target.idle_other)


def is_mask_unchanged(sysfs: Sysfs, board: Board) -> bool:
    """Is the TPC mask the one that the board was discovered with (or not to be seen)?"""
    return _check_mask(_Check(sysfs), board)


def compare(sysfs: Sysfs, board: Board, target: Target) -> Comparison:
    """Read every knob and say which are not as in `target`. Raises nothing for a knob that gives no value."""
    check = _Check(sysfs)
    is_mask_wrong = not _check_mask(check, board)
    _check_online(check, board, target)
    table_khz = [point_hz // 1000 for point_hz in board.domains.cpu.table_hz]
    for limits in target.cpu:
        _check_limits(check, limits, " kHz", table_khz)
    for path, wanted in _wanted_idle(sysfs, target):
        check.knob(path, wanted)
    if target.gpu is not None and board.domains.gpu is not None:
        _check_limits(check, target.gpu, " Hz", board.domains.gpu.table_hz)
    _check_emc(check, board, target)
    for path, wanted in target.flags.items():
        check.knob(path, wanted, optional=True)
    return Comparison(tuple(check.mismatches), tuple(check.unknown), is_mask_wrong)
