"""`jouled worker`: one command at a time from one peer; everybody else hears who is being served.

Three threads. The first carries commands out and hears signals. The second waits for sockets: it accepts in every
phase, a restore included, and sees the peer go in the middle of a job. The third holds the deadlines.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from jouled import __version__
from jouled.board.host import Host
from jouled.board.lock import read_holder
from jouled.board.pending import SURVIVED_S, clear_pending
from jouled.board.snapshot import snapshot_path
from jouled.errors import ConfigError, JouledError, StuckError
from jouled.job.events import Event, finite
from jouled.job.site import Site
from jouled.worker import commands
from jouled.worker.deadlines import Deadlines
from jouled.worker.peer import GONE, Peer
from jouled.worker.protocol import (
    Apply,
    Command,
    Forget,
    Message,
    ProtocolError,
    Restore,
    Rollback,
    Tune,
    Verify,
    busy,
    error_of,
    finished,
    fitting,
    hello,
)
from jouled.worker.sdnotify import notify
from jouled.worker.sockets import Sockets
from jouletune.errors import JouletuneError

if TYPE_CHECKING:
    from jouled.workload.runner import Runner

log = logging.getLogger(__name__)

IDLE_S = 60.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_VERBS: Mapping[type, str] = {
    Tune: "tune",
    Apply: "apply",
    Rollback: "rollback",
    Restore: "restore",
    Verify: "verify",
    Forget: "forget",
}


class Doors(Protocol):
    """How the worker comes to its board. `look`: lock, boot and state files, to be read without opening the board."""

    look: Host

    def open(self, request: Mapping[str, object], *, is_restore: bool = False) -> Site:
        """The board under the configuration that stands now, and `request`. Raises ConfigError unless `is_restore`."""

    def runner(self, site: Site) -> Runner:
        """What runs the workload."""


class Server:
    """Serves a listening socket until idle for `idle_s`, or the one `peer` of a socket pair for one command."""

    def __init__(
        self,
        doors: Doors,
        *,
        listener: socket.socket | None = None,
        channel: socket.socket | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._doors = doors
        self._idle_s = idle_s
        self._is_single = listener is None
        self._is_stopping = False
        self._is_stuck = False
        self._verb = "waiting"
        self._peer: Peer | None = None
        self._arrivals: SimpleQueue[Peer | None] = SimpleQueue()
        self._idle_since_s = time.monotonic()
        self._probation_ends_s: float | None = None
        self._deadlines = Deadlines(on_overdue=self._late)
        self._sockets = Sockets(self, listener)
        if channel is not None:
            self._sockets.adopt(Peer(channel))

    # --- the whole --------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Until there is nothing more to do, or a signal says so; the board is then in a verified mode or as found."""
        with self._signals():
            self._sockets.start()
            self._deadlines.start()
            notify("READY=1")
            try:
                while (peer := self._next()) is not None:
                    self._attend(peer)
                    if self._is_single:
                        break
            finally:
                notify("STOPPING=1")
                self._put_back()
                self._end_probation()
                self._deadlines.stop()
                self._sockets.stop()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.stop(f"the worker was stopped by {signal.Signals(number).name}")

    def stop(self, text: str) -> None:
        """End: the job that runs is cancelled, the board put back. Takes no lock: a signal may come at any point."""
        self._is_stopping = True
        peer = self._peer
        if peer is not None:
            peer.cancellation.ask(GONE, text)
            peer.interrupt()
        self._arrivals.put(None)

    def _late(self, sentence: str) -> None:
        log.error("%s; the watchdog is not fed until it goes on", sentence)
        peer = self._peer
        if peer is not None:
            peer.cancellation.ask("time", sentence)

    # --- who is served ----------------------------------------------------------------------------------

    def offer(self, peer: Peer) -> bool:
        """A new connection (called under the sockets' lock): is it the one that is served now?"""
        if self._peer is not None or self._is_stopping:
            return False
        self._peer = peer
        self._arrivals.put(peer)
        return True

    def is_serving(self) -> bool:
        """Has somebody come who is not served to the end yet?"""
        return self._peer is not None

    def busy_line(self) -> Message:
        """What somebody hears who comes while another is served."""
        return busy(os.getpid(), self._verb)

    def _next(self) -> Peer | None:
        """The next to be served; None: end."""
        while not self._is_stopping:
            now_s = time.monotonic()
            if self._probation_ends_s is not None and now_s >= self._probation_ends_s:
                self._end_probation()
            due_s = self._idle_since_s + self._idle_s
            if self._is_single:
                due_s = now_s + self._idle_s
            elif self._probation_ends_s is not None:
                due_s = max(due_s, self._probation_ends_s)
            elif now_s >= due_s and self._sockets.close_door():
                log.info("nothing to do for %g s", self._idle_s)
                return None
            try:
                peer = self._arrivals.get(timeout=max(0.05, due_s - now_s))
            except Empty:
                continue
            if peer is not None:
                return peer
        return None

    def _attend(self, peer: Peer) -> None:
        """One connection, from its greeting to its last line."""
        try:
            holder = read_holder(self._doors.look)
            if holder is not None:
                peer.send(busy(*holder))
                return
            peer.send(hello(__version__, os.getpid()))
            answer = self._answer(peer)
            if answer is not None:
                self._tell(peer, answer)
        finally:
            self._verb = "waiting"
            self._deadlines.leave()
            with self._sockets.lock:
                self._peer = None
            self._sockets.release(peer)
            self._idle_since_s = time.monotonic()

    def _tell(self, peer: Peer, answer: Message) -> None:
        try:
            peer.send(answer)
        except ProtocolError as error:
            log.error("%s", error)
            peer.send(finished(None, error_of(error)))

    def _answer(self, peer: Peer) -> Message | None:
        """What came of its command; None where nobody is there to hear it. The worker's top: nothing gets past it."""
        try:
            command = peer.command()
            if command is None:
                return None
            self._verb, self._is_stuck = _VERBS[type(command)], False
            log.info("%s, asked by %s (pid %d, uid %d)", self._verb, getattr(command, "who", "-"), peer.pid, peer.uid)
            return self._carry_out(peer, command)
        except JouledError as error:
            self._is_stuck = isinstance(error, StuckError)
            log.error("%s%s", error, f" (to do: {error.hint})" if error.hint else "")
            return finished(None, error_of(error))
        except JouletuneError as error:
            log.error("%s", error)
            return finished(None, {"kind": type(error).__name__, "text": str(error), "hint": "", "exit_code": 2})
        except Exception as error:  # the worker's top: nothing gets past it, and the board is put back
            log.exception("a mistake in jouled")
            hint = "this is a mistake in jouled: report it with the journal of jouled-worker"
            text = f"{type(error).__name__}: {error}"
            return finished(None, {"kind": "InternalError", "text": text, "hint": hint, "exit_code": 1})
        finally:
            if self._verb != _VERBS[Verify]:
                self._put_back()

    # --- commands ---------------------------------------------------------------------------------------

    def _carry_out(self, peer: Peer, command: Command) -> Message:
        if isinstance(command, Tune):
            return self._tune(peer, command)
        site = self._doors.open({}, is_restore=isinstance(command, Restore))
        try:
            return finished(self._result(site, command), None)
        finally:
            site.close()

    def _result(self, site: Site, command: Command) -> Mapping[str, Any]:
        enter = self._deadlines.enter
        if isinstance(command, Apply):
            done = commands.apply_target(site, command.target, command.why, command.who, enter=enter)
            self._begin_probation()
            return done
        if isinstance(command, Rollback):
            done = commands.rollback(site, command.who, enter=enter)
            self._begin_probation()
            return done
        if isinstance(command, Restore):
            return commands.restore_board(site, command.who, enter=enter)
        if isinstance(command, Forget):
            enter("forget")
            return commands.forget(site, command.mode, held=command.held, who=command.who)
        enter("verify")
        return commands.verify_board(site)

    def _tune(self, peer: Peer, command: Tune) -> Message:
        """The job's own last event, with what every command ends with."""
        request = dict(command.request)
        dry_run = request.pop("dry_run", False)
        if not isinstance(dry_run, bool):
            raise ConfigError(f"request: dry_run: wanted true or false, got {dry_run!r:.40}")
        last: dict[str, Any] = {}

        def tell(event: Event) -> None:
            if event["event"] == "finished":
                last.update(event)
            else:
                peer.send(fitting(finite(event)))

        site = self._doors.open(request)
        try:
            result = commands.tune(
                site,
                self._doors.runner(site),
                job=command.job,
                who=command.who,
                dry_run=dry_run,
                cancellation=peer.cancellation,
                sinks=(self._deadlines.follow, tell),
            )
        finally:
            site.close()
        return {**finite(last), **finished(finite(result), None)}

    # --- the board --------------------------------------------------------------------------------------

    def _put_back(self) -> None:
        """On every way out: where a snapshot still lies there and nobody else holds the board, finish it.

        Beside a child that hangs in the kernel that has failed just now: the next try is the next command's.
        """
        look = self._doors.look
        if self._is_stuck or not snapshot_path(look.state_dir).exists() or read_holder(look) is not None:
            return
        try:
            site = self._doors.open({}, is_restore=True)
            try:
                commands.restore_board(site, "the worker", enter=self._deadlines.enter)
            finally:
                site.close()
        except JouledError as error:
            self._is_stuck = isinstance(error, StuckError)
            log.error("not restored: %s", error)
        finally:
            self._deadlines.leave()

    def _begin_probation(self) -> None:
        """A mode is in force: pending.json stays until the board has stood it for 120 s."""
        self._probation_ends_s = time.monotonic() + SURVIVED_S

    def _end_probation(self) -> None:
        """It has, or this is a clean end."""
        if self._probation_ends_s is None:
            return
        self._probation_ends_s = None
        try:
            clear_pending(self._doors.look)
        except JouledError as error:
            log.error("%s", error)
