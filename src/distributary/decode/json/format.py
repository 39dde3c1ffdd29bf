"""JSON as a payload format."""

from __future__ import annotations

from distributary.decode.format import PayloadFormat
from distributary.decode.json.decoder import JsonDecoder
from distributary.decode.json.fields import JsonMessages
from distributary.decode.json.text import best_effort_text, parse
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
