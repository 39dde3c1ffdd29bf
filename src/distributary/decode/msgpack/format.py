"""MessagePack as a payload format: records without a schema, read as JSON is."""

from __future__ import annotations

from distributary.decode.json.decoder import JsonDecoder
from distributary.decode.msgpack.msgpack_text import (
    MsgpackMessages,
    best_effort_text,
    json_texts,
    parse,
)
from distributary.decode.payload_format import PayloadFormat
from distributary.model.record import Format

MSGPACK = PayloadFormat(
    name="msgpack",
    title="MessagePack",
    language=Format.JSON,
    suffix="",
    decoder=JsonDecoder,
    view=best_effort_text,
    as_json=json_texts,
    messages=MsgpackMessages,
    parse=parse,
    needs_schema=False,
    names_records=False,
)
