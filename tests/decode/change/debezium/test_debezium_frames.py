"""JSON that carries its schema: every different one is looked at once."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.change import connect_frames
from distributary.decode.change.connect_frames import (
    NONE,
    schema_of,
    split_connect,
    without_schema,
)
from distributary.decode.change.debezium.message_kinds import tombstones

ONE, TWO = b'{"type":"struct","fields":[]}', b'{"type":"struct","name":"two"}'


def framed(schema: bytes, payload: bytes) -> bytes:
    return b'{"schema":' + schema + b',"payload":' + payload + b"}"


def binaries(*values: bytes | None) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def test_messages_of_two_schemas_and_of_none() -> None:
    values = binaries(
        framed(ONE, b'{"a":1}'),
        framed(TWO, b"null"),
        b'{"a":2}',
        None,
        framed(ONE, b'{"a":3}'),
        framed(b"null", b"4"),
    )
    frames = split_connect(values)
    assert frames.schemas == (ONE, TWO, b"null")
    assert frames.codes.tolist() == [0, 1, NONE, NONE, 0, 2]
    assert frames.payloads.to_pylist() == [b'{"a":1}', b"null", b'{"a":2}', None, b'{"a":3}', b"4"]


def test_what_looks_like_the_end_of_a_schema() -> None:
    parameters = {"type": "struct", "parameters": {"x": 'y","payload":{', "payload": "z"}}
    schema = json.dumps(parameters, separators=(",", ":")).encode()
    assert b',"payload":' in schema
    assert schema_of(framed(schema, b'{"payload":1}')) == schema


@pytest.mark.parametrize(
    "value",
    [
        b'{"schema":',
        b'{"schema":{"type":"struct"},"payload":}',
        b'{"schema":{"type":"struct"},"payload":{}x',
        b'{"schema":{"type":"struct"}}',
        b'{"schema":7,"payload":{}}',
        b'{"schema":{"type":,"payload":{}}',
        b'{"schema":' + b'{"a":[,"payload":' * 1_000 + b"}",
        b'{"schema": {}, "payload": {}}',
        b"\xff\xfe",
        b"",
    ],
)
def test_what_is_not_of_this_form_stays_as_it_is(value: bytes) -> None:
    assert schema_of(value) is None
    frames = split_connect(binaries(value, framed(ONE, b"1"), value))
    assert frames.codes.tolist() == [NONE, 0, NONE]
    assert frames.payloads.to_pylist() == [value, b"1", value]


def test_one_that_only_begins_like_another() -> None:
    longer = framed(ONE, b'{"a":1}')
    values = binaries(longer, longer[:-1], framed(ONE, b""), longer + b" ")
    frames = split_connect(values)
    assert frames.codes.tolist() == [0, 0, NONE, NONE]
    # the end that is missing is missed by whoever decodes it
    assert frames.payloads.to_pylist() == [b'{"a":1}', b'{"a":1', *values.to_pylist()[2:]]


def test_more_schemas_than_are_compared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect_frames, "_MANY", 3)
    schemas = [b'{"n":%d}' % (n % 7) for n in range(50)]
    frames = split_connect(binaries(*(framed(s, b"%d" % n) for n, s in enumerate(schemas))))
    assert [frames.schemas[code] for code in frames.codes] == schemas
    assert frames.payloads.to_pylist() == [b"%d" % n for n in range(50)]


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.just("payload"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.lists(st.tuples(st.none() | st.dictionaries(st.text(max_size=4), json_values), json_values))
)
def test_whatever_is_put_together_comes_apart_again(
    parts: list[tuple[dict[str, object] | None, object]],
) -> None:
    texts = [
        (json.dumps(schema, separators=(",", ":")).encode(), json.dumps(payload).encode())
        for schema, payload in parts
    ]
    frames = split_connect(binaries(*(framed(s, p) for s, p in texts)))
    found = zip(frames.codes.tolist(), frames.payloads.to_pylist(), strict=True)
    assert [(frames.schemas[code], payload) for code, payload in found] == texts


@given(st.lists(st.binary(max_size=40) | st.just(framed(ONE, b"1"))))
def test_nothing_is_lost_of_anything(values: list[bytes]) -> None:
    frames = split_connect(binaries(*values))
    for value, code, payload in zip(values, frames.codes, frames.payloads.to_pylist(), strict=True):
        assert value == (payload if code == NONE else framed(frames.schemas[code], payload))


def test_payloads_with_and_without_a_known_schema() -> None:
    frame = framed(ONE, b"")[:-1]
    values = binaries(framed(ONE, b"1"), framed(TWO, b"2"), b"3", framed(ONE, b""))
    assert without_schema(values, frame).to_pylist() == [b"1", *values.to_pylist()[1:]]


def test_tombstones() -> None:
    values = binaries(None, b"", b"null", b"nul", b"null ", b"{}")
    assert tombstones(values, is_json=True).tolist() == [True, True, True, False, False, False]
    assert tombstones(values, is_json=False).tolist() == [True, True, False, False, False, False]
