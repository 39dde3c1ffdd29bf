"""A whole run, reported to Prometheus and as lineage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from pyspark.sql import SparkSession

from distributary.errors import DistributaryError
from distributary.observe.events import BatchSettled, Event
from distributary.observe.metrics import Metrics
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import Games
from tests.observe.openlineage import check_event


def told(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def game(output: Any) -> str:
    """The type of a table, as its comment tells it."""
    comment: str = output["facets"]["documentation"]["description"]
    return comment.removeprefix("records of type ").rpartition(", pipeline")[0]


def test_a_run_is_counted_and_its_lineage_told(tmp_path: Path, tasks: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=3, records=10, bad=8))
    games.send_all()
    lineage = tmp_path / "lineage.jsonl"
    pipeline = games.pipeline(extra=f"lineage: {{file: {lineage}, every: 0s}}")
    metrics, events = Metrics(), list[Event]()
    pipeline.bus.subscribe(metrics.listen)
    pipeline.bus.subscribe(events.append)
    summary = pipeline.run(spark=tasks)

    samples = {
        (s.name, *sorted(s.labels.values())): s.value
        for family in parse(metrics.render()[1].decode())
        for s in family.samples
    }
    counts = summary.counts
    assert samples["distributary_records_read_total", "games", "stream"] == counts.read == 98
    assert samples["distributary_records_dead_lettered_total", "games", "stream"] == 8
    assert samples["distributary_accounting_difference_records", "games"] == 0
    for table in games.tables():
        assert samples["distributary_table_rows_total", "each", "games", table] == 30
    (settled,) = (e for e in events if isinstance(e, BatchSettled))
    sizes = [len(r["wrapper"] or b"") for r in games.rows("wrapper")]
    assert settled.bytes_read == sum(sizes)
    assert samples["distributary_read_bytes_total", "games", "stream"] == sum(sizes)

    found = told(lineage)
    assert (found[0]["eventType"], found[-1]["eventType"]) == ("START", "COMPLETE")
    for event in found:
        check_event(event)
    outputs = {o["name"]: o for event in found for o in event["outputs"] if "schema" in o["facets"]}
    for table in games.tables():
        each = outputs[str(games.lake / table)]
        assert each["outputFacets"]["outputStatistics"]["rowCount"] == 30
        columns = {f["name"]: f for f in each["facets"]["schema"]["fields"]}
        fields = each["facets"]["columnLineage"]["fields"]
        for name, column in columns.items():
            if name.startswith("_"):
                continue
            # the comment says, in the decoder's own words, which field it is
            field = column["description"].removeprefix("field ").split(" ")[0]
            assert {f["field"] for f in fields[name]["inputFields"]} == {f"{game(each)}.{field}"}
            assert {f["name"] for f in fields[name]["inputFields"]} == {str(games.lake / "wrapper")}
    totals = found[-1]["run"]["facets"]["distributary"]
    assert (totals["recordsRead"], totals["recordsWritten"]) == (counts.read, counts.written)


def test_a_run_that_fails_says_so_and_waits_for_nobody(tmp_path: Path, tasks: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=1, versions=1, records=5))
    games.send_all()
    lineage = tmp_path / "lineage.jsonl"
    extra = (
        f"lineage: {{file: {lineage}, url: 'http://127.0.0.1:9', token: s3cret-of-ours}}\n"
        "evolution: {new_type: fail}\n"
        "run: {batch_attempts: 1}"
    )
    with pytest.raises(DistributaryError) as error:
        games.pipeline(extra=extra).run(spark=tasks)
    last = told(lineage)[-1]
    check_event(last)
    assert last["eventType"] == "FAIL"
    assert last["run"]["facets"]["errorMessage"]["message"].startswith(str(error.value.code))
    assert "s3cret-of-ours" not in lineage.read_text()
