"""Every type of Datastream's as the lake has it, and what becomes of values that it cannot hold."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.change import change_values
from distributary.errors import ErrorCode
from distributary.model.record import TIMESTAMP
from tests.decode.datastream_samples import (
    avro_data,
    avro_decoder,
    avro_schema,
    codes,
    decoded_avro,
    event,
    raw,
    rows,
    settings,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY, HOUR = 86_400_000_000, 3_600_000_000
INFINITY, MINUS_INFINITY = 9_223_372_036_825_200_000, -9_223_372_036_832_400_000


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": type_} for field, type_ in fields.items()],
    }


def columns_of(types: Mapping[str, Any]) -> dict[str, pa.DataType]:
    decoder = avro_decoder(avro_schema("mysql", types))
    return {column.name: column.type for column in decoder.columns if column.name in types}


def read(type_: Any, value: Any) -> tuple[pa.DataType, Any, dict[str, Any]]:
    """The column, its value, and what the envelope has besides; beside null and without."""
    found = []
    for wrapped in (type_, ["null", type_], [type_, "null"]):
        # plain numbers in the file, whatever they stand for
        bare = avro_schema("mysql", {"id": "int", "x": _bare(wrapped)})
        contents = [value, *([None] if isinstance(wrapped, list) else [])]
        data = avro_data(bare, [event(payload={"id": 1, "x": each}) for each in contents])
        decoder = avro_decoder(avro_schema("mysql", {"id": "int", "x": wrapped}))
        decoded = decoder.decode(data, raw(len(data)))
        assert not decoded.failed
        row, *nulls = rows(decoded)
        assert all(each["x"] is None for each in nulls)
        envelope = json.loads(row["_envelope"])
        more = {part: envelope[part]["x"] for part in ("rescued", "offsets") if part in envelope}
        found.append((decoded.ok.schema.field("x").type, row["x"], more))
    assert found[0] == found[1] == found[2]
    return found[0]


def _bare(type_: Any) -> Any:
    """A type without logical types, so that any number can be written."""
    if isinstance(type_, list):
        return [_bare(each) for each in type_]
    if not isinstance(type_, dict):
        return type_
    if "fields" in type_:
        return {**type_, "fields": [{**f, "type": _bare(f["type"])} for f in type_["fields"]]}
    if "items" in type_:
        return {**type_, "items": _bare(type_["items"])}
    return type_["type"] if "logicalType" in type_ else type_


DATETIME = record("datetime", date=logical("int", "date"), time=logical("long", "time-micros"))
TIMESTAMP_TZ = record(
    "timestampTz",
    timestamp=logical("long", "timestamp-micros"),
    offset=logical("int", "time-millis"),
)
TIME_TZ = record(
    "timeTz", time=logical("long", "time-micros"), offset=logical("int", "time-millis")
)
INTERVAL = record("interval", months="int", hours="int", micros="long")
DECIMAL = logical("bytes", "decimal", precision=10, scale=2)
WIDE = logical("bytes", "decimal", precision=65, scale=30)


@pytest.mark.parametrize(
    ("type_", "value", "lake", "expected"),
    [
        ("boolean", True, pa.bool_(), True),
        ("int", -5, pa.int32(), -5),
        ("long", 2**60, pa.int64(), 2**60),
        ("float", 1.5, pa.float32(), 1.5),
        ("double", 0.1, pa.float64(), 0.1),
        ("bytes", b"\x00\xff", pa.binary(), b"\x00\xff"),
        ("string", "Zoë", pa.string(), "Zoë"),
        ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, "b", pa.string(), "b"),
        (logical("string", "json"), '{"a": 1.10}', pa.string(), '{"a": 1.10}'),
        (logical("string", "number"), "1" * 40, pa.string(), "1" * 40),
        (logical("string", "varchar"), "v", pa.string(), "v"),
        (record("varchar", value="string", length="int"), {"value": "v", "length": 9}, None, "v"),
        (record("year", year="int"), {"year": 2024}, pa.int32(), 2024),
        (DECIMAL, b"\x01\x00", pa.decimal128(10, 2), Decimal("2.56")),
        (DECIMAL, b"\xff", pa.decimal128(10, 2), Decimal("-0.01")),
        (WIDE, (10**60).to_bytes(30, "big"), pa.string(), f"1{'0' * 30}.{'0' * 30}"),
        (logical("int", "date"), 19_000, pa.date32(), date(2022, 1, 8)),
        (
            record("calendarDate", year="int", month="int", day="int"),
            {"year": 1999, "month": 2, "day": 28},
            pa.date32(),
            date(1999, 2, 28),
        ),
        (
            logical("long", "timestamp-micros"),
            1_672_531_200_000_001,
            TIMESTAMP,
            datetime(2023, 1, 1, 0, 0, 0, 1, UTC),
        ),
        (logical("long", "timestamp-millis"), 1, TIMESTAMP, EPOCH + timedelta(milliseconds=1)),
        (logical("long", "local-timestamp-micros"), 1, TIMESTAMP, EPOCH.replace(microsecond=1)),
        (DATETIME, {"date": 1, "time": HOUR}, TIMESTAMP, EPOCH + timedelta(days=1, hours=1)),
        (logical("long", "time-micros"), HOUR + 1, pa.string(), "01:00:00.000001"),
        (logical("int", "time-millis"), 3_600_001, pa.string(), "01:00:00.001000"),
        (logical("long", "time-millis"), 3_600_001, pa.string(), "01:00:00.001000"),
        (logical("long", "time-micros"), DAY, pa.string(), "24:00:00.000000"),
        (TIME_TZ, {"time": HOUR, "offset": -19_800_000}, pa.string(), "01:00:00.000000-05:30"),
        (logical("long", "time-interval-micros"), -(838 * HOUR) - 1, None, "-838:00:00.000001"),
        (INTERVAL, {"months": 14, "hours": 3, "micros": 1_500_000}, None, "P14MT3H1.5S"),
        (INTERVAL, {"months": 0, "hours": 0, "micros": -1}, pa.string(), "PT-0.000001S"),
        (INTERVAL, {"months": 0, "hours": 0, "micros": 0}, pa.string(), "PT0S"),
    ],
)
def test_types(type_: Any, value: Any, lake: pa.DataType | None, expected: Any) -> None:
    assert read(type_, value) == (lake or pa.string(), expected, {})


@pytest.mark.parametrize(
    ("type_", "value", "rescued"),
    [
        (logical("long", "timestamp-micros"), INFINITY, "infinity"),
        (logical("long", "timestamp-micros"), MINUS_INFINITY, "-infinity"),
        (logical("long", "timestamp-micros"), 2**62, 2**62),
        (logical("long", "timestamp-millis"), 2**62, 2**62),
        (logical("int", "date"), 2**31 - 1, 2**31 - 1),
        (DATETIME, {"date": 2**31 - 1, "time": 5}, [2**31 - 1, 5]),
        (DATETIME, {"date": 1, "time": -1}, [1, -1]),
        (TIMESTAMP_TZ, {"timestamp": INFINITY, "offset": 0}, "infinity"),
        (logical("long", "time-micros"), -1, -1),
        (logical("long", "time-micros"), DAY + 1, DAY + 1),
        (logical("long", "time-interval-micros"), -(2**63), -(2**63)),
        (TIME_TZ, {"time": 5, "offset": DAY // 1_000}, [5, DAY // 1_000]),
        (DECIMAL, (10**10).to_bytes(5, "big"), "100000000.00"),
        (DECIMAL, (10**60).to_bytes(30, "big"), f"1{'0' * 58}.00"),
        (WIDE, (10**65).to_bytes(30, "big"), f"1{'0' * 35}.{'0' * 30}"),
        (
            record("calendarDate", year="int", month="int", day="int"),
            {"year": 1999, "month": 2, "day": 29},
            [1999, 2, 29],
        ),
    ],
)
def test_what_the_lake_cannot_hold_is_null_and_kept(type_: Any, value: Any, rescued: Any) -> None:
    assert read(type_, value)[1:] == (None, {"rescued": rescued})


def test_a_clock_s_offset_is_kept_beside_the_moment() -> None:
    at = {"timestamp": HOUR, "offset": 3_600_000}
    assert read(TIMESTAMP_TZ, at) == (TIMESTAMP, EPOCH + timedelta(hours=1), {"offsets": 3_600_000})
    assert read(TIMESTAMP_TZ, {"timestamp": HOUR, "offset": 0})[2] == {}


def test_rescued_values_are_told_in_their_own_rows() -> None:
    columns = {"id": "int", "t": ["null", "long"], "u": "long"}
    schema = avro_schema("mysql", columns)
    typed = avro_schema(
        "mysql",
        {
            "id": "int",
            "t": ["null", logical("long", "timestamp-micros")],
            "u": logical("long", "time-micros"),
        },
    )
    rows_ = [(None, 0), (INFINITY, -1), (0, 5), (0, -2)]
    events = [event(n, payload={"id": n, "t": t, "u": u}) for n, (t, u) in enumerate(rows_)]
    found = avro_decoder(typed).decode(avro_data(schema, events), raw(4))
    told = [json.loads(row["_envelope"]).get("rescued") for row in rows(found)]
    assert told == [None, {"t": "infinity", "u": -1}, None, {"u": -2}]


def test_logical_types_where_avro_does_not_look_for_them() -> None:
    schema = avro_schema("mysql", {"id": "int", "t": "long", "n": ["null", "long"]})
    payload = schema["fields"][-1]["type"]["fields"]
    payload[1]["logicalType"] = "timestamp-micros"
    payload[2]["logicalType"] = "time-interval-micros"
    events = [event(payload={"id": 1, "t": 1_000_000, "n": HOUR})]
    (row,) = rows(avro_decoder(schema).decode(avro_data(schema, events), raw(1)))
    assert (row["t"], row["n"]) == (EPOCH + timedelta(seconds=1), "01:00:00.000000")


def test_source_times_in_microseconds() -> None:
    schema = avro_schema()
    schema["fields"][2]["type"]["logicalType"] = "timestamp-micros"
    bare = avro_schema()
    bare["fields"][2]["type"] = "long"
    events = [event(source_timestamp=1_640_410_924_408_123)]
    decoder = avro_decoder(schema, settings(backfill="by_timestamp"))
    (row,) = rows(decoder.decode(avro_data(bare, events), raw(1)))
    assert row["_seq"]["ts"] == 1_640_410_924_408
    assert row["_source_ts"].microsecond == 408_123


def test_types_that_are_named_again() -> None:
    varchar = record("varchar", value="string", length="int")
    columns = {"id": "int", "a": varchar, "b": ["null", "varchar"], "c": "varchar"}
    value = {"value": "v", "length": 1}
    found = decoded_avro(
        [event(payload={"id": 1, "a": value, "b": value, "c": value})], columns=columns
    )
    assert [(row["a"], row["b"], row["c"]) for row in rows(found)] == [("v", "v", "v")]
    spaced = {"id": "int", "a": {**varchar, "namespace": "n"}, "b": ["null", "n.varchar"]}
    assert columns_of(spaced) == {"id": pa.int32(), "a": pa.string(), "b": pa.string()}


def test_anything_else_is_what_it_is_for_any_payload() -> None:
    pair = record("pair", left="int", right=logical("int", "date"))
    columns = {
        "id": "int",
        "list": {"type": "array", "items": "int"},
        "map": {"type": "map", "values": "string"},
        "pair": pair,
        "again": ["null", "pair"],
        "mixed": ["null", "int", "string"],
        "fixed": {"type": "fixed", "name": "F", "size": 4},
        "tagged": logical("bytes", "decimal", precision=0),
    }
    types = columns_of(columns)
    assert types["list"] == pa.list_(pa.int32())
    assert types["map"] == pa.map_(pa.string(), pa.string())
    struct = pa.struct([("left", pa.int32()), ("right", pa.date32())])
    assert types["pair"] == types["again"] == struct
    assert types["mixed"] == pa.struct([("int", pa.int32()), ("string", pa.string())])
    assert types["fixed"] == types["tagged"] == pa.binary()


def multidimensional(name: str, element: Any) -> dict[str, Any]:
    own = f"multidimensionalArray_{name}"
    nested = ["null", {"type": "array", "items": own}]
    return record(own, nestedArray=nested, elementValue=["null", element])


def nested(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"nestedArray": [nested(each) for each in value], "elementValue": None}
    return {"nestedArray": None, "elementValue": value}


def arrays(element: Any, *given: Any) -> list[Any]:
    type_ = ["null", multidimensional("x", element)]
    bare = ["null", multidimensional("x", _bare(element))]
    events = [
        event(n, payload={"id": n, "x": None if value is None else nested(value)})
        for n, value in enumerate(given)
    ]
    data = avro_data(avro_schema("mysql", {"id": "int", "x": bare}), events)
    decoder = avro_decoder(avro_schema("mysql", {"id": "int", "x": type_}))
    assert decoder._inner._inner._engine is not None  # type: ignore[union-attr]
    decoded = decoder.decode(data, raw(len(given)))
    found: list[Any] = [None] * len(given)
    for failure in decoded.failed:
        found[failure.index] = failure.code
    origin = decoded.origin.to_pylist() if decoded.origin else range(len(given))
    for row, position in zip(rows(decoded), origin, strict=True):
        found[position] = row["x"]
    return found


def test_arrays_of_any_number_of_dimensions_are_json() -> None:
    given_: list[Any] = [None, [1, None, 3], [], [[1, 2], [3, 4]], [[[[[[7]]]]]], 5, [None]]
    texts = arrays("int", *given_)
    assert texts[0] is None
    assert [json.loads(text) for text in texts[1:]] == given_[1:]
    assert texts[3] == "[[1,2],[3,4]]"


def test_an_array_that_is_too_deep_is_refused_alone() -> None:
    first, refused, last = arrays("int", [1], [[[[[[[7], [8]]]]]]], [2])
    assert (first, last) == ("[1]", "[2]") and isinstance(refused, ErrorCode)
    # whatever the bytes behind it look like to somebody who does not expect them
    empty: list[Any] = [[[[[[[]]]]]]]
    for value in (empty, [[[[[[[None, None]]]]]]]):
        assert isinstance(arrays("int", [1], value, [2])[1], ErrorCode)


def test_elements_of_arrays_have_types_too() -> None:
    assert arrays("string", ['a"b', "é"]) == ['["a\\"b","é"]']
    assert arrays(logical("long", "time-micros"), [HOUR, -1]) == ['["01:00:00.000000",-1]']
    moments = arrays(logical("long", "timestamp-micros"), [0, INFINITY])
    assert moments == ['["1970-01-01T00:00:00.000000Z","infinity"]']
    assert arrays(logical("string", "json"), ['{"a": 1}', "{", None]) == ['[{"a": 1},"{",null]']


def test_a_name_that_avro_would_refuse() -> None:
    schema = avro_schema("mysql", {"id": "int", "plain": "int"})
    data = avro_data(schema, [event(payload={"id": 1, "plain": 2})])
    schema["fields"][-1]["type"]["fields"][1]["name"] = "order-no #"
    schema["name"] = "shop-orders"
    (row,) = rows(avro_decoder(schema).decode(data, raw(1)))
    assert row["order_no__"] == 2


LEAVES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "instant": ("long", st.integers(-(2**63), 2**63 - 1)),
    "day": ("int", st.integers(-(2**31), 2**31 - 1)),
    "clock": ("long", st.integers(-DAY, 2 * DAY)),
    "span": ("long", st.integers(-(2**63), 2**63 - 1)),
    "number": ("bytes", st.binary(max_size=20)),
    "text": ("string", st.text(max_size=5)),
    "data": ("bytes", st.binary(max_size=5)),
    "real": ("double", st.floats(allow_nan=False)),
}
TYPED = {
    "instant": logical("long", "timestamp-micros"),
    "day": logical("int", "date"),
    "clock": logical("long", "time-micros"),
    "span": logical("long", "time-interval-micros"),
    "number": DECIMAL,
    "text": logical("string", "json"),
    "data": "bytes",
    "real": "double",
}


@given(
    st.lists(
        st.fixed_dictionaries({n: st.none() | s for n, (_, s) in LEAVES.items()}),
        min_size=1,
        max_size=6,
    )
)
def test_the_fast_path_agrees_with_the_careful_one(payloads: list[dict[str, Any]]) -> None:
    bare = avro_schema("mysql", {"id": "int"} | {n: ["null", t] for n, (t, _) in LEAVES.items()})
    typed = avro_schema("mysql", {"id": "int"} | {n: ["null", t] for n, t in TYPED.items()})
    events = [event(n, payload={"id": n, **p}) for n, p in enumerate(payloads)]
    data = avro_data(bare, events)
    quick = avro_decoder(typed)
    careful = copy.copy(quick)
    careful._inner = copy.copy(quick._inner)
    careful._inner._inner = copy.copy(quick._inner._inner)  # type: ignore[union-attr]
    careful._inner._inner._engine = None  # type: ignore[union-attr]
    first = quick.decode(data, raw(len(data)))
    second = careful.decode(data, raw(len(data)))
    assert codes(first) == codes(second) == {}
    assert first.ok.equals(second.ok)
    for given_, row in zip(payloads, rows(first), strict=True):
        rescued = json.loads(row["_envelope"]).get("rescued", {})
        for name, value in given_.items():
            # nothing is lost: what was set is in the column or with the event
            assert (value is None) == (row[name] is None and name not in rescued)


def test_readings_of_nothing() -> None:
    for read_ in (
        change_values.dates,
        change_values.spans,
        change_values.instants(1),
        change_values.times(1),
    ):
        assert len(read_(pa.array([], pa.int64())).array) == 0
    assert change_values.spans(pa.nulls(3, pa.int64())).array.null_count == 3
