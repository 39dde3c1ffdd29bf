"""Which schemas the records of a table, or of a topic, were written with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.table import Role
from distributary.observe.delta import reaching
from distributary.observe.readable import Readable
from distributary.observe.rows import SchemaRow

# rows are known where no batch mixed schemas; a sum of old batches does not know its first
SCHEMA_USE_SQL = """
SELECT pipeline, "table", id,
       CASE WHEN max(mixed) = 1 THEN sum(rows) END AS rows,
       CASE WHEN max(batches) = 1 THEN min(batch) END AS first_batch,
       max(batch) AS last_batch, min(since) AS first_seen, max(at) AS last_seen
FROM (SELECT pipeline, "table", batch, batches, rows, since, at,
             array_length(schema_ids) AS mixed, unnest(schema_ids) AS id
      FROM ledger WHERE outcome <> 'parked')
GROUP BY pipeline, "table", id
"""


@dataclass(frozen=True, slots=True)
class SchemaInUse:
    """One schema, and what there is of it."""

    id: int
    subject: str | None
    """None where nobody knows it any more."""
    subject_version: int | None
    rows: int | None
    """None where the ledger knows only the rows of several schemas together."""
    first_batch: int | None
    """None where it is summed up with other old batches."""
    last_batch: int | None
    """None where no table has a record of it: all of them are dead letters."""
    first_seen: datetime | None
    last_seen: datetime | None


def uses_of(
    found: pa.Table | None, tables: Iterable[tuple[str, str]], history: Iterable[SchemaRow]
) -> tuple[SchemaInUse, ...]:
    """The schemas of some tables, each named by its pipeline and its name; by id.

    Args:
        found: What `Ledger.schema_use` says.
        tables: Whose schemas.
        history: Where the subjects of ids are known from.
    """
    wanted = set(tables)
    rows: list[dict[str, Any]] = [] if found is None else found.to_pylist()
    homes = {(r.pipeline, r.schema_id): r.schema for r in history}
    by_id: dict[int, SchemaInUse] = {}
    for row in rows:
        pipeline = str(row["pipeline"])
        if (pipeline, row["table"]) not in wanted:
            continue
        subject, version = _split(homes.get((pipeline, row["id"]), ""))
        told = {k: v for k, v in row.items() if k not in ("pipeline", "table")}
        use = SchemaInUse(subject=subject, subject_version=version, **told)
        by_id[use.id] = _joined(by_id[use.id], use) if use.id in by_id else use
    return tuple(by_id[each] for each in sorted(by_id))


def count_rows(table: Readable, role: str, topic: str | None = None) -> Counter[int] | None:
    """Rows by schema id, from the table itself; None where its rows do not say it."""
    name = "schema_id" if role == Role.BRONZE else "_schema_id"
    files = table.files
    needed = {name} if topic is None else {name, "_topic"}
    if files is None or not needed <= set(table.schema.names):
        return None
    where = None if topic is None else pc.field("_topic") == topic
    counts: Counter[int] = Counter()
    with reaching(table.path):
        for batch in files.scanner(columns=[name], filter=where).to_batches():
            for pair in pc.value_counts(batch.column(0)).to_pylist():
                if pair["values"] is not None:
                    counts[pair["values"]] += pair["counts"]
    return counts


def with_rows(uses: Iterable[SchemaInUse], counts: Counter[int] | None) -> tuple[SchemaInUse, ...]:
    """The same with rows that were counted, and with schemas that only the count knows."""
    if counts is None:
        return tuple(uses)
    known = {use.id: replace(use, rows=counts[use.id]) for use in uses}
    for each in counts.keys() - known.keys():
        known[each] = SchemaInUse(each, None, None, counts[each], None, None, None, None)
    return tuple(known[each] for each in sorted(known))


def _joined(one: SchemaInUse, other: SchemaInUse) -> SchemaInUse:
    return SchemaInUse(
        one.id,
        one.subject or other.subject,
        one.subject_version or other.subject_version,
        None if one.rows is None or other.rows is None else one.rows + other.rows,
        _least(one.first_batch, other.first_batch),
        max(one.last_batch or 0, other.last_batch or 0),
        _least(one.first_seen, other.first_seen),
        max(filter(None, (one.last_seen, other.last_seen)), default=None),
    )


def _least(one: Any, other: Any) -> Any:
    return None if one is None or other is None else min(one, other)


def _split(label: str) -> tuple[str | None, int | None]:
    """From `chess-value v3`, as `WriterSchema.label` writes it."""
    subject, mark, version = label.rpartition(" v")
    return (subject, int(version)) if mark and version.isdigit() else (None, None)
