"""`erase`, as it is typed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.cli.conftest import Cli
from tests.lakes.settled import SettledLake


@pytest.fixture
def lake(tmp_path: Path) -> SettledLake:
    lake = SettledLake(tmp_path, unified=True, users=("ada", "bob"))
    lake.batch({"chess": 4, "go": 2}, letters=2)
    return lake


def rows(lake: SettledLake, table: str) -> int:
    return DeltaTable(lake.lake / table).to_pyarrow_table().num_rows


def test_it_shows_asks_erases_and_is_verified(cli: Cli, lake: SettledLake) -> None:
    where = ("erase", "--where", "user_id = 'ada'", "--lake", lake.lake)
    would = cli(*where, "--dry-run", "--json")
    assert (would.code, would.json["dry_run"], would.json["records"]) == (0, True, 3)
    found = {table["table"]: table["rows"] for table in would.json["tables"]}
    assert found == {
        "bronze_events": 3,
        "dead_letters": 0,
        "silver_chess": 2,
        "silver_go": 1,
        "unified_gold": 3,
    }
    assert would.json["raw_records"] == 1 and rows(lake, "silver_chess") == 4
    assert "CONFIRMATION_NEEDED" in cli(*where).err
    assert rows(lake, "silver_chess") == 4
    done = cli(*where, "--yes", "--json")
    assert done.code == 0 and done.json["rows"] == done.json["certificate"]["rows"] == 9
    assert rows(lake, "silver_chess") == 2
    proven = cli("verify", "--all", "--deep", "--lake", lake.lake, "--json")
    assert proven.code == 0, proven.json
    erasures = proven.json["erasures"]
    assert (erasures["erasures"], erasures["rows_compared"], erasures["agrees"]) == (1, True, True)
    # somebody else writes a row of that person again
    back = pa.table({"move": ["e4"], "user_id": ["ada"], "_offset": pa.array([99], pa.int64())})
    write_deltalake(lake.lake / "silver_go", back, mode="append", schema_mode="merge")
    again = cli("verify", "--all", "--deep", "--lake", lake.lake, "--json")
    assert again.code == 1 and [f["kind"] for f in again.json["erasures"]["findings"]] == ["rows"]


def test_what_cannot_be_meant_is_refused(cli: Cli, lake: SettledLake, tmp_path: Path) -> None:
    place = ("--lake", lake.lake, "--yes")
    assert cli("erase", *place).code == 2
    assert cli("erase", "--where", "a = 1", "--keys", "x.csv", *place).code == 2
    for bad in ("user_id", "user_id = (SELECT 1)", "true", "read_text('/etc/passwd') = user_id"):
        assert cli("erase", "--where", bad, *place).code == 2
    missing = cli("erase", "--keys", tmp_path / "none.csv", *place)
    assert missing.code == 2
    none = cli("erase", "--where", "nobody_has = 'x'", *place, "--json")
    assert none.code == 0 and none.json["rows"] == 0
    assert any("nobody_has" in note for note in none.json["notes"])
    assert rows(lake, "silver_chess") == 4


def test_hostile_values_are_only_values(cli: Cli, lake: SettledLake) -> None:
    text = "user_id = '\x1b[31m[bold]'"
    assert cli("erase", "--where", text, "--lake", lake.lake, "--dry-run").code == 2
    shown = cli("erase", "--where", "user_id = '[bold]'", "--lake", lake.lake, "--dry-run")
    assert shown.code == 0 and "\x1b" not in shown.out
