"""Decoders are built once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from distributary.decode import formats
from distributary.decode.base import DecodeLimits
from distributary.errors import DecodeError, ErrorCode
from distributary.model.record import Format, WriterSchema

Compile = Callable[[str], bytes]
LIMITS = DecodeLimits()


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    formats.clear()
    yield
    formats.clear()


@pytest.fixture
def schema(compiled: Compile) -> WriterSchema:
    text = 'syntax = "proto3"; package t; message M { int32 a = 1; } message N { int32 b = 1; }'
    return WriterSchema(id=1, format=Format.PROTOBUF, body=compiled(text), message="t.M")


def test_the_same_schema_gives_the_same_decoder(schema: WriterSchema) -> None:
    first = formats.decoder_for(schema, "t.M", LIMITS)
    copy = replace(schema, id=2, body=bytes(bytearray(schema.body)))
    assert formats.decoder_for(copy, "t.M", DecodeLimits()) is first


def test_message_limits_and_body_make_a_difference(schema: WriterSchema, compiled: Compile) -> None:
    other = replace(
        schema, body=compiled('syntax = "proto3"; package t; message M { bool a = 1; }')
    )
    decoders = [
        formats.decoder_for(schema, "t.M", LIMITS),
        formats.decoder_for(schema, "t.N", LIMITS),
        formats.decoder_for(schema, "t.M", DecodeLimits(recursion_depth=1)),
        formats.decoder_for(other, "t.M", LIMITS),
    ]
    assert len({id(decoder) for decoder in decoders}) == 4
    assert [d.columns[0].name for d in decoders] == ["a", "b", "a", "a"]


def test_the_longest_unused_is_forgotten_first(
    schema: WriterSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats._decoders, "most", 2)
    first = formats.decoder_for(schema, "t.M", LIMITS)
    second = formats.decoder_for(schema, "t.N", LIMITS)
    assert formats.decoder_for(schema, "t.M", LIMITS) is first
    formats.decoder_for(schema, "t.M", DecodeLimits(recursion_depth=1))
    assert formats.decoder_for(schema, "t.M", LIMITS) is first
    assert formats.decoder_for(schema, "t.N", LIMITS) is not second


def test_threads_share_one_decoder(schema: WriterSchema) -> None:
    with ThreadPoolExecutor(8) as threads:
        tasks = [threads.submit(formats.decoder_for, schema, "t.M", LIMITS) for _ in range(64)]
    assert len({id(task.result()) for task in tasks}) == 1


def test_a_schema_without_a_decoder_is_an_error(schema: WriterSchema) -> None:
    with pytest.raises(DecodeError) as caught:
        formats.decoder_for(replace(schema, body=b"\xff"), "t.M", LIMITS)
    assert caught.value.code == ErrorCode.UNUSABLE_SCHEMA
