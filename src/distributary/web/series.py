"""Numbers over time, few enough to draw. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

COLUMNS = (
    *("pipeline", "batch", "started_at", "finished_at", "read", "dead_lettered"),
    *("lag_records", "lag_seconds"),
)
WINDOWS = {"15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "all": 0}
MOST_POINTS = 180
_MOST_PIPELINES = 6
_MICROS = 1_000_000


def of_pipelines(timeline: pa.Table, *, window: str, only: str | None = None) -> dict[str, Any]:
    """Throughput, lag and freshness of each pipeline, up to the newest batch of all of them."""
    ends = _micros(timeline["finished_at"])
    end = int(ends.max()) if len(ends) else 0
    seconds = WINDOWS[window]
    begin = end - seconds * _MICROS if seconds else (int(ends.min()) if len(ends) else 0)
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
    """Each commit of a table: its rows, and how long it was quiet before."""
    done = [row for row in commits.to_pylist() if row["outcome"] not in ("parked", "accepted")]
    found = []
    before: datetime | None = None
    for row in done:
        pause = None if before is None else (row["at"] - before).total_seconds()
        found.append({"at": row["at"], "rows": row["rows"], "pause": pause})
        before = row["at"]
    return _thinned(found)


def _points(batches: pa.Table) -> list[dict[str, Any]]:
    """One point a batch, or one for some neighbours where there are too many."""
    count = len(batches)
    if not count:
        return []
    groups = np.arange(count) * min(count, MOST_POINTS) // count
    starts, ends = _micros(batches["started_at"]), _micros(batches["finished_at"])
    reads = _sums(groups, _numbers(batches["read"]))
    dead = _sums(groups, _numbers(batches["dead_lettered"]))
    busy = _sums(groups, np.maximum(ends - starts, 1) / _MICROS)
    last = np.append(np.flatnonzero(np.diff(groups)), count - 1)
    lags, ages = batches["lag_records"].to_pylist(), batches["lag_seconds"].to_pylist()
    numbers = batches["batch"].to_pylist()
    return [
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


def _thinned(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours together: their rows added up, the longest of their pauses kept."""
    count = len(points)
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for n, point in enumerate(points):
        groups.setdefault(n * min(count, MOST_POINTS) // count, []).append(point)
    return [
        {
            "at": some[-1]["at"],
            "rows": sum(p["rows"] or 0 for p in some),
            "pause": max((p["pause"] for p in some if p["pause"] is not None), default=None),
        }
        for some in groups.values()
    ]


def _sums(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.bincount(groups, weights=values)


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=float)


def _micros(column: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(column.cast(pa.int64()).to_numpy(zero_copy_only=False), dtype=np.int64)


def _moment(micros: int) -> str:
    stamp = np.datetime64(micros // 1000, "ms")
    return f"{stamp}Z"
