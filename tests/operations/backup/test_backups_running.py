"""Backups that are taken while a pipeline runs, and what a restored lake does next."""

import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from distributary.engine import batch as batch_module
from distributary.engine.kill_points import KILL, KillPoint
from distributary.engine.pipeline import Pipeline
from distributary.engine.steps import commits, merges
from distributary.operations.backup import find, table_versions
from distributary.operations.backup.points import Point, point_ids
from distributary.operations.backup.restore import choose_point, restore
from distributary.operations.backup.take import take_backup
from distributary.store.base import at
from distributary_lab.simulate.cdc.shapes import CdcPlan, Feature
from distributary_lab.simulate.game_records import GamesPlan
from tests.engine.test_crashes import SMALL, gone, start
from tests.lakes.backups import STEPS
from tests.lakes.changes import CHANGE_MOMENTS, Feed
from tests.lakes.games import Games, column

pytestmark = pytest.mark.spark

PLAN = GamesPlan(games=2, versions=4, records=5, bad=6)


class Killed(BaseException):
    """As good as SIGKILL: nothing of the product catches it."""


def back_up(pipeline: Pipeline, to: Path | str) -> Point:
    """Take a backup of a pipeline's lake."""
    checkpoints = {pipeline.config.name: pipeline.checkpoint.address}
    return take_backup(pipeline.lake, str(to), checkpoints).point


def put_back(pipeline: Pipeline, source: Path | str, id: str | None = None) -> Point:
    """Restore a backup to where a pipeline has its lake."""
    checkpoints = {pipeline.config.name: pipeline.checkpoint.address}
    return restore(str(source), choose_point(str(source), id), pipeline.lake, checkpoints).point


def lose(games: Games) -> None:
    """Remove the lake; the source, a table that lies in the same folder, stays."""
    for path in games.lake.iterdir():
        if path.name != "wrapper":
            shutil.rmtree(path)


@contextmanager
def at_each(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[KillPoint, int], None]
) -> Iterator[None]:
    """Do something at each moment of each batch, in the middle of the run."""
    with monkeypatch.context() as patch:
        for module in (batch_module, commits, merges):
            patch.setattr(module, "reached", act)
        yield


def test_a_backup_at_each_moment_of_a_batch_is_restored_exactly(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path, PLAN)
    for _ in range(2):
        games.send_round()
        games.pipeline().run(spark=spark)
    taken: dict[str, Point] = {}

    def act(moment: KillPoint, batch: int) -> None:
        taken[f"{moment}"] = back_up(games.pipeline(), tmp_path / "backup")

    games.send_round()
    with at_each(monkeypatch, act):
        games.pipeline().run(spark=spark)
    taken["idle"] = back_up(games.pipeline(), tmp_path / "backup")
    # the source has grown, and the original went on
    games.send_round()
    games.pipeline().run(spark=spark)
    games.assert_each_record_once()
    assert set(taken) == {*map(str, KillPoint), "idle"} - {"before_merge", "before_aggregates"}
    under_way = {m for m, point in taken.items() if "stream" in point.pipelines[0].under_way}
    assert under_way == {"after_first_commit", "before_settle"}
    for point in taken.values():
        assert point.pipelines[0].settled["stream"] == (2 if point is taken["idle"] else 1)
        lose(games)
        put_back(games.pipeline(), tmp_path / "backup", point.id)
        games.pipeline().run(spark=spark)
        games.assert_each_record_once()
        games.assert_no_file_is_left()


class Steps:
    """The reads and copies of a backup, as places where something else may happen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.act: Callable[[int], None] = lambda step: None
        for module, name in STEPS:
            monkeypatch.setattr(module, name, self._before(getattr(module, name)))

    def _before(self, work: Callable[..., object]) -> Callable[..., object]:
        def do(*args: object, **kwargs: object) -> object:
            self.count += 1
            self.act(self.count)
            return work(*args, **kwargs)

        return do

    def take(self, pipeline: Pipeline, to: Path, act: Callable[[int], None]) -> Point:
        """Take a backup while `act` is called before each of its steps."""
        self.count, self.act = 0, act
        try:
            return back_up(pipeline, to)
        finally:
            self.act = lambda step: None


def other(games: Games) -> Pipeline:
    """Return a second pipeline of the same lake, which shares the table of dead letters."""
    text = (games.root / "games.yaml").read_text()
    text = text.replace("name: games", "name: twin").replace("silver_", "copper_")
    text = text.replace("bronze_events", "bronze_twin").replace("unified_gold", "unified_twin")
    path = games.root / "twin.yaml"
    path.write_text(text)
    return Pipeline.load(path)


def assert_each_once(games: Games, prefix: str, pipeline: str) -> None:
    """Every record of the source is in a table of a pipeline, or in a dead letter of it, once."""
    offsets = Counter(o for t in games.tables(prefix) for o in column(games.lake / t, "_offset"))
    letters = games.rows("dead_letters")
    offsets.update(letter["offset"] for letter in letters if letter["pipeline"] == pipeline)
    assert sorted(offsets) == list(range(sum(sent.messages for sent in games.sent)))
    assert set(offsets.values()) == {1}


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps come in the same order every time."""
    for module in (find, table_versions):
        monkeypatch.setattr(
            module, "each", lambda work, items, *, threads=1: [work(item) for item in items]
        )


@pytest.mark.slow
def test_batches_of_two_pipelines_between_the_steps_of_a_backup_do_no_harm(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=14, records=3, bad=14))
    games.send_round()
    games.pipeline().run(spark=spark)
    other(games).run(spark=spark)
    steps = Steps(monkeypatch)
    back_up(games.pipeline(), tmp_path / "backup")
    every = max(1, steps.count // 5)
    taken: list[Point] = []
    for first in range(1, every + 1, max(1, every // 2)):

        def act(step: int, first: int = first) -> None:
            if step % every == first % every and games.send_round() is not None:
                steps.act = lambda step: None
                # their batches overlap: each commits to tables that the other writes to
                runs = [games.pipeline(), other(games)]
                runs = runs if step % 2 else runs[::-1]
                for run in runs:
                    run.run(spark=spark)
                steps.act = act

        taken.append(steps.take(games.pipeline(), tmp_path / "backup", act))
    games.send_all()
    ids = point_ids(at(tmp_path / "backup"))
    assert len(ids) == len(taken) + 1
    for id in ids:
        lose(games)
        put_back(games.pipeline(), tmp_path / "backup", id)
        games.pipeline().run(spark=spark)
        other(games).run(spark=spark)
        assert_each_once(games, "silver_", "games")
        assert_each_once(games, "copper_", "twin")


SOME = (KillPoint.AFTER_FIRST_COMMIT, KillPoint.BEFORE_MERGE, KillPoint.BEFORE_SETTLE)
CASES = [
    pytest.param("false", SOME, id="no log"),
    pytest.param("false", CHANGE_MOMENTS, id="no log, each moment", marks=pytest.mark.slow),
    pytest.param("true", CHANGE_MOMENTS, id="log, each moment", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("log", "moments"), CASES)
def test_change_data_of_a_run_that_is_killed_is_restored_exactly(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    log: str,
    moments: tuple[KillPoint, ...],
) -> None:
    features = frozenset({Feature.KEY_CHANGES, Feature.LATE_UPDATES, Feature.DUPLICATES})
    feed = Feed(tmp_path, CdcPlan(tables=2, events=160, rows=3, rounds=9, features=features))
    settings = {"cdc": f", log: {log}"}
    feed.send_round()
    feed.pipeline(**settings).run(spark=spark)
    taken: list[Point] = []
    for moment in moments:
        feed.send_round()

        def act(now: KillPoint, batch: int, wanted: KillPoint = moment) -> None:
            if now is wanted:
                taken.append(back_up(feed.pipeline(**settings), tmp_path / "backup"))
                raise Killed

        with at_each(monkeypatch, act), pytest.raises(Killed):
            feed.pipeline(**settings).run(spark=spark)
        # the process is gone: what it left is the same state
        left = back_up(feed.pipeline(**settings), tmp_path / "backup")
        assert (left.pipelines, left.totals["copied_files"]) == (taken[-1].pipelines, 0)
    feed.send_all()
    for point in taken:
        shutil.rmtree(feed.lake)
        put_back(feed.pipeline(**settings), tmp_path / "backup", point.id)
        feed.pipeline(**settings).run(spark=spark)
        feed.assert_true(logs=log == "true")
    assert list((feed.lake / "_distributary" / "tombstones").iterdir())


@pytest.mark.slow
def test_backups_one_after_the_other_of_a_process_that_is_killed(
    tmp_path: Path, spark: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=10, records=6, bad=10), records_per_file=20)
    games.send_all()
    games.write_file(batch=12, extra=SMALL)
    process = start(games, **{KILL: f"{KillPoint.AFTER_FIRST_COMMIT}:9"})
    points: dict[tuple[object, ...], Point] = {}
    running = True
    while running:
        # the last one is of what the killed process has left
        running = process.poll() is None
        if (games.lake / "_distributary").is_dir():
            point = back_up(Pipeline.load(tmp_path / "games.yaml"), tmp_path / "backup")
            for one in point.pipelines:
                points[one.settled["stream"], *one.under_way.items()] = point
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    gone(process)
    assert len(points) > 3 and (8, ("stream", 9)) in points
    for point in points.values():
        lose(games)
        pipeline = Pipeline.load(tmp_path / "games.yaml")
        put_back(pipeline, tmp_path / "backup", point.id)
        pipeline.run(spark=spark)
        games.assert_each_record_once()
