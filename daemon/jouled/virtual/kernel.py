"""How a Jetson's kernel answers reads and writes of its attributes, on a plain file tree (JETSON 3, 6, 10.1).

Used by `VirtualSysfs` and by the virtual programs alike, each in its own process; the tree is all the state that
there is. A kill between two system calls never leaves half a value. Only light imports: the programs are started anew
for each call.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import cached_property

from jouled.virtual.faults import FOLDER, Faults, damaged, matches, read_json
from jouled.virtual.layout import L4T36, Layout, layout_at

CPU = "/sys/devices/system/cpu"
DEBUG = "/sys/kernel/debug"
EMC = f"{DEBUG}/bpmp/debug/clk/emc"
EMC_CAP, GPU, DEVFREQ = L4T36.emc_cap, L4T36.gpu, L4T36.devfreq  # where a board of L4T 36 has them
_KEPT = ("/sys/", "/var/lib/nvpmodel/")


def refuse(number: int, path: str) -> OSError:
    """The kernel's answer `number` for `path`."""
    return OSError(number, os.strerror(number), path)


def cpu_list(cpus: Sequence[int]) -> str:
    """[0, 1, 2, 5] as the kernel writes it: 0-2,5."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def nearest(table: Sequence[int], value: int) -> int:
    """The table's value closest to `value`, the lower one of two."""
    return min(table, key=lambda entry: (abs(entry - value), entry))


def at_most(table: Sequence[int], value: int) -> int:
    """The table's largest value that is not above `value`, or its lowest."""
    return max((entry for entry in table if entry <= value), default=min(table))


def at_least(table: Sequence[int], value: int) -> int:
    """The table's smallest value that is not below `value`, or its highest."""
    return min((entry for entry in table if entry >= value), default=max(table))


def overwrite(real: str, text: str) -> None:
    """Make `text` a file's whole content by one write(2): a kill before the cut leaves only empty lines behind it.

    (Renaming a new file over the old one costs 3 ms of waiting on ext4, this 0.02 ms.)
    """
    descriptor = os.open(real, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        data = text.encode() + b"\n"
        os.write(descriptor, data.ljust(os.fstat(descriptor).st_size, b"\n"))
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


def hang() -> None:
    """Never come back."""
    while True:
        time.sleep(60.0)


class Kernel:
    """The attributes below `root`. `who` is writing: nvpmodel, jetson_clocks, sysfs or boot (which no fault meets)."""

    def __init__(self, root: str, who: str) -> None:
        self.root = os.path.realpath(root)
        self.who = who
        self.writes = 0
        self.faults = Faults(self.root)
        self.on_hang: Callable[[], None] = hang
        self._handlers: tuple[tuple[re.Pattern[str], Callable[[str, str, re.Match[str]], None]], ...] = (
            (re.compile(rf"{CPU}/cpu(\d+)/online"), self._write_online),
            (re.compile(rf"({CPU}/cpufreq/policy\d+)/scaling_(min|max)_freq"), self._write_cpu_limit),
            (re.compile(rf"({CPU}/cpufreq/policy\d+)/scaling_governor"), self._write_governor),
            (re.compile(rf"{CPU}/cpu\d+/cpuidle/state\d+/disable"), self._write_switch),
            (re.compile(r"(/sys/devices/.*/devfreq/[^/]+)/(min|max)_freq"), self._write_gpu_limit),
            (re.compile(r"(/sys/devices/.*/devfreq/[^/]+)/governor"), self._write_governor),
            (re.compile(r"/sys/devices/.*/(?:tpc|fbp)_pg_mask"), self._write_mask),
            (re.compile(r"/sys/devices/.*/power/control"), self._write_power_control),
            (re.compile(r"/sys/devices/.*/railgate_enable"), self._write_switch),
            (re.compile(r"/sys/kernel/nvpmodel_(?:clk_cap/emc|emc_cap/emc_iso_cap)"), self._write_emc_cap),
            (re.compile(r"/sys/devices/.*/clk_cap/\w+"), self._write_engine_cap),
            (re.compile(rf"{EMC}/(mrq_rate_locked|state)"), self._write_switch),
            (re.compile(rf"{DEBUG}/bpmp/debug/bwmgr/bwmgr_halt"), self._write_switch),
            (re.compile(rf"{EMC}/rate"), self._write_emc_rate),
            (re.compile(r"/sys/devices/.*/hwmon\d+/(samples|update_interval|in\d_enable|pwm\d)"), self._write_number),
        )

    @cached_property
    def layout(self) -> Layout:
        """Where this board's kernel has its attributes."""
        return layout_at(os.path.join(self.root, FOLDER))

    # --- paths and plain files

    def canonical(self, path: str) -> str:
        """`path` with every link followed, still a path of the board."""
        real = os.path.realpath(self.root + path)
        return real[len(self.root) :] if real.startswith(self.root + "/") else path

    def load(self, path: str) -> str:
        """The file's text as it lies there, no fault and no refusal."""
        with open(self.root + path, encoding="utf-8") as file:
            return file.read().strip()

    def store(self, path: str, text: str) -> None:
        """Replace the file's text, no fault and no refusal."""
        overwrite(self.root + path, text)

    def _table(self, path: str) -> list[int]:
        return [int(word) for word in self.load(path).split()]

    # --- the two calls

    def is_root(self) -> bool:
        """Is whoever calls allowed to write?"""
        return self.who == "boot" or self.faults.get("user") is None

    def read(self, path: str) -> bytes:
        """What read(2) gives. Raises OSError as the kernel would."""
        faults = self.faults.all() if self.who != "boot" else {}
        if faults:
            if self.faults.hides(path):
                raise refuse(errno.ENOENT, path)
            for pattern, name in faults.get("read_errors", {}).items():
                if matches(path, pattern):
                    raise refuse(getattr(errno, name), path)
            for pattern, text in faults.get("values", {}).items():
                if matches(path, pattern):
                    return f"{text}\n".encode()
        if path.startswith(DEBUG) and not self.is_root():
            raise refuse(errno.EACCES, path)
        self._refuse_read(path)
        with open(self.root + path, "rb") as file:
            return file.read()

    def _refuse_read(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        if name == "temp" and "thermal_zone" in folder and self.load(f"{folder}/type").lower().startswith("cv"):
            raise refuse(errno.EAGAIN, path)  # the unit is powered off
        found = re.fullmatch(r"(?:in|curr)([123])_input", name)
        if not found or "/hwmon" not in folder:
            return
        switch = f"{folder}/in{found[1]}_enable"
        if os.path.exists(self.root + switch) and self.load(switch) == "0":
            raise refuse(errno.ENODATA, path)

    def write(self, path: str, data: bytes) -> None:
        """What write(2) does. Raises OSError as the kernel would."""
        where = self.canonical(path)
        text = data.decode("ascii", "replace").strip()
        if where.startswith(_KEPT) and not self.is_root():
            raise refuse(errno.EACCES, path)
        if self.who != "boot":
            self._meet_faults(where)
        self.writes += 1
        if self.who == "boot" or not self._is_ignored(where):
            self._answer(where, text)
        with open(os.path.join(self.root, FOLDER, "writes"), "ab") as file:
            file.write(b".")  # its size tells the machine that knobs may have changed

    def meet_hang(self) -> None:
        """Stand still for good where the switches say so; `on_hang` says how."""
        if self.faults.get("hang", {}).get(self.who) == self.writes:
            self.on_hang()

    def _meet_faults(self, where: str) -> None:
        self.meet_hang()
        if self.faults.hides(where):
            raise refuse(errno.ENOENT, where)
        hold = self.faults.get("hold") or {}
        if hold.get("by") == self.who and (
            hold.get("write") == self.writes + 1 or ("path" in hold and matches(where, hold["path"]))
        ):
            self.faults.hold()
        for fault in self.faults.get("write_errors", ()):
            mine = fault.get("by", self.who) == self.who and self.writes >= fault.get("after", 0)
            if mine and matches(where, fault.get("path", "*")):
                raise refuse(getattr(errno, fault["errno"]), where)

    def _is_ignored(self, where: str) -> bool:
        return any(matches(where, pattern) for pattern in self.faults.get("ignore_writes", ()))

    def _answer(self, where: str, text: str) -> None:
        if not os.path.exists(self.root + where):
            raise refuse(errno.ENOENT, where)
        if not where.startswith("/sys/"):
            self.store(where, text)
            return
        for pattern, handler in self._handlers:
            found = pattern.fullmatch(where)
            if found:
                handler(where, text, found)
                return
        raise refuse(errno.EACCES, where)

    # --- numbers

    def _unsigned(self, where: str, text: str) -> int:
        if not text.isdigit():
            raise refuse(errno.EINVAL, where)
        return int(text)

    def _shifted(self, domain: str, table: list[int], value: int) -> int:
        steps = self.faults.get("wrong_rounding", {}).get(domain, 0) if self.who != "boot" else 0
        index = min(max(table.index(value) + steps, 0), len(table) - 1)
        return table[index]

    def _write_number(self, where: str, text: str, _: re.Match[str]) -> None:
        self.store(where, str(self._unsigned(where, text)))

    def _write_switch(self, where: str, text: str, _: re.Match[str]) -> None:
        if text not in ("0", "1"):
            raise refuse(errno.EINVAL, where)
        self.store(where, text)

    # --- CPU

    def _write_cpu_limit(self, where: str, text: str, found: re.Match[str]) -> None:
        table = sorted(self._table(f"{found[1]}/scaling_available_frequencies"))
        asked = self._unsigned(where, text)
        value = at_most(table, asked) if found[2] == "max" else at_least(table, asked)
        value = self._shifted("cpu", table, value)
        self._keep_order(where, found, value, f"{found[1]}/scaling_{{}}_freq")
        self.store(where, str(value))

    def _keep_order(self, where: str, found: re.Match[str], value: int, name: str) -> None:
        low = value if found[2] == "min" else int(self.load(name.format("min")))
        high = value if found[2] == "max" else int(self.load(name.format("max")))
        if low > high:
            raise refuse(errno.EINVAL, where)

    def _write_governor(self, where: str, text: str, found: re.Match[str]) -> None:
        prefix = "scaling_" if "cpufreq" in where else ""
        if text not in self.load(f"{found[1]}/{prefix}available_governors").split():
            raise refuse(errno.EINVAL, where)
        self.store(where, text)

    def _write_online(self, where: str, text: str, found: re.Match[str]) -> None:
        if text not in ("0", "1"):
            raise refuse(errno.EINVAL, where)
        if found[1] == "0" and text == "0":
            raise refuse(errno.EBUSY, where)  # the boot CPU stays
        if self.load(where) != text:
            self.store(where, text)
            self.settle_hotplug()

    def settle_hotplug(self) -> None:
        """Bring the online list, links and policies in line with the cpuN/online files; idempotent."""
        policies: dict[str, int] = read_json(self.root, "cpus.json")
        if "0" not in policies or not all(cpu.isdecimal() and type(policies[cpu]) is int for cpu in policies):
            raise damaged(self.root, "cpus.json", "wanted the policy of each cpu")
        online = [int(cpu) for cpu in policies if self.load(f"{CPU}/cpu{cpu}/online") == "1"]
        self.store(f"{CPU}/online", cpu_list(online))
        self.store(f"{CPU}/offline", cpu_list([int(cpu) for cpu in policies if int(cpu) not in online]))
        for policy in sorted(set(policies.values())):
            self._settle_policy(policy, [cpu for cpu in online if policies[str(cpu)] == policy])
        for cpu, policy in policies.items():
            link = f"{self.root}{CPU}/cpu{cpu}/cpufreq"
            if int(cpu) in online and not os.path.lexists(link):
                os.symlink(f"../cpufreq/policy{policy}", link)
            elif int(cpu) not in online and os.path.lexists(link):
                os.unlink(link)

    def _settle_policy(self, policy: int, online: list[int]) -> None:
        path = f"{CPU}/cpufreq/policy{policy}"
        away = os.path.join(self.root, FOLDER, f"policy{policy}")
        if not online and os.path.isdir(self.root + path):
            os.rename(self.root + path, away)
        elif online and os.path.isdir(away):
            os.rename(away, self.root + path)
            for name in ("min", "max"):  # the cluster comes back as the kernel makes it: without any cap
                self.store(f"{path}/scaling_{name}_freq", self.load(f"{path}/cpuinfo_{name}_freq"))
            self.store(f"{path}/scaling_governor", "schedutil")
        if online:
            self.store(f"{path}/affected_cpus", " ".join(str(cpu) for cpu in online))

    # --- GPU

    def _write_gpu_limit(self, where: str, text: str, found: re.Match[str]) -> None:
        table = sorted(self._table(f"{found[1]}/available_frequencies"))
        value = self._shifted("gpu", table, nearest(table, self._unsigned(where, text)))
        self._keep_order(where, found, value, f"{found[1]}/{{}}_freq")
        self.store(where, str(value))

    def _write_power_control(self, where: str, text: str, _: re.Match[str]) -> None:
        if text not in ("on", "auto"):
            raise refuse(errno.EINVAL, where)
        self.store(where, text)

    def gpu_was_used(self) -> bool:
        """Has the GPU's golden context been built since boot?"""
        return os.path.exists(os.path.join(self.root, FOLDER, "gpu_used"))

    def _write_mask(self, where: str, text: str, _: re.Match[str]) -> None:
        value = self._unsigned(where, text)
        if value > 255:
            raise refuse(errno.EINVAL, where)
        if value != int(self.load(where)) and self.gpu_was_used():
            raise refuse(errno.EBUSY, where)
        self.store(where, str(value))

    # --- memory and engines

    def _emc_table(self) -> list[int]:
        return sorted(1000 * khz for khz in self._table(f"{EMC}/possible_rates"))

    def emc_cap_hz(self) -> int:
        """The cap in force, the table's top where there is none."""
        cap_hz = int(self.load(self.layout.emc_cap))
        return max(self._emc_table()) if cap_hz == self.layout.emc_no_cap else cap_hz

    def _write_emc_cap(self, where: str, text: str, _: re.Match[str]) -> None:
        table, asked = self._emc_table(), self._unsigned(where, text)
        if asked == self.layout.emc_no_cap:
            self.store(where, text)
            return
        cap = self._shifted("emc", table, at_most(table, asked))
        self.store(where, str(cap))
        if int(self.load(f"{EMC}/rate")) > cap:
            self.store(f"{EMC}/rate", str(cap))

    def _write_emc_rate(self, where: str, text: str, _: re.Match[str]) -> None:
        asked = self._unsigned(where, text)
        self.store(where, str(at_most(self._emc_table(), min(asked, self.emc_cap_hz()))))

    def _write_engine_cap(self, where: str, text: str, _: re.Match[str]) -> None:
        top: int = read_json(self.root, "engines.json")[where]
        self.store(where, str(min(self._unsigned(where, text), top)))
