"""Payloads as their writer would have written them with another schema.

Protobuf and JSON name their fields, so that the bytes stay what they are. Avro's bytes mean nothing
without their schema: each datum is read with the schema it was written with, and written with the
other one.
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa

from distributary.errors import ErrorCode
from distributary.model.decoded import Failure
from distributary.model.schema import Format, WriterSchema

_BARE = "bytes"


def rewritten(
    payloads: pa.BinaryArray, written: WriterSchema, proposed: WriterSchema
) -> tuple[list[bytes | None], list[Failure]]:
    """One payload for each, None for those that the other schema has no place for.

    Only payloads that their own schema decodes may be given: others are not safe to resolve.
    """
    values: list[bytes | None] = payloads.to_pylist()
    if proposed.format is not Format.AVRO or _BARE in (written.message, proposed.message):
        return values, []
    failures: list[Failure] = []
    renames = b'"aliases"' in proposed.body
    try:
        old, new = _plain(written), _plain(proposed)
    except Exception as error:
        # a schema that the other library refuses: nothing can be said of any record
        why = f"not resolved: {type(error).__name__}"
        return [None] * len(values), [
            Failure(i, ErrorCode.UNUSABLE_SCHEMA, why) for i in range(len(values))
        ]
    for index, value in enumerate(values):
        try:
            values[index] = _written(value or b"", old, new, renames=renames)
        except Exception as error:
            # the library raises whatever comes to its mind; each of them means: it does not fit
            why = f"its value does not fit the proposed schema: {type(error).__name__}"
            values[index] = None
            failures.append(Failure(index, ErrorCode.PAYLOAD_MISMATCH, why))
    return values, failures


def _written(value: bytes, old: Any, new: Any, *, renames: bool) -> bytes:
    """The datum in the new schema: as it is where it fits, else by Avro's resolution.

    Resolution alone would take the first branch of a union that a value can be promoted to, which
    no writer does; only it knows other names of a field.
    """
    # names of union branches are kept: records that look alike must not be taken for each other
    datum = fastavro.schemaless_reader(io.BytesIO(value), old, None, return_record_name=True)
    if renames or not fastavro.validate(datum, new, raise_errors=False):
        source = io.BytesIO(value)
        datum = fastavro.schemaless_reader(source, old, new, return_record_name=True)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, new, datum)
    return out.getvalue()


def _plain(schema: WriterSchema) -> Any:
    """The schema without logical types: bytes are carried over, whatever they stand for."""
    return fastavro.parse_schema(_without_logical(json.loads(schema.body)))


def _without_logical(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_logical(each) for each in node]
    if not isinstance(node, dict):
        return node
    # a default is a value, not a schema
    kept = {key: value for key, value in node.items() if key != "logicalType"}
    return {
        key: value if key in ("default", "symbols") else _without_logical(value)
        for key, value in kept.items()
    }
