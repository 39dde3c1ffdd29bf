"""The owner's part of `resume`: publish what waits for a table, on its own or when asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from distributary.config.pipeline import PipelineConfig
from distributary.observe.ledger import Ledger
from distributary.publish.base import Outcome, Published, Publisher
from distributary.publish.parking import parked
from distributary.publish.parking import resume as drain
from distributary.run.change_tables import log_of, relatives
from distributary.run.merging import MergingPublisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SUFFIX = ".resume"


def family(config: PipelineConfig, table: str) -> tuple[str, ...]:
    """The tables that are resumed with a table: of change data its log, which comes first."""
    return (table,) if config.cdc is None else relatives(table)


def drained(
    publisher: Publisher,
    ledger: Ledger,
    folder: str,
    *,
    config: PipelineConfig,
    table: str,
    spark: SparkSession | None = None,
) -> list[Published]:
    """Drain the queues of a table and of its log, and say so in the ledger."""
    done: list[Published] = []
    for name in family(config, table):
        if not parked(folder, table=name):
            continue
        done += drain(
            MergingPublisher(publisher, config, spark=spark),
            folder=folder,
            table=name,
            on_published=lambda batch, result: ledger.record_resumed(
                batch.mark.app_id, batch.entry, result, batch=batch.mark.batch
            ),
        )
        if name == log_of(name) and done[-1].outcome is Outcome.PARKED:
            # what is made of a log cannot be ahead of it
            break
    return done


def requests(folder: str) -> list[str]:
    """Tables that somebody has asked the owner to resume."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in Path(folder).glob(f"*{_SUFFIX}"))


def answered(folder: str, table: str) -> None:
    """The owner has done what it could."""
    request_file(folder, table).unlink(missing_ok=True)


def request_file(folder: str, table: str) -> Path:
    """The file by which the owner is asked."""
    return Path(folder) / f"{table}{_SUFFIX}"
