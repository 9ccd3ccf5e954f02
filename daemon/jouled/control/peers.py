"""Who is at the other end of the control socket, and what they may do.

The kernel says who connected (SO_PEERCRED). Whoever could connect may read and verify. Changes are for root, for the
user that the daemon itself runs as, and for members of `control.change_group`, looked up by uid: its primary and its
supplementary groups, since a process may have been started before it became a member.
"""

from __future__ import annotations

import grp
import logging
import os
import pwd
import time
from collections.abc import Callable

from jouled.state import Peer
from jouled.worker.credentials import HasOptions, credentials

log = logging.getLogger(__name__)

_REMEMBERED_S = 5.0
_MOST_REMEMBERED = 256


def user_name(uid: int) -> str:
    """The name of a user, or `uid N` where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def is_member(uid: int, group: str) -> bool:
    """Is `group` the primary or a supplementary group of the user? False where either does not exist."""
    try:
        user, entry = pwd.getpwuid(uid), grp.getgrnam(group)
    except KeyError:
        return False
    return user.pw_gid == entry.gr_gid or user.pw_name in entry.gr_mem


class Peers:
    """Names peers and their rights; what the user database said is remembered for 5 s."""

    def __init__(
        self,
        change_group: str,
        *,
        member: Callable[[int, str], bool] = is_member,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.change_group = change_group
        self._member = member
        self._now_s = now_s
        self._known: dict[int, tuple[float, str, bool]] = {}

    def of(self, sock: HasOptions) -> Peer:
        """The peer of a connected socket. Raises OSError."""
        pid, uid, gid = credentials(sock)
        name, may_change = self._look_up(uid)
        return Peer(uid=uid, gid=gid, pid=pid, name=name, may_change=may_change)

    def _look_up(self, uid: int) -> tuple[str, bool]:
        known = self._known.get(uid)
        if known is not None and self._now_s() - known[0] < _REMEMBERED_S:
            return known[1], known[2]
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        name, may_change = user_name(uid), self._may_change(uid)
        self._known[uid] = (self._now_s(), name, may_change)
        return name, may_change

    def _may_change(self, uid: int) -> bool:
        if uid in (0, os.geteuid()):
            return True
        return bool(self.change_group) and self._member(uid, self.change_group)

    def advice(self, name: str) -> str:
        """What is typed for user `name`, who may not change anything, and should."""
        if not self.change_group:
            return "use sudo, or name a group in control.change_group of /etc/jouled/config.toml"
        return f"use sudo, or: sudo usermod -aG {self.change_group} {name}"
