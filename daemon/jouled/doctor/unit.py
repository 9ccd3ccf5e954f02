"""Would nvpmodel, started by the worker, believe itself in a chroot? It then exits 0 and changes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from jouled.board.sysfs import Sysfs
from jouled.doctor.check import Check, ok, unknown, warning
from jouled.doctor.others import is_enabled
from jouled.doctor.patient import Patient
from jouled.doctor.units import files_of
from jouled.errors import JouledError, SysfsError
from jouled.ledger import Ledger

_CHROOT = "chroot"  # the reason's code
UNIT = "jouled-worker.service"
# Options of systemd.exec that give a unit a mount namespace or another root.
NAMESPACES = (
    *("ProtectSystem", "ProtectHome", "ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectKernelModules"),
    *("ProtectKernelLogs", "ProtectControlGroups", "PrivateTmp", "PrivateDevices", "PrivateMounts", "PrivateIPC"),
    *("RootDirectory", "RootImage", "DynamicUser", "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths"),
    *("BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem", "MountFlags"),
)
_OPTION = re.compile(rf"^[ \t]*({'|'.join(NAMESPACES)})[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_OFF = frozenset({"", "no", "false", "off", "0", "default", "all", "shared"})


def unit(patient: Patient) -> Check:
    """The unit's and its drop-ins' options, and whether this process itself stands in another root than pid 1."""
    if any(_is_elsewhere(patient.sysfs, pid) for pid in _pids(patient)):
        text = "the worker that runs has a mount namespace of its own: nvpmodel takes that for a chroot"
        return warning("unit", text, "systemctl cat jouled-worker   # which of its options is it?")
    if _is_in_chroot(patient.sysfs):
        text = "this shell is in a chroot or container: nvpmodel changes nothing in here and exits 0"
        return warning("unit", text, "run jouled on the host itself")
    job = _fooled_job(patient)
    if job is not None:
        text = f"in job {job} nvpmodel believed itself in a chroot; jouled wrote the caps itself"
        return warning("unit", text, "systemctl cat jouled-worker   # which of its options is a mount namespace?")
    files = files_of(patient.sysfs, UNIT)
    if not files:
        return ok("unit", "not installed as a service (sudo jouled install)")
    try:
        options = _options(patient, files)
    except SysfsError as error:
        return unknown("unit", str(error))
    for name, (value, path) in options.items():
        if value.lower() not in _OFF:
            why = f"{path}: {name}={value} gives it a mount namespace: nvpmodel takes that for a chroot"
            return warning("unit", f"{why} and changes nothing", "sudo systemctl edit jouled-worker   # take it out")
    served = "" if is_enabled(patient, "jouled") else "; jouled.service is not enabled: sudo systemctl enable jouled"
    return ok("unit", f"{UNIT} has no mount namespace{served}")


def _options(patient: Patient, files: list[str]) -> dict[str, tuple[str, str]]:
    """Option → its last value and the file that holds it. Raises SysfsError."""
    return {match[1]: (match[2], path) for path in files for match in _OPTION.finditer(patient.sysfs.read(path))}


def _fooled_job(patient: Patient) -> str | None:
    """The last job, if nvpmodel said so in it: what it does within the worker's unit no shell can show."""
    try:
        events = Ledger(patient.site.host.state_dir).read().events
    except JouledError:
        return None
    last: Mapping[str, Any] = next((event for event in reversed(events) if event.get("event") == "finished"), {})
    warnings = last.get("result", {}).get("warnings", [])
    return str(last.get("job")) if any(f"cannot be used: {_CHROOT}" in text for text in warnings) else None


def _pids(patient: Patient) -> list[str]:
    """Of the worker, where systemd runs it now."""
    return patient.text(f"/sys/fs/cgroup/system.slice/{UNIT}/cgroup.procs").split()


def _is_elsewhere(sysfs: Sysfs, pid: str) -> bool:
    """Has it another mount namespace than pid 1? Only root may look; else no."""
    try:
        return os.readlink(sysfs.real(f"/proc/{pid}/ns/mnt")) != os.readlink(sysfs.real("/proc/1/ns/mnt"))
    except OSError:
        return False


def _is_in_chroot(sysfs: Sysfs) -> bool:
    """As nvpmodel is believed to tell: is pid 1's root another than ours? Only root may look; else no."""
    try:
        first, own = os.stat(sysfs.real("/proc/1/root")), os.stat(sysfs.real("/"))
    except OSError:
        return False
    return not os.path.samestat(first, own)
