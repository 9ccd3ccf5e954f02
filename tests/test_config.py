"""config.toml: what is taken, what is refused and in which words, and where each value came from."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jouled.config import REQUEST_KEYS, Config, Shape, WorkloadEntry, check_owner, load, render
from jouled.config.kinds import Kind, Unfit, toml
from jouled.config.tables import TABLES, default_of, keys_of, kind_of
from jouled.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
DETECTOR = """
[workloads.detector]
engine = "/opt/app/detector.plan"
rate_hz = 30.0
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def _refused(folder: Path, text: str, **more: Any) -> list[str]:
    """The lines of the error that `text` is answered with, without the file's name."""
    path = _write(folder, text)
    with pytest.raises(ConfigError) as caught:
        load(path, **more)
    return [line.removeprefix(f"{path}: ") for line in str(caught.value).splitlines()]


def test_no_file_and_an_empty_file_both_give_the_defaults(tmp_path: Path) -> None:
    assert load(None) == Config() == load(_write(tmp_path, ""))
    assert load(None).target.latency_percentile == 95.0
    assert load(None).chosen() is None


def test_shipped_config_holds_exactly_the_defaults() -> None:
    shipped = load(ROOT / "units" / "config.toml")
    example = WorkloadEntry(engine=("/opt/app/detector.plan",), rate_hz=30.0)
    assert shipped == Config(workloads={"detector": example})


def test_shipped_config_names_every_key_there_is() -> None:
    text = (ROOT / "units" / "config.toml").read_text()
    written: dict[str, set[str]] = {}
    table = ""
    for line in text.splitlines():
        if heading := re.match(r"\[(\w+)", line):
            table = heading[1]
        for key in re.findall(r"(?:^|^# |# or |instead |likewise |, )(\w+)(?= = |,|$)", line):
            written.setdefault(table, set()).add(key)
    for name in ("", *TABLES):
        assert set(keys_of(name)) <= written[name], name


def test_config_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        load(None).target.min_gain = 0.5  # type: ignore[misc]


def test_precedence_is_command_line_request_file_default_and_the_origin_is_told(tmp_path: Path) -> None:
    path = _write(tmp_path, "[target]\nmin_gain = 0.03\n[job]\nbudget = 20\nwatch_s = 30\n" + DETECTOR)
    config = load(path, {"target.min_gain": 0.05}, request={"min_gain": 0.04, "budget": 30})
    assert (config.target.min_gain, config.job.budget, config.job.watch_s) == (0.05, 30, 30.0)
    origins = [config.origin(key) for key in ("target.min_gain", "job.budget", "job.watch_s", "job.sampler")]
    assert origins == ["command line", "request", str(path), "default"]


def test_overrides_of_none_count_as_not_given() -> None:
    assert load(None, {"target.min_gain": None}, request={"budget": None}).origins == {}


def test_overrides_are_named_as_the_caller_names_them() -> None:
    with pytest.raises(ConfigError, match=r"^jouled tune: target\.min_gain: wanted a number from 0 to 0\.5"):
        load(None, {"target.min_gain": 2}, "jouled tune")
    assert load(None, {"target.min_gain": 0.1}, "jouled tune").origin("target.min_gain") == "jouled tune"


def test_a_bound_told_later_takes_the_place_of_another_kind_of_bound(tmp_path: Path) -> None:
    path = _write(tmp_path, "[target]\nlatency_bound_s = 0.033\n" + DETECTOR)
    target = load(path, {"target.latency_bound_ratio": 1.2}).target
    assert (target.latency_bound_s, target.latency_bound_ratio) == (None, 1.2)
    assert load(path, {"target.no_latency_bound": False}).target.latency_bound_s == 0.033
    target = load(path, {"target.no_latency_bound": True}, request={"latency_bound_ratio": 1.5}).target
    assert (target.latency_bound_s, target.latency_bound_ratio, target.no_latency_bound) == (None, None, True)


def test_a_shape_on_the_command_line_takes_the_place_of_the_files_size(tmp_path: Path) -> None:
    path = _write(tmp_path, '[grid]\nsize = "full"\n' + DETECTOR)
    grid = load(path, {"grid.shape": "3x8x4"}).grid
    assert (grid.shape, grid.size) == (Shape(emc=3, gpu=8, cpu=4), 96)


def test_a_relative_path_object_is_taken_from_the_working_directory() -> None:
    assert load(None, {"store.state_dir": Path("build/demo")}).store.state_dir == os.path.abspath("build/demo")


def test_a_file_may_hold_absolute_paths_alone(tmp_path: Path) -> None:
    assert _refused(tmp_path, '[store]\nstate_dir = "state"\n') == [
        'store.state_dir: wanted an absolute path in quotes, got "state"; '
        "write the whole path: the worker does not run in your folder"
    ]


def test_overrides_may_set_a_key_of_a_named_workload_only(tmp_path: Path) -> None:
    path = _write(tmp_path, DETECTOR)
    assert load(path, {"workloads.detector.rate_hz": 60}).workloads["detector"].rate_hz == 60.0
    with pytest.raises(ConfigError, match=r"workloads\.other\.rate_hz: no such workload"):
        load(path, {"workloads.other.rate_hz": 60})


def test_everything_wrong_in_a_file_is_said_at_once(tmp_path: Path) -> None:
    text = '[target]\nmin_gain = 3\n[board]\nmethod = "magic"\n[job]\nbudget = 1.5\nwindow_min_s = 70\n' + DETECTOR
    assert _refused(tmp_path, text) == [
        "target.min_gain: wanted a number from 0 to 0.5 (0.02 = 2 %), got 3; leave it out for the default 0.02",
        'board.method: wanted auto | nvpmodel | sysfs, got "magic"; leave it out for the default "auto"',
        "job.budget: wanted an integer 2 to 10000 windows, got 1.5; leave it out for the default 15",
        "job.window_min_s: wanted at most job.window_max_s (60.0 s), got 70.0 s",
    ]


def test_errors_say_what_to_type_next(tmp_path: Path) -> None:
    path = _write(tmp_path, "schema = 2\n")
    with pytest.raises(ConfigError, match="schema: wanted 1, got 2") as caught:
        load(path)
    assert caught.value.hint == f"mend it, then: jouled check-config --config {path}"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[target]\nmin_gian = 0.1", "target.min_gian: no such key; did you mean target.min_gain?"),
        ("[tarjet]\nmin_gain = 0.1", "tarjet: no such table; did you mean [target]?"),
        ("min_gain = 0.1", "min_gain: no such key; did you mean target.min_gain?"),
        ("[job]\nmin_gain = 0.1", "job.min_gain: no such key; did you mean target.min_gain?"),
        ("[job]\nrate_hz = 30", "job.rate_hz: no such key; did you mean workloads.NAME.rate_hz?"),
        (
            DETECTOR + "ratehz = 30.0",
            "workloads.detector.ratehz: no such key; did you mean workloads.detector.rate_hz?",
        ),
        ("zzzzzz = 1", "zzzzzz: no such key; leave it out (every key: docs/configuration.md)"),
        ("target = 1", "target: wanted a table [target], got 1"),
        ("[[job]]\nbudget = 15", "job: wanted a table [job], got [{ budget = 15 }]"),
        ("[workloads]\ndetector = 1", 'workloads: wanted tables [workloads.NAME], got "detector" = 1'),
        (
            DETECTOR + '[workloads."a b"]\n',
            'workloads: wanted a name of letters, digits, - and _, at most 64 of them, got "a b"; rename the table',
        ),
    ],
)
def test_unknown_keys_are_errors_that_name_the_nearest_known_one(tmp_path: Path, text: str, wanted: str) -> None:
    assert _refused(tmp_path, text) == [wanted]


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('[target]\nobjective = "throughput"', "target.objective", "--max-power-w), in watts"),
        ("[target]\nlatency_bound_s = 1\nlatency_bound_ratio = 1.1", "target.latency_bound_s", "wanted one bound"),
        ("[target]\nlatency_bound_s = 1\nno_latency_bound = true", "target.latency_bound_s", "wanted one bound"),
        ("[target]\nlatency_bound_s = 1\nmax_latency_bound_s = 0.5", "target.latency_bound_s", "(0.5 s), got 1.0 s"),
        ("[target]\nno_latency_bound = true\nmax_latency_bound_s = 1", "target.no_latency_bound", "wanted a bound"),
        ('[workload]\ndefault = "planner"', "workload.default", 'wanted one of the workloads: detector; got "planner"'),
        ("[job]\nwindow_min_s = 61", "job.window_min_s", "wanted at most job.window_max_s (60.0 s), got 61.0 s"),
        ("[job]\nmax_duration_s = 120", "job.max_duration_s", "wanted more than job.watch_s + 60 s (120.0 s)"),
        ('[job]\nstop_units = ["jouled.service"]', "job.stop_units", "would stop the job itself"),
        ("[when]\nmax_start_temp_c = 95", "when.max_start_temp_c", "wanted at most board.max_temp_c (90.0 °C)"),
        ('[when]\ntune_on_start = "if_untuned"', "when.tune_on_start", "need a bound"),
        ('[when]\non_engine_change = "retune"', "when.on_engine_change", "need a bound"),
        ('[when]\non_fingerprint_change = "retune"', "when.on_fingerprint_change", "need a bound"),
        ('[keep]\non_mismatch = "retune"', "keep.on_mismatch", "need a bound"),
        ('[grid]\nsize = 50\nshape = "3x8x4"', "grid.shape", "leave out grid.size, or it"),
        ('[grid]\nshape = "3x8x4"\ncpu_hz = [1e9, 2e9]', "grid.shape", "leave out grid.cpu_hz, or it"),
    ],
)
def test_keys_that_do_not_fit_together_are_refused(tmp_path: Path, text: str, key: str, words: str) -> None:
    lines = _refused(tmp_path, text + DETECTOR)
    assert len(lines) == 1
    assert lines[0].startswith(f"{key}: ")
    assert words in lines[0]


@pytest.mark.parametrize(
    ("body", "key", "words"),
    [
        ("engine = '/a.plan'", "rate_hz", "your camera's rate"),
        ("engine = '/a.plan'\narrival = 'trace'", "trace", "a CSV of arrivals"),
        ("engine = '/a.plan'\narrival = 'back_to_back'\nrate_hz = 30", "rate_hz", 'arrival is "back_to_back"'),
        ("engine = '/a.plan'\nrate_hz = 30\ntrace = '/a.csv'", "trace", 'arrival is "rate"'),
        ("engine = '/a.plan'\nrate_hz = 30\nbatch = [1, 4]", "batch", "not items, got [1, 4]"),
        ("rate_hz = 30", "engine", "got neither"),
        ("rate_hz = 30\nengine = '/a.plan'\nonnx = '/a.onnx'", "engine", "got both"),
        ("rate_hz = 30\nkind = 'command'", "argv", "the program and its arguments"),
        ("rate_hz = 30\nkind = 'command'\nargv = ['/a']\nengine = '/a.plan'", "engine", "loads none"),
        ("rate_hz = 30\nengine = '/a.plan'\nargv = ['/a']", "argv", 'this one is "tensorrt"'),
    ],
)
def test_a_workload_that_cannot_be_run_is_refused(tmp_path: Path, body: str, key: str, words: str) -> None:
    lines = _refused(tmp_path, f"[workloads.detector]\n{body}\n")
    assert len(lines) == 1
    assert lines[0].startswith(f"workloads.detector.{key}: ")
    assert words in lines[0]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("engine = '/a.plan'\nrate_hz = '30'", 'got "30"; write it without quotes'),
        (
            "engine = '/a.plan'\nargv = '/usr/bin/python3 /opt/app/loop.py'",
            'got "/usr/bin/python3 /opt/app/loop.py"; put',
        ),
        ("engine = '/a.onnx'", '"/a.onnx" is a model, no built plan, by its name; it goes in workloads.detector.onnx'),
        (
            "onnx = '/a.engine'",
            '"/a.engine" is a built plan, no model, by its name; it goes in workloads.detector.engine',
        ),
    ],
)
def test_what_was_probably_meant_is_said(tmp_path: Path, lines: str, said: str) -> None:
    assert any(said in line for line in _refused(tmp_path, f"[workloads.detector]\n{lines}\n"))


def test_without_workloads_none_is_offered(tmp_path: Path) -> None:
    (line,) = _refused(tmp_path, "[workload]\ndefault = 'nope'\n")
    assert line == 'workload.default: there is no workload "nope", nor any other; add a table [workloads.nope]'


def test_a_wrong_value_does_not_bring_a_second_error_about_the_same_key(tmp_path: Path) -> None:
    lines = _refused(tmp_path, "[workloads.detector]\nengine = '/a.plan'\nrate_hz = 'fast'\n")
    assert lines == [
        'workloads.detector.rate_hz: wanted a number from 0.001 to 100000 requests per second, got "fast"; change it'
    ]


def test_one_engine_or_several_are_both_a_tuple(tmp_path: Path) -> None:
    body = "[workloads.detector]\nrate_hz = 30\nengine = {}\n"
    one = load(_write(tmp_path, body.format("'/a.plan'"))).chosen()
    two = load(_write(tmp_path, body.format("['/a.plan', '/b.plan']"))).chosen()
    assert one is not None
    assert two is not None
    assert (one.engine, two.engine) == (("/a.plan",), ("/a.plan", "/b.plan"))


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "true", '"0.02"', "[0.02]", "-0.001", "0.51", "1e400"])
def test_what_is_no_number_in_its_range_is_refused(tmp_path: Path, value: str) -> None:
    assert len(_refused(tmp_path, f"[target]\nmin_gain = {value}\n")) == 1


def _numeric_bounds() -> list[tuple[str, Kind[Any], float, float]]:
    found = []
    for table in ("", *TABLES):
        for name, spec in keys_of(table).items():
            kind = kind_of(spec)
            if match := re.match(r"an? (?:number from|integer) (\S+) to (\S+)", kind.wanted):
                found.append((f"{table}.{name}", kind, float(match[1]), float(match[2])))
    return found


@pytest.mark.parametrize(("name", "kind", "low", "high"), _numeric_bounds())
def test_both_ends_of_a_range_are_taken_and_nothing_beyond(name: str, kind: Kind[Any], low: float, high: float) -> None:
    assert (kind.take(low), kind.take(high)) == (low, high), name
    for beyond in (low - 1e-7 if high <= 1 else low - 1, high + 0.01 * high):
        with pytest.raises(Unfit):
            kind.take(beyond)


def test_each_default_is_of_its_own_kind() -> None:
    for table in ("", *TABLES):
        for name, spec in keys_of(table).items():
            default = default_of(spec)
            if default not in (None, ()):
                assert kind_of(spec).take(default) == default, f"{table}.{name}"


def test_a_request_may_name_numbers_and_names_but_no_path_or_program(tmp_path: Path) -> None:
    path = _write(tmp_path, DETECTOR)
    with pytest.raises(ConfigError, match=r"^request: stat_dir: no such key; a request may name workload, "):
        load(path, request={"stat_dir": "/tmp"})
    with pytest.raises(ConfigError, match=r"^request: budgte: no such key; did you mean budget\?"):
        load(path, request={"budgte": 3})
    for name, key in REQUEST_KEYS.items():
        table, _, last = key.partition(".")
        assert "path" not in kind_of(keys_of(table)[last]).wanted, name


def test_a_request_cannot_loosen_the_bound_beyond_the_configured_limit(tmp_path: Path) -> None:
    path = _write(tmp_path, "[target]\nmax_latency_bound_s = 0.05\n" + DETECTOR)
    assert load(path, request={"latency_bound_s": 0.05}).target.latency_bound_s == 0.05
    with pytest.raises(ConfigError, match=r"^request: target\.latency_bound_s: wanted at most"):
        load(path, request={"latency_bound_s": 0.06})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "wanted UTF-8"),
        (b"= 1", "wanted TOML"),
        (b"a = 1\na = 2", "wanted TOML"),
        (b"a = " + b"[" * 4000, "wanted TOML"),
        (b"a = " + b"[\n" * 30_000, "wanted TOML"),
        (b"[job]\nbudget = " + b"9" * 4000, "got an integer of more than 30 digits"),
        (b"[job]\nbudget = 0x" + b"f" * 4000, "got an integer of more than 30 digits"),
        (b"[job]\nbudget." + b".".join([b"a"] * 60) + b" = 1", "job.budget: wanted an integer"),
        (b"[job]\nbudget." + b".".join([b"a"] * 1500) + b" = 1", "wanted "),
        (b"[job]\nbudget." + b".".join([b"a"] * 50_000) + b" = 1", "wanted lines of at most 4096 bytes"),
        (b"# \n" * 50_000, "wanted at most 131072 bytes"),
        (b"[job]\nstop_units = [1979-05-27T07:32:00Z]", "job.stop_units: wanted a list of systemd units, got ["),
    ],
)
def test_what_is_no_config_at_all_is_an_error_with_words(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_file_of_another_programme_is_refused_in_a_screenful(tmp_path: Path) -> None:
    lines = _refused(tmp_path, "".join(f"key{number} = {number}\n" for number in range(5000)))
    assert len(lines) == 51
    assert lines[-1] == "and more: is this the right file?"


def test_a_file_that_is_not_there_or_no_file_is_an_error_with_words(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path / "none.toml", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "pipe", "wanted a regular file"),
    ):
        with pytest.raises(ConfigError, match=words):
            load(path)


def _said(call: Callable[[], Config]) -> str | None:
    """The words of the ConfigError, None where there was none; any other error is the test's failure."""
    try:
        call()
    except ConfigError as error:
        return str(error)
    return None


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["energy", "full", "3x8x4", "0x8x4", "02:00-05:00", "127.0.0.1:1", "/opt/a.plan", "auto", 1e9])
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
_KEYS = [f"{table}.{key}" for table in TABLES if table != "workloads" for key in keys_of(table)]


@given(st.dictionaries(st.sampled_from([*_KEYS, "schema", "mode"]) | st.text(max_size=30), _VALUES, max_size=8))
def test_no_overrides_give_anything_but_a_config_or_a_config_error(overrides: dict[str, object]) -> None:
    assert _said(lambda: load(None, overrides)) != ""


@given(st.dictionaries(st.sampled_from(sorted(REQUEST_KEYS)) | st.text(max_size=30), _VALUES, max_size=8))
def test_no_request_gives_anything_but_a_config_or_a_config_error(request: dict[str, object]) -> None:
    assert _said(lambda: load(None, request=request)) != ""


_WORDS = [
    "[",
    "]",
    "[[",
    "]]",
    "=",
    "\n",
    ",",
    "{",
    "}",
    "'",
    '"',
    '"""',
    ".",
    "#",
    " ",
    "1",
    "-",
    "1e5",
    "true",
    "nan",
]
_WORDS += ["target", "workloads", "detector", "grid", "job", "engine", "min_gain", "size", "kind", "default", "nan"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(_WORDS) | st.text(max_size=4), max_size=40).map("".join) | st.binary(max_size=60))
def test_no_bytes_give_anything_but_a_config_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, content: str | bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    said = _said(lambda: load(path))
    assert said is None or said.startswith(f"{path}: ")


@settings(max_examples=150)
@given(st.data())
def test_no_file_of_known_keys_with_any_values_gives_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lines = []
    for table in data.draw(st.lists(st.sampled_from(["target", "grid", "job", "workloads.detector"]), unique=True)):
        lines.append(f"[{table}]")
        keys = sorted(keys_of(table.partition(".")[0]))
        for key in data.draw(st.lists(st.sampled_from(keys), unique=True, max_size=6)):
            value = data.draw(_VALUES.filter(lambda value: value is not None))
            lines.append(f"{key} = {toml(value)}")
    path = tmp_path_factory.getbasetemp() / "known.toml"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    said = _said(lambda: load(path))
    assert said is None or said.startswith(f"{path}: ")


def _of_kind(kind: Kind[Any]) -> st.SearchStrategy[Any]:
    """Values, some of which are of this kind (the rest is refused and left out)."""
    if match := re.match(r"a number from (\S+) to (\S+)", kind.wanted):
        return st.floats(float(match[1]), float(match[2]))
    if match := re.match(r"an integer (\d+) to (\d+)", kind.wanted):
        return st.integers(int(match[1]), int(match[2]))
    if " | " in kind.wanted:
        return st.sampled_from(kind.wanted.split(" | "))
    printable = st.text(string.printable[:95] + "äß漢\\\"'", max_size=12)
    return (
        st.booleans()
        | printable.map(lambda text: f"/{text}")
        | printable
        | st.lists(printable, max_size=3)
        | st.lists(st.integers(1, 64) | st.integers(10**6, 10**11), max_size=3)
        | st.sampled_from(
            ["3x8x4", "02:00-05:00", "", "[::1]:9", "detector.service", "full", "auto", "/a.prom", "/a.npz"]
        )
    )


@settings(max_examples=150)
@given(st.data())
def test_what_render_prints_loads_to_the_same_configuration(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    overrides: dict[str, Any] = {}
    for dotted in data.draw(st.lists(st.sampled_from(_KEYS), unique=True, max_size=12)):
        table, _, key = dotted.partition(".")
        overrides[dotted] = data.draw(_of_kind(kind_of(keys_of(table)[key])))
    path = tmp_path_factory.getbasetemp() / "rendered.toml"
    path.write_text(DETECTOR)
    try:
        config = load(path, overrides)
    except ConfigError:
        config = load(path)
    path.write_text(render(config))
    again = load(path)
    assert again == config
    assert again.values == config.values


def test_render_says_for_each_value_where_it_came_from(tmp_path: Path) -> None:
    path = _write(tmp_path, "[target]\nmin_gain = 0.03\n" + DETECTOR)
    lines = render(load(path, {"job.budget": 9})).splitlines()
    assert f"min_gain = 0.03 # {path}" in [re.sub(" +", " ", line) for line in lines]
    assert "budget = 9 # command line" in [re.sub(" +", " ", line) for line in lines]
    assert 'sampler = "joule" # default' in [re.sub(" +", " ", line) for line in lines]
    assert "# max_power_w is not set" in lines


def test_values_has_every_key_and_they_are_the_attributes(tmp_path: Path) -> None:
    config = load(_write(tmp_path, DETECTOR))
    assert set(config.values) == {
        *("schema", "mode"),
        *_KEYS,
        *(f"workloads.detector.{key}" for key in keys_of("workloads")),
    }
    assert config.values["job.budget"] == config.job.budget == 15
    assert {spec.name for spec in fields(Config)} - {"schema", "mode", "origins"} == set(TABLES)


def test_documentation_has_one_right_row_for_every_key() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    rows = {row[0]: row[1:] for row in re.findall(r"^\| `([\w.]+)` \| (.+?) \| (.+?) \|", text, re.MULTILINE)}
    known = {}
    for table in ("", *TABLES):
        prefix = {"": "", "workloads": "workloads.NAME."}.get(table, f"{table}.")
        for key, spec in keys_of(table).items():
            default = default_of(spec)
            shown = "–" if default in (None, (), {}) else f"`{toml(default)}`"
            known[f"{prefix}{key}"] = (kind_of(spec).wanted.replace(" | ", ", "), shown)
    assert rows == known


def test_a_config_that_only_its_owner_can_change_is_obeyed(tmp_path: Path) -> None:
    path = _write(tmp_path, "")
    path.chmod(0o644)
    check_owner(path)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_config_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = _write(tmp_path, "")
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"writable by its owner alone, got mode {mode:04o}") as caught:
        check_owner(path)
    assert caught.value.hint.endswith(f"chmod go-w {path}")


def test_a_config_that_others_can_replace_or_that_a_link_leads_to_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    path = _write(open_to_all, "")
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(ConfigError, match=f"wanted {open_to_all} to be writable by its owner alone"):
            check_owner(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_config_of_another_user_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path, "")
    os.chown(path, 12345, -1)
    with pytest.raises(ConfigError, match="to belong to uid 0, got uid 12345"):
        check_owner(path)


def test_a_config_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be looked at"):
        check_owner(tmp_path / "none.toml")
