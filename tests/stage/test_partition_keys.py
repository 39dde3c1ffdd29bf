from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from distributary.stage.partition_keys import hash_of, partition_keys, to_partitions


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 64, 1000])
def test_each_partition_has_a_key_of_its_own(partitions: int) -> None:
    keys = partition_keys(partitions)
    assert [hash_of(key) % partitions for key in keys] == list(range(partitions))


@pytest.mark.sql
@pytest.mark.spark
def test_the_hash_is_sparks(spark: SparkSession) -> None:
    keys = [*range(200), 2**31 - 1]
    frame = spark.createDataFrame([(key,) for key in keys], "key int")
    rows = frame.select("key", F.hash("key").alias("hash")).collect()
    assert {row.key: row.hash for row in rows} == {key: hash_of(key) for key in keys}


@pytest.mark.sql
@pytest.mark.spark
@pytest.mark.parametrize("partitions", [1, 3, 20])
def test_each_row_is_in_the_partition_that_it_names(spark: SparkSession, partitions: int) -> None:
    target = (F.col("id") % partitions).cast("int").alias("target")
    sent = to_partitions(spark.range(3 * partitions).select(target), "target", partitions)
    rows = sent.select("target", F.spark_partition_id().alias("partition")).collect()
    assert len(rows) == 3 * partitions
    assert {(row.target, row.partition) for row in rows} == {(n, n) for n in range(partitions)}
