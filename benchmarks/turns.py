"""Pipelines that get the same records by turns, in one process, without Spark or a broker."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from pyspark.sql import SparkSession

from benchmarks.order import Order
from distributary.config.load import load_text
from distributary.config.runtime import AVAILABLE_NOW
from distributary.engine.loop import StreamRun
from distributary.engine.pipeline import Pipeline
from distributary.source.base import Position
from distributary.spark.in_process import in_process
from distributary.testing import Record, RecordSource


class _Arriving(RecordSource):
    """Records of which only the first ones have arrived."""

    arrived = 0

    def newest(self) -> Position:
        """Return the position after the last record that has arrived."""
        return {"record": self.arrived}


def cpu_by_turns(
    order: Order, files: Mapping[str, str], records: Sequence[Record]
) -> dict[str, float]:
    """CPU seconds of a batch of each pipeline file, which take turns: medians."""
    size = order.records
    spent: dict[str, list[float]] = {name: [] for name in files}
    with ExitStack() as stack:
        runs: dict[str, tuple[StreamRun, _Arriving]] = {}
        for name, text in files.items():
            pipeline = Pipeline(load_text(text))
            source = _Arriving(records, ("orders",), size)
            context = stack.enter_context(pipeline.open(in_process(no_spark)))
            runs[name] = StreamRun(context, source, stop=threading.Event()), source
        for batch in range(order.all_batches):
            for name in sorted(runs, reverse=batch % 2 == 0):
                run, source = runs[name]
                source.arrived += size
                began = time.process_time()
                run.run(AVAILABLE_NOW)
                spent[name].append(time.process_time() - began)
    return {name: statistics.median(spent[name][order.warm :]) for name in files}


def no_spark() -> SparkSession:
    raise AssertionError("this suite has no Spark")
