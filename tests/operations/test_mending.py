"""Dead letters, parked tables and lost files: what goes wrong is fixed, exactly once."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from distributary.engine import batch as batch_module
from distributary.engine.kill_points import KillPoint
from distributary.engine.loop import StillParked
from distributary.engine.progress.checkpoint import Manifests
from distributary.engine.progress.removal import dead_letters_of
from distributary.errors import DistributaryError, ErrorCode
from distributary.model.manifest import Counts, Manifest
from distributary.observe.events import Failed
from distributary.operations.repair.reset_clean import plan_clean, plan_reset, remove
from distributary.operations.repair.resume_table import resume, waiting
from distributary.operations.replay import LANE, healable, replay, try_replay
from distributary.publish.base import Outcome
from distributary.store.disk import Disk
from distributary_lab.simulate.dice import event, event_subject
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds
from tests.lakes.games import Games


class _Late:
    """A registry that has not heard of some schemas yet: their records come first."""

    def __init__(self, games: Games, hidden: set[str]) -> None:
        self._games, self._hidden = games, hidden

    def set_compatibility(self, subject: str | None, level: str) -> None:
        self._games.registry.set_compatibility(subject, level)

    def register(self, subject: str, text: str, **options: object) -> int:
        if subject in self._hidden:
            return _next_id(self._games)
        return self._games.registry.register(subject, text)


def test_letters_heal_when_their_schema_appears_and_land_once(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=6))
    name = games.plan.names[1]
    late = _Late(games, {event_subject(name)})
    for one in stream_rounds(games.plan, registry=late):
        games.sink.write_arrow(one.arrow())
        games.sent.append(one.sent())
    pipeline = games.pipeline()
    assert pipeline.run(spark=tasks).counts == Counts(read=12, written=6, dead_lettered=6)
    assert healable(pipeline).count == 0

    games.registry.register(event_subject(name), event(name, 1, changed=False))
    assert healable(games.pipeline()).count == 6

    letters = dead_letters_of(pipeline)
    selection = letters.select(reason=ErrorCode.UNKNOWN_SCHEMA_ID)
    with games.pipeline().open(tasks, lane=LANE) as context:
        trial = try_replay(context, selection)
        assert (trial.selected, trial.replayed, trial.tables) == (6, 6, {f"silver_{name}": 6})
    assert not (games.lake / f"silver_{name}" / "_delta_log").exists()
    with games.pipeline().open(tasks, lane=LANE) as context:
        done = replay(context, letters, selection)
    assert (done.replayed, done.failed_again) == (6, {})
    assert len(games.rows(f"silver_{name}")) == 6
    assert letters.count_by_status() == {"open": 0, "replayed": 6, "discarded": 0}
    totals = pipeline.ledger().totals("games")
    assert (totals.read, totals.written, totals.dead_lettered) == (12, 12, 0)
    # again: nothing is left to send
    with games.pipeline().open(tasks, lane=LANE) as context:
        again = replay(context, letters, letters.select(reason=ErrorCode.UNKNOWN_SCHEMA_ID))
    assert again.selected == 0
    assert len(games.rows(f"silver_{name}")) == 6


def _next_id(games: Games) -> int:
    ids = [int(p.stem) for p in (games.root / "schemas" / "ids").glob("*.json")]
    return max(ids, default=0) + 1


def test_a_killed_replay_goes_on_with_the_same_letters(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=5, bad=4))
    games.send_all()
    pipeline = games.pipeline()
    pipeline.run(spark=tasks)
    letters = dead_letters_of(pipeline)
    before = letters.select()
    assert before.num_rows == 4

    def die(*args: object, **kwargs: object) -> None:
        raise RuntimeError("killed here")

    for place in ("_settle", "publish_all"):
        with monkeypatch.context() as patch:
            patch.setattr(batch_module, place, die)
            with pipeline.open(tasks, lane=LANE) as context, pytest.raises(RuntimeError):
                replay(context, letters, before)
    with pipeline.open(tasks, lane=LANE) as context:
        done = replay(context, letters, before.slice(0, 0))
    assert done.selected == 0
    # the frozen selection was finished first: all four were tried again and failed again
    rows = letters.select()
    assert rows["attempts"].to_pylist() == [2, 2, 2, 2]
    assert len(games.rows("dead_letters")) == 4
    games.assert_each_record_once()


@contextmanager
def _read_only(folder: Path) -> Iterator[None]:
    """A table that cannot be committed to, also for root: its log's next version is a folder."""
    log = folder / "_delta_log"
    blocked = log / f"{len(list(log.glob('*.json'))):020d}.json"
    blocked.mkdir()
    try:
        yield
    finally:
        blocked.rmdir()


@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "by the next run"])
def test_a_table_that_cannot_be_written_is_parked_alone_and_resumed_in_order(
    tmp_path: Path, tasks: SparkSession, by_hand: bool
) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=4, records=5))
    games.send_round()
    games.pipeline().run(spark=tasks)
    victim = games.tables()[0]
    with _read_only(games.lake / victim):
        for _ in range(2):
            games.send_round()
            summary = games.pipeline().run(spark=tasks)
            assert summary.counts == Counts(read=15, written=10, parked=5)
        # nothing new comes, and it still waits
        assert games.pipeline().run(spark=tasks).still_parked == StillParked(10, 1)
        assert [len(games.rows(t)) for t in games.tables()[1:]] == [15, 15]
        assert [p.mark.batch for p in waiting(games.pipeline(), victim)] == [1, 2]
    if by_hand:
        assert len(resume(games.pipeline(), victim)) == 2
    # what waits goes first
    games.send_round()
    summary = games.pipeline().run(spark=tasks)
    assert (summary.counts, summary.still_parked) == (Counts(read=15, written=15), StillParked())
    assert waiting(games.pipeline()) == []
    assert [len(games.rows(t)) for t in games.tables()] == [20, 20, 20]
    totals = games.pipeline().ledger().totals("games")
    assert totals == Counts(read=60, written=60)
    games.assert_each_record_once()


class _Killed(BaseException):
    """Nobody catches it."""


def test_a_table_that_waits_for_a_batch_that_was_cut_short_counts_it_once(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=2, records=5))
    games.send_round()
    games.pipeline().run(spark=tasks)
    victim = games.tables()[0]

    def die(now: KillPoint, *args: object) -> None:
        if now is KillPoint.BEFORE_SETTLE:
            raise _Killed

    games.send_round()
    with _read_only(games.lake / victim), monkeypatch.context() as patch:
        patch.setattr(batch_module, "reached", die)
        with pytest.raises(_Killed):
            games.pipeline().run(spark=tasks)
    assert [p.mark.batch for p in waiting(games.pipeline(), victim)] == [1]
    # whoever finishes the batch counts its records
    [result] = resume(games.pipeline(), victim)
    assert result.outcome is Outcome.PARKED and "not finished" in result.error
    games.pipeline().run(spark=tasks)
    assert waiting(games.pipeline()) == []
    ledger = games.pipeline().ledger()
    assert (
        {t.table: t.rows for t in ledger.tables("games")}[victim] == len(games.rows(victim)) == 10
    )
    assert ledger.totals("games") == Counts(read=20, written=20)
    games.assert_each_record_once()


def test_the_mark_of_a_settled_batch_that_is_missing_is_set_by_the_next_run(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=5))
    games.send_all()
    games.pipeline().run(spark=tasks)
    # as a process leaves it that is killed between the ledger's row and the mark
    folder = games.pipeline().checkpoint.below("manifests")
    newest = Manifests(folder).newest()
    folder.remove(f"{newest:020d}.settled")
    assert Manifests(folder).settled() < newest
    assert games.pipeline().run(spark=tasks).batches == 0
    assert Manifests(folder).settled() == newest


def test_a_manifest_whose_answer_is_lost_ends_no_run(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=5))
    games.send_all()
    create, lost = Disk.create, list[str]()

    def silent(store: Disk, name: str, *args: Any, **options: Any) -> str | None:
        found = create(store, name, *args, **options)
        if store.address.endswith("/manifests") and not lost:
            lost.append(name)
            raise OSError(errno.ETIMEDOUT, "no answer")
        return found

    monkeypatch.setattr(Disk, "create", silent)
    assert games.pipeline().run(spark=tasks).counts == Counts(read=10, written=10)
    assert lost
    games.assert_each_record_once()
    games.assert_no_file_is_left()


@pytest.mark.parametrize("times", [1, 4])
def test_staged_files_that_are_removed_before_their_commit_are_staged_again_as_often_as_it_takes(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=1, records=5))
    games.send_all()
    publish = batch_module.publish_all
    removed: list[Path] = []

    def lose_a_file(context: Any, manifest: Manifest, *, fresh: bool) -> Any:
        if len(removed) < times:
            # always of the same table: the others are committed by the first try
            entry = next(e for e in manifest.primary())
            removed.append(Path(entry.table.path) / entry.files[0].path)
            removed[-1].unlink(missing_ok=True)
        return publish(context, manifest, fresh=fresh)

    monkeypatch.setattr(batch_module, "publish_all", lose_a_file)
    pipeline = games.pipeline()
    failed: list[Failed] = []
    pipeline.bus.subscribe(lambda e: failed.append(e) if isinstance(e, Failed) else None)
    assert pipeline.run(spark=tasks).counts == Counts(read=15, written=15)
    assert len(removed) == times
    # once more within the batch, then with back-off, and told
    assert {e.error.code for e in failed} == (
        {ErrorCode.STAGED_FILE_MISSING} if times > 1 else set()
    )
    assert all(e.retry_in is not None for e in failed)
    # what the lost tries have found out about schemas is not lost
    history = games.pipeline().ledger().schema_history(pipeline="games")
    assert sorted(row.table for row in history) == sorted(games.tables())
    games.assert_each_record_once()
    games.assert_no_file_is_left()


def test_a_batch_stays_decided_until_it_is_decided_anew(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies while it stages a batch again must not find other records under it."""
    games = Games(tmp_path, GamesPlan(games=2, versions=2, records=5))
    games.send_round()
    publish, stage = batch_module.publish_all, batch_module.stage_records

    def lose_a_file(context: Any, manifest: Manifest, *, fresh: bool) -> Any:
        entry = next(e for e in manifest.primary())
        (Path(entry.table.path) / entry.files[0].path).unlink()
        return publish(context, manifest, fresh=fresh)

    def die(*args: Any, **settings: Any) -> Any:
        if lost:
            raise KeyboardInterrupt
        lost.append(True)
        return stage(*args, **settings)

    lost: list[bool] = []
    with monkeypatch.context() as patch:
        patch.setattr(batch_module, "publish_all", lose_a_file)
        patch.setattr(batch_module, "stage_records", die)
        with pytest.raises(KeyboardInterrupt):
            games.pipeline().run(spark=tasks)
    # by now the source has more: a batch that nobody had decided would end later
    games.send_round()
    assert games.pipeline().run(spark=tasks).counts == Counts(read=20, written=20)
    games.assert_each_record_once()
    games.assert_no_file_is_left()


def test_reset_and_clean_touch_only_what_the_pipeline_made(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=5, bad=2))
    games.send_all()
    games.pipeline().run(spark=tasks)
    foreign = games.lake / "somebody_elses"
    foreign.mkdir()
    (foreign / "file").write_text("mine")
    pipeline = games.pipeline()
    assert {r.kind for r in plan_reset(pipeline)} == {"progress"}
    removals = plan_clean(pipeline)
    assert {r.table for r in removals if r.kind == "table"} == {
        *games.tables(),
        "bronze_events",
        "unified_gold",
    }
    remove(pipeline, removals)
    assert games.tables() == []
    assert (foreign / "file").read_text() == "mine"
    assert (games.lake / "wrapper" / "_delta_log").exists()
    assert plan_clean(games.pipeline()) == []
    # and it can begin again
    assert games.pipeline().run(spark=tasks).counts.written == 10


def test_a_registry_that_is_away_fails_the_batch_and_dead_letters_nothing(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=1, versions=1, records=3))
    games.send_all()
    hidden = tmp_path / "elsewhere"
    os.rename(tmp_path / "schemas", hidden)
    pipeline = games.pipeline(extra="run: {batch_attempts: 1}")
    with pytest.raises(DistributaryError) as caught:
        pipeline.run(spark=tasks)
    assert caught.value.code is ErrorCode.REGISTRY_UNAVAILABLE
    assert not (games.lake / "dead_letters" / "_delta_log").exists()
    # bronze was written before anybody was asked
    assert not list((games.lake / "bronze_events").rglob("*.parquet"))
    os.rename(hidden, tmp_path / "schemas")
    assert games.pipeline().run(spark=tasks).counts == Counts(read=3, written=3)
