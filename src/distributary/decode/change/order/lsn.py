"""Log sequence numbers: of PostgreSQL one number, of SQL Server and Db2 three."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from distributary.decode.change.order.place import (
    Place,
    Triple,
    read_hexes,
    read_integers,
    read_texts,
)


def _postgresql(lsn: str) -> Triple | None:
    parts = read_hexes(lsn.split("/"), 2)
    return ((parts[0] << 32) | parts[1], 0, 0) if parts and parts[1] < 2**32 else None


def _sqlserver(lsn: str) -> Triple | None:
    if lsn[:2].lower() == "0x" and len(lsn) == 22:
        lsn = f"{lsn[2:10]}:{lsn[10:18]}:{lsn[18:]}"
    parts = read_hexes(lsn.split(":"), 3)
    # the last two must fit into one number
    if not parts or parts[1] >= 2**47 or parts[2] >= 2**16:
        return None
    return (parts[0], parts[1], parts[2])


def _either(lsn: str) -> Triple | None:
    return _postgresql(lsn) if "/" in lsn else _sqlserver(lsn)


READERS: Mapping[str, Callable[[str], Triple | None]] = {
    "postgresql": _postgresql,
    "sqlserver": _sqlserver,
    "lsn": _either,
}
"""The readers by kind of database; `lsn` is for databases that are otherwise unknown."""


def datastream_place(metadata: Mapping[str, pa.Array], count: int, *, kind: str) -> Place:
    """Read the places of Datastream's events."""
    return read_texts(metadata.get("lsn"), count, READERS[kind])


def debezium_postgresql_place(source: Mapping[str, pa.Array], count: int) -> Place:
    """Read the places of the events of Debezium's connector for PostgreSQL."""
    numbers, bad = read_integers(source["lsn"], count)
    zeros = np.zeros(count, np.int64)
    return Place(numbers, zeros, zeros, bad)


def debezium_sqlserver_place(source: Mapping[str, pa.Array], count: int) -> Place:
    """Read the places of the events of Debezium's connectors for SQL Server and Db2."""
    change = read_texts(source["change_lsn"], count, _sqlserver)
    number, bad = read_integers(source.get("event_serial_no"), count)
    return Place(change.a, (change.b << 16) | change.c, number, change.bad | bad)
