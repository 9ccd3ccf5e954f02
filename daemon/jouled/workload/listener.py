"""What every child that runs a workload has: a thread that hears it, a first problem that ends it, and an end.

Whatever goes wrong (silence, a word that is none, an impossible time, an early end) ends the child by SIGKILL at once,
so that the GPU is free, and is raised to whoever asks next.
"""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator

from jouled.board.process import Spawned
from jouled.errors import FrameError, WorkloadDiedError, WorkloadError, WorkloadHungError

KEPT_BYTES = 64 * 1024
_READ_BYTES = 1 << 16
_LEFT_READS, _LEFT_DATAGRAMS = 32, 1024  # more than a pipe (1 MiB), or a socket's queue, holds
_SHOWN_LINES = 6


class Listener:
    """Hears one child from `start` until it is closed; `who` names it in every message.

    `on_data(descriptor, data, now_ns)` is called in the thread, with `changed` held, for what comes on standard output
    and on the descriptors of `extra`; it raises FrameError or WorkloadDiedError. `pending()`: what is amiss when the
    child ends now. `silence_s`: so long it may be silent (None: as long as it likes), counted from when the thread has
    found nothing to read; `end_s`: so long it may take to end.
    """

    def __init__(
        self,
        spawned: Spawned,
        *,
        who: str,
        on_data: Callable[[int, bytes, int], None],
        silence_s: float | None,
        end_s: float,
        extra: tuple[int, ...] = (),
        pending: Callable[[], str] = lambda: "",
    ) -> None:
        self.spawned = spawned
        self.who = who
        self.end_s = end_s
        self.changed = threading.Condition(threading.RLock())
        self.has_ended = False
        self._on_data = on_data
        self._extra = extra
        self._pending = pending
        self._silence_s = silence_s
        self._heard_s = time.monotonic()
        self._problem: WorkloadError | None = None
        self._is_ending = False
        self._stop = False
        self._stderr = bytearray()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        for descriptor in (spawned.stdin, spawned.stdout, spawned.stderr):
            os.set_blocking(descriptor, False)
        self._thread = threading.Thread(target=self._listen, name=f"jouled-runner-{spawned.pid}", daemon=True)

    def start(self) -> None:
        """Begin to hear it: from here on `on_data` is called."""
        self._thread.start()

    def allow_silence(self, silence_s: float | None) -> None:
        """From now on it may be silent for so long."""
        with self.changed:
            self._silence_s = silence_s
            self._heard_s = time.monotonic()
        os.eventfd_write(self._wake, 1)

    def write(self, data: bytes, *, within_s: float) -> None:
        """To its standard input. Raises WorkloadHungError, WorkloadDiedError."""
        until_s = time.monotonic() + within_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.spawned.stdin, selectors.EVENT_WRITE)
            left = memoryview(data)
            while left:
                if not selector.select(max(0.0, until_s - time.monotonic())):
                    self.fail(WorkloadHungError(f"{self.who} does not read what it is told"))
                    raise self.raised()
                try:
                    left = left[os.write(self.spawned.stdin, left) :]
                except BrokenPipeError:
                    with self.changed:
                        self.changed.wait_for(lambda: self.has_ended, self.end_s)
                    self.fail(WorkloadDiedError(f"{self.who} does not read what it is told any more"))
                    raise self.raised() from None

    def blame(self, error: WorkloadError) -> None:
        """The first thing that is told wrong with it stays; it ends by itself."""
        with self.changed:
            self._problem = self._problem or error

    def fail(self, error: WorkloadError) -> None:
        """The first thing that goes wrong ends it."""
        self.blame(error)
        self.spawned.signal(signal.SIGKILL)

    def check(self) -> None:
        """Raise what went wrong with it, if anything did; it is dead by then. Raises StuckError before anything."""
        with self.changed:
            if self._problem is None and not self.has_ended:
                return
            self.changed.wait_for(lambda: self.has_ended, self.end_s)
        self.spawned.kill()
        raise self.raised()

    def raised(self) -> WorkloadError:
        """What is to be raised."""
        with self.changed:
            found = self._problem or WorkloadDiedError(f"{self.who} has been ended")
        return type(found)(str(found), hint=found.hint, code=found.code)

    def end_by(self, *signals: int) -> None:
        """It is to end: its standard input does, and these signals come. What it does then is no problem."""
        with self.changed:
            self._is_ending = True
        self.spawned.close_stdin()
        for number in signals:
            self.spawned.signal(number)

    def close(self) -> None:
        """End it, by SIGKILL where it does not end by itself; idempotent. Raises StuckError."""
        self.end_by()
        with self.changed:
            self.changed.wait_for(lambda: self.has_ended, self.end_s)
        try:
            self.spawned.kill()
        finally:
            self._stop = True
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)
                self._thread.join()
                os.close(self._wake)
                self._wake = -1
            self.spawned.release()

    def last_words(self) -> Iterator[str]:
        """The last lines of its standard error."""
        with self.changed:
            text = bytes(self._stderr[-4096:]).decode("utf-8", "replace")
        yield from [line.strip() for line in text.splitlines() if line.strip()][-_SHOWN_LINES:]

    # --- in the thread ----------------------------------------------------------------------------------

    def _listen(self) -> None:
        spawned = self.spawned
        with selectors.DefaultSelector() as selector:
            for descriptor in (spawned.stdout, spawned.stderr, spawned.exited, self._wake, *self._extra):
                selector.register(descriptor, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(self._left_s())}
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                    if self._stop:
                        return
                if spawned.stderr in ready and not self._read_text():
                    selector.unregister(spawned.stderr)
                for descriptor in ready & {spawned.stdout, *self._extra}:
                    if not self._read(descriptor):
                        selector.unregister(descriptor)
                if spawned.exited in ready:
                    self._end()
                    return
                if not ready and self._left_s() == 0.0:
                    self.fail(WorkloadHungError(f"{self.who} was silent for {self._silence_s:g} s and was killed"))

    def _left_s(self) -> float | None:
        """How long it may still be silent; None: for ever."""
        with self.changed:
            if self._problem is not None or self._silence_s is None:
                return None
            return max(0.0, self._heard_s + self._silence_s - time.monotonic())

    def _read_text(self) -> bool:
        """Some of its standard error; False: there will be no more."""
        data = _read(self.spawned.stderr)
        if data:
            with self.changed:
                self._stderr += data
                del self._stderr[:-KEPT_BYTES]
        return data != b""

    def _read(self, descriptor: int) -> bool:
        """Some of what it says; False: there will be no more, or nothing that is of use."""
        data = _read(descriptor)
        if data is None:
            return True
        if not data and descriptor == self.spawned.stdout:  # on a socket it is an empty datagram
            return False
        now_ns = time.monotonic_ns()
        try:
            with self.changed:
                self._heard_s = now_ns / 1e9
                self._on_data(descriptor, data, now_ns)
        except (FrameError, WorkloadDiedError) as error:
            self.fail(WorkloadDiedError(f"{self.who}: {error}", hint=error.hint, code=error.code))
            return False
        return True

    def _end(self) -> None:
        """It is dead: its exit code, and what is left in the pipes."""
        code = self.spawned.wait(self.end_s)
        self._read_left(self.spawned.stdout, _LEFT_READS)
        for descriptor in self._extra:
            self._read_left(descriptor, _LEFT_DATAGRAMS)
        self._read_text()
        with self.changed:
            if self._problem is None and not self._is_ending:
                text = " | ".join((f"{self.who} {_how(code)}{self._pending()}", *self.last_words()))
                self._problem = WorkloadDiedError(text, hint=_hint(code))
            self.has_ended = True
            self.changed.notify_all()

    def _read_left(self, descriptor: int, most: int) -> None:
        """What it had said when it ended. Whom it has left behind in a session of its own may go on for ever."""
        for _ in range(most):
            if self._problem is not None or _is_empty(descriptor) or not self._read(descriptor):
                return


def _how(code: int | None) -> str:
    return f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"


def _hint(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "look at dmesg: where memory is short the kernel ends the runner first"
    return ""


def _read(descriptor: int) -> bytes | None:
    """Some bytes; none at the end; None where there is nothing now."""
    try:
        return os.read(descriptor, _READ_BYTES)
    except BlockingIOError:
        return None


def _is_empty(descriptor: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return not selector.select(0.0)
