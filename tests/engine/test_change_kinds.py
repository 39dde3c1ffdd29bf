"""What the settings of change data do to the tables."""

from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.engine.kill_points import KillPoint
from distributary.engine.pipeline import Pipeline
from distributary.engine.steps import merges
from distributary.model.manifest import Counts
from distributary.observe.status.health import with_measures
from distributary.observe.verify.row_counts import check_table, written_tables
from distributary.operations.query import Questions
from distributary_lab.simulate.cdc.shapes import CHAOS, CdcPlan, Feature, SourceType
from tests.decode.datastream_samples import COLUMNS, TS, event
from tests.lakes.changes import Feed, events_left, rows_of

SMALL = CdcPlan(tables=3, events=120, rows=4, rounds=3, features=CHAOS, file_events=30)
WIDER = {**COLUMNS, "size": ["null", "long"]}
OTHER = {"id": ["null", "int"], "size": ["null", "long"]}


def columns_of(table: Path) -> list[str]:
    names = [field.name for field in DeltaTable(str(table)).schema().fields]
    return [name for name in names if name not in ("_seq", "_source_ts")]


def run(feed: Feed, tasks: SparkSession, **settings: str) -> Counts:
    counts = feed.pipeline(**settings).run(spark=tasks).counts
    assert counts.balanced
    return counts


def test_soft_deletes_keep_the_row_and_say_so(tmp_path: Path, tasks: SparkSession) -> None:
    feed = Feed(tmp_path, SMALL)
    while feed.send_round() is not None:
        run(feed, tasks, cdc=", deletes: soft")
    gone = 0
    for claim, expected in feed.stream.model.truth().items():
        rows = feed.rows(f"shop_{claim.table}")
        feed.assert_same_rows(claim, [row for row in rows if not row["_deleted"]], expected)
        gone += sum(row["_deleted"] for row in rows)
    assert gone


def test_a_history_has_every_version_of_a_row(tmp_path: Path, tasks: SparkSession) -> None:
    feed = Feed(tmp_path, SMALL)
    while feed.send_round() is not None:
        run(feed, tasks, cdc=", history: true")
    feed.assert_true()
    for claim, expected in feed.stream.model.truth().items():
        name = f"shop_{claim.table}"
        versions = feed.rows(f"{name}_history")
        now = [row for row in versions if row["_current"] and not row["_deleted"]]
        feed.assert_same_rows(claim, now, expected)
        assert len(versions) == len(feed.rows(f"{name}_log"))
        (table,) = (t for t in feed.stream.model.tables if t.shape.claim == claim)
        chains: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in versions:
            chains[str([row[key] for key in table.shape.key])].append(row)
        for chain in chains.values():
            _assert_chain(chain)


def _assert_chain(chain: list[dict[str, Any]]) -> None:
    """Each version ends where the next one begins, and the last one has not ended."""
    chain.sort(key=lambda row: tuple(row["_seq"].values()))
    there = not chain[-1]["_deleted"]
    assert [row["_current"] for row in chain] == [False] * (len(chain) - 1) + [there]
    ends = [row["_valid_to"] for row in chain]
    assert ends == [*(row["_valid_from"] for row in chain[1:]), None]


def test_backfills_by_timestamp_mend_what_changes_say(tmp_path: Path, tasks: SparkSession) -> None:
    plan = CdcPlan(
        tables=3, events=200, rows=6, features=frozenset({Feature.STALE_BACKFILLS}), rounds=5
    )
    feed = Feed(tmp_path, plan)
    feed.send_all()
    truth = feed.stream.model.truth
    assert truth(backfill="by_timestamp") != truth()
    run(feed, tasks, cdc=", backfill: by_timestamp")
    feed.assert_true(backfill="by_timestamp")


@pytest.mark.parametrize(
    ("evolution", "columns", "rows"),
    [
        ("mergeSchema", ["id", "val", "size"], {(1, "v", None), (2, "v", 7), (3, None, 8)}),
        ("overwriteSchema", ["id", "size"], {(1, None, None), (2, None, 7), (3, None, 8)}),
        ("none", ["id", "val"], {(1, "v", None), (2, "v", None), (3, None, None)}),
    ],
)
def test_evolution_does_what_its_name_says(
    tmp_path: Path,
    tasks: SparkSession,
    evolution: str,
    columns: list[str],
    rows: set[tuple[object, ...]],
) -> None:
    feed = Feed(tmp_path)
    first = event(1)
    wider = event(2, payload={"id": 2, "val": "v", "size": 7}, source_timestamp=TS + 1000)
    other = event(3, payload={"id": 3, "size": 8}, source_timestamp=TS + 2000)
    late = event(4, source_timestamp=TS + 500, metadata={"change_type": "DELETE"})
    feed.put_events("a", [first])
    run(feed, tasks, cdc=f", evolution: {evolution}")
    # within one batch files come in any order
    feed.put_events("z", [wider], columns=WIDER)
    feed.put_events("b", [other], columns=OTHER)
    run(feed, tasks, cdc=f", evolution: {evolution}")
    table = feed.lake / "shop_orders"
    assert columns_of(table) == columns
    # a file of before that comes late does not turn the columns back
    feed.put_events("c", [late])
    run(feed, tasks, cdc=f", evolution: {evolution}")
    assert columns_of(table) == columns
    found = feed.rows("shop_orders")
    assert {(row["id"], row.get("val"), row.get("size")) for row in found} == rows
    # the log has it all, whatever the table has
    assert {"id", "val", "size"} <= set(columns_of(feed.lake / "shop_orders_log"))


def test_overwritten_columns_come_back_when_the_source_has_them_again(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path)
    for number, columns in enumerate([COLUMNS, OTHER, COLUMNS]):
        payload = {"id": number} | {name: None for name in columns if name != "id"}
        moment = TS + 1000 * number
        feed.put_events(
            f"f{number}",
            [event(number, payload=payload, source_timestamp=moment)],
            columns=columns,
        )
        run(feed, tasks, cdc=", evolution: overwriteSchema")
        assert columns_of(feed.lake / "shop_orders") == list(columns)
    assert sorted(row["id"] for row in feed.rows("shop_orders")) == [0, 1, 2]


@pytest.mark.parametrize("evolution", ["mergeSchema", "overwriteSchema"])
def test_a_changed_type_is_a_side_column_in_log_and_table(
    tmp_path: Path, tasks: SparkSession, evolution: str
) -> None:
    feed = Feed(tmp_path)
    feed.put_events("a", [event(1)])
    run(feed, tasks, cdc=f", evolution: {evolution}")
    changed = event(2, payload={"id": 2, "val": 5}, source_timestamp=TS + 1000)
    feed.put_events("b", [changed], columns={**COLUMNS, "val": ["null", "long"]})
    assert run(feed, tasks, cdc=f", evolution: {evolution}") == Counts(read=1, written=1)
    rows = {row["id"]: row for row in feed.rows("shop_orders")}
    (side,) = rows[2].keys() - {"id", "val", "_seq", "_source_ts"}
    assert (rows[1][side], rows[2][side]) == (None, 5)
    old = {key: row.get("val") for key, row in rows.items()}
    assert old == ({1: "v", 2: None} if evolution == "mergeSchema" else {1: None, 2: None})
    assert ("val" in rows[1]) == (evolution == "mergeSchema")


def test_without_a_log_there_is_none_and_nothing_is_left_behind(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path, SMALL)
    while feed.send_round() is not None:
        run(feed, tasks, cdc=", log: false, history: true")
    assert not list(feed.lake.glob("*_log"))
    assert events_left(feed.lake) == []
    feed.assert_true(logs=False)


class _Killed(BaseException):
    """Nobody catches it."""


def test_without_a_log_pipelines_that_share_a_table_leave_each_others_events_alone(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = {name: Feed(tmp_path / name) for name in ("eu", "us")}
    lake = tmp_path / "lake"
    sent = Counter[str]()

    def pipeline(name: str) -> Pipeline:
        path = feeds[name].write_file(cdc=", log: false", tables="{each: 'all_{table}'}")
        text = path.read_text().replace("name: changes", f"name: {name}")
        path.write_text(text.replace(str(feeds[name].lake), str(lake)))
        return Pipeline.load(path)

    def send(name: str) -> None:
        number = sent[name] = sent[name] + 1
        one = event(number, uuid=f"{name}-{number}", metadata={"database": name})
        feeds[name].put_events(str(number), [one | {"payload": {"id": number, "val": name}}])

    def die(now: KillPoint, *args: object) -> None:
        if now is KillPoint.BEFORE_MERGE:
            raise _Killed

    for _ in range(2):
        send("eu")
        pipeline("eu").run(spark=tasks)
    send("us")
    with monkeypatch.context() as patch:
        patch.setattr(merges, "reached", die)
        with pytest.raises(_Killed):
            pipeline("us").run(spark=tasks)
    send("eu")
    pipeline("eu").run(spark=tasks)
    pipeline("us").run(spark=tasks)
    rows = rows_of(lake / "all_orders")
    assert sorted((row["_shard"], row["id"]) for row in rows) == [
        ("eu", 1),
        ("eu", 2),
        ("eu", 3),
        ("us", 1),
    ]
    assert events_left(lake) == []


def test_a_prefix_and_a_template_name_the_tables(tmp_path: Path, tasks: SparkSession) -> None:
    feed = Feed(tmp_path)
    feed.put_events("a", [event(1)])
    run(feed, tasks, tables="{each: 'db_{database}__{table}', prefix: raw_}")
    assert {path.name for path in feed.lake.iterdir() if path.name[0] != "_"} == {
        "raw_db_shop__orders",
        "raw_db_shop__orders_log",
    }


def test_databases_of_one_layout_share_a_table_with_a_shard_column(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path)
    for number, database in enumerate(("eu", "us")):
        events = [
            event(1, metadata={"database": database}, payload={"id": 1, "val": database}),
            event(2, metadata={"database": database}, uuid=f"{database}-2"),
        ]
        events[0]["uuid"] = f"{database}-1"
        feed.put_events(f"f{number}", events)
    run(feed, tasks, tables="{each: 'all_{table}'}")
    rows = feed.rows("all_orders")
    assert {(row["_shard"], row["id"], row["val"]) for row in rows} == {
        ("eu", 1, "eu"),
        ("us", 1, "us"),
        ("eu", 2, "v"),
        ("us", 2, "v"),
    }
    # a delete in one of them leaves the row of the other
    gone = event(
        3,
        metadata={"database": "eu", "change_type": "DELETE", "is_deleted": True},
        payload={"id": 1, "val": "eu"},
        source_timestamp=TS + 1000,
    )
    feed.put_events("g", [gone])
    run(feed, tasks, tables="{each: 'all_{table}'}")
    assert {(row["_shard"], row["id"]) for row in feed.rows("all_orders")} == {
        ("us", 1),
        ("eu", 2),
        ("us", 2),
    }
    assert len(feed.rows("all_orders_log")) == 5


def test_one_name_in_two_schemas_or_databases_is_two_tables(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path)
    for schema in ("public", "sales"):
        one = event(1, "postgresql", metadata={"schema": schema}, payload={"id": 1, "val": schema})
        feed.put_events(schema, [one | {"uuid": schema}], kind="postgresql")
    for database in ("eu", "us"):
        one = event(1, metadata={"database": database}, payload={"id": 1, "val": database})
        feed.put_events(database, [one | {"uuid": database}])
    run(feed, tasks)
    tables = {p.name for p in feed.lake.iterdir() if p.name[0] != "_" and p.name[-4:] != "_log"}
    assert len(tables) == 4
    assert sorted(feed.rows(table)[0]["val"] for table in tables) == ["eu", "public", "sales", "us"]
    assert {"eu_orders", "us_orders"} < tables


def test_sql_servers_key_is_its_replication_index_and_oracles_may_be_the_row_id(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path)
    feed.put_events("a", [event(1, "sqlserver"), event(2, "sqlserver")], kind="sqlserver")
    keyless = {"primary_keys": None, "row_id": "AAA"}
    twice = [
        event(n, "oracle", metadata=keyless, payload={"id": n, "val": "v"}, source_timestamp=TS + n)
        for n in (1, 2)
    ]
    feed.put_events("b", twice, kind="oracle")
    run(feed, tasks, tables="{each: '{table}_{database}'}")
    by_index = feed.lake / "orders_mydb_dbo"
    names = {path.name for path in feed.lake.iterdir()}
    assert by_index.name in names, names
    assert {row["id"] for row in feed.rows(by_index.name)} == {1, 2}
    (oracle,) = (n for n in names if n.startswith("orders_xe") and not n.endswith("_log"))
    assert [row["id"] for row in feed.rows(oracle)] == [2]


def test_a_table_without_a_key_has_a_log_only(tmp_path: Path, tasks: SparkSession) -> None:
    feed = Feed(tmp_path)
    feed.put_events("a", [event(n, metadata={"primary_keys": []}) for n in (1, 2)])
    assert run(feed, tasks) == Counts(read=2, written=2)
    assert len(feed.rows("shop_orders_log")) == 2
    assert not (feed.lake / "shop_orders").exists()
    # and it goes on
    feed.put_events("b", [event(3, metadata={"primary_keys": []})])
    assert run(feed, tasks) == Counts(read=1, written=1)
    assert len(feed.rows("shop_orders_log")) == 3


def test_copies_of_an_event_that_two_tasks_land_are_one_row(
    tmp_path: Path, spark: SparkSession
) -> None:
    """The table is so heavy that it is cut: neither task sees what the other has."""
    feed = Feed(tmp_path)
    events = [event(number) for number in range(12_000)]
    feed.put_events("a", events[:7_000])
    feed.put_events("b", [*events[7_000:], *events[6_000:6_100], events[-1]])
    counts = run(feed, spark)
    assert counts == Counts(read=12_101, written=12_000, skipped=101)
    log = feed.lake / "shop_orders_log"
    assert len(DeltaTable(str(log)).file_uris()) == 2
    ids = [row["_uuid"] for row in feed.rows("shop_orders_log")]
    assert len(ids) == len(set(ids)) == 12_000
    (known,) = (t for t in feed.pipeline().ledger().tables() if t.table == "shop_orders_log")
    assert known.changes["insert"] == 12_000


def test_times_of_the_source_are_kept(tmp_path: Path, tasks: SparkSession) -> None:
    feed = Feed(tmp_path, CdcPlan(tables=1, events=0, rows=2, source_type=SourceType.POSTGRESQL))
    feed.send_all()
    run(feed, tasks, tables="{each: '{schema}_{table}'}")
    (row, _) = feed.rows("public_users")
    assert isinstance(row["_source_ts"], datetime)


@pytest.mark.sql
def test_the_catalog_has_the_tables_that_are_there(tmp_path: Path, spark: SparkSession) -> None:
    feed = Feed(tmp_path)
    feed.put_events("a", [event(1)])
    keyless = event(2, metadata={"table": "visits", "primary_keys": []})
    feed.put_events("b", [keyless])
    for log in ("true", "false"):
        database = f"changes_{log}"
        file = feed.write_file(cdc=f", log: {log}, history: true")
        text = file.read_text().replace("name: changes", f"name: {database}")
        lake = f"{{path: {tmp_path / log}, database: {database}}}"
        file.write_text(text.replace(f"{{path: {feed.lake}}}", lake))
        Pipeline.load(file).run(spark=spark)
        listed = {row["tableName"] for row in spark.sql(f"SHOW TABLES IN {database}").collect()}
        expected = {"shop_orders", "shop_orders_history", "shop_orders_log", "shop_visits_log"}
        assert listed == {name for name in expected if log == "true" or name[-4:] != "_log"}
        assert spark.sql(f"SELECT id FROM {database}.shop_orders").collect()[0][0] == 1


def test_rows_leave_a_large_file_by_a_vector(tmp_path: Path, spark: SparkSession) -> None:
    feed, count = Feed(tmp_path), 40_000
    text, other = "x" * 500, "y" * 500
    # more than what a merge takes for a small file
    feed.put_events("a", [event(n, payload={"id": n, "val": text}) for n in range(count)])
    run(feed, spark, cdc=", deletes_as: vectors")
    table = feed.lake / "shop_orders"
    assert not list(table.glob("*.bin"))
    later = {"source_timestamp": TS + 1000}
    gone = {"change_type": "DELETE", "is_deleted": True}
    changes = [event(count + n, payload={"id": n, "val": other}, **later) for n in range(0, 40, 2)]
    changes += [
        event(2 * count + n, payload={"id": n, "val": text}, metadata=gone, **later)
        for n in range(1, 40, 2)
    ]
    feed.put_events("b", changes)
    run(feed, spark, cdc=", deletes_as: vectors")
    assert len(list(table.glob("deletion_vector_*.bin"))) == 1
    questions = Questions(str(feed.lake))
    sql = "select val[1], count(*) as n from shop_orders group by 1 order by 1"
    with questions.ask(sql) as answer:
        assert list(answer.rows()) == [("x", count - 40), ("y", 20)]
    frame = spark.read.format("delta").load(str(table))
    assert sorted(row.id for row in frame.filter("id < 40").select("id").collect()) == [
        *range(0, 40, 2)
    ]
    ledger = feed.pipeline().ledger()
    known = with_measures(str(feed.lake), ledger.tables("changes"))
    assert {t.table: t.rows for t in known}["shop_orders"] == count - 20
    written = written_tables(str(feed.lake), ledger.last_commits(), parked={}, files={})
    checks = [check_table(each) for each in written]
    assert [(check.table, check.findings) for check in checks if check.findings] == []
    assert {"shop_orders", "shop_orders_log"} <= {check.table for check in checks}
