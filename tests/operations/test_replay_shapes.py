"""Shaped records after their batch: replays of letters, deep looks, traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distributary.config.load import load_text
from distributary.delta.tables import open_table
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.removal import dead_letters_of
from distributary.errors import ConfigError, SetupError
from distributary.model.deadletter import ENCRYPTED
from distributary.model.manifest import Counts
from distributary.observe.trace import Coordinates, TraceVerdict, trace_offset
from distributary.observe.verify.coordinates import coordinates
from distributary.observe.verify.row_counts import check_table, written_tables
from distributary.operations.replay import LANE, ReplayResult, replay, try_replay
from distributary.spark.in_process import in_process
from distributary.testing import Record, run

FILE = """
name: shop
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [orders]}}
payload: {{format: json}}
tables: {{each: "silver_{{topic}}", metadata: [topic, partition, offset, batch]{tables}}}
lake: {{path: {root}/lake, checkpoint: {root}/state}}
{extra}
shape:
  - explode: items
  - set: {{n: "{n}"}}
"""
RECORDS = [
    {"id": 1, "items": ["1", "2"]},
    {"id": 2, "items": ["1", "x", "y"]},
    {"id": 3, "items": []},
]
STRICT, LENIENT = "CAST(items AS INT)", "TRY_CAST(items AS INT)"


def text_of(root: Path, n: str, *, tables: str = ", bronze: bronze", extra: str = "") -> str:
    return FILE.format(root=root, n=n, tables=tables, extra=extra)


def ran(root: Path, text: str) -> Any:
    places = {"lake.path": f"{root}/lake", "lake.checkpoint": f"{root}/state"}
    return run(text, RECORDS, **places)


def no_spark() -> Any:
    raise SetupError("these tests have no Spark")


def replayed(pipeline: Pipeline, how: Any = replay) -> ReplayResult:
    letters = dead_letters_of(pipeline)
    with pipeline.open(in_process(no_spark), lane=LANE) as context:
        if how is try_replay:
            return try_replay(context, letters.select())
        return replay(context, letters, letters.select())


def test_a_letter_becomes_all_of_its_rows_once_the_file_is_corrected(tmp_path: Path) -> None:
    result = ran(tmp_path, text_of(tmp_path, STRICT))
    assert result.counts == Counts(read=3, written=2, dead_lettered=1)
    assert result.tables["silver_orders"].num_rows == 3
    pipeline = Pipeline(load_text(text_of(tmp_path, LENIENT)))
    done = replayed(pipeline)
    assert (done.replayed, done.failed_again) == (1, {})
    assert pipeline.ledger().totals("shop") == Counts(read=3, written=3)
    ledger = pipeline.ledger()
    known = written_tables(f"{tmp_path}/lake", ledger.last_commits(), parked={}, files={})
    with coordinates(ledger, known) as place:
        checks = {t.table: place.check(t, check_table(t)) for t in known}
    assert all(check.agrees for check in checks.values())
    assert checks["silver_orders"].rows == 6


def test_letters_without_their_records_are_not_replayed(tmp_path: Path) -> None:
    extra = "masking: {raw: withhold}"
    text = text_of(tmp_path, STRICT, tables="", extra=extra)
    (letter,) = ran(tmp_path, text).dead_letters
    assert (letter["key"], letter["value"], letter["headers"]) == (None, None, None)
    pipeline = Pipeline(load_text(text.replace(STRICT, LENIENT)))
    for how in (replay, try_replay):
        with pytest.raises(ConfigError, match="1 of 1 dead letters have no record to replay"):
            replayed(pipeline, how)


def test_a_replay_that_fails_again_leaves_the_letter_open(tmp_path: Path) -> None:
    ran(tmp_path, text_of(tmp_path, STRICT))
    # from now on nothing more is kept, and this letter has its record
    text = text_of(tmp_path, STRICT, tables="", extra="masking: {raw: withhold}")
    pipeline = Pipeline(load_text(text))
    done = replayed(pipeline)
    assert (done.replayed, done.failed_again) == (0, {"SHAPE_FAILED": 1})
    (letter,) = dead_letters_of(pipeline).select().to_pylist()
    assert (letter["status"], letter["attempts"]) == ("open", 2)
    assert b'"x"' in letter["value"]


def test_a_record_is_traced_to_all_of_its_rows(tmp_path: Path) -> None:
    ran(tmp_path, text_of(tmp_path, STRICT))
    found = trace_offset(f"{tmp_path}/lake", Coordinates("orders", 0, 0))
    assert found.verdict is TraceVerdict.WRITTEN
    rows = [p.values for p in found.places if p.table == "silver_orders"]
    assert sorted(row["n"] for row in rows) == [1, 2]


KEYED = "masking: {key: a key of sixteen characters, raw: encrypt}"


def test_encrypted_letters_are_replayed_and_those_that_fail_again_are_found(tmp_path: Path) -> None:
    # one letter is from before the setting
    ran(tmp_path, text_of(tmp_path, STRICT))
    (plain,) = dead_letters_of(Pipeline(load_text(text_of(tmp_path, STRICT)))).select().to_pylist()
    places = {"lake.path": f"{tmp_path}/lake", "lake.checkpoint": f"{tmp_path}/state"}
    strict = text_of(tmp_path, STRICT, extra=KEYED)
    more = Record({"id": 4, "items": ["z"]}, key="k", headers={"h": "secret"})
    run(strict, [*RECORDS, more], **places)
    pipeline = Pipeline(load_text(strict))
    letters = dead_letters_of(pipeline).select()
    assert letters["note"].to_pylist() == [None, ENCRYPTED]
    assert letters["value"][0].as_py() == plain["value"]
    assert b"z" not in letters["key"][1].as_py() + letters["headers"][1].as_py()[0]["value"]

    done = replayed(pipeline)
    assert (done.replayed, done.failed_again) == (0, {"SHAPE_FAILED": 2})
    after = dead_letters_of(pipeline).select()
    assert after["attempts"].to_pylist() == [2, 2]
    assert after.select(["value", "key", "note"]) == letters.select(["value", "key", "note"])

    lenient = text_of(tmp_path, LENIENT, extra=KEYED)
    other = Pipeline(load_text(lenient.replace("sixteen", "17 or so")))
    for how in (replay, try_replay):
        with pytest.raises(ConfigError, match="encrypted with another key"):
            replayed(other, how)
    done = replayed(Pipeline(load_text(lenient)))
    assert (done.replayed, done.failed_again) == (2, {})
    rows = open_table(f"{tmp_path}/lake/silver_orders").to_pyarrow_table().to_pylist()
    assert [row["n"] for row in rows if row["id"] == 4] == [None]
