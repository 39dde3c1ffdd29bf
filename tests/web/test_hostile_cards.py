"""A page over a lake whose card was changed by somebody who can write to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributary.model.deadletter import dead_letter_id
from distributary.observe.cards import Registration, register
from tests.hostile import SECRET, VARIABLE, listening, write_hostile
from tests.lakes.written import pin_file
from tests.web.conftest import Start

ID = dead_letter_id("games", "life", "wrapper", 0, 20)


@pytest.fixture
def heard(own: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The card of the lake names a file, and this is what its registry hears."""
    monkeypatch.setenv(VARIABLE, SECRET)
    with listening() as (url, heard):
        file = write_hostile(own.parent / "hostile.yaml", lake=own, url=url)
        register(str(own), Registration("games", str(file), str(own / "_checkpoints" / "games")))
        yield heard


def test_letter_is_shown_and_says_why_it_is_not_decoded(
    start: Start, own: Path, heard: list[str]
) -> None:
    told = start(own).get(f"/api/dead-letters/{ID}")
    assert heard == []
    assert told["letter"]["id"] == ID
    assert told["hex"] and not told["with_schema"]
    assert told["without_schema"]["code"] == "FILE_NOT_TRUSTED"
    assert SECRET not in json.dumps(told)


def test_nobody_asks_whether_letters_would_decode(
    start: Start, own: Path, heard: list[str]
) -> None:
    told = start(own).get("/api/healing?pipeline=games")
    assert heard == []
    assert told["count"] is None
    assert told["why"]["code"] == "FILE_NOT_TRUSTED"


def test_file_that_the_page_was_given_is_loaded(start: Start, own: Path, heard: list[str]) -> None:
    served = start(own, file=str(own.parent / "hostile.yaml"))
    told = served.get(f"/api/dead-letters/{ID}")
    assert any(SECRET in each for each in heard)
    assert told["without_schema"]["code"] != "FILE_NOT_TRUSTED"


def test_file_that_this_user_has_run_is_loaded(start: Start, own: Path, heard: list[str]) -> None:
    pin_file(own, own.parent / "hostile.yaml")
    told = start(own).get(f"/api/dead-letters/{ID}")
    assert any(SECRET in each for each in heard)
    assert told["without_schema"]["code"] != "FILE_NOT_TRUSTED"
