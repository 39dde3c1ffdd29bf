"""Whatever happens, in whatever order: what people are told stays consistent."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from distributary.config.alerts import AtMost
from distributary.observe.alerts.delivery import Limit
from distributary.observe.alerts.notice import AlertKind, AlertState, Notice, notices_in
from distributary.observe.alerts.rules import Rules, Wording
from distributary.observe.events import Event, Idle, Stopped, TableResumed
from tests.observe.alerts.scenes import (
    NAME,
    broken,
    failed,
    moment,
    notice,
    parked,
    pipeline,
    seen,
    settled,
    written,
)

TABLES = ("chess", "go")
CONFIG = pipeline(
    {
        "on": {"freshness": "2m", "schema": True, "table": True, "dead_letters": {"count": 3}},
        "dashboard_url": "http://d",
    }
)

tables = st.sampled_from(TABLES)
steps = st.one_of(
    st.none(),
    st.just(failed()),
    st.just(failed(retry_in=None)),
    st.just(broken()),
    tables.map(parked),
    tables.map(seen),
    tables.map(lambda table: TableResumed(pipeline=NAME, table=table)),
    st.just(Idle(pipeline=NAME)),
    st.sampled_from(["done", "stopped"]).map(lambda why: Stopped(pipeline=NAME, reason=why)),
    st.builds(
        lambda dead, lost, waiting, made, behind: settled(
            read=100,
            dead={"NOT_JSON": dead},
            lost=lost,
            parked=waiting,
            written=tuple(written(table, created=made) for table in TABLES),
            lag_records=1,
            lag_seconds=behind,
        ),
        st.integers(0, 5),
        st.integers(0, 1),
        st.sets(tables).map(tuple),
        st.booleans(),
        st.floats(0, 500),
    ),
)
story = st.lists(st.tuples(st.integers(0, 200), steps), max_size=60)


def lived(
    rules: Rules, story: list[tuple[int, Event | None]], restart_at: int = -1
) -> list[Notice]:
    """All notices of a story, with a restart in the middle of it."""
    now, notices = 0, list[Notice]()
    for index, (later, event) in enumerate(story):
        now += later
        if index == restart_at:
            memory = json.loads(json.dumps(rules.memory()))
            rules = Rules(CONFIG, now=moment(now))
            rules.recall(memory)
        at = moment(now)
        notices += rules.tick(at) if event is None else rules.hear(replace(event, at=at))
    still_open = {each.key for each in notices_in(rules.memory()["open"])}
    assert {key for key, count in balance(notices).items() if count} == still_open
    return notices


def balance(notices: list[Notice]) -> Counter[str]:
    """How often each key was raised and not resolved; never but nought or one."""
    count: Counter[str] = Counter()
    for each in notices:
        change = {AlertState.RAISED: 1, AlertState.RESOLVED: -1, AlertState.INFO: 0}[each.state]
        count[each.key] += change
        assert count[each.key] in (0, 1), each
    return count


@given(story)
def test_nothing_is_raised_twice_nor_resolved_unless_raised(
    story: list[tuple[int, Event | None]],
) -> None:
    for each in lived(Rules(CONFIG, now=moment()), story):
        assert each.what
        assert each.where
        assert each.next_step
        assert each.link.startswith("http://d/")
        assert each.at >= each.since
        assert each.evidence or each.kind in (AlertKind.FAILURE, AlertKind.INVARIANT)


@given(story, st.integers(0, 60))
def test_a_restart_neither_repeats_nor_forgets(
    story: list[tuple[int, Event | None]], restart_at: int
) -> None:
    lived(Rules(CONFIG, now=moment()), story, restart_at)


offers = st.lists(
    st.tuples(
        st.integers(0, 90),
        st.one_of(
            st.none(),
            st.sampled_from(["a", "b", "c", "d", "e"]),
            st.integers(0, 1000),
        ),
    ),
    max_size=120,
)


def toggled(open: set[str], subject: str | int, now: int) -> Notice:
    """The next thing that rules would say: an alert begins, ends, or something just happens."""
    if isinstance(subject, int):
        return notice(str(subject), state=AlertState.INFO, kind=AlertKind.TABLE, at=now)
    began = notice(subject, at=now)
    if subject in open:
        open.remove(subject)
        return began.resolved(moment(now))
    open.add(subject)
    return began


@given(offers, st.integers(1, 4), st.booleans())
def test_no_target_gets_more_than_it_may_and_ends_up_knowing_what_is_true(
    offers: list[tuple[int, str | int | None]], most: int, one_by_one: bool
) -> None:
    within = timedelta(seconds=100)
    limit = Limit(
        AtMost(messages=most, within=within),
        Wording(CONFIG, str).held_back,
        one_by_one=one_by_one,
    )
    sent: list[tuple[datetime, Notice]] = []
    now, open = 0, set[str]()

    def take_all() -> None:
        while (message := limit.take(moment(now))) is not None:
            sent.append((moment(now), message))

    for later, subject in offers:
        now += later
        if subject is not None:
            limit.offer(toggled(open, subject, now))
        take_all()
        limit_after_restart = Limit(
            AtMost(messages=most, within=within), Wording(CONFIG, str).held_back
        )
        limit_after_restart.recall(json.loads(json.dumps(limit.memory())))
        assert {n.key for n in limit_after_restart.waiting} == {n.key for n in limit.waiting}
    for _ in range(len(offers) + 1):
        now += 101
        take_all()
    assert not limit.waiting
    for index, (at, _) in enumerate(sent):
        assert sum(1 for other, _ in sent[index:] if other - at < within) <= most
    told_open = set[str]()
    for _, message in sent:
        if message.state is AlertState.RAISED:
            assert message.subject not in told_open
            told_open.add(message.subject)
        elif message.state is AlertState.RESOLVED:
            told_open.discard(message.subject)
    # what is in a summary is told too, but only as a number of words
    assert told_open <= open
    if one_by_one:
        assert told_open == open
