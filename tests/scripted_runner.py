"""A runner that does what its script says: a real process that speaks the protocol, or breaks it where it is told to.

The spec's `script` is {"at": MOMENT, "do": DEED, "service_s": …, "lie": NAME, "ready": {…},
"free_bytes": …}, the last as `about` tells it. Moments: begun, about, inspect, build, load, ready, start,
completions:N, stop, end. This file is a program; nothing imports it but its path.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).resolve()
SHA256 = "5c" * 32


def send(kind: bytes, payload: bytes) -> None:
    os.write(1, struct.pack("<cI", kind, len(payload)) + payload)


def tell(kind: bytes, **document: Any) -> None:
    send(kind, json.dumps(document).encode())


class Scripted:
    """One run of the program."""

    def __init__(self) -> None:
        self.script: dict[str, Any] = {}
        self.batch = 1
        self.lines = b""
        self.ended = False

    def moment(self, name: str) -> None:
        if self.script.get("at") != name:
            return
        deed, _, argument = str(self.script.get("do", "exit:1")).partition(":")
        if deed == "exit":
            print("scripted to end", file=sys.stderr, flush=True)
            os._exit(int(argument or 1))
        if deed == "signal":
            os.kill(os.getpid(), int(argument))
        if deed == "silence":
            signal.pause()
        if deed == "garbage":
            os.write(1, b"Hello, I am a library that prints\n")
            signal.pause()
        if deed == "half_frame":
            os.write(1, struct.pack("<cI", b"C", 48) + b"half")
            os._exit(0)
        if deed == "error":
            tell(b"E", code=argument, text="it went wrong", log=["[TRT] line one", "[TRT] line two"])
            os._exit(1)
        if deed == "unasked":
            tell(b"D", did="nothing")
        if deed == "stop_reading":
            os.close(0)
            while True:
                tell(b"B", t_ns=time.monotonic_ns())
                time.sleep(0.01)

    def next_line(self, wait_s: float) -> dict[str, Any] | None:
        """What the parent says next; None: nothing within `wait_s`."""
        while b"\n" not in self.lines and not self.ended:
            if not select.select([0], [], [], max(0.0, wait_s))[0]:
                return None
            data = os.read(0, 65536)
            self.ended = not data
            self.lines += data
        line, _, self.lines = self.lines.partition(b"\n")
        found: dict[str, Any] = json.loads(line) if line else {"do": "end"}
        return found

    def run(self) -> None:
        if len(sys.argv) > 1:
            self.script = json.loads(sys.argv[1])
        self.moment("begun")
        while True:
            message = self.next_line(0.5)
            if message is None:
                tell(b"B", t_ns=time.monotonic_ns())
                continue
            spec = message.get("spec", {})
            self.script = spec.get("script", self.script)
            self.batch = spec.get("batch", self.batch)
            self.moment(message["do"])
            if message["do"] == "end":
                return
            self.act(message)

    def act(self, message: dict[str, Any]) -> None:
        memory = {"plan_bytes": 1000, "device_memory_bytes": 2000, "io_bytes": 300, "free_bytes": 9000}
        if message["do"] in ("build", "about"):
            plan, free = message.get("spec", {}).get("plan_out"), self.script.get("free_bytes", memory["free_bytes"])
            tell(b"D", did=message["do"], plan=plan, seconds=0.5, free_bytes=free)
        elif message["do"] == "inspect":
            tell(b"I", protocol=1, total_bytes=10_000, integrated=False, **memory)
        elif message["do"] == "load":
            tell(b"L", level="warning", text="[TRT] a warning")
            versions = {"tensorrt": "8.5.3.1", "python": "3.8.10", "pycuda": None}
            ready = {"protocol": 1, "batch": self.batch, "engine_sha256": SHA256, "description": "scripted"}
            tell(b"R", **{**ready, **memory, "versions": versions, "pid": os.getpid(), **self.script.get("ready", {})})
            self.moment("ready")
        elif message["do"] == "start":
            self.serve(message["arrival"], message["at_ns"])

    def serve(self, arrival: dict[str, Any], at_ns: int) -> None:
        service_ns = int(float(self.script.get("service_s", 0.002)) * 1e9)
        sent = 0
        while True:
            due_ns = time.monotonic_ns() if arrival["kind"] == "back_to_back" else due(arrival, at_ns, sent)
            due_ns = max(due_ns, at_ns)
            while (wait_ns := due_ns - time.monotonic_ns()) > 0:
                message = self.next_line(wait_ns / 1e9)
                if message is not None:
                    return self.stopped(message, sent)
            start_ns = time.monotonic_ns()
            time.sleep(service_ns / 1e9)
            row = self.told(due_ns, start_ns, time.monotonic_ns(), at_ns)
            send(b"C", struct.pack("<3q", *row))
            sent += 1
            self.moment(f"completions:{sent}")
            message = self.next_line(0.0)
            if message is not None:
                return self.stopped(message, sent)

    def stopped(self, message: dict[str, Any], sent: int) -> None:
        self.moment("stop")
        if message["do"] == "stop":
            tell(b"D", did="stop", sent=sent + int(self.script.get("uncounted", 0)))
        else:
            self.ended = True

    def told(self, arrival_ns: int, start_ns: int, end_ns: int, at_ns: int) -> tuple[int, int, int]:
        second_ns = 1_000_000_000
        lies = {
            "future": (arrival_ns, start_ns, end_ns + second_ns),
            "past": (at_ns - second_ns, start_ns, end_ns),
            "backwards": (arrival_ns, end_ns, start_ns),
            "early": (arrival_ns, arrival_ns - 1, end_ns),
            "overflow": (-(1 << 63), (1 << 63) - 1, (1 << 63) - 1),
            "no_queueing": (start_ns, start_ns, end_ns),
        }
        return lies.get(self.script.get("lie", ""), (arrival_ns, start_ns, end_ns))


def due(arrival: dict[str, Any], at_ns: int, k: int) -> int:
    if arrival["kind"] == "rate":
        return at_ns + round((float(arrival["offset_s"]) + k / float(arrival["rate_hz"])) * 1e9)
    loop, i = divmod(k, len(arrival["times_s"]))
    return at_ns + round((loop * float(arrival["period_s"]) + float(arrival["times_s"][i])) * 1e9)


if __name__ == "__main__":
    Scripted().run()
