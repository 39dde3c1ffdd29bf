"""Requests to the owner of a checkpoint: `resume` of parked tables, and `rebuild`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from distributary.changes.aggregate_tables import merge_aggregates
from distributary.changes.merge_order import MergeOrder, Undecided
from distributary.changes.rebuild import rebuild
from distributary.config.cdc import MergeConfig
from distributary.config.pipeline_config import PipelineConfig
from distributary.delta.log import snapshot_of
from distributary.engine.planning.strategies import strategy_of
from distributary.engine.planning.table_book import (
    LOG,
    derived_columns,
    log_of,
    merge_config,
    relatives,
    source_columns,
    table_folder,
)
from distributary.engine.progress.recovery import accept_rebuilt
from distributary.engine.steps.aggregate_commits import (
    follow_now,
    listed_order,
    publish_waiting_aggregate,
)
from distributary.engine.steps.merges import merge_of, publish_waiting
from distributary.errors import ConfigError, DistributaryError, ErrorCode
from distributary.model.manifest import Mark, TableEntry
from distributary.model.table import Column, Role, TablePlan
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.observe.ledger.recording import batch_key
from distributary.publish.base import Outcome, Published, Publisher
from distributary.publish.parking import ParkedBatch, parked
from distributary.publish.parking import resume as drain
from distributary.stage.task_outputs import DATE, metadata_plan
from distributary.store.base import Store, at, reaching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_SUFFIX = ".resume"
FIRST_WAIT, LONGEST_WAIT = 30.0, 900.0
"""The shortest and the longest pause, in seconds, between attempts to resume a table."""


@dataclass(slots=True)
class _Turn:
    at: float
    wait: float


class RetryAges:
    """The times at which a run retries its parked tables, at growing intervals."""

    def __init__(
        self, folder: str, config: PipelineConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._config, self._clock = folder, config, clock
        self._turns: dict[str, _Turn] = {}
        # the cause may have passed since an earlier process parked them
        self._first_look = True

    def due(self, *, everything: bool = False) -> list[str]:
        """Return the tables that are due; merged tables count with their logs."""
        now = self._clock()
        try:
            waiting = {family(self._config, name)[0] for name in at(self._folder).folders()}
        except OSError:
            # a batch will report the same error
            return []
        self._turns = {name: turn for name, turn in self._turns.items() if name in waiting}
        for name in waiting - self._turns.keys():
            self._turns[name] = _Turn(now if self._first_look else now + FIRST_WAIT, FIRST_WAIT)
        self._first_look = False
        return sorted(n for n, turn in self._turns.items() if everything or turn.at <= now)

    def tried(self, name: str) -> None:
        """Note an attempt for a table; the pause before the next one grows."""
        turn = self._turns[name]
        turn.at = self._clock() + turn.wait
        turn.wait = min(turn.wait * 2, LONGEST_WAIT)


def family(config: PipelineConfig, table: str) -> tuple[str, ...]:
    """Return the tables that are resumed together: a log, then the tables merged from it."""
    return relatives(table) if strategy_of(config).merges else (table,)


def drained(
    publisher: Publisher,
    ledger: Ledger,
    folder: str,
    *,
    config: PipelineConfig,
    table: str,
    spark: SparkSession | None = None,
    undecided: Undecided = "refuse",
) -> list[Published]:
    """Publish the parked batches of a table and of its log, and record it in the ledger."""
    done: list[Published] = []
    for name in family(config, table):
        done += _drained(
            publisher, ledger, folder, config=config, name=name, spark=spark, undecided=undecided
        )
        if strategy_of(config).merges and done and done[-1].outcome is Outcome.PARKED:
            # a log comes before its table, and a table before its history
            return done
    for name in _following(config, folder, family(config, table)):
        done += _drained(publisher, ledger, folder, config=config, name=name)
    return done


def _following(config: PipelineConfig, folder: str, names: Collection[str]) -> list[str]:
    """Return the aggregate tables of some tables that wait."""
    if not config.aggregates:
        return []
    waiting = parked(folder)
    return list(dict.fromkeys(p.table for p in waiting if p.entry.table.source in names))


def _drained(
    publisher: Publisher,
    ledger: Ledger,
    folder: str,
    *,
    config: PipelineConfig,
    name: str,
    spark: SparkSession | None = None,
    undecided: Undecided = "refuse",
) -> list[Published]:
    """Drain the queue of one table."""
    waiting = parked(folder, table=name)
    # a batch is decided only when the one before is settled: only the last may be unsettled
    last = {batch.mark.app_id: batch.mark.batch for batch in waiting}

    def is_settled(batch: ParkedBatch) -> bool:
        app_id, number = batch.mark.app_id, batch.mark.batch
        if number < last.get(app_id, -1):
            return True
        return ledger.settled(*batch_key(app_id, number)) is not None

    def publish(entry: TableEntry, mark: Mark) -> Published:
        if entry.table.role is Role.AGGREGATE:
            return publish_waiting_aggregate(config, entry, mark)
        return publish_waiting(publisher, config, entry, mark, spark=spark, undecided=undecided)

    if not waiting:
        return []
    return drain(
        publisher,
        publish=publish,
        folder=folder,
        table=name,
        lake=config.lake.address,
        is_settled=is_settled,
        on_published=lambda batch, result: ledger.record_resumed(
            batch.mark.app_id, batch.entry, result, batch=batch.mark.batch
        ),
    )


def requests(folder: str) -> list[str]:
    """Return the tables that the owner is requested to resume."""
    return [name.removesuffix(_SUFFIX) for name in _asked(at(folder), _SUFFIX)]


def _asked(parking: Store, suffix: str) -> list[str]:
    """Return the request files of one kind."""
    with reaching(parking.address):
        return sorted(file.name for file in parking.files() if file.name.endswith(suffix))


def undecided_of(folder: str, table: str) -> Undecided:
    """Read an operator's decision about a source that went back."""
    try:
        word = at(folder).read(request_name(table))
    except FileNotFoundError:
        return "refuse"
    known: dict[bytes, Undecided] = {b"replaced": "replaced", b"repeated": "repeated"}
    return known.get(word, "refuse")


def answered(folder: str, table: str) -> None:
    """Remove a request that the owner has handled."""
    at(folder).remove(request_name(table))


def request_name(table: str) -> str:
    """Return the name of a request file in the parking folder."""
    return f"{table}{_SUFFIX}"


# A merged table with its log, for rebuilding it and comparing it as a whole.

_NO_BATCH = Mark("", -1, "")
"""The batch number for a whole rebuild, which sets no mark."""


@dataclass(frozen=True, slots=True)
class FromLog:
    """A merged table, and the order that rebuilds it."""

    table: str
    log: str
    """The name of its log."""
    log_path: str
    order: MergeOrder


def merged_table(config: PipelineConfig, known: TableSummary, publisher: Publisher) -> FromLog:
    """Return the parts for building a table again. Raises ConfigError if impossible."""
    how = merge_config(config, known.table)
    if known.role != Role.MERGED or how is None:
        raise _not_merged(known)
    if not how.log:
        raise ConfigError(
            "there is no log from which this table could be recomputed",
            where="cdc.log",
            evidence=f"table {known.table}",
            next_step="set cdc.log to true; the log then has the events that are read from now on",
        )
    log, path = log_of(known.table), table_folder(config, known.table)
    log_path = table_folder(config, log)
    logged = publisher.current_columns(log_path)
    if logged is None:
        raise ConfigError(
            f"table {known.table} has no log",
            code=ErrorCode.NOT_FOUND,
            where=log_path,
            next_step="the log was removed: `distributary reset FILE --with-tables` starts over",
        )
    have = publisher.current_columns(path)
    source = _columns(config, how, logged.columns, None if have is None else have.columns)
    plan = TablePlan(
        name=known.table,
        role=Role.MERGED,
        type=known.type,
        path=path,
        columns=derived_columns(source, known.table, Role.MERGED, how),
        comment=f"records of type {known.type}, pipeline {config.name}",
    )
    entry = TableEntry(table=plan, files=(), records=0)
    order = merge_of(config, how, entry, _NO_BATCH, ())
    return FromLog(known.table, log, log_path, order)


def _columns(
    config: PipelineConfig,
    how: MergeConfig,
    log: Sequence[Column],
    have: Sequence[Column] | None,
) -> tuple[Column, ...]:
    """Return the log's columns; a table that does not follow its log keeps its own."""
    own = {column.name for column in (*metadata_plan(config.tables.metadata), DATE)}
    if have is None or how.evolution == "mergeSchema":
        return source_columns(log, own)
    return source_columns(have, own)


def _not_merged(known: TableSummary) -> ConfigError:
    if known.role in (Role.LOG, Role.HISTORY):
        name = log_of(known.table).removesuffix(LOG)
        hint = f"name the table of the current rows, {name}"
    else:
        hint = (
            "only tables of change data and those with a key are made of a log: "
            "`distributary tables` says which"
        )
    return ConfigError(
        f"{known.table} is not a merged table",
        where=known.path,
        evidence=f"its role is {known.role}",
        next_step=hint,
    )


# `rebuild` by the owner of the checkpoint. A request is a file `<table>.rebuild` beside the parked
# tables, its answer a file `<table>.rebuilt`.

_REQUEST, _ANSWER = ".rebuild", ".rebuilt"
_LONGEST_ERROR = 500


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of rebuilding a table."""

    table: str
    log: str
    rows: int
    version: int
    """The table's version; -1 if there is no table and no row for one."""
    seconds: float
    by_owner: bool = False
    """Whether the running pipeline has rebuilt the table."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the owner to build a table again."""

    parking: Store
    table: str
    id: str
    as_of_us: int | None = None

    def send(self) -> None:
        """Write the request file."""
        body = {"id": self.id, "as_of_us": self.as_of_us}
        with reaching(self.parking.address):
            self.parking.write(f"{self.table}{_REQUEST}", json.dumps(body).encode())

    def withdraw(self) -> None:
        """Remove the request."""
        self.parking.remove(f"{self.table}{_REQUEST}")

    def answer(self) -> dict[str, Any] | None:
        """Return the owner's answer: `rebuilt` or `error`; None so far."""
        name = f"{self.table}{_ANSWER}"
        try:
            answer: dict[str, Any] = json.loads(self.parking.read(name))
        except (FileNotFoundError, ValueError):
            return None
        if answer.get("id") != self.id:
            return None
        self.parking.remove(name)
        return answer


def wanted(folder: str) -> list[str]:
    """Return the requested tables."""
    return [name.removesuffix(_REQUEST) for name in _asked(at(folder), _REQUEST)]


def answer_requests(
    config: PipelineConfig, ledger: Ledger, publisher: Publisher, folder: str
) -> None:
    """Build the requested tables."""
    parking = at(folder)
    for table in wanted(folder):
        answer = _answer(config, ledger, publisher, parking, table)
        with reaching(folder):
            parking.write(f"{table}{_ANSWER}", json.dumps(answer).encode())
            parking.remove(f"{table}{_REQUEST}")


def rebuild_now(
    config: PipelineConfig,
    ledger: Ledger,
    known: TableSummary,
    publisher: Publisher,
    *,
    as_of_us: int | None,
) -> Rebuilt:
    """Rebuild a table; the caller owns the checkpoint."""
    if known.role == Role.AGGREGATE:
        return _computed_now(config, ledger, known)
    target = merged_table(config, known, publisher)
    started = time.perf_counter()
    version, rows = rebuild(target.log_path, target.order, as_of_us=as_of_us)
    seconds = time.perf_counter() - started
    accept_rebuilt(config, ledger, target.table, version)
    follow_now(config, ledger, target.table)
    return Rebuilt(target.table, target.log, rows, version, seconds)


def _computed_now(config: PipelineConfig, ledger: Ledger, known: TableSummary) -> Rebuilt:
    """Group the rows of a table again, all of them."""
    order = listed_order(config, known, whole=True)
    started = time.perf_counter()
    version = merge_aggregates(order).version
    seconds = time.perf_counter() - started
    accept_rebuilt(config, ledger, known.table, version)
    table = snapshot_of(order.path)
    rows = 0 if table is None else table.count or 0
    return Rebuilt(known.table, order.source, rows, version, seconds)


def _answer(
    config: PipelineConfig, ledger: Ledger, publisher: Publisher, parking: Store, name: str
) -> dict[str, object]:
    number = ""
    try:
        request = json.loads(parking.read(f"{name}{_REQUEST}"))
        number, as_of_us = str(request["id"]), request["as_of_us"]
        known = next((t for t in ledger.tables(config.name) if t.table == name), None)
        if known is None:
            raise ConfigError("there is no such table", code=ErrorCode.NOT_FOUND, where=name)
        done = rebuild_now(config, ledger, known, publisher, as_of_us=as_of_us)
    except (DistributaryError, ValueError, KeyError, TypeError, OSError) as error:
        # a request that fails must not stop the pipeline
        text = f"{error.code}: {error.what}" if isinstance(error, DistributaryError) else str(error)
        return {"id": number, "error": text[:_LONGEST_ERROR]}
    return {"id": number, "rebuilt": asdict(done)}
