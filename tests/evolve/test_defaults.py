"""Defaults: what a table holds where a writer does not have the field."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from distributary.config.lake import Evolution
from distributary.evolve.align import align, constant, inner_type
from distributary.evolve.merge import create, merge
from distributary.model.table import Column

TIMESTAMP = pa.timestamp("us", "UTC")
POINT = pa.struct([("x", pa.int32()), ("y", pa.int32())])


def aligned(
    table: tuple[Column, ...],
    writer: tuple[Column, ...],
    rows: list[dict[str, Any]],
    policy: Evolution | None = None,
) -> list[dict[str, Any]]:
    """Rows of a writer as the table holds them, with the columns that the table has then."""
    merged = merge(table, writer, policy or Evolution())
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([(c.name, c.type) for c in writer]))
    schema = pa.schema([(c.name, c.type) for c in merged.columns])
    result = align(batch, merged.fills, schema)
    result.validate(full=True)
    found: list[dict[str, Any]] = result.to_pylist()
    return found


@pytest.mark.parametrize(
    ("text", "type_", "expected"),
    [
        ("null", pa.int32(), None),
        ("5", pa.int32(), 5),
        ("5", pa.float64(), 5.0),
        ("5", pa.decimal128(20, 2), Decimal("5.00")),
        ("true", pa.bool_(), True),
        ('"x"', pa.string(), "x"),
        ('{"a":1}', pa.string(), '{"a": 1}'),
        ('"/w=="', pa.binary(), b"\xff"),
        ('"1.50"', pa.decimal128(9, 3), Decimal("1.500")),
        ('"2024-02-29"', pa.date32(), date(2024, 2, 29)),
        ('"2024-02-29T00:00:00Z"', TIMESTAMP, datetime(2024, 2, 29, tzinfo=UTC)),
        ('{"y":2}', POINT, {"x": None, "y": 2}),
        ("[1,null]", pa.list_(pa.int64()), [1, None]),
        ('{"a":{"x":1}}', pa.map_(pa.string(), POINT), [("a", {"x": 1, "y": None})]),
    ],
)
def test_constants_of_every_type(text: str, type_: pa.DataType, expected: Any) -> None:
    assert constant(text, type_).as_py() == expected
    assert pa.repeat(constant(text, type_), 3).to_pylist() == [expected] * 3


ID = Column("id", pa.int64())
COLOR = Column("color", pa.string(), default='"red"')


def test_a_writer_without_the_field_gives_the_default() -> None:
    table = create((ID, COLOR)).columns
    assert aligned(table, (ID,), [{"id": 1}]) == [{"id": 1, "color": "red"}]
    # a null that was written is a null
    rows: list[dict[str, Any]] = [{"id": 1, "color": None}, {"id": 2, "color": "blue"}]
    assert aligned(table, (ID, COLOR), rows) == rows


def test_a_new_field_brings_its_default() -> None:
    merged = merge(create((ID,)).columns, (ID, COLOR), Evolution())
    assert merged.columns[1].default == '"red"'
    assert aligned(merged.columns, (ID,), [{"id": 1}]) == [{"id": 1, "color": "red"}]


def test_the_first_default_stays() -> None:
    table = create((ID, COLOR)).columns
    merged = merge(table, (ID, replace(COLOR, default='"green"')), Evolution())
    assert merged.columns == table
    assert merged.changes == ()


def test_a_default_follows_its_column_to_a_wider_type() -> None:
    table = create((ID, Column("n", pa.int32(), default="5"))).columns
    wide = merge(table, (ID, Column("n", pa.float64())), Evolution()).columns
    assert aligned(wide, (ID,), [{"id": 1}]) == [{"id": 1, "n": 5.0}]


def test_a_field_of_another_type_is_not_missing() -> None:
    table = create((ID, Column("n", pa.int32(), default="5"))).columns
    writer = (ID, Column("n", pa.string()))
    assert aligned(table, writer, [{"id": 1, "n": "x"}]) == [{"id": 1, "n": None, "n__string": "x"}]


@pytest.mark.parametrize("policy", ["new_column", "keep_name"])
def test_a_renamed_field_is_not_missing(policy: Any) -> None:
    table = create((ID, Column("n", pa.int32(), default="5"))).columns
    writer = (ID, Column("m", pa.int32(), aliases=("n",), default="6"))
    evolution = Evolution(renamed=policy)
    (row,) = aligned(table, writer, [{"id": 1, "m": 7}], evolution)
    assert row == {"id": 1, "n": 7} if policy == "keep_name" else {"id": 1, "n": None, "m": 7}


V1 = pa.list_(pa.struct([("name", pa.string())]))
V2 = pa.list_(pa.struct([("name", pa.string()), ("uuid", pa.int32())]))
OLD = (Column("products", V1),)
NEW = (Column("products", V2, inner_defaults=(("element.uuid", "1123"),)),)
OLD_ROWS: list[dict[str, Any]] = [
    {"products": [{"name": "a"}, None]},
    {"products": None},
    {"products": []},
]
FILLED = [
    {"products": [{"name": "a", "uuid": 1123}, None]},
    {"products": None},
    {"products": []},
]


def test_fields_inside_a_column_have_defaults_as_well() -> None:
    assert aligned(create(NEW).columns, OLD, OLD_ROWS) == FILLED


def test_a_field_that_comes_later_brings_its_default_inside() -> None:
    merged = merge(create(OLD).columns, NEW, Evolution())
    assert merged.columns[0].inner_defaults == (("element.uuid", "1123"),)
    assert aligned(merged.columns, OLD, OLD_ROWS) == FILLED
    again = merge(merged.columns, NEW, Evolution())
    assert (again.columns, again.changes) == (merged.columns, ())


def test_an_inner_field_of_another_type_is_not_missing() -> None:
    other = pa.list_(pa.struct([("name", pa.string()), ("uuid", pa.string())]))
    rows = [{"products": [{"name": "a", "uuid": "x"}]}]
    (row,) = aligned(create(NEW).columns, (Column("products", other),), rows)
    assert row == {"products": [{"name": "a", "uuid": None, "uuid__string": "x"}]}


def test_two_tables_of_one_shape_keep_their_own_defaults() -> None:
    other = (replace(NEW[0], inner_defaults=(("element.uuid", "7"),)),)
    for columns, expected in ((NEW, 1123), (other, 7)):
        (row, *_) = aligned(create(columns).columns, OLD, OLD_ROWS)
        assert row["products"][0]["uuid"] == expected


def test_paths_into_types() -> None:
    type_ = pa.struct([("a", pa.map_(pa.string(), V2))])
    assert inner_type(type_, "a.value.element.uuid") == pa.int32()
    for path in ("b", "a.element", "a.value.element.uuid.x", "a.value.value"):
        assert inner_type(type_, path) is None
