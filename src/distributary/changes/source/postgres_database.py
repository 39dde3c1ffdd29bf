"""PostgreSQL: snapshots of `REPEATABLE READ`, places as log sequence numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

from distributary.changes.source.base import (
    ARROW,
    Moment,
    SourceColumn,
    SourceTable,
    ValueType,
    failing,
    not_there,
    waiting,
)
from distributary.config.database import Address
from distributary.errors import ConfigError, ErrorCode, SourceError
from distributary.model.change import Slot
from distributary.model.names import quoted

_PIECE_BYTES = 8 * 2**20
_PRINTED = "case when {0} is not null then format('%s', {0}) end"
"""A value as the server prints it: a cast to text adds the mask to the address of a host."""
_PLAIN: Mapping[str, tuple[ValueType, str]] = {
    "bool": (ValueType.BOOLEAN, "{}"),
    "int2": (ValueType.INTEGER, "{}"),
    "int4": (ValueType.INTEGER, "{}"),
    "int8": (ValueType.INTEGER, "{}"),
    "oid": (ValueType.INTEGER, "{}::int8"),
    "float4": (ValueType.FLOAT, "{}"),
    "float8": (ValueType.DOUBLE, "{}"),
    "numeric": (ValueType.DECIMAL, "{}::text"),
    "money": (ValueType.DECIMAL, "{}::numeric::text"),
    "text": (ValueType.TEXT, "{}"),
    "varchar": (ValueType.TEXT, "{}"),
    # a cast to text would drop trailing spaces, which events have
    "bpchar": (ValueType.TEXT, "{}"),
    "name": (ValueType.TEXT, "{}::text"),
    "citext": (ValueType.TEXT, "{}::text"),
    "uuid": (ValueType.TEXT, "{}::text"),
    "xml": (ValueType.TEXT, "{}::text"),
    "json": (ValueType.JSON, "{}::text"),
    "jsonb": (ValueType.JSON, "{}::text"),
    "bytea": (ValueType.BYTES, "{}"),
    # the lake stores infinity as null
    "date": (ValueType.DATE, "case when isfinite({0}) then {0} end"),
    "timestamp": (ValueType.TIMESTAMP, "case when isfinite({0}) then {0} end"),
    "timestamptz": (ValueType.INSTANT, "case when isfinite({0}) then {0} end"),
    "time": (ValueType.TIME, "(extract(epoch from {}) * 1000000)::int8"),
    "bit": (ValueType.BITS, "{}::text"),
    "varbit": (ValueType.BITS, "{}::text"),
    "inet": (ValueType.OTHER, _PRINTED),
    "cidr": (ValueType.OTHER, _PRINTED),
    "macaddr": (ValueType.OTHER, _PRINTED),
    "macaddr8": (ValueType.OTHER, _PRINTED),
}
"""The kind of a type's values and the expression that reads them, by the type's name."""

_TABLE = """
select a.attname::text, t.typname::text, t.typtype::text, a.atttypmod::int8,
       b.typname::text, a.attgenerated::text
from pg_attribute a join pg_class c on c.oid = a.attrelid
join pg_namespace n on n.oid = c.relnamespace join pg_type t on t.oid = a.atttypid
left join pg_type b on b.oid = t.typbasetype
where n.nspname = $1 and c.relname = $2 and c.relkind in ('r', 'p') and a.attnum > 0
  and not a.attisdropped order by a.attnum
"""
_KEY = """
select a.attname::text from pg_index i join pg_class c on c.oid = i.indrelid
join pg_namespace n on n.oid = c.relnamespace
cross join lateral unnest(i.indkey) with ordinality as k(attnum, place)
join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
where n.nspname = $1 and c.relname = $2 and i.indisprimary order by k.place
"""
_NAMES = "select relname::text from pg_class where relkind in ('r', 'p') order by 1"
_WAL = "pg_current_wal_insert_lsn()"
_STANDBY = "select pg_is_in_recovery()"
_LOW = f"select ({_WAL} - '0/0')::int8"
# a snapshot does not list transactions that began after the last one that ended
_NEXT = "select txid_current()"
_OLDEST = "select txid_snapshot_xmin(txid_current_snapshot())"
_NOW = "(extract(epoch from clock_timestamp()) * 1000000)::int8"
_HIGH = f"select ({_WAL} - '0/0')::int8, {_NOW}"
_WRITERS = """
select string_agg(format('process %s of %s since %s', pid, usename, xact_start), '; ')
from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid()
"""
_SLOTS = f"""
select slot_name::text, active, coalesce((w.lsn - restart_lsn)::int8, 0),
       coalesce(wal_status = 'lost', false), coalesce(database::text, '')
from pg_replication_slots cross join lateral (
  select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else {_WAL} end as lsn
) w order by 1
"""  # noqa: S608


def connect(address: Address) -> PostgresDatabase:
    """Connect to a server."""
    return PostgresDatabase(address)


class PostgresDatabase:
    """One connection. Changes of its snapshots are read, never written."""

    def __init__(self, address: Address) -> None:
        self.address = address.shown
        self._address = address
        login = f"{quote(address.user, safe='')}:{quote(address.password, safe='')}@"
        host = f"[{address.host}]" if ":" in address.host else address.host
        port = f":{address.port}" if address.port else ""
        options = urlencode({"application_name": "distributary", **address.options})
        place = f"{host}{port}/{quote(address.database, safe='')}?{options}"
        with self._failing():
            self._connection: Any = adbc.connect(f"postgresql://{login}{place}", autocommit=True)
        self._expressions: dict[str, str] = {}
        self._in_snapshot = False

    def describe(self, names: Sequence[str]) -> SourceTable:
        """Return the columns and the key of a table."""
        database, schema, table = names
        schema = schema or "public"
        rows = self._rows(_TABLE, schema, table)
        if not rows:
            known = [name for (name,) in self._rows(_NAMES)]
            raise not_there(table, known, self.address)
        columns = tuple(self._column(*row) for row in rows)
        key = tuple(name for (name,) in self._rows(_KEY, schema, table))
        return SourceTable(database or self._address.database, schema, table, columns, key)

    def _column(
        self,
        name: str,
        type_: str,
        class_: str,
        modifier: int,
        base: str | None,
        generated: str | None,
    ) -> SourceColumn:
        kind, expression = _PLAIN.get(base or type_, (ValueType.UNKNOWN, ""))
        if class_ == "e":
            kind, expression = ValueType.TEXT, "{}::text"
        if base and kind is ValueType.TEXT:
            expression = "{}::text"
        if (generated or "").strip():
            # the log does not have the values of generated columns
            kind = ValueType.UNKNOWN
        digits = None
        if kind is ValueType.DECIMAL and modifier >= 4:
            digits = (modifier - 4) & 0xFFFF
        elif kind in (ValueType.TIMESTAMP, ValueType.INSTANT, ValueType.TIME):
            digits = modifier if modifier >= 0 else 6
        self._expressions[name] = expression.format(quoted(name))
        return SourceColumn(name, kind, digits)

    def open(self, patience: float) -> Moment:
        """Begin a snapshot that shows every change before the place that is noted first.

        Transactions that have written by then have to end before it begins.
        """
        self._end()
        ((standby,),) = self._rows(_STANDBY)
        if standby:
            raise ConfigError(
                "a standby does not list its open transactions",
                where=self.address,
                next_step="give the address of its primary",
            )
        ((low,),) = self._rows(_LOW)
        ((next_one,),) = self._rows(_NEXT)
        for _ in waiting(patience):
            ((oldest,),) = self._rows(_OLDEST)
            if oldest > next_one:
                break
        else:
            ((writers,),) = self._rows(_WRITERS)
            raise SourceError(
                f"transactions of the source have been open for {patience:g} seconds",
                code=ErrorCode.SOURCE_BUSY,
                where=self.address,
                evidence=writers or "they are prepared, or of another database",
                next_step="wait until they end, or give more time with --wait",
            )
        self._execute("begin transaction isolation level repeatable read read only")
        self._in_snapshot = True
        ((high, at_us),) = self._rows(_HIGH)
        return Moment((low, 0, 0), (high, 0, 0), at_us, f"{low >> 32:X}/{low & 0xFFFFFFFF:X}")

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
        chosen = ", ".join(f"{self._expressions[c.name]} as {quoted(c.name)}" for c in known)
        place = f"{quoted(table.schema)}.{quoted(table.name)}"
        sample = f" tablesample bernoulli ({100 * part:.6f})" if part is not None else ""
        key = ", ".join(map(quoted, table.key))
        where = ""
        if after is not None:
            values = ", ".join(_literal(after[name]) for name in table.key)
            where = f" where ({key}) > ({values})"
        order = f" order by {key}" if most is not None and key else ""
        limit = f" limit {most}" if most is not None else ""
        schema = pa.schema([(column.name, ARROW[column.type]) for column in known])
        with self._failing(), self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(
                **{"adbc.postgresql.batch_size_hint_bytes": str(_PIECE_BYTES)}
            )
            cursor.execute(f"select {chosen} from {place}{sample}{where}{order}{limit}")  # noqa: S608
            reader = cursor.fetch_record_batch()
            for batch in reader:
                yield _storage(pa.Table.from_batches([batch])).cast(schema)

    def count(self, table: SourceTable) -> int:
        """Return how many rows the snapshot has."""
        place = f"{quoted(table.schema)}.{quoted(table.name)}"
        ((count,),) = self._rows(f"select count(*) from {place}")  # noqa: S608
        return int(count)

    def slots(self) -> list[Slot]:
        """Return the replication slots and the bytes of log since their restart points."""
        return [Slot(*row) for row in self._rows(_SLOTS)]

    def close(self) -> None:
        """End the snapshot and the connection."""
        with self._failing():
            self._end()
            self._connection.close()

    def _end(self) -> None:
        if self._in_snapshot:
            self._execute("rollback")
            self._in_snapshot = False

    def _execute(self, statement: str) -> None:
        with self._failing(), self._connection.cursor() as cursor:
            cursor.execute(statement)

    def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        with self._failing(), self._connection.cursor() as cursor:
            cursor.execute(query, parameters=values or None)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def _failing(self) -> Any:
        return failing(self._address, adbc_driver_manager.Error)


def _storage(rows: pa.Table) -> pa.Table:
    """Return columns of Arrow's extension types as the types below them."""
    columns = [
        pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        if isinstance(column.type, pa.BaseExtensionType)
        else column
        for column in rows.columns
    ]
    return pa.table(columns, names=rows.column_names)


def _literal(value: object) -> str:
    """Write a value of a key into a statement."""
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    text = str(value)
    # an untyped literal takes the type of the column that it is compared with
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
