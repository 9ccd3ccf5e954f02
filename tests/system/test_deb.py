"""The package on a booted Debian: it comes without a network, is upgraded in mid-job, and goes without a trace."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from tests.system.conftest import CONFIG, PYTHON, ROOT, STATE, Container, machine

from jouled import __version__
from jouled.install.units import SERVICE, UNITS

DIST, LIB = ROOT / "dist", "usr/lib/jouled"
AMD64, ARM64 = (DIST / f"jouled_{__version__}_{arch}.deb" for arch in ("amd64", "arm64"))
NEXT = f"{__version__}+next"
INSIDE = "/opt/packages"

pytestmark = pytest.mark.skipif(not (AMD64.exists() and ARM64.exists()), reason="needs make deb")


def _dpkg_deb(*argv: str | Path) -> str:
    return subprocess.run(["dpkg-deb", *argv], check=True, capture_output=True, text=True).stdout.strip()


@dataclass
class Debian(Container):
    """The interpreter of the tests is elsewhere, so that the package may have /opt/jouled."""

    home: str = "/opt/tests"

    def make(self) -> None:
        """With the package, one of a higher version, and Debian's python3-systemd."""
        super().make()
        packages = self.upper / INSIDE.lstrip("/")
        packages.mkdir()
        (packages / "jouled.deb").symlink_to(f"{self.home}/source/dist/{AMD64.name}")
        for path in (ROOT / "build/deb").glob("python3-systemd_*.deb"):
            (packages / "python3-systemd.deb").symlink_to(f"{self.home}/source/build/deb/{path.name}")
        tree = self.folder / "tree"
        _dpkg_deb("--raw-extract", AMD64, tree)
        control = tree / "DEBIAN/control"
        control.write_text(control.read_text().replace(f"Version: {__version__}\n", f"Version: {NEXT}\n"))
        _dpkg_deb("--root-owner-group", "-Znone", "--build", tree, packages / "next.deb")

    def dpkg(self, *argv: str, code: int = 0) -> str:
        """What it says."""
        done = self.run("env", "DEBIAN_FRONTEND=noninteractive", "dpkg", *argv, code=code)
        return done.stdout + done.stderr

    def state_of_package(self) -> str:
        """Its state and version, as dpkg has them."""
        return self.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "jouled", code=None).stdout

    def pid(self) -> str:
        """The daemon's."""
        return self.show(SERVICE, "MainPID")["MainPID"]


@pytest.fixture
def debian() -> Iterator[Debian]:
    """A machine that has booted, with a board and without jouled; in memory, for it writes a thousand files."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None, ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with machine(container := Debian(Path(folder) / "machine")):
            yield container


def test_the_package_from_install_to_purge(debian: Debian) -> None:
    as_found = debian.knobs()
    units_as_found = debian.run("systemctl", "list-unit-files", "--no-legend").stdout
    _comes_without_a_network(debian)
    _is_refused_with_a_configuration_that_it_cannot_read(debian)
    _is_upgraded_in_mid_job(debian)
    _stays_where_the_board_does_not_obey(debian)
    _is_made_anew_where_its_python_is_gone(debian)
    debian.dpkg("--remove", "jouled")
    assert debian.knobs() == as_found
    for unit in UNITS:
        assert debian.read(f"/etc/systemd/system/{unit}") is None
    assert debian.read(CONFIG) is not None
    assert debian.read(f"{STATE}/ledger.jsonl") is not None
    debian.run("test", "-e", "/opt/jouled", code=1)
    debian.dpkg("--purge", "jouled")
    for folder in ("/etc/jouled", STATE, "/run/jouled", f"/{LIB}"):
        debian.run("test", "-e", folder, code=1)
    assert debian.run("systemctl", "list-unit-files", "--no-legend").stdout == units_as_found


def _comes_without_a_network(debian: Debian) -> None:
    debian.dpkg("--install", f"{INSIDE}/python3-systemd.deb")
    assert "enabled and running" in debian.dpkg("--install", f"{INSIDE}/jouled.deb")
    assert debian.wait_for_state("idle")["in_force"]["source"] == "reference"
    assert debian.run("/usr/local/bin/jouled", "--version").stdout.split() == ["jouled", __version__]
    assert debian.dpkg("--verify", "jouled") == ""
    debian.run(PYTHON, "-I", "-c", "import systemd.journal, numpy; assert numpy.__file__.startswith('/opt/jouled')")
    assert debian.run("grep", "-rl", "/opt/jouled.new", "/opt/jouled/bin", "/opt/jouled/pyvenv.cfg", code=1)
    pid = debian.pid()
    debian.run("/var/lib/dpkg/info/jouled.postinst", "triggered", "/usr/bin/python3")
    assert debian.pid() == pid, "the same Python: nothing to do"


def _is_refused_with_a_configuration_that_it_cannot_read(debian: Debian) -> None:
    """The old version runs on, untouched."""
    config = debian.read(CONFIG)
    assert config is not None
    debian.put(CONFIG, f"{config}\nnonsense = 3\n")
    pid = debian.pid()
    assert "nonsense" in debian.dpkg("--install", f"{INSIDE}/next.deb", code=1)
    assert debian.state_of_package() == f"half-configured {NEXT}"
    assert debian.pid() == pid
    debian.put(CONFIG, f"# of the operator\n{config}")
    found = debian.wait_for_job(debian.retune(latency_bound_ratio=1.4))
    assert found["last_job"]["outcome"] == "tuned"


def _is_upgraded_in_mid_job(debian: Debian) -> None:
    """The job ends, the board is as the job found it: in the winner's mode."""
    in_force = debian.wait_for_state("idle")["in_force"]
    winners = debian.knobs()
    assert in_force["source"] == "winner"
    debian.retune(latency_bound_ratio=1.4, budget=60)
    debian.wait_for(lambda: (job := debian.status().get("job")) and job["trials"] >= 2, "second trial")
    assert "enabled and running" in debian.dpkg("--configure", "jouled")
    assert debian.state_of_package() == f"installed {NEXT}"
    assert debian.knobs() == winners
    status = debian.wait_for_state("idle")
    assert status["last_job"]["outcome"] == "interrupted"
    assert status["in_force"]["name"] == in_force["name"]
    assert "of the operator" in (debian.read(CONFIG) or "")


def _stays_where_the_board_does_not_obey(debian: Debian) -> None:
    """A winner is in force, and no knob can be written: the package stays, and says why."""
    winner = debian.status()["in_force"]["name"]
    debian.faults(write_errors=[{"path": "/sys/*", "errno": "EROFS"}])
    assert "jouled uninstall --leave-board" in debian.dpkg("--remove", "jouled", code=1)
    debian.faults()
    status: dict[str, Any] = debian.wait_for(
        lambda: (now := debian.status()) and now["in_force"]["verified"] and now, "service"
    )
    assert status["in_force"]["name"] == winner
    assert debian.state_of_package() == f"installed {NEXT}"


def _is_made_anew_where_its_python_is_gone(debian: Debian) -> None:
    """As after a release upgrade; a configuration that is the old version's own gives way to the new one's."""
    winner = debian.status()["in_force"]["name"]
    shipped = debian.run(
        "sh", "-c", "ls /opt/jouled/lib/python3.*/site-packages/jouled/install/units/config.toml"
    ).stdout
    default = debian.read(shipped.strip()) or ""
    for path in (shipped.strip(), CONFIG):
        debian.put(path, f"# of the old version\n{default}")
    debian.run("rm", "/opt/jouled/bin/python3")
    debian.run("/var/lib/dpkg/info/jouled.postinst", "triggered", "/usr/bin/python3")
    assert debian.wait_for_state("idle")["in_force"]["name"] == winner
    assert debian.read(CONFIG) == default


# --- contents -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "machine_name", "pythons"),
    [(AMD64, "x86_64", ("cp310", "cp311", "cp312")), (ARM64, "aarch64", ("cp310", "cp312"))],
)
def test_every_python_has_its_wheels_and_no_other_machines(
    tmp_path: Path, package: Path, machine_name: str, pythons: tuple[str, ...]
) -> None:
    _dpkg_deb("--extract", package, tmp_path)
    wheels = {wheel.name for wheel in (tmp_path / LIB / "wheels").iterdir()}
    locked = {path.stem: path.read_text().split("\n")[:-1] for path in (tmp_path / LIB).glob("cp*.txt")}
    assert sorted(locked) == sorted(pythons)
    used = set()
    for python, lines in locked.items():
        for line in lines:
            name, version = line.split(" ")[0].split("==")
            start = f"{name.replace('-', '_')}-{version}-"
            (wheel,) = (one for one in wheels if one.startswith(start) and {python, "py3"} & set(_tags(one)))
            used.add(wheel)
    assert used == wheels
    elves = [elf for wheel in wheels for elf in _elves(tmp_path / LIB / "wheels" / wheel)]
    assert len(elves) > 100
    assert {elf for elf in elves if elf != machine_name} == set()


def _tags(wheel: str) -> list[str]:
    return wheel.split("-")[2].split(".")


def _elves(wheel: Path) -> Iterator[str]:
    """For which machine each program and library of a wheel is."""
    names = {62: "x86_64", 183: "aarch64"}
    with ZipFile(wheel) as packed:
        for name in packed.namelist():
            with packed.open(name) as file:
                head = file.read(20)
            if head[:4] == b"\x7fELF":
                yield names.get(int.from_bytes(head[18:20], "little"), name)


def test_the_package_owns_no_file_where_the_operator_writes(tmp_path: Path) -> None:
    for package in (AMD64, ARM64):
        listed = [line.split()[-1] for line in _dpkg_deb("--contents", package).splitlines()]
        assert {name.split("/")[1] for name in listed if name != "./"} == {"usr"}
        assert all(line.split()[1] == "root/root" for line in _dpkg_deb("--contents", package).splitlines())
        assert "python3 (>= 3.10)" in _dpkg_deb("--field", package, "Depends")
