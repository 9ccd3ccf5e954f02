"""The virtual nvpmodel and jetson_clocks, judged line by line against JETSON 1.6, 1.7, 2.1 and 2.2.

Each row is one line of the paper: what is called on which board, what must come out on which stream, the exit code,
and exactly which files differ afterwards. Every row is run twice: as a real child and within this process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jouled.virtual.console import Console
from jouled.virtual.faults import FOLDER, set_faults
from jouled.virtual.jetson_clocks import JetsonClocks
from jouled.virtual.kernel import CPU, DEVFREQ, EMC, EMC_CAP, GPU, Kernel
from jouled.virtual.nvpmodel import Nvpmodel
from jouled.virtual.processes import VirtualProcesses
from jouled.virtual.programs import PLACES, collect, install, program
from jouled.virtual.tree import boot, make_tree

HOME = "/root"
STATUS = "/var/lib/nvpmodel/status"
IN_USE = "/var/lib/nvpmodel/conf_file_path"
MASK = f"{GPU}/tpc_pg_mask"
STORE = f"{HOME}/.jetsonclocks_conf.txt"
UNKEPT = {f"/{FOLDER}/writes", f"/{FOLDER}/took_s"}
WARNING = (
    "NVPM WARN: Golden image context is already created\n"
    "NVPM WARN: Reboot required for changing to this power mode: 1\n"
)
QUESTION = WARNING + "NVPM WARN: DO YOU WANT TO REBOOT NOW? enter YES/yes to confirm: \n"
DECLINED = "NVPM ERROR: optMask is 1, no request for power mode\n"
NO_ROOT = "Error: Run this script(/usr/bin/jetson_clocks) as a root user\n"
UNWRITTEN = "NVPM ERROR: failed to set power mode!\nNVPM ERROR: optMask is 2, no request for power mode\n"
NOT_OURS = "< PARAM TYPE=FILE NAME=CPU_ONLINE >\nCORE_12 /sys/devices/system/cpu/cpu12/online\n"
HEAD = NOT_OURS + "< POWER_MODEL ID=0 NAME=MAXN >\n"


def policies(count: int = 3, **values: str) -> dict[str, str]:
    """The same attribute values in the first `count` policies."""
    return {f"{CPU}/cpufreq/policy{4 * i}/{name}": text for i in range(count) for name, text in values.items()}


def idle(text: str, cpus: int = 12) -> dict[str, str]:
    """Both idle states of the first `cpus` cores."""
    return {f"{CPU}/cpu{cpu}/cpuidle/state{state}/disable": text for cpu in range(cpus) for state in (0, 1)}


def engines(core: str, falcon: str, vps: str, axi: str) -> dict[str, str]:
    """The caps of DLA and PVA."""
    host1x = "/sys/devices/platform/bus@0/13e00000.host1x"
    return {
        f"{host1x}/15880000.nvdla0/clk_cap/dla0_core": core,
        f"{host1x}/158c0000.nvdla1/clk_cap/dla1_core": core,
        f"{host1x}/15880000.nvdla0/clk_cap/dla0_falcon": falcon,
        f"{host1x}/158c0000.nvdla1/clk_cap/dla1_falcon": falcon,
        f"{host1x}/16000000.pva0/clk_cap/pva0_vps": vps,
        f"{host1x}/16000000.pva0/clk_cap/pva0_axi": axi,
    }


FROM_MAXN_TO_50W = {
    **policies(scaling_max_freq="1497600"),
    f"{DEVFREQ}/max_freq": "816000000",
    **engines("1369600000", "729600000", "704000000", "486400000"),
    STATUS: "pmode:0003",
}
LAST_CLUSTER_OFF = {
    f"{CPU}/online": "0-7",
    f"{CPU}/offline": "8-11",
    **{f"{CPU}/cpu{cpu}/online": "0" for cpu in range(8, 12)},
}
LOCKED_MAXN = {
    **policies(scaling_min_freq="2201600"),
    **idle("1"),
    f"{GPU}/railgate_enable": "0",
    f"{DEVFREQ}/min_freq": "1300500000",
    f"{EMC}/mrq_rate_locked": "1",
    f"{EMC}/rate": "3199000000",
}
POLICY_FILES = (
    *("scaling_available_frequencies", "scaling_min_freq", "scaling_max_freq", "scaling_cur_freq"),
    *("cpuinfo_min_freq", "cpuinfo_max_freq", "scaling_governor", "scaling_available_governors"),
    *("scaling_driver", "related_cpus", "affected_cpus"),
)


@dataclass(frozen=True)
class Row:
    """One line of the paper. `stdout_has`: lines among others, where the whole text is long."""

    line: str
    argv: tuple[str, ...]
    stdout: str | None = ""
    stderr: str = ""
    code: int = 0
    changed: dict[str, str] = field(default_factory=dict)
    base: str = "MAXN"
    faults: dict[str, object] = field(default_factory=dict)
    before: tuple[tuple[str, ...], ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    used: bool = False
    answer: str | None = None
    stdout_has: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    prepare: Callable[[Path], None] = lambda _: None
    reboots: bool = False


def nv(line: str, *arguments: str, **fields: Any) -> Row:
    """A row about nvpmodel."""
    return Row(line, ("nvpmodel", *arguments), **fields)


def jc(line: str, *arguments: str, **fields: Any) -> Row:
    """A row about jetson_clocks."""
    return Row(line, ("jetson_clocks", *arguments), **fields)


def without_gpu(root: Path) -> None:
    """No devfreq device."""
    shutil.rmtree(root / DEVFREQ.lstrip("/"))


def another_soc(root: Path) -> None:
    """A board that the script does not know."""
    (root / "proc/device-tree/compatible").write_text("nvidia,p3834-0008\0nvidia,tegra264\0")


def no_status(root: Path) -> None:
    """nvpmodel has never run."""
    (root / STATUS.lstrip("/")).unlink()


def one_model(identity: str, *lines: str) -> str:
    """A private conf with the parameters of the stock one that it needs."""
    return "\n".join(
        [
            "<PARAM TYPE=CLOCK NAME=EMC >",
            "MAX_FREQ /sys/kernel/nvpmodel_emc_cap/emc_iso_cap",
            f"MAX_FREQ_KNEXT {EMC_CAP}",
            "< PARAM TYPE=CLOCK NAME=GPU >",
            f"MAX_FREQ_KNEXT {GPU}/devfreq_dev/max_freq  # a remark",
            f"< POWER_MODEL {identity} >",
            *lines,
            "",
        ]
    )


ROWS_16 = (
    nv("1.6 -q", "-q", stdout="NV Power Mode: MODE_30W\n2\n", base="MODE_30W"),
    nv(
        "1.6 -q non-root",
        "-q",
        stdout="NV Power Mode: MODE_30W\n2\n",
        stderr=f"NVPM ERROR: Error opening {EMC_CAP}: 13\n",
        base="MODE_30W",
        faults={"user": "nobody"},
    ),
    nv(
        "1.6 -q non-root, mixed on one stream",
        "-q",
        stdout=f"NV Power Mode: MODE_30W\n2\nNVPM ERROR: Error opening {EMC_CAP}: 13\n",
        base="MODE_30W",
        faults={"user": "nobody", "errors_to_stdout": True},
    ),
    nv(
        "1.6 -q old releases",
        "-q",
        stdout="NVPM WARN: fan mode is not set!\nNV Power Mode: MAXN\n0\n",
        faults={"fan_warning": True},
    ),
    nv("1.6 -q no mode yet", "-q", prepare=no_status),
    nv("1.6 -m N ok", "-m", "3", changed=FROM_MAXN_TO_50W),
    nv("1.6 -m N ok, nothing to change", "-m", "0"),
    nv("1.6 -m bad id", "-m", "7", stderr="NVPM ERROR: request for bad power mode 7\n", code=255),
    nv(
        "1.6 write failed: EBUSY, earlier lines stay applied",
        "-m",
        "2",
        stderr=f"NVPM ERROR: Error writing 240 to /sys/devices/platform/gpu.0/tpc_pg_mask: 16\n"
        f"NVPM ERROR: failed to write PARAM TPC_POWER_GATING: ARG TPC_PG_MASK:"
        f" PATH /sys/devices/platform/gpu.0/tpc_pg_mask: VAL: 240\n{UNWRITTEN}",
        code=255,
        faults={"write_errors": [{"path": "*/tpc_pg_mask", "errno": "EBUSY"}]},
        changed=LAST_CLUSTER_OFF,
        removed=tuple(f"{CPU}/cpu{cpu}/cpufreq" for cpu in range(8, 12)),
    ),
    nv(
        "1.6 write failed after N lines",
        "-m",
        "3",
        stderr=f"NVPM ERROR: Error writing 1497600 to {CPU}/cpu4/cpufreq/scaling_max_freq: 16\n"
        f"NVPM ERROR: failed to write PARAM CPU_A78_1: ARG MAX_FREQ:"
        f" PATH {CPU}/cpu4/cpufreq/scaling_max_freq: VAL: 1497600\n{UNWRITTEN}",
        code=255,
        faults={"write_errors": [{"errno": "EBUSY", "after": 17}]},
        changed={**policies(1, scaling_max_freq="1497600"), f"{GPU}/power/control": "on"},
    ),
    nv(
        "1.6 setting needs root",
        "-m",
        "3",
        stderr=f"NVPM ERROR: Error writing 1 to {CPU}/cpu0/online: 13\n"
        f"NVPM ERROR: failed to write PARAM CPU_ONLINE: ARG CORE_0: PATH {CPU}/cpu0/online: VAL: 1\n{UNWRITTEN}",
        code=255,
        faults={"user": "nobody"},
    ),
    nv(
        "1.6 wrong board's conf",
        "-f",
        "/etc/other.conf",
        "-m",
        "0",
        files={"/etc/other.conf": HEAD + "CPU_ONLINE CORE_12 1\n"},
        stderr=f"NVPM ERROR: Error opening {CPU}/cpu12/online: 2\n"
        f"NVPM ERROR: failed to write PARAM CPU_ONLINE: ARG CORE_12: PATH {CPU}/cpu12/online: VAL: 1\n{UNWRITTEN}",
        code=255,
    ),
    nv(
        "1.6 wrong PARAM name is ignored silently",
        "-f",
        "/etc/other.conf",
        "-m",
        "0",
        files={"/etc/other.conf": HEAD + "CPU_ONLIEN CORE_1 0\n"},
        changed={IN_USE: "/etc/other.conf"},
    ),
    nv("1.6 needs reboot, EOF", "-m", "2", used=True, stdout=QUESTION, stderr="NVPM ERROR: bad input!\n", code=234),
    nv("1.6 needs reboot, n", "-m", "2", used=True, answer="n\n", stdout=QUESTION, stderr=DECLINED, code=255),
    nv(
        "1.6 chroot or container",
        "-m",
        "3",
        stdout="Running in chroot, ignoring request.\n",
        faults={"chroot": True},
        changed={STATUS: "pmode:0003"},
    ),
    nv(
        "1.6 -q --verbose",
        "-q",
        "--verbose",
        base="MODE_50W",
        stdout=None,
        stdout_has=(
            "NVPM VERB: Config file: /etc/nvpmodel.conf",
            "NVPM VERB: parsing done for /etc/nvpmodel.conf",
            "NVPM VERB: Current mode: NV Power Mode: MODE_50W",
            "3",
            f"NVPM VERB: PARAM CPU_A78_0: ARG MAX_FREQ: PATH {CPU}/cpu0/cpufreq/scaling_max_freq:"
            " REAL_VAL: 1497600 CONF_VAL: 1497600",
            f"NVPM VERB: PARAM EMC: ARG MAX_FREQ: PATH {EMC_CAP}: REAL_VAL: 3199000000 CONF_VAL: 9223372036854775807",
            f"NVPM VERB: PARAM GPU: ARG MIN_FREQ: PATH {GPU}/devfreq_dev/min_freq: REAL_VAL: 306000000 CONF_VAL: 0",
        ),
    ),
    nv(
        "1.6 -p --verbose",
        "-p",
        "--verbose",
        stdout=None,
        stdout_has=(
            "NVPM VERB: PARAM TYPE=FILE NAME=CPU_ONLINE",
            "NVPM VERB: POWER_MODEL: ID=0 NAME=MAXN",
            "NVPM VERB: PM_CONFIG: DEFAULT=MODE_30W(2)",
            "succeed to parse file /etc/nvpmodel.conf.",
        ),
    ),
    nv("1.6 -p", "-p", stdout="succeed to parse file /etc/nvpmodel.conf.\n"),
)

ROWS_17 = (
    nv("1.7 same mask: no question", "-m", "3", used=True, changed=FROM_MAXN_TO_50W),
    nv("1.7 YES", "-m", "2", used=True, answer="YES\n", stdout=QUESTION + "NVPM WARN: rebooting\n", reboots=True),
    nv("1.7 yes", "-m", "2", used=True, answer="yes\n", stdout=QUESTION + "NVPM WARN: rebooting\n", reboots=True),
    nv("1.7 anything else", "-m", "2", used=True, answer="y\n", stdout=QUESTION, stderr=DECLINED, code=255),
    nv("1.7 15W from MAXN", "-m", "1", used=True, stdout=QUESTION, stderr="NVPM ERROR: bad input!\n", code=234),
    nv(
        "1.7 asked for any mode, even the current one",
        "-m",
        "0",
        faults={"prompt": True},
        stdout=QUESTION,
        stderr="NVPM ERROR: bad input!\n",
        code=234,
    ),
    nv(
        "1.7 --force does not ask",
        "-m",
        "2",
        "--force",
        used=True,
        stdout=WARNING + "Automatically rebooting to reflect the mode change\n",
        reboots=True,
    ),
)

ROWS_18 = (
    nv(
        "1.8 -m undoes the lock of CPU and GPU; EMC lock and idle states stay",
        "-m",
        "0",
        before=(("jetson_clocks",),),
        changed={**policies(scaling_min_freq="729600"), f"{DEVFREQ}/min_freq": "306000000"},
    ),
    nv(
        "1.5 -f alone keeps the recorded mode",
        "-f",
        "/etc/nvpmodel.conf",
        before=(("jetson_clocks",),),
        changed={**policies(scaling_min_freq="729600"), f"{DEVFREQ}/min_freq": "306000000"},
    ),
    nv(
        "1.9 a private conf with the base mode's own ID and NAME",
        "-m",
        "0",
        "-f",
        "/run/jouled/a mode.conf",
        files={
            "/run/jouled/a mode.conf": one_model("ID=0 NAME=MAXN", "GPU MAX_FREQ 600000000", "EMC MAX_FREQ 3000000000")
        },
        changed={
            f"{DEVFREQ}/max_freq": "612000000",
            EMC_CAP: "2133000000",
            IN_USE: "/run/jouled/a mode.conf",
        },
    ),
)

ROWS_21 = (
    *(
        jc(f"2.1 not root: {' '.join(argv) or 'lock'}", *argv, stdout=NO_ROOT, code=1, faults={"user": "nobody"})
        for argv in ((), ("--show",), ("--store",), ("--restore",), ("--fan",), ("--nonsense",))
    ),
    jc("2.1 -h is free", "-h", stdout=None, stdout_has=("Usage:",), faults={"user": "nobody"}),
    jc("2.1 unknown option: usage, exit 0", "--nonsense", stdout=None, stdout_has=("Usage:",)),
    jc("2.1 lock", changed=LOCKED_MAXN),
    jc(
        "2.1 lock within the mode, offline cores left alone",
        base="MODE_15W",
        changed={
            **policies(1, scaling_min_freq="1113600"),
            **idle("1"),
            f"{GPU}/railgate_enable": "0",
            f"{DEVFREQ}/min_freq": "408000000",
            f"{EMC}/mrq_rate_locked": "1",
        },
    ),
    jc(
        "2.1 a GPU error exits before EMC: partial lock",
        prepare=without_gpu,
        stdout="Error! GPU frequency scaling not supported!\n",
        code=1,
        changed={**policies(scaling_min_freq="2201600"), **idle("1")},
    ),
    jc("2.1 unknown SoC", prepare=another_soc, stdout="Error! unsupported SOC\n", code=1),
    jc("2.1 --fan", "--fan", changed={**LOCKED_MAXN, "/sys/devices/platform/pwm-fan/hwmon/hwmon*/pwm1": "255"}),
    jc(
        "2.1 a write that fails is not seen in the exit code",
        faults={"write_errors": [{"path": "*/mrq_rate_locked", "errno": "EBUSY"}]},
        stderr="/usr/bin/jetson_clocks: line 290: echo: write error: Device or resource busy\n",
        changed={p: v for p, v in LOCKED_MAXN.items() if p != f"{EMC}/mrq_rate_locked"},
    ),
    jc(
        "2.1 arguments are not quoted",
        "--store",
        f"{HOME}/two words",
        changed={f"{HOME}/two": "*"},
    ),
)

ROWS_22 = (
    jc("2.2 --store: default file", "--store", changed={STORE: "*"}),
    jc(
        "2.2 --store: file exists, EOF",
        "--store",
        f"{HOME}/s",
        before=(("jetson_clocks", "--store", f"{HOME}/s"),),
        stdout=f"File {HOME}/s already exists. Can I overwrite it? Y/N: Error: file {HOME}/s already exists!\n",
        code=1,
    ),
    jc(
        "2.2 --store: file exists, N",
        "--store",
        f"{HOME}/s",
        files={f"{HOME}/s": "old"},
        answer="N\n",
        stdout=f"File {HOME}/s already exists. Can I overwrite it? Y/N: Error: file {HOME}/s already exists!\n",
        code=1,
    ),
    jc(
        "2.2 --store: file exists, Y while locked keeps the locked values",
        "--store",
        f"{HOME}/s",
        before=(("jetson_clocks", "--store", f"{HOME}/s"), ("jetson_clocks",)),
        answer="Y\n",
        stdout=f"File {HOME}/s already exists. Can I overwrite it? Y/N: ",
        changed={f"{HOME}/s": "*"},
    ),
    jc("2.2 --restore without file", "--restore", stdout=f"Error: {STORE} file not found !\n", code=1),
    jc(
        "2.2 --restore: minima, idle states, GPU, EMC override; not the EMC rate",
        "--restore",
        base="MODE_50W",
        before=(("jetson_clocks", "--store"), ("jetson_clocks",)),
        stdout=f"Restoring system configuration from {STORE}\n",
        changed={
            **policies(scaling_min_freq="729600"),
            **idle("0"),
            f"{GPU}/railgate_enable": "1",
            f"{DEVFREQ}/min_freq": "306000000",
            f"{EMC}/mrq_rate_locked": "0",
        },
    ),
    jc(
        "2.2 --restore: exit 0 although writes failed; failures on minima are not printed",
        "--restore",
        before=(("jetson_clocks", "--store"), ("jetson_clocks",)),
        faults={
            "write_errors": [
                {"path": "*/railgate_enable", "errno": "EBUSY"},
                {"path": "*/scaling_min_freq", "errno": "EBUSY"},
            ]
        },
        stdout=f"Restoring system configuration from {STORE}\nError: Failed to restore {GPU}/railgate_enable\n",
        changed={**idle("0"), f"{DEVFREQ}/min_freq": "306000000", f"{EMC}/mrq_rate_locked": "0"},
    ),
    jc(
        "2.2 --restore: stored online values bring back another mode's cores, without caps",
        "--restore",
        before=(("jetson_clocks", "--store"), ("nvpmodel", "-m", "1")),
        stdout=f"Restoring system configuration from {STORE}\n",
        changed={
            f"{CPU}/online": "0-11",
            f"{CPU}/offline": "",
            **{f"{CPU}/cpu{cpu}/online": "1" for cpu in range(4, 12)},
            **{f"{CPU}/cpufreq/policy{p}/{name}": "*" for p in (4, 8) for name in POLICY_FILES},
        },
    ),
)
ROWS = (*ROWS_16, *ROWS_17, *ROWS_18, *ROWS_21, *ROWS_22)


def contents(root: Path) -> dict[str, str]:
    """Every file below the root (links named, not followed) and its text."""
    found = {}
    for folder, names, files in os.walk(root):
        for name in (*files, *(n for n in names if os.path.islink(os.path.join(folder, n)))):
            real = Path(folder, name)
            path = "/" + str(real.relative_to(root))
            if path not in UNKEPT and not path.startswith(("/usr/", f"/{FOLDER}/policy")):
                found[path] = "-> " + os.readlink(real) if real.is_symlink() else real.read_text().strip()
    return found


def call(root: Path, argv: tuple[str, ...], answer: str | None, *, child: bool) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    if child:
        done = subprocess.run(
            [str(root / PLACES[argv[0]]), *argv[1:]],
            input=answer or "",
            capture_output=True,
            text=True,
            timeout=30,
            env={"HOME": HOME, "LC_ALL": "C", "PATH": "/usr/bin:/bin"},
            check=False,
        )
        return done.returncode, done.stdout, done.stderr
    kernel, console = Kernel(str(root), argv[0]), Console([answer.strip()] if answer else [])
    run = Nvpmodel(kernel, console) if argv[0] == "nvpmodel" else JetsonClocks(kernel, console, home=HOME)
    code = run.run(list(argv[1:]))
    if run.reboots:
        boot(root)
    return code, "".join(console.out), "".join(console.err)


def is_like(path: str, pattern: str) -> bool:
    """A path with its hwmon number left open."""
    head, star, tail = pattern.partition("*")
    return path == pattern or bool(star and path.startswith(head) and path.endswith(tail))


@pytest.mark.parametrize("child", [True, False], ids=["child", "in_process"])
@pytest.mark.parametrize("row", ROWS, ids=[row.line for row in ROWS])
def test_program_does_what_the_papers_line_says(tmp_path: Path, row: Row, *, child: bool) -> None:
    root = tmp_path / "a board"
    make_tree(root, base_mode=row.base)
    install(str(root))
    row.prepare(root)
    for path, text in row.files.items():
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.lstrip("/")).write_text(text)
    if row.used:
        (root / FOLDER / "gpu_used").touch()
    for argv in row.before:
        assert call(root, argv, None, child=False)[0] == 0
    set_faults(str(root), **row.faults)
    before = contents(root)

    code, stdout, stderr = call(root, row.argv, row.answer, child=child)

    assert stderr == row.stderr
    assert code == row.code
    if row.stdout is not None:
        assert stdout == row.stdout
    for line in row.stdout_has:
        assert line in stdout.splitlines()
    after = contents(root)
    if row.reboots:
        assert after["/proc/sys/kernel/random/boot_id"] != before["/proc/sys/kernel/random/boot_id"]
        assert (after[MASK], after[STATUS], after[f"{CPU}/online"]) == ("240", "pmode:0002", "0-7")
        return
    changed = {path: text for path, text in after.items() if before.get(path) != text and not text.startswith("-> ")}
    for pattern, text in row.changed.items():
        hits = [path for path in changed if is_like(path, pattern)]
        assert len(hits) == 1, f"{pattern}: wanted a change, got {sorted(changed)}"
        assert text in ("*", changed.pop(hits[0])), hits[0]
    assert changed == {}
    gone = sorted(path for path in before if path not in after and "/policy" not in path)
    assert gone == sorted(row.removed)


def test_store_keeps_minima_idle_gpu_and_lock_but_no_maximum(tmp_path: Path) -> None:
    make_tree(tmp_path)
    assert call(tmp_path, ("jetson_clocks", "--store", f"{HOME}/s"), None, child=False)[0] == 0
    lines = (tmp_path / f"{HOME[1:]}/s").read_text().splitlines()
    assert f"{CPU}/cpu0/cpufreq/scaling_min_freq:729600" in lines
    assert f"{DEVFREQ}/min_freq:306000000" in lines
    assert f"{EMC}/mrq_rate_locked:0" in lines
    assert not [line for line in lines if "max_freq" in line or "/emc/rate" in line or "governor" in line]


def test_show_prints_the_form_of_l4t_36(tmp_path: Path) -> None:
    make_tree(tmp_path, base_mode="MODE_30W")
    _, stdout, _ = call(tmp_path, ("jetson_clocks", "--show"), None, child=False)
    lines = stdout.splitlines()
    assert lines[0] == "SOC family:tegra234  Machine:NVIDIA Jetson AGX Orin Developer Kit"
    assert lines[1] == "Online CPUs: 0-7"
    assert (
        "cpu1:  Online=1 Governor=schedutil MinFreq=729600 MaxFreq=1728000 CurrentFreq=115200 IdleStates: WFI=1 c7=1 "
        in lines
    )
    assert "GPU MinFreq=306000000 MaxFreq=612000000 CurrentFreq=306000000" in lines
    assert "Active GPU TPCs: 4" in lines
    assert "EMC MinFreq=204000000 MaxFreq=3199000000 CurrentFreq=2133000000 FreqOverride=0" in lines


def test_foreign_id_in_the_status_file_leaves_a_board_without_caps_at_boot(tmp_path: Path) -> None:
    make_tree(tmp_path, base_mode="MODE_30W")
    (tmp_path / STATUS.lstrip("/")).write_text("pmode:0099\n")
    boot(tmp_path)
    assert Kernel(str(tmp_path), "boot").load(f"{DEVFREQ}/max_freq") == "1300500000"


def test_status_file_is_how_a_mask_changes_at_the_next_boot(tmp_path: Path) -> None:
    make_tree(tmp_path)
    (tmp_path / FOLDER / "gpu_used").touch()
    (tmp_path / STATUS.lstrip("/")).write_text("pmode:0001\n")
    boot(tmp_path)
    kernel = Kernel(str(tmp_path), "boot")
    assert (kernel.load(MASK), kernel.load(f"{CPU}/online")) == ("248", "0-3")


def test_boot_without_status_file_takes_the_default(tmp_path: Path) -> None:
    make_tree(tmp_path)
    no_status(tmp_path)
    boot(tmp_path)
    assert Kernel(str(tmp_path), "boot").load(STATUS) == "pmode:0002"


def test_absent_program_cannot_be_started(tmp_path: Path) -> None:
    make_tree(tmp_path)
    set_faults(str(tmp_path), absent=["nvpmodel"])
    processes = VirtualProcesses(tmp_path)
    assert processes.find("nvpmodel") is None
    assert processes.find("jetson_clocks") is not None


@pytest.mark.parametrize("in_process", [True, False])
def test_slow_program_takes_simulated_time_and_is_ended_at_its_limit(tmp_path: Path, *, in_process: bool) -> None:
    make_tree(tmp_path)
    passed: list[float] = []
    processes = VirtualProcesses(tmp_path, elapse=passed.append, in_process=in_process)
    assert processes.run(["nvpmodel", "-q"], timeout_s=10.0).duration_s == pytest.approx(0.12)
    set_faults(str(tmp_path), slow_s={"nvpmodel": 4.0})
    assert not processes.run(["nvpmodel", "-q"], timeout_s=10.0).timed_out
    late = processes.run(["nvpmodel", "-q"], timeout_s=2.0)
    assert (late.timed_out, late.returncode) == (True, -15)
    assert passed == pytest.approx([0.12, 4.12, 2.0])


@pytest.mark.parametrize("in_process", [True, False])
def test_hanging_program_is_ended_and_costs_its_whole_limit(tmp_path: Path, *, in_process: bool) -> None:
    make_tree(tmp_path)
    passed: list[float] = []
    set_faults(str(tmp_path), hang={"nvpmodel": 14})
    processes = VirtualProcesses(tmp_path, elapse=passed.append, in_process=in_process)
    done = processes.run(["nvpmodel", "-m", "3"], timeout_s=10.0)
    assert (done.timed_out, done.returncode, passed) == (True, -15, [10.0])
    assert Kernel(str(tmp_path), "boot").load(STATUS) == "pmode:0000"


def test_child_tells_its_time_once(tmp_path: Path) -> None:
    make_tree(tmp_path)
    install(str(tmp_path))
    call(tmp_path, ("jetson_clocks",), None, child=True)
    assert collect(str(tmp_path)) == pytest.approx(0.35)
    assert collect(str(tmp_path)) == 0.0


def test_program_is_found_by_its_name(tmp_path: Path) -> None:
    make_tree(tmp_path)
    kernel = Kernel(str(tmp_path), "nvpmodel")
    assert isinstance(program("nvpmodel", kernel, Console()), Nvpmodel)
    assert isinstance(program("jetson_clocks", kernel, Console()), JetsonClocks)
