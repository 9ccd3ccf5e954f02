"""Discovery on trees made by hand, so that nothing here depends on how the virtual board is laid out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jouled.board.discover import discover_domains, parse_cpu_list
from jouled.board.sysfs import Sysfs
from jouled.errors import BrokenError, NotSupportedError

CPU = "/sys/devices/system/cpu"


def _put(root: Path, path: str, text: str) -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def _policy(root: Path, number: int, cpus: str | None, table_khz: str = "115200 729600 1113600 ") -> None:
    folder = f"{CPU}/cpufreq/policy{number}"
    _put(root, f"{folder}/scaling_available_frequencies", table_khz)
    if cpus is not None:
        _put(root, f"{folder}/related_cpus", cpus)


def _gpu(root: Path, device: str = "17000000.gpu", node: str | None = "gpu") -> None:
    folder = f"/sys/class/devfreq/{device}"
    _put(root, f"{folder}/available_frequencies", "612000000 306000000 408000000\n")
    _put(root, f"{folder}/device/railgate_enable", "1")
    _put(root, f"{folder}/device/power/control", "auto")
    if node is not None:
        _put(root, f"{folder}/device/of_node/name", f"{node}\0")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """12 cores in three clusters, the last one offline; L4T 36."""
    _put(tmp_path, f"{CPU}/present", "0-11\n")
    _policy(tmp_path, 0, "0 1 2 3")
    _policy(tmp_path, 4, "4 5 6 7")
    _gpu(tmp_path)
    _put(tmp_path, "/sys/class/devfreq/13e40000.host1x/device/of_node/name", "host1x\0")
    _put(tmp_path, "/sys/devices/platform/gpu.0/tpc_pg_mask", "240")
    _put(tmp_path, "/sys/kernel/nvpmodel_clk_cap/emc", "3199000000")
    _put(tmp_path, "/sys/kernel/debug/bpmp/debug/clk/emc/possible_rates", "204000 665600 2133000 3199000 \n")
    _put(tmp_path, "/sys/kernel/debug/bpmp/debug/bwmgr/bwmgr_halt", "0")
    return tmp_path


def test_tables_are_read_from_the_board_in_hertz_ascending(tree: Path) -> None:
    domains = discover_domains(Sysfs(tree))

    assert domains.cpu.table_hz == (115_200_000, 729_600_000, 1_113_600_000)
    assert domains.gpu is not None
    assert domains.gpu.table_hz == (306_000_000, 408_000_000, 612_000_000)
    assert domains.emc is not None
    assert domains.emc.table_hz == (204_000_000, 665_600_000, 2_133_000_000, 3_199_000_000)


def test_a_cluster_that_is_offline_is_still_known(tree: Path) -> None:
    domains = discover_domains(Sysfs(tree))

    assert domains.cpu.cpus == tuple(range(12))
    assert domains.cpu.policies == (
        (f"{CPU}/cpufreq/policy0", (0, 1, 2, 3)),
        (f"{CPU}/cpufreq/policy4", (4, 5, 6, 7)),
        (f"{CPU}/cpufreq/policy8", (8, 9, 10, 11)),
    )


def test_policies_are_in_the_order_of_their_numbers(tree: Path) -> None:
    _policy(tree, 10, "10 11")
    _policy(tree, 8, "8 9")
    numbers = [int(path.rpartition("policy")[2]) for path, _ in discover_domains(Sysfs(tree)).cpu.policies]
    assert numbers == [0, 4, 8, 10]


def test_a_last_cluster_smaller_than_the_others_keeps_its_size(tree: Path) -> None:
    _put(tree, f"{CPU}/present", "0-5\n")
    shutil.rmtree(tree / f"{CPU}/cpufreq/policy4".lstrip("/"))
    assert discover_domains(Sysfs(tree)).cpu.policies[1] == (f"{CPU}/cpufreq/policy4", (4, 5))


def test_without_related_cpus_a_policy_reaches_to_the_next(tree: Path) -> None:
    for number in (0, 4):
        (tree / f"{CPU}/cpufreq/policy{number}/related_cpus".lstrip("/")).unlink()
    assert [cpus for _, cpus in discover_domains(Sysfs(tree)).cpu.policies] == [
        (0, 1, 2, 3),
        (4, 5, 6, 7),
        (8, 9, 10, 11),
    ]


def test_only_clocks_that_every_cluster_has_are_in_the_table(tree: Path) -> None:
    _policy(tree, 4, "4 5 6 7", "115200 1113600 1420800")
    assert discover_domains(Sysfs(tree)).cpu.table_hz == (115_200_000, 1_113_600_000)


def test_clusters_without_a_common_clock_are_not_supported(tree: Path) -> None:
    _policy(tree, 4, "4 5 6 7", "1420800")
    with pytest.raises(NotSupportedError, match="share no frequency"):
        discover_domains(Sysfs(tree))


@pytest.mark.parametrize("node", ["gpu", "ga10b", "gv11b", "gp10b"])
def test_the_gpu_is_found_by_its_node_whatever_the_device_is_called(tree: Path, node: str) -> None:
    shutil.rmtree(tree / "sys/class/devfreq/17000000.gpu")
    _gpu(tree, "99000000.accelerator", node)
    gpu = discover_domains(Sysfs(tree)).gpu
    assert gpu is not None
    assert gpu.path == "/sys/class/devfreq/99000000.accelerator"


def test_without_of_node_the_device_name_tells_the_gpu(tree: Path) -> None:
    shutil.rmtree(tree / "sys/class/devfreq/17000000.gpu")
    _gpu(tree, "17000000.ga10b", None)
    gpu = discover_domains(Sysfs(tree)).gpu
    assert gpu is not None
    assert gpu.path == "/sys/class/devfreq/17000000.ga10b"


def test_the_newer_kernels_paths_win_and_the_devices_own_stand_in(tree: Path) -> None:
    gpu = discover_domains(Sysfs(tree)).gpu
    assert gpu is not None
    assert gpu.mask_path == "/sys/devices/platform/gpu.0/tpc_pg_mask"
    assert gpu.power_control_path == "/sys/class/devfreq/17000000.gpu/device/power/control"
    assert gpu.railgate_path == "/sys/class/devfreq/17000000.gpu/device/railgate_enable"


def test_no_gpu_device_leaves_the_domain_out(tree: Path) -> None:
    shutil.rmtree(tree / "sys/class/devfreq/17000000.gpu")
    assert discover_domains(Sysfs(tree)).gpu is None


def test_emc_cap_of_l4t_36_is_preferred_and_uncapped_there_is_minus_one(tree: Path) -> None:
    _put(tree, "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap", "0")
    emc = discover_domains(Sysfs(tree)).emc
    assert emc is not None
    assert (emc.cap_path, emc.uncapped) == ("/sys/kernel/nvpmodel_clk_cap/emc", -1)
    assert emc.bwmgr_halt_path == "/sys/kernel/debug/bpmp/debug/bwmgr/bwmgr_halt"


def test_emc_cap_of_l4t_35_is_taken_alone_and_uncapped_there_is_zero(tree: Path) -> None:
    shutil.rmtree(tree / "sys/kernel/nvpmodel_clk_cap")
    _put(tree, "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap", "0")
    emc = discover_domains(Sysfs(tree)).emc
    assert emc is not None
    assert (emc.cap_path, emc.uncapped) == ("/sys/kernel/nvpmodel_emc_cap/emc_iso_cap", 0)


def test_where_debugfs_cannot_be_seen_the_given_table_stands_in(tree: Path) -> None:
    shutil.rmtree(tree / "sys/kernel/debug")
    emc = discover_domains(Sysfs(tree), emc_table_hz=(204_000_000, 2_133_000_000)).emc
    assert emc is not None
    assert emc.table_hz == (204_000_000, 2_133_000_000)
    assert emc.bpmp_path is None
    assert emc.bwmgr_halt_path is None


def test_without_any_memory_table_the_memory_cannot_be_set(tree: Path) -> None:
    shutil.rmtree(tree / "sys/kernel/debug")
    assert discover_domains(Sysfs(tree)).emc is None


def test_a_table_that_is_none_is_broken_not_empty(tree: Path) -> None:
    _put(tree, "/sys/class/devfreq/17000000.gpu/available_frequencies", "")
    with pytest.raises(BrokenError, match="available_frequencies: wanted a list of frequencies"):
        discover_domains(Sysfs(tree))


def test_no_cpu_policy_at_all_is_not_supported(tree: Path) -> None:
    shutil.rmtree(tree / f"{CPU}/cpufreq".lstrip("/"))
    with pytest.raises(NotSupportedError, match="no CPU domain"):
        discover_domains(Sysfs(tree))


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,6", (0, 1, 2, 3, 6)), ("4 5 6", (4, 5, 6)), ("0", (0,)), ("", ()), ("7,0-1", (0, 1, 7))]
)
def test_cpu_lists_of_both_spellings(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


def test_a_cpu_list_that_is_none_is_broken(tree: Path) -> None:
    _put(tree, f"{CPU}/present", "all")
    with pytest.raises(BrokenError, match="wanted a list of CPUs, got 'all'"):
        discover_domains(Sysfs(tree))
