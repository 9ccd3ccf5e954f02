"""Writes the Grafana dashboards beside this file: `python dashboards/make.py`. A test holds the files against it.

Two pages: the fleet (one line a board) and one board. Panels ask for what the daemon exports, no recording rule, so
that they work wherever Prometheus scrapes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
WIDTH = 24
J = '{job=~"$job"}'
B = '{job=~"$job", instance=~"$instance"}'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_STEADY = {"mode": "fixed", "fixedColor": "text"}
_BAD_ABOVE_0 = [{"color": "green", "value": None}, {"color": "red", "value": 1}]
_BAD_AT_0 = [{"color": "red", "value": None}, {"color": "green", "value": 1}]


def b(**labels: str) -> str:
    """The selector of one board, with more labels."""
    more = "".join(f', {name}="{value}"' for name, value in labels.items())
    return '{job=~"$job", instance=~"$instance"' + more + "}"


@dataclass(frozen=True)
class Query:
    """What is asked, and what a series is called."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel. `unit` is Grafana's name of it; `steps` are thresholds; `more` goes into the field's defaults."""

    kind: str
    title: str
    what: str
    queries: Sequence[Query]
    unit: str = "none"
    width: int = 6
    height: int = 8
    steps: Sequence[Mapping[str, Any]] = ()
    shows_name: bool = False
    stacks: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A heading and the panels below it, laid from left to right."""

    title: str
    panels: Sequence[Panel]


def stat(title: str, what: str, query: Query, **given: Any) -> Panel:
    return Panel("stat", title, what, [query], **({"width": 3, "height": 4} | given))


def series(title: str, what: str, *queries: Query, **given: Any) -> Panel:
    return Panel("timeseries", title, what, queries, **({"width": 8} | given))


def timeline(title: str, what: str, *queries: Query, **given: Any) -> Panel:
    return Panel("state-timeline", title, what, queries, **({"width": 24, "height": 5} | given))


# --- as Grafana has it --------------------------------------------------------------------------------------


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        mode = "name" if panel.shows_name else "value"
        reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": reduce, "textMode": mode, "colorMode": "value", "graphMode": "none"}
    if panel.kind == "bargauge":
        reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": reduce, "orientation": "horizontal", "displayMode": "basic", "showUnfilled": True}
    if panel.kind == "state-timeline":
        return {"showValue": "never", "mergeValues": True, "rowHeight": 0.8, "legend": {"showLegend": False}}
    if panel.kind == "table":
        return {"showHeader": True, "cellHeight": "sm"}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def _defaults(panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {"unit": panel.unit, "color": {"mode": "palette-classic"}, **panel.more}
    if panel.kind in ("stat", "bargauge", "table"):
        found["color"] = {"mode": "thresholds"} if panel.steps else _STEADY
    found["thresholds"] = {"mode": "absolute", "steps": list(panel.steps) or [{"color": "text", "value": None}]}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacks else "none", "group": "A"}
        found["custom"] = {"lineWidth": 1, "fillOpacity": 30 if panel.stacks else 0, "stacking": stacking}
        found["custom"] |= {"showPoints": "never", "spanNulls": False}
    return found


def _target(number: int, query: Query, *, instant: bool, is_table: bool) -> dict[str, Any]:
    return {
        "refId": chr(ord("A") + number),
        "datasource": _SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "editorMode": "code",
        "instant": instant,
        "range": not instant,
        "format": "table" if is_table else "time_series",
    }


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    instant = panel.kind in ("stat", "bargauge", "table")
    targets = [
        _target(index, query, instant=instant, is_table=panel.kind == "table")
        for index, query in enumerate(panel.queries)
    ]
    found: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.what,
        "datasource": _SOURCE,
        "gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
        "targets": targets,
    }
    if panel.kind == "table":
        found |= _table(panel.queries)
    return found


def _table(queries: Sequence[Query]) -> dict[str, Any]:
    """One line a board: the queries are joined on `instance`; a column's name and unit stand in its query's legend."""
    names, overrides = dict[str, str](), list[dict[str, Any]]()
    hidden = {"Time": True} | {f"Time {number}": True for number in range(1, len(queries) + 1)}
    for number, query in enumerate(queries):
        name, _, unit = query.legend.partition("|")
        value = f"Value #{chr(ord('A') + number)}"
        if not name:  # a label says it
            hidden[value] = True
            continue
        names[value] = name
        if unit:
            matcher = {"id": "byName", "options": name}
            overrides.append({"matcher": matcher, "properties": [{"id": "unit", "value": unit}]})
    organize = {"excludeByName": hidden, "renameByName": names, "indexByName": {}}
    link = {
        "title": "The board",
        "url": "/d/jouled-board?${datasource:queryparam}&var-instance=${__data.fields.instance}",
    }
    matcher = {"id": "byName", "options": "instance"}
    overrides.append({"matcher": matcher, "properties": [{"id": "links", "value": [link]}]})
    return {
        "transformations": [
            {"id": "joinByField", "options": {"byField": "instance", "mode": "outer"}},
            {"id": "organize", "options": organize},
        ],
        "fieldConfig": {"defaults": {"unit": "none", "custom": {"align": "auto"}}, "overrides": overrides},
    }


def _rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        found.append(
            {
                "id": len(found) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": place,
                "panels": [],
            }
        )
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            found.append(_panel(len(found) + 1, panel, x, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return found


def _variable(name: str, label: str, query: str, *, many: bool) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": many,
        "includeAll": many,
        "allValue": ".+" if many else None,
        "current": {"text": "All", "value": "$__all"} if many else {},
    }


def _annotation(name: str, color: str, expr: str, title: str, text: str) -> dict[str, Any]:
    return {
        "name": name,
        "enable": True,
        "iconColor": color,
        "datasource": _SOURCE,
        "expr": expr,
        "step": "30s",
        "titleFormat": title,
        "textFormat": text,
        "tagKeys": "instance",
    }


# A mark stands where a power mode is new: its series is there and was not half a minute before.
_NEW_MODE = f"jouled_mode_info{B} unless jouled_mode_info{B} offset 30s"


def dashboard(uid: str, title: str, what: str, rows: Sequence[Row], *, fleet: bool) -> dict[str, Any]:
    """The JSON of one page."""
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}},
        _variable("job", "Job", "label_values(jouled_build_info, job)", many=True),
        _variable("instance", "Board", 'label_values(jouled_build_info{job=~"$job"}, instance)', many=fleet),
    ]
    notes = [
        _annotation("Power mode", "blue", _NEW_MODE, "{{mode}}", "{{source}}, {{policy}}"),
        _annotation(
            "Job", "orange", f"jouled_job_running{B} == 1", "a job runs", "the board is in other modes meanwhile"
        ),
    ]
    other = ("jouled-board", "One board") if fleet else ("jouled-fleet", "The fleet")
    return {
        "uid": uid,
        "title": title,
        "description": what,
        "tags": ["jouled", "jetson", "energy"],
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables},
        "annotations": {"list": notes},
        "links": [{"type": "link", "title": other[1], "url": f"/d/{other[0]}", "keepTime": True, "includeVars": True}],
        "panels": _rows(rows),
    }


# --- what is shown ------------------------------------------------------------------------------------------

_HEADROOM = (
    f"1 - max by (job, instance) (jouled_inference_latency_seconds{b(which='applied')})"
    f" / max by (job, instance) (jouled_latency_bound_seconds{B})"
)

BOARD = (
    Row(
        "Now",
        (
            stat("State", "What jouled is about.", Query(f"jouled_state{B} == 1", "{{state}}"), shows_name=True),
            stat(
                "Power mode",
                "The power mode that should be in force: cores-CPU-GPU-EMC, MHz; whose it is.",
                Query(f"jouled_mode_info{B}", "{{mode}} ({{source}})"),
                shows_name=True,
                width=6,
            ),
            stat(
                "In force",
                "1: every knob was right when it was last read back. 0 while a job runs.",
                Query(f"jouled_mode_in_force{B}", "in force"),
                steps=_BAD_AT_0,
            ),
            stat(
                "Wrong knobs",
                "Knobs that were wrong when they were last read back. On the board: jouled verify",
                Query(f"jouled_verify_mismatch{B}", "wrong"),
                steps=_BAD_ABOVE_0,
            ),
            stat(
                "Energy saved",
                "Per inference, against the board's own mode, as measured in the deciding job.",
                Query(f"jouled_energy_saving_ratio{B}", "saved"),
                unit="percentunit",
                more={"decimals": 1},
            ),
            stat(
                "Latency headroom",
                "What the bound leaves above the latency that was measured.",
                Query(_HEADROOM, "headroom"),
                unit="percentunit",
                more={"decimals": 1},
            ),
            stat(
                "Power",
                "The sum of the rails that make up the total.",
                Query(f"sum by (job, instance) (jouled_rail_power_watts{B})", "power"),
                unit="watt",
            ),
            stat(
                "Hottest zone",
                "The hottest thermal zone.",
                Query(f"max by (job, instance) (jouled_temperature_celsius{B})", "hottest"),
                unit="celsius",
            ),
            stat(
                "Last decision",
                "How long ago the last job ended that came to a decision.",
                Query(f"time() - jouled_last_tune_timestamp_seconds{B}", "ago"),
                unit="s",
            ),
            stat(
                "Last read back",
                "How long ago the knobs were compared with what should be in force.",
                Query(f"time() - jouled_last_verify_timestamp_seconds{B}", "ago"),
                unit="s",
            ),
            stat(
                "Board",
                "Module, its release of L4T and the nvpmodel mode whose caps are never exceeded.",
                Query(f"jouled_board_info{B}", "{{module}} L4T {{l4t}} {{base_mode}}"),
                shows_name=True,
                width=6,
            ),
            stat("jouled", "The daemon's version.", Query(f"jouled_build_info{B}", "{{version}}"), shows_name=True),
            stat(
                "Winner stale",
                "1: the winner no longer holds for this board, workload or bound. On the board: jouled retune",
                Query(f"jouled_winner_stale{B}", "stale"),
                steps=_BAD_ABOVE_0,
            ),
            stat(
                "Quarantined modes",
                "Power modes that took the board down and are not tried. On the board: jouled forget MODE",
                Query(f"jouled_modes_quarantined{B}", "modes"),
                steps=_BAD_ABOVE_0,
            ),
        ),
    ),
    Row(
        "What was in force",
        (
            timeline(
                "State over time",
                "One line for each state that it was in.",
                Query(f"jouled_state{B} == 1", "{{state}}"),
            ),
            timeline(
                "Power mode over time",
                "One line for each power mode that should have been in force.",
                Query(f"jouled_mode_info{B}", "{{mode}} ({{source}}, {{policy}})"),
            ),
        ),
    ),
    Row(
        "Energy and latency, as measured in the deciding job",
        (
            series(
                "Energy per inference",
                "In the board's own mode and in the mode that is in force; the rail is part of the number.",
                Query(f"jouled_inference_energy_joules{B}", "{{which}}, {{rail}}"),
                unit="joule",
                width=12,
            ),
            series(
                "Latency and its bound",
                "The percentile of a request's latency, from its arrival, and what it may be at most.",
                Query(f"jouled_inference_latency_seconds{B}", "{{which}}, p{{percentile}}"),
                Query(f"jouled_latency_bound_seconds{B}", "bound"),
                unit="s",
                width=12,
            ),
        ),
    ),
    Row(
        "Clocks and caps",
        tuple(
            series(
                f"{domain.upper()} clock",
                what,
                Query(f"jouled_clock_hertz{b(domain=domain)}", "clock"),
                Query(f"jouled_clock_cap_hertz{b(domain=domain)}", "cap"),
                unit="hertz",
            )
            for domain, what in (
                ("cpu", "The fastest cluster, and the highest clock that it may take."),
                ("gpu", "The GPU, and the highest clock that it may take."),
                ("emc", "The memory's cap; its clock is root's to read, so the daemon has none to show."),
            )
        ),
    ),
    Row(
        "Power and heat",
        (
            series(
                "Power by rail",
                "The rails that make up the total, stacked: the height is the board's power as its sensors see it.",
                Query(f"jouled_rail_power_watts{B}", "{{rail}}"),
                unit="watt",
                stacks=True,
            ),
            series(
                "Temperature", "Each thermal zone.", Query(f"jouled_temperature_celsius{B}", "{{zone}}"), unit="celsius"
            ),
            series(
                "Energy counted",
                "Joules of each rail since the daemon's start; only with metrics.energy_counter_hz.",
                Query(f"jouled_energy_joules_total{B}", "{{rail}}"),
                unit="joule",
            ),
            series(
                "Throttle events since boot",
                "Over-current events that the kernel has counted. At a step the board has throttled: give it less load "
                "or a lower mode.",
                Query(f"jouled_throttle_events_total{B}", "{{source}}"),
                width=12,
            ),
            series(
                "Readings that failed",
                "Times that a sensor gave no value since the daemon's start.",
                Query(f"jouled_sensor_errors_total{B}", "{{sensor}}"),
                width=12,
            ),
        ),
    ),
    Row(
        "Jobs",
        (
            Panel(
                "bargauge",
                "Jobs by outcome",
                "How jobs have ended, ever.",
                [Query(f"jouled_jobs_total{B}", "{{outcome}}")],
            ),
            Panel(
                "bargauge",
                "Windows thrown away",
                "Windows that were no evidence, by reason.",
                [Query(f"jouled_trials_invalid_total{B}", "{{reason}}")],
            ),
            series(
                "The job that runs",
                "Candidates that it has tried so far.",
                Query(f"jouled_job_trials{B}", "trials"),
                width=6,
            ),
            series(
                "Job running for",
                "How long the job that runs has been running.",
                Query(f"time() - jouled_job_start_timestamp_seconds{B}", "running for"),
                unit="s",
                width=6,
            ),
            series(
                "Time disturbed",
                "Time in which jobs held the board in other modes than the one in force.",
                Query(f"jouled_disturbed_seconds_total{B}", "disturbed"),
                unit="s",
            ),
            series(
                "Trials", "Candidates that jobs have tried.", Query(f"jouled_trials_total{B}", "trials"), unit="none"
            ),
            series(
                "Put right, taken back",
                "A mode put in force again since something else had changed it; a winner taken back.",
                Query(f"jouled_reapplies_total{B}", "put in force again"),
                Query(f"jouled_rollbacks_total{B}", "rolled back"),
            ),
        ),
    ),
)

FLEET = (
    Row(
        "All boards",
        (
            stat("Boards that answer", "Boards whose daemon answers.", Query(f"count(jouled_build_info{J})", "boards")),
            stat(
                "Winner in force",
                "Boards in the mode that a job chose, each knob as it should be.",
                Query(
                    f"sum(jouled_mode_in_force{J} * on (job, instance) group_left ()"
                    ' max by (job, instance) (jouled_mode_info{job=~"$job", source="winner"})) or vector(0)',
                    "boards",
                ),
            ),
            stat(
                "Not in force",
                "Boards that are not as they should be and in which no job runs.",
                Query(
                    f"count((jouled_mode_in_force{J} == 0) unless on (job, instance) (jouled_job_running{J} == 1))"
                    " or vector(0)",
                    "boards",
                ),
                steps=_BAD_ABOVE_0,
            ),
            stat("Tuning", "Boards in which a job runs.", Query(f"sum(jouled_job_running{J})", "boards")),
            stat(
                "Mean saving",
                "Energy per inference, mean over the boards whose winner is in force.",
                Query(f"avg(jouled_energy_saving_ratio{J})", "saved"),
                unit="percentunit",
                more={"decimals": 1},
            ),
            stat(
                "Power of all",
                "All boards' rails together.",
                Query(f"sum(jouled_rail_power_watts{J})", "power"),
                unit="watt",
            ),
            stat(
                "Stale winners",
                "Boards whose winner no longer holds.",
                Query(f"sum(jouled_winner_stale{J}) or vector(0)", "boards"),
                steps=_BAD_ABOVE_0,
            ),
            stat(
                "Held",
                "Boards that went down twice: no knob is written. There: jouled forget --held",
                Query('sum(jouled_state{job=~"$job", state="held"})', "boards"),
                steps=_BAD_ABOVE_0,
            ),
        ),
    ),
    Row(
        "Each board",
        (
            Panel(
                "table",
                "Boards",
                "One line a board; its name leads to its page.",
                [
                    Query(f"max by (instance, state) (jouled_state{B} == 1)", ""),
                    Query(f"max by (instance, mode) (jouled_mode_info{B})", ""),
                    Query(f"max by (instance) (jouled_mode_in_force{B})", "in force"),
                    Query(f"max by (instance) (jouled_energy_saving_ratio{B})", "saved|percentunit"),
                    Query(f"sum by (instance) (jouled_rail_power_watts{B})", "power|watt"),
                    Query(f"max by (instance) (jouled_temperature_celsius{B})", "hottest|celsius"),
                    Query(f"max by (instance) (jouled_verify_mismatch{B})", "wrong knobs"),
                    Query(f"max by (instance) (jouled_disturbed_seconds_total{B})", "disturbed|s"),
                ],
                width=24,
                height=10,
            ),
            timeline(
                "State by board",
                "A line for each state of each board.",
                Query(f"jouled_state{B} == 1", "{{instance}} {{state}}"),
            ),
            timeline(
                "Alerts",
                "What jouled.rules.yml raises; empty without these rules.",
                Query('ALERTS{alertname=~"Jouled.+", alertstate="firing", job=~"$job"}', "{{instance}} {{alertname}}"),
            ),
        ),
    ),
    Row(
        "Over time",
        (
            series(
                "Energy saved by board",
                "Per inference, against the board's own mode.",
                Query(f"jouled_energy_saving_ratio{B}", "{{instance}}"),
                unit="percentunit",
            ),
            series(
                "Power by board",
                "The sum of the rails that make up the total.",
                Query(f"sum by (job, instance) (jouled_rail_power_watts{B})", "{{instance}}"),
                unit="watt",
            ),
            series(
                "Hottest zone by board",
                "The hottest thermal zone.",
                Query(f"max by (job, instance) (jouled_temperature_celsius{B})", "{{instance}}"),
                unit="celsius",
            ),
            Panel(
                "bargauge",
                "Jobs of all boards by outcome",
                "How jobs have ended, ever.",
                [Query(f"sum by (outcome) (jouled_jobs_total{B})", "{{outcome}}")],
                width=8,
            ),
            series(
                "Time disturbed by board",
                "Time in which jobs held the board in other modes than the one in force.",
                Query(f"jouled_disturbed_seconds_total{B}", "{{instance}}"),
                unit="s",
            ),
            series(
                "Throttle events by board",
                "Over-current events since each board's boot.",
                Query(f"sum by (job, instance) (jouled_throttle_events_total{B})", "{{instance}}"),
            ),
        ),
    ),
)

PAGES = {
    "jouled.json": dashboard(
        "jouled-board",
        "jouled: one board",
        "What one Jetson runs in, what it saves, and whether that holds.",
        BOARD,
        fleet=False,
    ),
    "jouled-fleet.json": dashboard(
        "jouled-fleet",
        "jouled: the fleet",
        "All boards: what they save, and which of them need somebody.",
        FLEET,
        fleet=True,
    ),
}


def render(page: Mapping[str, Any]) -> str:
    """The file's text."""
    return json.dumps(page, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    for name, page in PAGES.items():
        (FOLDER / name).write_text(render(page), encoding="utf-8")


if __name__ == "__main__":
    main()
