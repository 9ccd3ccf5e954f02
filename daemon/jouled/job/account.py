"""What the trials of a job have shown so far."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jouletune.latency import Clustering
from jouletune.measurement import Between, Replicate, between_spread
from jouletune.trial import Repeats, Trial


@dataclass
class Account:
    """All of it, in the order in which it was seen."""

    clustering: Clustering = field(default_factory=Clustering)
    repeats: Repeats = field(default_factory=Repeats)
    invalid: Counter[str] = field(default_factory=Counter)
    trials: list[Trial] = field(default_factory=list)
    latencies_s: dict[tuple[int, str], list[NDArray[np.float64]]] = field(default_factory=dict)
    normal_over_current_hz: float = 0.0
    disturbed_s: float = 0.0

    def valid(self, index: int | None = None, policy: str | None = None) -> list[Trial]:
        """Trials with numbers that count, of one candidate (and policy) where it is named."""
        return [
            trial
            for trial in self.trials
            if trial.measurement is not None
            and trial.invalid is None
            and index in (None, trial.index)
            and policy in (None, trial.policy)
        ]

    def between(self) -> Between:
        """The spread between windows of one mode, from this job's replicates."""
        groups: dict[tuple[int, str], list[Replicate]] = {}
        for trial in self.valid():
            assert trial.measurement is not None
            window = trial.measurement
            replicate = Replicate(math.log(window.energy_j), window.repeat_se_j / window.energy_j)
            groups.setdefault((trial.index, trial.policy), []).append(replicate)
        return between_spread(list(groups.values()))
