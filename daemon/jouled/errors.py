"""Errors of the machine side.

JouledError                  .hint: what to do, one sentence; .exit_code: of the CLI (ARCHITECTURE section 8)
├── UsageError               exit 2   what was asked for does not fit together
├── ConfigError              exit 2   config.toml or a request is wrong
├── NotPermittedError        exit 6   root is needed
├── UnreachableError         exit 7   the daemon does not answer
├── NotSupportedError        exit 8   this board, L4T or tool cannot be used
│   └── SensorsHiddenError   its sensors cannot be read here: by another way, perhaps
├── BusyError                exit 12  another process holds the board
├── BoardError               exit 10  the board did not do what it was told
│   ├── SysfsError           one file of /sys, /proc, /etc or /var; .path
│   │   ├── AbsentError      there is no such file
│   │   ├── ForbiddenError   there is, and we may not
│   │   └── BrokenError      the kernel answered with another errno, or with what is no such value; .errno
│   ├── ProcessError         a child process; .argv
│   │   ├── ToolAbsentError  no such program on PATH
│   │   └── StuckError       a child that does not even die
│   ├── SensorError          a sensor that gives no value
│   └── MismatchError        knobs differ; .mismatches
│       ├── ApplyError       a power mode is not in force
│       └── RestoreError     a knob could not be put back
├── StateError               exit 1   a file of the state folder is damaged or not writable
└── WorkloadError            exit 9   the runner; .code: what a runner calls it (docs/workloads.md)
    ├── FrameError           bytes of a runner that are no frame of its protocol
    ├── WorkloadDiedError
    ├── WorkloadHungError
    └── WorkloadTooLargeError   it would not fit into the memory; nothing was started
"""

from __future__ import annotations

from collections.abc import Sequence

OUT_OF_MEMORY = "out_of_memory"
"""WorkloadError.code where the memory is too small, as foreseen or as found."""


class JouledError(Exception):
    """Root of the machine side's errors."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(JouledError):
    """What was asked for does not fit together."""

    exit_code = 2


class ConfigError(JouledError):
    """The configuration or a request is wrong."""

    exit_code = 2


class NotPermittedError(JouledError):
    """Root is needed for this."""

    exit_code = 6


class UnreachableError(JouledError):
    """The daemon does not answer on its socket."""

    exit_code = 7


class NotSupportedError(JouledError):
    """This board, L4T or tool cannot be used."""

    exit_code = 8


class SensorsHiddenError(NotSupportedError):
    """The board's sensors cannot be read here."""


class BusyError(JouledError):
    """Another process holds the board."""

    exit_code = 12


class BoardError(JouledError):
    """The board did not do what it was told."""

    exit_code = 10


class SysfsError(BoardError):
    """One file of the board."""

    def __init__(self, message: str, *, path: str, errno: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.errno = errno


class AbsentError(SysfsError):
    """There is no such file (or its device is gone)."""


class ForbiddenError(SysfsError):
    """The file is there and this process may not use it so."""


class BrokenError(SysfsError):
    """The kernel refused, or the text is no such value."""


class ProcessError(BoardError):
    """A child process did not do its work."""

    def __init__(self, message: str, *, argv: Sequence[str], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.argv = tuple(argv)


class ToolAbsentError(ProcessError):
    """No such program on PATH."""


class StuckError(ProcessError):
    """A child that does not even die: nobody may write a knob beside it."""


class SensorError(BoardError):
    """A sensor gives no value now."""


class MismatchError(BoardError):
    """Knobs differ from what they should be; `mismatches` holds one text a knob."""

    def __init__(self, message: str, *, mismatches: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.mismatches = tuple(mismatches)


class ApplyError(MismatchError):
    """A power mode is not in force; `code` is the reason's code (prompt, chroot, mask_differs, …)."""

    def __init__(
        self, message: str, *, mismatches: Sequence[str] = (), hint: str = "", code: str = "apply_failed"
    ) -> None:
        super().__init__(message, mismatches=mismatches, hint=hint)
        self.code = code


class RestoreError(MismatchError):
    """A knob could not be put back."""


class StateError(JouledError):
    """A file of the state folder is damaged or cannot be written."""


class WorkloadError(JouledError):
    """The runner cannot do its work; `code` is the runner's own word for it, "" where it has none."""

    exit_code = 9

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code

    @property
    def told(self) -> str:
        """The message, with the code in front."""
        return f"{self.code}: {self}" if self.code else str(self)


class FrameError(WorkloadError):
    """A runner sent what is no frame of its protocol."""


class WorkloadDiedError(WorkloadError):
    """The runner ended while it was needed."""


class WorkloadHungError(WorkloadError):
    """The runner went silent."""


class WorkloadTooLargeError(WorkloadError):
    """It would not fit into the memory that is free; nothing was started."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, code=OUT_OF_MEMORY)
