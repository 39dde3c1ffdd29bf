"""What a demo has made, read from the lake and held against what was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from distributary.cli.actions.demo_folder import DemoFolder
from distributary.cli.actions.demo_scene import Scene
from distributary.cli.output import Paper, styled
from distributary.cli.words import counted, duration, number, size
from distributary.model.manifest import Counts
from distributary.model.table import ChangeKind, Role
from distributary.observe.deadletters import DeadLetters
from distributary.observe.ledger import Ledger
from distributary.observe.rows import SchemaRow, TableSummary
from distributary.simulate import Sent

_SHOWN = 25
_ADDED = frozenset({ChangeKind.COLUMN_ADDED, ChangeKind.SIDE_COLUMN_ADDED})


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The figures and the tables."""

    lake: str
    file: str
    topic: str
    example: str
    """A record that is worth being looked for, as `trace` wants it."""
    counts: Counts
    tables: tuple[TableSummary, ...]
    dead_letters: Mapping[str, int]
    schema_changes: int
    added: Mapping[str, int]
    """Columns that appeared after a table was made, by table."""
    batches: int
    seconds: float
    sent: Sent

    @property
    def is_exact(self) -> bool:
        """Whether everything that was sent is where it belongs, and nothing else is."""
        wanted = Counts(self.sent.messages, self.sent.good, self.sent.bad)
        rows = sum(table.rows or 0 for table in self.tables if table.role == Role.EACH)
        exact = self.counts == wanted and rows == self.sent.rows
        return exact and dict(self.dead_letters) == self.sent.bad_by_code

    @property
    def complaint(self) -> str:
        """What it should have been."""
        return f"sent were {self.sent.good:,} good and {self.sent.bad:,} bad records"

    def as_dict(self) -> dict[str, Any]:
        """The documented shape for `--json`."""
        return {
            "lake": self.lake,
            "file": self.file,
            "topic": self.topic,
            **asdict(self.counts),
            "rows": self.sent.rows,
            "equation": self.counts.equation(),
            "exact": self.is_exact,
            "tables": [
                {
                    "name": t.table,
                    "role": t.role,
                    "type": t.type,
                    "rows": t.rows,
                    "columns": t.columns,
                    "columns_added": self.added.get(t.table, 0),
                    "schema_ids": t.schema_ids,
                }
                for t in self.tables
            ],
            "dead_letters": dict(self.dead_letters),
            "schema_changes": self.schema_changes,
            "batches": self.batches,
            "seconds": round(self.seconds, 3),
        }

    def draw(self, paper: Paper, where: str) -> None:
        """The tables, what went wrong, the equation, and what to type next."""
        paper.table(
            ("TABLE", "ROWS", "COLUMNS", "ADDED WHILE RUNNING", "SIZE"),
            (
                (
                    t.table,
                    number(t.rows),
                    number(t.columns),
                    f"+ {self.added[t.table]}" if self.added.get(t.table) else "",
                    size(t.bytes),
                )
                for t in self.tables[:_SHOWN]
            ),
            right=("ROWS", "COLUMNS", "SIZE"),
            indent=0,
        )
        if len(self.tables) > _SHOWN:
            paper.line(f"and {counted(len(self.tables) - _SHOWN, 'more table')}")
        paper.line("")
        for code, count in sorted(self.dead_letters.items()):
            paper.line(f"{counted(count, 'dead letter')}: {code}")
        paper.line(
            f"{counted(self.schema_changes, 'schema change')} in "
            f"{counted(self.batches, 'batch', 'batches')}, {duration(self.seconds)}"
        )
        paper.line(styled(self.counts.equation(), "bold green" if self.is_exact else "bold red"))
        paper.line("")
        paper.line(styled("Type next:", "dim"))
        for command in ("status", "dlq list", f"trace {self.example}"):
            paper.line(f"  distributary {command} --lake {where}")


def gather(folder: DemoFolder, scene: Scene, sent: Sent, *, seconds: float) -> DemoResult:
    """Everything from the ledger, as any other command would read it."""
    lake, pipeline = str(folder.path), scene.subject
    ledger = Ledger(lake)
    tables = ledger.tables(pipeline)
    history = ledger.schema_history(pipeline=pipeline)
    letters = next((t.path for t in tables if t.role == "dead_letters"), None)
    reasons = DeadLetters(letters).reasons(pipeline=pipeline) if letters else ()
    return DemoResult(
        lake=lake,
        file=str(folder.file),
        topic=scene.topic,
        example=f"{scene.topic}/0/{scene.example}",
        counts=ledger.totals(pipeline),
        tables=tables,
        dead_letters={reason.code: reason.count for reason in reasons},
        schema_changes=sum(row.kind in set(ChangeKind) for row in history),
        added=Counter(row.table for row in added_later(history)),
        batches=len(ledger.batches(pipeline)),
        seconds=seconds,
        sent=sent,
    )


def added_later(history: Iterable[SchemaRow]) -> list[SchemaRow]:
    """Columns that appeared after their table was made."""
    rows = list(history)
    created = {row.table: row.batch for row in rows if row.kind == ChangeKind.TABLE_CREATED}
    return [r for r in rows if r.kind in _ADDED and r.batch > created.get(r.table, -1)]
