"""Shares, violations and times of many searches; the targets of the search paper."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.search_made import NAME as MADE

SHARES = (0.01, 0.02, 0.03)
VIOLATED = 1.005
FAR = 1.02
MOST_VIOLATED = 0.003
MOST_P95_S = {False: 0.05, True: 0.2}  # at 96 candidates, at 1,000
LEAST_HELD, MOST_HELD = 0.80, 0.97
# (condition, kind, budget) → least share of runs within 1, 2, 3 % of the best row.
TARGETS: dict[tuple[str, str, int], tuple[float | None, float | None, float | None]] = {
    ("plain", "real", 8): (None, None, 0.95),
    ("plain", "real", 12): (0.93, 0.98, None),
    ("plain", "semi-real", 12): (None, 0.93, None),
    ("outliers", "all", 12): (None, 0.92, None),
}


@dataclass(frozen=True)
class Run:
    """One search against the truth. `path`: the gap of what would be chosen after each window, None where too slow.

    `held`: after so many windows, rows that count and those whose energy and latency lie in their 90 % intervals.
    """

    grid: str
    sampler: str
    condition: str
    ratio: float
    budget: int
    seed: int
    row: int
    gap: float
    latency_ratio: float
    measurements: int
    asked_s: list[float]
    path: list[float | None]
    held: dict[int, tuple[int, int, int]]

    @property
    def kind(self) -> str:
        if self.grid == MADE:
            return "made"
        return "semi-real" if "semireal" in self.grid else "real"

    @property
    def violates(self) -> bool:
        return self.latency_ratio > VIOLATED


HEADER = (
    "sampler  condition  grids                           at  within 1/2/3 %  slow %   far  median  worst  windows"
    "  p95 ms"
)


def groups(runs: Sequence[Run], key: Callable[[Run], tuple[str, ...]]) -> dict[tuple[str, ...], list[Run]]:
    """The runs by what `key` says, in their order."""
    found: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for one in runs:
        found[key(one)].append(one)
    return found


def shares(runs: Sequence[Run]) -> list[float]:
    """Within 1, 2 and 3 %. A violation is counted apart, so its gap (often 0) counts here as any other."""
    return [sum(one.gap <= most for one in runs) / len(runs) for most in SHARES]


def p95_s(runs: Sequence[Run]) -> float:
    """Of one proposal, the processor's time; NaN where none was timed."""
    asked_s = sorted(value for one in runs for value in one.asked_s)
    if not asked_s:
        return math.nan
    return asked_s[min(len(asked_s) - 1, int(0.95 * len(asked_s)))]


def line(name: str, runs: Sequence[Run]) -> str:
    """One line of the result."""
    first, gaps = runs[0], [one.gap for one in runs]
    within = "/".join(f"{100 * share:.0f}" for share in shares(runs))
    slow = 100 * sum(one.violates for one in runs) / len(runs)
    far = sum(one.latency_ratio > FAR for one in runs)
    windows = statistics.mean(one.measurements for one in runs)
    return (
        f"{first.sampler:8} {first.condition:9}  {name:30} {first.budget:3}  {within:>14}  {slow:6.2f}  {far:4}"
        f"  {100 * statistics.median(gaps):6.2f}  {100 * max(gaps):5.1f}  {windows:7.1f}  {1e3 * p95_s(runs):6.1f}"
    )


def print_tally(runs: Sequence[Run], *, each: bool) -> None:
    """One sampler, condition and budget: real and semi-real grids apart, then all; `each`: every grid and bound."""
    kinds = groups(runs, lambda one: (one.kind,))
    for kind, mine in kinds.items():
        print(line(kind[0], mine), flush=True)
    recorded = [one for one in runs if one.kind != "made"]
    if len(kinds) > 1 and recorded:
        print(line("all", recorded), flush=True)
    if each:
        for (grid, ratio), mine in groups(runs, lambda one: (one.grid, f"{one.ratio:g}")).items():
            print(line(f"{grid.replace('-semireal', '')[:25]} {ratio}", mine), flush=True)


def calibration(runs: Sequence[Run]) -> Iterator[str]:
    """How many true values lie in the 90 % intervals, pooled over grids."""
    for sampler, told, rows, energies, latencies in coverage(runs):
        yield (
            f"{sampler}: 90 % intervals after {told:2} windows hold {100 * energies / rows:.1f} % of energies, "
            f"{100 * latencies / rows:.1f} % of latencies ({rows} rows)"
        )


def coverage(runs: Sequence[Run]) -> Iterator[tuple[str, int, int, int, int]]:
    """(sampler, windows told, rows, energies held, latencies held)."""
    sums: dict[tuple[str, int], list[int]] = {}
    for one in runs:
        for told, counts in one.held.items():
            total = sums.setdefault((one.sampler, told), [0, 0, 0])
            total[:] = [a + b for a, b in zip(total, counts, strict=True)]
    for (sampler, told), (rows, energies, latencies) in sorted(sums.items()):
        yield sampler, told, rows, energies, latencies


@dataclass(frozen=True)
class Verdict:
    """A target of the search paper beside what these runs came to. `left_out` as in bench.search_left_out."""

    where: str
    got: str
    wanted: str
    reached: bool
    left_out: str = ""

    @property
    def text(self) -> str:
        return f"{self.where}{self.got}, target {self.wanted}"


LeftOut = Mapping[tuple[str, int], tuple[Sequence[Run], Sequence[Run]]]
"""(kind, budget) → the runs with the product's constants, those with constants chosen without the grid."""


def verdicts(runs: Sequence[Run], left_out: LeftOut | None = None) -> Iterator[Verdict]:
    """Of the targets that these runs can tell of."""
    for (condition, kind, budget), least in TARGETS.items():
        its = [one for one in runs if (one.condition, one.budget) == (condition, budget) and _is(one, kind)]
        if its:
            other = (left_out or {}).get((kind, budget)) if condition == "plain" else None
            yield from _of_shares(f"{condition}, {kind} grids at {budget}: ", its, least, other)
    for is_large, most_s in MOST_P95_S.items():
        its = [one for one in runs if (one.grid == MADE) is is_large and one.asked_s]
        if its:
            got = f"one proposal takes {1e3 * p95_s(its):.0f} ms (p95)"
            yield Verdict("", got, f"{1e3 * most_s:.0f} ms", p95_s(its) <= most_s)
    for _, told, rows, *held in coverage([one for one in runs if one.grid != MADE]):
        for what, count in zip(("energies", "latencies"), held, strict=True):
            got = f"90 % intervals after {told} windows hold {100 * count / rows:.1f} % of {what}"
            yield Verdict("", got, "80 to 97 %", LEAST_HELD * rows <= count <= MOST_HELD * rows)


def failures(runs: Sequence[Run]) -> list[str]:
    """The targets that are missed."""
    return [verdict.text for verdict in verdicts(runs) if not verdict.reached]


def verdict_line(verdict: Verdict) -> str:
    """One line of the result."""
    return f"{'reached' if verdict.reached else 'MISSED':8} {verdict.text}{verdict.left_out}"


def _is(one: Run, kind: str) -> bool:
    return one.kind == kind or (kind == "all" and one.kind != "made")


def _of_shares(
    where: str,
    runs: Sequence[Run],
    least: Sequence[float | None],
    left_out: tuple[Sequence[Run], Sequence[Run]] | None,
) -> Iterator[Verdict]:
    for at, (wanted, got) in enumerate(zip(least, shares(runs), strict=True)):
        if wanted is not None:
            words = f"{100 * got:.1f} % within {100 * SHARES[at]:g} %"
            beside = ""
            if left_out is not None:
                own, other = (100 * shares(its)[at] for its in left_out)
                beside = f"; constants chosen without the grid: {other:.1f} %, own on the same seeds: {own:.1f} %"
            yield Verdict(where, words, f"{100 * wanted:g} %", got >= wanted, beside)
    slow, far = sum(one.violates for one in runs), sum(one.latency_ratio > FAR for one in runs)
    is_kept = slow <= MOST_VIOLATED * len(runs) and not far
    yield Verdict(where, f"{slow} of {len(runs)} too slow, {far} by 2 %", "0.3 %, none by 2 %", is_kept)
