"""The VM: booted from its disk, heard over its serial line, and gone when its power goes."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = b"CUT "
QEMU = "qemu-system-x86_64"
CPU = "Nehalem"  # what numpy's wheels need at least
MEMORY_MIB = 1024

Line = dict[str, Any]


class NotHeardError(Exception):
    """The VM did not say in time what it should; the message holds the end of its console."""


@dataclass
class Machine:
    """One boot, from power on to `cut`. `heard`: every line that came, in order."""

    kernel: Path
    initrd: Path
    disk: Path
    words: str
    heard: list[Line] = field(default_factory=list)
    console: list[bytes] = field(default_factory=list)
    _lines: queue.Queue[Line | None] = field(default_factory=queue.Queue)
    _process: subprocess.Popen[bytes] | None = None

    def power_on(self) -> None:
        # The host writes what the guest has flushed, and keeps what it has not in the guest's memory: that is lost.
        append = f"console=ttyS0 root=/dev/vda rw quiet systemd.show_status=0 panic=5 {self.words}"
        argv = [QEMU, "-accel", "tcg", "-machine", "q35", "-cpu", CPU, "-m", str(MEMORY_MIB), "-smp", "1"]
        argv += ["-display", "none", "-nodefaults", "-no-reboot", "-serial", "stdio", "-device", "virtio-rng-pci"]
        argv += ["-drive", f"file={self.disk},format=raw,if=virtio,cache=writeback"]
        argv += ["-kernel", str(self.kernel), "-initrd", str(self.initrd), "-append", append]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.console.append(line)
            _, mark, text = line.partition(MARK)
            if mark:
                try:
                    self._lines.put(json.loads(text))
                except ValueError:
                    continue  # the power went within the line
        self._lines.put(None)

    def wait_for(self, wanted: Callable[[Line], bool], patience_s: float) -> Line:
        """The first new line that is wanted. Raises NotHeardError."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise NotHeardError(f"not heard in {patience_s:g} s\n{self.end_of_console()}") from None
            if line is None:
                raise NotHeardError(f"the machine went off\n{self.end_of_console()}")
            self.heard.append(line)
            if wanted(line):
                return line

    def listen_for(self, duration_s: float) -> None:
        """Hear what it says for so long."""
        try:
            self.wait_for(lambda line: False, duration_s)
        except NotHeardError as error:
            if "went off" in str(error):
                raise

    def cut(self) -> None:
        """The power goes; lines that had left the machine by then are heard."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        while (line := self._lines.get(timeout=30)) is not None:
            self.heard.append(line)

    def end_of_console(self) -> str:
        return b"".join(self.console[-25:]).decode(errors="replace")
