"""Backups of a lake that is being written to, and lakes that are put back from them."""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary.engine.pipeline import Pipeline
from distributary.errors import CheckpointError, DistributaryError, ErrorCode
from distributary.observe.cards import RESTORE, registrations
from distributary.operations.backup import find, state, table_versions
from distributary.operations.backup import restore as restore_module
from distributary.operations.backup import take as take_module
from distributary.operations.backup.points import point_ids
from distributary.operations.backup.restore import choose_point
from distributary.operations.backup.take import Taken
from distributary.store import base
from distributary.store.base import at, introduce
from tests.lakes.backups import (
    STEPS,
    Live,
    Turns,
    assert_all_exact,
    assert_exact,
    back_up,
    finish,
    pausing,
    put_back,
)
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, S3Server, s3_server


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What is done before each read of a backup; reads come one after the other."""
    before: list[Callable[[], None]] = []

    def stepping(work: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **kwargs: object) -> object:
            for act in before:
                act()
            return work(*args, **kwargs)

        return step

    for module, name in STEPS:
        monkeypatch.setattr(module, name, stepping(getattr(module, name)))
    for module in (find, table_versions, take_module):
        monkeypatch.setattr(module, "each", lambda work, items, **_: [work(i) for i in items])
    monkeypatch.setattr(state, "_PAUSE", 0.0)
    monkeypatch.setattr(state, "_JITTER", 0.0)
    return before


def backups_between_steps(
    lives: Sequence[Live],
    to: Path,
    seed: int,
    steps: list[Callable[[], None]],
    patch: pytest.MonkeyPatch,
    often: float | None = None,
) -> list[Taken]:
    """Take three backups, with some steps of the pipelines between those of each backup."""
    dice = random.Random(seed)
    turns: list[Turns] = []
    pausing(patch, turns)
    for number, live in enumerate(lives):
        own = random.Random(seed * 100 + number)
        turns.append(Turns(partial(live.work, own)))
        live.pause = turns[-1].pause
    for _ in range(dice.randint(30, 90) * len(lives)):
        dice.choice(turns).step()
    more = often or dice.choice([0.02, 0.1, 0.3])

    def act() -> None:
        while dice.random() < more:
            dice.choice(turns).step()

    steps.append(act)
    taken = []
    for _ in range(3):
        taken.append(back_up(lives[0], to))
        for _ in range(dice.randint(0, 12)):
            dice.choice(turns).step()
    steps.clear()
    return taken


def seeds(usual: int, *, of: int) -> list[object]:
    """The first seeds, and others for `make test-slow`: each takes seconds."""
    more = range(usual, of)
    return [*range(usual), *(pytest.param(n, marks=pytest.mark.slow) for n in more)]


def assert_restored_exactly(
    lives: Sequence[Live], backup: Path, taken: list[Taken], root: Path
) -> None:
    for number, one in enumerate(taken):
        lake = root / f"restored{number}" / "lake"
        put_back(backup, lake, one.point.id)
        assert_all_exact([(live, finish(live, lake)) for live in lives], lake)


@pytest.mark.parametrize("seed", seeds(2, of=5))
def test_whatever_is_written_between_the_steps_of_a_backup_the_state_is_consistent(
    tmp_path: Path,
    seed: int,
    steps: list[Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = Live(tmp_path / "a")
    taken = backups_between_steps([live], tmp_path / "backup", seed, steps, monkeypatch)
    assert_restored_exactly([live], tmp_path / "backup", taken, tmp_path)


@pytest.mark.parametrize("seed", seeds(1, of=4))
def test_pipelines_that_share_tables_are_backed_up_as_of_one_moment(
    tmp_path: Path,
    seed: int,
    steps: list[Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = [Live(tmp_path / "a"), Live(tmp_path / "a", name="twin", life="life2", offset=10_000)]
    taken = backups_between_steps(lives, tmp_path / "backup", seed, steps, monkeypatch)
    assert_restored_exactly(lives, tmp_path / "backup", taken, tmp_path)


@pytest.mark.parametrize("seed", seeds(1, of=3))
def test_batches_alone_never_make_a_backup_try_again(
    tmp_path: Path,
    seed: int,
    steps: list[Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = Live(tmp_path / "a", trouble=False)
    taken = backups_between_steps([live], tmp_path / "backup", seed, steps, monkeypatch, often=0.7)
    assert [one.retries for one in taken] == [0, 0, 0]
    assert_restored_exactly([live], tmp_path / "backup", taken, tmp_path)


@pytest.fixture
def live(tmp_path: Path) -> Live:
    """A lake of three batches, with a letter, whose pipeline does not run."""
    lake = Live(tmp_path / "a")
    lake.batch({"chess": 3, "go": 2}, letters=1)
    lake.batch({"chess": 1})
    lake.batch({"go": 4})
    return lake


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_a_second_backup_copies_what_is_new(live: Live, tmp_path: Path) -> None:
    first = back_up(live, tmp_path / "backup").point
    assert first.totals["copied_files"] == first.totals["files"]
    same = back_up(live, tmp_path / "backup").point
    assert (same.totals["files"], same.totals["copied_files"]) == (first.totals["files"], 0)
    live.batch({"chess": 2})
    before = contents(tmp_path / "backup")
    more = back_up(live, tmp_path / "backup").point
    # a file and a commit each: chess, bronze, and two tables of the ledger
    assert more.totals["copied_files"] == 8
    after = contents(tmp_path / "backup")
    assert before.items() <= after.items()
    for point in (first, more):
        lake = tmp_path / point.id / "lake"
        put_back(tmp_path / "backup", lake, point.id)
        assert_exact(live, lake, finish(live, lake))


def test_a_dry_run_writes_nothing_and_counts_the_same(live: Live, tmp_path: Path) -> None:
    would = take_module.take_backup(str(live.lake), str(tmp_path / "backup"), {}, dry_run=True)
    assert not (tmp_path / "backup").exists()
    done = back_up(live, tmp_path / "backup")
    assert would.point.totals == done.point.totals
    point = choose_point(str(tmp_path / "backup"))
    lake = str(tmp_path / "b" / "lake")
    told = restore_module.restore(str(tmp_path / "backup"), point, lake, {}, dry_run=True)
    assert not Path(lake).exists()
    assert put_back(tmp_path / "backup", lake).copied_files == told.copied_files


class Killed(BaseException):
    """As good as SIGKILL: nothing of the product catches it."""


def killed_after(patch: pytest.MonkeyPatch, module: object, name: str, calls: int) -> None:
    """Let a function of a module work some times, and then die."""
    work, left = getattr(module, name), [calls]

    def do(*args: object, **kwargs: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return work(*args, **kwargs)

    patch.setattr(module, name, do)


@pytest.mark.parametrize("calls", [0, 2, 5])
def test_a_backup_that_was_killed_is_none_and_the_next_goes_on(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_after(patch, take_module, "copy_files", calls)
        back_up(live, tmp_path / "backup")
    with pytest.raises(DistributaryError) as refused:
        choose_point(str(tmp_path / "backup"))
    assert refused.value.code is ErrorCode.BACKUP_INVALID
    point = back_up(live, tmp_path / "backup").point
    assert (point.totals["copied_files"] < point.totals["files"]) == (calls > 0)
    assert_exact(live, tmp_path / "b", _finished(live, tmp_path / "backup", tmp_path / "b"))


def _finished(live: Live, backup: Path, lake: Path) -> dict[str, int]:
    put_back(backup, lake)
    return finish(live, lake)


@pytest.mark.parametrize("calls", [0, 1, 4, 7])
def test_a_restore_that_was_killed_is_noticed_and_the_next_goes_on(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    point = back_up(live, tmp_path / "backup").point
    lake = tmp_path / "b"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        if calls == 7:
            killed_after(patch, restore_module._Restoring, "_documents", 0)
        else:
            killed_after(patch, restore_module, "copy_files", calls)
        put_back(tmp_path / "backup", lake)
    file = tmp_path / "b.yaml"
    file.write_text(live.file.read_text().replace(str(live.lake), str(lake)))
    with pytest.raises(CheckpointError) as refused:
        Pipeline.load(file).ready()
    assert refused.value.code is ErrorCode.RESTORE_UNFINISHED
    live.batch({"go": 1})
    newer = back_up(live, tmp_path / "backup").point
    with pytest.raises(DistributaryError) as other:
        put_back(tmp_path / "backup", lake, newer.id)
    assert other.value.code is ErrorCode.RESTORE_REFUSED
    done = put_back(tmp_path / "backup", lake, point.id)
    assert done.continued and (done.copied_files < done.files) == (calls > 0)
    assert not (lake / "_distributary" / RESTORE).exists()
    Pipeline.load(file).ready()
    assert_exact(live, lake, finish(live, lake))


def test_nothing_is_put_back_over_something(live: Live, tmp_path: Path) -> None:
    back_up(live, tmp_path / "backup")
    before = contents(live.lake)
    for place in (live.lake, tmp_path / "b"):
        (tmp_path / "b" / "silver_chess").mkdir(parents=True, exist_ok=True)
        with pytest.raises(DistributaryError) as refused:
            put_back(tmp_path / "backup", place)
        assert refused.value.code is ErrorCode.RESTORE_REFUSED
    assert contents(live.lake) == before
    assert contents(tmp_path / "b") == {}


def test_a_backup_inside_of_the_lake_is_refused(live: Live) -> None:
    with pytest.raises(DistributaryError) as refused:
        back_up(live, live.lake / "backup")
    assert refused.value.code is ErrorCode.BACKUP_REFUSED


def test_a_table_that_was_made_again_does_not_spoil_older_restore_points(
    live: Live, tmp_path: Path
) -> None:
    first = back_up(live, tmp_path / "backup").point
    # the lake of the first restore point goes another way than the one it was taken of
    live.batch({"chess": 2})
    back_up(live, tmp_path / "backup")
    shutil.rmtree(live.lake)
    put_back(tmp_path / "backup", live.lake, first.id)
    live.batches, live.offset = 3, 10
    live.batch({"chess": 5})
    other = back_up(live, tmp_path / "backup").point
    stored = {table.state.folder: table.stored for table in other.tables}
    assert stored["silver_chess"] == "lake/silver_chess~2"
    counts = {}
    for id in point_ids(at(tmp_path / "backup")):
        put_back(tmp_path / "backup", tmp_path / id, id)
        rows = DeltaTable(str(tmp_path / id / "silver_chess")).to_pyarrow_table()
        counts[id] = rows.num_rows
    assert list(counts.values()) == [4, 6, 9]


def test_a_damaged_restore_point_is_refused(live: Live, tmp_path: Path) -> None:
    point = back_up(live, tmp_path / "backup").point
    documents = tmp_path / "backup" / "points" / f"{point.id}.tar.gz"
    data = documents.read_bytes()
    documents.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DistributaryError) as refused:
        put_back(tmp_path / "backup", tmp_path / "b")
    assert refused.value.code is ErrorCode.BACKUP_INVALID
    documents.write_bytes(data)
    name = tmp_path / "backup" / "points" / f"{point.id}.json"
    told = json.loads(name.read_text())
    told["tables"][0]["state"]["folder"] = "../../elsewhere"
    name.write_text(json.dumps(told))
    with pytest.raises(DistributaryError) as refused:
        put_back(tmp_path / "backup", tmp_path / "b")
    assert refused.value.code is ErrorCode.BACKUP_INVALID


def test_a_file_that_the_backup_lost_is_named(live: Live, tmp_path: Path) -> None:
    back_up(live, tmp_path / "backup")
    lost = next((tmp_path / "backup" / "lake" / "silver_go").glob("*.parquet"))
    lost.unlink()
    with pytest.raises(DistributaryError) as refused:
        put_back(tmp_path / "backup", tmp_path / "b")
    assert refused.value.code is ErrorCode.BACKUP_INVALID and lost.name in refused.value.evidence


def test_plain_parquet_tables_are_backed_up_while_nobody_writes(tmp_path: Path) -> None:
    live = Live(tmp_path / "a", format="parquet")
    live.batch({"chess": 3}, letters=1)
    back_up(live, tmp_path / "backup")
    put_back(tmp_path / "backup", tmp_path / "b")
    mine, theirs = contents(live.lake / "silver_chess"), contents(tmp_path / "b" / "silver_chess")
    assert theirs == {name: data for name, data in mine.items() if not name.endswith("lock")}
    claim = find.living_owner
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(find, "living_owner", lambda store: object())
        with pytest.raises(DistributaryError) as refused:
            back_up(live, tmp_path / "backup")
    assert claim is find.living_owner
    assert refused.value.code is ErrorCode.BACKUP_REFUSED


def test_a_checkpoint_elsewhere_is_read_only_where_a_file_names_it(
    tmp_path: Path, live: Live
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(live.checkpoint, elsewhere)
    (card,) = registrations(str(live.lake))
    text = (live.lake / "_distributary" / "pipelines" / "games" / "pipeline.json").read_text()
    card_file = live.lake / "_distributary" / "pipelines" / "games" / "pipeline.json"
    card_file.write_text(text.replace(card.checkpoint, str(elsewhere)))
    with pytest.raises(DistributaryError) as refused:
        back_up(live, tmp_path / "backup")
    assert refused.value.code is ErrorCode.FILE_NOT_TRUSTED
    named = {"games": str(elsewhere)}
    take_module.take_backup(str(live.lake), str(tmp_path / "backup"), named)
    point = choose_point(str(tmp_path / "backup"))
    with pytest.raises(DistributaryError) as unnamed:
        put_back(tmp_path / "backup", tmp_path / "b")
    assert unnamed.value.code is ErrorCode.RESTORE_REFUSED
    named = {"games": str(tmp_path / "there")}
    restore_module.restore(str(tmp_path / "backup"), point, str(tmp_path / "b"), named)
    assert (tmp_path / "there" / "life.json").is_file()
    (card,) = registrations(str(tmp_path / "b"))
    assert card.checkpoint == str(tmp_path / "there")


def test_a_lake_without_its_checkpoint_is_refused(live: Live, tmp_path: Path) -> None:
    shutil.rmtree(live.checkpoint)
    with pytest.raises(DistributaryError) as refused:
        back_up(live, tmp_path / "backup")
    assert refused.value.code is ErrorCode.CHECKPOINT_LOST


def test_a_link_in_the_lake_is_not_followed(live: Live, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("canary")
    (live.lake / "_distributary" / "names").mkdir(exist_ok=True)
    (live.lake / "_distributary" / "names" / "x.json").symlink_to(secret)
    with pytest.raises(DistributaryError) as refused:
        back_up(live, tmp_path / "backup")
    assert refused.value.code is ErrorCode.OUTSIDE_LAKE


ORDERS = {
    "progress, own, tables": ["_checkpoints", "_distributary", "bronze_events", "silver_*"],
    "progress and own, tables": ["_[cd]*", "bronze_events", "silver_*"],
    "own, some tables, progress and tables": ["_distributary", "bronze_events", "[_s][ci]*"],
    "tables, own, progress": ["silver_*", "bronze_events", "_distributary", "_checkpoints"],
    "own, tables, progress": ["_distributary", "silver_*", "bronze_events", "_checkpoints"],
    "progress, tables, own": ["_checkpoints", "silver_*", "bronze_events", "_distributary"],
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_copy_of_files_of_a_running_pipeline_is_made_consistent(
    tmp_path: Path, live: Live, order: str
) -> None:
    copy = tmp_path / "copy" / "lake"
    for part in ORDERS[order]:
        for folder in live.lake.glob(part):
            shutil.copytree(folder, copy / folder.name)
        live.batch({"chess": 2, "go": 1})
    if not (copy / "dead_letters").exists():
        shutil.copytree(live.lake / "dead_letters", copy / "dead_letters")
    card = copy / "_distributary" / "pipelines" / "games" / "pipeline.json"
    card.write_text(card.read_text().replace(str(live.lake), str(copy)))
    point = take_module.take_backup(str(copy), str(tmp_path / "backup"), {}).point
    assert point.pipelines[0].settled["stream"] >= 2
    put_back(tmp_path / "backup", tmp_path / "b")
    newest = finish(live, tmp_path / "b")
    assert_exact(live, tmp_path / "b", newest)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


def test_a_bucket_is_a_place_for_a_backup_and_for_a_lake(
    live: Live, tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_OPTIONS", {})
    introduce(f"s3://{BUCKET}", server.options)
    live.batch({"go": 2}, parked=["silver_go"])
    bucket, lake = f"s3://{BUCKET}/{unique('backup')}", f"s3://{BUCKET}/{unique('lake')}"
    first = back_up(live, bucket).point
    assert back_up(live, bucket).point.totals["copied_files"] == 0
    put_back(bucket, tmp_path / "b", first.id)
    assert_exact(live, tmp_path / "b", finish(live, tmp_path / "b"))
    # to a lake in a bucket, whose batches wait in the checkpoint, and from there to a disk
    put_back(bucket, lake)
    assert at(f"{lake}/_checkpoints/games/parked/silver_go").folders()
    again = take_module.take_backup(lake, str(tmp_path / "backup"), {}).point
    assert {t.state.folder: t.state.version for t in again.tables} == {
        t.state.folder: t.state.version for t in first.tables
    }
    put_back(tmp_path / "backup", tmp_path / "c")
    assert_exact(live, tmp_path / "c", finish(live, tmp_path / "c"))
