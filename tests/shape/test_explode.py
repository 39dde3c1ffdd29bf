"""Items of arrays as rows: the rows of a plain reference, however records are cut, and limits."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.rules.shape import ShapeConfig
from distributary.model.record import RAW
from distributary.model.routing import Route, StageOrder
from distributary.model.table import Column
from distributary.shape.explode import exploded_bytes, items_as_rows
from distributary.shape.resolve import Resolved, ShapeError, resolve
from distributary.stage.decoding import DecodedPart
from distributary.stage.rows import shaping
from distributary.stage.rows.partitions import raw_records_of
from distributary.testing import Record, run

Row = dict[str, Any]
ITEM = pa.struct([("sku", pa.string()), ("n", pa.string()), ("tags", pa.list_(pa.string()))])
SCHEMA = pa.schema([("id", pa.int64()), ("items", pa.list_(ITEM)), ("note", pa.string())])
COLUMNS = [Column(field.name, field.type) for field in SCHEMA]
ORDER = StageOrder("p", "stream", 0, "try", 0, "")
ENTRIES: list[dict[str, Any]] = [
    {"where": "id > 0", "explode": "items", "drop": ["note"], "rename": {"items": "item"}},
    {
        "where": "item.n IS NULL OR item.n <> '9'",
        "set": {"n": "CAST(item.n AS INT)", "tag": "item.tags"},
    },
    {"explode": "tag", "keep": ["id", "n", "tag"]},
]


def resolved(*entries: dict[str, Any], columns: list[Column] = COLUMNS) -> Resolved:
    return resolve([ShapeConfig(**entry).rule() for entry in entries], columns, ())


def part_of(rows: list[Row], shapes: Resolved, start: int = 0) -> DecodedPart:
    raw = [
        {"key": b"k", "value": b"%d" % offset, "headers": None, "topic": "t", "partition": 0}
        | {"offset": offset, "timestamp": 0}
        for offset in range(start, start + len(rows))
    ]
    return DecodedPart(
        Route("silver", "t", 1, "m", shapes=shapes.shapes),
        pa.RecordBatch.from_pylist(rows, schema=SCHEMA),
        (),
        pa.Table.from_pylist(raw, schema=RAW),
        len(rows),
    )


def shaped(part: DecodedPart, most_bytes: int = 2**40) -> shaping.ShapedParts:
    return shaping.shaped(part, ORDER, single=True, most_bytes=most_bytes)


def reference(rows: list[Row]) -> tuple[list[tuple[int, Row]], set[int], set[int]]:
    """Return the rows with their offsets, and the offsets of failed and of filtered records."""
    kept: list[tuple[int, Row]] = []
    failed: set[int] = set()
    filtered: set[int] = set()
    for offset, row in enumerate(rows):
        mine: list[tuple[int, Row]] = []
        items = (row["items"] or [None]) if row["id"] is not None and row["id"] > 0 else []
        for item in items:
            text = None if item is None else item["n"]
            if text == "9":
                continue
            if text not in (None, "7", "-8"):
                failed.add(offset)
                break
            tags = None if item is None else item["tags"]
            number = None if text is None else int(text)
            mine += [(offset, {"id": row["id"], "n": number, "tag": t}) for t in tags or [None]]
        if offset in failed:
            continue
        kept += mine
        if not mine:
            filtered.add(offset)
    return kept, failed, filtered


items_strategy = st.lists(
    st.none()
    | st.fixed_dictionaries(
        {
            "sku": st.none() | st.text(max_size=3),
            "n": st.none() | st.sampled_from(["7", "-8", "9", "x"]),
            "tags": st.none() | st.lists(st.none() | st.sampled_from(["a", "b"]), max_size=3),
        }
    ),
    max_size=4,
)
rows_strategy = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.none() | st.integers(0, 3),
            "items": st.none() | items_strategy,
            "note": st.none() | st.text(max_size=3),
        }
    ),
    max_size=12,
)


@given(rows=rows_strategy, cuts=st.lists(st.integers(0, 12)), size=st.sampled_from([1, 300, 2**28]))
@settings(deadline=None, max_examples=150)
def test_any_cut_gives_the_rows_of_the_reference(
    rows: list[Row], cuts: list[int], size: int
) -> None:
    shapes = resolved(*ENTRIES)
    ends = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    found: list[tuple[int, Row]] = []
    records = filtered = 0
    dead: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shaping, "SLICE_BYTES", size)
        for start, end in itertools.pairwise(ends):
            result = shaped(part_of(rows[start:end], shapes, start))
            for part in result.parts:
                offsets = part.raw.column("offset").to_pylist()
                values = part.raw.column("value").cast(pa.binary()).to_pylist()
                assert values == [b"%d" % offset for offset in offsets]
                found += zip(offsets, part.batch.to_pylist(), strict=True)
                records, filtered = records + part.records, filtered + part.filtered
            dead += [row["offset"] for rows in result.dead for row in rows.to_pylist()]
    kept, failed, out = reference(rows)
    assert found == kept
    # one record is one letter, whole, whatever its other rows are
    assert sorted(dead) == sorted(failed)
    assert (records, filtered) == (len(rows) - len(failed) - len(out), len(out))


def test_the_columns_that_come_out_are_known_before_any_row() -> None:
    shapes = resolved(*ENTRIES)
    assert [(c.name, c.type) for c in shapes.columns] == [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("tag", pa.string()),
    ]
    (part,) = shaped(part_of([], shapes)).parts
    assert part.batch.num_rows == 0
    assert part.batch.schema.names == ["id", "n", "tag"]
    # an array may be made by an expression of the same entry, also with the places of items
    places = "list_transform(items, lambda x, i: {'at': i, 'sku': x.sku})"
    shapes = resolved({"set": {"item": places}, "explode": "item", "keep": ["item"]})
    (part,) = shaped(part_of([{"id": 1, "items": [{"sku": "a"}, {"sku": "b"}]}], shapes)).parts
    assert part.batch.to_pylist() == [
        {"item": {"at": 1, "sku": "a"}},
        {"item": {"at": 2, "sku": "b"}},
    ]


def test_what_cannot_be_exploded() -> None:
    with pytest.raises(ShapeError, match="explode: id is not an array"):
        resolved({"explode": "id"})
    limited = resolved({"explode": "nothing", "drop": ["note"]})
    assert [(u.setting, u.why) for u in limited.unapplied] == [("explode", "no column nothing")]
    assert [c.name for c in limited.columns] == ["id", "items"]


def test_a_record_with_rows_beyond_the_limit_is_a_letter_and_the_others_are_rows() -> None:
    shapes = resolved({"explode": "items", "keep": ["id", "items", "note"]})
    many = [{"sku": "a"}] * 1000
    rows = [{"id": 1, "items": many, "note": "x" * 1000}, {"id": 2, "items": many, "note": "x"}]
    result = shaped(part_of(rows, shapes), most_bytes=500_000)
    (letters,) = result.dead
    (letter,) = letters.to_pylist()
    assert (letter["offset"], letter["value"]) == (0, b"0")
    assert letter["error_code"] == "PAYLOAD_EXPANDS"
    assert "limits.max_decoded_bytes is 500000" in letter["error_message"]
    assert [(p.records, p.batch.num_rows) for p in result.parts] == [(1, 1000)]


def test_rows_of_exploded_records_stand_beside_others() -> None:
    shapes = resolved({"explode": "items"})
    (one,) = shaped(part_of([{"id": 1, "items": [{"sku": "a"}] * 3}], shapes)).parts
    plain = part_of([{"id": 2}], Resolved(), start=7)
    raw = raw_records_of([one, plain])
    assert raw.column("offset").to_pylist() == [0, 0, 0, 7]
    assert raw.column("value").cast(pa.binary()).to_pylist() == [b"0", b"0", b"0", b"7"]


def test_slices_of_arrays_and_all_kinds_of_columns() -> None:
    kinds = pa.struct([("m", pa.map_(pa.string(), pa.int32())), ("b", pa.bool_())])
    batch = pa.RecordBatch.from_pylist(
        [
            {"a": [9], "s": "gone", "k": None},
            {"a": [1, 2], "s": "é", "k": {"m": [("x", 1)], "b": True}},
            {"a": [], "s": None, "k": {"m": None, "b": None}},
        ],
        schema=pa.schema([("a", pa.list_(pa.int32())), ("s", pa.string()), ("k", kinds)]),
    ).slice(1)
    rows, origin = items_as_rows(batch, "a")
    assert rows.column("a").to_pylist() == [1, 2, None]
    assert rows.column("s").to_pylist() == ["é", "é", None]
    assert origin.tolist() == [0, 0, 1]
    weights = exploded_bytes(batch, "a", pa.table({"key": pa.array([b"k" * 1000, None])}))
    assert weights[0] > 2000
    assert weights[1] < 200


ORDERS = """
name: orders
source: {type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [orders]}
payload: {format: json}
tables: {each: "silver_{topic}", bronze: bronze, unified: gold}
lake: {path: ./lake}
shape:
  - explode: items
  - where: "items IS NULL OR items->>'sku' <> 'z'"
    set: {sku: "items->>'sku'", n: "CAST(items->>'n' AS INT)"}
    drop: [items]
"""


@pytest.mark.parametrize("size", [1, 2, 100])
def test_records_are_counted_and_rows_are_written(size: int) -> None:
    records = [
        {"id": 1, "items": [{"sku": "a", "n": "1"}, {"sku": "z", "n": "1"}, {"sku": "b"}]},
        {"id": 2, "items": []},
        {"id": 3, "items": [{"sku": "z"}]},
        {"id": 4, "items": [{"sku": "a", "n": "1"}, {"sku": "b", "n": "much"}]},
    ]
    result = run(ORDERS, map(Record, records), batch_size=size)
    counts = result.counts
    assert (counts.read, counts.written, counts.filtered, counts.dead_lettered) == (4, 2, 1, 1)
    found = result.tables["silver_orders"].select(["id", "sku", "n", "_offset"]).to_pylist()
    assert sorted(map(repr, (tuple(row.values()) for row in found))) == [
        "(1, 'a', 1, 0)",
        "(1, 'b', None, 0)",
        "(2, None, None, 1)",
    ]
    assert result.tables["gold"].num_rows == 3
    assert result.tables["bronze"].num_rows == 4
    (letter,) = result.dead_letters
    assert b'"much"' in letter["value"]
