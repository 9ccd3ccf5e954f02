"""The board's files as the virtual kernel answers for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from jouled.board.sysfs import Sysfs
from jouled.virtual.kernel import Kernel


class VirtualSysfs(Sysfs):
    """Sysfs below the root of a virtual board.

    `live` is asked first and gives what a running machine computes (sensors, current clocks), None for all else.
    `alive` raises where the board has reset under this process. `reads` counts reads per path.
    """

    def __init__(
        self,
        root: Path,
        *,
        live: Callable[[str], bytes | None] | None = None,
        alive: Callable[[], None] | None = None,
        who: str = "sysfs",
    ) -> None:
        super().__init__(root)
        self.kernel = Kernel(str(root), who)
        self.reads: Counter[str] = Counter()
        self._live = live
        self._alive = alive

    def _read_bytes(self, path: str) -> bytes:
        self.reads[path] += 1
        if self._live is not None:
            data = self._live(path)
            if data is not None:
                return data
        return self.kernel.read(path)

    def exists(self, path: str) -> bool:
        return super().exists(path) and not self.kernel.faults.hides(path)

    def glob(self, pattern: str) -> list[str]:
        found = super().glob(pattern)
        return [path for path in found if not self.kernel.faults.hides(path)] if self.kernel.faults.all() else found

    def place(self, path: str, text: str) -> None:
        if self._alive is not None:
            self._alive()
        super().place(path, text)

    def _write_bytes(self, path: str, data: bytes) -> None:
        if self._alive is not None:
            self._alive()
        self.kernel.write(path, data)
