"""The file tree of a virtual board, and its boot through the stock path.

`/etc`, `/var` and `.virtual` outlive a boot; `/sys`, `/proc` and `/run` are made anew. All links are relative.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jouled.errors import StateError
from jouled.virtual import chips, nvpmodel
from jouled.virtual.conf import ENGINES, stock_conf
from jouled.virtual.faults import FOLDER, damaged
from jouled.virtual.kernel import CPU, DEBUG, EMC, Kernel, cpu_list
from jouled.virtual.layout import LAYOUT_FILE
from jouled.virtual.specs import BoardSpec, Chip, board_spec, spec_from_json

STATUS = "/var/lib/nvpmodel/status"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
AMBIENT_MC = 45000


def _put(root: Path, path: str, text: str | int) -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    whole = text if isinstance(text, str) and text.endswith(("\n", "\0")) else f"{text}\n"
    target.write_text(whole, encoding="utf-8")


def _link(root: Path, path: str, target: str) -> None:
    link = root / path.lstrip("/")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target, os.path.dirname(path)))


def _make_lasting(root: Path, spec: BoardSpec) -> None:
    _put(root, "/etc/nv_tegra_release", spec.l4t_line)
    _put(root, f"/etc/nvpmodel/{spec.conf_name}", stock_conf(spec))
    _link(root, "/etc/nvpmodel.conf", f"/etc/nvpmodel/{spec.conf_name}")
    for folder in ("var/lib/nvpmodel", "root"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    policies = {str(cpu): cluster[0] for cluster in spec.clusters for cpu in cluster}
    _put(root, f"{FOLDER}/cpus.json", json.dumps(policies))
    engines = {spec.layout.engine(e[1], e[2]): e[3] for e in ENGINES} if spec.engines else {}
    _put(root, f"{FOLDER}/engines.json", json.dumps(engines))
    _put(root, f"{FOLDER}/{LAYOUT_FILE}", spec.family)
    _put(root, f"{FOLDER}/board.json", spec.to_json())


def _make_proc(root: Path, spec: BoardSpec) -> None:
    _put(root, "/proc/device-tree/model", spec.model + "\0")
    _put(root, "/proc/device-tree/compatible", "\0".join(spec.compatible) + "\0")
    _put(root, BOOT_ID, str(uuid.uuid4()))
    _put(root, "/proc/cmdline", "root=/dev/mmcblk0p1 rw rootwait")
    _put(root, "/proc/mounts", "/dev/mmcblk0p1 / ext4 rw,relatime 0 0")
    _put(root, "/sys/class/rtc/rtc0/hctosys", 1)
    memory = (("MemTotal:      ", spec.mem_total_kib), ("MemAvailable:  ", spec.mem_total_kib - 2_500_000))
    _put(root, "/proc/meminfo", "\n".join(f"{name} {kib} kB" for name, kib in memory))
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/nvhost-gpu").touch()


def _make_cpus(root: Path, spec: BoardSpec) -> None:
    span = cpu_list(spec.cpus)
    for name, text in (("present", span), ("possible", span), ("online", span), ("offline", "")):
        _put(root, f"{CPU}/{name}", text)
    for cluster in spec.clusters:
        policy = f"{CPU}/cpufreq/policy{cluster[0]}"
        table = spec.cpu_table_khz
        for name, text in (
            ("scaling_available_frequencies", " ".join(str(khz) for khz in table)),
            ("scaling_min_freq", str(min(table))),
            ("scaling_max_freq", str(max(table))),
            ("scaling_cur_freq", str(min(table))),
            ("cpuinfo_min_freq", str(min(table))),
            ("cpuinfo_max_freq", str(max(table))),
            ("scaling_governor", spec.cpu_governor),
            ("scaling_available_governors", "conservative ondemand userspace powersave performance schedutil"),
            ("scaling_driver", "tegra194"),
            ("related_cpus", " ".join(str(cpu) for cpu in cluster)),
            ("affected_cpus", " ".join(str(cpu) for cpu in cluster)),
        ):
            _put(root, f"{policy}/{name}", text)
        for cpu in cluster:
            _put(root, f"{CPU}/cpu{cpu}/online", 1)
            _link(root, f"{CPU}/cpu{cpu}/cpufreq", policy)
            for state, name in enumerate(spec.layout.idle_states):
                _put(root, f"{CPU}/cpu{cpu}/cpuidle/state{state}/name", name)
                _put(root, f"{CPU}/cpu{cpu}/cpuidle/state{state}/disable", 0)


def _make_devfreq(root: Path, folder: str, table: tuple[int, ...], governor: str) -> None:
    for name, text in (
        ("available_frequencies", " ".join(str(hz) for hz in table)),
        ("min_freq", str(min(table))),
        ("max_freq", str(max(table))),
        ("cur_freq", str(min(table))),
        ("governor", governor),
        ("available_governors", f"{governor} userspace performance simple_ondemand"),
    ):
        _put(root, f"{folder}/{name}", text)
    _link(root, f"/sys/class/devfreq/{os.path.basename(folder)}", folder)


def _make_gpu(root: Path, spec: BoardSpec) -> None:
    layout = spec.layout
    _make_devfreq(root, layout.devfreq, spec.gpu_table_hz, "nvhost_podgov")
    _put(root, f"{layout.gpu}/power/control", "auto")
    for name in layout.other_devfreq:
        table = spec.emc_table_hz if name == "bwmgr" else spec.gpu_table_hz
        _make_devfreq(root, f"{layout.gpu}/devfreq/{name}", table, "nvhost_podgov")
    _link(root, f"{layout.devfreq}/device", layout.gpu)
    _link(root, f"{layout.gpu}/devfreq_dev", layout.devfreq)
    if layout.gpu_node is None or layout.gpu_alias is None:
        return
    for name, text in (("load", "0"), ("railgate_enable", "1"), ("tpc_pg_mask", "0")):
        _put(root, f"{layout.gpu}/{name}", text)
    if spec.fbp_mask is not None:
        _put(root, f"{layout.gpu}/fbp_pg_mask", "0")
    _put(root, f"{layout.gpu}/of_node/name", f"{layout.gpu_node}\0")
    _put(root, f"{layout.gpu}/of_node/compatible", layout.gpu_compatible)
    _link(root, layout.gpu_alias, layout.gpu)


def _make_memory(root: Path, spec: BoardSpec) -> None:
    table = spec.emc_table_hz
    _put(root, spec.layout.emc_cap, 0 if spec.layout.emc_no_cap == 0 else max(table))
    for name, text in (
        ("rate", str(table[-2:][0])),
        ("min_rate", str(min(table))),
        ("max_rate", str(max(table))),
        ("possible_rates", " ".join(str(hz // 1000) for hz in table)),
        ("mrq_rate_locked", "0"),
        ("state", "1"),
    ):
        _put(root, f"{EMC}/{name}", text)
    if spec.layout.has_bwmgr_halt:
        _put(root, f"{DEBUG}/bpmp/debug/bwmgr/bwmgr_halt", 0)
    _put(root, f"{DEBUG}/nvmap/iovmm/clients", "CLIENT                        PROCESS      PID        SIZE")
    for _, device, attribute, top in ENGINES if spec.engines else ():
        _put(root, spec.layout.engine(device, attribute), top)


def _make_hwmon(root: Path, number: int, device: str, attributes: dict[str, str]) -> None:
    folder = f"{device}/hwmon/hwmon{number}"
    for name, text in attributes.items():
        _put(root, f"{folder}/{name}", text)
    _link(root, f"{folder}/device", device)
    _link(root, f"/sys/class/hwmon/hwmon{number}", folder)


def _make_chip(root: Path, number: int, spec: BoardSpec, chip: Chip) -> None:
    made = chips.made(spec, chip, number)
    for name, text in made.attributes.items():
        _put(root, f"{made.folder}/{name}", text)
    _put(root, f"{made.device}/name", chip.kind)
    _link(root, made.driver_link, made.device)
    _link(root, f"/sys/bus/i2c/devices/{chip.address}", made.device)
    if chip.kind == chips.INA3221X:
        _link(root, f"/sys/bus/iio/devices/{made.folder.rpartition('/')[2]}", made.folder)
    else:
        _link(root, f"{made.folder}/device", made.device)
        _link(root, f"/sys/class/hwmon/hwmon{number}", made.folder)


def _make_sensors(root: Path, spec: BoardSpec) -> None:
    numbers = random.sample(range(len(spec.chips) + 3), len(spec.chips) + 3)  # the order differs from boot to boot
    for chip in spec.chips:
        _make_chip(root, numbers.pop(), spec, chip)
    counters = {"name": "soctherm_oc"}
    for index in (1, 2, 3):
        counters |= {f"oc{index}_event_cnt": "0", f"oc{index}_throt_en": "1"}
    _make_hwmon(root, numbers.pop(), "/sys/devices/platform/soctherm-oc-event", counters)
    _make_hwmon(root, numbers.pop(), "/sys/devices/platform/pwm-fan", {"name": "pwmfan", "pwm1": "88"})
    tmp451 = {"name": "tmp451", "temp1_input": "38000", "temp2_input": "45000"}
    _make_hwmon(root, numbers.pop(), f"{spec.layout.i2c}/1-004c", tmp451)


def _make_thermal(root: Path, spec: BoardSpec) -> None:
    folder = "/sys/devices/virtual/thermal"
    for number, (_, kind) in enumerate(spec.layout.zones):
        _put(root, f"{folder}/thermal_zone{number}/type", kind)
        _put(root, f"{folder}/thermal_zone{number}/temp", AMBIENT_MC)
        _link(root, f"/sys/class/thermal/thermal_zone{number}", f"{folder}/thermal_zone{number}")
    coolers = [(f"cpufreq-cpu{cluster[0]}", len(spec.cpu_table_khz) - 1) for cluster in spec.clusters]
    coolers += [(f"devfreq-{spec.layout.devfreq_name}", len(spec.gpu_table_hz) - 1)]
    coolers += [(f"{zone}-throttle-alert", 1) for zone in spec.layout.alerts] + [
        ("hot-surface-alert", 1),
        ("pwm-fan", 3),
    ]
    for number, (kind, top) in enumerate(coolers):
        for name, text in (("type", kind), ("cur_state", "0"), ("max_state", str(top))):
            _put(root, f"{folder}/cooling_device{number}/{name}", text)
        _link(root, f"/sys/class/thermal/cooling_device{number}", f"{folder}/cooling_device{number}")


def make_tree(root: Path, board: str | BoardSpec = "agx-orin-64gb", base_mode: str | None = None) -> None:
    """Make the files of `board` in the folder `root` and boot it into `base_mode` (by name; its boot mode if None).

    It is made beside `root` and renamed: nobody sees a part of it, and of two that make it at once the second finds
    the first one's. Raises UsageError for an unknown board or mode, StateError, OSError.
    """
    spec = board_spec(board) if isinstance(board, str) else board
    mode = spec.mode(base_mode or spec.boot_mode)
    root = Path(os.path.realpath(root))
    fresh = root.with_name(f".{root.name}.new")
    root.parent.mkdir(parents=True, exist_ok=True)
    with _alone(root.parent):
        if is_tree(root):
            return
        if fresh.exists():  # whoever made it was killed
            shutil.rmtree(fresh)
        (fresh / FOLDER).mkdir(parents=True)
        _make_lasting(fresh, spec)
        _put(fresh, STATUS, f"pmode:{mode.id:04d}")
        boot(fresh, spec)
        _take_place(fresh, root)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One maker at a time in `folder`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _take_place(fresh: Path, root: Path) -> None:
    try:
        os.rename(fresh, root)
    except OSError as error:
        shutil.rmtree(fresh)
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        raise StateError(
            f"{root}: is not empty and holds no virtual board",
            hint=f"remove the folder {root} to get a fresh board, or name another folder with --state-dir",
        ) from error


def is_tree(root: Path) -> bool:
    """Does a virtual board lie at `root`?"""
    return (root / FOLDER / "board.json").exists()


def tree_spec(root: Path) -> BoardSpec:
    """The board that the tree at `root` was made of. Raises FileNotFoundError where there is no tree, StateError."""
    try:
        return spec_from_json((root / FOLDER / "board.json").read_text(encoding="utf-8"))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise damaged(str(root), "board.json", f"wanted the description of a board: {error}") from error


def boot(root: Path, spec: BoardSpec | None = None) -> None:
    """Boot the tree by the stock path: kernel defaults, then nvpmodel in the mode of its status file or DEFAULT."""
    spec = spec or tree_spec(root)
    for name in ("sys", "proc", "run", f"{FOLDER}/gpu_used", f"{FOLDER}/held", f"{FOLDER}/release", f"{FOLDER}/writes"):
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for away in (root / FOLDER).glob("policy*"):
        shutil.rmtree(away)
    (root / "run").mkdir()
    (root / FOLDER / "writes").touch()
    for make in (_make_proc, _make_cpus, _make_gpu, _make_memory, _make_sensors, _make_thermal):
        make(root, spec)
    nvpmodel.Nvpmodel(Kernel(str(root), "boot")).run(["-f", "/etc/nvpmodel.conf"])
