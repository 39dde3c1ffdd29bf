"""Our engine as a case: a pipeline file, run until so many batches are settled."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.order import Order
from benchmarks.usage import cpu_seconds
from distributary.engine.pipeline import Pipeline
from distributary.observe.events import BatchSettled, BatchStarted, Event, Idle
from distributary.spark.session import spark_session
from distributary.spark.settings import SparkSettings

MASTER, DRIVER_MEMORY = "local[2]", "4g"

GAMES = """\
envelope: {format: protobuf, subject: wrapper-value, type: game_name, payload: payload}
payload: {format: protobuf}
"""
"""What the records of the games simulator are."""


class Watch:
    """Collects the settled batches of a pipeline and stops it after the last one that is wanted.

    A batch lasts from the end of the one before it, so that the loop around it counts too.
    """

    def __init__(self, pipeline: Pipeline, *, batches: int) -> None:
        self.batches: list[dict[str, Any]] = []
        self._pipeline, self._wanted = pipeline, batches
        self._since = self._spent = 0.0
        pipeline.bus.subscribe(self._listen)

    def _listen(self, event: Event) -> None:
        now = time.monotonic()
        if isinstance(event, BatchStarted):
            if not self._since:
                self._since, self._spent = now, cpu_seconds()
        elif isinstance(event, BatchSettled):
            steps = {f"{step}_seconds": seconds for step, seconds in event.steps.items()}
            spent = cpu_seconds()
            files = sum(table.files for table in event.written)
            self.batches.append(
                {
                    "records": event.counts.read,
                    "written": event.counts.written,
                    "seconds": now - self._since,
                    "cpu_seconds": spent - self._spent,
                    "files": files,
                    "file_bytes": sum(table.bytes for table in event.written) // max(files, 1),
                    **steps,
                }
            )
            # what was measured here does not count for the next one
            self._since, self._spent = time.monotonic(), spent
            if len(self.batches) >= self._wanted:
                self._pipeline.stop.set()
        elif isinstance(event, Idle) and self.batches:
            # everything is read: to wait for more would be to wait for ever
            self._pipeline.stop.set()


def ingested(path: Path, *, trigger: str, batches: int) -> list[dict[str, Any]]:
    """Run a pipeline file; its batches."""
    pipeline = Pipeline.load(path)
    watch = Watch(pipeline, batches=batches)
    pipeline.run(trigger=trigger)
    if len(watch.batches) < batches:
        raise AssertionError(f"{len(watch.batches)} batches instead of {batches}")
    lost = [b for b in watch.batches if b["written"] != b["records"]]
    if lost:
        raise AssertionError(f"not every record reached its table: {lost}")
    return watch.batches


def kafka_pipeline(
    order: Order, *, name: str, message: str, tables: str, schemas: bool = True
) -> Path:
    """The pipeline file of a case that reads the suite's topic, with or without a registry."""
    source = f"type: kafka, bootstrap_servers: {order.servers}, topics: [{order.topic}]"
    return write_pipeline(
        order.root,
        name=name,
        source=f"{{{source}, max_records_per_batch: {order.records}}}",
        registry=f'{{url: "{order.registry}"}}' if schemas else "null",
        message=message,
        tables=tables,
    )


def write_pipeline(
    folder: Path,
    *,
    name: str,
    source: str,
    registry: str,
    message: str,
    tables: str,
    master: str = MASTER,
    conf: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """A pipeline file; its lake has the pipeline's name."""
    path = folder / f"{name}.yaml"
    path.write_text(
        f"""\
name: bench-{name}
source: {source}
registry: {registry}
{message}
tables: {tables}
lake: {{path: {folder}/{name}}}
spark: {{master: "{master}", driver_memory: {DRIVER_MEMORY}, conf: {json.dumps(dict(conf))}}}
"""
    )
    return path


def bare_session(order: Order, *, name: str) -> SparkSession:
    """A session for what is compared with: as the engine's own when it runs without an end.

    Its garbage collector is the one that a JVM chooses for itself on a server.
    """
    settings = SparkSettings(
        master=MASTER,
        driver_memory=DRIVER_MEMORY,
        conf={"spark.driver.extraJavaOptions": "-XX:+UseG1GC"},
        log_file=order.root / f"{name}.log",
    )
    return spark_session(settings, app_name=name)
