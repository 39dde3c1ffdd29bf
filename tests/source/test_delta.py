import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.config.source import DeltaSource as Config
from distributary.errors import ErrorCode, SourceError, SourceUnavailableError
from distributary.source.base import Offsets
from distributary.source.delta import DeltaSource


def offset(version: int, index: int = -1, *, starting: bool = False) -> str:
    return json.dumps({"reservoirVersion": version, "index": index, "isStartingVersion": starting})


def table(path: Path, commits: int, rows: int = 3) -> None:
    for number in range(commits):
        values = [f"{number}.{row}".encode() for row in range(rows)]
        write_deltalake(str(path), pa.table({"value": values}), mode="append")


def source(path: Path, **settings: object) -> DeltaSource:
    return DeltaSource(Config.model_validate({"type": "delta", "path": str(path), **settings}))


def test_the_first_batch_is_the_whole_table_and_the_next_goes_on_after_it(tmp_path: Path) -> None:
    table(tmp_path / "t", 3)
    one = source(tmp_path / "t")
    first = one._files(Offsets(None, offset(3)), 0)
    assert [(f.offset, f.rows) for f in first] == [(0, 3), (3, 3), (6, 3)]
    table(tmp_path / "t", 2)
    second = one._files(Offsets(offset(3), offset(5)), 9)
    assert [(f.offset, f.rows) for f in second] == [(9, 3), (12, 3)]


def test_a_snapshot_that_is_cut_in_the_middle_is_read_in_one_order(tmp_path: Path) -> None:
    table(tmp_path / "t", 4)
    one = source(tmp_path / "t")
    parts = [
        one._files(Offsets(None, offset(3, 1, starting=True)), 0),
        one._files(Offsets(offset(3, 1, starting=True), offset(4)), 6),
    ]
    whole = one._files(Offsets(None, offset(4)), 0)
    assert [f.path for part in parts for f in part] == [f.path for f in whole]
    assert [f.offset for part in parts for f in part] == [0, 3, 6, 9]


def test_compaction_of_the_source_brings_no_record_twice(tmp_path: Path) -> None:
    table(tmp_path / "t", 3)
    one = source(tmp_path / "t")
    DeltaTable(str(tmp_path / "t")).optimize.compact()
    table(tmp_path / "t", 1)
    assert sum(f.rows for f in one._files(Offsets(offset(3), offset(5)), 9)) == 3


def test_peeking_reads_rows_with_their_coordinates(tmp_path: Path) -> None:
    table(tmp_path / "t", 2)
    rows = pa.Table.from_batches(list(source(tmp_path / "t").peek(None, {}))).to_pylist()
    assert [r["offset"] for r in rows] == list(range(6))
    assert {r["topic"] for r in rows} == {"t"}
    assert rows[0]["value"] == b"0.0"


def test_a_missing_table_can_be_tried_again_and_a_wrong_column_cannot(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailableError) as missing:
        list(source(tmp_path / "none").peek(None, {}))
    assert missing.value.retryable
    table(tmp_path / "t", 1)
    with pytest.raises(SourceError) as wrong:
        list(source(tmp_path / "t", value="other").peek(None, {}))
    assert not wrong.value.retryable


def test_a_log_that_was_cleaned_up_is_named(tmp_path: Path) -> None:
    table(tmp_path / "t", 3)
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(SourceError) as caught:
        source(tmp_path / "t")._files(Offsets(offset(1), offset(3)), 3)
    assert caught.value.code is ErrorCode.SOURCE_DATA_LOST
