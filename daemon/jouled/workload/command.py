"""A workload that is any program: one line, or datagram, for each inference (docs/workloads.md)."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jouled.board.orphans import end_carriers
from jouled.board.process import Processes, uid_of
from jouled.errors import WorkloadError
from jouled.workload.arrival import shares
from jouled.workload.child import Limits
from jouled.workload.instances import Instances
from jouled.workload.program import FIRST_TO_GO, ProgramChild
from jouled.workload.runner import Arrival, Loaded
from jouletune.measurement import Completions
from jouletune.space import Variant

log = logging.getLogger(__name__)

_LIMITS = Limits(silence_s=30.0)
_SOCKET = "JOULED_SOCKET"


class CommandRunner:
    """Runs `argv` once for each instance. A variant's batch and number reach it as JOULED_BATCH and JOULED_INSTANCE.

    `user` is whom it runs as, `environment` is added to its clean one; `beat` is called each second of a wait for it,
    and may raise.
    """

    def __init__(
        self,
        processes: Processes,
        arrival: Arrival,
        *,
        argv: Sequence[str],
        user: str | None = None,
        inference_name: str = "inference",
        environment: Mapping[str, str] | None = None,
        limits: Limits = _LIMITS,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self.arrival = arrival
        self.beat = beat
        self._processes = processes
        self._argv = tuple(argv)
        self._user = user
        self._inference_name = inference_name
        self._environment = dict(environment or {})
        self._limits = limits
        self._instances = Instances(batch=1)
        self._loaded: tuple[Variant, Loaded] | None = None
        self._folder: Path | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the instances."""
        return tuple(child.pid for child in self._instances.children)

    def load(self, variant: Variant) -> Loaded:
        """Start the instances and wait until each has made its first inference; nothing to do where they have.

        Raises WorkloadError, WorkloadDiedError, WorkloadHungError, ToolAbsentError, StuckError.
        """
        if self._loaded is not None and self._loaded[0] == variant and self._instances.children:
            return self._loaded[1]
        self.close()
        shares(self.arrival, variant.instances)
        self._instances = Instances(batch=variant.batch)
        with self._instances.ended_on_error():
            children = [self._start(number, variant) for number in range(variant.instances)]
            for child in children:
                child.ask_for_first()
            for child in children:
                child.wait_for_first(self.beat)
        self._loaded = (variant, Loaded(" ".join(self._argv), self._inference_name))
        return self._loaded[1]

    def begin(self) -> None:
        """Start the load. Raises WorkloadDiedError (also where nothing is loaded), WorkloadHungError."""
        self._instances.check("command")
        self._instances.begin(self.arrival)

    def take(self) -> Completions:
        """What has ended since the last call, after `pause` too. Raises WorkloadDiedError, WorkloadHungError."""
        self._instances.check("command")
        return self._instances.take()

    def pause(self) -> None:
        """Stop the load and wait for what is in flight. Raises WorkloadDiedError, WorkloadHungError."""
        self._instances.pause()

    def close(self) -> None:
        """End the instances, and whom they have put into sessions of their own; idempotent. Raises StuckError."""
        self._loaded = None
        self._instances.close()
        if self._folder is not None:
            for path in self._folder.glob("*.sock"):
                end_carriers(f"{_SOCKET}={path}")
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self, number: int, variant: Variant) -> ProgramChild:
        path, inbox = self._inbox(number)
        told = {
            "JOULED_ARRIVAL": self.arrival.kind,
            "JOULED_BATCH": str(variant.batch),
            "JOULED_INSTANCE": str(number),
            "JOULED_INSTANCES": str(variant.instances),
            _SOCKET: str(path),
        }
        which = "" if variant.instances == 1 else f" {number + 1} of {variant.instances}"
        try:
            spawned = self._processes.spawn(
                (*FIRST_TO_GO, *self._argv), user=self._user, environment={**self._environment, **told}
            )
        except BaseException:
            inbox.close()
            raise
        child = ProgramChild(
            spawned,
            name=f"{Path(self._argv[0]).name}{which}",
            limits=self._limits,
            is_paced=self.arrival.kind != "back_to_back",
            batch=variant.batch,
            inbox=inbox,
        )
        self._instances.add(child)
        return child

    def _inbox(self, number: int) -> tuple[Path, socket.socket]:
        """A socket for datagrams that the program's user alone may write to.

        The folder is ours: whoever could write to it could put a link in the socket's place before its owner is set.
        """
        uid = uid_of(self._user)
        inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="jouled-"))
                self._folder.chmod(0o711)
            path = self._folder / f"{number}.sock"
            inbox.bind(str(path))
            path.chmod(0o600)
            os.chown(path, uid, -1)
        except OSError as error:
            inbox.close()
            raise WorkloadError(f"no socket for the program's datagrams: {error.strerror}: {error.filename}") from error
        return path, inbox
