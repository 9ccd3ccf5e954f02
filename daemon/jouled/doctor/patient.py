"""What is examined: a site, its board as far as one was found, and what may be done to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jouled.board.board import Board, discover
from jouled.board.identity import Identity, read_identity
from jouled.board.support import tuning_refusal
from jouled.board.sysfs import Sysfs
from jouled.errors import JouledError, SysfsError

if TYPE_CHECKING:
    from jouled.config import Config
    from jouled.job.site import Site


@dataclass(frozen=True, slots=True)
class Patient:
    """`refusal`: why no board was found; `identity` is there all the same on any Tegra.

    `config_error`: what is wrong with the configuration; the defaults stand in for it. `may_probe`: nvpmodel may be
    tried.
    """

    site: Site
    board: Board | None
    identity: Identity | None
    refusal: JouledError | None
    config_error: JouledError | None = None
    may_probe: bool = True

    @property
    def config(self) -> Config:
        """Of the site."""
        return self.site.config

    @property
    def sysfs(self) -> Sysfs:
        """The board's files."""
        return self.site.host.sysfs

    @property
    def untouched(self) -> str | None:
        """Why no knob of this kind of board is ever turned; None: they are."""
        return None if self.board is None else tuning_refusal(self.board.identity, self.board.file)

    def text(self, path: str) -> str:
        """What stands in one of the board's files; "" where it is not there or not for this user."""
        try:
            return self.sysfs.read(path)
        except SysfsError:
            return ""


def admit(site: Site, *, config_error: JouledError | None = None, may_probe: bool = True) -> Patient:
    """Look which board it is; every way in which that fails is part of the answer."""
    identity, board, refusal = None, None, None
    try:
        identity = read_identity(site.host.sysfs)
        board = discover(site.host, site.config.board.base_mode)
    except JouledError as error:
        refusal = error
    return Patient(site, board, identity, refusal, config_error, may_probe)
