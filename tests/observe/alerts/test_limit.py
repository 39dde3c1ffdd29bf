from __future__ import annotations

from datetime import timedelta

from distributary.config.alerts import AtMost
from distributary.observe.alerts.delivery import MOST_WAITING, Limit
from distributary.observe.alerts.notice import AlertKind, AlertState, Notice
from distributary.observe.alerts.rules import Wording
from tests.observe.alerts.scenes import moment, notice, pipeline

WITHIN = timedelta(minutes=10)


def limit(most: int = 2, *, one_by_one: bool = False) -> Limit:
    summarise = Wording(pipeline(), str).held_back
    return Limit(AtMost(messages=most, within=WITHIN), summarise, one_by_one=one_by_one)


def taken(limit: Limit, at: float = 0) -> list[Notice]:
    found = []
    while (message := limit.take(moment(at))) is not None:
        found.append(message)
    return found


def test_what_there_is_no_room_for_becomes_one_message() -> None:
    box = limit()
    for name in "abcdefgh":
        box.offer(notice(name))
    assert [n.subject for n in taken(box)] == ["a", "b"]
    box.offer(notice("c").resolved(moment(1)))
    assert taken(box, 599) == []
    (summary,) = taken(box, 600)
    assert (summary.kind, summary.state) == (AlertKind.HELD_BACK, AlertState.INFO)
    assert summary.what == "5 messages were held back"
    assert "table d is parked" in summary.evidence
    assert "table c is parked" not in summary.evidence
    assert "1 more" in summary.evidence
    assert taken(box, 10_000) == []


def test_an_end_of_what_was_told_waits_and_is_told_first() -> None:
    box = limit(1)
    box.offer(notice("a"))
    taken(box)
    box.offer(notice("b"))
    box.offer(notice("a").resolved(moment(1)))
    assert taken(box, 1) == []
    assert [(n.state, n.subject) for n in taken(box, 600)] == [(AlertState.RESOLVED, "a")]
    # what waits alone is told as what it is
    assert [(n.state, n.subject) for n in taken(box, 1200)] == [(AlertState.RAISED, "b")]


def test_an_alert_that_comes_back_before_its_end_was_told_is_still_open() -> None:
    box = limit(1)
    box.offer(notice("a"))
    taken(box)
    box.offer(notice("a").resolved(moment(1)))
    box.offer(notice("a", at=2))
    assert taken(box, 600) == []
    box.offer(notice("a", at=2).resolved(moment(601)))
    assert [n.state for n in taken(box, 601)] == [AlertState.RESOLVED]


def test_a_target_that_keeps_alerts_open_hears_of_each() -> None:
    box = limit(2, one_by_one=True)
    for name in "abcd":
        box.offer(notice(name))
    for number in range(3):
        box.offer(notice(str(number), state=AlertState.INFO, kind=AlertKind.TABLE))
    assert [n.subject for n in taken(box)] == ["a", "b"]
    later = taken(box, 600)
    assert [n.kind for n in later] == [AlertKind.HELD_BACK, AlertKind.PARKED]
    assert [n.subject for n in taken(box, 1200)] == ["d"]


def test_the_queue_is_bounded() -> None:
    box = limit()
    for number in range(MOST_WAITING + 500):
        box.offer(notice(f"t{number}"))
    assert len(box.waiting) == MOST_WAITING


def test_a_restart_does_not_make_room() -> None:
    first = limit(1)
    first.offer(notice("a"))
    first.offer(notice("b"))
    taken(first)
    second = limit(1)
    second.recall(first.memory())
    assert taken(second, 10) == []
    assert [n.subject for n in taken(second, 600)] == ["b"]


def test_a_clock_that_was_set_back_does_not_silence_anything() -> None:
    box = limit(1)
    box.offer(notice("a"))
    taken(box, 100_000)
    box.offer(notice("b"))
    assert [n.subject for n in taken(box)] == ["b"]
