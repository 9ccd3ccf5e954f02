"""NVIDIA's nvpmodel as it behaves (JETSON 1.5 to 1.9), on a virtual kernel. Only light imports: it runs as a child."""

from __future__ import annotations

import errno
import os
from typing import Any

from jouled.virtual.console import Console
from jouled.virtual.kernel import Kernel

CONF = "/etc/nvpmodel.conf"
STATE_FOLDER = "/var/lib/nvpmodel"
FAILED = 255
BAD_INPUT = 234
RUN_S = 0.12
_FLAGS = {"-q": "query", "--query": "query", "-p": "parse", "--parse": "parse", "--verbose": "verbose"}
_FLAGS |= {"--boot": "boot", "--force": "force", "-o": "os", "--os": "os", "-h": "help", "--help": "help"}
_VALUES = {"-m": "mode", "--mode": "mode", "-f": "conf", "--conf": "conf", "-u": "udata", "--udata": "udata"}
_VALUES |= {"-w": "wait", "--wait": "wait"}
_MASKS = ("TPC_POWER_GATING", "FBP_POWER_GATING")
_USAGE = """Usage: nvpmodel [options]
 -h, --help            print this text
     --verbose         say more
 -q, --query           print the current power mode
 -p, --parse           parse the configuration and stop
 -u, --udata <path>    use another state file
 -w, --wait <seconds>  wait first
     --boot            apply the mode of the state file, or the default
 -m, --mode <id>       set a power mode
 -f, --conf <file>     use another configuration
     --force           reboot without asking where a mode needs it
"""


class Conf:
    """A parsed nvpmodel.conf.

    `params[name] = (type, {argument: path})`, `models[id] = (name, [(param, argument, value)])`.
    """

    def __init__(self, text: str) -> None:
        self.params: dict[str, tuple[str, dict[str, str]]] = {}
        self.models: dict[int, tuple[str, list[tuple[str, str, str]]]] = {}
        self.default: int | None = None
        self._lines: list[tuple[str, str, str]] = []
        self._paths: dict[str, str] = {}
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.partition("#")[0].strip()
            if line.startswith("<"):
                self._header(number, line)
            elif line:
                self._line(number, line.split())

    def _header(self, number: int, line: str) -> None:
        kind, *pairs = line.strip("<> ").split()
        fields = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        self._lines, self._paths = [], {}
        if kind == "PARAM":
            self.params[fields["NAME"]] = (fields["TYPE"], self._paths)
        elif kind == "POWER_MODEL":
            self.models[int(fields["ID"])] = (fields["NAME"], self._lines)
        elif kind == "PM_CONFIG":
            self.default = int(fields["DEFAULT"])
        else:
            raise ValueError(f"line {number}: unknown section {kind}")

    def _line(self, number: int, words: list[str]) -> None:
        if len(words) == 2:
            self._paths[words[0]] = words[1]
        elif len(words) == 3:
            self._lines.append((words[0], words[1], words[2]))
        else:
            raise ValueError(f"line {number}: {' '.join(words)}")


class Nvpmodel:
    """One start of the tool. `took_s` is how long it ran (simulated), `reboots`: it rebooted the board at its end."""

    def __init__(self, kernel: Kernel, console: Console | None = None) -> None:
        self.kernel = kernel
        self.console = console or Console()
        self.took_s = RUN_S
        self.reboots = False
        self._options: dict[str, Any] = {}

    # --- small things

    def _error(self, text: str) -> None:
        self.console.say(f"NVPM ERROR: {text}", error=not self.kernel.faults.get("errors_to_stdout"))

    def _warn(self, text: str) -> None:
        self.console.say(f"NVPM WARN: {text}")

    def _verbose(self, text: str) -> None:
        self.console.say(f"NVPM VERB: {text}")

    def _exists(self, path: str) -> bool:
        return os.path.exists(self.kernel.root + path)

    @property
    def _state_path(self) -> str:
        return str(self._options.get("udata") or f"{STATE_FOLDER}/status")

    @property
    def _conf_path(self) -> str:
        return str(self._options.get("conf") or CONF)

    def _recorded(self) -> int | None:
        try:
            return int(self.kernel.load(self._state_path).removeprefix("pmode:"))
        except (FileNotFoundError, ValueError):
            return None

    def _record(self, mode: int) -> None:
        texts = {self._state_path: f"pmode:{mode:04d}", f"{STATE_FOLDER}/conf_file_path": self._conf_path}
        for path, text in texts.items():
            if not self._exists(path):
                self.kernel.store(path, "")
            self.kernel.write(path, text.encode())

    # --- command line

    def run(self, arguments: list[str]) -> int:
        """Do what the command line says; the exit code."""
        if not self._parse_arguments(arguments) or "help" in self._options or not arguments:
            self.console.say(_USAGE, end="")
            return 0 if "help" in self._options else FAILED
        self.took_s += float(self._options.get("wait", 0)) + self.kernel.faults.get("slow_s", {}).get("nvpmodel", 0.0)
        self.kernel.meet_hang()
        try:
            conf = Conf(self.kernel.load(self._conf_path))
        except (OSError, ValueError, KeyError) as error:
            self._error(f"failed to parse {self._conf_path}: {error}")
            return FAILED
        if "parse" in self._options:
            return self._print_conf(conf)
        if "query" in self._options:
            return self._query(conf)
        return self._set(conf, self._wanted(conf))

    def _parse_arguments(self, arguments: list[str]) -> bool:
        words = iter(arguments)
        for word in words:
            if word in _FLAGS:
                self._options[_FLAGS[word]] = True
            elif word in _VALUES:
                self._options[_VALUES[word]] = next(words, None)
            else:
                return False
        mode = self._options.get("mode", "0")
        return None not in self._options.values() and str(mode).isdigit()

    def _wanted(self, conf: Conf) -> int | None:
        if "mode" in self._options:
            return int(self._options["mode"])
        recorded = None if self.kernel.faults.get("status_default") else self._recorded()
        return conf.default if recorded is None else recorded

    # --- query and parse

    def _query(self, conf: Conf) -> int:
        if self.kernel.faults.get("fan_warning"):
            self._warn("fan mode is not set!")
        mode = self._recorded()
        if mode in conf.models and mode is not None:
            lead = "NVPM VERB: Current mode: " if "verbose" in self._options else ""
            if lead:
                self._verbose(f"Config file: {self._conf_path}")
                self._verbose(f"parsing done for {self._conf_path}")
            self.console.say(f"{lead}NV Power Mode: {conf.models[mode][0]}\n{mode}")
            if lead:
                self._print_values(conf, mode)
        if not self.kernel.is_root():
            self._error(f"Error opening {self._path(conf, 'EMC', 'MAX_FREQ')}: {errno.EACCES}")
        return 0

    def _print_values(self, conf: Conf, mode: int) -> None:
        for param, argument, value in conf.models[mode][1]:
            if param in conf.params:
                path = self._path(conf, param, argument)
                real = self.kernel.load(path) if self._exists(path) else ""
                wanted = self.kernel.layout.uncapped if value == "-1" else value
                self._verbose(f"PARAM {param}: ARG {argument}: PATH {path}: REAL_VAL: {real} CONF_VAL: {wanted}")

    def _print_conf(self, conf: Conf) -> int:
        if "verbose" in self._options:
            for name, (kind, paths) in conf.params.items():
                self._verbose(f"PARAM TYPE={kind} NAME={name}")
                for argument, path in paths.items():
                    self._verbose(f"{argument} {path}")
            for number, (name, _) in conf.models.items():
                self._verbose(f"POWER_MODEL: ID={number} NAME={name}")
            default = conf.models.get(conf.default or 0, ("",))[0]
            self._verbose(f"PM_CONFIG: DEFAULT={default}({conf.default})")
        self.console.say(f"succeed to parse file {self._conf_path}.")
        return 0

    # --- set

    def _set(self, conf: Conf, mode: int | None) -> int:
        if mode is None or mode not in conf.models:
            self._error(f"request for bad power mode {mode}")
            return FAILED
        if self.kernel.faults.get("chroot") and self.kernel.who != "boot":
            self.console.say("Running in chroot, ignoring request.")
            self._record(mode)
            return 0
        if self._needs_reboot(conf, mode):
            return self._ask(mode)
        for param, argument, value in conf.models[mode][1]:
            if param in conf.params and not self._apply(conf, param, argument, value):
                self._error("failed to set power mode!")
                self._error("optMask is 2, no request for power mode")
                return FAILED
        self._record(mode)
        return 0

    def _path(self, conf: Conf, param: str, argument: str) -> str:
        paths = conf.params[param][1] if param in conf.params else {}
        newer, older = paths.get(f"{argument}_KNEXT", ""), paths.get(argument, "")
        return newer if newer and (self._exists(newer) or not older) else older

    def _apply(self, conf: Conf, param: str, argument: str, value: str) -> bool:
        path = self._path(conf, param, argument)
        text = str(self.kernel.layout.uncapped) if value == "-1" and conf.params[param][0] == "CLOCK" else value
        try:
            self.kernel.write(path, text.encode())
        except OSError as error:
            verb = f"writing {value} to" if self._exists(path) else "opening"
            self._error(f"Error {verb} {path}: {error.errno}")
            self._error(f"failed to write PARAM {param}: ARG {argument}: PATH {path}: VAL: {value}")
            return False
        return True

    def _needs_reboot(self, conf: Conf, mode: int) -> bool:
        if self.kernel.who == "boot":
            return False
        if self.kernel.faults.get("prompt"):
            return True
        return self.kernel.gpu_was_used() and any(
            self._exists(path) and self.kernel.load(path) != value
            for param, argument, value in conf.models[mode][1]
            if param in _MASKS
            for path in [self._path(conf, param, argument)]
        )

    def _ask(self, mode: int) -> int:
        self._warn("Golden image context is already created")
        self._warn("Reboot required for changing to this power mode: 1")
        if "force" in self._options:
            self.console.say("Automatically rebooting to reflect the mode change")
            return self._reboot(mode)
        self.console.say("NVPM WARN: DO YOU WANT TO REBOOT NOW? enter YES/yes to confirm: ")
        answer = self.console.ask()
        if answer is None:
            self._error("bad input!")
            return BAD_INPUT
        if answer in ("YES", "yes"):
            self._warn("rebooting")
            return self._reboot(mode)
        self._error("optMask is 1, no request for power mode")
        return FAILED

    def _reboot(self, mode: int) -> int:
        self._record(mode)
        self.reboots = True
        return 0
