"""Source tables that were made again, or that an older copy was put in the place of."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.errors import DistributaryError, ErrorCode, SourceError
from distributary.source.base import BatchInput, Position
from distributary.source.delta.source import DeltaReader, DeltaSource
from tests.lakes.shard_jobs import SPARK
from tests.source.delta.test_delta_source import source, table


def opened(one: DeltaSource, start: Position, end: Position) -> BatchInput:
    return one.open(SPARK, start, end)


def rows(read: BatchInput) -> list[tuple[int, bytes]]:
    """Offset and value of the records that the tasks of a batch read."""
    tasks = list(range(len(cast(DeltaReader, read.reader).tasks)))
    if not tasks:
        return []
    raw = pa.Table.from_batches(read.reader(iter([pa.record_batch({"task": tasks})])))
    return sorted(zip(raw["offset"].to_pylist(), raw["value"].to_pylist(), strict=True))


def after_all(one: DeltaSource) -> Position:
    end = one.advance(one.first(), one.newest())
    assert end is not None
    return end


def replace(path: Path, commits: int) -> None:
    shutil.rmtree(path)
    table(path, commits)


def without_id(position: Position) -> Position:
    return {key: value for key, value in position.items() if key != "table"}


@pytest.mark.parametrize("now", [5, 2, 1], ids=["longer", "as long", "shorter"])
@pytest.mark.parametrize("settings", [{}, {"starting_version": 0}], ids=["snapshot", "commits"])
def test_a_table_that_was_made_anew_is_refused(
    tmp_path: Path, now: int, settings: dict[str, Any]
) -> None:
    path = tmp_path / "t"
    table(path, 2)
    one = source(path, **settings)
    end = after_all(one)
    replace(path, now)
    for asked in (one, source(path, **settings)):
        with pytest.raises(SourceError) as caught:
            asked.advance(end, asked.newest())
        assert caught.value.code is ErrorCode.SOURCE_REPLACED
        assert not caught.value.retryable
        assert "source.on_replaced" in (caught.value.next_step or "")
        assert "distributary reset" in (caught.value.next_step or "")
        with pytest.raises(SourceError):
            list(asked.peek(end))


def test_a_table_that_was_made_anew_before_anything_was_read_is_refused(tmp_path: Path) -> None:
    table(tmp_path / "t", 2)
    first = source(tmp_path / "t").first()
    replace(tmp_path / "t", 5)
    one = source(tmp_path / "t")
    with pytest.raises(SourceError) as caught:
        one.advance(first, one.newest())
    assert caught.value.code is ErrorCode.SOURCE_REPLACED


@pytest.mark.parametrize("commits", [5, 2, 1], ids=["longer", "as long", "shorter"])
def test_the_new_table_is_read_whole_where_that_is_wanted_and_offsets_go_on(
    tmp_path: Path, commits: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t"
    table(path, 2)
    one = source(path, on_replaced="read")
    end = after_all(one)
    before = opened(one, one.first(), end)
    replace(path, commits)
    with caplog.at_level(logging.WARNING):
        after = one.advance(end, one.newest())
        assert one.advance(end, one.newest()) == after
    assert len([r for r in caplog.records if str(path) in r.getMessage()]) == 1
    assert after is not None
    for asked in (one, source(path, on_replaced="read")):
        read = opened(asked, end, after)
        read.verify(decided=True)
        assert [offset for offset, _ in rows(read)] == list(range(6, 6 + 3 * commits))
        assert (read.ranges[0].start, read.ranges[0].end) == (6, 6 + 3 * commits)
        assert read.lag == 0
        assert read.identities == {"t": after["table"]} != before.identities
    assert one.advance(after, one.newest()) is None
    assert one.retrace(end, read.ranges) == after
    table(path, 1)
    further = one.advance(after, one.newest())
    assert further is not None
    assert [offset for offset, _ in rows(opened(one, after, further))] == [
        6 + 3 * commits + row for row in range(3)
    ]


def test_a_large_new_table_is_read_in_several_batches(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table(path, 2)
    one = source(path, on_replaced="read", max_records_per_batch=6)
    position = after_all(one)
    replace(path, 5)
    found, until = [], one.newest()
    while (end := one.advance(position, until)) is not None:
        read = opened(one, position, end)
        found.append((len(rows(read)), read.lag))
        position = end
    assert found == [(6, 9), (6, 3), (3, 0)]


def test_a_position_without_an_id_goes_on_and_learns_it(tmp_path: Path) -> None:
    table(tmp_path / "t", 2)
    one = source(tmp_path / "t")
    old = without_id(after_all(one))
    table(tmp_path / "t", 1)
    end = one.advance(old, one.newest())
    assert end is not None
    replace(tmp_path / "t", 9)
    with pytest.raises(SourceError) as caught:
        one.advance(end, one.newest())
    assert caught.value.code is ErrorCode.SOURCE_REPLACED


@pytest.mark.parametrize("settings", [{}, {"starting_version": 0}], ids=["snapshot", "commits"])
@pytest.mark.parametrize("known", [True, False], ids=["with id", "without"])
def test_an_older_copy_of_the_table_is_refused_or_read_whole(
    tmp_path: Path, settings: dict[str, Any], known: bool
) -> None:
    path = tmp_path / "t"
    table(path, 2)
    shutil.copytree(path, tmp_path / "copy")
    table(path, 2)
    end = after_all(source(path, **settings))
    end = end if known else without_id(end)
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    one = source(path, **settings)
    with pytest.raises(SourceError) as caught:
        one.advance(end, one.newest())
    assert caught.value.code is ErrorCode.SOURCE_REPLACED
    reading = source(path, on_replaced="read", **settings)
    after = reading.advance(end, reading.newest())
    assert after is not None
    assert [offset for offset, _ in rows(opened(reading, end, after))] == list(range(12, 18))
    assert reading.advance(after, reading.newest()) is None


@pytest.mark.parametrize("choice", ["stop", "read"])
def test_a_table_that_was_restored_is_not_another_one_and_deletes_records(
    tmp_path: Path, choice: str
) -> None:
    table(tmp_path / "t", 3)
    one = source(tmp_path / "t", on_replaced=choice)
    end = after_all(one)
    DeltaTable(str(tmp_path / "t")).restore(1)
    with pytest.raises(SourceError) as caught:
        one.advance(end, one.newest())
    assert caught.value.code is ErrorCode.SOURCE_INVALID


def test_a_version_that_is_yet_to_come_is_waited_for(tmp_path: Path) -> None:
    table(tmp_path / "t", 1)
    one = source(tmp_path / "t", starting_version=3)
    assert one.advance(one.first(), one.newest()) is None
    table(tmp_path / "t", 3)
    assert one.advance(one.first(), one.newest()) is not None


def test_a_copy_that_has_grown_to_the_same_version_is_read_anew_by_who_is_running(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t"
    table(path, 2)
    shutil.copytree(path, tmp_path / "copy")
    table(path, 1)
    one = source(path, starting_version=0)
    start, before = one.first(), one.files(one.first(), one.newest())
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    table(path, 1)
    assert [f.path for f in one.files(start, one.newest())] != [f.path for f in before]


@pytest.mark.parametrize("choice", ["stop", "read"])
def test_a_decided_batch_needs_its_table_only_to_be_read_again(tmp_path: Path, choice: str) -> None:
    path = tmp_path / "t"
    table(path, 3)
    one = source(path, on_replaced=choice)
    first = one.first()
    end = after_all(one)
    replace(path, 5)
    again = source(path, on_replaced=choice)
    read = opened(again, first, end)
    assert read.ranges == opened_before(tmp_path)
    with pytest.raises(DistributaryError) as caught:
        read.verify(decided=True)
    assert caught.value.code is ErrorCode.SOURCE_REPLACED
    assert not caught.value.retryable
    assert rows(read) == []
    failure = again.explain(Exception("FileNotFoundError: part-00000.parquet"))
    assert failure is not None
    assert failure.code is ErrorCode.SOURCE_REPLACED


def test_only_a_file_of_the_table_is_lost_data_of_the_source(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table(path, 3)
    one = source(path)
    opened(one, one.first(), after_all(one))

    def explained(missing: Path) -> ErrorCode | None:
        text = f"Failed to open local file '{missing}'. Detail: [errno 2] No such file or directory"
        failure = one.explain(Exception(f"Traceback:\nFileNotFoundError: [Errno 2] {text}\n"))
        return None if failure is None else failure.code

    assert explained(path / "part-00000.parquet") is ErrorCode.SOURCE_DATA_LOST
    assert explained(tmp_path / "checkpoint" / "runs" / "sorted.arrow") is None
    assert explained(tmp_path / "table" / "part-00000.parquet") is None


def opened_before(tmp_path: Path) -> Any:
    """The ranges of such a batch with the table that it was made of."""
    path = tmp_path / "same" / "t"
    table(path, 3)
    one = source(path)
    return opened(one, one.first(), after_all(one)).ranges


@pytest.mark.parametrize("settings", [{}, {"starting_version": 0}], ids=["snapshot", "commits"])
@pytest.mark.parametrize("more", [2, 3, 5], ids=["as long", "longer", "much longer"])
def test_an_older_copy_that_has_grown_since_is_refused(
    tmp_path: Path, more: int, settings: dict[str, Any]
) -> None:
    path = tmp_path / "t"
    table(path, 3)
    shutil.copytree(path, tmp_path / "copy")
    table(path, 2)
    one = source(path, **settings)
    end = after_all(one)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    table(path, more)
    for asked in (one, source(path, **settings)):
        with pytest.raises(SourceError) as caught:
            asked.advance(end, asked.newest())
        assert caught.value.code is ErrorCode.SOURCE_REPLACED
        assert "another commit" in caught.value.evidence
    # of positions of the version before it cannot be known
    before = {key: value for key, value in end.items() if key not in ("commit", "files")}
    other = source(path, **settings)
    grown = other.advance(before, other.newest())
    assert (grown is None) is (more == 2)


def test_a_copy_of_the_very_table_is_the_same_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table(path, 3)
    one = source(path)
    end = after_all(one)
    shutil.copytree(path, tmp_path / "copy")
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    table(path, 1)
    for asked in (one, source(path)):
        after = asked.advance(end, asked.newest())
        assert after is not None
        assert [offset for offset, _ in rows(opened(asked, end, after))] == [9, 10, 11]


def test_a_commit_is_asked_for_once_whatever_a_snapshot_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    table(path, 6)
    DeltaTable(str(path)).create_checkpoint()
    (path / "_delta_log" / f"{5:020d}.json").unlink()
    one = source(path)
    asked: list[int] = []
    text = one._log._commit_text

    def counted(version: int) -> bytes:
        asked.append(version)
        return text(version)

    monkeypatch.setattr(one._log, "_commit_text", counted)
    end = after_all(one)
    assert (end["rows"], asked) == (18, [5])
    assert "commit" not in end
