"""The service on a booted machine, step by step as its operator meets it."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from jouled.install.units import UNITS

if TYPE_CHECKING:
    from tests.system.conftest import Container

ANNA, BERT, CARL = "anna", "bert", "carl"  # may change things; may read; may do nothing
SCRAPE = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:19761/metrics', timeout=30).read().decode())"
OPERATORS = "NV Power Mode: MODE_50W"


def test_board_keeps_its_operators_mode_across_boots_without_jouled(container: Container) -> None:
    found = container.knobs()
    assert OPERATORS in container.nvpmodel()
    container.shut_down()
    container.boot()
    assert OPERATORS in container.nvpmodel()
    assert container.knobs() == found


def test_from_install_to_uninstall(container: Container) -> None:
    as_found = container.knobs()
    units_as_found = container.run("systemctl", "list-unit-files", "--no-legend").stdout
    _install(container)
    _give_rights(container)
    in_force = _tune(container)
    _refuse(container)
    _restart(container, in_force)
    _reboot(container, in_force, as_found)
    _uninstall(container)
    assert container.knobs() == as_found
    assert OPERATORS in container.nvpmodel()
    assert container.run("systemctl", "list-unit-files", "--no-legend").stdout == units_as_found


def _install(container: Container) -> None:
    """Active and idle, on the default configuration; once more changes nothing."""
    assert "enabled and running" in container.jouled("install").stdout
    assert container.run("/usr/local/bin/jouled", "status").stdout.startswith("NVIDIA Jetson AGX Orin")
    for unit in ("jouled.service", "jouled.socket", "jouled-worker.socket"):
        assert container.run("systemctl", "is-active", unit).stdout == "active\n"
        assert container.run("systemctl", "is-enabled", unit).stdout == "enabled\n"
    assert container.run("systemctl", "is-enabled", "jouled-retune.timer", code=None).stdout == "disabled\n"
    status = container.wait_for_state("idle")
    assert status["in_force"]["source"] == "reference"
    assert (
        "was there: it is started anew, enabled and running (0 files new or changed)"
        in container.jouled("install").stdout
    )
    container.wait_for_state("idle")


def _give_rights(container: Container) -> None:
    """An operator's edit of the configuration, and three users."""
    config = container.read("/etc/jouled/config.toml")
    assert config is not None
    for line, other in (
        ('change_group = ""', 'change_group = "tuners"'),
        ("boot_delay_s = 60.0", "boot_delay_s = 3.0"),
        ("verify_interval_s = 10.0", "verify_interval_s = 1.0"),
    ):
        assert line in config
        config = config.replace(line, other)
    container.put("/etc/jouled/config.toml", config)
    container.run("groupadd", "tuners")
    for user, groups in ((ANNA, "jouled,tuners"), (BERT, "jouled"), (CARL, "tuners")):
        container.run("useradd", "--no-create-home", "--groups", groups, user)
    container.jouled("install")
    assert container.read("/etc/jouled/config.toml") == config
    container.wait_for_state("idle")


def _tune(container: Container) -> str:
    """A member of change_group tunes; the winner's name."""
    job = container.retune(user=ANNA, latency_bound_ratio=1.4)
    status = container.wait_for_job(job)
    assert status["last_job"]["outcome"] == "tuned", status
    status = container.wait_for(partial(_winner_in_force, container), "winner in force")
    assert OPERATORS in container.nvpmodel()
    assert ANNA in container.journal()
    scraped = container.python(SCRAPE)
    assert "jouled_mode_in_force 1.0\n" in scraped
    assert 'jouled_state{state="idle"} 1.0\n' in scraped
    return str(status["in_force"]["name"])


def _refuse(container: Container) -> None:
    """A plain member reads and changes nothing; an outsider does not even connect."""
    assert container.request("POST", "/v1/retune", {"latency_bound_ratio": 1.4}, user=BERT)[0] == 403
    for verb in (("retune",), ("rollback",), ("apply", "reference"), ("pause",)):
        assert "change_group" in container.jouled(*verb, user=BERT, code=6).stderr
    assert container.request("GET", "/v1/status", user=BERT)[0] == 200
    assert container.request("GET", "/v1/status", user=CARL) == (0, {"error": "PermissionError"})
    container.jouled("status", user=CARL, code=6)
    assert container.status()["in_force"]["source"] == "winner"


def _restart(container: Container, in_force: str) -> None:
    """The winner stays, and the knobs do not even move."""
    before = container.knobs()
    container.run("systemctl", "restart", "jouled")
    status = container.wait_for_state("idle")
    assert (status["in_force"]["source"], status["in_force"]["name"]) == ("winner", in_force)
    assert container.knobs() == before


def _reboot(container: Container, in_force: str, stock: dict[str, str]) -> None:
    """The boot brings the operator's mode; after the delay the winner is applied again and verified."""
    before = container.knobs()
    container.shut_down()
    container.boot()
    assert OPERATORS in container.nvpmodel()
    status = container.wait_for_state("waiting", "idle")
    if status["state"] == "waiting":
        assert container.knobs() == stock
        assert in_force in status["next"]["text"]
    status = container.wait_for(partial(_winner_in_force, container), "winner in force")
    assert status["in_force"]["name"] == in_force
    assert container.knobs() == before
    assert OPERATORS in container.nvpmodel()
    assert re.search(rf"applied: \S+ -> {in_force} \(boot\)", container.journal())


def _winner_in_force(container: Container) -> dict[str, Any] | None:
    found = container.status()
    is_so = bool(found) and found["in_force"]["source"] == "winner" and found["in_force"]["verified"]
    return found if is_so else None


def _uninstall(container: Container) -> None:
    """The operator's mode comes first; configuration and history stay, root's files are gone."""
    assert "the board is in its own mode" in container.jouled("uninstall").stdout
    for unit in UNITS:
        assert container.read(f"/etc/systemd/system/{unit}") is None
    assert container.read("/run/jouled/control.sock") is None
    container.run("test", "-L", "/usr/local/bin/jouled", code=1)
    assert container.read("/etc/jouled/config.toml") is not None
    assert container.read("/var/lib/jouled/ledger.jsonl") is not None
    assert "there is no jouled service" in container.jouled("uninstall").stdout


def test_an_upgrade_and_an_uninstall_in_mid_job_leave_the_board_as_found(service: Container) -> None:
    stock = service.knobs()
    for command in ("install", "uninstall"):
        service.retune(latency_bound_ratio=1.4, budget=60)
        service.wait_for(lambda: (job := service.status().get("job")) and job["trials"] >= 2, "second trial")
        service.jouled(command)
        assert service.knobs() == stock
        if command == "install":
            assert service.wait_for_state("idle")["last_job"]["outcome"] == "interrupted"
    service.jouled("uninstall", "--purge")
    for folder in ("/etc/jouled", "/var/lib/jouled", "/run/jouled"):
        service.run("test", "-e", folder, code=1)


def test_the_timers_unit_tunes_from_within_its_sandbox(service: Container) -> None:
    service.run("systemctl", "start", "jouled-retune.service")
    status = service.wait_for_state("idle")
    assert status["last_job"]["outcome"] in ("tuned", "no_gain")
    assert service.show("jouled-retune.service", "Result")["Result"] == "success"
    assert "(root)" in service.journal()
