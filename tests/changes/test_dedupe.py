"""Events that come again: told by id and content, with as few looks at the log as will do."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.events import copies
from distributary.changes.events.copies import redelivered
from distributary.delta.log import DataFile, Snapshot
from tests.changes.logs import COLUMNS, Event, event, rows_of


def sent(number: int, uuid: str, content: int = 0, *, time: int | None = None) -> Event:
    return replace(event(number, id=1), uuid=uuid, hash=content, time=time)


def log_of(folder: Path, *batches: Sequence[Event]) -> str:
    for number, batch in enumerate(batches):
        write_deltalake(folder / "log", rows_of(batch, COLUMNS, batch=number), mode="append")
    return str(folder / "log")


def again(path: str, events: Sequence[Event]) -> list[bool]:
    found: list[bool] = redelivered(path, rows_of(events, COLUMNS)).to_pylist()
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of logs that are opened."""
    names: list[str] = []

    real = Snapshot.read

    def read(self: Snapshot, file: DataFile, schema: pa.Schema) -> pa.Table:
        names.append(file.path)
        return real(self, file, schema)

    monkeypatch.setattr(Snapshot, "read", read)
    return names


def test_id_and_content_decide(tmp_path: Path) -> None:
    log = log_of(tmp_path, [sent(1, "a", 1), sent(2, "b", 2), sent(3, "", 3)])
    events = [
        sent(1, "a", 1),
        sent(1, "a", 9),
        sent(2, "c", 2),
        sent(3, "", 3),
        sent(2, "b", 2),
        sent(2, "c", 2),
    ]
    assert again(log, events) == [True, False, False, False, True, True]


def test_there_is_no_log_yet(tmp_path: Path) -> None:
    events = [sent(1, "a"), sent(1, "a"), sent(1, "")]
    assert again(str(tmp_path / "log"), events) == [False, True, False]
    assert again(str(tmp_path / "log"), []) == []


def test_files_of_other_times_and_ids_stay_closed(tmp_path: Path, opened: list[str]) -> None:
    batches = [[sent(100 * n + k, f"{n}-{k}") for k in range(5)] for n in range(6)]
    log = log_of(tmp_path, *batches)
    assert again(log, [sent(1000, "x"), sent(2000, "y")]) == [False, False]
    assert again(log, [sent(150, "1-9"), sent(350, "3-9")]) == [False, False]
    assert again(log, [sent(302, "zz")]) == [False]
    assert opened == []
    assert again(log, [sent(203, "2-3"), sent(1000, "x")]) == [True, False]
    assert len(opened) == 1


def test_what_is_appended_later_is_seen(tmp_path: Path) -> None:
    log = log_of(tmp_path, [sent(1, "a")])
    assert again(log, [sent(2, "b")]) == [False]
    log_of(tmp_path, [sent(2, "b")], [sent(3, "c", time=-(10**9))])
    assert again(log, [sent(2, "b"), sent(3, "c", time=-(10**9)), sent(4, "d")]) == [
        True,
        True,
        False,
    ]
    DeltaTable(log).optimize.compact()
    assert again(log, [sent(1, "a"), sent(2, "b")]) == [True, True]
    write_deltalake(log, rows_of([sent(5, "e")], COLUMNS), mode="overwrite")
    assert again(log, [sent(1, "a"), sent(5, "e")]) == [False, True]


def test_a_log_made_again_behind_us(tmp_path: Path) -> None:
    import shutil

    log = log_of(tmp_path, [sent(1, "a")])
    assert again(log, [sent(1, "a")]) == [True]
    shutil.rmtree(log)
    log_of(tmp_path, [sent(1, "b")])
    assert again(log, [sent(1, "a"), sent(1, "b")]) == [False, True]


def test_events_without_a_time_are_looked_for_everywhere(tmp_path: Path) -> None:
    rows = rows_of([sent(1, "a"), sent(2, "b")], COLUMNS)
    at = rows.schema.get_field_index("_source_ts")
    timeless = rows.set_column(at, rows.schema.field(at), pa.nulls(2, rows.schema.field(at).type))
    write_deltalake(tmp_path / "log", timeless)
    log_of(tmp_path, [sent(9, "c")])
    path = str(tmp_path / "log")
    assert redelivered(path, timeless).to_pylist() == [True, True]
    assert again(path, [sent(9, "c"), sent(9, "d")]) == [True, False]


def test_bounds_that_cannot_be_read_open_the_file() -> None:
    for stats in ("", "{}", '{"minValues":{"_source_ts":"soon"},"maxValues":{"_source_ts":"x"}}'):
        file = DataFile("f f.parquet", "f%20f.parquet", 1, stats=stats)
        assert copies._bounds([file]).no_time.tolist() == [True]


SENT = st.builds(
    sent,
    st.integers(0, 6),
    st.sampled_from(["", "a", "b", "c"]),
    st.integers(0, 1),
)


@given(st.lists(st.lists(SENT, min_size=1, max_size=5), max_size=4), st.lists(SENT, max_size=8))
def test_as_if_everything_was_looked_at(log: list[list[Event]], events: list[Event]) -> None:
    # one id and content is one event, and happened once
    log = [[replace(e, time=e.hash + len(e.uuid)) for e in batch] for batch in log]
    events = [replace(e, time=e.hash + len(e.uuid)) for e in events]
    known = {(e.uuid, e.hash) for batch in log for e in batch}
    expected = []
    for e in events:
        expected.append(bool(e.uuid) and (e.uuid, e.hash) in known)
        known.add((e.uuid, e.hash))
    with tempfile.TemporaryDirectory() as folder:
        assert again(log_of(Path(folder), *log) if log else folder, events) == expected
