"""A payload format that a user writes: a function that parses a payload to Python values.

Its records have no schema: columns come from the values, as for JSON without a schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

from distributary.decode.base import RefusedError, json_texts_of
from distributary.decode.json.decoder import JsonDecoder
from distributary.decode.json.format import JSON
from distributary.decode.payload_format import PayloadFormat
from distributary.decode.payload_view import view_of, view_of_bytes
from distributary.errors import ErrorCode
from distributary.model.deadletter import Failure
from distributary.model.record import Format

Read = Callable[[bytes], Mapping[str, Any]]
"""Reads one payload; what it raises makes the record a dead letter."""

_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NAIVE_UTC


def values_format(name: str, title: str, read: Read) -> PayloadFormat:
    """Return the entry of a format whose payloads a function reads.

    Values are what JSON has, and times and dates, which become texts. `title` is for people.
    """
    return PayloadFormat(
        name=name,
        title=title,
        language=Format.JSON,
        suffix="",
        decoder=JsonDecoder,
        view=partial(_view, read, title),
        as_json=partial(_json_texts, read, title),
        parse=partial(_parse, read, title),
        needs_schema=False,
        names_records=False,
    )


def _json_texts(
    read: Read, title: str, payloads: pa.BinaryArray, max_depth: int
) -> tuple[pa.BinaryArray, list[Failure]]:
    return json_texts_of(payloads, partial(_json_text, read, title))


def _parse(read: Read, title: str, data: bytes, *, max_depth: int) -> Any:
    if JSON.parse is None:
        raise AssertionError("JSON is read without a schema")
    return JSON.parse(_json_text(read, title, data), max_depth=max_depth)


def _json_text(read: Read, title: str, data: bytes) -> bytes:
    try:
        return orjson.dumps(read(data), option=_OPTIONS)
    except Exception as error:
        # the text of an exception may quote the payload, which messages must not
        reason = f"the payload is not {title}: {type(error).__name__}"
        raise RefusedError(ErrorCode.PAYLOAD_MISMATCH, reason) from error


def _view(read: Read, title: str, body: bytes | None, message: str, payload: bytes) -> str:
    try:
        text = orjson.dumps(read(payload), option=_OPTIONS | orjson.OPT_INDENT_2).decode()
    except Exception as error:
        return view_of_bytes(payload, f"cannot be read: {error}")
    return view_of(text)
