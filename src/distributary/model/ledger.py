"""The rows of the ledger: everything a person needs to know about what was done."""

from __future__ import annotations

import pyarrow as pa

from distributary.model.change import OPS
from distributary.model.record import TIMESTAMP

OP_COLUMNS = {op: f"{op}s" for op in OPS}
"""For each kind of change, the column that counts it."""

RANGE = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("records", pa.int64()),
    ]
)

RULE = pa.struct(
    [
        ("rule", pa.string()),
        ("action", pa.string()),
        ("checked", pa.int64()),
        ("violated", pa.int64()),
        ("unfit", pa.string()),
        ("example", pa.string()),
    ]
)
"""What a rule has found: rows, why it could not be applied, and the first record that broke it."""


def _schema(*columns: tuple[str, pa.DataType, str]) -> pa.Schema:
    """Columns with their names, types and comments."""
    return pa.schema([pa.field(n, type_, metadata={"comment": c}) for n, type_, c in columns])


BATCHES = _schema(
    ("pipeline", pa.string(), "name of the pipeline"),
    ("life", pa.string(), "life of its checkpoint"),
    ("lane", pa.string(), "stream, or replay of dead letters"),
    ("batch", pa.int64(), "number of the batch in its lane"),
    ("started_at", TIMESTAMP, "when the batch began"),
    ("finished_at", TIMESTAMP, "when it was settled"),
    ("read", pa.int64(), "records, by the source's own count"),
    ("written", pa.int64(), "records that reached their table"),
    ("dead_lettered", pa.int64(), "records in the dead letters"),
    ("parked", pa.int64(), "records waiting for a parked table"),
    ("skipped", pa.int64(), "records passed over by policy"),
    ("rows", pa.int64(), "rows written to all tables"),
    ("files", pa.int64(), "files committed"),
    ("tables", pa.int64(), "tables touched"),
    ("bytes", pa.int64(), "bytes of the files committed"),
    ("lag_records", pa.int64(), "records left at the source"),
    ("lag_seconds", pa.float64(), "from producing the newest record to settling"),
    ("plan_seconds", pa.float64(), "time in step plan"),
    ("stage_seconds", pa.float64(), "time in step stage"),
    ("manifest_seconds", pa.float64(), "time in step manifest"),
    ("publish_seconds", pa.float64(), "time in step publish"),
    ("stages", pa.int32(), "how often it had to be staged"),
    ("source_hash", pa.string(), "fingerprint of the ranges"),
    ("ranges", pa.list_(RANGE), "offsets it covers"),
    ("dead_letters", pa.map_(pa.string(), pa.int64()), "dead-lettered records by error code"),
    ("batches", pa.int64(), "1; more in a sum of old batches"),
    ("requests", pa.int64(), "what the driver asked of buckets; null without one"),
    ("event_seconds", pa.float64(), "age of that record by its own time, where that is far off"),
)

TABLES = _schema(
    ("pipeline", pa.string(), "name of the pipeline"),
    ("life", pa.string(), "life of its checkpoint"),
    ("lane", pa.string(), "stream or replay"),
    ("batch", pa.int64(), "number of the batch in its lane"),
    ("at", TIMESTAMP, "when it was settled"),
    ("table", pa.string(), "name of the table"),
    ("role", pa.string(), "bronze, each, unified, ..."),
    ("type", pa.string(), "type of the records"),
    ("path", pa.string(), "the table's folder"),
    ("records", pa.int64(), "source records in this batch"),
    ("counted", pa.bool_(), "its records are in the equation"),
    ("rows", pa.int64(), "rows in this batch"),
    ("bytes", pa.int64(), "bytes in this batch"),
    ("files", pa.list_(pa.string()), "files in this batch"),
    ("first_offset", pa.int64(), "lowest offset in this batch"),
    ("last_offset", pa.int64(), "highest offset in this batch"),
    ("columns", pa.int32(), "number of columns after it"),
    ("schema_ids", pa.list_(pa.int64()), "schemas in it"),
    ("version", pa.int64(), "table version it became"),
    (
        "outcome",
        pa.string(),
        "published, skipped, parked, (parked before) resumed; or accepted: the "
        "table was taken as it is, and rows says by how much it differed",
    ),
    ("error", pa.string(), "why it was parked"),
    ("batches", pa.int64(), "1; more in a sum of old batches"),
    ("since", TIMESTAMP, "as at; earlier in a sum"),
    *(
        (column, pa.int64(), f"events of kind {op} in this batch")
        for op, column in OP_COLUMNS.items()
    ),
    ("last_event", TIMESTAMP, "newest change, by the source"),
    ("expectations", pa.list_(RULE), "rules for its rows; null if there are none"),
)

SCHEMAS = _schema(
    ("pipeline", pa.string(), "name of the pipeline"),
    ("batch", pa.int64(), "batch in which it appeared"),
    ("at", TIMESTAMP, "when"),
    ("type", pa.string(), "type of the records"),
    ("table", pa.string(), "table that changed"),
    ("schema_id", pa.int64(), "schema that brought it"),
    ("schema", pa.string(), "its subject and version"),
    ("kind", pa.string(), "what changed"),
    ("column", pa.string(), "which column"),
    ("before", pa.string(), "type or name before"),
    ("after", pa.string(), "type or name after"),
    ("action", pa.string(), "what was done"),
    ("text", pa.string(), "the same in one line"),
)
