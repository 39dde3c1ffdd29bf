"""What a process remembers."""

from __future__ import annotations

from distributary.model.cache import Cache


def test_the_same_objects_find_their_value() -> None:
    known: Cache[list[int]] = Cache(10)
    one, other = (1, 2), [3]
    first = known.of((one, other), lambda: [1])
    assert known.of((one, other), lambda: [2]) is first
    assert known.of((other, one), lambda: [2]) == [2]
    assert known.of((one,), lambda: [3]) == [3]


def test_equal_objects_are_others_and_equal_keys_are_not() -> None:
    known: Cache[str] = Cache(10)
    assert known.of(([1],), lambda: "a") == "a"
    assert known.of(([1],), lambda: "b") == "b"
    assert known.get(("k", 1), lambda: "c") == known.get(("k", 1), lambda: "d") == "c"


def test_an_object_that_nobody_else_holds_does_not_lend_its_id() -> None:
    known: Cache[int] = Cache(1_000)
    found = [known.of(([],), lambda number=number: number) for number in range(500)]  # type: ignore[misc]
    assert found == list(range(500))


def test_the_longest_unused_goes_first() -> None:
    known: Cache[int] = Cache(2)
    for key in "abac":
        known.get(key, lambda: 1)
    assert [known.find(key) for key in "abc"] == [1, None, 1]
    assert len(known) == 2
    known.clear()
    assert known.find("c") is None


def test_a_value_takes_the_place_of_another() -> None:
    known: Cache[int] = Cache(2)
    for value in (1, 2):
        known.keep("a", value)
    assert known.find("a") == 2
    known.keep("a", None)
    assert known.find("a") is None


def test_another_owner_begins_with_nothing() -> None:
    known: Cache[int] = Cache(9)
    one, other = object(), object()
    assert [known.get("a", lambda: 1, owner=one), known.get("a", lambda: 2, owner=one)] == [1, 1]
    assert known.get("a", lambda: 2, owner=other) == 2
    # made for one that is no longer asked about
    assert known.get("b", lambda: known.get("c", lambda: 3, owner=one), owner=other) == 3
    assert known.find("b") is None


def test_what_was_taken_belongs_to_one_until_it_is_kept_again() -> None:
    cache: Cache[str] = Cache(2)
    cache.keep("a", "first")
    assert cache.take("a") == "first"
    assert cache.take("a") is None
    cache.keep("a", "first")
    assert cache.take("a") == "first"
