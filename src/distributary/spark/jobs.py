"""Names of Spark's jobs, for its own UI, for listeners, and to cancel them by.

A job says which pipeline, batch and step it belongs to: as its description, which the UI shows, and
as tags, which listeners and the status API find. A Connect session has tags only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_DESCRIPTION = "spark.job.description"
_TAGS = "spark.job.tags"
"""Where Spark keeps what `addJobTag` is told, with commas between: set at once, two calls to the
JVM do what a dozen would."""


def context_of(session: SparkSession) -> SparkContext | None:
    """The context of a session of this process; None for one of Spark Connect."""
    try:
        return session.sparkContext
    except PySparkException:
        return None


@contextmanager
def named(
    session: SparkSession, *, pipeline: str, batch: int, step: str, attempt: str = ""
) -> Iterator[None]:
    """Name the jobs that this thread starts; whatever the thread's jobs were called comes back.

    By `attempt` they can be cancelled.
    """
    tags = [f"pipeline:{pipeline}", f"batch:{batch}", f"step:{step}"]
    tags += [attempt_tag(attempt)] if attempt else []
    context = context_of(session)
    if context is None:
        # known to this thread's requests only, and sent with each of them
        for tag in tags:
            session.addTag(tag)
        try:
            yield
        finally:
            for tag in tags:
                session.removeTag(tag)
        return
    before = context.getLocalProperty(_TAGS), context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_TAGS, ",".join([*filter(None, before[:1]), *tags]))
    context.setLocalProperty(_DESCRIPTION, f"{pipeline}, batch {batch}: {step}")
    try:
        yield
    finally:
        context.setLocalProperty(_TAGS, before[0])  # type: ignore[arg-type]
        context.setLocalProperty(_DESCRIPTION, before[1])  # type: ignore[arg-type]


def cancel(session: SparkSession, attempt: str) -> None:
    """Cancel the jobs of an attempt, whichever thread has started them."""
    context = context_of(session)
    if context is None:
        session.interruptTag(attempt_tag(attempt))
    else:
        # the session's own way cancels nothing that another thread has started
        context.cancelJobsWithTag(attempt_tag(attempt))


def attempt_tag(attempt: str) -> str:
    """The tag of all jobs of one attempt at a stage."""
    return f"attempt:{attempt}"
