"""The machine around the board: root file system, room for state, clock, switches of the configuration."""

from __future__ import annotations

import os
from datetime import datetime, timezone

from jouled.doctor.check import Check, Level, fault_of, ok, unknown, warning
from jouled.doctor.others import is_active
from jouled.doctor.patient import Patient
from jouled.errors import StateError

_MIB, _GIB = 1 << 20, 1 << 30
_LITTLE_BYTES = 100 * _MIB
_NONE_BYTES = 5 * _MIB
_FEW_INODES = 100
_OVERLAYS = frozenset({"overlay", "aufs", "unionfs"})
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_OLD_S = 1767225600.0  # 2026-01-01: a clock before that stands wrong
_SYNCHRONISED = "/run/systemd/timesync/synchronized"  # made by timesyncd once NTP has answered
_CHRONY = ("chrony", "chronyd")  # writes down nowhere whether it has been answered


def _mounts(patient: Patient) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Mount point → (type, options); of several at one point the last counts."""
    rows = (line.split() for line in patient.text("/proc/mounts").splitlines())
    return {row[1]: (row[2], tuple(row[3].split(","))) for row in rows if len(row) >= 4}


def root(patient: Patient) -> Check:
    """Does what jouled writes outlive a reboot?"""
    mounts = _mounts(patient)
    if "/" not in mounts:
        return unknown("root", "how it is mounted is not told here")
    kind, options = mounts["/"]
    state = str(patient.site.host.state_dir)
    at = max((point for point in mounts if _is_below(state, point)), key=len)
    if mounts[at][0] in _OVERLAYS | _IN_MEMORY:
        text = f"{state} lies in {mounts[at][0]} ({at}): a reboot may forget the winner and the modes in quarantine"
        return warning("root", text, "mount a disk there, or name another folder: store.state_dir")
    if "ro" in options:
        text = f"/ is read-only ({kind}); {state} lies in {at}"
        return ok("root", text) if at != "/" else warning("root", text, "sudo mount -o remount,rw /")
    return ok("root", f"{kind}, writable")


def _is_below(path: str, point: str) -> bool:
    return point in ("/", path) or path.startswith(f"{point.rstrip('/')}/")


def disk(patient: Patient) -> Check:
    """Room for the ledger and the studies. Raises StateError where nothing can be written."""
    folder = patient.site.host.state_dir
    there = next(path for path in (folder, *folder.parents) if path.exists())
    found = os.statvfs(there)
    free_bytes = found.f_bavail * found.f_frsize
    text = f"{free_bytes / _MIB:.0f} MiB free in {folder}"
    if found.f_flag & os.ST_RDONLY:
        raise StateError(f"{folder} is read-only: no snapshot can be kept, so no knob may be turned", hint=_elsewhere())
    if free_bytes < _NONE_BYTES:
        raise StateError(f"{text}: no snapshot can be kept, so no knob may be turned", hint=f"df -h {there}")
    if free_bytes < _LITTLE_BYTES:
        return warning("disk", f"{text}, wanted {_LITTLE_BYTES // _MIB} MiB", f"df -h {there}")
    if found.f_files > 0 and found.f_favail < _FEW_INODES:
        return warning("disk", f"{found.f_favail} inodes free in {folder}, wanted {_FEW_INODES}", f"df -i {there}")
    if not os.access(there, os.W_OK):
        return unknown("disk", f"{text}; only root writes there")
    return ok("disk", f"{free_bytes / _GIB:.1f} GiB free for state")


def _elsewhere() -> str:
    return "sudo mount -o remount,rw /   # or another folder: store.state_dir"


def clock(patient: Patient) -> Check:
    """Only history and pauses need the time of day; intervals are monotonic."""
    now_s = patient.site.host.clock.wall_s()
    when = datetime.fromtimestamp(now_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    has_rtc = bool(patient.sysfs.glob("/sys/class/rtc/rtc[0-9]*"))
    in_step = patient.sysfs.exists(_SYNCHRONISED)
    if now_s < _OLD_S:
        return warning("clock", f"{when} is in the past: history will show it so", "sudo timedatectl set-ntp true")
    if not has_rtc and not in_step:
        text = f"{when}, but there is no clock that runs without power: after a boot it may stand wrong until NTP"
        if any(is_active(patient, unit) for unit in _CHRONY):
            return warning("clock", f"{text}; chrony runs", "chronyc tracking   # has it been answered?")
        return warning("clock", text, "sudo timedatectl set-ntp true")
    return ok("clock", f"{when}{', kept by NTP' if in_step else ''}{'' if has_rtc else ', no RTC'}")


def config(patient: Patient) -> Check:
    """The configuration that a job would have."""
    if patient.config_error is not None:
        return fault_of("config", patient.config_error)
    files = sorted({origin for origin in patient.config.origins.values() if origin.startswith("/")})
    where = files[0] if files else "defaults, no file"
    if patient.config.mode == "observe":
        text = 'mode = "observe": nothing is tuned, knobs and metrics are only read'
        return Check("config", Level.FAULT, text, (f'set mode = "tune" in {where}',), 2)
    return ok("config", f"{where}{'' if patient.config.target.has_bound() else '; a job must name its latency bound'}")
