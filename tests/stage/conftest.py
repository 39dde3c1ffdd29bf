import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distributary.config.load import load_text
from distributary.config.pipeline import PipelineConfig
from distributary.engine.plan import Planner
from distributary.lab.simulate.base import MESSAGES
from distributary.model.plan import StageOrder
from distributary.model.record import RAW
from distributary.registry.local import MemoryRegistry
from distributary.stage.exchange import facts_of, spread
from distributary.stage.job import Staged
from distributary.stage.land import land
from distributary.stage.sort import sort
from distributary.testing.publisher import MemoryPublisher

PIPELINE = """
name: games
source: {{type: delta, path: {lake}/wrapper, value: wrapper, timestamp: produced_at}}
registry: {{path: {lake}/schemas}}
envelope: {{format: protobuf, subject: wrapper-value, type: game_name, payload: payload}}
payload: {{format: protobuf}}
tables: {tables}
lake: {{path: {lake}}}
{extra}
"""


@dataclass
class Bench:
    """A stage without Spark: both hops in this process."""

    lake: Path
    registry: MemoryRegistry
    config: PipelineConfig
    publisher: MemoryPublisher = field(default_factory=MemoryPublisher)

    def __post_init__(self) -> None:
        (self.lake / "runs").mkdir(parents=True, exist_ok=True)
        self.planner = Planner(self.config, registry=self.registry, publisher=self.publisher)

    def order(self, **changed: object) -> StageOrder:
        settings: dict[str, object] = {
            "pipeline": "games",
            "lane": "stream",
            "batch": 0,
            "attempt": "try",
            "now_us": time.time_ns() // 1000,
            "folder": str(self.lake / "runs"),
        }
        return StageOrder(**(settings | changed))  # type: ignore[arg-type]

    def sorted(self, raw: list[pa.RecordBatch], **order: object) -> Staged:
        staged = Staged()
        staged.add(facts_of(sort(raw, self.planner.catalog(), self.order(**order))))
        return staged

    def stage(self, raw: list[pa.RecordBatch], *, tasks: int = 2, **order: object) -> Staged:
        staged = self.sorted(raw, **order)
        self.planner.resolve(staged.unresolved(self.planner.catalog()))
        catalog = self.planner.catalog()
        for load in spread(staged.runs, staged.letters, catalog.routes, tasks=tasks):
            staged.add(facts_of(land(load, catalog, self.order(**order))))
        return staged

    def rows(self, staged: Staged, table: str) -> pa.Table:
        files = [self.lake / table / f.path for f in staged.files[table]]
        return pa.concat_tables([pq.read_table(f) for f in files], promote_options="default")


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    def make(tables: str = "{each: 'silver_{type}'}", extra: str = "") -> Bench:
        text = PIPELINE.format(lake=tmp_path, tables=tables, extra=extra)
        loaded = load_text(text, file="pipeline.yaml", environ={})
        return Bench(tmp_path, MemoryRegistry(), loaded.config)

    return make


def raw_records(batches: Iterator[pa.RecordBatch], start: int = 0) -> list[pa.RecordBatch]:
    """What the simulator sends, as a source would give it."""
    out = []
    for batch in batches:
        count = batch.num_rows
        values = batch.column(MESSAGES.get_field_index("value"))
        out.append(raw_batch(values.to_pylist(), start))
        start += count
    return out


def raw_batch(values: list[bytes | None], start: int = 0) -> pa.RecordBatch:
    count = len(values)
    arrays = [
        pa.array([f"k{i}".encode() for i in range(count)]),
        pa.array(values, pa.binary()),
        pa.array([[{"key": "h", "value": b"v"}]] * count, RAW.field("headers").type),
        pa.array(["wrapper"] * count),
        pa.array([0] * count, pa.int32()),
        pa.array(range(start, start + count), pa.int64()),
        pa.array([1_700_000_000_000_000] * count, RAW.field("timestamp").type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW)
