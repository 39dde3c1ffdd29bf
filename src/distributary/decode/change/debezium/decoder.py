"""Events of Debezium, in JSON or Avro, with an envelope or flattened, as rows of a log table.

A delete has the image of the row before it, of which only the key is known for sure. A truncate is
a row of nulls. A message about no row, such as a tombstone behind a delete, gives no row.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode.avro.decoder import AvroDecoder
from distributary.decode.base import DecodeLimits, Gathered, Mask, Positions, truths
from distributary.decode.change.base import Keys, column_names, content_hashes
from distributary.decode.change.connect_frames import HEAD, NECK, without_schema
from distributary.decode.change.debezium.connect_json import ConnectJson, InferredJson
from distributary.decode.change.debezium.connect_schema import (
    DELETE,
    READ,
    TRUNCATE,
    EventShape,
    Parts,
    avro_type,
    connect_type,
    unusable,
)
from distributary.decode.change.debezium.connect_types import (
    NEW_KEY,
    OLD_KEY,
    ValuePlan,
    contents,
    envelopes,
    halves,
    headers_of,
    plan,
    source_times,
)
from distributary.decode.change.debezium.log_position import debezium_places
from distributary.decode.change.debezium.message_kinds import (
    DebeziumEvents,
    KeyReader,
    fill,
    keyed,
    say_nothing,
    sound,
    tombstones,
    with_keys_for_rows,
)
from distributary.decode.change.order.place import Place, sequence, ties
from distributary.errors import ErrorCode
from distributary.evolve.types import compact
from distributary.evolve.unified import rest_as_json
from distributary.model.change import CHANGE_COLUMNS, ChangeSettings
from distributary.model.deadletter import Decoded
from distributary.model.names import printable
from distributary.model.record import Format, WriterSchema
from distributary.model.table import Column, Origin

# Events in Avro: read by the decoder of Avro payloads, without Avro's own logical types.


class ConnectAvro:
    """Decodes payloads of one schema."""

    def __init__(self, body: bytes, message: str, limits: DecodeLimits) -> None:
        self.type, bare = avro_type(body)
        self._inner = AvroDecoder(bare, message, limits)
        if len(self._inner.columns) != len(self.type.fields):
            raise unusable("it is no record, or nests too deep")
        self.raw = tuple(column.type for column in self._inner.columns)
        self.expansion = self._inner.expansion
        self.decode = self._inner.decode


# Which columns an event says nothing about: `_unchanged` of model/change.py.

_NAMES = pa.list_(pa.string())


def left_out(
    names: Sequence[str],
    masks: Sequence[Mask | None],
    *,
    deletes: Mask,
    keys: Keys,
) -> pa.Array:
    """Names of columns by row; null for most.

    The masks tell for each column the rows in which its value was not sent; of deletes nothing but
    the key is known for sure.
    """
    count = len(deletes)
    some = [(name, mask) for name, mask in zip(names, masks, strict=True) if mask is not None]
    if not some and not deletes.any():
        return pa.nulls(count, _NAMES)
    lists: list[list[str] | None] = [None]
    codes = np.zeros(count, np.int64)
    if some:
        matrix = np.stack([mask for _, mask in some], axis=1)
        kinds, inverse = np.unique(matrix, axis=0, return_inverse=True)
        lists = [[some[i][0] for i in np.flatnonzero(each)] or None for each in kinds]
        codes = inverse.reshape(-1).astype(np.int64)
    for code, columns in enumerate(keys.names):
        rows = deletes & (keys.codes == code)
        if columns and rows.any():
            codes[rows] = len(lists)
            lists.append([name for name in names if name not in columns] or None)
    return pa.array(lists, _NAMES).take(pa.array(codes))


# Values that PostgreSQL did not send, because they are large and were not changed: Debezium writes
# a text in their place, or what comes nearest to it where a column holds no texts.

PLACEHOLDER = "__debezium_unavailable_value"
_BYTES = PLACEHOLDER.encode()
_BASE64 = base64.b64encode(_BYTES).decode()
# Java derives a UUID from these bytes
_UUID = str(uuid.UUID(bytes=hashlib.md5(_BYTES, usedforsecurity=False).digest(), version=3))
_TEXTS = pa.array(
    [
        PLACEHOLDER,
        _BASE64,
        # the placeholder in lists and maps that are kept as JSON
        json.dumps([PLACEHOLDER]),
        json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":")),
        json.dumps({PLACEHOLDER: PLACEHOLDER}),
        json.dumps([_UUID]),
    ],
    pa.string(),
)
_ITEMS = {
    pa.string(): pa.array([PLACEHOLDER, _BASE64, _UUID], pa.string()),
    pa.binary(): pa.array([_BYTES], pa.binary()),
}


def unchanged(array: pa.Array) -> Mask | None:
    """Return the mask of placeholders for values that were not sent; None if there are none."""
    type_, rows = array.type, np.arange(len(array))
    if array.null_count == len(array):
        return None
    if kinds.is_string(type_):
        flags = truths(pc.is_in(array, _TEXTS))
    elif kinds.is_binary(type_):
        flags = truths(pc.equal(array, pa.scalar(_BYTES, pa.binary())))
    elif kinds.is_map(type_):
        maps = compact(array)
        # a null map has no entries
        rows = np.flatnonzero(np.diff(maps.offsets.to_numpy()) == 1)
        keys = maps.keys.take(maps.offsets.take(pa.array(rows)))
        flags = truths(pc.equal(keys, PLACEHOLDER))
    elif kinds.is_list(type_) and kinds.is_integer(type_.value_type):
        rows, items = _of_length(array, len(_BYTES))
        numbers = items.cast(pa.int64()).fill_null(-1).to_numpy().reshape(-1, len(_BYTES))
        flags = (numbers == np.frombuffer(_BYTES, np.uint8)).all(axis=1)
    elif kinds.is_list(type_) and type_.value_type in _ITEMS:
        rows, items = _of_length(array, 1)
        flags = truths(pc.is_in(items, _ITEMS[type_.value_type]))
    else:
        return None
    found = np.zeros(len(array), np.bool_)
    found[rows] = flags
    return found if found.any() else None


def _of_length(array: pa.ListArray, length: int) -> tuple[Positions, pa.Array]:
    """Return the lists of one length, and their items."""
    rows = np.flatnonzero(truths(pc.equal(pc.list_value_length(array), length)))
    return rows, array.take(pa.array(rows)).flatten()


class OldKeys:
    """Reads the keys that rows had before, which a header has as the connector shows them."""

    def __init__(
        self, columns: Mapping[str, tuple[pa.DataType, ValuePlan]], names: Mapping[str, str]
    ) -> None:
        """Store the types and the log's names of the source's columns."""
        self._columns, self._names = columns, names

    def read(self, keys: Mapping[int, Any]) -> dict[int, Any]:
        """Return keys by row; a key that does not fit the columns stays unchanged."""
        found = dict(keys)
        usable = {row: key for row, key in keys.items() if self._is_key(key)}
        for row in usable:
            found[row] = {}
        for column in dict.fromkeys(column for key in usable.values() for column in key):
            rows = [row for row, key in usable.items() if column in key]
            values = self._shown(column, [usable[row][column] for row in rows])
            for row, value in zip(rows, values, strict=True):
                found[row][self._names[column]] = value
        return found

    def _is_key(self, key: Any) -> bool:
        return isinstance(key, dict) and bool(key) and self._columns.keys() >= key.keys()

    def _shown(self, column: str, values: Sequence[Any]) -> Sequence[Any]:
        type_, plan = self._columns[column]
        if pa.types.is_binary(type_):
            values = [_bytes(value) for value in values]
        raw = fill(pa.nulls(len(values), type_), range(len(values)), values)
        if raw is None and len(values) > 1:
            # one unsuitable value must not keep the others from being shown
            return [shown for value in values for shown in self._shown(column, [value])]
        if raw is None:
            return values
        return [_shown(value) for value in plan.read(raw).array.to_pylist()]


def _bytes(value: Any) -> Any:
    """Return bytes, which a header holds as base64."""
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else value
    except ValueError:
        return value


def _shown(value: Any) -> Any:
    """Return a value as JSON that can be read again by its type."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
    return value


# A connector that is started again sends some events once more, with other times of its own. Such
# an event is known by its position in the source's log, its key, what happened and the row. That is
# only done where each change has a position of its own: elsewhere a row may truly have changed
# twice in the same way at one position.

_OWN_POSITIONS = (("file", "pos", "row"), ("change_lsn", "event_serial_no"), ("lsn",))
"""MySQL and MariaDB, SQL Server and Db2, PostgreSQL."""
_IDENTIFYING = ("name", "server_id", "txId", "gtid", "commit_lsn")
_TIMES = ("ts_ms", "ts_us", "ts_ns")
_HALF = 8
"""Bytes of a digest that are in the id; as many others are the hash."""


def identities(
    events: DebeziumEvents, place: Place, names: Sequence[str], *, keyed: Mask, flat: bool
) -> tuple[pa.StringArray, pa.Int64Array]:
    """Return the id of each event, empty for those without one, and a hash of its content.

    `names` are the columns of the rows. A `flat` event has no envelope: its times may be the
    connector's own.
    """
    known = keyed & place.known
    kind = _own_positions(events.parts.source)
    if not known.any() or not kind:
        none = pa.repeat(pa.scalar("", pa.string()), len(events))
        return none, content_hashes(events.own(events.payloads))
    begin = blake2b("\0".join(names).encode("utf-8", "replace"), digest_size=2 * _HALF)
    digests = bytearray()
    for said in _said(events, () if flat else _TIMES).to_pylist():
        digest = begin.copy()
        digest.update(said)
        digests += digest.digest()
    halves = np.frombuffer(bytes(digests), "<i8").reshape(-1, 2)
    hashes = halves[:, 1].copy()
    if not known.all():
        others = np.flatnonzero(~known)
        unknown = events.own(events.payloads).take(pa.array(others))
        hashes[others] = content_hashes(unknown).to_numpy()
    numbers = (place.a, place.b, place.c) if len(kind) > 1 else (place.a,)
    return _ids(numbers, halves[:, 0], known), pa.array(hashes)


def _ids(numbers: Sequence[Positions], digests: Positions, known: Mask) -> pa.StringArray:
    """Return positions as texts of the same order, with digests."""
    texts = [pc.utf8_lpad(pa.array(each).cast(pa.string()), 19, "0") for each in numbers]
    words = pa.array(digests.view(np.uint64)).cast(pa.string())
    ids = pc.binary_join_element_wise(*texts, words, "-")
    return ids if known.all() else pc.if_else(pa.array(known), ids, "")


def _own_positions(source: Mapping[str, pa.Array]) -> tuple[str, ...]:
    """Return the parts of a change's own position; empty if changes may share it."""
    kind = next((parts for parts in _OWN_POSITIONS if parts[0] in source), ())
    return kind if all(part in source for part in kind) else ()


def _said(events: DebeziumEvents, times: Sequence[str]) -> pa.BinaryArray:
    """Return an event's facts about its change as JSON, with the key of its message."""
    parts = events.parts
    source_fields = [parts.source[name] for name in (*_IDENTIFYING, *times) if name in parts.source]
    before = [array for name, array in parts.rest if name == "before"]
    arrays = [pa.array(parts.codes), *source_fields, *before, *parts.row]
    numbered = [str(number) for number in range(len(arrays))]
    texts = rest_as_json(pa.RecordBatch.from_arrays(arrays, numbered), numbered)
    keys = pc.fill_null(events.message("key"), b"")
    return pc.binary_join_element_wise(texts.cast(pa.binary()), keys, b"\0")


_WORDS = pa.array(["insert", "update", "delete", "read", "truncate"])


class DebeziumDecoder:
    """Decodes the events of one table: the schema is Avro's, Kafka Connect's, or inferred."""

    def __init__(
        self,
        schema: WriterSchema,
        settings: ChangeSettings,
        limits: DecodeLimits,
        *,
        key: WriterSchema | None = None,
    ) -> None:
        self._settings = settings
        self._inner = _inner(schema, limits)
        self._is_json = schema.format is Format.JSON
        self._frame = HEAD + schema.body + NECK
        self._shape = EventShape(self._inner.type, self._inner.raw)
        self._keys = KeyReader(key, limits)
        fields, raw = self._shape.row, self._shape.raw
        kept = [i for i, field in enumerate(fields) if field.type.kind != "void"]
        self._plans = {i: plan(fields[i].type, raw[i]) for i in kept}
        self._names = column_names(fields[i].name for i in kept)
        self.columns = CHANGE_COLUMNS + tuple(
            Column(
                self._names[fields[i].name],
                each.type,
                "; ".join(filter(None, (f"column {printable(fields[i].name)}", each.note))),
                origin=Origin(fields[i].name),
            )
            for i, each in self._plans.items()
        )
        self.expansion = self._inner.expansion
        self._schema = pa.schema([pa.field(c.name, c.type) for c in self.columns])
        read_as = {fields[i].name: (raw[i], each) for i, each in self._plans.items()}
        self._old_keys = OldKeys(read_as, self._names)

    def decode(self, payloads: pa.BinaryArray, raw: pa.Table) -> Decoded:
        """Decode events without frames; what cannot be a row is in `failed`."""
        array = payloads if payloads.type == pa.binary() else payloads.cast(pa.binary())
        gathered = Gathered(self._schema, len(array))
        # each message may carry its schema
        bare = without_schema(array, self._frame) if self._is_json else array
        silent = tombstones(bare, is_json=self._is_json)
        rows = np.flatnonzero(~silent)
        decoded = self._inner.decode(bare.take(pa.array(rows)) if silent.any() else bare)
        positions = gathered.take(decoded, rows)
        if len(positions):
            self._add(
                DebeziumEvents(self._shape.apart(decoded.ok), positions, array, raw), gathered
            )
        if silent.any():
            self._add_tombstones(np.flatnonzero(silent), array, raw, gathered)
        return gathered.decoded()

    def _add_tombstones(
        self, positions: Positions, array: pa.BinaryArray, raw: pa.Table, gathered: Gathered
    ) -> None:
        count = len(positions)
        if not self._shape.tombstones_delete:
            say_nothing(count, self._schema, gathered)
            return
        parts = Parts(
            codes=np.full(count, DELETE),
            row=tuple(pa.nulls(count, each) for each in self._shape.raw),
            absent=np.ones(count, np.bool_),
            source={},
            rest=(),
            ordered=False,
        )
        self._add(DebeziumEvents(parts, positions, array, raw), gathered)

    def _add(self, events: DebeziumEvents, gathered: Gathered) -> None:
        events = sound(events, self._schema, gathered)
        events, keys = keyed(events, self._keys, self._names, gathered)
        names = [field.name for field in self._shape.row]
        events, keys = with_keys_for_rows(events, keys, self._keys, names, gathered)
        place = debezium_places(events.parts.source, len(events), ordered=events.parts.ordered)
        if place.bad.any():
            events.fail(place.bad, ErrorCode.BAD_POSITION, "its position is none", gathered)
            good = ~place.bad
            events, keys = events.only(good), Keys(keys.codes[good], keys.names)
            place = Place(place.a[good], place.b[good], place.c[good], place.bad[good])
        if len(events):
            rows, gone, lost = self._rows(events)
            batch = self._changes(events, keys, place, gone, lost) + rows
            gathered.add(pa.RecordBatch.from_arrays(batch, schema=self._schema), events.positions)

    def _rows(
        self, events: DebeziumEvents
    ) -> tuple[list[pa.Array], list[Mask | None], dict[str, Any]]:
        """Build the table's columns, the marks of omitted values, and the values that fit none."""
        columns: list[pa.Array] = []
        gone: list[Mask | None] = []
        lost: dict[str, Any] = {}
        for index, each in self._plans.items():
            array = events.parts.row[index]
            mask = unchanged(array)
            if mask is not None:
                array = array.take(pa.array(np.arange(len(array)), mask=mask))
            reading = each.read(array)
            columns.append(reading.array)
            gone.append(mask)
            if reading.lost:
                lost[self._names[self._shape.row[index].name]] = reading.lost
        return columns, gone, lost

    def _changes(
        self,
        events: DebeziumEvents,
        keys: Keys,
        place: Place,
        gone: list[Mask | None],
        lost: dict[str, Any],
    ) -> list[pa.Array]:
        """Build the columns of model/change.py."""
        parts, count = events.parts, len(events)
        deletes, reads = parts.codes == DELETE, parts.codes == READ
        headers = events.message("headers")
        new_keys, old_keys = headers_of(headers, NEW_KEY), headers_of(headers, OLD_KEY)
        old = self._old_keys.read(contents(old_keys)) if old_keys else {}
        names = [column.name for column in self.columns[len(CHANGE_COLUMNS) :]]
        phase = np.where(reads, 0, 1) * (self._settings.backfill == "before_cdc")
        seq = sequence(
            place,
            phase=phase,
            ts=np.zeros(count, np.int64),
            half=halves(deletes, new_keys, place),
            tie=ties(events.message("offset"), events.message("partition")),
        )
        return [
            _WORDS.take(pa.array(parts.codes)),
            pa.array(deletes | (parts.codes == TRUNCATE)),
            keys.array(),
            seq,
            source_times(parts, events.message("timestamp")),
            pa.array(reads),
            *identities(
                events,
                place,
                [field.name for field in self._shape.row],
                keyed=keys.where(bool),
                flat=self._shape.flat,
            ),
            left_out(names, gone, deletes=deletes, keys=keys),
            envelopes(parts, new_keys=contents(new_keys), old_keys=old, lost=lost),
        ]


def _inner(schema: WriterSchema, limits: DecodeLimits) -> ConnectAvro | ConnectJson | InferredJson:
    if schema.format is Format.AVRO:
        return ConnectAvro(schema.body, schema.message, limits)
    if schema.format is not Format.JSON:
        raise unusable(f"its format is {schema.format}")
    try:
        content = json.loads(schema.body)
    except (ValueError, RecursionError) as error:
        raise unusable(type(error).__name__) from error
    if isinstance(content, dict) and content.get("type") == "struct":
        return ConnectJson(connect_type(content), limits)
    return InferredJson(schema.body, limits)
