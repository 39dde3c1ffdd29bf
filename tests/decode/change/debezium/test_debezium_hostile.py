"""Whatever is in a message, the others are decoded."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.base import DecodeLimits
from distributary.decode.change.debezium.decoder import DebeziumDecoder
from distributary.decode.json.infer import infer
from distributary.errors import DecodeError, ErrorCode
from distributary.model.change import CHANGE_COLUMNS
from distributary.model.record import Format, WriterSchema
from tests.decode.debezium_samples import (
    LIMITS,
    SETTINGS,
    connect_schema,
    decoders,
    messages,
    raw_table,
)
from tests.decode.json_samples import writer_schema

CONNECTORS = ("js", "jn", "av", "fs", "fn", "fa")


@cache
def first_of(connector: str) -> tuple[DebeziumDecoder, pa.BinaryArray, pa.Table]:
    raw = messages(f"{connector}.shop.items")
    decoder, payloads, rows = decoders(raw)[0]
    return decoder, payloads, raw.take(rows)


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("bad", [b"\xff", b"{", b"[]", b"7", b"{}", b'{"op":"c"}', b"\0" * 40])
def test_one_bad_event_is_one_failure(connector: str, bad: bytes) -> None:
    decoder, payloads, raw = first_of(connector)
    good = decoder.decode(payloads, raw)
    mixed = pa.concat_arrays([payloads[:1], pa.array([bad], pa.binary()), payloads[1:]])
    around = pa.concat_tables([raw.slice(0, 1), raw.slice(0, 1), raw.slice(1)])
    decoded = decoder.decode(mixed, around)
    assert {failure.index for failure in decoded.failed} <= {1}
    if connector in ("js", "jn", "av") or bad != b"{}":
        assert [failure.index for failure in decoded.failed] == [1]
    rows = [row for row in decoded.ok.to_pylist() if row["a"] is not None or row["_op"] != "update"]
    assert [row["_hash"] for row in rows] == good.ok["_hash"].to_pylist()


@pytest.mark.parametrize("connector", CONNECTORS)
def test_cut_events(connector: str) -> None:
    decoder, payloads, raw = first_of(connector)
    whole = payloads[1].as_py()
    cut = pa.array([whole[:n] for n in range(1, len(whole))], pa.binary())
    decoded = decoder.decode(cut, pa.concat_tables([raw.slice(1, 1)] * len(cut)))
    assert decoded.ok.num_rows == 0
    assert len(decoded.failed) == len(cut)


@pytest.mark.parametrize("connector", CONNECTORS)
def test_an_event_that_is_too_large(connector: str) -> None:
    raw = messages(f"{connector}.shop.items")
    limits = DecodeLimits(max_payload_bytes=1_000)
    decoder, payloads, rows = decoders(raw, limits=limits)[0]
    decoded = decoder.decode(payloads, raw.take(rows))
    # the first one has 2,100 letters
    assert [(f.index, f.code) for f in decoded.failed] == [(0, ErrorCode.PAYLOAD_TOO_LARGE)]
    assert decoded.ok.num_rows > 4


def event(op: Any, **more: Any) -> bytes:
    source = {"connector": "postgresql", "db": "d", "schema": "s", "table": "t", "lsn": 1}
    row = {"id": 1, "t": "x"}
    return json.dumps({"before": None, "after": row, "source": source, "op": op, **more}).encode()


SCHEMA = writer_schema(infer([event("c"), event("t", after=None), event(None)]))
DECODER = DebeziumDecoder(SCHEMA, SETTINGS, LIMITS)


def decoded_with_good(*bad: bytes) -> list[tuple[int, ErrorCode]]:
    """The failures among events, behind one that is good."""
    events = [event("c"), *bad]
    raw = raw_table({"key": b'{"id":1}', "value": each} for each in events)
    decoded = DECODER.decode(pa.array(events, pa.binary()), raw)
    assert decoded.ok.num_rows + len(decoded.failed) + decoded.empty == len(events)
    assert decoded.ok["id"].to_pylist()[0] == 1
    return [(failure.index, failure.code) for failure in decoded.failed]


def test_operations_that_nobody_knows() -> None:
    assert decoded_with_good(event("x"), event(None), event(""), event("m")) == [
        (1, ErrorCode.NOT_AN_ENVELOPE),
        (2, ErrorCode.NOT_AN_ENVELOPE),
        (3, ErrorCode.NOT_AN_ENVELOPE),
    ]


def test_rows_that_are_not_there() -> None:
    assert decoded_with_good(event("c", after=None), event("t", after=None)) == [
        (1, ErrorCode.NO_PAYLOAD)
    ]


def test_a_table_of_which_only_truncates_are_known() -> None:
    events = [event("t", after=None)]
    shape = infer(events)
    assert shape is not None
    decoder = DebeziumDecoder(writer_schema(shape), SETTINGS, LIMITS)
    assert decoder.columns == CHANGE_COLUMNS
    raw = raw_table([{"value": events[0]}])
    decoded = decoder.decode(pa.array(events, pa.binary()), raw)
    assert decoded.failed == ()
    assert decoded.ok["_op"].to_pylist() == ["truncate"]


def test_a_value_where_there_was_never_one() -> None:
    assert decoded_with_good(event("c", before={"id": 1, "t": "x", "new": 1})) == [
        (1, ErrorCode.PAYLOAD_MISMATCH)
    ]
    events = [event("c", after={"id": 1, "void": None})]
    schema = writer_schema(infer(events))
    decoder = DebeziumDecoder(schema, SETTINGS, LIMITS)
    assert "void" not in [column.name for column in decoder.columns]
    more = [*events, event("c", after={"id": 2, "void": "text"})]
    raw = raw_table({"key": b'{"id":1}', "value": each} for each in more)
    decoded = decoder.decode(pa.array(more, pa.binary()), raw)
    assert [(f.index, f.code) for f in decoded.failed] == [(1, ErrorCode.PAYLOAD_MISMATCH)]
    assert decoded.ok["id"].to_pylist() == [1]


def test_headers_of_all_kinds() -> None:
    headers: list[Any] = [
        None,
        [],
        [{"key": "__debezium.newkey", "value": None}],
        [{"key": "__debezium.oldkey", "value": b"\xff{"}, {"key": "other", "value": b"1"}],
        [{"key": "__debezium.newkey", "value": b'"\\ud800"'}],
    ]
    raw = raw_table({"key": b'{"id":1}', "headers": each} for each in headers)
    decoded = DECODER.decode(pa.array([event("c")] * len(headers), pa.binary()), raw)
    envelopes = [json.loads(text) for text in decoded.ok["_envelope"].to_pylist()]
    assert [set(each) & {"new_key", "old_key"} for each in envelopes] == [
        set(),
        set(),
        {"new_key"},
        {"old_key"},
        {"new_key"},
    ]
    # a change of key removes a row, and this one does not
    assert {each["half"] for each in decoded.ok["_seq"].to_pylist()} == {1}


@pytest.mark.parametrize(
    "schema",
    [
        WriterSchema(1, Format.PROTOBUF, b"", "M"),
        WriterSchema(1, Format.JSON, b"{", "event"),
        WriterSchema(1, Format.JSON, b"7", "event"),
        WriterSchema(1, Format.JSON, b'{"type":"struct","fields":[]}', "event"),
        WriterSchema(1, Format.AVRO, b'"string"', "string"),
        writer_schema(infer([b"7"])),
        writer_schema(infer([b'{"__op":"c"}'])),
    ],
)
def test_schemas_from_which_no_decoder_can_be_made(schema: WriterSchema) -> None:
    with pytest.raises(DecodeError) as caught:
        DebeziumDecoder(schema, SETTINGS, LIMITS)
    assert caught.value.next_step


def test_images_that_are_not_alike() -> None:
    def image(name: str, kind: str) -> dict[str, Any]:
        return {"type": "struct", "fields": [{"type": kind, "field": "id"}], "field": name}

    source = {
        "type": "struct",
        "field": "source",
        "fields": [{"type": "string", "field": "connector"}],
    }
    fields = [image("before", "int32"), image("after", "string"), source]
    fields.append({"type": "string", "field": "op"})
    text = json.dumps({"type": "struct", "fields": fields}).encode()
    with pytest.raises(DecodeError):
        DebeziumDecoder(connect_schema(text), SETTINGS, LIMITS)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
things = st.recursive(scalars, lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=6)


@given(
    st.lists(
        st.builds(
            lambda op, image, source, more: json.dumps(
                {"op": op, "after": image, "before": image, "source": source, **more}
            ).encode(),
            st.sampled_from(["c", "u", "d", "r", "t", "m", None]) | things,
            things | st.fixed_dictionaries({"id": things, "t": things}),
            things | st.fixed_dictionaries({"connector": st.just("x"), "lsn": things}),
            st.dictionaries(st.sampled_from(["ts_ms", "transaction", "x"]), things),
        ),
        max_size=4,
    )
)
def test_any_json_is_a_row_or_a_failure(events: list[bytes]) -> None:
    decoded_with_good(*events)


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_are_a_row_or_a_failure(events: list[bytes]) -> None:
    decoder, payloads, raw = first_of("av")
    array = pa.concat_arrays([payloads[:1], pa.array(events, pa.binary())])
    around = pa.concat_tables([raw.slice(0, 1)] * len(array))
    decoded = decoder.decode(array, around)
    assert decoded.ok.num_rows + len(decoded.failed) + decoded.empty == len(array)
    assert decoded.ok["a"].to_pylist()[0] == 1
