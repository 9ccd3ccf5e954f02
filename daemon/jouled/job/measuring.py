"""One measurement on a board that is in its power mode already: settle, pilot, window, and what was seen beside it.

    load on ──settle──┬──pilot 10 s──┬──window, its length fixed by the pilot──┬─0.5 s─┬──2 s──
                      sampler on     each second: completions, clocks, heat     sampler │ counters
                                                                                off, load off
The load runs half an averaging time and more beyond both edges of the window, and over-current counters, which the
kernel publishes every 2 s, are read 2.5 s after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from jouled.board.domains import Domains
from jouled.board.gpuload import GpuClient
from jouled.board.host import Host
from jouled.board.meter import Meter, Sampling, observer_of
from jouled.board.observer import Observer
from jouled.board.orphans import find_orphans
from jouled.board.thermal import IGNORED_COOLING, ThermalState, over_current_growth
from jouled.errors import SensorError
from jouled.job.cancel import Cancellation, Cancelled
from jouled.job.seen import Progress, Seen
from jouled.workload.runner import Runner
from jouletune.errors import MeasurementError
from jouletune.latency import Clustering, ExceedanceTest
from jouletune.measurement import (
    Completions,
    Pilot,
    PowerTrace,
    period_unit_s,
    pilot,
    sensor_problem,
    whole_periods_s,
    window_length_s,
)
from jouletune.space import PowerMode
from jouletune.trace import counter_ratio
from jouletune.trial import ClockSamples, Evidence

LEAD_S = 1.0
TRAIL_S = 0.5
COUNTERS_S = 2.5
COOL_MOST_S = 120.0
COOL_BELOW_C = 5.0
_STEP_S = 1.0
_UNBOUNDED_PERCENTILE = 50.0  # what no bound rests on needs no window of its own


@dataclass(frozen=True, slots=True)
class MeasuringSettings:
    """How long and how often (MEASUREMENT, "The window"). `is_bounded`: the percentile must be bounded too."""

    percentile: float = 95.0
    settle_min_s: float = 10.0
    settle_max_s: float = 60.0
    pilot_s: float = 10.0
    window_min_s: float = 16.0
    window_max_s: float = 60.0
    error_target: float = 0.005
    sample_rate_hz: float = 5.0
    max_temp_c: float = 90.0
    external_w: float = 0.0
    is_bounded: bool = True
    ignored_cooling: tuple[str, ...] = IGNORED_COOLING


@dataclass(frozen=True, slots=True)
class Wanted:
    """What should hold while it is measured: the mode, whether its clocks are locked, and the user's bound.

    `is_watch`: nothing is left out while it settles; all of it counts from the start.
    """

    mode: PowerMode
    locked: bool
    bound_s: float | None
    clustering: Clustering
    window_s: float | None = None
    more_settle_s: float = 0.0
    is_watch: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """What one measurement saw.

    `cut`: ended early as clearly infeasible. `alarm`: ended at once, since the board was in danger.
    `counter_ratio`: what the meter counted over what its power adds up to, where it does both.
    """

    trace: PowerTrace | None
    completions: Completions
    start_s: float
    end_s: float
    settle_s: float
    pilot: Pilot | None
    evidence: Evidence
    cut: bool = False
    alarm: str = ""
    temperature_c: float | None = None
    counter_ratio: float | None = None


class Alarm(Exception):
    """The board is in danger in this mode: leave it at once."""


class Measurer:
    """Takes measurements on one board with one meter and one runner."""

    def __init__(
        self,
        host: Host,
        domains: Domains | None,
        meter: Meter,
        runner: Runner,
        settings: MeasuringSettings,
        *,
        cancellation: Cancellation,
        progress: Progress,
        observer: Observer | None = None,
    ) -> None:
        self.host = host
        self.domains = domains
        self.meter = meter
        self.runner = runner
        self.settings = settings
        self.cancellation = cancellation
        self.progress = progress
        self.observer = observer or observer_of(host.sysfs, domains, meter, ignored_cooling=settings.ignored_cooling)
        self._before: tuple[PowerMode, PowerTrace] | None = None
        self._clients: frozenset[GpuClient] | None = None

    def take(self, wanted: Wanted) -> Taken:
        """Measure. Raises Cancelled, WorkloadDiedError, WorkloadHungError, SysfsError.

        The runner must be loaded; the load is started here and paused on every way out. One that is cancelled is
        ended: what is in flight may take longer than whoever asked waits.
        """
        self.runner.begin()
        try:
            taken = _Attempt(self, wanted).take()
        except Cancelled:
            self.runner.close()
            raise
        finally:
            self.runner.pause()
        return self._with_sensor_judged(wanted, taken)

    def strangers(self) -> tuple[str, ...]:
        """GPU clients that were not there in the job's first measurement (the reference's), nor are the job's own."""
        clients = frozenset(self.observer.others(find_orphans(self.host.processes.mark, ())))
        if self._clients is None:
            self._clients = clients
        return tuple(str(client) for client in sorted(clients - self._clients))

    def disturbing(self, throttling: Iterable[str]) -> tuple[str, ...]:
        """`throttling` without what is so by design."""
        return tuple(kind for kind in throttling if kind not in self.observer.by_design)

    def cool_down(self) -> None:
        """Wait, without load, until no alarm stands and the board is well below its limit (120 s at most).

        Never shorter than counters need to be published: the next measurement must not see this one's events.
        """
        clock = self.host.clock
        ends_s = clock.monotonic_s() + COOL_MOST_S
        self.cancellation.sleep(clock, COUNTERS_S)
        while clock.monotonic_s() < ends_s:
            thermal = self.observer.thermal()
            limit_c = self.settings.max_temp_c - COOL_BELOW_C
            if not thermal.alarms and (thermal.hottest_c is None or thermal.hottest_c <= limit_c):
                return
            self.cancellation.sleep(clock, _STEP_S)
            self.progress("cool_down", clock.monotonic_s(), COOL_MOST_S)

    def _with_sensor_judged(self, wanted: Wanted, taken: Taken) -> Taken:
        """A sensor that stands still across a change of mode is no sensor."""
        if taken.trace is None:
            return taken
        before = None if self._before is None or self._before[0] == wanted.mode else self._before[1]
        self._before = (wanted.mode, taken.trace)
        if taken.cut:
            return taken
        problem = sensor_problem(taken.trace, taken.start_s, taken.end_s, before=before)
        return replace(taken, evidence=replace(taken.evidence, sensor=problem))


class _Attempt:
    """One measurement while it is being taken."""

    def __init__(self, measurer: Measurer, wanted: Wanted) -> None:
        self._on = measurer
        self._clock = measurer.host.clock
        self._settings = measurer.settings
        self._wanted = wanted
        self._seen = Seen()
        self._began_s = self._clock.monotonic_s()
        self._counted = measurer.observer.thermal()
        self._pilot: Pilot | None = None
        self._sampling: Sampling | None = None

    def take(self) -> Taken:
        try:
            self._note(self._counted)
            self._check(self._counted)
            if not self._wanted.is_watch:
                self._settle()
            settle_s = self._clock.monotonic_s() - self._began_s
            self._seen.completions.clear()
            self._seen.clocks.clear()
            start_s, end_s, trace, cut = self._sampled()
        except Alarm as alarm:
            now_s = self._clock.monotonic_s()
            evidence = Evidence(throttling=(str(alarm),))
            return Taken(None, self._seen.joined(), self._began_s, now_s, 0.0, None, evidence, alarm=str(alarm))
        evidence = self._with_counters(end_s)
        seen = self._seen
        return Taken(
            trace,
            seen.joined(),
            start_s,
            end_s,
            settle_s,
            self._pilot,
            evidence,
            cut,
            temperature_c=seen.last_c(),
            counter_ratio=None if cut else counter_ratio(trace, start_s, end_s),
        )

    # --- the stretches ----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Warm up until the hottest zone moves less than 0.5 °C in 10 s (with the extra that was asked for)."""
        least_s = self._settings.settle_min_s + self._wanted.more_settle_s
        most_s = max(self._settings.settle_max_s, least_s)
        while True:
            self._step("settle", most_s)
            passed_s = self._clock.monotonic_s() - self._began_s + 1e-9
            if passed_s >= most_s or (passed_s >= least_s and self._seen.is_steady()):
                return

    def _sampled(self) -> tuple[float, float, PowerTrace, bool]:
        """(start, end, trace, was it cut short)."""
        settings = self._settings
        rate_hz, external_w = settings.sample_rate_hz, settings.external_w
        sampling = self._on.meter.sampling(self._clock, rate_hz=rate_hz, external_w=external_w)
        sampling.start()
        self._sampling = sampling
        try:
            start_s, end_s, cut = self._pilot_and_window(sampling)
        finally:
            trace = sampling.stop()
        return start_s, end_s, trace, cut

    def _pilot_and_window(self, sampling: Sampling) -> tuple[float, float, bool]:
        """Pilot (unless the window's length is given) and window: (start, end, was it cut short)."""
        test = None
        if self._wanted.bound_s is not None:
            test = ExceedanceTest(self._wanted.bound_s, self._settings.percentile, self._wanted.clustering)
        window_s = self._wanted.window_s
        if window_s is None:
            began_s = self._clock.monotonic_s()
            if self._stretch("pilot", self._settings.pilot_s, test):
                return began_s, self._clock.monotonic_s(), True
            self._pilot = self._look(sampling, began_s)
            window_s = self._window_s(self._pilot)
        else:
            self._stretch("pilot", LEAD_S, None)
        if (period_s := self._on.runner.arrival.period_s) is not None:
            window_s = whole_periods_s(window_s, period_unit_s(period_s, self._on.meter.averaging_s))
        phase = "watching" if self._wanted.is_watch else "window"
        start_s = self._clock.monotonic_s()
        cut = self._stretch(phase, window_s, test)
        end_s = self._clock.monotonic_s()
        if not cut:
            self._stretch(phase, TRAIL_S, None)
        return start_s, end_s, cut

    def _look(self, sampling: Sampling, began_s: float) -> Pilot:
        """Up to the last sample, which may be a little older than the last completion. Raises SensorError."""
        trace = sampling.trace()
        last_s = float(trace.t_s[-1]) if trace.t_s.size else began_s
        try:
            return pilot(trace, self._seen.joined(), began_s, max(last_s, began_s + _STEP_S))
        except MeasurementError as error:
            length_s = self._settings.pilot_s
            text = f"{self._on.meter.rail}: too few samples in the pilot of {length_s:g} s, got {trace.t_s.size}"
            if trace.lost:  # a longer pilot would not help
                text = f"{text}; {trace.lost} readings failed: {sampling.last_error or 'the last did not'}"
                raise SensorError(text, hint="sudo jouled doctor shows what can be read") from error
            raise SensorError(text, hint="raise job.pilot_s") from error

    def _window_s(self, looked: Pilot) -> float:
        settings = self._settings
        return window_length_s(
            looked,
            error_target=settings.error_target,
            min_s=settings.window_min_s,
            max_s=settings.window_max_s,
            percentile=settings.percentile if settings.is_bounded else _UNBOUNDED_PERCENTILE,
            clustering=self._wanted.clustering,
        )

    def _stretch(self, phase: str, duration_s: float, test: ExceedanceTest | None) -> bool:
        """Let the load run for `duration_s`; True: the test says that going on is of no use."""
        ends_s = self._clock.monotonic_s() + duration_s
        while (left_s := ends_s - self._clock.monotonic_s()) > 1e-9:
            fresh = self._step(phase, duration_s, step_s=min(_STEP_S, left_s))
            if test is not None and test.add(fresh.end_s - fresh.arrival_s):
                return True
        return False

    def _step(self, phase: str, duration_s: float, *, step_s: float = _STEP_S) -> Completions:
        """Let `step_s` pass, then look at everything."""
        on = self._on
        on.cancellation.sleep(self._clock, step_s)
        fresh = on.runner.take()
        now_s = self._clock.monotonic_s()
        thermal = on.observer.thermal()
        seen = self._seen
        seen.completions.append(fresh)
        seen.clocks.append(on.observer.clocks())
        seen.throttling.update(dict.fromkeys(thermal.throttling))
        self._note(thermal)
        self._check(thermal)
        power_w = None if self._sampling is None else self._sampling.power_w
        on.progress(phase, now_s, duration_s, seen.last(fresh, self._settings.percentile, power_w))
        return fresh

    def _note(self, thermal: ThermalState) -> None:
        if thermal.hottest_c is not None:
            self._seen.temperatures_c.append((self._clock.monotonic_s(), thermal.hottest_c))

    def _check(self, thermal: ThermalState) -> None:
        """Raise Alarm where staying in this mode could harm the board (ARCHITECTURE 4)."""
        if thermal.alarms:
            raise Alarm(f"alarm {', '.join(thermal.alarms)}")
        if (grown := over_current_growth(self._counted, thermal).get("oc1", 0)) > 0:
            raise Alarm(f"under-voltage (OC1) was counted {grown} times")
        most_c = self._settings.max_temp_c
        if thermal.hottest_c is not None and thermal.hottest_c > most_c:
            raise Alarm(f"{thermal.hottest_c:.1f} °C, above board.max_temp_c = {most_c:g}")

    # --- what was seen beside it ------------------------------------------------------------------------

    def _with_counters(self, end_s: float) -> Evidence:
        """Load off, and the counters when they have been published."""
        self._on.runner.pause()
        self._seen.completions.append(self._on.runner.take())  # trtexec tells all of them only now
        if self._on.observer.counts_over_current:
            self._on.cancellation.sleep(self._clock, max(0.0, end_s + COUNTERS_S - self._clock.monotonic_s()))
        grown = over_current_growth(self._counted, self._on.observer.thermal())
        return replace(
            self._evidence(),
            over_current=sum(max(0, count) for count in grown.values()),
            over_current_s=self._clock.monotonic_s() - self._began_s,
        )

    def _evidence(self) -> Evidence:
        return Evidence(
            throttling=self._on.disturbing(self._seen.throttling),
            clocks=self._clock_samples(),
            strangers=self._on.strangers(),
        )

    def _clock_samples(self) -> tuple[ClockSamples, ...]:
        domains, mode = self._on.domains, self._wanted.mode
        if domains is None:
            return ()
        tables = {
            "cpu": (mode.cpu_hz, domains.cpu.table_hz),
            "gpu": (mode.gpu_hz, () if domains.gpu is None else domains.gpu.table_hz),
            "emc": (mode.emc_hz, () if domains.emc is None else domains.emc.table_hz),
        }
        samples = []
        for name, (wanted_hz, table_hz) in tables.items():
            read = (getattr(reading, f"{name}_hz") for reading in self._seen.clocks)
            seen_hz = [value for value in read if value is not None]
            if wanted_hz is not None and seen_hz:
                samples.append(ClockSamples(name, wanted_hz, table_hz, seen_hz, self._wanted.locked))
        return tuple(samples)
