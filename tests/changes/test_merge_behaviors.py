"""What every way of merging does, whichever engine does the work."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.changes import tombstones
from distributary.changes.apply import merge_table
from distributary.changes.events import log_events as reading
from distributary.changes.merge_order import MergeOrder, MergeResult
from distributary.delta.commit import facts_in
from distributary.errors import PublishError
from distributary.model.table import Column
from tests.changes.logs import COLUMNS, LIFE, Event, Shop, at, event, last_commit, plain, truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Merge = Callable[[MergeOrder], MergeResult]


@pytest.fixture(
    params=["arrow", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])]
)
def merge(request: pytest.FixtureRequest) -> Merge:
    """Into a table of ours, and into one with a constraint, which only Spark may write."""
    if request.param == "arrow":
        return merge_table
    from distributary.changes.spark_target import merge_table_with_spark, needs_spark

    spark: SparkSession = request.getfixturevalue("spark")

    def merge_with_spark(order: MergeOrder) -> MergeResult:
        if not DeltaTable.is_deltatable(order.path):
            return merge_table(order)
        if not needs_spark(order):
            table = DeltaTable(order.path)
            table.alter.add_constraint({"placed": "_seq IS NOT NULL"})
        assert needs_spark(order)
        return merge_table_with_spark(spark, order)

    return merge_with_spark


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_rows_come_change_and_go_once(merge: Merge, shop: Shop) -> None:
    first = [
        event(1, "insert", id=1, price=1.0),
        event(2, "insert", id=2, price=2.0),
        event(3, "update", id=1, price=3.0),
    ]
    merge(shop.order(first))
    assert last_commit(shop.folder / "orders")["operationMetrics"]["numTargetRowsInserted"] == "2"
    second = [
        event(4, "delete", id=2),
        event(5, "insert", id=3, price=5.0),
        event(6, "update", id=1, price=6.0),
        event(7, "delete", id=9),
        Event((1, 8, 0, 0, 0, 1, ""), values={"id": 8}, key=()),
    ]
    order = shop.order(second, files=2)
    merge(order)
    told = last_commit(shop.folder / "orders")["operationMetrics"]
    assert [told[f"numTargetRows{n}"] for n in ("Inserted", "Updated", "Deleted")] == ["1"] * 3
    assert shop.rows() == truth([first, second], COLUMNS)
    again = merge(order)
    assert again.skipped
    assert again.version == shop.version()
    # the same events under another number are older than what the table has
    merge(shop.order([*first, *second]))
    assert shop.rows() == truth([first, second], COLUMNS)


def test_a_commit_says_where_it_came_from(merge: Merge, shop: Shop) -> None:
    merge(shop.order([event(1, "insert", id=1)], source_hash="abc"))
    merge(shop.order([event(2, "update", id=1)], source_hash="def"))
    table = DeltaTable(shop.folder / "orders")
    assert table.transaction_version(LIFE) == 1
    assert table.metadata().name == "orders"
    assert table.metadata().description == 'orders; `all` of "them"'
    fields = {f.name: f for f in table.schema().fields}
    assert list(fields) == ["id", "region", "price", "_seq", "_source_ts"]
    assert fields["id"].metadata["comment"] == "number of the order"
    told = facts_in(table.history(1)[0])
    assert told["distributary.batch"] == "1"
    assert told["distributary.source"] == "def"
    assert told["distributary.pipeline"] == "shop"


def test_what_is_late_does_not_bring_rows_back(merge: Merge, shop: Shop) -> None:
    batches = [
        [event(1, "insert", id=1), event(2, "insert", id=2)],
        [event(9, "delete", id=1), event(9, "delete", id=3)],
        [event(5, "update", id=1), event(6, "insert", id=3), event(1, "update", id=2)],
    ]
    for batch in batches:
        merge(shop.order(batch))
    assert plain(shop.rows(), "id") == [(2,)]
    merge(shop.order([event(10, "insert", id=1)]))
    assert plain(shop.rows(), "id") == [(1,), (2,)]


def test_soft_deletes_stay_and_come_back_to_life(merge: Merge, tmp_path: Path) -> None:
    shop = Shop(tmp_path, settings={"deletes": "soft"})
    batches = [
        [event(1, "insert", id=1, price=1.0), event(2, "insert", id=2, price=2.0)],
        [event(5, "delete", id=1, price=1.0), event(5, "delete", id=7), event(6, "delete", id=2)],
        [event(4, "update", id=1, price=4.0), event(8, "insert", id=2, price=8.0)],
    ]
    for batch in batches:
        merge(shop.order(batch))
    assert plain(shop.rows(), "id", "price", "_deleted") == [
        (1, 1.0, True),
        (2, 8.0, False),
        (7, None, True),
    ]
    assert shop.rows() == truth(batches, COLUMNS, soft=True)
    assert shop.tombstones() == []


def test_keys_of_several_columns_nulls_and_another_spelling(merge: Merge, shop: Shop) -> None:
    key = ("REGION", "Id")
    first = [
        at(event(1, "insert", id=1, region="EU", price=1.0), key=key),
        at(event(1, "insert", id=1, region=None, price=2.0), key=key),
        at(event(1, "insert", id=None, region=None, price=3.0), key=key),
    ]
    second = [
        at(event(2, "update", id=1, region=None, price=4.0), key=("id", "region")),
        at(event(2, "delete", id=None, region=None), key=key),
    ]
    merge(shop.order(first))
    merge(shop.order(second))
    merge(shop.order([at(event(1, "insert", id=None, region=None, price=9.0), key=key)]))
    assert plain(shop.rows(), "id", "region", "price") == [(1, "EU", 1.0), (1, None, 4.0)]


def test_columns_left_out_keep_their_value(merge: Merge, shop: Shop) -> None:
    merge(shop.order([event(1, "insert", id=1, region="EU", price=1.0)]))
    second = [
        Event((1, 2, 0, 0, 0, 1, ""), values={"id": 1, "region": "US"}, unchanged=("price",)),
        Event((1, 3, 0, 0, 0, 1, ""), values={"id": 1}, unchanged=("Region", "PRICE")),
        event(2, "insert", id=2, region="FR", price=2.0),
        Event((1, 4, 0, 0, 0, 1, ""), values={"id": 2, "price": 4.0}, unchanged=("region",)),
        Event((1, 4, 0, 0, 0, 1, ""), values={"id": 3}, unchanged=("region", "price")),
    ]
    merge(shop.order(second))
    expected = [(1, "US", 1.0), (2, "FR", 4.0), (3, None, None)]
    assert plain(shop.rows(), "id", "region", "price") == expected


def moved(number: int, old: int, new: int, *, unchanged: tuple[str, ...]) -> list[Event]:
    """Both halves of a change of key."""
    gone = Event((1, 0, number, 0, 0, 0, f"{number}.0"), "delete", {"id": old}, deleted=True)
    come = Event(
        (1, 0, number, 0, 0, 1, f"{number}.1"),
        "insert",
        {"id": new, "region": None if "region" in unchanged else "new"},
        unchanged=unchanged,
        old_key={"id": old},
    )
    return [at(gone, unchanged=("region", "price")), come]


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_values_move_with_a_row_to_another_key(merge: Merge, tmp_path: Path, deletes: str) -> None:
    shop = Shop(tmp_path, settings={"deletes": deletes})
    one, two, three = (moved(n, old, new, unchanged=("price",)) for n, old, new in MOVES)
    late = Event((1, 0, 30, 0, 0, 1, ""), values={"id": 31, "region": "x"}, unchanged=("price",))
    batches = [
        [event((1, 0, n, 0, 0, 1, ""), "insert", id=n, region="EU", price=n / 2) for n in (1, 2)],
        # the halves cut apart, and the old key with another row by then
        [one[0], event((1, 0, 12, 0, 0, 1, ""), "insert", id=1, region="FR", price=9.0)],
        [one[1], two[0], *moved(15, 1, 3, unchanged=())],
        # on from a key that it has had for a moment only
        [two[1], three[0], three[1], late],
    ]
    for batch in batches:
        merge(shop.order(batch))
    by_spark = "Spark" in last_commit(shop.folder / "orders")["engineInfo"]
    assert by_spark is (merge is not merge_table)
    assert shop.rows() == truth(batches, COLUMNS, soft=deletes == "soft")
    live = [row for row in shop.rows() if not row.get("_deleted")]
    assert plain(live, "id", "price") == [(2, 1.0), (3, None), (31, 0.5)]


@pytest.mark.parametrize("cuts", [(), (2,), (3,), (2, 3), (1, 2, 3, 4)])
def test_values_move_within_the_rows_of_one_database(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    """The source's old key does not name the database, which is in the key of the table."""
    shop = Shop(tmp_path, columns=(*COLUMNS, Column("_shard", pa.string())))

    def of(database: str, each: Event) -> Event:
        values = {**each.values, "_shard": database}
        return replace(each, values=values, key=("_shard", "id"))

    def made(database: str, number: int, price: float) -> Event:
        place = (1, 0, number, 0, 0, 1, database)
        return of(database, event(place, "insert", id=1, region="EU", price=price))

    gone, come = moved(10, 1, 11, unchanged=("price",))
    log = [made("a", 1, 0.5), made("b", 2, 7.0), of("a", gone), of("a", come), made("b", 12, 9.0)]
    for start, end in zip((0, *cuts), (*cuts, len(log)), strict=True):
        merge_table(shop.order(log[start:end]))
    assert plain(shop.rows(), "_shard", "id", "price") == [("a", 11, 0.5), ("b", 1, 9.0)]


MOVES = ((10, 1, 11), (20, 11, 21), (25, 21, 31))


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_a_truncate_takes_what_was_before_it(merge: Merge, tmp_path: Path, deletes: str) -> None:
    shop = Shop(tmp_path, settings={"deletes": deletes})
    tie = (1, 5, 0, 0, 0, 1, "it's a `tie` ${x}")
    batches = [
        [event(1, "insert", id=1), event(9, "insert", id=2), event(2, "insert", id=3)],
        [
            Event(tie, "truncate"),
            event(7, "insert", id=3, region="new"),
            event(3, "insert", id=4),
            Event((1, 8, 0, 0, 0, 1, ""), values={"id": 1}, unchanged=("region",)),
        ],
        [event(4, "insert", id=5), event(6, "insert", id=6)],
    ]
    for batch in batches:
        merge(shop.order(batch))
    assert shop.rows() == truth(batches, COLUMNS, soft=deletes == "soft")


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_many_changes_in_a_few_batches(merge: Merge, tmp_path: Path, deletes: str) -> None:
    dice = random.Random(7)
    events = []
    for number in range(600):
        row = {"id": dice.randrange(60), "region": dice.choice("ABC"), "price": float(number)}
        op = dice.choice(["insert", "update", "update", "delete"])
        events.append(event((1, 1 + number // 9, dice.randrange(3), number, 0, 1, ""), op, **row))
    dice.shuffle(events)
    batches = [events[:300], events[300:500], events[450:]]
    shop = Shop(tmp_path, settings={"deletes": deletes})
    for batch in batches:
        merge(shop.order(batch))
    assert shop.rows() == truth(batches, COLUMNS, soft=deletes == "soft")


def test_tables_grow(shop: Shop) -> None:
    shop.columns = (Column("id", pa.int32()), Column("price", pa.float32()))
    merge_table(
        shop.order([event(1, "insert", id=1, price=0.5), event(1, "insert", id=2, price=1.5)])
    )
    shop.columns = (
        Column("id", pa.int64()),
        Column("price", pa.float64()),
        Column("address", pa.struct([pa.field("city", pa.string())]), "where to"),
    )
    merge_table(shop.order([event(2, id=1, price=2.5, address={"city": "Rome"})]))
    shop.columns = (
        Column("address", pa.struct([pa.field("city", pa.string()), pa.field("zip", pa.int64())])),
        Column("id", pa.int64()),
    )
    merge_table(shop.order([event(3, "insert", id=2**40, address={"city": "Oslo", "zip": 7})]))
    rows = [tuple(row[n] for n in ("id", "price", "address")) for row in shop.rows()]
    assert rows == [
        (2, 1.5, None),
        (1, 2.5, {"city": "Rome", "zip": None}),
        (2**40, None, {"city": "Oslo", "zip": 7}),
    ]
    names = [f.name for f in DeltaTable(shop.folder / "orders").schema().fields]
    assert names == ["id", "price", "address", "_seq", "_source_ts"]


@pytest.mark.parametrize(
    ("narrow", "wide", "value"),
    [
        (pa.decimal128(4, 1), pa.decimal128(6, 2), Decimal("1.5")),
        (pa.decimal128(4, 1), pa.decimal128(20, 12), Decimal("-2.0")),
        (pa.decimal128(9, 8), pa.decimal128(20, 12), Decimal("0.00000010")),
        (pa.decimal128(9, 8), pa.decimal128(20, 12), Decimal(0)),
        (pa.int32(), pa.decimal128(12, 2), 500),
        (pa.int32(), pa.float64(), 500),
        (pa.float32(), pa.float64(), 0.1),
    ],
    ids=str,
)
def test_what_is_gone_stays_so_when_its_key_gets_wider(
    shop: Shop, narrow: pa.DataType, wide: pa.DataType, value: Any
) -> None:
    def change(number: int, op: str, code: Any) -> Event:
        return at(event(number, op, code=code, shelf='a":1.50,"'), key=("code", "shelf"))

    held = pa.scalar(value, narrow).cast(wide).as_py()
    shop.columns = (Column("code", narrow), Column("shelf", pa.string()))
    merge_table(shop.order([change(1, "insert", 7), change(1, "insert", value)]))
    merge_table(shop.order([change(100, "delete", value)]))
    shop.columns = (Column("code", wide), Column("shelf", pa.string()))
    merge_table(shop.order([change(50, "update", held)]))
    assert plain(shop.rows(), "code") == [(pa.scalar(7, narrow).cast(wide).as_py(),)]
    merge_table(shop.order([change(101, "insert", held)]))
    assert len(shop.rows()) == 2


def test_memories_with_zeros_behind_the_point_are_found(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As versions before have written them."""
    shop.columns = (Column("id", pa.int64()), Column("a code", pa.decimal128(6, 2)))
    key = ("a code", "id")
    rows = [{"id": n, "a code": Decimal("1.5")} for n in (1, 2)]
    merge_table(shop.order([at(event(1, "insert", **row), key=key) for row in rows]))
    with monkeypatch.context() as patch:
        patch.setattr(tombstones, "key_texts", lambda *given: pa.array(['{"a code":1.50,"id":1}']))
        merge_table(shop.order([at(event(9, "delete", **rows[0]), key=key)]))
    assert [row["key"] for row in shop.tombstones()] == ['{"a code":1.50,"id":1}']
    merge_table(shop.order([at(event(5, "update", **rows[0]), key=key)]))
    assert plain(shop.rows(), "id") == [(2,)]


def test_none_leaves_columns_as_they_are(shop: Shop) -> None:
    merge_table(shop.order([event(1, "insert", id=1, region="EU")], evolution="none"))
    shop.columns = (*COLUMNS, Column("extra", pa.string()))
    merge_table(shop.order([event(2, id=1, region="US", extra="x")], evolution="none"))
    assert set(shop.rows()[0]) == {"id", "region", "price", "_seq", "_source_ts"}
    assert plain(shop.rows(), "id", "region") == [(1, "US")]


def test_overwrite_gives_exactly_the_new_columns(shop: Shop) -> None:
    rows = [event(1, "insert", id=1, region="7"), event(1, "insert", id=2, region="x")]
    merge_table(shop.order(rows, evolution="overwriteSchema"))
    shop.columns = (COLUMNS[0], Column("region", pa.int64()), Column("more", pa.string()))
    merge_table(
        shop.order([event(2, "insert", id=3, region=5, more="m")], evolution="overwriteSchema")
    )
    assert plain(shop.rows(), "id", "region", "more") == [
        (1, 7, None),
        (2, None, None),
        (3, 5, "m"),
    ]
    assert "price" not in shop.rows()[0]


KEY_VALUES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "bool": (pa.bool_(), True, False),
    "int32": (pa.int32(), 7, -7),
    "int64": (pa.int64(), 2**62, -(2**62)),
    "float": (pa.float32(), 0.5, float("nan")),
    "double": (pa.float64(), -0.0, float("nan")),
    "decimal": (pa.decimal128(38, 10), Decimal("1.5"), Decimal("-1.5")),
    "string": (pa.string(), 'it\'s "this" \\ \u2603 \U0001f600\n\x00', ""),
    "binary": (pa.binary(), b"\x00\xff", b""),
    "date": (pa.date32(), date(1, 1, 1), date(9999, 12, 31)),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=UTC),
        datetime(1900, 1, 1, tzinfo=timezone(timedelta(hours=2))),
    ),
    "list": (pa.list_(pa.int64()), [1, None], []),
    "struct": (pa.struct([pa.field("a", pa.int64())]), {"a": 1}, {"a": None}),
}


def test_a_key_of_every_type(merge: Merge, shop: Shop) -> None:
    shop.columns = (
        *(Column(f"k_{name}", type_) for name, (type_, _, _) in KEY_VALUES.items()),
        Column("price", pa.float64()),
    )
    key = tuple(column.name for column in shop.columns[:-1])
    one = {f"k_{name}": value for name, (_, value, _) in KEY_VALUES.items()}
    other = {f"k_{name}": value for name, (_, _, value) in KEY_VALUES.items()}
    nothing = dict.fromkeys(key)

    def changes(number: int, op: str) -> list[Event]:
        return [
            at(event(number, op, price=float(n), **row), key=key)
            for n, row in enumerate((one, other, nothing))
        ]

    merge(shop.order(changes(1, "insert")))
    second = changes(2, "update")
    if "k_double" in key:
        zero = {**second[0].values, "k_double": 0.0, "price": 10.0}
        second[0] = at(second[0], values=zero)
    merge(shop.order([second[0], replace(second[1], op="delete", deleted=True), second[2]]))
    merge(shop.order(changes(1, "insert")))
    assert plain(shop.rows(), "price") == [(10.0,), (2.0,)]


NAMES = ("a.b", "a", "`", "``x", "'", '"', "select", "ORDER", "ключ", "\U0001f600", "$", "é", "-")


@pytest.mark.parametrize("names", [NAMES, ("a b", "x;y", "(c)", "d=e", "{f}", "g,h", "\t", "\n")])
def test_names_from_outside(merge: Merge, shop: Shop, names: tuple[str, ...]) -> None:
    shop.columns = (
        *(Column(name, pa.string(), f"comment on {name}") for name in names),
        Column("s", pa.struct([pa.field(name, pa.string()) for name in names[:3]])),
    )
    row = {name: name for name in names} | {"s": {name: "x" for name in names[:3]}}
    merge(shop.order([at(event(1, "insert", **row), key=names)]))
    changed = Event((1, 2, 0, 0, 0, 1, ""), values={**row, "s": None}, key=names, unchanged=("s",))
    merge(shop.order([changed, at(event(2, "delete", **{names[0]: "?"}), key=names)]))
    merge(shop.order([at(event(1, "insert", **{names[0]: "?"}), key=names)]))
    found = [{name: each[name] for name in (*names, "s")} for each in shop.rows()]
    assert found == [row]
    definition, key = (shop.tombstones()[0][name] for name in ("definition", "key"))
    assert json.loads(definition) == sorted(names)
    assert json.loads(key) == {names[0]: "?"}


@pytest.mark.slow
def test_a_change_data_feed_tells_an_update_from_an_insert(spark: SparkSession, shop: Shop) -> None:
    from distributary.changes.spark_target import merge_table_with_spark

    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(shop.folder / "orders", pa.table({"id": [1, 2, 3]}), configuration=feed)
    first = [event(1, id=1, region="EU"), event(2, "delete", id=2), event(3, "insert", id=4)]
    result = merge_table_with_spark(spark, shop.order(first))
    changes = spark.read.format("delta").option("readChangeFeed", "true")
    told = changes.option("startingVersion", result.version).load(str(shop.folder / "orders"))
    found = sorted((row["_change_type"], row["id"]) for row in told.collect())
    images = [("update_postimage", 1), ("update_preimage", 1)]
    assert found == [("delete", 2), ("insert", 4), *images]
    # a new column and a wider type come into a table that only Spark writes, too
    columns = {column.name: column for column in COLUMNS}
    shop.columns = (*columns.values(), Column("paid", pa.int32()))
    merge_table_with_spark(spark, shop.order([event(4, id=3, paid=7)]))
    shop.columns = (*columns.values(), Column("paid", pa.int64()))
    merge_table_with_spark(spark, shop.order([event(5, id=4, paid=2**40)]))
    table = spark.read.format("delta").load(str(shop.folder / "orders"))
    assert sorted((row["id"], row["paid"]) for row in table.collect()) == [
        (1, None),
        (3, 7),
        (4, 2**40),
    ]
    # a column is only taken away by who writes all files again
    shop.columns = COLUMNS
    with pytest.raises(PublishError) as caught:
        order = shop.order([event(6, id=4)], evolution="overwriteSchema")
        merge_table_with_spark(spark, order)
    assert caught.value.context["reason"] == "features"


@pytest.mark.slow
def test_a_key_is_defined_anew_in_a_table_that_only_spark_writes(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributary.changes.spark_target import merge_table_with_spark

    monkeypatch.setattr(reading, "EVENT_BYTES", 1)
    merge_table(shop.order(batch := [event(1, "insert", id=n, region="EU") for n in range(3)]))
    DeltaTable(shop.folder / "orders").alter.add_constraint({"placed": "_seq IS NOT NULL"})
    key = ("id", "region")
    later = [
        at(event(5, "insert", id=1, region="US", price=5.0), key=key),
        event(2, "delete", id=2),
        at(event(6, "update", id=0, region="EU", price=6.0), key=key),
        at(event(7, "delete", id=1, region="EU"), key=key),
    ]
    order = shop.order(later, files=2)
    merge_table_with_spark(spark, order)
    assert shop.rows() == truth([batch, later], COLUMNS)
    assert merge_table_with_spark(spark, order).skipped
