"""JSON texts, parsed more strictly than usual and written without losing a digit.

A payload is one JSON value in UTF-8, by RFC 8259: no NaN, and nothing after the value. An object
with a repeated name is refused too, because readers disagree on its meaning.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import RefusedError
from distributary.decode.payload_view import VIEW_CHARACTERS, view_of
from distributary.errors import ErrorCode

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_BLANK = re.compile(r"[ \t\n\r]*")
_LITERALS = ("true", "false", "null", "-")
_DUMPS = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise RefusedError(ErrorCode.DUPLICATE_KEY, "an object has a name twice")
    return members


def _constant(name: str) -> None:
    reason = f"{name} is not a number in JSON"
    raise RefusedError(ErrorCode.INVALID_NUMBER, reason)


def _number(text: str) -> float | Decimal:
    """Return a double if it keeps every digit of the text, else a decimal."""
    number = float(text)
    if repr(number) == text:
        return number
    if math.isinf(number):
        reason = "a number is beyond what a double can hold"
        raise RefusedError(ErrorCode.VALUE_OUT_OF_RANGE, reason)
    # a number too small for a double is 0, as in other JSON readers
    exact = Decimal(text) if number else Decimal(0)
    return number if exact == Decimal(repr(number)) else exact


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_float=_number
)


# Most payloads are plain, and orjson parses them five times as fast. It keeps the last of two
# members with one name, and 64 bits of a number. Its result is used only where nothing is lost.

_QUOTE = b"\\u0022"
_DIGITS = "|".join(rf"[0-9]{{{left}}}\.[0-9]{{{16 - left}}}" for left in range(1, 16))
_IN_DOUBT = (
    # numbers with an exponent, with more digits than 64 bits or any double keep, and minus zero
    rf"(?:^|[\s:,\[])-?(?:[0-9]+(?:\.[0-9]+)?[eE]|[0-9]{{19}}|[0-9]{{16,}}\.|{_DIGITS})"
    r"|-0(?:[^0-9.]|$)"
)


def plain_numbers(texts: pa.BinaryArray) -> list[bool]:
    """Return, for each text, True if all JSON readers read its numbers alike."""
    doubtful = pc.match_substring_regex(texts, _IN_DOUBT)
    plain: list[bool] = pc.invert(doubtful).to_pylist()
    return plain


def parse(data: bytes, *, max_depth: int, plain: bool = False) -> Any:
    """Parse a payload; numbers that no double holds exactly become decimals.

    `plain` means that `plain_numbers` is true for the payload.
    """
    if data.count(b"{") + data.count(b"[") <= max_depth:
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            return parse_strictly(data, max_depth=max_depth)
        written = orjson.dumps(value)
        if written == data or (plain and _same_members(data, written)):
            return value
    return parse_strictly(data, max_depth=max_depth)


def _same_members(data: bytes, written: bytes) -> bool:
    """Return True if a parsed and rewritten text has lost no member.

    A dropped member takes its quotes with it. Quotes inside strings count in both texts, unless
    they are written as a numeric escape.
    """
    return data.count(b'"') == written.count(b'"') and _QUOTE not in data


def parse_strictly(data: bytes, *, max_depth: int) -> Any:
    """Parse any payload, or raise `RefusedError` with the reason."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        reason = "the payload is not UTF-8"
        raise RefusedError(ErrorCode.INVALID_UTF8, reason, error.start) from None
    if text.count("{") + text.count("[") > max_depth:
        _check_depth(text, max_depth)
    try:
        value, end = _DECODER.raw_decode(text, _after_blank(text, 0))
    except json.JSONDecodeError as error:
        raise _syntax(text, error) from None
    except ValueError:
        # Python refuses to convert integers of thousands of digits
        reason = "an integer has too many digits"
        raise RefusedError(ErrorCode.VALUE_OUT_OF_RANGE, reason) from None
    end = _after_blank(text, end)
    if end != len(text):
        reason = "the payload continues after its value"
        raise RefusedError(ErrorCode.TRAILING_BYTES, reason, _bytes_before(text, end))
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(value)
    return value


_WRITTEN_OTHERWISE = re.compile(rb"[0-9][eE]|0\.0000")
"""Very large or small numbers, which orjson writes in its own form."""


def render(value: Any) -> str:
    """Return a value as compact JSON with every digit that was read."""
    try:
        written = orjson.dumps(value)
        if b"." not in written or not _WRITTEN_OTHERWISE.search(written):
            return written.decode()
    except orjson.JSONEncodeError:
        # an integer of more than 64 bits, a decimal, or half a surrogate pair
        pass
    try:
        return _DUMPS(value)
    except TypeError:
        # the encoder refuses only decimals
        return _exactly(value)


def _exactly(value: Any) -> str:
    match value:
        case Decimal():
            return str(value)
        case list():
            return f"[{','.join(map(_exactly, value))}]"
        case dict():
            members = (f"{_DUMPS(name)}:{_exactly(member)}" for name, member in value.items())
            return f"{{{','.join(members)}}}"
    return _DUMPS(value)


def _after_blank(text: str, index: int) -> int:
    blank = _BLANK.match(text, index)
    return blank.end() if blank else index


def _syntax(text: str, error: json.JSONDecodeError) -> RefusedError:
    rest = text[error.pos :].rstrip(" \t\n\r")
    cut = not rest or error.msg.startswith("Unterminated string")
    if cut or (len(rest) < 5 and any(word.startswith(rest) for word in _LITERALS)):
        reason = "the payload ends before its value does"
        return RefusedError(ErrorCode.PAYLOAD_TRUNCATED, reason, _bytes_before(text, len(text)))
    # the decoder's message names what it expected, and never quotes the payload
    reason = f"the payload is not JSON: {error.msg}"
    return RefusedError(ErrorCode.NOT_JSON, reason, _bytes_before(text, error.pos))


def _bytes_before(text: str, index: int) -> int:
    return len(text[:index].encode())


def _check_depth(text: str, max_depth: int) -> None:
    depth = 0
    # replaced by text of the same length, so that positions stay valid
    bare = _STRING.sub(lambda match: " " * len(match[0]), text)
    for bracket in _BRACKET.finditer(bare):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > max_depth:
            raise RefusedError(
                ErrorCode.NESTING_TOO_DEEP,
                f"objects and arrays nest deeper than {max_depth}",
                _bytes_before(text, bracket.start()),
            )


def _check_surrogates(value: Any) -> None:
    try:
        render(value).encode()
    except UnicodeEncodeError:
        reason = "a text has half a surrogate pair, which is no character"
        raise RefusedError(ErrorCode.INVALID_UTF8, reason) from None


# A view of a JSON payload for people, as far as it can be parsed.

MAX_DEPTH = 100


def best_effort_text(body: bytes | None, message: str, payload: bytes) -> str:
    """Return the payload with one value a line, or up to the first wrong byte, without a schema."""
    try:
        content = parse(payload, max_depth=MAX_DEPTH)
        text = json.dumps(content, indent=2, ensure_ascii=False, default=str)
    except RefusedError as refused:
        end = len(payload) if refused.position is None else refused.position
        read = payload[:end].decode("utf-8", "backslashreplace")
        where = "" if refused.position is None else f" at byte {refused.position}"
        text = f"{read[:VIEW_CHARACTERS]}\n# cannot be read further{where}: {refused.reason}"
    return view_of(text)
