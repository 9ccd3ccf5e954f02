"""`/metrics`: the text to the letter, and what is not known is not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.face import MODE, NOW_S, STATUS, WINNER

from jouled.job.result import EXIT_CODES
from jouled.metrics import Exposition
from jouled.state import Counters, InForce, RunningJob, Source, State, Status
from jouletune.trial import Invalid

GOLDEN = Path(__file__).with_name("metrics.prom")
# ARCHITECTURE section 9
NAMES = {
    *("jouled_build_info", "jouled_board_info", "jouled_state", "jouled_mode_info", "jouled_mode_in_force"),
    *("jouled_winner_stale", "jouled_verify_mismatch", "jouled_last_verify_timestamp_seconds"),
    *("jouled_reapplies_total", "jouled_rollbacks_total", "jouled_modes_quarantined"),
    *("jouled_jobs_total", "jouled_job_running", "jouled_job_start_timestamp_seconds", "jouled_job_trials"),
    *("jouled_trials_total", "jouled_trials_invalid_total", "jouled_last_tune_timestamp_seconds"),
    *("jouled_disturbed_seconds_total", "jouled_inference_energy_joules", "jouled_inference_latency_seconds"),
    *("jouled_latency_bound_seconds", "jouled_energy_saving_ratio", "jouled_rail_power_watts", "jouled_clock_hertz"),
    *("jouled_clock_cap_hertz", "jouled_temperature_celsius", "jouled_throttle_events_total"),
    *("jouled_sensor_errors_total", "jouled_energy_joules_total"),
}
BUSY = replace(
    STATUS,
    state=State.TUNING,
    job=RunningJob("0123456789ab", "uid 0 (root)", "search", 7, NOW_S - 600, NOW_S + 500),
    quarantined=2,
    mismatches=(),
)
EMPTY = Status(state=State.IDLE, since_wall_s=NOW_S, wall_s=NOW_S)


def _series(status: Status) -> dict[str, float]:
    """name{labels} → value."""
    lines = Exposition(lambda: status).render().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def _names(status: Status) -> set[str]:
    return {name.partition("{")[0] for name in _series(status)}


def test_the_text_is_the_golden_one() -> None:
    assert Exposition(lambda: BUSY).render().decode() == GOLDEN.read_text()


def test_all_of_the_papers_metrics_are_there_and_no_others() -> None:
    assert _names(BUSY) == NAMES


def test_what_is_not_known_is_absent_and_never_0() -> None:
    assert _names(EMPTY) == {
        *("jouled_build_info", "jouled_state", "jouled_verify_mismatch", "jouled_reapplies_total"),
        *("jouled_rollbacks_total", "jouled_modes_quarantined", "jouled_job_running", "jouled_trials_total"),
        *("jouled_disturbed_seconds_total", "jouled_jobs_total", "jouled_trials_invalid_total"),
    }


def test_a_sensor_without_a_value_has_no_series() -> None:
    assert STATUS.readings is not None
    cold = replace(STATUS, readings=replace(STATUS.readings, temperature_c={}, rail_power_w={"VDD_IN": 0.0}))
    assert "jouled_temperature_celsius" not in _names(cold)
    assert _series(cold)['jouled_rail_power_watts{rail="VDD_IN"}'] == 0.0


@pytest.mark.parametrize("source", [Source.REFERENCE, Source.OTHER])
def test_the_winners_numbers_are_there_only_while_it_is_in_force(source: Source) -> None:
    aside = replace(STATUS, in_force=InForce(source, MODE, "capped", NOW_S))
    names = _names(aside)
    assert not names & {"jouled_energy_saving_ratio", "jouled_latency_bound_seconds"}
    assert not [name for name in _series(aside) if 'which="applied"' in name]
    assert [name for name in _series(aside) if 'which="reference"' in name]


def test_a_winner_with_a_wrong_knob_saves_nothing_that_is_known() -> None:
    wrong = replace(STATUS, mismatches=("knob 1: wanted 1, got 2",))
    assert not _names(wrong) & {"jouled_energy_saving_ratio", "jouled_latency_bound_seconds"}
    assert _series(wrong)["jouled_verify_mismatch"] == 1.0
    assert any('source="winner"' in name for name in _series(wrong) if name.startswith("jouled_mode_info"))


@pytest.mark.parametrize(("verified", "value"), [(True, 1.0), (False, 0.0)])
def test_a_mode_is_in_force_only_after_it_was_read_back(*, verified: bool, value: float) -> None:
    assert STATUS.in_force is not None
    seen = replace(STATUS, in_force=replace(STATUS.in_force, verified=verified))
    assert _series(seen)["jouled_mode_in_force"] == value


def test_a_stale_winner_is_shown() -> None:
    stale = replace(STATUS, winner=replace(WINNER, stale="another engine"))
    assert _series(stale)["jouled_winner_stale"] == 1.0
    assert _series(STATUS)["jouled_winner_stale"] == 0.0


@pytest.mark.parametrize("state", list(State))
def test_exactly_one_state_is_1(state: State) -> None:
    found = {name: value for name, value in _series(replace(EMPTY, state=state)).items() if "jouled_state{" in name}
    assert len(found) == len(State)
    assert [name for name, value in found.items() if value] == [f'jouled_state{{state="{state.value}"}}']


def test_counters_alone_end_in_total_and_no_label_is_called_quantile() -> None:
    families = list(text_string_to_metric_families(Exposition(lambda: BUSY).render().decode()))
    for family in families:
        assert family.type in ("gauge", "counter")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert "quantile" not in sample.labels
        assert family.documentation.endswith(".")


def test_what_can_be_counted_begins_at_0_so_that_its_first_increase_is_seen() -> None:
    series = _series(EMPTY)
    outcomes = [name for name in series if name.startswith("jouled_jobs_total{")]
    reasons = [name for name in series if name.startswith("jouled_trials_invalid_total{")]
    assert outcomes == [f'jouled_jobs_total{{outcome="{outcome}"}}' for outcome in sorted(EXIT_CODES)]
    assert reasons == [f'jouled_trials_invalid_total{{reason="{reason.value}"}}' for reason in sorted(Invalid)]
    assert {series[name] for name in outcomes + reasons} == {0.0}


def test_each_scrape_takes_one_snapshot_and_registering_none() -> None:
    taken = []

    def status() -> Status:
        taken.append(1)
        return STATUS

    exposition = Exposition(status)
    assert taken == []
    exposition.render()
    exposition.render()
    assert len(taken) == 2


def test_text_from_the_board_cannot_break_a_line() -> None:
    assert STATUS.board is not None
    odd = replace(STATUS, board=replace(STATUS.board, carrier='a"b\\c\nd'), counters=Counters(jobs={'x"\n': 1}))
    families = {family.name: family for family in text_string_to_metric_families(_text(odd))}
    assert families["jouled_board_info"].samples[0].labels["carrier"] == 'a"b\\c\nd'
    assert 'x"\n' in {sample.labels["outcome"] for sample in families["jouled_jobs"].samples}


def _text(status: Status) -> str:
    return Exposition(lambda: status).render().decode()
