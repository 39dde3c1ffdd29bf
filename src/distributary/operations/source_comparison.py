"""A merged table and the database it comes from: compare them, heal the table, read it again.

Corrected rows enter the log as a batch of a separate lane, as replayed dead letters do. The lane
has its own owner, so a running pipeline continues meanwhile. The events are frozen in a file beside
the checkpoint before the batch is decided. So a command that was killed is finished by the next one
with the same events, and no others.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from distributary.changes.source.base import Database, Moment
from distributary.changes.source.compare import Comparison, Progress, SourceCheck, Wrong
from distributary.changes.source.lake_side import MergedTable
from distributary.changes.source.reads import events_of
from distributary.decode.change.base import METADATA_NAMES
from distributary.delta.parquet import UPLOADS, conform, write_file
from distributary.engine.batch import run_batch
from distributary.engine.context import RunContext
from distributary.engine.pipeline import Pipeline
from distributary.engine.planning.table_book import HISTORY, log_of
from distributary.engine.progress.claim import state_of
from distributary.engine.requests import merged_table
from distributary.engine.seams import make_publisher
from distributary.engine.steps.hops import Stages, stage_order
from distributary.errors import ConfigError, PublishError
from distributary.model import layout
from distributary.model.manifest import READS, SourceRange
from distributary.model.table import Role
from distributary.observe.deadletters import unfinished
from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.publish.base import Outcome
from distributary.source.base import BatchInput
from distributary.stage.job import Staged
from distributary.stage.task_outputs import count_events, file_name
from distributary.store.base import Store, reaching

LANE = READS
_TABLE = b"distributary.table"
"""The metadata of a frozen file: name and type of the table, and the place of the snapshot."""


def comparison(
    pipeline: Pipeline,
    known: TableSummary,
    database: Database,
    *,
    sample: float | None = None,
    progress: Progress = lambda *_: None,
) -> Comparison:
    """Prepare to compare a merged table with its database. Raises ConfigError if it cannot be."""
    target = merged_table(pipeline.config, known, make_publisher(pipeline.config))
    return Comparison(
        MergedTable(target.log_path, target.order),
        database,
        names_of(known),
        sample=sample,
        progress=progress,
        is_running=lambda: state_of(pipeline.checkpoint) == "running",
    )


def names_of(known: TableSummary) -> Sequence[str]:
    """Return the names of a table's source: database, schema, table."""
    try:
        names = json.loads(known.type)
        if isinstance(names, list) and len(names) == 3 and all(isinstance(n, str) for n in names):
            return names
    except ValueError:
        pass
    raise ConfigError(
        f"the source of table {known.table} has no name",
        where=known.path,
        evidence=f"its type is {known.type}",
        next_step="a comparison needs the names of database, schema and table in the events",
    )


# Reading rows of the source into a log.


def heal(
    context: RunContext,
    known: TableSummary,
    compared: Comparison,
    wrong: Wrong,
    moment: Moment,
    *,
    address: str,
) -> int:
    """Bring rows that differ into the log and the tables made of it; return how many."""
    finish(context)
    return _bring(context, known, compared, wrong, moment, address=address)


def _bring(
    context: RunContext,
    known: TableSummary,
    compared: Comparison,
    wrong: Wrong,
    moment: Moment,
    *,
    address: str,
) -> int:
    """Freeze the events of rows, and run them as a batch."""
    if not wrong.count:
        return 0
    events = events_of(
        wrong,
        moment,
        key=compared.key,
        left_out=compared.left_out,
        incarnations=compared.merged.incarnations,
        address=address,
    )
    content_known = json.dumps([known.table, known.type, moment.text]).encode()
    number = max(context.progress.manifests.newest(), context.progress.newest_settled) + 1
    content = pa.BufferOutputStream()
    pq.write_table(events.replace_schema_metadata({_TABLE: content_known}), content)
    place = _place(context)
    with reaching(place.address):
        place.write(_name(number), content.getvalue().to_pybytes())
    _run(context, number)
    return int(events.num_rows)


def is_unfinished(pipeline: Pipeline) -> bool:
    """Return whether an earlier command that read rows of a database was interrupted."""
    return bool(unfinished(pipeline.checkpoint, LANE))


def finish(context: RunContext) -> int:
    """Finish the unfinished batches of earlier commands; return how many."""
    begun = unfinished(context.progress.checkpoint.store, LANE)
    for number in begun:
        _run(context, number)
    return len(begun)


# Reading a whole table again, by ranges of keys, each as of its own position of the log.
#
# As in the paper on DBLog, a row that was read at the low watermark of its range loses to every
# later change of the row, whenever that change arrives. The end of a range is stored when its batch
# is settled.

RANGE_ROWS = 100_000
"""Rows of a range."""


def read_again(
    context: RunContext,
    known: TableSummary,
    compared: Comparison,
    database: Database,
    *,
    patience: float,
    total: int | None = None,
    progress: Progress = lambda *_: None,
) -> tuple[int, SourceCheck]:
    """Read all rows of a table into its log, then heal what is left; return how many rows.

    An interrupted reading continues where it ended. `total` is the number of rows in the source,
    for the progress.
    """
    finish(context)
    place, name = _place(context), f"{layout.folder_name(known.table)}.json"
    state = _progress_of(place, name)
    after, count = state.get("after"), int(state.get("rows", 0))
    progress("read", count, total)
    while True:
        moment = database.open(patience)
        compared.prepare()
        pieces = [*database.read(compared.source, after=_key_values(after), most=RANGE_ROWS)]
        size = sum(piece.num_rows for piece in pieces)
        if size:
            rows = pa.concat_tables([compared.encoded(piece) for piece in pieces])
            wrong = Wrong(rows, rows.select(compared.key).slice(0, 0))
            _bring(context, known, compared, wrong, moment, address=database.address)
            count += size
            after = _key_texts(pieces[-1].slice(pieces[-1].num_rows - 1), compared.source.key)
            with reaching(place.address):
                place.write(name, json.dumps({"after": after, "rows": count}).encode())
            progress("read", count, total)
        if size < RANGE_ROWS:
            break
    # then the rows that only the lake has, and changes that the stream lost with its log
    check, wrong, moment = compared.run(patience=patience)
    _bring(context, known, compared, wrong, moment, address=database.address)
    place.remove(name)
    return count, check


def _progress_of(place: Store, name: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(place.read(name))
    except (FileNotFoundError, ValueError):
        return {}
    return state


def _key_texts(row: pa.Table, key: Sequence[str]) -> dict[str, list[str]]:
    """Write the key of a row as JSON has it: the kind of each value, and its text."""
    values = {name: row.column(name)[0].as_py() for name in key}
    return {
        name: ["hex", value.hex()] if isinstance(value, bytes) else ["text", str(value)]
        for name, value in values.items()
    }


def _key_values(texts: dict[str, list[str]] | None) -> dict[str, object] | None:
    if texts is None:
        return None
    return {
        name: bytes.fromhex(text) if kind == "hex" else text for name, (kind, text) in texts.items()
    }


def _run(context: RunContext, number: int) -> None:
    rows = _frozen(context, number)
    table, _, position = _table_named_by(rows)
    decided = context.progress.manifests.read(number)
    covered = SourceRange(f"{table} of {position}, reads {number}", 0, 0, *([rows.num_rows] * 2))
    source = BatchInput(
        reader=_no_records,
        ranges=decided.ranges if decided is not None else (covered,),
        end={},
    )
    settled = run_batch(context, number, source, stage=_stage)
    # the frozen file marks a batch as unfinished, so it is removed last
    _place(context).remove(_name(number))
    waiting = [p for p in settled.published if p.outcome is Outcome.PARKED]
    if waiting:
        raise PublishError(
            f"the rows of table {table} wait because {waiting[0].table} cannot be written",
            where=context.publishing.parking,
            evidence=waiting[0].error,
            next_step=f"`distributary resume {waiting[0].table}`",
        )


def _stage(context: RunContext, batch: int, source: BatchInput) -> Stages:
    """Write the frozen events into a file of their log."""
    began = time.monotonic()
    events = _frozen(context, batch)
    table, type_, _ = _table_named_by(events)
    name, book = log_of(table), context.planner.book
    log = book.planned(name, Role.LOG, type_)
    if log is None:
        raise ConfigError(f"table {table} has no log", where=name, next_step="run the pipeline")
    for other, role in ((table, Role.MERGED), (f"{table}{HISTORY}", Role.HISTORY)):
        book.planned(other, role, type_)
    order = stage_order(context, batch, source)
    schema = pa.schema([pa.field(column.name, column.type) for column in log.columns])
    arrival = {
        "_topic": pa.repeat(pa.scalar(source.ranges[0].topic), events.num_rows),
        "_partition": pa.repeat(pa.scalar(0, pa.int32()), events.num_rows),
        "_offset": pa.array(range(events.num_rows), pa.int64()),
        "_timestamp": events.column("_source_ts"),
        "_batch": pa.repeat(pa.scalar(batch, pa.int64()), events.num_rows),
        "_date": events.column("_source_ts").cast(pa.date32()),
    }
    for column in METADATA_NAMES:
        if column in arrival and column in schema.names:
            events = events.append_column(column, arrival[column])
    rows = conform(events, schema, rows=events.num_rows, lenient=True)
    file = write_file(
        rows,
        log.path,
        file_name(order),
        first_offset=0,
        last_offset=rows.num_rows - 1,
    )
    UPLOADS.finish()
    staged = Staged(seen=rows.num_rows, records=Counter({name: rows.num_rows}))
    staged.files[name] = [file]
    staged.changes[name] = count_events(name, rows).events
    return Stages(staged, 1, time.monotonic() - began, order.now_us)


def _no_records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read nothing: the events are in a frozen file."""
    del batches
    return iter(())


def _place(context: RunContext) -> Store:
    return context.progress.checkpoint.store.below(LANE)


def _name(number: int) -> str:
    return f"selection-{number:08d}.parquet"


def _frozen(context: RunContext, number: int) -> pa.Table:
    return pq.read_table(pa.BufferReader(_place(context).read(_name(number))))


def _table_named_by(rows: pa.Table) -> tuple[str, str, str]:
    table, type_, position = json.loads(rows.schema.metadata[_TABLE])
    return table, type_, position
