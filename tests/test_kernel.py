"""The virtual kernel's answers, each as JETSON 1.3, 3, 4.1, 5, 6 and 10.1 have them."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jouled.errors import AbsentError, BrokenError, ForbiddenError, UsageError
from jouled.virtual.faults import FOLDER, set_faults
from jouled.virtual.kernel import CPU, DEBUG, DEVFREQ, EMC, EMC_CAP, GPU, Kernel, cpu_list, overwrite
from jouled.virtual.specs import board_spec, spec_from_json
from jouled.virtual.sysfs import VirtualSysfs
from jouled.virtual.tree import BOOT_ID, boot, make_tree, tree_spec

POLICY0 = f"{CPU}/cpufreq/policy0"
POLICY8 = f"{CPU}/cpufreq/policy8"
CLASS_GPU = "/sys/class/devfreq/17000000.gpu"


@pytest.fixture
def sysfs(tmp_path: Path) -> VirtualSysfs:
    """A board in MAXN."""
    make_tree(tmp_path)
    return VirtualSysfs(tmp_path)


def refusal(sysfs: VirtualSysfs, path: str, value: str | int) -> int:
    """The errno of a write that must fail."""
    before = sysfs.read(path)
    with pytest.raises(BrokenError) as caught:
        sysfs.write(path, value, why="test")
    assert sysfs.read(path) == before
    return caught.value.errno


def put(sysfs: VirtualSysfs, path: str, value: str | int) -> str:
    """What reads back."""
    return sysfs.write(path, value, why="test")


# --- limits


@pytest.mark.parametrize(
    ("path", "asked", "got"),
    [
        (f"{POLICY0}/scaling_max_freq", 1728000, 1728000),
        (f"{POLICY0}/scaling_max_freq", 1727999, 1651200),
        (f"{POLICY0}/scaling_max_freq", 9000000, 2201600),
        (f"{POLICY0}/scaling_min_freq", 1, 115200),
        (f"{POLICY0}/scaling_min_freq", 115201, 192000),
        (f"{CLASS_GPU}/max_freq", 612000001, 612000000),
        (f"{CLASS_GPU}/max_freq", 600000000, 612000000),
        (f"{CLASS_GPU}/max_freq", 2**63 - 1, 1300500000),
        (f"{CLASS_GPU}/min_freq", 0, 306000000),
        (EMC_CAP, 3198999999, 2133000000),
        (EMC_CAP, 2**63 - 1, 3199000000),
        (EMC_CAP, 1, 204000000),
    ],
)
def test_limit_off_the_table_is_rounded_silently(sysfs: VirtualSysfs, path: str, asked: int, got: int) -> None:
    assert put(sysfs, path, asked) == str(got)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{POLICY0}/scaling_max_freq", "fast"),
        (f"{POLICY0}/scaling_max_freq", "-1"),
        (f"{POLICY0}/scaling_governor", "turbo"),
        (f"{CLASS_GPU}/max_freq", "0x10"),
        (f"{CLASS_GPU}/governor", "schedutil"),
        (EMC_CAP, "junk"),
        (EMC_CAP, "-1"),
        (f"{EMC}/mrq_rate_locked", "2"),
        (f"{CPU}/cpu3/online", "2"),
        (f"{CPU}/cpu3/cpuidle/state0/disable", "yes"),
        ("/sys/devices/platform/gpu.0/power/control", "off"),
        ("/sys/devices/platform/gpu.0/tpc_pg_mask", "256"),
        (f"{GPU}/railgate_enable", ""),
    ],
)
def test_junk_is_einval(sysfs: VirtualSysfs, path: str, value: str) -> None:
    assert refusal(sysfs, path, value) == errno.EINVAL


@pytest.mark.parametrize("folder", [POLICY0, CLASS_GPU])
def test_minimum_above_maximum_is_einval_in_either_order(sysfs: VirtualSysfs, folder: str) -> None:
    low, high = ("scaling_min_freq", "scaling_max_freq") if "cpufreq" in folder else ("min_freq", "max_freq")
    half = 1113600 if "cpufreq" in folder else 612000000
    put(sysfs, f"{folder}/{high}", half)
    assert refusal(sysfs, f"{folder}/{low}", 2 * half) == errno.EINVAL
    put(sysfs, f"{folder}/{low}", half)
    assert refusal(sysfs, f"{folder}/{high}", half // 2) == errno.EINVAL


def test_every_name_of_a_file_is_the_same_file(sysfs: VirtualSysfs) -> None:
    names = [f"{CLASS_GPU}/max_freq", f"{GPU}/devfreq_dev/max_freq", f"{DEVFREQ}/max_freq"]
    for value, name in zip(("408000000", "510000000", "612000000"), names, strict=True):
        put(sysfs, name, value)
        assert {sysfs.read(other) for other in names} == {value}
    put(sysfs, f"{CPU}/cpu2/cpufreq/scaling_max_freq", 1113600)
    assert sysfs.read(f"{POLICY0}/scaling_max_freq") == "1113600"


def test_attribute_that_nobody_may_write_is_forbidden(sysfs: VirtualSysfs) -> None:
    with pytest.raises(ForbiddenError):
        put(sysfs, f"{POLICY0}/scaling_cur_freq", 1)


def test_absent_attribute_is_absent(sysfs: VirtualSysfs) -> None:
    with pytest.raises(AbsentError):
        put(sysfs, "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap", 0)
    with pytest.raises(AbsentError):
        sysfs.read(f"{CPU}/cpu12/online")


# --- hotplug


def test_first_cpu_cannot_be_taken_offline(sysfs: VirtualSysfs) -> None:
    assert refusal(sysfs, f"{CPU}/cpu0/online", 0) == errno.EBUSY


def test_policy_lives_while_one_of_its_cpus_does_and_comes_back_without_caps(sysfs: VirtualSysfs) -> None:
    put(sysfs, f"{POLICY8}/scaling_max_freq", 1113600)
    put(sysfs, f"{POLICY8}/scaling_governor", "performance")
    for cpu in (8, 9, 10):
        put(sysfs, f"{CPU}/cpu{cpu}/online", 0)
        assert not sysfs.exists(f"{CPU}/cpu{cpu}/cpufreq")
    assert sysfs.read(f"{POLICY8}/affected_cpus") == "11"
    assert sysfs.read(f"{POLICY8}/scaling_max_freq") == "1113600"
    put(sysfs, f"{CPU}/cpu11/online", 0)
    assert not sysfs.exists(POLICY8)
    assert (sysfs.read(f"{CPU}/online"), sysfs.read(f"{CPU}/offline")) == ("0-7", "8-11")
    put(sysfs, f"{CPU}/cpu9/online", 1)
    assert sysfs.read(f"{CPU}/online") == "0-7,9"
    assert sysfs.read(f"{CPU}/cpu9/cpufreq/scaling_max_freq") == "2201600"
    assert sysfs.read(f"{POLICY8}/scaling_min_freq") == "115200"
    assert sysfs.read(f"{POLICY8}/scaling_governor") == "schedutil"
    with pytest.raises(AbsentError):
        sysfs.read(f"{CPU}/cpu8/cpufreq/scaling_max_freq")


def test_writing_the_same_online_value_resets_nothing(sysfs: VirtualSysfs) -> None:
    put(sysfs, f"{POLICY8}/scaling_max_freq", 1113600)
    put(sysfs, f"{CPU}/cpu8/online", 1)
    assert sysfs.read(f"{POLICY8}/scaling_max_freq") == "1113600"


def test_hotplug_that_a_kill_broke_off_is_finished(sysfs: VirtualSysfs) -> None:
    for cpu in range(8, 12):  # the online files are written, the rest is not
        overwrite(str(sysfs.real(f"{CPU}/cpu{cpu}/online")), "0")
    sysfs.kernel.settle_hotplug()
    assert not sysfs.exists(POLICY8)
    assert sysfs.read(f"{CPU}/online") == "0-7"


def test_cpu_list_is_written_in_runs() -> None:
    assert cpu_list([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert cpu_list([]) == ""


# --- GPU and memory


def test_mask_is_free_until_the_gpu_was_used_then_busy(sysfs: VirtualSysfs) -> None:
    path = "/sys/devices/platform/gpu.0/tpc_pg_mask"
    assert put(sysfs, path, 240) == "240"
    (sysfs.root / FOLDER / "gpu_used").touch()
    assert put(sysfs, path, 240) == "240"
    assert refusal(sysfs, path, 0) == errno.EBUSY


def test_memory_rate_off_the_table_is_rounded_and_never_above_the_cap(sysfs: VirtualSysfs) -> None:
    assert put(sysfs, f"{EMC}/rate", 2133000001) == "2133000000"
    put(sysfs, EMC_CAP, 665600000)
    assert sysfs.read(f"{EMC}/rate") == "665600000"
    assert put(sysfs, f"{EMC}/rate", 3199000000) == "665600000"


def test_engine_cap_ends_at_the_engines_maximum(sysfs: VirtualSysfs) -> None:
    path = sysfs.glob("/sys/devices/platform/bus@0/*/*/clk_cap/dla0_core")[0]
    assert put(sysfs, path, 614400000) == "614400000"
    assert put(sysfs, path, 2**63 - 1) == "1600000000"


# --- sensors without a machine


def test_powered_off_zone_is_eagain_and_open_input_is_enodata(sysfs: VirtualSysfs) -> None:
    zones = {sysfs.read(path): path for path in sysfs.glob("/sys/class/thermal/thermal_zone*/type")}
    with pytest.raises(BrokenError) as caught:
        sysfs.read(zones["cv1-thermal"].replace("/type", "/temp"))
    assert caught.value.errno == errno.EAGAIN
    assert sysfs.read_int(zones["tj-thermal"].replace("/type", "/temp")) == 45000
    chip = sysfs.glob("/sys/bus/i2c/drivers/ina3221/1-0041/hwmon/hwmon*")[0]
    for name in ("in1_input", "curr3_input"):
        with pytest.raises(BrokenError) as caught:
            sysfs.read(f"{chip}/{name}")
        assert caught.value.errno == errno.ENODATA
    assert sysfs.read(f"{chip}/in2_label") == "VDDQ_VDD2_1V8AO"


def test_channel_that_is_switched_off_is_enodata(sysfs: VirtualSysfs) -> None:
    chip = sysfs.glob("/sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon*")[0]
    put(sysfs, f"{chip}/in2_enable", 0)
    with pytest.raises(BrokenError) as caught:
        sysfs.read(f"{chip}/curr2_input")
    assert caught.value.errno == errno.ENODATA
    assert sysfs.read_int(f"{chip}/in1_input") % 8 == 0


# --- boot


def test_boot_returns_the_stock_mode_and_forgets_everything_else(tmp_path: Path) -> None:
    make_tree(tmp_path, base_mode="MODE_50W")
    sysfs = VirtualSysfs(tmp_path)
    first = sysfs.read(BOOT_ID)
    put(sysfs, f"{POLICY0}/scaling_max_freq", 729600)
    put(sysfs, f"{EMC}/mrq_rate_locked", 1)
    put(sysfs, f"{CPU}/cpu11/online", 0)
    put(sysfs, f"{CPU}/cpu0/cpuidle/state1/disable", 1)
    sysfs.place("/run/jouled/modes/a.conf", "text")
    sysfs.place("/etc/jouled/config.toml", "schema = 1")
    (tmp_path / FOLDER / "gpu_used").touch()
    boot(tmp_path)
    assert sysfs.read(BOOT_ID) != first
    assert sysfs.read(f"{POLICY0}/scaling_max_freq") == "1497600"
    assert sysfs.read(f"{POLICY0}/scaling_min_freq") == "729600"
    assert sysfs.read(f"{DEVFREQ}/max_freq") == "816000000"
    assert sysfs.read(f"{EMC}/mrq_rate_locked") == "0"
    assert sysfs.read(f"{CPU}/online") == "0-11"
    assert sysfs.read(f"{CPU}/cpu0/cpuidle/state1/disable") == "0"
    assert not sysfs.exists("/run/jouled")
    assert sysfs.read("/etc/jouled/config.toml") == "schema = 1"
    assert not sysfs.kernel.gpu_was_used()


def test_no_switch_meets_the_boot(tmp_path: Path) -> None:
    make_tree(tmp_path, base_mode="MODE_15W")
    set_faults(
        str(tmp_path),
        prompt=True,
        chroot=True,
        user="nobody",
        ignore_writes=["*"],
        wrong_rounding={"gpu": 1},
        write_errors=[{"errno": "EBUSY"}],
        read_errors={"*": "EIO"},
    )
    boot(tmp_path)
    assert Kernel(str(tmp_path), "boot").load(f"{DEVFREQ}/max_freq") == "408000000"


@pytest.mark.parametrize(
    ("mode", "values"),
    [
        ("MAXN", ("0-11", "2201600", "1300500000", "3199000000", "0")),
        ("MODE_15W", ("0-3", "1113600", "408000000", "2133000000", "248")),
        ("MODE_30W", ("0-7", "1728000", "612000000", "3199000000", "240")),
        ("MODE_50W", ("0-11", "1497600", "816000000", "3199000000", "0")),
    ],
)
def test_tree_boots_into_each_stock_mode(tmp_path: Path, mode: str, values: tuple[str, ...]) -> None:
    make_tree(tmp_path, base_mode=mode)
    kernel = Kernel(str(tmp_path), "boot")
    paths = (f"{CPU}/online", f"{POLICY0}/scaling_max_freq", f"{DEVFREQ}/max_freq", EMC_CAP, f"{GPU}/tpc_pg_mask")
    assert tuple(kernel.load(path) for path in paths) == values


def test_hwmon_numbers_are_not_the_same_at_every_boot(tmp_path: Path) -> None:
    make_tree(tmp_path)
    sysfs = VirtualSysfs(tmp_path)
    seen = set()
    for _ in range(12):
        seen.update(sysfs.glob("/sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon*"))
        boot(tmp_path)
    assert len(seen) > 1


def test_all_links_are_relative_so_that_a_tree_may_be_moved(tmp_path: Path) -> None:
    make_tree(tmp_path / "a")
    for folder, names, files in os.walk(tmp_path / "a"):
        for name in (*names, *files):
            path = Path(folder, name)
            if path.is_symlink():
                assert not os.readlink(path).startswith("/"), path
                assert path.exists(), path


def test_spec_lives_in_its_tree(tmp_path: Path) -> None:
    make_tree(tmp_path)
    assert tree_spec(tmp_path) == board_spec("agx-orin-64gb")
    assert spec_from_json(board_spec("agx-orin-64gb").to_json()) == board_spec("agx-orin-64gb")


def test_unknown_board_and_mode_are_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no virtual board 'orin-giga'; there are agx-orin-32gb, agx"):
        board_spec("orin-giga")
    with pytest.raises(UsageError, match="no nvpmodel mode '30W'; there are MAXN, MODE_15W"):
        make_tree(tmp_path, base_mode="30W")


# --- misbehaviour


def test_nobody_reads_what_is_the_worlds_and_writes_nothing(sysfs: VirtualSysfs) -> None:
    set_faults(str(sysfs.root), user="nobody")
    assert sysfs.read(f"{POLICY0}/scaling_max_freq") == "2201600"
    for path in (f"{POLICY0}/scaling_max_freq", EMC_CAP, "/var/lib/nvpmodel/status"):
        with pytest.raises(ForbiddenError):
            put(sysfs, path, 1)
    with pytest.raises(ForbiddenError):
        sysfs.read(f"{DEBUG}/bpmp/debug/clk/emc/rate")


def test_wrong_rounding_lands_steps_away(sysfs: VirtualSysfs) -> None:
    set_faults(str(sysfs.root), wrong_rounding={"gpu": -1, "cpu": 1, "emc": -1})
    assert put(sysfs, f"{DEVFREQ}/max_freq", 816000000) == "714000000"
    assert put(sysfs, f"{POLICY0}/scaling_max_freq", 1113600) == "1190400"
    assert put(sysfs, EMC_CAP, 204000000) == "204000000"


def test_ignored_write_succeeds_and_changes_nothing(sysfs: VirtualSysfs) -> None:
    set_faults(str(sysfs.root), ignore_writes=["*/nvpmodel_clk_cap/emc"])
    assert put(sysfs, EMC_CAP, 2133000000) == "3199000000"


def test_failing_reads_and_fixed_values(sysfs: VirtualSysfs) -> None:
    set_faults(str(sysfs.root), read_errors={"*/load": "EAGAIN"}, values={"*/tpc_pg_mask": "240"})
    with pytest.raises(BrokenError) as caught:
        sysfs.read(f"{GPU}/load")
    assert caught.value.errno == errno.EAGAIN
    assert sysfs.read("/sys/devices/platform/gpu.0/tpc_pg_mask") == "240"
    set_faults(str(sysfs.root))
    assert sysfs.read("/sys/devices/platform/gpu.0/tpc_pg_mask") == "0"


def test_writes_fail_from_the_nth_on_and_only_for_whom_it_is_said(sysfs: VirtualSysfs) -> None:
    set_faults(str(sysfs.root), write_errors=[{"errno": "EBUSY", "after": 1, "by": "sysfs"}])
    put(sysfs, f"{DEVFREQ}/max_freq", 816000000)
    assert refusal(sysfs, f"{DEVFREQ}/max_freq", 714000000) == errno.EBUSY
    Kernel(str(sysfs.root), "jetson_clocks").write(EMC_CAP, b"2133000000")
    assert sysfs.read(EMC_CAP) == "2133000000"


HOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
from jouled.virtual.kernel import Kernel
kernel = Kernel(sys.argv[2], "sysfs")
for value in (816000000, 714000000, 612000000):
    kernel.write("/sys/class/devfreq/17000000.gpu/max_freq", str(value).encode())
"""


def test_held_writer_stops_before_its_write_until_it_is_released(tmp_path: Path) -> None:
    make_tree(tmp_path)
    set_faults(str(tmp_path), hold={"by": "sysfs", "write": 3})
    package = Path(__file__).parents[1] / "daemon"
    held = tmp_path / FOLDER / "held"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", HOLDER, str(package), str(tmp_path)]) as child:
        while not held.exists() and child.poll() is None:
            time.sleep(0.002)
        assert int(held.read_text()) == child.pid
        kernel = Kernel(str(tmp_path), "boot")
        assert kernel.load(f"{DEVFREQ}/max_freq") == "714000000"
        (tmp_path / FOLDER / "release").touch()
        assert child.wait(timeout=20) == 0
    assert kernel.load(f"{DEVFREQ}/max_freq") == "612000000"


def test_replaced_text_never_leaves_a_tail(tmp_path: Path) -> None:
    path = tmp_path / "value"
    for text in ("2201600", "1", "729600"):
        overwrite(str(path), text)
        assert path.read_text() == f"{text}\n"


def test_switches_are_seen_by_whoever_reads_next(sysfs: VirtualSysfs) -> None:
    set_faults(str(sysfs.root), values={"*/load": "7"})
    assert json.loads((sysfs.root / FOLDER / "faults.json").read_text()) == {"values": {"*/load": "7"}}
    assert sysfs.read(f"{GPU}/load") == "7"
