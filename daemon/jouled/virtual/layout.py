"""Where a kernel has its attributes: one layout per family of releases (JETSON 1.3, 4.1, 5, 6). Only light imports."""

from __future__ import annotations

from dataclasses import dataclass

_ORIN_ZONES = ("cpu", "gpu", "cv0", "cv1", "cv2", "soc0", "soc1", "soc2", "tj")


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths and spellings of one family.

    `gpu` is the GPU's device folder, `gpu_node` its device-tree name (None: no such node), `gpu_alias` the link gpu.0,
    `other_devfreq` further devfreq devices that are no knobs. `emc_no_cap`: what the memory's cap file takes and gives
    for "none". `uncapped` is what nvpmodel makes of -1. `zones` maps the plant's places to the types of thermal zones.
    """

    name: str
    gpu: str
    devfreq_name: str
    gpu_node: str | None
    gpu_compatible: str
    gpu_alias: str | None
    emc_cap: str
    emc_no_cap: int
    i2c: str
    engines: str
    uncapped: int
    has_bwmgr_halt: bool
    idle_states: tuple[str, ...]
    zones: tuple[tuple[str, str], ...]
    alerts: tuple[str, ...]
    other_devfreq: tuple[str, ...] = ()

    @property
    def devfreq(self) -> str:
        """The GPU's devfreq folder."""
        return f"{self.gpu}/devfreq/{self.devfreq_name}"

    def engine(self, device: str, attribute: str) -> str:
        """The cap of a DLA or PVA clock."""
        return self.engines.format(device=device, attribute=attribute)


L4T36 = Layout(
    name="l4t36",
    gpu="/sys/devices/platform/17000000.gpu",
    devfreq_name="17000000.gpu",
    gpu_node="gpu",
    gpu_compatible="nvidia,ga10b\0nvidia,gpu\0",
    gpu_alias="/sys/devices/platform/gpu.0",
    emc_cap="/sys/kernel/nvpmodel_clk_cap/emc",
    emc_no_cap=-1,
    i2c="/sys/devices/platform/bus@0/c240000.i2c/i2c-1",
    engines="/sys/devices/platform/bus@0/13e00000.host1x/{device}/clk_cap/{attribute}",
    uncapped=9223372036854775807,
    has_bwmgr_halt=True,
    idle_states=("WFI", "c7"),
    zones=tuple((zone, f"{zone}-thermal") for zone in _ORIN_ZONES),
    alerts=_ORIN_ZONES[:-1],
)

# The zones' names are not certain [JETSON 5: U].
L4T35 = Layout(
    name="l4t35",
    gpu="/sys/devices/17000000.ga10b",
    devfreq_name="17000000.ga10b",
    gpu_node="ga10b",
    gpu_compatible="nvidia,ga10b\0",
    gpu_alias="/sys/devices/gpu.0",
    emc_cap="/sys/kernel/nvpmodel_emc_cap/emc_iso_cap",
    emc_no_cap=0,
    i2c="/sys/devices/platform/c240000.i2c/i2c-1",
    engines="/sys/devices/platform/13e40000.host1x/{device}/acm/clk_cap/{attribute}",
    uncapped=2147483647,
    has_bwmgr_halt=False,
    idle_states=("WFI", "c7"),
    zones=tuple((zone, f"{zone if zone == 'tj' else zone.upper()}-therm") for zone in _ORIN_ZONES),
    alerts=_ORIN_ZONES[:-1],
)

# Names are seen, folders assumed.
THOR = Layout(
    name="thor",
    gpu="/sys/devices/pci0000:00/0000:00:00.0/0000:01:00.0",
    devfreq_name="gpu-gpc-0",
    gpu_node=None,
    gpu_compatible="",
    gpu_alias=None,
    emc_cap="/sys/kernel/nvpmodel_clk_cap/emc",
    emc_no_cap=-1,
    i2c="/sys/devices/platform/bus@0/c250000.i2c/i2c-2",
    engines="",
    uncapped=9223372036854775807,
    has_bwmgr_halt=True,
    idle_states=("WFI", "cc7"),
    zones=(("cpu", "cpu-thermal"), ("gpu", "gpu-thermal"), ("soc0", "soc012-thermal"), ("soc1", "soc345-thermal"),
           ("tj", "tj-thermal")),
    alerts=("cpu", "gpu", "soc012", "soc345"),
    other_devfreq=("gpu-nvd-0", "bwmgr"),
)  # fmt: skip

LAYOUTS = {layout.name: layout for layout in (L4T36, L4T35, THOR)}
LAYOUT_FILE = "layout"


def layout_at(folder: str) -> Layout:
    """The layout of the tree whose own folder is `folder`; a tree made before there were several is of L4T 36."""
    try:
        with open(f"{folder}/{LAYOUT_FILE}", encoding="ascii") as file:
            return LAYOUTS.get(file.read().strip(), L4T36)
    except OSError:
        return L4T36
