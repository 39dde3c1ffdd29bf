import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.engine.loop import RunSummary
from distributary.engine.progress.checkpoint import ManifestCopy
from distributary.errors import CheckpointError, SourceError
from distributary.model.manifest import Counts
from distributary.observe.events import BatchSettled, Event, SchemaSeen
from distributary.operations.repair.reset_clean import plan_reset, remove
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import Games
from tests.waiting import until_read


def test_a_run_brings_every_record_to_its_place(tmp_path: Path, spark: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=4, versions=3, records=10, bad=17))
    games.send_all()
    summary = games.pipeline().run(spark=spark)
    assert summary.counts == Counts(read=137, written=120, dead_lettered=17)
    assert len(games.tables()) == 4
    assert all(len(games.rows(t)) == 30 for t in games.tables())
    codes = Counter(row["error_code"] for row in games.rows("dead_letters"))
    sent = sum((Counter(s.bad_by_code) for s in games.sent), Counter())
    assert codes == Counter({str(code): count for code, count in sent.items()})
    assert len(games.rows("unified_gold")) == 120
    games.assert_each_record_once()
    # a second run finds nothing to do
    again = games.pipeline().run(spark=spark)
    assert again.counts == Counts()
    games.assert_each_record_once()


def test_the_next_run_removes_what_a_killed_one_has_sent_to_its_tasks(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=1, versions=1, records=3))
    games.send_all()
    games.pipeline().run(spark=tasks)
    (home,) = (games.lake / "_distributary" / "pipelines").iterdir()
    left, other = home / "plan" / "stream" / "abc", home / "plan" / "replay" / "abc"
    for file in (left, other):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    games.pipeline().run(spark=tasks)
    assert (left.exists(), other.exists()) == (False, True)


def test_batches_are_bounded(tmp_path: Path, tasks: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=4, records=25), records_per_file=50)
    games.send_all()
    sizes: list[int] = []
    pipeline = games.pipeline(batch=50)
    pipeline.bus.subscribe(
        lambda e: sizes.append(e.counts.read) if isinstance(e, BatchSettled) else None
    )
    pipeline.run(spark=tasks)
    assert sum(sizes) == 200
    assert len(sizes) >= 3
    games.assert_each_record_once()


def test_tables_get_the_metadata_columns_that_are_asked_for_later(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=2, records=5))
    few = "{each: 'silver_{type}', unified: unified_gold, metadata: [offset]}"
    games.send_round()
    games.pipeline(tables=few).run(spark=tasks)
    games.send_all()
    more = few.replace("[offset]", "[offset, topic, batch]")
    games.pipeline(tables=more).run(spark=tasks)
    for table in [*games.tables(), "unified_gold"]:
        rows = games.rows(table)
        new = [row for row in rows if row["_batch"] is not None]
        assert len(new) == len(rows) // 2
        assert all(row["_offset"] is not None and row["_topic"] is not None for row in new)


def test_tables_are_read_by_spark_duckdb_and_polars(tmp_path: Path, spark: SparkSession) -> None:
    import duckdb
    import polars

    games = Games(tmp_path, GamesPlan(games=1, versions=2, records=5))
    games.send_all()
    games.pipeline(extra="").run(spark=spark)
    path = str(games.lake / games.tables()[0])
    by_spark = spark.read.format("delta").load(path).count()
    dataset = DeltaTable(path).to_pyarrow_dataset()
    by_duckdb = duckdb.sql("select count(*) from dataset").fetchall()[0][0]
    assert by_spark == by_duckdb == polars.read_delta(path).height == 10
    assert dataset.count_rows() == 10


@pytest.mark.sql
def test_tables_are_in_the_catalog_when_the_lake_has_a_database(
    tmp_path: Path, spark: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=5))
    games.send_all()
    file = games.write_file()
    text = file.read_text().replace(
        f"{{path: {games.lake}}}", f"{{path: {games.lake}, database: g1}}"
    )
    file.write_text(text)
    from distributary.engine.pipeline import Pipeline

    Pipeline.load(file).run(spark=spark)
    for table in games.tables():
        assert spark.sql(f"SELECT count(*) FROM g1.{table}").collect()[0][0] == 5
    comments = {r["col_name"]: r["comment"] for r in spark.sql(f"DESCRIBE g1.{table}").collect()}
    assert "event.user_name" in comments["user_name"]


def test_versions_arrive_while_it_runs(tmp_path: Path, tasks: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=10, records=3))
    games.send_round()
    pipeline = games.pipeline()
    seen: list[Event] = []
    pipeline.bus.subscribe(seen.append)
    result: list[RunSummary] = []
    runner = threading.Thread(
        target=lambda: result.append(pipeline.run(trigger="continuous", spark=tasks))
    )
    runner.start()
    try:
        sent = 6
        while games.send_round() is not None:
            sent += 6
            until_read(seen, sent)
    finally:
        pipeline.stop.set()
        runner.join(timeout=120)
    assert result[0].counts.written == 60
    assert result[0].stopped == "stopped"
    labels = {e.label for e in seen if isinstance(e, SchemaSeen)}
    name = games.plan.names[0]
    assert {f"{name}-value v{v}" for v in range(1, 11)} <= labels
    columns = [f.name for f in DeltaTable(str(games.lake / f"silver_{name}")).schema().fields]
    assert [c for c in columns if c.startswith("col_")] == [f"col_{name}_{i}" for i in range(10)]
    games.assert_each_record_once()


def test_a_checkpoint_from_an_older_copy_is_exact_or_refused(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=4, records=5))
    games.send_round()
    games.pipeline().run(spark=tasks)
    checkpoint = games.lake / "_checkpoints" / "games"
    shutil.copytree(checkpoint, tmp_path / "copy")
    games.send_round()
    games.pipeline().run(spark=tasks)
    # the same records in the same portions: exact
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "copy", checkpoint)
    games.pipeline().run(spark=tasks)
    games.assert_each_record_once()
    # more records than then: the old batch is cut where it was cut, the rest follows
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "copy", checkpoint)
    games.send_round()
    games.pipeline().run(spark=tasks)
    games.assert_each_record_once()
    # a source that was written again: refused by name, and nothing is doubled
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "copy", checkpoint)
    other = Games(tmp_path / "other", GamesPlan(games=2, versions=1, records=7))
    other.send_all()
    other.send_round()
    shutil.rmtree(games.lake / "wrapper")
    shutil.copytree(other.lake / "wrapper", games.lake / "wrapper")
    with pytest.raises(SourceError):
        games.pipeline().run(spark=tasks)
    counted = Counter(games.offsets())
    assert set(counted.values()) == {1}


def test_a_reset_checkpoint_is_a_new_life_that_old_marks_do_not_hide(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=1, versions=1, records=5))
    games.send_all()
    games.pipeline().run(spark=tasks)
    remove(games.pipeline(), plan_reset(games.pipeline()))
    summary = games.pipeline().run(spark=tasks)
    assert summary.counts.written == 5
    assert len(games.rows(games.tables()[0])) == 10


def test_a_missing_manifest_is_taken_from_the_lake_or_refused(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=1, versions=3, records=2))
    manifests = games.lake / "_checkpoints" / "games" / "manifests"
    for _ in range(2):
        games.send_round()
        games.pipeline().run(spark=tasks)
        for path in manifests.glob("0*.json"):
            path.unlink()
    ManifestCopy(str(games.lake), "games").remove()
    games.send_round()
    with pytest.raises(CheckpointError):
        games.pipeline().run(spark=tasks)
    assert len(games.rows("bronze_events")) == 4
