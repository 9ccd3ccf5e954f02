"""Every knob jouled may ever turn: known by its path, read as text, put back in an order the kernel takes.

A snapshot is obeyed by root, so a path or a value that fits no pattern here is refused before any write.
nvpmodel's two ordinary files count as knobs: they are kept byte by byte, and "" stands for an absent file.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from jouled.board.domains import CpuDomain, Domains, EmcDomain, GpuDomain
from jouled.board.sysfs import Sysfs
from jouled.errors import AbsentError, ForbiddenError, NotSupportedError, StateError, SysfsError

log = logging.getLogger(__name__)

CPU = "/sys/devices/system/cpu"
STATUS_PATH = "/var/lib/nvpmodel/status"
CONF_PATH_PATH = "/var/lib/nvpmodel/conf_file_path"
NVPMODEL_FILES = (STATUS_PATH, CONF_PATH_PATH)
_PASSES = 3  # hotplug resets what an earlier write of the same pass has set
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Kind(Enum):
    """What a knob does. The order is the one in which they are put back."""

    NVPMODEL_FILE = auto()
    EMC_LOCK = auto()
    BWMGR_HALT = auto()
    EMC_STATE = auto()
    ONLINE = auto()
    CPU_GOVERNOR = auto()
    CPU_LIMIT = auto()
    IDLE = auto()
    GPU_GOVERNOR = auto()
    GPU_LIMIT = auto()
    RAILGATE = auto()
    POWER_CONTROL = auto()
    EMC_CAP = auto()
    EMC_RATE = auto()


_NAME = r"[A-Za-z0-9@:_,-][A-Za-z0-9@:_,.-]*"  # no segment begins with a dot, so none is ".."
_DEVFREQ = rf"/sys/(?:class/devfreq/{_NAME}|devices/(?:{_NAME}/)+devfreq(?:_dev|/{_NAME}))"
_GPU_NODE = rf"(?:gpu\.0|{_NAME}\.(?:gpu|ga10b|gv11b|gp10b))"
_GPU = rf"/sys/(?:class/devfreq/{_NAME}/device|devices/(?:{_NAME}/)*{_GPU_NODE})"
_CPUFREQ = rf"{CPU}/(?:cpufreq/policy\d+|cpu\d+/cpufreq)"
_BPMP = "/sys/kernel/debug/bpmp/debug"
_WORD, _FLAG, _NUMBER = r"[A-Za-z][A-Za-z0-9_-]{0,31}", "[01]", r"-?\d{1,12}"
_KNOWN = tuple(
    (kind, re.compile(path), re.compile(value))
    for kind, path, value in (
        (Kind.NVPMODEL_FILE, r"/var/lib/nvpmodel/status", r"(?:pmode:\d{1,6}[ -~]{0,80}\s*|)"),
        (Kind.NVPMODEL_FILE, r"/var/lib/nvpmodel/conf_file_path", r"(?:/[ -~]{1,1000}\s*|)"),
        (Kind.EMC_LOCK, rf"{_BPMP}/clk/emc/mrq_rate_locked", _FLAG),
        (Kind.EMC_STATE, rf"{_BPMP}/clk/emc/state", _FLAG),
        (Kind.EMC_RATE, rf"{_BPMP}/clk/emc/rate", _NUMBER),
        (Kind.BWMGR_HALT, rf"{_BPMP}/bwmgr/bwmgr_halt", _FLAG),
        (Kind.ONLINE, rf"{CPU}/cpu\d+/online", _FLAG),
        (Kind.CPU_GOVERNOR, rf"{_CPUFREQ}/scaling_governor", _WORD),
        (Kind.CPU_LIMIT, rf"{_CPUFREQ}/scaling_(?:min|max)_freq", _NUMBER),
        (Kind.IDLE, rf"{CPU}/cpu\d+/cpuidle/state\d+/disable", _FLAG),
        (Kind.GPU_GOVERNOR, rf"{_DEVFREQ}/governor", _WORD),
        (Kind.GPU_LIMIT, rf"{_DEVFREQ}/(?:min|max)_freq", _NUMBER),
        (Kind.RAILGATE, rf"{_GPU}/railgate_enable", _FLAG),
        (Kind.POWER_CONTROL, rf"{_GPU}/power/control", "auto|on"),
        (Kind.EMC_CAP, r"/sys/kernel/(?:nvpmodel_clk_cap/emc|nvpmodel_emc_cap/emc_iso_cap)", _NUMBER),
    )
)


def kind_of(path: str) -> Kind | None:
    """Which knob `path` is; None: not one that jouled may turn."""
    return next((kind for kind, pattern, _ in _KNOWN if pattern.fullmatch(path)), None)


def _is_allowed(path: str, value: str) -> bool:
    return any(pattern.fullmatch(path) and allowed.fullmatch(value) for _, pattern, allowed in _KNOWN)


@dataclass(frozen=True, slots=True)
class Knobs:
    """Knobs as they stand: path of the board → text in the kernel's own unit."""

    values: Mapping[str, str]

    def check(self) -> None:
        """Raises StateError when a path is no known knob or its text is none that the knob can hold."""
        for path, value in self.values.items():
            if not _is_allowed(path, value):
                raise StateError(
                    f"{path} = {value[:60]!r}: no knob of this program, or no value of it; nothing written",
                    hint="the file that says so is damaged or was edited: set it aside and reboot the board",
                )

    def of(self, *kinds: Kind) -> dict[str, str]:
        """The knobs of these kinds, in the order of the paths."""
        return {path: self.values[path] for path in sorted(self.values) if kind_of(path) in kinds}


# --- reading ----------------------------------------------------------------------------------------------


def _read(sysfs: Sysfs, path: str) -> str:
    if path in NVPMODEL_FILES:
        try:
            return sysfs.read_raw(path).decode("utf-8", "replace")
        except AbsentError:
            return ""
    return sysfs.read(path)


def _cpu_paths(sysfs: Sysfs, cpu: CpuDomain) -> list[str]:
    paths = [f"{CPU}/cpu{number}/online" for number in cpu.cpus]
    for policy, _ in cpu.policies:
        paths += [f"{policy}/scaling_{name}" for name in ("governor", "min_freq", "max_freq")]
    for number in cpu.cpus:
        paths += sysfs.glob(f"{CPU}/cpu{number}/cpuidle/state[0-9]*/disable")
    return paths


def _gpu_paths(gpu: GpuDomain) -> list[str]:
    paths = [f"{gpu.path}/{name}" for name in ("governor", "min_freq", "max_freq")]
    return paths + [path for path in (gpu.railgate_path, gpu.power_control_path) if path is not None]


def _emc_paths(emc: EmcDomain) -> list[str]:
    paths = [emc.cap_path]
    if emc.bpmp_path is not None:
        paths += [f"{emc.bpmp_path}/{name}" for name in ("mrq_rate_locked", "rate", "state")]
    return paths + ([] if emc.bwmgr_halt_path is None else [emc.bwmgr_halt_path])


def knob_paths(sysfs: Sysfs, domains: Domains) -> list[str]:
    """Every knob of this board, present now or not. Raises NotSupportedError for one unknown to restore."""
    paths = _cpu_paths(sysfs, domains.cpu)
    paths += [] if domains.gpu is None else _gpu_paths(domains.gpu)
    paths += [] if domains.emc is None else _emc_paths(domains.emc)
    paths += NVPMODEL_FILES
    for path in paths:
        if kind_of(path) is None:
            raise NotSupportedError(
                f"{path}: found as a knob, but at a place that restore does not know; no knob was written",
                hint='report the board and this path; until then use mode = "observe"',
            )
    return paths


def read_knobs(sysfs: Sysfs, domains: Domains) -> Knobs:
    """All knobs that can be read; absent and forbidden ones are left out (nvpmodel's files: "" if absent).

    Raises BrokenError for a knob that is there without a value, NotSupportedError as `knob_paths` and for a text
    that could not be put back.
    """
    values: dict[str, str] = {}
    for path in knob_paths(sysfs, domains):
        try:
            values[path] = _read(sysfs, path)
        except (AbsentError, ForbiddenError) as error:
            log.debug("%s", error)
    for path, value in values.items():
        if not _is_allowed(path, value):
            raise _not_restorable(path, value)
    return Knobs(values)


def _not_restorable(path: str, value: str) -> NotSupportedError:
    hint = 'report the board and this line; until then use mode = "observe"'
    if path in NVPMODEL_FILES:
        hint = "let nvpmodel write it anew: sudo nvpmodel -m ID (the IDs stand in /etc/nvpmodel.conf)"
    return NotSupportedError(
        f"{path}: holds {value[:60]!r}, which restore could not put back; no knob was written", hint=hint
    )


# --- comparing --------------------------------------------------------------------------------------------


def _compared(knobs: Knobs) -> Iterable[str]:
    """EMC's rate is a setting only while it is locked; unlocked it follows the load."""
    locked = "1" in knobs.of(Kind.EMC_LOCK).values()
    return (path for path in knobs.values if locked or kind_of(path) is not Kind.EMC_RATE)


def differences(sysfs: Sysfs, knobs: Knobs) -> dict[str, str]:
    """Path → one sentence for each knob that is not as in `knobs`."""
    found: dict[str, str] = {}
    for path in _compared(knobs):
        wanted = knobs.values[path]
        try:
            got = _read(sysfs, path)
        except SysfsError as error:
            found[path] = f"{error}; wanted {wanted!r}"
            continue
        if got != wanted:
            found[path] = f"{path}: wanted {wanted!r}, got {got!r}"
    return found


# --- putting back -----------------------------------------------------------------------------------------


def _overwrite(target: Path, data: bytes) -> None:
    """In place, without giving its block back first: this works on a full disk."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_file(sysfs: Sysfs, path: str, text: str) -> None:
    target = sysfs.real(path)
    if text == "":
        log.debug("remove %s (as found)", path)
        target.unlink(missing_ok=True)
    else:
        try:
            sysfs.place(path, text)
        except SysfsError as error:
            if error.errno not in _FULL:
                raise
            target.with_name(f".{target.name}.new").unlink(missing_ok=True)
        _overwrite(target, text.encode())  # after `place`: the same bytes again, for the fsync
    _sync_folder(target.parent)


class _Pass:
    """One walk over the knobs; a write that fails is kept and the walk goes on."""

    def __init__(self, sysfs: Sysfs, knobs: Knobs, *, why: str) -> None:
        self._sysfs = sysfs
        self._knobs = knobs
        self._why = why
        self.errors: dict[str, str] = {}

    def _put(self, path: str, value: str) -> None:
        try:
            if _read(self._sysfs, path) == value:
                return
            if path in NVPMODEL_FILES:
                _put_file(self._sysfs, path, value)
            else:
                self._sysfs.write(path, value, why=self._why)
        except (SysfsError, OSError) as error:
            log.debug("%s", error)
            self.errors[path] = str(error)

    def _put_kinds(self, *kinds: Kind, only: str | None = None) -> None:
        for path, value in self._knobs.of(*kinds).items():
            if only is None or value == only:
                self._put(path, value)

    def _put_limits(self, kind: Kind) -> None:
        limits = self._knobs.of(kind)
        for path_max in [path for path in limits if path.endswith("max_freq")]:
            path_min = path_max.removesuffix("max_freq") + "min_freq"
            pair = [(path_max, limits[path_max])]
            if path_min in limits:
                pair.append((path_min, limits[path_min]))
                if self._is_below_minimum(limits[path_max], path_min):
                    pair.reverse()
            for path, value in pair:
                self._put(path, value)
        for path in [path for path in limits if path.replace("min_freq", "max_freq") not in limits]:
            self._put(path, limits[path])

    def _is_below_minimum(self, maximum: str, path_min: str) -> bool:
        try:
            return int(maximum) < self._sysfs.read_int(path_min)
        except SysfsError:
            return False

    def _put_gpu(self) -> None:
        """nvpmodel's own order: the GPU is held powered while its limits are written."""
        settings = self._knobs.of(Kind.GPU_GOVERNOR, Kind.GPU_LIMIT)
        if differences(self._sysfs, Knobs(settings)):
            for path in self._knobs.of(Kind.POWER_CONTROL):
                self._put(path, "on")
            self._put_kinds(Kind.GPU_GOVERNOR)
            self._put_limits(Kind.GPU_LIMIT)
        self._put_kinds(Kind.RAILGATE)
        self._put_kinds(Kind.POWER_CONTROL)

    def walk(self) -> None:
        self._put_kinds(Kind.NVPMODEL_FILE)  # first: the only ones that outlive a reboot
        self._put_kinds(Kind.EMC_LOCK, only="0")
        self._put_kinds(Kind.BWMGR_HALT, Kind.EMC_STATE)
        self._put_kinds(Kind.ONLINE, only="1")  # a cluster's policy appears with its first core
        self._put_kinds(Kind.CPU_GOVERNOR)
        self._put_limits(Kind.CPU_LIMIT)
        self._put_kinds(Kind.IDLE)
        self._put_gpu()
        self._put_kinds(Kind.EMC_CAP)
        if self._knobs.of(Kind.EMC_LOCK) and "1" in self._knobs.of(Kind.EMC_LOCK).values():
            self._put_kinds(Kind.EMC_LOCK, only="1")
            self._put_kinds(Kind.EMC_RATE)
        self._put_kinds(Kind.ONLINE, only="0")


def put_back(sysfs: Sysfs, knobs: Knobs, *, why: str = "put back") -> tuple[str, ...]:
    """Write what differs and say in one sentence each what still does; empty: all is as in `knobs`.

    Raises StateError, before any write, when a path or value is none of a known knob. Needs no discovery; may
    be killed at any point and called again.
    """
    knobs.check()
    errors: dict[str, str] = {}
    for _ in range(_PASSES):
        if not differences(sysfs, knobs):
            return ()
        walk = _Pass(sysfs, knobs, why=why)
        walk.walk()
        errors = walk.errors
    left = differences(sysfs, knobs)
    return tuple(f"{text} ({errors[path]})" if path in errors else text for path, text in left.items())


def nvpmodel_files(knobs: Knobs) -> Knobs:
    """The knobs that outlive a reboot: nvpmodel's status and conf_file_path."""
    return Knobs(knobs.of(Kind.NVPMODEL_FILE))


def repair_status(sysfs: Sysfs, knobs: Knobs) -> tuple[str, ...]:
    """Put nvpmodel's status and conf_file_path alone back; returns and raises as `put_back`."""
    return put_back(sysfs, nvpmodel_files(knobs), why="nvpmodel's own files")
