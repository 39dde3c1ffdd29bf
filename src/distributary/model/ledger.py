"""The rows of the ledger: everything a person needs to know about what was done."""

from __future__ import annotations

import pyarrow as pa

from distributary.model.change import OPS
from distributary.model.record import TIMESTAMP

OP_COLUMNS = {op: f"{op}s" for op in OPS}
"""For each kind of change, the column that counts it."""

RANGE = pa.struct(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("start", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("records", pa.int64()),
    ]
)

RULE = pa.struct(
    [
        pa.field("rule", pa.string()),
        pa.field("action", pa.string()),
        pa.field("checked", pa.int64()),
        pa.field("violated", pa.int64()),
        pa.field("unfit", pa.string()),
        pa.field("example", pa.string()),
    ]
)
"""What a rule has found: rows, why it could not be applied, and the first record that broke it."""

BATCHES = pa.schema(
    [
        pa.field("pipeline", pa.string(), metadata={"comment": "name of the pipeline"}),
        pa.field("life", pa.string(), metadata={"comment": "life of its checkpoint"}),
        pa.field("lane", pa.string(), metadata={"comment": "stream, or replay of dead letters"}),
        pa.field("batch", pa.int64(), metadata={"comment": "number of the batch in its lane"}),
        pa.field("started_at", TIMESTAMP, metadata={"comment": "when the batch began"}),
        pa.field("finished_at", TIMESTAMP, metadata={"comment": "when it was settled"}),
        pa.field("read", pa.int64(), metadata={"comment": "records, by the source's own count"}),
        pa.field("written", pa.int64(), metadata={"comment": "records that reached their table"}),
        pa.field("dead_lettered", pa.int64(), metadata={"comment": "records in the dead letters"}),
        pa.field("parked", pa.int64(), metadata={"comment": "records waiting for a parked table"}),
        pa.field("skipped", pa.int64(), metadata={"comment": "records passed over by policy"}),
        pa.field("rows", pa.int64(), metadata={"comment": "rows written to all tables"}),
        pa.field("files", pa.int64(), metadata={"comment": "files committed"}),
        pa.field("tables", pa.int64(), metadata={"comment": "tables touched"}),
        pa.field("bytes", pa.int64(), metadata={"comment": "bytes of the files committed"}),
        pa.field("lag_records", pa.int64(), metadata={"comment": "records left at the source"}),
        pa.field("lag_seconds", pa.float64(), metadata={"comment": "age of the last record read"}),
        pa.field("plan_seconds", pa.float64(), metadata={"comment": "time in step plan"}),
        pa.field("stage_seconds", pa.float64(), metadata={"comment": "time in step stage"}),
        pa.field("manifest_seconds", pa.float64(), metadata={"comment": "time in step manifest"}),
        pa.field("publish_seconds", pa.float64(), metadata={"comment": "time in step publish"}),
        pa.field("stages", pa.int32(), metadata={"comment": "how often it had to be staged"}),
        pa.field("source_hash", pa.string(), metadata={"comment": "fingerprint of the ranges"}),
        pa.field("ranges", pa.list_(RANGE), metadata={"comment": "offsets it covers"}),
        pa.field(
            "dead_letters",
            pa.map_(pa.string(), pa.int64()),
            metadata={"comment": "dead-lettered records by error code"},
        ),
        pa.field("batches", pa.int64(), metadata={"comment": "1; more in a sum of old batches"}),
    ]
)

TABLES = pa.schema(
    [
        pa.field("pipeline", pa.string(), metadata={"comment": "name of the pipeline"}),
        pa.field("life", pa.string(), metadata={"comment": "life of its checkpoint"}),
        pa.field("lane", pa.string(), metadata={"comment": "stream or replay"}),
        pa.field("batch", pa.int64(), metadata={"comment": "number of the batch in its lane"}),
        pa.field("at", TIMESTAMP, metadata={"comment": "when it was settled"}),
        pa.field("table", pa.string(), metadata={"comment": "name of the table"}),
        pa.field("role", pa.string(), metadata={"comment": "bronze, each, unified, ..."}),
        pa.field("type", pa.string(), metadata={"comment": "type of the records"}),
        pa.field("path", pa.string(), metadata={"comment": "the table's folder"}),
        pa.field("records", pa.int64(), metadata={"comment": "source records in this batch"}),
        pa.field("counted", pa.bool_(), metadata={"comment": "its records are in the equation"}),
        pa.field("rows", pa.int64(), metadata={"comment": "rows in this batch"}),
        pa.field("bytes", pa.int64(), metadata={"comment": "bytes in this batch"}),
        pa.field("files", pa.list_(pa.string()), metadata={"comment": "files in this batch"}),
        pa.field("first_offset", pa.int64(), metadata={"comment": "lowest offset in this batch"}),
        pa.field("last_offset", pa.int64(), metadata={"comment": "highest offset in this batch"}),
        pa.field("columns", pa.int32(), metadata={"comment": "number of columns after it"}),
        pa.field("schema_ids", pa.list_(pa.int64()), metadata={"comment": "schemas in it"}),
        pa.field("version", pa.int64(), metadata={"comment": "table version it became"}),
        pa.field(
            "outcome",
            pa.string(),
            metadata={
                "comment": "published, skipped, parked, (parked before) resumed; or accepted: the "
                "table was taken as it is, and rows says by how much it differed"
            },
        ),
        pa.field("error", pa.string(), metadata={"comment": "why it was parked"}),
        pa.field("batches", pa.int64(), metadata={"comment": "1; more in a sum of old batches"}),
        pa.field("since", TIMESTAMP, metadata={"comment": "as at; earlier in a sum"}),
        *(
            pa.field(column, pa.int64(), metadata={"comment": f"events of kind {op} in this batch"})
            for op, column in OP_COLUMNS.items()
        ),
        pa.field("last_event", TIMESTAMP, metadata={"comment": "newest change, by the source"}),
        pa.field(
            "expectations",
            pa.list_(RULE),
            metadata={"comment": "rules for its rows; null if there are none"},
        ),
    ]
)

SCHEMAS = pa.schema(
    [
        pa.field("pipeline", pa.string(), metadata={"comment": "name of the pipeline"}),
        pa.field("batch", pa.int64(), metadata={"comment": "batch in which it appeared"}),
        pa.field("at", TIMESTAMP, metadata={"comment": "when"}),
        pa.field("type", pa.string(), metadata={"comment": "type of the records"}),
        pa.field("table", pa.string(), metadata={"comment": "table that changed"}),
        pa.field("schema_id", pa.int64(), metadata={"comment": "schema that brought it"}),
        pa.field("schema", pa.string(), metadata={"comment": "its subject and version"}),
        pa.field("kind", pa.string(), metadata={"comment": "what changed"}),
        pa.field("column", pa.string(), metadata={"comment": "which column"}),
        pa.field("before", pa.string(), metadata={"comment": "type or name before"}),
        pa.field("after", pa.string(), metadata={"comment": "type or name after"}),
        pa.field("action", pa.string(), metadata={"comment": "what was done"}),
        pa.field("text", pa.string(), metadata={"comment": "the same in one line"}),
    ]
)
