"""`clean --drop-schema`, without a table and without Spark."""

from __future__ import annotations

from pathlib import Path

from distributary.catalog.unity import UnityTables
from distributary.config.load import load
from tests.catalog.unity_server import TOKEN, unity_server
from tests.cli.conftest import Cli

FILE = """\
name: games
source: {{type: delta, path: ./wrapper}}
payload: {{format: json}}
tables: {{each: silver_x}}
lake: {{path: ./lake{more}}}
"""


def test_the_schema_goes_if_it_was_made_here(own_folder: Path, cli: Cli) -> None:
    with unity_server() as server:
        place = "name: main, schema: games"
        catalog = f", catalog: {{type: unity, url: '{server.url}', token: {TOKEN}, {place}}}"
        file = own_folder / "games.yaml"
        file.write_text(FILE.format(more=catalog))
        settings = load(file).config.lake.registered_in
        tables = UnityTables(settings)  # type: ignore[arg-type]
        tables.prepare()
        tables.close()
        line = ("clean", file, "--drop-schema")
        shown = cli(*line, "--dry-run")
        assert shown.code == 0 and "main.games" in shown.out and server.schemas
        assert "schema" in cli(*line, "--yes").out
        assert not server.schemas
        server.schemas["main", "games"] = {}
        kept = cli(*line, "--yes", "--json").json
        assert kept["removed"] is False and "did not make it" in kept["schema_kept"]
        assert server.schemas


def test_without_a_catalog_there_is_no_schema(own_folder: Path, cli: Cli) -> None:
    file = own_folder / "games.yaml"
    file.write_text(FILE.format(more=""))
    result = cli("clean", file, "--drop-schema", "--yes")
    assert result.code == 2 and "lake.catalog" in result.err
