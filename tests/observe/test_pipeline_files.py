"""A pipeline's own file in the lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary.errors import DistributaryError, ErrorCode
from distributary.model import layout
from distributary.observe.cards import Registration, register, registrations

GAMES = Registration(
    "games", "games.yaml", "lake/_checkpoints", {"password": "***"}, {"chess": "lake/chess"}
)


def test_what_is_registered_is_read_back(tmp_path):
    lake = str(tmp_path)
    other = Registration("../Weird name", "w.yaml", "cp")
    register(lake, GAMES)
    register(lake, other)
    assert registrations(lake) == (other, GAMES)
    assert Path(layout.pipeline_file(lake, "games")).is_file()


def test_registering_again_replaces(tmp_path):
    register(str(tmp_path), GAMES)
    changed = Registration("games", "moved.yaml", "cp")
    register(str(tmp_path), changed)
    assert registrations(str(tmp_path)) == (changed,)


def test_other_folders_are_not_pipelines(tmp_path):
    register(str(tmp_path), GAMES)
    Path(layout.pipeline(str(tmp_path), "half")).mkdir()
    Path(layout.pipelines(str(tmp_path)), "stray.txt").write_text("x")
    assert registrations(str(tmp_path)) == (GAMES,)


def test_a_lake_begins_with_its_first_pipeline(tmp_path):
    assert registrations(str(tmp_path)) == ()
    assert registrations(str(tmp_path / "new")) == ()
    register(str(tmp_path / "new"), GAMES)
    assert registrations(str(tmp_path / "new")) == (GAMES,)


def test_a_lake_that_cannot_be_is_an_error_with_a_code(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DistributaryError) as caught:
        register(str(tmp_path / "file"), GAMES)
    assert caught.value.code is ErrorCode.LAKE_UNAVAILABLE
