"""What somebody who can write to a lake can make others read or remove elsewhere: nothing."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

from distributary.config.lake import Maintain
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.engine.progress.removal import finish_removal
from distributary.errors import OutsideLakeError, PublishError
from distributary.model import layout
from distributary.model.manifest import Mark, StagedFile, TableEntry
from distributary.model.table import Role, TablePlan
from distributary.observe.cards import Registration, load_trusted, register, registrations
from distributary.operations.maintain import UpkeepStep, Wishes, remove_leftovers
from distributary.operations.needed_files import watch
from distributary.publish.parking import park, parked, unpark
from distributary.store.base import at
from tests.operations.test_watching import checkpoint, manifest, manifests

OLD = 1000.0


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    found = tmp_path / "lake"
    checkpoint(found).mkdir(parents=True)
    return found


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of whoever looks after the lake."""
    file = tmp_path / "home" / "documents" / "letter.txt"
    file.parent.mkdir(parents=True)
    file.write_text("dear")
    os.utime(file.parent, (OLD, OLD))
    return file


def wishes() -> Wishes:
    return Wishes(Maintain(), [UpkeepStep.EXPIRE], retention=timedelta(days=1), force=False)


def test_watching_reads_no_secret_of_a_file_that_only_the_lake_names(
    lake: Path, tmp_path: Path
) -> None:
    """It would know the name of the table, which is in the secret."""
    secret, file = tmp_path / "key", tmp_path / "hostile.yaml"
    secret.write_text("events")
    file.write_text(
        f"""
name: games
source: {{type: delta, path: '{lake}/${{file:{secret}}}', value: value}}
payload: {{format: json}}
tables: {{each: events}}
lake: {{path: {lake}}}
"""
    )
    register(str(lake), Registration("games", str(file), str(checkpoint(lake))))
    manifests(lake).create(manifest(lake, 0, version=4, index=0, rows=10))
    manifests(lake).settle(0)
    assert watch(str(lake)).keep_from(str(lake / "events")) is None


def test_leftovers_of_a_checkpoint_that_only_the_lake_names_stay(
    lake: Path, precious: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "home" / "runs"
    runs.mkdir()
    precious.parent.rename(runs / "stream")
    os.utime(runs / "stream", (OLD, OLD))
    register(str(lake), Registration("games", str(lake / "games.yaml"), str(tmp_path / "home")))
    assert remove_leftovers(str(lake), wishes()) == 0
    assert (runs / "stream" / "letter.txt").exists()


def test_leftovers_behind_a_link_in_the_lake_stay(lake: Path, precious: Path) -> None:
    register(str(lake), Registration("games", str(lake / "games.yaml"), str(checkpoint(lake))))
    (checkpoint(lake) / "documents" / "claims").mkdir(parents=True)
    (checkpoint(lake) / "runs").symlink_to(precious.parent.parent)
    assert remove_leftovers(str(lake), wishes()) == 0
    assert precious.exists()


def test_removal_behind_a_link_is_refused(lake: Path, precious: Path, tmp_path: Path) -> None:
    (lake / "changes").symlink_to(precious.parent.parent)
    ask_for_removal(lake, f"{lake}/changes/documents")
    with pytest.raises(OutsideLakeError):
        finish_removal(Pipeline.load(write_file(tmp_path / "games.yaml", lake)))
    assert precious.exists()


def ask_for_removal(lake: Path, path: str) -> Path:
    home = lake / "_distributary" / "pipelines" / "games"
    home.mkdir(parents=True)
    asked = [{"kind": "table", "path": path, "table": "chess", "rows": None}]
    (home / "removal.json").write_text(json.dumps(asked))
    return home / "removal.json"


@pytest.mark.parametrize("way", ["outside", "dots", "whole lake"])
def test_removal_that_the_lake_asks_for_stays_in_the_lake(
    lake: Path, precious: Path, tmp_path: Path, way: str
) -> None:
    path = {
        "outside": str(precious.parent),
        "dots": f"{lake}/../home/documents",
        "whole lake": f"{lake}/",
    }[way]
    file = write_file(tmp_path / "games.yaml", lake)
    (lake / "chess").mkdir()
    asked = ask_for_removal(lake, path)
    finish_removal(Pipeline.load(file))
    assert precious.exists()
    assert lake.is_dir()
    assert not asked.exists()


@pytest.mark.parametrize(
    "file", ["../../home/documents/x.parquet", "/x.parquet", "authorized_keys"]
)
def test_parked_file_that_is_none_of_its_table_is_not_copied(
    lake: Path, precious: Path, file: str
) -> None:
    folder = park_by_hand(lake, table=lake / "chess", file=file)
    with pytest.raises(PublishError) as caught:
        parked(str(folder))
    assert caught.value.code == "CHECKPOINT_INVALID"


def test_parked_table_that_is_elsewhere_is_the_one_of_the_lake(lake: Path, precious: Path) -> None:
    folder = park_by_hand(lake, table=precious.parent, file="x.parquet")
    (batch,) = parked(str(folder), table="chess", lake=str(lake))
    unpark(batch)
    assert [each.name for each in precious.parent.iterdir()] == ["letter.txt"]
    assert (lake / "documents" / "x.parquet").exists()


def test_parked_link_is_not_followed(lake: Path, precious: Path) -> None:
    folder = park_by_hand(lake, table=lake / "chess", file="x.parquet")
    (copy,) = folder.rglob("x.parquet")
    copy.unlink()
    copy.symlink_to(precious)
    (batch,) = parked(str(folder), table="chess", lake=str(lake))
    with pytest.raises(PublishError):
        unpark(batch)
    assert not (lake / "chess" / "x.parquet").exists()


def park_by_hand(lake: Path, *, table: Path, file: str) -> Path:
    """What somebody else has put where batches wait."""
    folder = Path(layout.parked(str(lake), "games"))
    staged = lake / "staged"
    staged.mkdir()
    (staged / "x.parquet").write_bytes(b"dear")
    plan = TablePlan("chess", Role.EACH, "chess", str(staged), ())
    entry = TableEntry(plan, (StagedFile("x.parquet", 4, 1),), 1)
    park(entry, Mark("distributary/games/abc/stream", 0, ""), folder=str(folder))
    (written,) = folder.rglob("entry.json")
    content = json.loads(written.read_text().splitlines()[0])
    content["entry"]["path"] = str(table)
    content["entry"]["files"][0]["path"] = file
    written.write_text(json.dumps(content))
    return folder


def test_run_pins_its_file_and_says_which_table_it_reads(lake: Path, tmp_path: Path) -> None:
    file = write_file(tmp_path / "games.yaml", lake)
    Pipeline.load(file)._describe(Checkpoint.begin(at(checkpoint(lake)), pipeline="games"))
    (card,) = registrations(str(lake))
    assert card.reads == str(lake / "bronze")
    assert load_trusted(card, str(lake)).config.name == "games"


def write_file(file: Path, lake: Path) -> Path:
    file.write_text(
        f"""
name: games
source: {{type: delta, path: {lake}/bronze, value: value}}
payload: {{format: json}}
tables: {{each: events}}
lake: {{path: {lake}}}
"""
    )
    return file
