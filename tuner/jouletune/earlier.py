"""What is known before a search begins: windows of earlier jobs on the same board with the same workload (stdlib only).

Who finds them answers for "the same"; how far they are believed, by age and by what this search then sees, is the
surrogate's to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from jouletune.errors import SearchError


@dataclass(frozen=True, slots=True)
class Earlier:
    """A valid window of candidate `index`, taken `age_s` before the search that is told of it.

    Windows of one job lie minutes apart, jobs mostly days. `latency_s` is the same statistic as in the search.
    """

    index: int
    energy_j: float
    energy_se_j: float
    latency_s: float
    latency_se_s: float
    age_s: float

    def check(self, size: int) -> None:
        """Raise SearchError where it is no window of a space of `size` candidates."""
        if not 0 <= self.index < size:
            raise SearchError(f"earlier: wanted an index below {size}, got {self.index}")
        for name in ("energy_j", "latency_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0.0):
                raise SearchError(f"earlier, candidate {self.index}: wanted a finite {name} above 0, got {value}")
        for name in ("energy_se_j", "latency_se_s", "age_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise SearchError(f"earlier, candidate {self.index}: wanted a finite {name} of at least 0, got {value}")


FIELDS = tuple(field.name for field in fields(Earlier))


def encode_earlier(earlier: Iterable[Earlier]) -> list[dict[str, Any]]:
    """As a ledger, a study and the protocol keep them."""
    return [asdict(window) for window in earlier]


def decode_earlier(plain: Iterable[Mapping[str, Any]], size: int) -> tuple[Earlier, ...]:
    """The inverse. Raises SearchError for what is no window of a space of `size` candidates."""
    found = []
    for fields_ in plain:
        try:
            window = Earlier(int(fields_["index"]), *(float(fields_[name]) for name in FIELDS[1:]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SearchError(f"earlier: wanted {', '.join(FIELDS)}, got {fields_!r}: {error}") from error
        window.check(size)
        found.append(window)
    return tuple(found)
