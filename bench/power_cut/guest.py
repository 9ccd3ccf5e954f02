"""What runs within the VM: it says on the serial line what it finds and does. Started by units of image.py.

    guest.py stock    once, before the first boot: keeps the board's knobs as the operator's stock mode sets them
    guest.py look     at each boot, before jouled: what the power cut left
    guest.py act      when jouled is there: what it made of that, then the plan of the kernel's command line

Each line on the serial port is `CUT ` and one JSON object. A line `asked` comes before a request is sent, `answered`
after its answer has been read: what that answer acknowledged must not be lost.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

STATE = Path("/var/lib/jouled")
BOARD = STATE / "board"
STOCK = Path("/opt/power_cut/stock.json")
SOCKET = "/run/jouled/control.sock"
UP_WITHIN_S = 170.0
_writing = threading.Lock()


def say(event: str, **told: Any) -> None:
    """One line on the serial port, at once."""
    line = "CUT " + json.dumps({"event": event, "uptime_s": uptime_s(), **told}, separators=(",", ":")) + "\n"
    with _writing, open("/dev/ttyS0", "wb", buffering=0) as port:
        port.write(b"\n" + line.encode())


def uptime_s() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


# --- what lies there


def knobs() -> dict[str, str]:
    """Every knob of the virtual board, by path."""
    from jouled.board.discover import discover_domains
    from jouled.board.knobs import read_knobs
    from jouled.board.sysfs import Sysfs

    sysfs = Sysfs(BOARD)
    return dict(read_knobs(sysfs, discover_domains(sysfs)).values)


def kept(name: str) -> Any:
    """A state file as it is; None where there is none, its text where it is no JSON."""
    try:
        text = (STATE / name).read_text()
    except FileNotFoundError:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return {"torn": text[:200]}


def ledger() -> dict[str, Any]:
    """Is every line of the ledger whole? Which jobs does it know?"""
    from jouled.ledger import Ledger

    contents = Ledger(STATE).read()
    jobs = {str(event["job"]) for event in contents.events if event.get("job")}
    return {"events": len(contents.events), "damaged": [damage.why for damage in contents.damaged], "jobs": len(jobs)}


def look() -> None:
    now, stock = knobs(), json.loads(STOCK.read_text())
    differing = sorted(path for path in {*now, *stock} if now.get(path) != stock.get(path))
    names = ("pending.json", "quarantine.json", "applied.json", "snapshot.json", "winner.json")
    files = {name.partition(".")[0]: kept(name) for name in names}
    query = subprocess.run([str(BOARD / "usr/sbin/nvpmodel"), "-q"], capture_output=True, text=True, check=False)
    say("found", differing=differing, nvpmodel=query.stdout, ledger=ledger(), **files)


# --- the control socket


def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and body; 0 where no answer came."""
    connection = http.client.HTTPConnection("localhost", timeout=60)
    try:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(60)
        connection.sock.connect(SOCKET)
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, {"error": f"{type(error).__name__}: {error}"}
    finally:
        connection.close()


def told(method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """A request that is said before and after."""
    say("asked", method=method, path=path, body=body)
    code, answer = ask(method, path, body)
    say("answered", path=path, code=code, answer=answer)
    return code, answer


def follow() -> None:
    """Say what the events tell, for ever."""
    while True:
        connection = http.client.HTTPConnection("localhost")
        try:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(SOCKET)
            connection.request("GET", "/v1/events")
            answer = connection.getresponse()
            while line := answer.readline():
                if line.startswith(b"data:"):
                    event = json.loads(line[5:])
                    shown = ("job", "phase", "mode", "why", "outcome", "number", "what")
                    if event.get("event") not in ("progress", None):
                        say("seen", of=event["event"], **{name: event[name] for name in shown if name in event})
        except (OSError, http.client.HTTPException, ValueError):
            time.sleep(0.5)
        finally:
            connection.close()


# --- what is done until the power goes


def up() -> dict[str, Any]:
    """Wait for the service, and say what it made of what was found."""
    while True:
        code, status = ask("GET", "/v1/status")
        active = subprocess.run(["systemctl", "is-active", "jouled"], capture_output=True, text=True, check=False)
        if code == 200 and active.stdout == "active\n":
            break
        if uptime_s() > UP_WITHIN_S:
            say("absent", code=code, active=active.stdout, journal=journal())
            raise SystemExit(1)
        time.sleep(0.2)
    say("up", status=status)
    while status.get("state") not in ("idle", "held", "paused", "contested") and uptime_s() < UP_WITHIN_S:
        time.sleep(0.3)
        status = ask("GET", "/v1/status")[1]
    jobs = ask("GET", "/v1/history?limit=1000")[1]
    say("judged", status=status, quarantine=kept("quarantine.json"), pending=kept("pending.json"), history=jobs)
    return dict(status)


def journal() -> str:
    argv = ["journalctl", "-b", "--no-pager", "-o", "cat", "-u", "jouled*"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout[-3000:]


def settled(*states: str) -> dict[str, Any]:
    """The status once it is in one of the states and no job runs."""
    while True:
        code, status = ask("GET", "/v1/status")
        if code == 200 and status["state"] in states and status["job"] is None:
            return dict(status)
        time.sleep(0.3)


def tune(rng: random.Random) -> None:
    body = {"latency_bound_ratio": rng.choice((1.2, 1.3, 1.4, 1.5)), "budget": rng.randrange(5, 10)}
    told("POST", "/v1/retune", body)


def act() -> None:
    plan, seed = plan_of(Path("/proc/cmdline").read_text())
    rng = random.Random(seed)
    status = up()
    if status["state"] == "held":
        told("POST", "/v1/forget", {"held": True})
    threading.Thread(target=follow, daemon=True).start()
    settled("idle", "paused")
    if plan == "restore":
        kill_in_a_job(rng)
    elif plan == "apply":
        with_a_winner(rng)
        while True:
            told("POST", "/v1/apply", {"target": rng.choice(("winner", "reference", "winner"))})
            settled("idle", "paused", "held")
    elif plan == "idle":
        with_a_winner(rng)
        say("resting", status=ask("GET", "/v1/status")[1])
        time.sleep(3600)
    while True:
        tune(rng)
        settled("idle", "paused", "held")


def with_a_winner(rng: random.Random) -> None:
    """There is a winner in force; the one that there was may have been lost to the guard."""
    for _ in range(3):
        if settled("idle", "paused", "held")["in_force"]["source"] == "winner":
            return
        tune(rng)


def kill_in_a_job(rng: random.Random) -> None:
    """The worker is killed somewhere in a job, so that systemd runs a restore; the power goes within it."""
    tune(rng)
    time.sleep(rng.uniform(6, 30))
    shown = subprocess.run(
        ["systemctl", "show", "-P", "MainPID", "jouled-worker"], capture_output=True, text=True, check=False
    )
    pid = int(shown.stdout or 0)
    if pid:
        os.kill(pid, signal.SIGKILL)
    say("killed", pid=pid, snapshot=(STATE / "snapshot.json").exists())
    time.sleep(60)


def plan_of(command_line: str) -> tuple[str, int]:
    """`cut.plan=` and `cut.seed=` of the kernel's command line."""
    words = dict(word.split("=", 1) for word in command_line.split() if word.startswith("cut."))
    return words["cut.plan"], int(words["cut.seed"])


def main(what: str) -> None:
    if what == "stock":
        STOCK.write_text(json.dumps(knobs()))
    elif what == "look":
        look()
    else:
        act()


if __name__ == "__main__":
    main(sys.argv[1])
