"""What is special about Iceberg tables: marks that outlive snapshots, names, bounds, versions."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from distributary.config.lake import LakeConfig
from distributary.errors import LakeUnavailableError, OutsideLakeError, PublishError
from distributary.publish import iceberg_table
from distributary.publish.base import Outcome
from distributary.publish.iceberg_publisher import IcebergPublisher
from distributary.publish.iceberg_table import open_catalog, open_iceberg
from tests.publish.staged import batch_of, mark, numbers, read_iceberg
from tests.services.iceberg import spark_runtime

_SPARK = """
import json, sys
from pyspark.sql import SparkSession
jar, address, namespace = sys.argv[1:]
catalog = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": address}
builder = SparkSession.builder.master("local[1]").config("spark.jars", jar)
builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
for name, value in catalog.items():
    builder = builder.config(f"spark.sql.catalog.lake{name}", value)
spark = builder.getOrCreate()
for question in (
    "SELECT n, `a b`.x AS x FROM {} ORDER BY n",
    "SELECT count(*) AS n FROM {} WHERE n > 5",
    "SELECT count(*) AS n FROM {}.snapshots",
):
    found = spark.sql(question.format(f"lake.{namespace}.chess"))
    print(json.dumps([row.asDict() for row in found.collect()]))
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with open_catalog(LakeConfig(path=str(tmp_path))) as opened:
        yield opened


@pytest.fixture
def publisher(tmp_path: Path) -> IcebergPublisher:
    return IcebergPublisher(LakeConfig(path=str(tmp_path)))


def table_in(catalog: Catalog) -> Table:
    return catalog.load_table(("default", "chess"))


def test_files_outside_of_the_table_are_not_read(
    tmp_path: Path, publisher: IcebergPublisher, catalog: Catalog
) -> None:
    publisher.publish(batch_of(tmp_path / "chess", 0, numbers(1)), mark(0))
    stolen = tmp_path / "other.parquet"
    pq.write_table(numbers(7), stolen)
    table_in(catalog).add_files([str(stolen)])
    found = open_iceberg(str(tmp_path / "chess"))
    assert found is not None
    with pytest.raises(OutsideLakeError):
        found.files()


def test_checksums_are_kept_as_long_as_snapshots(
    tmp_path: Path, publisher: IcebergPublisher
) -> None:
    files = [batch_of(tmp_path / "chess", batch, numbers(batch)) for batch in range(2)]
    for batch, entry in enumerate(files):
        publisher.publish(entry, mark(batch))
    found = open_iceberg(str(tmp_path / "chess"))
    assert found is not None
    staged = [file for entry in files for file in entry.files]
    assert found.checksums() == {file.path: file.checksum for file in staged}


def test_who_knows_an_older_table_does_not_commit_what_it_has(
    tmp_path: Path, folder: Path, publisher: IcebergPublisher, catalog: Catalog
) -> None:
    for batch in range(2):
        publisher.publish(batch_of(folder, batch, numbers(batch)), mark(batch))
    entry = batch_of(folder, 2, numbers(2))
    assert IcebergPublisher(LakeConfig(path=str(tmp_path))).publish(entry, mark(2)).version == 3
    # pyiceberg's own tries would put the files there once more
    assert publisher.publish(entry, mark(2)).outcome is Outcome.SKIPPED
    assert read_iceberg(str(folder)) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert "commit.retry.num-retries" not in table_in(catalog).properties


def test_a_mark_outlives_its_snapshot(
    tmp_path: Path, folder: Path, publisher: IcebergPublisher, catalog: Catalog
) -> None:
    entry = batch_of(folder, 0, numbers(0))
    publisher.publish(entry, mark(0))
    publisher.publish(batch_of(folder, 1, numbers(1)), mark(0, app="somebody/else"))
    table = table_in(catalog)
    first = table.metadata.snapshots[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(first).commit()
    fresh = IcebergPublisher(LakeConfig(path=str(tmp_path)))
    assert fresh.publish(entry, mark(0)).outcome is Outcome.SKIPPED
    assert read_iceberg(str(folder)) == [{"n": 0}, {"n": 1}]


@pytest.mark.parametrize("harm", ["renamed", "dropped"])
def test_the_name_of_a_column_that_is_gone_is_not_given_away(
    folder: Path, publisher: IcebergPublisher, catalog: Catalog, harm: str
) -> None:
    both = pa.table({"n": pa.array([1], pa.int32()), "name": ["old"]})
    publisher.publish(batch_of(folder, 0, both), mark(0))
    with table_in(catalog).update_schema() as update:
        if harm == "renamed":
            update.rename_column("name", "title")
        else:
            update.delete_column("name")
    with pytest.raises(PublishError) as refused:
        publisher.publish(batch_of(folder, 1, both), mark(1))
    assert refused.value.context["reason"] == "columns"
    assert publisher.publish(batch_of(folder, 2, numbers(2)), mark(2)).outcome is Outcome.PUBLISHED
    known = {"title": "old"} if harm == "renamed" else {}
    assert {"n": 1, **known} in read_iceberg(str(folder))


def test_files_are_passed_over_by_their_bounds(
    folder: Path, publisher: IcebergPublisher, catalog: Catalog
) -> None:
    publisher.publish(batch_of(folder, 0, numbers(1, 5)), mark(0))
    publisher.publish(batch_of(folder, 1, numbers(2**40, type=pa.int64())), mark(1))
    table = table_in(catalog)
    for condition, files in (("n > 5", 1), ("n <= 5", 1), ("n >= 5", 2), ("n < 1", 0)):
        assert len(list(table.scan(row_filter=condition).plan_files())) == files
    assert table.scan(row_filter="n = 5").to_arrow().to_pylist() == [{"n": 5}]


def test_a_table_of_that_name_elsewhere_is_refused(
    tmp_path: Path, folder: Path, publisher: IcebergPublisher, catalog: Catalog
) -> None:
    catalog.create_namespace_if_not_exists("default")
    elsewhere = tmp_path / "elsewhere"
    catalog.create_table(("default", "chess"), numbers().schema, location=str(elsewhere))
    with pytest.raises(PublishError) as refused:
        publisher.publish(batch_of(folder, 0, numbers(0)), mark(0))
    assert refused.value.context["reason"] == "format"
    assert publisher.drop([str(folder)]) == []


def test_a_table_is_read_as_the_catalog_has_it(
    folder: Path, publisher: IcebergPublisher, catalog: Catalog
) -> None:
    publisher.publish(batch_of(folder, 0, numbers(0)), mark(0))
    left = folder / "metadata" / "00009-left-over.metadata.json"
    left.write_text("{}")
    found = open_iceberg(str(folder))
    assert found is not None
    assert found.version == 1
    assert found.dataset().to_table().to_pylist() == [{"n": 0}]
    (folder / "batch-0.parquet").rename(folder / "gone")
    assert list(found.files() or ()) == ["batch-0.parquet"]


@pytest.mark.parametrize("name", ["a b", "a%20b", "a#b", "a?b"])
def test_a_lake_may_have_any_name(tmp_path: Path, name: str) -> None:
    with open_catalog(LakeConfig(path=str(tmp_path / name))) as opened:
        opened.create_namespace_if_not_exists("default")
    assert (tmp_path / name / "_distributary" / "iceberg.db").is_file()


@pytest.mark.services
@pytest.mark.slow
def test_spark_reads_what_a_rest_catalog_has(folder: Path, rest_lake: LakeConfig) -> None:
    publisher = IcebergPublisher(rest_lake)
    inner = pa.array([{"x": "old"}, None], pa.struct([("x", pa.string())]))
    publisher.publish(batch_of(folder, 0, numbers(1, 5)), mark(0))
    both = pa.table({"n": pa.array([2**40, 6], pa.int64()), "a b": inner})
    publisher.publish(batch_of(folder, 1, both), mark(1))
    assert publisher.publish(batch_of(folder, 1, both), mark(1)).outcome is Outcome.SKIPPED
    settings = rest_lake.iceberg_catalog
    assert settings.uri is not None
    words = (str(spark_runtime()), settings.uri.get_secret_value(), settings.namespace)
    done = subprocess.run(
        [sys.executable, "-c", _SPARK, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows, later, snapshots = map(json.loads, done.stdout.splitlines())
    told = {1: None, 5: None, 6: None, 2**40: "old"}
    assert rows == [{"n": n, "x": x} for n, x in told.items()]
    assert later == snapshots == [{"n": 2}]


def test_a_catalog_that_never_answers_is_away(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_table, "_ANSWER_SECONDS", 0.05)
    entry = batch_of(folder, 0, numbers(0))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        catalog = {"type": "rest", "uri": address}
        lake = LakeConfig.model_validate({"path": str(tmp_path), "iceberg": catalog})
        with pytest.raises(LakeUnavailableError):
            IcebergPublisher(lake).publish(entry, mark(0))
