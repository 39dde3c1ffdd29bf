"""Tables that only Spark can merge, or that are too large for one process: the same truth."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.operations.repair.resume_table import waiting
from distributary_lab.simulate.cdc.shapes import CdcPlan, Feature
from tests.lakes.changes import Feed

PLAN = CdcPlan(
    tables=2,
    events=100,
    rows=5,
    rounds=2,
    features=frozenset(
        {Feature.KEY_CHANGES, Feature.LATE_UPDATES, Feature.BURSTS, Feature.DUPLICATES}
    ),
)


@pytest.mark.sql
def test_a_table_that_asks_for_more_than_files_is_merged_by_spark(
    tmp_path: Path, spark: SparkSession
) -> None:
    feed = Feed(tmp_path, PLAN)
    feed.send_round()
    feed.pipeline().run(spark=spark)
    table = str(feed.lake / "shop_orders")
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    while feed.send_round() is not None:
        feed.pipeline().run(spark=spark)
    assert waiting(feed.pipeline()) == []
    feed.assert_true()
    engines = [
        (commit["operation"], commit["engineInfo"].startswith("Distributary"))
        for commit in DeltaTable(table).history()
    ]
    assert engines[0] == ("MERGE", False)
    assert engines[-1] == ("MERGE", True)
    # a batch that is merged again changes nothing
    before = feed.versions()
    feed.pipeline().run(spark=spark)
    assert feed.versions() == before
