"""The physics of a virtual Orin: layers on a GPU, a host beside it, power as the time average of states.

A layer takes the larger of its compute and its memory traffic, plus a gap per kernel launch; the host's launches
overlap with the GPU, its pre- and postprocessing does not. Dynamic power is C·V²·f·activity with a floor under V;
leakage grows with V and temperature; the memory costs by its clock and by what is moved. All constants are assumed:
chosen so that totals and ratios fall where public measurements lie (JETSON 10.5, MEASUREMENT "Known sizes"), fitted
to no board.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jouled.errors import UsageError
from jouled.virtual.engines import pace_of
from jouled.virtual.operation import Clocks, Noise, Operation, Power, Setting, Thermal
from jouled.virtual.specs import board_data
from jouletune.space import Variant

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WORKLOADS = Path(__file__).parent / "workloads"
LEAK_PER_C = 0.012
_HOST_STATES = 2  # of a request's states, the first
# Which parts each rail carries, and how much of them; VDDQ_VDD2_1V8AO lies inside VIN_SYS_5V0.
Wiring = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]
AGX_ORIN: Wiring = (
    ("VDD_GPU_SOC", (("gpu", 1.0), ("soc", 1.0), ("controller", 1.0))),
    ("VDD_CPU_CV", (("cpu", 1.0),)),
    ("VIN_SYS_5V0", (("board", 1.0), ("dram", 1.0))),
    ("VDDQ_VDD2_1V8AO", (("always_on", 1.0), ("dram", 0.6))),
)


@dataclass(frozen=True, slots=True)
class Layer:
    """`count` like layers of a network: floating point operations and bytes moved per item, weights per batch."""

    flops: float
    bytes: float
    weight_bytes: float = 0.0
    launches: int = 1
    efficiency: float = 0.3
    count: int = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """What one request does. Host cycles are one core's; `serial` ones keep the GPU waiting."""

    name: str
    description: str
    inference_name: str
    serial_cycles: float
    serial_cycles_per_item: float
    launch_cycles: float
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class Rail:
    """Supply of one domain: voltage is `floor_v` up to `floor_hz`, then rises to `top_v` at `top_hz`."""

    floor_v: float
    floor_hz: float
    top_v: float
    top_hz: float
    bend: float

    def volts(self, hz: float) -> float:
        """The voltage that `hz` needs."""
        share = max(0.0, (hz - self.floor_hz) / (self.top_hz - self.floor_hz))
        return self.floor_v + (self.top_v - self.floor_v) * float(share**self.bend)


@dataclass(frozen=True, slots=True)
class Silicon:
    """Constants of the module, all assumed."""

    gpu: Rail = Rail(0.60, 0.55e9, 1.00, 1.3005e9, 1.30)
    cpu: Rail = Rail(0.60, 0.90e9, 1.05, 2.2016e9, 1.30)
    tpcs: int = 8
    flops_per_tpc_cycle: float = 4096.0
    bytes_per_emc_cycle: float = 64.0
    emc_efficiency: float = 0.78
    bytes_per_gpu_cycle: float = 220.0
    launch_gap_cycles: float = 1800.0
    gpu_active_w: float = 21.5
    gpu_shared: float = 0.25
    gpu_leak_w: float = 3.0
    gpu_clocked: float = 0.05
    core_active_w: float = 2.3
    core_polling: float = 0.18
    cluster_leak_w: float = 0.45
    background_cores: float = 0.2
    soc_w: float = 2.4
    emc_top_hz: float = 3.199e9
    controller_w: float = 2.2
    instance_overhead: float = 0.04
    board_w: float = 4.5
    dram_w: float = 1.1
    dram_j_per_byte: float = 16e-12
    always_on_w: float = 0.2


def _rail(**fields: float) -> Rail:
    return Rail(**fields)


def board_plant(board: str, work: Workload, engines: tuple[str, ...] = ()) -> LayerPlant:
    """The plant of the virtual board called `board`, by its file. Raises UsageError."""
    data = board_data(board)
    given = data.get("silicon", {})
    silicon = {name: _rail(**value) if isinstance(value, dict) else value for name, value in given.items()}
    return LayerPlant(
        work,
        engines,
        silicon=Silicon(**{"tpcs": data.get("tpcs", 8), **silicon}),
        thermal=Thermal(**data.get("thermal", {})),
        wiring=tuple((rail, tuple(parts.items())) for rail, parts in data["wiring"].items()),
        total=tuple(data["total_rails"]),
    )


def load_workload(name: str) -> Workload:
    """The workload called `name`, from this package's folder. Raises UsageError with the names that there are."""
    path = WORKLOADS / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in WORKLOADS.glob("*.toml")))
        raise UsageError(f"no virtual workload {name!r}; there are {known}")
    fields: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    layers = tuple(Layer(**layer) for layer in fields.pop("layers"))
    return Workload(name=name, layers=layers, **fields)


@dataclass(frozen=True, slots=True)
class _State:
    """A part of a request: how long, how busy the GPU, bytes a second, busy host cores."""

    duration_s: float
    activity: float
    bytes_per_s: float
    cores: float


def _add(powers: Sequence[tuple[float, Power]]) -> Power:
    rails = range(len(powers[0][1].w))
    return Power(
        tuple(sum(share * power.w[i] for share, power in powers) for i in rails),
        tuple(sum(share * power.w_per_c[i] for share, power in powers) for i in rails),
    )


@dataclass(frozen=True, slots=True)
class LayerPlant:
    """A board running one workload. Of its `engines` the first runs it as written (jouled.virtual.engines)."""

    work: Workload
    engines: tuple[str, ...] = ()
    silicon: Silicon = field(default_factory=Silicon)
    noise: Noise = field(default_factory=Noise)
    thermal: Thermal = field(default_factory=Thermal)
    emc_idle_hz: int = 665_600_000
    wiring: Wiring = AGX_ORIN
    total: tuple[str, ...] = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")

    @property
    def rails(self) -> tuple[str, ...]:
        """All measured rails."""
        return tuple(rail for rail, _ in self.wiring)

    @property
    def workload(self) -> str:
        """The workload's name."""
        return self.work.name

    @property
    def inference_name(self) -> str:
        """What one inference is called."""
        return self.work.inference_name

    # --- time

    def _states(self, setting: Setting, clocks: Clocks, variant: Variant) -> list[_State]:
        """What keeps the GPU waiting first, then the layers; of one request that is alone."""
        chip, work, batch = self.silicon, self.work, variant.batch
        pace = pace_of(variant.engine, self.engines[0] if self.engines else None)
        flops_per_s = chip.flops_per_tpc_cycle * setting.tpcs * clocks.gpu_hz
        memory = chip.bytes_per_emc_cycle * chip.emc_efficiency * clocks.emc_hz
        bytes_per_s = min(memory, chip.bytes_per_gpu_cycle * clocks.gpu_hz)
        launch_s = work.launch_cycles / clocks.cpu_hz
        states = [_State((work.serial_cycles + batch * work.serial_cycles_per_item) / clocks.cpu_hz, 0.05, 1e9, 1.2)]
        waited_s = 0.0
        for layer in work.layers:
            compute_s = batch * layer.flops / (flops_per_s * layer.efficiency * pace.compute)
            moved = pace.traffic * (batch * layer.bytes + layer.weight_bytes)
            gaps_s = layer.launches * chip.launch_gap_cycles / clocks.gpu_hz
            layer_s = max(compute_s, moved / bytes_per_s) + gaps_s
            activity = 0.30 + 0.70 * compute_s / layer_s
            enqueue_s = layer.launches * launch_s
            states.append(_State(layer.count * layer_s, activity, moved / layer_s, min(1.0, enqueue_s / layer_s)))
            waited_s += layer.count * (enqueue_s - layer_s)
        # where the host cannot launch as fast as the GPU would run, the GPU waits
        return [states[0], _State(max(0.0, waited_s), 0.1, 0.0, 1.0), *states[1:]]

    # --- power

    def _power(self, setting: Setting, clocks: Clocks, state: _State, *, gated: bool = False) -> Power:
        chip = self.silicon
        volts = chip.gpu.volts(clocks.gpu_hz)
        scale = (volts / chip.gpu.top_v) ** 2 * clocks.gpu_hz / chip.gpu.top_hz
        alive = chip.gpu_shared + (1 - chip.gpu_shared) * setting.tpcs / chip.tpcs
        leak = 0.0 if gated else chip.gpu_leak_w * alive * (volts / chip.gpu.top_v) ** 2
        switching = 0.0 if gated else chip.gpu_active_w * alive * scale * max(state.activity, chip.gpu_clocked)
        emc = clocks.emc_hz / chip.emc_top_hz
        cpu, cpu_leak = self._cpu_power(setting, clocks, state)
        parts_w = {
            "gpu": switching + leak,
            "soc": chip.soc_w,
            "controller": chip.controller_w * emc,
            "cpu": cpu + cpu_leak,
            "board": chip.board_w,
            "dram": chip.dram_w * emc + chip.dram_j_per_byte * state.bytes_per_s,
            "always_on": chip.always_on_w,
        }
        leaks = {"gpu": leak, "cpu": cpu_leak}
        return Power(
            tuple(sum(share * parts_w[part] for part, share in parts) for _, parts in self.wiring),
            tuple(LEAK_PER_C * sum(share * leaks.get(p, 0.0) for p, share in parts) for _, parts in self.wiring),
        )

    def _cpu_power(self, setting: Setting, clocks: Clocks, state: _State) -> tuple[float, float]:
        """Watts that switch, watts that leak."""
        chip = self.silicon
        volts = chip.cpu.volts(clocks.cpu_hz)
        core_w = chip.core_active_w * (volts / chip.cpu.top_v) ** 2 * clocks.cpu_hz / chip.cpu.top_hz
        busy = min(state.cores + chip.background_cores, float(setting.cores))
        idle = 0.01 if setting.idle_states else chip.core_polling
        leak = chip.cluster_leak_w * setting.cores / 4 * (volts / chip.cpu.top_v) ** 2
        return core_w * (busy + idle * (setting.cores - busy)) + 0.3, leak

    # --- what the machine asks

    def _busy_clocks(self, setting: Setting) -> Clocks:
        return Clocks(setting.cpu_cap_hz, setting.gpu_cap_hz, setting.emc_lock_hz or setting.emc_cap_hz)

    def operate(self, setting: Setting, variant: Variant) -> Operation:
        """The workload in `setting`, `variant.batch` items a request, `variant.instances` side by side."""
        clocks = self._busy_clocks(setting)
        states = self._states(setting, clocks, variant)
        if variant.instances > 1:
            states = self._side_by_side(setting, states, variant.instances)
        host_s = sum(state.duration_s for state in states[:_HOST_STATES])
        service_s = host_s + sum(state.duration_s for state in states[_HOST_STATES:])
        # between two requests the governors let go of CPU and GPU, the memory's is too slow for that
        calm = Clocks(setting.cpu_min_hz, setting.gpu_min_hz, clocks.emc_hz)
        between = self._power(setting, calm, _State(1.0, 0.0, 2e8, 0.0))
        alone = Operation(service_s, between, between, clocks, calm, host_s, variant.instances)
        return replace(alone, busy=self._busy_power(setting, clocks, states, alone))

    def _side_by_side(self, setting: Setting, states: Sequence[_State], instances: int) -> list[_State]:
        """The GPU loses some time from one process to the next; host parts take longer where cores are short."""
        crowd = max(1.0, instances * states[0].cores / setting.cores)
        factors = [crowd] * _HOST_STATES + [1.0 + self.silicon.instance_overhead] * (len(states) - _HOST_STATES)
        return [
            replace(s, duration_s=f * s.duration_s, cores=s.cores / f, bytes_per_s=s.bytes_per_s / f)
            for s, f in zip(states, factors, strict=True)
        ]

    def _busy_power(self, setting: Setting, clocks: Clocks, states: Sequence[_State], operation: Operation) -> Power:
        """The mean while every instance is busy: what the host does is spread over all of a cycle."""
        cycle_s = operation.cycle_s
        if operation.instances == 1:
            return _add([(s.duration_s / cycle_s, self._power(setting, clocks, s)) for s in states])
        host = states[:_HOST_STATES]
        cores = sum(s.duration_s * s.cores for s in host) / cycle_s
        bytes_per_s = sum(s.duration_s * s.bytes_per_s for s in host) / cycle_s
        waiting = _State(max(0.0, cycle_s - operation.gpu_s), host[0].activity, 0.0, 0.0)
        busy = [
            replace(s, cores=s.cores + cores, bytes_per_s=s.bytes_per_s + bytes_per_s)
            for s in (waiting, *states[_HOST_STATES:])
        ]
        return _add([(s.duration_s / cycle_s, self._power(setting, clocks, s)) for s in busy])

    def rest(self, setting: Setting) -> tuple[Power, Clocks]:
        """No load: the GPU is gated where it may be, the memory's clock falls unless it is locked."""
        emc_hz = setting.emc_lock_hz or min(self.emc_idle_hz, setting.emc_cap_hz)
        clocks = Clocks(setting.cpu_min_hz, setting.gpu_min_hz, emc_hz)
        return self._power(setting, clocks, _State(1.0, 0.0, 1e8, 0.0), gated=setting.railgate), clocks
