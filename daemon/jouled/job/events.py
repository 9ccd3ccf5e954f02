"""What a job says of itself: one JSON object a line, the same for every listener."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jouled.board.clock import Clock

log = logging.getLogger(__name__)

VERSION = 1
KINDS = frozenset(
    {
        "job_started",
        "phase",
        "mode_applied",
        "progress",
        "trial",
        "warning",
        "decision",
        "restored",
        "finished",
    }
)
_PROGRESS_LEAST_S = 0.5

Event = Mapping[str, Any]
Sink = Callable[[Event], None]


def finite(value: Any) -> Any:
    """`value` as strict JSON allows it: floats that are no number become null, tuples lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [finite(item) for item in value]
    return value


def encode(event: Event) -> str:
    """One line of JSON, without the newline."""
    return json.dumps(finite(event), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


@dataclass
class Events:
    """Numbers the events of one job and hands them to the sinks in order (the ledger's first)."""

    clock: Clock
    job: str
    sinks: list[Sink] = field(default_factory=list)
    _seq: int = 0
    _progress_s: float = -math.inf

    def emit(self, event: str, **fields: Any) -> None:
        """Say `event`; `fields` are its own. `progress` more often than twice a second is dropped."""
        if event not in KINDS:
            raise ValueError(f"no such event: {event!r}")
        now_s = self.clock.monotonic_s()
        if event == "progress":
            if now_s - self._progress_s < _PROGRESS_LEAST_S:
                return
            self._progress_s = now_s
        self._seq += 1
        record = {"v": VERSION, "seq": self._seq, "t_s": round(now_s, 3), "event": event, "job": self.job, **fields}
        for sink in list(self.sinks):
            try:
                sink(record)
            except OSError as error:  # a listener that has gone decides nothing; the ledger raises StateError
                self.sinks.remove(sink)
                log.warning("a listener is gone: %s", error)

    def warn(self, text: str, **fields: Any) -> None:
        """Something was ignored or done another way; `text` says what and what is done instead."""
        log.warning("%s", text)
        self.emit("warning", text=text, **fields)
