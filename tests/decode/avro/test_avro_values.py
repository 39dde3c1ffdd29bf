"""What the types of Avro become in the lake, one by one."""

from __future__ import annotations

import io
import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from distributary.decode.avro.decoder import AvroDecoder
from distributary.decode.base import DecodeLimits
from distributary.errors import DecodeError, ErrorCode
from distributary.model.deadletter import Decoded
from distributary.model.record import TIMESTAMP
from distributary.registry.compile.avro_compiler import compile_avro
from tests.decode.avro_samples import record, zigzag

LONG = 2**63


def decoder_of(schema: Any, message: str = "", **limits: Any) -> AvroDecoder:
    compiled = compile_avro(json.dumps(schema))
    return AvroDecoder(compiled.body, message or compiled.message, DecodeLimits(**limits))


def written(schema: Any, *rows: Any) -> pa.BinaryArray:
    """Encoded by fastavro."""
    parsed = fastavro.parse_schema(schema)
    payloads = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        payloads.append(out.getvalue())
    return pa.array(payloads, pa.binary())


def both(schema: Any, payloads: pa.BinaryArray, **limits: Any) -> Decoded:
    """Decoded in both ways, which must agree."""
    quick, careful = decoder_of(schema, **limits), decoder_of(schema, **limits)
    careful._engine = None
    first, second = quick.decode(payloads), careful.decode(payloads)
    assert first.failed == second.failed
    assert first.ok.schema == second.ok.schema
    assert str(first.ok.to_pylist()) == str(second.ok.to_pylist())
    return first


def one(type_: Any, *values: Any) -> list[Any]:
    """The values of a record's only field, written by fastavro."""
    schema = record(type_)
    decoded = both(schema, written(schema, *({"f0": value} for value in values)))
    assert not decoded.failed
    found: list[Any] = decoded.ok.column("f0").to_pylist()
    return found


def lake_type(type_: Any) -> pa.DataType:
    return decoder_of(record(type_)).columns[0].type


def logical(type_: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": name, **more}


def fixed(size: int, name: str = "", **more: Any) -> dict[str, Any]:
    extra = {"logicalType": name} if name else {}
    return {"type": "fixed", "name": f"F{size}", "size": size, **extra, **more}


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        ("boolean", pa.bool_()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("bytes", pa.binary()),
        ("string", pa.string()),
        (fixed(3), pa.binary()),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string()),
        ({"type": "array", "items": "int"}, pa.list_(pa.int32())),
        ({"type": "map", "values": ["null", "long"]}, pa.map_(pa.string(), pa.int64())),
        (record("int", name="I"), pa.struct([("f0", pa.int32())])),
        (record(name="I"), pa.string()),
        (["null", "double"], pa.float64()),
        (["int"], pa.int32()),
        (["long", "null", "int"], pa.int64()),
        (["int", "float"], pa.float64()),
        (["int", "double", "float"], pa.float64()),
        (["long", "double"], pa.struct([("long", pa.int64()), ("double", pa.float64())])),
        (["null", "string", "int"], pa.struct([("string", pa.string()), ("int", pa.int32())])),
        (logical("int", "date"), pa.date32()),
        (logical("int", "time-millis"), pa.int32()),
        (logical("long", "time-micros"), pa.int64()),
        (logical("long", "timestamp-millis"), TIMESTAMP),
        (logical("long", "timestamp-micros"), TIMESTAMP),
        (logical("long", "timestamp-nanos"), pa.int64()),
        (logical("long", "local-timestamp-millis"), pa.int64()),
        (logical("long", "local-timestamp-micros"), pa.int64()),
        (logical("long", "local-timestamp-nanos"), pa.int64()),
        (logical("string", "uuid"), pa.string()),
        (fixed(16, "uuid"), pa.string()),
        (fixed(15, "uuid"), pa.binary()),
        (logical("bytes", "decimal", precision=38, scale=5), pa.decimal128(38, 5)),
        (logical("bytes", "decimal", precision=39, scale=5), pa.string()),
        (logical("bytes", "decimal", precision=5, scale=6), pa.binary()),
        (logical("bytes", "decimal"), pa.binary()),
        (logical("bytes", "decimal", precision=10**9), pa.binary()),
        (fixed(4, "decimal", precision=9, scale=2), pa.decimal128(9, 2)),
        (fixed(4, "decimal", precision=10, scale=2), pa.binary()),
        (logical("long", "date"), pa.int64()),
        (logical("bytes", "nobody-knows"), pa.binary()),
        (
            fixed(12, "duration"),
            pa.struct([("months", pa.int64()), ("days", pa.int64()), ("millis", pa.int64())]),
        ),
    ],
    ids=lambda given: str(given)[:60],
)
def test_types(type_: Any, expected: pa.DataType) -> None:
    assert lake_type(type_) == expected


def test_numbers_and_texts_survive_at_their_ends() -> None:
    assert one("int", -(2**31), 2**31 - 1, 0) == [-(2**31), 2**31 - 1, 0]
    assert one("long", -LONG, LONG - 1) == [-LONG, LONG - 1]
    assert one("double", float("inf"), -0.0, 5e-324) == [float("inf"), -0.0, 5e-324]
    assert str(one("float", float("nan"), float("-inf"))) == "[nan, -inf]"
    assert one("string", "", "żółć \U0001f98a", "\0") == ["", "żółć \U0001f98a", "\0"]
    assert one("bytes", b"", b"\xff\xfe\x00") == [b"", b"\xff\xfe\x00"]


def test_decimals_are_exact() -> None:
    type_ = logical("bytes", "decimal", precision=20, scale=3)
    values = [
        Decimal("0.000"),
        Decimal("-0.001"),
        Decimal("99999999999999999.999"),
        Decimal("1.500"),
    ]
    assert one(type_, *values) == values
    wide = logical("bytes", "decimal", precision=60, scale=2)
    assert one(wide, Decimal("-" + "9" * 58 + ".99"), Decimal("0.10")) == [
        "-" + "9" * 58 + ".99",
        "0.10",
    ]
    small = fixed(8, "decimal", precision=18, scale=0)
    assert one(small, Decimal(-(10**18) + 1), Decimal(7)) == [Decimal(-(10**18) + 1), Decimal(7)]


def test_decimals_may_be_written_with_more_bytes_than_they_need() -> None:
    schema = record(logical("bytes", "decimal", precision=4, scale=2))
    contents = [b"\xff" * 30, b"\0" * 20 + b"\x05", b"", b"\x80" + b"\0" * 20, b"\x27\x10"]
    payloads = pa.array([zigzag(len(c)) + c for c in contents], pa.binary())
    decoded = both(schema, payloads)
    assert decoded.ok.column("f0").to_pylist() == [
        Decimal("-0.01"),
        Decimal("0.05"),
        Decimal("0.00"),
    ]
    assert {f.index: f.code for f in decoded.failed} == dict.fromkeys(
        (3, 4), ErrorCode.VALUE_OUT_OF_RANGE
    )


def test_dates_and_timestamps_are_what_fastavro_reads() -> None:
    days = [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]
    assert one(logical("int", "date"), *days) == days
    moments = [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC),
    ]
    assert one(logical("long", "timestamp-millis"), *moments) == moments
    assert one(logical("long", "timestamp-micros"), *moments) == moments


@pytest.mark.parametrize(
    ("type_", "number"),
    [
        (logical("int", "date"), 2_932_897),
        (logical("int", "date"), -719_163),
        (logical("long", "timestamp-millis"), 253_402_300_800_000),
        (logical("long", "timestamp-micros"), -62_135_596_800_000_001),
        (logical("long", "timestamp-millis"), LONG - 1),
    ],
)
def test_moments_outside_the_calendar_are_refused(type_: Any, number: int) -> None:
    decoded = both(record(type_), pa.array([zigzag(number), zigzag(0)], pa.binary()))
    assert [(f.index, f.code) for f in decoded.failed] == [(0, ErrorCode.VALUE_OUT_OF_RANGE)]
    assert decoded.ok.num_rows == 1


def test_uuids_and_durations() -> None:
    given = UUID("01234567-89ab-cdef-0123-456789abcdef")
    assert one(logical("string", "uuid"), given) == [str(given)]
    schema = record(["null", fixed(16, "uuid")], fixed(12, "duration"))
    payload = b"\x02" + given.bytes + struct.pack("<III", 1, 2, 2**32 - 1)
    empty = b"\x00" + bytes(12)
    decoded = both(schema, pa.array([payload, empty], pa.binary()))
    assert decoded.ok.to_pylist() == [
        {"f0": str(given), "f1": {"months": 1, "days": 2, "millis": 2**32 - 1}},
        {"f0": None, "f1": {"months": 0, "days": 0, "millis": 0}},
    ]


def test_a_fixed_keeps_every_bit() -> None:
    # as doubles these are numbers that are not numbers, which some processors fix in passing
    contents = [struct.pack("<Q", bits) for bits in (0x7FF0000000000001, 0xFFF7FFFFFFFFFFFF, 1)]
    assert one(fixed(8), *contents) == contents


def test_of_a_key_that_comes_again_the_last_value_counts() -> None:
    schema = record({"type": "map", "values": "int"})
    twice = zigzag(3) + b"\x02a\x02" + b"\x02b\x04" + b"\x02a\x06" + b"\0"
    decoded = both(schema, pa.array([twice, b"\0"], pa.binary()))
    assert decoded.ok.to_pylist() == [{"f0": [("a", 3), ("b", 2)]}, {"f0": []}]


CUSTOMER = {
    "type": "record",
    "name": "Customer",
    "namespace": "shop",
    "fields": [{"name": "customer_id", "type": "int"}, {"name": "name", "type": "string"}],
}
PRODUCT = {
    "type": "record",
    "name": "Product",
    "namespace": "shop",
    "fields": [{"name": "product_id", "type": "int"}, {"name": "price", "type": "double"}],
}


def test_a_union_of_records_is_a_struct_with_a_member_for_each() -> None:
    schema = {
        "type": "record",
        "name": "AllTypes",
        "namespace": "shop",
        "fields": [{"name": "oneof_type", "type": [CUSTOMER, PRODUCT]}],
    }
    rows = [
        {"oneof_type": ("shop.Customer", {"customer_id": 1, "name": "Zoë"})},
        {"oneof_type": ("shop.Product", {"product_id": 7, "price": 2.5})},
    ]
    decoded = both(schema, written(schema, *rows))
    assert decoded.ok.column("oneof_type").to_pylist() == [
        {"Customer": {"customer_id": 1, "name": "Zoë"}, "Product": None},
        {"Customer": None, "Product": {"product_id": 7, "price": 2.5}},
    ]


def test_branches_of_one_short_name_have_their_full_names() -> None:
    union = [record("int", name="A", namespace="x"), record("int", name="a", namespace="y"), "int"]
    assert [field.name for field in lake_type(union)] == ["x_A", "y_a", "int"]


def test_a_union_of_records_at_the_top_is_decoded_branch_by_branch() -> None:
    schema = ["null", CUSTOMER, PRODUCT]
    compiled = compile_avro(json.dumps(schema))
    assert compiled.messages == ("", "shop.Customer", "shop.Product")
    payloads = pa.array(
        [
            b"\x04" + zigzag(7) + struct.pack("<d", 2.5),
            b"\x02" + zigzag(1) + b"\x02x",
            b"\x00",
            b"\x06",
            b"\x84\x00" + zigzag(8) + struct.pack("<d", 0),
        ],
        pa.binary(),
    )
    decoder = decoder_of(schema, "shop.Product")
    decoded = decoder.decode(payloads)
    assert decoded.ok.to_pylist() == [
        {"product_id": 7, "price": 2.5},
        {"product_id": 8, "price": 0.0},
    ]
    assert [(f.index, f.code) for f in decoded.failed] == [
        (1, ErrorCode.PAYLOAD_MISMATCH),
        (2, ErrorCode.NULL_VALUE),
        (3, ErrorCode.INVALID_INDEX),
    ]
    customers = decoder_of(schema, "shop.Customer").decode(payloads.slice(1, 1))
    assert customers.ok.to_pylist() == [{"customer_id": 1, "name": "x"}]


@pytest.mark.parametrize("message", ["", "shop.Nobody", "union"])
def test_a_message_that_the_schema_does_not_have_is_an_error(message: str) -> None:
    for schema in (["null", CUSTOMER, PRODUCT], CUSTOMER, {"type": "array", "items": CUSTOMER}):
        body = compile_avro(json.dumps(schema)).body
        with pytest.raises(DecodeError) as caught:
            AvroDecoder(body, message, DecodeLimits())
        assert caught.value.code == ErrorCode.UNUSABLE_SCHEMA


NODE = {
    "type": "record",
    "name": "Node",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "data", "type": ["null", "bytes"]},
        {"name": "left", "type": ["null", "Node"]},
        {"name": "right", "type": ["null", "Node"]},
    ],
}


def chain(length: int) -> bytes:
    """A node with so many nodes to its right, each in the one before."""
    return b"".join(
        zigzag(i) + b"\x02\x02z" + b"\x00" + (b"\x02" if i < length else b"\x00")
        for i in range(length + 1)
    )


def test_what_contains_itself_is_columns_and_then_text() -> None:
    decoded = decoder_of(NODE, recursion_depth=1).decode(pa.array([chain(3)], pa.binary()))
    (row,) = decoded.ok.to_pylist()
    assert row["right"]["id"] == 1
    assert row["right"]["left"] is None
    assert json.loads(row["right"]["right"]) == {
        "id": 2,
        "data": "eg==",
        "right": {"id": 3, "data": "eg=="},
    }
    assert decoder_of(NODE, recursion_depth=0).columns[3].type == pa.string()
    assert "JSON text" in decoder_of(NODE, recursion_depth=0).columns[3].comment


def test_text_keeps_the_kinds_of_values_apart() -> None:
    inner = {
        "type": "record",
        "name": "I",
        "fields": [
            {"name": "again", "type": {"type": "array", "items": "I"}},
            {"name": "price", "type": logical("bytes", "decimal", precision=9, scale=2)},
            {"name": "day", "type": logical("int", "date")},
            {"name": "at", "type": logical("long", "timestamp-millis")},
            {"name": "some", "type": ["null", "string", "int"]},
            {"name": "map", "type": {"type": "map", "values": "float"}},
        ],
    }
    leaf = {
        "again": [],
        "price": Decimal("1.50"),
        "day": date(2024, 2, 29),
        "some": 5,
        "map": {"a": 0.1},
    }
    leaf["at"] = datetime(2024, 2, 29, 1, 2, 3, 4000, UTC)
    decoded = decoder_of(inner, recursion_depth=0).decode(written(inner, {**leaf, "again": [leaf]}))
    assert json.loads(decoded.ok.column("again")[0][0].as_py()) == {
        "again": [],
        "price": "1.50",
        "day": "2024-02-29",
        "at": "2024-02-29T01:02:03.004000Z",
        "some": {"int": 5},
        "map": {"a": 0.1},
    }


def fields_in(type_: pa.DataType) -> int:
    inside = sum(fields_in(type_.field(i).type) for i in range(type_.num_fields))
    return inside + int(type_.num_fields)


def test_records_that_unfold_without_end_have_fewer_columns() -> None:
    schema: Any = None
    for i in reversed(range(9)):
        back = [{"name": f"to_{j}", "type": ["null", f"N{j}"]} for j in range(i + 1)]
        further = [{"name": "next", "type": ["null", schema]}] if schema else []
        schema = {"type": "record", "name": f"N{i}", "fields": [*back, *further]}
    decoder = decoder_of(schema, recursion_depth=5)
    assert 10 < sum(fields_in(column.type) for column in decoder.columns) < 5_000
    # the first again and again, then the first with nothing in it
    payload = b"\x02" * 9 + b"\0\0" + b"\0" * 9
    decoded = decoder.decode(pa.array([payload], pa.binary()))
    assert not decoded.failed


def test_columns_tell_where_they_come_from() -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "_id", "type": "long", "aliases": ["_key", "number"]},
            {"name": "field_id", "type": "int"},
            {"name": "at", "type": logical("int", "time-millis"), "doc": "when\nit \x1b[31m was"},
            {"name": "nothing", "type": "null"},
        ],
    }
    columns = decoder_of(schema).columns
    assert [c.name for c in columns] == ["field_id_", "field_id", "at"]
    assert columns[0].aliases == ("field_key", "number")
    assert columns[0].comment == "field shop.Order._id; renamed from _id"
    assert columns[2].comment.startswith(
        "field shop.Order.at; milliseconds after midnight; when it"
    )
    assert all(column.comment.isprintable() for column in columns)


def test_a_record_without_columns_is_rows_without_columns() -> None:
    for schema, payload in ((record(), b""), (record("null", ["null"]), b"\0")):
        decoder = decoder_of(schema)
        decoded = decoder.decode(pa.array([payload, payload + b"x", payload], pa.binary()))
        assert decoder.columns == ()
        assert decoded.ok.num_rows == 2
        assert [(f.index, f.code) for f in decoded.failed] == [(1, ErrorCode.TRAILING_BYTES)]
