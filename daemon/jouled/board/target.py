"""What every knob must be for a power mode under a clocks policy: the one description that both apply methods
write and that verify reads.

At rest (policy `capped`) minima, idle states, railgate and the memory's locks are as the snapshot found them. A
snapshot taken while jetson_clocks was active shows no rest; then the base mode's stock values are it, since the
reference is the base mode unlocked (ARCHITECTURE 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from jouled.board.board import Board
from jouled.board.discover import CPU_ROOT
from jouled.board.knobs import Kind, Knobs
from jouled.board.sysfs import Sysfs
from jouled.errors import ApplyError
from jouletune.space import PowerMode


class ClocksPolicy(Enum):
    """`capped`: clocks move below their caps. `locked`: jetson_clocks pins them there."""

    CAPPED = "capped"
    LOCKED = "locked"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one policy's or device's limits must be, in the kernel's unit: kHz on the CPU, Hz on the GPU.

    `minimum` is that of the policy asked for, `rest_minimum` that of the unlocked board.
    """

    path_min: str
    path_max: str
    minimum: int
    maximum: int
    rest_minimum: int


@dataclass(frozen=True, slots=True)
class Target:
    """Every knob's wanted state. `cpu` holds only policies that have an online core; None: no such domain.

    `emc_text` is what the cap file is written; `flags` maps the paths of governors, railgate, power control and the
    memory's locks to their text, `idle` those of idle states that the snapshot knew, `idle_other` stands for all
    others.
    """

    mode: PowerMode
    policy: ClocksPolicy
    online: tuple[int, ...]
    cpu: tuple[Limits, ...]
    gpu: Limits | None
    emc_text: str | None
    flags: Mapping[str, str]
    idle: Mapping[str, str]
    idle_other: str


def online_path(cpu: int) -> str:
    """Where a core is switched."""
    return f"{CPU_ROOT}/cpu{cpu}/online"


def was_locked(home: Knobs) -> bool:
    """Was jetson_clocks active when the snapshot was taken? Pinned minima alone are not that, nor idle states off."""
    if "1" in home.of(Kind.EMC_LOCK).values():
        return True
    idle = home.of(Kind.IDLE).values()
    minima = {path: value for path, value in home.of(Kind.CPU_LIMIT).items() if path.endswith("min_freq")}
    pinned = [value == home.values.get(path.replace("min_freq", "max_freq")) for path, value in minima.items()]
    return bool(idle) and all(value == "1" for value in idle) and all(pinned)


# --- from a mode as asked for to a mode that may be applied ---------------------------------------------


def _refused(message: str) -> ApplyError:
    return ApplyError(f"refused, nothing written: {message}", hint="`jouled modes` lists what this board allows")


def _clock(name: str, wanted_hz: int | None, cap_hz: int | None, table_hz: tuple[int, ...]) -> int | None:
    if cap_hz is None:
        if wanted_hz is not None:
            raise _refused(f"{name} {wanted_hz} Hz: this board's {name} clock cannot be set")
        return None
    if wanted_hz is None:
        return cap_hz
    if wanted_hz not in table_hz:
        near_hz = min(table_hz, key=lambda point_hz: abs(point_hz - wanted_hz))
        raise _refused(f"{name} {wanted_hz} Hz is not in the board's table; nearest is {near_hz} Hz")
    if wanted_hz > cap_hz:
        raise _refused(f"{name} {wanted_hz} Hz is above the base mode's cap of {cap_hz} Hz")
    return wanted_hz


def complete(board: Board, mode: PowerMode) -> PowerMode:
    """`mode` with the base mode's value on each open axis.

    Raises ApplyError for a value off the board's table or above what the base mode allows.
    """
    base, domains = board.base_mode, board.domains
    cores = base.cores if mode.cores is None else mode.cores
    if not 1 <= cores <= base.cores:
        raise _refused(f"{cores} cores: base mode {base.name} has 1 to {base.cores}")
    gpu_table_hz = domains.gpu.table_hz if domains.gpu is not None else ()
    emc_table_hz = domains.emc.table_hz if domains.emc is not None else ()
    return PowerMode(
        cores,
        _clock("CPU", mode.cpu_hz, base.cpu_cap_hz, domains.cpu.table_hz),
        _clock("GPU", mode.gpu_hz, base.gpu_cap_hz, gpu_table_hz),
        _clock("EMC", mode.emc_hz, base.emc_cap_hz, emc_table_hz),
    )


# --- the knobs ------------------------------------------------------------------------------------------


class _Rest:
    """The snapshot's values where it shows any rest, else stock ones."""

    def __init__(self, home: Knobs) -> None:
        self.values: Mapping[str, str] = {} if was_locked(home) else home.values

    def text(self, path: str, stock: str) -> str:
        return self.values.get(path, stock)

    def limits(self, stem: str, stock_minimum: int, maximum: int, policy: ClocksPolicy) -> Limits:
        path_min, path_max = f"{stem}min_freq", f"{stem}max_freq"
        rest = min(int(self.values.get(path_min, stock_minimum)), maximum)
        return Limits(path_min, path_max, maximum if policy is ClocksPolicy.LOCKED else rest, maximum, rest)


def _cpu_limits(
    board: Board, rest: _Rest, cap_hz: int | None, online: tuple[int, ...], policy: ClocksPolicy
) -> tuple[Limits, ...]:
    if cap_hz is None:
        return ()
    stock_khz = board.base_mode.cpu_min_hz // 1000
    return tuple(
        rest.limits(f"{path}/scaling_", stock_khz, cap_hz // 1000, policy)
        for path, cpus in board.domains.cpu.policies
        if set(cpus) & set(online)
    )


def _gpu_limits(board: Board, rest: _Rest, cap_hz: int | None, policy: ClocksPolicy) -> Limits | None:
    gpu = board.domains.gpu
    if gpu is None or cap_hz is None:
        return None
    stock_hz = board.base_mode.gpu_min_hz or gpu.table_hz[0]
    return rest.limits(f"{gpu.path}/", stock_hz, cap_hz, policy)


def _emc_text(board: Board, cap_hz: int | None) -> str | None:
    """L4T 35 says "no cap" by 0 and reads it back so; from 36 on the table's top is the same as -1."""
    emc = board.domains.emc
    if emc is None or cap_hz is None:
        return None
    return "0" if emc.uncapped == 0 and cap_hz == emc.table_hz[-1] else str(cap_hz)


def _governors(rest: _Rest, cpu: tuple[Limits, ...], gpu: Limits | None) -> dict[str, str]:
    """A cluster that was offline may come back with another one than it had."""
    paths = [limits.path_min.replace("min_freq", "governor") for limits in (*cpu, *((gpu,) if gpu else ()))]
    return {path: rest.values[path] for path in paths if path in rest.values}


def _flags(board: Board, rest: _Rest, policy: ClocksPolicy) -> dict[str, str]:
    """What jetson_clocks does beside these differs by release (bwmgr_halt, state): judged at rest only."""
    locked = policy is ClocksPolicy.LOCKED
    gpu, emc = board.domains.gpu, board.domains.emc
    flags: dict[str, str] = {}
    if gpu is not None and gpu.railgate_path is not None:
        flags[gpu.railgate_path] = "0" if locked else rest.text(gpu.railgate_path, "1")
    if gpu is not None and gpu.power_control_path is not None:
        flags[gpu.power_control_path] = rest.text(gpu.power_control_path, "auto")
    if emc is not None and emc.bpmp_path is not None:
        flags[f"{emc.bpmp_path}/mrq_rate_locked"] = "1" if locked else "0"
        if not locked and f"{emc.bpmp_path}/state" in rest.values:
            flags[f"{emc.bpmp_path}/state"] = rest.values[f"{emc.bpmp_path}/state"]
    if emc is not None and emc.bwmgr_halt_path is not None and not locked:
        flags[emc.bwmgr_halt_path] = rest.text(emc.bwmgr_halt_path, "0")
    return flags


def target_of(board: Board, home: Knobs, mode: PowerMode, policy: ClocksPolicy) -> Target:
    """What the knobs must be. Raises ApplyError as `complete`."""
    full = complete(board, mode)
    rest = _Rest(home)
    online = board.base_mode.online_cpus[: full.cores]
    locked = policy is ClocksPolicy.LOCKED
    idle = {path: rest.values[path] for path in home.of(Kind.IDLE) if path in rest.values}
    cpu = _cpu_limits(board, rest, full.cpu_hz, online, policy)
    gpu = _gpu_limits(board, rest, full.gpu_hz, policy)
    governors = {} if locked else _governors(rest, cpu, gpu)
    return Target(
        mode=full,
        policy=policy,
        online=online,
        cpu=cpu,
        gpu=gpu,
        emc_text=_emc_text(board, full.emc_hz),
        flags=governors | _flags(board, rest, policy),
        idle={} if locked else idle,
        idle_other="1" if locked else "0",
    )


def idle_paths(sysfs: Sysfs, cpus: Iterable[int]) -> tuple[str, ...]:
    """The switches of all idle states of `cpus` that are there now."""
    return tuple(path for cpu in cpus for path in sysfs.glob(f"{CPU_ROOT}/cpu{cpu}/cpuidle/state[0-9]*/disable"))
