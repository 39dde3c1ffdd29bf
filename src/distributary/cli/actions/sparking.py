"""Starting Spark for a command: people are told, and its log goes to the command's log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from distributary.cli.logs import shown_while_written
from distributary.cli.output import EVERYTHING
from distributary.cli.verb import Invocation
from distributary.engine.pipeline import Pipeline
from distributary.spark.jars import Progress
from distributary.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def start_spark(
    call: Invocation, pipeline: Pipeline, *, tell: Progress | None = None, short_lived: bool = True
) -> Iterator[SparkSession]:
    """A session for this pipeline; with `-vv` Spark's log is shown as it is written.

    Args:
        call: the command.
        pipeline: whose settings hold.
        tell: who hears what is being done; whoever reads standard error, when left out.
        short_lived: whether to start quickly rather than to compute quickly.
    """
    say = tell or call.out.note
    loud = call.out.verbosity >= EVERYTHING
    settings = replace(
        pipeline.spark_settings(),
        log_file=call.log.path,
        log_level="INFO" if loud else "WARN",
        short_lived=short_lived,
    )
    with ExitStack() as stack:
        if loud:
            stack.enter_context(shown_while_written(call.log.path, sys.stderr))
        began = time.monotonic()
        say("starting Spark")
        call.out.step(f"log {call.log.path}")
        session = spark_session(settings, app_name=pipeline.config.name, progress=say)
        say(f"Spark started in {time.monotonic() - began:.1f} s")
        yield session
