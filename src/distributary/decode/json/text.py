"""JSON texts: read more strictly than is usual, and written without losing a digit.

A payload is one JSON value in UTF-8, as RFC 8259 has it: no NaN, nothing behind it. A name that
an object has twice is refused as well, because every reader would make something else of it.
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

from distributary.decode.base import RefusedError, printable_lines
from distributary.errors import ErrorCode

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_BLANK = re.compile(r"[ \t\n\r]*")
_LITERALS = ("true", "false", "null", "-")
_DUMPS = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise RefusedError(ErrorCode.DUPLICATE_KEY, "an object has a name twice")
    return found


def _constant(name: str) -> None:
    reason = f"{name} stands for a number, which JSON does not have"
    raise RefusedError(ErrorCode.INVALID_NUMBER, reason)


def _number(text: str) -> float | Decimal:
    """A double where it has all that was written, else every digit."""
    number = float(text)
    if repr(number) == text:
        return number
    if math.isinf(number):
        reason = "a number is beyond what a double can hold"
        raise RefusedError(ErrorCode.VALUE_OUT_OF_RANGE, reason)
    # what is too small for a double is 0, as it is everywhere
    exact = Decimal(text) if number else Decimal(0)
    return number if exact == Decimal(repr(number)) else exact


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_float=_number
)


# Most payloads are plain, and orjson reads them five times as fast. Of two members of one name it
# keeps the last, of a number 64 bits: its answer is used only where nothing is lost.

_QUOTE = b"\\u0022"
_DIGITS = "|".join(rf"[0-9]{{{left}}}\.[0-9]{{{16 - left}}}" for left in range(1, 16))
_IN_DOUBT = (
    # with an exponent, of more digits than 64 bits or any double keep, and minus nothing
    rf"(?:^|[\s:,\[])-?(?:[0-9]+(?:\.[0-9]+)?[eE]|[0-9]{{19}}|[0-9]{{16,}}\.|{_DIGITS})"
    r"|-0(?:[^0-9.]|$)"
)


def plain_numbers(texts: pa.BinaryArray) -> list[bool]:
    """Which of some texts have no numbers but such as any reader takes for the same."""
    doubtful = pc.match_substring_regex(texts, _IN_DOUBT)
    plain: list[bool] = pc.invert(doubtful).to_pylist()
    return plain


def parse(data: bytes, *, max_depth: int, plain: bool = False) -> Any:
    """The value that a payload holds; numbers that no double holds exactly are decimals.

    `plain` says that its numbers were looked at, and are plain.
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
    """Whether no member of a text is lost in what was read of it, written again.

    One that is dropped takes its quotes along. Those in a text count in both, unless they are
    spelled by their number.
    """
    return data.count(b'"') == written.count(b'"') and _QUOTE not in data


def parse_strictly(data: bytes, *, max_depth: int) -> Any:
    """The same for any payload; says what is wrong with one that holds no value."""
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
        # Python does not turn thousands of digits into a number
        reason = "an integer has too many digits"
        raise RefusedError(ErrorCode.VALUE_OUT_OF_RANGE, reason) from None
    end = _after_blank(text, end)
    if end != len(text):
        reason = "the payload goes on after its value"
        raise RefusedError(ErrorCode.TRAILING_BYTES, reason, _bytes_before(text, end))
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(value)
    return value


_WRITTEN_OTHERWISE = re.compile(rb"[0-9][eE]|0\.0000")
"""Numbers that are very large or small: orjson writes them in its own way."""


def render(value: Any) -> str:
    """A value as compact JSON, with every digit that was read."""
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
        # only decimals are not known to the encoder
        return _exactly(value)


def _exactly(value: Any) -> str:
    match value:
        case Decimal():
            return str(value)
        case list():
            return f"[{','.join(map(_exactly, value))}]"
        case dict():
            members = (f"{_DUMPS(name)}:{_exactly(each)}" for name, each in value.items())
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
    # the decoder's words name what it expected, never what it found
    reason = f"the payload is not JSON: {error.msg}"
    return RefusedError(ErrorCode.NOT_JSON, reason, _bytes_before(text, error.pos))


def _bytes_before(text: str, index: int) -> int:
    return len(text[:index].encode())


def _check_depth(text: str, max_depth: int) -> None:
    depth = 0
    # of the same length, so that positions stay what they are
    bare = _STRING.sub(lambda found: " " * len(found[0]), text)
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


# A JSON payload for human eyes, as far as it can be read.

MAX_CHARACTERS = 200_000
"""A longer text is cut; a person reads the beginning."""
MAX_DEPTH = 100


def best_effort_text(body: bytes | None, message: str, payload: bytes) -> str:
    """The payload, one value a line, or up to the byte that is wrong; no schema is needed."""
    try:
        content = parse(payload, max_depth=MAX_DEPTH)
        text = json.dumps(content, indent=2, ensure_ascii=False, default=str)
    except RefusedError as refused:
        end = len(payload) if refused.position is None else refused.position
        read = payload[:end].decode("utf-8", "backslashreplace")
        where = "" if refused.position is None else f" at byte {refused.position}"
        text = f"{read[:MAX_CHARACTERS]}\n# stops to make sense{where}: {refused.reason}"
    if len(text) > MAX_CHARACTERS + 1_000:
        text = f"{text[:MAX_CHARACTERS]}\n# and more"
    return printable_lines(f"{text}\n")
