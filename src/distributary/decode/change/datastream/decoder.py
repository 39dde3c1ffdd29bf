"""Events of Google Cloud's Datastream, in Avro or JSON, as rows of a log table.

An event is a row if and only if it names its source, has a payload, a time and a position that can
be read, and every column of its key. Whatever else is strange about it is kept in the envelope.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode.avro.reader import MICROS
from distributary.decode.base import (
    DecodeLimits,
    Gathered,
    Mask,
    Positions,
    coded,
    combined,
    nulls,
    truths,
    where,
)
from distributary.decode.change.base import (
    ROW_ID,
    Keys,
    content_hashes,
    with_members,
)
from distributary.decode.change.datastream.avro_events import AvroEvents
from distributary.decode.change.datastream.event_parts import SKIPPED, DatastreamEvents
from distributary.decode.change.datastream.json_events import JsonEvents
from distributary.decode.change.datastream.origin import (
    datastream_places,
    is_backfill,
    kind_of,
    with_halves_together,
)
from distributary.decode.change.order.place import Place, sequence
from distributary.decode.json import columns
from distributary.errors import DecodeError, ErrorCode
from distributary.evolve.unified import json_texts
from distributary.model.change import CHANGE_COLUMNS, ChangeSettings
from distributary.model.deadletter import Decoded
from distributary.model.record import TIMESTAMP, Format, WriterSchema
from distributary.model.table import Column

_ROW_ID = Column(ROW_ID, pa.string(), "the source's own id of the row")
_DELETES = pa.array(["DELETE", "UPDATE-DELETE"])
_UPDATES = pa.array(["UPDATE", "UPDATE-INSERT"])
_WORDS = pa.array(["insert", "update", "read", "delete"])
_TEXTS = pa.list_(pa.string())


class DatastreamDecoder:
    """Decodes the events of one table that were written with one schema."""

    def __init__(
        self,
        schema: WriterSchema,
        settings: ChangeSettings,
        limits: DecodeLimits,
    ) -> None:
        self._settings = settings
        self._inner = _taken_apart(schema, limits)
        numbered = (_ROW_ID,) if "row_id" in self._inner.metadata else ()
        self.columns = (*CHANGE_COLUMNS, *self._inner.columns, *numbered)
        self.expansion = self._inner.expansion
        self._schema = pa.schema([pa.field(c.name, c.type) for c in self.columns])

    def decode(self, payloads: pa.BinaryArray, raw: pa.Table) -> Decoded:
        """Decode events without nulls; what cannot be a row is in `failed`."""
        array = payloads if payloads.type == pa.binary() else payloads.cast(pa.binary())
        gathered = Gathered(self._schema, len(array))
        hashes: pa.Array | None = None
        for events in self._inner.decode(array, gathered):
            judge = _Judge(events, gathered)
            judge.refuse(
                ~events.has_source, ErrorCode.NO_SOURCE_METADATA, "it does not name its source"
            )
            judge.refuse(~events.filled, ErrorCode.NO_PAYLOAD, "it has no payload")
            whole = events if judge.good.all() else events.only(judge.good)
            if len(whole):
                hashes = content_hashes(array) if hashes is None else hashes
                self._add(whole, array, hashes, gathered)
        return gathered.decoded()

    def _add(
        self, events: DatastreamEvents, array: pa.BinaryArray, hashes: pa.Array, gathered: Gathered
    ) -> None:
        """Add events that have a source and a payload, as far as they can be put in order."""
        count, settings, metadata_names = len(events), self._settings, frozenset(events.metadata)
        methods = _texts_of(events.top.get("read_method"), count)
        coded = pc.dictionary_encode(methods, null_encoding="encode")
        codes, names = coded.indices.to_numpy(), coded.dictionary.to_pylist()
        backfilled: Mask = np.array([is_backfill(name) for name in names])[codes]
        # Datastream read Oracle's log again for these events, after a rollback
        supplied: Mask = np.array(["supplementation" in (n or "").lower() for n in names])[codes]
        change = pc.utf8_upper(_texts_of(events.metadata.get("change_type"), count))
        micros, untimed = moments(events.top.get("source_timestamp"), count, unit=events.unit)
        ts = with_halves_together(events, micros // 1_000, change)
        databases = [kind_of(name, settings, metadata_names) for name in names]
        place = _placed(events, codes, databases, ts)
        if settings.backfill == "before_cdc":
            # positions order the changes of one log, and times do not: MySQL's are those of
            # statements, which may wait for a lock until later ones are committed
            positioned: Mask = np.array([bool(kind) for kind in databases])[codes] & ~backfilled
            ts = np.where(positioned & place.known, 0, ts)
        deleted = truths(pc.is_in(change, _DELETES))
        deleted = deleted | _flags(events.metadata.get("is_deleted"), count)
        keys = keys_of(events, self._inner.names)
        null = self._null_in_key(events, keys)
        missing = keys.where(lambda names: names is None)
        judge = _Judge(events, gathered)
        judge.refuse(untimed, ErrorCode.BAD_SOURCE_TIME, "its source time is not a time")
        judge.refuse(place.bad, ErrorCode.BAD_POSITION, "its position is no position")
        reason = "a column of its key is not in its payload"
        missing |= self._left_out(events, keys, array, null)
        judge.refuse(missing, ErrorCode.KEY_NOT_IN_PAYLOAD, reason)
        # an event that was read again may lack the columns of its key
        judge.refuse(supplied & null, ErrorCode.NULL_KEY, "a column of its key is null")
        operations = np.where(truths(pc.is_in(change, _UPDATES)), 1, 0)
        operations = np.where(deleted, 3, np.where(backfilled, 2, operations))
        uuid = _texts_of(events.top.get("uuid"), count).fill_null("")
        later = ~backfilled & (settings.backfill == "before_cdc")
        half = ~truths(pc.is_in(change, _DELETES[1:]))
        arrays = [
            _WORDS.take(pa.array(operations)),
            pa.array(deleted),
            keys.array(),
            sequence(place, phase=later, ts=ts, half=half, tie=uuid),
            pa.array(micros).view(TIMESTAMP),
            pa.array(backfilled),
            uuid,
            hashes if count == len(hashes) else hashes.take(pa.array(events.positions)),
            # Datastream omits no columns: empty lists
            pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], "str")),
            envelopes(events),
            *events.payload,
        ]
        if self.columns[-1] is _ROW_ID:
            arrays.append(_texts_of(events.metadata.get("row_id"), count))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if judge.good.all():
            gathered.add(batch, events.positions)
        else:
            gathered.add(batch.filter(pa.array(judge.good)), events.positions[judge.good])

    def _null_in_key(self, events: DatastreamEvents, keys: Keys) -> Mask:
        place = {column.name: index for index, column in enumerate(self._inner.columns)}
        found = np.zeros(len(events), np.bool_)
        for code, names in enumerate(keys.names):
            for index in (place[name] for name in names or () if name in place):
                found |= (keys.codes == code) & nulls(events.payload[index])
        return found

    def _left_out(
        self, events: DatastreamEvents, keys: Keys, array: pa.BinaryArray, null: Mask
    ) -> Mask:
        """Return a mask of the events that lack a column of their key, among those with a null key.

        In JSON, a column that an event lacks looks null if other events have it.
        """
        found = np.zeros(len(events), np.bool_)
        if isinstance(self._inner, JsonEvents):
            for row in where(null):
                text = array[int(events.positions[row])].as_py()
                wanted = keys.names[int(keys.codes[row])] or ()
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
        # a schema from outside can be wrong in any way
        evidence = type(error).__name__
    raise DecodeError(
        "the schema is not that of Datastream's events",
        where=f"schema {schema.label()}",
        evidence=evidence,
        next_step="look at the files of the source",
    )


class _Judge:
    """Refuses events, each for the first reason there is."""

    def __init__(self, events: DatastreamEvents, gathered: Gathered) -> None:
        self._positions, self._gathered = events.positions, gathered
        self.good: Mask = np.ones(len(events), np.bool_)

    def refuse(self, bad: Mask, code: ErrorCode, reason: str) -> None:
        for row in where(bad & self.good):
            self._gathered.fail(int(self._positions[row]), code, reason)
        self.good &= ~bad


def _texts_of(array: pa.Array | None, count: int) -> pa.StringArray:
    """Return an array as text; null for every other value."""
    is_text = array is not None and kinds.is_string(array.type)
    return array if is_text else pa.nulls(count, pa.string())


def _flags(array: pa.Array | None, count: int) -> Mask:
    if array is not None and kinds.is_string(array.type):
        array = pc.equal(pc.utf8_lower(array), "true")
    elif array is not None and kinds.is_integer(array.type):
        array = pc.not_equal(array, 0)
    is_flag = array is not None and kinds.is_boolean(array.type)
    return truths(array) if is_flag else np.zeros(count, np.bool_)


def _placed(
    events: DatastreamEvents, codes: Positions, databases: list[str], ts: Positions
) -> Place:
    """Read positions in the form of each event's kind of database."""
    first, *others = dict.fromkeys(databases)
    place = datastream_places(events, first, ts)
    for kind in others:
        other = datastream_places(events, kind, ts)
        chosen = np.array([each == kind for each in databases])[codes]
        place = Place(*(np.where(chosen, new, old) for new, old in zip(other, place, strict=True)))
    return place


# When the source made a change: the ways in which Datastream writes it.
#
# Milliseconds since 1970, or ISO 8601 with `T` or a blank, with or without seconds, fraction and
# offset; without an offset it is UTC.

_CLOCK = r"(\d\d:\d\d)(:\d\d(?:\.\d+)?)?"
_ZONE = r"(?:[Zz]|UTC|([+-]\d\d):?(\d\d)?)?"
_MOMENT = re.compile(rf"\s*(\d{{4}}-\d\d-\d\d)[Tt ]{_CLOCK}\s*{_ZONE}\s*", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,16}", re.ASCII)
# the forms that Arrow reads alike, after the Z was removed
_USUAL = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?Z?$"


def moment(text: str, *, unit: int = 1_000) -> int | None:
    """Parse a time as microseconds since 1970; None for an invalid one, or after the year 9999."""
    found = _MOMENT.fullmatch(text)
    if found is not None:
        day, minutes, seconds, hours_east, minutes_east = found.groups()
        zone = f"{hours_east}:{minutes_east or '00'}" if hours_east else "Z"
        return columns.microseconds(f"{day}T{minutes}{seconds or ':00'}{zone}")
    if _NUMBER.fullmatch(text):
        micros = int(text) * unit
        return micros if MICROS[0] <= micros <= MICROS[1] else None
    return None


def moments(array: pa.Array | None, count: int, *, unit: int = 1_000) -> tuple[Positions, Mask]:
    """Parse times as microseconds since 1970; return them with a mask of the missing ones."""
    if array is None:
        return np.zeros(count, np.int64), np.ones(count, np.bool_)
    if kinds.is_integer(array.type):
        numbers: Positions = array.cast(pa.int64()).fill_null(MICROS[0] - 1).to_numpy()
        bad = (numbers < MICROS[0] // unit) | (numbers > MICROS[1] // unit)
        return np.where(bad, 0, numbers) * unit, bad
    if not kinds.is_string(array.type):
        return np.zeros(count, np.int64), np.ones(count, np.bool_)
    usual = usual_moments(array)
    if usual is not None:
        return usual, np.zeros(count, np.bool_)
    coded = array.dictionary_encode()
    found = [moment(text, unit=unit) for text in coded.dictionary.to_pylist()]
    micros = pa.array(found, pa.int64()).take(coded.indices)
    nulls: Mask = micros.is_null().to_numpy(zero_copy_only=False)
    return micros.fill_null(0).to_numpy(), nulls


def usual_moments(array: pa.StringArray) -> Positions | None:
    """Parse times by Arrow if all have Datastream's usual form; else return None."""
    if array.null_count:
        return None
    if not pc.all(pc.match_substring_regex(array, _USUAL), min_count=0).as_py():
        return None
    try:
        found = pc.utf8_rtrim(array, "Z").cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        return None
    inside = len(found) == 0 or (found.min() >= MICROS[0] and found.max() <= MICROS[1])
    return found if inside else None


# The key of each event: which columns, as the source says, under their names in the log.


def keys_of(events: DatastreamEvents, names: Mapping[str, str]) -> Keys:
    """Build the key of each event; `names` maps the source's columns to those of the log."""
    folded = {name.casefold(): column for name, column in reversed(list(names.items()))}
    lists = [events.metadata.get(part) for part in ("primary_keys", "replication_index")]
    codes, found = _distinct([_names(each) for each in lists if each is not None], len(events))
    columns: list[tuple[str, ...] | None] = [_resolved(each, names, folded) for each in found]
    row_ids = events.metadata.get("row_id")
    if row_ids is not None and kinds.is_string(row_ids.type) and () in columns:
        keyless = np.array([each == () for each in columns], np.bool_)[codes]
        chosen = keyless & truths(pc.greater(pc.binary_length(row_ids), 0))
        codes = np.where(chosen, len(columns), codes)
        columns.append((ROW_ID,))
    return Keys(codes, tuple(columns))


def _resolved(
    wanted: tuple[str | None, ...], names: Mapping[str, str], folded: Mapping[str, str]
) -> tuple[str, ...] | None:
    columns: list[str] = []
    for name in wanted:
        # the exact name goes first, because two columns may differ by case only
        column = None if name is None else names.get(name, folded.get(name.casefold()))
        if column is None:
            return None
        columns += [] if column in columns else [column]
    return tuple(columns)


def _names(array: pa.Array) -> pa.ListArray:
    """Return lists of names; any other value names no column."""
    if pa.types.is_list(array.type) and pa.types.is_string(array.type.value_type):
        return array
    return pa.array([[None] if valid else None for valid in array.is_valid().to_pylist()], _TEXTS)


def _distinct(lists: list[pa.Array], count: int) -> tuple[Positions, list[tuple[str | None, ...]]]:
    """Return the index of each event's first non-empty list of names, and the distinct lists."""
    texts: pa.Array = pa.repeat(pa.scalar("[]", pa.string()), count)
    for each in reversed(lists):
        filled = pc.fill_null(pc.greater(pc.list_value_length(each), 0), False)
        texts = pc.if_else(filled, json_texts(each), texts)
    coded = texts.dictionary_encode()
    found = [tuple(json.loads(text)) for text in coded.dictionary.to_pylist()]
    return coded.indices.to_numpy().astype(np.int64), found


# What came with a row beside the row, as JSON text. Most of it is the same in thousands of events:
# parts that have few different values are written once for each combination of them.

MAX_DIFFERENT = 64
"""Values of a part that has few of them."""

_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_Few = tuple[str, Positions, Sequence[str]]
"""Name, number of the value by row, and the values as JSON."""


def envelopes(events: DatastreamEvents) -> pa.StringArray:
    """Build the envelope of each event, without the parts that have columns."""
    text, count = events.envelope, len(events)
    if text is None:
        top = {name: array for name, array in events.top.items() if name not in SKIPPED}
        parts: list[Any] = [*_members(top, count, opening="{")]
        if events.sort_keys is not None:
            start = "," if parts else "{"
            parts += [f'{start}"sort_keys":', pc.fill_null(events.sort_keys, "null")]
        if events.metadata:
            start = "," if parts else "{"
            parts += _members(events.metadata, count, opening=f'{start}"source_metadata":{{')
            parts.append("}")
        text = pc.binary_join_element_wise(*(parts or ["{"]), "}", "")
        text = pa.repeat(text, count) if isinstance(text, pa.Scalar) else text
    beside = (("rescued", events.lost), ("offsets", events.offsets))
    return with_members(text, [((p, column), v[column]) for p, v in beside for column in v])


def _coded(array: pa.Array) -> tuple[Positions, list[str]] | None:
    """Return the number of each value, and the values as JSON, if few differ."""
    type_ = array.type
    if kinds.is_string(type_) or kinds.is_boolean(type_):
        values = array
    elif kinds.is_list(type_) and kinds.is_string(type_.value_type):
        values = json_texts(array)
    else:
        return None
    # the first values usually show whether all values are different
    head = values[: 4 * MAX_DIFFERENT]
    if len(head) < len(values) and pc.count_distinct(head, mode="all").as_py() > MAX_DIFFERENT:
        return None
    codes, rows = combined([coded(values)], len(values))
    if len(rows) > MAX_DIFFERENT:
        return None
    return codes, [_dumps(array[row].as_py()) for row in rows]


def _members(members: Mapping[str, pa.Array], count: int, *, opening: str) -> Iterable[Any]:
    """Return the members of an object as parts of a text, without the closing bracket."""
    known = {name: _coded(array) for name, array in members.items()}
    first = opening
    few = [(name, *each) for name, each in known.items() if each is not None]
    if few:
        yield _combined(few, count, first)
        first = ","
    for name, array in members.items():
        if known[name] is None:
            yield f"{first}{json.dumps(name)}:"
            is_integer = kinds.is_integer(array.type)
            text = array.cast(pa.string()) if is_integer else json_texts(array)
            yield pc.fill_null(text, "null")
            first = ","


def _combined(few: Sequence[_Few], count: int, opening: str) -> pa.Array:
    """Build the text of several members once for each combination of their values."""
    codes, rows = combined(((numbers, len(texts)) for _, numbers, texts in few), count)
    found = [
        opening + ",".join(f"{json.dumps(n)}:{texts[numbers[row]]}" for n, numbers, texts in few)
        for row in rows
    ]
    return pa.array(found, pa.string()).take(pa.array(codes))
