from __future__ import annotations

import pytest

from distributary.config.base import is_loopback
from distributary.web.access import (
    LINK_SECONDS,
    SESSION_SECONDS,
    WRONG_ALLOWED,
    Access,
    Hosts,
    name_of,
    same_origin,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_token_and_nothing_else() -> None:
    access = Access("right and long")
    assert access.required
    assert access.accepts("right and long", client="a")
    for wrong in ("", "right and lon", "right and long ", "\ud800"):
        assert not access.accepts(wrong, client="a")
    assert "right and long" not in repr(vars(access))


def test_without_a_token_there_is_none_to_guess() -> None:
    access = Access(None)
    assert not access.required
    assert not access.accepts("", client="a")


def test_sessions_end_by_time_and_by_wish() -> None:
    clock = Clock()
    access = Access("t", clock=clock)
    one, other = access.new_session(), access.new_session()
    assert access.knows(one) and access.knows(other)
    assert not access.knows(None) and not access.knows("guessed")
    access.end(one)
    assert not access.knows(one) and access.knows(other)
    clock.now += SESSION_SECONDS
    assert not access.knows(other)


def test_a_link_works_once_and_soon() -> None:
    clock = Clock()
    access = Access("t", clock=clock)
    link = access.new_link()
    assert access.redeem(link, client="a")
    assert not access.redeem(link, client="a")
    late = access.new_link()
    clock.now += LINK_SECONDS
    assert not access.redeem(late, client="a")


def test_whoever_guesses_too_often_has_to_wait() -> None:
    clock = Clock()
    access = Access("t", clock=clock)
    for _ in range(WRONG_ALLOWED):
        assert not access.blocked("a")
        access.accepts("wrong", client="a")
    assert access.blocked("a")
    assert not access.blocked("b")
    clock.now += 61
    assert not access.blocked("a")


def test_guesses_from_many_addresses_are_added_up() -> None:
    access = Access("t", clock=Clock())
    for n in range(10 * WRONG_ALLOWED):
        access.accepts("wrong", client=str(n))
    assert access.blocked("never seen before")


def test_every_session_has_its_own_proof() -> None:
    access = Access("t")
    assert access.proves(access.csrf("one"), "one")
    assert not access.proves(access.csrf("one"), "other")
    assert not access.proves(None, None)
    assert not access.proves("ä", "one")
    assert Access("t").csrf("one") != access.csrf("one")


@pytest.mark.parametrize(
    ("header", "known"),
    [
        ("127.0.0.1:8642", True),
        ("localhost:8642", True),
        ("LOCALHOST", True),
        ("[::1]:8642", True),
        ("evil.example:8642", False),
        ("192.168.0.7:8642", False),
        ("localhost.evil.example", False),
        ("", False),
        ("127.0.0.1:99999999", False),
        ("user@127.0.0.1", False),
        ("127.0.0.1/x", False),
    ],
)
def test_names_of_a_page_on_loopback(header: str, known: bool) -> None:
    assert Hosts("127.0.0.1").knows(header) is known


def test_names_of_a_page_for_others() -> None:
    hosts = Hosts("0.0.0.0", ("Dash.Example",))
    assert hosts.knows("192.168.0.7:80") and hosts.knows("dash.example")
    assert hosts.knows("localhost:1")
    assert not hosts.knows("evil.example")


def test_small_questions_about_hosts() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org")))
    assert name_of("[::1]:80") == "::1"
    assert same_origin("http://a:1", "A:1")
    assert not same_origin("http://a:1", "a:2")
    assert not same_origin("null", "a:1")
    assert not same_origin("http://[", "a:1")
