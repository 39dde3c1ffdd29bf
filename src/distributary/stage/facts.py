"""What a task tells the driver about a file."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.change_facts import ChangeFacts
from distributary.model.compact_json import compact
from distributary.model.manifest import StagedFile


def file_fact(table: str, records: int, staged: StagedFile | None) -> tuple[str, str]:
    """A file for the manifest; None stands for records that gave no row."""
    body = {"table": table, "records": records, "file": staged.as_dict() if staged else None}
    return "file", compact(body)


def change_fact(table: str, rows: pa.Table) -> tuple[str, str]:
    """What the events are that a log gets."""
    counts = pc.value_counts(rows.column("_op"))
    named = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
    newest = pc.max(rows.column("_source_ts")).cast(pa.int64()).as_py()
    facts = ChangeFacts({str(name): count for name, count in named}, newest)
    return "changes", compact([table, facts.as_dict()])
