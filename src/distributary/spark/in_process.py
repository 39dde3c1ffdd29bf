"""Tasks in this process, without a JVM: for tests, and for repairs of a few records.

This session offers the part of Spark that the two hops of a stage use. Work that needs more, such
as a merge into a table that only Spark can write, calls `real` for a session of Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from pyspark.sql import SparkSession

Partition = Callable[[Iterable[int]], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class _Tasks:
    """The numbers of tasks, as `SparkContext.parallelize` gives them."""

    numbers: Sequence[int]
    function: Partition | None = None

    def mapPartitions(self, function: Partition) -> _Tasks:
        return _Tasks(self.numbers, function)

    def collect(self) -> list[bytes]:
        """Run the tasks one after the other."""
        if self.function is None:
            return []
        return [result for number in self.numbers for result in self.function([number])]


class _Context:
    """The part of a `SparkContext` that the hops use."""

    master = "local[1]"
    defaultParallelism = 1

    def parallelize(self, numbers: Sequence[int], slices: int) -> _Tasks:
        return _Tasks(numbers)

    def getLocalProperty(self, name: str) -> None:
        return None

    def setLocalProperty(self, name: str, value: object) -> None:
        """Name no job: there is no page that shows them."""

    def cancelJobsWithTag(self, tag: str) -> None:
        """Cancel nothing: a task that runs here ends with its caller."""


@dataclass(slots=True)
class _InProcess:
    begin: Callable[[], SparkSession]
    sparkContext: _Context = field(default_factory=_Context)
    _spark: SparkSession | None = None

    def started(self) -> SparkSession:
        """Return a session of Spark, which is started once."""
        if self._spark is None:
            self._spark = self.begin()
        return self._spark


def in_process(begin: Callable[[], SparkSession]) -> SparkSession:
    """Return a session whose tasks run in this process; `begin` starts Spark if it is needed."""
    return cast(SparkSession, _InProcess(begin))


def is_in_process(session: object) -> bool:
    """Return whether a session runs its tasks in this process."""
    return isinstance(session, _InProcess)


def real(session: SparkSession) -> SparkSession:
    """Return a session of Spark itself, for work that only Spark can do."""
    given: object = session
    return given.started() if isinstance(given, _InProcess) else session
