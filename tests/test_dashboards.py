"""The dashboards and rules as files: laid out well, made by their script, and about metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from dashboards.make import PAGES, WIDTH, render

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "dashboards"
UNITS = {"none", "watt", "joule", "hertz", "celsius", "s", "percentunit"}  # Grafana's names of base units
METRICS = set(re.findall(r"^(jouled_\w+)", (ROOT / "tests/metrics.prom").read_text(), re.MULTILINE))
RULES = yaml.safe_load((FOLDER / "jouled.rules.yml").read_text())
CASES = yaml.safe_load((FOLDER / "jouled.rules.test.yml").read_text())


def _rules(kind: str) -> dict[str, dict[str, Any]]:
    found = [rule for group in RULES["groups"] for rule in group["rules"]]
    return {rule[kind]: rule for rule in found if kind in rule}


def _queries(page: dict[str, Any]) -> Iterator[str]:
    for panel in page["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (note["expr"] for note in page["annotations"]["list"])


def _named(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w:])jouled_\w+", text))


@pytest.fixture(params=sorted(PAGES), name="page")
def _page(request: pytest.FixtureRequest) -> dict[str, Any]:
    page: dict[str, Any] = json.loads((FOLDER / request.param).read_text())
    return page


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_what_the_script_makes(name: str) -> None:
    assert (FOLDER / name).read_text() == render(PAGES[name]), "run: python dashboards/make.py"


def test_panels_have_numbers_of_their_own_and_no_two_lie_on_each_other(page: dict[str, Any]) -> None:
    panels = page["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    for place in places:
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= WIDTH
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


def test_every_panel_says_what_it_shows_in_which_unit_and_asks_the_chosen_source(page: dict[str, Any]) -> None:
    panels = [panel for panel in page["panels"] if panel["type"] != "row"]
    titles = [panel["title"] for panel in panels]
    assert sorted(titles) == sorted(set(titles))
    for panel in panels:
        assert panel["description"].endswith(".") or ": jouled " in panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
        for asked in (panel, *panel["targets"]):
            assert asked["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert target["legendFormat"] or panel["type"] == "table"


def test_every_query_goes_by_the_chosen_job_and_names_metrics_that_there_are(page: dict[str, Any]) -> None:
    assert [variable["name"] for variable in page["templating"]["list"]] == ["datasource", "job", "instance"]
    for expr in _queries(page):
        assert _named(expr) <= METRICS, expr
        for selector in re.findall(r"(?:jouled_\w+|ALERTS)(\{[^}]*\})?", expr):
            assert 'job=~"$job"' in selector, expr


def test_every_metric_is_on_a_page() -> None:
    shown = {name for page in PAGES.values() for expr in _queries(page) for name in _named(expr)}
    assert shown >= METRICS


def test_rules_name_metrics_that_there_are() -> None:
    exprs = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
    for expr in exprs:
        assert _named(expr) <= METRICS, expr


def test_every_alert_says_where_what_it_means_and_what_to_type() -> None:
    assert len(_rules("alert")) == 12
    for name, rule in _rules("alert").items():
        notes = rule["annotations"]
        assert "{{ $labels.instance }}" in notes["summary"], name
        assert notes["description"].endswith("."), name
        assert re.search(r"\b(jouled|systemctl|journalctl|reboot)\b", notes["command"]), name
        assert rule["labels"]["severity"] in ("info", "warning", "critical"), name


def test_every_alert_is_seen_to_fire_and_to_clear() -> None:
    for case in CASES["tests"]:
        for name in {check["alertname"] for check in case.get("alert_rule_test", ())}:
            checks = [check for check in case["alert_rule_test"] if check["alertname"] == name]
            assert [bool(check["exp_alerts"]) for check in checks] == [False, True, False], name
    tested = {check["alertname"] for case in CASES["tests"] for check in case.get("alert_rule_test", ())}
    assert tested == set(_rules("alert"))


def test_every_recorded_series_is_computed_in_the_tests() -> None:
    assert {check["expr"] for case in CASES["tests"] for check in case.get("promql_expr_test", ())} == set(
        _rules("record")
    )


def test_the_document_has_every_alert_and_every_metric() -> None:
    text = (ROOT / "docs/monitoring.md").read_text()
    assert set(_rules("alert")) <= set(re.findall(r"^\| `(Jouled\w+)` \|", text, re.MULTILINE))
    assert set(re.findall(r"`(jouled_\w+)[`{]", text)) >= METRICS
