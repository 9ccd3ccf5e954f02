"""A whole job: hold the board, finish what a crash left, snapshot, tune, decide, apply; else put everything back."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any

from jouled.board.apply import ClocksPolicy
from jouled.board.host import Host
from jouled.board.lock import hold_board
from jouled.board.meter import Meter, measure_idle_w
from jouled.board.pending import Why
from jouled.board.switches import check_switches
from jouled.errors import (
    OUT_OF_MEMORY,
    ApplyError,
    BoardError,
    BusyError,
    JouledError,
    NotPermittedError,
    NotSupportedError,
    ToolAbsentError,
    WorkloadError,
    WorkloadHungError,
)
from jouled.job.cancel import Cancellation, Cancelled
from jouled.job.custody import BoardCustody, Charge, Custody
from jouled.job.earlier import Known, Old, find_old, identity_of, identity_record, known_before
from jouled.job.ending import Stopped
from jouled.job.events import Event, Events, Sink, finite
from jouled.job.fixed import FixedCustody, HeldError
from jouled.job.ground import Ground, check_gpu_is_free, check_locking
from jouled.job.measuring import Measurer
from jouled.job.modes import Modes
from jouled.job.recorder import Recorder
from jouled.job.request import BUILD_S, Request
from jouled.job.result import JobResult
from jouled.job.samples import Samples
from jouled.job.studies import open_search, rebuild_missing, space_record, study_name
from jouled.job.summary import (
    announcement,
    describe_ground,
    describe_request,
    fill_best,
    fill_counts,
    fill_reference,
    fill_sides,
    settings_given,
)
from jouled.job.trials import Trials
from jouled.job.tuning import Tuning
from jouled.job.units import UnitBusyError
from jouled.ledger import Ledger
from jouled.study import open_storage, study_errors
from jouled.workload.marks import RUNTIME
from jouled.workload.runner import Runner
from jouletune.decision import Decision, Outcome, ReasonCode, stopped
from jouletune.errors import JouletuneError
from jouletune.search import Search

log = logging.getLogger(__name__)

_IDLE_STEPS = 10  # seconds


def run_job(
    host: Host,
    request: Request,
    runner: Runner,
    *,
    cancellation: Cancellation,
    sinks: tuple[Sink, ...] = (),
    job: str | None = None,
    who: str = "user",
) -> JobResult:
    """Tune. Whatever happens, the board ends in a verified winner or as it was found.

    `job` is the id of the job where the asker has chosen one, `who` stands in the ledger.
    Raises ConfigError, NotPermittedError, StateError and RestoreError; every other ending is an outcome.
    """
    request.check()
    request.check_arrival(runner.arrival)
    if not host.privileged and not request.fixed:
        raise NotPermittedError("tuning writes power modes and needs root", hint="sudo jouled tune …")
    return Job(host, request, runner, cancellation, sinks, job=job or uuid.uuid4().hex[:12], who=who).run()


class Job:
    """One job while it runs."""

    def __init__(
        self,
        host: Host,
        request: Request,
        runner: Runner,
        cancellation: Cancellation,
        sinks: tuple[Sink, ...],
        *,
        job: str,
        who: str,
    ) -> None:
        self._host = host
        self._request = request
        self._config = request.config
        self._runner = runner
        self._cancellation = cancellation
        self._id = job
        self._began_s = host.clock.monotonic_s()
        self._ledger = Ledger(host.state_dir)
        self._events = Events(host.clock, self._id, [self._keep, *sinks])
        self._trials: Trials | None = None
        self._meter: Meter | None = None
        self._marks: dict[str, str] = {}
        self._started: dict[str, Any] = {}
        self.result = JobResult(job=self._id)
        samples = Samples(host.state_dir, job, self._config.store.keep_jobs) if self._config.job.keep_samples else None
        self._recorder = Recorder(self._events, self.result, samples, self._warn)
        charge = Charge(host, request, runner, self._events, self._warn, job, who)
        self._custody: Custody = FixedCustody(charge) if request.fixed else BoardCustody(charge)

    def run(self) -> JobResult:
        """The job from the lock to the end."""
        describe_request(self.result, self._request, self._runner.arrival)
        try:
            with hold_board(self._host, verb="tune --fixed-mode" if self._request.fixed else "tune"):
                self._held()
        except BusyError as error:  # the ledger is the holder's: nothing is written there
            self.result.outcome, self.result.hint = Outcome.BOARD_BUSY.value, error.hint
            self.result.reason_code, self.result.reason_text = ReasonCode.LOCK_HELD.value, str(error)
        return self.result

    def _held(self) -> None:
        """All that happens while the board is ours; expected failures become outcomes."""
        if not self._request.fixed:
            check_switches(self._host.sysfs)
        try:
            self._run_held()
        except Cancelled as cancelled:
            self.result.signal_number = cancelled.signal_number
            code = ReasonCode(cancelled.code)
            outcome = Outcome.CANCELLED if code is ReasonCode.USER else Outcome.INTERRUPTED
            self._settle(stopped(outcome, code, str(cancelled)))
        except Stopped as end:
            self._settle(end.decision)
        except NotSupportedError as error:
            self._conclude(Outcome.NOT_SUPPORTED, None, error)
        except UnitBusyError as error:
            self._conclude(Outcome.BOARD_BUSY, None, error)
        except HeldError as error:
            self._conclude(Outcome.BOARD_BUSY, ReasonCode.LOCK_HELD, error)
        except BusyError as error:
            self._conclude(Outcome.BOARD_BUSY, ReasonCode.GPU_BUSY, error)
        except WorkloadError as error:
            self._conclude_workload(error)
        except ToolAbsentError as error:
            self._conclude(Outcome.BOARD_FAULT, ReasonCode.TOOL_ABSENT, error)
        except ApplyError as error:
            self._conclude(Outcome.BOARD_FAULT, ReasonCode(error.code), error)
        except BoardError as error:
            self._conclude(Outcome.BOARD_FAULT, None, error)
        except JouletuneError as error:
            self._conclude(Outcome.INTERRUPTED, None, JouledError(str(error), hint="report it with the ledger"))
        finally:
            if self._meter is not None:
                self._meter.close()
            self.result.duration_s = self._elapsed_s()
        if self.result.plan is None:
            self._finish()

    def _run_held(self) -> None:
        if not self._request.dry_run:
            self._custody.mend()
        ground = self._custody.survey()
        self._meter = ground.meter
        describe_ground(self.result, ground)
        for warning in ground.warnings:
            self._warn(warning)
        self._request.look()
        if self._request.dry_run:
            self.result.plan = announcement(self._request, ground, self.result.arrival, self._host.clock.wall_s())
            self.result.plan["restores_first"] = self._custody.left_by()
            return
        with self._custody.kept(ground):
            self._tune(ground)

    def _elapsed_s(self) -> float:
        return self._host.clock.monotonic_s() - self._began_s

    # --- the course -------------------------------------------------------------------------------------

    def _begin(self, ground: Ground) -> Modes:
        """All that must be known before the first window: who else is there, the idle draw, the method."""
        host = self._host
        if self._config.job.sampler == "grid" and len(ground.space) > self._config.job.budget:
            self._warn(
                f"the grid sampler tries {self._config.job.budget} of {len(ground.space)} power modes, in order; "
                "--budget sets how many (and --max-duration-s how long)"
            )
        told = announcement(self._request, ground, self.result.arrival, host.clock.wall_s())
        self._marks = dict(self._request.workload_marks())
        record, given = space_record(ground.space), settings_given(self._config)
        self._started = {"workload_marks": self._marks, **identity_record(self._request, ground), **told}
        self._events.emit("job_started", space=record, settings=given, **self._started)
        check_gpu_is_free(host, ground.observer, self._cancellation)
        check_locking(host, self._config.grid.clocks)
        if not ground.observer.thermal().zones_c:
            self._warn(
                "no temperature can be read here: board.max_temp_c guards nothing, only the kernel's own trips do"
            )
        if self._request.has_idle:
            self.result.idle_power_w = self._idle_w(ground.meter)
        modes = self._custody.modes(ground)
        self.result.method = modes.method
        self._prepare(ground, modes)
        loaded = self._runner.load(ground.space.candidates[ground.space.reference].variant)
        self.result.inference_name = loaded.inference_name
        self.result.versions |= dict(loaded.versions)
        if runtime := dict(loaded.versions).get("tensorrt"):
            self._marks |= {RUNTIME: f"tensorrt {runtime}"}
        return modes

    def _prepare(self, ground: Ground, modes: Modes) -> None:
        """What the runner needs is made now, in the board's own mode: two builds of a model are not the same engine."""
        prepare = self._request.prepare
        if prepare is None:
            return
        modes.enter(ground.reference, ClocksPolicy.CAPPED, Why.REFERENCE)
        self._events.emit("mode_applied", index=ground.space.reference, policy=ClocksPolicy.CAPPED.value)
        for sentence in prepare(self._beat):
            self._warn(sentence)

    def _beat(self) -> None:
        """Each second in which a runner is waited for: builds and loads may take long."""
        self._cancellation.check()
        self._progress("load", self._host.clock.monotonic_s(), BUILD_S)

    def _tune(self, ground: Ground) -> None:
        modes, folder = self._begin(ground), self._host.state_dir
        self._trials = trials = self._make_trials(ground, modes)
        with open_storage(folder) as storage, study_errors(folder):
            earlier = [event for event in self._ledger.read().events if event.get("job") != self._id]
            if made := rebuild_missing(storage, earlier):
                self._warn(f"the study database lacked {made} earlier jobs; they were told again from the ledger")

            known, old = self._known(ground)
            rate_hz = self._runner.arrival.mean_rate_hz

            def make_search(bound_s: float | None) -> Search:
                return open_search(
                    self._request,
                    ground.space,
                    bound_s=bound_s,
                    rate_hz=rate_hz,
                    incumbent=old.index if old is not None and old.comes_first(known, bound_s) else None,
                    earlier=known.windows,
                    storage=storage,
                    study_name=study_name(self._id),
                )

            tuning = Tuning(
                self._request,
                trials,
                ground.incumbent,
                rate_hz=rate_hz,
                events=self._events,
                elapsed_s=self._elapsed_s,
                make_search=make_search,
                warn=self._warn,
                inference_name=self.result.inference_name,
            )
            finding = tuning.run()
        fill_sides(self.result, trials, finding)
        self._settle(finding.decision)
        self.result.applied = self._custody.enforce(ground, finding, trials, modes, self._marks)

    def _known(self, ground: Ground) -> tuple[Known, Old | None]:
        """What the search begins with besides the reference, said before the first window."""
        runtime = self._marks.get(RUNTIME)
        own = identity_of(self._started, runtime)
        known = known_before(self._host, ground, self._request, self._id, own)
        self.result.earlier_measurements = len(known.windows)
        policy = self._request.searched_policy.value
        self._events.emit("phase", phase="known", runtime=runtime, policy=policy, **known.as_fields())
        return known, find_old(self._host, ground, self._request, self._marks)

    def _idle_w(self, meter: Meter) -> float:
        job, external_w = self._config.job, self._config.board.external_w
        return measure_idle_w(
            self._host.clock, meter, self._wait_idle, rate_hz=job.sample_rate_hz, external_w=external_w
        )

    def _wait_idle(self) -> None:
        for _ in range(_IDLE_STEPS):
            self._cancellation.sleep(self._host.clock, 1.0)
            self._progress("idle", self._host.clock.monotonic_s(), float(_IDLE_STEPS))

    def _make_trials(self, ground: Ground, modes: Modes) -> Trials:
        measurer = Measurer(
            self._host,
            ground.domains,
            ground.meter,
            self._runner,
            self._request.settings(),
            cancellation=self._cancellation,
            progress=self._progress,
            observer=ground.observer,
        )
        return Trials(
            self._host,
            ground.space,
            modes,
            measurer,
            self._runner,
            percentile=self._config.target.latency_percentile,
            record=self._recorder.keep,
            on_applied=lambda index, policy: self._events.emit("mode_applied", index=index, policy=policy.value),
            warn=self._warn,
        )

    def _progress(self, phase: str, now_s: float, duration_s: float, seen: Mapping[str, Any] = {}, /) -> None:
        self._events.emit("progress", phase=phase, elapsed_s=now_s - self._began_s, stretch_s=duration_s, **seen)

    # --- the result -------------------------------------------------------------------------------------

    def _settle(self, decision: Decision) -> None:
        """The decision is known: say it and keep it, before anything is done about it."""
        self.result.outcome = decision.outcome.value
        self.result.reason_code = None if decision.code is None else decision.code.value
        self.result.reason_text = decision.text
        self._events.emit(
            "decision",
            outcome=decision.outcome.value,
            reason={"code": self.result.reason_code, "text": decision.text},
            saving_ratio=decision.saving_ratio,
            saving_interval=decision.saving_interval,
        )

    def _conclude(self, outcome: Outcome, code: ReasonCode | None, error: JouledError) -> None:
        log.info("%s", error)  # an outcome, which whoever asked says
        self.result.hint = error.hint
        self.result.forget_decision()
        self._settle(stopped(outcome, code, str(error)))

    def _conclude_workload(self, error: WorkloadError) -> None:
        """The first variant could not be run at all."""
        if error.code == OUT_OF_MEMORY:
            self._conclude(Outcome.NO_FEASIBLE, ReasonCode.MEMORY, error)
            return
        code = ReasonCode.WORKLOAD_HUNG if isinstance(error, WorkloadHungError) else ReasonCode.WORKLOAD_DIED
        self._conclude(Outcome.WORKLOAD_FAILED, code, WorkloadError(error.told, hint=error.hint))

    def _finish(self) -> None:
        if self._trials is not None:
            fill_reference(self.result, self._trials)
            if self.result.best_seen is None:
                fill_best(self.result, self._trials)
            fill_counts(self.result, self._trials.account)
        self._events.emit("finished", result=self.result.as_json())

    def _warn(self, text: str) -> None:
        self.result.warnings.append(text)
        self._events.warn(text)

    def _keep(self, event: Event) -> None:
        """The ledger's sink; progress is for those who watch."""
        if event["event"] != "progress":
            self._ledger.append(finite(event))
