"""Listings in pages: complete, each entry once, and always with an end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ErrorCode, RegistryError, RegistryUnavailableError
from distributary.registry.http.client import listed
from tests.registry.contexted import Contexted
from tests.registry.loopback import Asked, Says, no, registry, says, serving

CHESS = 'syntax = "proto3"; message Chess { string player = 1; }'


class Pages:
    """A listing as a server may give it; counts the questions."""

    def __init__(self, entries: Sequence[int], *, most: int = 10**9, kind: str = "paged") -> None:
        self.entries, self.most, self.kind = list(entries), most, kind
        self.asked = 0

    def __call__(self, offset: int, limit: int) -> list[int]:
        self.asked += 1
        match self.kind:
            case "ignores both":
                return self.entries
            case "repeats the first":
                return self.entries[: min(limit, self.most)]
            case "repeats the second":
                return self.entries[min(offset, limit) :][: min(limit, self.most)]
        return self.entries[offset : offset + min(limit, self.most)]


@given(
    st.integers(0, 60),
    st.integers(2, 20),
    st.integers(1, 20),
    st.sampled_from(["paged", "ignores both"]),
)
def test_every_entry_once(entries: int, size: int, most: int, kind: str) -> None:
    server = Pages(range(entries), most=most, kind=kind)
    assert list(listed(server, size=size)) == list(range(entries))
    assert server.asked <= entries + 4


@pytest.mark.parametrize("kind", ["repeats the first", "repeats the second"])
@pytest.mark.parametrize("most", [5, 10])
def test_a_page_that_repeats_for_ever_is_no_listing(kind: str, most: int) -> None:
    server = Pages(range(100), most=most, kind=kind)
    with pytest.raises(RegistryUnavailableError) as caught:
        list(listed(server, size=10))
    assert caught.value.code is ErrorCode.REGISTRY_GARBAGE
    assert server.asked < 20


def test_a_listing_without_end_is_given_up() -> None:
    def endless(offset: int, limit: int) -> list[int]:
        return list(range(offset, offset + limit))

    with pytest.raises(RegistryUnavailableError) as caught:
        list(listed(endless, size=100, most=1000))
    assert caught.value.code is ErrorCode.REGISTRY_GARBAGE


def test_what_is_added_meanwhile_is_no_second_entry() -> None:
    entries = list(range(10))

    def growing(offset: int, limit: int) -> list[int]:
        page = entries[offset : offset + limit]
        if len(entries) < 15:
            entries.insert(0, -len(entries))
        return page

    found = list(listed(growing, size=4))
    assert len(found) == len(set(found)) and set(range(10)) <= set(found)


def test_only_what_is_taken_is_asked_for() -> None:
    server = Pages(range(10_000))
    entries: Iterator[int] = listed(server, size=100)
    assert server.asked == 0
    assert list(islice(entries, 150)) == list(range(150))
    assert server.asked == 2


def test_a_hundred_thousand_subjects() -> None:
    names = [f"subject-{n:06d}" for n in range(100_000)]
    with serving(Contexted(subjects={name: [1] for name in names}), paged=True) as server:
        with registry(server.url) as reader:
            assert reader.subjects() == tuple(names)
        assert len(server.asked) == 100 + 1


def test_a_server_with_shorter_pages_than_asked_for() -> None:
    known = Contexted(most=7)
    for number in range(30):
        known.add("many", CHESS.replace("player", f"p{number}"))
        known.add(f"s{number}", CHESS)
    with serving(known, paged=True) as server, registry(server.url) as reader:
        assert len(reader.subjects()) == 31
        assert reader.versions("many") == tuple(range(1, 31))
        assert len(list(reader.schemas())) == 60
        assert len(reader.contexts()) == 1


@pytest.mark.parametrize("reply", [Says(404), no(404, 404, "HTTP 404 Not Found")])
def test_a_registry_that_lists_no_schemas(reply: Says) -> None:
    def script(asked: Asked) -> Says:
        return says(["AVRO"]) if asked.path == "/schemas/types" else reply

    with serving(script, paged=True) as server, registry(server.url) as reader:
        assert list(reader.schemas()) == []


@pytest.mark.parametrize(
    "entry",
    [{}, {"subject": "a", "version": 1, "id": 1}, {"schema": "x", "version": 1, "id": 1}, 7, None],
)
def test_a_list_of_schemas_has_its_shape(entry: object) -> None:
    with serving(lambda _: says([entry]), paged=True) as server:
        with registry(server.url, attempts=1) as reader, pytest.raises(RegistryUnavailableError):
            list(reader.schemas())


def test_a_subject_that_goes_between_two_pages() -> None:
    replies = iter([says(list(range(1, 1001))), no(404, 40401)])
    with serving(lambda _: next(replies), paged=True) as server, registry(server.url) as reader:
        assert len(reader.versions("a")) == 1000


def test_a_page_that_is_refused() -> None:
    replies = (says(["a"]) if n == 0 else no(422, 42299) for n in count())
    with serving(lambda _: next(replies), paged=True) as server, registry(server.url) as reader:
        with pytest.raises(RegistryError) as caught:
            reader.subjects()
        assert caught.value.code is ErrorCode.REGISTRY_REFUSED
