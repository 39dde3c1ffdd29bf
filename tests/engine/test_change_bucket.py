"""Change data whose lake and progress are in a bucket: exact, whatever dies in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from distributary.config.lake import Maintain
from distributary.engine.kill_points import KILL, KillPoint
from distributary.engine.steps import merges as merge_step
from distributary.engine.steps.merges import merge_all
from distributary.operations.maintain import Wishes, jobs_of, maintain
from distributary.publish.base import Published
from distributary.store.base import at, is_remote
from distributary_lab.simulate.cdc.shapes import CHAOS, CdcPlan
from tests.engine.test_crashes import RUN, gone
from tests.lakes.changes import BucketFeed
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture
def feed(tmp_path: Path, server: S3Server) -> BucketFeed:
    plan = CdcPlan(tables=2, events=60, rows=3, rounds=3, features=CHAOS)
    return BucketFeed(tmp_path, plan, server=server, address=f"s3://{BUCKET}/{unique('lake')}")


def test_tables_are_what_the_source_is_and_stay_so_when_maintained(
    feed: BucketFeed, tasks: SparkSession
) -> None:
    while feed.send_round() is not None:
        feed.pipeline(cdc=", history: true").run(spark=tasks)
    feed.assert_true()
    feed.assert_verified()
    assert all(is_remote(job.folder) for job in jobs_of(feed.address))
    wishes = Wishes(Maintain(), retention=timedelta(0), force=True)
    report = maintain(feed.address, jobs_of(feed.address), wishes)
    assert not report.failed, report
    assert report.totals().files_deleted > 0
    feed.assert_true()
    feed.assert_verified()
    for table in feed.pipeline().ledger().tables("changes"):
        assert not any(f.name.endswith(".draft") for f in at(table.path).files())


class _Killed(BaseException):
    """Nobody catches it."""


@pytest.mark.parametrize(
    "moment",
    [KillPoint.BEFORE_MERGE, pytest.param(KillPoint.BEFORE_SETTLE, marks=pytest.mark.slow), None],
)
def test_what_was_cut_short_is_merged_once(
    feed: BucketFeed, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch, moment: KillPoint | None
) -> None:
    feed.send_round()
    feed.pipeline().run(spark=tasks)
    feed.send_all()

    def die(now: object, *args: object) -> None:
        if now is moment:
            raise _Killed

    def half(tasks: SparkSession, lake: Any, merges: Sequence[Any]) -> list[Published]:
        merge_all(tasks, lake, merges[:1])
        raise _Killed

    with monkeypatch.context() as patch:
        if moment is None:
            patch.setattr(merge_step, "merge_all", half)
        patch.setattr("distributary.engine.batch.reached", die)
        patch.setattr(merge_step, "reached", die)
        with pytest.raises(_Killed):
            feed.pipeline().run(spark=tasks)
    feed.pipeline().run(spark=tasks)
    feed.assert_true()
    feed.assert_verified()


@pytest.mark.slow
def test_a_kill_between_log_and_tables_is_harmless(feed: BucketFeed) -> None:
    feed.send_all()
    path = feed.write_file(source=", max_files_per_batch: 4")
    for number, moment in enumerate((KillPoint.AFTER_FIRST_COMMIT, KillPoint.BEFORE_MERGE, None)):
        told = {} if moment is None else {KILL: f"{moment}:{number}"}
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(path)],
            env={**os.environ, **told},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        output, _ = process.communicate(timeout=300)
        assert process.returncode == (0 if moment is None else -signal.SIGKILL), output
        gone(process)
    feed.assert_true()
