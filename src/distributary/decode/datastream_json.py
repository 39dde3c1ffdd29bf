"""Datastream events in JSON, with a schema that was inferred from them.

Events whose envelope is as it should be are read quickly, all at once. Everything else is read
again, one by one, by a decoder that knows the payload only and takes the rest as it comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.decode.base import DecodeLimits
from distributary.decode.changes import column_names
from distributary.decode.datastream_events import SKIPPED, Events
from distributary.decode.datastream_json_schema import PAYLOAD, SOURCE, Shapes
from distributary.decode.datastream_values import Mask
from distributary.decode.expansion import Expansion
from distributary.decode.gather import Gathered, Positions
from distributary.decode.json_mask import mask_list
from distributary.decode.json_schema import JsonDecoder
from distributary.decode.json_text import RefusedTextError, parse, render
from distributary.model.decoded import Decoded
from distributary.model.table import Column, Origin
from distributary.registry.hostile import printable
from distributary.registry.json_documents import Documents

KEYS = "sort_keys"
_LISTS = ("primary_keys", "replication_index")
_STRINGS = ("uuid", "read_method", "source_timestamp")
_DEPTH = 10_000


class JsonEvents:
    """Decodes the events of one table."""

    def __init__(self, body: bytes, limits: DecodeLimits) -> None:
        shapes = Shapes(body)
        self._shapes = shapes
        self._careful = _decoder(shapes.careful(), limits)
        quick = shapes.quick()
        self._quick = None if quick is None else _decoder(quick, limits)
        self._names = column_names(shapes.columns)
        types = _payload_types(self._careful, len(shapes.columns))
        self._columns = tuple(
            Column(self._names[name], type_, f"column {printable(name)}", origin=Origin(name))
            for name, type_ in zip(shapes.columns, types, strict=True)
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the source's table."""
        return self._columns

    @property
    def names(self) -> dict[str, str]:
        """What the columns are called, by their names in the source."""
        return self._names

    @property
    def metadata(self) -> frozenset[str]:
        """What the events say about their source."""
        return frozenset(self._shapes.metadata)

    def given(self, event: bytes) -> set[str]:
        """The columns that the payload of one event names, under their names in the log."""
        try:
            payload = parse(event, max_depth=_DEPTH).get(PAYLOAD)
        except RefusedTextError:
            return set()
        return {self._names[name] for name in payload or () if name in self._names}

    @property
    def expansion(self) -> Expansion:
        """How large events become."""
        return (self._quick or self._careful).expansion

    def decode(self, payloads: pa.BinaryArray, gathered: Gathered) -> Iterator[Events]:
        """Take events apart; what cannot be read has failed."""
        left = np.ones(len(payloads), np.bool_)
        if self._quick is not None:
            masked = mask_list(payloads, KEYS)
            rows = np.flatnonzero(masked.sure)
            chosen = pa.array(rows)
            texts = masked.texts if masked.sure.all() else masked.texts.take(chosen)
            decoded = self._quick.decode(texts)
            positions = rows if decoded.origin is None else rows[decoded.origin.to_numpy()]
            events, good = self._quickly(decoded, positions, masked.lists)
            left[events.positions[good]] = False
            if len(events):
                yield events if good.all() else events.only(good)
        rest = np.flatnonzero(left)
        if len(rest):
            yield from self._carefully(payloads, rest, gathered)

    def _quickly(
        self, decoded: Decoded, positions: Positions, lists: pa.StringArray
    ) -> tuple[Events, Mask]:
        """The events, and which of them have nothing where there was never anything before."""
        shapes, batch = self._shapes, decoded.ok
        top = dict(zip(shapes.top, batch.columns, strict=True))
        told, metadata = _members(top.pop(SOURCE, None), shapes.metadata, batch.num_rows)
        filled, payload = _members(top.pop(PAYLOAD, None), shapes.every, batch.num_rows)
        top.pop(KEYS, None)
        good = np.ones(batch.num_rows, np.bool_)
        for name in shapes.void:
            good &= payload[name].is_null().to_numpy(zero_copy_only=False)
        events = Events(
            positions=positions,
            top=top,
            sort_keys=lists.take(pa.array(positions)) if lists.null_count < len(lists) else None,
            metadata=metadata,
            payload=tuple(payload[name] for name in shapes.columns),
            told=told,
            filled=filled,
        )
        return events, good

    def _carefully(
        self, payloads: pa.BinaryArray, rows: Positions, gathered: Gathered
    ) -> Iterator[Events]:
        decoded = self._careful.decode(payloads.take(pa.array(rows)))
        for each in decoded.failed:
            position = int(rows[each.index])
            gathered.fail(position, each.code, each.message, at_byte=each.position)
        batch = decoded.ok
        if not batch.num_rows:
            return
        positions = rows if decoded.origin is None else rows[decoded.origin.to_numpy()]
        texts = batch.columns[-1].to_pylist()
        rests = [parse((text or "{}").encode(), max_depth=_DEPTH) for text in texts]
        sources = [rest.get(SOURCE) for rest in rests]
        filled, payload = self._careful_payload(batch)
        yield Events(
            positions=positions,
            top={name: _strings([rest.get(name) for rest in rests]) for name in _STRINGS},
            sort_keys=_strings([rest.get(KEYS) for rest in rests]),
            metadata=_metadata([s if isinstance(s, dict) else {} for s in sources]),
            payload=payload,
            told=np.array([isinstance(source, dict) for source in sources], np.bool_),
            filled=filled,
            envelope=pa.array([_envelope(rest) for rest in rests], pa.string()),
        )

    def _careful_payload(self, batch: pa.RecordBatch) -> tuple[Mask, tuple[pa.Array, ...]]:
        if batch.num_columns == 1:
            # no event had one when the schema was inferred
            return np.zeros(batch.num_rows, np.bool_), ()
        array = batch.column(0)
        valid: Mask = array.is_valid().to_numpy(zero_copy_only=False)
        return valid, tuple(array.flatten()) if self._columns else ()


def _decoder(schema: dict[str, Any], limits: DecodeLimits) -> JsonDecoder:
    documents = Documents(schema, draft=7, references={})
    return JsonDecoder(documents.body, "value", limits)


def _payload_types(decoder: JsonDecoder, count: int) -> list[pa.DataType]:
    if not count:
        return []
    return [field.type for field in decoder.columns[0].type]


def _members(
    array: pa.Array | None, names: tuple[str, ...], count: int
) -> tuple[Mask, dict[str, pa.Array]]:
    if array is None or not pa.types.is_struct(array.type):
        return np.zeros(count, np.bool_), {}
    valid: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return valid, dict(zip(names, array.flatten(), strict=True))


def _metadata(sources: list[dict[str, Any]]) -> dict[str, pa.Array]:
    """What events say about their source, whatever types it has."""
    arrays: dict[str, pa.Array] = {}
    for name in dict.fromkeys(name for source in sources for name in source):
        found = [source.get(name) for source in sources]
        if name == "is_deleted":
            arrays[name] = pa.array([_truth(each) for each in found], pa.bool_())
        elif name in _LISTS:
            lists = [None if each is None else _names(each) for each in found]
            arrays[name] = pa.array(lists, pa.list_(pa.string()))
        else:
            arrays[name] = _strings(found)
    return arrays


def _strings(values: list[Any]) -> pa.StringArray:
    return pa.array(
        [each if each is None or isinstance(each, str) else render(each) for each in values],
        pa.string(),
    )


def _truth(value: Any) -> bool:
    return value is True or value == 1 or (isinstance(value, str) and value.lower() == "true")


def _names(value: Any) -> list[str | None]:
    """The names in a list; what is no name is no column either."""
    if not isinstance(value, list):
        return [None]
    return [each if isinstance(each, str) else None for each in value]


def _envelope(rest: dict[str, Any]) -> str:
    return render({name: value for name, value in rest.items() if name not in SKIPPED})
