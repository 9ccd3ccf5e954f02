from __future__ import annotations

from pathlib import Path

import pytest

from jouled.board.basemode import BaseMode, base_mode_as_is, base_mode_of, cap_in_table, sort_params
from jouled.board.domains import CpuDomain, Domains, EmcDomain, GpuDomain
from jouled.board.nvpmodel import parse_conf
from jouled.board.sysfs import Sysfs
from jouled.errors import NotSupportedError

CPU = "/sys/devices/system/cpu"
MHZ = 1_000_000


def _domains(*, cores: int = 12, uncapped: int = -1, gpu: bool = True, emc: bool = True) -> Domains:
    policies = tuple(
        (f"{CPU}/cpufreq/policy{first}", tuple(range(first, min(first + 4, cores)))) for first in range(0, cores, 4)
    )
    return Domains(
        CpuDomain(
            tuple(range(cores)), policies, tuple(khz * 1000 for khz in (115200, 729600, 1497600, 1728000, 2201600))
        ),
        GpuDomain("/sys/class/devfreq/g", (306 * MHZ, 612 * MHZ, 816 * MHZ), None, None, None) if gpu else None,
        EmcDomain("/sys/kernel/emc", (204 * MHZ, 2133 * MHZ, 3199 * MHZ), None, None, uncapped) if emc else None,
    )


def _conf(*, cpu_params: dict[str, int], lines: str, listed: range = range(12)) -> str:
    text = "< PARAM TYPE=FILE NAME=CPU_ONLINE >\n"
    text += "".join(f"CORE_{cpu} {CPU}/cpu{cpu}/online\n" for cpu in listed)
    for name, cpu in cpu_params.items():
        text += f"< PARAM TYPE=CLOCK NAME={name} >\nMAX_FREQ {CPU}/cpu{cpu}/cpufreq/scaling_max_freq\n"
        text += f"MIN_FREQ {CPU}/cpu{cpu}/cpufreq/scaling_min_freq\n"
    text += """\
< PARAM TYPE=FILE NAME=TPC_POWER_GATING >
TPC_PG_MASK /sys/devices/gpu.0/tpc_pg_mask
TPC_PG_MASK_KNEXT /sys/devices/platform/gpu.0/tpc_pg_mask
< PARAM TYPE=FILE NAME=DLA_POWER >
DLA_PWR /sys/devices/platform/15880000.nvdla0/power/control
< PARAM TYPE=FILE NAME=GPU_POWER_CONTROL_ENABLE >
GPU_PWR_CNTL_EN /sys/devices/gpu.0/power/control
< PARAM TYPE=CLOCK NAME=GPU >
MAX_FREQ /sys/devices/17000000.ga10b/devfreq/17000000.ga10b/max_freq
MAX_FREQ_KNEXT /sys/devices/platform/17000000.gpu/devfreq_dev/max_freq
MIN_FREQ /sys/devices/17000000.ga10b/devfreq/17000000.ga10b/min_freq
< PARAM TYPE=CLOCK NAME=EMC >
MAX_FREQ /sys/kernel/nvpmodel_emc_cap/emc_iso_cap
< PARAM TYPE=CLOCK NAME=DLA0_CORE >
MAX_FREQ /sys/devices/platform/13e40000.host1x/15880000.nvdla0/acm/clk_cap/dla0_core
"""
    return f"{text}< POWER_MODEL ID=2 NAME=MODE >\n{lines}\n< PM_CONFIG DEFAULT=2 >\n"


def test_of_a_board_that_is_only_watched_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    domains = _domains()
    assert domains.gpu is not None
    files = {
        f"{CPU}/cpufreq/policy0/scaling_max_freq": "1728000",
        f"{CPU}/cpufreq/policy4/scaling_max_freq": "1497600",
        f"{domains.gpu.path}/max_freq": "612000000",
        "/sys/kernel/emc": "2133000000",
    }
    for path, text in files.items():
        (tmp_path / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path.lstrip("/")).write_text(text)
    seen = base_mode_as_is(Sysfs(tmp_path), domains)
    assert (seen.cpu_cap_hz, seen.gpu_cap_hz, seen.emc_cap_hz) == (1497600000, 612 * MHZ, 2133 * MHZ)
    for path in files:
        (tmp_path / path.lstrip("/")).write_text("")  # there, and no number
    unseen = base_mode_as_is(Sysfs(tmp_path), domains)
    assert (unseen.cpu_cap_hz, unseen.gpu_cap_hz, unseen.emc_cap_hz) == (None, None, None)


CLUSTERS = {"CPU_A78_0": 0, "CPU_A78_1": 4, "CPU_A78_2": 8}


def _base(
    lines: str, domains: Domains, cpu_params: dict[str, int] | None = None, listed: range = range(12)
) -> BaseMode:
    conf = parse_conf(_conf(cpu_params=cpu_params or CLUSTERS, lines=lines, listed=listed), where="stock.conf")
    return base_mode_of(conf, conf.models[0], domains, where="stock.conf")


def _online(count: int, of: int = 12) -> str:
    return "".join(f"CPU_ONLINE CORE_{cpu} {int(cpu < count)}\n" for cpu in range(of))


def test_a_capped_mode_in_hertz() -> None:
    lines = _online(8) + "TPC_POWER_GATING TPC_PG_MASK 240\n"
    lines += (
        "CPU_A78_0 MIN_FREQ 729600\nCPU_A78_0 MAX_FREQ 1728000\nCPU_A78_1 MIN_FREQ 729600\nCPU_A78_1 MAX_FREQ 1728000\n"
    )
    lines += "GPU MIN_FREQ 0\nGPU MAX_FREQ 612000000\nEMC MAX_FREQ 2133000000"
    base = _base(lines, _domains())
    assert (base.id, base.name, base.cores, base.online_cpus) == (2, "MODE", 8, tuple(range(8)))
    assert (base.cpu_min_hz, base.cpu_cap_hz) == (729_600_000, 1_728_000_000)
    assert (base.gpu_min_hz, base.gpu_cap_hz, base.emc_cap_hz) == (306 * MHZ, 612 * MHZ, 2133 * MHZ)
    assert (base.mask, base.emc_raw) == (240, "2133000000")


@pytest.mark.parametrize("emc", ["0", "-1", "9223372036854775807"])
def test_no_cap_is_the_tables_top_however_it_is_said(emc: str) -> None:
    base = _base(f"CPU_A78_0 MAX_FREQ -1\nGPU MAX_FREQ -1\nEMC MAX_FREQ {emc}", _domains())
    assert (base.cpu_cap_hz, base.gpu_cap_hz, base.emc_cap_hz) == (2_201_600_000, 816 * MHZ, 3199 * MHZ)


def test_a_mode_that_says_nothing_of_a_domain_does_not_cap_it() -> None:
    base = _base("CPU_A78_0 MAX_FREQ 1497600", _domains())
    assert (base.cpu_cap_hz, base.cpu_min_hz) == (1_497_600_000, 115_200_000)
    assert (base.gpu_cap_hz, base.emc_cap_hz, base.mask) == (816 * MHZ, 3199 * MHZ, None)
    assert base.cores == 12


def test_a_cap_between_two_clocks_is_the_lower_one() -> None:
    base = _base("GPU MAX_FREQ 640000000\nCPU_A78_0 MAX_FREQ 1500000", _domains())
    assert (base.gpu_cap_hz, base.cpu_cap_hz) == (612 * MHZ, 1_497_600_000)


def test_of_clusters_with_different_caps_the_lowest_cap_and_the_highest_minimum_count() -> None:
    lines = (
        "CPU_A78_0 MAX_FREQ 2201600\nCPU_A78_1 MAX_FREQ 1497600\nCPU_A78_0 MIN_FREQ 115200\nCPU_A78_1 MIN_FREQ 729600"
    )
    base = _base(lines, _domains())
    assert (base.cpu_min_hz, base.cpu_cap_hz) == (729_600_000, 1_497_600_000)


def test_the_minimum_never_lies_above_the_cap() -> None:
    base = _base(
        "CPU_A78_0 MIN_FREQ 1728000\nCPU_A78_0 MAX_FREQ 729600\nGPU MIN_FREQ 816000000\nGPU MAX_FREQ 306000000",
        _domains(),
    )
    assert base.cpu_min_hz == base.cpu_cap_hz == 729_600_000
    assert base.gpu_min_hz == base.gpu_cap_hz == 306 * MHZ


def test_one_section_per_core_is_understood_as_well_as_one_per_cluster() -> None:
    params = {f"CPU_A78_{cpu}": cpu for cpu in range(6)}
    lines = _online(6, 6) + "".join(f"CPU_A78_{cpu} MAX_FREQ 1497600\n" for cpu in range(6))
    base = _base(lines, _domains(cores=6), params, range(6))
    assert (base.cores, base.cpu_cap_hz) == (6, 1_497_600_000)


def test_a_boot_core_that_the_conf_does_not_list_stays_on() -> None:
    lines = "CPU_ONLINE CORE_1 0\nCPU_ONLINE CORE_2 0\nCPU_ONLINE CORE_3 1"
    assert _base(lines, _domains(cores=4), {"CPU_A57": 0}, range(1, 4)).online_cpus == (0, 3)


def test_the_boot_core_is_never_off() -> None:
    assert _base(_online(0), _domains()).online_cpus == (0,)


def test_a_conf_for_more_cores_than_the_board_has_is_another_boards() -> None:
    with pytest.raises(
        NotSupportedError, match=r"stock\.conf, mode MODE switches on cpu8; this board has 8 cores"
    ) as caught:
        _base(_online(12), _domains(cores=8))
    assert "another module" in caught.value.hint


def test_listed_cores_that_stay_off_do_no_harm_on_a_smaller_board() -> None:
    assert _base(_online(4), _domains(cores=8)).cores == 4


def test_a_cap_below_the_boards_lowest_clock_is_another_boards() -> None:
    with pytest.raises(NotSupportedError, match="GPU: cap of 114750000 Hz lies below"):
        _base("GPU MAX_FREQ 114750000", _domains())


def test_domains_that_cannot_be_set_have_no_cap() -> None:
    base = _base("GPU MAX_FREQ 306000000\nEMC MAX_FREQ 2133000000", _domains(gpu=False, emc=False))
    assert (base.gpu_min_hz, base.gpu_cap_hz, base.emc_cap_hz) == (None, None, None)


def test_sections_are_told_by_their_paths() -> None:
    conf = parse_conf(_conf(cpu_params={"CPU_DENVER_0": 0, "CPU_DENVER_1": 2}, lines=""), where="x")
    params = sort_params(conf)
    assert [param.name for param in params.cpu] == ["CPU_DENVER_0", "CPU_DENVER_1"]
    assert [param.name for param in params.power] == ["GPU_POWER_CONTROL_ENABLE"]  # the DLA's is not ours
    assert params.gpu is not None
    assert params.gpu.name == "GPU"
    assert params.mask is not None
    assert params.mask.name == "TPC_POWER_GATING"
    assert [cpu for cpu, _, _ in params.online] == list(range(12))


def test_caps_in_a_table() -> None:
    assert [cap_in_table(value, (10, 20, 30), where="x") for value in (-1, 0, 10, 19, 20, 99)] == [
        30,
        30,
        10,
        10,
        20,
        30,
    ]
