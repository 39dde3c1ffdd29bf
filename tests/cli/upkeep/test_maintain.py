"""`maintain`, as it is typed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.cli.conftest import Cli
from tests.lakes.written import HOSTILE, letter, make_lake, pin_file

FILE = """
name: games
source: {{type: delta, path: {lake}/source, value: v}}
payload: {{format: json}}
tables: {{each: "silver_{{topic}}"}}
lake: {{path: {lake}}}
maintain:
  steps: [optimize, checkpoint, expire]
  optimize: {{min_files: 3}}
  checkpoint: {{every: 3 commits}}
"""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    done = {"status": "replayed"}
    letters = [letter(20) | done, letter(21), letter(22, code="NULL_VALUE")]
    lake = make_lake(tmp_path / "lake", letters=letters, file=tmp_path / "games.yaml")
    (tmp_path / "games.yaml").write_text(FILE.format(lake=lake))
    pin_file(lake, tmp_path / "games.yaml")
    for _ in range(3):
        rows = pa.table({"move": ["d4"], "_offset": pa.array([99], pa.int64())})
        write_deltalake(lake / "silver_0", rows, mode="append", schema_mode="merge")
    return lake


def files(lake: Path, table: str = "silver_0") -> int:
    return len(DeltaTable(lake / table).file_uris())


def test_what_the_file_asks_for_is_done(cli: Cli, lake: Path) -> None:
    file = lake.parent / "games.yaml"
    would = cli("maintain", file, "--dry-run", "--json")
    assert (would.code, would.json["dry_run"]) == (0, True)
    assert would.json["steps"] == ["optimize", "checkpoint", "expire"]
    assert files(lake) == 4
    done = cli("maintain", file, "--json")
    assert done.code == 0
    assert done.json["version"] == 1
    assert done.json["totals"]["dead_letters"] == would.json["totals"]["dead_letters"] == 1
    (table,) = (t for t in done.json["tables"] if t["table"] == "silver_0")
    assert (table["optimize"]["files_before"], table["optimize"]["files_after"]) == (4, 1)
    assert table["checkpoint"]["checkpoint"] == 4 and table["error"] is None
    assert table["vacuum"] is None
    assert DeltaTable(lake / "silver_0").to_pyarrow_table().num_rows == 13
    again = cli("maintain", file, "--json")
    assert again.json["totals"]["changed"] == 0


def test_steps_can_be_chosen_for_some_tables(cli: Cli, lake: Path) -> None:
    file = lake.parent / "games.yaml"
    done = cli("maintain", file, "silver_1", HOSTILE, "--optimize", "--json")
    assert done.code == 0
    assert [t["table"] for t in done.json["tables"]] == ["silver_1"]
    assert done.json["steps"] == ["optimize"]
    assert files(lake) == 4
    assert done.json["ledger"] is None


def test_words_are_for_people(cli: Cli, lake: Path) -> None:
    said = cli("maintain", "--lake", lake)
    assert said.code == 0
    assert "silver_0" in said.out and "4 to 1" in said.out
    assert "\x1b" not in said.out


def test_failing_table_is_told_and_the_others_are_done(cli: Cli, lake: Path) -> None:
    log = lake / "silver_1" / "_delta_log"
    (log / f"{0:020d}.json").write_text("{")
    said = cli("maintain", "--lake", lake, "--optimize", "--checkpoint")
    assert said.code == 1
    assert "silver_1" in said.out
    assert files(lake) == 1


def test_short_retention_needs_a_word_more(cli: Cli, lake: Path) -> None:
    short = ("maintain", "--lake", lake, "--vacuum", "--retention", "0s", "--json")
    refused = cli(*short)
    assert (refused.code, refused.json["error"]["code"]) == (2, "CONFIRMATION_NEEDED")
    assert cli("maintain", "--lake", lake, "--retention", "soon", "--json").code == 2
    cli("maintain", "--lake", lake, "--optimize")
    done = cli(*short, "--force")
    assert done.code == 0
    assert done.json["totals"]["files_deleted"] == 4
    assert DeltaTable(lake / "silver_0").to_pyarrow_table().num_rows == 13


def test_unknown_table_and_lake(cli: Cli, lake: Path) -> None:
    assert (
        cli("maintain", "--lake", lake, "silver_9", "--json").json["error"]["code"] == "NOT_FOUND"
    )
    assert cli("maintain", "--lake", lake.parent, "--json").code == 2


def test_lake_without_tables(cli: Cli, tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "empty", types=(), letters=())
    said = cli("maintain", "--lake", lake, "--json")
    assert (said.code, said.json["tables"]) == (0, [])
