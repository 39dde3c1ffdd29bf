"""The owner's part of `resume`: publish what waits for a table, on its own or when asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distributary.config.pipeline import PipelineConfig
from distributary.observe.ledger import Ledger
from distributary.publish.base import Outcome, Published, Publisher
from distributary.publish.folder import Folder
from distributary.publish.parking import parked
from distributary.publish.parking import resume as drain
from distributary.run.change_tables import log_of, relatives
from distributary.run.merging import MergingPublisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SUFFIX = ".resume"
FIRST_WAIT, LONGEST_WAIT = 30.0, 900.0
"""Seconds between two tries of a run to publish what waits for a table."""


@dataclass(slots=True)
class _Turn:
    at: float
    wait: float


class Patience:
    """When a run tries its parked tables again by itself: less and less often."""

    def __init__(
        self, folder: str, config: PipelineConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._config, self._clock = folder, config, clock
        self._turns: dict[str, _Turn] = {}
        # whatever was the cause when an earlier process parked them may have passed
        self._first_look = True

    def due(self, *, everything: bool = False) -> list[str]:
        """The tables whose turn it is, of change data by their logs."""
        now = self._clock()
        try:
            waiting = {family(self._config, name)[0] for name in Folder(self._folder).folders()}
        except OSError:
            # a batch meets it too, and says so
            return []
        self._turns = {name: turn for name, turn in self._turns.items() if name in waiting}
        for name in waiting - self._turns.keys():
            at = now if self._first_look else now + FIRST_WAIT
            self._turns[name] = _Turn(at, FIRST_WAIT)
        self._first_look = False
        return sorted(n for n, turn in self._turns.items() if everything or turn.at <= now)

    def tried(self, name: str) -> None:
        """A table had its turn; the next one is later, if it still waits then."""
        turn = self._turns[name]
        turn.at = self._clock() + turn.wait
        turn.wait = min(turn.wait * 2, LONGEST_WAIT)


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
            lake=config.lake.address,
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
