"""What the tree's knobs say, as the setting that a plant needs."""

from __future__ import annotations

from jouled.virtual.kernel import CPU, EMC, Kernel
from jouled.virtual.operation import Setting
from jouled.virtual.specs import BoardSpec
from jouletune.space import PowerMode


def _number(kernel: Kernel, path: str) -> int:
    return int(kernel.load(path))


def _optional(kernel: Kernel, path: str, otherwise: int) -> int:
    """Not every family has it."""
    try:
        return _number(kernel, path)
    except FileNotFoundError:
        return otherwise


def read_setting(kernel: Kernel, spec: BoardSpec) -> Setting:
    """The tree as it stands. The host's work runs at the lowest cap of the online clusters."""
    online = [cpu for cpu in spec.cpus if kernel.load(f"{CPU}/cpu{cpu}/online") == "1"]
    policies = [f"{CPU}/cpufreq/policy{c[0]}" for c in spec.clusters if any(cpu in online for cpu in c)]
    locked = kernel.load(f"{EMC}/mrq_rate_locked") == "1"
    cap_hz = kernel.emc_cap_hz()
    gpu, devfreq = kernel.layout.gpu, kernel.layout.devfreq
    idle = [kernel.load(f"{CPU}/cpu{cpu}/cpuidle/state0/disable") == "0" for cpu in online]
    return Setting(
        cores=len(online),
        cpu_cap_hz=1000 * min(_number(kernel, f"{policy}/scaling_max_freq") for policy in policies),
        cpu_min_hz=1000 * min(_number(kernel, f"{policy}/scaling_min_freq") for policy in policies),
        gpu_cap_hz=_number(kernel, f"{devfreq}/max_freq"),
        gpu_min_hz=_number(kernel, f"{devfreq}/min_freq"),
        emc_cap_hz=cap_hz,
        emc_lock_hz=min(_number(kernel, f"{EMC}/rate"), cap_hz) if locked else None,
        idle_states=all(idle),
        railgate=_optional(kernel, f"{gpu}/railgate_enable", 1) == 1,
        tpcs=spec.tpcs - _optional(kernel, f"{gpu}/tpc_pg_mask", 0).bit_count(),
    )


def wanted_setting(now: Setting, spec: BoardSpec, mode: PowerMode, policy: str) -> Setting:
    """The setting in which `mode` is in force under `policy` ("capped" or "locked"); None stays as it is now."""
    cpu_hz, gpu_hz = mode.cpu_hz or now.cpu_cap_hz, mode.gpu_hz or now.gpu_cap_hz
    emc_hz = mode.emc_hz or now.emc_cap_hz
    locked = policy == "locked"
    return Setting(
        cores=mode.cores or now.cores,
        cpu_cap_hz=cpu_hz,
        cpu_min_hz=cpu_hz if locked else 1000 * spec.cpu_floor_khz,
        gpu_cap_hz=gpu_hz,
        gpu_min_hz=gpu_hz if locked else min(spec.gpu_table_hz),
        emc_cap_hz=emc_hz,
        emc_lock_hz=emc_hz if locked else None,
        idle_states=not locked,
        railgate=not locked,
        tpcs=now.tpcs,
    )
