"""What each type of a source becomes, and what is done with values that no column can hold."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from distributary.errors import ErrorCode
from distributary.model.record import TIMESTAMP, WriterSchema
from tests.decode.debezium_samples import columns_of, connect_schema, decode, log_of, table_row

EXPECTED: dict[str, tuple[pa.DataType, Any]] = {
    "id": (pa.int64(), 1),
    "b": (pa.bool_(), True),
    "i2": (pa.int32(), 2),
    "i4": (pa.int32(), 3),
    "i8": (pa.int64(), 4),
    "f4": (pa.float32(), 1.5),
    "f8": (pa.float64(), 2.5),
    "n": (pa.string(), "123.4567890123"),
    "n10": (pa.decimal128(10, 2), Decimal("12.34")),
    "money": (pa.decimal128(38, 2), Decimal("1234.56")),
    "t": (pa.string(), "héllo 🚀"),
    "vc": (pa.string(), "vc"),
    "ch": (pa.string(), "ch   "),
    "by": (pa.binary(), b"\x00\x01\xff"),
    "d": (pa.date32(), date(2024, 2, 29)),
    "tm": (pa.string(), "12:34:56.789123"),
    "tm3": (pa.string(), "12:34:56.789000"),
    "tz": (pa.string(), "10:34:56.789Z"),
    "ts": (TIMESTAMP, datetime(2024, 2, 29, 12, 34, 56, 789123, UTC)),
    "ts3": (TIMESTAMP, datetime(2024, 2, 29, 12, 34, 56, 789000, UTC)),
    "tstz": (TIMESTAMP, datetime(2024, 2, 29, 10, 34, 56, 789123, UTC)),
    "iv": (pa.string(), "10303:05:06.789000"),
    "j": (pa.string(), '{"a": [1, 2]}'),
    "jb": (pa.string(), '{"b": {"c": null}}'),
    "u": (pa.string(), "6f1c9e5e-3b5c-4a9e-8b0d-5b6f6d1f2a3b"),
    "m": (pa.string(), "happy"),
    "bits": (pa.string(), "101"),
    "vbits": (pa.string(), "000000010101"),
    "bit1": (pa.bool_(), True),
    "ip": (pa.string(), "10.0.0.1"),
    "mac": (pa.string(), "08:00:2b:01:02:03"),
    "cidr": (pa.string(), "10.0.0.0/8"),
    "p": (pa.string(), '{"x":1.5,"y":2.5,"wkb":"AQEAAAAAAAAAAAD4PwAAAAAAAARA"}'),
    "r": (pa.string(), "[1,10)"),
    "ar": (pa.list_(pa.int32()), [1, 2, None]),
    "tar": (pa.list_(pa.string()), ["a", "b"]),
    "nar": (pa.list_(pa.decimal128(5, 2)), [Decimal("1.50"), Decimal("2.25")]),
    "dar": (pa.list_(pa.date32()), [date(2024, 1, 1)]),
    "x": (pa.string(), "<a>1</a>"),
    "ts_v": (pa.string(), "'a' 'cat' 'fat'"),
    "hs": (pa.string(), "hs"),
}


@pytest.mark.parametrize("connector", ["js", "av", "fa"])
def test_every_kind_of_column(connector: str) -> None:
    types = columns_of(f"{connector}.shop.kinds")
    assert types == {name: type_ for name, (type_, _) in EXPECTED.items()}
    row = table_row(log_of(f"{connector}.shop.kinds")[0])
    assert row == {name: value for name, (_, value) in EXPECTED.items()}


@pytest.mark.parametrize("connector", ["js", "av"])
def test_what_no_column_can_hold_is_kept_beside_the_row(connector: str) -> None:
    empty, _, endless, old = log_of(f"{connector}.shop.kinds")[1:]
    assert set(table_row(empty).values()) == {2, None}
    assert math.isnan(endless["f4"])
    assert endless["f8"] == math.inf
    assert (endless["d"], endless["ts"], endless["tstz"]) == (None, None, None)
    # the connector itself has lost what day infinity is
    kept = {"d": -2147472692, "ts": "infinity", "tstz": "-infinity"}
    assert json.loads(endless["_envelope"])["rescued"] == kept
    assert (old["d"], old["n"]) == (None, "1" + "0" * 30)
    assert json.loads(old["_envelope"])["rescued"] == {
        "d": -735160,
        "ts": -63517824000000000,
        "tstz": "+10000-01-01T00:00:00.000000Z",
    }


def test_without_a_schema_types_are_those_of_json() -> None:
    row = table_row(log_of("jn.shop.kinds")[0])
    types = columns_of("jn.shop.kinds")
    assert list(row) == list(EXPECTED)
    assert (types["id"], row["id"]) == (pa.int64(), 1)
    assert (types["d"], row["d"]) == (pa.int64(), 19782)
    assert (types["n10"], row["n10"]) == (pa.string(), "BNI=")
    assert json.loads(row["n"]) == {"scale": 10, "value": "AR9x+wTL"}
    assert json.loads(row["p"])["srid"] is None
    assert (types["ar"], row["ar"]) == (pa.list_(pa.int64()), [1, 2, None])
    # a number that is none makes the column what both are: JSON
    assert [each["f4"] for each in log_of("jn.shop.kinds")] == ["1.5", None, "1.5", '"NaN"', None]


def schema_with(**columns: Any) -> WriterSchema:
    """A flattened schema of Connect's with a key and some columns."""
    fields = [{"type": "int64", "optional": False, "field": "id"}]
    fields += [{"optional": True, "field": name, **type_} for name, type_ in columns.items()]
    text = {"type": "struct", "fields": fields, "optional": False, "name": "shop.t.Value"}
    return connect_schema(json.dumps(text).encode())


def only(schema: WriterSchema, *values: Any) -> tuple[pa.DataType, list[Any], list[Any]]:
    """The column `c` of flattened events: its type, its values, and what is told beside them."""
    events = [json.dumps({"id": 1, "c": value}).encode() for value in values]
    decoded = decode(schema, events)
    assert decoded.failed == ()
    told = [json.loads(text).get("rescued") for text in decoded.ok["_envelope"].to_pylist()]
    return decoded.ok.schema.field("c").type, decoded.ok["c"].to_pylist(), told


def connect(type_: str, name: str, **parameters: str) -> dict[str, Any]:
    return {"type": type_, "name": name, "version": 1, "parameters": parameters}


T, D, C = "io.debezium.time.", "io.debezium.data.", "org.apache.kafka.connect.data."
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "given", "type_", "value"),
    [
        (connect("int32", f"{C}Date"), 19723, pa.date32(), date(2024, 1, 1)),
        (connect("string", f"{T}IsoDate"), "2024-01-01Z", pa.date32(), date(2024, 1, 1)),
        (connect("int64", f"{C}Timestamp"), 1704110400000, TIMESTAMP, NOON),
        (connect("int64", f"{T}NanoTimestamp"), 1704110400000000999, TIMESTAMP, NOON),
        (connect("string", f"{T}IsoTimestamp"), "2024-01-01T12:00:00Z", TIMESTAMP, NOON),
        (connect("string", f"{T}ZonedTimestamp"), "2024-01-01T14:00:00+02:00", TIMESTAMP, NOON),
        (connect("int32", f"{C}Time"), 43200001, pa.string(), "12:00:00.001000"),
        (connect("int64", f"{T}NanoTime"), 43200000001999, pa.string(), "12:00:00.000001"),
        # MySQL's times of day go beyond the day
        (connect("int64", f"{T}MicroTime"), -3600000001, pa.string(), "-01:00:00.000001"),
        (connect("string", f"{T}IsoTime"), "12:00:00.5Z", pa.string(), "12:00:00.5"),
        (connect("string", f"{T}Interval"), "P1Y2M", pa.string(), "P1Y2M"),
        (connect("int32", f"{T}Year"), 2024, pa.int32(), 2024),
        (connect("string", f"{D}EnumSet", allowed="a,b"), "a,b", pa.string(), "a,b"),
        (connect("bytes", f"{D}Bits"), "AAE=", pa.string(), "100000000"),
        ({"type": "int8"}, 7, pa.int32(), 7),
        ({"type": "bytes"}, "AAH/", pa.binary(), b"\x00\x01\xff"),
        (
            {"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}},
            {"a": "1", "b": None},
            pa.map_(pa.string(), pa.string()),
            [("a", "1"), ("b", None)],
        ),
        (
            {"type": "map", "keys": {"type": "int32"}, "values": {"type": "string"}},
            [[1, "x"]],
            pa.string(),
            '[[1,"x"]]',
        ),
    ],
)
def test_types_that_postgresql_does_not_have(
    column: dict[str, Any], given: Any, type_: pa.DataType, value: Any
) -> None:
    assert only(schema_with(c=column), given, None) == (type_, [value, None], [None, None])


def b64(number: int) -> str:
    # as few bytes as will do, as in Java
    size = (number.bit_length() + 8) // 8
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


@pytest.mark.parametrize(
    ("parameters", "type_"),
    [
        ({"scale": "2", "connect.decimal.precision": "10"}, pa.decimal128(10, 2)),
        ({"scale": "2"}, pa.decimal128(38, 2)),
        ({"scale": "2", "connect.decimal.precision": "50"}, pa.string()),
        ({"scale": "40"}, pa.string()),
        ({"scale": "-2", "connect.decimal.precision": "10"}, pa.string()),
        ({}, pa.decimal128(38, 0)),
    ],
)
def test_decimals(parameters: dict[str, str], type_: pa.DataType) -> None:
    schema = schema_with(c=connect("bytes", f"{C}Decimal", **parameters))
    found, (value, none), _ = only(schema, b64(-12345), None)
    exact = Decimal(-12345).scaleb(-int(parameters.get("scale", "0")))
    assert found == type_
    assert none is None
    assert value == (format(exact, "f") if type_ == pa.string() else exact)


def test_a_decimal_of_too_many_digits_is_kept_beside_the_row() -> None:
    schema = schema_with(c=connect("bytes", f"{C}Decimal", scale="0"))
    _, values, told = only(schema, b64(10**40), b64(5))
    assert values == [None, Decimal(5)]
    assert told == [{"c": "1" + "0" * 40}, None]


def test_decimals_that_were_written_as_numbers() -> None:
    parameters = {"scale": "2", "connect.decimal.precision": "10"}
    schema = schema_with(c=connect("bytes", f"{C}Decimal", **parameters))
    _, values, told = only(schema, 12.5, b64(1234), -3, None)
    assert values == [Decimal("12.50"), Decimal("12.34"), Decimal("-3.00"), None]
    assert told == [None] * 4


def test_numbers_that_are_none_in_lists_and_structs() -> None:
    inner = [{"type": "float", "optional": True, "field": "f"}]
    schema = schema_with(
        c={"type": "array", "items": {"type": "double", "optional": True}},
        s={"type": "struct", "fields": inner},
    )
    events = [b'{"id":1,"c":[1.5,"NaN",null],"s":{"f":"-Infinity"}}', b'{"id":2,"c":[2],"s":null}']
    rows = decode(schema, events).ok.to_pylist()
    assert rows[0]["c"][0] == 1.5
    assert math.isnan(rows[0]["c"][1])
    assert rows[0]["s"] == {"f": -math.inf}
    assert (rows[1]["c"], rows[1]["s"]) == ([2.0], None)


def test_what_is_no_number_at_all_is_refused() -> None:
    decoded = decode(schema_with(c={"type": "double"}), [b'{"id":1,"c":"many"}', b'{"id":1,"c":1}'])
    assert [(f.index, f.code) for f in decoded.failed] == [(0, ErrorCode.PAYLOAD_MISMATCH)]
    assert decoded.ok["c"].to_pylist() == [1.0]


@pytest.mark.parametrize(
    ("column", "given"),
    [
        ({"type": "int32"}, 2**40),
        ({"type": "bytes"}, "no base64!"),
        (connect("int32", f"{T}Date"), 2**31 - 1),
        (connect("string", f"{T}ZonedTimestamp"), "infinity"),
        (connect("int64", f"{T}Timestamp"), 2**62),
    ],
)
def test_strange_values_are_null_and_told(column: dict[str, Any], given: Any) -> None:
    _, values, told = only(schema_with(c=column), given, None)
    assert values == [None, None]
    assert told == [{"c": given}, None]


def test_a_number_of_absurd_scale_is_not_written_out() -> None:
    fields = [
        {"type": "int32", "optional": False, "field": "scale"},
        {"type": "bytes", "optional": False, "field": "value"},
    ]
    schema = schema_with(c=connect("struct", f"{D}VariableScaleDecimal") | {"fields": fields})
    _, values, told = only(schema, {"scale": 2**30, "value": "AQ=="}, {"scale": 3, "value": "AQ=="})
    assert values == [None, "0.001"]
    assert told == [{"c": [2**30, "01"]}, None]


def test_names_that_the_log_has_itself() -> None:
    schema = schema_with(_op={"type": "string"}, _Topic={"type": "string"}, c={"type": "int32"})
    decoded = decode(schema, [b'{"id":1,"_op":"mine","_Topic":"too","c":1}'])
    (row,) = decoded.ok.to_pylist()
    assert (row["_op"], row["_op__source"], row["_Topic__source"]) == ("update", "mine", "too")
