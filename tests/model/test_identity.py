"""Values kept by the objects they were made of."""

from __future__ import annotations

from distributary.model.record import ByIdentity


def test_the_same_objects_find_their_value() -> None:
    known: ByIdentity[list[int]] = ByIdentity(10)
    one, other = (1, 2), [3]
    first = known.get((one, other), lambda: [1])
    assert known.get((one, other), lambda: [2]) is first
    assert known.get((other, one), lambda: [2]) == [2]
    assert known.get((one,), lambda: [3]) == [3]


def test_equal_objects_are_others() -> None:
    known: ByIdentity[str] = ByIdentity(10)
    assert known.get(([1],), lambda: "a") == "a"
    assert known.get(([1],), lambda: "b") == "b"


def test_an_object_that_nobody_else_holds_does_not_lend_its_id() -> None:
    known: ByIdentity[int] = ByIdentity(1_000)
    found = [known.get(([],), lambda number=number: number) for number in range(500)]  # type: ignore[misc]
    assert found == list(range(500))


def test_it_does_not_grow_beyond_its_limit() -> None:
    known: ByIdentity[int] = ByIdentity(2)
    a, b, c = [1], [2], [3]
    assert [known.get((each,), lambda: 1) for each in (a, b, c)] == [1, 1, 1]
    assert known.get((a,), lambda: 2) == 2
    assert known.get((c,), lambda: 2) == 1
    known.clear()
    assert known.get((c,), lambda: 3) == 3
