"""Datastream events in JSON: read quickly where they are usual, carefully where they are not."""

from __future__ import annotations

import copy
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.change.datastream.decoder import DatastreamDecoder
from distributary.decode.json.infer import mask_list
from distributary.errors import ErrorCode
from tests.decode.datastream_samples import (
    codes,
    decoded_json,
    event,
    json_data,
    json_decoder,
    raw,
    rows,
)


def carefully(decoder: DatastreamDecoder) -> DatastreamDecoder:
    """The same decoder without its quick part."""
    other = copy.copy(decoder)
    other._inner = copy.copy(decoder._inner)
    other._inner._quick = None  # type: ignore[union-attr]
    return other


def is_quick(decoder: DatastreamDecoder) -> bool:
    return decoder._inner._quick is not None  # type: ignore[union-attr]


def with_envelopes(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "_envelope": json.loads(row["_envelope"])} for row in found]


def test_usual_events_are_read_quickly_and_alike() -> None:
    payload = {"i": 1, "r": 0.5, "b": True, "s": "x", "n": None}
    data = json_data([event(n, payload={"id": n, **payload}) for n in range(20)])
    decoder = json_decoder(data)
    assert is_quick(decoder)
    quick, careful = decoder.decode(data, raw(20)), carefully(decoder).decode(data, raw(20))
    assert with_envelopes(rows(quick)) == with_envelopes(rows(careful))
    assert [str(f.type) for f in quick.ok.schema][10:] == [
        "int64",
        "int64",
        "double",
        "bool",
        "string",
    ]


def test_an_unusual_envelope_does_not_make_the_others_slow() -> None:
    events = [event(n) for n in range(4)]
    events[1]["source_metadata"]["log_position"] = "2551"
    events[2]["source_metadata"] |= {"is_deleted": "true", "extra": {"deep": [1, 2.5]}}
    events[3] |= {"sort_keys": ["a\\b", 1.5], "labels": {"x": 1}}
    found = decoded_json(events)
    assert found.failed == ()
    assert [row["_seq"]["b"] for row in rows(found)] == [2550, 2551, 2552, 2553]
    assert [row["_deleted"] for row in rows(found)] == [False, False, True, False]
    envelopes = [json.loads(row["_envelope"]) for row in rows(found)]
    assert envelopes[2]["source_metadata"]["extra"] == {"deep": [1, 2.5]}
    assert envelopes[3]["sort_keys"] == ["a\\b", 1.5] and envelopes[3]["labels"] == {"x": 1}


def test_columns_that_hold_json_are_json_text() -> None:
    payloads: list[Any] = [
        {"id": 1, "doc": {"b": [1, {"c": 1.10}], "a": "é"}, "tags": [1, 2]},
        {"id": 2, "doc": [], "tags": None},
        {"id": 3, "doc": None},
        {"id": 4, "doc": "text"},
    ]
    found = rows(decoded_json([event(n, payload=p) for n, p in enumerate(payloads)]))
    assert found[0]["doc"] == '{"b":[1,{"c":1.1}],"a":"é"}'
    assert [row["doc"] for row in found[1:]] == ["[]", None, '"text"']
    assert [row["tags"] for row in found] == ["[1,2]", None, None, None]


def test_numbers_keep_their_digits() -> None:
    texts = {"whole": "5", "big": str(2**64), "huge": "1" * 40, "exact": "1.23456789012345678901"}
    members = ",".join(f'"{name}":{text}' for name, text in texts.items())
    usual = json.dumps(event(payload={"id": 1}))
    data = json_data([usual.replace('"id": 1', f'"id":1,{members}').encode()])
    (row,) = rows(json_decoder(data).decode(data, raw(1)))
    assert (row["whole"], row["big"]) == (5, 2**64)
    assert (row["huge"], row["exact"]) == (texts["huge"], texts["exact"])


def test_a_payload_that_its_table_has_never_had() -> None:
    data = json_data([event(n) for n in range(3)])
    decoder = json_decoder(data)
    later = json_data(
        [
            event(0),
            event(1, payload={"id": 1, "val": 5}),
            event(2, payload={"id": 1, "new": 5}),
            event(3) | {"payload": [5]},
        ]
    )
    found = codes(decoder.decode(later, raw(4)))
    assert found == dict.fromkeys((1, 2, 3), ErrorCode.PAYLOAD_MISMATCH)


def test_a_column_that_was_only_ever_null_cannot_be_filled_unseen() -> None:
    data = json_data([event(payload={"id": 1, "void": None})])
    later = json_data(
        [event(payload={"id": 1, "void": None}), event(payload={"id": 2, "void": "x"})]
    )
    decoder = json_decoder(data)
    assert is_quick(decoder)
    found = decoder.decode(later, raw(2))
    assert codes(found) == {1: ErrorCode.PAYLOAD_MISMATCH}
    assert [row["id"] for row in rows(found)] == [1]


@pytest.mark.parametrize("payload", [{}, {"id": None}])
def test_payloads_without_columns(payload: dict[str, Any]) -> None:
    found = decoded_json([event(payload=payload, metadata={"primary_keys": []})])
    assert found.failed == () and found.ok.num_rows == 1


def test_no_event_has_a_payload() -> None:
    events = [event(0), event(1)]
    for each in events:
        del each["payload"]
    assert codes(decoded_json(events)) == dict.fromkeys((0, 1), ErrorCode.NO_PAYLOAD)


LISTS = st.lists(
    st.integers(-5, 2**70) | st.text(max_size=4) | st.none() | st.booleans(), max_size=4
)
ORDERS = st.permutations(["uuid", "sort_keys", "source_metadata", "payload", "object"])


@given(st.lists(st.tuples(LISTS, ORDERS, st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_masking_is_invisible(given_: list[tuple[list[Any], list[str], bool, bool]]) -> None:
    texts, wanted = [], []
    for keys, order, compact, inside in given_:
        parts = event(payload={"id": 1, "sort_keys": keys if inside else "[", "val": "]}"})
        parts["sort_keys"] = keys
        parts = {name: parts[name] for name in order}
        texts.append(json.dumps(parts, separators=(",", ":") if compact else None).encode())
        wanted.append(parts)
    masked = mask_list(pa.array(texts, pa.binary()), "sort_keys")
    for text, parts, now, found, sure in zip(
        texts, wanted, masked.texts.to_pylist(), masked.lists.to_pylist(), masked.sure, strict=True
    ):
        assert len(now) == len(text)
        if sure:
            assert json.loads(found) == parts["sort_keys"]
            assert json.loads(now) == parts | {"sort_keys": []}
        else:
            assert now == text and found is None


def test_lists_that_are_not_what_they_look_like_are_not_masked() -> None:
    texts = [
        b'{"a":{"sort_keys":[1]}}',
        b'{"a":"sort_keys","b":[1]}',
        b'{"a\\"sort_keys":[1]}',
        b'{"sort_keys":[1,]}',
        b'{"sort_keys":[01]}',
        b'{"sort_keys":[1',
        b'{"sort_keys"',
        b'{"sort_keys":["\xff"]}',
        b'{"sort_keys":[[1]]}',
        b'{"sort_keys":{"a":1}}',
        b'["sort_keys",[1]]',
    ]
    for text in texts:
        masked = mask_list(pa.array([b"{}", text, b"{}"], pa.binary()), "sort_keys")
        assert masked.texts.to_pylist()[1] == text
        assert masked.sure.tolist() == [True, False, True]


def test_masking_a_slice() -> None:
    array = pa.array([b'{"sort_keys":[1]}', b'{"sort_keys":["a",2]}', b"{}"], pa.binary())
    masked = mask_list(array[1:], "sort_keys")
    assert masked.texts.to_pylist() == [b'{"sort_keys":[     ]}', b"{}"]
    assert masked.lists.to_pylist() == ['["a",2]', None]
    assert array.to_pylist()[1] == b'{"sort_keys":["a",2]}'


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)
PAYLOADS = st.dictionaries(st.sampled_from(["id", "a", "b", "C d"]), JSON, max_size=4)


@given(st.lists(PAYLOADS, min_size=1, max_size=5))
def test_every_event_that_was_inferred_from_is_a_row(payloads: list[dict[str, Any]]) -> None:
    none: dict[str, Any] = {"primary_keys": []}
    events = [event(n, payload=p, metadata=none) for n, p in enumerate(payloads)]
    data = json_data(events)
    decoder = json_decoder(data)
    found = decoder.decode(data, raw(len(data)))
    assert found.failed == () and found.origin is None
    careful = carefully(decoder).decode(data, raw(len(data)))
    assert with_envelopes(rows(found)) == with_envelopes(rows(careful))
    names = decoder._inner.names
    for payload, row in zip(payloads, rows(found), strict=True):
        for name, value in payload.items():
            if name in names:
                assert (row[names[name]] is None) == (value is None)
            else:
                assert value is None


WRONG: list[Any] = [None, 0, -1, 2**70, 1.5, True, "", "x", [], [1], ["a", None], {}, {"a": 1}]
PARTS = ["uuid", "read_timestamp", "source_timestamp", "object", "read_method", "stream_name"]
PARTS += ["schema_key", "sort_keys", "source_metadata", "payload"]
TOLD = ["table", "database", "primary_keys", "log_file", "log_position", "change_type"]
TOLD += ["is_deleted", "lsn", "scn", "ssn", "rs_id", "row_id", "replication_index"]


@pytest.mark.parametrize("kind", ["mysql", "postgresql", "oracle", "sqlserver", "other"])
def test_wrong_types_in_the_envelope_hurt_nobody_else(kind: str) -> None:
    events: list[Any] = [event(0, kind)]
    for part in PARTS:
        events += [event(1, kind) | {part: wrong} for wrong in WRONG]
    for part in TOLD:
        events += [event(1, kind, metadata={part: wrong}) for wrong in WRONG]
    events.append(event(2, kind))
    found = decoded_json(events)
    assert found.ok.num_rows + len(found.failed) == len(events)
    assert {0, len(events) - 1}.isdisjoint(codes(found))
    assert set(codes(found).values()) <= {
        ErrorCode.NO_SOURCE_METADATA,
        ErrorCode.NO_PAYLOAD,
        ErrorCode.BAD_SOURCE_TIME,
        ErrorCode.BAD_POSITION,
        ErrorCode.KEY_NOT_IN_PAYLOAD,
        ErrorCode.PAYLOAD_MISMATCH,
    }


def test_bytes_that_are_no_events() -> None:
    usual = json.dumps(event(1)).encode()
    texts = [
        b"",
        b"null",
        b"5",
        b"[]",
        b"{}",
        b"\xff\xfe",
        usual.replace(b"shop", b"\xff\xff"),
        usual[:-1],
        usual + usual,
        usual.replace(b'"uuid"', b'"object"', 1),
        usual.replace(b'"v"', b"NaN"),
        usual.replace(b'"v"', b"[" * 200 + b"]" * 200),
        usual.replace(b'"v"', b'"\\ud800"'),
    ]
    data = json_data([usual, *texts, usual])
    found = json_decoder(data).decode(data, raw(len(data)))
    assert [row["id"] for row in rows(found)] == [1, 1]
    assert set(codes(found)) == set(range(1, len(texts) + 1))


def test_a_huge_value_is_a_value() -> None:
    large = "x" * 1_000_000
    (row,) = rows(decoded_json([event(payload={"id": 1, "val": large})]))
    assert row["val"] == large
