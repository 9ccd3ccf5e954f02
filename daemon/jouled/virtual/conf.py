"""The stock nvpmodel.conf of a virtual board, written from facts (JETSON 1.2 to 1.4), not from NVIDIA's text."""

from __future__ import annotations

from jouled.virtual.specs import BoardSpec, StockMode

CPU = "/sys/devices/system/cpu"
GPU_OLD = "/sys/devices/17000000.ga10b/devfreq/17000000.ga10b"
GPU = "/sys/devices/platform/17000000.gpu/devfreq_dev"
HOST1X_OLD = "/sys/devices/platform/13e40000.host1x"
HOST1X = "/sys/devices/platform/bus@0/13e00000.host1x"
ENGINES = (
    ("DLA0_CORE", "15880000.nvdla0", "dla0_core", 1_600_000_000),
    ("DLA1_CORE", "158c0000.nvdla1", "dla1_core", 1_600_000_000),
    ("DLA0_FALCON", "15880000.nvdla0", "dla0_falcon", 844_800_000),
    ("DLA1_FALCON", "158c0000.nvdla1", "dla1_falcon", 844_800_000),
    ("PVA0_VPS", "16000000.pva0", "pva0_vps", 1_152_000_000),
    ("PVA0_AXI", "16000000.pva0", "pva0_axi", 832_000_000),
)


def _file_params(spec: BoardSpec) -> list[str]:
    lines = ["< PARAM TYPE=FILE NAME=CPU_ONLINE >"]
    lines += [f"CORE_{cpu} {CPU}/cpu{cpu}/online" for cpu in spec.cpus]
    for name, argument, attribute in (
        ("TPC_POWER_GATING", "TPC_PG_MASK", "tpc_pg_mask"),
        ("GPU_POWER_CONTROL_ENABLE", "GPU_PWR_CNTL_EN", "power/control"),
        ("GPU_POWER_CONTROL_DISABLE", "GPU_PWR_CNTL_DIS", "power/control"),
    ):
        lines += ["", f"< PARAM TYPE=FILE NAME={name} >", f"{argument} /sys/devices/gpu.0/{attribute}"]
        lines += [f"{argument}_KNEXT /sys/devices/platform/gpu.0/{attribute}"]
    return lines


def _clock_params(spec: BoardSpec) -> list[str]:
    lines = []
    for index, cluster in enumerate(spec.clusters):
        folder = f"{CPU}/cpu{cluster[0]}/cpufreq"
        lines += ["", f"< PARAM TYPE=CLOCK NAME=CPU_A78_{index} >"]
        lines += [f"FREQ_TABLE {folder}/scaling_available_frequencies"]
        lines += [f"MAX_FREQ {folder}/scaling_max_freq", f"MIN_FREQ {folder}/scaling_min_freq"]
    lines += ["", "< PARAM TYPE=CLOCK NAME=GPU >"]
    for suffix, folder in (("", GPU_OLD), ("_KNEXT", GPU)):
        lines += [f"FREQ_TABLE{suffix} {folder}/available_frequencies"]
        lines += [f"MAX_FREQ{suffix} {folder}/max_freq", f"MIN_FREQ{suffix} {folder}/min_freq"]
    # the stock files carry this header without the space: parsers must live with it
    lines += ["", "<PARAM TYPE=CLOCK NAME=EMC >", "MAX_FREQ /sys/kernel/nvpmodel_emc_cap/emc_iso_cap"]
    lines += ["MAX_FREQ_KNEXT /sys/kernel/nvpmodel_clk_cap/emc"]
    for name, device, attribute, _ in ENGINES:
        lines += ["", f"< PARAM TYPE=CLOCK NAME={name} >"]
        lines += [f"MAX_FREQ {HOST1X_OLD}/{device}/acm/clk_cap/{attribute}"]
        lines += [f"MAX_FREQ_KNEXT {HOST1X}/{device}/clk_cap/{attribute}"]
    return lines


def _model(spec: BoardSpec, mode: StockMode) -> list[str]:
    lines = ["", f"< POWER_MODEL ID={mode.id} NAME={mode.name} >"]
    lines += [f"CPU_ONLINE CORE_{cpu} {int(cpu < mode.cores)}" for cpu in spec.cpus]
    lines += [f"TPC_POWER_GATING TPC_PG_MASK {mode.mask}", "GPU_POWER_CONTROL_ENABLE GPU_PWR_CNTL_EN on"]
    for index, cluster in enumerate(spec.clusters):
        if cluster[0] < mode.cores:
            lines += [f"CPU_A78_{index} MIN_FREQ {spec.cpu_floor_khz}", f"CPU_A78_{index} MAX_FREQ {mode.cpu_khz}"]
    lines += ["GPU MIN_FREQ 0", f"GPU MAX_FREQ {mode.gpu_hz}", "GPU_POWER_CONTROL_DISABLE GPU_PWR_CNTL_DIS auto"]
    lines += [f"EMC MAX_FREQ {mode.emc_hz}"]
    caps = (mode.dla_hz[0], mode.dla_hz[0], mode.dla_hz[1], mode.dla_hz[1], *mode.pva_hz)
    return lines + [f"{engine[0]} MAX_FREQ {cap}" for engine, cap in zip(ENGINES, caps, strict=True)]


def stock_conf(spec: BoardSpec) -> str:
    """The whole file."""
    lines = [f"# nvpmodel configuration of a virtual {spec.name}", "", *_file_params(spec), *_clock_params(spec)]
    for mode in spec.modes:
        lines += _model(spec, mode)
    return "\n".join([*lines, "", f"< PM_CONFIG DEFAULT={spec.mode(spec.default_mode).id} >", ""])
