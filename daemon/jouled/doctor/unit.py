"""Would nvpmodel, started by the worker, believe itself in a chroot? It then exits 0 and changes nothing."""

from __future__ import annotations

import os
import re

from jouled.doctor.check import Check, ok, unknown, warning
from jouled.doctor.others import is_enabled
from jouled.doctor.patient import Patient
from jouled.errors import SysfsError

UNIT = "jouled-worker.service"
# Options of systemd.exec that give a unit a mount namespace or another root.
NAMESPACES = (
    *("ProtectSystem", "ProtectHome", "ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectKernelModules"),
    *("ProtectKernelLogs", "ProtectControlGroups", "PrivateTmp", "PrivateDevices", "PrivateMounts", "PrivateIPC"),
    *("RootDirectory", "RootImage", "DynamicUser", "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths"),
    *("BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem", "MountFlags"),
)
_OPTION = re.compile(rf"^\s*({'|'.join(NAMESPACES)})\s*=\s*(\S.*?)\s*$", re.MULTILINE)
_OFF = frozenset({"no", "false", "off", "0", "default", "all", "shared"})
_PLACES = ("/etc/systemd/system", "/usr/lib/systemd/system", "/usr/local/lib/systemd/system")


def unit(patient: Patient) -> Check:
    """The unit's and its drop-ins' options, and whether this process itself stands in another root than pid 1."""
    if patient.simulation is None and _is_in_chroot():
        text = "this shell is in a chroot or container: nvpmodel changes nothing in here and exits 0"
        return warning("unit", text, "run jouled on the host itself")
    files = [path for place in _PLACES for path in _files(patient, place)]
    if not files:
        return ok("unit", "not installed as a service (sudo jouled install)")
    for path in files:
        try:
            text = patient.sysfs.read(path)
        except SysfsError:
            return unknown("unit", f"{path} cannot be read")
        found = next((f"{m[1]}={m[2]}" for m in _OPTION.finditer(text) if m[2].lower() not in _OFF), None)
        if found is not None:
            why = f"{path}: {found} gives it a mount namespace: nvpmodel takes that for a chroot and changes nothing"
            return warning("unit", why, "sudo systemctl edit jouled-worker   # take it out")
    served = "" if is_enabled(patient, "jouled") else "; jouled.service is not enabled: sudo systemctl enable jouled"
    return ok("unit", f"{UNIT} has no mount namespace{served}")


def _files(patient: Patient, place: str) -> list[str]:
    sysfs = patient.sysfs
    return [*sysfs.glob(f"{place}/{UNIT}"), *sysfs.glob(f"{place}/{UNIT}.d/*.conf")]


def _is_in_chroot() -> bool:
    """As nvpmodel is believed to tell: is pid 1's root another than ours? Only root may look; else no."""
    try:
        first, own = os.stat("/proc/1/root/."), os.stat("/")
    except OSError:
        return False
    return not os.path.samestat(first, own)
