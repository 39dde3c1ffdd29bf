"""Events of Debezium, in JSON or Avro, with an envelope or flattened, as rows of a log table.

An event is a row if it says what happened to which row. A delete has the image of the row before
it, which tells the columns of the key and, unless the source keeps whole images, makes up the rest:
all but the key's columns are therefore named as unchanged. A truncate is a row of nulls. What tells
nothing about any row, a message of PostgreSQL or a tombstone behind a delete, gives no row.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from distributary.decode.base import DecodeLimits
from distributary.decode.change.order import Place, debezium_places, sequence, ties
from distributary.decode.changes import column_names
from distributary.decode.datastream_values import Mask
from distributary.decode.debezium_avro import ConnectAvro
from distributary.decode.debezium_envelope import (
    NEW_KEY,
    OLD_KEY,
    contents,
    envelopes,
    halves,
    headers_of,
    source_times,
)
from distributary.decode.debezium_events import (
    Events,
    keyed,
    say_nothing,
    sound,
    with_keys_for_rows,
)
from distributary.decode.debezium_frames import HEAD, NECK, tombstones, without_schema
from distributary.decode.debezium_ids import identities
from distributary.decode.debezium_infer import InferredJson
from distributary.decode.debezium_json import ConnectJson
from distributary.decode.debezium_keys import KeyReader, Keys
from distributary.decode.debezium_left_out import left_out
from distributary.decode.debezium_old_keys import OldKeys
from distributary.decode.debezium_schema import Type, connect_type, unusable
from distributary.decode.debezium_shape import DELETE, READ, TRUNCATE, Parts, Shape
from distributary.decode.debezium_types import plan
from distributary.decode.debezium_unchanged import unchanged
from distributary.decode.expansion import Expansion
from distributary.decode.gather import Gathered, Positions
from distributary.errors import ErrorCode
from distributary.model.change import CHANGE_COLUMNS
from distributary.model.change_settings import ChangeSettings
from distributary.model.decoded import Decoded
from distributary.model.schema import Format, WriterSchema
from distributary.model.table import Column, Origin
from distributary.registry.hostile import printable

_WORDS = pa.array(["insert", "update", "delete", "read", "truncate"])


class _Inner(Protocol):
    """Reads the bytes of events of one schema."""

    type: Type

    @property
    def raw(self) -> tuple[pa.DataType, ...]:
        """The types of the decoded fields, in the schema's order."""

    @property
    def expansion(self) -> Expansion:
        """How large events become."""

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """Decode an array without nulls."""


class DebeziumDecoder:
    """Decodes the events of one table that were written with one schema.

    The schema is Avro's, the text of one of Kafka Connect's, or one that was inferred from events
    that have none. A payload without bytes, and JSON that is null, is a tombstone.
    """

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
        self._shape = Shape(self._inner.type, self._inner.raw)
        self._keys = KeyReader(key, limits)
        fields = self._shape.row
        self._kept = [i for i, field in enumerate(fields) if field.type.kind != "void"]
        self._names = column_names(fields[i].name for i in self._kept)
        self._plans = [plan(fields[i].type, self._shape.raw[i]) for i in self._kept]
        self._columns = CHANGE_COLUMNS + tuple(
            Column(
                self._names[fields[i].name],
                each.type,
                _comment(fields[i].name, each.note),
                origin=Origin(fields[i].name),
            )
            for i, each in zip(self._kept, self._plans, strict=True)
        )
        self._schema = pa.schema([pa.field(c.name, c.type) for c in self._columns])
        readers = zip(self._kept, self._plans, strict=True)
        self._old_keys = OldKeys(
            {fields[i].name: (self._shape.raw[i], each) for i, each in readers}, self._names
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of model/change.py, then those of the source's table."""
        return self._columns

    @property
    def expansion(self) -> Expansion:
        """How large events become."""
        return self._inner.expansion

    def decode(self, payloads: pa.BinaryArray, raw: pa.Table) -> Decoded:
        """Decode events without frames; what cannot be a row is in `failed`.

        Args:
            payloads: The events.
            raw: The messages that they came in: keys, headers, offsets.
        """
        array = payloads if payloads.type == pa.binary() else payloads.cast(pa.binary())
        gathered = Gathered(self._schema, len(array))
        bare = self._bare(array)
        silent = tombstones(bare, is_json=self._is_json)
        rows = np.flatnonzero(~silent)
        decoded = self._inner.decode(bare.take(pa.array(rows)) if silent.any() else bare)
        for failure in decoded.failed:
            at = int(rows[failure.index])
            gathered.fail(at, failure.code, failure.message, at_byte=failure.position)
        positions = rows if decoded.origin is None else rows[decoded.origin.to_numpy()]
        if len(positions):
            self._add(Events(self._shape.apart(decoded.ok), positions, array, raw), gathered)
        if silent.any():
            self._add_tombstones(np.flatnonzero(silent), array, raw, gathered)
        return gathered.decoded()

    def _bare(self, array: pa.BinaryArray) -> pa.BinaryArray:
        """Payloads without the schema that they may carry."""
        return without_schema(array, self._frame) if self._is_json else array

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
        self._add(Events(parts, positions, array, raw), gathered)

    def _add(self, events: Events, gathered: Gathered) -> None:
        events = sound(events, self._schema, gathered)
        events, keys = keyed(events, self._keys, self._names, gathered)
        names = [field.name for field in self._shape.row]
        events, keys = with_keys_for_rows(events, keys, self._keys, names, gathered)
        place = debezium_places(events.parts.source, len(events), ordered=events.parts.ordered)
        if place.bad.any():
            events.fail(place.bad, ErrorCode.BAD_POSITION, "its position is none", gathered)
            good = ~place.bad
            events, keys = events.only(good), keys.only(good)
            place = debezium_places(events.parts.source, len(events), ordered=events.parts.ordered)
        if len(events):
            rows, gone, lost = self._rows(events)
            batch = self._changes(events, keys, place, gone, lost) + rows
            gathered.add(pa.RecordBatch.from_arrays(batch, schema=self._schema), events.positions)

    def _rows(self, events: Events) -> tuple[list[pa.Array], list[Mask | None], dict[str, Any]]:
        """The columns of the table, where their values were not sent, and what fits in none."""
        columns: list[pa.Array] = []
        gone: list[Mask | None] = []
        lost: dict[str, Any] = {}
        for index, each in zip(self._kept, self._plans, strict=True):
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
        events: Events,
        keys: Keys,
        place: Place,
        gone: list[Mask | None],
        lost: dict[str, Any],
    ) -> list[pa.Array]:
        """The columns of model/change.py."""
        parts, count = events.parts, len(events)
        deletes, reads = parts.codes == DELETE, parts.codes == READ
        headers = events.message("headers")
        new_keys, old_keys = headers_of(headers, NEW_KEY), headers_of(headers, OLD_KEY)
        old = self._old_keys.read(contents(old_keys)) if old_keys else {}
        key_columns = keys.columns(self._names)
        names = [column.name for column in self._columns[len(CHANGE_COLUMNS) :]]
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
            pa.array(key_columns, pa.list_(pa.string())).take(pa.array(keys.codes)),
            seq,
            source_times(parts, events.message("timestamp")),
            pa.array(reads),
            *identities(
                events,
                place,
                [field.name for field in self._shape.row],
                keyed=np.array([bool(each) for each in key_columns], np.bool_)[keys.codes],
                flat=self._shape.flat,
            ),
            left_out(names, gone, deletes=deletes, keys=keys, key_columns=key_columns),
            envelopes(parts, new_keys=contents(new_keys), old_keys=old, lost=lost),
        ]


def _inner(schema: WriterSchema, limits: DecodeLimits) -> _Inner:
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


def _comment(name: str, note: str) -> str:
    return "; ".join(filter(None, (f"column {printable(name)}", note)))
