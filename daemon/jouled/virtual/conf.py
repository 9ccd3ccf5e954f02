"""The stock nvpmodel.conf of a virtual board, written from facts (JETSON 1.2 to 1.4), not from NVIDIA's text."""

from __future__ import annotations

from jouled.virtual.layout import L4T35, L4T36
from jouled.virtual.specs import BoardSpec, StockMode

CPU = "/sys/devices/system/cpu"
ENGINES = (
    ("DLA0_CORE", "15880000.nvdla0", "dla0_core", 1_600_000_000),
    ("DLA1_CORE", "158c0000.nvdla1", "dla1_core", 1_600_000_000),
    ("DLA0_FALCON", "15880000.nvdla0", "dla0_falcon", 844_800_000),
    ("DLA1_FALCON", "158c0000.nvdla1", "dla1_falcon", 844_800_000),
    ("PVA0_VPS", "16000000.pva0", "pva0_vps", 1_152_000_000),
    ("PVA0_AXI", "16000000.pva0", "pva0_axi", 832_000_000),
)


def _pair(argument: str, older: str, newer: str) -> list[str]:
    return [f"{argument} {older}", f"{argument}_KNEXT {newer}"]


def _file_params(spec: BoardSpec) -> list[str]:
    lines = ["< PARAM TYPE=FILE NAME=CPU_ONLINE >"]
    lines += [f"CORE_{cpu} {CPU}/cpu{cpu}/online" for cpu in spec.cpus]
    if spec.layout.gpu_alias is None:
        return lines
    files = [("TPC_POWER_GATING", "TPC_PG_MASK", "tpc_pg_mask")]
    if spec.fbp_mask is not None:
        files.append(("FBP_POWER_GATING", "FBP_PG_MASK", "fbp_pg_mask"))
    files += [("GPU_POWER_CONTROL_ENABLE", "GPU_PWR_CNTL_EN", "power/control")]
    files += [("GPU_POWER_CONTROL_DISABLE", "GPU_PWR_CNTL_DIS", "power/control")]
    for name, argument, attribute in files:
        lines += ["", f"< PARAM TYPE=FILE NAME={name} >"]
        lines += _pair(argument, f"{L4T35.gpu_alias}/{attribute}", f"{L4T36.gpu_alias}/{attribute}")
    return lines


def _cpu_groups(spec: BoardSpec) -> tuple[int, ...]:
    """The cpus by which the conf names CPU clocks: the `_super` files have one section a core."""
    return spec.cpus if spec.cpu_params == "core" else tuple(cluster[0] for cluster in spec.clusters)


def _gpu_paths(spec: BoardSpec, name: str) -> list[str]:
    argument = {"available_frequencies": "FREQ_TABLE", "max_freq": "MAX_FREQ", "min_freq": "MIN_FREQ"}[name]
    if spec.layout.gpu_alias is None:
        return [f"{argument} /sys/class/devfreq/{spec.layout.devfreq_name}/{name}"]
    return _pair(argument, f"{L4T35.devfreq}/{name}", f"{L4T36.gpu}/devfreq_dev/{name}")


def _clock_params(spec: BoardSpec) -> list[str]:
    lines = []
    for index, cpu in enumerate(_cpu_groups(spec)):
        folder = f"{CPU}/cpu{cpu}/cpufreq"
        lines += ["", f"< PARAM TYPE=CLOCK NAME=CPU_A78_{index} >"]
        lines += [f"FREQ_TABLE {folder}/scaling_available_frequencies"]
        lines += [f"MAX_FREQ {folder}/scaling_max_freq", f"MIN_FREQ {folder}/scaling_min_freq"]
    lines += ["", "< PARAM TYPE=CLOCK NAME=GPU >"]
    for name in ("available_frequencies", "max_freq", "min_freq"):
        lines += _gpu_paths(spec, name)
    # the stock files carry this header without the space: parsers must live with it
    lines += ["", "<PARAM TYPE=CLOCK NAME=EMC >", *_pair("MAX_FREQ", L4T35.emc_cap, L4T36.emc_cap)]
    for name, device, attribute, _ in ENGINES if spec.engines else ():
        lines += ["", f"< PARAM TYPE=CLOCK NAME={name} >"]
        lines += _pair("MAX_FREQ", L4T35.engine(device, attribute), L4T36.engine(device, attribute))
    return lines


def _model(spec: BoardSpec, mode: StockMode) -> list[str]:
    lines = ["", f"< POWER_MODEL ID={mode.id} NAME={mode.name} >"]
    lines += [f"CPU_ONLINE CORE_{cpu} {int(cpu < mode.cores)}" for cpu in spec.cpus]
    has_mask = spec.layout.gpu_alias is not None
    if spec.fbp_mask is not None:
        lines += [f"FBP_POWER_GATING FBP_PG_MASK {spec.fbp_mask}"]
    if has_mask:
        lines += [f"TPC_POWER_GATING TPC_PG_MASK {mode.mask}", "GPU_POWER_CONTROL_ENABLE GPU_PWR_CNTL_EN on"]
    for index, cpu in enumerate(_cpu_groups(spec)):
        if cpu < mode.cores:
            lines += [f"CPU_A78_{index} MIN_FREQ {spec.cpu_floor_khz}", f"CPU_A78_{index} MAX_FREQ {mode.cpu_khz}"]
    lines += ["GPU MIN_FREQ 0", f"GPU MAX_FREQ {mode.gpu_hz}"]
    if has_mask:
        lines += ["GPU_POWER_CONTROL_DISABLE GPU_PWR_CNTL_DIS auto"]
    lines += [f"EMC MAX_FREQ {mode.emc_hz if mode.emc_hz > 0 else spec.layout.emc_no_cap}"]
    if not spec.engines:
        return lines
    caps = (mode.dla_hz[0], mode.dla_hz[0], mode.dla_hz[1], mode.dla_hz[1], *mode.pva_hz)
    return lines + [f"{engine[0]} MAX_FREQ {cap}" for engine, cap in zip(ENGINES, caps, strict=True)]


def stock_conf(spec: BoardSpec) -> str:
    """The whole file."""
    lines = [f"# nvpmodel configuration of a virtual {spec.name}", "", *_file_params(spec), *_clock_params(spec)]
    for mode in spec.modes:
        lines += _model(spec, mode)
    return "\n".join([*lines, "", f"< PM_CONFIG DEFAULT={spec.mode(spec.default_mode).id} >", ""])
