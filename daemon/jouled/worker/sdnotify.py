"""What systemd is told by a datagram (sd_notify(3))."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


def send(address: str, text: str) -> None:
    """Tell `address`, a path or an abstract name (@…). Never blocks. Raises OSError."""
    target = f"\0{address[1:]}" if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
        sender.sendto(text.encode(), target)


def notify(text: str) -> bool:
    """Tell systemd; False where there is none to tell. A lost datagram is no error."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    try:
        send(address, text)
    except OSError as error:
        log.debug("systemd was not told %s: %s", text, error)
        return False
    return True
