"""systemd's unit files and their drop-ins, as systemd itself finds them: read, never asked of systemd."""

from __future__ import annotations

from jouled.board.sysfs import Sysfs

# As systemd looks: what lies in an earlier one stands for all later ones. /lib is another folder where /usr is apart.
PLACES = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
          "/lib/systemd/system")  # fmt: skip
_MANAGERS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd", "/lib/systemd")


def _first_of_each(paths: list[str]) -> dict[str, str]:
    """File name → the first path of that name."""
    found: dict[str, str] = {}
    for path in paths:
        found.setdefault(path.rpartition("/")[2], path)
    return found


def _all(sysfs: Sysfs, places: tuple[str, ...], pattern: str) -> list[str]:
    return [path for place in places for path in sysfs.glob(f"{place}/{pattern}")]


def files_of(sysfs: Sysfs, unit: str) -> list[str]:
    """In the order in which they count: the unit, then its drop-ins by name; of two of one name the first place's."""
    drop_ins = _first_of_each(_all(sysfs, PLACES, f"{unit}.d/*.conf"))
    return _all(sysfs, PLACES, unit)[:1] + [drop_ins[name] for name in sorted(drop_ins)]


def files_of_manager(sysfs: Sysfs) -> list[str]:
    """Of what holds for all units."""
    drop_ins = _first_of_each(_all(sysfs, _MANAGERS, "system.conf.d/*.conf"))
    return _all(sysfs, _MANAGERS, "system.conf")[:1] + [drop_ins[name] for name in sorted(drop_ins)]


def names(sysfs: Sysfs, kind: str) -> list[str]:
    """All units of a kind such as `service` that have a file or a drop-in."""
    units = {path.rpartition("/")[2] for path in _all(sysfs, PLACES, f"*.{kind}")}
    folders = {path.rpartition("/")[2].removesuffix(".d") for path in _all(sysfs, PLACES, f"*.{kind}.d")}
    return sorted(units | folders)


def is_wanted(sysfs: Sysfs, unit: str) -> bool:
    """Does a boot start it?"""
    return any(sysfs.glob(f"{place}/*.{how}/{unit}") for place in PLACES for how in ("wants", "requires"))
