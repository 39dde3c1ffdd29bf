"""What somebody who can write to a lake can make others read or remove elsewhere: nothing."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

from distributary.config.maintain import Maintain
from distributary.observe.pipelines import Registration, register
from distributary.run.maintaining import remove_leftovers
from distributary.run.maintenance import Step, Wishes
from distributary.run.pipeline import Pipeline
from distributary.run.removal import finish_removal
from distributary.run.watching import watch
from tests.run.test_watching import checkpoint, manifest, manifests

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
    return Wishes.of(Maintain(), steps=[Step.EXPIRE], retention=timedelta(days=1), force=False)


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


@pytest.mark.parametrize("way", ["outside", "dots", "link", "whole lake"])
def test_removal_that_the_lake_asks_for_stays_in_the_lake(
    lake: Path, precious: Path, tmp_path: Path, way: str
) -> None:
    (lake / "changes").symlink_to(precious.parent.parent)
    path = {
        "outside": str(precious.parent),
        "dots": f"{lake}/../home/documents",
        "link": f"{lake}/changes/documents",
        "whole lake": f"{lake}/",
    }[way]
    file = tmp_path / "games.yaml"
    file.write_text(
        f"""
name: games
source: {{type: delta, path: {lake}/bronze, value: value}}
payload: {{format: json}}
tables: {{each: events}}
lake: {{path: {lake}}}
"""
    )
    (lake / "chess").mkdir()
    home = lake / "_distributary" / "pipelines" / "games"
    home.mkdir(parents=True)
    asked = [{"kind": "table", "path": path, "table": "chess", "rows": None}]
    (home / "removal.json").write_text(json.dumps(asked))
    finish_removal(Pipeline.load(file))
    assert precious.exists()
    assert lake.is_dir()
    assert not (home / "removal.json").exists()
