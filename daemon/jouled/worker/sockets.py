"""The thread that waits for the worker's sockets: who comes is offered to the server, or told who is served."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from jouled.worker.peer import Peer, obeyed_uids
from jouled.worker.protocol import Message

log = logging.getLogger(__name__)


class Serving(Protocol):
    """What this thread asks of the server, and tells it."""

    def offer(self, peer: Peer) -> bool:
        """Is the new connection the one that is served now? Called under `Sockets.lock`."""

    def is_serving(self) -> bool:
        """Has somebody come who is not served to the end yet?"""

    def busy_line(self) -> Message:
        """What the others hear."""

    def stop(self, text: str) -> None:
        """End, since `text`."""


class Sockets:
    """The thread that waits for the listening socket and for the one peer that is served."""

    def __init__(self, server: Serving, listener: socket.socket | None) -> None:
        self.lock = threading.Lock()
        self._server = server
        self._listener = listener
        self._is_closed = False
        self._obeyed = obeyed_uids()
        self._wake_out, self._wake_in = socket.socketpair()
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._woken)
        if listener is not None:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._thread = threading.Thread(target=self._run, name="jouled-sockets", daemon=True)
        self._is_over = False

    def start(self) -> None:
        """Begin to wait."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close what is open."""
        self._call(self._end)
        self._thread.join()
        for key in tuple(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        self._wake_in.close()

    def adopt(self, peer: Peer) -> None:
        """Serve this one, which did not come through the listening socket."""
        with self.lock:
            self._server.offer(peer)
        self._watch(peer)

    def close_door(self) -> bool:
        """Take nobody more; False where somebody has come meanwhile."""
        with self.lock:
            self._is_closed = not self._server.is_serving()
            return self._is_closed

    def release(self, peer: Peer) -> None:
        """It has been served: forget it and hang up."""
        self._call(lambda: self._forget(peer))

    # --- the thread -------------------------------------------------------------------------------------

    def _call(self, act: Callable[[], None]) -> None:
        self._calls.put(act)
        self._wake_in.send(b"\0")

    def _run(self) -> None:
        try:
            while not self._is_over:
                for key, _ in self._selector.select():
                    key.data()
        except Exception:  # a deaf worker must not live on: the next connection starts another
            log.exception("a mistake in jouled: the worker ends")
            self._server.stop("the worker does not hear any more")

    def _woken(self) -> None:
        for _ in self._wake_out.recv(64):
            self._calls.get()()

    def _end(self) -> None:
        self._is_over = True

    def _watch(self, peer: Peer) -> None:
        def receive() -> None:
            if not peer.is_closed and not peer.receive():  # hung up on in this very round
                self._selector.unregister(peer.channel)

        self._selector.register(peer.channel, selectors.EVENT_READ, receive)

    def _forget(self, peer: Peer) -> None:
        with suppress(KeyError):  # it was unregistered when it went
            self._selector.unregister(peer.channel)
        peer.close()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            channel, _ = self._listener.accept()
        except OSError as error:  # it hung up before it was heard
            log.debug("not accepted: %s", error)
            return
        peer = Peer(channel)
        if peer.uid not in self._obeyed:
            log.warning("pid %d (uid %d) is not obeyed", peer.pid, peer.uid)
            peer.close()
            return
        with self.lock:
            is_served = not self._is_closed and self._server.offer(peer)
        if is_served:
            self._watch(peer)
            return
        if not self._is_closed:
            peer.send(self._server.busy_line())
        peer.close()
