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

_CPU_NUMBER = re.compile(r"/(?:cpu|policy)(\d+)/")


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


def _power_lines(params: ConfParams, base: PowerModel, *, first: bool) -> Iterator[Setting]:
    """The stock pair that keeps the GPU powered while its limits are written: `on` before, `auto` after."""
    for param in params.power:
        for arg, _ in param.args:
            value = base.value(param.name, arg)
            if value is not None and (value == "on") is first:
                yield Setting(param.name, arg, value)


def _emc_lines(board: Board, params: ConfParams, base: PowerModel, target: Target) -> Iterator[Setting]:
    if params.emc is None or target.emc_text is None:
        return
    stock = base.value(params.emc.name, "MAX_FREQ")
    as_stock = stock is not None and target.mode.emc_hz == board.base_mode.emc_cap_hz
    yield Setting(params.emc.name, "MAX_FREQ", stock if as_stock and stock is not None else target.emc_text)


def private_conf(board: Board, target: Target) -> NvpmodelConf:
    """The conf whose only mode sets what `target` caps."""
    params = sort_params(board.conf)
    base = board.conf.by_id(board.base_mode.id) or PowerModel(board.base_mode.id, board.base_mode.name, ())
    settings = [*_online_lines(params, base, target), *_cpu_lines(board, params, target)]
    if params.gpu is not None and target.gpu is not None:
        settings += _power_lines(params, base, first=True)
        settings += _limit_lines(params.gpu, target.gpu)
        settings += _power_lines(params, base, first=False)
    settings += _emc_lines(board, params, base, target)
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
