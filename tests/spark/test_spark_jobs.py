"""Spark's own pages and listeners see which pipeline, batch and step a job belongs to."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from distributary.spark.session import cancel, named
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import TABLES, Games


class Connect:
    """What a session of Spark Connect has and a classic one has not, and the other way round."""

    def __init__(self) -> None:
        self.tags: set[str] = set()
        self.interrupted: list[str] = []
        self.addTag, self.removeTag = self.tags.add, self.tags.remove
        self.interruptTag = self.interrupted.append

    @property
    def sparkContext(self) -> Any:
        raise PySparkException("there is none")


def jobs(spark: SparkSession) -> dict[int, tuple[str, set[str]]]:
    """Description and tags of all jobs, as a listener was told of them."""
    scala: Any = spark.sparkContext._jsc.sc()
    scala.listenerBus().waitUntilEmpty()
    found = scala.statusStore().jobsList(None)
    listed = [found.apply(number) for number in range(found.size())]
    return {
        job.jobId(): (
            job.description().get() if job.description().isDefined() else "",
            {job.jobTags().apply(n) for n in range(job.jobTags().size())},
        )
        for job in listed
    }


@pytest.mark.spark
def test_jobs_of_a_run_say_what_they_are_for(tmp_path: Path, spark: SparkSession) -> None:
    before = jobs(spark)
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=6))
    games.send_all()
    games.pipeline(tables=TABLES).run(spark=spark)
    ran = [job for number, job in jobs(spark).items() if number not in before]
    described = {description for description, _ in ran if description}
    assert {"games, batch 0: sort", "games, batch 0: land"} <= described
    (tags,) = [tags for description, tags in ran if description == "games, batch 0: sort"]
    assert {"pipeline:games", "batch:0", "step:sort"} <= tags
    # the session is the user's: what is done with it afterwards bears no name of ours
    spark.range(3).collect()
    last = jobs(spark)[max(jobs(spark))]
    assert not any(tag.startswith("pipeline:") for tag in last[1])
    assert "games" not in last[0]


@pytest.mark.spark
def test_what_the_user_called_the_jobs_of_the_thread_comes_back(spark: SparkSession) -> None:
    context = spark.sparkContext
    context.setLocalProperty("spark.job.description", "mine")
    context.addJobTag("mine")
    try:
        with named(spark, pipeline="p", batch=1, step="sort", attempt="a"):
            expected = {"mine", "pipeline:p", "batch:1", "step:sort", "attempt:a"}
            assert set(context.getJobTags()) == expected
            assert context.getLocalProperty("spark.job.description") == "p, batch 1: sort"
        assert set(context.getJobTags()) == {"mine"}
        assert context.getLocalProperty("spark.job.description") == "mine"
    finally:
        context.clearJobTags()
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


@pytest.mark.spark
def test_an_attempt_is_cancelled_by_another_thread(spark: SparkSession) -> None:
    begun, failed = Event(), Event()

    def slow(rows: Any) -> Any:
        time.sleep(120)
        return rows

    def run() -> None:
        with named(spark, pipeline="p", batch=1, step="sort", attempt="cancelled"):
            begun.set()
            try:
                spark.range(0, 2, 1, 2).mapInArrow(slow, "id long").toArrow()
            except Exception:
                failed.set()

    thread = Thread(target=run)
    thread.start()
    assert begun.wait(60)
    until = time.monotonic() + 60
    while not failed.is_set() and time.monotonic() < until:
        cancel(spark, "cancelled")
        failed.wait(0.2)
    thread.join(60)
    assert failed.is_set()


def test_a_session_of_connect_is_told_by_tags() -> None:
    session: Any = Connect()
    session.tags.add("mine")
    with named(session, pipeline="p", batch=7, step="land", attempt="a"):
        assert session.tags == {"mine", "pipeline:p", "batch:7", "step:land", "attempt:a"}
    assert session.tags == {"mine"}
    cancel(session, "a")
    assert session.interrupted == ["attempt:a"]
