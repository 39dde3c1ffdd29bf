"""A table's rows become one Parquet file that no commit names yet, and the facts about it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from distributary.model.manifest import StagedFile

_STATISTICS_COLUMNS = 32
_LONGEST_TEXT = 64
_ROWS_FOR_DICTIONARY = 20_000


def write_file(
    table: pa.Table,
    folder: str,
    name: str,
    *,
    partition_values: Mapping[str, str | None] | None = None,
    first_offset: int = -1,
    last_offset: int = -1,
    schema_ids: Sequence[int] = (),
) -> StagedFile:
    """Write rows below a table's folder; statistics come from the file's own footer."""
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    collected: list[pq.FileMetaData] = []
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=1,
        # for small tables a dictionary costs twice the time and makes larger files
        use_dictionary=table.num_rows >= _ROWS_FOR_DICTIONARY,
        store_schema=False,
        write_page_index=False,
        metadata_collector=collected,
    )
    return StagedFile(
        path=name,
        size=path.stat().st_size,
        rows=table.num_rows,
        stats=_statistics(collected[0], table.schema),
        partition_values=dict(partition_values or {}),
        first_offset=first_offset,
        last_offset=last_offset,
        schema_ids=tuple(sorted(set(schema_ids))),
    )


def _statistics(footer: pq.FileMetaData, schema: pa.Schema) -> str:
    """Row count, and bounds and nulls of the leading flat columns, as Delta spells them."""
    flat = {f.name for f in schema if not pa.types.is_nested(f.type)}
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    wide = footer.num_columns > _STATISTICS_COLUMNS
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        # the coordinates come last and are what a search for a record needs
        if name not in flat or (wide and index >= _STATISTICS_COLUMNS and not name.startswith("_")):
            continue
        _add_column(footer, index, name, lowest, highest, nulls)
    return json.dumps(
        {
            "numRecords": footer.num_rows,
            "minValues": lowest,
            "maxValues": highest,
            "nullCount": nulls,
        },
        separators=(",", ":"),
    )


def _add_column(
    footer: pq.FileMetaData,
    index: int,
    name: str,
    lowest: dict[str, Any],
    highest: dict[str, Any],
    nulls: dict[str, int],
) -> None:
    groups = [footer.row_group(g).column(index).statistics for g in range(footer.num_row_groups)]
    if not groups or any(g is None or not g.has_null_count for g in groups):
        return
    nulls[name] = sum(g.null_count for g in groups)
    ranged = [g for g in groups if g.has_min_max]
    if len(ranged) != len(groups):
        return
    low, high = _json(min(g.min for g in ranged)), _json(max(g.max for g in ranged))
    if low is not None and high is not None:
        lowest[name], highest[name] = low, high


def _json(value: Any) -> Any:
    """A bound as JSON, or None where a bound cannot be written exactly."""
    match value:
        case bool() | int():
            return value
        case str():
            return value if len(value) <= _LONGEST_TEXT else None
        case datetime():
            return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if value.year >= 1000 else None
        case date():
            return value.isoformat()
    # a footer leaves NaN out of its bounds and readers do not: no bounds for floating point
    return None
