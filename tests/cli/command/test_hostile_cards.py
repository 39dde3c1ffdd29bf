"""Cards that were changed by somebody who can write to the lake, and commands that read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from distributary.cli.command import live
from distributary.model.deadletter import dead_letter_id
from distributary.observe.cards import Registration, register
from tests.cli.conftest import Cli
from tests.hostile import SECRET, VARIABLE, listening, write_hostile
from tests.lakes.written import make_lake, pin_file

ID = dead_letter_id("games", "life", "wrapper", 0, 20)


@dataclass(frozen=True)
class Hostile:
    """A lake whose card was changed."""

    lake: Path
    file: Path
    heard: list[str]


@pytest.fixture
def hostile(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    monkeypatch.setenv(VARIABLE, SECRET)
    lake = own_folder / "lake"
    file = lake / "hostile.yaml"
    make_lake(lake, file=file)
    with listening() as (url, heard):
        write_hostile(file, lake=lake, url=url)
        yield Hostile(lake, file, heard)


@pytest.mark.parametrize(
    "words",
    [
        ("dlq", "show", ID),
        ("status",),
        ("status", "--partitions"),
        ("dlq", "replay", "--dry-run"),
        ("resume", "silver_0", "--dry-run"),
        ("schema", "subjects"),
        ("maintain", "--dry-run"),
        ("verify", "--all"),
    ],
    ids=" ".join,
)
def test_no_command_loads_a_file_that_only_the_lake_names(
    cli: Cli, hostile: Hostile, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    started: list[object] = []
    monkeypatch.setattr(live, "start_spark", lambda *given, **named: started.append(given))
    said = cli(*words, "--lake", hostile.lake)
    assert hostile.heard == []
    assert started == []
    assert SECRET not in said.out + said.err
    assert said.code in (0, 1, 2)


@pytest.mark.parametrize("words", [("dlq", "replay", "--dry-run"), ("schema", "subjects")])
def test_command_that_needs_the_file_says_that_it_is_not_trusted(
    cli: Cli, hostile: Hostile, words: tuple[str, ...]
) -> None:
    said = cli(*words, "--lake", hostile.lake, "--json")
    assert said.json["error"]["code"] == "FILE_NOT_TRUSTED"
    assert said.code == 2


def test_letter_is_shown_without_its_schema(cli: Cli, hostile: Hostile) -> None:
    said = cli("dlq", "show", ID, "--lake", hostile.lake)
    assert said.code == 0
    assert ID in said.out
    assert "--file" in said.err


def test_file_that_is_named_on_the_command_is_loaded(cli: Cli, hostile: Hostile) -> None:
    assert cli("dlq", "show", ID, "--lake", hostile.lake, "--file", hostile.file).code == 0
    assert any(SECRET in each for each in hostile.heard)


def test_relative_file_is_not_looked_for(cli: Cli, hostile: Hostile, own_folder: Path) -> None:
    (own_folder / "games.yaml").write_bytes(hostile.file.read_bytes())
    card = Registration("games", "games.yaml", str(hostile.lake / "_checkpoints" / "games"))
    register(str(hostile.lake), card)
    assert cli("dlq", "show", ID, "--lake", hostile.lake).code == 0
    assert hostile.heard == []


def test_file_that_this_user_has_run_needs_no_word(cli: Cli, hostile: Hostile) -> None:
    pin_file(hostile.lake, hostile.file)
    assert cli("dlq", "show", ID, "--lake", hostile.lake).code == 0
    assert any(SECRET in each for each in hostile.heard)
    before = len(hostile.heard)
    hostile.file.write_text(hostile.file.read_text() + "# edited\n")
    assert cli("dlq", "show", ID, "--lake", hostile.lake).code == 0
    assert len(hostile.heard) == before


@pytest.mark.parametrize("more", ['"what": 5', '"next_step": ["x"]', '"attempts": "x"'])
def test_a_failure_says_only_what_errors_say(cli: Cli, own_folder: Path, more: str) -> None:
    lake, checkpoint = str(own_folder / "lake"), own_folder / "progress"
    checkpoint.mkdir()
    register(lake, Registration("games", "/games.yaml", str(checkpoint)))
    told = f'{{"at": "2026-01-31T12:00:00", "code": "INTERNAL", {more}}}'
    (checkpoint / "failure.json").write_text(told)
    found = cli("status", "--lake", lake, "--json").json["pipelines"][0]["failure"]
    assert found == {"at": "2026-01-31T12:00:00+00:00", "code": "INTERNAL"}
    assert cli("status", "--lake", lake).code == 0
