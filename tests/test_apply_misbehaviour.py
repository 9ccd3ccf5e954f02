"""What jouled believed and what the tree held, for each way in which the board's programs and kernel misbehave.

Every row ends in a named error or in a verified state; in every row nvpmodel's own files are the operator's afterwards,
the mask is as it was, and a restore leaves every knob as found.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jouled.board.apply import Actuator, ClocksPolicy, Method, probe_method
from jouled.board.board import discover
from jouled.board.clock import Ticker
from jouled.board.host import Host
from jouled.board.knobs import differences, put_back, read_knobs
from jouled.board.process import Child, Processes
from jouled.errors import ApplyError, StuckError, ToolAbsentError
from jouled.virtual.faults import set_faults
from jouled.virtual.processes import VirtualProcesses
from jouled.virtual.sysfs import VirtualSysfs
from jouled.virtual.tree import boot, make_tree
from jouletune.space import PowerMode

CAPPED, LOCKED = ClocksPolicy.CAPPED, ClocksPolicy.LOCKED
GPU = "/sys/class/devfreq/17000000.gpu"
EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
EMC_CAP = "/sys/kernel/nvpmodel_clk_cap/emc"
WANTED = PowerMode(12, 1_113_600_000, 408_000_000, 2_133_000_000)


class StepClock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    boottime_s = monotonic_s
    wall_s = monotonic_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s

    def every(self, period_s: float, tick: Callable[[float], None]) -> Ticker:
        raise NotImplementedError


class Case:
    """A virtual AGX Orin in MAXN whose misbehaviour is switched on after discovery."""

    def __init__(self, root: Path, *, children: bool = False, processes: Processes | None = None) -> None:
        make_tree(root)
        self.root = root
        self.sysfs = VirtualSysfs(root)
        self.clock = StepClock()
        processes = processes or VirtualProcesses(root, in_process=not children)
        self.host = Host(self.sysfs, processes, self.clock, root / "state")
        self.board = discover(self.host)
        self.home = read_knobs(self.sysfs, self.board.domains)

    def misbehave(self, **switches: Any) -> None:
        set_faults(str(self.root), **switches)

    def actuator(self, method: Method = Method.NVPMODEL) -> Actuator:
        return Actuator(self.host, self.board, self.home, method)

    def fails(self, policy: ClocksPolicy = CAPPED, method: Method = Method.NVPMODEL) -> ApplyError:
        with pytest.raises(ApplyError) as caught:
            self.actuator(method).apply(WANTED, policy)
        return caught.value

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text().strip()

    def gpu_cap_hz(self) -> int:
        return int(self.read(f"{GPU}/max_freq"))

    def ends_well(self) -> None:
        """What holds after every row."""
        assert self.read("/var/lib/nvpmodel/status") == "pmode:0000"
        assert self.read("/var/lib/nvpmodel/conf_file_path") == "/etc/nvpmodel.conf"
        assert self.read("/sys/devices/platform/gpu.0/tpc_pg_mask") == "0"
        self.misbehave()
        assert put_back(self.sysfs, self.home) == ()
        boot(self.root)
        assert differences(self.sysfs, self.home) == {}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


# --- nvpmodel ---------------------------------------------------------------------------------------------


def test_chroot_no_op_believed_nothing_done_tree_holds_the_old_mode(case: Case) -> None:
    case.misbehave(chroot=True)
    error = case.fails()
    assert error.code == "chroot"
    assert "Running in chroot" in str(error)
    assert case.gpu_cap_hz() == 1_300_500_000
    case.ends_well()


def test_chroot_makes_the_probe_choose_own_writes_which_then_hold(case: Case) -> None:
    case.misbehave(chroot=True)
    method, reason = probe_method(case.host, case.board, case.home, "auto")
    assert (method, reason.partition(":")[0]) == (Method.SYSFS, "chroot")
    case.actuator(method).apply(WANTED, CAPPED)
    assert case.gpu_cap_hz() == 408_000_000
    case.ends_well()


def test_prompt_for_any_mode_is_never_answered_and_named(tmp_path: Path) -> None:
    case = Case(tmp_path, children=True)  # a real child: its stdin is what matters
    case.misbehave(prompt=True)
    boot_id = case.read("/proc/sys/kernel/random/boot_id")
    error = case.fails()
    assert error.code == "prompt"
    assert "DO YOU WANT TO REBOOT NOW" in str(error)
    assert case.gpu_cap_hz() == 1_300_500_000
    assert case.read("/proc/sys/kernel/random/boot_id") == boot_id
    case.ends_well()


def test_prompt_makes_the_probe_choose_own_writes(case: Case) -> None:
    case.misbehave(prompt=True)
    method, reason = probe_method(case.host, case.board, case.home, "auto")
    assert (method, reason.partition(":")[0]) == (Method.SYSFS, "prompt")
    case.ends_well()


def test_where_nvpmodel_alone_was_wanted_the_probe_says_why_not(case: Case) -> None:
    case.misbehave(prompt=True)
    with pytest.raises(ApplyError) as caught:
        probe_method(case.host, case.board, case.home, "nvpmodel")
    assert caught.value.code == "prompt"


@pytest.mark.parametrize("writes", [0, 5, 20])
def test_a_hang_is_ended_and_named_wherever_it_comes(case: Case, writes: int) -> None:
    case.misbehave(hang={"nvpmodel": writes})
    error = case.fails()
    assert error.code == "apply_failed"
    assert "did not end within 10 s and was killed" in str(error)
    assert case.actuator().verify(WANTED, CAPPED) != ()
    case.ends_well()


def test_a_hanging_child_is_really_gone_when_the_error_comes(tmp_path: Path) -> None:
    case = Case(tmp_path, children=True)
    started: list[Child] = []
    case.host.processes.on_start = started.append
    case.misbehave(hang={"nvpmodel": 3})
    assert "killed" in str(case.fails())
    (child,) = started
    assert not Path(f"/proc/{child.pid}").exists()
    case.ends_well()


def test_a_hang_makes_the_probe_choose_own_writes(case: Case) -> None:
    case.misbehave(hang={"nvpmodel": 0})
    method, reason = probe_method(case.host, case.board, case.home, "auto")
    assert (method, reason.partition(":")[0]) == (Method.SYSFS, "apply_failed")
    case.ends_well()


@pytest.mark.parametrize("after", [0, 1, 12, 14, 16, 18, 20])
def test_partial_failure_believed_failed_tree_holds_half_a_mode(case: Case, after: int) -> None:
    case.misbehave(write_errors=[{"by": "nvpmodel", "errno": "EBUSY", "after": after}])
    error = case.fails()
    assert error.code == "apply_failed"
    assert "failed to set power mode!" in str(error)
    assert case.actuator().verify(WANTED, CAPPED) != ()
    case.ends_well()


def test_after_a_partial_failure_the_next_apply_is_whole(case: Case) -> None:
    case.misbehave(write_errors=[{"by": "nvpmodel", "errno": "EBUSY", "after": 16}])
    case.fails(LOCKED)
    case.misbehave()
    case.actuator().apply(WANTED, CAPPED)
    assert case.actuator().verify(WANTED, CAPPED) == ()
    case.ends_well()


def test_an_absent_tool_is_named_and_the_probe_goes_on_without_it(case: Case) -> None:
    case.misbehave(absent=["nvpmodel"])
    with pytest.raises(ToolAbsentError, match="nvpmodel: no such program") as caught:
        case.actuator().apply(WANTED, CAPPED)
    assert "nvidia-l4t-nvpmodel" in caught.value.hint
    method, reason = probe_method(case.host, case.board, case.home, "auto")
    assert (method, reason.partition(":")[0]) == (Method.SYSFS, "tool_absent")
    with pytest.raises(ToolAbsentError):
        probe_method(case.host, case.board, case.home, "nvpmodel")
    case.ends_well()


def test_a_slow_tool_within_its_limit_is_no_fault(case: Case) -> None:
    case.misbehave(slow_s={"nvpmodel": 4.0})
    case.actuator().apply(WANTED, CAPPED)
    assert case.gpu_cap_hz() == 408_000_000
    case.ends_well()


def test_a_tool_slower_than_its_limit_counts_as_hung_even_if_it_wrote_everything(case: Case) -> None:
    case.misbehave(slow_s={"nvpmodel": 11.0})
    assert "did not end within 10 s" in str(case.fails())
    case.ends_well()


# --- the kernel -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize(
    ("domain", "path", "got"),
    [
        ("gpu", f"{GPU}/max_freq", "510000000"),
        ("cpu", "/sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq", "1190400"),
        ("emc", EMC_CAP, "3199000000"),
    ],
)
def test_wrong_rounding_is_seen_knob_by_knob(case: Case, method: Method, domain: str, path: str, got: str) -> None:
    case.misbehave(wrong_rounding={domain: 1})
    error = case.fails(method=method)
    assert error.code == "apply_failed"
    assert any(sentence.startswith(f"{path}: wanted ") and f"got {got}" in sentence for sentence in error.mismatches)
    assert case.read(path) == got
    case.ends_well()


@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize(
    "path", [f"{GPU}/max_freq", EMC_CAP, "/sys/devices/system/cpu/cpufreq/policy8/scaling_max_freq"]
)
def test_a_write_that_succeeds_and_changes_nothing_is_no_success(case: Case, method: Method, path: str) -> None:
    case.misbehave(ignore_writes=[f"*{path.rpartition('/17000000.gpu')[2]}"])
    before = case.read(path)
    error = case.fails(method=method)
    assert len(error.mismatches) == 1
    assert error.mismatches[0].startswith(f"{path}: wanted ")
    assert case.read(path) == before
    case.ends_well()


@pytest.mark.parametrize("errno_name", ["EBUSY", "EIO", "EACCES"])
def test_own_writes_that_the_kernel_refuses_name_the_file_and_the_answer(case: Case, errno_name: str) -> None:
    case.misbehave(write_errors=[{"path": "*/devfreq/*/max_freq", "errno": errno_name}])
    error = case.fails(method=Method.SYSFS)
    assert f"{GPU}/max_freq: cannot write '408000000'" in str(error)
    assert case.gpu_cap_hz() == 1_300_500_000
    assert case.read("/sys/devices/platform/gpu.0/power/control") == "auto"
    case.ends_well()


def test_cores_that_do_not_come_back_end_in_an_error_within_two_seconds(case: Case) -> None:
    actuator = case.actuator(Method.SYSFS)
    actuator.apply(PowerMode(cores=4), CAPPED)
    case.misbehave(ignore_writes=["*/cpu*/online"])
    began_s = case.clock.now_s
    error = case.fails(method=Method.SYSFS)
    assert "policy4/scaling_max_freq: still absent" in str(error)
    assert 1.9 < case.clock.now_s - began_s < 2.2
    case.ends_well()


def test_a_core_that_stays_on_is_a_mismatch(case: Case) -> None:
    case.misbehave(ignore_writes=["*/cpu11/online"])
    with pytest.raises(ApplyError) as caught:
        case.actuator().apply(PowerMode(cores=11), CAPPED)
    assert caught.value.mismatches == ("/sys/devices/system/cpu/cpu11/online: wanted 0, got 1",)
    case.ends_well()


def test_a_re_run_of_the_nvpmodel_service_is_seen_by_verify_and_mended_by_the_next_apply(case: Case) -> None:
    actuator = case.actuator()
    actuator.apply(WANTED, CAPPED)
    case.host.processes.run(["nvpmodel", "-f", "/etc/nvpmodel.conf"], timeout_s=10.0)
    found = actuator.verify(WANTED, CAPPED)
    assert f"{GPU}/max_freq: wanted 408000000 Hz, got 1300500000 Hz" in found
    assert f"{EMC_CAP}: wanted 2133000000 Hz, got 3199000000 Hz" in found
    assert len([sentence for sentence in found if "scaling_max_freq" in sentence]) == 3
    actuator.apply(WANTED, CAPPED)
    case.ends_well()


# --- jetson_clocks ----------------------------------------------------------------------------------------


def test_a_lock_that_leaves_the_memory_out_is_seen_though_the_script_exits_0(case: Case) -> None:
    case.misbehave(write_errors=[{"by": "jetson_clocks", "path": "*/clk/emc/*", "errno": "EIO"}])
    error = case.fails(LOCKED)
    assert f"{EMC}/mrq_rate_locked: wanted 1, got 0" in error.mismatches
    assert case.read(f"{GPU}/min_freq") == "408000000"  # the rest was locked
    case.ends_well()


def test_an_emc_that_does_not_follow_its_lock_is_seen(case: Case) -> None:
    case.misbehave(ignore_writes=["*/clk/emc/rate"])
    (case.root / f"{EMC}/rate".lstrip("/")).write_text("665600000\n")
    error = case.fails(LOCKED)
    assert error.mismatches == (f"{EMC}/rate: wanted 2133000000 Hz, got 665600000 Hz",)
    case.ends_well()


def test_a_jetson_clocks_that_hangs_is_ended_and_named(case: Case) -> None:
    case.misbehave(hang={"jetson_clocks": 7})
    assert "jetson_clocks did not end within 20 s" in str(case.fails(LOCKED))
    case.ends_well()


def test_a_program_that_is_not_nvidias_is_not_said_to_be() -> None:
    with pytest.raises(ToolAbsentError, match="systemctl: no such program") as caught:
        Processes(path="/var/empty").run(["systemctl"], timeout_s=1.0)
    assert caught.value.hint == ""


def test_without_jetson_clocks_there_is_no_locked_policy(case: Case) -> None:
    case.misbehave(absent=["jetson_clocks"])
    with pytest.raises(ToolAbsentError, match="jetson_clocks") as caught:
        case.actuator().apply(WANTED, LOCKED)
    assert "nvidia-l4t-tools" in caught.value.hint
    assert "nvpmodel" not in caught.value.hint
    case.actuator().apply(WANTED, CAPPED)
    assert case.gpu_cap_hz() == 408_000_000
    case.ends_well()


# --- programs that no fault switch plays ------------------------------------------------------------------


def _tool(folder: Path, script: str) -> Processes:
    """A stand-in for nvpmodel alone on PATH."""
    folder.mkdir()
    tool = folder / "nvpmodel"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return Processes(path=f"{folder}:/usr/bin:/bin")


def test_a_prompt_with_exit_code_0_is_no_success(tmp_path: Path) -> None:
    script = "echo 'NVPM WARN: Reboot required for changing to this power mode: 1'; cat; exit 0"
    case = Case(tmp_path / "tree", processes=_tool(tmp_path / "bin", script))
    assert case.fails().code == "prompt"
    case.ends_well()


def test_a_silent_exit_code_0_that_changed_nothing_is_no_success(tmp_path: Path) -> None:
    case = Case(tmp_path / "tree", processes=_tool(tmp_path / "bin", "exit 0"))
    error = case.fails()
    assert error.code == "apply_failed"
    assert any(sentence.startswith(f"{GPU}/max_freq: wanted 408000000") for sentence in error.mismatches)
    case.ends_well()


def test_an_error_line_with_exit_code_0_is_no_success(tmp_path: Path) -> None:
    script = "echo 'NVPM ERROR: Error opening /sys/kernel/x: 13' >&2; exit 0"
    case = Case(tmp_path / "tree", processes=_tool(tmp_path / "bin", script))
    assert "NVPM ERROR: Error opening" in str(case.fails())
    case.ends_well()


def test_a_tool_that_records_another_mode_is_put_right(tmp_path: Path) -> None:
    folder = tmp_path / "tree/var/lib/nvpmodel"
    script = f"echo pmode:0002 > '{folder}/status'; echo /tmp/x.conf > '{folder}/conf_file_path'; exit 1"
    case = Case(tmp_path / "tree", processes=_tool(tmp_path / "bin", script))
    assert "failed with exit code 1" in str(case.fails())
    case.ends_well()


def test_a_tool_that_touches_the_mask_is_told_apart_and_not_used_again(tmp_path: Path) -> None:
    mask = tmp_path / "tree/sys/devices/platform/17000000.gpu/tpc_pg_mask"
    case = Case(tmp_path / "tree", processes=_tool(tmp_path / "bin", f"echo 240 > '{mask}'"))
    method, reason = probe_method(case.host, case.board, case.home, "auto")
    assert (method, reason.partition(":")[0]) == (Method.SYSFS, "mask_differs")
    assert "wanted TPC mask 0, got 240" in reason
    # jouled itself never writes a mask: until somebody does, every apply is refused before it writes
    assert case.fails(method=Method.SYSFS).code == "mask_differs"
    assert mask.read_text().strip() == "240"
    assert case.gpu_cap_hz() == 1_300_500_000


def test_beside_a_child_that_cannot_be_killed_nothing_is_written(tmp_path: Path) -> None:
    class Stuck(Processes):
        def run(self, argv, *, timeout_s):  # type: ignore[no-untyped-def]
            raise StuckError("nvpmodel (pid 1) does not end on SIGKILL", argv=argv)

    case = Case(tmp_path, processes=Stuck())
    status = tmp_path / "var/lib/nvpmodel/status"
    status.write_text("pmode:0002\n")  # as the stuck child left it
    with pytest.raises(StuckError):
        case.actuator().apply(WANTED, CAPPED)
    assert status.read_text() == "pmode:0002\n"
    assert case.gpu_cap_hz() == 1_300_500_000
    assert put_back(case.sysfs, case.home) == ()
    assert status.read_text() == "pmode:0000\n"


def test_the_conf_of_a_failed_apply_stays_for_the_report_and_is_gone_after_a_reboot(case: Case) -> None:
    case.misbehave(prompt=True)
    case.fails()
    (placed,) = (case.root / "run/jouled/modes").iterdir()
    assert placed.name == "12-1113600000-408000000-2133000000.conf"
    boot(case.root)
    assert not (case.root / "run/jouled").exists()
