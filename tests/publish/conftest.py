"""Every publisher, and the engines that can read what it wrote."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from distributary.delta import log
from distributary.model.manifest import Mark, TableEntry
from distributary.publish import parquet
from distributary.publish.base import Published, Publisher
from distributary.publish.direct import DirectPublisher
from distributary.publish.parquet import ParquetPublisher
from tests.publish import staged
from tests.publish.staged import Read, in_order, read_everywhere, read_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakePublisher = Callable[[], Publisher]
WAYS = [
    "direct",
    "direct-prepared",
    "direct-store",
    "parquet",
    pytest.param("spark", marks=pytest.mark.spark),
]


class PreparedPublisher(DirectPublisher):
    """Prepares each commit before it is made, as a batch of many tables does."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.Lock()

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        with self._turn:
            self.prepare([entry], mark)
            try:
                return super().publish(entry, mark)
            finally:
                self.finish(threads=1)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """The way to commit: by our own log, one by one or prepared; through deltalake as on an object
    store; by Spark; and to folders without a table format."""
    return str(request.param)


@pytest.fixture(autouse=True)
def format(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The format of the tables that a test stages files for."""
    names = request.fixturenames
    parquet = "way" in names and request.getfixturevalue("way") == "parquet"
    monkeypatch.setattr(staged, "FORMAT", "parquet" if parquet else "delta")
    return staged.FORMAT


@pytest.fixture
def make_publisher(way: str, request: pytest.FixtureRequest) -> MakePublisher:
    """A publisher that remembers nothing of what an earlier one saw, as after a restart."""
    if way == "parquet":
        return ParquetPublisher
    if way == "direct-prepared":
        return PreparedPublisher
    if way != "spark":
        return lambda: DirectPublisher(own_log=way == "direct")
    from distributary.publish.spark import SparkPublisher

    spark: SparkSession = request.getfixturevalue("spark")
    return lambda: SparkPublisher(spark)


@pytest.fixture
def publisher(make_publisher: MakePublisher) -> Publisher:
    return make_publisher()


@pytest.fixture
def read(way: str, request: pytest.FixtureRequest) -> Read:
    """Read a table with the engines that can: wider columns by Spark are for Spark alone."""
    if way == "parquet":
        return read_folder
    if way != "spark":
        return read_everywhere
    return read_with_spark(request.getfixturevalue("spark"))


def read_with_spark(spark: SparkSession) -> Read:
    def rows(path: str, *, polars: bool = False) -> list[dict[str, Any]]:
        frame = spark.read.format("delta").load(path)
        return in_order([row.asDict(recursive=True) for row in frame.collect()])

    return rows


@pytest.fixture
def lost_answers(way: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on every commit lands, and whoever made it hears of a failure instead.

    The list has one name for each answer that was lost.
    """
    lost: list[str] = []

    def lose(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def commit(*args: Any, **options: Any) -> None:
            real(*args, **options)
            lost.append(name)
            raise OSError("connection reset")

        monkeypatch.setattr(owner, name, commit)

    if way in ("direct", "direct-prepared"):
        lose(log, "create_commit")
        lose(log, "name_commit")
    elif way == "parquet":
        lose(parquet, "create_commit")
    elif way == "direct-store":
        lose(log, "create_table_with_add_actions")
        lose(DeltaTable, "create_write_transaction")
    else:
        from pyspark.sql import DataFrameWriter

        lose(DataFrameWriter, "save")
    return lost


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "chess"
