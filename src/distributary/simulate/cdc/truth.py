"""The truth about a simulated database as JSON: what its merged tables must hold."""

from __future__ import annotations

import json
from typing import Any

from distributary.simulate.cdc.kinds import canonical
from distributary.simulate.cdc.model import ChangeModel
from distributary.simulate.cdc.shapes import Row
from distributary.simulate.cdc.tables import LiveTable

TRUTH_VERSION = 1


def truth_document(model: ChangeModel) -> dict[str, Any]:
    """Every table of which anything was told, with its key, columns and rows in canonical JSON.

    Rows are sorted by their key; of a table without a key, all rows that are left are there.
    """
    rows = model.truth(keyless=True)
    return {
        "version": TRUTH_VERSION,
        "source_type": str(model.plan.source_type),
        "seed": model.plan.seed,
        "tables": [_table(table, rows[table.shape.claim]) for table in model.told],
    }


def _table(table: LiveTable, rows: list[Row]) -> dict[str, Any]:
    claim, key = table.shape.claim, table.shape.key
    plain = [{name: canonical(value) for name, value in row.items()} for row in rows]
    return {
        "database": claim.database,
        "schema": claim.schema,
        "table": claim.table,
        "key": list(key),
        "columns": {name: str(column.carried) for name, column in table.columns.items()},
        "dropped": list(table.dropped),
        "rows": sorted(plain, key=lambda row: _sorting(row, key)),
    }


def _sorting(row: Row, key: tuple[str, ...]) -> str:
    return json.dumps([row[name] for name in key or row], ensure_ascii=False)
