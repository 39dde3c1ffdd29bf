"""Hop one: where records name their type: a field of JSON, a header, the key, a CloudEvent.

JSON is read no further than needed: members that nobody asks for are passed over, and a payload in
its place is the text as it stands there, so that no number changes. Messages that look like those
before them are not read at all: the expression of their shape says which type they name.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import Mask, RefusedError
from distributary.decode.json.pattern import familiar
from distributary.decode.json.text import parse
from distributary.errors import ErrorCode
from distributary.model.plan import EnvelopePlan
from distributary.registry.wire import header_contents
from distributary.stage.files import STRUCTURED, Letter

Rows = npt.NDArray[np.int64]

TYPE, SCHEMA_ID, PAYLOAD, ENCODED = range(4)
"""What is looked for in a message; the last is a payload in base64."""
_MISSING = (
    ErrorCode.MISSING_TYPE,
    ErrorCode.MISSING_SCHEMA_ID,
    ErrorCode.MISSING_PAYLOAD,
    ErrorCode.MISSING_PAYLOAD,
)


@dataclass(slots=True)
class Opened:
    """What the records of a batch say about themselves, column-wise, nulls where they do not."""

    rows: Rows
    """Positions in the raw batch."""
    claims: pa.StringArray
    ids: pa.Int64Array | None
    """None where no field names schema ids."""
    payloads: pa.BinaryArray
    familiar: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    """Positions in the raw batch of records that add nothing to the shape of their type."""

    @classmethod
    def none(cls) -> Opened:
        """What no records say."""
        texts = pa.array([], pa.string())
        return cls(np.zeros(0, np.int64), texts, texts.cast(pa.int64()), texts.cast(pa.binary()))


# Headers and keys.


def texts_in(place: str, raw: pa.RecordBatch, rows: Rows) -> pa.StringArray:
    """The content of the key or of a header, `{key}` or `{header:NAME}`; null where it is no text.

    Of several headers of a name the last one counts.
    """
    if place == "{key}":
        return _texts(taken(raw.column("key"), rows))
    name = place.removeprefix("{header:").removesuffix("}")
    return _texts(_header(raw, rows, name))


def _header(raw: pa.RecordBatch, rows: Rows, name: str) -> pa.BinaryArray:
    found, contents = header_contents(taken(raw.column("headers"), rows), name)
    where = np.full(len(rows), -1, np.int64)
    where[found] = np.arange(len(found))
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
    """Some rows of an array; all of them cost nothing."""
    return array if len(rows) == len(array) else array.take(pa.array(rows))


# JSON messages.


@dataclass(slots=True)
class _Node:
    """A member of an object: what it is, and which of its own members are looked for."""

    found: int | None = None
    members: dict[str, _Node] = field(default_factory=dict)


def _tree(paths: Mapping[int, str]) -> _Node:
    root = _Node()
    for what, path in paths.items():
        node = root
        for name in path.split("."):
            node = node.members.setdefault(name, _Node())
        node.found = what
    return root


# numbers are only passed over: `len` makes none of them, however many digits they have
_PASS: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder(
    parse_int=len, parse_float=len, parse_constant=len
).scan_once  # type: ignore[attr-defined]
_BLANK = re.compile(r"[ \t\n\r]*")
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_MEMBER = re.compile(r'[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*').match
_AFTER = re.compile(r"[ \t\n\r]*([,}])").match
_EMPTY = re.compile(r"[ \t\n\r]*}").match
_ID = re.compile(r"[0-9]{1,10}")
_MOST_ID = 2**31 - 1

Found = dict[int, tuple[Any, str]]
"""What was found: each value, and the text that it stands as."""


class JsonMessages:
    """Looks for the fields of a plan in JSON messages."""

    def __init__(self, paths: Mapping[int, str], *, max_depth: int) -> None:
        self._paths = paths
        self._max_depth = max_depth
        self._tree = _tree(paths)
        own = PAYLOAD not in paths and ENCODED not in paths
        self._whole = own
        """Whether a message is its own payload: then nobody needs the place of anything in it."""

    def read(self, message: bytes) -> Found:
        """What a message says; RefusedError if it is no JSON object."""
        try:
            return self._walked(message) if self._whole else self._scanned(message)
        except (ValueError, StopIteration, RecursionError, IndexError) as error:
            # once more, to find out what exactly is wrong
            parse(message, max_depth=self._max_depth)
            raise RefusedError(ErrorCode.NOT_JSON, "the message is not JSON") from error

    def _walked(self, message: bytes) -> Found:
        document = orjson.loads(message)
        if not isinstance(document, dict):
            raise RefusedError(ErrorCode.NOT_AN_ENVELOPE, "the message is no JSON object", 0)
        found: Found = {}
        for what, path in self._paths.items():
            value: Any = document
            for name in path.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                found[what] = value, str(value)
        return found

    def _scanned(self, message: bytes) -> Found:
        text = message.decode()
        start = _after(_BLANK, text, 0)
        if text[start : start + 1] != "{":
            parse(message, max_depth=self._max_depth)
            raise RefusedError(ErrorCode.NOT_AN_ENVELOPE, "the message is no JSON object", 0)
        found: Found = {}
        end = _scan(text, start, self._tree, found)
        if _after(_BLANK, text, end) != len(text):
            raise ValueError("something stands behind the object")
        return found


def _scan(text: str, start: int, node: _Node, found: Found) -> int:
    """Pass over an object, and note what is looked for in it; the place behind it."""
    place = start + 1
    members = node.members
    empty = _EMPTY(text, place)
    if empty is not None:
        return empty.end()
    while True:
        named = _MEMBER(text, place)
        name, place = (named[1], named.end()) if named is not None else _name(text, place)
        member = members.get(name)
        if member is None:
            _, end = _PASS(text, place)
        else:
            value: Any = None
            if member.members and text[place] == "{":
                end = _scan(text, place, member, found)
                value = {}
            else:
                value, end = _PASS(text, place)
            if member.found is not None:
                if member.found in found:
                    raise RefusedError(ErrorCode.DUPLICATE_KEY, f"{name} stands twice")
                if value is not None:
                    found[member.found] = value, text[place:end]
        after = _AFTER(text, end)
        if after is None:
            raise ValueError("a comma or an end was expected")
        place = after.end()
        if after[1] == "}":
            return place


def _name(text: str, place: int) -> tuple[str, int]:
    """A member's name that has escapes in it, and where its value begins."""
    place = _after(_BLANK, text, place)
    if text[place] != '"':
        raise ValueError("a name was expected")
    name, end = scanstring(text, place + 1, True)
    colon = _COLON.match(text, end)
    if colon is None:
        raise ValueError("a colon was expected")
    return name, colon.end()


def _after(blank: re.Pattern[str], text: str, place: int) -> int:
    matched = blank.match(text, place)
    return place if matched is None else matched.end()


_KEPT = (ErrorCode.NESTING_TOO_DEEP, ErrorCode.DUPLICATE_KEY)


def open_json(
    values: pa.BinaryArray,
    rows: Rows,
    letters: list[Letter],
    envelope: EnvelopePlan,
    claims: pa.StringArray | None = None,
    shape: Callable[[str], Mapping[str, Any]] = lambda claim: {},
    *,
    max_depth: int,
) -> Opened:
    """The parts of JSON messages; types may be known already, from a header or the key.

    `shape` gives what messages of a type look like, where anybody knows.
    """
    if claims is None and not envelope.schema_id_field and not envelope.payload_field:
        known, types = _familiar_types(values, envelope.type_field, shape)
        if known.any():
            every, others = bool(known.all()), ~known
            mask = pa.array(known)
            found = rows if every else rows[known]
            payloads = values if every else values.filter(mask)
            read = Opened(found, types.filter(mask), None, payloads, found)
            if every:
                return read
            mask = pa.array(others)
            rest = open_json(
                values.filter(mask), rows[others], letters, envelope, max_depth=max_depth
            )
            return joined([read, rest])
    paths = {SCHEMA_ID: envelope.schema_id_field}
    paths[ENCODED if envelope.base64 else PAYLOAD] = envelope.payload_field
    if claims is None:
        paths[TYPE] = envelope.type_field
    given = repeat(None) if claims is None else claims.to_pylist()
    paths = {what: path for what, path in paths.items() if path}
    return _open(values, rows, letters, paths, given, max_depth=max_depth)


def _familiar_types(
    values: pa.BinaryArray, path: str, shape: Callable[[str], Mapping[str, Any]]
) -> tuple[Mask, pa.StringArray]:
    """Which messages look like those before them, and the types that they name."""
    known = np.zeros(len(values), np.bool_)
    name = json.dumps(path.rpartition(".")[2])
    # where the name stands first is only a guess: the expression is true for its own place alone
    guess = rf'{re.escape(name)}: ?"(?P<type>[ !#-\[\]-~]*)"'
    coded = pc.extract_regex(values, pattern=guess).field(0).dictionary_encode()
    types = coded.dictionary.cast(pa.string())
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(types) + 1))
    for code, claim in enumerate(types.to_pylist()):
        form = shape(claim)
        if form:
            places = order[ends[code] : ends[code + 1]]
            known[places] = familiar(taken(values, places), form, {path: claim})
    return known, types.take(coded.indices)


def _open(
    values: pa.BinaryArray,
    rows: Rows,
    letters: list[Letter],
    paths: Mapping[int, str],
    given: Sequence[str | None] | Iterator[str | None],
    *,
    max_depth: int,
) -> Opened:
    messages = JsonMessages(paths, max_depth=max_depth)
    whole = PAYLOAD not in paths and ENCODED not in paths
    kept: list[int] = []
    claims: list[str] = []
    ids: list[int] = []
    contents: list[bytes] = []
    # a number of its own, because types from elsewhere may never end
    for place, (message, claim) in enumerate(zip(values.to_pylist(), given, strict=False)):
        schema_id: int | None = None
        try:
            found = messages.read(message)
            claim = claim if TYPE not in paths else _claim(found, paths)
            if SCHEMA_ID in paths:
                schema_id = _schema_id(found, paths)
            content = message if whole else _payload(found, paths)
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
    return Opened(
        rows[np.array(kept, np.int64)],
        pa.array(claims, pa.string()),
        pa.array(ids, pa.int64()) if SCHEMA_ID in paths else None,
        pa.array(contents, pa.binary()),
    )


def _claim(found: Found, paths: Mapping[int, str]) -> str:
    value, _ = found.get(TYPE, (None, ""))
    if not isinstance(value, str):
        raise _missing(TYPE, paths, "is not text" if TYPE in found else "is not set")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _missing(TYPE, paths, "has half a surrogate pair") from None
    return value


def _schema_id(found: Found, paths: Mapping[int, str]) -> int:
    value, text = found.get(SCHEMA_ID, (None, ""))
    digits = value if isinstance(value, str) else text
    if _ID.fullmatch(digits) and int(digits) <= _MOST_ID:
        return int(digits)
    raise _missing(SCHEMA_ID, paths, "is not an id" if SCHEMA_ID in found else "is not set")


def _payload(found: Found, paths: Mapping[int, str]) -> bytes:
    """The payload: text of a field, or what stands in its place, as it stands there."""
    try:
        if ENCODED in found:
            value, _ = found[ENCODED]
            if not isinstance(value, str):
                raise _missing(ENCODED, paths, "is not base64 text")
            return binascii.a2b_base64(value.encode(), strict_mode=True)
        if PAYLOAD in found:
            value, text = found[PAYLOAD]
            return (value if isinstance(value, str) else text).encode()
    except UnicodeEncodeError:
        raise _missing(PAYLOAD, paths, "has half a surrogate pair") from None
    except binascii.Error:
        raise _missing(ENCODED, paths, "is not base64") from None
    raise _missing(PAYLOAD if PAYLOAD in paths else ENCODED, paths, "is not set")


def _missing(what: int, paths: Mapping[int, str], how: str) -> RefusedError:
    path = paths.get(what) or paths.get(ENCODED, "")
    return RefusedError(_MISSING[what], f"the field {path} {how}")


# Messages that a decoder has made columns of.


def open_columns(
    batch: pa.RecordBatch,
    rows: Rows,
    envelope: EnvelopePlan,
    claims: pa.StringArray | None = None,
) -> Opened:
    """The columns of a plan's fields; types may be known already, from a header or the key."""
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
    return Opened(rows, claims, None if ids is None else _ids(ids), payloads)


def _column(batch: pa.RecordBatch, path: str) -> pa.Array:
    """A field of each message; null where an older version of the schema does not have it."""
    column = batch.to_struct_array()
    for name in path.split("."):
        if not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
            return pa.nulls(batch.num_rows)
        column = pc.struct_field(column, [name])
    return column


def _ids(column: pa.Array) -> pa.Int64Array:
    """Schema ids; what is none is null."""
    if pa.types.is_string(column.type):
        good = pc.match_substring_regex(column, f"^{_ID.pattern}$")
        return pc.if_else(good, column, pa.scalar(None, pa.string())).cast(pa.int64())
    if pa.types.is_decimal(column.type):
        # unsigned numbers of 64 bits, the larger of which are no ids
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


# CloudEvents, as the binding for Kafka has them.

_CLOUD_PATHS = {TYPE: "type", PAYLOAD: "data", ENCODED: "data_base64"}


def open_cloud_events(
    raw: pa.RecordBatch, rows: Rows, letters: list[Letter], *, max_depth: int
) -> Opened:
    """Events in structured mode, whose value is all of the event, and in binary mode."""
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
    binary = Opened(
        rows[places[named]], names.filter(pa.array(named)), None, taken(values, places[named])
    )
    own = np.flatnonzero(inside)
    if not len(own):
        return binary
    messages = taken(values, own)
    events = _open(messages, rows[own], letters, _CLOUD_PATHS, repeat(None), max_depth=max_depth)
    return joined([binary, events])


def joined(parts: Sequence[Opened]) -> Opened:
    """Parts of one batch, in the order of its records."""
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows, kind="stable")
    ids = [part.ids for part in parts if part.ids is not None]
    in_order = pa.array(order)
    return Opened(
        rows[order],
        pa.concat_arrays([part.claims for part in parts]).take(in_order),
        pa.concat_arrays(ids).take(in_order) if ids else None,
        pa.concat_arrays([part.payloads for part in parts]).take(in_order),
        np.concatenate([part.familiar for part in parts]),
    )
