"""One case in a process of its own: `python -m benchmarks.case KIND FOLDER RECORDS`, JSON out."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.data import write_pipeline
from distributary.observe.events import BatchSettled, Event
from distributary.run.pipeline import Pipeline
from distributary.run.session import spark_session
from distributary.run.spark_conf import SparkSettings


class Memory:
    """Peak memory of this process and its children, sampled."""

    def __init__(self) -> None:
        self.driver = self.workers = 0
        self._ended = threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        me = psutil.Process()
        while not self._ended.wait(0.25):
            driver, workers = me.memory_info().rss, 0
            for child in me.children(recursive=True):
                try:
                    rss = child.memory_info().rss
                    java = "java" in child.name()
                except psutil.NoSuchProcess:
                    continue
                driver += rss if java else 0
                workers += 0 if java else rss
            self.driver, self.workers = max(self.driver, driver), max(self.workers, workers)

    def stop(self) -> dict[str, int]:
        self._ended.set()
        return {"driver_bytes": self.driver, "worker_bytes": self.workers}


def pipeline_case(publisher: str, folder: Path, records: int) -> list[dict[str, Any]]:
    """Our engine: the batches after the one that created the tables."""
    settled: list[BatchSettled] = []

    def listen(event: Event) -> None:
        if isinstance(event, BatchSettled):
            settled.append(event)
            if publisher == "spark" and len(settled) > 1:
                # a batch of it takes minutes: one is enough to see that
                pipeline.stop.set()

    pipeline = Pipeline.load(write_pipeline(folder, publisher=publisher, records=records))
    pipeline.bus.subscribe(listen)
    pipeline.run()
    return [
        {
            "records": e.counts.read,
            "seconds": e.seconds,
            "tables": e.tables,
            **{f"{step}_seconds": s for step, s in e.steps.items()},
        }
        for e in settled
    ]


def floor_case(folder: Path, records: int) -> list[dict[str, Any]]:
    """Spark's own scan of one batch's files into Arrow, rows counted: nothing can be faster there.

    The first batch counts for warming up, as in the other cases.
    """
    spark = spark_session(SparkSettings(master="local[2]", driver_memory="4g"), app_name="floor")
    table = DeltaTable(str(folder / "lake" / "wrapper"))
    commits = [
        [str(folder / "lake" / "wrapper" / path) for path in _files_of(table, version)]
        for version in range(table.version() + 1)
    ]

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"n": [batch.num_rows]})

    results = []
    # the scans are short: the JVM has to warm up on them for as long as a run takes to start
    for paths in [*commits[1:], *commits[1:]]:
        began = time.monotonic()
        frame = spark.read.parquet(*paths).select("wrapper")
        counted = sum(row.n for row in frame.mapInArrow(count, "n long").collect())
        results.append({"records": counted, "seconds": time.monotonic() - began})
        if counted != records:
            raise AssertionError(f"scanned {counted} of {records} rows")
    return results[len(commits) - 2 :]


def _files_of(table: DeltaTable, version: int) -> list[str]:
    """The files that one commit added."""
    log = Path(table.table_uri.removeprefix("file://")) / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    return [action["add"]["path"] for action in actions if "add" in action]


def main() -> None:
    kind, folder, records = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    memory = Memory()
    cpu = time.process_time()
    batches = floor_case(folder, records) if kind == "floor" else pipeline_case(kind, folder, records)
    print(json.dumps({"batches": batches, "cpu": time.process_time() - cpu, **memory.stop()}))


if __name__ == "__main__":
    main()
