"""`explain`: codes and words in a terminal."""

from __future__ import annotations

import pytest

from distributary.errors import ErrorCode, glossary, meanings
from tests.cli.conftest import Cli


@pytest.mark.parametrize("code", sorted(map(str, ErrorCode)))
def test_every_code_is_explained_in_plain_text(cli: Cli, code: str) -> None:
    said = cli("explain", code, "--json").json
    assert said["code"] == code
    assert said["meaning"]
    assert not any(mark in said["meaning"] + said["next_step"] for mark in ("`", "](", "<a"))


def test_words_are_found_however_they_are_typed(cli: Cli) -> None:
    assert cli("explain", "Dead Letter").code == 0
    assert cli("explain", "not_found", "--json").json["code"] == "NOT_FOUND"


def test_what_is_not_known_leads_to_what_is_alike(cli: Cli) -> None:
    result = cli("explain", "parkd")
    assert result.code == 1
    assert "distributary explain parked" in result.err


def test_without_a_word_everything_is_listed(cli: Cli) -> None:
    said = cli("explain", "--json").json
    assert said["codes"] == sorted(meanings())
    assert said["words"] == list(glossary())
    assert {"mark", "life", "lane", "settled", "parked", "letter"} <= set(glossary())


def test_an_error_says_how_to_have_it_explained(cli: Cli) -> None:
    assert "distributary explain CONFIG_INVALID" in cli("no-such-verb").err
