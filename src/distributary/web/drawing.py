"""Time series with few enough points to draw, as pure functions."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from distributary.delta.tables import reaching_table
from distributary.evolve.types import sql_name
from distributary.model.change import OP_COLUMNS
from distributary.observe.log_format import cut, plain
from distributary.observe.status.health import head
from distributary.publish.formats.readable import ReadableTable

COLUMNS = (
    *("pipeline", "batch", "started_at", "finished_at", "read", "dead_lettered"),
    *("lag_records", "lag_seconds"),
)
WINDOWS = {"15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "all": 0}
MOST_POINTS = 180
_MOST_PIPELINES = 6
_MICROS = 1_000_000
_PAUSE_SECONDS = 60.0
"""The pause from which on, if it is also unusual, a gap is drawn between two batches."""


def of_pipelines(
    timeline: pa.Table, *, window: str, now: datetime, only: str | None = None
) -> dict[str, Any]:
    """Return throughput, lag and freshness of each pipeline, up to now."""
    ends = _micros(timeline["finished_at"])
    end = int(now.timestamp() * _MICROS)
    seconds = WINDOWS[window]
    begin = end - seconds * _MICROS if seconds else (int(ends.min()) if len(ends) else end)
    names = np.array(timeline["pipeline"].to_pylist(), dtype=object)
    inside = ends >= begin
    wanted = [only] if only is not None else sorted(set(names[inside]))[:_MOST_PIPELINES]
    return {
        "window": window,
        "from": _moment(begin),
        "to": _moment(end),
        "pipelines": [
            {"name": name, "points": _points(timeline.filter(pa.array(inside & (names == name))))}
            for name in wanted
        ],
    }


def of_table(commits: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of each commit of a table, with the pause before it."""
    done = [row for row in commits.to_pylist() if row["outcome"] not in ("parked", "accepted")]
    pauses = [(row["at"] - before["at"]).total_seconds() for before, row in pairwise(done)]
    # too many neighbours are combined: rows are summed, the longest pause is kept
    groups: dict[int, list[tuple[dict[str, Any], float | None]]] = defaultdict(list)
    for n, pair in enumerate(zip(done, [None, *pauses], strict=False)):
        groups[n * min(len(done), MOST_POINTS) // len(done)].append(pair)
    return [
        {
            "at": some[-1][0]["at"],
            "batch": some[-1][0]["batch"],
            "rows": sum(row["rows"] or 0 for row, _ in some),
            "events": sum(events_of(row) or 0 for row, _ in some),
            "pause": max((pause for _, pause in some if pause is not None), default=None),
        }
        for some in groups.values()
    ]


def events_of(commit: Mapping[str, Any]) -> int | None:
    """Return the changes of the source in a commit; None if its table has no change data."""
    counts = [commit[column] for column in OP_COLUMNS.values()]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _points(batches: pa.Table) -> list[dict[str, Any]]:
    """Return one point per batch, or one for several neighbours if there are too many."""
    count = len(batches)
    if not count:
        return []
    groups = np.arange(count) * min(count, MOST_POINTS) // count
    starts, ends = _micros(batches["started_at"]), _micros(batches["finished_at"])
    reads, dead = (
        np.bincount(groups, weights=batches[name].to_numpy(zero_copy_only=False))
        for name in ("read", "dead_lettered")
    )
    busy = np.bincount(groups, weights=np.maximum(ends - starts, 1) / _MICROS)
    last = np.append(np.flatnonzero(np.diff(groups)), count - 1)
    lags, ages = batches["lag_records"].to_pylist(), batches["lag_seconds"].to_pylist()
    numbers = batches["batch"].to_pylist()
    points = [
        {
            "at": _moment(int(ends[at])),
            "batch": numbers[at],
            "rate": float(reads[n] / busy[n]),
            "read": int(reads[n]),
            "dead": int(dead[n]),
            "lag": lags[at],
            "age": ages[at],
        }
        for n, at in enumerate(last)
    ]
    return _with_gaps(points, starts[np.append(0, last[:-1] + 1)], ends[last])


def _with_gaps(
    points: list[dict[str, Any]], starts: np.ndarray, ends: np.ndarray
) -> list[dict[str, Any]]:
    """Return the points, with an empty one wherever the pipeline did not run."""
    pauses = starts[1:] - ends[:-1]
    usual = float(np.median(pauses)) if len(pauses) else 0.0
    longest = _PAUSE_SECONDS * _MICROS + 5 * max(usual, 0.0)
    with_gaps: list[dict[str, Any]] = []
    for n, point in enumerate(points):
        if n and pauses[n - 1] > longest:
            middle = int(ends[n - 1] + pauses[n - 1] // 2)
            with_gaps.append({**dict.fromkeys(point), "at": _moment(middle)})
        with_gaps.append(point)
    return with_gaps


def _micros(column: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(column.cast(pa.int64()).to_numpy(zero_copy_only=False), dtype=np.int64)


def _moment(micros: int) -> str:
    return f"{np.datetime64(micros // 1000, 'ms')}Z"


# A preview of a table as text, limited in rows, columns and bytes, and never a full scan.

MOST_ROWS = 200
MOST_COLUMNS = 80
_MOST_BYTES = 32 << 20
"""The largest number of bytes to decode for a preview; columns with larger values are left out."""
_MOST_FILES = 20
_TEXT = 160
_BYTES = 24


def preview(table: ReadableTable, *, limit: int) -> dict[str, Any]:
    """Return the newest rows, as far as files show which ones are new."""
    names = table.schema.names[:MOST_COLUMNS]
    with reaching_table(table.path):
        rows, heavy = _newest(table, names, limit)
    columns = [
        {"name": name, "type": sql_name(kind), "kind": _kind(kind)}
        for name, kind in zip(rows.schema.names, rows.schema.types, strict=True)
    ]
    cells = [[_cell(value) for value in rows[at].to_pylist()] for at in range(rows.num_columns)]
    return {
        "columns": columns,
        "rows": [list(row) for row in zip(*cells, strict=True)],
        "left_out": sorted(heavy),
        "more_columns": max(len(table.schema.names) - len(names), 0),
    }


def _newest(table: ReadableTable, names: list[str], limit: int) -> tuple[pa.Table, set[str]]:
    live = table.files
    if live is None:
        return table.some_rows(names, limit), set()
    fragments = [each for each, _ in table.newest_files(live)[:_MOST_FILES]]
    heavy = {n for f in fragments[:1] for n in _heavy(f, limit)} & set(names)
    light = [name for name in names if name not in heavy]
    parts: list[pa.Table] = []
    for fragment in fragments:
        missing = limit - sum(map(len, parts))
        if missing <= 0:
            break
        parts.append(_last(fragment, live.schema, light, missing))
    whole = pa.concat_tables(parts) if parts else live.schema.empty_table().select(light)
    return whole, heavy


def _last(fragment: ds.Fragment, schema: pa.Schema, columns: list[str], rows: int) -> pa.Table:
    """Return the last rows of a file, the last one first; of a large file the first ones."""
    groups = fragment.metadata
    sizes = (
        groups.row_group(g).column(n).total_uncompressed_size
        for g in range(groups.num_row_groups)
        for n in range(groups.num_columns)
    )
    if sum(sizes) > _MOST_BYTES:
        return head(fragment, schema, columns, rows)
    rows_read = fragment.to_table(schema=schema, columns=columns)
    rows_read = rows_read.slice(max(len(rows_read) - rows, 0))
    return rows_read.take(np.arange(len(rows_read))[::-1])


def _heavy(fragment: ds.Fragment, limit: int) -> Iterator[str]:
    """Yield columns whose values of `limit` rows would be too large."""
    groups = fragment.metadata
    for n in range(groups.num_columns):
        sizes = [groups.row_group(g).column(n) for g in range(groups.num_row_groups)]
        size = sum(chunk.total_uncompressed_size for chunk in sizes)
        share = min(limit / max(groups.num_rows, 1), 1.0)
        if sizes and size * share > _MOST_BYTES:
            yield sizes[0].path_in_schema.split(".")[0]


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_nested(kind):
        return "nested"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    return "time" if pa.types.is_temporal(kind) else "text"


def _cell(value: Any) -> str | None:
    """Return a value as text, cut; numbers too, because a browser would lose digits."""
    match value:
        case None:
            return None
        case bytes():
            return f"0x{value[:_BYTES].hex()}{'…' if len(value) > _BYTES else ''}"
        case str():
            return cut(value, _TEXT)
        case bool():
            return "true" if value else "false"
        case dict() | list():
            return cut(json.dumps(plain(value), ensure_ascii=False), _TEXT)
    known = plain(value)
    return str(value) if known is None else cut(str(known), _TEXT)
