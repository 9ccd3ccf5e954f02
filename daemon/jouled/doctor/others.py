"""Who else sets clocks, at boot or later, and who minds when a core goes offline; from files, no service is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from jouled.doctor.check import Check, ok, warning
from jouled.doctor.patient import Patient
from jouled.doctor.units import files_of, files_of_manager, is_wanted, names

# Units that set governors, clocks or idle states by a policy of their own.
MANAGERS = ("tuned", "power-profiles-daemon", "tlp", "auto-cpufreq")
_CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")
_JTOP_CONF = "/usr/local/jtop/config.json"
_JTOP_OFF = "python3 -c 'from jtop import jtop; j = jtop(); j.start(); j.jetson_clocks.boot = False; j.close()'"
_PINNED_KINDS = ("service", "slice", "scope")
_AFFINITY = re.compile(r"^[ \t]*(CPUAffinity|AllowedCPUs)[ \t]*=[ \t]*(\S*)", re.MULTILINE)
_ISOLATED = re.compile(r"\b(isolcpus|nohz_full)=(\S+)")
_RIVALS_TO_DO = "sudo systemctl disable --now {}"


def is_active(patient: Patient, unit: str) -> bool:
    """Has systemd a running service of that name?"""
    return any(patient.sysfs.exists(f"{root}/system.slice/{unit}.service") for root in _CGROUPS)


def is_enabled(patient: Patient, unit: str) -> bool:
    """Does a boot start it?"""
    return is_wanted(patient.sysfs, f"{unit}.service")


def others(patient: Patient) -> Check:
    """Other programs that manage power: jouled waits for none and stops none, so they would take turns."""
    found = {name: "runs" for name in MANAGERS if is_active(patient, name)}
    found |= {name: "starts at boot" for name in MANAGERS if name not in found and is_enabled(patient, name)}
    if not found:
        return ok("others", f"none of {', '.join(MANAGERS)}")
    told = ", ".join(f"{name} {how}" for name, how in found.items())
    text = f"{told}: it sets clocks, too; after 3 changes in 10 min jouled gives up (contested)"
    return warning("others", text, *(_RIVALS_TO_DO.format(name) for name in found))


def at_boot(patient: Patient) -> Check:
    """Who locks the clocks when the board boots."""
    if _jtop_locks(patient):
        text = "jtop runs jetson_clocks at boot: it locks the clocks after jouled has set caps, and idle costs more"
        return warning("boot", text, _JTOP_OFF)
    if is_enabled(patient, "jetson_clocks"):
        text = "jetson_clocks.service locks the clocks at boot: idle costs more"
        return warning("boot", text, _RIVALS_TO_DO.format("jetson_clocks"))
    runs = "; jtop runs and only watches" if is_active(patient, "jtop") else ""
    return ok("boot", f"nobody runs jetson_clocks at boot{runs}")


def _jtop_locks(patient: Patient) -> bool:
    try:
        told = json.loads(patient.text(_JTOP_CONF) or "{}")
        return bool(told.get("jetson_clocks", {}).get("boot", False))
    except (ValueError, AttributeError):  # damaged: jtop then starts with its defaults
        return False


def cores(patient: Patient) -> Check:
    """Whose affinity breaks when cores go offline; by default no job changes their number."""
    pinned = sorted(set(_pinned(patient)))
    isolated = _ISOLATED.search(patient.text("/proc/cmdline"))
    pinned += [f"kernel argument {isolated[0]}"] if isolated is not None else []
    varied = len(patient.config.grid.cores) > 0
    if not pinned:
        return ok("cores", "nobody is pinned to cores" + ("; their number is varied" if varied else ""))
    text = f"pinned to cores: {', '.join(pinned)}"
    if varied:
        return warning("cores", f"{text}; grid.cores takes cores offline", "leave grid.cores out")
    return ok("cores", f"{text}; a job leaves the number of cores alone")


def _pinned(patient: Patient) -> Iterator[str]:
    sysfs = patient.sysfs
    if _pins(patient, files_of_manager(sysfs)):
        yield "all services"
    for kind in _PINNED_KINDS:
        yield from (unit for unit in names(sysfs, kind) if _pins(patient, files_of(sysfs, unit)))


def _pins(patient: Patient, files: list[str]) -> bool:
    """What the files leave of it: an empty value takes back all before it."""
    values: dict[str, str] = {}
    for path in files:
        values |= {match[1]: match[2] for match in _AFFINITY.finditer(patient.text(path))}
    return any(values.values())
