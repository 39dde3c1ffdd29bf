"""Keys: tables in which the records with one key become one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from distributary.config.base import (
    Conflict,
    Duration,
    PositiveDuration,
    Section,
    Texts,
    placeholders,
)
from distributary.config.lake import Tables
from distributary.config.rules.expressions import columns_of, valid_expression
from distributary.model.rules.expectation import Action, Rule
from distributary.model.rules.key_rule import MOST_ORDER_COLUMNS, TIME_OF_RECORD, KeyRule
from distributary.model.table_format import TABLE_FORMATS, formats_with

_condition = partial(valid_expression, repeatable=True, constant=False)


_ENDINGS = ("_log", "_history")
_NO_DELETES = {
    "delete_when": "would remove a row whose first record stays",
    "history": "keeps versions, and a first record has one",
}


class KeyedTables(Section):
    """Tables in which the records with one key become one row.

    Every record is appended to `<table>_log`, from which the rows are merged.
    """

    tables: Texts = Field(default=(), examples=[["silver_*"]])
    """Tables with this key, with the wildcards * and ?; all tables per type when left out. The
    first entry that fits a table counts; a table that none fits is appended to."""
    key: Texts = Field(min_length=1, examples=[["player_id"]])
    """Columns of the table that identify a row. A record without a value in one of them is a dead
    letter."""
    order: Texts = Field(default=(), max_length=MOST_ORDER_COLUMNS, examples=[["updated_at"]])
    """Columns that decide which record is newer, the first one before the others: whole or floating
    numbers, times, dates, and a text as the last one. `_timestamp` is the record's timestamp. If
    all are equal, or none is given, the record with the higher offset is newer; of files, the one
    in the later file, then in the later line or row."""
    mode: Literal["upsert", "dedup"] = "upsert"
    """upsert: the newest record of a key is its row; dedup: the first one stays."""
    horizon: PositiveDuration | None = Field(default=None, examples=["7d"])
    """With mode: dedup, the length of the windows of time in which the first record of a key
    stays; a copy in a later window is another row. Windows follow each other since 1970 (UTC). A
    record is in one by the first column of `order`, if that is a time or a day, else by its
    timestamp. When left out, a copy is found however late it comes."""
    delete_when: Annotated[str, AfterValidator(_condition)] | None = Field(
        default=None, examples=["op = 'D'"]
    )
    """A boolean expression in SQL over the columns of the table. A record for which it is true
    deletes the row with its key."""
    tombstones: Literal["skip", "delete"] = "skip"
    """Meaning of a Kafka message with a key and no value. delete: the row with this key was
    deleted, as in a compacted topic; the message's key has to be a JSON object with the columns of
    `key`, or the value of the only one, as text. skip: the setting of the source applies."""
    history: bool = False
    """Also keep every version of a row in `<table>_history`, with the times between which it was
    valid."""
    history_columns: Texts = Field(default=(), examples=[["status", "tier"]])
    """Columns of the history that begin a version: a record that changes none
    of them belongs to the current version. All records begin a version when left out."""
    deletes: Literal["hard", "soft"] = "hard"
    """hard: a deleted row is removed; soft: the row stays and is marked as deleted."""
    deletes_as: Literal["rewrite", "vectors"] = "rewrite"
    """How a deleted or changed row is removed from a large file of the table. rewrite: the file is
    written again without the row; vectors: a deletion vector, a small file beside it, marks the
    row. Readers of the table must then support deletion vectors."""
    keep_tombstones: Duration = Field(default=timedelta(days=7), examples=["7d"])
    """How long deleted rows are remembered, so that a late, older record does not bring a row
    back."""

    @property
    def evolution(self) -> Literal["mergeSchema"]:
        """Return what becomes of the table when its log gets columns: it gets them too."""
        return "mergeSchema"

    @property
    def log(self) -> bool:
        """Return true: the log is where records are written."""
        return True

    def begins_versions(self, table: str) -> tuple[str, ...]:
        """Return the columns whose changes begin versions of rows; none if each record does."""
        return self.history_columns

    def conflicts(self) -> Iterator[Conflict]:
        """Yield settings of one entry that contradict each other."""
        if self.mode == "dedup":
            for name, why in _NO_DELETES.items():
                if getattr(self, name):
                    yield (name,), f"cannot be combined with mode: dedup: it {why}"
            if self.tombstones == "delete":
                yield ("tombstones",), "cannot be delete with mode: dedup: first records stay"
        if self.horizon is not None and self.mode != "dedup":
            yield ("horizon",), "needs mode: dedup"
        if self.history_columns and not self.history:
            yield ("history_columns",), "needs history: true"
        if self.tombstones == "delete" and self.order not in ((), (TIME_OF_RECORD,)):
            why = f"of a message without a value only {TIME_OF_RECORD} and the offset are known"
            yield ("order",), f"cannot be combined with tombstones: delete: {why}"
        for name in ("key", "order", "history_columns"):
            columns = [column.lower() for column in getattr(self, name)]
            for number, column in enumerate(columns):
                if column in columns[:number]:
                    yield (name, number), "is named twice"

    def fits(self, table: str) -> bool:
        """Return whether a table has this key."""
        return Rule("", "", Action.WARN, self.tables).is_for((table,), ("",))

    @property
    def rule(self) -> KeyRule:
        """Return the key as tasks use it."""
        delete = None
        if self.delete_when is not None:
            names = columns_of(self.delete_when)
            delete = Rule("delete_when", self.delete_when, Action.DEAD_LETTER, columns=names)
        deletes = self.tombstones == "delete"
        first, horizon = self.mode == "dedup", self.horizon or timedelta(0)
        return KeyRule(self.key, self.order, first, delete, deletes, horizon)


def keyed_table(keys: Sequence[KeyedTables], table: str) -> KeyedTables | None:
    """Return the first entry that fits a table; None for a table that is appended to."""
    return next((entry for entry in keys if entry.fits(table)), None)


def key_conflicts(
    keys: Sequence[KeyedTables], tables: Tables, *, cdc: bool, envelope: bool
) -> Iterator[Conflict]:
    """Yield what keyed tables cannot be combined with."""
    if not keys:
        return
    if cdc:
        yield ("keys",), "cannot be combined with cdc: change data has its own keys"
    if not tables.each:
        yield ("keys",), "needs tables.each: keys are those of tables per type"
    elif not placeholders(tables.each):
        yield from _name_conflicts(tables, f"{tables.prefix}{tables.each}")
    if not TABLE_FORMATS[tables.format].replaces_rows:
        able = formats_with(lambda format_: format_.replaces_rows)
        yield ("tables", "format"), f"must be {able} for tables with keys: rows are replaced"
    if "key" in tables.metadata:
        yield ("tables", "metadata"), "cannot hold key: a log names the columns of its key there"
    others = {name for setting, name in tables.fixed_names().items() if setting != "each"}
    for number, entry in enumerate(keys):
        if envelope and entry.tombstones == "delete":
            why = "a message without a value has no envelope, which names its type"
            yield ("keys", number, "tombstones"), f"must be skip with an envelope: {why}"
        for name in others.intersection(entry.tables):
            yield ("keys", number, "tables"), f"names {name}, but only tables per type have keys"


def _name_conflicts(tables: Tables, name: str) -> Iterator[Conflict]:
    """Yield why a table of this name cannot have a log and a history beside it."""
    if name.endswith(_ENDINGS):
        yield ("tables", "each"), f"must not end with {' or '.join(_ENDINGS)} for tables with keys"
    for setting, other in tables.fixed_names().items():
        if setting != "each" and other in [f"{name}{ending}" for ending in _ENDINGS]:
            yield ("tables", setting), f"is the name of a table that comes with {name}"
