"""`cuts`, and `query` and `head` at a cut, as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Cli
from tests.lakes.settled import SettledLake

COUNT = "select (select count(*) from silver_chess) c, (select count(*) from silver_go) g"


@pytest.fixture
def games(own_folder: Path) -> SettledLake:
    lake = SettledLake(own_folder)
    for _ in range(3):
        lake.batch({"chess": 2, "go": 1})
    return lake


def test_cuts_are_listed_page_by_page(games: SettledLake, cli: Cli) -> None:
    shown = cli("cuts", "--lake", games.lake)
    assert shown.code == 0
    assert [line.split()[0] for line in shown.out.splitlines()] == ["CUT", "2", "1", "0"]
    assert "2026-11-15 12:02:00" in shown.out
    found = cli("cuts", "-n", 1, "--json").json["cuts"]
    assert [(cut["batch"], cut["tables"], cut["rows"]) for cut in found] == [(2, 3, 6)]
    page = cli("cuts", "list", "--before", 2, "-n", 1, "--json").json["cuts"]
    assert [cut["batch"] for cut in page] == [1]


def test_a_cut_is_a_document_of_versions(games: SettledLake, cli: Cli) -> None:
    document = cli("cuts", "show", 1, "--json").json
    assert document["batches"] == [
        {
            "pipeline": "games",
            "life": "life1",
            "batch": 1,
            "settled_at": "2026-11-15T12:01:00+00:00",
        }
    ]
    chess = next(t for t in document["tables"] if t["table"] == "silver_chess")
    assert (chess["version"], chess["format"]) == (1, "delta")
    assert DeltaTable(chess["path"], version=chess["version"]).to_pyarrow_table().num_rows == 4
    shown = cli("cuts", "show", "2026-11-15 12:01")
    assert shown.out.splitlines()[0] == "games: batch 1, settled 2026-11-15 12:01:00 UTC"
    views = cli("cuts", "show", 1, "--sql", "spark").out.splitlines()
    assert len(views) == 3 and all("VERSION AS OF 1;" in view for view in views)
    assert cli("cuts", "show", 1, "--sql", "oracle").code == 2


def test_statements_read_one_cut(games: SettledLake, cli: Cli) -> None:
    games.batch({"chess": 2, "go": 1}, settled=False)
    assert cli("query", COUNT, "--csv").out.splitlines()[1] == "6,3"
    assert cli("query", COUNT, "--as-of", 0, "--csv").out.splitlines()[1] == "2,1"
    assert cli("query", COUNT, "--as-of", "2026-11-15 12:01", "--csv").out.splitlines()[1] == "4,2"
    head = cli("head", "silver_chess", "--as-of", 0, "--json").json
    assert (head["table_version"], len(head["rows"])) == (0, 2)
    assert len(cli("head", "silver_chess", "--json").json["rows"]) == 6


def test_tables_and_columns_at_a_cut(games: SettledLake, cli: Cli) -> None:
    games.batch({"poker": 1})
    found = {t["table"]: t for t in cli("tables", "--as-of", 1, "--json").json["tables"]}
    assert found.keys() == {"bronze_events", "silver_chess", "silver_go"}
    chess = found["silver_chess"]
    assert (chess["version"], chess["rows"], chess["columns"]) == (1, 4, 5)
    assert cli("tables", "--as-of", 1).out.splitlines()[2].split()[:4] == [
        *("silver_chess", "each", "1", "4"),
    ]
    schema = cli("schema", "show", "silver_chess", "--as-of", 1, "--json").json
    assert (schema["table_version"], len(schema["columns"])) == (1, 5)
    assert cli("schema", "show", "silver_poker", "--as-of", 1).code == 2


def test_what_cannot_be_read_at_a_cut_is_named(games: SettledLake, cli: Cli) -> None:
    games.batch({"poker": 1})
    early = cli("query", "select * from silver_poker", "--as-of", 1, "--json").json["error"]
    assert early["code"] == "NOT_FOUND"
    assert early["what"] == "table silver_poker is not part of cut 1"
    assert cli("query", "select 1 from silver_go", "--as-of", 9).code == 2
    path = games.lake / "silver_chess"
    # what compaction and a vacuum leave of old versions
    DeltaTable(str(path)).optimize.compact()
    DeltaTable(str(path)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    lost = cli("query", "select count(move) from silver_chess", "--as-of", 1, "--json").json[
        "error"
    ]
    assert lost["code"] == "CUT_LOST"
    assert "lost version 1" in lost["what"]
    assert cli("query", "select count(*) n from silver_chess", "--csv").out == "n\n6\n"


def test_plain_parquet_has_only_its_newest_state(own_folder: Path, cli: Cli) -> None:
    lake = SettledLake(own_folder, format="parquet", bronze=False)
    lake.batch({"chess": 2})
    lake.batch({"chess": 2})
    assert cli("query", "select count(*) n from silver_chess", "--csv").out == "n\n4\n"
    refused = cli("query", "select * from silver_chess", "--as-of", 0, "--json").json["error"]
    assert refused["code"] == "CUT_LOST"
    assert "newest state" in cli("cuts", "show", 0).out


def test_pins_as_they_are_typed(games: SettledLake, cli: Cli) -> None:
    lake = ["--lake", games.lake]
    done = cli("cuts", "pin", 2, "--until", "2099-01-01", *lake)
    assert (done.code, done.out) == (0, "games:2 is kept until 2099-01-01 00:00:00 UTC: 3 tables\n")
    assert "2099-01-01" in cli("cuts", *lake).out
    assert cli("cuts", "pin", 2, "--until", "2001-01-01", *lake).code == 2
    assert cli("cuts", "pin", 2, "--until", "soon", *lake).code == 2
    assert cli("cuts", "unpin", 2, "--json", *lake).json["unpinned"] == "games:2"
    assert cli("cuts", "unpin", 2, *lake).code == 2


def test_what_came_between_two_cuts(games: SettledLake, cli: Cli) -> None:
    games.batch({"chess": 5})
    found = cli("cuts", "diff", 1, 3, "--json").json["tables"]
    assert [(row["table"], row["inserted"]) for row in found] == [
        ("bronze_events", 8),
        ("silver_chess", 7),
        ("silver_go", 1),
    ]
    assert "1 to 3" in cli("cuts", "diff", 1, 3).out
    rows = cli("cuts", "diff", 2, 3, "silver_chess", "--csv").out.splitlines()
    assert len(rows) == 6 and rows[1].endswith(",3,insert")
    short = cli("cuts", "diff", 2, 3, "silver_chess", "-n", 2, "--json").json
    assert (short["total"], len(short["rows"])) == (5, 2)
    assert cli("cuts", "diff", 2, 3, "silver_go", "--json").json["rows"] == []
    assert cli("cuts", "diff", 3, 3).out == "the rows of all tables are the same\n"
    assert cli("cuts", "diff", 3, 1).code == 2
    assert cli("cuts", "diff", 1, 3, "silver_nope").code == 2
