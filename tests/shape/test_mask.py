"""Masks: what is left of values, in every type and depth, and where their values do not get to."""

from __future__ import annotations

import hmac
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.file.document import PipelineFileError
from distributary.config.load import load_text
from distributary.config.rules.shape import ShapeConfig
from distributary.model.rules.shape_plan import Mask
from distributary.model.table import Column
from distributary.shape.mask import masked, masked_type
from distributary.shape.raw_encryption import decrypted
from distributary.shape.resolve import Resolved, ShapeError, resolve
from distributary.testing import Record, Schemas, run

KEY = b"a key that nobody else has"


def token(text: str) -> str:
    return hmac.digest(KEY, text.encode(), "sha256").hex()


def one(values: list[Any], type_: pa.DataType, *path: str, method: Any = "token") -> pa.Array:
    mask = Mask("c", path, method, length=2, scope="t\0c")
    found = masked(pa.array(values, type_), mask, KEY)
    assert found.type == masked_type(type_, mask)
    found.validate(full=True)
    return found


@pytest.mark.parametrize(
    ("values", "type_", "spelled"),
    [
        ([42, None, -1], pa.int64(), ["42", None, "-1"]),
        ([42], pa.int32(), ["42"]),
        ([Decimal("42.00"), Decimal("0.50")], pa.decimal128(10, 2), ["42", "0.5"]),
        ([Decimal(100)], pa.decimal128(38, 0), ["100"]),
        ([42.0, 0.5], pa.float64(), ["42", "0.5"]),
        (["42", "é", ""], pa.string(), ["42", "é", ""]),
        ([True], pa.bool_(), ["true"]),
        ([b"42"], pa.binary(), ["42"]),
        ([date(2026, 1, 2)], pa.date32(), ["2026-01-02"]),
        (
            [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)],
            pa.timestamp("us", "UTC"),
            ["2026-01-02 03:04:05.000000Z"],
        ),
    ],
)
def test_a_token_is_the_hmac_of_the_text_whatever_the_type(
    values: list[Any], type_: pa.DataType, spelled: list[str | None]
) -> None:
    assert one(values, type_).to_pylist() == [None if s is None else token(s) for s in spelled]


def test_hashes_differ_by_place_and_are_no_tokens() -> None:
    array = pa.array(["a", "a", "b"])
    here = masked(array, Mask("c", (), "hash", scope="t\0c"), KEY).to_pylist()
    there = masked(array, Mask("c", (), "hash", scope="t\0d"), KEY).to_pylist()
    assert here[0] == here[1] != here[2]
    assert not {*here} & {*there, token("a"), token("b")}
    with pytest.raises(ValueError, match=r"masking\.key"):
        masked(array, Mask("c", (), "token"), b"")


def test_masks_reach_into_structs_and_lists() -> None:
    player = pa.struct([("name", pa.string()), ("age", pa.int32())])
    value = [{"name": "Éva", "age": 3}, None]
    assert one(value, player, "name", method="truncate").to_pylist() == [
        {"name": "Év", "age": 3},
        None,
    ]
    lists = pa.list_(player)
    rows = [[{"name": "a", "age": 1}, None], None, [], [{"name": None, "age": 2}]]
    assert one(rows, lists, "name").to_pylist() == [
        [{"name": token("a"), "age": 1}, None],
        None,
        [],
        [{"name": None, "age": 2}],
    ]
    assert one(rows, lists, method="redact").to_pylist()[0] == [{"name": "***", "age": None}, None]
    part = pa.array(rows, lists).slice(1)
    assert masked(part, Mask("c", ("age",), "token"), KEY).to_pylist()[2] == [
        {"name": None, "age": token("2")}
    ]


rows_strategy = st.lists(
    st.none() | st.fixed_dictionaries({"n": st.none() | st.lists(st.none() | st.text(max_size=4))})
)


@given(rows=rows_strategy, start=st.integers(0, 5))
@settings(deadline=None)
def test_nested_values_are_those_of_the_reference(rows: list[Any], start: int) -> None:
    type_ = pa.struct([("n", pa.list_(pa.string()))])
    found = masked(pa.array(rows, type_).slice(start), Mask("c", ("n",), "token"), KEY)

    def expected(row: Any) -> Any:
        if row is None or row["n"] is None:
            return row
        return {"n": [None if text is None else token(text) for text in row["n"]]}

    assert found.to_pylist() == [expected(row) for row in rows[start:]]


COLUMNS = [
    Column("email", pa.string()),
    Column("email__long", pa.int64(), side_of="email"),
    Column("who", pa.struct([("phone", pa.int64()), ("tags", pa.map_(pa.string(), pa.string()))])),
    Column("n", pa.int64()),
]


def resolved(**entry: Any) -> Resolved:
    return resolve([ShapeConfig(**entry).rule()], COLUMNS, (), name="silver", raw_in="bronze")


def test_the_types_that_come_out_are_known_and_masks_follow_their_columns() -> None:
    found = resolved(mask={"EMAIL": "token", "*.phone": "hash"}, rename={"email": "mail"})
    assert [(c.name, c.type) for c in found.columns[:2]] == [
        ("mail", pa.string()),
        ("email__long", pa.string()),
    ]
    assert found.columns[2].type.field("phone").type == pa.string()
    assert found.columns[0].comment == "shape: mail by token; its values stay in bronze"
    (shape,) = found.shapes
    assert [m.describe() for m in shape.masks] == [
        "mail by token",
        "email__long by token",
        "who.phone by hash",
    ]
    # a mask of a dropped column is none, and one of a whole column is one of its fields
    assert resolved(mask={"n": "token"}, drop=["n"]).shapes[0].masks == ()
    (whole,) = resolved(mask={"who": "redact", "who.phone": "token"}).shapes
    assert [m.describe() for m in whole.masks] == ["who by redact"]
    assert [u.setting for u in resolved(mask={"mail": "token"}).unapplied] == ["mask.mail"]


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        ({"who.tags": "token"}, "mask.who.tags: is a map, which only redact can mask"),
        ({"n": "truncate(3)"}, "mask.n: is not text, which truncate needs"),
    ],
)
def test_what_a_mask_cannot_hold_is_refused(mask: dict[str, str], why: str) -> None:
    with pytest.raises(ShapeError) as caught:
        resolved(mask=mask)
    assert str(caught.value) == why


def test_no_nested_field_is_masked_twice_or_left_out() -> None:
    city = pa.struct([("city", pa.string())])
    contact = pa.struct([("email", pa.string()), ("home", city)])
    columns = [
        Column("who", pa.struct([("home", city), ("mail", pa.string())])),
        Column("who__string", pa.string(), side_of="who"),
        Column("all", pa.map_(pa.string(), contact)),
    ]

    def masks(mask: dict[str, str]) -> list[str]:
        rule = ShapeConfig(mask=mask).rule()
        (shape,) = resolve([rule], columns, (), name="silver").shapes
        return [one.describe() for one in shape.masks]

    # a field is masked once, also if the pattern fits the fields inside of it
    every = masks({"who.*": "token"})
    assert every == ["who.home by token", "who.mail by token", "who__string by redact"]
    # text in place of a struct may hold its fields, and is no reason to refuse the records
    assert masks({"*.mail": "token"}) == ["who.mail by token", "who__string by redact"]
    for pattern in ("*.email", "all.email", "*email", "all.home.*"):
        with pytest.raises(ShapeError, match="inside of a map"):
            masks({pattern: "token"})
    assert masks({"all": "redact", "*.email": "token"}) == ["all by redact"]


FILE = """\
name: people
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [players, payments]}}
payload: {{format: json}}
tables: {{each: "{{topic}}"{tables}}}
lake: {{path: ./lake}}
{masking}
shape:
  - set: {{n: "CAST(num AS INT)"}}
    mask: {{email: token, id: token}}
"""
CANARY = "canary.mask-key/00+x"


@pytest.mark.parametrize(
    ("tables", "masking", "path"),
    [
        ("", "", "shape[0].mask.email"),
        ("", "masking: {key: short}", "masking.key"),
        (", metadata: [raw]", f"masking: {{key: '{CANARY}'}}", "tables.metadata"),
        (", bronze: b", f"masking: {{key: '{CANARY}', raw: withhold}}", "tables.bronze"),
        (", metadata: [key]", f"masking: {{key: '{CANARY}', raw: withhold}}", "tables.metadata"),
        (", metadata: [headers]", f"masking: {{key: '{CANARY}', raw: encrypt}}", "tables.metadata"),
        ("", "masking: {raw: encrypt}", "masking.raw"),
    ],
)
def test_files_that_would_not_mask(tables: str, masking: str, path: str) -> None:
    with pytest.raises(PipelineFileError) as caught:
        load_text(FILE.format(tables=tables, masking=masking))
    assert path in [problem.path for problem in caught.value.problems]
    assert "short" not in str(caught.value)


@pytest.mark.parametrize("raw", ["keep", "withhold", "encrypt"])
def test_tokens_join_tables_and_no_value_is_left_where_it_must_not_be(
    raw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASK_KEY", CANARY)
    masking = "masking: {key: '${env:MASK_KEY}', raw: " + raw + "}"
    bronze = ", bronze: bronze" if raw == "encrypt" else ""
    text = FILE.format(tables=f", unified: gold{bronze}", masking=masking)
    people: list[dict[str, Any]] = [
        {"value": {"id": 7, "email": "secret@one", "num": "1"}, "topic": "players"},
        {"value": {"id": "7", "email": "secret@two", "num": "2"}, "topic": "payments"},
        {"value": {"id": "8", "email": "secret@bad", "num": "secret"}, "topic": "payments"},
    ]
    lake = tmp_path / "lake"
    result = run(
        text,
        [Record(**one) for one in people],
        **{"lake.path": str(lake), "lake.checkpoint": str(tmp_path / "state")},
    )
    key = CANARY.encode()
    expected = hmac.digest(key, b"7", "sha256").hex()
    assert result.tables["players"]["id"].to_pylist() == [expected]
    assert result.tables["payments"]["id"].to_pylist() == [expected]
    (letter,) = result.dead_letters
    assert "secret" not in letter["error_message"]
    kept = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert len(kept) > 10
    for path in kept:
        content = path.read_bytes()
        assert CANARY.encode() not in content, path
        whole = raw == "keep" and path.is_relative_to(lake / "dead_letters")
        assert b"secret" not in content or whole, path
    assert (letter["value"] is None) is (raw == "withhold")
    if raw == "encrypt":
        sealed = result.tables["bronze"]["payload"].to_pylist()
        assert not any(b"secret" in payload for payload in [*sealed, letter["value"]])
        plain = decrypted(result.tables["bronze"], ["payload", "key", "headers"], key)
        assert sorted(map(json.loads, plain["payload"].to_pylist()), key=str) == sorted(
            (one["value"] for one in people), key=str
        )


_SIDES = """\
name: sides
source: {type: kafka, bootstrap_servers: "broker:9092", topics: [t]}
payload: {format: json}
tables: {each: "{topic}"}
lake: {path: ./lake}
masking: {key: "a key that nobody else has"}
shape:
  - mask: {email: token, "who.name": "truncate(1)", "home.street": token}
"""


def test_no_form_in_which_a_field_comes_escapes_its_mask() -> None:
    """Values of other types go to side columns and fields, which are masked; others nowhere."""
    records = [
        {"email": "a@x.org", "who": {"name": "Secret"}},
        {"email": 4711, "who": {"name": 4711}},
        {"home": [{"street": "Secret"}]},
    ]
    result = run(_SIDES, records, batch_size=1)
    (table,) = result.tables.values()
    text = json.dumps(table.to_pylist(), default=str)
    (letter,) = result.dead_letters
    assert letter["error_code"] == "SHAPE_FAILED"
    assert "ecret" not in text and "4711" not in text
    assert token("4711") in text
    # a struct and a text in one schema
    both = [{"who": {"name": "Secret"}}, {"who": "the name is Secret"}]
    rows = [row for table in run(_SIDES, both).tables.values() for row in table.to_pylist()]
    assert "ecret" not in json.dumps(rows, default=str)


def test_what_a_schema_does_not_name_is_redacted_beside_masks() -> None:
    """It is one text of JSON, in which masked fields are as they came."""
    with Schemas() as schemas:
        schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
        number = schemas.register("t-value", json.dumps(schema), format="json")
        records: list[dict[str, Any]] = [{"id": 1, "email": "Secret"}, {"id": 2}]
        registry = f'registry: {{path: "{schemas.path}"}}\n'
        framed = [schemas.frame(number, json.dumps(record).encode()) for record in records]
        result = run(registry + _SIDES, framed, schemas=schemas)
    (table,) = result.tables.values()
    assert table["_rest"].to_pylist() == ["***", None]


def test_a_key_in_the_file_is_not_shown() -> None:
    text = FILE.format(tables="", masking=f"masking: {{key: '{CANARY}'}}")
    config = load_text(text).config
    assert CANARY not in repr(config) + json.dumps(config.model_dump(mode="json"))
