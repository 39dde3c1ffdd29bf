"""What pipelines need to find in their lake, seen from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from distributary.engine.progress.checkpoint import Manifests
from distributary.engine.progress.claim import Claim
from distributary.errors import CheckpointError
from distributary.model.manifest import Counts, Manifest, SourceRange, StagedFile, TableEntry
from distributary.model.table import Role, TablePlan
from distributary.observe.cards import Registration, register
from distributary.operations.needed_files import batch_under_way, watch
from distributary.store.base import at


def manifest(lake: Path, batch: int, **state: object) -> Manifest:
    plan = TablePlan("chess", Role.EACH, "chess", str(lake / "chess"), ())
    entry = TableEntry(plan, (StagedFile(f"part-{batch}.parquet", 1, 1),), 1)
    return Manifest(
        pipeline="games",
        life="abc",
        batch=batch,
        epoch=1,
        ranges=(SourceRange("bronze", 0, 0, 1, 1),),
        tables=(entry,),
        counts=Counts(1, 1),
        dead_letters={},
        schemas=(),
        created_at="2026-01-01T00:00:00+00:00",
        source_state=state,
    )


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    lake = tmp_path / "lake"
    card = Registration("games", str(tmp_path / "games.yaml"), str(checkpoint(lake)))
    register(str(lake), card)
    checkpoint(lake).mkdir(parents=True)
    return lake


def checkpoint(lake: Path) -> Path:
    return lake / "_checkpoints" / "games"


def manifests(lake: Path) -> Manifests:
    return Manifests(at(checkpoint(lake) / "manifests"))


def test_files_of_batches_that_are_not_settled_are_kept(lake: Path) -> None:
    for batch in range(3):
        manifests(lake).create(manifest(lake, batch))
    manifests(lake).settle(0)
    Manifests(at(checkpoint(lake) / "replay")).create(manifest(lake, 7))
    (checkpoint(lake) / "replay" / "claims").mkdir()
    found = watch(str(lake)).keepers(str(lake / "chess")).paths
    assert found == {str(lake / "chess" / f"part-{n}.parquet") for n in (1, 2, 7)}


def test_lake_that_was_moved_is_understood(lake: Path, tmp_path: Path) -> None:
    manifests(lake).create(manifest(tmp_path / "where it was", 0))
    found = watch(str(lake)).paths
    assert found == {str(lake / "chess" / "part-0.parquet")}


def test_running_batch_began_after_the_last_one_was_decided(lake: Path) -> None:
    before = time.time()
    assert watch(str(lake)).running_since >= before
    claim = Claim.take(at(checkpoint(lake)), lease=60)
    try:
        assert watch(str(lake)).running_since == claim.owner.claimed_at
        manifests(lake).create(manifest(lake, 0))
        decided = claim.owner.claimed_at + 5
        path = checkpoint(lake) / "manifests" / f"{0:020d}.json"
        os.utime(path, (decided, decided))
        assert watch(str(lake)).running_since == pytest.approx(min(decided, time.time()), abs=6)
        assert batch_under_way(str(checkpoint(lake)))
        manifests(lake).settle(0)
        assert not batch_under_way(str(checkpoint(lake)))
    finally:
        claim.release()
    assert not batch_under_way(str(checkpoint(lake)))


def test_manifest_that_cannot_be_read_stops_everything(lake: Path) -> None:
    manifests(lake).store.write(f"{0:020d}.json", b"{")
    with pytest.raises(CheckpointError):
        watch(str(lake))


def test_progress_that_is_elsewhere_is_told(lake: Path) -> None:
    checkpoint(lake).rmdir()
    assert len(watch(str(lake)).notes) == 1


def commits(table: Path, *versions: int) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True)
    for version in versions:
        path = log / f"{version:020d}.json"
        path.touch()
        os.utime(path, (1000 + version, 1000 + version))


def test_table_that_another_pipeline_reads_is_kept_for_it(lake: Path) -> None:
    """The file of the reader is gone: its own name for the table has to do."""
    commits(lake / "bronze", 3, 4, 5)
    manifests(lake).create(manifest(lake, 0, version=4, index=0, rows=10))
    manifests(lake).settle(0)
    watched = watch(str(lake))
    assert watched.keepers(str(lake / "bronze")).read_since == 1004
    assert watched.keep_from(str(lake / "bronze")) == 4
    assert watched.keepers(str(lake / "chess")).read_since == float("inf")
    assert watched.keep_from(str(lake / "chess")) is None


def test_reader_that_has_seen_all_keeps_nothing(lake: Path) -> None:
    commits(lake / "bronze", 3, 4, 5)
    manifests(lake).create(manifest(lake, 0, version=6, index=0, rows=10))
    manifests(lake).settle(0)
    assert watch(str(lake)).keepers(str(lake / "bronze")).read_since == float("inf")


@pytest.mark.parametrize(
    "state", [{"snapshot": 4, "index": 1, "rows": 1}, {"version": 1, "index": 0}]
)
def test_reader_that_is_far_behind_keeps_everything(lake: Path, state: dict[str, object]) -> None:
    commits(lake / "bronze", 3, 4, 5)
    manifests(lake).create(manifest(lake, 0, **state))
    manifests(lake).settle(0)
    assert watch(str(lake)).keepers(str(lake / "bronze")).read_since == 0


def test_reader_whose_table_nobody_knows_keeps_every_table(lake: Path) -> None:
    commits(lake / "events", 3, 4)
    (checkpoint(lake) / "first.json").write_text('{"version": 4, "index": 0, "rows": 0}')
    assert watch(str(lake)).keep_from(str(lake / "events")) == 4


def test_card_of_the_reader_tells_its_table(lake: Path, tmp_path: Path) -> None:
    file, events = str(tmp_path / "games.yaml"), str(lake / "events")
    register(str(lake), Registration("games", file, str(checkpoint(lake)), reads=events))
    commits(lake / "events", 3, 4)
    (checkpoint(lake) / "first.json").write_text('{"version": 4, "index": 0, "rows": 0}')
    watched = watch(str(lake))
    assert watched.keep_from(str(lake / "events")) == 4
    assert watched.keep_from(str(lake / "bronze")) is None
