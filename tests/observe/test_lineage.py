"""OpenLineage events of a run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from distributary.config.alerts import Lineage
from distributary.model.dataset import Dataset, stored_dataset, topic_dataset
from distributary.model.manifest import Counts
from distributary.model.table import Column, Origin, Role, TablePlan
from distributary.observe.events import BatchSettled, TableWritten
from distributary.observe.lineage import (
    Fields,
    LineageRun,
    RunFacts,
    Sink,
    file_sink,
    http_sink,
    sinks,
)
from tests.observe.openlineage import check_event
from tests.registry.loopback import Says, serving
from tests.waiting import eventually

SECRET = "hunter2-token"
INPUTS = {"wrapper": Dataset("kafka://broker:9092", "wrapper", "TOPIC")}
COLUMNS = (
    Column("rating", pa.int64(), "field games.Chess.rating (#3); since chess-value v3"),
    Column("moves", pa.list_(pa.struct([pa.field("square", pa.string())]))),
    Column("_topic", pa.string(), "topic of the source record"),
    Column("_batch", pa.int64(), "batch that read the record"),
)
ORIGINS: Fields = {
    "rating": (Origin("games.Chess.rating"), Origin("games.Chess.elo")),
    "moves": (Origin("games.Chess.moves", "wrapper"),),
    "_topic": (Origin("topic"),),
}


def plan(name: str = "chess", columns: tuple[Column, ...] = COLUMNS) -> TablePlan:
    return TablePlan(name, Role.EACH, name, f"/lake/{name}", columns, comment=f"type {name}")


def batch(number: int, *tables: str, created: bool = False) -> BatchSettled:
    written = tuple(
        TableWritten(name, "each", 10, 100, 1, "published", number, created) for name in tables
    )
    counts = Counts(12, 10, 2)
    return BatchSettled(
        pipeline="games",
        batch=number,
        counts=counts,
        rows=10,
        tables=len(tables),
        seconds=1.0,
        bytes_read=1000,
        written=written,
    )


def facts(clean: Callable[[str], str] = str) -> RunFacts:
    run_id = "01990000-0000-7000-8000-000000000001"
    return RunFacts(run_id, "prod", "games", True, "4.1.1", 60.0, clean)


class Taken:
    """A sink that keeps events, and refuses them when told to."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.broken = False
        self.refused = 0

    def __call__(self, event: str) -> None:
        if self.broken:
            self.refused += 1
            raise OSError("away")
        self.events.append(json.loads(event))

    @property
    def states(self) -> list[str]:
        return [event["eventType"] for event in self.events]


def began(sink: Sink, *, every: float = 0.0, clean: Callable[[str], str] = str) -> LineageRun:
    run = LineageRun(facts(clean), sink, every=every)
    run.start(INPUTS)
    return run


def tell(
    run: LineageRun, event: BatchSettled, plans: dict[str, TablePlan], origins: Fields = ORIGINS
) -> None:
    tables = [(each, (plans[each.table], origins)) for each in event.written]
    run.settled(event, INPUTS, tables)


def test_a_run_begins_tells_its_tables_and_ends() -> None:
    taken = Taken()
    run = began(taken)
    tell(run, batch(0, "chess", created=True), {"chess": plan()})
    eventually(lambda: len(taken.events) == 2, seconds=60)
    run.end("COMPLETE", patience=10)
    assert taken.states == ["START", "RUNNING", "COMPLETE"]
    for event in taken.events:
        check_event(event)
        assert event["job"]["name"] == "games" and event["job"]["namespace"] == "prod"
    assert len({event["run"]["runId"] for event in taken.events}) == 1
    counts = taken.events[-1]["run"]["facets"]["distributary"]
    assert counts["recordsRead"] == counts["recordsWritten"] + counts["recordsDeadLettered"] == 12
    (table,) = taken.events[1]["outputs"]
    assert (table["namespace"], table["name"]) == ("file", "/lake/chess")
    assert table["facets"]["version"]["datasetVersion"] == "0"
    assert table["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "CREATE"
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 10
    (read,) = taken.events[1]["inputs"]
    assert (read["namespace"], read["name"]) == ("kafka://broker:9092", "wrapper")
    assert (
        read["inputFacets"]["inputStatistics"] | {"rowCount": 12, "size": 1000}
        == (read["inputFacets"]["inputStatistics"])
    )


def test_columns_are_told_with_the_fields_they_hold() -> None:
    taken = Taken()
    run = began(taken)
    tell(run, batch(0, "chess"), {"chess": plan()})
    run.end("COMPLETE", patience=10)
    (told,) = (each for event in taken.events for each in event["outputs"])
    schema = told["facets"]["schema"]["fields"]
    assert [(f["name"], f["type"]) for f in schema][:1] == [("rating", "bigint")]
    assert schema[1]["fields"] == [{"name": "square", "type": "string", "fields": []}]
    lineage = told["facets"]["columnLineage"]["fields"]
    assert [f["field"] for f in lineage["rating"]["inputFields"]] == [
        "games.Chess.rating",
        "games.Chess.elo",
    ]
    assert lineage["moves"]["inputFields"][0]["namespace"] == "kafka://broker:9092"
    assert lineage["moves"]["inputFields"][0]["name"] == "wrapper"
    # what the engine makes holds no field
    assert "_batch" not in lineage
    fields = [
        f["name"]
        for event in taken.events
        for each in event["inputs"]
        for f in each["facets"].get("schema", {}).get("fields", ())
    ]
    used = {f["field"] for column in lineage.values() for f in column["inputFields"]}
    assert used <= set(fields)


def test_columns_are_told_again_only_when_they_change() -> None:
    taken = Taken()
    run = began(taken)
    for number in range(3):
        tell(run, batch(number, "chess"), {"chess": plan()})
        eventually(lambda n=number: len(taken.events) == n + 2, seconds=60)  # type: ignore[misc]
    wider = plan(columns=(*COLUMNS, Column("clock", pa.int64())))
    tell(run, batch(3, "chess"), {"chess": wider})
    eventually(lambda: len(taken.events) == 5, seconds=60)
    tell(run, batch(4, "chess"), {"chess": wider}, {**ORIGINS, "clock": (Origin("Chess.clock"),)})
    run.end("COMPLETE", patience=10)
    told = [each for event in taken.events for each in event["outputs"]]
    assert ["schema" in each["facets"] for each in told] == [True, False, False, True, True]
    assert [each["outputFacets"]["outputStatistics"]["rowCount"] for each in told] == [
        10,
        20,
        30,
        40,
        50,
    ]


def test_counts_wait_for_their_time_and_columns_do_not() -> None:
    taken = Taken()
    run = began(taken, every=3600.0)
    tell(run, batch(0, "chess"), {"chess": plan()})
    eventually(lambda: taken.states == ["START", "RUNNING"], seconds=60)
    for number in range(1, 20):
        tell(run, batch(number, "chess"), {"chess": plan()})
    tell(run, batch(20, "go"), {"go": plan("go")})
    eventually(lambda: len(taken.events) == 3, seconds=60)
    run.end("COMPLETE", patience=10)
    assert taken.states == ["START", "RUNNING", "RUNNING", "COMPLETE"]
    totals = taken.events[-1]["run"]["facets"]["distributary"]
    assert (totals["batches"], totals["lastBatch"]) == (21, 20)


def test_a_thousand_tables_are_told_in_portions() -> None:
    taken = Taken()
    run = began(taken)
    names = [f"t{n}" for n in range(1000)]
    plans = {name: plan(name) for name in names}
    tell(run, batch(0, *names), plans)
    eventually(lambda: len(taken.events) >= 11, seconds=60)
    run.end("COMPLETE", patience=30)
    told = [each["name"] for event in taken.events for each in event["outputs"]]
    assert sorted(told) == sorted(f"/lake/{name}" for name in names)
    assert max(len(event["outputs"]) for event in taken.events) == 100
    assert taken.states[0] == "START" and taken.states[-1] == "COMPLETE"
    for event in taken.events[:2]:
        check_event(event)


def test_a_run_without_batches_has_a_beginning_and_an_end() -> None:
    taken = Taken()
    began(taken).end("COMPLETE", patience=10)
    assert taken.states == ["START", "COMPLETE"]
    for event in taken.events:
        check_event(event)


def test_a_failure_is_told_without_secrets() -> None:
    taken = Taken()
    run = began(taken, clean=lambda text: text.replace(SECRET, "***"))
    named = Column("key", pa.string(), f"the token is {SECRET}")
    tell(run, batch(0, "chess"), {"chess": plan(columns=(named,))})
    run.end("FAIL", f"BATCH_FAILED: {SECRET} is wrong", patience=10)
    assert taken.states[-1] == "FAIL"
    check_event(taken.events[-1])
    error = taken.events[-1]["run"]["facets"]["errorMessage"]
    assert error["message"] == "BATCH_FAILED: *** is wrong"
    assert SECRET not in json.dumps(taken.events)


def test_what_was_refused_is_told_with_what_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributary.observe.lineage._PATIENCE_SECONDS", 0.02)
    taken = Taken()
    taken.broken = True
    run = began(taken)
    for number in range(5):
        tell(run, batch(number, "chess"), {"chess": plan()})
    eventually(lambda: taken.refused > 1, seconds=60)
    assert run.lost
    taken.broken = False
    eventually(lambda: taken.states[:1] == ["START"], seconds=60)
    run.end("COMPLETE", patience=10)
    told = [each for event in taken.events for each in event["outputs"]]
    assert "schema" in told[0]["facets"]
    assert told[-1]["outputFacets"]["outputStatistics"]["rowCount"] == 50


def test_a_sink_that_hangs_holds_up_neither_batches_nor_the_end() -> None:
    released, hanging = threading.Event(), threading.Event()

    def hang(event: str) -> None:
        hanging.set()
        released.wait()

    run = began(hang)
    assert hanging.wait(60)
    # all of this happens while the sink hangs: it would never end if anything waited for it
    for number in range(200):
        tell(run, batch(number, "chess"), {"chess": plan()})
    run.end("COMPLETE", patience=0.01)
    released.set()


def test_a_table_that_cannot_be_described_does_not_end_the_story(
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken = Taken()
    run = began(taken)
    broken: Any = {"rating": (object(),)}
    tell(run, batch(0, "chess"), {"chess": plan()}, broken)
    eventually(lambda: "could not be made" in caplog.text, seconds=60)
    tell(run, batch(1, "go"), {"go": plan("go")}, {})
    run.end("COMPLETE", patience=10)
    assert taken.states[-1] == "COMPLETE"


def test_a_server_gets_every_event_with_the_token() -> None:
    with serving(lambda asked: Says(201)) as server:
        config = Lineage(url=f"{server.url}/base/", token=SECRET, endpoint="/api/v1/lineage")
        run = began(http_sink(config))
        tell(run, batch(0, "chess"), {"chess": plan()})
        run.end("COMPLETE", patience=10)
        asked = list(server.asked)
    assert {each.path for each in asked} == {"/base/api/v1/lineage"}
    assert {each.method for each in asked} == {"POST"}
    for each in asked:
        headers = {name.lower(): value for name, value in each.headers.items()}
        assert headers["authorization"] == f"Bearer {SECRET}"
        assert headers["content-type"] == "application/json"
        check_event(json.loads(each.body))
        assert SECRET.encode() not in each.body
    assert run.lost == 0


@pytest.mark.parametrize(
    "answer",
    [
        Says(500),
        Says(401),
        Says(302, headers={"Location": "http://127.0.0.1:9/"}),
        Says(hang=True),
    ],
    ids=["500", "401", "redirect", "hang"],
)
def test_a_server_that_fails_is_counted_and_warned_of_once(
    answer: Says, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(lambda asked: answer) as server:
        config = Lineage(url=server.url, token=SECRET, timeout=timedelta(milliseconds=200))
        run = began(http_sink(config))
        for number in range(10):
            tell(run, batch(number, "chess"), {"chess": plan()})
        run.end("COMPLETE", patience=10)
    assert run.lost
    assert caplog.text.count("cannot be delivered") == 1
    assert SECRET not in caplog.text


def test_nobody_there_is_an_error_without_the_token() -> None:
    sink = http_sink(Lineage(url="http://127.0.0.1:9", token=SECRET))
    with pytest.raises(OSError) as error:
        sink("{}")
    assert SECRET not in str(error.value)


def test_a_token_that_no_header_can_hold_is_not_shown() -> None:
    sink = http_sink(Lineage(url="http://127.0.0.1:9", token=f"{SECRET}\n\x00"))
    with pytest.raises(OSError) as error:
        sink("{}")
    assert SECRET not in str(error.value)


def test_a_file_gets_one_line_an_event(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lineage.jsonl"
    run = began(file_sink(path))
    tell(run, batch(0, "a\nb"), {"a\nb": plan("a\nb")})
    run.end("COMPLETE", patience=10)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [events[0]["eventType"], events[-1]["eventType"]] == ["START", "COMPLETE"]
    for event in events:
        check_event(event)


def test_a_file_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = began(file_sink(tmp_path / "file" / "lineage.jsonl"))
    tell(run, batch(0, "chess"), {"chess": plan()})
    run.end("COMPLETE", patience=10)
    assert run.lost


def test_there_is_a_sink_for_each_place() -> None:
    assert len(sinks(Lineage(url="http://host", file="x.jsonl"))) == 2
    with pytest.raises(ValidationError):
        Lineage()
    with pytest.raises(ValidationError):
        Lineage(file="x", token="t")


@pytest.mark.parametrize(
    ("address", "namespace", "name"),
    [
        ("/lake/chess", "file", "/lake/chess"),
        ("file:///lake/chess", "file", "/lake/chess"),
        ("s3://bucket/lake/chess", "s3://bucket", "lake/chess"),
        ("s3a://bucket/lake/chess/", "s3://bucket", "lake/chess"),
        ("s3://user:secret@bucket/x", "s3://bucket", "x"),
        ("gs://bucket", "gs://bucket", "/"),
        (
            "abfss://lake@account.dfs.core.windows.net/a/b",
            "abfss://lake@account.dfs.core.windows.net",
            "a/b",
        ),
    ],
)
def test_places_are_named_as_openlineage_says(address: str, namespace: str, name: str) -> None:
    assert stored_dataset(address) == Dataset(namespace, name)


def test_a_topic_is_named_by_its_first_broker() -> None:
    assert topic_dataset("SSL://a:9093,b:9093", "t") == Dataset("kafka://a:9093", "t", "TOPIC")
