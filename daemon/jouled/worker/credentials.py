"""Who is at the other end of a UNIX socket, as the kernel knows it (SO_PEERCRED)."""

from __future__ import annotations

import socket
import struct
from typing import Protocol

_UCRED = struct.Struct("3i")


class HasOptions(Protocol):
    """A socket as far as it is needed here (asyncio hands out less than a whole one)."""

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes: ...


def credentials(sock: HasOptions) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process that connected. Raises OSError."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid
