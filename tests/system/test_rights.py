"""Who can do what on the machine: namespaces, files, sockets, the lock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.system.conftest import Container

BOARD_RUN = "/var/lib/jouled/board/run/jouled"
HELLO = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as peer:
    peer.settimeout(60)
    peer.connect("/run/jouled/worker.sock")
    pid = json.loads(peer.makefile("rb").readline())["hello"]["pid"]
    print(json.dumps([pid, os.readlink(f"/proc/{pid}/ns/mnt"), os.readlink("/proc/1/ns/mnt")]))
"""
# What a user can change below the folders given: files opened for writing, folders in which an entry can be made.
# Sockets are left out: the worker looks at who its peer is, and not at who could connect.
TRY = """
import contextlib, os, stat, sys
skipped = "/var/lib/jouled/daemon"
def attempts(place):
    if os.path.islink(place) or stat.S_ISSOCK(os.stat(place).st_mode):
        return
    if os.path.isdir(place):
        with contextlib.suppress(OSError):
            os.close(os.open(f"{place}/.try", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.unlink(f"{place}/.try")
            print(f"entry in {place}")
        return
    with contextlib.suppress(OSError):
        os.close(os.open(place, os.O_WRONLY | os.O_NONBLOCK))
        print(f"write {place}")
    with contextlib.suppress(OSError):
        os.chmod(place, 0o666)
        print(f"chmod {place}")
for top in sys.argv[1:]:
    attempts(top)
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if os.path.join(folder, name) != skipped]
        for name in folders + files:
            attempts(os.path.join(folder, name))
"""
OBEYED = (
    "/etc/jouled",
    "/etc/systemd/system",
    "/etc/sysusers.d",
    "/etc/tmpfiles.d",
    "/var/lib/jouled",
    "/run/jouled",
    "/opt/jouled/bin",
    "/opt/jouled/lib",
    "/opt/jouled/pyvenv.cfg",
)
CONNECT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect(sys.argv[1])
"""
ORDER = """
import socket
with socket.socket(socket.AF_UNIX) as peer:
    peer.settimeout(60)
    peer.connect("/run/jouled/worker.sock")
    print(peer.recv(4096))
    peer.sendall(b'{"command":"apply","target":"reference","why":"user","who":"nobody"}\\n')
    while data := peer.recv(4096):
        print(data)
"""
LOCK = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], int(sys.argv[2])), fcntl.LOCK_EX | fcntl.LOCK_NB)"

# Files that somebody who is no member can read, out of those named.
READ = """
import contextlib, sys
for path in sys.argv[1:]:
    with contextlib.suppress(OSError):
        open(path, "rb").close()
        print(path)
"""
SIGNAL = """
import contextlib, os, sys
for pid in sys.argv[1:]:
    with contextlib.suppress(OSError):
        os.kill(int(pid), 0)
        print(pid)
"""


@pytest.fixture
def tuned(service: Container) -> Container:
    """With a winner in force: every file that the worker obeys is there."""
    status = service.wait_for_job(service.retune(latency_bound_ratio=2.0))
    assert status["last_job"]["outcome"] == "tuned"
    service.wait_for_state("idle")
    return service


def test_what_the_worker_obeys_is_out_of_reach(tuned: Container) -> None:
    pid, its, first = json.loads(tuned.python(HELLO))
    assert its == first, "the worker has a mount namespace of its own"
    assert int(tuned.show("jouled-worker.service", "MainPID")["MainPID"]) == pid
    for user in ("jouled", "jouled-runner", "anna"):
        assert tuned.python(TRY, *OBEYED, user=user) == "", user
    assert "entry in /var/lib/jouled/daemon" in tuned.python(TRY, "/var/lib/jouled/daemon", user="jouled")
    _strangers_read_nothing_of_the_state(tuned)
    _nobody_signals_who_is_above(tuned, pid)
    _only_the_daemon_reaches_the_worker(tuned)
    _nobody_else_takes_the_lock(tuned)


def _strangers_read_nothing_of_the_state(tuned: Container) -> None:
    """The virtual board is left out: it stands for /sys."""
    found = tuned.run(
        "find", "/var/lib/jouled", "/run/jouled", "-path", "*/board", "-prune", "-o", "-type", "f", "-print"
    )
    files = found.stdout.split()
    assert "/var/lib/jouled/ledger.jsonl" in files
    for user in ("carl", "jouled-runner"):
        assert tuned.python(READ, *files, user=user) == "", user
    assert "/var/lib/jouled/ledger.jsonl" in tuned.python(READ, *files, user="bert").split()


def _nobody_signals_who_is_above(tuned: Container, worker: int) -> None:
    daemon = tuned.show("jouled.service", "MainPID")["MainPID"]
    for user in ("jouled-runner", "anna", "carl"):
        assert tuned.python(SIGNAL, daemon, str(worker), "1", user=user) == "", user
    assert tuned.python(SIGNAL, daemon, str(worker), "1", user="jouled").split() == [daemon]


def _only_the_daemon_reaches_the_worker(tuned: Container) -> None:
    tuned.python(CONNECT, "/run/jouled/worker.sock", user="jouled")
    for user in ("anna", "bert", "carl", "jouled-runner"):
        assert tuned.python(CONNECT, "/run/jouled/worker.sock", user=user, code=1) == ""
    tuned.run("chmod", "666", "/run/jouled/worker.sock")  # as user jouled could
    for user in ("anna", "bert", "jouled-runner"):
        assert "finished" not in tuned.python(ORDER, user=user, code=None), user
    assert tuned.status()["in_force"]["source"] == "winner"
    assert "finished" in tuned.python(ORDER, user="jouled")
    for user, code in (("anna", 0), ("bert", 0), ("carl", 1), ("jouled-runner", 1)):
        tuned.python(CONNECT, "/run/jouled/control.sock", user=user, code=code)


def _nobody_else_takes_the_lock(tuned: Container) -> None:
    lock = f"{BOARD_RUN}/board.lock"
    assert tuned.run("stat", "--format=%a %U", lock).stdout == "600 root\n"
    for user in ("jouled", "anna", "bert", "carl"):
        for flags in ("0", "1", "2"):  # to read, to write, both
            assert (
                "Permission" in tuned.run("/opt/jouled/bin/python", "-c", LOCK, lock, flags, user=user, code=1).stderr
            )
    tuned.python(LOCK, lock, "0")
