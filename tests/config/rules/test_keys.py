"""Keys of tables: what the file may say, and where it is wrong."""

from __future__ import annotations

import pytest

from distributary.config.load import load_text
from distributary.config.rules.keys import keyed_table
from distributary.errors import ConfigError, ErrorCode

FILE = """
name: shop
source: {type: kafka, bootstrap_servers: "k:9092", topics: [orders]}
payload: {format: json}
tables: {each: "silver_{topic}", bronze: raw}
lake: {path: ./lake}
"""


def problems(keys: str, file: str = FILE) -> list[tuple[str, ErrorCode, str]]:
    with pytest.raises(ConfigError) as caught:
        load_text(f"{file}{keys}", file="p.yaml", environ={})
    return [(p.path, p.code, p.message) for p in caught.value.problems]


def test_the_first_entry_that_fits_counts() -> None:
    keys = """
keys:
  - {tables: [silver_a*], key: id, order: [at], mode: dedup}
  - {tables: [silver_*], key: [id, day], delete_when: "op = 'D' or gone", history: true}
"""
    config = load_text(FILE + keys, file="p.yaml", environ={}).config
    first, second = config.keys
    assert (first.rule.key, first.rule.order, first.rule.keeps_first) == (("id",), ("at",), True)
    assert second.rule.delete is not None
    assert second.rule.delete.columns == (("op",), ("gone",))
    assert keyed_table(config.keys, "silver_ab") is first
    assert keyed_table(config.keys, "silver_b") is second
    assert keyed_table(config.keys, "gold") is None


@pytest.mark.parametrize(
    ("keys", "path", "words"),
    [
        ("keys: [{order: [at]}]", "keys[0].key", "required"),
        ("keys: [{key: []}]", "keys[0].key", ""),
        ("keys: [{key: [id, ID]}]", "keys[0].key[1]", "named twice"),
        ("keys: [{key: [id], order: [a, b, c, d, e]}]", "keys[0].order", ""),
        ("keys: [{key: [id], mode: dedup, history: true}]", "keys[0].history", "dedup"),
        ("keys: [{key: [id], horizon: 1d}]", "keys[0].horizon", "mode: dedup"),
        ("keys: [{key: [id], mode: dedup, horizon: 0s}]", "keys[0].horizon", "more than 0s"),
        ("keys: [{key: [id], mode: dedup, delete_when: x}]", "keys[0].delete_when", "dedup"),
        ("keys: [{key: [id], delete_when: 'x >'}]", "keys[0].delete_when", "expression in SQL"),
        ("keys: [{key: [id], delete_when: 't < now()'}]", "keys[0].delete_when", "current time"),
        (
            "keys: [{key: [id], delete_when: 't < current_date'}]",
            "keys[0].delete_when",
            "current time",
        ),
        ("keys: [{key: [id], tables: [raw]}]", "keys[0].tables", "tables per type"),
        (
            "keys: [{key: [id], order: [at], tombstones: delete}]",
            "keys[0].order",
            "_timestamp and the offset",
        ),
        ("keys: [{key: [id], mode: dedup, tombstones: delete}]", "keys[0].tombstones", "dedup"),
        ("keys: [{key: [id], modus: x}]", "keys[0].modus", ""),
    ],
)
def test_problems_have_their_place(keys: str, path: str, words: str) -> None:
    ((place, _, message),) = problems(keys)
    assert place == path
    assert words in message


@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        ("payload: {format: json}", "cdc: {format: debezium}\npayload: {format: json}", "keys"),
        (", bronze: raw", ", bronze: raw, format: parquet", "tables.format"),
        (", bronze: raw", ", bronze: raw, metadata: [key]", "tables.metadata"),
        ('"silver_{topic}"', "orders_log", "tables.each"),
        ('"silver_{topic}", bronze: raw', "orders, bronze: orders_log", "tables.bronze"),
        ('each: "silver_{topic}", ', "", "keys"),
    ],
)
def test_what_keys_cannot_be_combined_with(before: str, after: str, path: str) -> None:
    assert before in FILE
    file = FILE.replace(before, after)
    assert path in [place for place, _, _ in problems("keys: [{key: [id]}]", file)]


def test_a_message_without_a_value_has_no_envelope() -> None:
    file = FILE.replace("{topic}", "{type}") + "envelope: {format: json, type: kind}\n"
    ((place, _, message),) = problems("keys: [{key: [id], tombstones: delete}]", file)
    assert place == "keys[0].tombstones"
    assert "envelope" in message
