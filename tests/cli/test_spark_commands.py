"""Commands that compute. They share the session of this test run, as a demo shares its own."""

import json
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.cli.conftest import Cli
from tests.cli.test_help import EVERY, examples
from tests.docs.pages import runnable


def test_demo_counts_are_exact(cli: Cli, spark: SparkSession) -> None:
    line = ("demo", "games", "--games", 20, "--versions", 5, "--records", 50, "--bad", 25)
    result = cli(*line, "--path", "lake", "--json")
    assert result.code == 0, result.err
    document = result.json
    assert (document["version"], document["exact"]) == (1, True)
    assert [document[n] for n in ("read", "written", "dead_lettered", "parked")] == [
        5025,
        5000,
        25,
        0,
    ]
    silver = {t["name"]: t["rows"] for t in document["tables"] if t["name"].startswith("silver_")}
    assert len(silver) == 20
    assert set(silver.values()) == {250}
    assert all(
        DeltaTable(f"lake/{name}").to_pyarrow_table().num_rows == rows
        for name, rows in silver.items()
    )
    assert sum(document["dead_letters"].values()) == 25
    assert {t["columns_added"] for t in document["tables"] if t["role"] == "each"} == {4}
    (shown,) = cli("status", "--json").json["pipelines"]
    assert (shown["state"], shown["lag_in_words"]) == ("done", "caught up")
    again = cli("run", "lake/games.yaml", "--json")
    assert (again.code, again.json["read"], again.json["batches"]) == (0, 0, 0)
    assert cli("plan", "lake/games.yaml", "--check").out.startswith("No changes.")
    assert cli("status", "--json").json["pipelines"][0]["totals"]["read"] == 5025


_ELSEWHERE = re.compile(
    r" --every | ui | pipelines run | demo | --to kafka| dev (up|down|status)| shop_"
    r"| schema (forget|retype) | --kafka | --source |iceberg sync |messages "
)


@pytest.mark.slow
def test_every_example_works_after_the_demo(cli: Cli, spark: SparkSession) -> None:
    first = cli("demo", "games")
    assert first.code == 0, first.err
    assert "read 10,003 = written 10,000 + dead letters 3 + parked 0" in first.out
    typed_next = re.findall(r"^  \S*distributary (.*)$", first.out, re.MULTILINE)
    assert len(typed_next) == 3
    lines = [*typed_next, *runnable("demo games")] + [
        # where the output goes is the shell's matter
        line.removeprefix("distributary ").partition(" > ")[0]
        for command in EVERY.values()
        for line in examples(command)
        # the first two end never, the others need Kafka, or were or will be tested by themselves
        if not _ELSEWHERE.search(line)
    ]
    _all_work(cli, lines)


@pytest.mark.slow
def test_change_data_is_what_the_database_holds_and_its_examples_work(
    cli: Cli, spark: SparkSession
) -> None:
    first = cli("demo", "cdc")
    assert first.code == 0, first.err
    assert "4 of 4 tables agree with their logs" in first.out
    assert "4 of 4 are what the database holds" in first.out
    typed_next = re.findall(r"^  \S*distributary (.*)$", first.out, re.MULTILINE)
    assert len(typed_next) == 4
    every = [line for command in EVERY.values() for line in examples(command)]
    about = [line for line in every if " shop_" in line or " verify " in line]
    assert len(about) >= 5
    documented = runnable("demo cdc")
    _all_work(
        cli, [*typed_next, *documented, *(line.removeprefix("distributary ") for line in about)]
    )


def test_a_demo_of_changes_as_a_document(cli: Cli, spark: SparkSession) -> None:
    line = ("demo", "cdc", "--tables", 3, "--events", 60, "--seed", 7, "--path", "lake", "--json")
    result = cli(*line)
    assert result.code == 0, result.err
    document = result.json
    assert (document["version"], document["exact"], document["kills"]) == (1, True, [])
    assert document["read"] == document["written"] + document["redelivered"]
    assert len(document["tables"]) == 3
    for table in document["tables"]:
        assert sum(table["changes"].values()) == table["events"]
        assert table["agrees"] and table["truth"]["wrong"] == 0
        assert DeltaTable(f"lake/{table['table']}").to_pyarrow_table().num_rows == table["rows"]
    # the folder is a demo's: another one may begin in it
    assert cli("demo", "games", "--games", 1, "--versions", 1, "--path", "lake").code == 0


def _all_work(cli: Cli, lines: Sequence[str]) -> None:
    for line in lines:
        result = cli(*shlex.split(line))
        assert result.code == 0, (line, result.err)
        assert result.out, line
        assert "\x1b" not in result.out + result.err


def hide(schemas: Path, version: int) -> Path:
    """Takes one version of every game out of the registry; where it is now."""
    away = schemas.parent / "hidden"
    for file in sorted(schemas.glob(f"subjects/*_game-value/{version}.json")):
        number = json.loads(file.read_text())["id"]
        for path in (file, schemas / "ids" / f"{number:08d}.json"):
            target = away / path.relative_to(schemas)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)
    return away


def test_dead_letters_heal(cli: Cli, spark: SparkSession, own_folder: Path) -> None:
    root = own_folder / "lake"
    file = own_folder / "games.yaml"
    file.write_text(
        f"name: games\n"
        f"source: {{type: delta, path: {root}/wrapper, value: wrapper}}\n"
        f"registry: {{path: {root}/schemas, unknown_id_grace: 0s}}\n"
        "envelope: {format: protobuf, subject: wrapper-value, type: game_name}\n"
        "payload: {format: protobuf}\n"
        'tables: {each: "silver_{type}"}\n'
        f"lake: {{path: {root}}}\n"
    )
    to = ("--to", "delta", root / "wrapper", "--registry", root / "schemas")
    assert cli("produce", "games", *to, "--games", 2, "--versions", 2, "--records", 6).code == 0
    away = hide(root / "schemas", 2)
    run = cli("run", file)
    assert run.code == 0, run.err
    assert "read 24 = written 12 + dead letters 12 + parked 0" in run.out
    assert "would decode now" not in cli("status", file).out

    shutil.copytree(away, root / "schemas", dirs_exist_ok=True)
    assert "12 dead letters would decode now: distributary dlq replay" in cli("status", file).out
    line = ("dlq", "replay", "--reason", "UNKNOWN_SCHEMA_ID")
    tried = cli(*line, "--dry-run")
    assert tried.out.startswith("12 would decode, into silver_"), tried.err
    assert cli(*line).out.startswith("12 replayed, into silver_")
    assert cli(*line).out == "0 to replay\n"
    done = cli("status", file, "--json").json["pipelines"][0]
    assert (done["totals"]["written"], done["totals"]["dead_lettered"]) == (24, 0)
    assert done["dead_letters"]["by_status"] == {"open": 0, "replayed": 12, "discarded": 0}


def test_a_pipe_gets_one_plain_line_per_batch(
    cli: Cli, spark: SparkSession, own_folder: Path
) -> None:
    small = ("--games", 2, "--versions", 2, "--records", 3, "--bad", 1)
    assert cli("demo", "games", *small, "--path", "lake").code == 0
    to = ("--to", "delta", "lake/wrapper", "--registry", "lake/schemas")
    more = ("--games", 2, "--versions", 1, "--start-version", 3, "--records", 3)
    assert cli("produce", "games", *to, *more).code == 0
    run = cli("run", "lake/games.yaml", "--available-now")
    assert run.code == 0, run.err
    lines = run.out.splitlines()
    assert [line for line in lines if re.match(r"schema \w+_game v3: \+ col_\w+ string", line)]
    (batch,) = [line for line in lines if line.startswith("batch ")]
    assert re.match(r"batch 2  6 rows  [\d,]+ rows/s  lag 0", batch)
    assert lines[-1] == "read 6 = written 6 + dead letters 0 + parked 0"
    assert "\x1b" not in run.out + run.err
    nothing = cli("run", "lake/games.yaml", "-q")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "")


@pytest.mark.spark
@pytest.mark.slow
def test_chaos_ends_with_the_same_equation(cli: Cli) -> None:
    small = ("--games", 3, "--versions", 5, "--records", 10, "--bad", 2)
    result = cli("demo", "games", *small, "--path", "lake", "--chaos", "--json")
    assert result.code == 0, result.err
    assert result.err.count("killed (SIGKILL)") == 5
    assert result.json["exact"] is True
    assert result.json["read"] == 152
    # one batch dies at every step, and the records that came meanwhile belong to it or follow
    assert [kill["batch"] for kill in result.json["kills"]] == [0] * 5
