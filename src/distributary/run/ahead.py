"""While a batch is decided and committed, the records of the next one are read and sorted.

Both are the driver's work: the workers would have nothing to do. What is sorted ahead shows
nowhere, so a batch that fails, or a run that stops, just drops it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark import Broadcast
from pyspark.errors import PySparkException

from distributary.errors import DistributaryError
from distributary.model.plan import Catalog, StageOrder
from distributary.run.context import RunContext
from distributary.run.staging import Begun, drop_files, hop_one, stage_order
from distributary.source.base import BatchInput, Position
from distributary.stage.job import Staged

Following = Callable[[int, Position], BatchInput | None]
"""The records of a batch that begins at a position; None where there are none yet."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    batch: int
    source: BatchInput
    begun: Begun


class ReadAhead:
    """At most one batch ahead. Used by the thread that runs the batches."""

    def __init__(self, context: RunContext, following: Following) -> None:
        self._context = context
        self._following = following
        self._ahead: _Ahead | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="distributary-ahead")

    def begin(self, batch: int, start: Position) -> None:
        """Begin to sort this batch, if there is anything in it."""
        context = self._context
        if context.config.cdc is not None or context.config.shard is not None:
            # tables of changes are brought up to date by the workers, who have enough to do; jobs
            # that share a stream wait for each other where it is divided anew
            return
        try:
            source = self._following(batch, start)
        except (DistributaryError, PySparkException):
            # it is asked again when it is the batch's turn, and told then
            return
        if source is None:
            return
        order = stage_order(context, batch, source)
        catalog = context.planner.catalog()
        sent = context.broadcast(catalog)
        sorting = self._pool.submit(self._sort, source, sent, catalog, order)
        self._ahead = _Ahead(batch, source, Begun(order, sorting))

    def input(self, batch: int, end: Position) -> BatchInput | None:
        """The records of a batch as they were opened, if it was begun and ends there."""
        ahead = self._ahead
        if ahead is None or ahead.batch != batch or ahead.source.end != end:
            return None
        return ahead.source

    def take(self, source: BatchInput) -> Begun | None:
        """What was begun with these records; work on others is dropped."""
        ahead = self._ahead
        if ahead is None or ahead.source is not source:
            self.drop()
            return None
        self._ahead = None
        return ahead.begun

    def drop(self) -> None:
        """Stop what was begun, and remove what it wrote."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        order, sorting = ahead.begun.order, ahead.begun.sorting
        if not sorting.done():
            # where the JVM is gone, so is the job
            with suppress(Py4JError, OSError):
                self._context.spark.sparkContext.cancelJobsWithTag(_tag(order))
        wait([sorting])
        if sorting.exception() is None:
            drop_files(self._context, sorting.result())
        shutil.rmtree(order.folder, ignore_errors=True)

    def close(self) -> None:
        """The run is over."""
        self.drop()
        self._pool.shutdown()

    def _sort(
        self, source: BatchInput, sent: Broadcast[Catalog], catalog: Catalog, order: StageOrder
    ) -> Staged:
        spark = self._context.spark.sparkContext
        spark.addJobTag(_tag(order))
        try:
            return hop_one(source, sent, catalog, order)
        finally:
            spark.removeJobTag(_tag(order))


def _tag(order: StageOrder) -> str:
    return f"distributary-ahead-{order.attempt}"
