"""What the journal and the scrapers see of the service, by their own programs: journalctl, promtool."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.system.conftest import CONFIG, OUTSIDER, UNITS

if TYPE_CHECKING:
    from tests.system.conftest import Container

ROOT = Path(__file__).resolve().parents[2]
MODE = "12-1267.2-612-2133"
HIDDEN = f"/opt/jouled/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/systemd.py"
SCRAPE = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:19761/metrics', timeout=30).read().decode())"


def test_a_change_of_a_knob_has_its_fields_in_the_journal(service: Container) -> None:
    if importlib.util.find_spec("systemd") is None:
        pytest.skip("needs systemd-python")
    before = service.status()["in_force"]["name"]
    assert service.request("POST", "/v1/apply", {"target": MODE}, user="anna")[0] == 200
    (entry,) = service.fields("JOULED_EVENT=applied")
    wanted = {"JOULED_FROM": before, "JOULED_TO": MODE, "JOULED_WHY": "user", "SYSLOG_IDENTIFIER": "jouled-worker"}
    assert {name: entry[name] for name in wanted} == wanted
    assert "(anna)" in entry["JOULED_WHO"]
    assert entry["MESSAGE"].startswith("applied: ")
    assert (entry["_SYSTEMD_UNIT"], entry["PRIORITY"]) == ("jouled-worker.service", "6")
    (asked,) = service.fields("JOULED_VERB=apply")
    assert (asked["_SYSTEMD_UNIT"], asked["SYSLOG_IDENTIFIER"]) == ("jouled.service", "jouled")
    assert service.status()["journal_fields"]
    assert "python3-systemd" not in service.jouled("status").stdout


def test_without_systemd_python_the_lines_keep_their_priority_and_status_says_what_is_lost(service: Container) -> None:
    service.put(HIDDEN, "raise ImportError('hidden by the test')\n")
    service.run("systemctl", "stop", "jouled-worker.service")
    service.run("systemctl", "restart", "jouled.service")
    service.wait_for_state("idle")
    assert service.request("POST", "/v1/apply", {"target": MODE})[0] == 200
    assert service.fields("JOULED_EVENT=applied") == []
    assert not service.status()["journal_fields"]
    assert "python3-systemd is not installed" in service.jouled("status").stdout
    lines = service.fields("SYSLOG_IDENTIFIER=jouled-worker")
    (applied,) = [line for line in lines if f"-> {MODE}" in line["MESSAGE"]]
    assert applied["PRIORITY"] == "6"
    assert applied["MESSAGE"].startswith("jouled.job.changes: applied: ")


def test_a_daemon_that_does_not_start_is_among_the_journals_errors(service: Container) -> None:
    service.put("/etc/jouled/config.toml", "schema = 1\nnonsense = 2\n")
    service.run("systemctl", "restart", "jouled.service", code=None)
    said = service.run("journalctl", "--no-pager", "-p", "err", "-t", "jouled").stdout
    assert "nonsense" in said


def _promtool() -> str:
    """Prometheus's own checker; .ci/run fetches it."""
    found = shutil.which("promtool", path=f"{ROOT}/build/prometheus/usr/bin") or shutil.which("promtool")
    if found is None:
        pytest.skip("needs promtool")
    return found


def _check(text: str) -> None:
    """Raises where promtool finds anything to say."""
    done = subprocess.run([_promtool(), "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), text


def test_promtool_finds_nothing_wrong_with_what_is_promised() -> None:
    _check((ROOT / "tests/metrics.prom").read_text())


def test_promtool_finds_nothing_wrong_with_a_scrape_in_any_state(service: Container) -> None:
    _promtool()
    _check(service.python(SCRAPE))
    job = service.retune(latency_bound_ratio=1.4)
    service.wait_for_state("tuning")
    running = service.python(SCRAPE)
    service.wait_for_job(job)
    tuned = service.python(SCRAPE)
    assert service.request("POST", "/v1/pause", {"for_s": 60})[0] == 200
    paused = service.python(SCRAPE)
    assert "jouled_job_running 1.0\n" in running
    assert 'jouled_jobs_total{outcome="tuned"} 1.0\n' in tuned
    assert 'jouled_state{state="paused"} 1.0\n' in paused
    for text in (running, tuned, paused):
        _check(text)


def test_a_textfile_is_said_to_be_forbidden_until_its_folder_is_named_in_the_unit(service: Container) -> None:
    folder = "/srv/jouled-textfile"  # /run stays writable in a container, whatever ProtectSystem= says
    service.run("install", "-d", "-o", "jouled", "-g", "jouled", "-m", "755", folder)
    config = service.read(CONFIG)
    assert config is not None
    service.put(CONFIG, f'{config}[metrics]\ntextfile = "{folder}/jouled.prom"\n')
    service.run("systemctl", "restart", "jouled.service")
    service.wait_for_state("idle")
    (warning,) = [text for text in service.status()["warnings"] if "metrics.textfile" in text]
    assert "Read-only file system; see docs/monitoring.md" in warning
    service.put(f"/{UNITS}/jouled.service.d/textfile.conf", f"[Service]\nReadWritePaths=-{folder}\n")
    service.run("systemctl", "daemon-reload")
    service.run("systemctl", "restart", "jouled.service")
    service.wait_for_state("idle")
    path = f"{folder}/jouled.prom"
    text = service.wait_for(lambda: service.run("cat", path, user=OUTSIDER, code=None).stdout, "textfile")
    assert "\njouled_mode_in_force 1.0\n" in text
    _check(text)
    service.run("systemctl", "stop", "jouled.service", "jouled.socket")
    assert service.run("ls", "-A", folder).stdout == ""
