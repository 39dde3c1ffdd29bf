"""`schema retype`: a column of records without a schema gets the kind that it should have had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from distributary.registry.folder_files import read_doubts
from tests.cli.conftest import Cli
from tests.cli.inspect.test_schema_forget import CHANGES, kept, written

WORD = {"type": ["null", "string"]}
COUNT = {"type": ["integer", "null"]}


def document(**fields: Any) -> dict[str, Any]:
    return {"type": ["null", "object"], "properties": fields, "additionalProperties": False}


def test_a_column_gets_another_kind_and_the_doubt_is_settled(own_folder: Path, cli: Cli) -> None:
    file = written(own_folder)
    schemas = kept(file)
    schemas.add({"events": document(id=WORD, at=document(zip=WORD))})
    doubts: list[dict[str, Any]] = [
        {"column": name, "kind": "string", "values": {}} for name in ("id", "at.zip")
    ]
    schemas.note_doubts({"events": doubts})
    tried = cli("schema", "retype", "events", "id", "integer", file, "--dry-run", "--json")
    assert (tried.code, tried.json["before"], tried.json["after"]) == (0, "string", "integer")
    assert kept(file).document("events") == document(id=WORD, at=document(zip=WORD))
    done = cli("schema", "retype", "events", "id", "integer", file, "--json")
    assert (done.code, done.json["selected"], done.json["replayed"]) == (0, 0, 0)
    assert cli("schema", "retype", "events", "at.zip", "json", file).code == 0
    found = kept(file).document("events")
    assert found is not None
    assert found["properties"]["id"]["format"] == "int64"
    assert found["properties"]["at"]["properties"]["zip"] == {}
    assert read_doubts(own_folder / "lake/_distributary/checkpoints/events/inferred") == {}


@pytest.mark.parametrize(
    ("name", "column", "kind"),
    [
        ("other", "id", "string"),
        ("events", "nothing", "string"),
        ("events", "id.inner", "string"),
        ("events", "id", "varchar"),
    ],
)
def test_what_is_not_there_is_said(
    own_folder: Path, cli: Cli, name: str, column: str, kind: str
) -> None:
    file = written(own_folder)
    kept(file).add({"events": document(id=COUNT)})
    result = cli("schema", "retype", name, column, kind, file, "--json")
    assert (result.code, result.json["error"]["code"]) == (2, "NOT_FOUND")
    assert kept(file).document("events") == document(id=COUNT)


def test_change_data_has_its_kinds_from_the_database(own_folder: Path, cli: Cli) -> None:
    file = written(own_folder, CHANGES)
    kept(file).add({"t": document(id=COUNT)})
    result = cli("schema", "retype", "t", "id", "string", file, "--json")
    assert (result.code, result.json["error"]["code"]) == (2, "NOT_FOUND")


def sent(root: Path, *records: dict[str, Any]) -> None:
    values = [json.dumps(record).encode() for record in records]
    table = pa.table({"value": pa.array(values, pa.binary())})
    write_deltalake(str(root / "events"), table, mode="append")


def test_good_records_behind_an_odd_one_are_named_and_replayed(
    own_folder: Path, cli: Cli, tasks: SparkSession
) -> None:
    file = written(own_folder)
    sent(own_folder, {"id": {"deep": 1}, "n": 0})
    assert cli("run", file).code == 0
    sent(own_folder, *({"id": n, "n": n} for n in range(50)))
    assert cli("run", file).code == 0
    (before,) = cli("status", file, "--json").json["pipelines"]
    assert (before["tables"]["refusing"], before["tables"]["healthy"]) == (1, 1)
    (doubt,) = before["doubts"]
    assert (doubt["column"], doubt["values"]) == ("id", {"object": 1})
    assert doubt["later"] == {"integer": 50}
    assert "schema retype silver_events id integer" in cli("status", file).out
    done = cli("schema", "retype", "silver_events", "id", "integer", file, "--json")
    assert (done.code, done.json["selected"], done.json["replayed"]) == (0, 50, 50)
    sent(own_folder, {"id": 50, "n": 50})
    assert cli("run", file).code == 0
    rows = DeltaTable(str(own_folder / "lake/silver_events")).to_pyarrow_table().to_pylist()
    assert sorted(row["id__bigint"] for row in rows if row["n"]) == list(range(1, 51))
    (after,) = cli("status", file, "--json").json["pipelines"]
    assert after["tables"]["refusing"] == 0


def test_a_column_that_an_odd_record_decided_alone_is_named_until_it_has_most_values(
    own_folder: Path, cli: Cli, tasks: SparkSession
) -> None:
    file = written(own_folder)

    def doubts() -> list[tuple[str, dict[str, int], dict[str, int]]]:
        (found,) = cli("status", file, "--json").json["pipelines"]
        assert found["tables"]["doubtful"] == bool(found["doubts"])
        return [(d["column"], d["values"], d["later"]) for d in found["doubts"]]

    sent(own_folder, {"status": 404, "n": 0})
    assert cli("run", file).code == 0
    assert doubts() == []
    sent(own_folder, *({"status": "paid", "n": n} for n in range(50)))
    assert cli("run", file).code == 0
    assert doubts() == [("status", {"number": 1}, {"string": 50})]
    said = cli("status", file).out
    assert "is number: 1 number; of other kinds later: 50 string" in said
    assert "schema retype silver_events status string" in said
    # as many as the column was decided on, and far fewer than it has by now
    sent(own_folder, {"status": "paid", "n": "odd"})
    assert cli("run", file).code == 0
    assert [column for column, *_ in doubts()] == ["status"]
    assert cli("schema", "retype", "silver_events", "status", "string", file).code == 0
    assert doubts() == []


def test_one_odd_record_changes_nothing_for_the_others(
    own_folder: Path, cli: Cli, tasks: SparkSession
) -> None:
    file = written(own_folder)
    batches = (
        [{"id": 1, "status": "paid", "n": 1}, {"id": 2, "status": "paid", "n": 2}],
        [{"id": 3, "status": 404, "n": 3}],
        [{"id": 4, "status": "paid", "n": "oops"}],
        [{"id": 5, "status": "paid", "n": 5}],
    )
    for batch in batches:
        sent(own_folder, *batch)
        assert cli("run", file).code == 0
    table = DeltaTable(str(own_folder / "lake/silver_events")).to_pyarrow_table()
    rows = {row["id"]: row for row in table.to_pylist()}
    assert [rows[n]["status"] for n in range(1, 6)] == ["paid", "paid", None, "paid", "paid"]
    assert [rows[n]["n"] for n in range(1, 6)] == [1, 2, 3, None, 5]
    assert (rows[3]["status__bigint"], rows[4]["n__string"]) == (404, "oops")
    history = cli("schema", "history", "--json").json["history"]
    changed = [(row["kind"], row["column"]) for row in history]
    assert ("side_column_added", "status__bigint") in changed
    assert ("side_column_added", "n__string") in changed
