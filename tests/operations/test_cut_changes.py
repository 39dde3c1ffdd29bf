"""What became of tables between two cuts: appended, merged, compacted, partitioned, evolved."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary import DistributaryError, Lake
from distributary.config.lake import Maintain
from distributary.errors import ConfigError, ErrorCode
from distributary.operations.cut_changes import AFTER, BEFORE, CHANGE_TYPE, DELETE, INSERT, compared
from distributary.operations.maintain import UpkeepStep, Wishes, jobs_of, maintain
from tests.lakes.settled import SettledLake


@pytest.fixture
def games(tmp_path: Path) -> SettledLake:
    lake = SettledLake(tmp_path, bronze=False)
    for n in range(4):
        lake.batch({"chess": 2, "go": 1} if n != 2 else {"go": 1})
    return lake


def compacted(lake: SettledLake) -> None:
    wishes = Wishes(Maintain.model_validate({"optimize": {"min_files": 2}}), [UpkeepStep.OPTIMIZE])
    maintain(str(lake.lake), jobs_of(str(lake.lake)), wishes, whole_lake=False)


def test_rows_that_were_added_are_those_of_the_batches_between(games: SettledLake) -> None:
    changed = Lake(games.lake).changes_since(1)
    assert {name: changes.counts()["inserted"] for name, changes in changed.items()} == {
        "silver_chess": 2,
        "silver_go": 2,
    }
    rows = changed["silver_go"].rows
    assert rows["_batch"].to_pylist() == [2, 3]
    assert set(rows[CHANGE_TYPE].to_pylist()) == {INSERT}
    # chess got nothing in batch 2
    assert list(Lake(games.lake).at(2).changes_since(1)) == ["silver_go"]
    assert Lake(games.lake).at(1).changes_since(1) == {}


@pytest.mark.parametrize("vacuumed", [False, True])
def test_rows_that_only_moved_are_no_change(games: SettledLake, vacuumed: bool) -> None:
    compacted(games)
    games.batch({"chess": 3, "poker": 1})
    path = games.lake / "silver_chess"
    if vacuumed:
        DeltaTable(str(path)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    lake = Lake(games.lake)
    changed = lake.changes_since(3, tables=["silver_chess"])
    if vacuumed:
        # what the cut had is gone, and what was added since is not
        assert changed["silver_chess"].rows["_batch"].to_pylist() == [4, 4, 4]
        with pytest.raises(DistributaryError) as caught:
            _ = lake.changes_since(1)["silver_chess"].rows
        assert caught.value.code is ErrorCode.CUT_LOST
        return
    compacted(games)
    assert sorted(changed["silver_chess"].rows["_batch"].to_pylist()) == [4, 4, 4]
    both = lake.changes_since(0)
    batches = sorted(both["silver_chess"].rows["_batch"].to_pylist())
    assert batches == [1, 1, 3, 3, 4, 4, 4]
    # a table that was not there before has all its rows from then on
    assert both["silver_poker"].counts() == {"inserted": 1, "updated": 0, "deleted": 0}


def test_rows_that_others_removed_are_deleted(games: SettledLake) -> None:
    DeltaTable(str(games.lake / "silver_chess")).delete("_offset = 0")
    changes = Lake(games.lake).changes_since(1)["silver_chess"]
    assert Counter(changes.rows[CHANGE_TYPE].to_pylist()) == {INSERT: 2, DELETE: 1}
    assert changes.counts() == {"inserted": 2, "updated": 0, "deleted": 1}


def test_columns_and_partitions_are_those_of_the_later_cut(games: SettledLake) -> None:
    path = str(games.lake / "silver_chess")
    rows = DeltaTable(path).to_pyarrow_table().slice(0, 1)
    more = rows.append_column("rating", pa.array([7], pa.int64()))
    write_deltalake(path, more, mode="append", schema_mode="merge")
    found = Lake(games.lake).changes_since(1)["silver_chess"].rows
    assert found["rating"].to_pylist().count(7) == 1
    assert found["rating"].null_count == 2


def test_cuts_in_the_wrong_order_and_tables_that_are_not_there(games: SettledLake) -> None:
    with pytest.raises(ConfigError) as caught:
        Lake(games.lake).at(0).changes_since(3)
    assert "cut 3 is later than cut 0" in str(caught.value)
    with pytest.raises(ConfigError):
        Lake(games.lake).changes_since(0, tables=["silver_poker"])


ROWS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", None])), max_size=12)


def table(rows: list[tuple[int, str | None]]) -> pa.Table:
    schema = pa.schema([("id", pa.int64()), ("value", pa.string())])
    return pa.Table.from_pylist([{"id": i, "value": v} for i, v in rows], schema=schema)


@settings(max_examples=settings.default.max_examples // 2)
@given(ROWS, ROWS)
def test_a_comparison_leads_from_one_table_to_the_other(
    old: list[tuple[int, str | None]], new: list[tuple[int, str | None]]
) -> None:
    found = compared(table(old), table(new), ())
    by_kind = {kind: Counter[tuple[int, str | None]]() for kind in (INSERT, DELETE)}
    for row in found.to_pylist():
        by_kind[row[CHANGE_TYPE]][row["id"], row["value"]] += 1
    assert by_kind[DELETE] == Counter(old) - Counter(new)
    assert by_kind[INSERT] == Counter(new) - Counter(old)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    st.dictionaries(st.integers(0, 5), st.text(max_size=2)),
    st.dictionaries(st.integers(0, 5), st.text(max_size=2)),
)
def test_rows_of_one_key_are_an_update(old: dict[int, str], new: dict[int, str]) -> None:
    found = compared(table(list(old.items())), table(list(new.items())), ("id",))
    kinds: dict[str, dict[int, str]] = {INSERT: {}, DELETE: {}, BEFORE: {}, AFTER: {}}
    for row in found.to_pylist():
        kinds[row[CHANGE_TYPE]][row["id"]] = row["value"]
    other = {key for key in old.keys() & new.keys() if old[key] != new[key]}
    assert kinds[BEFORE] == {key: old[key] for key in other}
    assert kinds[AFTER] == {key: new[key] for key in other}
    assert kinds[DELETE] == {key: old[key] for key in old.keys() - new.keys()}
    assert kinds[INSERT] == {key: new[key] for key in new.keys() - old.keys()}
