"""Rows that are removed from a table, against a list of rows."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from distributary.delta.column_merge import UnsupportedTypeError, fields_of
from distributary.delta.commit import Change, commit
from distributary.delta.compact import REMOVED, Sizes, compact, removed_before
from distributary.delta.log import DataFile, Snapshot, load
from distributary.delta.parquet import write_file
from distributary.delta.removal.row_removal import OlderRows, matches_in, remove_rows, rows_in
from distributary.model.table import Column
from distributary.store.base import at

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
TYPES = {
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "day": pa.date32(),
}


def made(folder: Path, files: list[list[int | None]]) -> Snapshot:
    """A table with a file for each list of hours after noon; None is a row without a time."""
    store = at(str(folder))
    columns = (Column("n", pa.int64()), *(Column(name, kind) for name, kind in TYPES.items()))
    state = commit(
        store, None, Change("CREATE TABLE", "t", fields=fields_of(columns), appends=True)
    )
    number = 0
    for name, hours in enumerate(files):
        times = [None if hour is None else NOON + timedelta(hours=hour) for hour in hours]
        rows = pa.table(
            {
                "n": pa.array(range(number, number + len(hours)), pa.int64()),
                "at": pa.array(times, TYPES["at"]),
                "local": pa.array([t and t.replace(tzinfo=None) for t in times], TYPES["local"]),
                "day": pa.array([t and t.date() for t in times], TYPES["day"]),
            }
        )
        number += len(hours)
        file = write_file(rows, str(folder), f"part-{name}.parquet")
        state = commit(store, state, Change("WRITE", added=[file], appends=True))
    found = load(store)
    assert found is not None
    return found


def rows_of(folder: Path) -> list[int]:
    return sorted(DeltaTable(folder).to_pyarrow_table()["n"].to_pylist())


HOURS = st.lists(
    st.lists(st.none() | st.integers(-72, 72), min_size=1, max_size=6), min_size=1, max_size=5
)


@given(files=HOURS, before=st.integers(-80, 80), column=st.sampled_from(sorted(TYPES)))
def test_exactly_the_older_rows_go(files: list[list[int | None]], before: int, column: str) -> None:
    moment = NOON + timedelta(hours=before)

    def stays(hour: int | None) -> bool:
        if hour is None:
            return True
        time = NOON + timedelta(hours=hour)
        return time.date() >= moment.date() if column == "day" else time >= moment

    hours = [hour for file in files for hour in file]
    expected = [n for n, hour in enumerate(hours) if stays(hour)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        state = made(folder, files)
        old = OlderRows.of(state, column, moment)
        assert isinstance(old, OlderRows)
        would = remove_rows(state, old, dry_run=True)[1]
        assert rows_of(folder) == list(range(len(hours)))
        state, done = remove_rows(state, old)
        assert rows_of(folder) == expected
        assert would.rows == done.rows == len(hours) - len(expected) == removed_before(state)
        assert done.left == 0 and (would.bytes, would.whole_files) == (done.bytes, done.whole_files)
        # a second time there is nothing to do, and no commit
        again, none = remove_rows(state, old)
        assert (none.rows, again.version) == (0, state.version)
        assert DeltaTable(folder).transaction_version(REMOVED) == (done.rows or None)


@dataclass(frozen=True)
class _InPartition:
    """Rows of a partition with an odd number."""

    country: str | None
    columns: tuple[str, ...] = ("country", "n")

    def by_statistics(self, state: Snapshot, file: DataFile) -> bool | None:
        return None

    def gone(self, rows: pa.Table) -> pa.ChunkedArray:
        here = pc.is_in(rows["country"], pa.array([self.country], pa.string()))
        return pc.and_(here, pc.equal(pc.bit_wise_and(rows["n"], 1), 1))


@pytest.mark.parametrize("country", ["at", None])
def test_columns_that_partition_a_table_decide_too(tmp_path: Path, country: str | None) -> None:
    """Their values are in the log and not in the files."""
    columns = (Column("n", pa.int64()), Column("country", pa.string()))
    change = Change(
        "CREATE TABLE",
        "t",
        fields=fields_of(columns),
        partition_by=("country",),
        appends=True,
        added=[
            write_file(
                pa.table({"n": [number, number + 1]}),
                str(tmp_path),
                f"part-{number}.parquet",
                partition_values={"country": value},
            )
            for number, value in ((0, "at"), (2, "br"), (4, None))
        ],
    )
    state = commit(at(str(tmp_path)), None, change)
    found = rows_in(state, _InPartition(country), ("n",))["n"].to_pylist()
    assert found == [1 if country else 5]
    state, done = remove_rows(state, _InPartition(country))
    assert (done.rows, done.rewritten_files) == (1, 1)
    assert rows_of(tmp_path) == sorted({*range(6)} - {*found})


def test_days_that_partition_a_table_go_without_being_read(tmp_path: Path) -> None:
    days = ["2026-01-29", "2026-01-31", None, "2026-02-01"]
    files = [
        write_file(
            pa.table({"n": [number]}),
            str(tmp_path),
            f"part-{number}.parquet",
            partition_values={"day": day},
        )
        for number, day in enumerate(days)
    ]
    fields = fields_of((Column("n", pa.int64()), Column("day", pa.date32())))
    change = Change("WRITE", fields=fields, partition_by=("day",), added=files, appends=True)
    state = commit(at(str(tmp_path)), None, change)
    (tmp_path / "part-0.parquet").write_bytes(b"")
    old = OlderRows.of(state, "day", NOON)
    assert isinstance(old, OlderRows)
    _, done = remove_rows(state, old)
    assert (done.rows, done.whole_files, rows_of(tmp_path)) == (1, 1, [1, 2, 3])


def test_files_whose_bounds_say_it_go_without_being_read(tmp_path: Path) -> None:
    state = made(tmp_path, [[-5, -4], [-3, 4], [5]])
    (tmp_path / "part-0.parquet").write_bytes(b"")
    (tmp_path / "part-2.parquet").write_bytes(b"")
    old = OlderRows.of(state, "at", NOON)
    assert isinstance(old, OlderRows)
    assert [match.file.path for match in matches_in(state, old)] == [
        "part-0.parquet",
        "part-1.parquet",
    ]
    done = remove_rows(state, old)[1]
    assert (done.rows, done.whole_files, done.rewritten_files) == (3, 1, 1)


def test_commits_beside_it_stay_and_compaction_makes_it_come_again(tmp_path: Path) -> None:
    state = made(tmp_path, [[-5, 5], [-3, 4], [1], [2], [3]])
    old = OlderRows.of(state, "at", NOON)
    assert isinstance(old, OlderRows)
    compact(state, Sizes(2**30, 2))
    after, done = remove_rows(state, old)
    # both files were replaced since: nothing is removed, and nothing twice
    assert (done.rows, done.left) == (0, 2) and len(rows_of(tmp_path)) == 7
    assert not list(tmp_path.glob("part-0-c*-c*"))
    assert remove_rows(after, old)[1].rows == 2
    assert rows_of(tmp_path) == [1, 3, 4, 5, 6]


def test_a_killed_removal_is_done_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = made(tmp_path, [[-5, 5], [-3, 4], [-2]])
    old = OlderRows.of(state, "at", NOON)
    assert isinstance(old, OlderRows)
    monkeypatch.setattr("distributary.delta.compact._COMMIT_BYTES", 1)
    calls = 0

    def killed() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remove_rows(state, old, ready=killed)
    now = load(state.store)
    assert now is not None and 0 < removed_before(now) < 3
    now, _ = remove_rows(now, old)
    assert rows_of(tmp_path) == [1, 3] and removed_before(now) == 3


def test_columns_that_cannot_say_it_are_named(tmp_path: Path) -> None:
    state = made(tmp_path, [[1]])
    for column in ("n", "nothing"):
        assert column in str(OlderRows.of(state, column, NOON))


def test_a_table_that_only_grows_refuses(tmp_path: Path) -> None:
    state = made(tmp_path, [[-1]])
    state = commit(state.store, state, Change("SET", properties={"delta.appendOnly": "true"}))
    found = load(state.store)
    assert found is not None
    with pytest.raises(UnsupportedTypeError, match="appendOnly"):
        remove_rows(found, OlderRows("at", NOON))
    assert rows_of(tmp_path) == [0]


def test_a_day_is_older_only_when_all_of_it_is(tmp_path: Path) -> None:
    state = made(tmp_path, [[0]])
    old = OlderRows.of(state, "day", NOON + timedelta(hours=5))
    assert isinstance(old, OlderRows) and old.before.date() == date(2026, 1, 31)
    assert remove_rows(state, old)[1].rows == 0
