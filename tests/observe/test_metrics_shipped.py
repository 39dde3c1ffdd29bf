"""The dashboard and the alert rules speak of metrics and labels that exist, in real PromQL."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from ruamel.yaml import YAML

from distributary.errors import ErrorCode
from distributary.observe.metrics import CATALOGUE, STATES, MetricKind, shipped
from distributary.registry.base import BUSY, OK, REFUSED, SILENT
from tools.docs.metrics import series, table

KNOWN = {name: metric for metric in CATALOGUE for name in series(metric)}
FOREIGN = {"process_cpu_seconds_total"}
"""Of `prometheus_client` itself."""
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""

DASHBOARD: dict[str, Any] = json.loads(shipped("grafana-dashboard.json"))
RULES: list[dict[str, Any]] = [
    rule
    for group in YAML(typ="safe", pure=True).load(io.StringIO(shipped("alert-rules.yaml")))[
        "groups"
    ]
    for rule in group["rules"]
]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]


def parsed(query: str) -> promql_parser.Expr:
    return promql_parser.parse(query.replace("$__rate_interval", "5m").replace("$pipeline", "x"))


def below(expression: Any) -> Iterator[Any]:
    yield expression
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        inner = getattr(expression, name, None)
        if isinstance(inner, promql_parser.Expr):
            yield from below(inner)
    for inner in getattr(expression, "args", None) or ():
        yield from below(inner)


def selectors(expression: Any) -> list[Any]:
    return [e for e in below(expression) if isinstance(e, promql_parser.VectorSelector)]


def grouped_by(expression: Any) -> list[str]:
    """Every label that an aggregation keeps, or that two sides are matched by."""
    found: list[str] = []
    for each in below(expression):
        modifier = getattr(each, "modifier", None)
        matching = getattr(modifier, "matching", None)
        found += getattr(modifier, "labels", None) or getattr(matching, "labels", None) or []
    return found


def every_query() -> list[Any]:
    told = [pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES]
    return told + [pytest.param(t["expr"], id=f"{title} {t['refId']}") for title, t in QUERIES]


@pytest.mark.parametrize("query", every_query())
def test_a_query_is_about_metrics_and_labels_that_exist(query: str) -> None:
    expression = parsed(query)
    found = selectors(expression)
    assert found
    labels: set[str] = set(SCRAPED)
    for selector in found:
        assert selector.name in KNOWN or selector.name in FOREIGN, selector.name
        metric = KNOWN.get(selector.name)
        own = set(metric.labels if metric else ())
        if metric is not None and metric.kind is MetricKind.HISTOGRAM:
            own |= {"le"}
        labels |= own
        for matcher in selector.matchers.matchers:
            assert matcher.name in own, (selector.name, matcher.name)
    assert set(grouped_by(expression)) <= labels


@pytest.mark.parametrize("query", every_query())
def test_counters_are_asked_for_their_rise_and_gauges_are_not(query: str) -> None:
    for each in below(parsed(query)):
        if isinstance(each, promql_parser.Call) and each.func.name in ("rate", "increase"):
            (selector,) = selectors(each)
            metric = KNOWN.get(selector.name)
            assert metric is None or metric.kind is not MetricKind.GAUGE, selector.name
    counters = {s.name for s in selectors(parsed(query)) if s.name.endswith("_total")}
    rising = {
        s.name
        for each in below(parsed(query))
        if isinstance(each, promql_parser.Call) and each.func.name in ("rate", "increase")
        for s in selectors(each)
    }
    assert counters <= rising


def test_values_in_the_rules_are_values_that_labels_have() -> None:
    known = {
        "code": set(ErrorCode),
        "outcome": {OK, REFUSED, BUSY, SILENT},
        "lane": {"stream", "replay"},
        "role": {"dead_letters"},
        "state": set(STATES),
    }
    for rule in RULES:
        for selector in selectors(parsed(rule["expr"])):
            for matcher in selector.matchers.matchers:
                assert set(matcher.value.split("|")) <= known[matcher.name]


def test_rules_have_all_that_prometheus_asks_for() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert re.fullmatch(r"Distributary[A-Z][A-Za-z]+", rule["alert"])
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "0s"))
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description"}
        kept = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
        available = set(grouped_by(parsed(rule["expr"]))) or {"pipeline"}
        assert set(kept) <= available, rule["alert"]


def test_every_cause_for_alarm_has_a_rule() -> None:
    wanted = ("Retrying", "Parked", "DeadLetter", "Fresh", "Accounting", "Lag", "NoBatches")
    for cause in wanted:
        assert any(cause in rule["alert"] for rule in RULES), cause


def test_legends_use_labels_that_are_left() -> None:
    for title, target in QUERIES:
        expression = parsed(target["expr"])
        available = set(grouped_by(expression))
        if not available:
            first = KNOWN[selectors(expression)[0].name]
            available = set(first.labels) | SCRAPED
        used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert used <= available, title


def test_units_are_those_of_the_numbers() -> None:
    for panel in PANELS:
        unit = panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            query = target["expr"]
            rate = "rate(" in query
            share = "step_duration_seconds_sum" in query
            seconds = "_seconds" in query and not share and "_cpu_" not in query
            if "_bytes" in query:
                assert unit == ("Bps" if rate else "bytes"), panel["title"]
            elif share:
                assert unit == "percentunit", panel["title"]
            elif seconds:
                assert unit == "s", panel["title"]
            else:
                rates = ("cps", "reqps") if rate and "_cpu_" not in query else ("short",)
                assert unit in rates, panel["title"]


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert DASHBOARD["uid"] and DASHBOARD["title"] and DASHBOARD["schemaVersion"] >= 36
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert names == {"datasource", "pipeline"}
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + dx, place["y"] + dy)
            for dx in range(place["w"])
            for dy in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}" and panel["description"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
    (query,) = (v["definition"] for v in DASHBOARD["templating"]["list"] if "definition" in v)
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
    assert label in KNOWN[name].labels


def test_every_metric_is_on_the_dashboard_or_in_a_rule() -> None:
    shown = {s.name for _, t in QUERIES for s in selectors(parsed(t["expr"]))}
    shown |= {s.name for rule in RULES for s in selectors(parsed(rule["expr"]))}
    unseen = {m.name for m in CATALOGUE if not shown & set(series(m))}
    assert unseen <= {
        "distributary_catalog_tables",
        "distributary_last_batch",
        "distributary_newest_record_timestamp_seconds",
        "distributary_tables_in_other",
    }


def test_the_docs_page_has_the_table_of_metrics_and_every_alert() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "metrics.md").read_text()
    assert table() in page
    for rule in RULES:
        assert f"`{rule['alert']}`" in page
