"""The base mode: the stock nvpmodel mode that the board is in, in Hz, and which conf lines say so.

Which PARAM means what is told by its paths, since NVIDIA's files name them differently from board to board
(CPU_A78_0…2 per cluster, CPU_A78_0…7 per core in the `_super` files, CPU_DENVER_*).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from jouled.board.domains import Domains
from jouled.board.nvpmodel import KNEXT, NvpmodelConf, Param, PowerModel
from jouled.board.sysfs import Sysfs
from jouled.errors import NotSupportedError, SysfsError

UNNAMED = "unknown"  # the name of a mode that no conf gives

_ONLINE = re.compile(r"^/sys/devices/system/cpu/cpu(\d+)/online$")
_CPU_LIMIT = re.compile(r"^/sys/devices/system/cpu/(?:cpu\d+/cpufreq|cpufreq/policy\d+)/scaling_max_freq$")
_POWER = re.compile(r"/(?:gpu\.0|[^/]+\.(?:gpu|ga10b|gv11b|gp10b))/power/control$")
_MASK = re.compile(r"/tpc_pg_mask$")


@dataclass(frozen=True, slots=True)
class BaseMode:
    """Never exceeded. None: this board has no such domain, or its cap cannot be read (only where no conf gives it);
    `mask` None: no TPC mask to be seen.

    `cpu_min_hz` and `gpu_min_hz` are the minima that the stock conf sets; `emc_raw` is the conf's own text for the
    memory's cap, which may be its way to say "none".
    """

    id: int
    name: str
    cores: int
    online_cpus: tuple[int, ...]
    cpu_min_hz: int
    cpu_cap_hz: int | None
    gpu_min_hz: int | None
    gpu_cap_hz: int | None
    emc_cap_hz: int | None
    emc_raw: str | None
    mask: int | None


@dataclass(frozen=True, slots=True)
class ConfParams:
    """The PARAM sections of one conf by what they set; all that a private conf may hold."""

    online: tuple[tuple[int, Param, str], ...]
    cpu: tuple[Param, ...]
    gpu: Param | None
    emc: Param | None
    power: tuple[Param, ...]
    mask: Param | None


def sort_params(conf: NvpmodelConf) -> ConfParams:
    """Sort the sections by their paths. `online` holds (cpu, section, argument)."""
    online: list[tuple[int, Param, str]] = []
    for param in conf.params:
        for arg, path in param.args:
            match = _ONLINE.match(path)
            if match is not None and param.kind == "FILE":
                online.append((int(match[1]), param, arg))
    clocks = [param for param in conf.params if param.kind == "CLOCK" and param.paths("MAX_FREQ")]
    files = [param for param in conf.params if param.kind == "FILE"]
    return ConfParams(
        online=tuple(online),
        cpu=tuple(param for param in clocks if _CPU_LIMIT.match(param.paths("MAX_FREQ")[0])),
        gpu=next((param for param in clocks if "/devfreq" in param.paths("MAX_FREQ")[0]), None),
        emc=next((param for param in clocks if param.name == "EMC"), None),
        power=tuple(param for param in files if any(_POWER.search(path) for _, path in param.args)),
        mask=next((param for param in files if any(_MASK.search(path) for _, path in param.args)), None),
    )


def cap_in_table(value_hz: int, table_hz: Sequence[int], *, where: str) -> int:
    """The highest table value up to `value_hz`; 0 and less mean no cap. Raises NotSupportedError below the table."""
    if value_hz <= 0:
        return table_hz[-1]
    index = bisect_right(table_hz, value_hz)
    if index == 0:
        raise NotSupportedError(
            f"{where}: cap of {value_hz} Hz lies below the board's lowest clock {table_hz[0]} Hz",
            hint="the conf may belong to another module; compare /etc/nvpmodel.conf with the board",
        )
    return table_hz[index - 1]


def _integer(model: PowerModel, param: Param, arg: str) -> int | None:
    text = model.value(param.name, arg)
    return None if text is None else int(text)


def _mask(params: ConfParams, model: PowerModel) -> int | None:
    if params.mask is None:
        return None
    values = [model.value(params.mask.name, arg.removesuffix(KNEXT)) for arg, _ in params.mask.args]
    return next((int(text) for text in values if text is not None and text.isdigit()), None)


def _online(params: ConfParams, model: PowerModel, domains: Domains, where: str) -> tuple[int, ...]:
    """Cores that the mode keeps on; one that the conf does not list (cpu0 on a TX2) stays on, cpu0 in any case."""
    listed = {cpu: model.value(param.name, arg) for cpu, param, arg in params.online}
    strangers = sorted(cpu for cpu, value in listed.items() if value == "1" and cpu not in domains.cpu.cpus)
    if strangers:
        raise NotSupportedError(
            f"{where} switches on cpu{strangers[0]}; this board has {len(domains.cpu.cpus)} cores",
            hint="the conf belongs to another module (a cloned image keeps the old link): relink /etc/nvpmodel.conf",
        )
    return tuple(cpu for cpu in domains.cpu.cpus if cpu == 0 or listed.get(cpu) in (None, "1"))


def _cpu_limits(params: ConfParams, model: PowerModel, domains: Domains, where: str) -> tuple[int, int]:
    """(minimum, cap) in Hz: the lowest cap and the highest minimum over the clusters."""
    table_hz = domains.cpu.table_hz
    caps_hz, minima_hz = [table_hz[-1]], [table_hz[0]]
    for param in params.cpu:
        cap_khz = _integer(model, param, "MAX_FREQ")
        if cap_khz is not None:
            caps_hz.append(cap_in_table(cap_khz * 1000, table_hz, where=f"{where}, {param.name}"))
        minimum_khz = _integer(model, param, "MIN_FREQ")
        if minimum_khz is not None and minimum_khz > 0:
            minima_hz.append(minimum_khz * 1000)
    return min(max(minima_hz), *caps_hz), min(caps_hz)


def _gpu_limits(params: ConfParams, model: PowerModel, domains: Domains, where: str) -> tuple[int | None, int | None]:
    if domains.gpu is None:
        return None, None
    table_hz = domains.gpu.table_hz
    cap = _integer(model, params.gpu, "MAX_FREQ") if params.gpu is not None else None
    low = _integer(model, params.gpu, "MIN_FREQ") if params.gpu is not None else None
    cap_hz = cap_in_table(-1 if cap is None else cap, table_hz, where=f"{where}, GPU")
    return min(max(low or 0, table_hz[0]), cap_hz), cap_hz


def base_mode_of(conf: NvpmodelConf, model: PowerModel, domains: Domains, *, where: str) -> BaseMode:
    """What `model` of the stock conf allows, by the board's own tables.

    Raises NotSupportedError where the conf is another board's.
    """
    here = f"{where}, mode {model.name}"
    params = sort_params(conf)
    online_cpus = _online(params, model, domains, here)
    cpu_min_hz, cpu_cap_hz = _cpu_limits(params, model, domains, here)
    gpu_min_hz, gpu_cap_hz = _gpu_limits(params, model, domains, here)
    emc_raw = model.value(params.emc.name, "MAX_FREQ") if params.emc is not None else None
    emc_cap_hz = None
    if domains.emc is not None:
        emc_cap_hz = cap_in_table(int(emc_raw or -1), domains.emc.table_hz, where=f"{here}, EMC")
    return BaseMode(
        model.id, model.name, len(online_cpus), online_cpus,
        cpu_min_hz, cpu_cap_hz, gpu_min_hz, gpu_cap_hz, emc_cap_hz, emc_raw, _mask(params, model),
    )  # fmt: skip


def _read_hz(sysfs: Sysfs, path: str, unit_hz: int) -> int | None:
    try:
        return sysfs.read_int(path) * unit_hz
    except SysfsError:
        return None


def base_mode_as_is(sysfs: Sysfs, domains: Domains) -> BaseMode:
    """The caps and minima that stand now, as a mode without a name: for a board that is only observed.

    A cap that cannot be read is None: nothing is then said of it, least of all that it should be the table's top.
    """
    online = tuple(
        cpu for cpu in domains.cpu.cpus if _read_hz(sysfs, f"/sys/devices/system/cpu/cpu{cpu}/online", 1) != 0
    )
    table_hz = domains.cpu.table_hz
    found = [_read_hz(sysfs, f"{path}/scaling_max_freq", 1000) for path, _ in domains.cpu.policies]
    cpu_cap_hz = min((hz for hz in found if hz is not None), default=None)
    lows = [_read_hz(sysfs, f"{path}/scaling_min_freq", 1000) for path, _ in domains.cpu.policies]
    cpu_min_hz = max((hz for hz in lows if hz is not None), default=table_hz[0])
    gpu_min_hz = gpu_cap_hz = emc_cap_hz = None
    if domains.gpu is not None:
        gpu_min_hz = _read_hz(sysfs, f"{domains.gpu.path}/min_freq", 1) or domains.gpu.table_hz[0]
        gpu_cap_hz = _read_hz(sysfs, f"{domains.gpu.path}/max_freq", 1) or None
    if domains.emc is not None:
        top_hz = domains.emc.table_hz[-1]
        standing_hz = _read_hz(sysfs, domains.emc.cap_path, 1)
        if standing_hz is not None:
            emc_cap_hz = min(standing_hz, top_hz) if standing_hz > 0 else top_hz
    return BaseMode(
        -1, UNNAMED, len(online), online, cpu_min_hz, cpu_cap_hz, gpu_min_hz, gpu_cap_hz, emc_cap_hz, None, None
    )
