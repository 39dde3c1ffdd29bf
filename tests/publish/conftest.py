"""Every publisher, and the engines that can read what it wrote."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distributary.delta import commit as writing
from distributary.model.manifest import Mark, StagedFile, TableEntry
from distributary.model.table import STAGING
from distributary.publish import parquet_publisher as parquet
from distributary.publish.base import CommittedMark, Published, Publisher, TableColumns
from distributary.publish.direct import DirectPublisher
from distributary.publish.parquet_publisher import ParquetPublisher
from distributary.store import base
from distributary.store.base import Store, at, introduce
from distributary.store.bucket import Bucket
from distributary.store.disk import Disk
from tests.publish import staged
from tests.publish.staged import Read, in_order, read_everywhere, read_folder
from tests.source.s3_server import BUCKET, S3Server, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakePublisher = Callable[[], Publisher]
WAYS = [
    "direct",
    "direct-prepared",
    "bucket",
    "parquet",
    "parquet-bucket",
    pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow]),
    pytest.param("spark-named", marks=[pytest.mark.spark, pytest.mark.slow]),
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


class InBucket:
    """Publishes to a bucket what was staged in a folder, and brings the table's folder back.

    So a test looks at a folder, whichever way its table was written.
    """

    def __init__(self, root: str) -> None:
        self._inner = DirectPublisher()
        self._root = root

    def current_columns(self, path: str) -> TableColumns | None:
        return self._inner.current_columns(self._address(path))

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        return self._inner.committed(self._address(path), mark)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        here, there = at(entry.table.path), at(self._address(entry.table.path))
        for file in entry.files:
            if here.look(file.path) and ".." not in file.path.split("/"):
                here.copy(file.path, to=there)
        moved = replace(entry, table=replace(entry.table, path=there.address))
        try:
            return self._inner.publish(moved, mark)
        finally:
            for info in there.files("_delta_log"):
                there.copy(info.name, to=here)

    def _address(self, path: str) -> str:
        return f"{self._root}/{path.strip('/')}"


class InBucketPublisher(ParquetPublisher):
    """Tables in a bucket, whose files a test stages, harms and reads in a folder of the same name.

    What is staged there moves into the bucket before a commit; afterwards the folder shows what
    the bucket has.
    """

    turn = threading.Lock()

    def __init__(self, server: S3Server, lake: Path) -> None:
        self._lake, self._address = lake, f"s3://{server.bucket}/{lake.name}"
        introduce(self._address, server.options)

    def current_columns(self, path: str) -> TableColumns | None:
        return super().current_columns(self._there(path))

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        return super().committed(self._there(path), mark)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        folder, path = Path(entry.table.path), self._there(entry.table.path)
        self._send(entry.files, folder, at(path))
        try:
            return super().publish(replace(entry, table=replace(entry.table, path=path)), mark)
        finally:
            self._fetch(folder, at(path))

    def _there(self, path: str) -> str:
        return f"{self._address}{path.removeprefix(str(self._lake))}"

    def _send(self, files: Sequence[StagedFile], folder: Path, there: Store) -> None:
        with self.turn:
            blocked = (folder / "_delta_log").is_file()
            there.write("_delta_log", b"") if blocked else there.remove("_delta_log")
            for file in files:
                if ".." not in file.path and (folder / file.path).exists():
                    there.write(file.path, (folder / file.path).read_bytes())
                    (folder / file.path).unlink()

    def _fetch(self, folder: Path, there: Store) -> None:
        with self.turn:
            files = {file.name for file in there.files(recursive=True)}
            found = {name for name in files if not name.startswith((STAGING, "_delta_log"))}
            here = {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()}
            for name in here - found:
                if not name.startswith((STAGING, "_delta_log")):
                    (folder / name).unlink()
            for name in found:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(there.read(name))


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """The way to commit: by our own log, in a folder one by one or prepared, or in a bucket; by
    Spark, to a path or to a catalog's name; and to folders without a table format, on a disk and
    in a bucket."""
    return str(request.param)


@pytest.fixture(autouse=True)
def format(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The format of the tables that a test stages files for."""
    names = request.fixturenames
    way = request.getfixturevalue("way") if "way" in names else ""
    found = way.partition("-")[0]
    monkeypatch.setattr(staged, "FORMAT", found if found == "parquet" else "delta")
    return staged.FORMAT


@pytest.fixture
def make_publisher(way: str, request: pytest.FixtureRequest, tmp_path: Path) -> MakePublisher:
    """A publisher that remembers nothing of what an earlier one saw, as after a restart."""
    if way == "parquet-bucket":
        server: S3Server = request.getfixturevalue("server")
        return lambda: InBucketPublisher(server, tmp_path)
    if way == "parquet":
        return ParquetPublisher
    if way == "direct-prepared":
        return PreparedPublisher
    if way == "direct":
        return DirectPublisher
    if way == "bucket":
        server: S3Server = request.getfixturevalue("server")
        patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        patch.setattr(base, "_OPTIONS", {})
        base.introduce(f"s3://{BUCKET}", server.options)
        root = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        return lambda: InBucket(root)
    from distributary.publish.spark_publisher import SparkPublisher

    spark: SparkSession = request.getfixturevalue("spark")
    if way == "spark":
        return lambda: SparkPublisher(spark)
    schema = f"s{uuid.uuid4().hex}"
    spark.sql(f"CREATE SCHEMA {schema}")

    class NamedPublisher(SparkPublisher):
        """Writes tables by their names, which they get as soon as they are there."""

        def publish(self, entry: TableEntry, mark: Mark) -> Published:
            path = entry.table.path.replace("\\", "\\\\").replace("'", "\\'")
            if (Path(entry.table.path) / "_delta_log" / f"{0:020d}.json").exists():
                spark.sql(
                    f"CREATE TABLE IF NOT EXISTS {schema}.`{entry.table.name}` "
                    f"USING delta LOCATION '{path}'"
                )
            return super().publish(entry, mark)

    return lambda: NamedPublisher(spark, schema=(schema,))


@pytest.fixture
def publisher(make_publisher: MakePublisher) -> Publisher:
    return make_publisher()


@pytest.fixture
def read(way: str, request: pytest.FixtureRequest) -> Read:
    """Read a table with the engines that can: wider columns by Spark are for Spark alone."""
    if way.startswith("parquet"):
        return read_folder
    if not way.startswith("spark"):
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
        lose(Disk, "create")
        lose(writing, "give_name")
    elif way == "bucket":
        lose(Bucket, "create")
    elif way.startswith("parquet"):
        lose(parquet, "create_commit")
    else:
        from pyspark.sql import DataFrameWriter, DataFrameWriterV2

        lose(DataFrameWriter, "save")
        lose(DataFrameWriterV2, "append")
    return lost


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "chess"
