"""Helpers for events of formats that are JSON objects with rows in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from distributary.decode.base import DecodeLimits
from distributary.decode.change.base import Named, Records
from distributary.decode.change.change_formats import CHANGE_FORMATS
from distributary.decode.formats import change_decoder_for
from distributary.decode.json.infer import NOTHING, grown, infer
from distributary.model.change import ChangeSettings
from distributary.model.deadletter import Decoded
from distributary.model.record import RAW, Format, WriterSchema
from tests.decode.json_samples import writer_schema

LIMITS = DecodeLimits()
Event = Mapping[str, Any] | bytes


def as_bytes(event: Event) -> bytes:
    return event if isinstance(event, bytes) else json.dumps(event).encode()


def raw_of(
    events: Sequence[Event], *, keys: Sequence[bytes | None] = (), topic: str = "t"
) -> pa.Table:
    """Records of one partition that hold the events."""
    count = len(events)
    columns = {
        "key": pa.array(keys or [None] * count, pa.binary()),
        "value": pa.array(map(as_bytes, events), pa.binary()),
        "topic": pa.array([topic] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([1_000_000] * count, pa.int64()).cast(RAW.field("timestamp").type),
    }
    arrays = [columns.get(f.name, pa.nulls(count, f.type)) for f in RAW]
    return pa.Table.from_arrays(arrays, schema=RAW)


def named(format_: str, events: Sequence[Event], *, topic: str = "t", **settings: Any) -> Named:
    """What a format says about the tables of events."""
    raw = raw_of(events, topic=topic)
    topics, keys, values = (raw[name].combine_chunks() for name in ("topic", "key", "value"))
    records = Records(topics, keys, values)
    chosen = ChangeSettings(format=format_, **settings)
    return CHANGE_FORMATS[format_].name_tables(records, chosen)


def decoded(
    format_: str,
    events: Sequence[Event],
    *,
    keys: Sequence[bytes | None] = (),
    limits: DecodeLimits = LIMITS,
    topic: str = "t",
    **settings: Any,
) -> Decoded:
    """Events of one table, decoded with the schema that they carry or look like."""
    raw = raw_of(events, keys=keys, topic=topic)
    seen = named(format_, events, topic=topic, **settings)
    if seen.schemas:
        schema = WriterSchema(1, Format.JSON, seen.schemas[0], "event")
    else:
        shape = infer(seen.payloads, parts=True) or NOTHING
        schema = writer_schema(grown(NOTHING, shape, images=CHANGE_FORMATS[format_].images))
    decoder = change_decoder_for(schema, ChangeSettings(format=format_, **settings), limits)
    result = decoder.decode(seen.payloads, raw)
    failed = {each.index for each in result.failed}
    origin = range(len(events)) if result.origin is None else result.origin.to_pylist()
    # each event is rows, a failure or nothing, and never two of these
    assert not failed & set(origin)
    assert len(failed) + len(set(origin)) + result.empty == len(events)
    return result


def rows(result: Decoded, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in result.ok.to_pylist()]


def codes(result: Decoded) -> list[str]:
    return [str(failure.code) for failure in sorted(result.failed, key=lambda each: each.index)]
