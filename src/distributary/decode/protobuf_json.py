"""Messages without fixed columns as JSON text, by protobuf's own JSON mapping.

The text is what `google.protobuf.json_format` gives with the schema's field names, with two
additions that keep a record instead of refusing it: an `Any` whose type is not known, or whose
value does not parse as that type, becomes `{"@type": ..., "value": <base64>}`.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError as ParseError
from google.protobuf.message_factory import GetMessageClass

from distributary.decode.protobuf_descriptors import (
    OFFICIAL_MAX_DEPTH,
    find_message,
    is_map,
    message_class,
)
from distributary.decode.protobuf_ranges import UnfitValueError
from distributary.errors import ErrorCode

_ANY = "google.protobuf.Any"
_OFFICIAL = {
    f"google.protobuf.{name}"
    for name in (
        "BoolValue BytesValue DoubleValue Duration FieldMask FloatValue Int32Value Int64Value "
        "ListValue StringValue Struct Timestamp UInt32Value UInt64Value Value"
    ).split()
}
_TEXT_NUMBERS = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


class JsonText:
    """Renders messages of one descriptor set."""

    def __init__(self, pool: DescriptorPool) -> None:
        self._pool = pool
        self._classes: dict[str, Any] = {}

    def render(self, message: str, data: bytes) -> str:
        """One serialized message as compact JSON.

        Raises:
            UnfitValueError: When the JSON mapping has no text for a value in it.
        """
        cls = self._classes.get(message)
        if cls is None:
            cls = self._classes[message] = message_class(find_message(self._pool, message))
        try:
            value = self._message(cls.FromString(data), 0)
        except ParseError as error:
            reason = f"the {message} in it does not parse"
            raise UnfitValueError(ErrorCode.PAYLOAD_MISMATCH, reason) from error
        except UnicodeDecodeError as error:
            # from the keys of a map: those the runtime does not give as bytes
            reason = f"the {message} in it holds text that is not UTF-8"
            raise UnfitValueError(ErrorCode.INVALID_UTF8, reason) from error
        except RecursionError as error:
            reason = f"the {message} in it nests too deep for JSON text"
            raise UnfitValueError(ErrorCode.NESTING_TOO_DEEP, reason) from error
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def _message(self, message: Any, depth: int) -> Any:
        name = message.DESCRIPTOR.full_name
        if name == _ANY:
            return self._any(message, depth)
        if name in _OFFICIAL:
            return _official(message, name)
        return self._fields(message, depth)

    def _fields(self, message: Any, depth: int) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for field, value in message.ListFields():
            name = f"[{field.full_name}]" if field.is_extension else field.name
            if is_map(field):
                item = field.message_type.fields_by_name["value"]
                content[name] = {
                    _key(field, key): self._item(item, value[key], depth) for key in value
                }
            elif field.is_repeated:
                content[name] = [self._item(field, each, depth) for each in value]
            else:
                content[name] = self._item(field, value, depth)
        return content

    def _item(self, field: FieldDescriptor, value: Any, depth: int) -> Any:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            return self._message(value, depth + 1)
        return _scalar(field, value)

    def _any(self, message: Any, depth: int) -> dict[str, Any]:
        if not message.ListFields():
            return {}
        url, data = _utf8(message.DESCRIPTOR.fields[0], message.type_url), message.value
        content = self._unpacked(url, data) if depth < OFFICIAL_MAX_DEPTH else None
        if content is None:
            return {"@type": url, "value": b64encode(data).decode("ascii")}
        name = content.DESCRIPTOR.full_name
        if name == _ANY or name in _OFFICIAL:
            return {"@type": url, "value": self._message(content, depth + 1)}
        return {"@type": url, **self._fields(content, depth + 1)}

    def _unpacked(self, url: str, data: bytes) -> Any | None:
        try:
            descriptor = self._pool.FindMessageTypeByName(url.rpartition("/")[2])
            return GetMessageClass(descriptor).FromString(data)
        except (KeyError, ParseError):
            return None


def _official(message: Any, name: str) -> Any:
    try:
        return json_format.MessageToDict(message, preserving_proto_field_name=True)
    except RecursionError:
        raise
    except Exception as error:
        # the runtime quotes the value in its message, which must not leave with the failure
        reason = f"a {name} in it has a value that JSON text cannot hold"
        raise UnfitValueError(ErrorCode.VALUE_OUT_OF_RANGE, reason) from error


def _key(field: FieldDescriptor, key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(_utf8(field, key))


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b64encode(value).decode("ascii")
    if field.enum_type is not None:
        if field.enum_type.full_name == "google.protobuf.NullValue":
            return None
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.cpp_type in _TEXT_NUMBERS:
        return str(value)
    if isinstance(value, float):
        return _number(value, single=field.type == FieldDescriptor.TYPE_FLOAT)
    return _utf8(field, value)


def _number(value: float, *, single: bool) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return _shortest(value) if single else value


def _shortest(value: float) -> float:
    # the fewest digits that give the same 32 bits: 0.1, not 0.10000000149011612
    candidates = (float(f"{value:.{digits}g}") for digits in (6, 7, 8, 9))
    return next((c for c in candidates if np.float32(c) == value), value)


def _utf8(field: FieldDescriptor, value: Any) -> Any:
    # the parser checks the text of proto3 only; the runtime gives what is not UTF-8 as bytes
    if isinstance(value, bytes):
        reason = f"field {field.full_name} holds text that is not UTF-8"
        raise UnfitValueError(ErrorCode.INVALID_UTF8, reason)
    return value
