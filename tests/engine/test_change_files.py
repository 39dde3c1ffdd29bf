"""Change files of every kind, with everything that goes wrong in them, against the truth."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from distributary.model.manifest import Counts
from distributary_lab.simulate.cdc.shapes import CHAOS, CdcFormat, CdcPlan, SourceType
from tests.lakes.changes import Feed

KINDS = {
    "mysql-avro": CdcPlan(tables=12, events=600, rows=10, features=CHAOS, file_events=40),
    "postgresql-json": CdcPlan(
        tables=12,
        events=400,
        rows=6,
        features=CHAOS,
        source_type=SourceType.POSTGRESQL,
        format=CdcFormat.JSON,
    ),
    "oracle-json-array-gzip": CdcPlan(
        tables=12,
        events=400,
        rows=6,
        features=CHAOS,
        source_type=SourceType.ORACLE,
        format=CdcFormat.JSON_ARRAY,
        gzip=True,
    ),
    "sqlserver-avro-bare": CdcPlan(
        tables=12,
        events=400,
        rows=6,
        features=CHAOS,
        source_type=SourceType.SQLSERVER,
        bare_methods=True,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_chaos_ends_in_the_truth_and_a_second_run_changes_nothing(
    tmp_path: Path, tasks: SparkSession, kind: str
) -> None:
    plan = KINDS[kind]
    feed = Feed(tmp_path, plan)
    feed.send_all()
    sent = feed.stream.sent()
    cdc = f", source_type: {plan.source_type}" if plan.bare_methods else ""
    counts = feed.pipeline(cdc=cdc).run(trigger="available_now", spark=tasks).counts
    assert counts == Counts(read=sent.events, written=sent.distinct, skipped=sent.duplicates)
    assert sent.duplicates
    feed.assert_true()
    before = feed.versions()
    again = feed.pipeline(cdc=cdc).run(trigger="available_now", spark=tasks)
    assert (again.counts, again.batches) == (Counts(), 0)
    assert feed.versions() == before
