"""A real systemd, booted in a container over this machine's own root, with a virtual board in it.

The root is an overlay: what happens inside stays there and outlives a reboot of the container, not the test. The board
is made by a unit called nvpmodel.service, as on a Jetson; drop-ins tell jouled's units to use it. The interpreter of
the tests is given to everyone inside at /opt/jouled, since its own folder may be closed to user jouled.
"""

from __future__ import annotations

import contextlib
import http.client
import inspect
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from jouled.board.discover import discover_domains
from jouled.board.knobs import read_knobs
from jouled.board.sysfs import Sysfs

ROOT = Path(__file__).resolve().parents[2]
STATE, RUN, CONFIG = "/var/lib/jouled", "/run/jouled", "/etc/jouled/config.toml"
HOME = "/opt/jouled"
PYTHON = f"{HOME}/bin/python"
SITE = f"--virtual agx-orin-64gb --state-dir {STATE}"
BASE_MODE = "MODE_50W"
PATIENCE_S = 120.0
UNITS = "etc/systemd/system"

_BOOT = r"""
set -e
mount --make-rprivate /
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p "/sys/fs/cgroup/$1"
echo $$ >"/sys/fs/cgroup/$1/cgroup.procs"
mount -t overlay overlay -o "lowerdir=/,upperdir=$2/upper,workdir=$2/work" "$2/root"
find "$2/root/etc/systemd/system" -maxdepth 1 -name '*.wants' ! -newer "$2/upper/stamp" -exec rm -rf {} +
echo $$ >"$2/pid"
exec systemd-nspawn --quiet --directory="$2/root" --boot --register=no --keep-unit --private-network --console=pipe \
  --link-journal=no --bind-ro="$3:$5/source" --bind-ro="$4:$5/libraries" \
  systemd.unit=multi-user.target
"""
_CLEAN = r"""
mount --make-rprivate /
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
find "/sys/fs/cgroup/$1" -depth -type d -exec rmdir {} \; 2>/dev/null
"""
_BOARD = """\
[Unit]
Description=the virtual board boots
[Service]
Type=oneshot
ExecStart={python} -I -m jouled.cli virtual reboot {site} --base-mode {base_mode}
# The board's /run/jouled is what tmpfiles makes of the machine's; before install there is no such group.
ExecStartPost=-install -d -m 2750 -g jouled {state}/board/run/jouled
[Install]
WantedBy=multi-user.target
"""
_DAEMON = f"[Service]\nExecStart=\nExecStart={PYTHON} -I -m jouled.cli run {SITE} --config {CONFIG}\n"
_WORKER = f"""\
[Service]
ExecStart=
ExecStart={PYTHON} -I -m jouled.cli worker {SITE} --config {CONFIG}
ExecStopPost=
ExecStopPost=+{PYTHON} -I -m jouled.cli restore {SITE}
"""

Value = TypeVar("Value")


def wait_for(look: Callable[[], Value | None], what: str, patience_s: float = PATIENCE_S) -> Value:
    """What `look` gives as soon as it gives something true; `what` is missed otherwise."""
    pause = threading.Event()
    for _ in range(int(patience_s / 0.05)):
        found = look()
        if found:
            return found
        pause.wait(0.05)
    raise AssertionError(f"in {patience_s:g} s there was no {what}")


@dataclass
class Container:
    """A machine: it is booted, shut down, loses power; commands run in it as any user."""

    folder: Path
    board: bool = True
    home: str = HOME  # where the interpreter of the tests is given to everyone
    boots: int = field(default=0, init=False)

    @property
    def upper(self) -> Path:
        """What differs from this machine's root. To be written to while it is off only."""
        return self.folder / "upper"

    @property
    def _cgroup(self) -> str:
        return f"jouled-test-{os.getpid()}-{self.folder.name}"

    def make(self) -> None:
        for name in ("root", "upper", "work"):
            (self.folder / name).mkdir(parents=True)
        (self.upper / "stamp").touch()
        self._give_interpreter()
        if self.board:
            board = _BOARD.format(python=f"{self.home}/bin/python", site=SITE, base_mode=BASE_MODE, state=STATE)
            self.write(f"{UNITS}/nvpmodel.service", board)
            self.write(f"{UNITS}/jouled.service.d/virtual.conf", _DAEMON)
            self.write(f"{UNITS}/jouled-worker.service.d/virtual.conf", _WORKER)

    def _give_interpreter(self) -> None:
        real = Path(sys.executable).resolve()
        for folder in reversed(real.parents):
            if not folder.stat().st_mode & 0o001:
                (self.upper / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
                (self.upper / folder.relative_to("/")).chmod(0o755)
        home = self.home.lstrip("/")
        self.write(f"{home}/pyvenv.cfg", f"home = {real.parent}\ninclude-system-site-packages = false\n")
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        lines = ("source/daemon", "source/tuner", "libraries")
        path = f"{home}/lib/python{version}/site-packages/all.pth"
        self.write(path, "".join(f"/{home}/{line}\n" for line in lines))
        (self.upper / home / "bin").mkdir()
        (self.upper / home / "bin/python").symlink_to(real)
        script = f"#!/{home}/bin/python -I\nimport sys\nfrom jouled.cli import main\nsys.exit(main())\n"
        self.write(f"{home}/bin/jouled", script)
        (self.upper / home / "bin/jouled").chmod(0o755)

    def write(self, path: str, text: str) -> None:
        """A file of the machine while it is off."""
        place = self.upper / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def wait_for(self, look: Callable[[], Value | None], what: str) -> Value:
        """What `look` gives as soon as it gives something true."""
        try:
            return wait_for(look, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.status()}\n{self.journal()[-4000:]}") from None

    # --- power

    def boot(self) -> None:
        """Until systemd has nothing left to start."""
        (self.folder / "pid").unlink(missing_ok=True)
        argv = ["unshare", "-m", "bash", "-c", _BOOT, "boot", self._cgroup, str(self.folder), str(ROOT)]
        argv += [sysconfig.get_paths()["purelib"], self.home]
        with (self.folder / "console").open("ab") as console:
            shell = ["sh", "-c", '"$@" & ', "sh", *argv]  # its parent ends, so it is nobody's child
            subprocess.run(shell, stdin=subprocess.DEVNULL, stdout=console, stderr=console, check=True)
        self.boots += 1
        wait_for(lambda: self._leader() is not None, f"boot: {(self.folder / 'console').read_text()[-2000:]}", 30)
        wait_for(lambda: self.run("test", "-S", "/run/systemd/private", code=None).returncode == 0, "systemd", 30)
        self.run("systemctl", "is-system-running", "--wait", code=None)
        if self.board and self.boots == 1:
            self.run("systemctl", "enable", "--now", "--quiet", "nvpmodel.service")

    def _leader(self) -> int | None:
        try:
            nspawn = (self.folder / "pid").read_text().strip()
            children = Path(f"/proc/{nspawn}/task/{nspawn}/children").read_text().split()
            return next((int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "systemd\n"), None)
        except OSError:
            return None

    def _is_on(self) -> bool:
        pid = self.folder / "pid"
        return pid.exists() and Path(f"/proc/{pid.read_text().strip()}").exists()

    def shut_down(self) -> None:
        """As `poweroff` does."""
        leader = self._leader()
        assert leader is not None
        os.kill(leader, signal.SIGRTMIN + 4)
        wait_for(lambda: not self._is_on(), "shutdown")

    def cut_power(self) -> None:
        """Everything in it is gone at once."""
        leader = self._leader()
        if leader is not None:
            os.kill(leader, signal.SIGKILL)
        if self._is_on():
            wait_for(lambda: not self._is_on(), "power cut", 30)

    def discard(self) -> None:
        self.cut_power()
        subprocess.run(["unshare", "-m", "bash", "-c", _CLEAN, "clean", self._cgroup], check=False)
        shutil.rmtree(self.folder / "work", ignore_errors=True)

    # --- commands

    def run(
        self, *argv: str, user: str | None = None, code: int | None = 0, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run as root or `user`; the exit code must be `code` (None: any)."""
        leader = self._leader()
        assert leader is not None, f"the container is off: {(self.folder / 'console').read_text()[-2000:]}"
        become = [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        enter = ["nsenter", f"--target={leader}", "-m", "-u", "-i", "-n", "-p", "--", "env", "-i", "-C", "/"]
        whole = [*enter, "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent", "LC_ALL=C", *become, *argv]
        done = subprocess.run(whole, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        said = f"{' '.join(argv)} as {user or 'root'}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        assert code is None or done.returncode == code, f"{said}\n{self.journal()[-6000:] if code is not None else ''}"
        return done

    def jouled(self, *argv: str, user: str | None = None, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """The command line."""
        return self.run(PYTHON, "-I", "-m", "jouled.cli", *argv, user=user, code=code)

    def python(self, source: str, *argv: str, user: str | None = None, code: int | None = 0) -> str:
        """What a piece of Python prints."""
        return self.run(f"{self.home}/bin/python", "-I", "-c", source, *argv, user=user, code=code).stdout

    def put(self, path: str, text: str) -> None:
        """A file of the running machine."""
        self.run("sh", "-c", 'mkdir -p "$(dirname "$1")"; cat >"$1"', "put", path, stdin=text)

    @property
    def inside(self) -> Path:
        """The running machine's root, for files and sockets; absolute links in it lead astray."""
        leader = self._leader()
        assert leader is not None, "the machine is off"
        return Path(f"/proc/{leader}/root")

    def read(self, path: str) -> str | None:
        """A file of the running machine, as root; None where there is none."""
        try:
            return (self.inside / path.lstrip("/")).read_text()
        except FileNotFoundError:
            return None

    def is_running(self, pid: int) -> bool:
        """Is there such a process in the machine?"""
        return (self.inside / "proc" / str(pid)).exists()

    def outer_pid(self, pid: int) -> int:
        """What a process of the machine is called outside of it."""
        namespace = os.readlink(f"/proc/{self._leader()}/ns/pid")
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and os.readlink(folder / "ns/pid") == namespace:
                    numbers = (folder / "status").read_text().partition("\nNSpid:")[2].splitlines()[0].split()
                    if int(numbers[-1]) == pid:
                        return int(folder.name)
        raise AssertionError(f"there is no pid {pid} in the machine")

    def fields(self, *match: str) -> list[dict[str, Any]]:
        """The journal's entries since boot that match, whole."""
        out = self.run("journalctl", "--no-pager", "--output=json", *match, code=None).stdout
        return [json.loads(line) for line in out.splitlines()]

    def journal(self) -> str:
        """What the units have logged since boot."""
        argv = ("journalctl", "--no-pager", "-o", "short-monotonic", "-u", "jouled*")
        return self.run(*argv, code=None).stdout

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Properties of a unit."""
        out = self.run("systemctl", "show", unit, *(f"--property={name}" for name in names)).stdout
        return dict(line.split("=", 1) for line in out.splitlines())

    def request(
        self, method: str, path: str, body: object = None, *, user: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Status and body of an answer on the control socket; 0 and the error's name where no connection came."""
        if user is None:
            return ask(str(self.inside / f"{RUN}/control.sock".lstrip("/")), method, path, json.dumps(body))
        source = f"{_ASK}\nimport sys\nprint(json.dumps(ask('{RUN}/control.sock', *sys.argv[1:])))"
        code, answer = json.loads(self.python(source, method, path, json.dumps(body), user=user))
        return code, answer

    def status(self) -> dict[str, Any]:
        """GET /v1/status; empty where there is no answer now."""
        code, body = self.request("GET", "/v1/status")
        return body if code == 200 else {}

    def retune(self, *, user: str | None = None, **request: Any) -> str:
        """Begin a job; its id."""
        code, body = self.request("POST", "/v1/retune", request, user=user)
        assert code == 202, f"{code} {body}\n{self.journal()[-3000:]}"
        return str(body["job"])

    def wait_for_job(self, job: str) -> dict[str, Any]:
        """How it ended, as the status tells it."""

        def look() -> dict[str, Any] | None:
            found = self.status()
            last = found.get("last_job")
            return found if found and found["job"] is None and last and last["id"] == job else None

        return self.wait_for(look, f"end of job {job}")

    def wait_for_state(self, *states: str) -> dict[str, Any]:
        """The first status with one of the states."""

        def look() -> dict[str, Any] | None:
            found = self.status()
            return found if found.get("state") in states else None

        return self.wait_for(look, f"state {' or '.join(states)}")

    # --- the virtual board

    def nvpmodel(self) -> str:
        """What `nvpmodel -q` prints."""
        return self.run(f"{STATE}/board/usr/sbin/nvpmodel", "-q").stdout

    def knobs(self) -> dict[str, str]:
        """Every knob of the board, nvpmodel's status files among them; also while the machine is off."""
        sysfs = Sysfs((self.inside if self._is_on() else self.upper) / f"{STATE}/board".lstrip("/"))
        return dict(read_knobs(sysfs, discover_domains(sysfs)).values)

    def faults(self, **switches: Any) -> None:
        """How the board misbehaves from now on."""
        source = "import sys, json; from jouled.virtual.faults import set_faults; "
        self.python(
            source + "set_faults(sys.argv[1], **json.loads(sys.argv[2]))", f"{STATE}/board", json.dumps(switches)
        )


def ask(socket_path: str, method: str, path: str, body: str) -> tuple[int, dict[str, Any]]:
    """One request on a UNIX socket; 0 and the error's name where no answer came. Runs in the container, too."""
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(socket_path)
        headers = {} if body == "null" else {"Content-Type": "application/json"}
        connection.request(method, path, body=None if body == "null" else body, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    except (OSError, http.client.HTTPException) as error:
        return 0, {"error": type(error).__name__}
    finally:
        connection.close()


_ASK = f"from __future__ import annotations\nimport http.client, json, socket\n{inspect.getsource(ask)}"


def _why_not() -> str | None:
    """Why no container can be booted here."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in ("systemd-nspawn", "nsenter", "unshare", "setpriv") if shutil.which(name) is None]
    return f"needs {missing[0]}" if missing else None


@contextlib.contextmanager
def machine(container: Container) -> Iterator[Container]:
    """Made and booted, and nothing of it left."""
    why = _why_not()
    if why is not None:
        pytest.skip(why)
    try:
        container.make()
        container.boot()
        yield container
    finally:
        container.discard()


TUNER, READER, OUTSIDER = "anna", "bert", "carl"
_CONFIG = """\
schema = 1
[target]
latency_bound_ratio = 1.4
[workload]
default = "detector"
[workloads.detector]
kind = "tensorrt"
engine = "/opt/app/detector.plan"
arrival = "rate"
rate_hz = 30.0
[board]
boot_delay_s = 3.0
[job]
budget = 10
[keep]
verify_interval_s = 1.0
[control]
change_group = "tuners"
"""
_QUICK = "[Service]\nRestartSec=200ms\n"


def install(machine: Container) -> None:
    """The service with three users: one may change things, one may read, one may do nothing."""
    machine.run("groupadd", "tuners")
    machine.put(CONFIG, _CONFIG)
    machine.put(f"/{UNITS}/jouled.service.d/quick.conf", _QUICK)
    machine.jouled("install")
    machine.run("install", "-d", "-m", "2750", "-g", "jouled", f"{STATE}/board{RUN}")
    for user, groups in ((TUNER, "jouled,tuners"), (READER, "jouled"), (OUTSIDER, "tuners")):
        machine.run("useradd", "--no-create-home", "--groups", groups, user)
    machine.wait_for_state("idle")


@pytest.fixture
def service(container: Container) -> Container:
    """A machine with the service in it, idle."""
    install(container)
    return container


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    """A machine that has booted, with a board and without jouled."""
    with machine(Container(tmp_path / "machine")) as booted:
        yield booted
