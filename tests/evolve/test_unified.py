"""Which columns of which types become columns of the unified table."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Literal

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from distributary.evolve.types import fold
from distributary.evolve.unified import REST, Unified, plan_unified
from distributary.model.table import Column

Mode = Literal["shared", "wide"]
INT, LONG, TEXT = pa.int32(), pa.int64(), pa.string()


def columns(**types: pa.DataType) -> tuple[Column, ...]:
    return tuple(Column(name, type_) for name, type_ in types.items())


GAMES = {
    "chess": columns(player=TEXT, score=INT, moves=INT),
    "go": columns(player=TEXT, score=LONG, board=TEXT),
    "poker": columns(player=TEXT, score=TEXT),
}


def shape(plan: Unified) -> dict[str, pa.DataType]:
    return {column.name: column.type for column in plan.columns}


def targets(plan: Unified, type_: str) -> dict[str, str]:
    return {fill.source: fill.target for fill in plan.shares[type_].fills}


def test_what_types_share_is_a_column_and_the_rest_is_text() -> None:
    plan = plan_unified((), GAMES)
    assert shape(plan) == {"player": TEXT, "score": LONG, REST: TEXT}
    assert targets(plan, "chess") == {"player": "player", "score": "score"}
    assert {name: share.rest for name, share in plan.shares.items()} == {
        "chess": ("moves",),
        "go": ("board",),
        "poker": ("score",),
    }
    assert all(fill.type == LONG for fill in plan.shares["chess"].fills if fill.target == "score")


def test_the_only_type_has_all_its_columns_and_keeps_them() -> None:
    alone = plan_unified((), {"chess": GAMES["chess"]})
    assert list(shape(alone)) == ["player", "score", "moves", REST]
    later = plan_unified(alone.columns, GAMES)
    assert list(shape(later)) == ["player", "score", "moves", REST]
    assert later.shares["chess"].rest == ()
    assert later.shares["go"].rest == ("board",)


def test_the_type_that_most_types_agree_on_wins() -> None:
    plan = plan_unified((), {"a": columns(x=TEXT), "b": columns(x=INT), "c": columns(x=INT)})
    assert shape(plan) == {"x": INT, REST: TEXT}
    assert plan.shares["a"].rest == ("x",)


def test_a_disagreement_inside_a_struct_goes_to_the_rest() -> None:
    one, two = pa.struct([("x", INT)]), pa.struct([("x", INT), ("y", TEXT)])
    other = pa.struct([("x", TEXT), ("new", TEXT)])
    plan = plan_unified((), {"a": columns(s=one), "b": columns(s=two), "c": columns(s=other)})
    assert shape(plan) == {"s": two, REST: TEXT}
    assert plan.shares["c"].rest == ("s",)


def test_names_that_differ_in_case_are_shared_but_two_of_one_type_are_not() -> None:
    plan = plan_unified((), {"a": columns(e=INT, E=INT), "b": columns(E=INT)})
    assert shape(plan) == {"E": INT, REST: TEXT}
    assert targets(plan, "a") == {"E": "E"}
    assert plan.shares["a"].rest == ("e",)


def test_wide_makes_everything_a_column() -> None:
    plan = plan_unified((), GAMES, mode="wide")
    assert list(shape(plan)) == ["player", "score", "moves", "board", "score__string"]
    assert targets(plan, "poker") == {"player": "player", "score": "score__string"}
    assert not any(share.rest for share in plan.shares.values())


def test_past_the_limit_columns_go_to_the_rest() -> None:
    wide = plan_unified((), GAMES, mode="wide", max_columns=4)
    assert list(shape(wide)) == ["player", "score", "moves", REST]
    assert wide.shares["go"].rest == ("board",)
    assert wide.shares["poker"].rest == ("score",)
    shared = plan_unified((), GAMES, max_columns=2)
    assert list(shape(shared)) == ["player", REST]


def test_rest_is_not_filled_by_a_type() -> None:
    types = {"a": columns(x=LONG, _rest=TEXT), "b": columns(x=LONG, _rest=TEXT)}
    modes: tuple[Mode, ...] = ("shared", "wide")
    for mode in modes:
        plan = plan_unified(columns(x=LONG), types, mode=mode)
        assert REST not in {fold(t) for t in targets(plan, "a").values()}


def test_numbers_of_different_types_are_not_compared() -> None:
    types = {
        "a": (Column("x", INT, number=1), Column("y", INT, number=2)),
        "b": (Column("y", INT, number=1),),
    }
    plan = plan_unified((), types, mode="wide")
    assert targets(plan, "b") == {"y": "y"}
    assert all(column.number is None for column in plan.columns)


NAMES = st.sampled_from(["a", "A", "b", "c", "a__string", "_rest"])
TYPES = st.sampled_from(
    [INT, LONG, TEXT, pa.float64(), pa.struct([("x", INT)]), pa.struct([("x", TEXT), ("y", INT)])]
)
WRITERS = st.dictionaries(NAMES, TYPES, max_size=5).map(
    lambda found: tuple(Column(name, type_) for name, type_ in found.items())
)
MANY = st.dictionaries(st.sampled_from("stuvw"), WRITERS, max_size=4)


@given(MANY, MANY, st.sampled_from(["shared", "wide"]), st.integers(1, 8))
def test_columns_stay_and_every_field_has_exactly_one_place(
    before: dict[str, tuple[Column, ...]],
    now: dict[str, tuple[Column, ...]],
    mode: Mode,
    limit: int,
) -> None:
    planned = partial(plan_unified, mode=mode, max_columns=limit)
    current = planned((), before).columns
    types = before | now
    plan = planned(current, types)
    assert [c.name for c in plan.columns[: len(current)]] == [c.name for c in current]
    assert len(plan.columns) <= max(limit, 2)
    assert len({fold(c.name) for c in plan.columns}) == len(plan.columns)
    for name, writer in types.items():
        share = plan.shares[name]
        places = [fill.source for fill in share.fills] + list(share.rest)
        assert sorted(places) == sorted(column.name for column in writer)
        filled = [fill.target for fill in share.fills]
        assert len(set(filled)) == len(filled)
        assert REST not in filled
        assert all(fill.type == shape(plan)[fill.target] for fill in share.fills)
        assert not share.rest or REST in shape(plan)
    assert planned(plan.columns, types) == plan


@given(MANY, st.sampled_from(["shared", "wide"]), st.randoms(use_true_random=False))
def test_the_order_of_types_does_not_matter(
    types: dict[str, tuple[Column, ...]], mode: Mode, random: Random
) -> None:
    shuffled = list(types.items())
    random.shuffle(shuffled)
    assert plan_unified((), dict(shuffled), mode=mode) == plan_unified((), types, mode=mode)
