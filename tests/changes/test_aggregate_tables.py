"""Aggregate tables against sums in plain Python, whatever happens to their source table."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes import aggregate_tables
from distributary.changes.aggregate_tables import (
    AggregateOrder,
    merge_aggregates,
    verify_aggregates,
)
from distributary.config.rules.aggregates import AggregateConfig
from distributary.delta.column_merge import fields_of
from distributary.delta.commit import Change, rewrite_files, write_rows
from distributary.delta.log import Snapshot, snapshot_of
from distributary.delta.tables import OvertakenError
from distributary.delta.vectors import write_vectors
from distributary.errors import PublishError
from distributary.model.manifest import Mark
from distributary.model.table import Column, Role

MOMENT = pa.timestamp("us", tz="UTC")
COLUMNS = (
    Column("player", pa.string()),
    Column("level", pa.int32()),
    Column("score", pa.int64()),
    Column("price", pa.decimal128(10, 2)),
    Column("speed", pa.float64()),
    Column("seen", MOMENT),
)
SCHEMA = pa.schema([(c.name, c.type) for c in COLUMNS])
START = datetime(2026, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def entry(**more: Any) -> AggregateConfig:
    settings: dict[str, Any] = {
        "name": "gold_{table}",
        "group_by": ["player", {"day": "date_trunc('day', seen)"}],
        "columns": {
            "games": "count(*)",
            "scored": "count(score)",
            "points": "sum(score)",
            "levels": "sum(level)",
            "paid": "sum(price)",
            "best": "max(score)",
            "worst": "min(level)",
            "fastest": "max(speed)",
            "slowest": "min(speed)",
            "last_seen": "max(seen)",
            "mean": "avg(price)",
            "halves": "avg(score)",
            "inverse": "max(100 // level)",
        },
    }
    return AggregateConfig.model_validate(settings | more)


class Lake:
    """A source table whose rows are known, and its aggregate table."""

    def __init__(self, root: Path, **more: Any) -> None:
        self.source, self.path = str(root / "silver"), str(root / "gold")
        self.rule = entry(**more).rule()
        self.files: dict[str, list[Row]] = {}
        self.vectors = False
        self.batch = 0

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.files.values() for row in rows]

    def change(self, *, remove: Iterable[str] = (), add: list[Row], same: bool = False) -> None:
        """Commit one change of whole files."""
        Path(self.source).mkdir(exist_ok=True)
        before = snapshot_of(self.source)
        files = before.files if before else {}
        gone = [files[name] for name in remove]
        for file in gone:
            del self.files[file.path]
        added = []
        if add:
            file = write_rows(pa.Table.from_pylist(add, SCHEMA), self.source)
            added, self.files[file.path] = [file], add
        fields = fields_of(COLUMNS) if before is None else None
        change = Change("WRITE", fields=fields, removed=gone, added=added, same_rows=same)
        rewrite_files(self.source, before, change)

    def mark_deleted(self, name: str, numbers: set[int]) -> None:
        """Delete rows of a file by a vector."""
        before = snapshot_of(self.source)
        assert before is not None
        file = before.files[name]
        left = np.delete(np.arange(file.written or 0), before.gone(file))
        gone = np.union1d(before.gone(file), left[sorted(numbers)])
        (vector,) = write_vectors(before.store, [gone])
        rewrite_files(self.source, before, Change("DELETE", vectors=[(file, vector)]))
        self.files[name] = [r for n, r in enumerate(self.files[name]) if n not in numbers]

    def order(self, **more: Any) -> AggregateOrder:
        return AggregateOrder(
            table="gold",
            path=self.path,
            source="silver",
            source_path=self.source,
            role=Role.EACH,
            rule=self.rule,
            mark=Mark("distributary/p/life/stream", self.batch, "hash"),
            vectors=self.vectors,
            **more,
        )

    def follow(self) -> None:
        self.batch += 1
        merge_aggregates(self.order())

    def groups(self) -> list[Row]:
        state = snapshot_of(self.path)
        if state is None:
            return []
        names = [n for n in (f["name"] for f in state.fields) if not n.startswith("_")]
        rows = DeltaTable(self.path).to_pyarrow_table() if not self.vectors else None
        if rows is None:
            schema = pa.schema([(f["name"], _types(self, f["name"])) for f in state.fields])
            rows = state.rows(schema)
        return _sorted(rows.select(names).to_pylist())


def _types(lake: Lake, name: str) -> pa.DataType:
    from distributary.shape.aggregate_columns import aggregates_of

    found = aggregates_of(lake.rule, COLUMNS, skips_deleted=False)
    return found.schema.field(name).type


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda r: (str(r["player"]), str(r["day"])))


def _bound(values: list[Any], *, highest: bool) -> Any:
    """Return the bound of values, of which nan is the highest."""
    known = [v for v in values if v is not None]

    def rank(value: Any) -> tuple[bool, Any]:
        odd = isinstance(value, float) and math.isnan(value)
        return odd, 0.0 if odd else value

    return (max if highest else min)(known, key=rank) if known else None


def expected(rows: list[Row]) -> list[Row]:
    """Return the groups as plain Python adds them up."""
    groups: dict[tuple[Any, Any], list[Row]] = {}
    for row in rows:
        day = row["seen"] and row["seen"].replace(hour=0, minute=0, second=0, microsecond=0)
        groups.setdefault((row["player"], day), []).append(row)
    found = []
    for (player, day), mine in groups.items():

        def values(name: str, mine: list[Row] = mine) -> list[Any]:
            return [row[name] for row in mine if row[name] is not None]

        def total(name: str) -> Any:
            return sum(values(name)) if values(name) else None

        prices, scores = values("price"), values("score")
        found.append(
            {
                "player": player,
                "day": day,
                "games": len(mine),
                "scored": len(scores),
                "points": total("score"),
                "levels": total("level"),
                "paid": total("price"),
                "best": _bound(scores, highest=True),
                "worst": _bound(values("level"), highest=False),
                "fastest": _bound(values("speed"), highest=True),
                "slowest": _bound(values("speed"), highest=False),
                "last_seen": _bound(values("seen"), highest=True),
                "mean": float(sum(prices)) / len(prices) if prices else None,
                "halves": float(sum(scores)) / len(scores) if scores else None,
                "inverse": _bound([100 // n for n in values("level") if n], highest=True),
            }
        )
    return _sorted(found)


def plain(rows: list[Row]) -> list[Row]:
    """Return rows whose values compare by ==: nan is a text, and all zones are UTC."""

    def value(one: Any) -> Any:
        if isinstance(one, datetime):
            return one.astimezone(UTC).isoformat()
        return "nan" if isinstance(one, float) and math.isnan(one) else one

    return [{name: value(one) for name, one in row.items()} for row in rows]


rows = st.fixed_dictionaries(
    {
        "player": st.sampled_from(["ann", "bob", "", "ü\0", None]),
        "level": st.sampled_from([None, 0, 1, 3, 7, 2**31 - 1]),
        "score": st.sampled_from([None, -5, 0, 1, 2, 2**63 - 1, -(2**63)]),
        "price": st.sampled_from([None, Decimal("0.01"), Decimal("-3.50"), Decimal("99999999.99")]),
        "speed": st.sampled_from([None, 0.5, -1.0, math.inf, math.nan]),
        "seen": st.sampled_from([None, *(START + timedelta(hours=9 * n) for n in range(5))]),
    }
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "replace", "remove", "compact", "vector", "follow", "whole"]),
        st.lists(rows, min_size=1, max_size=6),
        st.randoms(use_true_random=False),
    ),
    max_size=12,
)


def act(lake: Lake, step: str, some: list[Row], dice: random.Random) -> None:
    """Do one thing to the source table, or bring the aggregate table up to date."""
    names = [name for name, mine in lake.files.items() if mine]
    if step == "follow":
        lake.follow()
    elif step == "whole":
        merge_aggregates(lake.order(whole=True))
    elif step == "append" or not names:
        lake.change(add=some)
    elif step == "compact":
        both = dice.sample(names, min(2, len(names)))
        lake.change(remove=both, add=[r for n in both for r in lake.files[n]], same=True)
    else:
        name = dice.choice(names)
        mine = lake.files[name]
        gone = set(dice.sample(range(len(mine)), dice.randint(1, len(mine))))
        if step == "vector":
            lake.mark_deleted(name, gone)
        else:
            kept = [row for n, row in enumerate(mine) if n not in gone]
            lake.change(remove=[name], add=kept + (some if step == "replace" else []))


@given(steps=steps, vectors=st.booleans(), often=st.booleans())
def test_groups_are_what_plain_python_says(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, list[Row], random.Random]],
    vectors: bool,
    often: bool,
) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    lake.vectors = vectors
    for step, some, dice in steps:
        act(lake, step, some, dice)
        if often:
            lake.follow()
            assert plain(lake.groups()) == plain(expected(lake.rows))
    lake.follow()
    assert plain(lake.groups()) == plain(expected(lake.rows))
    found = verify_aggregates(lake.order())
    assert found is None or (found.wrong, found.behind) == (0, False)


def test_groups_may_have_any_name(tmp_path: Path) -> None:
    names = ["kind", "s0", "lost", "at", "p0", "m0", "what", "has", "a0", "rows", "n", "o", "k"]
    lake = Lake(
        tmp_path,
        group_by={name: "player" for name in names},
        columns={
            "s1": "count(*)",
            "key": "max(score)",
            "wants": "sum(score)",
            "parts": "avg(level)",
        },
    )
    first: Row = {
        "player": "ann",
        "level": 1,
        "score": 2,
        "price": None,
        "speed": 1.0,
        "seen": START,
    }
    lake.change(add=[first])
    lake.follow()
    lake.change(remove=list(lake.files), add=[{**first, "score": 1}, {**first, "player": None}])
    lake.follow()
    rows = DeltaTable(lake.path).to_pyarrow_table().to_pylist()
    assert sorted((str(r["lost"]), r["s1"], r["key"], r["wants"]) for r in rows) == [
        ("None", 1, 2, 2),
        ("ann", 1, 1, 1),
    ]
    found = verify_aggregates(lake.order())
    assert found is not None
    assert found.agrees


def test_too_large_a_sum_is_refused_by_name(tmp_path: Path) -> None:
    lake = Lake(
        tmp_path,
        group_by=["player"],
        columns={"much": "sum(CAST(score AS DECIMAL(38, 19)))"},
    )
    row: Row = {"player": "ann", "level": 1, "price": None, "speed": 1.0, "seen": START}
    lake.change(add=[{**row, "score": 2**63 - 1}])
    lake.follow()
    for _ in range(4):
        lake.change(add=[{**row, "score": 2**63 - 1} for _ in range(4)])
    with pytest.raises(PublishError):
        lake.follow()


def test_a_file_that_is_gone_makes_it_group_everything_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path, group_by=["player"], columns={"games": "count(*)"})
    row: Row = dict.fromkeys(SCHEMA.names)
    lake.change(add=[row, row])
    lake.follow()
    lake.change(add=[row])
    lake.change(remove=list(lake.files), add=[row] * 3, same=True)
    for file in Path(lake.source).glob("*.parquet"):
        if file.name not in lake.files:
            file.unlink()
    lake.follow()
    assert [r["games"] for r in DeltaTable(lake.path).to_pyarrow_table().to_pylist()] == [3]


def test_another_writer_that_comes_first_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, group_by=["player"], columns={"games": "count(*)"})
    lake.change(add=[dict.fromkeys(SCHEMA.names)])
    lake.follow()
    lake.change(add=[dict.fromkeys(SCHEMA.names)])
    commit, calls = aggregate_tables.rewrite_files, []

    def overtaken(*given: Any) -> Snapshot:
        calls.append(given)
        if len(calls) == 1:
            commit(*given)
            raise OvertakenError("somebody was faster")
        return commit(*given)

    monkeypatch.setattr(aggregate_tables, "rewrite_files", overtaken)
    lake.follow()
    assert [r["games"] for r in DeltaTable(lake.path).to_pyarrow_table().to_pylist()] == [2]


def test_a_table_without_the_property_is_left_alone(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.change(add=[dict.fromkeys(SCHEMA.names)])
    write_deltalake(lake.path, pa.table({"mine": [1]}))
    with pytest.raises(PublishError):
        lake.follow()
    assert DeltaTable(lake.path).version() == 0
