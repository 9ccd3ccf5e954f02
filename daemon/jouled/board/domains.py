"""The clock domains of a board: CPU, GPU and memory (EMC)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuDomain:
    """`cpus` present, e.g. (0, … 11); `policies` maps the policy's path to its cpus, also those offline now."""

    cpus: tuple[int, ...]
    policies: tuple[tuple[str, tuple[int, ...]], ...]
    table_hz: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GpuDomain:
    """`path` is the devfreq folder (min_freq, max_freq, …)."""

    path: str
    table_hz: tuple[int, ...]
    power_control_path: str | None
    railgate_path: str | None
    mask_path: str | None


@dataclass(frozen=True, slots=True)
class EmcDomain:
    """`cap_path` holds Hz; `bpmp_path` is the debugfs folder clk/emc (root), None where it cannot be seen."""

    cap_path: str
    table_hz: tuple[int, ...]
    bpmp_path: str | None
    bwmgr_halt_path: str | None
    uncapped: int


@dataclass(frozen=True, slots=True)
class Domains:
    """What was found. A domain that is None cannot be set on this board."""

    cpu: CpuDomain
    gpu: GpuDomain | None
    emc: EmcDomain | None
