"""Compaction of one table: the same rows for every reader, whoever else writes to it."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from distributary.delta import compact as swap
from distributary.delta.compact import (
    OPTIMIZE,
    BusyError,
    Compacted,
    RowsLostError,
    Sizes,
    bins,
    compact,
    exchange_all,
    planned,
    refusal,
    rewritten,
)
from distributary.delta.log import Snapshot, load
from distributary.model.manifest import Mark
from distributary.model.table import Column
from distributary.publish.base import CommittedMark, Outcome
from distributary.publish.direct import DirectPublisher
from distributary.store.base import at
from distributary.store.disk import Disk
from tests.publish.staged import (
    COMMENT,
    batch_of,
    columns_like,
    entry_of,
    in_order,
    mark,
    numbers,
    read_everywhere,
    stage,
    stage_day,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = Sizes(target=10 * 2**20, min_files=2)
OURS = f"*-c{'?' * 12}.parquet"
STRANGE = ["de", None, "ß & co", "\U00020000女", "a=b/c%20d", "'; drop"]


def state_of(folder: Path) -> Snapshot:
    found = load(at(folder))
    assert found is not None
    return found


def compacted(folder: Path, sizes: Sizes = SIZES, **manners: Any) -> Compacted | None:
    return compact(state_of(folder), sizes, replace(OPTIMIZE, **manners))[1]


def actions(folder: Path, version: int) -> list[dict[str, Any]]:
    path = folder / "_delta_log" / f"{version:020d}.json"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def publish(publisher: DirectPublisher, folder: Path, first: int, last: int) -> None:
    for batch in range(first, last):
        publisher.publish(batch_of(folder, batch, numbers(batch)), mark(batch))


def values(folder: Path) -> list[int]:
    return sorted(row["n"] for row in read_everywhere(str(folder)))


def evolved(folder: Path) -> None:
    """Batches whose columns appear, widen and are nested, with values of every kind."""
    publisher = DirectPublisher()
    first = pa.table({"n": pa.array([1, None], pa.int32()), "x": [1.5, math.inf]})
    inner = pa.array([{"a": 1}, None], pa.struct([("a", pa.int32())]))
    second = first.append_column("s", inner).append_column("_text", pa.array(["é", "\U00020000"]))
    wider = pa.array([{"a": 2**40, "b": "new"}], pa.struct([("a", pa.int64()), ("b", pa.string())]))
    third = pa.table(
        {"n": pa.array([2**40], pa.int64()), "x": pa.array([None], pa.float64()), "s": wider}
    )
    for batch, rows in enumerate([first, second, third, first]):
        publisher.publish(batch_of(folder, batch, rows), mark(batch))


def test_every_reader_sees_the_same_rows(folder: Path) -> None:
    evolved(folder)
    before = DeltaTable(folder)
    rows = in_order(before.to_pyarrow_table().to_pylist())
    done = compacted(folder)
    assert done is not None
    assert (done.files_before, done.files_after, done.rows, done.version) == (4, 1, 7, 4)
    assert str(read_everywhere(str(folder))) == str(rows)
    after = DeltaTable(folder)
    assert after.schema() == before.schema()
    assert after.metadata().description == COMMENT
    assert after.protocol() == before.protocol()


def test_commit_says_that_no_row_has_changed(folder: Path) -> None:
    evolved(folder)
    compacted(folder)
    info, *rest = actions(folder, 4)
    assert info["commitInfo"]["operation"] == "OPTIMIZE"
    assert [next(iter(action)) for action in rest] == ["remove"] * 4 + ["add"]
    assert not any(each["dataChange"] for action in rest for each in action.values())
    stats = json.loads(rest[-1]["add"]["stats"])
    assert stats["numRecords"] == 7
    assert stats["minValues"] == {"n": 1, "_text": "é"}
    assert stats["maxValues"] == {"n": 2**40, "_text": "\U00020000"}
    assert stats["nullCount"] == {"n": 3, "x": 1, "_text": 5}


def test_not_a_number_is_in_no_bound(folder: Path) -> None:
    publisher = DirectPublisher()
    for batch, x in enumerate([1.0, math.nan, 2.0]):
        publisher.publish(batch_of(folder, batch, pa.table({"x": [x]})), mark(batch))
    compacted(folder)
    rows = DeltaTable(folder).to_pyarrow_table()
    assert [str(x) for x in rows.column("x").to_pylist()] == ["1.0", "nan", "2.0"]
    assert json.loads(actions(folder, 3)[-1]["add"]["stats"])["maxValues"] == {}


def test_marks_are_as_they_were(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0, 5)
    compacted(folder)
    for known in (publisher, DirectPublisher()):
        assert known.committed(str(folder), mark(3)) == CommittedMark(4, "source-3")
        again = known.publish(batch_of(folder, 2, numbers(2)), mark(2))
        assert again.outcome is Outcome.SKIPPED
    assert publisher.publish(batch_of(folder, 5, numbers(5)), mark(5)).version == 6
    assert values(folder) == [0, 1, 2, 3, 4, 5]


def test_partitions_stay_apart_with_their_values(folder: Path) -> None:
    publisher = DirectPublisher()
    columns = (Column("n", pa.int32()), Column("day", pa.string()))
    for batch in range(3):
        files = [stage_day(folder, batch * 10 + n, day) for n, day in enumerate(STRANGE)]
        entry = entry_of(folder, files, columns, partition_by=("day",))
        publisher.publish(entry, mark(batch))
    rows = read_everywhere(str(folder))
    done = compacted(folder)
    assert done is not None
    assert (done.files_before, done.files_after) == (18, 6)
    assert read_everywhere(str(folder)) == rows
    assert {row["day"] for row in rows} == set(STRANGE)


def test_order_of_rows_and_of_files_stays(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0, 4)
    compacted(folder)
    publish(publisher, folder, 4, 6)
    assert DeltaTable(folder).to_pyarrow_table().column("n").to_pylist()[-4:] == [0, 1, 2, 3]
    compacted(folder, Sizes(SIZES.target, 3))
    facts = pa.table(DeltaTable(folder).get_add_actions()).sort_by("modification_time")
    assert facts.column("path").to_pylist()[0].startswith("batch-0-c")


def test_healthy_table_is_left_alone(folder: Path) -> None:
    publish(DirectPublisher(), folder, 0, 3)
    assert planned(state_of(folder), Sizes(SIZES.target, 4)) is None
    assert compacted(folder, Sizes(SIZES.target, 4)) is None
    assert compacted(folder) is not None
    assert compacted(folder) is None
    assert DeltaTable(folder).version() == 3


def test_plan_is_what_is_done(folder: Path) -> None:
    publish(DirectPublisher(), folder, 0, 7)
    plan = planned(state_of(folder), SIZES)
    done = compacted(folder)
    assert plan is not None and done is not None
    assert (plan.files_before, plan.files_after) == (done.files_before, done.files_after)


def test_checkpointed_table_is_read_whole(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0, 3)
    DeltaTable(folder).create_checkpoint()
    publish(publisher, folder, 3, 5)
    done = compacted(folder)
    assert done is not None and done.files_before == 5
    DeltaTable(folder).create_checkpoint()
    assert state_of(folder).removed.keys() == {f"batch-{n}.parquet" for n in range(5)}
    assert values(folder) == [0, 1, 2, 3, 4]


def test_appends_do_not_stand_in_the_way(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0, 4)
    late = iter(range(4, 6))

    def append() -> None:
        batch = next(late, None)
        if batch is not None:
            publish(publisher, folder, batch, batch + 1)

    done = compacted(folder, ready=append)
    assert done is not None and done.version == DeltaTable(folder).version()
    assert values(folder) == [0, 1, 2, 3, 4, 5]


def test_overtaken_commit_goes_on_top(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0, 4)
    real, late = swap.commit, iter([4, 5])

    def slow(*told: Any) -> Any:
        batch = next(late, None)
        if batch is not None:
            publish(publisher, folder, batch, batch + 1)
        return real(*told)

    monkeypatch.setattr(swap, "commit", slow)
    done = compacted(folder)
    assert done is not None and done.version == 6
    assert values(folder) == [0, 1, 2, 3, 4, 5]
    assert len(DeltaTable(folder).file_uris()) == 3


@pytest.mark.parametrize("change", ["delete", "columns"])
def test_changed_table_is_not_touched(folder: Path, change: str) -> None:
    publish(DirectPublisher(), folder, 0, 4)
    once = iter([None, change])

    def interfere() -> None:
        match next(once, None):
            case "delete":
                DeltaTable(folder).delete("n = 2")
            case "columns":
                rows = numbers(9).append_column("y", pa.array(["new"]))
                write_deltalake(folder, rows, mode="append", schema_mode="merge")

    done = compacted(folder, ready=interfere)
    assert done is not None and done.version is None and done.left
    assert values(folder) == ([0, 1, 3] if change == "delete" else [0, 1, 2, 3, 9])
    assert not list(folder.glob(OURS))
    assert compacted(folder) is not None


def test_busy_table_is_left_for_another_time(folder: Path) -> None:
    publish(DirectPublisher(), folder, 0, 4)
    asked = iter([False, True])

    def ready() -> None:
        if next(asked):
            raise BusyError("merging")

    done = compacted(folder, ready=ready)
    assert done is not None and (done.version, done.left) == (None, "merging")
    assert not list(folder.glob(OURS))


def test_killed_before_its_commit_it_leaves_the_table_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*told: Any) -> None:
        raise Killed

    publish(DirectPublisher(), folder, 0, 4)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(swap, "commit", killed)
        compacted(folder)
    assert values(folder) == [0, 1, 2, 3]
    assert len(list(folder.glob(OURS))) == 1
    done = compacted(folder)
    assert done is not None and done.files_after == 1
    assert values(folder) == [0, 1, 2, 3]


def test_answer_that_was_lost_is_looked_for_in_the_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Disk.create

    def lost(*told: Any) -> None:
        real(*told)
        raise OSError("connection reset")

    monkeypatch.setattr(Disk, "create", lost)
    publish(DirectPublisher(), folder, 0, 4)
    done = compacted(folder)
    assert done is not None and done.version == 4
    assert values(folder) == [0, 1, 2, 3]


def test_file_that_is_not_what_the_log_says_stops_it(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0, 2)
    file = stage(folder, numbers(7, 8), name="batch-wrong.parquet")
    wrong = file.__class__(file.path, file.size, 1, '{"numRecords":1}')
    publisher.publish(entry_of(folder, [wrong], columns_like(numbers(7))), mark(2))
    with pytest.raises(RowsLostError):
        compacted(folder)
    assert DeltaTable(folder).version() == 2


def test_file_that_is_gone_is_an_error(folder: Path) -> None:
    publish(DirectPublisher(), folder, 0, 3)
    (folder / "batch-1.parquet").unlink()
    with pytest.raises(FileNotFoundError):
        compacted(folder)
    assert not list(folder.glob(OURS))


def test_table_with_unknown_features_is_refused(folder: Path) -> None:
    publish(DirectPublisher(), folder, 0, 3)
    assert not refusal(state_of(folder))
    DeltaTable(folder).alter.add_feature(
        TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True
    )
    assert "changeDataFeed" in refusal(state_of(folder))


def test_rows_come_once_while_batches_and_compactions_race(folder: Path) -> None:
    """Two pipelines append, one process compacts and checkpoints, all the time."""
    lives = [mark(0).app_id, f"{mark(0).app_id}-other"]
    publishers = [DirectPublisher() for _ in lives]
    failures: list[BaseException] = []
    stop = threading.Event()

    def append(life: int) -> None:
        for batch in range(40):
            n = life * 1000 + batch
            file = stage(folder, numbers(n), name=f"life{life}-{batch}.parquet")
            entry = entry_of(folder, [file], columns_like(numbers(n)))
            publishers[life].publish(entry, mark(batch, app=lives[life]))

    def care() -> None:
        while not stop.is_set():
            state = load(at(folder))
            if state is not None and compact(state, SIZES)[1]:
                DeltaTable(folder).create_checkpoint()

    def guarded(work: Any, *given: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*given)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    writers = [guarded(append, life) for life in range(2)]
    carer = guarded(care)
    for writer in writers:
        writer.join()
    stop.set()
    carer.join()
    assert not failures
    assert values(folder) == sorted(life * 1000 + n for life in range(2) for n in range(40))
    versions = sorted(int(p.stem) for p in (folder / "_delta_log").glob("*.json"))
    assert versions == list(range(len(versions)))
    fresh = DirectPublisher()
    for life, known in zip(lives, publishers, strict=True):
        for publisher in (known, fresh):
            found = publisher.committed(str(folder), mark(20, app=life))
            assert found == CommittedMark(39, "source-20")


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_a_compacted_table(spark: SparkSession, tmp_path: Path, folder: Path) -> None:
    evolved(folder)
    days = tmp_path / "days"
    publisher = DirectPublisher()
    for batch in range(3):
        files = [stage_day(days, batch * 10 + n, day) for n, day in enumerate(STRANGE)]
        columns = (Column("n", pa.int32()), Column("day", pa.string()))
        publisher.publish(entry_of(days, files, columns, partition_by=("day",)), mark(batch))

    def rows(path: Path) -> list[str]:
        frame = spark.read.format("delta").load(str(path))
        return sorted(str(row.asDict(recursive=True)) for row in frame.collect())

    before = rows(folder), rows(days)
    compacted(folder)
    compacted(days)
    assert (rows(folder), rows(days)) == before
    found = spark.read.format("delta").load(str(days)).filter("day = '\U00020000女'")
    assert sorted(row["n"] for row in found.collect()) == [3, 13, 23]
    # files that Spark has written: another kind of timestamp, beside ours
    spark.sql(f"INSERT INTO delta.`{days}` VALUES (99, 'de')")
    times = tmp_path / "times"
    for moment in ("2500-01-01 00:00:00", "1600-01-01 00:00:00", "2026-11-15 12:00:00.123456"):
        made = spark.sql(
            f"SELECT 1 AS n, timestamp'{moment}' AS t, struct(date'1500-02-28' AS d) AS s"
        )
        made.write.format("delta").mode("append").save(str(times))
    before = rows(days), rows(times)
    assert len(before[0]) == 19
    compacted(days)
    assert compacted(times) is not None
    assert (rows(days), rows(times)) == before


def test_pieces_that_were_joined_are_written_once_and_in_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swap, "_JOINED_PIECES", 3)
    monkeypatch.setattr(swap, "_GROUP_BYTES", 400)
    publisher = DirectPublisher()
    before: list[int] = []
    for batch in range(40):
        rows = numbers(batch)
        rows = rows.append_column("_batch", pa.array([batch] * len(rows), pa.int64()))
        publisher.publish(batch_of(folder, batch, rows), mark(batch))
        before += rows["n"].to_pylist()
    done = compacted(folder)
    assert done is not None and (done.files_after, done.rows) == (1, len(before))
    (made,) = folder.glob(OURS)
    file = pq.ParquetFile(made)
    assert file.read()["n"].to_pylist() == before
    # so many that pieces were joined before a row group, and across one
    assert 1 < file.num_row_groups < 40 / 3


def test_all_swaps_are_committed_under_a_mark_or_none(folder: Path) -> None:
    publisher = DirectPublisher()
    publish(publisher, folder, 0, 4)
    state = state_of(folder)
    swaps = rewritten(state, bins(state.files.values(), SIZES), lambda: None)
    # what is only added meanwhile does not stand in the way
    publish(publisher, folder, 4, 5)
    after = exchange_all(state, swaps, Mark("somebody", 7, ""))
    assert (after.marks["somebody"], len(after.files)) == (7, 2)
    assert values(folder) == [n for batch in range(5) for n in numbers(batch)["n"].to_pylist()]
    # the files of that state are gone now: nothing of it can be exchanged
    late = rewritten(state, bins(state.files.values(), SIZES), lambda: None)
    made = [swap.added.path for swap in late if swap.added is not None]
    with pytest.raises(BusyError):
        exchange_all(state, late, Mark("somebody", 8, ""))
    assert made and not any((folder / path).exists() for path in made)
    assert state_of(folder).marks["somebody"] == 7
