from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.decode.json.infer import infer, join, shape_of
from distributary.errors import ErrorCode
from distributary.source.files import file_bytes as files_bytes
from distributary.source.files import json_files as files_json
from distributary.source.files import json_files as files_values
from distributary.source.files.file_bytes import micros, parsed_events, parsed_json
from distributary.source.files.json_files import familiar_events, usual_events
from tests.source.change_files import (
    avro,
    event,
    events,
    faults,
    good,
    lines,
    named,
    put,
    records,
    schema,
    source,
    uuids,
)


@pytest.fixture(params=[False, True], ids=["plain", "gzip"])
def zipped(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def read(tmp_path: Path, data: bytes, *, zipped: bool = False) -> pa.Table:
    put(tmp_path / "in", named(end="json"), gzip.compress(data) if zipped else data)
    return records(source(tmp_path / "in", tmp_path / "checkpoint", format="json"))


def test_a_line_is_an_event(tmp_path: Path, zipped: bool) -> None:
    rows = [event(1), event(2, table="users", text="Grüße\u2028 \x85")]
    found = read(tmp_path, lines(rows), zipped=zipped)
    assert good(found) == [json.dumps(row).encode() for row in rows]
    assert found["key"].to_pylist() == [b'["shop","","orders"]', b'["shop","","users"]']
    assert found["offset"].to_pylist() == [0, 1]
    times = found["timestamp"].cast(pa.int64()).to_pylist()
    assert times == [row["source_timestamp"] * 1000 for row in rows]


def test_names_that_are_no_text_are_no_names(tmp_path: Path) -> None:
    rows = [event(1), event(2), event(3), {**event(4), "source_metadata": []}]
    rows[0]["source_metadata"]["database"] = ["shop"]
    rows[1]["source_metadata"]["schema"] = 7
    rows[2]["source_metadata"]["table"] = {}
    names = read(tmp_path, lines(rows))["key"].to_pylist()
    assert names == [b'["","","orders"]', b'["shop","","orders"]', None, None]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\n\n", b"\n  \n"])
def test_line_breaks_of_all_kinds(tmp_path: Path, ending: bytes) -> None:
    rows = events(3)
    data = ending.join(json.dumps(row).encode() for row in rows)
    assert uuids(read(tmp_path, b"\xef\xbb\xbf" + data)) == [row["uuid"] for row in rows]


def test_a_broken_line_is_given_as_it_is(tmp_path: Path, zipped: bool) -> None:
    first, last = (json.dumps(row).encode() for row in events(2))
    broken = [b"{broken", b'{"a":1}{"b":2}', b"\xff\xfe", b'"text"', b"[" * 100_000, b"9" * 5000]
    found = read(tmp_path, b"\n".join([first, *broken, last]), zipped=zipped)
    assert good(found) == [first, *broken, last]
    assert [key is None for key in found["key"].to_pylist()] == [False, *[True] * 6, False]


def test_the_first_line_may_be_the_broken_one(tmp_path: Path, zipped: bool) -> None:
    rows = events(2)
    for broken in (b'{"uuid": "a', b'{"uuid": nothing', b"{"):
        found = read(tmp_path, broken + b"\n" + lines(rows), zipped=zipped)
        assert good(found) == [broken, *(json.dumps(row).encode() for row in rows)]


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_taken_apart(tmp_path: Path, zipped: bool, indent: int | None) -> None:
    rows = [event(1, text='a ] , [ " \n ü'), event(2), event(3)]
    found = read(tmp_path, json.dumps(rows, indent=indent).encode(), zipped=zipped)
    assert [json.loads(value) for value in good(found)] == rows
    assert found["key"].to_pylist() == [b'["shop","","orders"]'] * 3


def test_events_over_several_lines(tmp_path: Path, zipped: bool) -> None:
    rows = events(3)
    data = "\n".join(json.dumps(row, indent=1) for row in rows).encode()
    assert [json.loads(v) for v in good(read(tmp_path, data, zipped=zipped))] == rows


@pytest.mark.parametrize("data", [b"[]", b" [ ] \n", b"\n\n", b" "])
def test_nothing_in_a_file(tmp_path: Path, zipped: bool, data: bytes) -> None:
    assert len(read(tmp_path, data, zipped=zipped)) == 0


def test_a_broken_array_keeps_what_came_before(tmp_path: Path) -> None:
    rows = [json.dumps(row).encode() for row in events(3)]
    data = b"[" + rows[0] + b"," + rows[1] + b", {oops}, " + rows[2] + b"]"
    found = read(tmp_path, data)
    assert good(found) == rows[:2]
    assert faults(found) == [(ErrorCode.FILE_CORRUPT, b"{oops}, " + rows[2] + b"]")]


def test_a_truncated_array_keeps_what_is_whole(tmp_path: Path, zipped: bool) -> None:
    rows = events(3)
    data = json.dumps(rows).encode()
    for cut in (1, 2, 10, 200):
        found = read(tmp_path, data[:-cut], zipped=zipped)
        assert [json.loads(value) for value in good(found)] == rows[: 3 if cut == 1 else 2]
        assert [code for code, _ in faults(found)] == [ErrorCode.FILE_TRUNCATED]


def test_what_follows_an_array_is_not_lost(tmp_path: Path) -> None:
    rows = events(1)
    found = read(tmp_path, json.dumps(rows).encode() + b' {"more": 1}')
    assert len(good(found)) == 1
    assert faults(found) == [(ErrorCode.TRAILING_BYTES, b'{"more": 1}')]


def test_bytes_that_are_no_text_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_json, "CHUNK_BYTES", 3)
    monkeypatch.setattr(files_values, "CHUNK_BYTES", 3)
    found = read(tmp_path, b'[{"a": "\xff\xc3"}, {"b": 1}]\xe2\x82')
    assert good(found) == [b'{"a": "\xff\xc3"}', b'{"b": 1}']
    assert faults(found) == [(ErrorCode.TRAILING_BYTES, b"\xe2\x82")]
    broken = b"[{oops\xe2\x82 " + b"x" * 40 + b"\xe2"
    assert faults(read(tmp_path, broken)) == [(ErrorCode.FILE_CORRUPT, broken[1:])]


def test_truncated_and_damaged_gzip(tmp_path: Path) -> None:
    rows = events(2000)
    data = lines(rows, zipped=True)
    put(tmp_path / "in", named(end="json"), data[:-40])
    one = source(tmp_path / "in", tmp_path / "checkpoint", format="json")
    found = records(one)
    kept = uuids(found)
    assert 100 < len(kept) < 2000
    assert kept == [row["uuid"] for row in rows][: len(kept)]
    assert faults(found) == [(ErrorCode.FILE_TRUNCATED, data[:-40])]
    put(tmp_path / "in", named(end="json"), data[:12] + b"\xff" * 100)
    damaged = records(source(tmp_path / "in", tmp_path / "other", format="json"))
    assert [code for code, _ in faults(damaged)] == [ErrorCode.FILE_CORRUPT]


def test_gzip_in_several_members(tmp_path: Path) -> None:
    rows = events(4)
    data = lines(rows[:2], zipped=True) + lines(rows[2:], zipped=True) + bytes(100)
    put(tmp_path / "in", named(end="json"), data)
    found = records(source(tmp_path / "in", tmp_path / "checkpoint", format="json"))
    assert uuids(found) == [row["uuid"] for row in rows]


@pytest.mark.parametrize("data", [avro(events(1)), b"PAR1 and so on PAR1"], ids=["avro", "parquet"])
def test_other_formats_are_one_letter(tmp_path: Path, data: bytes) -> None:
    assert faults(read(tmp_path, data)) == [(ErrorCode.FILE_CORRUPT, data)]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_file_that_holds_a_schema_is_skipped(tmp_path: Path, indent: int | None) -> None:
    assert len(read(tmp_path, json.dumps(schema(), indent=indent).encode())) == 0
    assert len(read(tmp_path, json.dumps([schema()]).encode())) == 0


def test_a_line_without_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (files_bytes, files_json, files_values):
        monkeypatch.setattr(module, "MOST_LETTER_BYTES", 10_000)
    for module in (files_json, files_values):
        monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    first, last = (json.dumps(row).encode() for row in events(2))
    found = read(tmp_path, first + b"\n" + b"x" * 50_000 + b"\n" + last)
    assert good(found) == [first, last]
    assert faults(found) == [(ErrorCode.FILE_CORRUPT, b"x" * 10_000)]
    endless = b'[{"a": "' + b"x" * 50_000 + b'"}]'
    assert faults(read(tmp_path, endless)) == [(ErrorCode.FILE_CORRUPT, endless[1:10_001])]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(
    rows=st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), max_size=8),
    chunk=st.integers(1, 30),
    arranged=st.sampled_from(["lines", "array", "indented"]),
)
def test_events_are_found_wherever_a_chunk_ends(
    rows: list[dict[str, Any]], chunk: int, arranged: str
) -> None:
    texts = [json.dumps(row, ensure_ascii=False) for row in rows]
    match arranged:
        case "lines":
            data = "\n".join(texts)
        case "array":
            data = "[" + " ,\n".join(texts) + "]"
        case _:
            data = json.dumps(rows, indent=1, ensure_ascii=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_json, "CHUNK_BYTES", chunk)
        patch.setattr(files_values, "CHUNK_BYTES", chunk)
        found = list(files_json.read_json(_Bytes(data.encode("utf-8", "surrogatepass"))))
    assert [json.loads(v) for e in found for v in e.values.to_pylist()] == rows  # type: ignore[union-attr]


@given(
    st.lists(st.sampled_from([b"{}", b'{"a": 1}', b"{", b"}", b"", b" ", b"7", b"\xff", b"\x00"])),
    st.sampled_from([b"\n", b"\r\n", b" \n", b"\n ", b"\n\n"]),
    st.booleans(),
)
@settings(max_examples=5 * settings().max_examples)
def test_lines_are_events_whatever_is_around_them(
    lines: list[bytes], between: bytes, ended: bool
) -> None:
    data = b'{"first": 1}\n' + between.join(lines) + (b"\n" if ended else b"")
    found = [v for e in files_json.read_json(_Bytes(data)) for v in e.values.to_pylist()]  # type: ignore[union-attr]
    assert found == [line for line in map(bytes.strip, data.split(b"\n")) if line]


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data, self.position = data, 0

    def read(self, count: int) -> bytes:
        data = self._data[self.position : self.position + count]
        self.position += len(data)
        return data

    def back(self, position: int) -> bool:
        return False

    def rest(self, position: int) -> bytes:
        return self._data[position:]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2021-12-25 05:42:04.408", 1_640_410_924_408_000),
        ("2021-12-25T05:42:04.408", 1_640_410_924_408_000),
        ("2021-12-25T05:42:04.408Z", 1_640_410_924_408_000),
        ("2021-12-25T06:42:04.408+01:00", 1_640_410_924_408_000),
        (1_640_410_924_408, 1_640_410_924_408_000),
        ("infinity", None),
        (9_223_372_036_825_200_000, None),
        (True, None),
        (None, None),
        ({}, None),
    ],
)
def test_times_in_each_form(text: object, expected: int | None) -> None:
    assert micros(text) == expected


_NAMES = st.none() | st.sampled_from(["shop", "", "a.b", 'q"t', "ü", "\x1f", "x" * 2_000])
_TIMES = st.none() | st.sampled_from(
    [
        "2021-12-25 05:42:04.408",
        "2021-12-25T06:42:04+01:00",
        "infinity",
        "",
        "2021-12-25",
        "0000-00",
    ]
)
_ODD = st.sampled_from([7, True, [], {}, 1e300, ["shop"]])
_METADATA = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("database", "schema", "table", "collection"), _NAMES | _ODD)
)
_EVENTS = st.fixed_dictionaries(
    {"payload": st.just({"table": "x", "source_timestamp": "2021-12-25"})},
    optional={"source_metadata": _METADATA | _ODD | st.none(), "source_timestamp": _TIMES | _ODD},
)
_LINES = _EVENTS.map(lambda each: json.dumps(each).encode()) | st.sampled_from(
    [b"null", b"[]", b"{", b"7", b'{"a":NaN}', b'{"source_timestamp":"\\ud800"}', b"{}{}", b"\xff"]
)


@given(st.lists(_LINES, min_size=1, max_size=6))
def test_claims_and_times_are_the_same_for_many_events_at_once(some: list[bytes]) -> None:
    told = usual_events(pa.array(some, pa.binary()))
    parsed = parsed_events(some, (parsed_json(each, 1 << 20) for each in some))
    assert told is None or told == parsed


def test_usual_events_are_read_at_once() -> None:
    rows = [event(n) | {"source_timestamp": f"2021-12-25T05:42:0{n}Z"} for n in range(9)]
    told = usual_events(pa.array([json.dumps(row).encode() for row in rows]))
    assert told is not None
    assert told.claims.to_pylist() == [b'["shop","","orders"]'] * 9
    assert told.times.to_pylist() == [1_640_410_920_000_000 + n * 1_000_000 for n in range(9)]


_KNOWN = {"database": "shop", "table": "orders", "primary_keys": ["id"], "is_deleted": False}
_USUAL = {
    "uuid": "u",
    "source_timestamp": "2021-12-25T05:42:04Z",
    "object": "shop_orders",
    "source_metadata": _KNOWN,
    "payload": {"id": 1, "text": "t", "amount": 0.5, "paid": True},
}
_SHAPE = infer([json.dumps(_USUAL).encode()] * 2)


def _changed(usual: dict[str, Any], part: str, name: str, value: object) -> bytes:
    whole = json.loads(json.dumps(usual))
    (whole[part] if part else whole)[name] = value
    return json.dumps(whole).encode()


_TEXTS = st.sampled_from(
    ["shop", "orders", 'q"t', "\n", "ü", "{", "}", '"source_timestamp": "2000-01-01"', "a\\", ""]
)
_SPELLED = st.sampled_from(["2021-12-25 05:42:04.408", "2021-12-25", "infinity", "t" * 99, 'a"b'])
_LIKE = st.builds(
    _changed,
    st.just(_USUAL),
    st.sampled_from(["", "source_metadata", "payload"]),
    st.sampled_from(
        ["uuid", "source_timestamp", "table", "schema", "database", "id", "text", "amount", "new"]
    ),
    _TEXTS | _SPELLED | st.integers() | st.floats(allow_nan=False) | st.none() | st.just({"a": 1}),
)
_WITH_A_BYTE = st.builds(
    lambda text, at, byte: text[: at % len(text)] + bytes([byte]) + text[at % len(text) + 1 :],
    _LIKE,
    st.integers(0, 10_000),
    st.integers(32, 126) | st.sampled_from([0, 9, 31, 127]),
)


@given(st.lists(_LIKE | _WITH_A_BYTE | _LINES, min_size=1, max_size=8), st.integers(0, 3))
@settings(max_examples=5 * settings().max_examples)
def test_events_that_look_familiar_tell_what_they_tell_when_parsed(
    some: list[bytes], usual: int
) -> None:
    lines = [
        *[json.dumps(_USUAL).encode()] * usual,
        *(b" ".join(each.splitlines()) for each in some),
    ]
    array = pa.array(lines, pa.binary())
    assert _SHAPE is not None
    known = familiar_events(array, lambda claim: _SHAPE)
    if known is None:
        return
    parsed = parsed_events(lines, (parsed_json(each, 1 << 20) for each in lines))
    assert known.familiar is not None
    for row in np.flatnonzero(known.familiar).tolist():
        assert known.claims[row] == parsed.claims[row]
        assert known.times[row] == parsed.times[row]
        assert join(_SHAPE, shape_of(json.loads(lines[row]))) == _SHAPE


def test_usual_events_are_not_parsed_where_their_shape_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = [_changed(_USUAL, "payload", "id", n) for n in range(50)]
    others = [_changed(_USUAL, "source_metadata", "table", "users") for n in range(50)]
    odd = _changed(_USUAL, "payload", "new", 1)
    texts = [text for both in zip(usual, others, strict=True) for text in both]
    read: list[bytes] = []

    def told(array: pa.BinaryArray) -> files_bytes.FileEvents | None:
        read.extend(array.to_pylist())
        return usual_events(array)

    monkeypatch.setattr(files_json, "usual_events", told)
    data = _Bytes(b"\n".join([*texts, odd, *texts, b""]))
    (found,) = files_json.read_json(data, shapes=lambda claim: _SHAPE or {})  # type: ignore[arg-type]
    assert isinstance(found, files_bytes.FileEvents)
    assert read == [odd]
    assert found.familiar is not None and np.flatnonzero(~found.familiar).tolist() == [100]
    names = [b'["shop","","orders"]', b'["shop","","users"]']
    assert found.claims.to_pylist() == [*names * 50, names[0], *names * 50]
    assert found.times.to_pylist() == [1_640_410_924_000_000] * 201
