"""What a message is about before its row is looked at: which table, or nothing of the kind.

Beside changes a connector writes heartbeats, the beginnings and ends of transactions, statements
that changed a schema, messages that somebody put into PostgreSQL's log, and tombstones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.changes import claim
from distributary.decode.debezium_frames import tombstones
from distributary.decode.debezium_schema import Type, avro_type, connect_type, unusable
from distributary.decode.json_infer_arrow import read_texts
from distributary.decode.json_text import RefusedTextError, parse
from distributary.model.schema import Format, WriterSchema

HEARTBEATS = "__debezium-heartbeat"
"""How the topics of heartbeats begin, unless a connector is told otherwise."""
_MAX_DEPTH = 100
_FEW = 32
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
# topics are `prefix.database.table` there, and a schema's name is between the two elsewhere
_WITHOUT_SCHEMAS = ("mysql", "mariadb", "mongodb", "vitess")


class Kind(StrEnum):
    """What a message is."""

    CHANGE = "change"
    HEARTBEAT = "heartbeat"
    TRANSACTION = "transaction"
    SCHEMA_CHANGE = "schema_change"
    MESSAGE = "message"
    TOMBSTONE = "tombstone"


KINDS = tuple(Kind)
_BY_NAME = {
    "Heartbeat": Kind.HEARTBEAT,
    "TransactionMetadataValue": Kind.TRANSACTION,
    "SchemaChangeValue": Kind.SCHEMA_CHANGE,
    "MessageValue": Kind.MESSAGE,
}


@dataclass(frozen=True, slots=True)
class Looked:
    """What some messages are."""

    kinds: npt.NDArray[np.int64]
    """Positions in KINDS."""
    claims: pa.StringArray
    """The table, as `changes.claim` has it; null for what is about none."""


def kind_of(topic: str, value: bytes | None) -> Kind:
    """What one message in JSON is, without the schema that it may carry."""
    looked = look(pa.array([topic]), pa.array([value], pa.binary()))
    return KINDS[int(looked.kinds[0])]


def look(topics: pa.StringArray, values: pa.BinaryArray, *, by_topic: bool = False) -> Looked:
    """What messages in JSON are, without the schemas that they may carry.

    With `by_topic`, what has no envelope is named after its topic, as a tombstone has to be. A text
    that is no JSON counts as a change: whoever decodes it will say what is wrong with it.
    """
    kinds: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    claims: list[pa.Array] = [pa.array([], pa.string())]
    waiting = [slice(0, len(values))] if len(values) else []
    while waiting:
        part = waiting.pop()
        some = values[part]
        read = read_texts(pc.fill_null(some, b"null"), _LOOKED_AT)
        if read is None and len(some) > _FEW:
            half = part.start + len(some) // 2
            waiting += [slice(half, part.stop), slice(part.start, half)]
            continue
        if read is None:
            read = pa.array([_peeked(each) for each in some.to_pylist()], _LOOKED_AT)
        found = _looked(topics[part], some, read, by_topic=by_topic)
        kinds.append(found.kinds)
        claims.append(found.claims)
    return Looked(np.concatenate(kinds), pa.concat_arrays(claims))


def _looked(
    topics: pa.StringArray, values: pa.BinaryArray, read: pa.StructArray, *, by_topic: bool
) -> Looked:
    operation, source, *flat = read.flatten()
    parts = source.flatten()
    kinds = _kinds(topics, values, operation, parts[0])
    codes = np.zeros(len(values), np.int64)
    for array in (topics, *parts, *flat):
        coded = array.dictionary_encode(null_encoding="encode")
        codes = codes * len(coded.dictionary) + coded.indices.to_numpy()
        # small again, however many different names there are
        codes = np.unique(codes, return_inverse=True)[1]
    _, rows = np.unique(codes, return_index=True)
    claims = [
        _claim(topics[row].as_py(), read[row].as_py(), by_topic=by_topic) for row in rows.tolist()
    ]
    about = np.isin(kinds, (KINDS.index(Kind.CHANGE), KINDS.index(Kind.TOMBSTONE)))
    return Looked(kinds, pa.array(claims, pa.string()).take(pa.array(codes, mask=~about)))


def _kinds(
    topics: pa.StringArray, values: pa.BinaryArray, operation: pa.Array, connector: pa.Array
) -> npt.NDArray[np.int64]:
    wrapped = _flags(connector.is_valid())
    kinds = np.full(len(values), KINDS.index(Kind.CHANGE), np.int64)
    kinds[wrapped & _flags(operation.is_null())] = KINDS.index(Kind.SCHEMA_CHANGE)
    kinds[wrapped & _flags(pc.equal(operation, "m"))] = KINDS.index(Kind.MESSAGE)
    if not wrapped.all():
        for pattern, kind in ((_BEAT, Kind.HEARTBEAT), (_TRANSACTION, Kind.TRANSACTION)):
            found = _flags(pc.match_substring_regex(values, pattern))
            kinds[found & ~wrapped] = KINDS.index(kind)
        # a connector's own history of schemas has no word about the connector
        for row in np.flatnonzero(_flags(pc.match_substring(values, _HISTORY)) & ~wrapped).tolist():
            if _is_history(values[row].as_py()):
                kinds[row] = KINDS.index(Kind.SCHEMA_CHANGE)
    kinds[_flags(pc.starts_with(topics, HEARTBEATS))] = KINDS.index(Kind.HEARTBEAT)
    kinds[tombstones(values, is_json=True)] = KINDS.index(Kind.TOMBSTONE)
    return kinds


def _is_history(value: bytes) -> bool:
    try:
        event = parse(value, max_depth=_MAX_DEPTH)
    except RefusedTextError:
        return False
    return isinstance(event, dict) and event.keys() >= {"source", "databaseName", "ddl"}


def _flags(array: pa.Array) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = array.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _peeked(value: bytes | None) -> dict[str, Any] | None:
    """The same as Arrow reads, of one message that it does not read."""
    try:
        event = parse(value or b"null", max_depth=_MAX_DEPTH)
    except RefusedTextError:
        return None
    if not isinstance(event, dict):
        return None
    source = event.get("source")
    told = _texts(source, _SOURCE) if isinstance(source, dict) else None
    # only what has no operation at all tells of something else than rows
    operation = {} if event.get("op") is None else {"op": ""}
    return {"source": told} | operation | _texts(event, ("op", *_FLAT))


def _texts(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    return {name: given[name] for name in names if isinstance(given.get(name), str)}


def _claim(topic: str, event: Mapping[str, Any] | None, *, by_topic: bool) -> str | None:
    told = event or {}
    source = told.get("source") or {}
    if source.get("connector"):
        return claim({**source, "database": source.get("db")})
    flat = {word: told.get(f"__source_{word}") or told.get(f"__{word}") for word in _SOURCE[1:]}
    if not by_topic and (flat["table"] or flat["collection"]):
        return claim({**flat, "database": flat["db"]})
    return topic_claim(topic)


def topic_claim(topic: str, connector: str = "") -> str | None:
    """The table that a topic is named after: `prefix.schema.table`, as most connectors do it."""
    *others, table = topic.split(".")
    around = others[1:]
    if connector in _WITHOUT_SCHEMAS:
        return claim({"database": around[-1] if around else "", "table": table})
    names = {"schema": around[-1] if around else "", "table": table}
    return claim(names | {"database": around[-2] if len(around) > 1 else ""})


def schema_kind(schema: WriterSchema) -> Kind:
    """What messages of a schema are; DecodeError if it is no schema of Connect's or Avro's."""
    name = type_of(schema).name.rpartition(".")
    return _BY_NAME.get(name[2], Kind.CHANGE) if name[0].startswith("io.debezium") else Kind.CHANGE


def schema_claim(schema: WriterSchema, topic: str) -> str | None:
    """The table of changes whose messages nobody can look into without their schema."""
    source = type_of(schema).member("source")
    connector = source.name.split(".")[-2] if source and source.name.count(".") else ""
    return topic_claim(topic, connector)


def type_of(schema: WriterSchema) -> Type:
    """The tree of a schema: Avro, or the text that JSON carries."""
    if schema.format is Format.AVRO:
        return avro_type(schema.body)[0]
    try:
        return connect_type(json.loads(schema.body))
    except (ValueError, RecursionError) as error:
        raise unusable(type(error).__name__) from error


def connect_schema(text: bytes, *, id: int) -> WriterSchema:
    """The schema that messages carry as one to decode them with."""
    schema = WriterSchema(id, Format.JSON, text, "event")
    type_of(schema)
    return schema


def connect_guid(text: bytes) -> bytes:
    """16 bytes that stand for the schema that messages carry."""
    return hashlib.sha256(text).digest()[:16]
