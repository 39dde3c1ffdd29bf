"""What a flow makes of records: rows, dead letters, or the end of the update; without Spark."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from distributary.errors import ConfigError, ErrorCode, SchemaGrewError
from distributary.pipelines import decoded, types
from distributary.pipelines.flows import LETTERS, DeadLetterRows, TypeRows
from distributary.pipelines.known_types import KnownTypes, known, settings
from distributary_lab.simulate.game_records import GamesPlan
from tests.pipelines.games import FILE, Games, as_it_is, raw

TWO = GamesPlan(games=2, versions=2, records=5)
FIRST, SECOND = TWO.names


@pytest.fixture
def games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Games:
    monkeypatch.chdir(tmp_path)
    return Games(tmp_path)


def now(games: Games) -> KnownTypes:
    return known(settings(games.file))


def rows(games: Games, at: KnownTypes, name: str, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    flow = TypeRows(settings(games.file), at.only(name), name, as_it_is)
    # a task gets a copy, on another machine
    copied = pickle.loads(pickle.dumps(flow))
    return pa.Table.from_batches(copied(iter(batches)), flow.schema)


def letters(games: Games, at: KnownTypes, *batches: pa.RecordBatch) -> pa.Table:
    flow = pickle.loads(pickle.dumps(DeadLetterRows(settings(games.file), at, as_it_is)))
    return pa.Table.from_batches(flow(iter(batches)), LETTERS)


def test_types_and_tables_of_a_registry(games: Games) -> None:
    games.send(TWO)
    assert types(games.file) == tuple(sorted((n, f"silver_{n}") for n in TWO.names))


def test_an_empty_registry_knows_no_types(games: Games) -> None:
    games.send(GamesPlan(games=1, versions=1, records=1))
    assert [each.name for each in types(games.file)] == [*GamesPlan(games=1).names]


def test_rows_of_all_versions_have_the_columns_of_all(games: Games) -> None:
    sent = games.send(TWO)
    found = rows(games, now(games), FIRST, [sent])
    assert found.num_rows == 10
    assert set(found["game_name"].to_pylist()) == {FIRST}
    newest = found[f"col_{FIRST}_1"]
    assert newest.null_count == 5
    assert "_schema_id" in found.column_names
    assert "_batch" not in found.column_names


def test_nothing_is_a_row_and_a_dead_letter(games: Games) -> None:
    sent = games.send(GamesPlan(games=2, versions=2, records=5, bad=8))
    at = now(games)
    good = sum(rows(games, at, name, [sent]).num_rows for name in TWO.names)
    bad = letters(games, at, sent)
    assert (good, bad.num_rows) == (20, 8)
    assert good + bad.num_rows == sent.num_rows
    assert str(ErrorCode.UNKNOWN_SCHEMA_ID) in bad["error_code"].to_pylist()


def test_no_records_are_no_rows(games: Games) -> None:
    games.send(TWO)
    at = now(games)
    assert rows(games, at, FIRST, []).num_rows == 0
    assert rows(games, at, FIRST, [raw([])]).num_rows == 0
    assert letters(games, at, raw([])).num_rows == 0


def test_a_new_field_ends_the_update_and_is_there_in_the_next(games: Games) -> None:
    old = games.send(TWO)
    at = now(games)
    new = games.send(GamesPlan(games=2, versions=1, records=3, start_version=3))
    with pytest.raises(SchemaGrewError) as raised:
        rows(games, at, FIRST, [old, new])
    assert raised.value.code is ErrorCode.SCHEMA_GREW
    assert f"col_{FIRST}_2" in raised.value.evidence
    again = rows(games, now(games), FIRST, [old, new])
    assert again.num_rows == 13
    assert again[f"col_{FIRST}_2"].null_count == 10
    # columns only grow, or a streaming table could not take them
    assert set(at.shape()[FIRST]) <= set(now(games).shape()[FIRST])


def test_a_version_that_needs_no_new_column_does_not_end_the_update(games: Games) -> None:
    games.send(GamesPlan(games=1, versions=2, records=1))
    name = GamesPlan(games=1).names[0]
    at = now(games)
    games.registry.set_compatibility(f"{name}-value", "NONE")
    text = 'syntax = "proto3";\nmessage event { string game_name = 1; }\n'
    schema_id = games.registry.register(f"{name}-value", text)
    payload = b"\x0a\x01x"
    wrapper = bytes([10, len(name)]) + name.encode() + bytes([16, schema_id, 26, 3]) + payload
    found = rows(games, at, name, [raw([wrapper])])
    assert found["game_name"].to_pylist() == ["x"]
    assert letters(games, at, raw([wrapper])).num_rows == 0


def test_a_new_type_ends_the_update_of_the_dead_letters_only(games: Games) -> None:
    games.send(GamesPlan(games=1, versions=1, records=1))
    at = now(games)
    sent = games.send(TWO)
    assert at.types[0].name == FIRST
    with pytest.raises(SchemaGrewError):
        letters(games, at, sent)
    with_second = now(games)
    assert letters(games, with_second, sent).num_rows == 0


def test_a_widened_field_gets_a_column_of_its_own(games: Games) -> None:
    games.send(GamesPlan(games=1, versions=2, records=1, type_change=True))
    columns = now(games).shape()[GamesPlan(games=1).names[0]]
    assert len(columns) == len(set(columns))
    assert sum(column.startswith("is_connection_stable") for column in columns) == 2


def test_a_type_that_is_unknown_is_refused_before_spark_is_asked(games: Games) -> None:
    games.send(TWO)
    with pytest.raises(ConfigError) as raised:
        decoded(None, games.file, type="nobody's")  # type: ignore[arg-type]
    assert FIRST in raised.value.evidence


def test_every_record_is_accounted_for_by_code(games: Games) -> None:
    sent = games.send(GamesPlan(games=1, versions=1, records=20, bad=10))
    bad = letters(games, now(games), sent)
    codes = Counter(bad["error_code"].to_pylist())
    assert sum(codes.values()) == 10
    assert {str(ErrorCode.NULL_VALUE), str(ErrorCode.NOT_AN_ENVELOPE)} <= codes.keys()


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ('each: "silver_{type}"', "bronze: everything"),
        ('each: "silver_{type}"', "each: all_of_them"),
        ("framing: auto}", "framing: auto, subject: any}"),
    ],
    ids=["no-table-each", "one-table", "any-subject"],
)
def test_files_that_cannot_be_declarative_are_refused(
    tmp_path: Path, found: str, instead: str
) -> None:
    games = Games(tmp_path, FILE.replace(found, instead))
    with pytest.raises(ConfigError):
        types(games.file)
