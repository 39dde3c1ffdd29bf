"""Paths in a lake: pure, safe, never shared."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.model import layout

HOSTILE = [
    "..",
    ".",
    "",
    "a/b",
    "a\\b",
    "../../etc",
    "Games",
    "x" * 500,
    "a b",
    "\0",
    "ü",
    "-",
    "a.",
]


def test_where_things_live():
    assert layout.ledger_table("lake", "tables") == "lake/_distributary/ledger/tables"
    assert layout.pipeline_file("s3://b/lake/", "games") == (
        "s3://b/lake/_distributary/pipelines/games/pipeline.json"
    )
    assert layout.parked("/", "games") == "/_distributary/pipelines/games/parked"
    assert layout.table("lake", "dead_letters") == "lake/dead_letters"


def test_batches_wait_in_the_lake_on_a_disk_and_in_the_checkpoint_without_one() -> None:
    assert layout.parking("/lake", "games", "/c/games") == layout.parked("/lake", "games")
    assert layout.parking("s3://b/lake", "games", "s3://b/c/games") == "s3://b/c/games/parked"
    assert layout.parking("s3://b/lake", "games", "") == ""


@pytest.mark.parametrize("name", ["games", "games-cloud", "a_b", "7"])
def test_plain_names_stay_as_they_are(name):
    assert layout.folder_name(name) == name


@pytest.mark.parametrize("name", HOSTILE)
def test_other_names_become_safe(name):
    safe = layout.folder_name(name)
    assert re.fullmatch(r"[a-z0-9_-]+\.[0-9a-f]{12}", safe) and len(safe) < 100
    assert layout.pipeline("lake", name).count("/") == 3


@given(st.lists(st.text(), unique=True, min_size=2, max_size=20))
def test_two_names_never_share_a_folder(names):
    folders = [layout.folder_name(name) for name in names]
    assert len(set(folders)) == len(names)
    assert all(layout.folder_name(folder) != folder or folder in names for folder in folders)


@pytest.mark.parametrize(
    ("lake", "path", "inside"),
    [
        ("/data/lake", "/data/lake/chess", "chess"),
        ("/data/lake/", "/data/lake/db/chess", "db/chess"),
        ("/mnt/copy", "/data/lake/chess", "chess"),
        ("./lake", "/data/lake/chess/", "chess"),
        ("/data/lake", "/data/lakes/chess", "chess"),
    ],
)
def test_a_folder_is_found_in_a_lake_that_moved(lake, path, inside):
    assert layout.inside(lake, path) == inside
