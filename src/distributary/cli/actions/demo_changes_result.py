"""What a demo of change data has made: tables, against their logs and against the database."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from distributary.cli.actions.change_status import kinds
from distributary.cli.actions.demo_folder import DemoFolder
from distributary.cli.actions.demo_result import added_later
from distributary.cli.actions.demo_truth import Held, held
from distributary.cli.output import Paper, Words, styled
from distributary.cli.words import counted, duration, listed, number
from distributary.model.manifest import Counts
from distributary.model.table import Role
from distributary.observe.delta import open_table, read_rows
from distributary.observe.ledger import Ledger
from distributary.observe.measured import with_measures
from distributary.observe.rows import TableSummary
from distributary.run.pipeline import Pipeline
from distributary.run.verifying import verify_table
from distributary.simulate.cdc import CdcSent, FileStream

_SHOWN = 25


@dataclass(frozen=True, slots=True)
class ChangedTable:
    """One table of the database, as it came to the lake."""

    type: str
    table: str
    log: str
    events: int
    rows: int | None
    """None where there is only a log."""
    changes: Mapping[str, int]
    columns_added: tuple[str, ...]
    appeared: int
    """The batch in which it was first seen."""
    agrees: bool
    """With its log."""
    truth: Held | None
    """None for a table without a key."""

    @property
    def is_right(self) -> bool:
        """By the log and by the database."""
        return self.agrees and (self.truth is None or not self.truth.wrong)


@dataclass(frozen=True, slots=True)
class ChangesResult:
    """The figures and the tables."""

    lake: str
    file: str
    counts: Counts
    tables: tuple[ChangedTable, ...]
    batches: int
    seconds: float
    example: tuple[str, str] | None
    """A table, and the key of a row with a story."""
    sent: CdcSent

    @property
    def is_exact(self) -> bool:
        """Whether every event is in its log once, and every table is what the database is."""
        wanted = Counts(self.sent.events, self.sent.distinct, skipped=self.sent.duplicates)
        logs = {table.type: table.events for table in self.tables}
        right = all(table.is_right for table in self.tables)
        return right and self.counts == wanted and logs == self.sent.per_table

    @property
    def complaint(self) -> str:
        """What it should have been."""
        wrong = [table.table for table in self.tables if not table.is_right]
        about = f"; not what they should be: {listed(wrong)}" if wrong else ""
        return f"sent were {self.sent.distinct:,} events and {self.sent.duplicates:,} copies{about}"

    def as_dict(self) -> dict[str, Any]:
        """The documented shape for `--json`."""
        return {
            "lake": self.lake,
            "file": self.file,
            **asdict(self.counts),
            "equation": self.counts.equation(),
            "exact": self.is_exact,
            "redelivered": self.sent.duplicates,
            "tables": [asdict(table) for table in self.tables],
            "batches": self.batches,
            "seconds": round(self.seconds, 3),
        }

    def draw(self, paper: Paper, where: str) -> None:
        """The tables, what was proved, the equation, and what to type next."""
        paper.table(
            ("TABLE", "EVENTS", "ROWS", "DELETED", "CHECKED", "ADDED WHILE RUNNING"),
            (_cells(table) for table in self.tables[:_SHOWN]),
            right=("EVENTS", "ROWS", "DELETED"),
            indent=0,
        )
        if len(self.tables) > _SHOWN:
            paper.line(f"and {counted(len(self.tables) - _SHOWN, 'more table')}")
        paper.line("")
        self._draw_proof(paper)
        paper.line(styled(self.counts.equation(), "bold green" if self.is_exact else "bold red"))
        paper.line("")
        paper.line(styled("Type next:", "dim"))
        for command in self._commands():
            paper.line(f"  distributary {command} --lake {where}")

    def _draw_proof(self, paper: Paper) -> None:
        keyed = [table for table in self.tables if table.truth is not None]
        agree = sum(table.agrees for table in keyed)
        true = sum(table.is_right for table in keyed)
        rows = sum(table.truth.rows for table in keyed if table.truth)
        copies = counted(self.sent.duplicates, "re-delivery", "re-deliveries")
        late = counted(self.sent.late_files, "late file")
        changes = Counter[str]()
        for table in self.tables:
            changes.update(table.changes)
        paper.line(kinds(changes))
        paper.line(
            f"{copies} dropped, {late}, {counted(self.batches, 'batch', 'batches')}, "
            f"{duration(self.seconds)}"
        )
        paper.line(f"{agree} of {counted(len(keyed), 'table')} agree with their logs, row by row")
        paper.line(f"{true} of {len(keyed)} are what the database holds: {counted(rows, 'row')}")

    def _commands(self) -> list[str]:
        traced = [f"trace {self.example[0]} {self.example[1]}"] if self.example else []
        rebuilt = [f"rebuild {self.example[0]} --dry-run"] if self.example else []
        return ["status", "verify --all", *traced, *rebuilt]


def _cells(table: ChangedTable) -> list[Words]:
    new = [f"the table, in batch {table.appeared}"] if table.appeared else []
    columns = [listed((f"+ {name}" for name in table.columns_added), most=3)]
    checked = styled("log only" if table.truth is None else "agrees", "green")
    if not table.is_right:
        wrong = "differs from its log" if not table.agrees else f"{table.truth} is not true"
        checked = styled(wrong, "bold red")
    return [
        table.table,
        number(table.events),
        number(table.rows),
        number(table.changes.get("delete", 0)),
        checked,
        ", ".join(filter(None, new + columns)),
    ]


def gather_changes(folder: DemoFolder, stream: FileStream, *, seconds: float) -> ChangesResult:
    """Everything from the lake, held against the simulated database."""
    lake, name = str(folder.path), folder.scene.subject
    ledger = Ledger(lake)
    known = with_measures(lake, ledger.tables(name))
    batches = ledger.batches(name)
    tables = _tables(folder, ledger, known, stream)
    return ChangesResult(
        lake=lake,
        file=str(folder.file),
        counts=ledger.totals(name),
        tables=tables,
        batches=len(batches),
        seconds=seconds,
        example=_example(folder, tables, stream),
        sent=stream.sent(),
    )


def _tables(
    folder: DemoFolder, ledger: Ledger, known: Sequence[TableSummary], stream: FileStream
) -> tuple[ChangedTable, ...]:
    pipeline = Pipeline.load(folder.file)
    history = ledger.schema_history(pipeline=folder.scene.subject)
    appeared: dict[str, int] = {}
    for row in history:
        appeared[row.type] = min(row.batch, appeared.get(row.type, row.batch))
    added: dict[str, list[str]] = defaultdict(list)
    for row in added_later(history):
        added[row.table].append(row.column)
    logs = {t.type: t for t in known if t.role == Role.LOG}
    merged = {t.type: t for t in known if t.role == Role.MERGED}
    truth = held(stream.model, folder.path, {kind: t.table for kind, t in merged.items()})
    return tuple(
        ChangedTable(
            type=kind,
            table=merged[kind].table,
            log=log.table,
            events=log.rows or 0,
            rows=merged[kind].rows,
            changes=dict(log.changes),
            columns_added=tuple(added[log.table]),
            appeared=appeared.get(kind, 0),
            agrees=verify_table(pipeline, merged[kind]).verified.agrees,
            truth=truth.get(kind),
        )
        for kind, log in sorted(logs.items(), key=lambda item: item[1].table)
        if kind in merged
    )


def _example(
    folder: DemoFolder, tables: Sequence[ChangedTable], stream: FileStream
) -> tuple[str, str] | None:
    """The row that is still there and of which most was told, of a table with a simple key."""
    keys = {table.shape.claim.text: table.shape.key for table in stream.model.told}
    simple = [t for t in tables if len(keys.get(t.type, ())) == 1 and t.rows]
    if not simple:
        return None
    table = next((t for t in simple if t.table.endswith("_orders")), simple[0])
    (key,) = keys[table.type]
    told, there = (_column(folder, name, key) for name in (table.log, table.table))
    counts = {each["values"]: each["counts"] for each in told.value_counts().to_pylist()}
    alive = sorted(
        there.to_pylist(),
        # a key that begins with a minus looks like an option
        key=lambda value: (str(value).startswith("-"), -counts.get(value, 0), str(value)),
    )
    return table.table, f"{key}={alive[0]}"


def _column(folder: DemoFolder, table: str, name: str) -> pa.ChunkedArray:
    found = open_table(str(folder.path / table))
    if found is None:
        return pa.chunked_array([], pa.string())
    return read_rows(found, columns=[name]).column(name)
