"""nvpmodel: its configuration files, its status file and its answer to a query.

Grammar (JETSON 1.2): sections `< PARAM TYPE=T NAME=N >` with `ARG path` lines, `< POWER_MODEL ID=n NAME=N >` with
`PARAM ARG VALUE` lines that the tool applies from top to bottom, and last `< PM_CONFIG DEFAULT=n >`. `#` starts a
comment. NVIDIA's own files hold `<PARAM …>` without the space, and ids with gaps: ids are keys, never list indices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from jouled.board.knobs import STATUS_PATH
from jouled.board.process import Processes
from jouled.board.sysfs import Sysfs
from jouled.errors import AbsentError, BrokenError

TOOL = "nvpmodel"
CONF_PATH = "/etc/nvpmodel.conf"
QUERY_TIMEOUT_S = 10.0
KNEXT = "_KNEXT"

_HEADER = re.compile(r"^<\s*(?P<kind>\w+)\s*(?P<attributes>[^<>]*?)\s*>$")
_ATTRIBUTE = re.compile(r"^(?P<key>[A-Z_]+)=(?P<value>\S+)$")
_TYPES = ("FILE", "CLOCK", "HWMON")


@dataclass(frozen=True, slots=True)
class Param:
    """What a power model may set: `args` are (argument, path) pairs as written, `_KNEXT` ones included.

    A HWMON's path is two columns, `dir attribute`.
    """

    kind: str
    name: str
    args: tuple[tuple[str, str], ...]

    def path(self, arg: str) -> str | None:
        """The path written for exactly `arg`, or None."""
        return dict(self.args).get(arg)

    def paths(self, arg: str) -> tuple[str, ...]:
        """Where `arg` may be: the newer kernel's path first, then the older one's."""
        found = (self.path(arg + KNEXT), self.path(arg))
        return tuple(path for path in found if path is not None)


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of a power model. A CLOCK's value counts kHz on the CPU and Hz elsewhere; -1 is no cap."""

    param: str
    arg: str
    value: str


@dataclass(frozen=True, slots=True)
class PowerModel:
    """One nvpmodel mode; `settings` in the order in which they are applied."""

    id: int
    name: str
    settings: tuple[Setting, ...]

    def value(self, param: str, arg: str) -> str | None:
        """The value that stands in the end: of several lines the last."""
        found = [line.value for line in self.settings if (line.param, line.arg) == (param, arg)]
        return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class NvpmodelConf:
    """One configuration file; `default` is an id, of a mode that may be missing (the tool fails at boot only)."""

    params: tuple[Param, ...]
    models: tuple[PowerModel, ...]
    default: int

    def param(self, name: str) -> Param | None:
        """The PARAM of that name, or None."""
        return next((param for param in self.params if param.name == name), None)

    def by_id(self, number: int) -> PowerModel | None:
        """The mode of that id, or None."""
        return next((model for model in self.models if model.id == number), None)

    def by_name(self, name: str) -> PowerModel | None:
        """The mode of that name, or None."""
        return next((model for model in self.models if model.name == name), None)


class _Parser:
    """One pass over the lines; `where` names the file in messages."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.params: dict[str, Param] = {}
        self.models: dict[int, PowerModel] = {}
        self.default: int | None = None
        self._number = 0
        self._section: Param | PowerModel | str = ""  # a text: the name of a section whose lines are not ours

    def fail(self, wanted: str, got: str) -> BrokenError:
        return BrokenError(
            f"{self.where}, line {self._number}: wanted {wanted}, got {got[:80]!r}",
            path=self.where,
            hint="compare the file with the one of package nvidia-l4t-nvpmodel",
        )

    def feed(self, text: str) -> None:
        for self._number, raw in enumerate(text.splitlines(), start=1):
            line = raw.partition("#")[0].strip()
            if not line:
                continue
            if line.startswith("<"):
                self._header(line)
            else:
                self._line(line)

    def _header(self, line: str) -> None:
        match = _HEADER.match(line)
        if match is None:
            raise self.fail("a section header `< KIND KEY=VALUE … >`", line)
        attributes = self._attributes(match["attributes"], line)
        if match["kind"] == "PARAM":
            self._param(attributes, line)
        elif match["kind"] == "POWER_MODEL":
            self._model(attributes, line)
        elif match["kind"] == "PM_CONFIG":
            self._config(attributes, line)
        elif match["kind"] == "FAN_CONFIG":  # older releases; nothing of it concerns clocks
            self._section = "FAN_CONFIG"
        else:
            raise self.fail("PARAM, POWER_MODEL or PM_CONFIG", line)

    def _attributes(self, text: str, line: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for word in text.split():
            match = _ATTRIBUTE.match(word)
            if match is None or match["key"] in found:
                raise self.fail("KEY=VALUE attributes, each once", line)
            found[match["key"]] = match["value"]
        return found

    def _want_keys(self, attributes: dict[str, str], keys: tuple[str, ...], line: str) -> None:
        if tuple(sorted(attributes)) != tuple(sorted(keys)):
            raise self.fail("exactly " + " and ".join(f"{key}=" for key in keys), line)

    def _integer(self, text: str, line: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text):
            raise self.fail("an id of decimal digits", line)
        return int(text)

    def _param(self, attributes: dict[str, str], line: str) -> None:
        self._want_keys(attributes, ("TYPE", "NAME"), line)
        if attributes["TYPE"] not in _TYPES:
            raise self.fail("TYPE=" + "|".join(_TYPES), line)
        if attributes["NAME"] in self.params:
            raise self.fail("each PARAM once", line)
        self._section = Param(attributes["TYPE"], attributes["NAME"], ())
        self.params[self._section.name] = self._section

    def _model(self, attributes: dict[str, str], line: str) -> None:
        self._want_keys(attributes, ("ID", "NAME"), line)
        model = PowerModel(self._integer(attributes["ID"], line), attributes["NAME"], ())
        if model.id in self.models or any(other.name == model.name for other in self.models.values()):
            raise self.fail("each POWER_MODEL id and name once", line)
        self._section = model
        self.models[model.id] = model

    def _config(self, attributes: dict[str, str], line: str) -> None:
        self._want_keys(attributes, ("DEFAULT",), line)
        if self.default is not None:
            raise self.fail("one PM_CONFIG", line)
        self.default = self._integer(attributes["DEFAULT"], line)
        self._section = "PM_CONFIG"

    def _line(self, line: str) -> None:
        section = self._section
        if isinstance(section, Param):
            self._section = replace(section, args=(*section.args, self._argument(section, line)))
            self.params[section.name] = self._section
        elif isinstance(section, PowerModel):
            self._section = replace(section, settings=(*section.settings, self._setting(line)))
            self.models[section.id] = self._section
        elif section != "FAN_CONFIG":
            raise self.fail("a section header" if not section else f"nothing in {section}", line)

    def _argument(self, section: Param, line: str) -> tuple[str, str]:
        words = line.split()
        wanted = 3 if section.kind == "HWMON" else 2
        if len(words) != wanted or not words[1].startswith("/"):
            columns = "`ARG /dir attribute`" if wanted == 3 else "`ARG /path`"
            raise self.fail(f"{columns} in PARAM {section.name}", line)
        if section.path(words[0]) is not None:
            raise self.fail(f"each argument of PARAM {section.name} once", line)
        return words[0], " ".join(words[1:])

    def _setting(self, line: str) -> Setting:
        words = line.split()
        if len(words) != 3:
            raise self.fail("`PARAM ARG VALUE`", line)
        param = self.params.get(words[0])
        if param is None:
            raise self.fail("the name of a PARAM section above", words[0])
        if param.path(words[1]) is None and param.path(words[1] + KNEXT) is None:
            raise self.fail(f"an argument of PARAM {param.name}", words[1])
        if param.kind != "FILE" and not re.fullmatch(r"-?\d+", words[2]):
            raise self.fail(f"an integer for {param.name} {words[1]}", words[2])
        return Setting(words[0], words[1], words[2])


def parse_conf(text: str, *, where: str) -> NvpmodelConf:
    """Read a configuration file. Raises BrokenError with `where`, the line, what was wanted and what stood there."""
    parser = _Parser(where)
    parser.feed(text)
    if not parser.models:
        raise BrokenError(f"{where}: wanted at least one POWER_MODEL section, got none", path=where)
    if parser.default is None:
        raise BrokenError(f"{where}: wanted a `< PM_CONFIG DEFAULT=n >` section, got none", path=where)
    return NvpmodelConf(tuple(parser.params.values()), tuple(parser.models.values()), parser.default)


def write_conf(conf: NvpmodelConf) -> str:
    """The file's text, headers spaced as nvpmodel's strictest releases want them."""
    lines: list[str] = []
    for param in conf.params:
        lines.append(f"< PARAM TYPE={param.kind} NAME={param.name} >")
        lines += [f"{arg} {path}" for arg, path in param.args]
        lines.append("")
    for model in conf.models:
        lines.append(f"< POWER_MODEL ID={model.id} NAME={model.name} >")
        lines += [f"{line.param} {line.arg} {line.value}" for line in model.settings]
        lines.append("")
    lines.append(f"< PM_CONFIG DEFAULT={conf.default} >")
    return "\n".join(lines) + "\n"


def parse_query(stdout: str) -> tuple[str, int] | None:
    """(name, id) from what `nvpmodel -q` printed; None where no mode was set yet.

    Warnings may stand before, between and after, and the exit code says nothing (JETSON 1.6).
    """
    lines = [line.strip() for line in stdout.splitlines() if not line.startswith("NVPM")]
    for index, line in enumerate(lines):
        if line.startswith("NV Power Mode:"):
            name = line.partition(":")[2].strip()
            number = next((text for text in lines[index + 1 :] if re.fullmatch(r"\d+", text)), None)
            return (name, int(number)) if name and number is not None else None
    return None


def query(processes: Processes) -> tuple[str, int] | None:
    """(name, id) of the mode that the tool believes in, or None. Raises ToolAbsentError, StuckError."""
    return parse_query(processes.run([TOOL, "-q"], timeout_s=QUERY_TIMEOUT_S).stdout)


def read_status(sysfs: Sysfs) -> int | None:
    """The id in nvpmodel's status file; None where there is none yet. Raises ForbiddenError, BrokenError."""
    try:
        text = sysfs.read(STATUS_PATH)
    except AbsentError:
        return None
    match = re.fullmatch(r"pmode:(\d{1,9})(?:\s.*)?", text)  # older releases add the fan's mode
    if match is None:
        raise BrokenError(f"{STATUS_PATH}: wanted `pmode:NNNN`, got {text[:60]!r}", path=STATUS_PATH)
    return int(match[1])
