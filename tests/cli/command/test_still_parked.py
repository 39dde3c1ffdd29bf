"""A run names the tables that still wait for a commit or for the catalog, and ends with 1."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from distributary.cli.command import live
from distributary.engine.loop import RunSummary, StillParked
from distributary.engine.pipeline import Pipeline
from distributary.model.manifest import Counts
from distributary.observe.cards import CatalogState, Unregistered
from tests.cli.conftest import Cli

FILE = """
name: games
source: {type: delta, path: ./lake/wrapper, value: wrapper}
registry: {path: ./schemas}
payload: {format: protobuf}
tables: {each: 'silver_{type}'}
lake: {path: ./lake}
"""


@pytest.fixture
def ends(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that does nothing but end with a sum."""
    (own_folder / "games.yaml").write_text(FILE)

    def with_(summary: RunSummary) -> None:
        monkeypatch.setattr(live, "start_spark", lambda *a, **k: nullcontext())
        monkeypatch.setattr(Pipeline, "run", lambda *a, **k: summary)

    return with_


def test_tables_that_wait_are_told_behind_the_equation(cli: Cli, ends: Any) -> None:
    ends(RunSummary("games", stopped="done", still_parked=StillParked(120, 2)))
    told = cli("run", "games.yaml")
    assert told.code == 1
    last = told.out.splitlines()[-1]
    assert last.startswith(Counts().equation())
    assert last.removeprefix(Counts().equation()) == "; 120 records of 2 tables still parked"
    told = cli("run", "games.yaml", "--json")
    assert (told.code, told.json["still_parked"]) == (1, {"records": 120, "tables": 2})
    assert told.json["equation"] == last


def test_records_that_were_resumed_before_the_end_are_no_failure(cli: Cli, ends: Any) -> None:
    ends(RunSummary("games", counts=Counts(read=5, written=5), stopped="done"))
    told = cli("run", "games.yaml", "--json")
    assert (told.code, told.json["still_parked"]) == (0, {"records": 0, "tables": 0})


def test_a_table_that_waits_for_a_merge_counts_though_its_records_are_in_the_log(
    cli: Cli, ends: Any
) -> None:
    ends(RunSummary("games", counts=Counts(read=5, written=5), still_parked=StillParked(5, 1)))
    assert cli("run", "games.yaml", "-q").code == 1


def test_a_run_whose_tables_are_not_in_the_catalog_ends_with_1(cli: Cli, ends: Any) -> None:
    now = datetime.now(UTC)
    refused = "no \x1b[2J right"
    problem = Unregistered("silver_go", "CATALOG_REFUSED", refused, "grant it", since=now)
    state = CatalogState("unity", "main.games", now, registered=3, waiting=2, problems=(problem,))
    ends(RunSummary("games", stopped="done", catalog=state))
    told = cli("run", "games.yaml")
    assert told.code == 1
    last = told.out.splitlines()[-1]
    assert last.startswith("2 tables not in main.games: silver_go: no ")
    assert last.endswith(" right")
    assert "\x1b" not in told.out
    told = cli("run", "games.yaml", "--json")
    assert (told.code, told.json["catalog"]["waiting"]) == (1, 2)
    assert told.json["catalog"]["problems"][0]["table"] == "silver_go"


def test_a_run_whose_tables_are_all_in_the_catalog_ends_with_0(cli: Cli, ends: Any) -> None:
    state = CatalogState("unity", "main.games", datetime.now(UTC), registered=5)
    ends(RunSummary("games", stopped="done", catalog=state))
    told = cli("run", "games.yaml", "--json")
    assert (told.code, told.json["catalog"]["registered"]) == (0, 5)
