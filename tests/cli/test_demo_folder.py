import os
from pathlib import Path

import pytest

from distributary.cli.actions.demo_folder import DemoFolder
from distributary.cli.actions.feed import Feed
from distributary.config.load import load
from distributary.errors import ConfigError
from distributary.simulate import GamesPlan


def test_the_file_is_valid_and_knows_its_schema(own_folder: Path) -> None:
    folder = DemoFolder(Path("my demo's: [folder]"))
    assert folder.begin(["chess_game"]) is False
    assert folder.file.read_text().startswith("# yaml-language-server: $schema=")
    schema = folder.file.read_text().splitlines()[0].partition("$schema=")[2]
    assert (folder.path / schema).is_file()
    loaded = load(folder.file)
    assert loaded.config.lake.path == str(folder.path)
    assert loaded.warnings == ()


def test_a_second_demo_begins_anew(own_folder: Path) -> None:
    folder = DemoFolder(Path("demo"))
    folder.begin(["chess_game"])
    for name in ("silver_chess_game", "_distributary", "bronze_events", "_checkpoints"):
        (folder.path / name).mkdir()
    (folder.path / "silver_chess_game" / "old.parquet").touch()
    assert folder.begin(["go_game"]) is True
    assert not (folder.path / "silver_chess_game").exists()
    assert folder.file.is_file()


def test_what_is_not_the_demos_is_not_touched(own_folder: Path) -> None:
    other = own_folder / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("important")
    with pytest.raises(ConfigError):
        DemoFolder(other).begin(["chess_game"])
    demo = DemoFolder(Path("demo"))
    demo.begin(["chess_game"])
    (demo.path / "silver_mine").mkdir()
    with pytest.raises(ConfigError):
        demo.begin(["chess_game"])
    assert demo.file.is_file()
    (demo.path / "silver_mine").rmdir()
    os.symlink(other, demo.path / "silver_chess_game")
    demo.begin(["chess_game"])
    assert (other / "thesis.txt").read_text() == "important"


def test_rounds_are_sent_when_asked_for(own_folder: Path) -> None:
    folder = DemoFolder(Path("demo"))
    folder.begin(["chess_game"])
    feed = Feed(GamesPlan(games=2, versions=2, records=5, bad=1), folder)
    assert feed.sent.messages == 0
    assert feed.next()
    first = feed.sent.messages
    assert feed.next()
    assert not feed.next()
    assert first < feed.sent.messages == 21
