"""What has been done to a virtual board's files before a job: each function one bad state of FIELD-PROBLEMS.

Files of /etc and /var are put back by `Place.undo`; what was changed in /sys stays until a reboot, as on a board.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jouled.virtual.console import Console
from jouled.virtual.faults import FOLDER
from jouled.virtual.kernel import Kernel
from jouled.virtual.programs import program

CONF = "/etc/nvpmodel.conf"
STATUS = "/var/lib/nvpmodel/status"
_MODEL = re.compile(r"<\s*POWER_MODEL\s+ID=(\d+)")
_UNDO = "undo.json"


@dataclass(frozen=True, slots=True)
class Place:
    """The board's tree and the folder in which jouled keeps its state."""

    root: Path
    state_dir: Path

    def real(self, path: str) -> Path:
        """Where `path` of the board lies."""
        return self.root / path.lstrip("/")

    def conf(self) -> str:
        """The stock conf's text."""
        return self.real(CONF).read_text(encoding="utf-8")

    def mode_id(self) -> int:
        """The mode that the board is in, or boots into where none is recorded."""
        try:
            return int(self.real(STATUS).read_text(encoding="ascii").strip().removeprefix("pmode:"))
        except FileNotFoundError:
            found = re.search(r"DEFAULT=(\d+)", self.conf())
            assert found is not None, "each conf has a default"
            return int(found[1])

    def keep(self, path: str) -> None:
        """Remember what lies at `path`, for `undo`."""
        real, undo = self.real(path), self.root / FOLDER / _UNDO
        kept: dict[str, Any] = json.loads(undo.read_text(encoding="utf-8")) if undo.exists() else {}
        if path in kept:
            return
        if real.is_symlink():
            kept[path] = {"link": os.readlink(real)}
        else:
            kept[path] = {"text": real.read_text(encoding="utf-8")} if real.exists() else None
        undo.write_text(json.dumps(kept), encoding="utf-8")

    def undo(self) -> None:
        """Put back what `keep` has remembered."""
        undo = self.root / FOLDER / _UNDO
        if not undo.exists():
            return
        for path, kept in json.loads(undo.read_text(encoding="utf-8")).items():
            real = self.real(path)
            with suppress(FileNotFoundError):
                real.unlink()
            if kept is not None and "link" in kept:
                real.symlink_to(kept["link"])
            elif kept is not None:
                real.write_text(kept["text"], encoding="utf-8")
        undo.unlink()

    def use_conf(self, text: str, name: str) -> None:
        """Let /etc/nvpmodel.conf be a link to a file that holds `text`; the stock file stays."""
        for path in (CONF, f"/etc/nvpmodel/{name}"):
            self.keep(path)
        self.real(f"/etc/nvpmodel/{name}").write_text(text, encoding="utf-8")
        self.real(CONF).unlink()
        self.real(CONF).symlink_to(f"nvpmodel/{name}")


def _in_model(text: str, mode_id: int, change: Callable[[list[str]], list[str]]) -> str:
    """The conf with the lines of one POWER_MODEL changed."""
    lines = text.splitlines()
    begin = next(n for n, line in enumerate(lines) if (found := _MODEL.match(line)) and int(found[1]) == mode_id)
    end = next(n for n in range(begin + 1, len(lines)) if lines[n].startswith("<"))
    return "\n".join([*lines[: begin + 1], *change(lines[begin + 1 : end]), *lines[end:]]) + "\n"


def leave_gaps_between_ids(place: Place) -> None:
    """Ids 0, 1, 2 become 0, 3, 4; DEFAULT and the recorded mode follow."""

    def wider(number: str) -> str:
        return str(int(number) + 2 if int(number) > 0 else 0)

    text = re.sub(r"(POWER_MODEL ID=|DEFAULT=)(\d+)", lambda found: found[1] + wider(found[2]), place.conf())
    if place.real(STATUS).exists():
        place.keep(STATUS)
        place.real(STATUS).write_text(f"pmode:{int(wider(str(place.mode_id()))):04d}\n", encoding="ascii")
    place.use_conf(text, "gaps.conf")


def cap_off_table(place: Place) -> None:
    """The mode's GPU cap lies 1 Hz above a clock of the middle of the table."""
    found = sorted(place.real("/sys/class/devfreq").glob("*/available_frequencies"))
    table_hz = sorted(int(word) for word in found[0].read_text(encoding="ascii").split())
    cap_hz = table_hz[2 * len(table_hz) // 3] + 1

    def change(lines: list[str]) -> list[str]:
        return [re.sub(r"^(GPU MAX_FREQ) .*", rf"\1 {cap_hz}", line) for line in lines]

    place.use_conf(_in_model(place.conf(), place.mode_id(), change), "off-table.conf")


def set_unknown_param(place: Place) -> None:
    """A line for a parameter that no section defines."""
    text = _in_model(place.conf(), place.mode_id(), lambda lines: ["GPU_TYPO MAX_FREQ 612000000", *lines])
    place.use_conf(text, "typo.conf")


def use_bigger_boards_conf(place: Place) -> None:
    """A conf that switches on a core which this module has not."""
    core = "CORE_31 /sys/devices/system/cpu/cpu31/online"
    text = re.sub(r"(<\s*PARAM TYPE=FILE NAME=CPU_ONLINE\s*>\n)", rf"\1{core}\n", place.conf())
    text = _in_model(text, place.mode_id(), lambda lines: ["CPU_ONLINE CORE_31 1", *lines])
    place.use_conf(text, "bigger.conf")


def relink(place: Place) -> None:
    """nvpower.sh has made the link anew, to a file that differs by a comment."""
    place.use_conf("# another release's\n" + place.conf(), "relinked.conf")


def lose_status(place: Place) -> None:
    """An image that keeps no /var."""
    place.keep(STATUS)
    place.real(STATUS).unlink(missing_ok=True)


def leave_another_mask(place: Place) -> None:
    """One GPU partition fewer than the mode wants; for a board that shows its mask."""
    kernel = Kernel(str(place.root), "boot")
    for path in sorted({kernel.canonical("/" + str(p.relative_to(place.root))) for p in _masks(place)}):
        mask = int(kernel.load(path))
        off = next(bit for bit in (128, 64, 32, 16, 8, 4, 2, 1) if not mask & bit)
        kernel.store(path, str(mask | off))


def _masks(place: Place) -> list[Path]:
    devices = place.root / "sys/devices"
    return [path for pattern in ("gpu.0", "platform/gpu.0") for path in devices.glob(f"{pattern}/tpc_pg_mask")]


def lock_clocks(place: Place) -> None:
    """As after `sudo jetson_clocks`."""
    program("jetson_clocks", Kernel(str(place.root), "boot"), Console()).run([])


def tear_ledger(place: Place) -> None:
    """Half a line at the end."""
    path = place.state_dir / "ledger.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.write_bytes(b'{"v":1,"seq":0,"t_s":12')


def tear_study(place: Place) -> None:
    """The end of the file was never written."""
    path = place.state_dir / "study.db"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(path.read_bytes()[:-5000] if path.exists() else b"SQLite format 3\0")
