"""JSON as a payload format."""

from __future__ import annotations

from distributary.decode.json.decoder import JsonDecoder
from distributary.decode.json.fields import JsonMessages
from distributary.decode.json.json_text import best_effort_text, parse
from distributary.decode.payload_format import PayloadFormat
from distributary.model.record import Format

JSON = PayloadFormat(
    name="json",
    title="JSON",
    language=Format.JSON,
    suffix=".json",
    decoder=JsonDecoder,
    view=best_effort_text,
    parse=parse,
    messages=JsonMessages,
    needs_schema=False,
    names_records=False,
)
