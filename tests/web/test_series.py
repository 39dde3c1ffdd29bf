from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from distributary.model.change import OP_COLUMNS
from distributary.web.drawing import COLUMNS, MOST_POINTS, of_pipelines, of_table
from distributary.web.reading import Memo

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=3)
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
    (games,) = of_pipelines(timeline(1000), window="all", now=LATER)["pipelines"]
    points = games["points"]
    assert len(points) == MOST_POINTS
    assert sum(p["read"] for p in points) == 100_000
    assert sum(p["dead"] for p in points) == 1000
    assert {round(p["rate"], 6) for p in points} == {50.0}
    assert points[-1]["batch"] == 999
    assert points[-1]["at"] == "2026-01-31T14:46:32.000Z"


def test_what_was_not_measured_stays_unknown() -> None:
    (games,) = of_pipelines(timeline(3), window="all", now=LATER)["pipelines"]
    assert [p["lag"] for p in games["points"]] == [None, 1, 2]


def test_a_window_ends_now() -> None:
    both = pa.concat_tables([timeline(1000), timeline(2, pipeline="old", seconds=1)])
    told = of_pipelines(both, window="15m", now=NOON + timedelta(seconds=9992))
    assert [p["name"] for p in told["pipelines"]] == ["games"]
    assert len(told["pipelines"][0]["points"]) == 91
    assert told["to"] == "2026-01-31T14:46:32.000Z"
    assert of_pipelines(both, window="15m", now=NOON + timedelta(days=1))["pipelines"] == []
    assert of_pipelines(SCHEMA.empty_table(), window="1h", now=LATER)["pipelines"] == []


def test_a_pipeline_that_stood_still_leaves_a_gap() -> None:
    later = timeline(3).set_column(
        2, "started_at", pa.array([NOON + timedelta(hours=n) for n in range(3)], SCHEMA.types[2])
    )
    later = later.set_column(
        3, "finished_at", pa.array([NOON + timedelta(hours=n) for n in range(3)], SCHEMA.types[3])
    )
    # a batch every hour is how it goes; an hour of silence among seconds is not
    (steady,) = of_pipelines(later, window="all", now=LATER)["pipelines"]
    assert [p["batch"] for p in steady["points"]] == [0, 1, 2]
    (games,) = of_pipelines(
        pa.concat_tables([timeline(5), later.slice(2)]), window="all", now=LATER
    )["pipelines"]
    assert [p["batch"] for p in games["points"]] == [0, 1, 2, 3, 4, None, 2]
    assert games["points"][5]["rate"] is None


def test_commits_of_a_table() -> None:
    nothing = dict.fromkeys(OP_COLUMNS.values())
    rows: list[dict[str, Any]] = [
        {
            "at": NOON + timedelta(seconds=n),
            "batch": n,
            "rows": 1,
            "outcome": "published",
            **nothing,
        }
        for n in range(500)
    ]
    parked = {"at": NOON + timedelta(hours=1), "batch": 500, "rows": 9, "outcome": "parked"}
    rows.append({**nothing, **parked})
    points = of_table(pa.Table.from_pylist(rows))
    assert len(points) == MOST_POINTS
    assert sum(p["rows"] for p in points) == 500
    assert points[-1]["batch"] == 499
    # a table that is made of changes has no rows of its own in a batch, but events
    changed = [{**rows[0], "rows": 0, "inserts": 3, "deletes": 2}]
    assert [p["events"] for p in of_table(pa.Table.from_pylist(changed))] == [5]
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
