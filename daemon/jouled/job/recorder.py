"""What is kept of each trial: its line in the ledger, and its raw samples where they are asked for."""

from __future__ import annotations

from collections.abc import Callable

from jouled.job.events import Events
from jouled.job.measuring import Taken
from jouled.job.result import JobResult
from jouled.job.samples import Samples, coarse_power
from jouletune.trial import Trial

_COUNTER_RATIO = 0.02


class Recorder:
    """Keeps the trials of one job. `samples` None: they are not wanted."""

    def __init__(self, events: Events, result: JobResult, samples: Samples | None, warn: Callable[[str], None]) -> None:
        self._events = events
        self._result = result
        self._samples = samples
        self._warn = warn
        self._doubts_counter = False

    def keep(self, trial: Trial, taken: Taken | None) -> None:
        """`taken` None: nothing was measured."""
        if taken is None:
            self._events.emit("trial", trial=trial.to_dict())
            return
        seen: dict[str, object] = {"temperature_c": taken.temperature_c}
        ratio = taken.counter_ratio
        if ratio is not None:
            seen["counter_ratio"] = ratio
        if (power := coarse_power(trial, taken)) is not None:
            seen["power_trace"] = power
        self._events.emit("trial", trial=trial.to_dict(), **seen)
        self._keep_samples(trial, taken)
        if ratio is not None and abs(ratio - 1.0) > _COUNTER_RATIO and not self._doubts_counter:
            self._doubts_counter = True
            self._warn(
                f"window {trial.number}: the energy counter differs by {100 * (ratio - 1.0):+.1f} % from the"
                " integrated power; energies are the counter's"
            )

    def _keep_samples(self, trial: Trial, taken: Taken) -> None:
        """A job whose samples cannot be kept goes on without."""
        if self._samples is None:
            return
        try:
            self._samples.keep(trial, taken)
            self._result.samples = str(self._samples.folder)
        except OSError as error:
            self._samples = None
            self._warn(f"samples are not kept from window {trial.number} on: {error.strerror}: {error.filename}")
