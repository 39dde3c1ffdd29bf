"""Tables whose settings would break a promise."""

from __future__ import annotations

from pathlib import Path

from distributary.observe import layout
from distributary.observe.delta import open_table
from distributary.observe.ledger import Ledger

_PROPERTY = "delta.setTransactionRetentionDuration"


def tables_with_expiring_marks(lake: Path, pipeline: str | None) -> list[str]:
    """Tables on which somebody has set that transaction marks are forgotten."""
    if not (lake / layout.HOME).is_dir():
        return []
    found = []
    for summary in Ledger(str(lake)).tables(pipeline, schema_ids=False):
        table = open_table(layout.place(str(lake), summary.path))
        if table is not None and _PROPERTY in table.metadata().configuration:
            found.append(summary.table)
    return found
