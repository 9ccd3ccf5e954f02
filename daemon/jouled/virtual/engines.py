"""How engines of one virtual workload differ: by the precision in their names, and as two builds of one model do.

All of it is made up: the factors are plausible, measured on nothing. The first engine of a configuration is the
workload as its file describes it; the others run relative to it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import PurePath

BUILD_SPREAD = 0.10  # two builds of one model lie up to 36 % apart in the worst case; this is a usual one


@dataclass(frozen=True, slots=True)
class Pace:
    """Factors on how fast layers compute, and on the bytes that they move."""

    compute: float = 1.0
    traffic: float = 1.0

    def relative_to(self, other: Pace) -> Pace:
        """This one where `other` is the unit."""
        return Pace(self.compute / other.compute, self.traffic / other.traffic)


PRECISIONS = {
    "fp32": Pace(0.30, 2.0),
    "tf32": Pace(0.55, 2.0),
    "fp16": Pace(),
    "bf16": Pace(),
    "fp8": Pace(1.6, 0.6),
    "int8": Pace(1.7, 0.6),
}


def _pace(engine: str) -> Pace:
    name = PurePath(engine).name.lower()
    words = re.findall("|".join(PRECISIONS), name)
    known = PRECISIONS[words[-1]] if words else Pace()
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / (1 << 32)
    return Pace(known.compute * (1.0 + BUILD_SPREAD * (2.0 * share - 1.0)), known.traffic)


def pace_of(engine: str | None, first: str | None) -> Pace:
    """How `engine` runs where `first` is the workload as written; no engine is the workload as written."""
    if engine is None or first is None or engine == first:
        return Pace()
    return _pace(engine).relative_to(_pace(first))
