"""Hop one, envelopes: the type named in a JSON field, a header, the key or a CloudEvent.

JSON with a known shape is not parsed at all: the regular expression of the shape finds its type.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import Mask, RefusedError
from distributary.decode.formats import FORMATS
from distributary.decode.json.format import JSON
from distributary.decode.json.known_shapes import Group, adding_nothing
from distributary.decode.message_fields import ENCODED, PAYLOAD, SCHEMA_ID, TYPE, Found
from distributary.errors import ErrorCode
from distributary.model.routing import EnvelopePlan
from distributary.registry.frames import header_contents
from distributary.stage.task_outputs import STRUCTURED, Letter

Rows = npt.NDArray[np.int64]

_MISSING = (
    ErrorCode.MISSING_TYPE,
    ErrorCode.MISSING_SCHEMA_ID,
    ErrorCode.MISSING_PAYLOAD,
    ErrorCode.MISSING_PAYLOAD,
)


@dataclass(slots=True)
class OpenedEnvelopes:
    """The types, schema ids and payloads of a batch's records, as columns with nulls."""

    rows: Rows
    """Positions in the raw batch."""
    claims: pa.StringArray
    ids: pa.Int64Array | None
    """The schema ids; None if no field names them."""
    payloads: pa.BinaryArray
    familiar: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    """Positions in the raw batch of records that add nothing to the known shape of their type."""

    @classmethod
    def none(cls) -> OpenedEnvelopes:
        """Return the result for no records."""
        texts = pa.array([], pa.string())
        return cls(np.zeros(0, np.int64), texts, texts.cast(pa.int64()), texts.cast(pa.binary()))


# Headers and keys.


def texts_in(place: str, raw: pa.RecordBatch, rows: Rows) -> pa.StringArray:
    """Read the key or a header, `{key}` or `{header:NAME}`; null if it is missing or no text.

    Of several headers with one name, the last one counts.
    """
    if place == "{key}":
        return _texts(taken(raw.column("key"), rows))
    name = place.removeprefix("{header:").removesuffix("}")
    return _texts(_header(raw, rows, name))


def _header(raw: pa.RecordBatch, rows: Rows, name: str) -> pa.BinaryArray:
    present, contents = header_contents(taken(raw.column("headers"), rows), name)
    where = np.full(len(rows), -1, np.int64)
    where[present] = np.arange(len(present))
    return contents.take(pa.array(where, mask=where < 0))


def _texts(contents: pa.BinaryArray) -> pa.StringArray:
    try:
        return contents.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(map(_text, contents.to_pylist()), pa.string())


def _text(content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def taken(array: pa.Array, rows: Rows) -> pa.Array:
    """Return some rows of an array; selecting all of them copies nothing."""
    return array if len(rows) == len(array) else array.take(pa.array(rows))


# Messages without a schema.

_ID = re.compile(r"[0-9]{1,10}")
_MOST_ID = 2**31 - 1

_KEPT = (ErrorCode.NESTING_TOO_DEEP, ErrorCode.DUPLICATE_KEY)


def open_messages(
    values: pa.BinaryArray,
    rows: Rows,
    letters: list[Letter],
    envelope: EnvelopePlan,
    claims: pa.StringArray | None = None,
    shape: Callable[[str], Mapping[str, Any]] | None = None,
    *,
    max_depth: int,
) -> OpenedEnvelopes:
    """Unwrap messages without a schema; `claims` are types that a header or the key has named.

    For JSON, `shape` returns the known shape of a type's messages, or an empty one.
    """
    inside = envelope.schema_id_field or envelope.payload_field
    if shape is not None and claims is None and not inside:
        known, types = _familiar_types(values, envelope.type_field, shape)
        if known.any():
            every, others = bool(known.all()), ~known
            mask = pa.array(known)
            known_rows = rows if every else rows[known]
            payloads = values if every else values.filter(mask)
            read = OpenedEnvelopes(known_rows, types.filter(mask), None, payloads, known_rows)
            if every:
                return read
            mask = pa.array(others)
            rest = open_messages(
                values.filter(mask), rows[others], letters, envelope, max_depth=max_depth
            )
            return joined([read, rest])
    paths = {SCHEMA_ID: envelope.schema_id_field}
    paths[ENCODED if envelope.base64 else PAYLOAD] = envelope.payload_field
    if claims is None:
        paths[TYPE] = envelope.type_field
    given = repeat(None) if claims is None else claims.to_pylist()
    paths = {what: path for what, path in paths.items() if path}
    return _open(values, rows, letters, paths, given, envelope.format, max_depth)


def _familiar_types(
    values: pa.BinaryArray, path: str, shape: Callable[[str], Mapping[str, Any]]
) -> tuple[Mask, pa.StringArray]:
    """Return a mask of the messages with a known shape, and the types that they name."""
    name = json.dumps(path.rpartition(".")[2])
    # The first occurrence of the name is a guess; the shape's expression only matches the right
    # one.
    guess = rf'{re.escape(name)}: ?"(?P<type>[ !#-\[\]-~]*)"'
    coded = pc.extract_regex(values, pattern=guess).field(0).dictionary_encode()
    types = coded.dictionary.cast(pa.string())
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(types) + 1))
    groups = [
        Group(order[ends[code] : ends[code + 1]], known, {path: claim})
        for code, claim in enumerate(types.to_pylist())
        if (known := shape(claim))
    ]
    return adding_nothing(values, groups), types.take(coded.indices)


def _open(
    values: pa.BinaryArray,
    rows: Rows,
    letters: list[Letter],
    paths: Mapping[int, str],
    given: Sequence[str | None] | Iterator[str | None],
    format: str,
    max_depth: int,
) -> OpenedEnvelopes:
    build = FORMATS[format].messages
    if build is None:
        raise ValueError(f"a message in {format} needs a schema")
    messages = build(paths, max_depth)
    whole = PAYLOAD not in paths and ENCODED not in paths
    kept: list[int] = []
    claims: list[str] = []
    ids: list[int] = []
    contents: list[bytes] = []
    # Not strict, because `given` may be an endless iterator.
    for place, (message, claim) in enumerate(zip(values.to_pylist(), given, strict=False)):
        schema_id: int | None = None
        try:
            fields = messages.read(message)
            claim = claim if TYPE not in paths else _claim(fields, paths)
            if SCHEMA_ID in paths:
                schema_id = _schema_id(fields, paths)
            content = message if whole else _payload(fields, paths)
        except RefusedError as refused:
            code = refused.code
            if not whole and code not in (*_KEPT, *_MISSING):
                code = ErrorCode.NOT_AN_ENVELOPE
            row = int(rows[place])
            letter = Letter(row, code, refused.reason, "unwrap", refused.position, claim, schema_id)
            letters.append(letter)
            continue
        kept.append(place)
        claims.append(claim or "")
        ids.append(schema_id or 0)
        contents.append(content)
    return OpenedEnvelopes(
        rows[np.array(kept, np.int64)],
        pa.array(claims, pa.string()),
        pa.array(ids, pa.int64()) if SCHEMA_ID in paths else None,
        pa.array(contents, pa.binary()),
    )


def _claim(fields: Found, paths: Mapping[int, str]) -> str:
    value, _ = fields.get(TYPE, (None, ""))
    if not isinstance(value, str):
        raise _missing(TYPE, paths, "is not text" if TYPE in fields else "is not set")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _missing(TYPE, paths, "has half a surrogate pair") from None
    return value


def _schema_id(fields: Found, paths: Mapping[int, str]) -> int:
    value, text = fields.get(SCHEMA_ID, (None, ""))
    digits = value if isinstance(value, str) else text
    if _ID.fullmatch(digits) and int(digits) <= _MOST_ID:
        return int(digits)
    raise _missing(SCHEMA_ID, paths, "is not an id" if SCHEMA_ID in fields else "is not set")


def _payload(fields: Found, paths: Mapping[int, str]) -> bytes:
    """Return the payload: bytes, the text of a string field, or the exact text of other values."""
    try:
        if ENCODED in fields:
            value, _ = fields[ENCODED]
            if not isinstance(value, str):
                raise _missing(ENCODED, paths, "is not base64 text")
            return binascii.a2b_base64(value.encode(), strict_mode=True)
        if PAYLOAD in fields:
            value, text = fields[PAYLOAD]
            if isinstance(value, bytes):
                return value
            return (value if isinstance(value, str) else text).encode()
    except UnicodeEncodeError:
        raise _missing(PAYLOAD, paths, "has half a surrogate pair") from None
    except binascii.Error:
        raise _missing(ENCODED, paths, "is not base64") from None
    raise _missing(PAYLOAD if PAYLOAD in paths else ENCODED, paths, "is not set")


def _missing(what: int, paths: Mapping[int, str], how: str) -> RefusedError:
    path = paths.get(what) or paths.get(ENCODED, "")
    return RefusedError(_MISSING[what], f"the field {path} {how}")


# Messages that a decoder has turned into columns.


def open_columns(
    batch: pa.RecordBatch,
    rows: Rows,
    envelope: EnvelopePlan,
    claims: pa.StringArray | None = None,
) -> OpenedEnvelopes:
    """Take the plan's fields from decoded columns; `claims` are types named outside."""
    if claims is None:
        claims = _column(batch, envelope.type_field)
        if not pa.types.is_string(claims.type):
            claims = pa.nulls(len(rows), pa.string())
    ids = _column(batch, envelope.schema_id_field) if envelope.schema_id_field else None
    payloads = _column(batch, envelope.payload_field)
    if not pa.types.is_binary(payloads.type):
        text = pa.types.is_string(payloads.type)
        payloads = payloads.cast(pa.binary()) if text else pa.nulls(len(rows), pa.binary())
    if envelope.base64:
        payloads = pa.array(map(_bytes, payloads.to_pylist()), pa.binary())
    return OpenedEnvelopes(rows, claims, None if ids is None else _ids(ids), payloads)


def _column(batch: pa.RecordBatch, path: str) -> pa.Array:
    """Return a field of each message; null if an older version of the schema lacks it."""
    column = batch.to_struct_array()
    for name in path.split("."):
        if not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
            return pa.nulls(batch.num_rows)
        column = pc.struct_field(column, [name])
    return column


def _ids(column: pa.Array) -> pa.Int64Array:
    """Return schema ids as integers; invalid ids are null."""
    if pa.types.is_string(column.type):
        good = pc.match_substring_regex(column, f"^{_ID.pattern}$")
        return pc.if_else(good, column, pa.scalar(None, pa.string())).cast(pa.int64())
    if pa.types.is_decimal(column.type):
        # Unsigned numbers of 64 bits come as decimals; the larger ones are no ids.
        good = pc.less_equal(column.cast(pa.float64()), _MOST_ID)
        return pc.if_else(good, column, pa.scalar(None, column.type)).cast(pa.int64())
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64(), safe=False)
    return pa.nulls(len(column), pa.int64())


def _bytes(text: bytes | None) -> bytes | None:
    try:
        return None if text is None else binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        return None


# CloudEvents, in the form of the Kafka protocol binding.

_CLOUD_PATHS = {TYPE: "type", PAYLOAD: "data", ENCODED: "data_base64"}


def open_cloud_events(
    raw: pa.RecordBatch, rows: Rows, letters: list[Letter], *, max_depth: int
) -> OpenedEnvelopes:
    """Unwrap CloudEvents in structured mode, whose value is the whole event, and in binary mode."""
    values = taken(raw.column("value"), rows)
    types = _header(raw, rows, "ce_type")
    media = _header(raw, rows, "content-type")
    structured = pc.fill_null(pc.starts_with(media, pattern=STRUCTURED, ignore_case=True), False)
    inside = pc.or_(structured, types.is_null()).to_numpy(zero_copy_only=False)
    places = np.flatnonzero(~inside)
    names = _texts(taken(types, places))
    named = names.is_valid().to_numpy(zero_copy_only=False)
    for row in rows[places[~named]].tolist():
        letters.append(Letter(row, ErrorCode.MISSING_TYPE, "ce_type is not text", "unwrap"))
    binary = OpenedEnvelopes(
        rows[places[named]], names.filter(pa.array(named)), None, taken(values, places[named])
    )
    whole_events = np.flatnonzero(inside)
    if not len(whole_events):
        return binary
    messages = taken(values, whole_events)
    events = _open(
        messages, rows[whole_events], letters, _CLOUD_PATHS, repeat(None), JSON.name, max_depth
    )
    return joined([binary, events])


def joined(parts: Sequence[OpenedEnvelopes]) -> OpenedEnvelopes:
    """Join parts of one batch, in the order of its records."""
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows, kind="stable")
    ids = [part.ids for part in parts if part.ids is not None]
    in_order = pa.array(order)
    return OpenedEnvelopes(
        rows[order],
        pa.concat_arrays([part.claims for part in parts]).take(in_order),
        pa.concat_arrays(ids).take(in_order) if ids else None,
        pa.concat_arrays([part.payloads for part in parts]).take(in_order),
        np.concatenate([part.familiar for part in parts]),
    )
