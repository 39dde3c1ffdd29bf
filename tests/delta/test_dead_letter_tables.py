"""Dead letters that are done with go, beside pipelines that append and commands that mark."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.delta.compact import Sizes, compact
from distributary.delta.log import Snapshot, load
from distributary.delta.removal.vacuum import ExpiredLetters, Expiry, expire_letters
from distributary.model.deadletter import DEAD_LETTER_SCHEMA, dead_letter_id
from distributary.model.table import Column
from distributary.observe.deadletters import DeadLetters
from distributary.publish.direct import DirectPublisher
from distributary.store.base import at
from tests.lakes.written import letter
from tests.publish.staged import entry_of, mark, stage

NOW = datetime(2026, 6, 1, tzinfo=UTC)
OLD = Expiry(NOW - timedelta(days=30))
COLUMNS = tuple(Column(field.name, field.type) for field in DEAD_LETTER_SCHEMA)


def append(folder: Path, batch: int, letters: Sequence[tuple[int, str, int]]) -> None:
    """Letters by offset, status and days of age, as a pipeline writes them."""
    rows = [
        letter(offset) | {"status": status, "batch": batch, "last_seen": NOW - timedelta(days=days)}
        for offset, status, days in letters
    ]
    table = pa.Table.from_pylist(rows, DEAD_LETTER_SCHEMA)
    file = stage(folder, table, name=f"part-{batch}.parquet")
    DirectPublisher().publish(entry_of(folder, [file], COLUMNS), mark(batch))


def state_of(folder: Path) -> Snapshot:
    found = load(at(folder))
    assert found is not None
    return found


def expired(folder: Path, expiry: Expiry = OLD, *, dry_run: bool = False) -> ExpiredLetters:
    return expire_letters(state_of(folder), expiry, dry_run=dry_run)[1]


def offsets(folder: Path) -> list[int]:
    return sorted(DeltaTable(folder).to_pyarrow_table().column("offset").to_pylist())


@pytest.fixture
def letters(folder: Path) -> Path:
    append(folder, 0, [(1, "replayed", 40), (2, "open", 400), (3, "discarded", 31)])
    append(folder, 1, [(4, "replayed", 29), (5, "open", 1)])
    append(folder, 2, [(6, "discarded", 90), (7, "replayed", 90)])
    return folder


def test_only_old_letters_that_are_done_with_go(letters: Path) -> None:
    untouched = state_of(letters).files["part-1.parquet"]
    assert expired(letters, dry_run=True) == ExpiredLetters(4)
    assert offsets(letters) == [1, 2, 3, 4, 5, 6, 7]
    assert expired(letters) == ExpiredLetters(4, version=3)
    assert offsets(letters) == [2, 4, 5]
    state = state_of(letters)
    assert state.files["part-1.parquet"] == untouched and len(state.files) == 2
    assert expired(letters) == ExpiredLetters()
    assert DeltaTable(letters).version() == 3
    kept = DeadLetters(str(letters)).get(dead_letter_id("games", "life", "wrapper", 0, 2))
    assert kept["value"] == letter(2)["value"] and kept["headers"] == letter(2)["headers"]


def test_open_letters_go_only_when_it_is_said(letters: Path) -> None:
    assert expired(letters, Expiry(NOW - timedelta(days=365), open_too=True)).letters == 1
    assert 2 not in offsets(letters)
    assert expired(letters, Expiry(NOW + timedelta(days=1), open_too=True)).letters == 6
    assert offsets(letters) == []
    append(letters, 3, [(8, "open", 0)])
    assert offsets(letters) == [8]


def test_letter_without_a_time_stays(folder: Path) -> None:
    append(folder, 0, [(1, "replayed", 40)])
    table = DeltaTable(folder)
    table.update({"last_seen": "null", "first_seen": "null"})
    assert expired(folder).letters == 0


def test_marks_that_come_in_between_are_kept(letters: Path) -> None:
    """The file of a letter that is marked meanwhile is left as it is; the others go."""
    once = iter([None, 1])
    source = DeadLetters(str(letters))

    def ready() -> None:
        if next(once, None):
            assert source.discard([dead_letter_id("games", "life", "wrapper", 0, 2)], note="x") == 1
            append(letters, 3, [(8, "open", 0)])

    done = expire_letters(state_of(letters), OLD, ready=ready)[1]
    assert (done.letters, done.left) == (2, 2)
    assert source.count_by_status() == {"open": 2, "replayed": 2, "discarded": 2}
    assert expired(letters).letters == 3


def test_letters_are_marked_appended_compacted_and_expired_at_once(letters: Path) -> None:
    failures: list[BaseException] = []
    rounds = threading.Semaphore(0)

    def care() -> None:
        try:
            for _ in range(5):
                rounds.acquire()
                state, _ = expire_letters(state_of(letters), OLD)
                compact(state, Sizes(2**20, 2))
        except BaseException as error:
            failures.append(error)

    carer = threading.Thread(target=care)
    carer.start()
    source = DeadLetters(str(letters))
    for batch in range(3, 8):
        append(letters, batch, [(batch * 10, "open", 0), (batch * 10 + 1, "replayed", 60)])
        rounds.release()
        name = dead_letter_id("games", "life", "wrapper", 0, batch * 10)
        assert source.discard([name], note="seen") == 1
    carer.join()
    assert not failures
    expired(letters)
    assert offsets(letters) == [2, 4, 5, *range(30, 80, 10)]
    assert source.count_by_status() == {"open": 2, "replayed": 1, "discarded": 5}
