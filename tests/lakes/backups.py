"""Pipelines that write a lake step by step, without Spark, while a backup of it is taken."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from distributary.config.load import load
from distributary.delta.commit import Change, rewrite_files
from distributary.delta.log import snapshot_of
from distributary.engine.progress.checkpoint import (
    Checkpoint,
    ManifestCopy,
    Manifests,
)
from distributary.engine.progress.recovery import refuse_behind
from distributary.model.manifest import Manifest, Mark, TableEntry
from distributary.model.table import Role
from distributary.observe.deadletters import DeadLetters, unfinished
from distributary.observe.ledger import ledger_table
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.recording import BatchTimes
from distributary.operations.backup import checkpoint_documents, find, table_versions, take
from distributary.operations.backup.restore import Restored, choose_point, restore
from distributary.operations.backup.take import Taken, take_backup
from distributary.publish.base import Outcome, Published
from distributary.publish.direct import DirectPublisher
from distributary.publish.parking import ParkedBatch, in_lake, park, parked, resume
from distributary.store.base import at
from tests.lakes.settled import LETTERS, NOON, SettledLake

STEPS = (
    (find, "load"),
    (table_versions, "load"),
    (find, "read_document"),
    (table_versions, "read_document"),
    (checkpoint_documents, "read_document"),
    (take, "load"),
)
"""The functions by which a backup reads a lake: tests run something else before their calls."""


class Turns:
    """Lets a thread of its own go on by one step at a time."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._go, self._here = threading.Semaphore(0), threading.Semaphore(0)
        self._work, self._over = work, False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._here.acquire()

    def step(self) -> None:
        """Do the next step; returns when it is done."""
        if not self._over:
            self._go.release()
            self._here.acquire()
        if self.error is not None:
            raise self.error

    def pause(self) -> None:
        """End a step, if it is this thread that does them."""
        if threading.current_thread() is self._thread:
            self._here.release()
            self._go.acquire()

    def _run(self) -> None:
        try:
            self.pause()
            self._work()
        except BaseException as error:
            self.error = error
        finally:
            self._over = True
            self._here.release()


@dataclass
class Live(SettledLake):
    """A pipeline with a checkpoint. It pauses before each thing that it writes."""

    pause: Callable[[], None] = lambda: None
    wrote: dict[tuple[str, int], Counter[int]] = field(default_factory=dict)
    """The offsets of each batch of a lane, without dead letters."""
    replayed: dict[int, list[str]] = field(default_factory=dict)
    trouble: bool = True
    """Whether tables are parked and letters replayed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.progress = Checkpoint.begin(at(self.checkpoint), pipeline=self.name, life=self.life)
        self.progress.first_position(lambda: {"version": 0, "index": 0, "rows": 0})

    def work(self, dice: random.Random) -> None:
        """Write batches for ever: some are parked, some letters are replayed."""
        while True:
            kinds = dice.choice([("chess",), ("chess", "go"), ("go",)])
            waiting = {p.table for p in parked(self.parking)}
            if self.trouble and dice.random() < 0.25:
                waiting.add("silver_go")
            count = {kind: dice.randint(1, 2) for kind in kinds}
            self.batch(count, letters=dice.choice([0, 1]), parked=sorted(waiting))
            if waiting and dice.random() < 0.6:
                for table in sorted({p.table for p in parked(self.parking)}):
                    self.resume(table)
            if self.trouble and dice.random() < 0.4:
                self.replay_open()
            if dice.random() < 0.4:
                self.tidy()

    def replay_open(self) -> None:
        """Send all open letters of this pipeline again."""
        letters = DeadLetters(str(self.lake / LETTERS)).select(pipeline=self.name)
        if not letters.num_rows:
            return
        number, ids = self.replays, letters["id"].to_pylist()
        self.replayed[number] = ids
        self.pause()
        place = self.checkpoint / "replay" / f"selection-{number:08d}.parquet"
        place.parent.mkdir(exist_ok=True)
        pq.write_table(letters.select(["id", "offset"]), place)
        self.replay("late", letters["offset"].to_pylist())
        self.pause()
        DeadLetters(str(self.lake / LETTERS)).mark_replayed(ids, replay=number)
        self.pause()
        place.unlink()

    def tidy(self) -> None:
        """Commit to a table without a mark, as a compaction does."""
        self.pause()
        path = str(self.lake / "silver_chess")
        snapshot = snapshot_of(path)
        if snapshot is not None:
            rewrite_files(path, snapshot, Change("OPTIMIZE", same_rows=True))

    def _done(
        self, manifest: Manifest, *, parked: Sequence[str] = (), settled: bool = True
    ) -> Manifest:
        offsets: Counter[int] = Counter()
        for entry in manifest.tables:
            if entry.table.type:
                for file in entry.files:
                    rows = pq.read_table(f"{entry.table.path}/{file.path}", columns=["_offset"])
                    offsets.update(rows["_offset"].to_pylist())
        self.wrote[manifest.lane, manifest.batch] = offsets
        manifests = self.progress.manifests(manifest.lane)
        self.pause()
        manifests.create(manifest)
        self.pause()
        copy = ManifestCopy(str(self.lake), self.name, manifest.lane)
        copy.write(manifest.to_json().encode())
        super()._done(manifest, parked=parked)
        self.pause()
        manifests.settle(manifest.batch)
        return manifest


def pausing(patch: pytest.MonkeyPatch, turns: list[Turns]) -> None:
    """Make threads pause before each commit to a table, and to the ledger."""
    for owner, name in ((ledger_table.LedgerTable, "append_once"), (DirectPublisher, "publish")):
        work = getattr(owner, name)

        def paused(*args: object, work: Callable[..., object] = work, **kw: object) -> object:
            for one in turns:
                one.pause()
            return work(*args, **kw)

        patch.setattr(owner, name, paused)


def back_up(lake: SettledLake, to: Path | str) -> Taken:
    """Take a backup of a lake."""
    return take_backup(str(lake.lake), str(to), {})


def put_back(source: Path | str, lake: Path | str, id: str | None = None) -> Restored:
    """Restore a backup as a lake."""
    return restore(str(source), choose_point(str(source), id), str(lake), {})


def finish(live: Live, lake: Path) -> dict[str, int]:
    """Do what the next run of a restored pipeline does first; returns the newest batches."""
    place = at(lake / "_checkpoints" / live.name)
    checkpoint = Checkpoint.find(place, pipeline=live.name)
    assert checkpoint is not None and checkpoint.life == live.life
    assert checkpoint.known_first_position() is not None
    file = lake.parent / f"{live.name}.yaml"
    file.write_text(live.file.read_text().replace(str(live.lake), str(lake)))
    ledger = Ledger(str(lake))
    refuse_behind(load(file).config, ledger, live.life)
    parking = f"{lake}/_distributary/pipelines/{live.name}/parked"
    newest = {}
    for lane in ("stream", "replay"):
        manifests = checkpoint.manifests(lane)
        _finish_lane(manifests, ledger, str(lake), parking)
        newest[lane] = manifests.newest()
    for table in sorted({p.table for p in parked(parking)}):
        _resume(table, ledger, str(lake), parking)
    for number in unfinished(place):
        assert number <= newest["replay"] + 1
        if number <= newest["replay"]:
            ids = pq.read_table(place.address + f"/replay/selection-{number:08d}.parquet")["id"]
            DeadLetters(str(lake / LETTERS)).mark_replayed(ids.to_pylist(), replay=number)
    return newest


def _resume(table: str, ledger: Ledger, lake: str, parking: str) -> None:
    def told(batch: ParkedBatch, result: Published) -> None:
        ledger.record_resumed(batch.mark.app_id, batch.entry, result, batch=batch.mark.batch)

    resume(DirectPublisher(), folder=parking, table=table, lake=lake, on_published=told)
    assert not parked(parking, table=table)


def _finish_lane(manifests: Manifests, ledger: Ledger, lake: str, parking: str) -> None:
    settled, newest = manifests.settled(), manifests.newest()
    assert newest - settled in (0, 1)
    waiting = {p.table for p in parked(parking, lake=lake)}
    if newest < 0 or newest == settled:
        return
    manifest = manifests.read(newest)
    assert manifest is not None
    mark = Mark(manifest.app_id, manifest.batch, manifest.source_hash)
    results = []
    for told in manifest.tables:
        entry = in_lake(told, lake)
        results.append(_publish(entry, mark, parking, waiting))
    own = [e for e in manifest.primary() if e.table.name in waiting]
    counts = manifest.with_parked(sum(entry.records for entry in own))
    ledger.record(manifest, results, times=BatchTimes(NOON), counts=counts)


def _publish(entry: TableEntry, mark: Mark, parking: str, waiting: set[str]) -> Published:
    if entry.table.name in waiting:
        park(entry, mark, folder=parking)
        return Published(entry.table.name, Outcome.PARKED)
    return DirectPublisher().publish(entry, mark)


def assert_exact(live: Live, lake: Path, newest: dict[str, int]) -> None:
    """Every record of the batches up to the newest ones is in a table, once."""
    assert_all_exact([(live, newest)], lake)


def assert_all_exact(pipelines: Sequence[tuple[Live, dict[str, int]]], lake: Path) -> None:
    """Check the same for pipelines that share a lake, and their tables."""
    expected: Counter[int] = Counter()
    replayed: set[str] = set()
    for live, newest in pipelines:
        for (lane, batch), offsets in live.wrote.items():
            if batch <= newest[lane]:
                expected.update(offsets)
        for number, ids in live.replayed.items():
            replayed |= set(ids) if number <= newest["replay"] else set()
    found: Counter[int] = Counter()
    counts: Counter[str] = Counter()
    for table in sorted(lake.glob("silver_*")):
        if (table / "_delta_log").exists():
            rows = DeltaTable(str(table)).to_pyarrow_table(columns=["_offset", "move"])
            found.update(rows["_offset"].to_pylist())
            counts[table.name] = rows.num_rows
    assert found == expected
    told: Counter[str] = Counter()
    for summary in Ledger(str(lake)).tables(schema_ids=False):
        if summary.role == Role.EACH:
            told[summary.table] += summary.rows
    assert told == counts
    if (lake / LETTERS / "_delta_log").exists():
        letters = DeltaTable(str(lake / LETTERS)).to_pyarrow_table().to_pylist()
        mine = {letter["id"]: letter["status"] for letter in letters}
        assert {i for i, status in mine.items() if status == "replayed"} == replayed
