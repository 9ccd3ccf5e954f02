"""The units: what systemd thinks of them, and the promises that a later edit must not break."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jouled.install.units import UNITS, quoted, read_shipped, render

SYSTEMD = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(SYSTEMD is None, reason="needs systemd")
SERVICES = tuple(name for name in UNITS if name.endswith(".service"))

# Seen to take a mount namespace (issue 3), and their kin of systemd.exec(5).
MOUNTING = re.compile(
    r"^(ProtectKernel(Logs|Modules|Tunables)|Protect(ControlGroups|Home|System|Proc)|ProcSubset"
    r"|Private(Tmp|Devices|IPC|Mounts|Users|Network)|\w*Paths|TemporaryFileSystem|DynamicUser|LogNamespace"
    r"|Root(Directory|Image)\w*|Mount\w+|(State|Runtime|Cache|Logs|Configuration)Directory|LoadCredential\w*"
    r"|SetCredential\w*|ExtensionImages|ExtensionDirectories|ProtectHostname|ProtectClock|DeviceAllow)="
)
# Options that systemd 249 does not know: 250 to 255.
NEWER = re.compile(
    r"^(RestrictFileSystems|ExitType|OpenFile|ImportCredential|RestartSteps|RestartMaxDelaySec|SurviveFinalKillSignal"
    r"|MemoryKSM|SetCredentialEncrypted|LoadCredentialEncrypted|ExtensionDirectories|MemoryPressure\w+|RestartMode"
    r"|PollLimit\w+|MemoryZSwapMax|Startup\w+|DelegateSubgroup|RootEphemeral|FileDescriptorStorePreserve"
    r"|TimeoutCleanSec|ConditionControlGroupController|CoredumpReceive|NFTSet)="
)


def options(name: str) -> list[tuple[str, str]]:
    lines = [line for line in read_shipped(name).splitlines() if line and line[0] not in "#["]
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


def values(name: str, key: str) -> list[str]:
    return [value for found, value in options(name) if found == key]


def comments(name: str) -> str:
    return "\n".join(line for line in read_shipped(name).splitlines() if line.startswith("#"))


def test_the_daemon_reads_no_certificates_that_it_never_uses() -> None:
    (given,) = values("jouled.service", "Environment")
    assert given.split() == ["SSL_CERT_FILE=/dev/null", "SSL_CERT_DIR=/dev/null"]
    source = "import os, ssl; print(ssl.create_default_context().cert_store_stats()['x509_ca'])"
    environ = dict(pair.split("=", 1) for pair in given.split())
    done = subprocess.run([sys.executable, "-c", source], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as `install` lays them, with a command that exists here."""
    for name in UNITS:
        (tmp_path / name).write_text(render(read_shipped(name), [sys.executable, "-I", "-m", "jouled.cli"]))
    return tmp_path


def analyze(*argv: str) -> subprocess.CompletedProcess[str]:
    assert SYSTEMD is not None
    return subprocess.run([SYSTEMD, *argv], capture_output=True, text=True, timeout=60, check=False)


@needs_systemd
def test_systemd_has_nothing_to_say_about_any_unit(installed: Path) -> None:
    done = analyze("verify", "--man=no", *(str(installed / name) for name in UNITS))
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@needs_systemd
@pytest.mark.parametrize(("name", "threshold"), [("jouled.service", 25), ("jouled-retune.service", 25)])
def test_exposure_stays_below_two_and_a_half(installed: Path, name: str, threshold: int) -> None:
    done = analyze("security", "--offline=true", "--no-pager", f"--threshold={threshold}", str(installed / name))
    assert done.returncode == 0, done.stdout


@needs_systemd
@pytest.mark.parametrize("name", SERVICES)
def test_each_point_of_exposure_has_its_reason_in_the_unit(installed: Path, name: str) -> None:
    done = analyze("security", "--offline=true", "--json=short", "--no-pager", str(installed / name))
    points = [point["name"] for point in json.loads(done.stdout) if point["exposure"] is not None]
    said = comments(name)
    assert points
    for point in points:
        keys = re.findall(r"([A-Z]\w+)=", point)
        if keys[0] == "CapabilityBoundingSet":
            continue  # each capability has a reason of its own, see below
        words = [point.partition("~")[2]] if keys[0] in ("RestrictAddressFamilies", "SystemCallFilter") else keys
        spelled = [word for text in words for word in (text, *(f"AF_{part}" for part in re.findall(r"\w+", text)))]
        assert any(f"{word}=" in said or re.search(rf"{re.escape(word)}\b", said) for word in spelled), point


def test_each_capability_and_address_family_of_the_worker_has_its_reason_in_the_unit() -> None:
    kept = " ".join(values("jouled-worker.service", "CapabilityBoundingSet")).split()
    assert {"CAP_SETUID", "CAP_SETGID", "CAP_KILL"} <= set(kept)
    assert "CAP_SYS_ADMIN" not in kept
    for word in [*kept, *" ".join(values("jouled-worker.service", "RestrictAddressFamilies")).split()]:
        assert re.search(rf"\b{word}\b", comments("jouled-worker.service")), word


def test_no_option_of_the_worker_takes_a_mount_namespace_or_closes_a_device() -> None:
    taken = [f"{key}={value}" for key, value in options("jouled-worker.service") if MOUNTING.match(f"{key}=")]
    assert taken == []


def test_the_worker_is_confined_by_what_takes_none() -> None:
    found = dict(options("jouled-worker.service"))
    wanted = {
        "NoNewPrivileges": "yes",
        "RestrictNamespaces": "yes",
        "LockPersonality": "yes",
        "SystemCallErrorNumber": "EPERM",
        "IPAddressDeny": "any",
        "IPAddressAllow": "localhost",
        "WatchdogSec": "30",
        "TimeoutStopSec": "60",
        "KillMode": "mixed",
        "OOMPolicy": "continue",
        "StartLimitIntervalSec": "0",
    }
    assert {key: found.get(key) for key in wanted} == wanted


def test_the_worker_puts_the_board_back_outside_its_sandbox_by_an_absolute_path() -> None:
    (line,) = values("jouled-worker.service", "ExecStopPost")
    assert re.fullmatch(r"\+/\S+ restore", line)


def test_the_daemon_sees_its_peers_its_boot_and_its_board() -> None:
    found = dict(options("jouled.service"))
    assert not {"PrivateUsers", "ProcSubset", "StateDirectory", "RuntimeDirectory"} & set(found)
    wanted = {
        "Type": "notify",
        "User": "jouled",
        "ProtectKernelTunables": "yes",
        "ProtectHome": "read-only",
        "ReadWritePaths": "/var/lib/jouled/daemon",
        "CapabilityBoundingSet": "",
        "OOMPolicy": "continue",
        "KillMode": "mixed",
        "RestartSec": "5",
        "StartLimitIntervalSec": "0",
        "Wants": "jouled.socket jouled-worker.socket",
    }
    assert {key: found.get(key) for key in wanted} == wanted
    assert int(found["TimeoutStopSec"]) > 30 + 60


def test_the_daemon_starts_after_its_sockets_and_stops_before_the_worker() -> None:
    after = " ".join(values("jouled.service", "After")).split()
    assert {"jouled.socket", "jouled-worker.socket", "jouled-worker.service", "dbus.service"} <= set(after)


def test_units_of_others_are_waited_for_and_neither_started_nor_stopped() -> None:
    own = {*UNITS, "multi-user.target", "sockets.target", "timers.target"}
    for name in UNITS:
        for key, value in options(name):
            assert key not in ("Conflicts", "BindsTo", "Requisite", "Upholds"), name
            if key in ("Wants", "Requires", "PartOf", "WantedBy", "RequiredBy", "Before"):
                assert set(value.split()) <= own, f"{name}: {key}={value}"


def test_a_stopped_daemon_takes_its_socket_along_and_no_trigger_limit_closes_one() -> None:
    assert values("jouled.socket", "PartOf") == ["jouled.service"]
    assert values("jouled.socket", "SocketMode") == ["0660"]
    assert values("jouled.socket", "SocketGroup") == ["jouled"]
    assert values("jouled-worker.socket", "SocketMode") == ["0600"]
    assert values("jouled-worker.socket", "SocketUser") == ["jouled"]
    assert values("jouled-worker.socket", "FlushPending") == ["yes"]
    for name in ("jouled.socket", "jouled-worker.socket"):
        assert values(name, "TriggerLimitIntervalSec") == ["0"]


def test_the_fleet_does_not_tune_all_at_once() -> None:
    assert values("jouled-retune.timer", "RandomizedDelaySec") != []
    assert "12" in values("jouled-retune.service", "SuccessExitStatus")[0].split()


@pytest.mark.parametrize("name", UNITS)
def test_no_unit_uses_an_option_that_systemd_249_does_not_know(name: str) -> None:
    assert [key for key, _ in options(name) if NEWER.match(f"{key}=")] == []


@pytest.mark.parametrize("name", SERVICES)
def test_the_real_command_stands_in_every_line_that_starts_jouled(name: str) -> None:
    text = render(read_shipped(name), ["/opt/my jouled/bin/python", "-I", "-m", "jouled.cli"])
    lines = [line for line in text.splitlines() if line.startswith("Exec")]
    assert lines
    for line in lines:
        assert re.match(r'Exec\w+=\+?"/opt/my jouled/bin/python" -I -m jouled\.cli \w+$', line)


@pytest.mark.parametrize(
    ("word", "line"),
    [("/a/b", "/a/b"), ("/a b", '"/a b"'), ("/100%", '"/100%%"'), ('/a"b', '"/a\\"b"'), ("/a$b", '"/a$$b"')],
)
def test_words_of_a_command_line_are_taken_literally(word: str, line: str) -> None:
    assert quoted(word) == line


def test_what_root_obeys_lies_where_only_root_writes() -> None:
    rows = [line.split() for line in read_shipped("jouled.tmpfiles").splitlines() if not line.startswith("#")]
    assert rows == [
        ["d", "/run/jouled", "2750", "root", "jouled"],
        ["d", "/var/lib/jouled", "2751", "root", "jouled"],
        ["d", "/var/lib/jouled/plans", "0755", "root", "root"],
        ["d", "/var/lib/jouled/daemon", "0750", "jouled", "jouled"],
    ]


def test_users_are_the_daemon_and_the_runner_with_the_gpus_groups() -> None:
    rows = [line.split()[:3] for line in read_shipped("jouled.sysusers").splitlines() if not line.startswith("#")]
    assert rows == [
        ["u", "jouled", "-"],
        ["u", "jouled-runner", "-"],
        ["m", "jouled-runner", "video"],
        ["m", "jouled-runner", "render"],
    ]
