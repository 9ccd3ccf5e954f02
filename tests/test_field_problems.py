"""A test for each field problem (docs/field-problems.md, by number): what a job ends with, and what its user reads.

A board's bad state is made by its name (`jouled virtual faults`) wherever it has one.
"""

from __future__ import annotations

import ast
import asyncio
import errno
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.faulty import Faulty
from tests.standin_python import DYNAMIC, interpreter, onnx, plan
from tests.test_kill import is_running
from tests.test_service import GPU, MODE, Machine, live, until

from jouled.board.applied import read_applied
from jouled.board.apply import Actuator, ClocksPolicy, Method
from jouled.board.board import discover
from jouled.board.clock import SystemClock
from jouled.board.grid import board_space
from jouled.board.host import Host
from jouled.board.jtop_meter import open_jtop
from jouled.board.knobs import read_knobs
from jouled.board.process import Processes
from jouled.board.rails import find_meter
from jouled.board.restore import restore
from jouled.board.sysfs import Sysfs
from jouled.board.winner import read_winner
from jouled.cli import main
from jouled.cli.arguments import here
from jouled.config import Config, load
from jouled.errors import NotSupportedError, UsageError
from jouled.job.cancel import Cancellation
from jouled.job.events import Event
from jouled.job.job import run_job
from jouled.job.request import Request
from jouled.job.result import JobResult
from jouled.ledger import Ledger
from jouled.metrics import Exposition
from jouled.service.face import Service
from jouled.service.notify import Notifier
from jouled.service.outlets import outlets
from jouled.state import State
from jouled.study import open_storage, study_path
from jouled.workload import tensorrt_runner, users
from jouled.workload.configured import ConfiguredWorkload
from jouled.workload.runner import Arrival
from jouled.workload.variants import variants_of

GOOD = ("tuned", "no_gain")
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "field-problems.md"
STANDINS = ROOT / "tests" / "standins"


def on_trial(count: int, act: Callable[[], None]) -> Callable[[Event], None]:
    """Act once, when `count` trials are over."""
    seen: list[Event] = []

    def watch(event: Event) -> None:
        if event["event"] == "trial":
            seen.append(event)
            if len(seen) == count:
                act()

    return watch


# --- nvpmodel ------------------------------------------------------------------------------------------------


def test_01_prompt_for_a_reboot_is_never_answered_and_the_caps_are_written_without_nvpmodel(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "nvpmodel-prompts")
    boot, status = board.host.sysfs.read("/proc/sys/kernel/random/boot_id"), board.status_files()
    result = board.run()
    assert (result.outcome in GOOD, result.method) == (True, "sysfs")
    assert board.says(result, "nvpmodel cannot be used: prompt: .*DO YOU WANT TO REBOOT NOW")
    assert board.host.sysfs.read("/proc/sys/kernel/random/boot_id") == boot
    assert board.status_files() == status


@pytest.mark.parametrize("domain", ["gpu", "cpu", "emc"])
def test_02_write_that_succeeds_and_changes_nothing_is_a_fault_and_no_verdict(tmp_path: Path, domain: str) -> None:
    board = Faulty(tmp_path)
    before = board.knobs()
    board.suffer(f"write-ignored:{domain}")
    result = board.run(grid__shape={"gpu": "1x3x1", "cpu": "1x1x3", "emc": "3x1x1"}[domain])
    assert result.outcome == "board_fault"
    assert board.says(result, r"apply_failed: .*max_freq: wanted \d+ k?Hz, got|apply_failed: .*emc: wanted \d+ Hz, got")
    board.recover()
    restore(board.host)
    assert board.knobs() == before


def test_02_conf_with_a_name_that_is_none_is_said_with_its_line(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "conf-unknown-param")
    result = board.run()
    assert result.outcome == "board_fault"
    assert board.says(result, r"/etc/nvpmodel.conf, line \d+: wanted the name of a PARAM section above, got .GPU_TYPO.")


def test_02_cap_between_two_clocks_counts_as_the_lower_one(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "conf-off-table")
    result = board.run()
    assert result.outcome in GOOD
    assert result.reference is not None
    assert result.reference.candidate.mode.gpu_hz == 1_020_000_000
    assert "1020000001" in board.machine.kernel.load("/etc/nvpmodel.conf")
    assert all((mode.gpu_hz or 0) <= 1_020_000_000 for mode in board.tried())


@pytest.mark.parametrize(
    ("cap", "is_right"),
    [("1020000000", True), ("1020000001", True), ("1122000000", False), ("1019999999", False), ("0", False)],
)
def test_02_the_reference_is_right_as_the_kernel_rounds_its_cap(tmp_path: Path, cap: str, is_right: bool) -> None:
    board = Faulty(tmp_path, "conf-off-table")
    host = board.machine.host(tmp_path)
    found = discover(host)
    assert found.domains.gpu is not None
    path = f"{found.domains.gpu.path}/max_freq"
    host.sysfs.real(path).write_text(cap)
    home = read_knobs(host.sysfs, found.domains)
    wrong = Actuator(host, found, home, Method.SYSFS).verify(found.reference, ClocksPolicy.CAPPED)
    assert [text for text in wrong if path in text] == ([] if is_right else [*wrong])
    assert bool(wrong) is not is_right


def test_03_gpu_that_appears_late_is_fixed_until_it_is_there(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "gpu-absent")
    result = board.run()
    assert result.outcome in GOOD
    assert board.says(result, r"no GPU devfreq device was found \(it may appear after the first GPU use\)")
    assert {mode.gpu_hz for mode in board.tried()} == {None}
    board.recover()
    board.events.clear()
    assert board.run().outcome in GOOD
    assert len({mode.gpu_hz for mode in board.tried()}) > 1


def test_03_gpu_that_is_gone_under_a_winner_that_caps_it_is_a_fault_with_the_way_out(tmp_path: Path) -> None:
    board = Faulty(tmp_path)
    assert board.run().outcome == "tuned"
    in_force = board.knobs()
    board.suffer("gpu-absent")
    result = board.run()
    assert result.outcome == "board_fault"
    assert board.says(result, "winner in force was found with another set of clocks: GPU cannot be seen now")
    assert "jouled apply reference" in result.hint
    board.recover()
    assert board.knobs() == in_force


def test_03_board_that_cannot_be_read_while_it_boots_is_looked_at_again_by_the_daemon(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    path = tmp_path / "board/proc/device-tree/compatible"
    path.rename(tmp_path / "away")

    async def work(service: Service) -> None:
        await until(lambda: service.status().board is not None)

    async def appears(service: Service) -> None:
        assert any("no Jetson" in text for text in service.status().warnings)
        (tmp_path / "away").rename(path)
        machine.clock.ahead_s += 60.0
        await work(service)

    async def both() -> None:
        server = await asyncio.start_unix_server(machine.serve, machine.socket)
        service = Service(machine.site(), _door(machine), lambda _: load(None), Notifier({}), tick_s=0.01)
        life = asyncio.get_running_loop().create_task(service.run())
        try:
            await until(lambda: service.status().warnings)
            await appears(service)
        finally:
            service.stop()
            await asyncio.wait_for(life, 20)
            server.close()
            await server.wait_closed()

    asyncio.run(both())


def _door(machine: Machine) -> Any:
    from jouled.service.workers import SocketDoor

    return SocketDoor(machine.socket)


def test_04_mask_is_left_alone_whatever_the_kernel_says_to_it(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "mask-differs")
    mask = board.host.sysfs.read("/sys/devices/platform/gpu.0/tpc_pg_mask")
    result = board.run()
    assert result.outcome in GOOD
    assert board.says(result, "MAXN wants mask 0, the board has 128; jouled leaves it so")
    assert board.host.sysfs.read("/sys/devices/platform/gpu.0/tpc_pg_mask") == mask == "128"
    assert result.invalid == {}


def test_05_modes_are_known_by_their_ids_and_not_by_their_places(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "conf-id-gap", base_mode="MODE_50W")
    result = board.run()
    assert (result.outcome in GOOD, result.base_mode) == (True, "MODE_50W")
    assert board.status_files()[0] == "pmode:0005"


def test_05_recorded_mode_that_the_conf_does_not_hold_is_said_with_those_it_does(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "conf-id-gap")
    (board.machine.root / "var/lib/nvpmodel/status").write_text("pmode:0001\n")
    result = board.run()
    assert result.outcome == "not_supported"
    assert board.says(result, r"in nvpmodel mode 1, which /etc/nvpmodel.conf does not hold \(it has: 0 MAXN, 3 ")
    assert result.hint.startswith("set a stock mode first")


def test_06_mode_is_found_between_the_errors_that_nvpmodel_prints(tmp_path: Path) -> None:
    board = Faulty(tmp_path)
    faults = {"read_errors": {"/var/lib/nvpmodel/status": "EACCES"}, "fan_warning": True, "errors_to_stdout": True}
    (board.machine.root / ".virtual" / "faults.json").write_text(json.dumps(faults))
    found = board.board()
    assert found.base_mode.name == "MAXN"
    assert any("nvpmodel -q is asked instead" in text for text in found.warnings)
    board.recover()
    board.suffer("nvpmodel-noise")
    result = board.run()
    assert (result.outcome in GOOD, result.method) == (True, "nvpmodel")


def test_07_conf_of_a_bigger_module_is_refused_with_what_to_do(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "conf-of-other-board")
    result = board.run()
    assert result.outcome == "not_supported"
    assert board.says(result, "mode MAXN switches on cpu31; this board has 12 cores")
    assert "relink /etc/nvpmodel.conf" in result.hint


def test_07_link_that_was_made_anew_makes_the_winner_stale_and_no_stock_file_is_touched(tmp_path: Path) -> None:
    board = Faulty(tmp_path)
    stock = board.machine.root / "etc/nvpmodel/nvpmodel_p3701_0000.conf"
    before = stock.read_bytes()
    first = board.run()
    assert first.outcome == "tuned"
    board.suffer("conf-relinked")
    second = board.run()
    assert second.outcome in GOOD
    assert second.incumbent == second.reference
    assert first.incumbent == first.reference != first.winner
    assert stock.read_bytes() == before


def test_08_after_a_reboot_the_stock_mode_is_in_force_and_verify_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = Faulty(tmp_path)
    stock = board.knobs()
    assert board.run().outcome == "tuned"
    assert board.knobs() != stock
    board.machine.reboot()
    board.machine.close()
    assert board.knobs() == stock
    assert main(["verify", "--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path)]) == 0
    assert "ok: in force as it should be: the reference" in capsys.readouterr().out


def test_08_after_a_reboot_the_daemon_puts_the_winner_in_force_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put_in_force(boot="an earlier one")
    machine.clock.boot_s = 5.0

    async def work(service: Service) -> None:
        assert service.status().state is State.WAITING
        machine.clock.ahead_s += 100.0
        await until(lambda: service.status().state is State.IDLE)

    live(machine, work)
    assert machine.commands() == ["apply winner boot"]


def test_09_jetson_clocks_started_by_somebody_in_mid_job_costs_a_window_and_is_named(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "jetson-clocks-at-boot:after_s=30")
    result = board.run()
    assert result.outcome in GOOD
    assert result.invalid == {"mode_changed": 1}
    assert board.says(result, r"mode_changed: .*scaling_min_freq: wanted \d+ kHz, got 2201600 kHz")


def test_10_clocks_that_were_locked_before_are_locked_afterwards(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "jetson-clocks-on")
    before = board.knobs()
    assert before["/sys/class/devfreq/17000000.gpu/min_freq"] == "1300500000"
    result = board.run(on_event=on_trial(2, lambda: board.cancellation.ask("user", "stopped by a test")))
    assert (result.outcome, result.reason_text) == ("cancelled", "stopped by a test")
    assert board.knobs() == before


@pytest.mark.parametrize("method", ["nvpmodel", "sysfs"])
def test_11_limits_are_written_in_the_order_that_the_kernel_takes(tmp_path: Path, method: str) -> None:
    board = Faulty(tmp_path, "jetson-clocks-on")
    refused: list[str] = []
    write = board.machine.kernel.__class__.write

    def watched(kernel: Any, path: str, data: bytes) -> None:
        try:
            write(kernel, path, data)
        except OSError as error:
            refused.append(f"{path}: {error.errno}")
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(board.machine.kernel.__class__, "write", watched)
        result = board.run(board__method=method, job__budget=3)
        assert (result.outcome in GOOD, result.method, result.invalid) == (True, method, {})
        assert refused == []
        board.machine.sysfs.kernel.store("/sys/class/devfreq/17000000.gpu/max_freq", "612000000")
        with pytest.raises(OSError, match="Invalid argument"):
            board.machine.sysfs.kernel.write("/sys/class/devfreq/17000000.gpu/min_freq", b"816000000")
    assert refused == [f"/sys/class/devfreq/17000000.gpu/min_freq: {errno.EINVAL}"]


def test_12_clock_that_is_not_in_the_table_is_refused_with_the_table(tmp_path: Path) -> None:
    board = Faulty(tmp_path)
    with pytest.raises(UsageError, match=r"grid.gpu_hz: 600000000 is not one of the base mode's: 306000000, 408000000"):
        board.run(grid__gpu_hz=[600_000_000])
    assert board.trials() == []
    assert board.is_clean()


# --- sensors -------------------------------------------------------------------------------------------------


def test_13_total_without_one_of_its_rails_is_refused_with_what_there_is(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "rail-renamed")
    result = board.run()
    assert result.outcome == "not_supported"
    assert board.says(result, "cannot be measured: no VDD_GPU_SOC; rails here: VDDQ_VDD2_1V8AO, VDD_CPU_CV, VDD_NEW")
    assert 'board.on_partial_rails = "partial"' in result.hint
    assert board.trials() == []


def test_13_where_a_part_is_allowed_it_is_named_as_one(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "rail-renamed")
    result = board.run(board__on_partial_rails="partial")
    assert result.outcome in GOOD
    assert (result.rail, result.rail_coverage) == ("VDD_CPU_CV+VIN_SYS_5V0", "partial, without VDD_GPU_SOC")


def test_14_disabled_channel_costs_nothing_but_itself(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "rail-disabled")
    result = board.run()
    assert (result.outcome in GOOD, result.rail_coverage) == (True, "module")
    assert result.rail == "VDD_GPU_SOC+VDD_CPU_CV+VIN_SYS_5V0"


def test_14_channel_of_the_total_that_gives_no_value_costs_its_windows(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "sensor-error:ENODATA")
    result = board.run()
    assert result.outcome in GOOD
    assert set(result.invalid) == {"sensor_gap"}
    assert board.says(result, "sensor_gap: ")


def test_15_iio_driver_of_l4t_32_is_read_in_milliwatts_and_its_board_not_tuned(tmp_path: Path) -> None:
    folder = tmp_path / "nano/sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0"
    folder.mkdir(parents=True)
    for name, text in {"rail_name_0": "POM_5V_IN", "in_power0_input": "2345"}.items():
        (folder / name).write_text(f"{text}\n")
    volts, amperes = find_meter(Sysfs(tmp_path / "nano"), ("POM_5V_IN",)).read()[0]
    assert volts * amperes == pytest.approx(2.345)
    board = Faulty(tmp_path / "old")
    release = board.machine.root / "etc/nv_tegra_release"
    release.write_text("# R32 (release), REVISION: 7.1, GCID: 29818004, BOARD: t210ref, EABI: aarch64, DATE: x\n")
    result = board.run()
    assert result.outcome == "not_supported"
    assert board.says(result, "L4T 32.7.1 is not supported: jouled tunes boards of L4T 36, 38 and 39")


def test_16_power_of_zero_is_a_fault_and_never_the_best_mode(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "sensor-zero")
    result = board.run()
    assert (result.outcome, result.reason_code) == ("board_fault", "sensor_zero")
    assert result.winner is None
    assert result.reference is None
    assert board.says(result, "the reference could not be measured: sensor_zero")


def test_17_policy_that_is_gone_at_the_end_of_a_job_is_waited_for(tmp_path: Path) -> None:
    board = Faulty(tmp_path)
    before = board.knobs()

    def goes() -> None:
        board.suffer("policy-vanishes:after_s=0,for_s=20")
        board.cancellation.ask("user", "enough")

    result = board.run(on_event=on_trial(2, goes))
    assert (result.outcome, board.is_clean()) == ("cancelled", True)
    board.recover()
    assert board.knobs() == before


def test_17_one_bad_reading_or_an_offline_core_takes_no_other_series_along(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    cpus = machine.sysfs.real("/sys/devices/system/cpu")
    (cpus / "cpu4/online").write_text("0\n")
    (cpus / "cpu4/cpufreq").unlink()
    (cpus / "cpufreq/policy4/scaling_cur_freq").unlink()
    chip = machine.sysfs.glob("/sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon*/in1_input")[0]
    machine.sysfs.real(chip).write_text("banana\n")
    rendered = []

    async def work(service: Service) -> None:
        await until(lambda: service.status().readings is not None)
        rendered.append(Exposition(service.status).render().decode())

    live(machine, work)
    assert "jouled_rail_power_watts{" not in rendered[0]  # a part of the total is not the total, nor is it 0 W
    assert re.search(r'jouled_sensor_errors_total\{sensor="rails"\} [1-9]', rendered[0])
    assert 'jouled_clock_hertz{domain="gpu"}' in rendered[0]
    assert 'jouled_clock_cap_hertz{domain="cpu"}' in rendered[0]
    assert 'jouled_temperature_celsius{zone="tj-thermal"}' in rendered[0]


def test_18_gpu_is_found_by_name_where_the_device_tree_says_nothing(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "gpu-no-of-node")
    result = board.run()
    assert result.outcome in GOOD
    assert len({mode.gpu_hz for mode in board.tried()}) > 1
    assert "no GPU devfreq device" not in board.told(result)


def test_18_thor_is_discovered_by_its_own_names_and_not_tuned(tmp_path: Path) -> None:
    board = Faulty(tmp_path, board="thor")
    gpu = board.board().domains.gpu
    assert gpu is not None
    assert gpu.path.endswith("gpu-gpc-0")
    result = board.run()
    assert result.outcome == "not_supported"
    assert board.says(
        result, "Jetson Thor is only observed: which caps and GPU masks its nvpmodel.conf sets is not known"
    )
    assert 'mode = "observe"' in result.hint


# --- heat and current ----------------------------------------------------------------------------------------


def test_19_over_current_in_a_trial_makes_it_invalid_and_it_is_measured_again(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "over-current:oc3")
    result = board.run()
    assert result.outcome in GOOD
    assert result.invalid == {"throttled": 1}
    assert board.says(result, "throttled: .*over-current.*41|throttled: 41 over-current")


def test_19_over_current_that_is_there_in_the_boards_own_mode_is_normal_and_said(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "over-current-always:10")
    result = board.run()
    assert result.outcome in GOOD
    assert result.invalid == {}
    assert board.says(result, "counts 9.9 over-current events a second in its own mode; that many are taken as normal")


def test_20_throttling_without_an_end_ends_the_job_after_three_windows(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "throttled:after_s=0,for_s=inf")
    before = board.knobs()
    result = board.run()
    assert (result.outcome, result.reason_code) == ("unstable", "throttled")
    assert board.says(result, "the reference could not be measured: throttled: .*cpufreq-cpu0")
    assert len(board.trials()) == 3
    assert board.knobs() == before


def test_21_readings_that_stand_still_are_noticed_and_said(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "sensor-stalled")
    result = board.run()
    assert (result.outcome, result.reason_code) == ("unstable", "sensor_stalled")
    assert board.says(result, "sensor_stalled")
    assert not result.applied


@contextmanager
def jtop_that(folder: Path, start: str) -> Iterator[str]:
    """An interpreter whose jtop client fails to start with `start`."""
    (folder / "plan.json").write_text(json.dumps({"then": "end", "interval": 0.05, "sets": [], "start": start}))
    python = folder / "python"
    settings = f"JTOP_PLAN={folder / 'plan.json'} PYTHONPATH={STANDINS}"
    python.write_text(f'#!/bin/sh\nshift  # -I\n{settings} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    yield str(python)


def test_21_jtop_is_asked_only_where_it_must_and_an_inactive_service_is_said(tmp_path: Path) -> None:
    with (
        jtop_that(tmp_path, "The jtop.service is not active. Please run:\nsudo jtop --install-service") as python,
        pytest.raises(NotSupportedError, match=r"The jtop.service is not active") as refused,
    ):
        open_jtop(Processes(), ("VDD_IN",), averaging_s=0.43, allow_partial=False, find=lambda: python)
    assert "systemctl start jtop" in refused.value.hint


def test_22_slow_nvpmodel_is_waited_for_and_none_runs_beside_a_window(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "nvpmodel-slow:6")
    phases: list[str] = ["before"]
    started: Counter[str] = Counter()
    run = board.host.processes.run

    def counted(argv: Any, *, timeout_s: float) -> Any:
        started[phases[-1]] += 1
        return run(argv, timeout_s=timeout_s)

    def follow(event: Event) -> None:
        phases.append(str(event.get("phase", event["event"])) if event["event"] == "progress" else event["event"])

    board.host.processes.run = counted  # type: ignore[method-assign]
    result = board.run(on_event=follow)
    assert (result.outcome in GOOD, result.method, result.invalid) == (True, "nvpmodel", {})
    assert sum(started.values()) >= 5
    assert not {"settle", "pilot", "window"} & set(started)


def test_22_nvpmodel_that_never_ends_is_ended_and_done_without(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "nvpmodel-hangs")
    result = board.run()
    assert (result.outcome in GOOD, result.method) == (True, "sysfs")
    assert board.says(result, "nvpmodel cannot be used: .*did not end within 10 s and was killed")


def test_23_jtop_client_and_service_of_two_versions_are_said_in_jtops_words(tmp_path: Path) -> None:
    with (
        jtop_that(tmp_path, "Mismatch version jtop service: [4.2.1] and client: [7.2.2].") as python,
        pytest.raises(NotSupportedError, match=r"Mismatch version jtop service: \[4.2.1\] and client: \[7.2.2\]"),
    ):
        open_jtop(Processes(), ("VDD_IN",), averaging_s=0.43, allow_partial=False, find=lambda: python)
    assert Faulty(tmp_path / "board").run().outcome in GOOD  # where the board's own sensors can be read


# --- the study -----------------------------------------------------------------------------------------------


def test_24_locked_database_costs_the_job_nothing(tmp_path: Path) -> None:
    board = Faulty(tmp_path)
    assert board.run().outcome == "tuned"
    with closing(sqlite3.connect(study_path(tmp_path), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        result = board.run(job__budget=2)
    assert result.outcome in GOOD
    assert Ledger(tmp_path).read().of_job(result.job)[-1]["event"] == "finished"
    assert board.says(result, "the study database lacked 1 earlier jobs; they were told again from the ledger")


@pytest.mark.parametrize("name", ["ledger-torn", "study-torn"])
def test_25_what_a_loss_of_power_has_cut_off_is_set_aside_and_the_rest_is_used(tmp_path: Path, name: str) -> None:
    board = Faulty(tmp_path)
    first = board.run()
    kept = len(Ledger(tmp_path).read().events)
    board.suffer(name)
    result = board.run()
    assert result.outcome in GOOD
    assert result.incumbent is not None
    assert first.winner is not None
    assert result.incumbent.candidate == first.winner.candidate
    told = {
        "ledger-torn": r"ledger.jsonl: line \d+ set aside in ledger.damaged: it is torn",
        "study-torn": "lacked 1 earlier jobs; they were told again from the ledger",
    }
    assert board.says(result, told[name]), board.told(result)
    assert len(Ledger(tmp_path).read().of_job(first.job)) >= kept - 1


def test_26_job_killed_in_mid_trial_loses_no_point_of_the_grid(tmp_path: Path) -> None:
    board = Faulty(tmp_path)
    before = board.knobs()
    options = ["--virtual", "agx-orin-64gb", "--state-dir", str(tmp_path), "--latency-bound-ratio", "3"]
    options += ["--grid", "1x2x2", "--sampler", "grid", "--json-lines"]
    (board.machine.root / ".virtual" / "faults.json").write_text('{"hold": {"by": "clock", "after_s": 150}}')
    child = subprocess.Popen([sys.executable, "-m", "jouled.cli", "tune", *options], stdout=subprocess.DEVNULL)
    wait_for((board.machine.root / ".virtual" / "held").exists)
    child.kill()
    child.wait(timeout=60)
    (board.machine.root / ".virtual" / "held").unlink()
    again = Faulty(tmp_path)
    again.recover()
    assert again.knobs() != before
    result = again.run(grid__shape="1x2x2", job__sampler="grid", target__latency_bound_ratio=3.0, job__budget=9)
    assert result.outcome in GOOD
    assert again.says(result, r"was interrupted; \d+ knobs were put back first")
    assert len(again.tried()) == 4
    assert not is_running(child.pid)


def wait_for(condition: Callable[[], bool]) -> None:
    """60 s are a failure."""
    pause = threading.Event()
    for _ in range(6000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came")


def test_27_no_feasible_mode_is_an_ending_of_its_own(tmp_path: Path) -> None:
    board = Faulty(tmp_path)
    before = board.knobs()
    result = board.run(target__latency_bound_ratio=None, target__latency_bound_s=0.0001)
    assert (result.outcome, result.exit_code(fail_on_no_gain=False)) == ("no_feasible", 3)
    assert board.says(result, r"neither what is in force \(latency\) nor any candidate tried keeps the limits")
    assert board.knobs() == before
    assert result.winner is None


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid", "descent"])
def test_28_no_point_of_a_small_grid_is_tried_twice_and_the_search_ends(tmp_path: Path, sampler: str) -> None:
    board = Faulty(tmp_path)
    result = board.run(grid__shape="2x2x2", job__sampler=sampler, job__budget=30, target__latency_bound_ratio=3.0)
    searched = Counter(trial["index"] for trial in board.trials() if trial["purpose"] == "search")
    assert result.outcome in GOOD
    assert max(searched.values()) == 1
    assert len(searched) <= 7
    assert result.reason_code == "converged"


def test_29_constraints_are_told_the_way_that_optuna_will_keep(tmp_path: Path) -> None:
    source = "".join(path.read_text() for folder in ("tuner", "daemon") for path in (ROOT / folder).rglob("*.py"))
    assert "constraints_func" not in source
    assert re.search(r'"optuna>=5', (ROOT / "pyproject.toml").read_text())
    board = Faulty(tmp_path)
    result = board.run(job__sampler="tpe", target__latency_bound_ratio=1.1)  # warnings are errors here
    assert result.outcome in GOOD
    assert result.winner is None or result.winner.latency_upper_s <= (result.latency_bound_s or 0.0)


# --- the workload --------------------------------------------------------------------------------------------


class Engines:
    """A virtual board whose workload is a runner's child with the stand-in TensorRT."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(users, "RUNNER_USER", "nobody-of-that-name")
        self.folder = folder
        self.board = Faulty(folder / "state")
        self.host = Host(Sysfs(), Processes(), SystemClock(), folder / "state")

    def config(self, line: str, python: Path) -> Config:
        path = self.folder / "config.toml"
        path.write_text(f'[workloads.detector]\narrival = "back_to_back"\npython = "{python}"\n{line}\n')
        return load(path, {"target.latency_bound_ratio": 1.4, "job.budget": 3})

    def workload(self, line: str, python: Path) -> ConfiguredWorkload:
        config = self.config(line, python)
        entry = config.chosen()
        assert entry is not None
        made = ConfiguredWorkload(self.host, config, entry, Arrival())
        made.runner()
        return made

    def run(self, line: str, python: Path) -> JobResult:
        config, workload = self.config(line, python), self.workload(line, python)
        board = self.board
        request = Request(
            config,
            "detector",
            lambda found: board_space(found, config.grid, variants_of(workload.entry)),
            prepare=workload.prepare,
        )
        sinks = (board.events.append,)
        return run_job(board.host, request, workload.runner(), cancellation=Cancellation(), sinks=sinks)


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    return Engines(tmp_path, monkeypatch)


def test_30_plan_that_cannot_be_loaded_fails_with_tensorrts_words_before_a_clock_is_changed(engines: Engines) -> None:
    before = engines.board.knobs()
    path = engines.folder / "bad.plan"
    path.write_bytes(b"ftrt" + bytes(100))
    result = engines.run(f'engine = "{path}"', interpreter(engines.folder))
    assert result.outcome == "workload_failed"
    assert engines.board.says(result, "plan_invalid: .*bad.plan")
    assert engines.board.trials() == []
    assert engines.board.knobs() == before


def test_31_a_model_is_built_once_and_the_same_plan_serves_every_trial(engines: Engines) -> None:
    python = interpreter(engines.folder)
    line = f'onnx = "{onnx(engines.folder, tensors=DYNAMIC)}"\nbatch = [1, 4]'
    plans = []
    for _ in range(2):
        workload = engines.workload(line, python)
        workload.prepare(lambda: None)
        workload.runner().close()
        plans.append({path: path.stat().st_ino for path in engines.folder.glob("state/plans/*.plan")})
    assert plans[0] == plans[1]
    assert len(plans[0]) == 2  # one for each batch size


def test_32_engine_is_built_in_the_boards_own_mode_and_a_build_that_fails_ends_the_job(engines: Engines) -> None:
    before = engines.board.knobs()
    python = interpreter(engines.folder, faults={"build": "none"})
    result = engines.run(f'onnx = "{onnx(engines.folder)}"', python)
    assert result.outcome == "workload_failed"
    assert engines.board.says(result, "build_failed: ")
    started = next(event for event in engines.board.events if event["event"] == "job_started")
    applied = [event["index"] for event in engines.board.events if event["event"] == "mode_applied"]
    assert applied == [started["space"]["reference"]]
    assert engines.board.trials() == []
    assert engines.board.knobs() == before


def test_33_crash_within_cuda_ends_a_child_and_not_the_job(engines: Engines) -> None:
    path = plan(engines.folder)
    python = interpreter(engines.folder, faults={"crash_at": 1})
    result = engines.run(f'engine = "{path}"\nbatch = [2]', python)
    assert (result.outcome, result.reason_code) == ("workload_failed", "workload_died")
    assert engines.board.says(result, "tensorrt runner .*ended by signal 11"), engines.board.told(result)
    code = "import sys, jouled.cli.run, jouled.worker.server, jouled.job.job, jouled.workload.process_runner\n"
    code += "print([name for name in sys.modules if name.partition('.')[0] in ('pycuda', 'tensorrt', 'cuda')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        pytest.param("pycuda", r"with the CUDA toolkit: sudo env PATH=\S+ python3 -m pip install pycuda", id="34"),
        pytest.param("tensorrt", "apt install python3-libnvinfer; in a venv .* --system-site-packages", id="35"),
    ],
)
def test_34_35_binding_that_is_not_there_is_named_with_what_to_do(engines: Engines, missing: str, said: str) -> None:
    python = interpreter(engines.folder, modules=tuple({"tensorrt", "pycuda"} - {missing}))
    result = engines.run(f'engine = "{plan(engines.folder)}"', python)
    assert result.outcome == "workload_failed"  # nor is there a trtexec here
    assert engines.board.says(result, f"has no module {missing}")
    assert engines.board.says(result, said)
    assert engines.board.trials() == []


# --- the service ---------------------------------------------------------------------------------------------


def test_36_systemd_is_told_without_any_package_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("systemd", "systemd.daemon", "systemd.journal"):
        monkeypatch.setitem(sys.modules, name, None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")}).ready()
        assert listening.recv(100) == b"READY=1"


def test_37_commands_that_are_told_can_be_typed_where_jouled_is_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/opt/jouled/bin/jouled", "tune"])
    assert here("next: jouled verify", "--virtual thor") == "next: /opt/jouled/bin/jouled verify --virtual thor"
    for called, name in ((".venv/bin/jouled", ".venv/bin/jouled"), ("jouled", "jouled"), ("pytest", "jouled")):
        told = here("try: jouled tune --virtual thor; sudo jouled install; /etc/jouled status", "--table a.csv", called)
        assert told == f"try: {name} tune --virtual thor; sudo {name} install; /etc/jouled status"
    (tmp_path / "jouled").write_text("#!/bin/sh\n")
    (tmp_path / "jouled").chmod(0o755)
    assert here("jouled status", "", f"{tmp_path}/jouled") == "jouled status"  # PATH finds the same
    assert here("jouled status", "", "./it is/jouled") == "'./it is/jouled' status"


def test_38_each_part_keeps_to_the_oldest_python_that_it_runs_on() -> None:
    assert 'requires-python = ">=3.10"' in (ROOT / "pyproject.toml").read_text()
    for path in [*(ROOT / "daemon").rglob("*.py"), *(ROOT / "tuner").rglob("*.py")]:
        oldest = (3, 8) if path.name == "tensorrt_runner.py" else (3, 10)
        ast.parse(path.read_text(), str(path), feature_version=oldest)
    assert "3.8" in (tensorrt_runner.__doc__ or "") + Path(tensorrt_runner.__file__).read_text()[:4000]


def test_39_no_child_can_speak_to_systemd_in_our_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"NOTIFY_SOCKET": "/gone", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    notifier = Notifier()
    assert not set(names) & set(os.environ)
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\nenv\n")
    tool.chmod(0o755)
    out = Processes(path=f"{tmp_path}:/usr/bin:/bin").run(["tool"], timeout_s=10.0).stdout
    assert not [line for line in out.splitlines() if line.startswith(("NOTIFY_", "WATCHDOG_"))]
    notifier.ready()  # nobody listens there: no error


def test_40_pulse_is_the_loops_own_and_the_end_asks_for_the_time_that_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    machine = Machine(tmp_path / "state")
    said: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        listening.settimeout(10)
        notifier = Notifier({"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "3000000"})

        async def both() -> None:
            service = Service(machine.site(), _door(machine), lambda _: load(None), notifier, tick_s=0.01)
            life = asyncio.get_running_loop().create_task(service.run())
            await until(lambda: service.status().in_force is not None)
            await asyncio.sleep(0)
            service.stop()
            await asyncio.wait_for(life, 20)

        asyncio.run(both())
        while not (said and said[-1].startswith(b"EXTEND_TIMEOUT_USEC=")):
            said.append(listening.recv(200))
    assert said.index(b"READY=1") < said.index(b"WATCHDOG=1") < said.index(b"STOPPING=1")
    assert int(said[-1].partition(b"=")[2]) >= 5_000_000


def test_41_port_that_is_taken_costs_the_metrics_and_not_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"

        async def work(service: Service) -> None:
            async with outlets(service, service.config.metrics):
                assert any(where in warning for warning in service.status().warnings)
                assert service.status().state is State.IDLE

        live(machine, work, metrics__listen=where)
    assert any(where in record.getMessage() for record in caplog.records)
    assert Faulty(tmp_path / "board2").run(metrics__listen=where).outcome in GOOD


def test_42_who_changes_a_knob_in_mid_trial_costs_it_and_is_named_by_the_knob(tmp_path: Path) -> None:
    board = Faulty(tmp_path, "second-writer:cpu")
    result = board.run()
    assert result.outcome in GOOD
    assert result.invalid == {"mode_changed": 1}
    assert board.says(result, r"mode_changed: .*policy0/scaling_max_freq: wanted \d+ kHz, got 960000 kHz")


def test_42_who_changes_a_winners_knob_again_and_again_is_not_fought_for_ever(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put_in_force()
    machine.obeys = False
    machine.sysfs.write(f"{GPU}/max_freq", "1300500000", why="somebody")

    async def work(service: Service) -> None:
        for _ in range(3):
            asked = len(machine.heard)
            await until(lambda asked=asked: len(machine.heard) > asked)  # type: ignore[misc]
            machine.clock.ahead_s += 11.0
        await until(lambda: service.status().state is State.CONTESTED)
        assert f"max_freq: wanted {MODE.gpu_hz} Hz, got 1300500000 Hz" in " ".join(service.status().mismatches)

    live(machine, work)
    assert machine.commands() == ["apply winner mismatch"] * 3


def test_43_database_loses_no_told_trial_and_is_not_what_the_truth_rests_on(tmp_path: Path) -> None:
    board = Faulty(tmp_path)
    result = board.run()
    with open_storage(tmp_path) as storage, storage.engine.connect() as connection:
        journal = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        synchronous = connection.exec_driver_sql("PRAGMA synchronous").scalar()
    assert (journal, synchronous) == ("delete", 2)  # each transaction is on the disk before the next thing happens
    study_path(tmp_path).unlink()
    again = board.run()
    assert again.incumbent is not None
    assert read_winner(tmp_path) is not None
    applied = read_applied(tmp_path)
    assert result.winner is not None
    assert applied is not None
    assert board.says(again, "lacked 1 earlier jobs; they were told again from the ledger")


# --- the page ------------------------------------------------------------------------------------------------


def test_each_of_the_43_has_a_test_or_a_line_and_at_most_8_have_only_a_line() -> None:
    names = re.findall(r"^def test_((?:\d\d_)+)", Path(__file__).read_text(), re.MULTILINE)
    tested = {int(number) for name in names for number in name.strip("_").split("_")}
    rows: Mapping[int, str] = {
        int(found[1]): found[0] for found in re.finditer(r"^\| (\d+) \|.*$", PAGE.read_text(), re.MULTILINE)
    }
    assert sorted(rows) == list(range(1, 44))
    without = {number for number, row in rows.items() if "not reproduced:" in row}
    assert set(rows) - tested == without
    assert len(without) <= 8
