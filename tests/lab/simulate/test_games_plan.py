from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ConfigError, ErrorCode
from distributary_lab.simulate.base import BadKind, Sent, SinkMessage, parse_kinds
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds


@st.composite
def plans(draw: st.DrawFn) -> GamesPlan:
    games, versions = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    records = draw(st.integers(1, 6))
    return GamesPlan(
        games=games,
        versions=versions,
        records=records,
        seed=draw(st.integers(0, 2**32)),
        bad=draw(st.integers(0, 40)),
        late=draw(st.integers(0, games * (versions - 1) * records)),
        start_version=draw(st.integers(1, 5)),
    )


@given(plans())
def test_every_record_is_sent_once_and_every_round_knows_its_place(plan: GamesPlan) -> None:
    sent = 0
    indexes: list[int] = []
    for number in range(plan.versions):
        assert plan.good_before(number) == sent
        in_time = plan.in_time(number)
        indexes += in_time
        sent += len(in_time)
    indexes += plan.held_back
    first = (plan.start_version - 1) * plan.round_size
    assert sorted(indexes) == list(range(first, first + plan.good))
    assert plan.good_before(plan.versions) == plan.good


@given(plans())
def test_bad_records_stand_in_order_behind_a_good_one(plan: GamesPlan) -> None:
    places = [plan.bad_after(k) for k in range(plan.bad)]
    assert places == sorted(places)
    assert all(1 <= place <= plan.good for place in places)
    for number in range(plan.versions + 1):
        before = [place for place in places if place <= plan.good_before(number)]
        assert plan.bad_before(number) == len(before)


@given(plans())
def test_the_report_agrees_with_the_messages(recording: Any, plan: GamesPlan) -> None:
    messages: list[SinkMessage] = []
    parts: list[Sent] = []
    for each in stream_rounds(plan, registry=recording):
        before = len(messages)
        messages += each.messages()
        parts.append(each.sent())
        assert parts[-1].first_position == before
        assert parts[-1].last_position == len(messages) - 1
    sent = Sent.total(parts)
    assert (sent.good, sent.bad) == (plan.good, plan.bad)
    assert sent.messages == len(messages)
    assert sent.late == plan.late
    assert sum(m.type is None for m in messages) == plan.bad
    assert all(messages[place].type is None for place in sent.first_bad.values())
    assert sum(n for by in sent.per_type.values() for n in by.values()) == plan.good


def test_event_times_come_from_the_seed_and_not_from_the_clock() -> None:
    assert GamesPlan(seed=1).start_millis == GamesPlan(seed=1).start_millis
    assert GamesPlan(seed=1).start_millis != GamesPlan(seed=2).start_millis


@pytest.mark.parametrize(
    "wrong",
    [
        {"games": 0},
        {"versions": 0},
        {"records": 0},
        {"start_version": 0},
        {"versions": 6_000},
        {"bad": -1},
        {"bad": 1, "bad_kinds": ()},
        {"late": -1},
        {"late": 201},
        {"versions": 1, "late": 1},
        {"versions": 1, "type_change": True},
        {"framed": 1.5},
        {"oversize_bytes": 0},
    ],
    ids=str,
)
def test_what_cannot_be_sent_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        GamesPlan(**wrong)
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert caught.value.where in {*wrong, "versions"}


def test_kinds_are_chosen_by_name() -> None:
    chosen = parse_kinds(["null_value", "no_type"])
    assert chosen == (BadKind.NULL_VALUE, BadKind.NO_TYPE)
    with pytest.raises(ConfigError) as caught:
        parse_kinds(["null_valeu"])
    assert "null_value" in caught.value.next_step
