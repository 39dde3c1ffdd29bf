"""MessagePack as JSON text: what becomes of each kind of value, and of bytes that are wrong."""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.base import RefusedError
from distributary.decode.formats import FORMATS
from distributary.decode.message_fields import PAYLOAD, TYPE
from distributary.decode.msgpack import msgpack_text as texts
from distributary.decode.msgpack.bytes import check
from distributary.decode.msgpack.msgpack_text import (
    MsgpackMessages,
    best_effort_text,
    json_text,
    json_texts,
    parse,
)
from distributary.errors import ErrorCode
from tests.decode.packer import Ext, Single, pack

LIMIT = 100
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(width=64)
    | st.floats(width=32).map(Single)
    | WORDS
    | st.binary(max_size=40)
    | st.tuples(MOMENTS, st.integers(0, 999)).map(lambda pair: Moment(*pair))
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(WORDS, inner, max_size=20),
    max_leaves=30,
)


class Moment:
    """A time in nanoseconds since 1970."""

    def __init__(self, time: datetime, nanoseconds: int) -> None:
        microseconds = (time - datetime(1970, 1, 1)) // timedelta(microseconds=1)
        self.seconds, rest = divmod(microseconds, 1_000_000)
        self.nanoseconds = rest * 1000 + nanoseconds
        self.text = time.replace(microsecond=0).isoformat()

    def packed(self) -> Ext:
        if not self.nanoseconds and 0 <= self.seconds < 2**32:
            return Ext(-1, struct.pack(">I", self.seconds))
        if 0 <= self.seconds < 2**34:
            return Ext(-1, struct.pack(">Q", self.nanoseconds << 34 | self.seconds))
        return Ext(-1, struct.pack(">Iq", self.nanoseconds, self.seconds))


def packable(value: Any) -> Any:
    match value:
        case Moment():
            return value.packed()
        case list():
            return [packable(item) for item in value]
        case dict():
            return {name: packable(member) for name, member in value.items()}
    return value


def expected(value: Any) -> Any:
    """What JSON readers see of a value, by the page about MessagePack."""
    match value:
        case Single():
            return expected(struct.unpack(">f", struct.pack(">f", value.number))[0])
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return base64.b64encode(value).decode()
        case Moment():
            fraction = f".{value.nanoseconds:09}".rstrip("0") if value.nanoseconds else ""
            return f"{value.text}{fraction}Z"
        case list():
            return [expected(item) for item in value]
        case dict():
            return {name: expected(member) for name, member in value.items()}
    return value


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same kinds: 1, 1.0 and true are three values."""
    return json.dumps(one) == json.dumps(other)


@given(VALUES, st.none() | st.randoms(use_true_random=False))
def test_every_value_comes_back_whatever_its_packer(value: Any, dice: random.Random | None) -> None:
    data = pack(packable(value), dice)
    check(data, LIMIT)
    assert same(json.loads(json_text(data, max_depth=LIMIT)), expected(value))


@pytest.mark.parametrize(
    ("data", "code", "position"),
    [
        (b"\xc1", ErrorCode.NOT_MSGPACK, 0),
        (b"\x92\x01\xc1", ErrorCode.NOT_MSGPACK, 2),
        (b"\xa5abc", ErrorCode.PAYLOAD_TRUNCATED, 4),
        (b"\x82\xa1a\x01", ErrorCode.PAYLOAD_TRUNCATED, 4),
        (b"\xcd\x01", ErrorCode.PAYLOAD_TRUNCATED, 2),
        (b"\xdb\xff\xff\xff\xffabc", ErrorCode.PAYLOAD_TRUNCATED, 8),
        (b"\xdd\xff\xff\xff\xff\xc0", ErrorCode.PAYLOAD_TRUNCATED, 6),
        (b"\xdf\xff\xff\xff\xff\xa1a", ErrorCode.PAYLOAD_TRUNCATED, 7),
        (b"\xc9\xff\xff\xff\xff\x05", ErrorCode.PAYLOAD_TRUNCATED, 6),
        (b"\x01\x02", ErrorCode.TRAILING_BYTES, 1),
        (b"\x80\xc0", ErrorCode.TRAILING_BYTES, 1),
        (b"\x91\xa2a\xff", ErrorCode.INVALID_UTF8, 3),
        (b"\x91\xa3\xed\xa0\x80", ErrorCode.INVALID_UTF8, 2),
        (b"\x81\xa1\xff\x01", ErrorCode.INVALID_UTF8, 2),
        (b"\x82\xa1a\x01\xa1a\x02", ErrorCode.DUPLICATE_KEY, None),
        (b"\x91\x81\x01\x02", ErrorCode.INVALID_NAME, None),
        (b"\x81\xc0\x02", ErrorCode.INVALID_NAME, None),
        (b"\x81\xc4\x01a\x02", ErrorCode.INVALID_NAME, None),
        (b"\x81\x91\x01\x02", ErrorCode.INVALID_NAME, None),
        (b"\x81\x80\x02", ErrorCode.INVALID_NAME, None),
        (pack({"a": Ext(5, b"1234")}), ErrorCode.UNKNOWN_EXTENSION, None),
        (pack([Ext(-2, b"x" * 300)]), ErrorCode.UNKNOWN_EXTENSION, None),
        (pack(Ext(-1, b"123")), ErrorCode.NOT_MSGPACK, 0),
        (pack(Ext(-1, struct.pack(">Iq", 10**9, 0))), ErrorCode.NOT_MSGPACK, None),
        (pack(Ext(-1, struct.pack(">Iq", 0, 2**60))), ErrorCode.VALUE_OUT_OF_RANGE, None),
        (b"\x91" * 500 + b"\xc0", ErrorCode.NESTING_TOO_DEEP, None),
        (b"\x91" * 5000 + b"\xc0", ErrorCode.NESTING_TOO_DEEP, None),
        (b"\x81\xa1a" * 2000 + b"\xc0", ErrorCode.NESTING_TOO_DEEP, None),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(
    data: bytes, code: ErrorCode, position: int | None
) -> None:
    with pytest.raises(RefusedError) as refused:
        json_text(data, max_depth=LIMIT)
    assert refused.value.code is code
    if position is not None:
        assert refused.value.position == position


@given(st.binary(max_size=60), st.integers(1, 5))
def test_bytes_of_any_kind_become_text_or_are_refused(data: bytes, depth: int) -> None:
    try:
        text = json_text(data, max_depth=depth)
    except RefusedError as refused:
        assert refused.position is None or 0 <= refused.position <= len(data)
    else:
        json.loads(text)
        check(data, LIMIT)


@given(VALUES, st.data())
def test_a_payload_that_is_cut_is_refused(value: Any, data: st.DataObject) -> None:
    whole = pack(packable(value))
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(RefusedError) as refused:
        json_text(whole[:end], max_depth=LIMIT)
    assert refused.value.code is ErrorCode.PAYLOAD_TRUNCATED


@pytest.mark.parametrize("first", [b"\xdd", b"\xdf"])
def test_long_arrays_in_each_other_never_reach_the_library(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpack(*_: Any, **__: Any) -> None:
        raise AssertionError("the library would make room for all of them")

    monkeypatch.setattr(texts.msgpack, "unpackb", unpack)
    name = b"\xa1a" if first == b"\xdf" else b""
    data = (first + struct.pack(">I", 5_000) + name) * 1000 + b"\xc0" * 30_000
    with pytest.raises(RefusedError) as refused:
        parse(data, max_depth=LIMIT)
    assert refused.value.code is ErrorCode.NESTING_TOO_DEEP


def test_a_long_payload_that_is_good_is_read() -> None:
    value = {"rows": [[n, "x" * 30] for n in range(300)], "data": b"\xdd\xdf" * 400}
    data = pack(value, random.Random(1))
    assert data.count(b"\xdd") > LIMIT
    assert same(json.loads(json_text(data, max_depth=LIMIT)), expected(value))


def test_a_column_keeps_its_order_and_names_its_failures() -> None:
    good, bad = pack({"id": 2**64 - 1}), b"\x81\xa2id"
    column, failures = json_texts(pa.array([good, bad, pack([1.0])], pa.binary()), LIMIT)
    assert column.to_pylist() == [b'{"id":18446744073709551615}', None, b"[1.0]"]
    (failure,) = failures
    assert (failure.index, failure.code, failure.position) == (1, ErrorCode.PAYLOAD_TRUNCATED, 4)


@pytest.mark.parametrize(
    ("inner", "content"),
    [
        (b"\x00raw", b"\x00raw"),
        ("text", b"text"),
        ({"id": 2**63, "at": Ext(-1, b"\0\0\0\5"), "b": b"\xff"}, None),
    ],
)
def test_fields_of_an_envelope(inner: Any, content: bytes | None) -> None:
    message = pack({"meta": {"type": "buy"}, "data": inner, "other": None})
    build = FORMATS["msgpack"].messages
    assert build is MsgpackMessages
    fields = build({TYPE: "meta.type", PAYLOAD: "data"}, LIMIT).read(message)
    assert fields[TYPE][0] == "buy"
    payload = fields[PAYLOAD][0]
    payload = payload.encode() if isinstance(payload, str) else payload
    assert payload == (pack(inner) if content is None else content)
    missing = build({TYPE: "meta.kind", PAYLOAD: "other"}, LIMIT).read(message)
    assert missing == {}
    with pytest.raises(RefusedError) as refused:
        build({TYPE: "t"}, LIMIT).read(pack([1]))
    assert refused.value.code is ErrorCode.NOT_AN_ENVELOPE


def test_a_view_shows_what_is_there() -> None:
    moment = Moment(datetime(2026, 11, 18, tzinfo=UTC).replace(tzinfo=None), 5)
    shown = best_effort_text(None, "", pack(packable({"at": moment, "b": b"hi", "é": 1})))
    assert json.loads(shown) == {"at": "2026-11-18T00:00:00.000000005Z", "b": "aGk=", "é": 1}
    broken = best_effort_text(None, "", b"\x81\xa1a\xc1")
    assert broken.startswith("81 a1 61 c1\n# cannot be read at byte 3")
