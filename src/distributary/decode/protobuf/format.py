"""Protobuf as a payload format."""

from __future__ import annotations

import re

from distributary.decode.payload_format import PayloadFormat
from distributary.decode.protobuf.decoder import ProtobufDecoder
from distributary.decode.protobuf.wire import best_effort_text
from distributary.errors import ErrorCode
from distributary.model.record import Format, WriterSchema
from distributary.model.routing import Rejected
from distributary.registry.frames import message_by_index

_IMPORT = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?"([^"\n]+)"\s*;', re.MULTILINE)


def _message_at(schema: WriterSchema, path: tuple[int, ...]) -> str | Rejected:
    name = message_by_index(schema.body, path)
    if name is None:
        text = f"schema {schema.id} has no message at index {','.join(map(str, path))}"
        return Rejected(ErrorCode.BAD_MESSAGE_INDEX, text)
    return name


PROTOBUF = PayloadFormat(
    name="protobuf",
    title="Protobuf",
    language=Format.PROTOBUF,
    suffix=".proto",
    decoder=ProtobufDecoder,
    view=best_effort_text,
    many_messages=True,
    message_at=_message_at,
    imports=_IMPORT.findall,
)
