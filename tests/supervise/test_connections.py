"""Which connection has to go, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distributary.supervise.server import Connections


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_oldest_silent_one_of_the_largest_crowd_makes_room() -> None:
    kept: Connections[str] = Connections(4, seconds=10)
    for name, client in [("probe", "a"), ("x1", "b"), ("x2", "b"), ("x3", "b")]:
        assert kept.arrived(name, client) is None
    kept.asked("x1")
    assert kept.arrived("x4", "b") == "x2"
    for each in ("probe", "x3", "x4"):
        kept.asked(each)
    assert kept.arrived("x5", "b") == "x1"
    kept.left("x3")
    assert kept.arrived("x6", "b") is None


def test_a_request_has_to_come_in_time() -> None:
    clock = Clock()
    kept: Connections[str] = Connections(9, seconds=10, clock=clock)
    for each in ("silent", "asking", "again"):
        kept.arrived(each, "a")
    kept.asked("asking")
    clock.now = 8
    kept.asked("again")
    kept.answered("again")
    clock.now = 11
    assert kept.overdue() == ["silent"]
    assert kept.overdue() == []
    clock.now = 19
    assert kept.overdue() == ["again"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40))
def test_there_are_never_more_than_allowed_and_the_newest_stays(
    arrivals: list[tuple[str, bool]],
) -> None:
    kept: Connections[int] = Connections(3, seconds=10)
    there: set[int] = set()
    for number, (client, asks) in enumerate(arrivals):
        gone = kept.arrived(number, client)
        there.add(number)
        if gone is not None:
            there.remove(gone)
        assert number in there and len(there) <= 3
        if asks:
            kept.asked(number)
