"""Types whose names differ in little: both get their tables, also what was refused before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.engine.progress.removal import dead_letters_of
from distributary.errors import ErrorCode
from distributary.model import layout
from distributary.model.manifest import Counts
from distributary.operations.plan.trial_registry import preview
from distributary.operations.repair.reset_clean import plan_clean, plan_reset, remove
from distributary.operations.replay import LANE, healable, replay, try_replay
from distributary_lab.simulate.base import MESSAGES
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds
from tests.lakes.games import Games


@pytest.fixture
def games(tmp_path: Path) -> Games:
    return Games(tmp_path, GamesPlan(games=1, versions=1, records=5))


def send(games: Games, name: str) -> None:
    """A round of the game under another name of the same length."""
    plain = games.plan.names[0].encode()

    def renamed() -> Iterator[pa.RecordBatch]:
        for batch in next(iter(stream_rounds(games.plan, registry=games.registry))).arrow():
            rows = batch.to_pylist()
            for row in rows:
                # a wrapper begins with the name
                row |= {"value": row["value"].replace(plain, name.encode(), 1), "type": name}
            yield pa.RecordBatch.from_pylist(rows, schema=MESSAGES)

    games.sink.write_arrow(renamed())


def entries(games: Games) -> set[str]:
    folder = Path(layout.names(str(games.lake)))
    return {path.stem for path in folder.glob("*.json")}


def test_one_stray_record_does_not_take_a_name_from_others(
    games: Games, tasks: SparkSession
) -> None:
    name = games.plan.names[0]
    send(games, name.title())
    assert len(preview(games.pipeline()).tables) > 0
    assert entries(games) == set()
    assert games.pipeline().run(spark=tasks).counts == Counts(read=5, written=5)
    send(games, name)
    send(games, name.upper())
    assert games.pipeline().run(spark=tasks).counts == Counts(read=10, written=10)
    first, *others = games.tables()
    assert first == f"silver_{name}"
    assert len(others) == 2 and all(other.startswith(f"{first}_x") for other in others)
    assert entries(games) == {first, *others}

    # the names stay when progress is lost
    pipeline = games.pipeline()
    remove(pipeline, plan_reset(pipeline))
    send(games, name)
    games.pipeline().run(spark=tasks)
    assert games.tables() == [first, *others]
    types = {t.table: t.type for t in pipeline.ledger().tables("games") if t.role == "each"}
    assert sorted(types.values()) == sorted([name, name.title(), name.upper()])
    assert types[first] == name.title()

    # and are free again when the tables are gone
    remove(pipeline, plan_clean(pipeline))
    assert entries(games) == set()


def test_letters_of_names_that_clashed_before_land_now(games: Games, tasks: SparkSession) -> None:
    name = games.plan.names[0]
    refusing = "evolution: {new_type: dead_letter}"
    send(games, name)
    send(games, name.title())
    counts = games.pipeline(extra=refusing).run(spark=tasks).counts
    assert counts == Counts(read=10, dead_lettered=10)
    # a type that gets no table takes no name
    assert entries(games) == set()
    letters = dead_letters_of(games.pipeline())
    code = ErrorCode.TYPE_NAME_CASE_CLASH
    DeltaTable(letters.path).update(new_values={"error_code": str(code)})
    assert healable(games.pipeline()).count == 10
    with games.pipeline().open(tasks, lane=LANE) as context:
        trial = try_replay(context, letters.select(reason=code))
    assert trial.replayed == 10
    assert entries(games) == set()
    with games.pipeline().open(tasks, lane=LANE) as context:
        done = replay(context, letters, letters.select(reason=code))
    assert (done.replayed, done.failed_again) == (10, {})
    assert len(games.tables()) == 2
    assert [len(games.rows(table)) for table in games.tables()] == [5, 5]
    assert letters.count_by_status() == {"open": 0, "replayed": 10, "discarded": 0}
