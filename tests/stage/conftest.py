import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from distributary.config.load import load_text
from distributary.config.pipeline_config import PipelineConfig
from distributary.engine.planning.planner import Planner
from distributary.model.record import RAW
from distributary.model.routing import StageOrder
from distributary.stage.exchange import facts_of, spread
from distributary.stage.job import Staged
from distributary.stage.land import land
from distributary.stage.packets import Again, Targets, land_packets, pack
from distributary.stage.sort import sort
from distributary_lab.simulate.base import MESSAGES
from tests.publish.memory import MemoryPublisher
from tests.registry.scratch import ScratchRegistry

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
    registry: ScratchRegistry
    config: PipelineConfig
    exchange: str = "disk"
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

    def sorted(self, *raw: list[pa.RecordBatch], **order: object) -> Staged:
        staged = Staged()
        for each in raw:
            staged.add(facts_of(sort(each, self.planner.task_plan(), self.order(**order))))
        return staged

    def stage(self, *raw: list[pa.RecordBatch], tasks: int = 2, **order: object) -> Staged:
        """Each of `raw` is what one task of hop one reads."""
        if self.exchange == "spark":
            return self.exchanged(*raw, tasks=tasks, **order)
        staged = self.sorted(*raw, **order)
        self.planner.resolve(staged.unresolved(self.planner.task_plan()))
        plan = self.planner.task_plan()
        for load in spread(staged.runs, staged.letters, plan.routing.routes, tasks=tasks):
            staged.add(facts_of(land(load, plan, self.order(**order))))
        return staged

    def exchanged(self, *raw: list[pa.RecordBatch], tasks: int, **order: object) -> Staged:
        """Both hops by packets: all records, then those of keys that were new."""
        told = self.order(**order, folder="")
        staged, again = Staged(), None
        first = self.planner.task_plan()
        while True:
            plan = self.planner.task_plan()
            targets = Targets.by_weight(dict.fromkeys(plan.output.tables, 100), tasks)
            packed = [p for each in raw for p in pack(each, plan, told, targets, again)]
            job = Staged()
            for target in range(tasks):
                mine = [b.filter(pc.equal(b.column(0), target)) for b in packed]
                job.add(facts_of(land_packets(mine, plan, told)))
            staged.merge(job)
            staged.seen += job.seen
            self.planner.learn(job.shapes, job.carried)
            new = job.unresolved(plan)
            if not new:
                return staged
            self.planner.resolve(new)
            again = Again.after(first, {one.key for one in new})

    def rows(self, staged: Staged, table: str) -> pa.Table:
        files = [self.lake / table / f.path for f in staged.files[table]]
        return pa.concat_tables([pq.read_table(f) for f in files], promote_options="default")


@pytest.fixture(params=["disk", "spark"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Bench]:
    def make(tables: str = "{each: 'silver_{type}'}", extra: str = "") -> Bench:
        text = PIPELINE.format(lake=tmp_path, tables=tables, extra=extra)
        loaded = load_text(text, file="pipeline.yaml", environ={})
        return Bench(tmp_path, ScratchRegistry(), loaded.config, request.param)

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
