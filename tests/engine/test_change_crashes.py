"""Change data in a process of its own that is killed, at every step and at any moment."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from distributary.engine import batch
from distributary.engine.kill_points import KILL
from distributary.engine.steps import commits, merges
from distributary_lab.simulate.cdc.shapes import CHAOS, CdcPlan, Feature
from tests.engine.test_crashes import RUN, SMALL, gone, kill_in_a_batch
from tests.lakes.changes import CHANGE_MOMENTS, Feed, events_left, rows_in


def _start(feed: Feed, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(feed.root / "changes.yaml")],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def _run(feed: Feed, **variables: str) -> tuple[subprocess.Popen[str], str]:
    process = _start(feed, **variables)
    output, _ = process.communicate(timeout=300)
    return process, output


@pytest.mark.spark
@pytest.mark.slow
def test_a_kill_at_each_step_is_harmless(tmp_path: Path) -> None:
    feed = Feed(tmp_path, CdcPlan(tables=3, events=120, rows=3, features=CHAOS, file_events=12))
    feed.send_all()
    feed.write_file(source=", max_files_per_batch: 4", extra=SMALL)
    for number, moment in enumerate(CHANGE_MOMENTS):
        killed, output = _run(feed, **{KILL: f"{moment}:{number}"})
        assert killed.returncode == -signal.SIGKILL, output
        assert "summary" not in output
    last, output = _run(feed)
    assert last.returncode == 0, output
    feed.assert_true()
    gone(killed)


@pytest.mark.spark
@pytest.mark.slow
def test_kills_at_random_moments_are_harmless(tmp_path: Path) -> None:
    feed = Feed(tmp_path, CdcPlan(tables=4, events=300, rows=3, features=CHAOS, file_events=10))
    feed.send_all()
    feed.write_file(source=", max_files_per_batch: 6", extra=SMALL)
    dice = random.Random(11)
    for _ in range(3):
        kill_in_a_batch(_start(feed), after=dice.uniform(0.0, 2.0))
    last, output = _run(feed)
    assert last.returncode == 0, output
    feed.assert_true()


class _Killed(BaseException):
    """Nobody catches it: what is done up to here is on disk, nothing else happens."""


def test_without_a_log_a_crash_at_each_step_is_harmless_and_no_event_is_left(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = frozenset({Feature.KEY_CHANGES, Feature.LATE_UPDATES, Feature.DUPLICATES})
    feed = Feed(tmp_path, CdcPlan(tables=2, events=80, rows=3, rounds=8, features=features))

    def run() -> None:
        feed.pipeline(cdc=", log: false, deletes: soft").run(spark=spark)

    for moment in [*CHANGE_MOMENTS, None]:
        feed.send_round()

        def die(now: object = None, *args: object, wanted: object = moment) -> None:
            if wanted is None or now is wanted:
                raise _Killed

        with monkeypatch.context() as patch:
            if moment is None:
                patch.setattr(batch, "forget_merged", die)
            for module in (batch, commits, merges):
                patch.setattr(module, "reached", die if moment else lambda *args: None)
            with pytest.raises(_Killed):
                run()
    feed.send_all()
    run()
    assert not list(feed.lake.glob("*_log"))
    logs = sorted((feed.lake / "_distributary" / "changes").iterdir())
    assert [path.name for path in logs] == ["shop_orders_log", "shop_users_log"]
    assert [rows_in(path) for path in logs] == [0, 0]
    assert events_left(feed.lake) == []
    for claim, expected in feed.stream.model.truth().items():
        found = [row for row in feed.rows(f"shop_{claim.table}") if not row["_deleted"]]
        feed.assert_same_rows(claim, found, expected)
