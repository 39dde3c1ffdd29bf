"""The schemas of Kafka Connect for the values of an event, in JSON or within Avro.

Both are read into the same tree. Avro's is also copied, without the logical types that refuse a
value: what the lake cannot hold is kept beside the row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import Mask, Positions, nulls, truths
from distributary.errors import DecodeError, InvalidSchemaError
from distributary.registry.compile import avro_schema as avro
from distributary.registry.compile.avro_schema import parse_avro

MAX_LEVELS = 50
"""Of types inside types."""
DECIMAL = "org.apache.kafka.connect.data.Decimal"
PRECISION = "connect.decimal.precision"

_CONNECT = {"int8": "int32", "int16": "int32", "float": "float32", "double": "float64"} | {
    kind: kind for kind in ("boolean", "int32", "int64", "float32", "float64", "string", "bytes")
}
_AVRO = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "bytes": "bytes",
}
# the logical types that a converter omits if it is set to write plain Avro types
_LOGICAL = {
    "date": "org.apache.kafka.connect.data.Date",
    "time-millis": "org.apache.kafka.connect.data.Time",
    "time-micros": "io.debezium.time.MicroTime",
    "timestamp-millis": "org.apache.kafka.connect.data.Timestamp",
    "timestamp-micros": "io.debezium.time.MicroTimestamp",
    "local-timestamp-millis": "io.debezium.time.Timestamp",
    "local-timestamp-micros": "io.debezium.time.MicroTimestamp",
    "local-timestamp-nanos": "io.debezium.time.NanoTimestamp",
    "timestamp-nanos": "io.debezium.time.NanoTimestamp",
    "decimal": DECIMAL,
}
_UNLOGICAL = ("logicalType", "precision", "scale", "connect.name", "connect.parameters")


@dataclass(frozen=True, slots=True)
class Type:
    """A value's type."""

    kind: str
    """`boolean`, `int32`, `int64`, `float32`, `float64`, `string`, `bytes`, `array`, `map`,
    `struct`; `other` for what stays as it is decoded, `void` for what is only ever null."""
    name: str = ""
    """The logical type: `io.debezium.time.Date`."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    fields: tuple[DebeziumField, ...] = ()
    item: Type | None = None
    """Of arrays, and of maps with texts for keys."""

    def member(self, name: str) -> Type | None:
        """Return the type of the field with a name; None if there is no such field."""
        return next((each.type for each in self.fields if each.name == name), None)


@dataclass(frozen=True, slots=True)
class DebeziumField:
    """A field of a struct."""

    name: str
    type: Type


OTHER = Type("other")


def connect_type(given: Any, level: int = 0) -> Type:
    """Return the tree of a schema in Connect's own JSON. Raises DecodeError."""
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(kind, str) or level > MAX_LEVELS:
        raise unusable("it is not a schema of Kafka Connect, or nests too deep")
    name, parameters = _text(given.get("name")), _texts(given.get("parameters"))
    match kind:
        case "struct":
            members = given.get("fields")
            fields = tuple(
                DebeziumField(_text(each.get("field")), connect_type(each, level + 1))
                for each in (members if isinstance(members, list) else ())
                if isinstance(each, dict)
            )
            return Type("struct", name, parameters, fields=fields)
        case "array":
            return Type("array", name, parameters, item=connect_type(given.get("items"), level + 1))
        case "map":
            if connect_type(given.get("keys"), level + 1).kind != "string":
                return OTHER
            item = connect_type(given.get("values"), level + 1)
            return Type("map", name, parameters, item=item)
    return Type(_CONNECT[kind], name, parameters) if kind in _CONNECT else OTHER


def avro_type(body: bytes) -> tuple[Type, bytes]:
    """Return the tree of a compiled Avro schema, and the schema without its logical types."""
    try:
        schema = parse_avro(body.decode())
        found = _avro_type(schema, schema.top, 0) or OTHER
        return found, json.dumps(_bare(json.loads(body)), separators=(",", ":")).encode()
    except (InvalidSchemaError, ValueError, RecursionError) as error:
        raise unusable(type(error).__name__) from error


def _avro_type(schema: avro.Schema, given: avro.Type, level: int) -> Type | None:
    """Return the tree of an Avro type; None if it is always null, and has no column."""
    if level > MAX_LEVELS:
        return OTHER
    match schema.resolve(given):
        case avro.Union(branches):
            real = [each for each in branches if each != avro.Primitive("null")]
            if len(real) > 1:
                return OTHER
            return _avro_type(schema, real[0], level) if real else None
        case avro.AvroRecord(name=name, fields=fields):
            types = [_avro_type(schema, each.type, level + 1) for each in fields]
            made = [
                DebeziumField(f.name, t)
                for f, t in zip(fields, types, strict=True)
                if t is not None
            ]
            return Type("struct", name, fields=tuple(made))
        case avro.Array(items):
            return Type("array", item=_avro_type(schema, items, level + 1))
        case avro.Map(values):
            return Type("map", item=_avro_type(schema, values, level + 1))
        case avro.Enum():
            return Type("string")
        case avro.Primitive() as primitive:
            return None if primitive.name == "null" else _primitive(primitive)
    return OTHER


def _primitive(given: avro.Primitive) -> Type:
    kind, connect, logical = _AVRO[given.name], given.connect, given.logical
    if connect is not None:
        return Type(kind, connect.name, dict(connect.parameters))
    if logical is None:
        return Type(kind)
    digits = {"scale": str(logical.scale), PRECISION: str(logical.precision)}
    is_decimal = logical.name == "decimal"
    return Type(kind, _LOGICAL.get(logical.name, ""), digits if is_decimal else {})


def _bare(given: Any) -> Any:
    if isinstance(given, list):
        return [_bare(each) for each in given]
    if not isinstance(given, dict):
        return given
    fixed = given.get("type") == "fixed"
    kept = {k: v for k, v in given.items() if fixed or k not in _UNLOGICAL}
    for part in ("type", "items", "values"):
        if part in kept:
            kept[part] = _bare(kept[part])
    if isinstance(kept.get("fields"), list):
        # a default is spelled for the field's original type
        fields = [{k: v for k, v in each.items() if k != "default"} for each in kept["fields"]]
        kept["fields"] = list(map(_bare, fields))
    return kept


def _text(given: Any) -> str:
    return given if isinstance(given, str) else ""


def _texts(given: Any) -> dict[str, str]:
    items = given.items() if isinstance(given, dict) else ()
    return {str(key): value for key, value in items if isinstance(value, str)}


def unusable(evidence: str) -> DecodeError:
    """Build the error for a schema from which no decoder can be made."""
    return DecodeError(
        "the schema is not one of Debezium's events",
        where="schema of change events",
        evidence=evidence,
        next_step="look at the messages of the topic, and at the connector's converters",
    )


# The parts of an event, row and envelope, for events with an envelope and for flattened ones.
#
# With an envelope the row is `after`, or `before` of a delete. Flattened, it is the event itself,
# without the fields that begin with `__` and are named like a field of an envelope.

OPERATIONS = ("c", "u", "d", "r", "t", "m")
CREATE, UPDATE, DELETE, READ, TRUNCATE, MESSAGE = range(6)
UNKNOWN = -1

_PREFIX = "__"
_ENVELOPE_FIELDS = frozenset(
    (
        *("op", "deleted", "ts_ms", "ts_us", "ts_ns", "version", "connector", "name", "snapshot"),
        *("db", "schema", "table", "collection", "sequence", "txId", "lsn", "xmin", "server_id"),
        *("gtid", "file", "pos", "row", "thread", "query", "change_lsn", "commit_lsn", "scn"),
        *("event_serial_no", "commit_scn", "rs_id", "ssn", "redo_thread", "user_name", "ord"),
    )
)
_ENVELOPE_PREFIXES = ("source_", "transaction_")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of some events; every array has one element per event."""

    codes: Positions
    """Numbers of OPERATIONS, or UNKNOWN."""
    row: tuple[pa.Array, ...]
    """The columns of the source's table, as they were decoded."""
    absent: Mask
    """A mask of the events that lack the row which they should have."""
    source: Mapping[str, pa.Array]
    """The fields about the place of the change: `lsn`, `table` and so on."""
    rest: tuple[tuple[str, pa.Array], ...]
    """Everything beside the row, for the envelope."""
    ordered: bool
    """Whether deletes have positions too, so that positions can be compared."""

    def only(self, kept: Mask) -> Parts:
        """Return the parts selected by `kept`."""
        mask = pa.array(kept)
        return Parts(
            self.codes[kept],
            tuple(array.filter(mask) for array in self.row),
            self.absent[kept],
            {name: array.filter(mask) for name, array in self.source.items()},
            tuple((name, array.filter(mask)) for name, array in self.rest),
            self.ordered,
        )


class EventShape:
    """The parts of events of one schema."""

    def __init__(self, type_: Type, raw: Sequence[pa.DataType]) -> None:
        self._names = [field.name for field in type_.fields]
        self._place = {name: index for index, name in enumerate(self._names)}
        self.flat = not is_envelope(type_)
        if self.flat:
            self._row = [i for i, f in enumerate(type_.fields) if not is_of_envelope(f.name)]
            self.row: tuple[DebeziumField, ...] = tuple(type_.fields[i] for i in self._row)
            self.raw = tuple(raw[i] for i in self._row)
            if not self.row:
                raise unusable("a row of it would have no columns")
        else:
            image = self._image(type_, raw)
            self.row = type_.fields[image].type.fields
            self.raw = tuple(raw[image].field(i).type for i in range(len(self.row)))

    def _image(self, type_: Type, raw: Sequence[pa.DataType]) -> int:
        """Return the position of the row; both images have one type."""
        found = [self._place[name] for name in ("after", "before") if name in self._place]
        # if only truncates were seen, no column is known
        void = all(type_.fields[i].type.kind == "void" for i in found)
        same = {raw[i] for i in found}
        if not void and (len(same) != 1 or not pa.types.is_struct(raw[found[0]])):
            raise unusable("the images of the row are not alike, or have too many columns")
        return found[0]

    @property
    def tombstones_delete(self) -> bool:
        """Return whether only a message without a value marks a deleted row."""
        return self.flat and f"{_PREFIX}deleted" not in self._place

    def apart(self, batch: pa.RecordBatch) -> Parts:
        """Take decoded events apart."""
        return self._flattened(batch) if self.flat else self._enveloped(batch)

    def _enveloped(self, batch: pa.RecordBatch) -> Parts:
        columns = dict(zip(self._names, batch.columns, strict=True))
        codes = _codes(columns["op"])
        deletes = codes == DELETE
        before = columns.get("before")
        row = columns["after"] if "after" in columns else columns["before"]
        if deletes.any() and before is not None and row is not before:
            both = pa.concat_arrays([row, before])
            chosen = np.arange(len(codes)) + np.where(deletes, len(codes), 0)
            row = both.take(pa.array(chosen))
        absent = nulls(row) & ~np.isin(codes, (TRUNCATE, MESSAGE))
        rest = [(name, a) for name, a in columns.items() if name not in ("before", "after", "op")]
        if before is not None:
            # an update's `before` is kept beside the row; a delete's `before` is the row itself
            places = pa.array(np.arange(len(codes)), mask=deletes)
            rest.append(("before", before.take(places) if deletes.any() else before))
        columns_of_row = tuple(row.flatten()) if self.row else ()
        source = _members(columns["source"])
        return Parts(codes, columns_of_row, absent, source, tuple(rest), True)

    def _flattened(self, batch: pa.RecordBatch) -> Parts:
        columns = dict(zip(self._names, batch.columns, strict=True))
        envelope = {name: array for name, array in columns.items() if is_of_envelope(name)}
        gone = _truths(envelope.get(f"{_PREFIX}deleted"), batch.num_rows)
        operations = envelope.get(f"{_PREFIX}op")
        # without an operation, an event counts as an update
        codes = np.full(batch.num_rows, UPDATE) if operations is None else _codes(operations)
        codes = np.where(gone, DELETE, codes)
        # fields about the source take precedence over those about the connector
        bare = {n.removeprefix(_PREFIX): a for n, a in envelope.items()}
        short = bare | {n.removeprefix("source_"): a for n, a in bare.items() if "source_" in n}
        return Parts(
            codes,
            tuple(batch.column(index) for index in self._row),
            np.zeros(batch.num_rows, np.bool_),
            short,
            tuple(envelope.items()),
            not self.tombstones_delete,
        )


def is_envelope(type_: Type) -> bool:
    """Return whether events of a type have an envelope around the row."""
    source = type_.member("source")
    if source is None or type_.member("op") is None:
        return False
    images = type_.member("after") or type_.member("before")
    return images is not None and source.member("connector") is not None


def is_of_envelope(name: str) -> bool:
    """Return whether a field of a flattened event comes from its envelope."""
    if not name.startswith(_PREFIX):
        return False
    word = name.removeprefix(_PREFIX)
    return word in _ENVELOPE_FIELDS or word.startswith(_ENVELOPE_PREFIXES)


def _codes(operations: pa.Array) -> Positions:
    if not pa.types.is_string(operations.type):
        return np.full(len(operations), UNKNOWN)
    found = pc.index_in(operations, value_set=pa.array(OPERATIONS, pa.string()))
    codes: Positions = found.fill_null(UNKNOWN).to_numpy().astype(np.int64)
    return codes


def _truths(array: pa.Array | None, count: int) -> Mask:
    if array is None:
        return np.zeros(count, np.bool_)
    return truths(pc.equal(pc.utf8_lower(array.cast(pa.string())), "true"))


def _members(source: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip((f.name for f in source.type), source.flatten(), strict=True))
