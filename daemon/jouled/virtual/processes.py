"""The door to the virtual board's programs: real children, or the same code within this process for long soaks."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from jouled.board.process import Child, Completed, Processes
from jouled.virtual.console import Console
from jouled.virtual.faults import Faults
from jouled.virtual.kernel import Kernel
from jouled.virtual.programs import PLACES, collect, hand_over, install, program
from jouled.virtual.tree import boot

log = logging.getLogger(__name__)

_HUNG_S = 1.5  # real time that a child gets which is known to hang: simulated time passes in full


class _ProgramHangsError(Exception):
    """The program stands still for good."""


def _hang() -> None:
    raise _ProgramHangsError


class VirtualProcesses(Processes):
    """Starts the programs below `root`; nothing else is on its PATH.

    `elapse` is told, when a program has ended, how many seconds it would have taken. `in_process` runs them without a
    child: then `on_start` hears nothing.
    """

    def __init__(
        self,
        root: Path,
        *,
        elapse: Callable[[float], None] = lambda _: None,
        in_process: bool = False,
        mark: str = "jouled",
        on_start: Callable[[Child], None] | None = None,
    ) -> None:
        folders = dict.fromkeys(str((root / place).parent) for place in PLACES.values())
        super().__init__(path=":".join(folders), mark=mark, on_start=on_start)
        self._root = str(root)
        self._faults = Faults(self._root)
        self._elapse = elapse
        self._in_process = in_process
        install(self._root)

    def find(self, name: str) -> str | None:
        if name in self._faults.get("absent", ()):
            return None
        path = os.path.join(self._root, PLACES.get(name, ""))  # not by PATH: the root's own path may hold a colon
        return path if os.path.isfile(path) and os.access(path, os.X_OK) else None

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        collect(self._root)
        if self._in_process and self.find(argv[0]) is not None:
            done = self._run_here(tuple(argv))
        else:
            hangs = argv[0] in self._faults.get("hang", {})
            done = super().run(argv, timeout_s=_HUNG_S if hangs else timeout_s)
        took_s = timeout_s if done.timed_out else collect(self._root)
        self._elapse(min(took_s, timeout_s))
        if done.timed_out or took_s > timeout_s:
            return replace(done, returncode=-signal.SIGTERM, duration_s=timeout_s, timed_out=True)
        return replace(done, duration_s=took_s)

    def _run_here(self, argv: tuple[str, ...]) -> Completed:
        log.debug("run %s within this process", " ".join(argv))
        kernel, console = Kernel(self._root, argv[0]), Console()
        kernel.on_hang = _hang
        run = program(argv[0], kernel, console)
        code, timed_out = 0, False
        try:
            code = run.run(list(argv[1:]))
        except _ProgramHangsError:
            timed_out = True
        hand_over(self._root, run.took_s)
        if run.reboots:
            boot(Path(self._root))
        return Completed(argv, code, "".join(console.out), "".join(console.err), run.took_s, timed_out)
