"""Datastream events in JSON, with a schema that was inferred from them.

Events whose envelope is as it should be are read quickly, all at once. Everything else is read
again, one by one, by a decoder that knows the payload only and takes the rest as it comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.decode.base import (
    DecodeLimits,
    Gathered,
    Mask,
    Positions,
    RefusedError,
    nulls,
    origins,
)
from distributary.decode.change.base import column_names
from distributary.decode.change.datastream.event_parts import SKIPPED, DatastreamEvents
from distributary.decode.json.decoder import JsonDecoder
from distributary.decode.json.infer import mask_list, unmasked
from distributary.decode.json.json_text import parse, render
from distributary.model.deadletter import Decoded
from distributary.model.names import printable
from distributary.model.table import Column, Origin
from distributary.registry.compile.json_documents import Documents

SOURCE, PAYLOAD = "source_metadata", "payload"
_SCALARS = {"boolean", "integer", "number", "string"}
_BOUNDS = {"minimum", "maximum"}
_EXPECTED = {"is_deleted": "boolean"} | dict.fromkeys(("log_position", "scn", "ssn"), "integer")
_NAMES: dict[str, Any] = {"type": ["array", "null"], "items": {"type": ["string", "null"]}}
_TEXT: dict[str, Any] = {"type": ["string", "null"]}


def _properties(schema: Any) -> dict[str, Any]:
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def _closed(properties: dict[str, Any], *, null: bool = True) -> dict[str, Any]:
    return {
        "type": ["object", "null"] if null else "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _types(schema: Any) -> set[str]:
    given = schema.get("type") if isinstance(schema, dict) else None
    return set(given) if isinstance(given, list) else {given} if isinstance(given, str) else set()


def _flat(schema: Any) -> Any:
    """Return the column of a schema: single values keep their type, nested ones are JSON text."""
    types = _types(schema) - {"null"}
    return schema if types <= _SCALARS and isinstance(schema, dict) and _types(schema) else {}


def _simple(schema: Any) -> bool:
    """Return whether Arrow reads a column in the same way as the careful decoder."""
    types = _types(schema) - {"null"}
    if types == {"integer", "number"}:
        types = {"number"}
    single = len(types) <= 1 and types <= _SCALARS and bool(_types(schema))
    return single and not _BOUNDS & schema.keys()


def _expected(name: str, schema: Any) -> dict[str, Any] | None:
    """Return the usual schema of a part of the envelope; None if it can be anything."""
    if name == "sort_keys":
        return _NAMES
    types = _types(schema) - {"null"}
    if types == {"array"}:
        items = _types(schema.get("items")) - {"null"}
        return _NAMES if items <= {"string"} else None
    scalars = types & _SCALARS
    if types and not scalars:
        return None
    order = (_EXPECTED.get(name), "string", "integer", "boolean", "number")
    return {"type": [next((each for each in order if each in scalars), "string"), "null"]}


KEYS = "sort_keys"
_LISTS = ("primary_keys", "replication_index")
_STRINGS = ("uuid", "read_method", "source_timestamp")
_DEPTH = 10_000


class JsonEvents:
    """Decodes the events of one table."""

    def __init__(self, body: bytes, limits: DecodeLimits) -> None:
        top = _properties(Documents.of(body).content)
        source = _properties(top.get(SOURCE))
        payload = {n: _flat(s) for n, s in _properties(top.get(PAYLOAD)).items()}
        self._top, self._metadata, self._payload = tuple(top), tuple(source), tuple(payload)
        # columns that were always null do not exist yet
        self._void = tuple(n for n, s in payload.items() if _types(s) == {"null"})
        # one property must be declared, so that all others are collected as the rest
        known = {PAYLOAD: _closed(payload)} if PAYLOAD in top else {"\x00": {"type": "null"}}
        self._careful = _decoder({"type": "object", "properties": known}, limits)
        quick = _quick(top, source, payload)
        self._quick = None if quick is None else _decoder(quick, limits)
        columns = tuple(n for n in payload if n not in self._void)
        self.names = column_names(columns)
        fields = self._careful.columns[0].type if columns else ()
        self.columns = tuple(
            Column(self.names[name], field.type, f"column {printable(name)}", origin=Origin(name))
            for name, field in zip(columns, fields, strict=True)
        )
        self.metadata = frozenset(source)
        self.expansion = (self._quick or self._careful).expansion

    def given(self, event: bytes) -> set[str]:
        """Return the columns that one event's payload names, under their names in the log."""
        try:
            payload = parse(event, max_depth=_DEPTH).get(PAYLOAD)
        except RefusedError:
            return set()
        return {self.names[name] for name in payload or () if name in self.names}

    def decode(self, payloads: pa.BinaryArray, gathered: Gathered) -> Iterator[DatastreamEvents]:
        """Take events apart; what cannot be read has failed."""
        left = np.ones(len(payloads), np.bool_)
        if self._quick is not None:
            # an event with a list of a new form is refused here, and then read by the careful
            # reader
            masked = mask_list(payloads, KEYS) if KEYS in self._top else unmasked(payloads)
            rows = np.flatnonzero(masked.sure)
            chosen = pa.array(rows)
            texts = masked.texts if masked.sure.all() else masked.texts.take(chosen)
            decoded = self._quick.decode(texts)
            events, good = self._quickly(decoded, origins(decoded, rows), masked.lists)
            left[events.positions[good]] = False
            if len(events):
                yield events if good.all() else events.only(good)
        rest = np.flatnonzero(left)
        if len(rest):
            yield from self._carefully(payloads, rest, gathered)

    def _quickly(
        self, decoded: Decoded, positions: Positions, lists: pa.StringArray
    ) -> tuple[DatastreamEvents, Mask]:
        """Read events by Arrow, and mark those without a value in columns that were always null."""
        batch = decoded.ok
        top = dict(zip(self._top, batch.columns, strict=True))
        has_source, metadata = _members(top.pop(SOURCE, None), self._metadata, batch.num_rows)
        filled, payload = _members(top.pop(PAYLOAD, None), self._payload, batch.num_rows)
        top.pop(KEYS, None)
        good = np.ones(batch.num_rows, np.bool_)
        for name in self._void:
            good &= nulls(payload.pop(name))
        events = DatastreamEvents(
            positions=positions,
            top=top,
            sort_keys=lists.take(pa.array(positions)) if lists.null_count < len(lists) else None,
            metadata=metadata,
            payload=tuple(payload.values()),
            has_source=has_source,
            filled=filled,
        )
        return events, good

    def _carefully(
        self, payloads: pa.BinaryArray, rows: Positions, gathered: Gathered
    ) -> Iterator[DatastreamEvents]:
        decoded = self._careful.decode(payloads.take(pa.array(rows)))
        positions, batch = gathered.take(decoded, rows), decoded.ok
        if not batch.num_rows:
            return
        texts = batch.columns[-1].to_pylist()
        rests = [parse((text or "{}").encode(), max_depth=_DEPTH) for text in texts]
        sources = [rest.get(SOURCE) for rest in rests]
        filled, payload = self._careful_payload(batch)
        yield DatastreamEvents(
            positions=positions,
            top={name: _strings([rest.get(name) for rest in rests]) for name in _STRINGS},
            sort_keys=_strings([rest.get(KEYS) for rest in rests]),
            metadata=_metadata([s if isinstance(s, dict) else {} for s in sources]),
            payload=payload,
            has_source=np.array([isinstance(source, dict) for source in sources], np.bool_),
            filled=filled,
            envelope=_strings([{n: v for n, v in r.items() if n not in SKIPPED} for r in rests]),
        )

    def _careful_payload(self, batch: pa.RecordBatch) -> tuple[Mask, tuple[pa.Array, ...]]:
        if batch.num_columns == 1:
            # no event had this object when the schema was inferred
            return np.zeros(batch.num_rows, np.bool_), ()
        array = batch.column(0)
        return ~nulls(array), tuple(array.flatten()) if self.columns else ()


def _quick(
    top: dict[str, Any], source: dict[str, Any], payload: dict[str, Any]
) -> dict[str, Any] | None:
    """Return a schema that Arrow can follow; None if the events are not simple enough."""
    columns = {n: _TEXT if _types(s) == {"null"} else s for n, s in payload.items()}
    expected = {name: _expected(name, each) for name, each in source.items()}
    parts = {n: _expected(n, each) for n, each in top.items() if n not in (SOURCE, PAYLOAD)}
    some = any(_types(each) != {"null"} for each in payload.values())
    simple = some and expected and all(map(_simple, payload.values()))
    if not simple or not all(expected.values()) or not all(parts.values()):
        return None
    # in the order in which events have their parts
    known = dict.fromkeys(top) | parts | {SOURCE: _closed(expected), PAYLOAD: _closed(columns)}
    return _closed(known, null=False)


def _decoder(schema: dict[str, Any], limits: DecodeLimits) -> JsonDecoder:
    return JsonDecoder(Documents(schema, draft=7, references={}).body, "value", limits)


def _members(
    array: pa.Array | None, names: tuple[str, ...], count: int
) -> tuple[Mask, dict[str, pa.Array]]:
    if array is None or not pa.types.is_struct(array.type):
        return np.zeros(count, np.bool_), {}
    return ~nulls(array), dict(zip(names, array.flatten(), strict=True))


def _metadata(sources: list[dict[str, Any]]) -> dict[str, pa.Array]:
    """Return the source fields of events, whatever their types."""
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
    """Return the names in a list; other values name no column."""
    if not isinstance(value, list):
        return [None]
    return [each if isinstance(each, str) else None for each in value]
