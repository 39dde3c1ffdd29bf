"""MySQL and MariaDB: InnoDB's consistent snapshots, places in the binary log.

MariaDB reports the place of a snapshot exactly. MySQL does not: its places before and after the
beginning of the snapshot are the bounds, with a pause for transactions that are in the binary log
and not yet in the tables.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.converters import conversions
from pymysql.cursors import Cursor, SSCursor

from distributary.changes.source.base import (
    ARROW,
    Moment,
    Position,
    SourceColumn,
    SourceTable,
    ValueType,
    failing,
    not_there,
)
from distributary.config.database import Address
from distributary.errors import ConfigError, ErrorCode, SourceError
from distributary.model.change import Slot

_PIECE_ROWS = 20_000
_COMMIT_SECONDS = 1.0
"""The longest time from a transaction's entry in MySQL's binary log until its changes are
visible."""
_SUFFIX = re.compile(r"\d+$", re.ASCII)
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_TYPES: Mapping[str, ValueType] = {
    **dict.fromkeys(
        ("tinyint", "smallint", "mediumint", "int", "bigint", "year"), ValueType.INTEGER
    ),
    "decimal": ValueType.DECIMAL,
    "float": ValueType.FLOAT,
    "double": ValueType.DOUBLE,
    **dict.fromkeys(
        ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "uuid"),
        ValueType.TEXT,
    ),
    **dict.fromkeys(_BYTES, ValueType.BYTES),
    "json": ValueType.JSON,
    "date": ValueType.DATE,
    "datetime": ValueType.TIMESTAMP,
    "timestamp": ValueType.INSTANT,
    "time": ValueType.TIME,
    "bit": ValueType.BITS,
}
_ENCODERS = {kind: write for kind, write in conversions.items() if not isinstance(kind, int)}
"""The style of parameters in statements."""
_COLUMNS = """
select column_name, data_type, column_type, numeric_scale, datetime_precision, numeric_precision,
       extra from information_schema.columns
where table_schema = %s and table_name = %s order by ordinal_position
"""
_KEY = """
select column_name from information_schema.key_column_usage
where table_schema = %s and table_name = %s and constraint_name = 'PRIMARY'
order by ordinal_position
"""
_TABLE = "select engine from information_schema.tables where table_schema = %s and table_name = %s"
_JSON = """
select constraint_name from information_schema.check_constraints
where constraint_schema = %s and table_name = %s and check_clause like 'json_valid(%%'
"""
"""MariaDB's columns of JSON are texts with a condition of the column's name."""
_NAMES = "select table_name from information_schema.tables where table_schema = %s"


def connect(address: Address) -> MySQLDatabase:
    """Connect to a server."""
    return MySQLDatabase(address)


class MySQLDatabase:
    """One connection. Changes of its snapshots are read, never written."""

    def __init__(self, address: Address) -> None:
        self.address = address.shown
        self._address = address
        tls = {"ssl": {"ca": address.options["ssl_ca"]}} if "ssl_ca" in address.options else {}
        with self._failing():
            self._connection: Any = pymysql.connect(
                host=address.host,
                port=address.port or 3306,
                user=address.user or None,
                password=address.password,
                database=address.database,
                charset="utf8mb4",
                # values come as text, in the server's own format
                conv=_ENCODERS,
                autocommit=True,
                program_name="distributary",
                **tls,
            )
        self._execute("set session time_zone = '+00:00'")
        # the server must not end a statement whose rows are read slowly
        self._execute("set session net_write_timeout = 3600")
        ((version,),) = self._rows("select version()")
        self._is_mariadb = "mariadb" in version.lower()
        self._readers: dict[str, Callable[[Any], Any]] = {}

    def describe(self, names: Sequence[str]) -> SourceTable:
        """Return the columns and the key of a table."""
        database, _, table = names
        database = database or self._address.database
        rows = self._rows(_TABLE, database, table)
        if not rows:
            known = [name for (name,) in self._rows(_NAMES, database)]
            raise not_there(table, known, self.address)
        if (rows[0][0] or "").lower() != "innodb":
            raise ConfigError(
                f"table {database}.{table} of the source has no consistent snapshots",
                where=self.address,
                evidence=f"its engine is {rows[0][0]}",
                next_step=f"alter table {table} engine = InnoDB",
            )
        columns = tuple(self._column(*row) for row in self._rows(_COLUMNS, database, table))
        if self._is_mariadb:
            documents = {name for (name,) in self._rows(_JSON, database, table)}
            columns = tuple(
                replace(column, type=ValueType.JSON) if column.name in documents else column
                for column in columns
            )
        key = tuple(name for (name,) in self._rows(_KEY, database, table))
        return SourceTable(database, "", table, columns, key)

    def _column(
        self,
        name: str,
        type_: str,
        declared: str,
        scale: str | None,
        fraction: str | None,
        width: str | None,
        extra: str,
    ) -> SourceColumn:
        kind = _TYPES.get(type_.lower(), ValueType.UNKNOWN)
        if kind is ValueType.INTEGER and "bigint" in declared and "unsigned" in declared:
            # unsigned values may exceed a signed integer of 64 bits
            kind = ValueType.DECIMAL
        if "virtual" in extra.lower():
            # the log does not have the values of generated columns
            kind = ValueType.UNKNOWN
        digits = scale if kind is ValueType.DECIMAL else fraction
        self._readers[name] = _READERS.get(kind, _as_text)
        if kind is ValueType.BITS:
            self._readers[name] = partial(_as_bits, size=int(width or 1))
        return SourceColumn(name, kind, int(digits) if digits else 0)

    def open(self, patience: float) -> Moment:
        """Begin a snapshot, and note its position in the binary log."""
        self._execute("rollback")
        self._execute("set session transaction isolation level repeatable read, read only")
        before = self._place()
        if not self._is_mariadb:
            time.sleep(_COMMIT_SECONDS)
        self._execute("start transaction with consistent snapshot")
        low = high = self._snapshot_place()
        if low is None or high is None:
            low, high = before, self._place()
        ((now,),) = self._rows("select cast(unix_timestamp(now(6)) * 1000000 as signed)")
        text = f"{self._log_base}.{low[0]:06}/{low[1]}"
        return Moment(low, high, int(now), text)

    def _snapshot_place(self) -> Position | None:
        """Return the place of the snapshot that has begun, where the server reports it."""
        status = dict(self._rows("show status like 'binlog_snapshot_%'"))
        file = next((v for k, v in status.items() if k.lower() == "binlog_snapshot_file"), "")
        at = next((v for k, v in status.items() if k.lower() == "binlog_snapshot_position"), "0")
        return self._position(file, int(at)) if file else None

    def _place(self) -> Position:
        for statement in ("show binary log status", "show master status"):
            with suppress(SourceError):
                rows = self._rows(statement)
                if rows:
                    return self._position(rows[0][0], int(rows[0][1]))
        raise SourceError(
            "the source returns no position in its binary log",
            code=ErrorCode.SOURCE_INVALID,
            where=self.address,
            evidence="SHOW BINARY LOG STATUS has no answer",
            next_step="give the user the right REPLICATION CLIENT (MariaDB: BINLOG MONITOR), and "
            "the address of a server whose binary log is on",
        )

    def _position(self, file: str, at: int) -> Position:
        number = _SUFFIX.search(file)
        self._log_base = file[: number.start()].rstrip(".") if number else file
        return (int(number[0]) if number else 0, at, 0)

    def read(
        self,
        table: SourceTable,
        *,
        after: Mapping[str, object] | None = None,
        most: int | None = None,
        part: float | None = None,
    ) -> Iterator[pa.Table]:
        """Read rows of the snapshot; the server sends them as it finds them."""
        known = [column for column in table.columns if column.type is not ValueType.UNKNOWN]
        chosen = ", ".join(_expression(column) for column in known)
        key = ", ".join(map(_quoted, table.key))
        conditions, values = [], []
        if after is not None:
            conditions.append(_after(table.key))
            for number, name in enumerate(table.key):
                values += [after[n] for n in table.key[:number]] + [after[name]]
        if part is not None:
            conditions.append(f"rand() < {part:.8f}")
        where = f" where {' and '.join(conditions)}" if conditions else ""
        order = f" order by {key}" if most is not None and key else ""
        limit = f" limit {most}" if most is not None else ""
        place = f"{_quoted(table.database)}.{_quoted(table.name)}"
        query = f"select {chosen} from {place}{where}{order}{limit}"  # noqa: S608
        with self._failing(), self._connection.cursor(SSCursor) as cursor:
            cursor.execute(query, values or None)
            while rows := cursor.fetchmany(_PIECE_ROWS):
                yield self._table(known, rows)

    def _table(self, columns: Sequence[SourceColumn], rows: Sequence[Sequence[Any]]) -> pa.Table:
        arrays = []
        for column, values in zip(columns, zip(*rows, strict=True), strict=True):
            read = self._readers[column.name]
            found = [None if value is None else read(value) for value in values]
            arrays.append(pa.array(found, ARROW[column.type]))
        return pa.table(arrays, names=[column.name for column in columns])

    def count(self, table: SourceTable) -> int:
        """Return how many rows the snapshot has."""
        place = f"{_quoted(table.database)}.{_quoted(table.name)}"
        ((count,),) = self._rows(f"select count(*) from {place}")  # noqa: S608
        return int(count)

    def slots(self) -> list[Slot]:
        """Return nothing: readers of a binary log do not hold it back."""
        return []

    def close(self) -> None:
        """End the snapshot and the connection."""
        with suppress(pymysql.Error, OSError):
            self._connection.close()

    def _execute(self, statement: str) -> None:
        with self._failing(), self._connection.cursor(Cursor) as cursor:
            cursor.execute(statement)

    def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        with self._failing(), self._connection.cursor(Cursor) as cursor:
            cursor.execute(query, values or None)
            rows = cursor.fetchall()
        return [tuple(v.decode() if isinstance(v, bytes) else v for v in row) for row in rows]

    def _failing(self) -> Any:
        return failing(self._address, pymysql.Error)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _expression(column: SourceColumn) -> str:
    name = _quoted(column.name)
    # the server writes a FLOAT with six digits only
    exact = {ValueType.FLOAT: f"{name} + 0e0", ValueType.BITS: f"{name} + 0"}
    return exact.get(column.type, name)


def _after(key: Sequence[str]) -> str:
    """Write the condition for rows after a key, in a form for which the server uses its index."""
    parts = []
    for number, name in enumerate(key):
        same = [f"{_quoted(before)} = %s" for before in key[:number]]
        parts.append(f"({' and '.join([*same, f'{_quoted(name)} > %s'])})")
    return f"({' or '.join(parts)})"


# Conversion of values from the server's text.


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _as_bits(value: Any, size: int) -> str:
    return f"{int(value):0{size}b}"


def _as_float(value: Any) -> float:
    return float(value)


def _as_date(value: Any) -> date | None:
    try:
        return date.fromisoformat(_as_text(value))
    except ValueError:
        # an invalid date, such as 0000-00-00
        return None


def _as_moment(value: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(_as_text(value))
    except ValueError:
        return None


def _as_micros(value: Any) -> int:
    text = _as_text(value)
    hours, minutes, seconds = text.lstrip("-").split(":")
    whole, _, fraction = seconds.partition(".")
    micros = (int(hours) * 60 + int(minutes)) * 60 + int(whole)
    micros = micros * 1_000_000 + int(fraction.ljust(6, "0")[:6] or 0)
    return -micros if text.startswith("-") else micros


_READERS: Mapping[ValueType, Callable[[Any], Any]] = {
    ValueType.INTEGER: int,
    ValueType.FLOAT: _as_float,
    ValueType.DOUBLE: _as_float,
    ValueType.BYTES: _as_bytes,
    ValueType.DATE: _as_date,
    ValueType.TIMESTAMP: _as_moment,
    ValueType.INSTANT: _as_moment,
    ValueType.TIME: _as_micros,
}
