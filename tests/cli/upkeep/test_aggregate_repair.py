"""`verify` and `rebuild` of aggregate tables, on the command line."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from tests.cli.conftest import Cli
from tests.engine.test_aggregate_runs import Games

GOLD = "gold_chess_player_agg"


def test_aggregates_are_verified_and_computed_again(own_folder: Path, cli: Cli) -> None:
    games = Games(own_folder)
    games.some(20)
    games.run()
    proof = cli("verify", "--all", "--lake", games.lake, "--json")
    assert proof.code == 0, proof.out
    (gold,) = (table for table in proof.json["tables"] if table["table"] == GOLD)
    assert "values, by its table" in gold["compared"]

    DeltaTable(str(games.lake / GOLD)).update(
        updates={"games": "games + 1"}, predicate="player = 'p1'"
    )
    broken = cli("verify", GOLD, "--lake", games.lake, "--json")
    assert broken.code == 1
    (finding,) = broken.json["tables"][0]["findings"]
    assert finding["kind"] == "values"
    assert "p1" in finding["evidence"]
    would = cli("rebuild", GOLD, "--lake", games.lake, "--dry-run", "--json")
    assert (would.code, would.json["changed"]) == (0, 1)
    assert cli("rebuild", GOLD, "--lake", games.lake).code == 0
    assert cli("verify", GOLD, "--lake", games.lake).code == 0
    assert games.groups("chess") == games.expected("chess")
