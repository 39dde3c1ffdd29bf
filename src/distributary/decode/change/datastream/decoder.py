"""Events of Google Cloud's Datastream, in Avro or JSON, as rows of a log table.

An event is a row if and only if it names its source, has a payload, a time and a position that can
be read, and every column of its key. Whatever else is strange about it is kept in the envelope.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from distributary.decode.base import DecodeLimits, Expansion, Gathered
from distributary.decode.change.base import ROW_ID, Events, content_hashes
from distributary.decode.change.datastream.avro import AvroEvents
from distributary.decode.change.datastream.envelope import (
    Facts,
    Keys,
    envelopes,
    facts_of,
    keys_of,
    texts_of,
)
from distributary.decode.change.datastream.json import JsonEvents
from distributary.decode.change.values import Mask
from distributary.errors import DecodeError, ErrorCode
from distributary.model.change import CHANGE_COLUMNS, ChangeSettings
from distributary.model.deadletter import Decoded
from distributary.model.record import TIMESTAMP, Format, WriterSchema
from distributary.model.table import Column

_ROW_ID = Column(ROW_ID, pa.string(), "the source's own id of the row")


class DatastreamDecoder:
    """Decodes the events of one table that were written with one schema."""

    def __init__(
        self,
        schema: WriterSchema,
        settings: ChangeSettings,
        limits: DecodeLimits,
        keys: WriterSchema | None = None,
    ) -> None:
        """Events of Datastream have their keys in them: a schema of others has no use."""
        del keys
        self._settings = settings
        self._inner = _taken_apart(schema, limits)
        numbered = (_ROW_ID,) if "row_id" in self._inner.metadata else ()
        self._columns = (*CHANGE_COLUMNS, *self._inner.columns, *numbered)
        self._schema = pa.schema([pa.field(c.name, c.type) for c in self._columns])

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of model/change.py, then those of the source's table."""
        return self._columns

    @property
    def expansion(self) -> Expansion:
        """How large events become."""
        return self._inner.expansion

    def decode(self, payloads: pa.BinaryArray, raw: pa.Table) -> Decoded:
        """Decode events without nulls; what cannot be a row is in `failed`.

        Args:
            payloads: The events.
            raw: The records that they came in; Datastream's events say all there is to know.
        """
        array = payloads if payloads.type == pa.binary() else payloads.cast(pa.binary())
        gathered = Gathered(self._schema, len(array))
        hashes: pa.Array | None = None
        for events in self._inner.decode(array, gathered):
            judge = _Judge(events, gathered)
            judge.refuse(~events.told, ErrorCode.NO_SOURCE_METADATA, "it does not name its source")
            judge.refuse(~events.filled, ErrorCode.NO_PAYLOAD, "it has no payload")
            whole = events if judge.good.all() else events.only(judge.good)
            if len(whole):
                hashes = content_hashes(array) if hashes is None else hashes
                self._add(whole, array, hashes, gathered)
        return gathered.decoded()

    def _add(
        self, events: Events, array: pa.BinaryArray, hashes: pa.Array, gathered: Gathered
    ) -> None:
        """Add events that have a source and a payload, as far as they can be put in order."""
        facts = facts_of(events, self._settings)
        keys = keys_of(events, self._inner.names)
        judge = _Judge(events, gathered)
        judge.refuse(facts.untimed, ErrorCode.BAD_SOURCE_TIME, "its source time is no time")
        judge.refuse(facts.place.bad, ErrorCode.BAD_POSITION, "its position is no position")
        reason = "a column of its key is not in its payload"
        null = self._null_in_key(events, keys)
        missing = keys.missing() | self._left_out(events, keys, array, null)
        judge.refuse(missing, ErrorCode.KEY_NOT_IN_PAYLOAD, reason)
        # rolled back in Oracle and read again, without what made it this row
        judge.refuse(facts.supplied & null, ErrorCode.NULL_KEY, "a column of its key is null")
        batch = self._batch(events, facts, keys, hashes)
        if judge.good.all():
            gathered.add(batch, events.positions)
        else:
            gathered.add(batch.filter(pa.array(judge.good)), events.positions[judge.good])

    def _batch(self, events: Events, facts: Facts, keys: Keys, hashes: pa.Array) -> pa.RecordBatch:
        count = len(events)
        columns = [
            facts.operation,
            pa.array(facts.deleted),
            keys.array(),
            facts.sequence,
            pa.array(facts.micros).view(TIMESTAMP),
            pa.array(facts.backfilled),
            facts.uuid,
            hashes if count == len(hashes) else hashes.take(pa.array(events.positions)),
            _empty_lists(count),
            envelopes(events),
            *events.payload,
        ]
        if self._columns[-1] is _ROW_ID:
            columns.append(texts_of(events.metadata.get("row_id"), count))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _null_in_key(self, events: Events, keys: Keys) -> Mask:
        place = {column.name: index for index, column in enumerate(self._inner.columns)}
        found = np.zeros(len(events), np.bool_)
        for code, names in enumerate(keys.columns):
            for index in (place[name] for name in names or () if name in place):
                nulls = events.payload[index].is_null().to_numpy(zero_copy_only=False)
                found |= (keys.codes == code) & nulls
        return found

    def _left_out(self, events: Events, keys: Keys, array: pa.BinaryArray, null: Mask) -> Mask:
        """Events without a column of their key, among those in which one is null.

        In JSON a column that other events have looks null in one that does not have it.
        """
        found = np.zeros(len(events), np.bool_)
        if isinstance(self._inner, JsonEvents):
            for row in np.flatnonzero(null).tolist():
                text = array[int(events.positions[row])].as_py()
                wanted = keys.columns[int(keys.codes[row])] or ()
                found[row] = not self._inner.given(text).issuperset(wanted)
        return found


def _taken_apart(schema: WriterSchema, limits: DecodeLimits) -> AvroEvents | JsonEvents:
    evidence = f"format {schema.format}"
    try:
        match schema.format:
            case Format.AVRO:
                return AvroEvents(schema.body, limits)
            case Format.JSON:
                return JsonEvents(schema.body, limits)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        # a schema can be wrong in more ways than can be looked for
        evidence = type(error).__name__
    raise DecodeError(
        "the schema is not that of Datastream's events",
        where=f"schema {schema.label()}",
        evidence=evidence,
        next_step="look at the files of the source",
    )


class _Judge:
    """Refuses events, each for the first reason there is."""

    def __init__(self, events: Events, gathered: Gathered) -> None:
        self._positions = events.positions
        self._gathered = gathered
        self.good: Mask = np.ones(len(events), np.bool_)

    def refuse(self, bad: Mask, code: ErrorCode, reason: str) -> None:
        if bad.any():
            for row in np.flatnonzero(bad & self.good).tolist():
                self._gathered.fail(int(self._positions[row]), code, reason)
            self.good &= ~bad


def _empty_lists(count: int) -> pa.Array:
    offsets = pa.array(np.zeros(count + 1, np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array([], pa.string()))
