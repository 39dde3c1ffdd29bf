from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from distributary.web.drawing import COLUMNS, MOST_POINTS, of_pipelines, of_table
from distributary.web.reading import Memo

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("pipeline", pa.string()),
        ("batch", pa.int64()),
        ("started_at", pa.timestamp("us", "UTC")),
        ("finished_at", pa.timestamp("us", "UTC")),
        ("read", pa.int64()),
        ("dead_lettered", pa.int64()),
        ("lag_records", pa.int64()),
        ("lag_seconds", pa.float64()),
    ]
)


def timeline(count: int, *, pipeline: str = "games", seconds: float = 10) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {
            "pipeline": pipeline,
            "batch": n,
            "started_at": NOON + timedelta(seconds=seconds * n),
            "finished_at": NOON + timedelta(seconds=seconds * n + 2),
            "read": 100,
            "dead_lettered": 1,
            "lag_records": None if n == 0 else n,
            "lag_seconds": 1.0,
        }
        for n in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def test_columns_are_those_of_the_ledger() -> None:
    assert tuple(SCHEMA.names) == COLUMNS


def test_neighbours_are_added_up_when_there_are_too_many() -> None:
    (games,) = of_pipelines(timeline(1000), window="all")["pipelines"]
    points = games["points"]
    assert len(points) == MOST_POINTS
    assert sum(p["read"] for p in points) == 100_000
    assert sum(p["dead"] for p in points) == 1000
    assert {round(p["rate"], 6) for p in points} == {50.0}
    assert points[-1]["batch"] == 999
    assert points[-1]["at"] == "2026-01-31T14:46:32.000Z"


def test_what_was_not_measured_stays_unknown() -> None:
    (games,) = of_pipelines(timeline(3), window="all")["pipelines"]
    assert [p["lag"] for p in games["points"]] == [None, 1, 2]


def test_a_window_ends_with_the_newest_batch() -> None:
    both = pa.concat_tables([timeline(1000), timeline(2, pipeline="old", seconds=1)])
    told = of_pipelines(both, window="15m")
    assert [p["name"] for p in told["pipelines"]] == ["games"]
    assert len(told["pipelines"][0]["points"]) == 91
    assert of_pipelines(SCHEMA.empty_table(), window="1h")["pipelines"] == []


def test_commits_of_a_table() -> None:
    rows = [
        {"at": NOON + timedelta(seconds=n), "rows": 1, "outcome": "published"} for n in range(500)
    ]
    rows.append({"at": NOON + timedelta(hours=1), "rows": 9, "outcome": "parked"})
    points = of_table(pa.Table.from_pylist(rows))
    assert len(points) == MOST_POINTS
    assert sum(p["rows"] for p in points) == 500
    assert of_table(pa.Table.from_pylist(rows).slice(0, 0)) == []


def test_a_value_is_made_once_for_each_version() -> None:
    memo, made = Memo(), []
    barrier = threading.Barrier(4)

    def ask() -> None:
        barrier.wait()
        memo.get("key", 1, lambda: made.append(1) or "value")  # type: ignore[func-returns-value]

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert memo.get("key", 2, lambda: "other") == "other"
    assert memo.get("key", 2, lambda: "never asked") == "other"


def test_a_failure_is_not_remembered_and_little_is_kept() -> None:
    memo = Memo(most=2)

    def fail() -> str:
        raise OSError

    for _ in range(2):
        try:
            memo.get("key", 1, fail)
        except OSError:
            continue
    assert memo.get("key", 1, lambda: "value") == "value"
    for n in range(5):
        memo.get(n, 1, lambda: "value")
    assert memo.get("key", 1, lambda: "made again") == "made again"
