"""Changes as SQL: what a database has after them, and that they come back from a real one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from distributary.changes.source.base import connect as connected
from distributary.config.database import parse_address
from distributary.errors import ConfigError
from distributary_lab.services.services import Services
from distributary_lab.simulate.cdc.shapes import CALM, CdcFormat, CdcPlan, Feature, SourceType
from distributary_lab.simulate.cdc.sql_script import (
    DIALECTS,
    IN_DATABASES,
    SERIAL,
    SqlScript,
    write_script,
)
from tests.cli.conftest import Cli, cli, own_folder
from tests.lakes.debezium import Shop
from tests.operations.test_source_running import address, checked, tables
from tests.services.debezium import Debezium, json_events
from tests.services.mariadb import MariaDB, is_installed
from tests.services.postgres import Postgres

__all__ = ["cli", "own_folder"]
KEEPING = IN_DATABASES - {Feature.DROPPED_COLUMNS}


def plan(source: str, features: frozenset[Feature] = KEEPING, **numbers: int) -> CdcPlan:
    sizes = {"tables": 13, "events": 600, "rows": 10} | numbers
    return CdcPlan(
        source_type=SourceType(source), format=CdcFormat.DEBEZIUM, features=features, **sizes
    )


class Lite:
    """SQLite, which takes the types of any database and the quotes of both kinds."""

    def __init__(self, source: str) -> None:
        self._is_mysql = source == "mysql"
        self._base = sqlite3.connect(":memory:", isolation_level=None)

    def close(self) -> None:
        self._base.close()

    def run(self, statement: str) -> list[Any]:
        if statement.startswith(("create schema", "create database")):
            name = statement.split(None, 5)[-1].strip(';`"')
            statement = f"attach ':memory:' as \"{name}\""
        elif statement.startswith("set ") or "replica identity" in statement:
            return []
        text = statement.partition(" default character set")[0]
        # SQLite has no escapes
        return self._base.execute(text.replace("\\\\", "\\") if self._is_mysql else text).fetchall()


@pytest.fixture
def lite(request: pytest.FixtureRequest) -> Iterator[Lite]:
    with closing(Lite(request.param)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("source", "lite"), [("postgresql", "postgresql"), ("mysql", "mysql")], indirect=["lite"]
)
def test_a_database_has_the_rows_of_the_truth(source: str, lite: Lite) -> None:
    script = SqlScript(plan(source))
    for round in script.rounds():
        for statement in round:
            lite.run(statement)
    sent, truth = script.sent(), script.model.truth(keyless=True)
    assert (sent.changes, len(truth), sent.duplicates) == (600, 13, 0)
    assert sent.new_columns and sent.new_tables and sent.keyless
    dialect = DIALECTS[SourceType(source)]
    for live in script.model.seen:
        shape, rows = live.shape, truth[live.shape.claim]
        table = f"{dialect.quote(shape.namespace)}.{dialect.quote(shape.table)}"
        columns = ", ".join(map(dialect.quote, live.columns))
        lite.run("drop table if exists temp.expected")
        lite.run(f"create table temp.expected as select {columns} from {table} limit 0")
        for row in rows:
            values = ", ".join(dialect.literal(row[name]) for name in live.columns)
            lite.run(f"insert into temp.expected ({columns}) values ({values})")
        assert lite.run(f"select count(*) from {table}") == [(len(rows),)]
        expected = f"select {columns} from temp.expected"
        assert lite.run(f"select {columns} from {table} except {expected}") == []
        assert lite.run(f"{expected} except select {columns} from {table}") == []


@pytest.mark.parametrize("lite", ["postgresql"], indirect=True)
def test_columns_are_dropped_and_tables_without_a_key_have_a_number(lite: Lite) -> None:
    script = SqlScript(plan("postgresql", IN_DATABASES))
    lines = [line for round in script.rounds() for line in round]
    for line in lines:
        lite.run(line)
    assert any(" drop column " in line for line in lines)
    (visits,) = (line for line in lines if line.startswith('create table "public"."visits log"'))
    assert SERIAL in visits and "primary key" not in visits
    assert 'alter table "public"."visits log" replica identity full;' in lines
    assert lines.count("begin;") == lines.count("commit;") > 50


@pytest.mark.parametrize(
    ("source", "features"), [("oracle", CALM), ("mysql", CALM | {Feature.DUPLICATES})]
)
def test_what_no_database_does_is_refused(source: str, features: frozenset[Feature]) -> None:
    with pytest.raises(ConfigError) as caught:
        SqlScript(plan(source, features))
    assert "postgresql or mysql" in caught.value.next_step


def test_a_script_is_written_round_by_round(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "new" / "changes.sql"
    waits: list[float] = []
    sent = write_script(
        SqlScript(plan("mysql", CALM)), file, interval=7, on_round=None, sleep=waits.append
    )
    assert waits == [7.0] * 4
    words = ("--to", "sql", "--source-type", "mysql", "--tables", 13, "--events", 600, "--rows", 10)
    again = tmp_path / "again.sql"
    result = cli("produce", "cdc", again, *words, "--json").json
    assert (result["to"], result["events"]) == ({"kind": "sql", "path": str(again)}, sent.events)
    assert again.read_bytes() == file.read_bytes()
    assert "replica identity" not in file.read_text("utf-8")
    assert "sent 730 events" in cli("produce", "cdc", again, *words).out
    assert cli("produce", "cdc", "--to", "sql").code == 2
    assert cli("produce", "cdc", again, "--to", "sql", "--format", "avro").code == 2
    chaos = cli("produce", "cdc", again, *words, "--chaos", "--source-type", "postgresql")
    assert (chaos.code, "drop column" in again.read_text("utf-8")) == (0, True)


@pytest.mark.slow
@pytest.mark.services
def test_changes_of_postgresql_come_back(
    services: Services, postgres: Postgres, debezium: Debezium, tmp_path: Path, tasks: SparkSession
) -> None:
    shop = Shop(services, postgres, debezium, tmp_path)
    # the script has a table of this name
    shop.execute("drop table orders;")
    script = SqlScript(plan("postgresql", IN_DATABASES, tables=9))
    for number, round in enumerate(script.rounds()):
        shop.execute("\n".join(round).replace('"public"', f'"{shop.schema}"'))
        if number == 0:
            shop.follow(json_events(schemas=True))
    shop.arrived()
    pipeline = shop.pipeline()
    assert pipeline.run(trigger="available_now", spark=tasks).counts.balanced
    truth = script.model.truth()
    merged = [name for name, table in tables(pipeline).items() if table.role == "merged"]
    # rows of a table without a key cannot be compared one by one
    keyed = [name for name in merged if "visits_log" not in name]
    assert len(keyed) >= len(truth) == 8
    with closing(connected(parse_address(address(postgres)))) as database:
        for name in keyed:
            check = checked(pipeline, name, database)
            assert check.agrees, check


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.skipif(not is_installed(), reason="mariadb-server is not installed")
def test_mariadb_takes_the_script(tmp_path: Path) -> None:
    script = SqlScript(plan("mysql"))
    with MariaDB(tmp_path / "mariadb") as server:
        for round in script.rounds():
            server.execute("\n".join(round))
        for claim, rows in script.model.truth(keyless=True).items():
            query = f"select count(*) from `{claim.database}`.`{claim.table}`"
            assert int(server.execute(query)) == len(rows) > 0
