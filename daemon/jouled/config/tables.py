"""The tables of config.toml: every key with its type, range, unit and default, each in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args

from jouled.config.kinds import (
    Kind,
    Shape,
    address,
    choice,
    daily_window,
    flag,
    integer,
    many,
    number,
    one_or_many,
    optional,
    or_word,
    path,
    shape,
    tensor_shapes,
    text,
)

T = TypeVar("T")

Mode = Literal["tune", "observe"]
Objective = Literal["energy", "energy_delay", "throughput"]
Precision = Literal["fp32", "fp16"]
WorkloadKind = Literal["tensorrt", "trtexec", "command"]
Sync = Literal["blocking", "spin"]
ArrivalKind = Literal["rate", "back_to_back", "trace"]
MeterKind = Literal["auto", "sysfs", "nvml", "jtop"]
PartialRails = Literal["refuse", "partial"]
MethodWanted = Literal["auto", "nvpmodel", "sysfs"]
Clocks = Literal["capped", "locked", "both"]
Sampler = Literal["joule", "descent", "tpe", "grid", "random"]
TuneOnStart = Literal["never", "if_untuned"]
OnChange = Literal["report", "retune"]
OnMismatch = Literal["reapply", "report", "retune"]
OnStop = Literal["keep", "restore"]

WORKLOAD_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_MODE_NAME = r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}"
_UNIT = r"[A-Za-z0-9:_.\\@-]{1,250}\.(service|socket|target|timer|path|slice|scope|mount)"
_SECONDS = number(0.000001, 3600, "s")


def _key(kind: Kind[T], default: T) -> T:
    """A field with its kind; a dataclass reads the rest."""
    made: Any = field(default=default, metadata={"kind": kind})
    return made  # type: ignore[no-any-return]  # dataclasses.field is typed as its default, too


def _map(kind: Kind[dict[str, T]]) -> Mapping[str, T]:
    made: Any = field(default_factory=dict, metadata={"kind": kind})
    return made  # type: ignore[no-any-return]  # as above


def kind_of(spec: Field[Any]) -> Kind[Any]:
    """The kind that a field of a table was declared with."""
    kind: Kind[Any] = spec.metadata["kind"]
    return kind


def default_of(spec: Field[Any]) -> Any:
    """The value of a key that is left out."""
    return spec.default_factory() if spec.default_factory is not MISSING else spec.default


@dataclass(frozen=True, slots=True)
class TargetTable:
    """What "good" means."""

    latency_percentile: float = _key(number(50, 99.9, "%"), 95.0)
    latency_bound_s: float | None = _key(optional(_SECONDS), None)
    latency_bound_ratio: float | None = _key(optional(number(0.1, 100, "x the reference's latency")), None)
    no_latency_bound: bool = _key(flag(), False)
    max_latency_bound_s: float | None = _key(optional(_SECONDS), None)
    min_gain: float = _key(number(0, 0.5, "(0.02 = 2 %)"), 0.02)
    max_power_w: float | None = _key(optional(number(0.5, 1000, "W")), None)
    objective: Objective = _key(choice(get_args(Objective)), "energy")

    def has_bound(self) -> bool:
        """Does the configuration say what holds for latency?"""
        return self.no_latency_bound or self.latency_bound_s is not None or self.latency_bound_ratio is not None


@dataclass(frozen=True, slots=True)
class WorkloadTable:
    """Which of the workloads is meant where none is named."""

    default: str = _key(text(WORKLOAD_NAME, "the name of a workload"), "detector")


@dataclass(frozen=True, slots=True)
class WorkloadEntry:
    """One workload: what is run and how its requests arrive."""

    kind: WorkloadKind = _key(choice(get_args(WorkloadKind)), "tensorrt")
    engine: tuple[str, ...] = _key(one_or_many(path(), of="them"), ())
    onnx: tuple[str, ...] = _key(one_or_many(path(), of="them"), ())
    python: str = _key(path(), "/usr/bin/python3")
    batch: tuple[int, ...] = _key(many(integer(1, 4096), of="integers 1 to 4096", empty=False), (1,))
    instances: tuple[int, ...] = _key(many(integer(1, 64), of="integers 1 to 64", empty=False), (1,))
    shapes: Mapping[str, tuple[int, ...]] = _map(tensor_shapes())
    inputs: str | None = _key(optional(path(".npz")), None)
    outputs: str | None = _key(optional(path(".npz")), None)
    tolerance: float = _key(number(0, 1), 1e-2)
    sync: Sync = _key(choice(get_args(Sync)), "blocking")
    cuda_graph: bool = _key(flag(), False)
    precision: Precision = _key(choice(get_args(Precision)), "fp32")
    arrival: ArrivalKind = _key(choice(get_args(ArrivalKind)), "rate")
    rate_hz: float | None = _key(optional(number(0.001, 100_000, "requests per second")), None)
    trace: str | None = _key(optional(path()), None)
    inference_name: str = _key(text(r"[a-z][a-z0-9_ -]{0,31}", "a noun in lower case, at most 32 letters"), "frame")
    user: str | None = _key(optional(text(r"[a-z_][a-z0-9_-]{0,31}", "the name of a user")), None)
    argv: tuple[str, ...] = _key(many(text(r".*", "text"), of="a program and its arguments", distinct=False), ())


@dataclass(frozen=True, slots=True)
class BoardTable:
    """How the board is read and written."""

    base_mode: str = _key(text(_MODE_NAME, 'the name of an nvpmodel mode, or "current"'), "current")
    meter: MeterKind = _key(choice(get_args(MeterKind)), "auto")
    total_rails: tuple[str, ...] = _key(many(text(r"[A-Za-z0-9_+.-]{1,64}", "a rail's label"), of="rail labels"), ())
    on_partial_rails: PartialRails = _key(choice(get_args(PartialRails)), "refuse")
    external_w: float = _key(number(0, 500, "W"), 0.0)
    method: MethodWanted = _key(choice(get_args(MethodWanted)), "auto")
    max_temp_c: float = _key(number(40, 105, "°C"), 90.0)
    boot_delay_s: float = _key(number(0, 3600, "s"), 60.0)


@dataclass(frozen=True, slots=True)
class GridTable:
    """Which power modes a job chooses from."""

    size: int | Literal["full"] = _key(or_word(integer(2, 100_000, "power modes at most"), "full"), 96)
    shape: Shape | None = _key(optional(shape()), None)
    cpu_hz: tuple[int, ...] = _key(many(integer(1_000_000, 10**11), of="clocks in Hz, 1e6 to 1e11"), ())
    gpu_hz: tuple[int, ...] = _key(many(integer(1_000_000, 10**11), of="clocks in Hz, 1e6 to 1e11"), ())
    emc_hz: tuple[int, ...] = _key(many(integer(1_000_000, 10**11), of="clocks in Hz, 1e6 to 1e11"), ())
    cores: tuple[int, ...] = _key(many(integer(1, 64), of="core counts 1 to 64"), ())
    emc_floor_hz: int | Literal["auto"] = _key(or_word(integer(1, 10**11, "Hz"), "auto"), "auto")
    clocks: Clocks = _key(choice(get_args(Clocks)), "capped")


@dataclass(frozen=True, slots=True)
class JobTable:
    """How one tuning run searches and measures."""

    sampler: Sampler = _key(choice(get_args(Sampler)), "joule")
    budget: int = _key(integer(2, 10_000, "windows"), 15)
    max_duration_s: float = _key(number(60, 604_800, "s"), 1800.0)
    risk: float | None = _key(optional(number(0.001, 0.5, "(0.05 = 5 %)")), None)
    settle_min_s: float = _key(number(0, 60, "s"), 10.0)
    settle_max_s: float = _key(number(0, 600, "s"), 60.0)
    pilot_s: float = _key(number(1, 60, "s"), 10.0)
    window_min_s: float = _key(number(1, 300, "s"), 16.0)
    window_max_s: float = _key(number(1, 300, "s"), 60.0)
    finals_windows: int = _key(integer(9, 48, "windows"), 12)
    energy_error_target: float = _key(number(0.0005, 0.2, "(0.005 = 0.5 %)"), 0.005)
    sample_rate_hz: float = _key(number(0.5, 100, "Hz"), 5.0)
    watch_s: float = _key(number(0, 3600, "s"), 60.0)
    stop_units: tuple[str, ...] = _key(many(text(_UNIT, "the name of a unit"), of="systemd units"), ())
    guard: tuple[str, ...] = _key(many(text(r".*", "text"), of="a program and its arguments", distinct=False), ())
    memory_reserve_bytes: int = _key(integer(0, 10**12, "bytes"), 536_870_912)
    keep_samples: bool = _key(flag(), False)
    fresh: bool = _key(flag(), False)


@dataclass(frozen=True, slots=True)
class WhenTable:
    """When a job starts by itself."""

    tune_on_start: TuneOnStart = _key(choice(get_args(TuneOnStart)), "never")
    on_engine_change: OnChange = _key(choice(get_args(OnChange)), "report")
    on_fingerprint_change: OnChange = _key(choice(get_args(OnChange)), "report")
    window: str | None = _key(optional(daily_window()), None)
    max_start_temp_c: float = _key(number(0, 105, "°C"), 70.0)


@dataclass(frozen=True, slots=True)
class KeepTable:
    """How a winner is kept in force."""

    verify_interval_s: float = _key(number(1, 3600, "s"), 10.0)
    on_mismatch: OnMismatch = _key(choice(get_args(OnMismatch)), "reapply")
    on_stop: OnStop = _key(choice(get_args(OnStop)), "keep")


@dataclass(frozen=True, slots=True)
class ControlTable:
    """Who may change things over the socket."""

    change_group: str = _key(text(r"([a-z_][a-z0-9_-]{0,31})?", 'the name of a group, or "" for root only'), "")


@dataclass(frozen=True, slots=True)
class MetricsTable:
    """Where the metrics go."""

    listen: str = _key(address(), "127.0.0.1:19761")
    textfile: str | None = _key(optional(path(".prom")), None)
    energy_counter_hz: float = _key(number(0, 5, "Hz (0 = off)"), 0.0)


@dataclass(frozen=True, slots=True)
class StoreTable:
    """Where state is kept, and how much of it."""

    state_dir: str = _key(path(), "/var/lib/jouled")
    keep_jobs: int = _key(integer(1, 100_000, "jobs"), 200)


@dataclass(frozen=True, slots=True)
class Config:
    """All of config.toml, checked. `origins` says for each key (`table.key`) where its value came from."""

    schema: int = _key(integer(1, 1), 1)
    mode: Mode = _key(choice(get_args(Mode)), "tune")
    target: TargetTable = field(default_factory=TargetTable)
    workload: WorkloadTable = field(default_factory=WorkloadTable)
    workloads: Mapping[str, WorkloadEntry] = field(default_factory=dict)
    board: BoardTable = field(default_factory=BoardTable)
    grid: GridTable = field(default_factory=GridTable)
    job: JobTable = field(default_factory=JobTable)
    when: WhenTable = field(default_factory=WhenTable)
    keep: KeepTable = field(default_factory=KeepTable)
    control: ControlTable = field(default_factory=ControlTable)
    metrics: MetricsTable = field(default_factory=MetricsTable)
    store: StoreTable = field(default_factory=StoreTable)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def values(self) -> dict[str, object]:
        """`table.key` → value, in the order of the file."""
        return {name: getattr(table, spec.name) for name, spec, table in self._each()}

    def origin(self, name: str) -> str:
        """Where the value of `table.key` came from: "default", the file's path, "request", "command line"."""
        return self.origins.get(name, "default")

    def chosen(self) -> WorkloadEntry | None:
        """The workload that `workload.default` names; None where the configuration names none at all."""
        return self.workloads.get(self.workload.default)

    def _each(self) -> Iterator[tuple[str, Field[Any], object]]:
        for prefix, table in self.tables():
            for spec in fields(table):  # type: ignore[arg-type]  # each table is a dataclass
                if "kind" in spec.metadata:
                    yield f"{prefix}{spec.name}", spec, table

    def tables(self) -> Iterator[tuple[str, object]]:
        """(prefix, table) in the order of the file: "" for the top, "target.", "workloads.detector.", …"""
        yield "", self
        for name in TABLES:
            if name == "workloads":
                for entry, workload in self.workloads.items():
                    yield f"workloads.{entry}.", workload
            else:
                yield f"{name}.", getattr(self, name)


TABLES: Mapping[str, type[Any]] = {
    "target": TargetTable,
    "workload": WorkloadTable,
    "workloads": WorkloadEntry,
    "board": BoardTable,
    "grid": GridTable,
    "job": JobTable,
    "when": WhenTable,
    "keep": KeepTable,
    "control": ControlTable,
    "metrics": MetricsTable,
    "store": StoreTable,
}


def keys_of(table: str) -> dict[str, Field[Any]]:
    """Key → field of a table ("" is the top)."""
    return {spec.name: spec for spec in fields(TABLES.get(table, Config)) if "kind" in spec.metadata}
