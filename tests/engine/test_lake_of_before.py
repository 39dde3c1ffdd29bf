"""A lake and a checkpoint that the first version wrote are opened as they are.

Its runs were killed when their second batch had been decided and no table had it yet.
"""

import json
import os
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from distributary.cli.command_line import application
from distributary.engine.pipeline import Pipeline
from distributary.model.table import Role
from distributary_lab.simulate.base import Round, Sent
from distributary_lab.simulate.game_records import DEFAULT_KINDS, GamesPlan
from tests.lakes.changes import as_text, rows_of
from tests.lakes.games import Games

_PLACE = "/srv/shop"
"""Where the lakes lay when they were written."""
_KINDS = tuple(kind for kind in DEFAULT_KINDS if kind != "oversize")
_PLAN = GamesPlan(games=3, versions=3, records=20, bad=6, bad_kinds=_KINDS)
_ROUND = 62


@pytest.fixture
def before(tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).parent / "data" / "lake-before.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    for path in tmp_path.rglob("*"):
        if path.suffix in (".json", ".yaml"):
            # the time stays: a claim is as old as its file
            written = path.stat().st_mtime
            text = path.read_text().replace(_PLACE, str(tmp_path))
            # whether an owner on another machine is silent is watched for a part of its lease
            path.write_text(text.replace('"lease": 15.0', '"lease": 1.5'))
            os.utime(path, (written, written))
    return tmp_path


def test_a_stream_goes_on_where_the_version_before_was_killed(
    before: Path, tasks: SparkSession
) -> None:
    games = Games(before / "games", _PLAN)
    earlier = [_sent(next(games._rounds)) for _ in range(2)]
    assert [sent.messages for sent in earlier] == [_ROUND, _ROUND]
    games.sent.extend(earlier)
    games.send_round()
    pipeline = Pipeline.load(games.root / "games.yaml")
    assert [batch.batch for batch in pipeline.ledger().batches("games")] == [0]
    assert pipeline.run(spark=tasks).counts.read == 2 * _ROUND
    games.assert_each_record_once()
    games.assert_no_file_is_left()
    assert games.tables() == ["silver_chess_game", "silver_poker_game", "silver_solitaire_game"]
    assert "col_chess_game_2" in games.rows("silver_chess_game")[0]
    _assert_verified(games.lake)


def test_tables_of_change_data_go_on_where_the_version_before_was_killed(
    before: Path, tasks: SparkSession
) -> None:
    root = before / "changes"
    shutil.copytree(root / "later", root / "datastream", dirs_exist_ok=True)
    pipeline = Pipeline.load(root / "changes.yaml")
    assert pipeline.run(spark=tasks).counts.dead_lettered == 0
    tables = {t.type: t.table for t in pipeline.ledger().tables("changes") if t.role == Role.MERGED}
    truth = json.loads((root / "truth.json").read_text())
    assert sorted(tables) == sorted(truth)
    for name, expected in truth.items():
        rows = rows_of(root / "lake" / tables[name])
        found = Counter(as_text(row, expected["kinds"], odd=False) for row in rows)
        assert found == Counter(expected["rows"]), name
    _assert_verified(root / "lake")


def _assert_verified(lake: Path) -> None:
    result = CliRunner().invoke(application(), ["verify", "--all", "--deep", "--lake", str(lake)])
    assert result.exit_code == 0, result.output


def _sent(one: Round) -> Sent:
    assert list(one.arrow())  # messages are counted as they are made
    return one.sent()
