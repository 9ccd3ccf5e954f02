"""A file to go with a question: what was found of the board, without what names it, its network or its owner.

Serial numbers, addresses, names of hosts and users and random ids are taken out of every line, wherever it came from.
"""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Iterable, Iterator

from jouled import __version__
from jouled.board.found import describe
from jouled.board.nvpmodel import CONF_PATH, parse_conf
from jouled.board.sysfs import Sysfs
from jouled.doctor.check import Check
from jouled.doctor.examine import Diagnosis
from jouled.doctor.patient import Patient
from jouled.errors import SysfsError

_HWMON = ("name", "in[0-9]*_label", "in[0-9]*_input", "in[0-9]*_enable", "curr[0-9]*_input", "curr[0-9]*_crit",
          "curr[0-9]*_max", "shunt[0-9]*_resistor", "power[0-9]*_input", "power[0-9]*_label", "samples",
          "update_interval", "oc[0-9]*_event_cnt", "oc[0-9]*_throt_en")  # fmt: skip
_FILES = (
    "/proc/device-tree/model",
    "/proc/device-tree/compatible",
    "/etc/nv_tegra_release",
    "/proc/cmdline",
    "/proc/mounts",
    "/var/lib/nvpmodel/status",
    "/var/lib/nvpmodel/conf_file_path",
    "/sys/devices/system/cpu/present",
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/cpu/cpufreq/policy*/scaling_available_frequencies",
    "/sys/devices/system/cpu/cpufreq/policy*/scaling_[mg]*",
    "/sys/devices/system/cpu/cpu0/cpuidle/state*/name",
    "/sys/class/devfreq/*/available_frequencies",
    "/sys/class/devfreq/*/*_freq",
    "/sys/class/devfreq/*/governor",
    "/sys/class/devfreq/*/device/of_node/name",
    "/sys/class/devfreq/*/device/tpc_pg_mask",
    "/sys/devices/platform/gpu.0/tpc_pg_mask",
    "/sys/devices/gpu.0/tpc_pg_mask",
    "/sys/kernel/nvpmodel_clk_cap/*",
    "/sys/kernel/nvpmodel_emc_cap/*",
    "/sys/kernel/debug/bpmp/debug/clk/emc/*rate*",
    *(f"/sys/class/hwmon/hwmon*/{name}" for name in _HWMON),
    "/sys/bus/i2c/drivers/ina3221x/*/iio:device*/rail_name_*",
    "/sys/bus/i2c/drivers/ina3221x/*/iio:device*/in_power*_input",
    "/sys/class/thermal/thermal_zone*/type",
    "/sys/class/thermal/thermal_zone*/temp",
    "/sys/class/thermal/cooling_device*/type",
    "/sys/class/thermal/cooling_device*/*_state",
    "/etc/nvfancontrol.conf",
)
_LONGEST = 2000
_ANYBODYS = frozenset({"root", "localhost", "nvidia", "jetson", "tegra", "ubuntu"})  # words of every Jetson's files

# Order counts: what is more particular comes first. A number of 13 digits and more is a module's serial number, but for
# the 2^31 - 1 and 2^63 - 1 that nvpmodel writes for "no cap".
_PRIVATE = (
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"\b(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}\b"), "<mac>"),
    (re.compile(r"(?i)\b((?:PART)?(?:UUID|LABEL)=)[^\s,]+"), r"\1<removed>"),
    (re.compile(r"(?i)\b([\w.-]*(?:serial(?:no|_number|-number)?|mac(?:addr)?|hostname|ssid|password|token|key)[\w.-]*"
                r"\s*[=:]\s*)[^\s,]+"), r"\1<removed>"),
    (re.compile(r"(?<![\d.])(?!9223372036854775807\b)\d{13,}\b"), "<number>"),
    (re.compile(r"\b(?=[0-9a-fA-F]*[a-fA-F])(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{12,}\b"), "<hex>"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b"), "<address>"),
    (re.compile(r"\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}\b|\b[0-9a-fA-F:]*::[0-9a-fA-F:]+\b"), "<address>"),
    (re.compile(r"(/(?:home|Users|run/user|media|mnt)/)[^/\s:,'\"]+"), r"\1<name>"),
)  # fmt: skip


def own_names() -> tuple[str, ...]:
    """What this machine and its user are called."""
    names = {socket.gethostname(), socket.gethostname().partition(".")[0], platform.node()}
    names |= {os.environ.get(variable, "") for variable in ("USER", "SUDO_USER", "LOGNAME", "HOSTNAME")}
    return tuple(sorted((name for name in names - _ANYBODYS if len(name) > 2), key=len, reverse=True))


def scrub(text: str, names: Iterable[str] = ()) -> str:
    """`text` without serial numbers, addresses, ids, and the `names` given."""
    for pattern, instead in _PRIVATE:
        text = pattern.sub(instead, text)
    for name in names:
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "<name>", text)
    return text


def report(diagnosis: Diagnosis, names: Iterable[str] | None = None) -> str:
    """The whole file."""
    lines = [
        f"jouled {__version__}, Python {platform.python_version()}, Linux {platform.release()} {platform.machine()}",
        f"board: {diagnosis.title}",
        "",
        *(line for check in diagnosis.checks for line in _check_lines(check)),
        "",
        *_sections(diagnosis.patient),
    ]
    return scrub("\n".join(lines) + "\n", own_names() if names is None else names)


def _check_lines(check: Check) -> Iterator[str]:
    yield f"{check.level.value}: {check.name}: {check.text}"
    yield from (f"    to do: {line}" for line in check.to_do)


def _sections(patient: Patient) -> Iterator[str]:
    yield "[found]"
    yield from describe(patient.sysfs)
    yield ""
    yield "[nvpmodel]"
    yield from _conf_lines(patient.sysfs)
    yield ""
    yield "[files]"
    for pattern in _FILES:
        for path in patient.sysfs.glob(pattern):
            yield from _file_lines(patient.sysfs, path)


def _file_lines(sysfs: Sysfs, path: str) -> Iterator[str]:
    try:
        text = sysfs.read_raw(path).decode("utf-8", "replace").replace("\0", " ").strip()
    except SysfsError as error:
        yield f"{error}"
        return
    first, *rest = text[:_LONGEST].splitlines() or [""]
    yield f"{path}: {first}"
    yield from (f"    {line}" for line in rest)


def _conf_lines(sysfs: Sysfs) -> Iterator[str]:
    """Its facts, a line a section: the file itself is NVIDIA's, and not to be passed on."""
    try:
        conf = parse_conf(sysfs.read_raw(CONF_PATH).decode("utf-8", "replace"), where=CONF_PATH)
    except SysfsError as error:
        yield f"{error}"
        return
    for param in conf.params:
        yield f"{param.kind} {param.name}: {'; '.join(f'{arg} {path}' for arg, path in param.args)}"
    for model in conf.models:
        values = ", ".join(f"{line.param}.{line.arg} {line.value}" for line in model.settings)
        yield f"mode {model.id} {model.name}: {values}"
    yield f"default {conf.default}"
