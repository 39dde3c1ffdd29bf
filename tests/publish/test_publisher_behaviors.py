"""What every publisher does, whichever way it commits."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distributary.errors import ErrorCode, PublishError, StagedFileError
from distributary.model.manifest import app_id
from distributary.model.table import Column
from distributary.publish.base import CommittedMark, Outcome, Publisher, TableColumns
from distributary.publish.parquet_publisher import ParquetTable
from tests.publish.conftest import MakePublisher
from tests.publish.staged import (
    COMMENT,
    Read,
    batch_of,
    columns_like,
    entry_of,
    mark,
    numbers,
    stage,
    stage_day,
)


def columns_in(publisher: Publisher, folder: Path) -> tuple[Column, ...] | None:
    found = publisher.current_columns(str(folder))
    return None if found is None else found.columns


def test_first_batch_creates_the_table(publisher: Publisher, folder: Path, read: Read) -> None:
    assert columns_in(publisher, folder) is None
    rows = pa.table({"n": pa.array([1, 2], pa.int32()), "name": ["a", None]})
    published = publisher.publish(batch_of(folder, 0, rows), mark(0))
    assert (published.table, published.outcome) == ("chess", Outcome.PUBLISHED)
    assert read(str(folder)) == rows.to_pylist()
    assert columns_in(publisher, folder) == columns_like(rows)


def test_later_batches_are_appended(publisher: Publisher, folder: Path, read: Read) -> None:
    versions = []
    for batch in range(3):
        published = publisher.publish(batch_of(folder, batch, numbers(batch)), mark(batch))
        assert published.outcome is Outcome.PUBLISHED
        versions.append(published.version)
    assert versions == sorted(set(versions), key=lambda v: v or 0)
    assert read(str(folder)) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_second_publish_of_a_batch_is_skipped(
    make_publisher: MakePublisher, folder: Path, read: Read
) -> None:
    first, entry = make_publisher(), batch_of(folder, 0, numbers(1))
    assert first.publish(entry, mark(0)).outcome is Outcome.PUBLISHED
    for again in (first, make_publisher()):
        assert again.publish(entry, mark(0)).outcome is Outcome.SKIPPED
    assert read(str(folder)) == [{"n": 1}]


def test_older_batch_is_skipped(publisher: Publisher, folder: Path, read: Read) -> None:
    publisher.publish(batch_of(folder, 7, numbers(7)), mark(7))
    assert publisher.publish(batch_of(folder, 6, numbers(6)), mark(6)).outcome is Outcome.SKIPPED
    assert read(str(folder)) == [{"n": 7}]


def test_marks_of_an_old_life_hide_nothing(publisher: Publisher, folder: Path, read: Read) -> None:
    publisher.publish(batch_of(folder, 7, numbers(7)), mark(7))
    other = mark(0, app=app_id("games", "life2"))
    assert publisher.publish(batch_of(folder, 0, numbers(0)), other).outcome is Outcome.PUBLISHED
    assert read(str(folder)) == [{"n": 0}, {"n": 7}]
    assert publisher.committed(str(folder), other) == CommittedMark(0, other.source_hash)


def test_new_column_is_null_in_older_rows(publisher: Publisher, folder: Path, read: Read) -> None:
    publisher.publish(batch_of(folder, 0, numbers(1)), mark(0))
    more = pa.table({"n": pa.array([2], pa.int32()), "name": ["new"]})
    publisher.publish(batch_of(folder, 1, more), mark(1))
    assert read(str(folder)) == [{"n": 1, "name": None}, {"n": 2, "name": "new"}]
    assert columns_in(publisher, folder) == columns_like(more)


def test_missing_column_is_null_in_newer_rows(
    publisher: Publisher, folder: Path, read: Read
) -> None:
    both = pa.table({"n": pa.array([1], pa.int32()), "name": ["old"]})
    publisher.publish(batch_of(folder, 0, both), mark(0))
    publisher.publish(batch_of(folder, 1, numbers(2), columns_like(both)), mark(1))
    assert read(str(folder)) == [{"n": 1, "name": "old"}, {"n": 2, "name": None}]


def test_side_column_holds_the_other_type(publisher: Publisher, folder: Path, read: Read) -> None:
    publisher.publish(batch_of(folder, 0, numbers(1)), mark(0))
    columns = (*columns_like(numbers()), Column("n__string", pa.string(), "field n"))
    side = pa.table({"n__string": ["one"]})
    publisher.publish(batch_of(folder, 1, side, columns), mark(1))
    assert read(str(folder)) == [{"n": 1, "n__string": None}, {"n": None, "n__string": "one"}]


Kinds = dict[str, tuple[pa.DataType, Any, pa.DataType, Any]]
WIDER: Kinds = {
    "int": (pa.int32(), 5, pa.int64(), 2**40),
    "float": (pa.float32(), 0.5, pa.float64(), 1e300),
    "decimal": (pa.decimal128(5, 2), Decimal("1.25"), pa.decimal128(20, 2), Decimal(10**17)),
}
OTHER_KIND: Kinds = {
    "scale": (pa.decimal128(5, 2), Decimal("1.25"), pa.decimal128(20, 4), Decimal("0.1")),
    "int_to_double": (pa.int32(), 5, pa.float64(), 0.5),
    "int_to_decimal": (pa.int32(), 5, pa.decimal128(12, 2), Decimal("0.5")),
}


@pytest.mark.parametrize("kinds", [WIDER, OTHER_KIND], ids=["wider", "another kind"])
def test_columns_become_wider(publisher: Publisher, folder: Path, read: Read, kinds: Kinds) -> None:
    old = pa.table(
        {kind: pa.array([small], narrow) for kind, (narrow, small, _, _) in kinds.items()}
    )
    new = {kind: pa.array([large, None], wide) for kind, (_, _, wide, large) in kinds.items()}
    publisher.publish(batch_of(folder, 0, old), mark(0))
    rows = pa.table(new)
    published = publisher.publish(batch_of(folder, 1, rows), mark(1))
    assert published.outcome is Outcome.PUBLISHED
    # Polars does not read a column as another kind of number
    found = read(str(folder), polars=kinds is WIDER)
    for kind, (_, small, _, large) in kinds.items():
        values = [row[kind] for row in found if row[kind] is not None]
        assert sorted(values) == sorted([small, large]), kind
    assert columns_in(publisher, folder) == columns_like(rows)


def test_narrower_rows_still_fit_a_wider_column(
    publisher: Publisher, folder: Path, read: Read
) -> None:
    publisher.publish(batch_of(folder, 0, numbers(2**40, type=pa.int64())), mark(0))
    publisher.publish(batch_of(folder, 1, numbers(5)), mark(1))
    assert read(str(folder)) == [{"n": 2**40}, {"n": 5}]
    assert columns_in(publisher, folder) == columns_like(numbers(type=pa.int64()))


def test_nested_fields_are_added_and_widened(
    publisher: Publisher, folder: Path, read: Read
) -> None:
    old_move = pa.struct([("score", pa.int32())])
    new_move = pa.struct([("score", pa.int64()), ("by", pa.string())])
    old = pa.table(
        {
            "move": pa.array([{"score": 1}], old_move),
            "moves": pa.array([[{"score": 1}]], pa.list_(old_move)),
        }
    )
    new = pa.table(
        {
            "move": pa.array([{"score": 2**40, "by": "white"}], new_move),
            "moves": pa.array([[{"score": 2**40, "by": "white"}]], pa.list_(new_move)),
        }
    )
    publisher.publish(batch_of(folder, 0, old), mark(0))
    publisher.publish(batch_of(folder, 1, new), mark(1))
    first = {"score": 1, "by": None}
    second = {"score": 2**40, "by": "white"}
    rows = sorted(read(str(folder)), key=lambda r: r["move"]["score"])
    assert rows == [{"move": first, "moves": [first]}, {"move": second, "moves": [second]}]
    columns = columns_in(publisher, folder)
    assert columns is not None
    assert [c.type for c in columns] == [new_move, pa.list_(new_move)]


def test_column_of_somebody_else_is_kept(
    make_publisher: MakePublisher, folder: Path, read: Read
) -> None:
    one, other = make_publisher(), make_publisher()
    one.publish(batch_of(folder, 0, numbers(1)), mark(0))
    theirs = pa.table({"n": pa.array([2], pa.int32()), "theirs": ["x"]})
    other.publish(batch_of(folder, 50, theirs), mark(50, app="somebody/else"))
    ours = pa.table({"n": pa.array([3], pa.int32()), "ours": ["y"]})
    one.publish(batch_of(folder, 1, ours), mark(1))
    columns = columns_in(one, folder)
    assert columns is not None
    assert [c.name for c in columns] == ["n", "theirs", "ours"]
    assert {r["n"]: (r["theirs"], r["ours"]) for r in read(str(folder))} == {
        1: (None, None),
        2: ("x", None),
        3: (None, "y"),
    }


def test_conflicting_column_is_refused(publisher: Publisher, folder: Path, read: Read) -> None:
    publisher.publish(batch_of(folder, 0, numbers(1)), mark(0))
    with pytest.raises(PublishError) as refused:
        publisher.publish(batch_of(folder, 1, pa.table({"n": ["one"]})), mark(1))
    assert refused.value.code is ErrorCode.COMMIT_FAILED
    assert refused.value.context["reason"] == "columns"
    assert read(str(folder)) == [{"n": 1}]


def test_comments_are_stored(publisher: Publisher, folder: Path, format: str) -> None:
    hostile = "field \"n\" of 'chess-value' v1 `;--\\"
    columns = (Column("n", pa.int32(), hostile), Column("plain", pa.string()))
    publisher.publish(batch_of(folder, 0, numbers(1), columns), mark(0))
    assert columns_in(publisher, folder) == columns
    if format == "parquet":
        record = ParquetTable(str(folder)).record()
        assert record is not None
        assert record.comment == COMMENT
        return
    log = sorted((folder / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for path in log for line in path.read_text().splitlines()]
    described = [a["metaData"].get("description") for a in actions if "metaData" in a]
    assert described[-1] == COMMENT


def test_partitioned_table(publisher: Publisher, folder: Path, read: Read) -> None:
    columns = (Column("n", pa.int32()), Column("day", pa.string()))
    days = {1: "a b", 2: "c", 3: None, 4: "/etc/../%2F=\x01\n'\"♞", 5: "007", 6: "null"}
    days[7] = "\U00020000"
    files = [stage_day(folder, number, day) for number, day in days.items()]
    assert publisher.current_columns(str(folder)) is None
    publisher.publish(entry_of(folder, files, columns, partition_by=("day",)), mark(0))
    assert publisher.current_columns(str(folder)) == TableColumns(columns, ("day",))
    assert {r["n"]: r["day"] for r in read(str(folder))} == days


def test_files_cut_for_another_partitioning_are_refused(
    publisher: Publisher, folder: Path, read: Read
) -> None:
    publisher.publish(batch_of(folder, 0, numbers(1)), mark(0))
    columns = (Column("n", pa.int32()), Column("day", pa.string()))
    entry = entry_of(folder, [stage_day(folder, 2, "a")], columns, partition_by=("day",))
    with pytest.raises(PublishError) as refused:
        publisher.publish(entry, mark(1))
    assert refused.value.context["reason"] == "partitions"
    assert read(str(folder)) == [{"n": 1}]


def test_columns_may_change_without_rows(publisher: Publisher, folder: Path, read: Read) -> None:
    publisher.publish(batch_of(folder, 0, numbers(1)), mark(0))
    columns = (*columns_like(numbers()), Column("later", pa.string(), "field later"))
    assert publisher.publish(entry_of(folder, [], columns), mark(1)).outcome is Outcome.PUBLISHED
    assert columns_in(publisher, folder) == columns
    assert publisher.committed(str(folder), mark(1)) == CommittedMark(1, "source-1")
    assert read(str(folder)) == [{"n": 1, "later": None}]


@pytest.mark.parametrize("harm", ["removed", "resized", "renamed out of the folder"])
def test_staged_file_that_changed_is_noticed(
    publisher: Publisher, folder: Path, read: Read, harm: str
) -> None:
    publisher.publish(batch_of(folder, 0, numbers(1)), mark(0))
    entry = batch_of(folder, 1, numbers(2))
    file = folder / entry.files[0].path
    if harm == "removed":
        file.unlink()
    elif harm == "resized":
        file.write_bytes(file.read_bytes() + b"x")
    else:
        shutil.move(file, folder.parent / "outside.parquet")
        outside = stage(folder, numbers(2), name="../outside.parquet")
        entry = entry_of(folder, [outside], entry.table.columns)
    with pytest.raises(StagedFileError) as noticed:
        publisher.publish(entry, mark(1))
    assert noticed.value.code is ErrorCode.STAGED_FILE_MISSING
    assert read(str(folder)) == [{"n": 1}]
    assert publisher.committed(str(folder), mark(1)) == CommittedMark(0, None)


@pytest.mark.parametrize("first", [True, False], ids=["new table", "old table"])
def test_concurrent_publishers_of_a_batch_publish_once(
    make_publisher: MakePublisher, folder: Path, read: Read, first: bool
) -> None:
    if not first:
        make_publisher().publish(batch_of(folder, 0, numbers(0)), mark(0))
    entry = batch_of(folder, 1, numbers(1))
    publishers = [make_publisher() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda p: p.publish(entry, mark(1)), publishers))
    assert [r.outcome for r in results].count(Outcome.PUBLISHED) == 1
    assert [r.outcome for r in results].count(Outcome.SKIPPED) == 3
    assert read(str(folder)) == ([] if first else [{"n": 0}]) + [{"n": 1}]


def test_commit_whose_answer_was_lost_is_not_made_again(
    publisher: Publisher, folder: Path, read: Read, lost_answers: list[str]
) -> None:
    for batch in range(2):
        published = publisher.publish(batch_of(folder, batch, numbers(batch)), mark(batch))
        assert published.outcome is Outcome.PUBLISHED
        assert len(lost_answers) == batch + 1
    assert read(str(folder)) == [{"n": 0}, {"n": 1}]


def test_concurrent_pipelines_all_get_in(
    make_publisher: MakePublisher, folder: Path, read: Read
) -> None:
    def pipeline(number: int) -> None:
        publisher, app = make_publisher(), app_id(f"p{number}", "life")
        for batch in range(2):
            value = number * 10 + batch
            rows = pa.table({f"c{number}": pa.array([value], pa.int32())})
            publisher.publish(batch_of(folder, value, rows), mark(batch, app=app))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(pipeline, range(3)))
    written = sorted(v for r in read(str(folder)) for v in r.values() if v is not None)
    assert written == [0, 1, 10, 11, 20, 21]


def test_table_that_cannot_be_written_leaves_the_others_alone(
    publisher: Publisher, tmp_path: Path, read: Read, way: str
) -> None:
    if way == "bucket":
        pytest.skip("nothing is in the way of another name there")
    broken, healthy = tmp_path / "broken", tmp_path / "healthy"
    entry = batch_of(broken, 0, numbers(1))
    (broken / "_delta_log").write_text("in the way")
    with pytest.raises(PublishError) as refused:
        publisher.publish(entry, mark(0))
    assert refused.value.code in {ErrorCode.LAKE_UNAVAILABLE, ErrorCode.COMMIT_FAILED}
    assert refused.value.retryable
    publisher.publish(batch_of(healthy, 0, numbers(2)), mark(0))
    assert read(str(healthy)) == [{"n": 2}]
    (broken / "_delta_log").unlink()
    assert publisher.publish(entry, mark(0)).outcome is Outcome.PUBLISHED
    assert read(str(broken)) == [{"n": 1}]


def test_committed_gives_the_source_of_the_batch(
    make_publisher: MakePublisher, folder: Path
) -> None:
    publisher = make_publisher()
    assert publisher.committed(str(folder), mark(0)) is None
    for batch in (0, 1, 3):
        publisher.publish(batch_of(folder, batch, numbers(batch)), mark(batch))
    for asked in (publisher, make_publisher()):
        told = {b: asked.committed(str(folder), mark(b)) for b in range(5)}
        assert told == {
            0: CommittedMark(3, "source-0"),
            1: CommittedMark(3, "source-1"),
            2: CommittedMark(3, None),
            3: CommittedMark(3, "source-3"),
            4: CommittedMark(3, None),
        }
        assert asked.committed(str(folder), mark(0, app="nobody")) is None


def test_folder_names_are_taken_literally(publisher: Publisher, tmp_path: Path, read: Read) -> None:
    folder = tmp_path / "a lake [1] 100% {x}" / "chess"
    for batch in range(2):
        publisher.publish(batch_of(folder, batch, numbers(batch)), mark(batch))
    # Polars looks for the encoded name
    assert read(str(folder), polars=False) == [{"n": 0}, {"n": 1}]
