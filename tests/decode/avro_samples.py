"""Avro schemas and data out of thin air, with what must become of them."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

from hypothesis import strategies as st

NUMBERS = ({"int", "long"}, {"int", "float", "double"})
_EXACT = Context(prec=200)


@dataclass(frozen=True)
class Choice:
    """A datum of a union: which branch, and what is in it."""

    branch: int
    content: Any


def zigzag(number: int) -> bytes:
    left = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    out = bytearray()
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes([*out, left])


def record(*types: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """A record with the fields f0, f1 and so on."""
    fields = [{"name": f"f{i}", "type": type_} for i, type_ in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields, **more}


PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
LOGICAL = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
    {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 7},
    {"type": "bytes", "logicalType": "nobody-knows"},
]
FIXED: list[dict[str, Any]] = [
    {"size": 0},
    {"size": 3},
    {"size": 8},
    {"size": 20},
    {"size": 68},
    {"size": 16, "logicalType": "uuid"},
    {"size": 12, "logicalType": "duration"},
    {"size": 8, "logicalType": "decimal", "precision": 10, "scale": 3},
    {"size": 20, "logicalType": "decimal", "precision": 38, "scale": 3},
    {"size": 5, "logicalType": "decimal", "precision": 5, "scale": 5},
    {"size": 24, "logicalType": "decimal", "precision": 50, "scale": 0},
]


@st.composite
def types(draw: st.DrawFn, names: list[int], depth: int = 3) -> Any:
    """Any type without recursion; named types are numbered through `names`."""
    simple = ["primitive", "logical", "enum", "fixed", "option"]
    kind = draw(st.sampled_from([*simple, "array", "map", "record", "union"] if depth else simple))
    names[0] += 1
    name = f"N{names[0]}"
    match kind:
        case "primitive":
            return draw(st.sampled_from(PRIMITIVES))
        case "logical":
            return draw(st.sampled_from(LOGICAL))
        case "enum":
            return {
                "type": "enum",
                "name": name,
                "symbols": draw(st.sampled_from([["A", "B"], ["Z"]])),
            }
        case "fixed":
            return {"type": "fixed", "name": name, **draw(st.sampled_from(FIXED))}
        case "array":
            return {"type": "array", "items": draw(types(names, depth - 1))}
        case "map":
            return {"type": "map", "values": draw(types(names, depth - 1))}
        case "record":
            count = draw(st.integers(0, 3))
            return record(*(draw(types(names, depth - 1)) for _ in range(count)), name=name)
    wanted = (
        [draw(types(names, depth - 1)) for _ in range(draw(st.integers(1, 3)))] if depth else []
    )
    if kind == "option":
        wanted = [draw(st.sampled_from(PRIMITIVES[1:] + LOGICAL)), "null"]
    branches: dict[str, Any] = {}
    for each in wanted:
        if not isinstance(each, list):
            branches.setdefault(branch_name(each), each)
    return draw(st.permutations(list(branches.values()) or ["null"]))


def branch_name(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    return str(schema.get("name", schema["type"]))


def kind_of(schema: Any) -> str:
    return (
        schema
        if isinstance(schema, str)
        else "union"
        if isinstance(schema, list)
        else schema["type"]
    )


def logical_of(schema: Any) -> str:
    return schema.get("logicalType", "") if isinstance(schema, dict) else ""


def _bytes(number: int, size: int | None) -> bytes:
    return number.to_bytes(
        size if size is not None else number.bit_length() // 8 + 1, "big", signed=True
    )


def data(schema: Any) -> st.SearchStrategy[Any]:
    """Data of a type that a lake can hold."""
    logical = logical_of(schema)
    match kind_of(schema), logical:
        case (("bytes" | "fixed"), "decimal"):
            limit = 10 ** schema["precision"] - 1
            return st.integers(-limit, limit).map(lambda n: _bytes(n, schema.get("size")))
        case "int", "date":
            return st.integers(-719_162, 2_932_896)
        case "long", ("timestamp-millis" | "timestamp-micros"):
            seconds = st.integers(-62_135_596_800, 253_402_300_799)
            unit = 1_000 if logical == "timestamp-millis" else 1_000_000
            return st.tuples(seconds, st.integers(0, unit - 1)).map(lambda p: p[0] * unit + p[1])
        case "string", "uuid":
            return st.uuids().map(str)
    match kind_of(schema):
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "int":
            return st.integers(-(2**31), 2**31 - 1)
        case "long":
            return st.integers(-(2**63), 2**63 - 1)
        case "float":
            return st.floats(width=32, allow_nan=False)
        case "double":
            return st.floats(allow_nan=False)
        case "bytes":
            return st.binary(max_size=9)
        case "string":
            return st.text(max_size=9)
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
        case "array":
            return st.lists(data(schema["items"]), max_size=3)
        case "map":
            return st.dictionaries(st.text(max_size=3), data(schema["values"]), max_size=3)
        case "record":
            return st.fixed_dictionaries({f["name"]: data(f["type"]) for f in schema["fields"]})
    branches = [st.builds(Choice, st.just(i), data(each)) for i, each in enumerate(schema)]
    return st.one_of(branches)


def encode(schema: Any, datum: Any, *, blocks: bool = False) -> bytes:
    """As Avro writes it; with `blocks` in blocks of one item that know their size."""
    match kind_of(schema):
        case "null":
            return b""
        case "boolean":
            return bytes([datum])
        case "int" | "long":
            return zigzag(datum)
        case "float":
            return struct.pack("<f", datum)
        case "double":
            return struct.pack("<d", datum)
        case "bytes":
            return zigzag(len(datum)) + bytes(datum)
        case "string":
            return zigzag(len(datum.encode())) + bytes(datum.encode())
        case "enum":
            return zigzag(schema["symbols"].index(datum))
        case "fixed":
            return bytes(datum)
        case "array":
            return _blocks([encode(schema["items"], each, blocks=blocks) for each in datum], blocks)
        case "map":
            items = [
                encode("string", key) + encode(schema["values"], each, blocks=blocks)
                for key, each in datum.items()
            ]
            return _blocks(items, blocks)
        case "record":
            return b"".join(
                encode(f["type"], datum[f["name"]], blocks=blocks) for f in schema["fields"]
            )
    return zigzag(datum.branch) + encode(schema[datum.branch], datum.content, blocks=blocks)


def _blocks(items: list[bytes], blocks: bool) -> bytes:
    if blocks:
        return b"".join(zigzag(-1) + zigzag(len(item)) + item for item in items) + b"\0"
    return (zigzag(len(items)) + b"".join(items) if items else b"") + b"\0"


def plain(schema: Any, datum: Any) -> Any:
    """What fastavro gives for it without logical types."""
    match kind_of(schema):
        case "array":
            return [plain(schema["items"], each) for each in datum]
        case "map":
            return {key: plain(schema["values"], each) for key, each in datum.items()}
        case "record":
            return {f["name"]: plain(f["type"], datum[f["name"]]) for f in schema["fields"]}
        case "union":
            return plain(schema[datum.branch], datum.content)
    return datum


def without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_logical(each) for each in schema]
    if isinstance(schema, dict):
        return {k: without_logical(v) for k, v in schema.items() if k != "logicalType"}
    return schema


def is_void(schema: Any) -> bool:
    return schema == "null" or (isinstance(schema, list) and all(map(is_void, schema)))


def lake(schema: Any, datum: Any) -> Any:
    """What a lake must hold for it."""
    match kind_of(schema), logical_of(schema):
        case (("bytes" | "fixed"), "decimal"):
            number = Decimal(int.from_bytes(datum, "big", signed=True))
            exact = _EXACT.scaleb(number, -schema["scale"])
            return exact if schema["precision"] <= 38 else format(exact, "f")
        case _, "date":
            return date(1970, 1, 1) + timedelta(days=datum)
        case _, ("timestamp-millis" | "timestamp-micros" as unit):
            micros = datum * (1_000 if unit == "timestamp-millis" else 1)
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
        case "fixed", "uuid":
            return str(uuid.UUID(bytes=datum))
        case _, "duration":
            parts = struct.unpack("<III", datum)
            return dict(zip(("months", "days", "millis"), parts, strict=True))
    match kind_of(schema):
        case "array":
            return [lake(schema["items"], each) for each in datum]
        case "map":
            return [(key, lake(schema["values"], each)) for key, each in datum.items()]
        case "record":
            return _lake_record(schema, datum) or "{}"
        case "union":
            return _lake_union(schema, datum)
    return datum


def _lake_record(schema: Any, datum: Any) -> dict[str, Any]:
    shown = [f for f in schema["fields"] if not is_void(f["type"])]
    return {f["name"]: lake(f["type"], datum[f["name"]]) for f in shown}


def lake_row(schema: Any, datum: Any) -> dict[str, Any]:
    return _lake_record(schema, datum)


def _lake_union(schema: Any, datum: Choice) -> Any:
    branch = schema[datum.branch]
    content = lake(branch, datum.content)
    others = [each for each in schema if each != "null"]
    kinds = {kind_of(each) for each in others}
    if branch == "null" or len(others) == 1:
        return content
    if not any(map(logical_of, others)):
        if kinds <= NUMBERS[0]:
            return content
        if kinds <= NUMBERS[1]:
            return float(content)
    names = [branch_name(each) for each in others]
    return {name: content if name == branch_name(branch) else None for name in names}
