"""`jouled doctor`: what is said of boards in every state, that looking changes nothing, and what a report holds."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.standin_python import interpreter, plan

from jouled.board.board import About, Note, discover
from jouled.board.grid import board_space
from jouled.board.identity import board_files
from jouled.board.knobs import CONF_PATH_PATH, STATUS_PATH, read_knobs
from jouled.board.lock import hold_board
from jouled.board.pending import pending_path
from jouled.board.process import Processes
from jouled.board.snapshot import boot_id, snapshot_path
from jouled.cli import main
from jouled.cli.doctor import as_json, screen
from jouled.cli.output import WIDTH
from jouled.config import Config, load
from jouled.doctor.boards import CONF_OF
from jouled.doctor.check import Check, Level
from jouled.doctor.examine import Diagnosis, examine
from jouled.doctor.patient import admit
from jouled.doctor.report import own_names, report, scrub
from jouled.doctor.runner import nothing_runs
from jouled.job.cancel import Cancellation
from jouled.job.job import run_job
from jouled.job.site import Site
from jouled.virtual.faults import FOLDER, set_faults
from jouled.virtual.machine import VirtualMachine
from jouled.virtual.named import inject
from jouled.virtual.programs import typed
from jouled.virtual.runner import VirtualRunner
from jouled.workload.runner import Arrival

AGX = "agx-orin-64gb"
HOMES = "/home"
PATIENCE_S = 60.0
SIMULATED = "virtual:yolov8s-640"


class Clinic:
    """A virtual board in `folder` and what doctor says of it."""

    def __init__(self, folder: Path, board: str = AGX, **faults: Any) -> None:
        self.folder = folder
        self.machine = VirtualMachine(folder / "board", board=board, programs="in_process")
        if faults:
            set_faults(str(self.machine.root), **faults)

    def plant(self, path: str, text: str) -> None:
        """A file of the board."""
        target = self.machine.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def site(self, config: Config) -> Site:
        return Site(
            host=self.machine.host(self.folder),
            config=config,
            workload=SIMULATED,
            make_space=lambda board: board_space(board, config.grid),
            make_runner=lambda arrival: VirtualRunner(self.machine, arrival),
        )

    def examine(self, *, privileged: bool = True, may_probe: bool = True, **keys: Any) -> Diagnosis:
        site = self.site(load(None, {key.replace("__", "."): value for key, value in keys.items()}))
        site = replace(site, host=replace(site.host, privileged=privileged))
        return examine(admit(site, may_probe=may_probe), workloads=nothing_runs(SIMULATED))

    def check(self, name: str, **more: Any) -> Check:
        (found,) = [check for check in self.examine(**more).checks if check.name == name]
        return found

    def knobs(self) -> dict[str, str]:
        host = self.machine.host(self.folder)
        return dict(read_knobs(host.sysfs, discover(host).domains).values)

    def writes(self) -> bytes:
        return (self.machine.root / FOLDER / "writes").read_bytes()


@pytest.fixture
def clinic(tmp_path: Path) -> Clinic:
    return Clinic(tmp_path)


# --- the screen ---------------------------------------------------------------------------------------------


def test_first_three_lines_say_board_and_mode_whether_and_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--virtual", AGX, "--state-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "board     agx-orin-64gb (p3701-0005 on p3737-0000), L4T 36.4.3, in MAXN",
        "can tune  yes",
        "why not   nothing speaks against it",
    ]
    assert {line.split()[0] for line in lines[4:]} == {"ok"}


def test_a_healthy_board_fits_a_small_terminal_with_a_line_for_each_check(clinic: Clinic) -> None:
    diagnosis = clinic.examine()
    lines = screen(diagnosis, 23)
    assert len(lines) <= 23
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) == 3 + len(diagnosis.checks)


def test_where_there_is_more_to_say_what_is_all_right_shares_a_line(clinic: Clinic) -> None:
    clinic.plant("/sys/fs/cgroup/system.slice/tuned.service/cgroup.procs", "1")
    clinic.plant("/etc/systemd/system/multi-user.target.wants/tlp.service", "")
    clinic.plant("/usr/local/jtop/config.json", '{"jetson_clocks": {"boot": true}}')
    diagnosis = clinic.examine()
    whole, folded = screen(diagnosis, None), screen(diagnosis, 23)
    assert len(whole) > 23 >= len(folded)
    assert folded[3].startswith("  ok       board    ")
    assert any(line.endswith("sensor, gpu, heat") for line in folded)
    assert [line for line in whole if "warning" in line] == [line for line in folded if "warning" in line]
    assert "           to do    sudo systemctl disable --now tuned" in folded


def test_json_is_one_object_with_every_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--virtual", AGX, "--state-dir", str(tmp_path), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body.keys() == {"schema", "board", "base_mode", "can_tune", "why_not", "checks"}
    assert (body["board"], body["base_mode"], body["can_tune"], body["why_not"]) == (AGX, "MAXN", True, [])
    names = [check["name"] for check in body["checks"]]
    assert names == [
        *("board", "conf", "mask", "clocks", "knobs", "state", "method", "rails", "sensor", "gpu", "heat", "others"),
        *("boot", "cores", "root", "disk", "clock", "config", "runner", "unit"),
    ]
    assert all(check.keys() == {"name", "level", "text", "to_do"} for check in body["checks"])


def test_a_command_for_a_virtual_board_is_one_of_its_own_and_never_this_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--virtual", AGX, "--state-dir", str(tmp_path), "--no-probe"]
    assert main(["doctor", *where, "--fault", "jetson-clocks-on", "--json"]) == 0
    (locked,) = [check for check in json.loads(capsys.readouterr().out)["checks"] if check["name"] == "knobs"]
    program = locked["to_do"][0].partition(" ")[0]
    assert locked["to_do"][0].startswith(f"{tmp_path}/board/usr/bin/jetson_clocks --restore")
    assert os.access(program, os.X_OK)


@pytest.mark.parametrize(
    ("line", "typed_here"),
    [
        ("sudo nvpmodel -m 0   # records it", "/b/usr/sbin/nvpmodel -m 0   # records it"),
        ("sudo reboot", "jouled virtual reboot"),
        ("sudo jouled restore", "jouled restore"),
        ("jouled status", "jouled status"),
        ("leave grid.cores out", "leave grid.cores out"),
        ("sudo systemctl disable --now tlp", "on the board itself, in /b: sudo systemctl disable --now tlp"),
    ],
)
def test_how_a_boards_commands_are_typed_where_it_is_a_tree(line: str, typed_here: str) -> None:
    assert typed("/b", line) == typed_here


def test_on_a_machine_that_is_no_jetson_one_fault_says_so_and_no_path_is_cut(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clinic.machine.root / "proc/device-tree/compatible").unlink()
    monkeypatch.setattr("jouled.board.nvml.importlib.util.find_spec", lambda name: None)
    diagnosis = clinic.examine()
    assert [check.name for check in diagnosis.faults] == ["board"]
    (rails,) = [check for check in diagnosis.checks if check.name == "rails"]
    assert (rails.level, rails.to_do) == (Level.WARNING, ())
    told = screen(diagnosis, None)[2]
    assert len(told) <= WIDTH
    assert "/proc/device-tree/compatible" in told.split() or "/proc/device-tree/compatible:" in told.split()
    assert "and 1 more" not in told


# --- nothing is changed -------------------------------------------------------------------------------------


def test_looking_changes_no_knob_and_leaves_nothing_to_be_finished(clinic: Clinic) -> None:
    before, status = clinic.knobs(), clinic.machine.kernel.load(STATUS_PATH)
    assert "nvpmodel obeys" in clinic.check("method").text
    assert clinic.knobs() == before
    assert clinic.machine.kernel.load(STATUS_PATH) == status
    assert not snapshot_path(clinic.folder).exists()
    assert not pending_path(clinic.folder).exists()


def test_a_doctor_that_is_killed_in_mid_probe_is_mended_like_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Clinic(tmp_path).knobs()
    root = tmp_path / "board"
    set_faults(str(root), hold={"by": "nvpmodel", "write": 5})
    where = ["--virtual", AGX, "--state-dir", str(tmp_path)]
    with subprocess.Popen([sys.executable, "-m", "jouled.cli", "doctor", *where], start_new_session=True) as doctor:
        until_s = time.monotonic() + PATIENCE_S
        while not (root / FOLDER / "held").exists() and time.monotonic() < until_s:
            time.sleep(0.01)
        os.killpg(doctor.pid, signal.SIGKILL)
    assert snapshot_path(tmp_path).exists()
    set_faults(str(root))
    clinic = Clinic(tmp_path)
    assert clinic.check("state").text.startswith("job doctor-")
    clinic.plant(CONF_PATH_PATH, "/run/jouled/nvpmodel.conf")  # what nvpmodel writes down a little later
    said = clinic.check("conf")
    assert [line.partition("   #")[0] for line in said.to_do] == ["sudo jouled restore"]  # and no nvpmodel before it
    assert clinic.check("method").level is Level.UNKNOWN
    assert main(["restore", *where]) == 0
    assert Clinic(tmp_path).knobs() == before
    assert Clinic(tmp_path).check("method").level is Level.OK


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"may_probe": False}, "--no-probe"),
        ({"mode": "observe"}, "observe"),
        ({"privileged": False}, "needs root"),
    ],
)
def test_where_nothing_may_be_written_nothing_is(clinic: Clinic, more: dict[str, Any], why: str) -> None:
    before = clinic.writes()
    found = clinic.check("method", **more)
    assert found.level is Level.UNKNOWN
    assert why in found.text
    assert clinic.writes() == before


def test_a_board_that_is_never_tuned_is_not_written_to_either(tmp_path: Path) -> None:
    clinic = Clinic(tmp_path, "thor")
    before = clinic.writes()
    diagnosis = clinic.examine()
    assert clinic.writes() == before
    assert (diagnosis.can_tune, diagnosis.exit_code) == (False, 8)
    lines = screen(diagnosis, None)
    assert lines[0] == "board     thor (p3834-0008 on p3971-0089), L4T 38.2.1, in MAXN"
    assert lines[1] == "can tune  no"
    assert lines[2].startswith("why not   Jetson Thor is only observed")
    assert any('set mode = "observe"' in line for line in lines)


def test_a_winner_in_force_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--virtual", AGX, "--state-dir", str(tmp_path)]
    assert main(["tune", *where, "--latency-bound-ratio", "1.2", "--budget", "9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["applied"] is True
    assert main(["doctor", *where, "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["state"]["text"].startswith("the winner ")
    assert "a winner is in force" in checks["method"]["text"]
    assert main(["verify", *where]) == 0


# --- each check ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"absent": ["nvpmodel"]}, "nvpmodel is not there"),
        ({"chroot": True}, "believes that it is in a chroot"),
        ({"prompt": True}, "asks for a reboot"),
        ({"hang": {"nvpmodel": 0}}, "did not end within"),
    ],
)
def test_why_nvpmodel_cannot_be_used_is_said_and_is_no_fault(
    tmp_path: Path, faults: dict[str, Any], words: str
) -> None:
    clinic = Clinic(tmp_path)
    before = clinic.knobs()
    set_faults(str(clinic.machine.root), **faults)
    found = clinic.check("method")
    assert found.level is Level.WARNING
    assert words in found.text
    set_faults(str(clinic.machine.root))
    assert clinic.knobs() == before


@pytest.mark.parametrize(
    ("fault", "name", "level", "words"),
    [
        ("nvpmodel-busy", "method", Level.WARNING, "apply_failed"),
        ("sysfs-read-only", "method", Level.FAULT, "neither nvpmodel nor jouled can set the clocks"),
        ("gpu-absent", "knobs", Level.WARNING, "the GPU clock stays fixed"),
        ("mask-differs", "mask", Level.WARNING, "wants mask 0, the board has 128"),
        ("jetson-clocks-on", "knobs", Level.WARNING, "locked at their caps"),
        ("conf-unknown-param", "board", Level.FAULT, "GPU_TYPO"),
        ("conf-of-other-board", "board", Level.FAULT, "this board has 12 cores"),
        ("conf-off-table", "method", Level.UNKNOWN, "not tried: the board is not as MAXN sets it"),
        ("status-lost", "conf", Level.WARNING, "recorded no mode yet"),
        ("rail-renamed", "rails", Level.FAULT, "no VDD_GPU_SOC; rails here:"),
        ("sensor-zero", "rails", Level.FAULT, "reads 0 W"),
        ("thermal-unreadable", "heat", Level.WARNING, "no temperature can be read"),
        ("over-current-always", "heat", Level.OK, "over-current events since boot: oc3"),
        ("gpu-busy", "gpu", Level.WARNING, "a job begins only when it is free"),
    ],
)
def test_faults_by_name_are_named_by_doctor(clinic: Clinic, fault: str, name: str, level: Level, words: str) -> None:
    inject(clinic.machine.root, clinic.folder, [fault])
    clinic.machine.clock.sleep(200.0)
    found = clinic.check(name)
    assert found.level is level
    assert words in found.text


@pytest.mark.parametrize("fault", ["nvpmodel-noise", "nvpmodel-slow", "gpu-no-of-node", "rail-disabled", "conf-id-gap"])
def test_faults_that_jouled_copes_with_are_not_worth_a_word(clinic: Clinic, fault: str) -> None:
    inject(clinic.machine.root, clinic.folder, [fault])
    assert {check.level for check in clinic.examine().checks} == {Level.OK}


def test_another_modules_conf_is_named_with_the_right_one(clinic: Clinic) -> None:
    etc = clinic.machine.root / "etc"
    (etc / "nvpmodel" / "nvpmodel_p3701_0000.conf").rename(etc / "nvpmodel" / "nvpmodel_p3701_0004.conf")
    (etc / "nvpmodel.conf").unlink()
    (etc / "nvpmodel.conf").symlink_to("nvpmodel/nvpmodel_p3701_0004.conf")
    found = clinic.check("conf")
    assert found.level is Level.WARNING
    assert "which is not p3701-0005's" in found.text
    assert found.to_do[0].startswith("sudo ln -sf /etc/nvpmodel/nvpmodel_p3701_0000.conf /etc/nvpmodel.conf")


def test_a_super_board_is_led_to_its_super_conf(tmp_path: Path) -> None:
    clinic = Clinic(tmp_path, "orin-nano-8gb-super")
    etc = clinic.machine.root / "etc"
    (etc / "nvpmodel" / "nvpmodel_p3767_0003_super.conf").rename(etc / "nvpmodel" / "nvpmodel_p3767_0001.conf")
    (etc / "nvpmodel.conf").unlink()
    (etc / "nvpmodel.conf").symlink_to("nvpmodel/nvpmodel_p3767_0001.conf")
    assert "/nvpmodel_p3767_0003_super.conf /etc/nvpmodel.conf" in clinic.check("conf").to_do[0]


def test_the_right_conf_is_known_of_each_module_that_is_tuned() -> None:
    tuned = [file for file in board_files() if not file.refusal and file.name != "recorded"]
    modules = {part.removesuffix("-super") for file in tuned for part in file.compatible}
    assert modules
    assert modules <= CONF_OF.keys()


def test_a_mask_that_is_not_the_conf_s_is_a_warning(clinic: Clinic) -> None:
    clinic.plant("/sys/devices/platform/17000000.gpu/tpc_pg_mask", "240\n")
    found = clinic.check("mask")
    assert (found.level, found.to_do) == (Level.WARNING, ("sudo reboot",))
    assert "wants mask 0, the board has 240" in found.text


def test_locked_clocks_are_seen_and_the_board_is_not_probed(clinic: Clinic) -> None:
    clinic.machine.processes().run(["jetson_clocks"], timeout_s=20)
    before = clinic.knobs()
    found = {check.name: check for check in clinic.examine().checks}
    assert found["knobs"].level is Level.WARNING
    assert "locked at their caps" in found["knobs"].text
    assert found["state"].text == "nothing left to finish; not all is as MAXN sets it"
    assert found["method"].level is Level.UNKNOWN
    assert clinic.knobs() == before


@pytest.mark.parametrize(
    ("path", "text", "name", "said"),
    [
        ("/sys/fs/cgroup/system.slice/power-profiles-daemon.service/cgroup.procs", "7", "others",
         ("power-profiles-daemon runs", "sudo systemctl disable --now power-profiles-daemon")),
        ("/sys/fs/cgroup/systemd/system.slice/tuned.service/tasks", "7", "others", ("tuned runs", "tuned")),
        ("/etc/systemd/system/multi-user.target.wants/auto-cpufreq.service", "", "others",
         ("auto-cpufreq starts at boot", "auto-cpufreq")),
        ("/usr/local/jtop/config.json", '{"jetson_clocks": {"boot": true}}', "boot",
         ("jtop runs jetson_clocks at boot", "boot = False")),
        ("/etc/systemd/system/multi-user.target.wants/jetson_clocks.service", "", "boot",
         ("locks the clocks at boot", "sudo systemctl disable --now jetson_clocks")),
        ("/proc/mounts", "overlay / overlay rw 0 0\n", "root", ("a reboot may forget", "store.state_dir")),
        ("/proc/mounts", "/dev/a / ext4 ro 0 0\n", "root", ("/ is read-only", "remount,rw")),
        ("/etc/systemd/system/jouled-worker.service.d/local.conf", "[Service]\nPrivateTmp=yes\n", "unit",
         ("PrivateTmp=yes gives it a mount namespace", "systemctl edit jouled-worker")),
        ("/etc/systemd/system/jouled-worker.service", "[Service]\nProtectSystem=strict\n", "unit",
         ("ProtectSystem=strict", "sudo")),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_is_a_warning_with_the_line_to_type(
    clinic: Clinic, path: str, text: str, name: str, said: tuple[str, str]
) -> None:
    assert clinic.check(name).level is Level.OK
    clinic.plant(path, text)
    found = clinic.check(name)
    assert found.level is Level.WARNING
    assert said[0] in found.text
    assert said[1] in "\n".join(found.to_do)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/usr/local/jtop/config.json", "{damaged"),
        ("/usr/local/jtop/config.json", '{"jetson_clocks": {"boot": false}}'),
        ("/etc/systemd/system/jouled-worker.service", "# PrivateTmp=yes\n[Service]\nPrivateTmp=no\nUMask=0027\n"),
        ("/etc/systemd/system/jouled-worker.service", "[Service]\nReadWritePaths=\nUMask=0027\n"),
        ("/proc/mounts", "/dev/a / ext4 rw 0 0\noverlay /var/lib/docker/a overlay rw 0 0\n"),
        ("/sys/fs/cgroup/system.slice/jtop.service/cgroup.procs", "7"),
    ],
)
def test_what_only_looks_like_it_is_none(clinic: Clinic, path: str, text: str) -> None:
    clinic.plant(path, text)
    assert {check.level for check in clinic.examine().checks} == {Level.OK}


def test_the_unit_is_judged_by_what_its_drop_ins_leave_of_it(clinic: Clinic) -> None:
    clinic.plant("/usr/lib/systemd/system/jouled-worker.service", "[Service]\nPrivateTmp=yes\nBindPaths=/a\n")
    clinic.plant("/etc/systemd/system/jouled-worker.service.d/override.conf", "[Service]\nPrivateTmp=no\n")
    assert "jouled-worker.service: BindPaths=/a" in clinic.check("unit").text
    clinic.plant("/etc/systemd/system/jouled-worker.service", "[Service]\nUMask=0027\n")
    assert clinic.check("unit").level is Level.OK


def test_a_read_only_root_is_right_where_state_lies_elsewhere(clinic: Clinic) -> None:
    clinic.plant("/proc/mounts", f"/dev/a / ext4 ro 0 0\n/dev/b {clinic.folder} ext4 rw 0 0\n")
    assert clinic.check("root").level is Level.OK
    clinic.plant("/proc/mounts", f"/dev/a / ext4 ro 0 0\nnone {clinic.folder} tmpfs rw 0 0\n")
    assert clinic.check("root").level is Level.WARNING


def test_pinned_services_matter_where_cores_are_taken_offline(clinic: Clinic) -> None:
    clinic.plant("/etc/systemd/system/camera.service", "[Service]\nCPUAffinity=8-11\n")
    clinic.plant("/etc/systemd/system/other.service.d/x.conf", "[Service]\n#CPUAffinity=1\n")
    clinic.plant("/etc/systemd/system/freed.service", "[Service]\nCPUAffinity=\nNice=5\n")
    found = clinic.check("cores")
    assert (found.level, found.text) == (
        Level.OK,
        "pinned to cores: camera.service; a job leaves the number of cores alone",
    )
    assert clinic.check("cores", grid__cores=[8, 12]).level is Level.WARNING


@pytest.mark.parametrize("place", ["/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/system"])
def test_vendors_units_and_drop_ins_count_as_the_operators_do(clinic: Clinic, place: str) -> None:
    clinic.plant(f"{place}/camera.service", "[Service]\nCPUAffinity=8-11\n")
    clinic.plant(f"{place}/lidar.service.d/pin.conf", "[Service]\nAllowedCPUs=1\n")
    clinic.plant(f"{place}/multi-user.target.wants/tlp.service", "")
    assert "pinned to cores: camera.service, lidar.service;" in clinic.check("cores").text
    assert "tlp starts at boot" in clinic.check("others").text


def test_of_two_units_of_one_name_the_operators_counts(clinic: Clinic) -> None:
    clinic.plant("/usr/lib/systemd/system/camera.service", "[Service]\nCPUAffinity=8-11\n")
    clinic.plant("/etc/systemd/system/camera.service", "[Service]\nNice=5\n")
    clinic.plant("/usr/lib/systemd/system/lidar.service", "[Service]\nCPUAffinity=8-11\n")
    clinic.plant("/etc/systemd/system/lidar.service.d/free.conf", "[Service]\nCPUAffinity=\n")
    assert clinic.check("cores").text == "nobody is pinned to cores"
    clinic.plant("/etc/systemd/system.conf.d/all.conf", "[Manager]\nCPUAffinity=0-3\n")
    assert "pinned to cores: all services;" in clinic.check("cores").text


def test_a_worker_in_another_namespace_than_pid_1_is_seen_by_its_files(clinic: Clinic) -> None:
    clinic.plant("/sys/fs/cgroup/system.slice/jouled-worker.service/cgroup.procs", "77\n")
    for pid, number in ((1, 4026531840), (77, 4026532999)):
        link = clinic.machine.root / f"proc/{pid}/ns/mnt"
        link.parent.mkdir(parents=True)
        link.symlink_to(f"mnt:[{number}]")
    assert "the worker that runs has a mount namespace of its own" in clinic.check("unit").text


def test_a_board_without_a_clock_of_its_own_is_told_to_keep_time(clinic: Clinic) -> None:
    (clinic.machine.root / "sys/class/rtc/rtc0/hctosys").unlink()
    (clinic.machine.root / "sys/class/rtc/rtc0").rmdir()
    found = clinic.check("clock")
    assert (found.level, found.to_do) == (Level.WARNING, ("sudo timedatectl set-ntp true",))
    clinic.plant("/run/chrony/chronyd.pid", "7")  # a folder that is there proves nothing
    assert clinic.check("clock").to_do == found.to_do
    clinic.plant("/sys/fs/cgroup/system.slice/chrony.service/cgroup.procs", "7")
    asked = clinic.check("clock")
    assert (asked.level, asked.to_do) == (Level.WARNING, ("chronyc tracking   # has it been answered?",))
    clinic.plant("/run/systemd/timesync/synchronized", "")
    assert clinic.check("clock").level is Level.OK


@pytest.mark.parametrize(
    ("room", "level", "words"),
    [
        ((1 << 20, 1000, 0), "fault", "1 MiB free"),
        ((50 << 20, 1000, 0), "warning", "50 MiB free in {folder}, wanted 100 MiB"),
        ((1 << 40, 7, 0), "warning", "7 inodes free in {folder}, wanted 100"),
        ((1 << 40, 1000, os.ST_RDONLY), "fault", "read-only"),
    ],
)
def test_a_full_or_read_only_disk_is_said_before_a_job_needs_it(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch, room: tuple[int, int, int], level: str, words: str
) -> None:
    free_bytes, inodes, flags = room
    site = clinic.site(Config())
    patient = admit(site, may_probe=False)
    found = os.statvfs_result((1, 1, free_bytes, free_bytes, free_bytes, 1000, inodes, inodes, flags, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    diagnosis = examine(patient, workloads=nothing_runs(SIMULATED))
    (check,) = [check for check in diagnosis.checks if check.name == "disk"]
    assert check.level.value == level
    assert words.format(folder=site.host.state_dir) in check.text
    assert diagnosis.exit_code == (1 if level == "fault" else 0)


@pytest.mark.parametrize(
    ("faults", "name", "level", "words"),
    [
        ({"hidden": ["*/in1_input"]}, "rails", Level.FAULT, "cannot be measured"),
        ({"values": {"*/curr[123]_input": "0"}}, "rails", Level.FAULT, "reads 0 W"),
        ({"hidden": ["/sys/class/thermal/*"]}, "heat", Level.WARNING, "no temperature"),
        ({"values": {"*/thermal_zone*/temp": "81000"}}, "heat", Level.WARNING, "above when.max_start_temp_c"),
        ({"hidden": ["/sys/class/devfreq/17000000.gpu/available_frequencies", "/sys/class/devfreq/17000000.gpu"]},
         "knobs", Level.WARNING, "GPU"),
    ],
)  # fmt: skip
def test_sensors_and_knobs_that_fail_are_named(
    tmp_path: Path, faults: dict[str, Any], name: str, level: Level, words: str
) -> None:
    clinic = Clinic(tmp_path, **faults)
    found = clinic.check(name, may_probe=False)
    assert found.level is level
    assert words in found.text


def test_what_the_operator_has_switched_off_is_a_fault(clinic: Clinic) -> None:
    clinic.plant("/etc/jouled/disabled", "")
    diagnosis = clinic.examine()
    assert (diagnosis.can_tune, diagnosis.exit_code) == (False, 6)
    assert "/etc/jouled/disabled" in screen(diagnosis, None)[2]


def test_an_unknown_board_is_refused_with_what_was_found(clinic: Clinic) -> None:
    clinic.plant("/proc/device-tree/compatible", "nvidia,p9999-0000+p8888-0001\0nvidia,p8888-0001\0nvidia,tegra234\0")
    diagnosis = clinic.examine()
    assert (diagnosis.can_tune, diagnosis.exit_code) == (False, 8)
    assert diagnosis.checks[0].level is Level.FAULT
    assert "VDD_GPU_SOC" in diagnosis.checks[0].text
    assert any("--report" in line for line in diagnosis.checks[0].to_do)
    assert "p8888-0001 on p9999-0000" in diagnosis.title


# --- whoever asks -------------------------------------------------------------------------------------------


def test_what_needs_root_is_unknown_and_never_wrong(tmp_path: Path) -> None:
    clinic = Clinic(tmp_path, user="nobody")
    diagnosis = clinic.examine(privileged=False)
    levels = {check.name: check.level for check in diagnosis.checks}
    assert Level.FAULT not in levels.values()
    assert levels["clocks"] is levels["method"] is Level.UNKNOWN
    assert (diagnosis.can_tune, diagnosis.exit_code) == (None, 0)
    assert as_json(diagnosis)["can_tune"] is None
    assert screen(diagnosis, None)[1:3] == [
        "can tune  unknown",
        "why not   nothing speaks against it; the rest is told to root: sudo jouled doctor",
    ]


def test_a_wrong_configuration_is_one_of_the_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[job]\nbudgte = 3\n")
    assert (
        main(["doctor", "--virtual", AGX, "--state-dir", str(tmp_path / "s"), "--config", str(config), "--json"]) == 2
    )
    body = json.loads(capsys.readouterr().out)
    (wrong,) = [check for check in body["checks"] if check["level"] == "fault"]
    assert wrong["name"] == "config"
    assert "budgte" in wrong["text"]
    assert body["board"] == AGX


def test_a_long_name_of_board_and_mode_stays_on_one_line(tmp_path: Path) -> None:
    lines = screen(Clinic(tmp_path, "orin-nano-8gb-super").examine(may_probe=False), 23)
    assert lines[0] == "board     orin-nano-8gb-super (p3767-0005), L4T 36.4.3, in MAXN_SUPER"
    assert len(lines) <= 23
    assert max(map(len, lines)) <= WIDTH + 1


def test_what_is_only_assumed_of_a_board_is_said(tmp_path: Path) -> None:
    found = Clinic(tmp_path, "orin-nano-4gb").check("board", may_probe=False)
    assert found.text == "assumed cpu, gpu; inferred emc, zones, paths; unmeasured"


def test_notes_are_told_where_they_belong_whatever_their_words(clinic: Clinic) -> None:
    site = clinic.site(Config())
    patient = admit(site, may_probe=False)
    assert patient.board is not None
    for about in About:
        note = Note(about, "a sentence of nvpmodel, mask and devfreq")
        diagnosis = examine(replace(patient, board=replace(patient.board, notes=(note,))), workloads=nothing_runs("-"))
        (said,) = [check.name for check in diagnosis.checks if note.text in check.text or "only root" in check.text]
        assert said == about.value


def test_what_nvpmodel_said_within_the_workers_unit_is_remembered(clinic: Clinic) -> None:
    set_faults(str(clinic.machine.root), chroot=True)
    config = load(None, {"target.latency_bound_ratio": 1.2, "job.budget": 2, "grid.size": 2})
    site = clinic.site(config)
    run_job(site.host, site.request(Arrival()), site.make_runner(Arrival()), cancellation=Cancellation())
    set_faults(str(clinic.machine.root))
    found = clinic.check("unit", may_probe=False)
    assert found.level is Level.WARNING
    assert "nvpmodel believed itself in a chroot" in found.text


def test_while_a_job_runs_nothing_is_started_beside_it(clinic: Clinic) -> None:
    with hold_board(clinic.machine.host(clinic.folder), verb="tune"):
        found = {check.name: check for check in clinic.examine().checks}
        (runner,) = runner_checks(clinic, "schema = 1\n")
    assert found["state"].level is Level.WARNING
    assert f"pid {os.getpid()} (jouled tune) holds the board" in found["state"].text
    assert found["method"].level is runner.level is Level.UNKNOWN


# --- what runs workloads ------------------------------------------------------------------------------------


def runner_checks(clinic: Clinic, text: str) -> list[Check]:
    path = clinic.folder / "config.toml"
    path.write_text(text)
    site = clinic.site(load(path))
    site = replace(site, host=replace(site.host, processes=Processes()))
    diagnosis = examine(admit(site, may_probe=False))
    return [check for check in diagnosis.checks if check.name == "runner"]


def entry(python: Path, engine: Path, *, kind: str = "tensorrt") -> str:
    return (
        f'[workloads.detector]\nkind = "{kind}"\npython = "{python}"\nengine = "{engine}"\narrival = "back_to_back"\n'
        f'user = "{os.environ.get("USER", "root") if os.geteuid() else "root"}"\n'
    )


def test_an_interpreter_with_everything_is_told_with_its_versions(clinic: Clinic) -> None:
    python = interpreter(clinic.folder, tensorrt="10.3.0")
    (found,) = runner_checks(clinic, entry(python, plan(clinic.folder)))
    assert found.level is Level.OK
    assert "TensorRT 10.3.0" in found.text


@pytest.mark.parametrize(
    ("modules", "words", "line"),
    [
        (("pycuda",), "no module tensorrt", "sudo apt install python3-libnvinfer"),
        (("tensorrt",), "no module pycuda", "python3 -m pip install pycuda"),
    ],
)
def test_what_the_interpreter_lacks_comes_with_the_line_that_brings_it(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch, modules: tuple[str, ...], words: str, line: str
) -> None:
    python = interpreter(clinic.folder, modules=modules)
    text = entry(python, plan(clinic.folder))
    monkeypatch.setattr("jouled.doctor.runner.trtexec_of", lambda _: None)
    (found,) = runner_checks(clinic, text)
    assert (found.level, found.exit_code) == (Level.FAULT, 9)
    assert words in found.text
    assert line in found.to_do[0]
    monkeypatch.setattr("jouled.doctor.runner.trtexec_of", lambda _: "/usr/src/tensorrt/bin/trtexec")
    (found,) = runner_checks(clinic, text)
    assert found.level is Level.WARNING
    assert "trtexec stands in" in found.text


def test_each_workload_has_its_own_line(clinic: Clinic) -> None:
    nowhere = clinic.folder / "nowhere"
    text = entry(nowhere, plan(clinic.folder)) + '[workloads.program]\nkind = "command"\nargv = ["/bin/sh"]\n'
    first, second = runner_checks(clinic, text + 'arrival = "back_to_back"\n')
    assert (first.level, second.level) == (Level.FAULT, Level.OK)
    assert str(nowhere) in first.text
    assert second.text.startswith("program: /bin/sh can be run")


def test_without_a_workload_nothing_of_it_is_a_fault(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jouled.doctor.runner.trtexec_of", lambda _: None)
    (found,) = runner_checks(clinic, "schema = 1\n")
    assert found.level in (Level.WARNING, Level.OK)
    assert "no workload is named yet" in found.text


# --- the report ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("serial 1422921012345 of it", "serial <number> of it"),
        (
            "androidboot.serialno=0123abc root=PARTUUID=3f5b-01 rw",
            "androidboot.serialno=<removed> root=PARTUUID=<removed> rw",
        ),
        ("48:b0:2d:aa:bb:cc", "<mac>"),
        ("id 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "id <uuid>"),
        ("nfs 192.168.1.17:/export", "nfs <address>:/export"),
        ("fe80::4ab0:2dff:feaa:bbcc", "<address>"),
        (f"{HOMES}/alice/detector.plan", f"{HOMES}/<name>/detector.plan"),
        ("tegra-ubuntu9 says so", "<name> says so"),
        ("boot 9f86d081884c7d659a2feaa0c55ad015", "boot <hex>"),
        ("1300500000 3199000000 9223372036854775807", "1300500000 3199000000 9223372036854775807"),
        ("17000000.gpu 13e40000.host1x 699-13701-0005-500", "17000000.gpu 13e40000.host1x 699-13701-0005-500"),
        ("R36 (release), REVISION: 4.3, GCID: 38968081", "R36 (release), REVISION: 4.3, GCID: 38968081"),
        ("nvidia,p3737-0000+p3701-0005 nvidia,tegra234", "nvidia,p3737-0000+p3701-0005 nvidia,tegra234"),
    ],
)
def test_what_names_a_board_or_its_owner_is_taken_out_and_nothing_else(text: str, kept: str) -> None:
    assert scrub(text, ["tegra-ubuntu9"]) == kept


def test_a_user_called_as_the_maker_leaves_the_part_numbers_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "nvidia")
    monkeypatch.setenv("SUDO_USER", "alice")
    names = own_names()
    assert scrub("nvidia,p3737-0000+p3701-0005 of alice", names) == "nvidia,p3737-0000+p3701-0005 of <name>"


def test_report_holds_what_a_new_board_needs_and_no_serial_number(clinic: Clinic) -> None:
    secrets = ("1422921012345", "48:b0:2d:0a:0b:0c", "3f2504e0-4f89-11d3-9a0c-0305e82c3301", "robot-seven", "alice")
    clinic.plant("/proc/device-tree/serial-number", secrets[0])
    clinic.plant("/proc/cmdline", f"androidboot.serialno={secrets[0]} root=UUID={secrets[2]} mac={secrets[1]}")
    clinic.plant("/proc/mounts", f"/dev/a / ext4 rw 0 0\n{secrets[3]}:/x {HOMES}/{secrets[4]} nfs rw 0 0\n")
    text = report(clinic.examine(), names=["robot-seven"])
    for secret in (*secrets, boot_id(clinic.machine.sysfs)):
        assert secret not in text
    for wanted in (
        "p3737-0000+p3701-0005",
        "VDD_GPU_SOC",
        "available_frequencies: 306000000",
        "mode 2 MODE_30W:",
        "CPU_ONLINE",
        "tj-thermal",
        "ok: method: nvpmodel obeys",
        "REVISION: 4.3",
    ):
        assert wanted in text
    assert "< POWER_MODEL" not in text  # NVIDIA's file itself is not passed on


def test_report_of_a_board_that_is_not_known_can_be_written_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--virtual", AGX, "--state-dir", str(tmp_path / "s")]
    assert main(["doctor", *where]) == 0
    capsys.readouterr()
    (tmp_path / "s/board/proc/device-tree/compatible").write_text("nvidia,p8888-0001\0nvidia,tegra234\0")
    assert main(["doctor", *where, "--report", str(tmp_path / "report.txt")]) == 8
    assert "look through it before you send it" in capsys.readouterr().err
    assert "VIN_SYS_5V0" in (tmp_path / "report.txt").read_text()
    assert main(["doctor", *where, "--report", str(tmp_path / "none" / "report.txt")]) == 1
    told = capsys.readouterr().err
    assert "cannot be written: No such file or directory" in told
    assert f"to do: see what lies in {tmp_path / 'none'}, or name another file" in told


@pytest.mark.parametrize("name", ["", "/"])
def test_a_report_without_a_files_name_is_refused_before_anything_is_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["doctor", "--virtual", AGX, "--state-dir", str(tmp_path / "s"), "--report", name]) == 2
    told = capsys.readouterr()
    assert "--report: wanted the name of a file" in told.err
    assert not told.out


def test_a_report_that_cannot_be_written_whole_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.txt"
    path.write_text("the one before")

    def full(self: Path, text: str, **keys: Any) -> int:
        with self.open("w") as file:
            file.write(text[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["doctor", "--virtual", AGX, "--state-dir", str(tmp_path / "s"), "--report", str(path)]) == 1
    assert f"to do: free some space in {tmp_path}" in capsys.readouterr().err
    assert path.read_text() == "the one before"
    assert [each.name for each in tmp_path.iterdir() if each.name.endswith(".new")] == []
