"""One screen about a lake, with or without anything running."""

from __future__ import annotations

import json
from datetime import UTC, timedelta

import pytest

from distributary.model.manifest import Counts
from distributary.model.table import Role
from distributary.observe.cards import Registration, register
from distributary.observe.status.health import Health
from distributary.observe.status.status import status


@pytest.fixture
def busy(lake):
    """Two pipelines; the first has dead letters, a parked table and a shrinking lag."""
    register(lake.path, Registration("games", "games.yaml", "cp/games"))
    for batch in range(4):
        entries = [
            lake.entry("chess", records=60),
            lake.entry("go", records=30),
            lake.entry("dead", records=10, role=Role.DEAD_LETTERS, type=""),
        ]
        lake.settle(
            lake.manifest(batch, entries=entries, dead_letters={"BAD_MAGIC": 10}),
            parked=["go"] if batch == 3 else [],
            lag_records=1000 - 90 * batch,
            steps={"stage": 3.0, "publish": 1.0},
        )
        rows = [{"offset": 10 * batch + n, "error_code": "BAD_MAGIC"} for n in range(10)]
        lake.dead_letters(rows)
    lake.dead_letters([{"offset": 1, "pipeline": "other"}])
    lake.settle(lake.manifest(0, pipeline="other", life="x"))
    lake.stand("chess", "go", versions=4)
    return lake


def test_a_pipeline_is_told_whole(busy, noon):
    now = noon + timedelta(minutes=1)
    told = status(busy.path, liveness=lambda checkpoint: "running", now=now, tz=UTC)
    games, other = told.pipelines
    assert (games.name, games.state, games.file) == ("games", "running", "games.yaml")
    assert games.last_batch.batch == 3
    assert (games.as_of, games.age_seconds) == (noon + timedelta(seconds=30), 30.0)
    assert games.totals == Counts(400, 330, 40, 30) and games.balanced
    assert games.equation == "read 400 = written 330 + dead letters 40 + parked 30"
    assert games.rows == 330 and games.records_per_second == 20.0
    assert games.lag_in_words == "730 behind, catching up at 9/s, caught up at 12:01"
    worst = games.tables.shown[0]
    assert (worst.table.table, worst.health) == ("go", Health.PARKED)
    assert (games.tables.total, games.tables.healthy) == (3, 2)
    (parked,) = games.parked
    assert (parked.table, parked.records, parked.error) == ("go", 30, "disk is full")
    assert games.dead_letters.by_status == {"open": 40, "replayed": 0, "discarded": 0}
    assert [(r.code, r.count) for r in games.dead_letters.reasons] == [("BAD_MAGIC", 40)]
    # it never registered, so nobody can tell whether it is alive
    assert (other.name, other.state, other.lag_in_words) == ("other", "unknown", "caught up")


def test_batches_that_ended_long_ago_make_no_forecast(busy, noon):
    later = noon + timedelta(minutes=10)
    told = status(busy.path, pipeline="games", liveness=lambda checkpoint: "running", now=later)
    assert told.pipelines[0].lag_in_words == "730 behind"


@pytest.mark.parametrize("state", ["stopped", "crashed"])
def test_a_pipeline_that_does_not_run_makes_no_forecast(busy, noon, state):
    told = status(busy.path, pipeline="games", liveness=lambda checkpoint: state, now=noon)
    (games,) = told.pipelines
    assert (games.state, games.lag_in_words) == (state, "730 behind")
    # a clock that is behind makes no negative ages
    assert games.age_seconds == 0.0


def test_the_checkpoint_is_what_liveness_is_asked_about(busy):
    asked = []
    status(busy.path, liveness=lambda checkpoint: asked.append(checkpoint) or "running")
    assert asked == ["cp/games"]


def test_replays_and_resumes_show_in_the_totals(busy):
    replay = busy.manifest(0, lane="replay", counts=Counts(40, 25, 15))
    busy.settle(replay)
    parked = busy.manifest(3, entries=[busy.entry("go", records=30)])
    busy.resume(parked, "go")
    (games,) = status(busy.path, pipeline="games").pipelines
    assert games.totals == Counts(400, 385, 15) and games.balanced
    assert games.parked == () and games.tables.parked == 0
    assert games.last_batch.lane == "stream"


def test_only_the_newest_life_makes_the_trend(busy, noon):
    busy.settle(busy.manifest(0, life="life2"), at=noon + timedelta(minutes=1), lag_records=5000)
    (games,) = status(busy.path, pipeline="games").pipelines
    assert games.lag_in_words == "5,000 behind"


def test_json_has_a_version_and_only_plain_values(busy, noon):
    data = status(busy.path, now=noon).as_dict()
    assert data["version"] == 1
    again = json.loads(json.dumps(data, allow_nan=False))
    assert again == data
    games = again["pipelines"][0]
    assert games["as_of"] == "2026-11-15T12:00:30.000Z"
    assert games["totals"]["dead_lettered"] == 40
    assert games["lag"]["trend"] == "catching_up"
    assert games["tables"]["shown"][0]["health"] == "parked"


def test_a_pipeline_before_its_first_batch(lake):
    register(lake.path, Registration("new", "new.yaml", "cp"))
    (new,) = status(lake.path, liveness=lambda checkpoint: "running").pipelines
    assert (new.as_of, new.last_batch, new.totals) == (None, None, Counts())
    assert new.tables.total == 0 and new.lag_in_words.startswith("unknown")
    assert json.dumps(status(lake.path).as_dict())


def test_an_empty_lake_and_an_unknown_name(lake, busy):
    assert status(f"{lake.path}/none").pipelines == ()
    assert status(busy.path, pipeline="it's").pipelines == ()


def test_a_lake_that_was_moved_still_knows_its_dead_letters(busy, tmp_path):
    moved = (tmp_path / "lake").rename(tmp_path / "elsewhere")
    (games,) = status(str(moved), pipeline="games").pipelines
    assert games.dead_letters.by_status["open"] == 40


def test_many_tables_do_not_flood_the_screen(lake):
    entries = [lake.entry(f"t{n}", records=1) for n in range(300)]
    lake.stand(*(f"t{n}" for n in range(300)))
    lake.settle(lake.manifest(0, entries=entries))
    (games,) = status(lake.path).pipelines
    assert (len(games.tables.shown), games.tables.healthy_not_shown) == (15, 285)
