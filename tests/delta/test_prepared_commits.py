"""Commits that are written before they get their names: many tables, few syncs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from deltalake import write_deltalake

from distributary.delta import commit, log_checkpoint
from distributary.model.manifest import TableEntry
from distributary.publish.base import Outcome
from distributary.publish.direct import DirectPublisher
from tests.publish.staged import batch_of, mark, numbers, read_everywhere


def tables(folder: Path, count: int, batch: int) -> list[TableEntry]:
    return [batch_of(folder / f"t{n}", batch, numbers(batch * 100 + n)) for n in range(count)]


def values(folder: Path) -> list[int]:
    return sorted(row["n"] for row in read_everywhere(str(folder)))


@pytest.fixture
def publisher(tmp_path: Path) -> DirectPublisher:
    publisher = DirectPublisher()
    for entry in tables(tmp_path, 3, 0):
        publisher.publish(entry, mark(0))
    return publisher


def test_what_is_prepared_is_seen_when_it_is_published(
    publisher: DirectPublisher, tmp_path: Path
) -> None:
    entries = tables(tmp_path, 4, 1)
    # the fourth table does not exist yet: there is nothing to gain
    assert publisher.prepare(entries, mark(1)) == {"t0", "t1", "t2"}
    assert values(tmp_path / "t0") == [0]
    results = [publisher.publish(entry, mark(1)) for entry in entries]
    publisher.finish(threads=2)
    assert [(r.outcome, r.version) for r in results] == [
        (Outcome.PUBLISHED, v) for v in (1, 1, 1, 0)
    ]
    assert [values(tmp_path / f"t{n}") for n in range(4)] == [[0, 100], [1, 101], [2, 102], [103]]


def test_nothing_is_left_of_what_is_never_published(
    publisher: DirectPublisher, tmp_path: Path
) -> None:
    before = set(tmp_path.rglob("*"))
    opened = len(os.listdir("/proc/self/fd"))
    entries = tables(tmp_path, 3, 1)
    staged = set(tmp_path.rglob("*.parquet"))
    assert len(publisher.prepare(entries, mark(1))) == 3
    assert len(os.listdir("/proc/self/fd")) == opened + 3
    # prepared a second time: the first draft is closed
    assert len(publisher.prepare(entries, mark(1))) == 3
    assert len(os.listdir("/proc/self/fd")) == opened + 3
    publisher.finish(threads=1)
    assert len(os.listdir("/proc/self/fd")) == opened
    assert set(tmp_path.rglob("*")) == before | staged
    assert publisher.publish(entries[0], mark(1)).version == 1


def test_who_is_overtaken_between_the_two_commits_behind_the_other(
    publisher: DirectPublisher, tmp_path: Path
) -> None:
    entries = tables(tmp_path, 3, 1)
    publisher.prepare(entries, mark(1))
    write_deltalake(str(tmp_path / "t1"), numbers(7), mode="append")
    versions = [publisher.publish(entry, mark(1)).version for entry in entries]
    publisher.finish(threads=1)
    assert versions == [1, 2, 1]
    assert values(tmp_path / "t1") == [1, 7, 101]


def test_a_draft_is_for_its_own_batch_only(publisher: DirectPublisher, tmp_path: Path) -> None:
    (first, *_), (second, *_) = tables(tmp_path, 1, 1), tables(tmp_path, 1, 2)
    publisher.prepare([first], mark(1))
    publisher.publish(second, mark(2))
    publisher.finish(threads=1)
    assert values(tmp_path / "t0") == [0, 200]
    assert publisher.publish(first, mark(1)).outcome is Outcome.SKIPPED


def test_where_files_always_have_names_nothing_is_prepared(
    publisher: DirectPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "unnamed", lambda folder, data: None)
    entries = tables(tmp_path, 3, 1)
    assert publisher.prepare(entries, mark(1)) == frozenset()
    assert publisher.publish(entries[0], mark(1)).version == 1


def test_where_no_name_can_be_given_commits_are_made_in_the_usual_way(
    publisher: DirectPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, path: str) -> None:
        raise PermissionError(errno.EPERM, "not here")

    monkeypatch.setattr(commit, "give_name", refuse)
    entries = tables(tmp_path, 3, 1)
    assert len(publisher.prepare(entries, mark(1))) == 3
    assert [publisher.publish(entry, mark(1)).version for entry in entries] == [1, 1, 1]
    publisher.finish(threads=1)
    assert values(tmp_path / "t2") == [2, 102]


def test_checkpoints_are_written_at_the_end(publisher: DirectPublisher, tmp_path: Path) -> None:
    for batch in range(1, 2 * log_checkpoint.CHECKPOINT_EVERY + 1):
        entries = tables(tmp_path, 1, batch)
        publisher.prepare(entries, mark(batch))
        publisher.publish(entries[0], mark(batch))
        publisher.finish(threads=1)
    assert len(list((tmp_path / "t0" / "_delta_log").glob("*.checkpoint.parquet"))) in (1, 2)
    assert len(values(tmp_path / "t0")) == 2 * log_checkpoint.CHECKPOINT_EVERY + 1
