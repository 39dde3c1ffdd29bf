"""MessagePack values as JSON texts, from which nothing is lost.

JSON lacks three things that MessagePack has: bytes become base64, timestamps become RFC 3339 in
UTC, and NaN and the infinities become texts. Integers keep all of their 64 bits. The rest is
refused as in JSON: names that stand twice, texts that are not UTF-8, and bytes behind the value.
Names that are not text are refused too, and extensions, which only their producer understands.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgpack
import orjson
import pyarrow as pa

from distributary.decode.base import RefusedError, json_number, json_texts_of
from distributary.decode.message_fields import ENCODED, PAYLOAD, Found
from distributary.decode.msgpack.bytes import check, is_suspicious
from distributary.decode.payload_view import view_of, view_of_bytes
from distributary.errors import ErrorCode
from distributary.model.deadletter import Failure

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]|\xca[\x7f\xff][\x80-\xff]")
"""The bytes of every NaN and infinity, and sometimes of other things."""
_VIEW_DEPTH = 100


def parse(data: bytes, *, max_depth: int) -> Any:
    """Parse a payload to Python's values; raise `RefusedError` with the reason."""
    if is_suspicious(data, max_depth):
        check(data, max_depth)
    try:
        return msgpack.unpackb(
            data,
            object_pairs_hook=_members,
            ext_hook=_extension,
            timestamp=0,
        )
    except RefusedError:
        raise
    except Exception as error:
        # the library raises errors of many types; our own reading finds the reason and the place
        check(data, max_depth)
        reason = "the payload is not MessagePack"
        raise RefusedError(ErrorCode.NOT_MSGPACK, reason) from error


def _members(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise RefusedError(ErrorCode.DUPLICATE_KEY, "a map has a name twice")
    return members


def _extension(code: int, data: bytes) -> Any:
    reason = f"a value has the extension type {code}, whose meaning is unknown"
    raise RefusedError(ErrorCode.UNKNOWN_EXTENSION, reason)


def json_text(data: bytes, *, max_depth: int) -> bytes:
    """Return a payload as JSON text; raise `RefusedError` with the reason."""
    value = parse(data, max_depth=max_depth)
    try:
        text = orjson.dumps(value, default=_plain)
        if b"null" in text and _NOT_FINITE.search(data):
            text = orjson.dumps(_with_texts(value), default=_plain)
    except orjson.JSONEncodeError as error:
        if isinstance(error.__cause__, RefusedError):
            raise error.__cause__ from None
        check(data, max_depth)
        reason = "arrays and maps nest too deep"
        raise RefusedError(ErrorCode.NESTING_TOO_DEEP, reason) from None
    return text


def _plain(value: Any) -> str:
    """Return the text of a value that JSON lacks."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, msgpack.Timestamp):
        return _moment(value)
    raise TypeError(type(value).__name__)


def _moment(value: msgpack.Timestamp) -> str:
    try:
        second = _EPOCH + timedelta(seconds=value.seconds)
    except OverflowError:
        reason = "a timestamp is not in the years 1 to 9999"
        raise RefusedError(ErrorCode.VALUE_OUT_OF_RANGE, reason) from None
    text = second.replace(tzinfo=None).isoformat()
    fraction = f".{value.nanoseconds:09}".rstrip("0") if value.nanoseconds else ""
    return f"{text}{fraction}Z"


def _with_texts(value: Any) -> Any:
    """Return a value with texts in place of NaN and the infinities."""
    match value:
        case float():
            return json_number(value)
        case list():
            return [_with_texts(item) for item in value]
        case dict():
            return {name: _with_texts(member) for name, member in value.items()}
    return value


def json_texts(payloads: pa.BinaryArray, max_depth: int) -> tuple[pa.BinaryArray, list[Failure]]:
    """Return payloads as JSON texts, null for those that cannot be read, and the failures."""
    return json_texts_of(payloads, partial(json_text, max_depth=max_depth))


class MsgpackMessages:
    """A reader that finds the fields of a plan in messages that are maps."""

    def __init__(self, paths: Mapping[int, str], max_depth: int) -> None:
        self._paths = {kind: path.split(".") for kind, path in paths.items()}
        self._max_depth = max_depth

    def read(self, message: bytes) -> Found:
        """Find the fields in a message; raise `RefusedError` if it is no map."""
        content = parse(message, max_depth=self._max_depth)
        if not isinstance(content, dict):
            raise RefusedError(ErrorCode.NOT_AN_ENVELOPE, "the message is not a map", 0)
        fields: Found = {}
        for kind, path in self._paths.items():
            value: Any = content
            for name in path:
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                if kind == PAYLOAD and not isinstance(value, str | bytes):
                    value = self._packed(value, message)
                fields[kind] = value, "" if kind in (PAYLOAD, ENCODED) else str(value)
        return fields

    def _packed(self, value: Any, message: bytes) -> bytes:
        """Return a value inside of a message as a payload of its own."""
        try:
            packed: bytes = msgpack.packb(value)
        except ValueError:
            check(message, self._max_depth)
            reason = "arrays and maps nest too deep"
            raise RefusedError(ErrorCode.NESTING_TOO_DEEP, reason) from None
        return packed


def best_effort_text(body: bytes | None, message: str, payload: bytes) -> str:
    """Return the payload as JSON with one value a line, or its bytes and the reason for them."""
    try:
        content = json.loads(json_text(payload, max_depth=_VIEW_DEPTH))
    except RefusedError as refused:
        where = "" if refused.position is None else f" at byte {refused.position}"
        return view_of_bytes(payload, f"cannot be read{where}: {refused.reason}")
    return view_of(json.dumps(content, indent=2, ensure_ascii=False))
