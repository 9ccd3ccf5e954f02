"""What keys must not be told together: checks across keys, once each key alone is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jouled.config.kinds import shown
from jouled.config.tables import Config, WorkloadEntry

BOUNDS = ("target.latency_bound_s", "target.latency_bound_ratio", "target.no_latency_bound")
GRIDS = ("grid.size", "grid.shape", "grid.cpu_hz", "grid.gpu_hz", "grid.emc_hz")
_OWN_UNITS = ("jouled.service", "jouled.socket", "jouled-worker.service", "jouled-worker.socket")


@dataclass(frozen=True, slots=True)
class Conflict:
    """Keys that do not fit together; the first one is named in front of the message."""

    keys: tuple[str, ...]
    text: str


def conflicts(config: Config) -> Iterator[Conflict]:
    """Each thing that does not fit, in the order of the file."""
    yield from _target(config)
    yield from _workloads(config)
    yield from _grid(config)
    yield from _job(config)
    yield from _unattended(config)


def _target(config: Config) -> Iterator[Conflict]:
    target = config.target
    told = [name for name in BOUNDS if config.values[name] not in (None, False)]
    if len(told) > 1:
        yield Conflict(tuple(told), f"wanted one bound, got {' and '.join(told)}; leave one of them")
    if target.no_latency_bound and target.max_latency_bound_s is not None:
        keys = ("target.no_latency_bound", "target.max_latency_bound_s")
        yield Conflict(keys, "wanted a bound, because target.max_latency_bound_s limits it; leave one of the two out")
    bound_s, limit_s = target.latency_bound_s, target.max_latency_bound_s
    if bound_s is not None and limit_s is not None and bound_s > limit_s:
        keys = ("target.latency_bound_s", "target.max_latency_bound_s")
        yield Conflict(keys, f"wanted at most target.max_latency_bound_s ({limit_s} s), got {bound_s} s; lower it")
    if target.objective == "throughput" and target.max_power_w is None:
        keys = ("target.objective", "target.max_power_w")
        yield Conflict(keys, '"throughput" needs a limit of power; give target.max_power_w (--max-power-w), in watts')


def _workloads(config: Config) -> Iterator[Conflict]:
    name = config.workload.default
    if name not in config.workloads and (config.workloads or config.origin("workload.default") != "default"):
        known = " | ".join(config.workloads)
        text = f"wanted one of the workloads: {known}; got {shown(name)}; name one of them, or add [workloads.{name}]"
        if not known:
            text = f"there is no workload {shown(name)}, nor any other; add a table [workloads.{name}]"
        yield Conflict(("workload.default", "workloads"), text)
    for name, workload in config.workloads.items():
        yield from _run(f"workloads.{name}", workload)
        yield from _arrival(f"workloads.{name}", workload)


def _run(where: str, workload: WorkloadEntry) -> Iterator[Conflict]:
    engines = (f"{where}.engine", f"{where}.onnx")
    if workload.kind == "command":
        if not workload.argv:
            yield Conflict((f"{where}.argv", f"{where}.kind"), '"command" needs it: the program and its arguments')
        if workload.engine or workload.onnx:
            yield Conflict((*engines, f"{where}.kind"), 'a workload of kind "command" loads none; leave it out')
        return
    if workload.argv:
        text = f'only kind = "command" runs a program of yours, this one is "{workload.kind}"; leave it out'
        yield Conflict((f"{where}.argv", f"{where}.kind"), text)
    for key, other, paths, is_wrong in (
        ("engine", "onnx", workload.engine, lambda path: path.endswith(".onnx")),
        ("onnx", "engine", workload.onnx, lambda path: path.endswith((".plan", ".engine", ".trt"))),
    ):
        if wrong := next(filter(is_wrong, paths), None):
            what = "a model, no built plan" if key == "engine" else "a built plan, no model"
            yield Conflict((f"{where}.{key}",), f"{shown(wrong)} is {what}, by its name; it goes in {where}.{other}")
    if bool(workload.engine) == bool(workload.onnx):
        got = "both" if workload.engine else "neither"
        yield Conflict(
            (*engines, f"{where}.kind"),
            f"wanted either {engines[0]} (a built plan) or {engines[1]} (built once, then kept), got {got}",
        )


def _arrival(where: str, workload: WorkloadEntry) -> Iterator[Conflict]:
    needs = {"rate": ("rate_hz", workload.rate_hz), "trace": ("trace", workload.trace)}
    for arrival, (key, value) in needs.items():
        keys = (f"{where}.{key}", f"{where}.arrival")
        if workload.arrival == arrival and value is None:
            advice = (
                'your camera\'s rate; or set arrival = "back_to_back"' if arrival == "rate" else "a CSV of arrivals"
            )
            yield Conflict(keys, f'arrival = "{arrival}" needs it: {advice}')
        if workload.arrival != arrival and value is not None:
            text = f'it goes with arrival = "{arrival}", and arrival is "{workload.arrival}"; change one of the two'
            yield Conflict(keys, text)
    if workload.arrival != "back_to_back" and len(workload.batch) > 1:
        # at 30 requests a second another batch is another load, and its energy per item says nothing about this one
        got = f"since requests are counted, not items, got {shown(workload.batch)}"
        advice = f'wanted one batch size, {got}; leave one, or set arrival = "back_to_back"'
        yield Conflict((f"{where}.batch", f"{where}.arrival"), advice)


def _grid(config: Config) -> Iterator[Conflict]:
    told = [name for name in GRIDS if config.origin(name) != "default" and config.values[name]]
    others = [name for name in told if name != "grid.shape"]
    if "grid.shape" in told and others:
        text = f"it already says how many points each domain has; leave out {' and '.join(others)}, or it"
        yield Conflict(("grid.shape", *others), text)


def _job(config: Config) -> Iterator[Conflict]:
    job = config.job
    if job.window_min_s > job.window_max_s:
        text = f"wanted at most job.window_max_s ({job.window_max_s} s), got {job.window_min_s} s"
        yield Conflict(("job.window_min_s", "job.window_max_s"), text)
    if job.settle_min_s > job.settle_max_s:
        text = f"wanted at most job.settle_max_s ({job.settle_max_s} s), got {job.settle_min_s} s"
        yield Conflict(("job.settle_min_s", "job.settle_max_s"), text)
    if job.max_duration_s <= job.watch_s + 60:
        text = f"wanted more than job.watch_s + 60 s ({job.watch_s + 60} s), got {job.max_duration_s} s"
        yield Conflict(("job.max_duration_s", "job.watch_s"), f"{text}; a job needs about 1800 s")
    if job.risk is not None and job.sampler != "joule":
        text = f"only a sampler with a model knows the risk of what it has not measured, got {shown(job.sampler)}"
        yield Conflict(("job.risk", "job.sampler"), f'{text}; set job.sampler = "joule"')
    own = [unit for unit in job.stop_units if unit in _OWN_UNITS]
    if own:
        yield Conflict(("job.stop_units",), f"{own[0]} would stop the job itself; leave it out")
    if config.when.max_start_temp_c > config.board.max_temp_c:
        text = f"wanted at most board.max_temp_c ({config.board.max_temp_c} °C), got {config.when.max_start_temp_c} °C"
        yield Conflict(("when.max_start_temp_c", "board.max_temp_c"), text)


def _unattended(config: Config) -> Iterator[Conflict]:
    """A job that starts by itself has no request that could bring a bound."""
    starts = {
        "when.tune_on_start": config.when.tune_on_start == "if_untuned",
        "when.on_engine_change": config.when.on_engine_change == "retune",
        "when.on_fingerprint_change": config.when.on_fingerprint_change == "retune",
        "keep.on_mismatch": config.keep.on_mismatch == "retune",
    }
    for name, alone in starts.items():
        if alone and not config.target.has_bound():
            got = shown(config.values[name])
            yield Conflict((name, *BOUNDS), f"{got} starts jobs that need a bound; set one of {', '.join(BOUNDS)}")
