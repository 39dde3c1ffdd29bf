"""State that goes backward and names that come twice: an old copy, a lost one, a reset, an end."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from distributary.engine import batch as batch_module
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress import removal as removal_module
from distributary.engine.progress.checkpoint import Checkpoint, ManifestCopy
from distributary.engine.progress.recovery import plan_recovery, recover
from distributary.engine.progress.removal import dead_letters_of
from distributary.errors import CheckpointError, DivergedError, ErrorCode, FencedError
from distributary.model import layout
from distributary.observe.cards import unfinished_removal
from distributary.observe.verify.gaps import check_lanes
from distributary.operations.repair.reset_clean import plan_clean, plan_reset, remove
from distributary.operations.replay import LANE, replay
from distributary.store.base import at
from distributary_lab.simulate.base import DeltaSink
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds
from tests.lakes.games import Games

PLAN = GamesPlan(games=2, versions=4, records=5, bad=8)


class Killed(BaseException):
    """As good as SIGKILL: nothing of the product catches it."""


def die(*args: object, **kwargs: object) -> None:
    raise Killed


def killed_before_settle(
    pipeline: Pipeline, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(batch_module, "_settle", die)
        with pytest.raises(Killed):
            pipeline.run(spark=tasks)


def copied(pipeline: Pipeline, name: str = "copy") -> Path:
    to = Path(pipeline.checkpoint.address).parent / name
    shutil.copytree(pipeline.checkpoint.address, to)
    return to


def put_back(pipeline: Pipeline, copy: Path) -> None:
    shutil.rmtree(pipeline.checkpoint.address)
    shutil.copytree(copy, pipeline.checkpoint.address)


def forget_copy(pipeline: Pipeline) -> None:
    """As a lake of the version before, which had no copy of the newest manifest."""
    ManifestCopy(pipeline.lake, pipeline.config.name).remove()


def test_an_old_checkpoint_is_brought_up_to_date_by_the_lake(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path, PLAN)
    games.send_round()
    pipeline = games.pipeline()
    pipeline.run(spark=tasks)
    old = copied(pipeline)
    games.send_round()
    killed_before_settle(pipeline, tasks, monkeypatch)
    games.send_round()
    put_back(pipeline, old)
    # the batch of the killed run is finished as it was decided, the rest is another one
    assert games.pipeline().run(spark=tasks).batches == 2
    games.assert_each_record_once()
    put_back(pipeline, old)
    assert games.pipeline().run(spark=tasks).batches == 0
    games.send_round()
    assert games.pipeline().run(spark=tasks).counts.balanced
    games.assert_each_record_once()


@pytest.mark.parametrize("new_type", [False, True])
def test_a_refused_batch_leaves_no_trace_and_is_refused_again(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch, new_type: bool
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=4, records=5))
    games.send_round()
    pipeline = games.pipeline()
    pipeline.run(spark=tasks)
    old = copied(pipeline)
    newest = copied(pipeline, "first")
    games.send_round()
    killed_before_settle(pipeline, tasks, monkeypatch)
    shutil.rmtree(newest)
    newest = copied(pipeline, "newest")
    if new_type:
        _send_another_game(games)
    else:
        games.send_round()
    put_back(pipeline, old)
    forget_copy(pipeline)
    before = {t: len(games.rows(t)) for t in games.tables("")}
    for _ in range(2):
        with pytest.raises(DivergedError):
            games.pipeline().run(spark=tasks)
    assert {t: len(games.rows(t)) for t in games.tables("")} == before
    # what the message advises is exact
    put_back(pipeline, newest)
    games.pipeline().run(spark=tasks)
    games.assert_each_record_once()


def _send_another_game(games: Games) -> None:
    """Records of a type that no table is for yet, named so that its table comes first."""
    other = Games(games.root / "other", GamesPlan(games=3, versions=1, records=5))
    other.registry = games.registry
    other.sink = games.sink
    other._rounds = stream_rounds(other.plan, registry=games.registry)
    other.send_round()
    games.sent += other.sent


def test_letters_of_a_source_that_was_made_anew_are_other_letters(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=4, bad=6, seed=1))
    games.send_all()
    pipeline = games.pipeline()
    pipeline.run(spark=tasks)
    shutil.rmtree(games.lake / "wrapper")
    again = Games(tmp_path, GamesPlan(games=2, versions=1, records=4, bad=6, seed=2))
    again.send_all()
    remove(pipeline, plan_reset(pipeline))
    again.pipeline().run(spark=tasks)
    letters = dead_letters_of(pipeline)
    selected = letters.select()
    assert selected.num_rows == 12
    assert len(set(selected["id"].to_pylist())) == 12
    with games.pipeline().open(tasks, lane=LANE) as context:
        done = replay(context, letters, selected)
    assert done.selected == 12
    assert done.replayed + sum(done.failed_again.values()) == 12
    counts = letters.count_by_status()
    assert (counts["replayed"], counts["open"]) == (done.replayed, 12 - done.replayed)


def test_a_lost_checkpoint_is_named_and_taken_up_from_the_lake(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path, PLAN)
    games.send_round()
    pipeline = games.pipeline()
    pipeline.run(spark=tasks)
    games.send_round()
    killed_before_settle(pipeline, tasks, monkeypatch)
    games.send_round()
    shutil.rmtree(pipeline.checkpoint.address)
    for _ in range(2):
        with pytest.raises(CheckpointError) as caught:
            games.pipeline().run(spark=tasks)
        assert caught.value.code is ErrorCode.CHECKPOINT_LOST
    planned, done = plan_recovery(pipeline), recover(pipeline)
    assert planned == done
    assert done is not None and (done.batch, done.settled) == (1, False)
    games.pipeline().run(spark=tasks)
    games.assert_each_record_once()
    assert recover(pipeline) is None


@pytest.mark.parametrize("settled", [False, True])
def test_a_damaged_newest_manifest_is_written_again_from_the_lake(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    games = Games(tmp_path, PLAN)
    games.send_round()
    pipeline = games.pipeline()
    pipeline.run(spark=tasks)
    games.send_round()
    if settled:
        games.pipeline().run(spark=tasks)
    else:
        killed_before_settle(pipeline, tasks, monkeypatch)
    games.send_round()
    newest = max(Path(pipeline.checkpoint.address).glob("manifests/*.json"))
    text = newest.read_text()
    newest.write_text(text.replace('"batch":1', '"batch":3'))
    with pytest.raises(CheckpointError) as caught:
        games.pipeline().run(spark=tasks)
    assert "`distributary recover FILE`" in caught.value.next_step
    planned, done = plan_recovery(pipeline), recover(pipeline)
    assert planned == done
    assert done is not None and (done.batch, done.settled, done.rewrites) == (1, settled, True)
    assert newest.read_text() == text
    games.pipeline().run(spark=tasks)
    games.assert_each_record_once()
    assert recover(pipeline) is None


def test_a_damaged_manifest_that_the_lake_lacks_is_no_intact_checkpoint(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, PLAN)
    games.send_round()
    pipeline = games.pipeline()
    pipeline.run(spark=tasks)
    forget_copy(pipeline)
    newest = max(Path(pipeline.checkpoint.address).glob("manifests/*.json"))
    newest.write_text(newest.read_text().replace('"batch":0', '"batch":3'))
    for look in (plan_recovery, recover):
        with pytest.raises(CheckpointError) as caught:
            look(pipeline)
        assert caught.value.code is ErrorCode.CHECKPOINT_INVALID
        assert "recover" not in caught.value.next_step


def test_the_newest_life_is_taken_up_also_when_an_earlier_one_had_more_batches(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path, PLAN)
    for _ in range(2):
        games.send_round()
        games.pipeline().run(spark=tasks)
    pipeline = games.pipeline()
    remove(pipeline, plan_reset(pipeline))
    killed_before_settle(games.pipeline(), tasks, monkeypatch)
    shutil.rmtree(pipeline.checkpoint.address)
    done = recover(pipeline)
    assert done is not None and (done.batch, done.settled) == (0, False)
    games.send_all()
    # nobody has read the later rounds before
    assert games.pipeline().run(spark=tasks).batches == 2


def test_a_lake_of_the_version_before_knows_its_position_by_the_ledger(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, PLAN, records_per_file=9)
    for _ in range(2):
        games.send_round()
        games.pipeline().run(spark=tasks)
    pipeline = games.pipeline()
    shutil.rmtree(pipeline.checkpoint.address)
    forget_copy(pipeline)
    done = recover(pipeline)
    assert done is not None and done.known_by == "ledger"
    games.send_all()
    games.pipeline().run(spark=tasks)
    games.assert_each_record_once()


def test_a_life_that_was_ended_is_not_taken_up_again(tmp_path: Path, tasks: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=4))
    games.send_all()
    pipeline = games.pipeline()
    pipeline.run(spark=tasks)
    old = copied(pipeline)
    remove(pipeline, [each for each in plan_clean(pipeline) if each.kind != "card"])
    games.pipeline().run(spark=tasks)
    games.assert_each_record_once()
    put_back(pipeline, old)
    with pytest.raises(DivergedError):
        games.pipeline().run(spark=tasks)
    games.assert_each_record_once()


@pytest.mark.parametrize("place", ["_remove_folder", "_end_life", "ManifestCopy", "forgotten"])
def test_a_reset_that_was_killed_is_finished_by_the_next_run(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    games = Games(tmp_path, PLAN)
    games.send_all()
    pipeline = games.pipeline()
    pipeline.run(spark=tasks)
    removals = [each for each in plan_clean(pipeline) if each.kind != "card"]
    with monkeypatch.context() as patch:
        if place == "_remove_folder":
            patch.setattr(removal_module, place, _at_the_second(removal_module._remove_folder))
        elif place == "forgotten":
            patch.setattr("distributary.observe.ledger.ledger.Ledger.forget", die)
        else:
            patch.setattr(removal_module, place, die)
        with pytest.raises(Killed):
            remove(pipeline, removals)
    for table in games.tables():
        games.rows(table)
    games.pipeline().run(spark=tasks)
    games.assert_each_record_once()
    assert not unfinished_removal(pipeline.lake, "games")
    assert not Path(layout.removed(pipeline.lake)).exists()


def _at_the_second(do: Callable[..., None]) -> Callable[..., None]:
    calls: list[object] = []

    def one(*args: object) -> None:
        calls.append(args)
        if len(calls) > 1:
            raise Killed
        do(*args)

    return one


def test_settled_does_not_go_backward(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path, PLAN)
    pipeline = games.pipeline()
    for _ in range(3):
        games.send_round()
        games.pipeline().run(spark=tasks)
    manifests = Checkpoint(pipeline.checkpoint, "").manifests()
    # a process that was paused between the check of its claim and this
    manifests.settle(0)
    assert manifests.settled() == 2
    games.send_all()
    games.pipeline().run(spark=tasks)
    games.assert_each_record_once()


@pytest.mark.parametrize("file", ["life.json", "manifests/settled", "claims"])
@pytest.mark.parametrize("gone", [False, True])
def test_what_a_power_cut_has_emptied_is_derived_again(
    tmp_path: Path, tasks: SparkSession, file: str, gone: bool
) -> None:
    games = Games(tmp_path, PLAN)
    games.send_round()
    pipeline = games.pipeline()
    pipeline.run(spark=tasks)
    folder = Path(pipeline.checkpoint.address)
    life = Checkpoint.find(at(folder), pipeline="games").life
    if file == "manifests/settled":
        # both the file of the version before, and the marks of this one
        for path in (folder / "manifests").glob("*.settled"):
            path.unlink()
        (folder / file).write_text("")
    paths = sorted((folder / file).glob("*.json")) if file == "claims" else [folder / file]
    for path in paths:
        path.unlink() if gone else path.write_text("")
    for path in (folder / "claims").glob("*.released") if file == "claims" else ():
        path.unlink()
    for path in (folder / "claims").iterdir():
        os.utime(path, (1, 1))
    games.send_all()
    games.pipeline().run(spark=tasks)
    games.assert_each_record_once()
    assert Checkpoint.find(at(folder), pipeline="games") == Checkpoint(at(folder), life)


def test_a_paused_life_that_was_ended_writes_nothing(tmp_path: Path, tasks: SparkSession) -> None:
    """What happens to a run that is stopped, reset and continued, without the processes."""
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=4))
    games.send_all()
    pipeline = games.pipeline()
    with pipeline.open(tasks) as first:
        # as if the process had stopped beating
        first.progress.claim._ended.set()
        (Path(pipeline.checkpoint.address) / "claims" / "0000000001.released").touch()
        remove(pipeline, plan_reset(pipeline))
        games.pipeline().run(spark=tasks)
        with pytest.raises(FencedError):
            first.progress.claim.check()
    games.assert_each_record_once()


def apart(games: Games) -> Pipeline:
    """The pipeline with its checkpoint outside of the lake."""
    file = games.write_file(batch=20)
    apart = f"lake: {{path: {games.lake}, checkpoint: {games.root}/progress}}"
    file.write_text(file.read_text().replace(f"lake: {{path: {games.lake}}}", apart))
    text = file.read_text().replace(f"{games.lake}/wrapper", f"{games.root}/wrapper")
    file.write_text(text)
    return Pipeline.load(file)


def games_apart(root: Path) -> Games:
    games = Games(root, PLAN, records_per_file=7)
    games.sink = DeltaSink(f"{root}/wrapper", records_per_file=7)
    return games


@pytest.mark.parametrize("gone", ["all of it", "what came later"])
@pytest.mark.parametrize("kept", [100, 1], ids=["with its manifests", "with its newest manifest"])
def test_a_lake_that_is_older_than_its_checkpoint_is_named_and_caught_up_with(
    tmp_path: Path, tasks: SparkSession, gone: str, kept: int
) -> None:
    games = games_apart(tmp_path)
    games.send_round()
    apart(games).run(spark=tasks)
    shutil.copytree(games.lake, tmp_path / "copy")
    for _ in range(2):
        games.send_round()
        apart(games).run(spark=tasks)
    newest = Checkpoint(apart(games).checkpoint, "").manifests().newest()
    Checkpoint(apart(games).checkpoint, "").manifests().prune(keep=kept)
    shutil.rmtree(games.lake)
    if gone == "what came later":
        shutil.copytree(tmp_path / "copy", games.lake)
    games.send_all()
    for _ in range(2):
        with pytest.raises(CheckpointError) as caught:
            apart(games).run(spark=tasks)
        assert caught.value.code is ErrorCode.LAKE_BEHIND
    pipeline = apart(games)
    planned, done = plan_recovery(pipeline), recover(pipeline)
    assert planned == done and done is not None and done.back_from == newest
    assert recover(pipeline) is None
    apart(games).run(spark=tasks)
    games.assert_each_record_once()
    lanes = check_lanes(pipeline.ledger(), ["games"], every_range=True)
    assert [lane.findings for lane in lanes] == [()]


def test_tables_that_kept_what_the_rest_of_the_lake_lost_do_not_get_it_twice(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = games_apart(tmp_path)
    games.send_round()
    apart(games).run(spark=tasks)
    shutil.copytree(games.lake / "_distributary", tmp_path / "copy")
    games.send_round()
    apart(games).run(spark=tasks)
    shutil.rmtree(games.lake / "_distributary")
    shutil.copytree(tmp_path / "copy", games.lake / "_distributary")
    assert recover(apart(games)) is not None
    games.send_all()
    apart(games).run(spark=tasks)
    games.assert_each_record_once()


def test_a_ledger_that_is_older_than_the_rest_of_the_lake_and_than_the_checkpoint(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = games_apart(tmp_path)
    games.send_round()
    apart(games).run(spark=tasks)
    ledger = games.lake / "_distributary" / "ledger"
    shutil.copytree(ledger, tmp_path / "ledger")
    shutil.copytree(tmp_path / "progress", tmp_path / "progress of before")
    for _ in range(2):
        games.send_round()
        apart(games).run(spark=tasks)
    for place, copy in ((ledger, "ledger"), (tmp_path / "progress", "progress of before")):
        shutil.rmtree(place)
        shutil.copytree(tmp_path / copy, place)
    with pytest.raises(CheckpointError) as caught:
        apart(games).run(spark=tasks)
    assert caught.value.code is ErrorCode.LAKE_BEHIND
    assert recover(apart(games)) is not None
    assert recover(apart(games)) is None
    # the tables have batches that nothing else knows, and which have other records now
    with pytest.raises(DivergedError):
        apart(games).run(spark=tasks)
    games.assert_each_record_once()


def test_a_lake_of_an_earlier_life_is_not_caught_up_with(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = games_apart(tmp_path)
    games.send_round()
    apart(games).run(spark=tasks)
    shutil.copytree(games.lake, tmp_path / "copy")
    pipeline = apart(games)
    remove(pipeline, [each for each in plan_clean(pipeline) if each.kind != "card"])
    apart(games).run(spark=tasks)
    shutil.rmtree(games.lake)
    shutil.copytree(tmp_path / "copy", games.lake)
    with pytest.raises(CheckpointError) as caught:
        apart(games).run(spark=tasks)
    assert caught.value.code is ErrorCode.LAKE_BEHIND
    with pytest.raises(DivergedError):
        recover(apart(games))


def test_replayed_letters_that_the_lake_lost_are_sent_again(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = games_apart(tmp_path)
    games.send_all()
    apart(games).run(spark=tasks)
    shutil.copytree(games.lake, tmp_path / "copy")

    def sent_again() -> int:
        letters = dead_letters_of(apart(games))
        with apart(games).open(tasks, lane=LANE) as context:
            return replay(context, letters, letters.select()).selected

    assert sent_again() == 8
    shutil.rmtree(games.lake)
    shutil.copytree(tmp_path / "copy", games.lake)
    with pytest.raises(CheckpointError) as caught:
        sent_again()
    assert caught.value.code is ErrorCode.LAKE_BEHIND
    assert recover(apart(games)) is not None
    assert sent_again() == 8
    games.assert_each_record_once()
    lanes = check_lanes(apart(games).ledger(), ["games"], every_range=True)
    assert [(lane.lane, lane.findings) for lane in lanes] == [(LANE, ()), ("stream", ())]
