"""The changes of a simulated database as a script of SQL, for a real PostgreSQL, MySQL or MariaDB.

A client of the database runs the script (`psql`, `mariadb`), so no driver and no password is needed
here. What a connector then reads from the database's log is real: its positions, times and types.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from distributary.errors import ConfigError
from distributary.model.names import quote_sql, quoted
from distributary_lab.simulate.cdc.datastream_files import CdcSent, CdcTally
from distributary_lab.simulate.cdc.script import ChangeModel
from distributary_lab.simulate.cdc.shapes import (
    CALM,
    CdcColumn,
    CdcPlan,
    ColumnKind,
    Feature,
    Row,
    SourceShape,
    SourceType,
)
from distributary_lab.simulate.cdc.simulated_database import Op, SourceChange, Unit

IN_DATABASES = CALM | {
    Feature.DROPPED_COLUMNS,
    Feature.NEW_COLUMNS,
    Feature.NEW_TABLES,
    Feature.ODD_NAMES,
}
"""What can happen in a database; everything else happens to events on their way."""
SERIAL = "row_serial"
"""The column by which rows of a table without a key are found."""
_STATEMENTS = 10
"""The number of statements in a transaction, about."""

_TEXT_KEY = "varchar(100)"
_POSTGRES = {
    ColumnKind.INT: "integer",
    ColumnKind.BIGINT: "bigint",
    ColumnKind.NUMBER: "numeric",
    ColumnKind.FLOAT: "real",
    ColumnKind.DOUBLE: "double precision",
    ColumnKind.UUID: "uuid",
    ColumnKind.BOOL: "boolean",
    ColumnKind.DATE: "date",
    ColumnKind.DATETIME: "timestamp",
    ColumnKind.TIMESTAMP: "timestamptz",
    ColumnKind.TIME: "time",
    ColumnKind.JSON: "json",
    ColumnKind.BINARY: "bytea",
}
_MYSQL = {
    **_POSTGRES,
    ColumnKind.NUMBER: "decimal(20,0)",
    ColumnKind.FLOAT: "float",
    ColumnKind.UUID: "char(36)",
    # a timestamp of MySQL ends in 2038
    ColumnKind.DATETIME: "datetime(6)",
    ColumnKind.TIMESTAMP: "datetime(6)",
    ColumnKind.TIME: "time(6)",
    ColumnKind.BINARY: "longblob",
}


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """The differences between two kinds of databases."""

    types: Mapping[ColumnKind, str]
    quote: Callable[[str], str]
    space: str
    """The word for what holds tables."""
    first: tuple[str, ...]
    """The statements with which a script begins."""
    table_options: str = ""
    is_mysql: bool = False

    def type_of(self, column: CdcColumn, *, is_key: bool) -> str:
        """Return the type of a column."""
        if column.kind is ColumnKind.DECIMAL:
            return f"decimal({column.precision},{column.scale})"
        return self.types.get(column.kind, _TEXT_KEY if is_key else "text")

    def literal(self, value: Any) -> str:
        """Write a value."""
        match value:
            case None:
                return "null"
            case bool():
                return str(value).lower()
            case int() | float():
                return repr(value)
            case Decimal():
                return format(value, "f")
            case bytes():
                return f"x'{value.hex()}'" if self.is_mysql else f"'\\x{value.hex()}'"
            case datetime() if self.is_mysql:
                return self._text(value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f"))
            case _:
                return self._text(value if isinstance(value, str) else value.isoformat())

    def _text(self, text: str) -> str:
        escaped = text.replace("'", "''")
        return f"'{escaped.replace(chr(92), chr(92) * 2) if self.is_mysql else escaped}'"


DIALECTS = {
    SourceType.POSTGRESQL: SqlDialect(
        _POSTGRES, quoted, "schema", ("set client_encoding = 'UTF8';", "set time zone 'UTC';")
    ),
    SourceType.MYSQL: SqlDialect(
        _MYSQL,
        quote_sql,
        "database",
        ("set names utf8mb4;", "set sql_mode = 'STRICT_ALL_TABLES';"),
        # names and words that differ only in case or accents are different keys
        " default character set utf8mb4 collate utf8mb4_bin",
        is_mysql=True,
    ),
}


class SqlScript:
    """The script of a plan. `rounds` can be read once."""

    def __init__(self, plan: CdcPlan) -> None:
        if plan.source_type not in DIALECTS or plan.features - IN_DATABASES:
            names = ", ".join(sorted(feature.value for feature in plan.features - IN_DATABASES))
            raise ConfigError(
                "these changes cannot be written as SQL",
                where="--source-type, --with",
                evidence=", ".join(filter(None, (plan.source_type.value, names))),
                next_step=f"choose {' or '.join(DIALECTS)}; a real database has the features "
                f"{', '.join(sorted(IN_DATABASES))}",
            )
        self.plan = plan
        self.model = ChangeModel(plan)
        self._dialect = DIALECTS[plan.source_type]
        self._made: dict[tuple[str, str], SourceShape] = {}
        self._spaces: set[str] = set()
        self._tally = CdcTally(self.model)
        self._events = 0

    def rounds(self) -> Iterator[list[str]]:
        """Yield the statements of each round; each round is made when it is requested."""
        for round in self.model.rounds():
            first = () if round.number else self._dialect.first
            yield [*first, *self._transactions((*round.reads, *round.changes))]

    def sent(self) -> CdcSent:
        """Return the counts of everything written so far."""
        return self._tally.sent()

    def _transactions(self, units: Iterable[Unit]) -> Iterator[str]:
        pending: list[str] = []
        for unit in units:
            # a statement about columns ends a transaction of MySQL
            altered = [line for change in unit for line in self._columns(change.shape)]
            if pending and (altered or len(pending) >= _STATEMENTS):
                yield from ("begin;", *pending, "commit;")
                pending = []
            yield from altered
            for change in unit:
                self._events += 1
                self._tally.add(self._events, change)
                # both halves of a change of key are one statement
                if change.op is not Op.KEY_DELETE:
                    pending.append(self._statement(change))
        if pending:
            yield from ("begin;", *pending, "commit;")

    def _columns(self, shape: SourceShape) -> Iterator[str]:
        """Yield the statements that create a table, or change its columns."""
        made, name = self._made.get((shape.namespace, shape.table)), self._name(shape)
        self._made[shape.namespace, shape.table] = shape
        if made is None:
            yield from self._created(shape, name)
            return
        before = {column.name for column in made.columns}
        for column in shape.columns:
            if column.name not in before:
                yield f"alter table {name} add column {self._definition(column, shape)};"
        for gone in before - {*shape.names}:
            yield f"alter table {name} drop column {self._dialect.quote(gone)};"

    def _created(self, shape: SourceShape, name: str) -> Iterator[str]:
        dialect, quote = self._dialect, self._dialect.quote
        if shape.namespace not in self._spaces:
            self._spaces.add(shape.namespace)
            yield f"create {dialect.space} if not exists {quote(shape.namespace)};"
        parts = [self._definition(column, shape) for column in shape.columns]
        key = ", ".join(map(quote, shape.key))
        parts += [f"primary key ({key})"] if key else [f"{quote(SERIAL)} bigint not null"]
        yield f"create table {name} ({', '.join(parts)}){dialect.table_options};"
        if not key and not dialect.is_mysql:
            # without a key, the log must name a row by all its values
            yield f"alter table {name} replica identity full;"

    def _definition(self, column: CdcColumn, shape: SourceShape) -> str:
        is_key = column.name in shape.key
        type_ = self._dialect.type_of(column, is_key=is_key)
        return f"{self._dialect.quote(column.name)} {type_}{' not null' if is_key else ''}"

    def _statement(self, change: SourceChange) -> str:
        name, quote, literal = self._name(change.shape), self._dialect.quote, self._dialect.literal
        row = {column: change.row[column] for column in change.shape.names}
        if change.op in (Op.READ, Op.INSERT):
            row |= {} if change.shape.key else {SERIAL: change.serial}
            columns, values = ", ".join(map(quote, row)), ", ".join(map(literal, row.values()))
            return f"insert into {name} ({columns}) values ({values});"  # noqa: S608
        before = change.before or {}
        place = self._place(change, before)
        if change.deleted:
            return f"delete from {name} where {place};"  # noqa: S608
        changed = {key: value for key, value in row.items() if before.get(key) != value}
        sets = (f"{quote(key)} = {literal(value)}" for key, value in (changed or row).items())
        return f"update {name} set {', '.join(sets)} where {place};"  # noqa: S608

    def _place(self, change: SourceChange, before: Row) -> str:
        """Return the condition that finds the row as it was before the change."""
        key = {name: before[name] for name in change.shape.key} or {SERIAL: change.serial}
        quote, literal = self._dialect.quote, self._dialect.literal
        return " and ".join(f"{quote(name)} = {literal(value)}" for name, value in key.items())

    def _name(self, shape: SourceShape) -> str:
        return f"{self._dialect.quote(shape.namespace)}.{self._dialect.quote(shape.table)}"


def write_script(
    script: SqlScript,
    path: Path,
    *,
    interval: float = 0.0,
    on_round: Callable[[int, int], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> CdcSent:
    """Write all rounds to a file or a pipe, with a pause between two, and return the counts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for number, statements in enumerate(script.rounds()):
            if number and interval:
                sleep(interval)
            file.writelines(f"{statement}\n" for statement in statements)
            # a client that reads a pipe runs each round when it is written
            file.flush()
            if on_round is not None:
                on_round(number, len(statements))
    return script.sent()
