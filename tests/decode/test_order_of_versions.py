"""Records of several versions of a schema: the rows do not depend on order or batches."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from itertools import pairwise
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.lake import Evolution
from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.formats import decoder_for
from distributary.decode.protobuf.decoder import decode_together
from distributary.evolve.align import align
from distributary.evolve.merge import create, merge
from distributary.model.record import Format, WriterSchema
from distributary.model.table import Column, Fill
from distributary.registry.compile import compile_schema


@dataclass(frozen=True, eq=False)
class Versions:
    """The versions of one schema, each with fields that have defaults."""

    format: Format
    texts: tuple[str, ...]
    payload: Callable[[int, int], bytes]
    """The payload of a record by version and number; its values are no defaults."""
    rows: tuple[dict[str, Any], ...]
    """What a table holds of a record by version, where all versions were met; id is the number."""


def _avro(*added: dict[str, Any], inner: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    item = {"type": "record", "name": "Item", "fields": [{"name": "a", "type": "int"}, *inner]}
    fields: list[dict[str, Any]] = [
        {"name": "id", "type": "int"},
        {"name": "items", "type": {"type": "array", "items": item}},
    ]
    return {"type": "record", "name": "R", "fields": fields + list(added)}


_DAY = {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0}
_TEXT = {"name": "text", "type": ["string", "null"], "default": "none"}
_B = {"name": "b", "type": "long", "default": 7}
_AVRO = (_avro(), _avro(_DAY, inner=[_B]), _avro(_TEXT), _avro(_DAY, _TEXT, inner=[_B]))


def _avro_payload(version: int, number: int) -> bytes:
    out = io.BytesIO()
    datum = {"id": number, "items": [{"a": 1, "b": 2}], "day": 3, "text": "x"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(_AVRO[version]), datum)
    return out.getvalue()


def _row(*, day: Any = None, text: Any = None, b: Any = None) -> dict[str, Any]:
    return {"items": [{"a": 1, "b": b}], "day": day, "text": text}


_PROTO = """
syntax = "proto3";
message Item {{ int32 a = 1; {inner} }}
message R {{ int32 id = 1; repeated Item items = 2; {added} }}
"""
_PROTO_TEXTS = (
    _PROTO.format(inner="", added=""),
    _PROTO.format(inner="int64 b = 2;", added="int32 day = 3;"),
    _PROTO.format(inner="", added="string text = 4;"),
    _PROTO.format(inner="int64 b = 2;", added="int32 day = 3; string text = 4;"),
)


def _proto_payload(version: int, number: int) -> bytes:
    # no field but id and items is on the wire: what a writer knows is then 0 or empty
    return bytes([8, number]) + b"\x12\x02\x08\x01"


def _json_schema(*added: str, inner: Sequence[str] = ()) -> str:
    def properties(names: Sequence[str]) -> dict[str, Any]:
        return {name: {"type": "integer", "default": 7} for name in names}

    def closed(members: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "properties": members, "additionalProperties": False}

    items = {"type": "array", "items": closed(properties(["a", *inner]))}
    return json.dumps(closed(properties(["id"]) | {"items": items} | properties(added)))


def _json_payload(version: int, number: int) -> bytes:
    return json.dumps({"id": number, "items": [{"a": 1}]}).encode()


FORMATS = (
    Versions(
        Format.AVRO,
        tuple(map(json.dumps, _AVRO)),
        _avro_payload,
        (
            _row(),
            _row(day=date(1970, 1, 4), b=2),
            _row(text="x"),
            _row(day=date(1970, 1, 4), text="x", b=2),
        ),
    ),
    Versions(
        Format.PROTOBUF,
        _PROTO_TEXTS,
        _proto_payload,
        (_row(), _row(day=0, b=0), _row(text=""), _row(day=0, text="", b=0)),
    ),
    Versions(
        Format.JSON,
        (
            _json_schema(),
            _json_schema("day", inner=["b"]),
            _json_schema("text"),
            _json_schema("day", "text", inner=["b"]),
        ),
        _json_payload,
        (_row(),) * 4,
    ),
)


@cache
def decoders(versions: Versions) -> tuple[Decoder, ...]:
    made = []
    for number, text in enumerate(versions.texts, 1):
        compiled = compile_schema(text, format=versions.format)
        schema = WriterSchema(number, versions.format, compiled.body, compiled.message)
        message = "R" if versions.format is Format.PROTOBUF else compiled.message
        made.append(decoder_for(schema, message, DecodeLimits()))
    return tuple(made)


def stored(
    versions: Versions, batches: Sequence[Sequence[tuple[int, int]]]
) -> list[dict[str, Any]]:
    """Return the rows of a table that got these batches of (version, number) one after another."""
    columns: tuple[Column, ...] = ()
    written: list[pa.RecordBatch] = []
    for batch in batches:
        met = list(dict.fromkeys(version for version, _ in batch))
        writers = [decoders(versions)[version] for version in met]
        for writer in writers:
            columns = (
                merge(columns, writer.columns, Evolution()) if columns else create(writer.columns)
            ).columns
        payloads = [
            pa.array([versions.payload(v, n) for v, n in batch if v == version], pa.binary())
            for version in met
        ]
        schema = pa.schema([(c.name, c.type) for c in columns])
        # as a stage does it: by the widest version at once, else each by its own
        together = decode_together(tuple(writers), payloads)
        alone = (writer.decode(array) for writer, array in zip(writers, payloads, strict=True))
        for writer, decoded in zip(writers, together or alone, strict=True):
            assert not decoded.failed
            fills = merge(columns, writer.columns, Evolution()).fills
            written.append(align(decoded.ok, fills, schema))
    # a reader sees nulls where a file does not have a column that came later
    final = pa.schema([(c.name, c.type) for c in columns])
    rows = [
        row
        for batch in written
        for row in align(
            batch, tuple(Fill(f.name, f.name, f.type) for f in batch.schema), final
        ).to_pylist()
    ]
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize("versions", FORMATS, ids=lambda versions: str(versions.format))
@settings(max_examples=40)
@given(data=st.data())
def test_any_order_and_any_cut_into_batches_give_the_same_rows(
    versions: Versions, data: st.DataObject
) -> None:
    written = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
    # each version at least once, so that the table has all columns whatever the order
    records = list(enumerate([0, 1, 2, 3, *written]))
    shuffled = [(version, number) for number, version in data.draw(st.permutations(records))]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(records) - 1))))
    batches = [shuffled[a:b] for a, b in pairwise([0, *cuts, len(records)])]
    expected = [{"id": number, **versions.rows[version]} for number, version in records]
    assert stored(versions, batches) == expected
