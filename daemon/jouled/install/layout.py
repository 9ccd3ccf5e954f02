"""Which files the service consists of, and where they lie."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jouled.board.statefile import write_durably
from jouled.install.units import UNITS, read_shipped, render

_LISTEN = re.compile(r'^(listen = )"[^"\n]*"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below `prefix`, which is / on the machine itself."""

    prefix: Path = Path("/")

    def unit(self, name: str) -> Path:
        """A unit file."""
        return self.prefix / "etc/systemd/system" / name

    @property
    def sysusers(self) -> Path:
        """Users and groups."""
        return self.prefix / "etc/sysusers.d/jouled.conf"

    @property
    def tmpfiles(self) -> Path:
        """Folders with their owners."""
        return self.prefix / "etc/tmpfiles.d/jouled.conf"

    @property
    def config(self) -> Path:
        """The operator's configuration."""
        return self.prefix / "etc/jouled/config.toml"

    @property
    def link(self) -> Path:
        """What makes `jouled` a command that everybody finds."""
        return self.prefix / "usr/local/bin/jouled"

    def files(self) -> tuple[Path, ...]:
        """Everything that is ours to write and to remove."""
        return (*(self.unit(name) for name in UNITS), self.sysusers, self.tmpfiles)


def _contents(layout: Layout, command: Sequence[str]) -> dict[Path, str]:
    texts = {layout.unit(name): render(read_shipped(name), command) for name in UNITS}
    texts[layout.sysusers] = read_shipped("jouled.sysusers")
    texts[layout.tmpfiles] = read_shipped("jouled.tmpfiles")
    return texts


def write_files(layout: Layout, command: Sequence[str]) -> tuple[Path, ...]:
    """Lay the files; those that were not so before. Raises StateError."""
    return tuple(path for path, text in _contents(layout, command).items() if _write(path, text))


def write_config(layout: Layout, metrics_listen: str | None) -> bool:
    """The configuration with every default, where there is none yet; False: the operator's was left alone."""
    if layout.config.exists():
        return False
    text = read_shipped("config.toml")
    if metrics_listen is not None:
        text = _LISTEN.sub(lambda found: f'{found[1]}"{metrics_listen}"', text)
    return _write(layout.config, text)


def script_of(command: Sequence[str]) -> Path:
    """The console script that pip lays beside the interpreter."""
    return Path(command[0]).with_name("jouled")


def write_link(layout: Layout, command: Sequence[str]) -> Path | None:
    """Lead /usr/local/bin/jouled to the console script; None where there is no script, or the name is another's."""
    link, script = layout.link, script_of(command)
    if not script.is_file():
        return None
    if script == link or script.parent == Path("/usr/bin"):
        return script
    if os.path.lexists(link):
        if not _is_ours(link):
            return None
        if os.readlink(link) == str(script):
            return link
        link.unlink()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(script)
    return link


def _is_ours(link: Path) -> bool:
    return link.is_symlink() and os.readlink(link).endswith("/bin/jouled")


def remove_link(layout: Layout) -> None:
    """As `write_link` has laid it; a file of somebody else's stays."""
    if _is_ours(layout.link):
        layout.link.unlink()


def remove_files(layout: Layout) -> tuple[Path, ...]:
    """Remove what `write_files` lays; what was there. The operator's drop-ins stay."""
    present = tuple(path for path in layout.files() if path.exists())
    for path in present:
        path.unlink()
    return present


def _write(path: Path, text: str) -> bool:
    data = text.encode()
    if path.is_file() and path.read_bytes() == data:
        return False
    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o755)
    write_durably(path, data, mode=0o644)
    path.chmod(0o644)
    return True
