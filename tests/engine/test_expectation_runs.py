"""Rules from file to tables, letters, ledger and status, through the whole engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.engine.progress.removal import dead_letters_of
from distributary.errors import ErrorCode, ExpectationError
from distributary.model.manifest import Counts
from distributary.observe.events import BatchSettled, Event
from distributary.observe.status.status import status
from distributary.operations.plan.trial_registry import preview
from distributary.operations.replay import LANE, replay
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import Games


def with_rules(games: Games, *rules: dict[str, Any]) -> Pipeline:
    return games.pipeline(extra=f"expectations: {json.dumps(list(rules))}")


def staged_files(games: Games) -> set[Path]:
    return {p for p in games.lake.glob("*/*.parquet") if p.parent.name != "wrapper"}


def test_rules_are_kept_from_the_file_to_the_status(tmp_path: Path, tasks: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=2, records=10))
    games.send_round()
    warn = {"name": "third", "check": "_offset % 3 <> 0"}
    late = {"name": "late", "check": "col_chess_game_1 is not null", "types": ["chess*"]}
    strict = {"name": "low", "check": "_offset < 15", "action": "dead_letter"}

    # a rule that says fail stops the batch before anything is decided, and leaves nothing behind
    refusing = with_rules(games, {"name": "never", "check": "_offset < 18", "action": "fail"})
    for _ in range(2):
        with pytest.raises(ExpectationError) as caught:
            refusing.run(spark=tasks)
        assert caught.value.code == ErrorCode.EXPECTATION_REFUSED
        assert not caught.value.retryable
        assert caught.value.context["rule"] == "never"
    assert not staged_files(games)
    assert Checkpoint(refusing.checkpoint, "").manifests().newest() == -1

    pipeline = with_rules(games, warn, late, strict)
    foreseen = preview(pipeline).unfit_rules
    assert [(x.rule, x.table) for x in foreseen] == [("late", "silver_chess_game")]
    events: list[Event] = []
    pipeline.bus.subscribe(events.append)
    assert pipeline.run(spark=tasks).counts == Counts(read=20, written=15, dead_lettered=5)
    games.assert_each_record_once()
    assert {r["_offset"] for r in games.rows("unified_gold")} == set(range(15))
    assert len(games.rows("bronze_events")) == 20
    (settled,) = (e for e in events if isinstance(e, BatchSettled))
    assert {b.rule for b in settled.broken_rules} == {"third", "low"}
    assert sum(b.violated for b in settled.broken_rules if b.rule == "low") == 5

    games.send_round()
    more = with_rules(games, warn, late, strict)
    assert more.run(spark=tasks).counts == Counts(read=20, written=0, dead_lettered=20)
    by_rule = {rule.rule: rule for rule in status(str(games.lake)).pipelines[0].expectations}
    assert (by_rule["low"].checked, by_rule["low"].violated) == (40, 25)
    assert (by_rule["third"].violated, by_rule["third"].tables) == (14, 2)
    # the second version has brought the column that the rule waits for
    assert (by_rule["late"].checked, by_rule["late"].unfit_tables) == (10, 0)

    # the rule is corrected: its letters land, those that still break it stay
    letters = dead_letters_of(pipeline)
    corrected = with_rules(games, {**strict, "check": "_offset < 39"})
    with corrected.open(tasks, lane=LANE) as context:
        done = replay(context, letters, letters.select(reason=ErrorCode.EXPECTATION_FAILED))
    assert (done.replayed, done.failed_again) == (24, {"EXPECTATION_FAILED": 1})
    totals = corrected.ledger().totals("games")
    assert (totals.read, totals.written, totals.dead_lettered) == (40, 39, 1)
    assert {r["_offset"] for r in games.rows("unified_gold")} == set(range(39))
