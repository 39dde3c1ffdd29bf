"""A lake whose batches are committed and settled as a run does it, without Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from distributary.config.load import load
from distributary.config.pipeline_config import PipelineConfig
from distributary.delta.parquet import write_file
from distributary.model.deadletter import DEAD_LETTER_SCHEMA, dead_letter_id
from distributary.model.manifest import Counts, Manifest, Mark, SourceRange, StagedFile, TableEntry
from distributary.model.table import ChangeKind, Column, ColumnChange, Role, TablePlan
from distributary.observe.cards import Registration, register
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.recording import BatchTimes
from distributary.publish.base import Outcome, Published, Publisher
from distributary.publish.direct import DirectPublisher
from distributary.publish.parking import park, parked, resume
from distributary.publish.parquet_publisher import ParquetPublisher
from distributary.stage.bronze import BRONZE_COLUMNS

NOON = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
BRONZE, LETTERS, UNIFIED = "bronze_events", "dead_letters", "unified_gold"
COLUMNS = (
    Column("move", pa.string()),
    Column("_topic", pa.string()),
    Column("_partition", pa.int32()),
    Column("_offset", pa.int64()),
    Column("_batch", pa.int64()),
)


@dataclass
class SettledLake:
    """Each `batch` gives records to types and to the dead letters; offsets count on."""

    root: Path
    name: str = "games"
    life: str = "life1"
    format: str = "delta"
    bronze: bool = True
    unified: bool = False
    metadata: bool = True
    """Whether the tables per type say where a row came from."""
    users: Sequence[str] = ()
    """With them, records have a `user_id`, by turns, and a time, an hour after one another."""
    batches: int = field(default=0)
    replays: int = field(default=0)
    offset: int = field(default=0)
    _writer: Ledger | None = field(default=None, init=False, repr=False)
    """What a run holds: its tables are opened once, and not for each batch."""

    def __post_init__(self) -> None:
        self.lake.mkdir(parents=True, exist_ok=True)
        tables = "{each: 'silver_{type}'"
        tables += f", bronze: {BRONZE}" if self.bronze else ""
        tables += f", unified: {UNIFIED}" if self.unified else ""
        self.file.write_text(
            f"""
name: {self.name}
source: {{type: delta, path: {self.root}/wrapper, value: wrapper}}
registry: {{path: {self.root}/schemas}}
envelope: {{format: protobuf, subject: wrapper-value, type: game_name, payload: payload}}
payload: {{format: protobuf}}
tables: {tables}, format: {self.format}}}
lake: {{path: {self.lake}}}
"""
        )
        register(str(self.lake), Registration(self.name, str(self.file), str(self.checkpoint)))

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    @property
    def file(self) -> Path:
        return self.root / f"{self.name}.yaml"

    @property
    def checkpoint(self) -> Path:
        return self.lake / "_checkpoints" / self.name

    @property
    def parking(self) -> str:
        return f"{self.lake}/_distributary/pipelines/{self.name}/parked"

    def user(self, offset: int) -> str:
        return self.users[offset % len(self.users)] if self.users else ""

    def time(self, offset: int) -> datetime:
        return NOON + timedelta(hours=offset)

    @property
    def ledger(self) -> Ledger:
        return Ledger(str(self.lake))

    @property
    def config(self) -> PipelineConfig:
        return load(self.file).config

    def publisher(self, role: Role = Role.EACH) -> Publisher:
        plain = self.format == "parquet" and role is not Role.DEAD_LETTERS
        return ParquetPublisher() if plain else DirectPublisher()

    def batch(
        self,
        records: Mapping[str, int],
        *,
        letters: int = 0,
        parked: Sequence[str] = (),
        settled: bool = True,
    ) -> Manifest:
        """So many records of each type, and so many that cannot be decoded."""
        number, first = self.batches, self.offset
        self.batches += 1
        rows: dict[str, list[int]] = {}
        for kind, count in records.items():
            rows[kind] = list(range(self.offset, self.offset + count))
            self.offset += count
        dead = list(range(self.offset, self.offset + letters))
        self.offset += letters
        entries = [self._each(kind, found, number) for kind, found in rows.items()]
        if dead:
            entries.append(self._letters(dead, number))
        if self.bronze:
            entries.append(self._bronze(rows, dead, number))
        if self.unified:
            every = [offset for found in rows.values() for offset in found]
            entries.append(self._plain(UNIFIED, Role.UNIFIED, "", every, number))
        covered = SourceRange("wrapper", 0, first, self.offset, self.offset - first)
        written = sum(records.values())
        manifest = self._manifest(
            number, entries, (covered,), Counts(written + letters, written, letters)
        )
        return self._done(manifest, parked=parked, settled=settled)

    def replay(self, kind: str, offsets: Sequence[int]) -> Manifest:
        """Dead letters that are decoded after all."""
        number = self.replays
        self.replays += 1
        entry = self._each(kind, list(offsets), number)
        covered = SourceRange(f"dead letters, replay {number}", 0, 0, len(offsets), len(offsets))
        counts = Counts(len(offsets), len(offsets))
        return self._done(self._manifest(number, [entry], (covered,), counts, lane="replay"))

    def resume(self, table: str) -> None:
        def told(batch, result):
            self.ledger.record_resumed(
                batch.mark.app_id, batch.entry, result, batch=batch.mark.batch
            )

        resume(self.publisher(), folder=self.parking, table=table, on_published=told)
        assert not parked(self.parking, table=table)

    def copy(self, table: str, to: str) -> None:
        shutil.copytree(self.lake / table, self.root / to)

    def put_back(self, copy: str, table: str) -> None:
        shutil.rmtree(self.lake / table)
        shutil.copytree(self.root / copy, self.lake / table)

    def commits(self, table: str) -> list[Path]:
        return sorted((self.lake / table / "_delta_log").glob("*.json"))

    def _each(self, kind: str, offsets: Sequence[int], number: int) -> TableEntry:
        return self._plain(f"silver_{kind}", Role.EACH, kind, offsets, number)

    def _plain(
        self, name: str, role: Role, kind: str, offsets: Sequence[int], number: int
    ) -> TableEntry:
        count = len(offsets)
        rows = pa.table(
            {
                "move": ["e4"] * count,
                "_topic": ["wrapper"] * count,
                "_partition": pa.array([0] * count, pa.int32()),
                "_offset": pa.array(offsets, pa.int64()),
                "_batch": pa.array([number] * count, pa.int64()),
            }
        )
        if self.users:
            rows = rows.append_column("user_id", pa.array([self.user(n) for n in offsets]))
            times = pa.array([self.time(n) for n in offsets], pa.timestamp("us", "UTC"))
            rows = rows.append_column("_timestamp", times)
        if not self.metadata:
            rows = rows.select(["move"])
        return self._entry(name, role, kind, rows, number)

    def _bronze(
        self, rows: Mapping[str, Sequence[int]], dead: Sequence[int], number: int
    ) -> TableEntry:
        found = [(kind, offset) for kind, each in rows.items() for offset in each]
        found += [("chess", offset) for offset in dead]
        values = [
            {
                "type": kind,
                "payload": f'{{"user_id": "{self.user(offset)}"}}'.encode(),
                "_timestamp": self.time(offset),
                "_arrived_at": NOON + timedelta(hours=number),
                "_topic": "wrapper",
                "_partition": 0,
                "_offset": offset,
                "_batch": number,
            }
            for kind, offset in found
        ]
        schema = pa.schema([pa.field(c.name, c.type) for c in BRONZE_COLUMNS])
        return self._entry(
            BRONZE, Role.BRONZE, "", pa.Table.from_pylist(values, schema=schema), number
        )

    def _letters(self, offsets: Sequence[int], number: int) -> TableEntry:
        values = [
            {
                "id": dead_letter_id(self.name, "life", "wrapper", 0, offset),
                "pipeline": self.name,
                "topic": "wrapper",
                "partition": 0,
                "offset": offset,
                "type": "chess",
                "error_code": "UNKNOWN_SCHEMA_ID",
                "batch": number,
                "first_seen": NOON,
                "last_seen": NOON,
                "attempts": 1,
                "status": "open",
            }
            for offset in offsets
        ]
        rows = pa.Table.from_pylist(values, schema=DEAD_LETTER_SCHEMA)
        return self._entry(LETTERS, Role.DEAD_LETTERS, "", rows, number)

    def _entry(self, name: str, role: Role, kind: str, rows: pa.Table, number: int) -> TableEntry:
        columns = tuple(Column(f.name, f.type) for f in rows.schema)
        path = str(self.lake / name)
        made = self.format if role is not Role.DEAD_LETTERS else "delta"
        plan = TablePlan(name, role, kind, path, columns, format=made)
        staged: tuple[StagedFile, ...] = ()
        if rows.num_rows:
            lane = "replay" if role is Role.EACH and number < self.replays else "stream"
            file = f"part-{lane}-{number}-{self.name}-{self.life}.parquet"
            (self.lake / name).mkdir(exist_ok=True)
            staged = (write_file(rows, path, plan.staged(file)),)
        return TableEntry(plan, staged, rows.num_rows, (ColumnChange(ChangeKind.TABLE_CREATED),))

    def _manifest(
        self,
        number: int,
        entries: Sequence[TableEntry],
        ranges: tuple[SourceRange, ...],
        counts: Counts,
        *,
        lane: str = "stream",
    ) -> Manifest:
        return Manifest(
            pipeline=self.name,
            life=self.life,
            batch=number,
            epoch=1,
            ranges=ranges,
            tables=tuple(entries),
            counts=counts,
            dead_letters={"UNKNOWN_SCHEMA_ID": counts.dead_lettered},
            schemas=(),
            created_at=NOON.isoformat(),
            lane=lane,
        )

    def _done(
        self,
        manifest: Manifest,
        *,
        parked: Sequence[str] = (),
        settled: bool = True,
    ) -> Manifest:
        mark = Mark(manifest.app_id, manifest.batch, manifest.source_hash)
        results = []
        for entry in manifest.tables:
            if entry.table.name in parked:
                park(entry, mark, folder=self.parking, reason="disk is full")
                results.append(Published(entry.table.name, Outcome.PARKED, error="disk is full"))
            else:
                results.append(self.publisher(entry.table.role).publish(entry, mark))
        if settled:
            self.settle(manifest, results, parked=parked)
        return manifest

    def settle(
        self,
        manifest: Manifest,
        results: Sequence[Published] | None = None,
        *,
        parked: Sequence[str] = (),
    ) -> None:
        if results is None:
            mark = Mark(manifest.app_id, manifest.batch, manifest.source_hash)
            results = [self.publisher(e.table.role).publish(e, mark) for e in manifest.tables]
        waiting = sum(
            e.records
            for e in manifest.tables
            if e.table.name in parked and e.table.role is Role.EACH
        )
        moment = NOON + timedelta(minutes=manifest.batch)
        if self._writer is None:
            self._writer = self.ledger
        self._writer.record(
            manifest,
            results,
            times=BatchTimes(moment - timedelta(seconds=1), finished_at=moment),
            counts=manifest.with_parked(waiting),
        )


def empty_newest(lake: SettledLake, table: str) -> None:
    """What a full disk or a careless copy leaves: the newest commit without a word in it."""
    lake.commits(table)[-1].write_text("")


def live_files(folder: Path) -> list[Path]:
    """The data files that the commits of a table name."""
    found = []
    for commit in sorted((folder / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                found.append(folder / action["add"]["path"])
    return found
