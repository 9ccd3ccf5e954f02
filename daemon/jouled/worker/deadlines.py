"""How long each phase may take, and the watchdog that is fed only while none takes longer.

A worker that hangs is ended by systemd alone: nothing here signals anybody. What a phase's own code should have ended
long before (nvpmodel after 10 s, a window at its length) is overdue here, the job is asked to stop, and the watchdog
hears nothing until it goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from jouled.worker.sdnotify import notify

APPLY_S = 30.0
SETTLE_S = 90.0
BUILD_S = 45 * 60.0
RESTORE_S = 60.0
STRETCH_MORE_S = 30.0  # beyond a window's own length
_LOOK_EVERY_S = 1.0

LIMITS_S: Mapping[str, float] = {
    "apply": APPLY_S,
    "settle": SETTLE_S,
    "build": BUILD_S,
    "restore": RESTORE_S,
    "verify": APPLY_S,
    "forget": APPLY_S,
}


class Deadlines:
    """Follows a command through its phases. `on_overdue(sentence)` is called once for each phase that is late."""

    def __init__(
        self,
        *,
        on_overdue: Callable[[str], None],
        ping: Callable[[], object] = lambda: notify("WATCHDOG=1"),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_overdue = on_overdue
        self._ping = ping
        self._now_s = now_s
        self._lock = threading.Lock()
        self._phase = ""
        self._due_s: float | None = None
        self._is_told = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jouled-deadlines", daemon=True)

    # --- what is waited for -----------------------------------------------------------------------------

    def enter(self, phase: str, limit_s: float | None = None) -> None:
        """`phase` begins now; without `limit_s` it may take what LIMITS_S says."""
        with self._lock:
            self._phase = phase
            self._due_s = self._now_s() + (LIMITS_S[phase] if limit_s is None else limit_s)
            self._is_told = False

    def leave(self) -> None:
        """Nothing is waited for."""
        with self._lock:
            self._phase, self._due_s = "", None

    def follow(self, event: Mapping[str, Any]) -> None:
        """A sink of a job's events: each tells which phase begins."""
        kind = event["event"]
        if kind == "progress":
            self._follow_progress(str(event["phase"]), float(event["stretch_s"]))
        elif kind in ("job_started", "mode_applied"):
            self.enter("build")  # engines are loaded, at times built, before the load runs
        elif kind in ("phase", "trial"):
            self.enter("apply")
        elif kind in ("decision", "restored"):
            self.enter("restore")

    def _follow_progress(self, stretch: str, length_s: float) -> None:
        """Only the first of a stretch sets its deadline."""
        with self._lock:
            is_known = self._phase == stretch
        if not is_known:
            self.enter(stretch, max(SETTLE_S if stretch == "settle" else 0.0, length_s + STRETCH_MORE_S))

    # --- looking ----------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Feed the watchdog unless something is overdue (then False)."""
        with self._lock:
            late = self._due_s is not None and self._now_s() > self._due_s
            must_tell = late and not self._is_told
            self._is_told = late
            phase = self._phase
        if not late:
            self._ping()
        elif must_tell:
            self._on_overdue(f"{phase} takes longer than it ever should")
        return not late

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            self.look()

    def start(self) -> None:
        """Look each second, in a thread of its own."""
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()
