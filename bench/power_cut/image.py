"""The VM's disk: a Debian with systemd, jouled as an operator installs it, and a virtual board that boots with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
GUEST = Path(__file__).with_name("guest.py")
RELEASE = "bookworm"
PACKAGES = "systemd,systemd-sysv,dbus,udev,kmod,linux-image-cloud-amd64,initramfs-tools,python3,python3-systemd"
PYTHON = "3.11"  # Debian 12's
STATE = "/var/lib/jouled"
SITE = f"--virtual agx-orin-64gb --state-dir {STATE}"
BASE_MODE = "MODE_50W"
DISK_BYTES = 3 << 30
# A winner is applied sooner after a boot than by default, else most cuts would come before it is.
CONFIG = """\
[target]
latency_bound_ratio = 1.4
[board]
boot_delay_s = 5
[metrics]
listen = "127.0.0.1:19761"
"""
UNITS = {
    "nvpmodel.service": f"""\
[Unit]
Description=the virtual board boots
Before=multi-user.target
[Service]
Type=oneshot
ExecStart=/usr/bin/jouled virtual reboot {SITE}
ExecStartPost=-install -d -m 2750 -g jouled {STATE}/board/run/jouled
[Install]
WantedBy=multi-user.target
""",
    "jouled.service.d/virtual.conf": f"[Service]\nExecStart=\nExecStart=/usr/bin/jouled run {SITE}\n",
    "jouled-worker.service.d/virtual.conf": f"""\
[Service]
ExecStart=
ExecStart=/usr/bin/jouled worker {SITE}
ExecStopPost=
ExecStopPost=+/usr/bin/jouled restore {SITE}
""",
    "power-cut-look.service": """\
[Unit]
Description=what the power cut left, before jouled sees it
DefaultDependencies=no
After=nvpmodel.service local-fs.target systemd-tmpfiles-setup.service
Before=jouled.service jouled-worker.service
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 /opt/power_cut/guest.py look
[Install]
WantedBy=multi-user.target
""",
    "power-cut.service": """\
[Unit]
Description=what goes on when the power goes
After=jouled.socket
[Service]
ExecStart=/usr/bin/python3 /opt/power_cut/guest.py act
[Install]
WantedBy=multi-user.target
""",
}
ENABLED = ("nvpmodel.service", "power-cut-look.service", "power-cut.service", "jouled.service")
MASKED = (
    *("getty@tty1", "serial-getty@ttyS0", "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer"),
    *("e2scrub_all.timer", "e2scrub_reap.service", "systemd-binfmt.service"),  # half a minute of a slow processor
)
INITRAMFS = "ext4\nvirtio_pci\nvirtio_blk\nvirtio_rng\n"


def make_root(root: Path, wheel: Path, constraints: Path) -> None:
    """The machine's files below `root`: Debian, our wheel with its dependencies, the units. Needs root."""
    if not (root / "etc/debian_version").exists():
        _run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(root))
        (root / "etc/initramfs-tools/modules").write_text(INITRAMFS)
        _write(root / "etc/initramfs-tools/conf.d/list", "MODULES=list\nCOMPRESS=lz4\n")
        _run("chroot", str(root), "update-initramfs", "-u")
    _install_python(root, wheel, constraints)
    _install_service(root)


def _install_python(root: Path, wheel: Path, constraints: Path) -> None:
    target = root / f"usr/local/lib/python{PYTHON}/dist-packages"
    shutil.rmtree(target, ignore_errors=True)
    where = ["--target", str(target), "--python-version", PYTHON, "--only-binary=:all:", "--no-compile"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    _run(*pip, "install", *where, "-c", str(constraints), str(wheel))
    _write(root / "usr/bin/jouled", "#!/usr/bin/python3\nimport sys\nfrom jouled.cli import main\nsys.exit(main())\n")
    (root / "usr/bin/jouled").chmod(0o755)
    _run("chroot", str(root), "python3", "-m", "compileall", "-q", f"/{target.relative_to(root)}")


def _install_service(root: Path) -> None:
    shutil.rmtree(root / STATE[1:], ignore_errors=True)
    (root / "etc/hostname").write_text("power-cut\n")
    (root / "etc/machine-id").write_text("5a1d0c0ffee0000000000000000000ab\n")
    (root / "etc/fstab").write_text("/dev/vda / ext4 defaults 0 1\n")
    _write(root / "etc/jouled/config.toml", CONFIG)
    _run("chroot", str(root), "jouled", "install", "--prefix", "/")
    for name, text in UNITS.items():
        _write(root / "etc/systemd/system" / name, text)
    (root / "opt/power_cut").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(GUEST, root / "opt/power_cut/guest.py")
    _run("chroot", str(root), "systemctl", "enable", *ENABLED)
    _run("chroot", str(root), "systemctl", "mask", *MASKED)
    _run("systemd-sysusers", f"--root={root}")
    _run("systemd-tmpfiles", f"--root={root}", "--create", "--prefix", STATE)
    _run("chroot", str(root), "jouled", "virtual", "reboot", *SITE.split(), "--base-mode", BASE_MODE)
    _run("chroot", str(root), "python3", "/opt/power_cut/guest.py", "stock")


def make_disk(root: Path, disk: Path) -> None:
    """An ext4 file system in a file, with what lies below `root`."""
    disk.unlink(missing_ok=True)
    with disk.open("wb") as file:
        file.truncate(DISK_BYTES)
    _run("mkfs.ext4", "-q", "-F", "-d", str(root), str(disk))


def kernel_of(root: Path) -> tuple[Path, Path]:
    """The kernel and its first file system."""
    return max((root / "boot").glob("vmlinuz-*")), max((root / "boot").glob("initrd.img-*"))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
