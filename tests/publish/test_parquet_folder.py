"""Plain Parquet folders: what readers see of them at every moment, and what is left behind."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ErrorCode, PublishError
from distributary.model.manifest import TableEntry, app_id
from distributary.model.table import Column
from distributary.publish import parquet_publisher as parquet
from distributary.publish.base import CommittedMark, Outcome
from distributary.publish.formats.table_format_entry import format_at
from distributary.publish.parking import park, parked, resume
from distributary.publish.parquet_publisher import HOME, ParquetPublisher, ParquetTable
from tests.publish import staged
from tests.publish.staged import (
    batch_of,
    columns_like,
    entry_of,
    mark,
    numbers,
    read_folder,
    stage,
    stage_day,
)

CHANGES = {"open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    monkeypatch.setattr(staged, "FORMAT", "parquet")


class KilledError(BaseException):
    """The process is gone: nothing in it catches this, and nothing it does has an effect."""


class Killer:
    """Lets a process do so many changes to files; none of what it tries afterwards happens."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.seen = 0
        sys.addaudithook(self._hook)

    @contextmanager
    def after(self, changes: int) -> Iterator[None]:
        self.left, self.seen = changes, 0
        try:
            yield
        finally:
            self.left = None

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if self.left is None or event not in CHANGES:
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & os.O_CREAT):
            return
        self.seen += 1
        if self.seen > self.left:
            raise KilledError


@pytest.fixture(scope="module")
def killer() -> Killer:
    return Killer()


def visible(folder: Path) -> list[int]:
    """Every row that pandas sees; a file that is not whole would be an error."""
    if not list(folder.glob("*.parquet")):
        return []
    found: list[int] = pd.read_parquet(folder)["n"].tolist() if format_at(str(folder)) else []
    return sorted(found)


def three_files(folder: Path, batch: int, *, attempt: str = "") -> TableEntry:
    """A batch of three rows in three partitions."""
    first = batch * 10
    columns = [*columns_like(numbers()), Column("day", pa.string(), "day")]
    files = []
    for n, day in enumerate(["a", f"b{batch}", None]):
        rows = numbers(first + n).append_column("day", pa.array([day], pa.string()))
        name = f"by_day={day or 'null'}/part-{batch}-{n}{attempt}.parquet"
        files.append(stage(folder, rows, name=name))
    return entry_of(folder, files, columns, partition_by=("day",))


def killed_at(killer: Killer, step: int, entry: TableEntry, batch: int) -> bool:
    """Publish, and be killed after so many changes; False if that was enough for all of it."""
    try:
        with killer.after(step):
            ParquetPublisher().publish(entry, mark(batch))
    except KilledError:
        return True
    return False


def changes_of_a_publish(killer: Killer, folder: Path) -> int:
    ParquetPublisher().publish(three_files(folder, 0), mark(0))
    with killer.after(10_000):
        ParquetPublisher().publish(three_files(folder, 1), mark(1))
    return killer.seen


@pytest.mark.parametrize("first", [True, False], ids=["new table", "old table"])
@pytest.mark.parametrize("again", ["same files", "staged again"])
def test_a_kill_between_any_two_changes_is_harmless(
    killer: Killer, tmp_path: Path, first: bool, again: str
) -> None:
    steps = changes_of_a_publish(killer, tmp_path / "measured") + 10
    assert steps > 20
    outcomes = Counter[Outcome]()
    for step in range(steps):
        folder = tmp_path / f"t{step}" / "chess"
        before = []
        if not first:
            ParquetPublisher().publish(three_files(folder, 0), mark(0))
            before = [0, 1, 2]
        entry = three_files(folder, 1)
        killed_at(killer, step, entry, 1)
        seen = Counter(visible(folder))
        assert set(seen) <= {*before, 10, 11, 12}
        assert set(seen.values()) <= {1}
        if again == "staged again":
            entry = three_files(folder, 1, attempt="-again")
        outcomes[ParquetPublisher().publish(entry, mark(1)).outcome] += 1
        assert visible(folder) == [*before, 10, 11, 12]
        assert ParquetPublisher().committed(str(folder), mark(1)) == CommittedMark(1, "source-1")
        ParquetPublisher().publish(three_files(folder, 2), mark(2))
        assert visible(folder) == [*before, 10, 11, 12, 20, 21, 22]
        assert not (folder / HOME / "intent.json").exists()
    assert set(outcomes) == {Outcome.PUBLISHED, Outcome.SKIPPED}


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=8))
def test_any_sequence_of_kills_ends_with_each_row_once(
    killer: Killer, tmp_path_factory: pytest.TempPathFactory, kills: list[tuple[int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("lake") / "chess"
    batch, entry = 0, three_files(folder, 0)
    for number, (step, restage) in enumerate(kills):
        if not killed_at(killer, step, entry, batch):
            batch += 1
            entry = three_files(folder, batch)
        elif restage:
            entry = three_files(folder, batch, attempt=f"-{number}")
    ParquetPublisher().publish(entry, mark(batch))
    assert visible(folder) == [b * 10 + n for b in range(batch + 1) for n in range(3)]


def test_two_pipelines_do_not_take_each_others_rows_back(killer: Killer, folder: Path) -> None:
    other = app_id("other", "life")
    ParquetPublisher().publish(three_files(folder, 0), mark(0))
    mine = three_files(folder, 1)
    for step in range(0, 40, 3):
        killed_at(killer, step, mine, 1)
        theirs = three_files(folder, 10 + step)
        ParquetPublisher().publish(theirs, mark(step, app=other))
    ParquetPublisher().publish(mine, mark(1))
    others = [(10 + step) * 10 + n for step in range(0, 40, 3) for n in range(3)]
    assert visible(folder) == [0, 1, 2, 10, 11, 12, *others]


def test_a_failed_commit_leaves_nothing_visible_and_can_be_parked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ParquetPublisher().publish(three_files(folder, 0), mark(0))
    entry = three_files(folder, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(parquet, "create_commit", full)
        with pytest.raises(PublishError) as failed:
            ParquetPublisher().publish(entry, mark(1))
    assert failed.value.code is ErrorCode.LAKE_UNAVAILABLE
    assert visible(folder) == [0, 1, 2]
    parking = str(tmp_path / "parked")
    park(entry, mark(1), folder=parking)
    for file in entry.files:
        (folder / file.path).unlink()
    assert [p.outcome for p in resume(ParquetPublisher(), folder=parking, table="chess")] == [
        Outcome.PUBLISHED
    ]
    assert parked(parking) == []
    assert visible(folder) == [0, 1, 2, 10, 11, 12]


def test_staged_files_are_seen_by_nobody(folder: Path) -> None:
    ParquetPublisher().publish(three_files(folder, 0), mark(0))
    three_files(folder, 1)
    assert [row["n"] for row in read_folder(str(folder))] == [0, 1, 2]


def test_nothing_is_left_of_a_committed_batch(folder: Path) -> None:
    for batch in range(3):
        ParquetPublisher().publish(three_files(folder, batch), mark(batch))
    files = [p for p in (folder / HOME).rglob("*") if p.is_file()]
    assert sorted(p.name for p in files if p.parent.name != "log") == ["lock", "table.json"]
    assert len([p for p in files if p.parent.name == "log"]) == 3


def test_pandas_needs_no_option_when_columns_come_and_widen(folder: Path) -> None:
    publisher = ParquetPublisher()
    publisher.publish(batch_of(folder, 0, numbers(1)), mark(0))
    wide = pa.table({"n": pa.array([2**40], pa.int64()), "new": ["x"]})
    publisher.publish(batch_of(folder, 1, wide), mark(1))
    publisher.publish(batch_of(folder, 2, numbers(3)), mark(2))
    frame = pd.read_parquet(folder).sort_values("n")
    assert frame["n"].tolist() == [1, 3, 2**40]
    assert frame["new"].fillna("-").tolist() == ["-", "-", "x"]


def test_pandas_reads_partitions_with_and_without_a_value(folder: Path) -> None:
    days = {1: "2026-11-15", 2: None, 3: "2026-11-16", 4: "007"}
    files = [stage_day(folder, number, day) for number, day in days.items()]
    columns = (Column("n", pa.int32()), Column("day", pa.string()))
    ParquetPublisher().publish(entry_of(folder, files, columns, partition_by=("day",)), mark(0))
    frame = pd.read_parquet(folder).sort_values("n")
    assert [d if isinstance(d, str) else None for d in frame["day"]] == list(days.values())
    one = pd.read_parquet(folder, filters=[("by_day", "==", "2026-11-15")])
    assert one["n"].tolist() == [1]


def test_a_lost_columns_file_is_written_again(folder: Path) -> None:
    ParquetPublisher().publish(batch_of(folder, 0, numbers(1)), mark(0))
    (folder / "0-columns.parquet").unlink()
    ParquetPublisher().publish(batch_of(folder, 1, numbers(2)), mark(1))
    assert (folder / "0-columns.parquet").exists()
    assert visible(folder) == [1, 2]


def test_a_column_named_like_a_folder_is_refused(folder: Path) -> None:
    columns = (Column("n", pa.int32()), Column("day", pa.string()), Column("by_day", pa.string()))
    entry = entry_of(folder, [stage_day(folder, 1, "a")], columns, partition_by=("day",))
    with pytest.raises(PublishError) as refused:
        ParquetPublisher().publish(entry, mark(0))
    assert refused.value.context["reason"] == "columns"


def test_a_damaged_record_is_named(folder: Path) -> None:
    ParquetPublisher().publish(batch_of(folder, 0, numbers(1)), mark(0))
    (folder / HOME / "table.json").write_text("{")
    with pytest.raises(PublishError) as refused:
        ParquetPublisher().current_columns(str(folder))
    assert refused.value.where.endswith("table.json")


def test_a_publisher_that_was_stopped_in_the_middle_keeps_others_out(folder: Path) -> None:
    entry = batch_of(folder, 0, numbers(1))
    with ParquetTable(str(folder)).locked(), pytest.raises(PublishError) as waited:
        ParquetPublisher().publish(entry, mark(0))
    assert waited.value.context["reason"] == "overtaken"
    assert ParquetPublisher().publish(entry, mark(0)).outcome is Outcome.PUBLISHED


@pytest.fixture
def aged() -> Callable[[Path], None]:
    def make_old(path: Path) -> None:
        then = time.time() - parquet.EXPIRY_SECONDS - 60
        os.utime(path, (then, then))

    return make_old


def test_old_commits_and_orphans_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch, aged: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(parquet, "KEPT_COMMITS", 5)
    monkeypatch.setattr(parquet, "_TIDY_EVERY", 1)
    publisher = ParquetPublisher()
    other = mark(0, app=app_id("other", "life"))
    publisher.publish(batch_of(folder, 900, numbers(900)), other)
    orphans = [stage(folder, numbers(8), name=f"by_day=x/orphan-{n}.parquet") for n in range(2)]
    old, young = (folder / file.path for file in orphans)
    aged(old)
    draft = folder / HOME / ".left.draft"
    draft.touch()
    aged(draft)
    for batch in range(12):
        publisher.publish(batch_of(folder, batch, numbers(batch)), mark(batch))
    assert [p.exists() for p in (old, young, draft)] == [False, True, False]
    assert len(list((folder / HOME / "log").iterdir())) == 6
    assert publisher.committed(str(folder), other) == CommittedMark(0, "source-0")
    assert publisher.committed(str(folder), mark(3)) == CommittedMark(11, None)
    assert publisher.publish(batch_of(folder, 3, numbers(3)), mark(3)).outcome is Outcome.SKIPPED
    assert visible(folder) == [*range(12), 900]


def test_the_log_tells_which_files_a_batch_has(folder: Path) -> None:
    ParquetPublisher().publish(three_files(folder, 4), mark(4))
    (commit,) = (folder / HOME / "log").iterdir()
    told = json.loads(commit.read_text())
    assert all((folder / file["path"]).stat().st_size == file["size"] for file in told["files"])
    assert told["rows"] == 3
