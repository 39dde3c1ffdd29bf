"""What Datastream says about a change: the fields around the row, as each database has them."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from distributary.simulate.cdc.changes import Change, Op
from distributary.simulate.cdc.plan import CdcPlan, SourceType
from distributary.simulate.cdc.shapes import Row

_HALF_LATER = 1_000
"""The second half of a change of key in MySQL states a time that is a second too late."""

_METHODS = {
    SourceType.MYSQL: ("mysql-cdc-binlog", "mysql-backfill-fulldump", "mysql-backfill-incremental"),
    SourceType.POSTGRESQL: ("postgres-cdc-wal", "postgresql-backfill", "postgresql-backfill"),
    SourceType.ORACLE: ("oracle-cdc-logminer", "oracle-backfill", "oracle-backfill"),
    SourceType.SQLSERVER: ("sqlserver-cdc", "sqlserver-backfill", "sqlserver-backfill"),
}
_CHANGE_TYPES = {
    Op.READ: "INSERT",
    Op.INSERT: "INSERT",
    Op.UPDATE: "UPDATE",
    Op.DELETE: "DELETE",
    Op.KEY_DELETE: "DELETE",
    Op.KEY_INSERT: "INSERT",
}
_MYSQL_CHANGE_TYPES = _CHANGE_TYPES | {
    Op.UPDATE: "UPDATE-INSERT",
    Op.KEY_DELETE: "UPDATE-DELETE",
    Op.KEY_INSERT: "UPDATE-INSERT",
}


@dataclass(frozen=True, slots=True)
class Event:
    """A change that was put into a file, where it got an id."""

    number: int
    """Counts the events of the stream: two with one number are one, sent twice."""
    change: Change
    uuid: str
    read_ts: int
    """When it was read, in milliseconds since 1970."""
    time_style: int = 0
    """How a JSON file writes its times."""


class Envelopes:
    """Builds the fields of events; times are still numbers, and values still typed."""

    def __init__(self, plan: CdcPlan) -> None:
        self._plan = plan
        self._stream = f"projects/545418958905/locations/us-central1/streams/simulated-{plan.seed}"

    def read_method(self, change: Change) -> str:
        """How an event was read."""
        read = change.op is Op.READ
        if self._plan.bare_methods:
            return "backfill" if read else "cdc"
        change_log, first, again = _METHODS[self._plan.source_type]
        if not read:
            return change_log
        return first if change.filed <= self._plan.start_millis else again

    def build(self, event: Event, *, schema_key: str) -> dict[str, Any]:
        """All fields of an event, in the order in which real files have them."""
        change, told = event.change, stated_time(event.change)
        return {
            "uuid": event.uuid,
            "read_timestamp": event.read_ts,
            "source_timestamp": told,
            "object": change.shape.object,
            "read_method": self.read_method(change),
            "stream_name": self._stream,
            "schema_key": schema_key,
            "sort_keys": [told, *_sort_keys(change)],
            "source_metadata": source_metadata(change),
            "payload": payload(change),
        }


def stated_time(change: Change) -> int:
    """The source's time as the event states it."""
    mysql = change.shape.source_type is SourceType.MYSQL
    return change.ts + (_HALF_LATER if mysql and change.op is Op.KEY_INSERT else 0)


def change_type(change: Change) -> str:
    """`INSERT`, `UPDATE`, `DELETE`, and what MySQL says instead."""
    mysql = change.shape.source_type is SourceType.MYSQL
    return (_MYSQL_CHANGE_TYPES if mysql else _CHANGE_TYPES)[change.op]


def payload(change: Change) -> Row:
    """The row; PostgreSQL remembers of a deleted one only its key, if it has one."""
    shape, forgets = change.shape, change.shape.source_type is SourceType.POSTGRESQL
    if forgets and change.deleted and shape.key:
        return {name: change.row[name] if name in shape.key else None for name in shape.names}
    return change.row


def source_metadata(change: Change) -> dict[str, Any]:
    """The fields that are different for each database."""
    shape, told = change.shape, change.position.told
    outcome = {"is_deleted": change.deleted, "change_type": change_type(change)}
    keys = list(shape.stated_key)
    match shape.source_type:
        case SourceType.MYSQL:
            return {
                "table": shape.table,
                "database": shape.database,
                "primary_keys": keys,
                "log_file": told["log_file"],
                "log_position": told["log_position"],
                **dict(reversed(outcome.items())),
            }
        case SourceType.POSTGRESQL:
            log = {"tx_id": told.get("tx_id"), "lsn": told.get("lsn")}
            names = {"schema": shape.schema, "table": shape.table}
            return {**names, **outcome, **log, "primary_keys": keys}
        case SourceType.ORACLE:
            return {
                "schema": shape.schema,
                "table": shape.table,
                "database": shape.database,
                "row_id": row_id(change.serial),
                "scn": told["scn"],
                **outcome,
                "ssn": told["ssn"],
                "rs_id": told["rs_id"],
                "tx_id": told.get("tx_id"),
                "log_file": "",
                "primary_keys": keys,
            }
        case SourceType.SQLSERVER:
            names = {"database": shape.database, "schema": shape.schema, "table": shape.table}
            log = {"lsn": told.get("lsn"), "tx_id": told.get("tx_id")}
            place = [1, change.serial // 64, change.serial % 64]
            return {
                **names,
                **outcome,
                **log,
                "physical_location": place,
                "replication_index": keys,
            }


def _sort_keys(change: Change) -> list[Any]:
    told = change.position.told
    match change.shape.source_type:
        case SourceType.MYSQL:
            # newer files have numbers where there is no log
            missing = told["log_file"] is None
            return [0, 0] if missing else [told["log_file"], told["log_position"]]
        case SourceType.ORACLE:
            return [told["scn"], told["rs_id"], told["ssn"]]
        case _:
            return [told["lsn"]] if "lsn" in told else []


def row_id(serial: int) -> str:
    """Oracle's address of a row: it stays when the key changes."""
    tail = base64.b64encode(serial.to_bytes(9, "big")).decode()
    return f"AAAEAR{tail}".replace("=", "A")
