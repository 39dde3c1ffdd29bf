"""`query` and `head`, as they are typed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from distributary.cli.command.output import program
from tests.cli.conftest import Cli
from tests.lakes.written import make_lake
from tests.source.s3_server import s3_server

FILE = """
name: games
source: {{type: delta, path: ./wrapper}}
payload: {{format: json}}
tables: {{each: one}}
lake: {{path: "{lake}", storage_options: {options}}}
"""


@pytest.fixture
def lake(own_folder: Path) -> Path:
    return make_lake(own_folder / "lake")


def test_an_answer_as_a_table_as_json_and_as_csv(lake: Path, cli: Cli) -> None:
    sql = "select move, count(*) as n from silver_0 group by all"
    shown = cli("query", sql)
    assert (shown.code, shown.out.split()) == (0, ["move", "n", "e4", "10"])
    found = cli("query", sql, "--json").json
    assert found["rows"] == [{"move": "e4", "n": 10}]
    assert [column["name"] for column in found["columns"]] == ["move", "n"]
    assert found["more"] is False
    assert cli("query", sql, "--csv").out == "move,n\ne4,10\n"


def test_values_from_outside_reach_no_terminal_and_survive_csv(lake: Path, cli: Cli) -> None:
    sql = "select 'a' || chr(27) || '[31m,\"' || chr(10) as x, [1, null] as y, null as z"
    assert "\x1b" not in cli("query", sql).out
    assert "\x1b" not in cli("query", 'select 1 as "\x1b[31m[bold]"').out
    rows = list(csv.reader(io.StringIO(cli("query", sql, "--csv").out)))
    assert rows == [["x", "y", "z"], ['a\x1b[31m,"\n', "[1, null]", ""]]


def test_rows_are_written_to_a_file_with_their_types(
    lake: Path, cli: Cli, own_folder: Path
) -> None:
    said = cli("query", "select * from silver_0", "--parquet", "rows.parquet")
    assert (said.code, said.out) == (0, "wrote 10 rows to rows.parquet\n")
    rows = pq.read_table("rows.parquet").sort_by("_offset")
    table = DeltaTable(str(lake / "silver_0")).to_pyarrow_table().sort_by("_offset")
    assert rows.to_pylist() == table.to_pylist()
    assert rows.schema.names == table.schema.names
    few = cli("query", "from range(5000)", "--parquet", "rows.parquet", "-n", 3000, "--json").json
    assert (few["rows"], few["more"], few["file"]) == (3000, True, "rows.parquet")
    assert pq.read_table("rows.parquet").num_rows == 3000
    assert cli("query", "from range(0)", "--parquet", "none.parquet").code == 0
    assert pq.read_table("none.parquet").num_rows == 0
    # the file of before stays if the new one cannot be written
    for sql, file in (
        ("select interval 1 day as x", "rows.parquet"),
        ("select 1 as x", "nowhere/x.parquet"),
        ("select nothing", "rows.parquet"),
    ):
        assert cli("query", sql, "--parquet", file).code == 2
    assert pq.read_table("rows.parquet").num_rows == 3000
    assert [p.name for p in own_folder.glob(".*parquet*")] == []
    assert cli("query", "select 1", "--parquet", "x.parquet", "--csv").code == 2


def test_more_rows_than_are_shown(lake: Path, cli: Cli) -> None:
    found = cli("query", "select * from range(5)", "--limit", 2)
    assert found.out.split() == ["range", "0", "1"]
    assert "--limit" in found.err
    assert cli("query", "select * from range(5)", "-n", 2, "--json").json["more"] is True
    assert len(cli("query", "from range(2000)", "--csv").out.split()) == 2001
    assert len(cli("query", "from range(2000)", "--limit", 0).out.split()) == 2001


def test_sql_comes_by_standard_input_too(
    lake: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("select 6 * 7 as answer;"))
    assert cli("query", "--json").json["rows"] == [{"answer": 42}]


def test_a_prompt_in_a_terminal(lake: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    typed = (
        "\nselect count(*) as n\nfrom silver_0;\nselect nope;\nselect 2 as two;\nquit\nselect 3;\n"
    )
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    found = cli("query")
    assert (found.code, found.out.split()) == (0, ["n", "10", "two", "2"])
    assert "QUERY_INVALID" in found.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("select nope",), 2),
        (("drop table silver_0",), 2),
        (("select * from silver_00",), 2),
        (("select 1", "--csv", "--json"), 2),
        (("select 1", "--timeout", "soon"), 2),
        (("select 1", "--memory", "much"), 2),
        (("select list(i) from range(100000000) t(i)", "--memory", "32MiB"), 1),
    ],
)
def test_what_cannot_be_asked(lake: Path, cli: Cli, words: tuple[str, ...], code: int) -> None:
    found = cli("query", *words)
    assert (found.code, found.out if "--json" not in words else "") == (code, "")


def test_head_shows_the_newest_rows_by_table_or_type(lake: Path, cli: Cli) -> None:
    found = cli("head", "silver_0", "-n", 3, "--json").json
    assert (found["table"], len(found["rows"])) == ("silver_0", 3)
    assert cli("head", "chess", "-n", 3, "--json").json["rows"] == found["rows"]
    assert len(cli("head", "silver_0", "--csv").out.splitlines()) == 11
    assert "e4" in cli("head", "SILVER_0").out
    wrong = cli("head", "silver_O")
    assert (wrong.code, "silver_0" in wrong.err) == (2, True)
    # the key and the value of a dead letter are bytes from anywhere
    assert "\x1b" not in cli("head", "dead_letters").out


def test_a_lake_in_a_bucket_by_the_pipelines_file(own_folder: Path, cli: Cli) -> None:
    local = make_lake(own_folder / "made")
    with s3_server() as server:
        for path in local.rglob("*"):
            if path.is_file():
                server.put(f"lake/{path.relative_to(local)}", path.read_bytes())
        address = f"s3://{server.bucket}/lake"
        options = json.dumps(server.options)
        file = own_folder / "games.yaml"
        file.write_text(FILE.format(lake=address, options=options))
        sql = "select count(*) as n from silver_0 where _offset > 4"
        assert cli("query", sql, "-f", file, "--json").json["rows"] == [{"n": 5}]
        assert len(cli("head", "silver_0", "-n", 2, "-f", file, "--json").json["rows"]) == 2
        refused = cli("query", "select * from nothing", "-f", file, "--debug")
        assert (refused.code, server.keys["aws_secret_access_key"] in refused.err) == (2, False)


def test_what_to_type_is_a_path_where_the_name_is_nobodys(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = own_folder / "a venv" / "distributary"
    own.parent.mkdir()
    own.touch(mode=0o755)
    monkeypatch.setattr("sys.argv", [str(own)])
    monkeypatch.setenv("PATH", str(own_folder))
    assert program() == "'a venv/distributary'"
    monkeypatch.setenv("PATH", str(own.parent))
    assert program() == "distributary"
    # another program of this name
    (own_folder / "distributary").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{own_folder}:{own.parent}")
    assert program() == "'a venv/distributary'"
    monkeypatch.chdir(own.parent)
    assert program() == "./distributary"
    (own_folder / "elsewhere").mkdir()
    monkeypatch.chdir(own_folder / "elsewhere")
    assert program() == f"'{own}'"
