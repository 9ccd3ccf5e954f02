"""The private nvpmodel conf of one power mode (ARCHITECTURE 4).

It lies in /run, carries the base mode's own ID and NAME so that `nvpmodel -q`, jtop and the status file keep telling
the truth, and holds only CPU_ONLINE, CPU, GPU with its power pair, and EMC lines: never a mask, DLA or PVA.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jouled.board.basemode import ConfParams, sort_params
from jouled.board.board import Board
from jouled.board.nvpmodel import NvpmodelConf, Param, PowerModel, Setting, write_conf
from jouled.board.target import Limits, Target
from jouled.errors import ApplyError

_CPU_NUMBER = re.compile(r"/(?:cpu|policy)(\d+)/.*scaling_max_freq$")


def _online_lines(params: ConfParams, base: PowerModel, target: Target) -> Iterator[Setting]:
    for cpu, param, arg in params.online:
        if base.value(param.name, arg) is not None:  # the boot core of some boards is not listed
            yield Setting(param.name, arg, "1" if cpu in target.online else "0")


def _limit_lines(param: Param, limits: Limits) -> Iterator[Setting]:
    """The maximum first: minima were lowered below it before the tool is called."""
    yield Setting(param.name, "MAX_FREQ", str(limits.maximum))
    if param.paths("MIN_FREQ"):
        yield Setting(param.name, "MIN_FREQ", str(limits.rest_minimum))


def _cpu_lines(board: Board, params: ConfParams, target: Target) -> Iterator[Setting]:
    """Clusters without an online core are left out: their files do not exist."""
    by_path = {limits.path_max: limits for limits in target.cpu}
    for param in params.cpu:
        match = _CPU_NUMBER.search(param.paths("MAX_FREQ")[0])
        cpu = int(match[1]) if match is not None else -1
        for policy, cpus in board.domains.cpu.policies:
            limits = by_path.get(f"{policy}/scaling_max_freq")
            if limits is not None and cpu in cpus and cpu in target.online:
                yield from _limit_lines(param, limits)


def _power_lines(board: Board, params: ConfParams, base: PowerModel, target: Target) -> tuple[list[Setting], ...]:
    """The stock pair that keeps the GPU powered while its limits are written: `on` before, as it was after."""
    path = board.domains.gpu.power_control_path if board.domains.gpu is not None else None
    before: list[Setting] = []
    after: list[Setting] = []
    for param in params.power:
        for arg, _ in param.args:
            value = base.value(param.name, arg)
            if value == "on":
                before.append(Setting(param.name, arg, value))
            elif value is not None:
                after.append(Setting(param.name, arg, target.flags.get(path or "", value)))
    return before, after


def _emc_lines(board: Board, params: ConfParams, base: PowerModel, target: Target) -> Iterator[Setting]:
    if params.emc is None or target.emc_text is None:
        return
    stock = base.value(params.emc.name, "MAX_FREQ")
    as_stock = stock is not None and target.mode.emc_hz == board.base_mode.emc_cap_hz
    yield Setting(params.emc.name, "MAX_FREQ", stock if as_stock and stock is not None else target.emc_text)


def _require_all(board: Board, params: ConfParams, target: Target, settings: list[Setting]) -> None:
    """A stock conf that does not know a domain would leave it as it was."""
    set_paths = {
        path
        for line in settings
        if (param := board.conf.param(line.param)) is not None
        for path in param.paths(line.arg)
    }
    set_cpus = {int(match[1]) for path in set_paths if (match := _CPU_NUMBER.search(path))}
    missing = [
        policy
        for policy, cpus in board.domains.cpu.policies
        if set(cpus) & set(target.online) and not set(cpus) & set_cpus
    ]
    missing += ["GPU"] if target.gpu is not None and params.gpu is None else []
    missing += ["EMC"] if target.emc_text is not None and params.emc is None else []
    if missing:
        raise ApplyError(
            f"{board.conf_path} has no PARAM section that sets {', '.join(missing)}: nvpmodel cannot apply this mode",
            hint='board.method = "sysfs" does not need one',
        )


def private_conf(board: Board, target: Target) -> NvpmodelConf:
    """The conf whose only mode sets what `target` caps.

    Raises ApplyError where the stock conf has no way to set one of the domains.
    """
    params = sort_params(board.conf)
    base = board.conf.by_id(board.base_mode.id) or PowerModel(board.base_mode.id, board.base_mode.name, ())
    settings = [*_online_lines(params, base, target), *_cpu_lines(board, params, target)]
    if params.gpu is not None and target.gpu is not None:
        before, after = _power_lines(board, params, base, target)
        settings += [*before, *_limit_lines(params.gpu, target.gpu), *after]
    settings += _emc_lines(board, params, base, target)
    _require_all(board, params, target, settings)
    used = {line.param for line in settings}
    return NvpmodelConf(
        tuple(param for param in board.conf.params if param.name in used),
        (PowerModel(board.base_mode.id, board.base_mode.name, tuple(settings)),),
        board.base_mode.id,
    )


def private_conf_path(run_dir: str, target: Target) -> str:
    """One file a power mode, named by it."""
    mode = target.mode
    return f"{run_dir}/modes/{mode.cores}-{mode.cpu_hz}-{mode.gpu_hz}-{mode.emc_hz}.conf"


def private_conf_text(board: Board, target: Target) -> str:
    """The file's text."""
    return write_conf(private_conf(board, target))
