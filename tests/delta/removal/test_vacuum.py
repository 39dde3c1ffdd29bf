"""What is deleted, and above all what is not."""

from __future__ import annotations

import os
import re
import time
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures

from distributary.delta.compact import Sizes, compact
from distributary.delta.log import Snapshot, load
from distributary.delta.log_checkpoint import retention_of, write_checkpoint
from distributary.delta.removal.vacuum import Keepers, Vacuumed, vacuum, vacuum_staging
from distributary.publish.direct import DirectPublisher
from distributary.store.base import at
from tests.lakes.commits import edit_commit
from tests.publish.staged import batch_of, mark, numbers, read_everywhere

WEEK = timedelta(days=7)
NOW = timedelta(0)


def publish(folder: Path, batches: range) -> None:
    publisher = DirectPublisher()
    for batch in batches:
        publisher.publish(batch_of(folder, batch, numbers(batch)), mark(batch))


def compacted(folder: Path) -> None:
    state = load(at(folder))
    assert state is not None
    compact(state, Sizes(2**20, 2))


def vacuumed(
    folder: Path, keep: timedelta = WEEK, kept: Keepers | None = None, *, dry_run: bool = False
) -> Vacuumed:
    return vacuum(at(folder), lambda state: keep, kept or Keepers(), dry_run=dry_run)


def orphan(folder: Path, name: str, *, days: float) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(numbers(99), path)
    old = time.time() - days * 86400
    os.utime(path, (old, old))
    return path


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*.parquet"))


def test_replaced_files_stay_for_the_retention(folder: Path) -> None:
    publish(folder, range(3))
    compacted(folder)
    for path in folder.glob("batch-?.parquet"):
        # what counts is when they were replaced, not when they were written
        os.utime(path, (0, 0))
    assert vacuumed(folder) == Vacuumed()
    assert DeltaTable(folder, version=2).to_pyarrow_table().num_rows == 3
    done = vacuumed(folder, NOW, dry_run=True)
    assert (done.removed, done.orphans) == (3, 0)
    assert len(names(folder)) == 4
    assert vacuumed(folder, NOW) == done
    assert len(names(folder)) == 1
    assert [row["n"] for row in read_everywhere(str(folder))] == [0, 1, 2]
    assert vacuumed(folder, NOW) == Vacuumed()


def test_old_files_of_nobody_go(folder: Path) -> None:
    publish(folder, range(2))
    orphan(folder, "part-old.parquet", days=8)
    orphan(folder, "_day=x/part-old.parquet", days=8)
    orphan(folder, ".part-7.parquet." + "a" * 32, days=8)
    kept = [
        orphan(folder, "part-young.parquet", days=6),
        orphan(folder, "_distributary/staging/part.parquet", days=8),
        orphan(folder, "_hidden.parquet", days=8),
        orphan(folder, "notes.txt", days=8),
    ]
    done = vacuumed(folder)
    assert (done.removed, done.orphans) == (0, 3)
    assert all(path.exists() for path in kept)
    assert names(folder).count("part-old.parquet") == 0
    assert [row["n"] for row in read_everywhere(str(folder))] == [0, 1]


def test_files_of_a_decided_batch_stay(folder: Path) -> None:
    publish(folder, range(2))
    waits = orphan(folder, "part-waits.parquet", days=20)
    assert vacuumed(folder, kept=Keepers(paths={str(waits)})) == Vacuumed()


def test_files_of_a_running_batch_stay(folder: Path) -> None:
    publish(folder, range(2))
    orphan(folder, "part-staged.parquet", days=20)
    running = Keepers(running_since=time.time() - 21 * 86400)
    assert vacuumed(folder, NOW, running) == Vacuumed()
    assert vacuumed(folder, NOW, Keepers(running_since=time.time())).orphans == 1


def test_files_that_another_pipeline_has_still_to_read_stay(folder: Path) -> None:
    publish(folder, range(3))
    behind = Keepers(read_since=time.time())
    compacted(folder)
    assert vacuumed(folder, NOW, behind) == Vacuumed()
    assert vacuumed(folder, NOW, Keepers(read_since=time.time() + 1200)).removed == 3


def test_file_that_was_put_back_stays(folder: Path) -> None:
    publish(folder, range(2))
    table = DeltaTable(folder)
    table.delete()
    table.restore(1)
    assert vacuumed(folder, NOW).removed == 0
    assert [row["n"] for row in read_everywhere(str(folder))] == [0, 1]


def test_replaced_files_that_the_log_has_forgotten_go_by_their_age(folder: Path) -> None:
    publish(folder, range(3))
    compacted(folder)
    about = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    DeltaTable(folder).alter.set_table_properties(about)
    DeltaTable(folder).create_checkpoint()
    for path in folder.glob("batch-?.parquet"):
        os.utime(path, (0, 0))
    # as long as a commit tells that they were part of the table, it counts when they were replaced
    assert vacuumed(folder) == Vacuumed()
    for path in folder.glob("_delta_log/*.json"):
        path.unlink()
    assert vacuumed(folder).orphans == 3
    assert len(list(folder.glob("*.parquet"))) == 1
    assert [row["n"] for row in read_everywhere(str(folder))] == [0, 1, 2]


def test_table_that_is_not_understood_is_left_alone(folder: Path) -> None:
    publish(folder, range(3))
    compacted(folder)
    DeltaTable(folder).alter.add_feature(
        TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True
    )
    assert vacuumed(folder, NOW).refused
    assert len(names(folder)) == 4


def test_log_with_full_addresses_is_left_alone(folder: Path) -> None:
    publish(folder, range(2))
    path = folder / "_delta_log" / f"{0:020d}.json"
    edit_commit(path, lambda text: text.replace('"batch-0', f'"file://{folder}/batch-0'))
    assert vacuumed(folder, NOW).refused
    assert len(names(folder)) == 2


def test_no_table_no_harm(tmp_path: Path) -> None:
    left = orphan(tmp_path / "nothing", "part.parquet", days=30)
    assert vacuumed(tmp_path / "nothing").refused
    assert left.exists()


@pytest.mark.parametrize(("told", "kept"), [("interval 1 days", 1), ("", 7), ("nonsense", 7)])
def test_retention_of_the_table_goes_first(told: str, kept: int) -> None:
    about = {"configuration": {"delta.deletedFileRetentionDuration": told}}
    state = Snapshot(at("table"), 0, metadata=about)
    assert retention_of(state, WEEK) == timedelta(days=kept)


def test_plain_table_loses_only_what_was_never_committed(folder: Path) -> None:
    visible = orphan(folder, "part-1.parquet", days=30)
    waits = orphan(folder, "_distributary/staging/day=x/part-2.parquet.staged", days=30)
    orphan(folder, "_distributary/staging/part-3.parquet.staged", days=30)
    young = orphan(folder, "_distributary/staging/part-4.parquet.staged", days=1)
    done = vacuum_staging(at(folder), WEEK, Keepers(paths={str(waits)}))
    assert done.orphans == 1
    assert visible.exists() and waits.exists() and young.exists()


@pytest.mark.parametrize("keep", [30, 3])
def test_a_retention_that_is_longer_than_the_table_s_own_is_kept(folder: Path, keep: int) -> None:
    publish(folder, range(3))
    compacted(folder)
    now = time.time()
    commit = folder / "_delta_log" / f"{3:020d}.json"
    taken = f'"deletionTimestamp":{int(now - 8 * 86400) * 1000}'
    edit_commit(commit, lambda text: re.sub(r'"deletionTimestamp":\d+', taken, text))
    os.utime(commit, (now - 8 * 86400, now - 8 * 86400))
    for path in folder.glob("batch-?.parquet"):
        os.utime(path, (now - 33 * 86400, now - 33 * 86400))
    state = load(at(folder))
    assert state is not None
    write_checkpoint(state)
    # the checkpoint has forgotten them
    after = load(at(folder))
    assert after is not None and not after.removed
    done = vacuumed(folder, timedelta(days=keep))
    assert done.removed + done.orphans == (0 if keep > 8 else 3)
    assert len(list(folder.glob("batch-?.parquet"))) == (3 if keep > 8 else 0)
