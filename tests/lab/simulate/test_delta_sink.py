import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.errors import ConfigError, LakeUnavailableError
from distributary_lab.simulate.base import DeltaSink, SinkMessage, deliver
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import PeoplePlan, stream_people, stream_rounds


def in_order(path: Path) -> list[dict[str, Any]]:
    """The rows as a reader of the log sees them: commit by commit, file by file."""
    rows: list[dict[str, Any]] = []
    for commit in sorted((path / "_delta_log").glob("*.json")):
        actions = map(json.loads, commit.read_text().splitlines())
        files = [action["add"]["path"] for action in actions if "add" in action]
        assert files == sorted(files)
        for file in files:
            rows += pq.read_table(path / file).to_pylist()
    return rows


def test_the_table_holds_what_the_report_says(tmp_path: Path, registry: Any, reader: Any) -> None:
    plan = GamesPlan(games=4, versions=3, records=50, bad=48, late=11, type_change=True)
    sent = deliver(stream_rounds(plan, registry=registry), sink=DeltaSink(tmp_path / "wrapper"))
    rows = DeltaTable(tmp_path / "wrapper").to_pyarrow_table().to_pylist()
    good = [row for row in rows if row["game_name"] is not None]
    assert (len(rows), len(good)) == (sent.messages, sent.good)
    counted: Counter[tuple[str, int]] = Counter()
    for row in good:
        wrapper = reader.unwrap(row["wrapper"])
        assert wrapper.game_name == row["game_name"]
        counted[wrapper.game_name, wrapper.schema_id] += 1
    told = {
        (name, sent.schema_ids[name][version]): n
        for name, versions in sent.per_type.items()
        for version, n in versions.items()
    }
    assert counted == told
    assert sum(row["wrapper"] is None for row in rows) == sent.bad_by_code["NULL_VALUE"]
    assert sum(row["wrapper"] == b"" for row in rows) == sent.bad_by_code["EMPTY_VALUE"]


def test_rows_keep_their_order_over_files_and_commits(tmp_path: Path, recording: Any) -> None:
    plan = GamesPlan(games=4, versions=2, records=25, bad=10)
    sink = DeltaSink(tmp_path / "wrapper", records_per_file=30)
    deliver(stream_rounds(plan, registry=recording), sink=sink)
    rounds = stream_rounds(plan, registry=recording)
    expected = [m for each in rounds for m in each.messages()]
    rows = in_order(tmp_path / "wrapper")
    assert [(r["game_name"], r["wrapper"], r["key"]) for r in rows] == [
        (m.type, m.value, m.key) for m in expected
    ]
    assert [int(r["produced_at"].timestamp() * 1000) for r in rows] == [
        m.timestamp for m in expected
    ]


def test_a_write_is_one_commit_of_several_files(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", records_per_file=10)
    messages = [SinkMessage(b"k", b"%d" % i, (), 1_700_000_000_000 + i, "chess") for i in range(35)]
    sink.write(messages)
    table = DeltaTable(tmp_path / "t")
    assert table.version() == 0
    assert len(table.file_uris()) == 4
    sink.write(messages[:10])
    table = DeltaTable(tmp_path / "t")
    assert (table.version(), len(table.file_uris())) == (1, 5)
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sorted(action["num_records"] for action in actions) == [5, 10, 10, 10, 10]


def test_the_columns_are_as_promised(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t")
    sink.write([SinkMessage(None, None, (), 1, None)])
    fields = {f.name: f.type.type for f in DeltaTable(tmp_path / "t").schema().fields}
    assert fields == {
        "game_name": "string",
        "wrapper": "binary",
        "produced_at": "timestamp",
        "key": "binary",
    }


def test_nothing_to_write_makes_no_table(tmp_path: Path) -> None:
    DeltaSink(tmp_path / "t").write([])
    assert not DeltaTable.is_deltatable(str(tmp_path / "t"))


def test_a_table_with_other_columns_is_refused_untouched(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"a": [1]}))
    with pytest.raises(ConfigError):
        DeltaSink(tmp_path / "t").write([SinkMessage(None, b"x", (), 1, "chess")])
    assert DeltaTable(tmp_path / "t").version() == 0


def test_a_folder_that_cannot_be_written_can_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LakeUnavailableError) as caught:
        DeltaSink(tmp_path / "file" / "t").write([SinkMessage(None, b"x", (), 1, "chess")])
    assert caught.value.retryable


@pytest.mark.parametrize("wrong", [{"path": "s3://bucket/t"}, {"records_per_file": 0}])
def test_what_cannot_be_a_sink_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DeltaSink(**({"path": tmp_path} | wrong))


def test_people_go_to_a_table_without_a_type_column(tmp_path: Path, registry: Any) -> None:
    sink = DeltaSink(tmp_path / "people", value_column="value", type_column=None)
    sent = deliver(stream_people(PeoplePlan(versions=3, records=4), registry=registry), sink=sink)
    table = DeltaTable(tmp_path / "people").to_pyarrow_table()
    assert table.column_names == ["value", "produced_at", "key"]
    assert len(table) == sent.messages == 12
