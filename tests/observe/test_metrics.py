"""What the metrics say of events."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from distributary.errors import AccountingError, RegistryUnavailableError, SourceUnavailableError
from distributary.model.change import Heartbeat, Slot, SourceSlots
from distributary.model.manifest import Counts
from distributary.observe.events import (
    Asked,
    BatchSettled,
    BatchStarted,
    Beat,
    CatalogUpdated,
    Event,
    EventBus,
    Failed,
    Idle,
    RecordsHeld,
    Recovered,
    RegistryAsked,
    RuleBroken,
    SchemaSeen,
    Stopped,
    TableResumed,
    TableWritten,
)
from distributary.observe.metrics import CATALOGUE, PREFIX, MetricKind, Metrics
from distributary.observe.status.pulse import HeldRecords
from tests.observe.conftest import NOON, Lake

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def written(table: str, **facts: Any) -> TableWritten:
    known = {"role": "each", "rows": 10, "bytes": 100, "files": 1, "outcome": "published"}
    return TableWritten(table, **{**known, "version": 1, **facts})


def settled(batch: int = 0, **facts: Any) -> BatchSettled:
    given: dict[str, Any] = {
        "pipeline": "games",
        "at": NOON,
        "life": "one",
        "counts": Counts(10, 7, 2, 1, 0),
        "rows": 7,
        "tables": 1,
        "seconds": 2.0,
        "dead_letters": {"NOT_JSON": 2},
        "broken_rules": (RuleBroken("chess", "known", "warn", checked=10, violated=3),),
        "steps": {"plan": 0.1, "stage": 1.5, "publish": 0.4},
        "written": (written("chess"),),
        "lag_by_partition": {"wrapper/0": 5, "wrapper/1": 0},
        "lag_records": 5,
        "lag_seconds": 3.0,
        "bytes_read": 1234,
    }
    return BatchSettled(batch=batch, **{**given, **facts})


def samples(metrics: Metrics) -> Samples:
    return {
        (sample.name.removeprefix(PREFIX), tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(metrics.render()[1].decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    wanted = {"pipeline": "games", **labels}
    return samples(metrics).get((name, tuple(sorted(wanted.items()))))


def told(*events: Event, **settings: Any) -> Metrics:
    metrics = Metrics(**settings)
    for event in events:
        metrics.listen(event)
    return metrics


def test_a_batch_is_counted() -> None:
    metrics = told(settled())
    stream = {"lane": "stream"}
    for name, count in {"read": 10, "written": 7, "dead_lettered": 2, "parked": 1}.items():
        assert value(metrics, f"records_{name}_total", **stream) == count
    assert value(metrics, "accounting_difference_records") == 0
    assert value(metrics, "dead_letters_total", code="NOT_JSON", **stream) == 2
    assert value(metrics, "read_bytes_total", **stream) == 1234
    chess = {"table": "chess", "role": "each"}
    assert value(metrics, "table_rows_total", **chess) == 10
    assert value(metrics, "table_bytes_total", **chess) == 100
    assert value(metrics, "table_files_total", **chess) == 1
    assert value(metrics, "table_commits_total", **chess) == 1
    assert value(metrics, "table_last_commit_timestamp_seconds", **chess) == NOON.timestamp()
    assert value(metrics, "lag_records", topic="wrapper", partition="0") == 5
    assert value(metrics, "record_delay_seconds") == 3.0
    assert value(metrics, "newest_record_timestamp_seconds") == NOON.timestamp() - 3
    assert value(metrics, "batch_duration_seconds_count", **stream) == 1
    assert value(metrics, "batch_duration_seconds_sum", **stream) == 2.0
    assert value(metrics, "step_duration_seconds_bucket", step="stage", le="2.5", **stream) == 1
    assert value(metrics, "step_duration_seconds_bucket", step="stage", le="1.0", **stream) == 0


def test_broken_rules_are_counted_over_all_tables() -> None:
    broken = (
        RuleBroken("chess", "known", "warn", checked=10, violated=3),
        RuleBroken("go", "known", "warn", checked=5, violated=1),
        RuleBroken("go", "dated", "dead_letter", checked=5, violated=2),
    )
    metrics = told(settled(broken_rules=broken), settled(1, broken_rules=()))
    assert value(metrics, "rule_violations_total", rule="known", action="warn") == 4
    assert value(metrics, "rule_violations_total", rule="dated", action="dead_letter") == 2


def test_a_batch_counts_once_however_often_it_is_settled() -> None:
    metrics = told(settled(0), settled(1), settled(0), settled(1))
    assert value(metrics, "records_read_total", lane="stream") == 20
    assert value(metrics, "table_rows_total", table="chess", role="each") == 20
    assert value(metrics, "batches_total", lane="stream") == 2


def test_a_new_life_and_a_replay_count_for_themselves() -> None:
    metrics = told(settled(0), settled(0, life="two"), settled(0, lane="replay"))
    assert value(metrics, "records_read_total", lane="stream") == 20
    assert value(metrics, "records_read_total", lane="replay") == 10


def test_a_restart_neither_resets_nor_doubles() -> None:
    metrics = told()
    for number in range(3):
        bus = EventBus()
        detach = bus.subscribe(metrics.listen)
        bus.publish(BatchStarted(pipeline="games", batch=number))
        # the batch that was under way when the process died is finished by the next one
        bus.publish(settled(max(0, number - 1)))
        bus.publish(settled(number))
        bus.publish(Failed(pipeline="games", error=AccountingError("no"), retry_in=None))
        detach()
        bus.publish(settled(99))
    assert value(metrics, "records_read_total", lane="stream") == 30
    assert value(metrics, "failures_total", code="ACCOUNTING_BROKEN", retried="false") == 3


def test_what_is_not_durable_is_not_counted() -> None:
    parked = written("go", outcome="parked", version=None)
    nothing = written("shogi", rows=0, bytes=0, files=0, version=None)
    # the commit was there already, of a process that could not tell any more
    found = written("chess", outcome="skipped")
    metrics = told(settled(written=(parked, nothing, found), parked_tables=("go",)))
    assert value(metrics, "table_rows_total", table="go", role="each") is None
    assert value(metrics, "table_commits_total", table="shogi", role="each") is None
    assert value(metrics, "table_rows_total", table="chess", role="each") == 10
    assert value(metrics, "tables_parked") == 1


def test_a_table_is_parked_until_it_is_resumed() -> None:
    metrics = told(settled(parked_tables=("go", "chess")))
    metrics.listen(TableResumed(pipeline="games", table="go", parked=True))
    assert value(metrics, "tables_parked") == 2
    metrics.listen(TableResumed(pipeline="games", table="go"))
    assert value(metrics, "tables_parked") == 1
    metrics.listen(settled(1))
    assert value(metrics, "tables_parked") == 0


def test_tables_beyond_the_limit_are_told_as_one() -> None:
    many = tuple(written(f"t{n}", version=0, created=True) for n in range(1000))
    fixed = (written("dead_letters", role="dead_letters"),)
    metrics = told(settled(written=many + fixed), settled(1, written=many + fixed), max_tables=50)
    rows = {k: v for k, v in samples(metrics).items() if k[0] == "table_rows_total"}
    assert len(rows) == 52
    assert sum(rows.values()) == 2 * 10 * 1001
    assert value(metrics, "table_rows_total", table="other", role="other") == 2 * 10 * 950
    assert value(metrics, "table_rows_total", table="dead_letters", role="dead_letters") == 20
    assert value(metrics, "tables_in_other") == 950
    assert value(metrics, "tables_created_total") == 2000


def test_partitions_that_are_gone_have_no_lag() -> None:
    metrics = told(settled(0), settled(1, lag_by_partition={"wrapper/1": 7}))
    assert value(metrics, "lag_records", topic="wrapper", partition="0") is None
    assert value(metrics, "lag_records", topic="wrapper", partition="1") == 7
    metrics.listen(settled(2, lag_by_partition={}, lag_records=9))
    assert value(metrics, "lag_records", topic="", partition="") == 9
    metrics.listen(settled(3, lag_by_partition={f"t/{n}": 1 for n in range(1500)}))
    assert value(metrics, "lag_records", topic="other", partition="other") == 500


def test_a_replay_says_nothing_about_lag() -> None:
    metrics = told(settled(0), settled(0, lane="replay", lag_by_partition={"letters/0": 1}))
    assert value(metrics, "lag_records", topic="letters", partition="0") is None
    assert value(metrics, "lag_records", topic="wrapper", partition="0") == 5


def test_the_state_of_a_pipeline() -> None:
    away = RegistryUnavailableError("away")
    metrics = told(BatchStarted(pipeline="games", batch=0))
    assert (value(metrics, "pipeline_running"), value(metrics, "pipeline_failing")) == (1, 0)
    metrics.listen(Failed(pipeline="games", error=away, retry_in=5.0))
    assert (value(metrics, "pipeline_running"), value(metrics, "pipeline_failing")) == (1, 1)
    metrics.listen(Idle(pipeline="games", at=NOON + timedelta(days=9000)))
    assert (value(metrics, "pipeline_running"), value(metrics, "pipeline_failing")) == (1, 0)
    assert (
        value(metrics, "last_event_timestamp_seconds") == (NOON + timedelta(days=9000)).timestamp()
    )
    metrics.listen(Failed(pipeline="games", error=away))
    assert (value(metrics, "pipeline_running"), value(metrics, "pipeline_failing")) == (0, 1)
    metrics.listen(Stopped(pipeline="games"))
    assert (value(metrics, "pipeline_running"), value(metrics, "pipeline_failing")) == (0, 0)
    assert value(metrics, "failures_total", code="REGISTRY_UNAVAILABLE", retried="true") == 1


def test_a_pipeline_is_in_one_state() -> None:
    def states(*heard: Event) -> list[str]:
        metrics = told(*heard)
        known = ("running", "retrying", "done", "stopped", "failed")
        return [each for each in known if value(metrics, "pipeline_state", state=each)]

    begun, beat = BatchStarted(pipeline="games", batch=0), Beat(pipeline="games")
    again = Failed(pipeline="games", error=RegistryUnavailableError("away"), retry_in=5.0)
    assert states(begun, beat) == ["running"]
    assert states(begun, again, begun, beat) == ["retrying"]
    assert states(again, Recovered(pipeline="games")) == ["running"]
    assert states(again, replace(again, retry_in=None)) == ["failed"]
    for reason in ("done", "stopped"):
        assert states(begun, Stopped(pipeline="games", reason=reason)) == [reason]


def test_what_is_tried_again_is_named_until_it_works() -> None:
    away, gone = RegistryUnavailableError("away"), SourceUnavailableError("gone")
    metrics = told(Failed(pipeline="games", at=NOON, error=away, retry_in=5.0))
    later = NOON + timedelta(seconds=9)
    metrics.listen(Failed(pipeline="games", at=later, error=gone, retry_in=5.0))
    since = "pipeline_retrying_since_timestamp_seconds"
    assert value(metrics, "pipeline_retrying", code="REGISTRY_UNAVAILABLE") == 0
    assert value(metrics, "pipeline_retrying", code="SOURCE_UNAVAILABLE") == 1
    assert value(metrics, since) == NOON.timestamp()
    next_try = "pipeline_next_try_timestamp_seconds"
    assert value(metrics, next_try) == (later + timedelta(seconds=5)).timestamp()
    metrics.listen(Recovered(pipeline="games"))
    assert value(metrics, next_try) == 0
    assert value(metrics, "pipeline_retrying", code="SOURCE_UNAVAILABLE") == 0
    assert (value(metrics, since), value(metrics, "pipeline_failing")) == (0, 0)


def test_lag_is_measured_between_batches_too() -> None:
    metrics = told(settled(0))
    later = NOON + timedelta(seconds=6)
    beat = {"lag_records": 70, "lag_by_partition": {"wrapper/1": 70}, "lag_at": later}
    metrics.listen(Beat(pipeline="games", **beat))
    assert value(metrics, "lag_records", topic="wrapper", partition="1") == 70
    assert value(metrics, "lag_records", topic="wrapper", partition="0") is None
    assert value(metrics, "lag_timestamp_seconds") == later.timestamp()
    # a source that cannot be asked leaves what a batch has said
    metrics.listen(Beat(pipeline="games"))
    assert value(metrics, "lag_records", topic="wrapper", partition="1") == 70


def test_a_connector_is_silent_as_long_as_its_topic_says_so() -> None:
    metrics = told(settled(0))
    later = NOON + timedelta(seconds=40)
    beats = {
        "__debezium-heartbeat.shop": Heartbeat(NOON, later),
        "beats": Heartbeat(NOON),
    }
    metrics.listen(Beat(pipeline="games", lag_records=0, lag_at=later, heartbeats=beats))
    assert value(metrics, "source_silent_seconds", connector="shop") == 40
    # nobody has looked whether there is a newer one
    assert value(metrics, "source_silent_seconds", connector="beats") is None
    metrics.listen(Beat(pipeline="games", lag_records=0, lag_at=later))
    assert value(metrics, "source_silent_seconds", connector="shop") is None


def test_slots_have_series_while_the_database_answers() -> None:
    slots = (Slot("shop", active=True, bytes=70, database="shop"),)
    metrics = told(Beat(pipeline="games", slots=SourceSlots(NOON, slots)))
    assert value(metrics, "source_slot_held_bytes", slot="shop") == 70
    assert value(metrics, "source_slot_lost", slot="shop") == 0
    metrics.listen(Beat(pipeline="games", slots=SourceSlots(NOON, slots, "away")))
    assert value(metrics, "source_slot_held_bytes", slot="shop") is None
    lost = (replace(slots[0], bytes=0, lost=True),)
    metrics.listen(Beat(pipeline="games", slots=SourceSlots(NOON, lost)))
    assert value(metrics, "source_slot_lost", slot="shop") == 1
    metrics.listen(Beat(pipeline="games"))
    assert value(metrics, "source_slot_lost", slot="shop") is None


def test_what_may_rise_is_there_from_the_start() -> None:
    metrics = told(BatchStarted(pipeline="games", batch=0))
    assert value(metrics, "records_dead_lettered_total", lane="stream") == 0
    assert value(metrics, "records_parked_total", lane="stream") == 0
    assert value(metrics, "failures_total", code="ACCOUNTING_BROKEN", retried="false") == 0


def test_a_broken_equation_shows() -> None:
    assert value(told(settled(counts=Counts(10, 7, 2, 0, 0))), "accounting_difference_records") == 1


def test_the_registry_is_counted_by_endpoint_and_outcome() -> None:
    calls = (Asked("schemas/ids", "ok", 3, 0.5), Asked("subjects", "silent", 1, 10.0))
    metrics = told(*[RegistryAsked(pipeline="games", calls=calls)] * 2)
    asked = {"endpoint": "schemas/ids", "outcome": "ok"}
    assert value(metrics, "registry_requests_total", **asked) == 6
    assert value(metrics, "registry_request_seconds_total", **asked) == 1.0


def test_schemas_are_counted() -> None:
    seen = SchemaSeen(
        pipeline="games", batch=0, type="chess", table="chess", schema_id=1, label="chess v1"
    )
    assert value(told(seen, seen), "schemas_seen_total") == 2


def test_tables_of_before_are_remembered(lake: Lake) -> None:
    lake.settle(lake.manifest(0, entries=[lake.entry("chess"), lake.entry("go")]), parked=["go"])
    lake.settle(lake.manifest(0, pipeline="orders"))
    metrics = told()
    metrics.remember("games", lake.ledger.tables())
    chess = {"table": "chess", "role": "each"}
    assert value(metrics, "table_last_commit_timestamp_seconds", **chess) == NOON.timestamp()
    assert value(metrics, "table_rows_total", **chess) is None
    assert value(metrics, "tables_parked") == 1
    assert not [labels for _, labels in samples(metrics) if ("pipeline", "orders") in labels]


def test_pipelines_do_not_mix() -> None:
    metrics = told(settled(), settled(pipeline="orders"), settled(pipeline="orders", batch=1))
    assert value(metrics, "records_read_total", lane="stream") == 10
    assert value(metrics, "records_read_total", lane="stream", pipeline="orders") == 20


@given(name=st.text(min_size=1, max_size=300))
def test_any_name_can_be_served(name: str) -> None:
    metrics = told(settled(written=(written(name),), lag_by_partition={f"{name}/3": 1}))
    found = [labels for series, labels in samples(metrics) if series == "table_rows_total"]
    (labels,) = found
    shown = name.encode("utf-8", "backslashreplace").decode()
    assert dict(labels)["table"] == shown


def test_a_name_that_cannot_be_encoded_ends_no_scrape() -> None:
    metrics = told(settled(written=(written("a\ud800b"), written('x"} 1\n# HELP y'))))
    tables = {dict(labels).get("table") for _, labels in samples(metrics)}
    assert {"a\\ud800b", 'x"} 1\n# HELP y'} <= tables


def test_a_scrape_never_sees_half_a_batch() -> None:
    metrics = told()
    stop = threading.Event()

    def feed() -> None:
        batch = 0
        while not stop.is_set():
            metrics.listen(settled(batch))
            batch += 1

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        for _ in range(50):
            seen = samples(metrics)
            read, *others = (
                seen.get((f"records_{n}_total", (("lane", "stream"), ("pipeline", "games"))), 0.0)
                for n in ("read", "written", "dead_lettered", "parked", "skipped")
            )
            assert read == sum(others)
    finally:
        stop.set()
        thread.join()


def everything() -> Metrics:
    """Metrics of which every one has a value."""
    call = Asked("schemas/ids", "ok", 1, 0.1)
    seen = SchemaSeen(pipeline="games", batch=0, type="c", table="c", schema_id=1, label="c v1")
    listed = CatalogUpdated(pipeline="games", catalog="main.games", registered=3, waiting=1)
    away = Failed(pipeline="games", error=RegistryUnavailableError("away"), retry_in=5.0)
    beats = {"__debezium-heartbeat.shop": Heartbeat(NOON, NOON)}
    beat = Beat(
        pipeline="games",
        lag_records=3,
        lag_by_partition={"wrapper/0": 3},
        lag_at=NOON,
        heartbeats=beats,
        slots=SourceSlots(NOON, (Slot("shop", active=True, bytes=7),)),
    )
    events = (away, settled(), RegistryAsked(pipeline="games", calls=(call,)), seen, listed, beat)
    return told(*events)


def test_every_metric_that_is_declared_is_served_with_its_labels() -> None:
    families = {f.name: f for f in parse(everything().render()[1].decode())}
    for metric in CATALOGUE:
        family = families[metric.name.removesuffix("_total")]
        assert family.type == metric.kind
        labels: set[str] = set().union(*(sample.labels.keys() for sample in family.samples))
        assert labels - {"le"} == set(metric.labels), metric.name
    own = {name for name in families if name.startswith(PREFIX)}
    assert own == {metric.name.removesuffix("_total") for metric in CATALOGUE}


def test_it_is_open_metrics_too() -> None:
    text = open_metrics(everything().registry).decode()
    assert {f.name for f in parse_open(text)} >= {m.name.removesuffix("_total") for m in CATALOGUE}


ABBREVIATED = re.compile(
    r"_(s|ms|us|ns|sec|secs|m|min|mins|h|hr|hrs|b|kb|mb|gb|kib|mib|gib|pct|msec|milliseconds"
    r"|microseconds|minutes|hours|days|kilobytes|megabytes|percent)(_|$)"
)


def test_the_text_is_as_promtool_wants_it() -> None:
    """The checks of `promtool check metrics`, and what the naming guide says besides."""
    text = everything().render()[1].decode()
    assert text.endswith("\n")
    helped = re.findall(r"^# HELP (\S+) (.+)$", text, re.M)
    kinds: Mapping[str, str] = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    assert [name for name, _ in helped] == list(kinds)
    assert len(helped) == len({name for name, _ in helped})
    for name, kind in kinds.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name)
        assert name.endswith("_total") == (kind == "counter"), name
        assert not name.endswith(("_count", "_sum", "_bucket")), name
        # a name says neither what kind it is nor which labels it has
        assert not re.search(r"_(counter|gauge|histogram|summary|by)(_|$)", name), name
        assert not ABBREVIATED.search(name), name
    for family in parse(text):
        for sample in family.samples:
            allowed = {"le"} if family.type == "histogram" else set()
            assert not ({"le", "quantile"} - allowed) & sample.labels.keys(), family.name
            assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in sample.labels)
    series = re.findall(r"^([^#\s].*?) \S+$", text, re.M)
    assert len(series) == len(set(series))


def test_buckets_add_up() -> None:
    metrics = told(*(settled(n, seconds=s) for n, s in enumerate((0.001, 0.01, 7.0, 5000.0))))
    buckets = [
        (float(dict(labels)["le"]), count)
        for (name, labels), count in samples(metrics).items()
        if name == "batch_duration_seconds_bucket"
    ]
    counts = [count for _, count in sorted(buckets)]
    assert counts == sorted(counts) and counts[0] == 2 and counts[-1] == 4
    assert {m.name for m in CATALOGUE if m.kind is MetricKind.HISTOGRAM} == {
        "distributary_batch_duration_seconds",
        "distributary_step_duration_seconds",
    }


def test_each_pipeline_may_have_a_limit_of_its_own() -> None:
    metrics = told(max_tables=10)
    metrics.limit("games", max_tables=0)
    many = tuple(written(f"t{n}") for n in range(20))
    metrics.listen(settled(written=many))
    metrics.listen(settled(written=many, pipeline="orders"))
    assert value(metrics, "tables_in_other") == 20
    assert value(metrics, "tables_in_other", pipeline="orders") == 10


def test_records_that_are_held_back_have_series() -> None:
    held = HeldRecords(12, 2, "571", NOON)
    metrics = told(replace(settled(0), held=held))
    assert value(metrics, "held_records") == 12
    assert value(metrics, "held_transactions") == 2
    metrics.listen(RecordsHeld(pipeline="games", batch=1, held=replace(held, records=5)))
    assert value(metrics, "held_records") == 5
    metrics.listen(settled(1))
    assert value(metrics, "held_records") == value(metrics, "held_transactions") == 0
