"""Compare the board with what should be in force, knob by knob.

A knob that this user may not read is *unknown*; it is no mismatch. A knob that is gone is one.
"""

from __future__ import annotations

from collections.abc import Iterator
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

    def knob(self, path: str, wanted: str, unit: str = "") -> bool:
        """Is it as wanted, or not to be known?"""
        try:
            got = self.sysfs.read(path)
        except ForbiddenError:
            self.unknown.append(path)
            return True
        except SysfsError as error:
            self.mismatches.append(f"{path}: wanted {wanted}{unit}, got no value: {error}")
            return False
        if got != wanted:
            self.mismatches.append(f"{path}: wanted {wanted}{unit}, got {got[:60]}{unit}")
        return got == wanted


def _check_online(check: _Check, board: Board, target: Target) -> None:
    for cpu in board.domains.cpu.cpus:
        path = online_path(cpu)
        if cpu == 0 and not check.sysfs.exists(path):  # the boot core cannot be switched on most kernels
            continue
        check.knob(path, "1" if cpu in target.online else "0")


def _check_limits(check: _Check, limits: Limits, unit: str) -> None:
    check.knob(limits.path_max, str(limits.maximum), unit)
    check.knob(limits.path_min, str(limits.minimum), unit)


def effective_emc_hz(text: str, table_hz: tuple[int, ...]) -> int | None:
    """The cap that `text` of the cap file means: 0, negative and above the table are none. None: no number."""
    try:
        cap_hz = int(text)
    except ValueError:
        return None
    return table_hz[-1] if cap_hz <= 0 or cap_hz > table_hz[-1] else cap_hz


def _check_emc(check: _Check, board: Board, target: Target) -> None:
    emc = board.domains.emc
    if emc is None or target.mode.emc_hz is None:
        return
    try:
        text = check.sysfs.read(emc.cap_path)
    except ForbiddenError:
        check.unknown.append(emc.cap_path)
    except SysfsError as error:
        check.mismatches.append(f"{emc.cap_path}: wanted {target.mode.emc_hz} Hz, got no value: {error}")
    else:
        if effective_emc_hz(text, emc.table_hz) != target.mode.emc_hz:
            check.mismatches.append(f"{emc.cap_path}: wanted {target.mode.emc_hz} Hz, got {text[:60]} Hz")
    if target.policy is ClocksPolicy.LOCKED and emc.bpmp_path is not None:
        check.knob(f"{emc.bpmp_path}/rate", str(target.mode.emc_hz), " Hz")


def _check_mask(check: _Check, board: Board) -> bool:
    gpu, mask = board.domains.gpu, board.base_mode.mask
    if gpu is None or gpu.mask_path is None or mask is None:
        return True
    try:
        got = int(check.sysfs.read(gpu.mask_path), 0)
    except (AbsentError, ForbiddenError):
        check.unknown.append(gpu.mask_path)
        return True
    except (SysfsError, ValueError) as error:
        check.mismatches.append(f"{gpu.mask_path}: wanted mask {mask}, got no value: {error}")
        return False
    if got != mask:
        check.mismatches.append(f"{gpu.mask_path}: wanted mask {mask}, got {got}")
    return got == mask


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
    for limits in target.cpu:
        _check_limits(check, limits, " kHz")
    for path, wanted in _wanted_idle(sysfs, target):
        check.knob(path, wanted)
    if target.gpu is not None:
        _check_limits(check, target.gpu, " Hz")
    _check_emc(check, board, target)
    for path, wanted in target.flags.items():
        check.knob(path, wanted)
    return Comparison(tuple(check.mismatches), tuple(check.unknown), is_mask_wrong)
