"""The kind and the table of a message, determined before its row is decoded.

Beside changes a connector writes heartbeats, the beginnings and ends of transactions, statements
that changed a schema, messages that programs wrote into PostgreSQL's log, and tombstones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.avro.decoder import AvroDecoder
from distributary.decode.base import (
    DecodeLimits,
    Gathered,
    Mask,
    Positions,
    RefusedError,
    by_halves,
    coded,
    combined,
    nulls,
    origins,
    truths,
    where,
)
from distributary.decode.change.base import Keys, claim, with_values_at
from distributary.decode.change.connect_frames import NONE, split_connect
from distributary.decode.change.debezium.connect_schema import (
    DELETE,
    MESSAGE,
    TRUNCATE,
    UNKNOWN,
    Parts,
    Type,
    avro_type,
    connect_type,
    unusable,
)
from distributary.decode.json.columns import read_texts
from distributary.decode.json.json_text import parse
from distributary.errors import DecodeError, ErrorCode
from distributary.model.change import HEARTBEATS
from distributary.model.record import Format, WriterSchema
from distributary.registry.frames import payloads, split


def tombstones(payloads: pa.BinaryArray, *, is_json: bool) -> Mask:
    """Return which messages have no value: with a schema, Connect writes `null`."""
    lengths = pc.fill_null(pc.binary_length(payloads), 0)
    silent = truths(pc.equal(lengths, 0))
    if is_json and pc.any(pc.equal(lengths, len(_NULL)), min_count=0).as_py():
        silent = silent | truths(pc.equal(payloads, _NULL))
    return silent


_NULL = b"null"
_MAX_DEPTH = 100
_SOURCE = ("connector", "db", "schema", "table", "collection")
_FLAT = tuple(f"__{prefix}{word}" for prefix in ("source_", "") for word in _SOURCE[1:])
_LOOKED_AT = pa.struct(
    [
        ("op", pa.string()),
        ("source", pa.struct([(word, pa.string()) for word in _SOURCE])),
        *((name, pa.string()) for name in _FLAT),
    ]
)
_BEAT = r'^\s*\{\s*"ts_ms"\s*:\s*\d+\s*\}\s*$'
_TRANSACTION = (
    r'^\s*\{\s*"status"\s*:\s*"(?:BEGIN|END)"\s*,\s*"id"\s*:\s*"[^"]*"\s*,\s*"event_count"'
)
_HISTORY = b'"databaseName"'
# these connectors have topics `prefix.database.table`; others add the schema's name
_WITHOUT_SCHEMAS = ("mysql", "mariadb", "mongodb", "vitess")


class MessageKind(StrEnum):
    """The kinds of messages."""

    CHANGE = "change"
    HEARTBEAT = "heartbeat"
    TRANSACTION = "transaction"
    SCHEMA_CHANGE = "schema_change"
    MESSAGE = "message"
    TOMBSTONE = "tombstone"


KINDS = tuple(MessageKind)
_BY_NAME = {
    "Heartbeat": MessageKind.HEARTBEAT,
    "TransactionMetadataValue": MessageKind.TRANSACTION,
    "SchemaChangeValue": MessageKind.SCHEMA_CHANGE,
    "MessageValue": MessageKind.MESSAGE,
}


@dataclass(frozen=True, slots=True)
class Looked:
    """What some messages are."""

    kinds: Positions
    """Positions in KINDS."""
    claims: pa.StringArray
    """The claim of the table; null for a message about no table."""


def look(topics: pa.StringArray, values: pa.BinaryArray, *, by_topic: bool = False) -> Looked:
    """Return the kinds of JSON messages, without the schemas that they may contain.

    With `by_topic`, messages without an envelope are named after their topic, as tombstones must
    be. Text that is not JSON counts as a change: the decoder reports the error.
    """
    found = [Looked(np.zeros(0, np.int64), pa.array([], pa.string()))]
    quick = partial(read_texts, type_=_LOOKED_AT)
    for part, read in by_halves(pc.fill_null(values, b"null"), quick):
        some = values[part]
        if read is None:
            read = pa.array([_peeked(each) for each in some.to_pylist()], _LOOKED_AT)
        found.append(_looked(topics[part], some, read, by_topic=by_topic))
    claims = pa.concat_arrays([each.claims for each in found])
    return Looked(np.concatenate([each.kinds for each in found]), claims)


def _looked(
    topics: pa.StringArray, values: pa.BinaryArray, read: pa.StructArray, *, by_topic: bool
) -> Looked:
    operation, source, *flat = read.flatten()
    parts = source.flatten()
    kinds = _kinds(topics, values, operation, parts[0])
    codes, rows = combined(map(coded, (topics, *parts, *flat)), len(values))
    claims = [_claim(topics[row].as_py(), read[row].as_py(), by_topic=by_topic) for row in rows]
    about = np.isin(kinds, (KINDS.index(MessageKind.CHANGE), KINDS.index(MessageKind.TOMBSTONE)))
    return Looked(kinds, pa.array(claims, pa.string()).take(pa.array(codes, mask=~about)))


def _kinds(
    topics: pa.StringArray, values: pa.BinaryArray, operation: pa.Array, connector: pa.Array
) -> Positions:
    bare = nulls(connector)
    kinds = np.full(len(values), KINDS.index(MessageKind.CHANGE), np.int64)
    kinds[~bare & nulls(operation)] = KINDS.index(MessageKind.SCHEMA_CHANGE)
    kinds[~bare & truths(pc.equal(operation, "m"))] = KINDS.index(MessageKind.MESSAGE)
    if bare.any():
        for pattern, kind in (
            (_BEAT, MessageKind.HEARTBEAT),
            (_TRANSACTION, MessageKind.TRANSACTION),
        ):
            kinds[bare & truths(pc.match_substring_regex(values, pattern))] = KINDS.index(kind)
        # a connector's own schema history does not name the connector
        for row in where(bare & truths(pc.match_substring(values, _HISTORY))):
            if _is_history(values[row].as_py()):
                kinds[row] = KINDS.index(MessageKind.SCHEMA_CHANGE)
    kinds[truths(pc.starts_with(topics, HEARTBEATS))] = KINDS.index(MessageKind.HEARTBEAT)
    kinds[tombstones(values, is_json=True)] = KINDS.index(MessageKind.TOMBSTONE)
    return kinds


def _is_history(value: bytes) -> bool:
    try:
        event = parse(value, max_depth=_MAX_DEPTH)
    except RefusedError:
        return False
    return isinstance(event, dict) and event.keys() >= {"source", "databaseName", "ddl"}


def _peeked(value: bytes | None) -> dict[str, Any] | None:
    """Read one message in the way of Arrow's result, if Arrow cannot read it."""
    try:
        event = parse(value or b"null", max_depth=_MAX_DEPTH)
    except RefusedError:
        return None
    if not isinstance(event, dict):
        return None
    source = event.get("source")
    texts = _texts(source, _SOURCE) if isinstance(source, dict) else None
    # only a message without any operation is no change of rows
    operation = {} if event.get("op") is None else {"op": ""}
    return {"source": texts} | operation | _texts(event, ("op", *_FLAT))


def _texts(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    return {name: given[name] for name in names if isinstance(given.get(name), str)}


def _claim(topic: str, event: Mapping[str, Any] | None, *, by_topic: bool) -> str | None:
    fields = event or {}
    source = fields.get("source") or {}
    if source.get("connector"):
        return claim({**source, "database": source.get("db")})
    flat = {word: fields.get(f"__source_{word}") or fields.get(f"__{word}") for word in _SOURCE[1:]}
    if not by_topic and (flat["table"] or flat["collection"]):
        return claim({**flat, "database": flat["db"]})
    return topic_claim(topic)


def topic_claim(topic: str, connector: str = "") -> str | None:
    """Return the table that a topic's name states: `prefix.schema.table` for most connectors."""
    *others, table = topic.split(".")
    around = others[1:]
    if connector in _WITHOUT_SCHEMAS:
        return claim({"database": around[-1] if around else "", "table": table})
    names = {"schema": around[-1] if around else "", "table": table}
    return claim(names | {"database": around[-2] if len(around) > 1 else ""})


def schema_kind(schema: WriterSchema) -> MessageKind:
    """Return the kind of a schema's messages.

    DecodeError if it is not a schema of Connect or Avro.
    """
    name = type_of(schema).name.rpartition(".")
    return (
        _BY_NAME.get(name[2], MessageKind.CHANGE)
        if name[0].startswith("io.debezium")
        else MessageKind.CHANGE
    )


def schema_claim(schema: WriterSchema, topic: str) -> str | None:
    """Return the table of changes whose messages cannot be read without their schema."""
    source = type_of(schema).member("source")
    connector = source.name.split(".")[-2] if source and source.name.count(".") else ""
    return topic_claim(topic, connector)


def type_of(schema: WriterSchema) -> Type:
    """Return the tree of a schema in Avro, or of the text that JSON carries."""
    if schema.format is Format.AVRO:
        return avro_type(schema.body)[0]
    try:
        return connect_type(json.loads(schema.body))
    except (ValueError, RecursionError) as error:
        raise unusable(type(error).__name__) from error


# The key of a message is JSON, with a schema or without, or Avro in the registry's frame.

Names = tuple[str, ...]
_MANY_KEYS = 16
"""Different keys, from which on each is read by itself."""
_VALUE = r'(?:"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null)'


class KeyReader:
    """Reads the keys of the messages of one table: the columns in the source."""

    def __init__(self, schema: WriterSchema | None, limits: DecodeLimits) -> None:
        self._names: Names | None = None
        self._decoder: AvroDecoder | None = None
        if schema is not None and schema.format is Format.AVRO:
            type_, body = avro_type(schema.body)
            self._names = tuple(field.name for field in type_.fields)
            self._decoder = AvroDecoder(body, schema.message, limits)

    def read(self, keys: pa.BinaryArray) -> Keys:
        """Return the columns of each key."""
        if self._names is not None or keys.null_count == len(keys):
            return Keys(nulls(keys).astype(np.int64), (self._names or (), ()))
        frames = split_connect(keys)
        by_schema = [_names_in(text) for text in frames.schemas]
        if (frames.codes != NONE).all():
            return Keys(frames.codes, tuple(by_schema))
        bare = np.flatnonzero(frames.codes == NONE)
        some = _grouped(frames.payloads.take(pa.array(bare)))
        codes = frames.codes.copy()
        codes[bare] = some.codes + len(by_schema)
        return Keys(codes, (*by_schema, *some.names))

    def values(self, keys: pa.BinaryArray) -> list[dict[str, Any] | None]:
        """Return the values of keys by column, in the events' own form."""
        if self._decoder is None or self._names is None:
            return [_object(key) for key in split_connect(keys).payloads.to_pylist()]
        found: list[dict[str, Any] | None] = [None] * len(keys)
        there = np.flatnonzero(~nulls(keys))
        some = keys.take(pa.array(there))
        bodies = payloads(some, split(some, None, protobuf=False).payload_start)
        decoded = self._decoder.decode(bodies)
        rows = origins(decoded, there).tolist()
        for row, each in zip(rows, decoded.ok.to_pylist(), strict=True):
            found[row] = dict(zip(self._names, each.values(), strict=True))
        return found


def _grouped(keys: pa.BinaryArray) -> Keys:
    """Group JSON keys by their names; parse one of each group and match the others."""
    codes = np.zeros(len(keys), np.int64)
    found: dict[Names | None, int] = {(): 0}
    left = np.flatnonzero(~nulls(keys))
    while len(left) and len(found) <= _MANY_KEYS:
        names = _names_of(keys[int(left[0])].as_py())
        if not names:
            break
        same = pc.match_substring_regex(keys.take(pa.array(left)), _pattern(names))
        alike = truths(same).copy()
        alike[0] = True
        codes[left[alike]] = found.setdefault(names, len(found))
        left = left[~alike]
    for row in left.tolist():
        codes[row] = found.setdefault(_names_of(keys[row].as_py()), len(found))
    return Keys(codes, tuple(found))


def _pattern(names: Names) -> str:
    """Return a pattern for objects with these names and simple values, as Connect writes them."""
    quoted = (re.escape(json.dumps(name, ensure_ascii=False)) for name in names)
    return f"^{{{','.join(f'{each}:{_VALUE}' for each in quoted)}}}$"


def _names_in(schema: bytes) -> Names | None:
    given = json.loads(schema)
    if given is None:
        return ()
    try:
        type_ = connect_type(given)
    except DecodeError:
        return None
    return tuple(field.name for field in type_.fields) if type_.kind == "struct" else None


def _names_of(key: bytes) -> Names | None:
    content = _object(key)
    return None if content is None else tuple(content)


def _object(key: bytes | None) -> dict[str, Any] | None:
    try:
        content = json.loads(key or b"null")
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def fill(column: pa.Array, rows: Sequence[int], values: Sequence[Any]) -> pa.Array | None:
    """Return a column with some values in it; None if it cannot hold them."""
    try:
        some = pa.array(values, column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return with_values_at(column, rows, some)


# Events with the messages that they came in, and which of them can be rows.


@dataclass(frozen=True, slots=True)
class DebeziumEvents:
    """Decoded events of one array."""

    parts: Parts
    positions: Positions
    """The positions of the messages among the payloads."""
    payloads: pa.BinaryArray
    """All of the array."""
    raw: pa.Table
    """Their messages, all of them."""

    def __len__(self) -> int:
        return len(self.positions)

    def message(self, column: str) -> pa.Array:
        """Return a column of the messages, one value for each event."""
        chunks = self.raw.column(column).chunks
        return self.own(chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks))

    def own(self, array: pa.Array) -> pa.Array:
        """Return the elements of a per-payload array that belong to the events."""
        # positions are distinct, so an equal number means all elements
        whole = len(self.positions) == len(array)
        return array if whole else array.take(pa.array(self.positions))

    def only(self, kept: Mask) -> DebeziumEvents:
        """Return the events selected by `kept`."""
        if kept.all():
            return self
        return replace(self, parts=self.parts.only(kept), positions=self.positions[kept])

    def fail(self, bad: Mask, code: ErrorCode, reason: str, gathered: Gathered) -> None:
        """Note payloads that cannot be rows."""
        for position in self.positions[bad].tolist():
            gathered.fail(position, code, reason)


def sound(events: DebeziumEvents, schema: pa.Schema, gathered: Gathered) -> DebeziumEvents:
    """Return the events that have a row; the others have failed, or have none."""
    codes = events.parts.codes
    unknown, silent = codes == UNKNOWN, codes == MESSAGE
    empty = events.parts.absent & (codes != DELETE) & ~unknown & ~silent
    events.fail(unknown, ErrorCode.NOT_AN_ENVELOPE, "it does not say what happened", gathered)
    events.fail(empty, ErrorCode.NO_PAYLOAD, "it has no row", gathered)
    if silent.any():
        say_nothing(int(np.count_nonzero(silent)), schema, gathered)
    return events.only(~(unknown | silent | empty))


def say_nothing(count: int, schema: pa.Schema, gathered: Gathered) -> None:
    """Note payloads that are valid and have no rows."""
    none = pa.RecordBatch.from_pylist([], schema=schema)
    gathered.add(none, np.array([], np.int64), empty=count)


def keyed(
    events: DebeziumEvents, reader: KeyReader, columns: Mapping[str, str], gathered: Gathered
) -> tuple[DebeziumEvents, Keys]:
    """Return the events whose key is among their columns, and the key with the log's names."""
    keys = reader.read(events.message("key"))
    # a truncate has no key
    codes = np.where(events.parts.codes == TRUNCATE, len(keys.names), keys.codes)
    keys = Keys(codes, (*keys.names, ()))
    unreadable = keys.where(lambda names: names is None)
    foreign = keys.where(lambda names: not columns.keys() >= {*(names or ())})
    code = ErrorCode.KEY_NOT_IN_PAYLOAD
    events.fail(unreadable, code, "the key of its message names no columns", gathered)
    events.fail(foreign, code, "a column of its key is not in its row", gathered)
    kept = ~(unreadable | foreign)
    in_log = (tuple(columns[n] for n in names or () if n in columns) for names in keys.names)
    return events.only(kept), Keys(codes[kept], tuple(in_log))


def with_keys_for_rows(
    events: DebeziumEvents, keys: Keys, reader: KeyReader, names: Sequence[str], gathered: Gathered
) -> tuple[DebeziumEvents, Keys]:
    """Deletes without an image of the row have what the key of their message holds."""
    missing = np.flatnonzero(events.parts.absent & (events.parts.codes == DELETE))
    if not len(missing):
        return events, keys
    held = reader.values(events.message("key").take(pa.array(missing)))
    row, bad = list(events.parts.row), np.zeros(len(events), np.bool_)
    bad[[int(at) for at, each in zip(missing, held, strict=True) if not each]] = True
    for index, name in enumerate(names):
        filled = [
            (int(at), e[name]) for at, e in zip(missing, held, strict=True) if e and name in e
        ]
        if filled:
            row[index] = _filled(row[index], filled, bad)
    events = replace(events, parts=replace(events.parts, row=tuple(row)))
    reason = "it has neither a row nor a key that could be one"
    events.fail(bad, ErrorCode.NO_PAYLOAD, reason, gathered)
    return events.only(~bad), Keys(keys.codes[~bad], keys.names)


def _filled(column: pa.Array, filled_known: Sequence[tuple[int, Any]], bad: Mask) -> pa.Array:
    rows = [at for at, _ in filled_known]
    filled = fill(column, rows, [value for _, value in filled_known])
    if filled is None:
        bad[rows] = True
    return column if filled is None else filled
