"""Avro as a payload format."""

from __future__ import annotations

import json

from distributary.decode.avro.decoder import AvroDecoder, best_effort_text
from distributary.decode.payload_format import PayloadFormat
from distributary.errors import ErrorCode
from distributary.model.record import Format, WriterSchema
from distributary.model.routing import Rejected


def _record_of_branch(schema: WriterSchema, path: tuple[int, ...]) -> str | Rejected:
    branch = path[0]
    if not 0 <= branch < len(schema.messages):
        return Rejected(ErrorCode.PAYLOAD_MISMATCH, f"schema {schema.id} has no branch {branch}")
    if not schema.messages[branch]:
        return Rejected(ErrorCode.NULL_VALUE, "the datum is the union's null")
    return schema.messages[branch]


def _is_record(schema: WriterSchema) -> bool:
    """Return true for a record: an array has several rows, a union several kinds of them."""
    top = json.loads(schema.body)
    return isinstance(top, dict) and top.get("type") == "record"


AVRO = PayloadFormat(
    name="avro",
    title="Avro",
    language=Format.AVRO,
    suffix=".avsc",
    decoder=AvroDecoder,
    view=best_effort_text,
    unions=True,
    needs_writer=True,
    bare_bytes="bytes",
    message_at=_record_of_branch,
    is_row=_is_record,
)
