"""Events in JSON whose schema is Kafka Connect's: read by the decoder of JSON payloads.

Connect's JSON is looser than JSON Schema in one place: numbers that are none are texts, and
decimals are numbers or texts of their bytes. Those events are read again, as whatever they are.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from decimal import Context, Decimal, DecimalException
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import DecodeLimits, Gathered, Positions, nulls, origins, truths
from distributary.decode.change.debezium.connect_schema import (
    DECIMAL,
    OTHER,
    DebeziumField,
    Type,
    is_of_envelope,
    unusable,
)
from distributary.decode.json.decoder import JsonDecoder
from distributary.decode.json.infer import ANYTHING, NOTHING, Shape, join, objects_only
from distributary.errors import ErrorCode
from distributary.model.deadletter import Decoded
from distributary.registry.compile.json_documents import Documents

_MESSAGE = "event"
_DRAFT = 7
_NO_NUMBER = r'"(?:NaN|-?Infinity)"'
_FLOATS = ("float32", "float64")
_EXACT = Context(prec=10_000)
_SIMPLE = {
    "boolean": "boolean",
    **dict.fromkeys(("int32", "int64"), "integer"),
    **dict.fromkeys(_FLOATS, "number"),
    **dict.fromkeys(("string", "bytes"), "string"),
}


class ConnectJson:
    """Decodes payloads of one schema of Connect's."""

    def __init__(self, type_: Type, limits: DecodeLimits) -> None:
        self.type = type_
        self._limits = limits
        self._strict = decoder(json_schema(type_), limits)
        self._loose: JsonDecoder | None = None
        self._floats = _has(type_, lambda each: each.kind in _FLOATS)
        self._odd = self._floats or _has(type_, _is_odd)
        self._schema = pa.schema([pa.field(c.name, c.type) for c in self._strict.columns])
        self.raw = tuple(self._schema.types)
        self.expansion = self._strict.expansion

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """Decode an array without nulls; what cannot be read is in `failed`."""
        odd = np.zeros(len(payloads), np.bool_)
        if self._floats:
            odd = truths(pc.match_substring_regex(payloads, _NO_NUMBER))
        usual = np.flatnonzero(~odd)
        decoded = self._strict.decode(payloads.take(pa.array(usual)) if odd.any() else payloads)
        if not odd.any() and not (decoded.failed and self._odd):
            return decoded
        gathered = Gathered(self._schema, len(payloads))
        gathered.add(decoded.ok, origins(decoded, usual))
        again = [int(usual[failure.index]) for failure in decoded.failed]
        rest = np.sort(np.concatenate([np.flatnonzero(odd), np.array(again, np.int64)]))
        self._again(payloads.take(pa.array(rest)), rest, gathered)
        return gathered.decoded()

    def _again(self, payloads: pa.BinaryArray, positions: Positions, gathered: Gathered) -> None:
        if self._loose is None:
            self._loose = decoder(json_schema(self.type, loose=True), self._limits)
        decoded = self._loose.decode(payloads)
        positions = gathered.take(decoded, positions)
        rows: list[dict[str, Any]] = []
        kept: list[int] = []
        for position, row in zip(positions.tolist(), decoded.ok.to_pylist(), strict=True):
            try:
                rows.append(_members(row, self.type))
                kept.append(position)
            except (ValueError, TypeError, DecimalException):
                reason = "a number is none of what Kafka Connect writes for one"
                gathered.fail(position, ErrorCode.PAYLOAD_MISMATCH, reason)
        batch = pa.RecordBatch.from_pylist(rows, schema=self._schema)
        gathered.add(batch, np.array(kept, np.int64))


def decoder(schema: dict[str, Any], limits: DecodeLimits) -> JsonDecoder:
    """Return a decoder of objects for an inferred JSON Schema."""
    whole = schema | {"title": _MESSAGE, "type": "object"}
    body = {"schema": whole, "draft": _DRAFT, "references": {}}
    return JsonDecoder(json.dumps(body).encode(), _MESSAGE, limits)


def json_schema(type_: Type, *, loose: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a type; `loose` accepts values with several notations."""
    if type_.kind == "other" or (loose and _is_odd(type_)):
        return {}
    match type_.kind:
        case "struct":
            members = {f.name: json_schema(f.type, loose=loose) for f in type_.fields}
            return {
                "type": ["object", "null"],
                "properties": members,
                "additionalProperties": False,
            }
        case "array" if type_.item is not None:
            return {"type": ["array", "null"], "items": json_schema(type_.item, loose=loose)}
        case "map" if type_.item is not None:
            values = json_schema(type_.item, loose=loose)
            return {"type": ["object", "null"], "additionalProperties": values}
    return {"type": [_SIMPLE[type_.kind], "null"]}


def _is_odd(type_: Type) -> bool:
    return type_.kind in _FLOATS or type_.name == DECIMAL


def _has(type_: Type, what: Callable[[Type], bool]) -> bool:
    below = [f.type for f in type_.fields] + ([type_.item] if type_.item is not None else [])
    return what(type_) or any(_has(each, what) for each in below)


def _strict(value: Any, type_: Type) -> Any:
    """Convert a value of the loose decoder into the form of the strict one."""
    if value is None:
        return None
    if _is_odd(type_):
        number = json.loads(value, parse_float=Decimal)
        return _decimal(number, type_) if type_.name == DECIMAL else _float(number)
    match type_.kind:
        case "struct":
            return _members(value, type_)
        case "array" if type_.item is not None:
            return [_strict(each, type_.item) for each in value]
        case "map" if type_.item is not None:
            return [(key, _strict(each, type_.item)) for key, each in value]
    return value


def _members(value: dict[str, Any], type_: Type) -> dict[str, Any]:
    # matched by position, because the lake's names may differ from the source's
    fields = zip(value.items(), type_.fields, strict=True)
    return {name: _strict(each, field.type) for (name, each), field in fields}


def _float(number: Any) -> float | None:
    if isinstance(number, bool):
        raise TypeError
    return None if number is None else float(number)


def _decimal(number: Any, type_: Type) -> str | None:
    """Return the number's bytes in base64, Connect's default for decimals."""
    if number is None or isinstance(number, str):
        return number
    if isinstance(number, bool):
        raise TypeError
    unscaled = Decimal(number).scaleb(int(type_.parameters.get("scale", "0")), _EXACT)
    whole = int(unscaled)
    if whole != unscaled:
        raise ValueError
    size = (whole.bit_length() + 8) // 8
    return base64.b64encode(whole.to_bytes(size, "big", signed=True)).decode()


# Events in JSON without a schema: with the one that was inferred from them. A column that was never
# anything but null does not exist yet: an event that has a value there is refused.

IMAGES = ("before", "after")
_TEXT: Shape = {"type": ["null", "string"]}
_TEXTS = frozenset(
    (
        *("version", "connector", "name", "db", "schema", "table", "collection", "gtid"),
        *("file", "change_lsn", "commit_lsn", "rs_id"),
    )
)
"""The fields about a source that are always text."""


class InferredJson:
    """Decodes payloads of one inferred schema."""

    def __init__(self, body: bytes, limits: DecodeLimits) -> None:
        try:
            content = Documents.of(body).content
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise unusable(type(error).__name__) from error
        members = _with_flat_rows(_properties(content))
        if not members:
            raise unusable("it has no properties")
        self._void = _void_paths(members)
        self.type = _type(members)
        self._inner = decoder(_closed({n: _filled(s) for n, s in members.items()}), limits)
        self._schema = pa.schema([pa.field(c.name, c.type) for c in self._inner.columns])
        self.raw = tuple(self._schema.types)
        self.expansion = self._inner.expansion

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """Decode an array without nulls; what cannot be read is in `failed`."""
        decoded = self._inner.decode(payloads)
        batch = decoded.ok
        full = np.zeros(batch.num_rows, np.bool_)
        for path in self._void:
            array = batch.column(path[0])
            for index in path[1:]:
                array = array.flatten()[index]
            full |= ~nulls(array)
        if not full.any():
            return decoded
        gathered = Gathered(self._schema, len(payloads))
        positions = gathered.take(decoded, np.arange(len(payloads)))
        for position in positions[full].tolist():
            reason = "it has a value where its schema knows none"
            gathered.fail(position, ErrorCode.PAYLOAD_MISMATCH, reason)
        gathered.add(batch.filter(pa.array(~full)), positions[~full])
        return gathered.decoded()


def _with_flat_rows(members: dict[str, Shape]) -> dict[str, Shape]:
    """Return a schema in which both images of a row are alike, and no column is an object."""
    images = [objects_only(members[name]) for name in IMAGES if name in members]
    source = objects_only(members.get("source", NOTHING))
    if "op" not in members or "connector" not in _properties(source) or not images:
        return {name: s if is_of_envelope(name) else _column(s) for name, s in members.items()}
    # one event with another type must not change how the others are read
    patterns = {
        name: _TEXT if name in _TEXTS and "string" in shape.get("type", ()) else shape
        for name, shape in _properties(source).items()
    }
    members = members | {"source": _closed(patterns), "op": _TEXT}
    joined = NOTHING
    for each in images:
        joined = join(joined, each)
    columns = {name: _column(shape) for name, shape in _properties(joined).items()}
    return members | dict.fromkeys(IMAGES, _closed(columns) if columns else joined)


def _column(shape: Shape) -> Shape:
    """Return a shape whose columns do not follow from its structure alone: it becomes JSON text."""
    types = shape.get("type")
    return ANYTHING if types == "object" or (types and "object" in types) else shape


def _properties(shape: Any) -> dict[str, Shape]:
    """Return the properties of a shape of objects or null; empty for any other shape."""
    types = shape.get("type") if isinstance(shape, dict) else None
    found = shape.get("properties") if isinstance(shape, dict) else None
    only = {*types} <= {"object", "null"} if isinstance(types, list) else types == "object"
    return dict(found) if only and isinstance(found, dict) else {}


def _closed(members: dict[str, Shape]) -> dict[str, Any]:
    return {"type": ["object", "null"], "properties": members, "additionalProperties": False}


def _filled(shape: Shape) -> Shape:
    """Return a shape without always-null parts, which the fast decoder does not support."""
    if shape == NOTHING:
        return _TEXT
    members = _properties(shape)
    return _closed({n: _filled(s) for n, s in members.items()}) if members else shape


def _void_paths(members: dict[str, Shape]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for index, shape in enumerate(members.values()):
        if shape == NOTHING:
            found.append((index,))
        found += [(index, *path) for path in _void_paths(_properties(shape))]
    return found


def _type(members: dict[str, Shape]) -> Type:
    fields = []
    for name, shape in members.items():
        inner = _properties(shape)
        kind = _type(inner) if inner else Type("void") if shape == NOTHING else OTHER
        fields.append(DebeziumField(name, kind))
    return Type("struct", fields=tuple(fields))
