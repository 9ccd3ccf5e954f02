"""How a job is told to stop: looked at between waits, never in the middle of a write."""

from __future__ import annotations

from jouled.board.clock import Clock

_SLICE_S = 1.0


class Cancelled(Exception):
    """The job was asked to stop; `code` is the reason's code, `signal_number` the signal that asked, if one did."""

    def __init__(self, code: str, text: str, signal_number: int | None) -> None:
        super().__init__(text)
        self.code = code
        self.signal_number = signal_number


class Cancellation:
    """Set from a signal handler or another thread, seen by the job."""

    def __init__(self) -> None:
        self._error: Cancelled | None = None

    def ask(self, code: str, text: str, *, signal_number: int | None = None) -> None:
        """Ask the job to stop; the first asker's reason stays."""
        if self._error is None:  # one store, and no lock that a second signal could find taken
            self._error = Cancelled(code, text, signal_number)

    @property
    def asked(self) -> bool:
        """Has somebody asked?"""
        return self._error is not None

    def check(self) -> None:
        """Raise Cancelled if somebody has asked."""
        if self._error is not None:
            raise self._error

    def sleep(self, clock: Clock, duration_s: float) -> None:
        """Sleep on `clock`, waking each second to see whether somebody has asked. Raises Cancelled."""
        ends_s = clock.monotonic_s() + duration_s
        self.check()
        while (left_s := ends_s - clock.monotonic_s()) > 1e-9:
            clock.sleep(min(_SLICE_S, left_s))
            self.check()
