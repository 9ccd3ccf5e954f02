"""NVIDIA's jetson_clocks script as it behaves (JETSON 2.1 to 2.4, L4T 36), on a virtual kernel. Only light imports."""

from __future__ import annotations

import glob
import os

from jouled.virtual.console import Console
from jouled.virtual.kernel import CPU, DEVFREQ, EMC, EMC_CAP, GPU, Kernel

PROGRAM = "/usr/bin/jetson_clocks"
RUN_S = 0.35
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
        if not any(soc in self.kernel.load("/proc/device-tree/compatible") for soc in _SOCS):
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
        if not self._exists(DEVFREQ):
            self.console.say("Error! GPU frequency scaling not supported!")
            return 1  # the memory's clock stays as it was
        self._write(f"{GPU}/railgate_enable", "0")
        self._write(f"{DEVFREQ}/min_freq", self._read(f"{DEVFREQ}/max_freq"))
        cap_hz, top_hz = int(self._read(EMC_CAP)), int(self._read(f"{EMC}/max_rate"))
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
        return [*paths, f"{DEVFREQ}/min_freq", f"{GPU}/railgate_enable", f"{EMC}/mrq_rate_locked"]

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

    # --- show

    def _show(self) -> int:
        say = self.console.say
        machine = self.kernel.load("/proc/device-tree/model").strip("\0")
        say(f"SOC family:tegra234  Machine:{machine}")
        say(f"Online CPUs: {self.kernel.load(f'{CPU}/online')}")
        for cpu in self._cpus():
            if self._online(cpu):
                say(self._cpu_line(cpu))
        mask = int(self._read(f"{GPU}/tpc_pg_mask"))
        say(f"GPU {self._limits(DEVFREQ, 'min_freq', 'max_freq', 'cur_freq')}")
        say(f"Active GPU TPCs: {8 - mask.bit_count()}")
        locked = self._read(f"{EMC}/mrq_rate_locked")
        cap = min(int(self._read(EMC_CAP)), int(self._read(f"{EMC}/max_rate")))
        rate = self._read(f"{EMC}/rate")
        say(f"EMC MinFreq={self._read(f'{EMC}/min_rate')} MaxFreq={cap} CurrentFreq={rate} FreqOverride={locked}")
        for path in self._glob("/sys/devices/platform/pwm-fan/hwmon/hwmon*/pwm1"):
            say(f"FAN Dynamic Speed Control=nvfancontrol {path.split('/')[-2]}_pwm1={self._read(path)}")
        return 0

    def _limits(self, folder: str, low: str, high: str, now: str) -> str:
        names = (("MinFreq", low), ("MaxFreq", high), ("CurrentFreq", now))
        return " ".join(f"{name}={self._read(f'{folder}/{file}')}" for name, file in names)

    def _cpu_line(self, cpu: str) -> str:
        states = " ".join(
            f"{self._read(f'{folder}/name')}={int(self._read(f'{folder}/disable') == '0')}"
            for folder in self._glob(f"{cpu}/cpuidle/state*")
        )
        name = f"{os.path.basename(cpu)}:".ljust(6)
        governor = self._read(f"{cpu}/cpufreq/scaling_governor")
        limits = self._limits(f"{cpu}/cpufreq", "scaling_min_freq", "scaling_max_freq", "scaling_cur_freq")
        return f"{name} Online=1 Governor={governor} {limits} IdleStates: {states} "
