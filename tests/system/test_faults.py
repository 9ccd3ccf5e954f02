"""What goes wrong on a machine: the daemon stays up, and the board ends as found or in the verified winner."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.system.conftest import Container

BOARD = "/var/lib/jouled/board"
HELD, RELEASE = f"{BOARD}/.virtual/held", f"{BOARD}/.virtual/release"
# Where the job stands still until it is shot: in a program before one of its writes, or somewhere in its windows.
MOMENTS: tuple[dict[str, Any], ...] = (
    *({"by": "nvpmodel", "write": number} for number in (1, 2, 3, 5, 8, 12, 20)),
    *({"by": "jetson_clocks", "write": number} for number in (1, 5, 12)),
    *(
        {"by": "clock", "after_s": after_s}
        for after_s in (1.0, 5.0, 20.0, 45.0, 80.0, 120.0, 170.0, 230.0, 300.0, 360.0)
    ),
)
LEFT = "/usr/bin/sleep 987654"
MEMORY = Path("/sys/fs/cgroup/memory")
WATCHED = "[Service]\nWatchdogSec=4\n"


def wait_for_hold(service: Container) -> None:
    """Until the board stands still where it was told to."""
    service.wait_for(lambda: service.read(HELD), "hold")


def wait_for_end(service: Container, pid: int) -> None:
    service.wait_for(lambda: not service.is_running(pid), f"end of pid {pid}")


def main_pid(service: Container, unit: str) -> int:
    return int(service.show(unit, "MainPID")["MainPID"])


def is_over(service: Container, unit: str) -> bool:
    return service.show(unit, "ActiveState")["ActiveState"] in ("inactive", "failed")


def status_at_rest(service: Container) -> dict[str, Any] | None:
    """Idle, no job half done, the mode that is in force seen to be so."""
    if service.read("/var/lib/jouled/snapshot.json") is not None:
        return None
    found = service.status()
    is_idle = bool(found) and found["state"] == "idle" and found["job"] is None
    return found if is_idle and found["in_force"]["verified"] else None


def due_in(service: Container) -> dict[str, Any] | None:
    """A status that says when something will happen."""
    found = service.status()
    return found if found and found["next"]["due_wall_s"] is not None else None


def winner_at_rest(service: Container) -> bool:
    found = status_at_rest(service)
    return found is not None and found["in_force"]["source"] == "winner"


def settle(service: Container, stock: dict[str, str]) -> dict[str, Any]:
    """Until the service is at rest; the board is then as found, or in the winner that status calls verified."""
    status = service.wait_for(partial(status_at_rest, service), "rest")
    if status["in_force"]["source"] == "reference":
        assert service.knobs() == stock
    assert status["mismatches"] == []
    assert "MODE_50W" in service.nvpmodel()
    return status


@pytest.mark.parametrize("victim", ["jouled.service", "jouled-worker.service"])
def test_kill_at_any_moment_leaves_the_board_as_found_or_in_the_winner(service: Container, victim: str) -> None:
    stock = service.knobs()
    for number, moment in enumerate(MOMENTS):
        service.faults(hold=moment)
        clocks = "both" if moment["by"] == "jetson_clocks" else "capped"
        job = service.retune(latency_bound_ratio=1.4, clocks=clocks, user="anna")
        wait_for_hold(service)
        pid = main_pid(service, victim)
        service.run("kill", "-9", str(pid))
        service.run("touch", RELEASE)
        wait_for_end(service, pid)
        status = settle(service, stock)
        service.faults()
        assert status["job"] is None
        code, told = service.request("GET", f"/v1/jobs/{job}")
        assert code == 200, f"{number}: {moment}: what was accepted is lost"
        assert told["outcome"] in ("interrupted", "tuned", "no_gain"), told
        said = [line for line in log_of(service) if job in line]
        assert told["outcome"] != "interrupted" or any(re.search("interrupted|restored", line) for line in said), job


def log_of(service: Container) -> list[str]:
    return service.journal().splitlines()


def test_a_restore_that_is_killed_too_is_finished_by_the_next(service: Container) -> None:
    stock = service.knobs()
    service.faults(hold={"by": "clock", "after_s": 80.0})
    service.retune(latency_bound_ratio=1.4)
    wait_for_hold(service)
    service.faults(hold={"by": "sysfs", "write": 1})
    service.run("kill", "-9", str(main_pid(service, "jouled-worker.service")))
    wait_for_hold(service)
    control = int(service.show("jouled-worker.service", "ControlPID")["ControlPID"])
    assert service.knobs() != stock
    service.run("kill", "-9", str(control))
    service.run("touch", RELEASE)
    status = settle(service, stock)
    assert status["in_force"]["source"] == "reference"
    assert any("restore, asked by jouled" in line for line in log_of(service))


def test_a_hung_nvpmodel_ends_the_job_and_not_the_daemon(service: Container) -> None:
    stock = service.knobs()
    pid = main_pid(service, "jouled.service")
    for writes in (0, 2):
        service.faults(hang={"nvpmodel": writes})
        service.wait_for_job(service.retune(latency_bound_ratio=1.4))
        service.faults()
        settle(service, stock)
    assert main_pid(service, "jouled.service") == pid
    assert "nvpmodel" in service.journal()


def test_the_watchdog_ends_what_is_blocked_and_nothing_else(service: Container) -> None:
    for unit in ("jouled", "jouled-worker"):
        service.put(f"/etc/systemd/system/{unit}.service.d/watched.conf", WATCHED)
    service.run("systemctl", "daemon-reload")
    service.run("systemctl", "restart", "jouled.service")
    stock = service.knobs()
    service.wait_for_state("idle")
    daemon = main_pid(service, "jouled.service")
    service.run("kill", "-STOP", str(daemon))
    wait_for_end(service, daemon)
    service.wait_for_state("idle")
    assert int(service.show("jouled.service", "NRestarts")["NRestarts"]) == 1

    daemon = main_pid(service, "jouled.service")
    service.faults(hold={"by": "clock", "after_s": 60.0})
    service.retune(latency_bound_ratio=1.4)
    wait_for_hold(service)
    worker = main_pid(service, "jouled-worker.service")
    service.run("kill", "-STOP", str(worker))
    wait_for_end(service, worker)
    service.run("touch", RELEASE)
    settle(service, stock)
    assert main_pid(service, "jouled.service") == daemon
    assert service.journal().count("Watchdog timeout") == 2


def hold_a_job(service: Container, after_s: float = 80.0) -> int:
    """A job begins and stands still in its windows; the worker's pid."""
    service.faults(hold={"by": "clock", "after_s": after_s})
    service.retune(latency_bound_ratio=1.4)
    wait_for_hold(service)
    return main_pid(service, "jouled-worker.service")


def test_a_child_without_any_mark_does_not_outlive_the_worker(service: Container) -> None:
    """Forked twice, in a session of its own, with nothing in its environment: only the unit's cgroup knows it."""
    stock = service.knobs()
    worker = hold_a_job(service)
    group = service.show("jouled-worker.service", "ControlGroup")["ControlGroup"]
    fork = f"echo $$ >/sys/fs/cgroup{group}/cgroup.procs; exec env -i setsid --fork {LEFT} >/dev/null 2>&1"
    service.run("sh", "-c", fork)
    left = int(service.wait_for(lambda: service.run("pgrep", "-f", f"^{LEFT}$", code=None).stdout, "child"))
    assert service.read(f"/proc/{left}/environ") == ""
    assert group in str(service.read(f"/proc/{left}/cgroup"))
    # systemd itself would end it, too, but only after ExecStopPost=: not while the knobs are put back.
    service.put("/etc/systemd/system/jouled-worker.service.d/slow.conf", "[Service]\nSendSIGKILL=no\n")
    service.run("systemctl", "daemon-reload")
    service.run("kill", "-9", str(worker))
    service.run("touch", RELEASE)
    settle(service, stock)
    assert not service.is_running(left)
    assert f"SIGKILL to pid {left}, which the last job left" in service.journal()


def test_a_worker_that_a_full_memory_ends_leaves_the_board_as_found(service: Container, tmp_path: Path) -> None:
    """The kernel's own OOM killer, in a memory cgroup that has no room for one page more."""
    if not (MEMORY / "memory.oom_control").exists():
        pytest.skip("needs the memory controller of cgroup v1")
    stock = service.knobs()
    daemon = main_pid(service, "jouled.service")
    worker = hold_a_job(service)
    full = MEMORY / f"jouled-test-{os.getpid()}-{tmp_path.name}"
    full.mkdir()
    try:
        (full / "memory.limit_in_bytes").write_text("4096")
        (full / "cgroup.procs").write_text(str(service.outer_pid(worker)))
        service.run("touch", RELEASE)
        wait_for_end(service, worker)
        assert "oom_kill 1\n" in (full / "memory.oom_control").read_text()
    finally:
        service.wait_for(lambda: not (full / "cgroup.procs").read_text(), "empty cgroup")
        full.rmdir()
    status = settle(service, stock)
    assert status["in_force"]["source"] == "reference"
    assert status["last_job"]["outcome"] == "interrupted"
    assert main_pid(service, "jouled.service") == daemon
    assert "status=9/KILL" in service.journal()


def test_stop_stays_stopped(service: Container) -> None:
    service.run("systemctl", "stop", "jouled")
    assert service.request("GET", "/v1/status")[0] == 0
    assert "systemctl" in service.jouled("status", code=7).stderr
    for unit in ("jouled.service", "jouled.socket"):
        assert service.run("systemctl", "is-active", unit, code=None).stdout == "inactive\n"
    service.run("systemctl", "start", "jouled")
    service.wait_for_state("idle")


def test_a_shutdown_in_mid_job_leaves_the_knobs_as_found(service: Container) -> None:
    stock = service.knobs()
    service.retune(latency_bound_ratio=1.4, budget=60)
    service.wait_for(lambda: (job := service.status().get("job")) and job["trials"] >= 2, "second trial")
    service.shut_down()
    assert service.knobs() == stock
    service.boot()
    status = service.wait_for_state("idle")
    assert status["last_job"]["outcome"] == "interrupted"
    assert status["in_force"]["source"] == "reference"


def test_a_worker_that_dies_before_it_accepts_is_started_once_per_request(service: Container) -> None:
    service.run("systemctl", "stop", "jouled", "jouled-worker.service")
    broken = "[Service]\nExecStart=\nExecStart=/bin/false\n"
    service.put("/etc/systemd/system/jouled-worker.service.d/zz-broken.conf", broken)
    service.run("systemctl", "daemon-reload")
    connect = (
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/jouled/worker.sock'); s.settimeout(30)\n"
        "try: assert s.recv(1) == b''\nexcept ConnectionResetError: pass"
    )
    before = service.journal().count("Started jouled-worker.service")
    for requests in (1, 2):
        service.python(connect)
        service.wait_for(partial(is_over, service, "jouled-worker.service"), "end of the worker")
        assert service.journal().count("Started jouled-worker.service") == before + requests


def test_power_cuts_in_a_winner_hold_the_board_until_its_operator_lets_it_go(service: Container) -> None:
    stock = service.knobs()
    job = service.wait_for_job(service.retune(latency_bound_ratio=1.4))
    assert job["last_job"]["outcome"] == "tuned"
    service.shut_down()
    service.boot()
    service.wait_for(partial(winner_at_rest, service), "winner after a clean boot")
    service.cut_power()
    service.boot()
    waiting = service.wait_for(partial(due_in, service), "waiting")
    assert waiting["next"]["due_wall_s"] - waiting["started_wall_s"] > 10.0, "a suspect waits for five boot delays"
    assert service.knobs() == stock
    service.wait_for(partial(winner_at_rest, service), "winner, once more")
    service.cut_power()
    service.boot()
    held = service.wait_for_state("held")
    assert "forget" in held["to_do"]
    assert held["quarantined"] == 1
    assert service.knobs() == stock
    assert service.request("POST", "/v1/retune", {"latency_bound_ratio": 1.4})[0] in (403, 409)
    service.jouled("forget", "--held")
    status = service.wait_for(partial(status_at_rest, service), "rest")
    assert status["in_force"]["source"] == "reference"
    assert service.knobs() == stock
