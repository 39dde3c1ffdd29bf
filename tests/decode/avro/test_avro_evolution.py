"""Records of all versions of an Avro schema in one table."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from distributary.config.lake import Evolution
from distributary.decode.avro.decoder import AvroDecoder
from distributary.decode.base import DecodeLimits
from distributary.evolve.align import align
from distributary.evolve.merge import create, merge
from distributary.model.table import Column
from distributary.registry.compile.avro_compiler import compile_avro

Rows = list[dict[str, Any]]


def decoder_of(schema: Any) -> AvroDecoder:
    compiled = compile_avro(json.dumps(schema))
    return AvroDecoder(compiled.body, compiled.message, DecodeLimits())


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def table_of(*schemas: Any, policy: Evolution | None = None) -> tuple[Column, ...]:
    """The columns of a table that has met these writers, in this order."""
    first, *others = (decoder_of(schema).columns for schema in schemas)
    columns = create(first).columns
    for writer in others:
        columns = merge(columns, writer, policy or Evolution()).columns
    return columns


def stored(columns: tuple[Column, ...], schema: Any, data: Any, policy: Any = None) -> Rows:
    """A datum as the table holds it."""
    parsed = fastavro.parse_schema(schema, _ignore_default_error=True)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, data)
    decoder = decoder_of(schema)
    decoded = decoder.decode(pa.array([out.getvalue()], pa.binary()))
    fills = merge(columns, decoder.columns, policy or Evolution()).fills
    schema_of_table = pa.schema([(c.name, c.type) for c in columns])
    rows: Rows = align(decoded.ok, fills, schema_of_table).to_pylist()
    return rows


def orders(*more: dict[str, Any]) -> dict[str, Any]:
    fields = [field("name", "string"), field("price", "double"), *more]
    product = {"type": "record", "name": "Product", "fields": fields}
    return {
        "type": "array",
        "items": {
            "type": "record",
            "name": "Order",
            "fields": [
                field("order_id", "long"),
                field("products", {"type": "array", "items": product}),
            ],
        },
    }


V1, V2 = orders(), orders(field("uuid", ["null", "int"], default=1123))


@pytest.mark.parametrize("versions", [(V1, V2), (V2, V1), (V2,)])
def test_orders_of_both_versions(versions: tuple[Any, ...]) -> None:
    table = table_of(*versions)
    old = [{"order_id": 1, "products": [{"name": "a", "price": 2.5}]}]
    new = [{"order_id": 2, "products": [{"name": "b", "price": 3.5, "uuid": None}]}]
    (first,) = stored(table, V1, old)
    (second,) = stored(table, V2, new)
    assert first["products"] == [{"name": "a", "price": 2.5, "uuid": None}]
    assert second["products"] == [{"name": "b", "price": 3.5, "uuid": None}]


def test_a_field_that_its_writer_does_not_have_is_null_whatever_default_others_give() -> None:
    old = record(field("id", "int"))
    inner = record(field("x", "int"), field("y", "string", default="why"))
    new = record(
        field("id", "int"),
        field("day", {"type": "int", "logicalType": "date"}, default=0),
        field("inner", {**inner, "name": "Inner"}, default={"x": 1}),
    )
    for table in (table_of(old, new), table_of(new, old)):
        assert stored(table, old, {"id": 1}) == [{"id": 1, "day": None, "inner": None}]


def test_aliases_find_the_old_column() -> None:
    old, new = record(field("name", "string")), record(field("title", "string", aliases=["name"]))
    keep = Evolution(renamed="keep_name")
    table = table_of(old, new, policy=keep)
    assert [c.name for c in table] == ["name"]
    assert stored(table, new, {"title": "x"}, keep) == [{"name": "x"}]
    beside = table_of(old, new)
    assert stored(beside, new, {"title": "x"}) == [{"name": None, "title": "x"}]


@pytest.mark.parametrize(
    ("before", "after", "type_"),
    [
        ("int", "long", pa.int64()),
        ("int", "float", pa.float64()),
        ("float", "double", pa.float64()),
        ("int", ["null", "long"], pa.int64()),
        (["int", "null"], "double", pa.float64()),
    ],
)
def test_promotions_that_lose_nothing_widen_the_column(
    before: Any, after: Any, type_: pa.DataType
) -> None:
    old, new = record(field("n", before)), record(field("n", after))
    for table in (table_of(old, new), table_of(new, old)):
        assert [c.type for c in table] == [type_]
        assert stored(table, old, {"n": 1}) == stored(table, new, {"n": 1}) == [{"n": 1}]


@pytest.mark.parametrize(
    ("before", "after", "value", "side"),
    [
        ("long", "double", 1.5, "n__double"),
        ("string", "bytes", b"\xff", "n__binary"),
        ("bytes", "string", "x", "n__string"),
        ("int", ["null", "string"], "x", "n__string"),
    ],
)
def test_promotions_that_could_lose_something_get_a_column_of_their_own(
    before: Any, after: Any, value: Any, side: str
) -> None:
    old, new = record(field("n", before, default=None)), record(field("n", after))
    assert stored(table_of(old, new), new, {"n": value}) == [{"n": None, side: value}]
