"""What Debezium says about the place of a change, as each of its connectors does."""

from __future__ import annotations

import json
from typing import Any

from distributary.simulate.cdc.changes import Change, Op
from distributary.simulate.cdc.envelope import row_id
from distributary.simulate.cdc.plan import CdcPlan, SourceType

_VERSION = "3.3.0.Final"


def source_block(change: Change, plan: CdcPlan) -> dict[str, Any]:
    """The field `source` of an event."""
    shape, ts = change.shape, change.ts
    head = {
        "version": _VERSION,
        "connector": str(shape.source_type),
        "name": plan.topic_prefix,
        "ts_ms": ts,
        "snapshot": _snapshot(change, plan),
        "db": shape.database,
        "sequence": None,
        "ts_us": ts * 1_000,
        "ts_ns": ts * 1_000_000,
    }
    return head | _place(change)


def _snapshot(change: Change, plan: CdcPlan) -> str:
    if change.op is not Op.READ:
        return "false"
    return "true" if change.filed <= plan.start_millis else "incremental"


def _place(change: Change) -> dict[str, Any]:
    shape, told, numbers = change.shape, change.position.told, change.position.numbers
    match shape.source_type:
        case SourceType.MYSQL:
            return {
                "table": shape.table,
                "server_id": 0 if change.op is Op.READ else 223344,
                "gtid": None,
                "file": told["log_file"] or "",
                "pos": numbers[1],
                "row": 0,
                "thread": None,
                "query": None,
            }
        case SourceType.POSTGRESQL:
            lsn = numbers[0]
            return {
                "sequence": json.dumps([None, str(lsn)]),
                "schema": shape.schema,
                "table": shape.table,
                "txId": told.get("tx_id"),
                "lsn": lsn,
                "xmin": None,
            }
        case SourceType.ORACLE:
            return {
                "schema": shape.schema,
                "table": shape.table,
                "txId": told.get("tx_id"),
                "scn": str(told["scn"]),
                "commit_scn": None if change.op is Op.READ else str(told["scn"]),
                "rs_id": told["rs_id"],
                "ssn": told["ssn"],
                "redo_thread": None if change.op is Op.READ else 1,
                "user_name": None,
                "row_id": row_id(change.serial),
            }
        case SourceType.SQLSERVER:
            lsn_text = told.get("lsn")
            return {
                "schema": shape.schema,
                "table": shape.table,
                "change_lsn": lsn_text,
                "commit_lsn": lsn_text,
                "event_serial_no": None if change.op is Op.READ else 1,
            }
