"""Plain Parquet tables in a bucket: killed between any two requests, and never a row twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from distributary.model.manifest import StagedFile, TableEntry, app_id
from distributary.model.table import STAGED, STAGING, Column, Role, TablePlan
from distributary.publish import parquet_publisher as parquet
from distributary.publish.base import CommittedMark, Outcome
from distributary.publish.formats.table_format_entry import format_at
from distributary.publish.parquet_publisher import (
    COLUMNS_FILE,
    HOME,
    ParquetPublisher,
    ParquetTable,
    open_parquet,
)
from distributary.store import base
from distributary.store.base import REQUESTS, at, introduce
from distributary.store.bucket import Bucket
from tests.publish.staged import columns_like, mark, numbers, statistics
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, S3Server

CHANGES = ("_put", "remove", "remove_files", "copy")


class KilledError(BaseException):
    """The process is gone: nothing in it catches this, and nothing it does has an effect."""


class Killer:
    """Lets a process make so many changes to a bucket."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.seen = 0
        self.table = ""
        self._turn = threading.Lock()
        for name in CHANGES:
            patched.setattr(Bucket, name, self._limited(getattr(Bucket, name)))

    def _limited(self, real: Any) -> Any:
        def change(*args: Any, **options: Any) -> Any:
            if not args[0].address.startswith(self.table):
                # of another test, whose claim still beats
                return real(*args, **options)
            with self._turn:
                self.seen += 1
                if self.left is not None and self.seen > self.left:
                    raise KilledError
            return real(*args, **options)

        return change

    def publish(self, entry: TableEntry, batch: int, *, changes: int) -> bool:
        """Publish, and be killed after so many changes; False if that was enough."""
        self.left, self.seen, self.table = changes, 0, entry.table.path
        try:
            ParquetPublisher().publish(entry, mark(batch))
        except KilledError:
            return True
        finally:
            self.left = None
        return False


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    return Killer(monkeypatch)


@pytest.fixture
def lake(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(base, "_OPTIONS", {})
    address = f"s3://{BUCKET}/{unique('lake')}"
    introduce(address, server.options)
    yield address


def batch_of(folder: str, batch: int, *, attempt: str = "") -> TableEntry:
    """Three rows in three partitions, staged."""
    columns = (*columns_like(numbers()), Column("day", pa.string(), "day"))
    files = []
    for n, day in enumerate(["a", f"b{batch}", None]):
        rows = numbers(batch * 10 + n).append_column("day", pa.array([day], pa.string()))
        name = f"{STAGING}/by_day={day or 'null'}/part-{batch}-{n}{attempt}.parquet{STAGED}"
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(rows, sink)
        data = sink.getvalue().to_pybytes()
        at(folder).write(name, data)
        files.append(StagedFile(name, len(data), 1, statistics(rows), {}))
    plan = TablePlan(
        "chess", Role.EACH, "chess", folder, columns, partition_by=("day",), format="parquet"
    )
    return TableEntry(plan, tuple(files), 3)


def visible(folder: str) -> list[int]:
    found = open_parquet(folder)
    return [] if found is None else sorted(found[0].dataset(found[1]).to_table()["n"].to_pylist())


@pytest.mark.parametrize("first", [True, False], ids=["new table", "old table"])
@pytest.mark.parametrize("again", ["same files", "staged again"])
def test_a_kill_between_any_two_requests_is_harmless(
    killer: Killer, lake: str, first: bool, again: str
) -> None:
    outcomes = Counter[Outcome]()
    for step in range(20):
        folder = f"{lake}/t{step}/chess"
        before = []
        if not first:
            ParquetPublisher().publish(batch_of(folder, 0), mark(0))
            before = [0, 1, 2]
        entry = batch_of(folder, 1)
        killed = killer.publish(entry, 1, changes=step)
        assert killed or step > 4
        seen = Counter(visible(folder))
        assert set(seen) <= {*before, 10, 11, 12}
        assert set(seen.values()) <= {1}
        if again == "staged again":
            entry = batch_of(folder, 1, attempt="-again")
        outcomes[ParquetPublisher().publish(entry, mark(1)).outcome] += 1
        assert visible(folder) == [*before, 10, 11, 12]
        assert ParquetPublisher().committed(folder, mark(1)) == CommittedMark(1, "source-1")
        ParquetPublisher().publish(batch_of(folder, 2), mark(2))
        assert visible(folder) == [*before, 10, 11, 12, 20, 21, 22]
        if not killed:
            # later kills would come after the end
            break
    assert not killed
    assert set(outcomes) == {Outcome.PUBLISHED, Outcome.SKIPPED}


def test_two_pipelines_do_not_take_each_others_rows_back(killer: Killer, lake: str) -> None:
    folder, other = f"{lake}/chess", app_id("other", "life")
    mine = batch_of(folder, 1)
    for step in range(6):
        killer.publish(mine, 1, changes=step)
        ParquetPublisher().publish(batch_of(folder, 10 + step), mark(step, app=other))
    ParquetPublisher().publish(mine, mark(1))
    assert visible(folder) == [10, 11, 12] + [(10 + s) * 10 + n for s in range(6) for n in range(3)]


def test_a_process_that_lost_its_claim_takes_nothing_back(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"{lake}/chess"
    entry, real = batch_of(folder, 0), parquet.create_commit

    def overtaken(*args: Any) -> None:
        monkeypatch.setattr(parquet, "create_commit", real)
        # while it was paused, the new owner of the checkpoint has published the batch
        ParquetPublisher().publish(entry, mark(0))
        raise OSError("connection reset")

    monkeypatch.setattr(parquet, "create_commit", overtaken)
    ParquetPublisher().publish(entry, mark(0))
    assert visible(folder) == [0, 1, 2]


def test_a_column_that_another_writer_has_hidden_is_shown_again(lake: str) -> None:
    folder = f"{lake}/chess"
    ParquetPublisher().publish(batch_of(folder, 0), mark(0))
    table = ParquetTable(folder)
    record = table.record()
    assert record is not None
    table.show(replace(record, fields=record.fields[:1]))
    ParquetPublisher().publish(batch_of(folder, 1), mark(1))
    assert table.shows(record)


def test_what_is_left_and_what_it_costs(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = f"{lake}/chess"
    for batch in range(3):
        ParquetPublisher().publish(batch_of(folder, batch), mark(batch))
    entry = batch_of(folder, 3)
    REQUESTS.clear()
    ParquetPublisher().publish(entry, mark(3))
    assert REQUESTS.total() <= 8 + len(entry.files), REQUESTS
    store = at(folder)
    own = {file.name for file in store.files(HOME, recursive=True)}
    assert {name for name in own if "/log/" not in name and "/intent-" not in name} == {
        f"{HOME}/table.json"
    }
    assert len([name for name in own if "/log/" in name]) == 4
    assert store.look(COLUMNS_FILE) is not None
    assert format_at(folder) == "parquet"
    assert format_at(f"{lake}/none") is None
    # old commits go
    monkeypatch.setattr(parquet, "KEPT_COMMITS", 2)
    monkeypatch.setattr(parquet, "_TIDY_EVERY", 1)
    ParquetPublisher().publish(batch_of(folder, 4), mark(4))
    assert len(ParquetTable(folder).log().commits) == 2
    assert ParquetPublisher().publish(batch_of(folder, 2), mark(2)).outcome is Outcome.SKIPPED
    assert len(visible(folder)) == 15
