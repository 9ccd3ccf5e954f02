"""NVIDIA's jetson_clocks script as it behaves (JETSON 2.1 to 2.4), on a virtual kernel. Only light imports."""

from __future__ import annotations

import glob
import os
import re

from jouled.virtual.console import Console
from jouled.virtual.kernel import CPU, EMC, Kernel
from jouled.virtual.layout import THOR

PROGRAM = "/usr/bin/jetson_clocks"
RUN_S = 0.35
_FIRST_WITH_TPCS, _NEWER = 36, 38  # releases of L4T whose --show looks otherwise than the one before
_SOCS = ("tegra186", "tegra194", "tegra210", "tegra234")
_USAGE = f"""Maximize jetson performance by setting static max frequency to CPU, GPU and EMC clocks.
Usage:
{PROGRAM} [options]
  options,
  --help, -h
  --show             display current settings
  --fan              set maximum PWM fan speed
  --store [file]     store current settings to a file (default: ${{HOME}}/l4t_dfs.conf)
  --restore [file]   restore saved settings from a file (default: ${{HOME}}/l4t_dfs.conf)
  run {PROGRAM} without any option to set static max frequency to CPU, GPU and EMC clocks.
"""


class JetsonClocks:
    """One start of the script. `home` is what $HOME is for it; `took_s` is how long it ran (simulated)."""

    def __init__(self, kernel: Kernel, console: Console, *, home: str = "/root") -> None:
        self.kernel = kernel
        self.console = console
        self.took_s = RUN_S
        self.reboots = False
        self._home = home
        self._gpu, self._devfreq = kernel.layout.gpu, kernel.layout.devfreq

    # --- small things

    def _exists(self, path: str) -> bool:
        return os.path.exists(self.kernel.root + path)

    def _glob(self, pattern: str) -> list[str]:
        root = self.kernel.root
        return sorted(path[len(root) :] for path in glob.glob(glob.escape(root) + pattern))

    def _read(self, path: str) -> str:
        return self.kernel.read(path).decode().strip("\0\n ")

    def _write(self, path: str, text: str) -> bool:
        try:
            self.kernel.write(path, text.encode())
        except OSError as error:
            self.console.say(f"{PROGRAM}: line 290: echo: write error: {error.strerror}", error=True)
            return False
        return True

    def _cpus(self) -> list[str]:
        return self._glob(f"{CPU}/cpu[0-9]*")

    def _online(self, cpu: str) -> bool:
        return self.kernel.load(f"{cpu}/online") == "1"

    # --- command line

    def run(self, arguments: list[str]) -> int:
        """Do what the command line says; the exit code."""
        words = [part for argument in arguments for part in argument.split()]  # the script does not quote them
        option, name = (*words, "", "")[:2]
        if option in ("-h", "--help"):
            return self._usage()
        self.took_s += self.kernel.faults.get("slow_s", {}).get("jetson_clocks", 0.0)
        self.kernel.meet_hang()
        if not self.kernel.is_root():
            self.console.say(f"Error: Run this script({PROGRAM}) as a root user")
            return 1
        known = (*_SOCS, "tegra264") if self._release >= _NEWER else _SOCS
        if not any(soc in self.kernel.load("/proc/device-tree/compatible") for soc in known):
            self.console.say("Error! unsupported SOC")
            return 1
        actions = {"": self._lock, "--show": self._show, "--fan": self._fan}
        if option in actions:
            return actions[option]()
        if option == "--store":
            return self._store(name or f"{self._home}/.jetsonclocks_conf.txt")
        if option == "--restore":
            return self._restore(name or f"{self._home}/.jetsonclocks_conf.txt")
        return self._usage()

    def _usage(self) -> int:
        self.console.say(_USAGE, end="")
        return 0

    # --- lock

    def _lock(self) -> int:
        for cpu in self._cpus():
            if self._online(cpu):
                top = self._read(f"{cpu}/cpufreq/scaling_max_freq")
                self._write(f"{cpu}/cpufreq/scaling_min_freq", top)
            for state in self._glob(f"{cpu}/cpuidle/state*/disable"):
                self._write(state, "1")
        if not self._exists(self._devfreq):
            self.console.say("Error! GPU frequency scaling not supported!")
            return 1  # the memory's clock stays as it was
        if self._exists(f"{self._gpu}/railgate_enable"):
            self._write(f"{self._gpu}/railgate_enable", "0")
        self._write(f"{self._devfreq}/min_freq", self._read(f"{self._devfreq}/max_freq"))
        cap_hz, top_hz = int(self._read(self.kernel.layout.emc_cap)), int(self._read(f"{EMC}/max_rate"))
        self._write(f"{EMC}/mrq_rate_locked", "1")
        self._write(f"{EMC}/rate", str(cap_hz if 0 < cap_hz < top_hz else top_hz))
        return 0

    def _fan(self) -> int:
        for path in self._glob("/sys/devices/platform/pwm-fan*/hwmon/hwmon*/pwm[0-9]*"):
            self._write(path, "255")
        return self._lock()

    # --- store and restore

    def _stored_paths(self) -> list[str]:
        paths = [f"{cpu}/online" for cpu in self._cpus()]
        for cpu in self._cpus():
            if self._online(cpu):
                paths.append(f"{cpu}/cpufreq/scaling_min_freq")
            paths += self._glob(f"{cpu}/cpuidle/state*/disable")
        railgate = f"{self._gpu}/railgate_enable"
        paths += [f"{self._devfreq}/min_freq", *([railgate] if self._exists(railgate) else [])]
        return [*paths, f"{EMC}/mrq_rate_locked"]

    def _store(self, name: str) -> int:
        real = self.kernel.root + name
        if os.path.exists(real):
            self.console.say(f"File {name} already exists. Can I overwrite it? Y/N: ", end="")
            if (self.console.ask() or "").upper() != "Y":
                self.console.say(f"Error: file {name} already exists!")
                return 1
        with open(real, "w", encoding="ascii") as file:
            file.writelines(f"{path}:{self._read(path)}\n" for path in self._stored_paths())
        return 0

    def _restore(self, name: str) -> int:
        real = self.kernel.root + name
        if not os.path.exists(real):
            self.console.say(f"Error: {name} file not found !")
            return 1
        self.console.say(f"Restoring system configuration from {name}")
        with open(real, encoding="ascii") as file:
            lines = file.read().splitlines()
        for line in lines:
            path, _, value = line.rpartition(":")
            try:
                self.kernel.write(path, value.encode())
            except OSError:
                if not path.endswith("scaling_min_freq"):
                    self.console.say(f"Error: Failed to restore {path}")
        return 0

    # --- show: another format with every major release

    @property
    def _release(self) -> int:
        """36 of L4T 36.4.3."""
        found = re.match(r"# R(\d+)", self.kernel.load("/etc/nv_tegra_release"))
        return int(found[1]) if found else 36

    def _show(self) -> int:
        say = self.console.say
        release, is_thor = self._release, self.kernel.layout is THOR
        machine = self.kernel.load("/proc/device-tree/model").strip("\0")
        say(f"SOC family:{'tegra264' if is_thor else 'tegra234'}  Machine:{machine}")
        offline = f", Offline CPUs: {self.kernel.load(f'{CPU}/offline')}" if release >= _NEWER else ""
        say(f"Online CPUs: {self.kernel.load(f'{CPU}/online')}{offline}")
        for cpu in self._cpus():
            if self._online(cpu):
                say(self._cpu_line(cpu, release))
        name = self.kernel.layout.devfreq_name if is_thor else "GPU"
        say(f"{name} {self._limits(self._devfreq, 'min_freq', 'max_freq', 'cur_freq')}")
        if is_thor:
            other = f"{self._gpu}/devfreq/gpu-nvd-0"
            say(f"gpu-nvd-0 {self._limits(other, 'min_freq', 'max_freq', 'cur_freq')}")
        elif release == _FIRST_WITH_TPCS:
            say(f"Active GPU TPCs: {8 - int(self._read(f'{self._gpu}/tpc_pg_mask')).bit_count()}")
        say(self._emc_line(has_override=is_thor or release < _NEWER))
        self._show_fan(release)
        return 0

    def _show_fan(self, release: int) -> None:
        word = "control=active" if release < _FIRST_WITH_TPCS else "Control=nvfancontrol"
        for path in self._glob("/sys/devices/platform/pwm-fan/hwmon/hwmon*/pwm1"):
            name = path.split("/")[-2]
            extra = f" {name}_pwm1_enable=1" if release >= _NEWER else ""
            self.console.say(f"FAN Dynamic Speed {word} {name}_pwm1={self._read(path)}{extra}")

    def _emc_line(self, *, has_override: bool) -> str:
        """Newer releases show a lock by MinFreq = MaxFreq, older ones by a word of its own."""
        locked = self._read(f"{EMC}/mrq_rate_locked")
        top = min(self.kernel.emc_cap_hz(), int(self._read(f"{EMC}/max_rate")))
        rate, low = self._read(f"{EMC}/rate"), self._read(f"{EMC}/min_rate")
        if not has_override and locked == "1":
            low, top = rate, int(rate)
        override = f" FreqOverride={locked}" if has_override else ""
        return f"EMC MinFreq={low} MaxFreq={top} CurrentFreq={rate}{override}"

    def _limits(self, folder: str, low: str, high: str, now: str) -> str:
        names = (("MinFreq", low), ("MaxFreq", high), ("CurrentFreq", now))
        return " ".join(f"{name}={self._read(f'{folder}/{file}')}" for name, file in names)

    def _cpu_line(self, cpu: str, release: int) -> str:
        states = " ".join(
            f"{self._read(f'{folder}/name')}={int(self._read(f'{folder}/disable') == '0')}"
            for folder in self._glob(f"{cpu}/cpuidle/state*")
        )
        name = f"{os.path.basename(cpu)}:"
        governor = self._read(f"{cpu}/cpufreq/scaling_governor")
        limits = self._limits(f"{cpu}/cpufreq", "scaling_min_freq", "scaling_max_freq", "scaling_cur_freq")
        online = "" if release >= _NEWER else "Online=1 "
        padded = name if release < _FIRST_WITH_TPCS else name.ljust(6)
        return f"{padded} {online}Governor={governor} {limits} IdleStates: {states} "
