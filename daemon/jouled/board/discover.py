"""Clock domains found on the board by class and name, never by one release's fixed path; tables read from it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from jouled.board.domains import CpuDomain, Domains, EmcDomain, GpuDomain
from jouled.board.sysfs import Sysfs
from jouled.errors import AbsentError, BrokenError, ForbiddenError, NotSupportedError

CPU_ROOT = "/sys/devices/system/cpu"
DEVFREQ_ROOT = "/sys/class/devfreq"
BPMP_EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
BWMGR_HALT = "/sys/kernel/debug/bpmp/debug/bwmgr/bwmgr_halt"

_GPU_NODES = frozenset({"gv11b", "gp10b", "ga10b", "gpu"})
_GPU_CLASS = re.compile(r"gpu-gpc-\d+$")  # Thor: a PCI device, without a node of that name
# L4T 36 and later first; then L4T 35 and before, where the cap that means "none" is 0 (JETSON 1.2).
_EMC_CAPS = (("/sys/kernel/nvpmodel_clk_cap/emc", -1), ("/sys/kernel/nvpmodel_emc_cap/emc_iso_cap", 0))
_GPU_FOLDERS = ("/sys/devices/platform/gpu.0", "/sys/devices/gpu.0")
_POLICY_SIZE = 4  # cores of a cluster where every cluster is offline but one of unknown size


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """`0-3,5` or `0 1 2` as numbers. Raises ValueError."""
    cpus: set[int] = set()
    for part in text.replace(",", " ").split():
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus))


def read_cpu_list(sysfs: Sysfs, path: str) -> tuple[int, ...]:
    """The CPUs listed in `path`. Raises as Sysfs.read; BrokenError where it is no list."""
    text = sysfs.read(path)
    try:
        return parse_cpu_list(text)
    except ValueError:
        raise BrokenError(f"{path}: wanted a list of CPUs, got {text[:60]!r}", path=path) from None


def _table(sysfs: Sysfs, path: str, *, unit_hz: int) -> tuple[int, ...]:
    words = sysfs.read(path).split()
    if not words or not all(word.isdigit() for word in words):
        raise BrokenError(f"{path}: wanted a list of frequencies, got {' '.join(words)[:60]!r}", path=path)
    return tuple(sorted({int(word) * unit_hz for word in words} - {0}))


def policy_paths(sysfs: Sysfs) -> tuple[str, ...]:
    """The cpufreq policies that exist now; one whose cores are all offline does not."""
    found = sysfs.glob(f"{CPU_ROOT}/cpufreq/policy[0-9]*")
    return tuple(sorted(found, key=policy_number))


def policy_number(path: str) -> int:
    """8 of …/policy8."""
    return int(path.rpartition("policy")[2])


def _present_policies(sysfs: Sysfs, cpus: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    paths = policy_paths(sysfs)
    found: dict[str, tuple[int, ...]] = {}
    for index, path in enumerate(paths):
        try:
            found[path] = read_cpu_list(sysfs, f"{path}/related_cpus")
        except AbsentError:  # then a policy reaches to the next one
            end = policy_number(paths[index + 1]) if index + 1 < len(paths) else policy_number(path) + _POLICY_SIZE
            found[path] = tuple(cpu for cpu in cpus if policy_number(path) <= cpu < end)
    return found


def _absent_policies(cpus: Iterable[int], size: int) -> dict[str, tuple[int, ...]]:
    """Policies that offline cores will have, clusters being aligned to their size."""
    groups: dict[int, list[int]] = {}
    for cpu in cpus:
        groups.setdefault(cpu // size, []).append(cpu)
    return {f"{CPU_ROOT}/cpufreq/policy{group[0]}": tuple(group) for group in groups.values()}


def _cpu(sysfs: Sysfs) -> CpuDomain:
    try:
        cpus = read_cpu_list(sysfs, f"{CPU_ROOT}/present")
    except AbsentError as error:
        raise NotSupportedError(f"no CPU domain: {error}") from error
    present = _present_policies(sysfs, cpus)
    if not present:
        raise NotSupportedError(f"no CPU domain: no {CPU_ROOT}/cpufreq/policy*: this kernel scales no CPU clock")
    known = {cpu for group in present.values() for cpu in group}
    size = max(len(group) for group in present.values())
    policies = present | _absent_policies((cpu for cpu in cpus if cpu not in known), size)
    tables = [set(_table(sysfs, f"{path}/scaling_available_frequencies", unit_hz=1000)) for path in present]
    shared = tuple(sorted(set.intersection(*tables)))
    if not shared:
        raise NotSupportedError(f"the CPU policies {', '.join(present)} share no frequency")
    ordered = sorted(policies.items(), key=lambda item: policy_number(item[0]))
    return CpuDomain(cpus, tuple(ordered), shared)


def _first(sysfs: Sysfs, paths: Iterable[str]) -> str | None:
    return next((path for path in paths if sysfs.exists(path)), None)


def _is_gpu(sysfs: Sysfs, path: str) -> bool:
    if _GPU_CLASS.search(path):
        return True
    try:
        node = sysfs.read(f"{path}/device/of_node/name").strip("\0")
    except AbsentError:  # some kernels show no of_node: the device's name says the same
        node = path.rpartition("/")[2].partition(".")[2]
    return node in _GPU_NODES


def _gpu(sysfs: Sysfs) -> GpuDomain | None:
    path = next((path for path in sysfs.glob(f"{DEVFREQ_ROOT}/*") if _is_gpu(sysfs, path)), None)
    if path is None:
        return None
    table_hz = _table(sysfs, f"{path}/available_frequencies", unit_hz=1)
    folders = (*_GPU_FOLDERS, f"{path}/device")
    return GpuDomain(
        path,
        table_hz,
        power_control_path=_first(sysfs, (f"{folder}/power/control" for folder in folders)),
        railgate_path=_first(sysfs, (f"{path}/device/railgate_enable",)),
        mask_path=_first(sysfs, (f"{folder}/tpc_pg_mask" for folder in folders)),
    )


def read_emc_table(sysfs: Sysfs) -> tuple[int, ...] | None:
    """The memory's clocks from debugfs (kHz there); None for who may not look there."""
    try:
        return _table(sysfs, f"{BPMP_EMC}/possible_rates", unit_hz=1000)
    except (AbsentError, ForbiddenError):
        return None


def _emc(sysfs: Sysfs, known_hz: tuple[int, ...]) -> EmcDomain | None:
    found = next(((path, none) for path, none in _EMC_CAPS if sysfs.exists(path)), None)
    table_hz = read_emc_table(sysfs) or known_hz
    if found is None or not table_hz:
        return None
    return EmcDomain(
        cap_path=found[0],
        table_hz=table_hz,
        bpmp_path=_first(sysfs, (BPMP_EMC,)),
        bwmgr_halt_path=_first(sysfs, (BWMGR_HALT,)),
        uncapped=found[1],
    )


def discover_domains(sysfs: Sysfs, *, emc_table_hz: tuple[int, ...] = ()) -> Domains:
    """The board's domains; `emc_table_hz` stands in where the memory's table may not be read.

    Raises NotSupportedError where the CPU's clock cannot be set at all, BrokenError where a table is none.
    """
    return Domains(_cpu(sysfs), _gpu(sysfs), _emc(sysfs, emc_table_hz))
