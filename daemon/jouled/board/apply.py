"""Put a power mode in force, and read every knob back.

Six steps (ARCHITECTURE 5): unlock by own writes · cores online · caps, by nvpmodel with a private conf or by own
writes · cores offline · jetson_clocks where the policy is `locked` · verify. The first brings the board to where
nothing depends on what was in force before, so any sequence of applies ends in the knobs of the last one alone.
"""

from __future__ import annotations

import logging
from enum import Enum

from jouled.board.board import Board
from jouled.board.host import Host
from jouled.board.jetson_clocks import lock_clocks
from jouled.board.knobs import Knobs, repair_status
from jouled.board.modename import mode_name
from jouled.board.nvpmodel import TOOL
from jouled.board.privateconf import private_conf_path, private_conf_text
from jouled.board.process import Completed
from jouled.board.target import ClocksPolicy, Limits, Target, idle_paths, online_path, target_of
from jouled.board.verify import Comparison, compare, effective_emc_hz, is_mask_unchanged
from jouled.errors import (
    AbsentError,
    ApplyError,
    ForbiddenError,
    NotPermittedError,
    StuckError,
    SysfsError,
    ToolAbsentError,
)
from jouletune.space import PowerMode

__all__ = ["Actuator", "ClocksPolicy", "Method", "probe_method"]

log = logging.getLogger(__name__)

NVPMODEL_TIMEOUT_S = 10.0
_POLICY_WAIT_S = 2.0
_POLL_S = 0.05


class Method(Enum):
    """Who writes the caps."""

    NVPMODEL = "nvpmodel"
    SYSFS = "sysfs"


def judge_nvpmodel(done: Completed) -> None:
    """Raise ApplyError unless nvpmodel seems to have done it; its exit code alone is worth nothing (JETSON 1.6)."""
    said = f"{done.stdout}\n{done.stderr}"
    lowered = said.lower()
    told = done.tail() or "it said nothing"
    if "reboot required" in lowered or "reboot now" in lowered:
        raise ApplyError(
            f"{TOOL} asks for a reboot instead of changing the mode: {told}",
            code="prompt",
            hint='jouled never answers it; method = "auto" goes on with own writes',
        )
    if "running in chroot" in lowered:
        raise ApplyError(
            f"{TOOL} believes that it is in a chroot and changed nothing: {told}",
            code="chroot",
            hint='run jouled outside containers and mount namespaces, or set board.method = "sysfs"',
        )
    if done.timed_out:
        raise ApplyError(f"{TOOL} did not end within {NVPMODEL_TIMEOUT_S:g} s and was killed: {told}")
    if done.returncode != 0 or "NVPM ERROR" in said:
        raise ApplyError(f"{TOOL} failed with exit code {done.returncode}: {told}")


class Actuator:
    """Applies power modes of one board for one job, always by the same method.

    `home` is the snapshot: what rest means, and what nvpmodel's status files are put back to.
    """

    def __init__(self, host: Host, board: Board, home: Knobs, method: Method) -> None:
        self.host = host
        self.board = board
        self.home = home
        self.method = method

    # --- what is there ----------------------------------------------------------------------------------

    def target(self, mode: PowerMode, policy: ClocksPolicy) -> Target:
        """What every knob must be. Raises ApplyError where the mode exceeds the base mode or is off the table."""
        return target_of(self.board, self.home, mode, policy)

    def compare(self, mode: PowerMode, policy: ClocksPolicy) -> Comparison:
        """Mismatches and unknown knobs. Raises ApplyError as `target`."""
        return compare(self.host.sysfs, self.board, self.target(mode, policy))

    def verify(self, mode: PowerMode, policy: ClocksPolicy) -> tuple[str, ...]:
        """One sentence for each knob that is wrong (knob, wanted, got); what may not be read is no mismatch."""
        return self.compare(mode, policy).mismatches

    def current(self) -> PowerMode:
        """The caps that stand now; None where one cannot be read."""
        sysfs, domains = self.host.sysfs, self.board.domains
        cores = sum(self._read(online_path(cpu)) != "0" for cpu in domains.cpu.cpus)
        cpu_khz = [self._read(f"{path}/scaling_max_freq") for path, _ in domains.cpu.policies]
        known_khz = [int(text) for text in cpu_khz if text is not None]
        gpu = self._read(f"{domains.gpu.path}/max_freq") if domains.gpu is not None else None
        emc_hz = None
        if domains.emc is not None and sysfs.exists(domains.emc.cap_path):
            emc_hz = effective_emc_hz(self._read(domains.emc.cap_path) or "", domains.emc.table_hz)
        return PowerMode(cores, max(known_khz) * 1000 if known_khz else None, int(gpu) if gpu else None, emc_hz)

    def _read(self, path: str) -> str | None:
        try:
            return self.host.sysfs.read(path)
        except (AbsentError, ForbiddenError):
            return None

    # --- apply ------------------------------------------------------------------------------------------

    def apply(self, mode: PowerMode, policy: ClocksPolicy, *, is_probe: bool = False) -> None:
        """Put `mode` in force under `policy` and verify it. A probe of what is in force anyway is no news.

        Raises ApplyError (`code` prompt, chroot, mask_differs, apply_failed; `mismatches` where knobs were seen wrong),
        ToolAbsentError, StuckError (then nothing more was written), NotPermittedError.
        """
        target = self.target(mode, policy)
        if not self.host.privileged:
            raise NotPermittedError("applying a power mode needs root", hint="run it with sudo")
        if not is_mask_unchanged(self.host.sysfs, self.board):
            raise self._mask_error("before anything was written")
        log.log(
            logging.DEBUG if is_probe else logging.INFO,
            "apply %s, %s, by %s",
            mode_name(target.mode),
            policy.value,
            self.method.value,
        )
        try:
            self._steps(target)
        except SysfsError as error:
            raise ApplyError(f"{self._name(target)} was not applied: {error}", hint=error.hint) from error
        self._require(target)

    def _steps(self, target: Target) -> None:
        self._unlock(target)
        self._switch_on(target)
        if self.method is Method.NVPMODEL:
            self._run_nvpmodel(target)
        else:
            self._write_caps(target)
        self._switch_off(target)
        if target.policy is ClocksPolicy.LOCKED:
            lock_clocks(self.host.processes)

    def _require(self, target: Target) -> None:
        found = compare(self.host.sysfs, self.board, target)
        if found.is_mask_wrong:
            raise self._mask_error(f"after {self.method.value} applied {self._name(target)}")
        if found.mismatches:
            raise ApplyError(
                f"{self._name(target)} is not in force: {len(found.mismatches)} knobs differ, "
                f"first {found.mismatches[0]}",
                mismatches=found.mismatches,
            )

    def _name(self, target: Target) -> str:
        mode = target.mode
        return (
            f"mode {mode.cores} cores, CPU {mode.cpu_hz} Hz, GPU {mode.gpu_hz} Hz, EMC {mode.emc_hz} Hz, "
            f"{target.policy.value}"
        )

    def _mask_error(self, when: str) -> ApplyError:
        gpu = self.board.domains.gpu
        path = gpu.mask_path if gpu is not None else None
        return ApplyError(
            f"{path}: wanted TPC mask {self.board.base_mode.mask}, got {self._read(path or '')} {when}",
            code="mask_differs",
            hint="another program changed the nvpmodel mode; reboot to come back to the operator's own",
        )

    def _put(self, path: str, value: str, why: str) -> None:
        """Write where it differs; what came of it is judged by verify."""
        if self._read(path) != value:
            self.host.sysfs.write(path, value, why=why)

    # (1)
    def _unlock(self, target: Target) -> None:
        """Locks off, idle states and railgate at rest, and every minimum at or below the maximum to come."""
        rest = self.target(target.mode, ClocksPolicy.CAPPED)
        for path, value in rest.flags.items():
            if self.host.sysfs.exists(path):
                self._put(path, value, "unlock")
        for path in idle_paths(self.host.sysfs, self.board.domains.cpu.cpus):
            self._put(path, rest.idle.get(path, rest.idle_other), "unlock")
        for limits in (*rest.cpu, *((rest.gpu,) if rest.gpu is not None else ())):
            self._lower_minimum(limits)

    def _lower_minimum(self, limits: Limits) -> None:
        standing = self._read(limits.path_min)
        if standing is not None and int(standing) > limits.rest_minimum:
            self.host.sysfs.write(limits.path_min, limits.rest_minimum, why="unlock")

    # (2)
    def _switch_on(self, target: Target) -> None:
        sleeping = [cpu for cpu in target.online if self._read(online_path(cpu)) == "0"]
        for cpu in sleeping:
            self.host.sysfs.write(online_path(cpu), 1, why="core of the mode")
        self._wait_for_policies(target)
        if sleeping:
            self._unlock(target)  # what came back may be as it was left, or as the kernel makes it

    def _wait_for_policies(self, target: Target) -> None:
        waited_s = 0.0
        while missing := [limits.path_max for limits in target.cpu if not self.host.sysfs.exists(limits.path_max)]:
            if waited_s >= _POLICY_WAIT_S:
                raise ApplyError(f"{missing[0]}: still absent {_POLICY_WAIT_S:g} s after its cores were switched on")
            self.host.clock.sleep(_POLL_S)
            waited_s += _POLL_S

    # (3)
    def _run_nvpmodel(self, target: Target) -> None:
        path = private_conf_path(self.host.run_dir, target)
        self.host.sysfs.place(path, private_conf_text(self.board, target))
        argv = [TOOL, "-m", str(self.board.base_mode.id), "-f", path]
        is_stuck = False
        left: tuple[str, ...] = ()
        try:
            done = self.host.processes.run(argv, timeout_s=NVPMODEL_TIMEOUT_S)
        except StuckError:
            is_stuck = True  # nobody writes beside a child that hangs in the kernel
            raise
        finally:
            if not is_stuck:
                left = self._repair_status()
        judge_nvpmodel(done)
        if left:
            raise ApplyError(f"nvpmodel's own files could not be put back: {left[0]}", mismatches=left)

    def _repair_status(self) -> tuple[str, ...]:
        """nvpmodel records mode and conf where the next boot reads them: they must be the operator's."""
        left = repair_status(self.host.sysfs, self.home)
        for sentence in left:
            log.error("nvpmodel's own file could not be put back: %s", sentence)
        return left

    def _write_caps(self, target: Target) -> None:
        for limits in target.cpu:
            self._write_limits(limits)
        gpu = self.board.domains.gpu
        if target.gpu is not None and gpu is not None:
            power = gpu.power_control_path
            try:
                if power is not None:
                    self._put(power, "on", "GPU powered while its limits are written")
                self._write_limits(target.gpu)
            finally:
                if power is not None:
                    self._put(power, target.flags[power], "GPU power as found")
        if self.board.domains.emc is not None and target.emc_text is not None:
            self._put(self.board.domains.emc.cap_path, target.emc_text, "EMC cap")

    def _write_limits(self, limits: Limits) -> None:
        """Minima are at or below the new maximum by now (step 1), so the maximum goes first."""
        self._put(limits.path_max, str(limits.maximum), "cap")
        self._put(limits.path_min, str(limits.rest_minimum), "minimum")

    # (4)
    def _switch_off(self, target: Target) -> None:
        for cpu in reversed(self.board.domains.cpu.cpus):
            path = online_path(cpu)
            if cpu not in target.online and self.host.sysfs.exists(path):
                self._put(path, "0", "core not of the mode")


def probe_method(host: Host, board: Board, home: Knobs, wanted: str) -> tuple[Method, str]:
    """Choose the method for a job by applying the reference, which changes nothing on an untouched board.

    `wanted` is "auto", "nvpmodel" or "sysfs". Returns (method, "") where it is as wanted, for "auto" otherwise own
    writes and `code: what nvpmodel did`. Raises what apply raises when "nvpmodel" alone was wanted, StuckError always.
    """
    if wanted == Method.SYSFS.value:
        return Method.SYSFS, ""
    try:
        Actuator(host, board, home, Method.NVPMODEL).apply(board.reference, ClocksPolicy.CAPPED, is_probe=True)
    except ToolAbsentError as error:
        failure, code = str(error), "tool_absent"
        if wanted == Method.NVPMODEL.value:
            raise
    except ApplyError as error:
        failure, code = str(error), error.code
        if wanted == Method.NVPMODEL.value:
            raise
    else:
        return Method.NVPMODEL, ""
    log.warning("nvpmodel cannot be used (%s): the caps are written by jouled itself", failure)
    return Method.SYSFS, f"{code}: {failure}"
