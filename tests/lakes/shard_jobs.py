"""Jobs that share a bronze table, without Spark: what they read, decide and settle is real."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from distributary.config.lake import LakeConfig
from distributary.config.load import load_text
from distributary.config.pipeline_config import PipelineConfig
from distributary.config.shard import Part, job_name
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.engine.seams import make_source
from distributary.engine.shards.progress import divide
from distributary.errors import DistributaryError, ErrorCode
from distributary.model.manifest import Counts, Manifest
from distributary.model.record import HEADER, TIMESTAMP
from distributary.source.base import BatchInput
from distributary.stage.unwrap import ShardFilter
from distributary.store.base import at

BRONZE = pa.schema(
    [
        ("type", pa.string()),
        ("schema_id", pa.int64()),
        ("payload", pa.binary()),
        ("key", pa.binary()),
        ("headers", pa.list_(HEADER)),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", TIMESTAMP),
        ("value", pa.binary()),
    ]
)
SPARK = cast(
    SparkSession,
    SimpleNamespace(
        sparkContext=SimpleNamespace(defaultParallelism=2), range=lambda start, end, *_: end
    ),
)


@cache
def _config(part: Part, shards: int, batch: int) -> PipelineConfig:
    tables = "{each: 'silver_{topic}'}"
    if isinstance(part, str):
        tables = "{bronze: bronze}" if part == "bronze" else "{unified: gold}"
    number = f", shards: {shards}" if part == "bronze" else ""
    return load_text(
        f"""
name: {job_name("games", part)}
source: {{type: delta, path: bronze, value: payload, max_records_per_batch: {batch}}}
payload: {{format: json}}
tables: {tables}
lake: {{path: .}}
shard: {{of: games, part: {part}{number}}}
""",
        environ={},
    ).config


def shard_config(lake: Path, part: Part, *, shards: int = 2, batch: int = 4) -> PipelineConfig:
    """The file of one job, as far as the division is concerned."""
    config = _config(part, shards, batch)
    source = config.source.model_copy(update={"path": f"{lake}/bronze"})
    there = LakeConfig.model_validate({"path": str(lake)})
    return config.model_copy(update={"source": source, "lake": there})


@dataclass
class Jobs:
    """A lake with a bronze table, and the jobs that read it."""

    lake: Path
    types: list[str | None] = field(default_factory=list)
    """Of every record that was landed, by its offset."""
    published: dict[tuple[str, int], list[tuple[str | None, int]]] = field(default_factory=dict)
    """Type and offset of the records of each decided batch, by job and batch: a mark each."""
    order: list[tuple[str, int]] = field(default_factory=list)
    """Job and batch of each publishing, in time."""

    def land(self, *types: str | None) -> None:
        """One commit of the bronze job."""
        rows = [
            {
                "type": name,
                "payload": f"{offset}".encode(),
                "key": b"k",
                "_topic": "wrapper",
                "_partition": 3,
                "_offset": offset,
                "_timestamp": 1_000_000 + offset,
                "value": f"wrapped {offset}".encode() if offset % 2 else None,
            }
            for offset, name in enumerate(types, len(self.types))
        ]
        self.types += types
        table = pa.Table.from_pylist(rows, BRONZE)
        write_deltalake(str(self.lake / "bronze"), table, mode="append")

    def spread(self, shards: int) -> None:
        """The bronze job starts with this number in its file."""
        config = shard_config(self.lake, "bronze", shards=shards)
        manifests = Checkpoint(at(config.checkpoint_path), "x").manifests()
        parking = str(self.lake / "parked")
        divide(config, lake=str(self.lake), manifests=manifests, parking=parking)

    def step(self, part: Part, *, crash: bool = False) -> bool | ErrorCode:
        """One batch of a job, as `StreamRun` does it; killed after the manifest with `crash`."""
        config = shard_config(self.lake, part)
        source = make_source(config)
        folder = at(config.checkpoint_path)
        found = Checkpoint.find(folder, pipeline=config.name)
        checkpoint = found or Checkpoint.begin(folder, pipeline=config.name)
        manifests = checkpoint.manifests()
        batch = manifests.settled() + 1
        decided = manifests.read(batch)
        try:
            until = source.newest()
            before = manifests.read(batch - 1) if batch else None
            start = before.source_state if before else checkpoint.first_position(source.first)
            end = decided.source_state if decided else source.advance(start, until)
        except DistributaryError as error:
            assert error.retryable
            return error.code
        if end is None:
            return False
        opened = source.open(SPARK, start, end)
        rows = self._rows(opened)
        if decided is None:
            manifests.create(_manifest(config.name, checkpoint.life, batch, opened))
        self.published.setdefault((config.name, batch), rows)
        self.order.append((config.name, batch))
        if not crash:
            manifests.settle(batch)
        return True

    def run(self, part: Part) -> bool | ErrorCode:
        """Available now."""
        while True:
            done = self.step(part)
            if done is not True:
                return done

    def run_all(self, *parts: Part) -> None:
        """Round and round, until nobody has anything left."""
        while any([self.step(part) is True for part in parts]):
            pass

    def counted(self, prefix: str = "games-shard") -> Counter[int]:
        """How often each record was published."""
        batches = (rows for (job, _), rows in self.published.items() if job.startswith(prefix))
        return Counter(offset for rows in batches for _, offset in rows)

    def writers(self) -> list[tuple[str, str | None, int]]:
        """Job, type and offset, in the order of publishing."""
        return [
            (job, name, offset)
            for job, batch in dict.fromkeys(self.order)
            for name, offset in self.published[job, batch]
        ]

    def assert_each_once(self) -> None:
        assert self.counted() == Counter(range(len(self.types)))

    def assert_in_order(self) -> None:
        """A table that changes hands is still written in order."""
        by_type: dict[str | None, list[int]] = defaultdict(list)
        for _, name, offset in self.writers():
            by_type[name].append(offset)
        assert all(offsets == sorted(offsets) for offsets in by_type.values())

    def _rows(self, opened: BatchInput) -> list[tuple[str | None, int]]:
        count = opened.tasks
        share = ShardFilter()
        batches = opened.reader(iter([pa.record_batch({"task": list(range(count))})]))
        raw = [row for batch in share.own(batches) for row in batch.to_pylist()]
        assert len(raw) + share.others == opened.records
        for row in raw:
            assert (row["topic"], row["partition"], row["key"]) == ("wrapper", 3, b"k")
            assert row["value"].decode().removeprefix("wrapped ") == str(row["offset"])
        # a batch is one commit a table: there is no order inside of it
        return [(self.types[offset], offset) for offset in sorted(row["offset"] for row in raw)]


def _manifest(name: str, life: str, batch: int, opened: BatchInput) -> Manifest:
    return Manifest(
        pipeline=name,
        life=life,
        batch=batch,
        epoch=1,
        ranges=opened.ranges,
        tables=(),
        counts=Counts(),
        dead_letters={},
        schemas=(),
        created_at="2026-01-01T00:00:00+00:00",
        source_state=dict(opened.end),
    )
