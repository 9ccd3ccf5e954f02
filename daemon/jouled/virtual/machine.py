"""A virtual Jetson that lives: one plant, one clock, sensors that answer, a load that runs.

Nothing happens between events. A change of the knobs (seen by the kernel's count of writes), a start or stop of the
load and a read of a sensor are events; everything between two of them has a closed form.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jouled.board.host import Host
from jouled.board.process import Child
from jouled.errors import UsageError
from jouled.virtual.clock import SimClock
from jouled.virtual.faults import FOLDER, damaged, read_json
from jouled.virtual.flow import Flow
from jouled.virtual.instances import SharedFlow, advance_flow, start_flow
from jouled.virtual.kernel import Kernel, overwrite
from jouled.virtual.knobs import read_setting, wanted_setting
from jouled.virtual.nvpmodel import Nvpmodel
from jouled.virtual.operation import Clocks, Operation, Plant, Setting
from jouled.virtual.plant import board_plant, load_workload
from jouled.virtual.processes import VirtualProcesses
from jouled.virtual.programs import install
from jouled.virtual.runner import VirtualRunner
from jouled.virtual.schedule import Schedule
from jouled.virtual.sensors import Sensors
from jouled.virtual.specs import BoardSpec, board_spec
from jouled.virtual.supply import Supply
from jouled.virtual.sysfs import VirtualSysfs
from jouled.virtual.tree import BOOT_ID, boot, is_tree, make_tree, tree_spec
from jouled.virtual.truth import Truth, load_share, long_run
from jouled.workload.runner import Arrival
from jouletune.measurement import Completions
from jouletune.space import PowerMode, Variant

EPOCH_S = 1767225600.0  # where a fresh board's wall clock begins: 2026-01-01, so that runs repeat
FIRST_BOOTTIME_S = 120.0
BOOTTIME_S = 30.0
BOOT_TAKES_S = 45.0
_SAVE_EVERY_S = 10.0
_LONGEST_S = 1e9  # no board is up for longer
_LAST_WALL_S = 1e11


class BoardReset(BaseException):
    """The board has reset: whatever ran on it is dead, its tree has booted anew."""


def _wrong_state(state: dict[str, Any]) -> str | None:
    """The first value that is none of a board that ran."""
    if not isinstance(state.get("boot_id"), str):
        return "boot_id"
    limits = {"boottime_s": (0.0, _LONGEST_S), "boot_wall_s": (0.0, _LAST_WALL_S)}
    if state.get("temperature_c") is not None:
        limits["temperature_c"] = (-273.15, 1000.0)
    for name, (low, high) in limits.items():
        value = state.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            return name  # a NaN is within no limits
    return None


class VirtualMachine:
    """The board whose tree lies at `root`; made and booted if there is none, else going on with its knobs.

    `base_mode` is used for a new tree only. `plant` replaces the layer plant of `workload`. `programs`: "children" are
    real processes. `on_reset`: "raise" BoardReset, or "exit" this process as a reset would (status 137). Raises
    UsageError where another board lies there, StateError where the tree is damaged. `wall_s`: what the board's wall
    clock shows, for a daemon that stands beside it; without it runs repeat to the second.
    """

    plant: Plant
    supply: Supply
    setting: Setting
    _boot_id: str

    def __init__(
        self,
        root: Path,
        *,
        board: str | BoardSpec = "agx-orin-64gb",
        base_mode: str | None = None,
        workload: str = "yolov8s-640",
        seed: int = 0,
        plant: Plant | None = None,
        programs: Literal["children", "in_process"] = "children",
        on_reset: Literal["raise", "exit"] = "raise",
        wall_s: Callable[[], float] | None = None,
    ) -> None:
        self.root = root
        wanted = board_spec(board) if isinstance(board, str) else board
        if not is_tree(root):
            make_tree(root, wanted, base_mode)
        self.spec = tree_spec(root)
        self._refuse_other(wanted)
        self.plant = board_plant(self.spec.name, load_workload(workload)) if plant is None else plant
        self._seed = seed
        self._programs = programs
        self._on_reset = on_reset
        self._is_dead = False
        self.kernel = Kernel(str(root), "boot")
        self.kernel.settle_hotplug()
        install(str(root))
        self._writes_path = root / FOLDER / "writes"
        self._state_path = root / FOLDER / "state.json"
        state = self._load_state()
        boot_wall_s = state["boot_wall_s"]
        if wall_s is not None:  # never behind what it was: its files hold times
            boot_wall_s = max(boot_wall_s, wall_s() - state["boottime_s"])
        self.clock = SimClock(start_s=state["boottime_s"], boot_wall_s=boot_wall_s, passes=self._pass, wall_s=wall_s)
        self.sensors = Sensors(self)
        self.sysfs = VirtualSysfs(root, live=self.sensors.read, alive=self.check_alive)
        self._start(state["temperature_c"])

    # --- begin and end

    def _refuse_other(self, wanted: BoardSpec) -> None:
        if self.spec.name != wanted.name:
            raise UsageError(
                f"{self.root}: holds the board {self.spec.name} ({self.spec.model}), wanted {wanted.name}",
                hint="name another folder with --state-dir",
            )

    def _load_state(self) -> dict[str, Any]:
        fresh = {
            "boot_id": self.kernel.load(BOOT_ID),
            "boottime_s": FIRST_BOOTTIME_S,
            "boot_wall_s": EPOCH_S,
            "temperature_c": None,
        }
        try:
            state = read_json(str(self.root), "state.json")
        except FileNotFoundError:
            return fresh
        wrong = _wrong_state(state)
        if wrong is not None:
            raise damaged(str(self.root), "state.json", f"{wrong}: got {state.get(wrong)!r:.60}")
        if state["boot_id"] == fresh["boot_id"]:
            return state
        ended_s = state["boot_wall_s"] + state["boottime_s"]  # another boot since: time went on
        return fresh | {"boottime_s": BOOTTIME_S, "boot_wall_s": ended_s + BOOT_TAKES_S - BOOTTIME_S}

    def _save(self) -> None:
        now_s = self.clock.monotonic_s()
        state = {
            "boot_id": self._boot_id,
            "boottime_s": now_s,
            "boot_wall_s": self.clock.boot_wall_s,
            "temperature_c": self.supply.temperature_c(now_s),
        }
        self._saved_s = now_s
        overwrite(str(self._state_path), json.dumps(state))

    def _start(self, temperature_c: float | None) -> None:
        now_s = self.clock.monotonic_s()
        self._rng = np.random.default_rng([self._seed, round(now_s * 1000)])
        self._between = random.Random(f"{self._seed} {now_s:.3f}")
        self._flow: Flow | SharedFlow | None = None
        self._operation: Operation | None = None
        self._variant, self._arrival = Variant(), Arrival()
        self._pace = 1.0
        self._seen_writes = (0, -1)
        self._began_s, self._saved_s = now_s, now_s
        self._reran = self._held = False
        self._schedule = Schedule(self)
        self._boot_id = self.kernel.load(BOOT_ID)
        self.setting = read_setting(self.kernel, self.spec)
        power, _ = self.plant.rest(self.setting)
        thermal = self.plant.thermal
        total = tuple(self.plant.rails.index(rail) for rail in self.plant.total)
        warm_c = thermal.ambient_c + thermal.c_per_w * sum(power.w[rail] for rail in total)
        self.supply = Supply(
            rails=len(self.plant.rails),
            total=total,
            noise=self.plant.noise,
            thermal=thermal,
            rng=self._rng,
            start_s=now_s,
            start_c=warm_c if temperature_c is None else temperature_c,
        )
        self.supply.change(now_s, power)
        self.sensors.renew()
        self.sync()
        self._save()

    def close(self) -> None:
        """Leave the tree as a process that ends does: the time kept, sensors written into their files."""
        if not self._is_dead:
            self._save()
            self.sensors.publish()

    def reboot(self) -> None:
        """Boot through the stock path. Whoever ran on the board is gone: tickers and load end here."""
        wall_s = self.clock.wall_s()
        boot(self.root, self.spec)
        self.clock.restart(start_s=BOOTTIME_S, boot_wall_s=wall_s + BOOT_TAKES_S - BOOTTIME_S)
        self._start(None)

    def reset(self) -> None:
        """The board loses its power and boots: this process is dead."""
        self.reboot()
        if self._on_reset == "exit":
            os._exit(137)
        self._is_dead = True
        raise BoardReset(f"the virtual board at {self.root} has reset")

    def check_alive(self) -> None:
        """Raises BoardReset after a reset: open the tree anew."""
        if self._is_dead:
            raise BoardReset(f"the virtual board at {self.root} has reset")

    # --- doors

    def processes(self, mark: str = "jouled", on_start: Callable[[Child], None] | None = None) -> VirtualProcesses:
        """The door to the board's programs; the clock goes on by what each takes."""
        return VirtualProcesses(
            self.root,
            elapse=self.clock.sleep,
            in_process=self._programs == "in_process",
            mark=mark,
            on_start=on_start,
        )

    def host(self, state_dir: Path, *, mark: str = "jouled", on_start: Callable[[Child], None] | None = None) -> Host:
        """All doors in one."""
        return Host(self.sysfs, self.processes(mark, on_start), self.clock, state_dir)

    def runner(self, arrival: Arrival) -> VirtualRunner:
        """The workload, requests coming by `arrival`."""
        return VirtualRunner(self, arrival)

    def truth(
        self, mode: PowerMode, policy: str = "capped", arrival: Arrival | None = None, variant: Variant | None = None
    ) -> Truth:
        """The long run of `mode` ("capped" or "locked") in thermal rest, with this tree's TPC mask."""
        variant = variant or Variant()
        setting = wanted_setting(read_setting(self.kernel, self.spec), self.spec, mode, policy)
        operation = self.plant.operate(setting, variant)
        return long_run(self.plant, operation, arrival or Arrival(), batch=variant.batch)

    # --- the load

    def start_load(self, variant: Variant, arrival: Arrival) -> None:
        """Requests from now on."""
        self.check_alive()
        (self.root / FOLDER / "gpu_used").touch()
        now_s = self.clock.monotonic_s()
        self._variant, self._arrival = variant, arrival
        noise, batch, instances = self.plant.noise, variant.batch, variant.instances
        self._flow = start_flow(self._rng, noise, arrival, batch=batch, instances=instances, start_s=now_s)
        self._change()

    def stop_load(self) -> None:
        """No more requests."""
        if self._flow is not None:
            self._flow = None
            self._change()

    def take(self) -> Completions:
        """What the load has ended since the last call. Raises RuntimeError where no load runs."""
        self.check_alive()
        if self._flow is None:
            raise RuntimeError("no load runs on the virtual board")
        self._advance_flow(self.clock.monotonic_s())
        return self._flow.take()

    @property
    def operation(self) -> Operation | None:
        """How the load runs now, None without one."""
        return self._operation if self._flow is not None else None

    @property
    def is_loaded(self) -> bool:
        """Does a load run?"""
        return self._flow is not None

    def clocks(self) -> Clocks:
        """At which clocks the domains run now."""
        self.sync()
        if self._flow is None or self._operation is None:
            return self.plant.rest(self.setting)[1]
        return self._operation.busy_clocks

    def gpu_load(self) -> float:
        """The share of time in which the GPU has a request."""
        if self._flow is None or self._operation is None:
            return 0.0
        return load_share(self._operation, self.plant.noise, self._arrival)

    def energy_j(self, from_s: float, to_s: float) -> float:
        """What the module really drew between two times (until now at most)."""
        return sum(self.supply.energy_j(rail, from_s, to_s) for rail in self.supply.total)

    # --- time

    def sync(self) -> None:
        """See whether knobs were written, by this process or another, and let the plant follow from now on."""
        status = os.stat(self._writes_path)
        writes = (status.st_mtime_ns, status.st_size)
        if writes == self._seen_writes:
            return
        self._seen_writes = writes
        if self.kernel.load(BOOT_ID) != self._boot_id:
            self._is_dead = True
            self.check_alive()
        setting = read_setting(self.kernel, self.spec)
        if setting != self.setting:
            self.setting = setting
            self._change()
        self.sensors.follow_switches()

    def _change(self) -> None:
        """The plant's state is another from now on."""
        now_s = self.clock.monotonic_s()
        self._advance_flow(now_s)
        if self._flow is None:
            self._operation = None
            self.supply.change(now_s, self.plant.rest(self.setting)[0])
            return
        noise = self.plant.noise
        self._pace = self._between.lognormvariate(-(noise.latency_between_sd**2) / 2, noise.latency_between_sd)
        scale = self._between.lognormvariate(-(noise.energy_between_sd**2) / 2, noise.energy_between_sd)
        self._operation = self.plant.operate(self.setting, self._variant)
        power = self._operation.busy.mixed(self._operation.between, load_share(self._operation, noise, self._arrival))
        self.supply.change(now_s, power.scaled(scale))

    def _advance_flow(self, to_s: float) -> None:
        if self._flow is not None and self._operation is not None:
            advance_flow(self._flow, to_s, self._operation, self._pace)

    def _pass(self, to_s: float) -> None:
        """Time goes on to `to_s`."""
        self.check_alive()
        self.sync()
        faults = self.kernel.faults.all()
        if faults:
            self._meet_faults(faults, to_s)
        if to_s - self._saved_s >= _SAVE_EVERY_S:
            self._save()

    def _meet_faults(self, faults: dict[str, Any], to_s: float) -> None:
        wanted = faults.get("board_reset")
        mode = {
            "cores": self.setting.cores,
            "cpu_hz": self.setting.cpu_cap_hz,
            "gpu_hz": self.setting.gpu_cap_hz,
            "emc_hz": self.setting.emc_cap_hz,
        }
        if wanted and all(mode[name] == value for name, value in wanted.items()):
            self.reset()
        passed_s = to_s - self._began_s
        if not self._reran and passed_s >= faults.get("service_rerun_s", float("inf")):
            self._reran = True
            self.rerun_service()
        self._schedule.meet(faults, passed_s)
        hold = faults.get("hold", {})
        if hold.get("by") == "clock" and not self._held and passed_s >= hold["after_s"]:
            self._held = True
            self.kernel.faults.hold()

    def rerun_service(self) -> None:
        """nvpmodel.service runs again, as some systemd operations make it: the stock mode's caps are set anew."""
        Nvpmodel(Kernel(str(self.root), "boot")).run(["-f", "/etc/nvpmodel.conf"])
        self.sync()
