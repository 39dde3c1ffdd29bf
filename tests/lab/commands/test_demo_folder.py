import os
from pathlib import Path

import pytest

from distributary.cli.command.log_file import LogFile
from distributary.cli.command.output import Output
from distributary.cli.command.verb import Invocation
from distributary.config.load import load
from distributary.errors import ConfigError
from distributary_lab.demo.play import DemoFolder, Scene
from distributary_lab.demo.scenes import ChangeFeed, changes_scene, games_scene, orders_scene
from tests.cli.conftest import Cli

CHESS = games_scene(games=1)
SILVER = CHESS.tables[-1]


@pytest.mark.parametrize(
    "scene",
    [CHESS, games_scene(kafka=True), orders_scene()],
    ids=["games", "games on kafka", "orders"],
)
def test_the_file_is_valid_and_knows_its_schema(scene: Scene, own_folder: Path) -> None:
    folder = DemoFolder(Path("my demo's: [folder]"), scene)
    assert folder.begin() is False
    folder.write_file(kafka="127.0.0.1:19092", registry="http://127.0.0.1:18081/x")
    assert folder.file.read_text().startswith("# yaml-language-server: $schema=")
    schema = folder.file.read_text().splitlines()[0].partition("$schema=")[2]
    assert (folder.path / schema).is_file()
    loaded = load(folder.file)
    assert loaded.config.name == scene.subject
    assert loaded.config.topics == (scene.topic,)
    assert loaded.config.lake.path == str(folder.path)
    assert loaded.warnings == ()


def test_a_second_demo_begins_anew(own_folder: Path) -> None:
    folder = DemoFolder(Path("demo"), CHESS)
    folder.begin()
    folder.write_file()
    for name in (SILVER, "_distributary", "bronze_events", "_checkpoints"):
        (folder.path / name).mkdir()
    (folder.path / SILVER / "old.parquet").touch()
    assert DemoFolder(Path("demo"), orders_scene()).begin() is True
    assert not (folder.path / SILVER).exists()
    assert not folder.file.exists()


def test_what_is_not_the_demos_is_not_touched(own_folder: Path) -> None:
    other = own_folder / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("important")
    with pytest.raises(ConfigError):
        DemoFolder(other, CHESS).begin()
    demo = DemoFolder(Path("demo"), CHESS)
    demo.begin()
    demo.write_file()
    (demo.path / "silver_mine").mkdir()
    with pytest.raises(ConfigError):
        demo.begin()
    assert demo.file.is_file()
    (demo.path / "silver_mine").rmdir()
    os.symlink(other, demo.path / SILVER)
    demo.begin()
    assert (other / "thesis.txt").read_text() == "important"


def test_rounds_are_sent_when_asked_for(own_folder: Path) -> None:
    scene = games_scene(games=2, versions=2, records=5, bad=1)
    folder = DemoFolder(Path("demo"), scene)
    folder.begin()
    call = Invocation("demo", Output(), LogFile("demo"))
    with scene.open(call, folder) as feed:
        assert feed.sent.messages == 0
        assert feed.next()
        first = feed.sent.messages
        assert feed.next()
        assert not feed.next()
        assert first < feed.sent.messages == 21


def test_a_demo_of_changes_knows_its_tables_and_its_file(own_folder: Path) -> None:
    scene = changes_scene(tables=7, events=100, seed=3, chaos=True)
    folder = DemoFolder(Path("demo"), scene)
    folder.begin()
    folder.write_file()
    loaded = load(folder.file)
    assert (loaded.config.name, loaded.warnings) == ("cdc", ())
    feed = ChangeFeed(scene.plan, folder.source)
    while feed.next():
        pass
    assert feed.messages == feed.stream.sent().events
    # what another demo may remove are the tables of this one
    assert {"dead_letters", "shop_orders", "shop_orders_log"} <= set(scene.tables)
    assert len(scene.tables) == 15
    assert DemoFolder(Path("demo"), CHESS).begin() is True
    assert not folder.source.exists()


@pytest.mark.parametrize(
    "line", [("cdc", "--games", 2), ("cdc", "--kafka"), ("games", "--tables", 2)]
)
def test_options_of_another_demo_are_refused(cli: Cli, line: tuple[object, ...]) -> None:
    result = cli("demo", *line, "--json")
    assert (result.code, result.json["error"]["code"]) == (2, "CONFIG_INVALID")
    assert not Path("distributary-demo").exists()
