"""A whole lake, looked after: every table on its own, one process at a time."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.config.lake import Expire, Maintain, Optimize
from distributary.delta.parquet import write_file
from distributary.engine.progress.checkpoint import Manifests
from distributary.engine.progress.claim import Claim
from distributary.errors import CheckpointError, FencedError, OwnedError
from distributary.model import layout
from distributary.model.manifest import Counts, Manifest, Mark, SourceRange, TableEntry
from distributary.model.table import Column, Role, TablePlan
from distributary.observe.cards import Registration, read_upkeep_state, register
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.recording import BatchTimes
from distributary.operations import maintain as maintaining
from distributary.operations.maintain import (
    Report,
    TableReport,
    UpkeepStep,
    Wishes,
    jobs_of,
    maintain,
)
from distributary.publish.base import Outcome, Published
from distributary.publish.direct import DirectPublisher
from distributary.publish.parquet_publisher import ParquetPublisher
from distributary.store.base import at

SETTINGS = Maintain(optimize=Optimize(min_files=3))
NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
COLUMNS = (Column("n", pa.int64()),)


class Games:
    """A pipeline with a few tables, written batch by batch with the real parts."""

    def __init__(self, lake: Path) -> None:
        self.lake = lake
        self.checkpoint = lake / "_checkpoints" / "games"
        self.manifests = Manifests(at(self.checkpoint / "manifests"))
        self.ledger = Ledger(str(lake))
        self.delta, self.plain = DirectPublisher(), ParquetPublisher()
        card = Registration("games", str(lake / "games.yaml"), str(self.checkpoint))
        register(str(lake), card)

    def entry(self, name: str, batch: int, *, role: Role = Role.EACH) -> TableEntry:
        parquet = name.startswith("plain")
        plan = TablePlan(
            name,
            role,
            name,
            str(self.lake / name),
            COLUMNS,
            format="parquet" if parquet else "delta",
        )
        rows = pa.table({"n": pa.array([batch], pa.int64())})
        file = write_file(rows, plan.path, plan.staged(f"part-stream-{batch:08d}-0-x.parquet"))
        return TableEntry(plan, (file,), 1)

    def manifest(self, batch: int, entries: tuple[TableEntry, ...]) -> Manifest:
        return Manifest(
            pipeline="games",
            life="life1",
            batch=batch,
            epoch=1,
            ranges=(SourceRange("wrapper", 0, batch, batch + 1, len(entries)),),
            tables=entries,
            counts=Counts(len(entries), len(entries)),
            dead_letters={},
            schemas=(),
            created_at=NOON.isoformat(),
        )

    def run(self, batch: int, *names: str, at: datetime = NOON) -> None:
        entries = tuple(self.entry(name, batch) for name in names)
        manifest = self.manifest(batch, entries)
        self.manifests.create(manifest)
        mark = Mark(manifest.app_id, batch, manifest.source_hash)
        published = []
        for entry in entries:
            publisher = self.plain if entry.table.format == "parquet" else self.delta
            published.append(publisher.publish(entry, mark))
        self.ledger.record(
            manifest, published, times=BatchTimes(at, finished_at=at), counts=manifest.counts
        )
        self.manifests.settle(batch)

    def rows(self, name: str) -> list[int]:
        table = DeltaTable(self.lake / name).to_pyarrow_table()
        return sorted(table.column("n").to_pylist())


@pytest.fixture
def games(tmp_path: Path) -> Games:
    games = Games(tmp_path / "lake")
    for batch in range(4):
        games.run(batch, "chess", "go", "plain_chess")
    return games


def maintained(games: Games, *steps: UpkeepStep, **given: object) -> Report:
    wishes = Wishes(SETTINGS, steps, **given)  # type: ignore[arg-type]
    return maintain(str(games.lake), jobs_of(str(games.lake)), wishes)


def by_name(report: Report) -> dict[str, TableReport]:
    return {table.table: table for table in report.tables}


def test_tables_become_small_and_stay_what_they_are(games: Games) -> None:
    would = maintained(games, dry_run=True)
    assert would.totals().files_before == 8 and would.totals().files_after == 2
    assert len(DeltaTable(games.lake / "chess").file_uris()) == 4
    report = maintained(games)
    assert not report.failed
    assert report.totals().changed == 2
    found = by_name(report)
    done = found["chess"].optimize
    assert done is not None
    assert (done.files_before, done.files_after, done.rows) == (4, 1, 4)
    assert set(found["plain_chess"].skipped) == {UpkeepStep.OPTIMIZE}
    assert games.rows("chess") == games.rows("go") == [0, 1, 2, 3]
    games.run(4, "chess", "go", "plain_chess")
    assert games.rows("chess") == [0, 1, 2, 3, 4]
    assert maintained(games).totals().changed == 0


def test_files_that_the_next_batch_needs_are_never_deleted(games: Games) -> None:
    """Decided and not published when the process was killed, weeks ago."""
    entry = games.entry("chess", 4)
    staged = games.lake / "chess" / entry.files[0].path
    left = games.lake / "chess" / "part-left.parquet"
    left.write_bytes(staged.read_bytes())
    for path in (staged, left):
        os.utime(path, (time.time() - 30 * 86400,) * 2)
    games.manifests.create(games.manifest(4, (entry,)))
    found = by_name(maintained(games, UpkeepStep.VACUUM))["chess"].vacuum
    assert found is not None and (found.removed, found.orphans) == (0, 1)
    assert staged.exists() and not left.exists()
    manifest = games.manifests.read(4)
    assert manifest is not None
    mark = Mark(manifest.app_id, 4, manifest.source_hash)
    assert DirectPublisher().publish(manifest.tables[0], mark).outcome is Outcome.PUBLISHED
    assert games.rows("chess") == [0, 1, 2, 3, 4]


def test_replaced_files_go_after_a_while(games: Games) -> None:
    maintained(games)
    none = maintained(games, UpkeepStep.VACUUM, retention=timedelta(0))
    assert none.totals().files_deleted == 0
    gone = maintained(games, UpkeepStep.VACUUM, retention=timedelta(0), force=True)
    assert gone.totals().files_deleted == 8
    assert games.rows("chess") == [0, 1, 2, 3]
    assert len(list((games.lake / "plain_chess").glob("part-*.parquet"))) == 4


def test_failing_table_does_not_stop_the_others(games: Games) -> None:
    log = games.lake / "go" / "_delta_log"
    (log / f"{1:020d}.json").unlink()
    report = maintained(games)
    found = by_name(report)
    assert report.failed and report.totals().failed == 1
    assert found["go"].error is not None and found["go"].error["code"] == "COMMIT_FAILED"
    assert found["chess"].optimize is not None


def test_table_that_is_gone_is_passed_over(games: Games) -> None:
    (games.lake / "go").rename(games.lake / "elsewhere")
    report = maintained(games)
    assert not report.failed
    assert len(by_name(report)["go"].skipped) == 4


def test_tables_that_the_file_names_are_left_alone(games: Games) -> None:
    wishes = Wishes(Maintain(optimize=Optimize(min_files=3), skip=("ch*",)))
    found = by_name(maintain(str(games.lake), jobs_of(str(games.lake)), wishes))
    assert found["chess"].optimize is None and found["go"].optimize is not None


def test_file_may_leave_steps_out() -> None:
    assert Wishes(Maintain()).steps == set(UpkeepStep)
    some = Maintain(steps=("optimize", "checkpoint"))
    assert Wishes(some).steps == {UpkeepStep.OPTIMIZE, UpkeepStep.CHECKPOINT}
    assert Wishes(some, [UpkeepStep.VACUUM]).steps == {UpkeepStep.VACUUM}


def test_one_at_a_time(games: Games) -> None:
    home = Path(layout.join(str(games.lake), layout.HOME, maintaining.CLAIMED))
    claim = Claim.take(at(home), lease=60)
    try:
        with pytest.raises(OwnedError) as caught:
            maintained(games)
        assert str(os.getpid()) in caught.value.what
        assert not maintained(games, dry_run=True).failed
    finally:
        claim.release()
    assert not maintained(games).failed


def test_process_that_was_taken_for_dead_stops(
    games: Games, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(self: Claim) -> None:
        raise FencedError("overtaken")

    monkeypatch.setattr(Claim, "check", overtaken)
    with pytest.raises(FencedError):
        maintained(games)
    assert games.rows("chess") == [0, 1, 2, 3]
    assert DeltaTable(games.lake / "chess").version() == 3


def test_manifest_that_cannot_be_read_stops_it(games: Games) -> None:
    (Path(games.manifests.store.address) / f"{4:020d}.json").write_text("{")
    with pytest.raises(CheckpointError):
        maintained(games)


def test_details_of_old_batches_become_sums(games: Games) -> None:
    wishes = Wishes(Maintain(), [UpkeepStep.EXPIRE], dry_run=True)
    lake, jobs = str(games.lake), jobs_of(str(games.lake))
    before = games.ledger.totals("games")
    would = maintain(lake, jobs, wishes).ledger
    assert would is not None and (would.batches, would.tables) == (4, 12)
    assert len(games.ledger.batches()) == 4
    done = maintain(lake, jobs, Wishes(Maintain(), [UpkeepStep.EXPIRE])).ledger
    assert done is not None and done.batches == 4
    assert len(games.ledger.batches()) == 1
    assert games.ledger.totals("games") == before
    version = DeltaTable(layout.ledger_table(lake, "batches")).version()
    again = maintain(lake, jobs, Wishes(Maintain(), [UpkeepStep.EXPIRE])).ledger
    assert again is not None and again.batches == 0
    assert DeltaTable(layout.ledger_table(lake, "batches")).version() == version


def test_ledger_is_kept_where_the_file_says_so(games: Games) -> None:
    wishes = Wishes(Maintain(expire=Expire(ledger=timedelta(days=9999))))
    done = maintain(str(games.lake), jobs_of(str(games.lake)), wishes).ledger
    assert done is not None and done.batches == 0
    assert len(games.ledger.batches()) == 4


def test_what_killed_processes_left_goes_when_it_is_old(games: Games) -> None:
    old = [
        Path(games.manifests.store.address) / f"{2:020d}.broken-abc",
        Path(games.manifests.store.address) / ".x.json.0123.draft",
        games.checkpoint / "runs" / "stream",
    ]
    old[2].mkdir(parents=True)
    for path in old:
        path.touch()
        os.utime(path, (time.time() - 9 * 86400,) * 2)
    young = Path(games.manifests.store.address) / f"{3:020d}.broken-def"
    young.touch()
    assert maintained(games, UpkeepStep.EXPIRE, dry_run=True).leftovers == 3
    assert maintained(games, UpkeepStep.EXPIRE).leftovers == 3
    assert not any(path.exists() for path in old) and young.exists()
    assert games.manifests.numbers() == [0, 1, 2, 3]


def test_merged_table_is_left_alone_while_it_is_merged_into(games: Games) -> None:
    entry = games.entry("orders", 4, role=Role.MERGED)
    manifest = games.manifest(4, (entry,))
    for batch in range(4):
        mark = Mark(manifest.app_id, batch, "x")
        games.delta.publish(games.entry("orders", batch, role=Role.MERGED), mark)
    games.ledger.record(
        manifest,
        [Published("orders", Outcome.PUBLISHED, 0)],
        times=BatchTimes(NOON, finished_at=NOON),
        counts=manifest.counts,
    )
    games.manifests.create(manifest)
    claim = Claim.take(at(games.checkpoint), lease=60)
    try:
        busy = by_name(maintained(games, UpkeepStep.OPTIMIZE))["orders"]
        assert busy.optimize is None and UpkeepStep.OPTIMIZE in busy.skipped
        games.manifests.settle(4)
        done = by_name(maintained(games, UpkeepStep.OPTIMIZE))["orders"]
        assert done.optimize is not None and done.optimize.files_after == 1
    finally:
        claim.release()


def test_what_no_time_is_left_for_waits_and_is_counted(games: Games) -> None:
    report = maintained(games, at_most=timedelta(microseconds=-1))
    assert not report.failed and all(table.left for table in report.tables)
    assert report.totals().left == len(report.tables)
    assert len(DeltaTable(games.lake / "chess").file_uris()) == 4
    (pipeline,) = {table.pipeline for table in report.tables}
    Path(layout.pipeline(str(games.lake), pipeline)).mkdir(parents=True, exist_ok=True)
    maintained(games, at_most=timedelta(microseconds=-1))
    state = read_upkeep_state(str(games.lake), pipeline)
    assert state is not None and state.left == state.tables == len(report.tables)
    assert not any(table.left for table in maintained(games, at_most=timedelta(hours=1)).tables)
    state = read_upkeep_state(str(games.lake), pipeline)
    assert state is not None
    assert (state.left, state.failed, state.error) == (0, 0, "")
    assert (state.files_before, state.files_after) == (8, 2)
    # what only shows leaves no trace
    maintained(games, dry_run=True)
    assert read_upkeep_state(str(games.lake), pipeline) == state


def test_a_failure_of_upkeep_is_remembered(games: Games) -> None:
    maintained(games)
    (pipeline,) = {job.pipeline for job in jobs_of(str(games.lake))}
    Path(layout.pipeline(str(games.lake), pipeline)).mkdir(parents=True, exist_ok=True)
    (games.lake / "chess" / "_delta_log" / f"{0:020d}.json").write_text("not a commit")
    maintained(games)
    state = read_upkeep_state(str(games.lake), pipeline)
    assert state is not None and state.failed == 1 and state.error
