"""The metrics (ARCHITECTURE section 9): the service's last snapshot as Prometheus reads it.

A scrape reads the snapshot and nothing else: no knob, no database, no lock; sensors once a second at most.
Base units; what is not known is an absent series, never a 0, and what is known not to have happened is 0. The registry
is our own, so that nothing of Python's or of the process's comes along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jouled import __version__
from jouled.board.modename import mode_name
from jouled.job.result import EXIT_CODES
from jouled.state import Readings, Source, State, Status, Winner

# `jouletune.trial.Invalid`, which needs numpy. A counter that appears with its first event hides that from increase().
INVALID_REASONS = (
    *("apply_failed", "clocks_moved", "mode_changed", "throttled", "sensor_gap", "sensor_stalled", "sensor_zero"),
    *("workload_died", "workload_hung", "gpu_busy", "too_few_inferences", "unsteady"),
)


class Exposition:
    """Renders `/metrics`."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StatusCollector(status))

    def render(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self._registry)


class StatusCollector(Collector):
    """Metrics of one snapshot, made anew for each scrape."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not take a snapshot."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every series that has a value now."""
        status = self._status()
        yield from _identity(status)
        yield from _in_force(status)
        yield from _jobs(status)
        if status.winner is not None:
            yield from _winner(status.winner, is_applied=_has_winner(status))
        if status.readings is not None:
            yield from _readings(status.readings)


def _has_winner(status: Status) -> bool:
    found = status.in_force
    return found is not None and found.source is Source.WINNER and not status.mismatches


# --- shapes -------------------------------------------------------------------------------------------------


def _gauge(name: str, text: str, value: float | None) -> Iterator[Metric]:
    """One series without labels; none where the value is not known."""
    if value is not None:
        yield GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Iterator[Metric]:
    yield CounterMetricFamily(name, text, value=value)


def _info(name: str, text: str, labels: Mapping[str, str]) -> Iterator[Metric]:
    """Facts as labels of a 1."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    yield family


def _by_label(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Iterator[Metric]:
    """A series for each value of one label; no family where there is none."""
    if values:
        family = kind(name, text, labels=[label])
        for value in sorted(values):
            family.add_metric([value], values[value])
        yield family


# --- families -----------------------------------------------------------------------------------------------


def _identity(status: Status) -> Iterator[Metric]:
    yield from _info("jouled_build_info", "The running daemon; always 1.", {"version": __version__})
    board = status.board
    if board is not None:
        labels = {
            "module": board.module,
            "carrier": board.carrier,
            "l4t": board.l4t or "",
            "soc": board.soc,
            "base_mode": board.base_mode,
        }
        yield from _info("jouled_board_info", "The board; always 1.", labels)
    states = {state.value: float(state is status.state) for state in State}
    yield from _by_label(GaugeMetricFamily, "jouled_state", "1 for the state that jouled is in.", "state", states)


def _in_force(status: Status) -> Iterator[Metric]:
    found = status.in_force
    if found is not None:
        labels = {"mode": mode_name(found.mode), "source": found.source.value, "policy": found.policy}
        yield from _info("jouled_mode_info", "The power mode that should be in force; always 1.", labels)
        text = "1 while every knob was right when it was last read back."
        yield from _gauge("jouled_mode_in_force", text, float(found.verified))
        text = "When the knobs were last read back."
        yield from _gauge("jouled_last_verify_timestamp_seconds", text, found.last_verify_wall_s)
    if status.winner is not None:
        text = "1 while the last winner no longer holds for this board or workload."
        yield from _gauge("jouled_winner_stale", text, float(bool(status.winner.stale)))
    wrong = float(len(status.mismatches))
    yield from _gauge("jouled_verify_mismatch", "Knobs that were wrong when they were last read back.", wrong)
    counters = status.counters
    text = "Times that a mode was put in force again, since something else had changed it."
    yield from _counter("jouled_reapplies", text, counters.reapplies)
    yield from _counter("jouled_rollbacks", "Winners that were taken back.", counters.rollbacks)
    text = "Power modes that are not tried, since the board went down in them."
    yield from _gauge("jouled_modes_quarantined", text, status.quarantined)


def _jobs(status: Status) -> Iterator[Metric]:
    counters, job = status.counters, status.job
    ended = dict.fromkeys(EXIT_CODES, 0) | dict(counters.jobs)
    yield from _by_label(CounterMetricFamily, "jouled_jobs", "Jobs that have ended.", "outcome", ended)
    yield from _gauge("jouled_job_running", "1 while a job runs.", float(job is not None))
    if job is not None:
        yield from _gauge("jouled_job_start_timestamp_seconds", "When the running job began.", job.started_wall_s)
        yield from _gauge("jouled_job_trials", "Candidates that the running job has tried so far.", job.trials)
    text = "Candidates that jobs have tried; each counts once a job, however many windows it took."
    yield from _counter("jouled_trials", text, counters.trials)
    text = "Windows of trials that were no evidence."
    invalid = dict.fromkeys(INVALID_REASONS, 0) | dict(counters.trials_invalid)
    yield from _by_label(CounterMetricFamily, "jouled_trials_invalid", text, "reason", invalid)
    text = "When the last job ended that came to a decision."
    yield from _gauge("jouled_last_tune_timestamp_seconds", text, counters.last_tune_wall_s)
    text = "Time in which jobs held the board in other modes than the one in force."
    yield from _counter("jouled_disturbed_seconds", text, counters.disturbed_s)


def _winner(winner: Winner, *, is_applied: bool) -> Iterator[Metric]:
    """What was measured in the deciding job; the winner's own numbers only while it is in force."""
    sides = [("reference", winner.reference), ("applied", winner.applied if is_applied else None)]
    known = [(which, side) for which, side in sides if side is not None]
    if known and winner.rail is not None:
        text = "Energy per inference, as measured in the deciding job."
        energy = GaugeMetricFamily("jouled_inference_energy_joules", text, labels=["which", "rail"])
        for which, side in known:
            energy.add_metric([which, winner.rail], side.energy_j)
        yield energy
    timed = [(which, side.latency_s) for which, side in known if side.latency_s is not None]
    if timed:
        text = "Latency of a request, from its arrival, as measured in the deciding job."
        latency = GaugeMetricFamily("jouled_inference_latency_seconds", text, labels=["which", "percentile"])
        for which, latency_s in timed:
            latency.add_metric([which, f"{winner.latency_percentile:g}"], latency_s)
        yield latency
    if is_applied:
        text = "What the latency percentile may be at most."
        yield from _gauge("jouled_latency_bound_seconds", text, winner.latency_bound_s)
        text = "1 - energy of the mode in force / energy of the reference, as measured in the deciding job."
        yield from _gauge("jouled_energy_saving_ratio", text, winner.saving_ratio)


def _readings(found: Readings) -> Iterator[Metric]:
    text = "Power of a rail at the last look."
    yield from _by_label(GaugeMetricFamily, "jouled_rail_power_watts", text, "rail", found.rail_power_w)
    text = "Clock of a domain at the last look."
    yield from _by_label(GaugeMetricFamily, "jouled_clock_hertz", text, "domain", found.clock_hz)
    text = "Highest clock that a domain may take."
    yield from _by_label(GaugeMetricFamily, "jouled_clock_cap_hertz", text, "domain", found.clock_cap_hz)
    text = "Temperature of a zone at the last look."
    yield from _by_label(GaugeMetricFamily, "jouled_temperature_celsius", text, "zone", found.temperature_c)
    text = "Throttle events that the kernel has counted since the boot."
    yield from _by_label(CounterMetricFamily, "jouled_throttle_events", text, "source", found.throttle_events)
    text = "Times that a sensor gave no value since the daemon's start."
    yield from _by_label(CounterMetricFamily, "jouled_sensor_errors", text, "sensor", found.sensor_errors)
    text = "Energy of a rail since the daemon's start (metrics.energy_counter_hz)."
    yield from _by_label(CounterMetricFamily, "jouled_energy_joules", text, "rail", found.energy_j)
