from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from distributary.config.shard import Move, moves, shard_of

NAMES = [f"type_{number}" for number in range(1000)]


def test_the_same_answer_for_ever() -> None:
    # written down: another answer would send the records of a type to a second job
    known = [shard_of(name, 5) for name in ("chess", "poker", "Größe", "", "a.b.C", "\ud800")]
    assert known == [2, 3, 1, 2, 0, 0]


def test_types_are_spread_evenly() -> None:
    counts = Counter(shard_of(name, 4) for name in NAMES)
    assert sorted(counts) == [0, 1, 2, 3]
    assert min(counts.values()) > 200


@given(st.text(), st.integers(1, 60))
def test_one_shard_more_takes_types_and_moves_nothing_else(name: str, shards: int) -> None:
    before, after = shard_of(name, shards), shard_of(name, shards + 1)
    assert 0 <= before < shards
    assert after in (before, shards)


def test_moves_are_few() -> None:
    moved = moves(NAMES, 4, 5)
    assert 100 < len(moved) < 300
    assert {move.after for move in moved} == {4}
    assert moves(NAMES, 3, 3) == ()
    assert all(isinstance(move, Move) for move in moved)


def test_names_that_differ_in_case_only_stay_together() -> None:
    assert all(shard_of(name, 7) == shard_of(name.upper(), 7) for name in NAMES)
