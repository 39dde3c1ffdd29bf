import json
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.sources.delta import DeltaSourceConfig as Config
from distributary.errors import DivergedError, ErrorCode, SourceError, SourceUnavailableError
from distributary.model.manifest import SourceRange
from distributary.source.base import Position
from distributary.source.delta.source import DeltaEnds, DeltaSource, SourceFile
from distributary.source.delta.source_log import AddedFile, DeltaLog


def table(path: Path, commits: int, rows: int = 3) -> None:
    for number in range(commits):
        values = [f"{number}.{row}".encode() for row in range(rows)]
        write_deltalake(str(path), pa.table({"value": values}), mode="append")


def source(path: Path, **given_settings: object) -> DeltaSource:
    return DeltaSource(
        Config.model_validate({"type": "delta", "path": str(path), **given_settings})
    )


def files(one: DeltaSource, start: Position, end: Position) -> list[SourceFile]:
    """What the tasks of a batch would open."""
    return one.files(start, end)


def batches(one: DeltaSource, start: Position) -> list[list[tuple[int, int]]]:
    """Offset and rows of the files of each batch, until there is nothing left."""
    found = []
    until = one.newest()
    while (end := one.advance(start, until)) is not None:
        found.append([(f.offset, f.rows) for f in files(one, start, end)])
        start = end
    return found


def test_the_first_batch_is_the_whole_table_and_the_next_goes_on_after_it(tmp_path: Path) -> None:
    table(tmp_path / "t", 3)
    one = source(tmp_path / "t")
    first = one.first()
    end = one.advance(first, one.newest())
    assert end is not None
    assert [(f.offset, f.rows) for f in files(one, first, end)] == [(0, 3), (3, 3), (6, 3)]
    assert one.advance(end, one.newest()) is None
    table(tmp_path / "t", 2)
    assert batches(one, end) == [[(9, 3), (12, 3)]]


@given(before=st.integers(1, 4), after=st.integers(0, 4), limit=st.integers(1, 20))
@settings(max_examples=settings().max_examples // 2)
def test_batches_of_any_size_give_every_row_once_and_in_one_order(
    before: int, after: int, limit: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        table(path, before)
        one = source(path, max_records_per_batch=limit)
        first = one.first()
        table(path, after)
        flat = [file for batch in batches(one, first) for file in batch]
        assert flat == [(3 * number, 3) for number in range(before + after)]
        assert all(len(batch) <= max(1, limit // 3) for batch in batches(one, first))


def test_how_much_is_not_read_yet_is_known_between_batches(tmp_path: Path) -> None:
    table(tmp_path / "t", 2)
    one = source(tmp_path / "t", max_records_per_batch=3)
    ends = DeltaEnds(Config.model_validate({"type": "delta", "path": str(tmp_path / "t")}))
    end = one.advance(one.first(), one.newest())
    assert end is not None
    assert (ends.ask(), ends.reached(end)) == ({"t/0": 6}, {"t/0": 3})
    table(tmp_path / "t", 1)
    assert ends.ask() == {"t/0": 9}
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(SourceUnavailableError):
        ends.ask()
    # another table in its place begins with its own first row
    table(tmp_path / "t", 1)
    assert ends.ask() == {"t/0": 3}
    moved = {"version": 1, "index": 0, "rows": 12, "table": "other", "before": 9}
    assert ends.reached(moved) == {"t/0": 3}


def test_a_batch_of_before_is_found_again_by_its_ranges(tmp_path: Path) -> None:
    table(tmp_path / "t", 4)
    one = source(tmp_path / "t", max_records_per_batch=6)
    first = one.first()
    end = one.advance(first, one.newest())
    assert end is not None
    # the source has been read further, and the settings have changed, since then
    other = source(tmp_path / "t", max_records_per_batch=100)
    assert other.retrace(first, [SourceRange("t", 0, 0, 6, 6)]) == end
    with pytest.raises(DivergedError):
        other.retrace(first, [SourceRange("t", 0, 0, 5, 5)])


def test_a_first_run_may_start_at_a_version_or_a_moment(tmp_path: Path) -> None:
    table(tmp_path / "t", 3)
    one = source(tmp_path / "t", starting_version=2)
    assert batches(one, one.first()) == [[(0, 3)]]
    times = [entry["timestamp"] for entry in DeltaTable(str(tmp_path / "t")).history()]
    newest = datetime.fromtimestamp(max(times) / 1000, UTC)
    late = source(tmp_path / "t", starting_timestamp=newest + timedelta(hours=1))
    assert batches(late, late.first()) == []
    early = source(tmp_path / "t", starting_timestamp=newest - timedelta(hours=1))
    assert sum(map(len, batches(early, early.first()))) == 3


def test_compaction_of_the_source_brings_no_record_twice(tmp_path: Path) -> None:
    table(tmp_path / "t", 3)
    one = source(tmp_path / "t")
    end = one.advance(one.first(), one.newest())
    assert end is not None
    DeltaTable(str(tmp_path / "t")).optimize.compact()
    table(tmp_path / "t", 1)
    assert batches(one, end) == [[(9, 3)]]


def test_a_source_that_deletes_records_is_refused(tmp_path: Path) -> None:
    table(tmp_path / "t", 2)
    one = source(tmp_path / "t")
    end = one.advance(one.first(), one.newest())
    assert end is not None
    DeltaTable(str(tmp_path / "t")).delete("value = X'302E30'")
    with pytest.raises(SourceError):
        batches(one, end)


def test_peeking_reads_rows_with_their_coordinates(tmp_path: Path) -> None:
    table(tmp_path / "t", 2)
    one = source(tmp_path / "t")
    rows = pa.Table.from_batches(list(one.peek(one.first()))).to_pylist()
    assert [r["offset"] for r in rows] == list(range(6))
    assert {r["topic"] for r in rows} == {"t"}
    assert rows[0]["value"] == b"0.0"


def test_a_missing_table_can_be_tried_again_and_a_wrong_column_cannot(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailableError) as missing:
        source(tmp_path / "none").first()
    assert missing.value.retryable
    table(tmp_path / "t", 1)
    with pytest.raises(SourceError) as wrong:
        source(tmp_path / "t", value="other").first()
    assert not wrong.value.retryable


def test_a_log_that_was_cleaned_up_is_named(tmp_path: Path) -> None:
    table(tmp_path / "t", 3)
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(SourceError) as caught:
        batches(source(tmp_path / "t"), {"version": 1, "index": 0, "rows": 3})
    assert caught.value.code is ErrorCode.SOURCE_DATA_LOST


def test_a_commit_that_was_emptied_is_not_passed_over(tmp_path: Path) -> None:
    table(tmp_path / "t", 1)
    one = source(tmp_path / "t")
    end = one.advance(one.first(), one.newest())
    assert end is not None
    table(tmp_path / "t", 2)
    (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").write_bytes(b"")
    with pytest.raises(SourceError) as caught:
        batches(source(tmp_path / "t"), end)
    assert caught.value.code is ErrorCode.SOURCE_UNAVAILABLE


def lose(path: Path, *versions: int) -> None:
    """What the retention of a log does with commits before a checkpoint."""
    DeltaTable(str(path)).create_checkpoint()
    for version in versions:
        (path / "_delta_log" / f"{version:020d}.json").unlink()


def read_and_compacted(path: Path) -> Position:
    """A table of three commits, all read, and one without records behind them; where it ends."""
    table(path, 3)
    one = source(path)
    end = one.advance(one.first(), one.newest())
    assert end is not None
    DeltaTable(str(path)).optimize.compact()
    return end


def read_and_described(path: Path) -> Position:
    """The same with a commit behind them that changes no file."""
    table(path, 3)
    one = source(path)
    end = one.advance(one.first(), one.newest())
    assert end is not None
    DeltaTable(str(path)).alter.set_table_description("three commits")
    return end


def places(end: Position) -> list[Position]:
    """The place behind three commits as it is written now, and as it was written before."""
    rest = {"rows": 9, "table": end["table"]}
    return [end, {"version": 2, "index": 1, **rest}, {"snapshot": 2, "index": 3, **rest}]


@pytest.mark.parametrize("form", range(3), ids=["now", "commits", "snapshot"])
def test_a_log_may_lose_commits_that_were_read(tmp_path: Path, form: int) -> None:
    path = tmp_path / "t"
    end = read_and_compacted(path)
    lose(path, 0, 1, 2)
    place = places(end)[form]
    assert batches(source(path), place) == []
    table(path, 1)
    assert batches(source(path), place) == [[(9, 3)]]


@pytest.mark.parametrize("form", range(3), ids=["now", "commits", "snapshot"])
def test_a_log_may_lose_commits_without_records(tmp_path: Path, form: int) -> None:
    path = tmp_path / "t"
    # the form of now knows the files, and a compaction that nobody saw changes them
    end = read_and_compacted(path) if form else read_and_described(path)
    table(path, 2)
    lose(path, 0, 1, 2, 3)
    place, other = places(end)[form], source(path)
    after = other.advance(place, other.newest())
    assert after is not None
    # whoever opens the batch once more need not find out again
    for asked in (other, source(path)):
        assert [(f.offset, f.rows) for f in asked.files(place, after)] == [(9, 3), (12, 3)]
    assert other.retrace(place, [SourceRange("t", 0, 9, 15, 6)]) == after
    # of a commit that had records, nobody knows them any more
    lose(path, 4)
    with pytest.raises(SourceError) as caught:
        batches(source(path), place)
    assert caught.value.code is ErrorCode.SOURCE_DATA_LOST


def test_a_compaction_that_was_seen_may_be_lost(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table(path, 2)
    one = source(path)
    start = one.first()
    DeltaTable(str(path)).optimize.compact()
    table(path, 1)
    end = one.advance(start, one.newest())
    assert end is not None and end["rows"] == 9
    DeltaTable(str(path)).alter.set_table_description("all read")
    table(path, 1)
    lose(path, 0, 1, 2, 3, 4)
    assert batches(source(path), end) == [[(9, 3)]]


@pytest.mark.parametrize("what", ["compacted", "deleted and added"])
def test_as_many_rows_in_other_files_are_no_proof_that_none_is_lost(
    tmp_path: Path, what: str
) -> None:
    path = tmp_path / "t"
    table(path, 3)
    one = source(path)
    end = one.advance(one.first(), one.newest())
    assert end is not None
    if what == "compacted":
        DeltaTable(str(path)).optimize.compact()
    else:
        table(path, 2)
        rows = DeltaTable(str(path)).to_pyarrow_table()
        write_deltalake(str(path), rows.slice(6), mode="overwrite")
        assert DeltaTable(str(path)).count() == 9
    lost = range(DeltaTable(str(path)).version() + 1)
    DeltaTable(str(path)).alter.set_table_description("a commit that is left")
    lose(path, *lost)
    with pytest.raises(SourceError) as caught:
        batches(source(path), end)
    assert caught.value.code is ErrorCode.SOURCE_DATA_LOST
    assert "source.starting_version" in caught.value.next_step


def test_a_snapshot_that_is_gone_is_lost_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table(path, 3)
    one = source(path, max_records_per_batch=3)
    end = one.advance(one.first(), one.newest())
    assert end is not None
    table(path, 1)
    lose(path, 0, 1, 2)
    with pytest.raises(SourceError) as caught:
        batches(source(path), end)
    assert caught.value.code is ErrorCode.SOURCE_DATA_LOST
    assert not caught.value.retryable


def test_who_did_not_read_all_rows_cannot_tell_which_are_lost(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table(path, 3)
    one = source(path, starting_version=1)
    end = one.advance(one.first(), one.newest())
    assert end is not None
    DeltaTable(str(path)).optimize.compact()
    lose(path, 0, 1, 2)
    late = source(path, starting_version=1)
    assert batches(late, end) == []
    with pytest.raises(SourceError) as caught:
        batches(late, {"version": 2, "index": 1, "rows": 6, "table": end["table"]})
    assert caught.value.code is ErrorCode.SOURCE_DATA_LOST


def test_commits_without_records_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "t", list[int]()
    table(path, 1)
    one = source(path)
    end = one.advance(one.first(), one.newest())
    assert end is not None
    real = DeltaLog.commit

    def noted(log: DeltaLog, version: int) -> tuple[AddedFile, ...]:
        read.append(version)
        return real(log, version)

    monkeypatch.setattr(DeltaLog, "commit", noted)
    for number in range(3):
        properties = {"delta.logRetentionDuration": f"interval {number + 1} days"}
        DeltaTable(str(path)).alter.set_table_properties(properties)
    assert one.advance(end, one.newest()) is None
    assert set(read) == {1, 2, 3}
    read.clear()
    assert one.advance(end, one.newest()) is None
    assert read == []
    table(path, 1)
    assert batches(one, end) == [[(3, 3)]]
    assert set(read) == {4}


def name_file(path: Path, version: int, name: str) -> None:
    """A commit that adds a file by the name that somebody else chose."""
    log = path / "_delta_log" / f"{version:020d}.json"
    add = {"path": name, "partitionValues": {}, "size": 1, "modificationTime": 1}
    log.write_text(json.dumps({"add": {**add, "dataChange": True}}) + "\n")


@pytest.mark.parametrize("settings", [{}, {"starting_version": 0}], ids=["snapshot", "commits"])
@pytest.mark.parametrize(
    "name",
    [
        "../private/p.parquet",
        "..%2Fprivate%2Fp.parquet",
        "%2e%2e/private/p.parquet",
        "x/%2E./../private/p.parquet",
        "x/../../private/p.parquet",
        "{there}",
        "%2F{there}",
        "file://{there}",
        "file:{there}",
        "FILE%3A%2F%2F{there}",
        "s3://another/p.parquet",
        "link.parquet",
        "linked/p.parquet",
    ],
)
def test_a_log_cannot_name_files_outside_of_its_table(
    tmp_path: Path, name: str, settings: dict[str, object]
) -> None:
    table(tmp_path / "t", 1)
    (tmp_path / "t" / "x").mkdir()
    there = tmp_path / "private" / "p.parquet"
    there.parent.mkdir()
    pq.write_table(pa.table({"value": [b"secret"]}), there)
    (tmp_path / "t" / "link.parquet").symlink_to(there)
    (tmp_path / "t" / "linked").symlink_to(there.parent)
    name_file(tmp_path / "t", 1, name.format(there=there))
    one = source(tmp_path / "t", **settings)
    with pytest.raises(SourceError) as caught:
        batches(one, one.first())
    assert caught.value.code is ErrorCode.SOURCE_INVALID
    assert not isinstance(caught.value, SourceUnavailableError)


@pytest.mark.parametrize("name", ["..p.parquet", "a..b/p.parquet", "day=a%3Ab/p%20..parquet"])
def test_names_with_dots_and_colons_are_no_way_out(tmp_path: Path, name: str) -> None:
    table(tmp_path / "t", 1)
    place = tmp_path / "t" / unquote(name)
    place.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"value": [b"a", b"b"]}), place)
    name_file(tmp_path / "t", 1, name)
    one = source(tmp_path / "t", starting_version=0)
    assert [rows for batch in batches(one, one.first()) for _, rows in batch] == [3, 2]


def test_times_of_spark_s_old_kind_are_read_as_they_are(tmp_path: Path) -> None:
    moments = [datetime(9999, 12, 31, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)]
    times = pa.array(moments, pa.timestamp("us", "UTC"))
    rows = pa.table({"value": [b"a", b"b"], "at": times})
    write_deltalake(str(tmp_path / "t"), rows)
    (written,) = (tmp_path / "t").glob("*.parquet")
    pq.write_table(rows, written, use_deprecated_int96_timestamps=True, store_schema=False)
    one = source(tmp_path / "t", timestamp="at")
    read = pa.Table.from_batches(list(one.peek(one.first())))
    assert read.column("timestamp").to_pylist() == moments
