"""Links, pipes and devices in the folders that a lake keeps for itself."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from distributary.model import layout
from tests.cli.conftest import Cli
from tests.lakes.settled import SettledLake
from tests.lakes.written import make_lake


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def games(own_folder: Path) -> SettledLake:
    lake = SettledLake(own_folder)
    lake.batch({"chess": 10, "go": 5})
    return lake


@pytest.fixture
def other(own_folder: Path) -> SettledLake:
    """Another lake, with a pipeline of the same name."""
    lake = SettledLake(own_folder / "other")
    lake.batch({"chess": 3})
    return lake


LINKS = [
    "_distributary",
    "_distributary/ledger",
    "_distributary/ledger/batches",
    "_distributary/pipelines",
    "_distributary/pipelines/games",
    "_distributary/pipelines/games/pipeline.json",
]


@pytest.mark.parametrize("link", LINKS)
def test_the_ledger_of_another_lake_is_left_alone(
    cli: Cli, games: SettledLake, other: SettledLake, link: str
) -> None:
    place, target = games.lake / link, other.lake / link
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    place.symlink_to(target)
    before = everything(other.lake)
    codes = {}
    for words in (("status",), ("verify", "--all"), ("tables",)):
        said = cli(*words, "--lake", games.lake, "--json")
        codes[words[0]] = said.json.get("error", {}).get("code")
    said = cli("clean", games.file, "--yes", "--json")
    codes["clean"] = said.json.get("error", {}).get("code")
    # a command that does not look there may go on
    assert {*codes.values()} <= {"OUTSIDE_LAKE", None}
    assert codes["status"] == "OUTSIDE_LAKE"
    if not link.endswith(".json"):
        # a link in place of a file is all that goes
        assert codes["clean"] == "OUTSIDE_LAKE"
    assert everything(other.lake) == before


@pytest.mark.parametrize("link", ["_checkpoints", "_checkpoints/games"])
def test_progress_behind_a_link_is_not_touched(
    cli: Cli, games: SettledLake, other: SettledLake, link: str
) -> None:
    (other.checkpoint / "claims").mkdir(parents=True)
    place = games.lake / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(other.lake / link)
    before = everything(other.lake)
    for words in (("reset", games.file, "--yes"), ("recover", games.file)):
        said = cli(*words, "--json")
        assert said.json["error"]["code"] == "OUTSIDE_LAKE", words
    assert everything(other.lake) == before


@pytest.mark.parametrize("name", ["pipeline.json", "pulse.json"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_no_document(
    cli: Cli, own_folder: Path, name: str, kind: str
) -> None:
    lake = make_lake(own_folder / "lake")
    card = Path(layout.pipeline(str(lake), "games")) / name
    card.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(card)
    else:
        card.symlink_to("/dev/zero")
    # it ends, whatever it says
    said = cli("status", "--lake", lake, "--json")
    assert said.code in (0, 1)
    if name == "pipeline.json":
        assert said.json["error"]["code"] == "OUTSIDE_LAKE"


def test_a_lake_may_itself_be_behind_a_link(cli: Cli, games: SettledLake) -> None:
    (games.root / "named").symlink_to(games.lake)
    assert cli("verify", "--all", "--lake", games.root / "named").code == 0
