"""The bytes between a runner and its parent: frames from it, lines of JSON to it (docs/workloads.md)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jouled.errors import FrameError

Times = NDArray[np.int64]
"""(n, 3): arrival, start and end of requests in ns of the monotonic clock."""

PROTOCOL = 1
MOST_BYTES = 1 << 20
READY, INSPECTED, COMPLETIONS, BEAT, LOG, ERROR, DONE = "R", "I", "C", "B", "L", "E", "D"
_KINDS = frozenset((READY, INSPECTED, COMPLETIONS, BEAT, LOG, ERROR, DONE))
_HEAD = struct.Struct("<cI")
_ROW_BYTES = 24


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of a runner."""

    kind: str
    payload: bytes

    def document(self) -> dict[str, Any]:
        """The JSON object that it holds. Raises FrameError."""
        try:
            value = json.loads(self.payload)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"frame {self.kind!r}: wanted JSON, got {self.payload[:60]!r}") from error
        if not isinstance(value, dict):
            raise FrameError(f"frame {self.kind!r}: wanted a JSON object, got {self.payload[:60]!r}")
        return value

    def times(self) -> Times:
        """The times that it holds. Raises FrameError."""
        if len(self.payload) % _ROW_BYTES:
            raise FrameError(f"frame 'C': wanted 24 bytes a request, got {len(self.payload)} bytes")
        return np.frombuffer(self.payload, dtype="<i8").reshape(-1, 3).astype(np.int64)


class FrameReader:
    """Cuts a stream of bytes into frames, however it comes in pieces."""

    def __init__(self) -> None:
        self._left = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._left)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes, one after the other. Raises FrameError; nothing more comes after that."""
        self._left += data
        while len(self._left) >= _HEAD.size:
            letter, length = _HEAD.unpack_from(self._left)
            kind = letter.decode("latin-1")
            if kind not in _KINDS or length > MOST_BYTES:
                what = f"{length} bytes" if kind in _KINDS else f"type {letter!r}"
                got = bytes(self._left[:40])
                raise FrameError(
                    f"wanted a frame of type {'/'.join(sorted(_KINDS))} and at most {MOST_BYTES} bytes, got {what} "
                    f"in {got!r}",
                    hint="a runner writes nothing but frames to its standard output; text goes to standard error",
                )
            if len(self._left) < _HEAD.size + length:
                return
            payload = bytes(self._left[_HEAD.size : _HEAD.size + length])
            del self._left[: _HEAD.size + length]
            yield Frame(kind, payload)


def pack(kind: str, payload: bytes) -> bytes:
    """A frame as bytes."""
    return _HEAD.pack(kind.encode("latin-1"), len(payload)) + payload


def control_line(message: Mapping[str, Any]) -> bytes:
    """What the parent says, as bytes."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"
