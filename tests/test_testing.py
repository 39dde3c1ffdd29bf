"""Pipeline files under test by users: records in, tables and dead letters out, without a JVM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from distributary.config.file.document import PipelineFileError
from distributary.errors import ErrorCode
from distributary.model.manifest import Counts
from distributary.model.table_format import TABLE_FORMATS
from distributary.testing import Record, Schemas, run

EVENTS = """\
name: events
source: {type: kafka, bootstrap_servers: "broker:9092", topics: [events]}
payload: {format: json}
tables: {each: "silver_{field:event}", bronze: raw}
lake: {path: s3://bucket/lake}
expectations:
  - {name: positive, tables: ["silver_*"], check: "n > 0", action: dead_letter}
"""


def test_records_become_rows_and_dead_letters() -> None:
    result = run(
        EVENTS,
        [
            {"event": "login", "n": 1},
            {"event": "login", "n": 2, "more": ["x"]},
            {"event": "logout", "n": -1},
            b"{broken",
        ],
    )
    login = result.tables["silver_login"].select(["n", "more", "_topic", "_offset"]).to_pylist()
    assert [row["n"] for row in login] == [1, 2]
    assert login[1] == {"n": 2, "more": ["x"], "_topic": "events", "_offset": 1}
    assert result.tables["raw"].num_rows == 4
    codes = sorted(letter["error_code"] for letter in result.dead_letters)
    assert codes == ["EXPECTATION_FAILED", "NOT_JSON"]
    assert result.counts == Counts(read=4, written=2, dead_lettered=2)
    assert any("silver_login" in change and "more" in change for change in result.schema_changes)


def test_batches_may_be_small_and_the_result_is_the_same() -> None:
    records = [{"event": "login", "n": n, f"c{n % 3}": n} for n in range(1, 20)]
    one, many = run(EVENTS, records), run(EVENTS, records, batch_size=4)
    assert one.counts == many.counts
    names = ["n", "c0", "c1", "c2"]
    first, second = (r.tables["silver_login"].select(names).to_pylist() for r in (one, many))
    assert sorted(first, key=str) == sorted(second, key=str)


def test_no_catalog_hears_of_a_test(caplog: pytest.LogCaptureFixture) -> None:
    catalog = {"type": "rest", "uri": "http://127.0.0.1:1"}
    result = run(EVENTS, [{"event": "login", "n": 1}], **{"lake.iceberg": catalog})
    assert result.tables
    assert "mirror" not in caplog.text


@pytest.mark.parametrize("format_", TABLE_FORMATS)
def test_tables_of_every_format_are_in_the_result(format_: str) -> None:
    result = run(EVENTS, [{"event": "login", "n": 1}, b"{broken"], **{"tables.format": format_})
    assert result.tables["silver_login"].select(["event", "n"]).to_pylist() == [
        {"event": "login", "n": 1}
    ]
    assert [letter["error_code"] for letter in result.dead_letters] == ["NOT_JSON"]


def test_schemas_of_a_registry_and_other_parts_of_records() -> None:
    text = EVENTS.partition("expectations")[0].replace("json", "avro")
    text = text.replace("{field:event}", "{topic}") + "registry: {url: http://registry:8081}\n"
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    with Schemas() as schemas:
        number = schemas.register("orders-value", json.dumps(schema))
        records = [
            Record(schemas.frame(number, b"\x02"), key="k", topic="orders"),
            Record(schemas.frame(number + 1, b"\x02"), headers={"a": b"b"}, topic="orders"),
        ]
        result = run(text, records, schemas=schemas)
    assert result.tables["silver_orders"]["id"].to_pylist() == [1]
    assert result.tables["raw"]["key"].to_pylist()[0] == b"k"
    (letter,) = result.dead_letters
    assert letter["error_code"] == ErrorCode.UNKNOWN_SCHEMA_ID


def test_files_of_a_source_of_files() -> None:
    text = """\
name: exports
source: {type: files, path: ./somewhere, format: csv}
tables: {each: "silver_{type}"}
lake: {path: ./lake}
"""
    result = run(text, files={"orders/a.csv": "id,x\n1,a\n2\n", "users/b.csv": b"id\n7\n"})
    assert result.tables["silver_users"]["id"].to_pylist() == [7]
    assert result.counts == Counts(read=3, written=2, dead_lettered=1)


def test_a_wrong_file_is_refused_as_a_run_would() -> None:
    with pytest.raises(PipelineFileError):
        run(EVENTS.replace("format: json", "format: jsonn"))


def test_overrides_change_settings_and_the_file_may_lie_on_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "events.yaml"
    file.write_text(EVENTS)
    result = run(file, [{"event": "login", "n": 1}], **{"tables.each": "all", "envelope": None})
    assert result.tables["all"].num_rows == 1
    assert [path.name for path in tmp_path.iterdir()] == ["events.yaml"]


def test_no_jvm_is_started() -> None:
    program = """
import sys
import psutil
from distributary.testing import run
result = run(sys.argv[1], [{"event": "a", "n": 1}])
assert result.counts.written == 1
assert not [p.name() for p in psutil.Process().children(recursive=True)]
"""
    command = [sys.executable, "-c", program, EVENTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
