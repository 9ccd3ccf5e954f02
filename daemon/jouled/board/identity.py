"""Which Jetson this is, and the file of facts about it that cannot be read from the board."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any

from jouled.board.sysfs import Sysfs
from jouled.errors import AbsentError, ForbiddenError, NotSupportedError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MODEL_PATH = "/proc/device-tree/model"
COMPATIBLE_PATH = "/proc/device-tree/compatible"
RELEASE_PATH = "/etc/nv_tegra_release"

SUPER = "-super"
TOPICS = ("rails", "modes", "cpu_table", "gpu_table", "emc_table", "thermal_zones", "paths")
LEVELS = ("seen", "inferred", "assumed", "unknown")

_NO_JETSON_HINT = (
    "try it on a virtual board: jouled tune --virtual agx-orin-64gb --latency-bound-ratio 1.2; or, "
    "beside an NVIDIA GPU, compare engines: jouled tune --fixed-mode --engine PLAN --latency-bound-ratio 1.2"
)
_PART = re.compile(r"p\d{4}-\d{4}")
_RELEASE = re.compile(r"^#\s*R(\d+)\s*\(release\),\s*REVISION:\s*([\d.]+)")


@dataclass(frozen=True, slots=True)
class Identity:
    """`module` and `carrier` are NVIDIA part numbers such as p3701-0005; `l4t` e.g. 36.4.3, None where not told."""

    model: str
    compatible: tuple[str, ...]
    module: str
    carrier: str
    soc: str
    l4t: str | None

    @property
    def l4t_major(self) -> int | None:
        """36 of 36.4.3."""
        return None if self.l4t is None else int(self.l4t.partition(".")[0])

    @property
    def keys(self) -> tuple[str, ...]:
        """What a board file may know the module by; with the Super configuration first its name with `-super`."""
        is_super = any(entry.endswith(f"{self.module}{SUPER}") for entry in self.compatible)
        return (f"{self.module}{SUPER}", self.module) if is_super else (self.module,)


@dataclass(frozen=True, slots=True)
class BoardFile:
    """Facts of one kind of board. `total_rails` sum up to `coverage`; `emc_table_hz` is for who may not read it.

    `refusal`: why none of its knobs is turned, "" where they are. `confidence`: how well each of TOPICS is known, one
    of LEVELS. What is only assumed is for show and for virtual boards: tables are read from the board.
    """

    name: str
    module: str
    soc: str
    compatible: tuple[str, ...]
    refusal: str
    total_rails: tuple[str, ...]
    coverage: str
    rail_averaging_s: float
    emc_table_hz: tuple[int, ...]
    cooling_ignored: tuple[str, ...]
    confidence: Mapping[str, str]


def _strings(raw: bytes) -> tuple[str, ...]:
    """Device-tree strings end in NUL."""
    return tuple(part for part in raw.decode("utf-8", "replace").split("\0") if part)


def _parts(compatible: tuple[str, ...]) -> tuple[str, str]:
    """(module, carrier): `nvidia,p3737-0000+p3701-0005` names the carrier first, then the module."""
    for entry in compatible:
        found = _PART.findall(entry)
        if len(found) >= 2:
            return found[-1], found[0]
    alone = [part for entry in compatible for part in _PART.findall(entry)]
    return (alone[0] if alone else "unknown"), "unknown"


def _l4t(sysfs: Sysfs) -> str | None:
    try:
        first = sysfs.read(RELEASE_PATH).splitlines()[:1]
    except (AbsentError, ForbiddenError):
        return None
    match = _RELEASE.match(first[0]) if first else None
    return f"{match[1]}.{match[2]}" if match else None


def read_identity(sysfs: Sysfs) -> Identity:
    """Who the device tree says that this is. Raises NotSupportedError on anything but a Tegra."""
    try:
        compatible = _strings(sysfs.read_raw(COMPATIBLE_PATH))
    except (AbsentError, ForbiddenError) as error:
        raise NotSupportedError(f"this machine is no Jetson: {error}", hint=_NO_JETSON_HINT) from error
    socs = [entry.partition(",")[2] for entry in compatible if re.match(r"nvidia,tegra\d+$", entry)]
    if not socs:
        held = ", ".join(compatible) or "nothing"
        text = f"this machine is no Jetson: {COMPATIBLE_PATH} holds {held}, no nvidia,tegra*"
        raise NotSupportedError(text, hint=_NO_JETSON_HINT)
    try:
        model = " ".join(_strings(sysfs.read_raw(MODEL_PATH)))
    except AbsentError:
        model = compatible[0]
    module, carrier = _parts(compatible)
    return Identity(model, compatible, module, carrier, socs[0], _l4t(sysfs))


_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "float": (int, float)}


def _field(data: dict[str, Any], name: str, kind: str, where: str) -> Any:
    value = data[name]
    if kind.startswith("tuple"):
        item: type = int if "int" in kind else str
        if isinstance(value, list) and all(type(entry) is item for entry in value):
            return tuple(value)
    elif type(value) in _KINDS[kind]:
        return float(value) if kind == "float" else value
    raise NotSupportedError(f"{where}: {name}: wanted {kind}, got {value!r}")


def _confidence(data: dict[str, Any], where: str) -> Mapping[str, str]:
    told = data["confidence"]
    if not isinstance(told, dict) or tuple(told) != TOPICS or not set(map(str, told.values())) <= set(LEVELS):
        raise NotSupportedError(
            f"{where}: confidence: wanted {', '.join(TOPICS)}, each {' or '.join(LEVELS)}; got {told!r}"
        )
    if data["emc_table_hz"] and told["emc_table"] not in LEVELS[:2]:
        raise NotSupportedError(f"{where}: emc_table_hz: what is {told['emc_table']} must not be used on a real board")
    return told


def parse_board_file(text: str, *, where: str) -> BoardFile:
    """Read one board file strictly. Raises NotSupportedError naming the file and the key."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotSupportedError(f"{where}: {error}") from error
    kinds = {field.name: str(field.type) for field in fields(BoardFile)}
    for name in sorted(kinds.keys() ^ data.keys()):
        raise NotSupportedError(f"{where}: {name}: {'missing' if name in kinds else 'no such key'}")
    del kinds["confidence"]
    plain = {name: _field(data, name, kind, where) for name, kind in kinds.items()}
    return BoardFile(confidence=_confidence(data, where), **plain)


def board_files() -> tuple[BoardFile, ...]:
    """All boards that jouled knows."""
    folder = resources.files("jouled.board") / "boards"
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda entry: entry.name)
    return tuple(parse_board_file(entry.read_text("utf-8"), where=f"boards/{entry.name}") for entry in found)


def find_board_file(identity: Identity) -> BoardFile | None:
    """The file whose part numbers are in the device tree; None: no board that jouled knows."""
    known = {part: board for board in board_files() for part in board.compatible}
    return next((known[key] for key in identity.keys if key in known), None)
