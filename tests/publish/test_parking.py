"""Parked batches wait outside of the table, and come back in order, exactly once."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distributary.errors import ErrorCode, LakeUnavailableError, PublishError, StagedFileError
from distributary.model.manifest import Mark, TableEntry, app_id
from distributary.publish.base import CommittedMark, Outcome, Published
from distributary.publish.direct import DirectPublisher
from distributary.publish.parking import ParkedBatch, forget, park, parked, resume, unpark
from distributary.store.disk import Disk
from tests.publish.staged import batch_of, mark, numbers, read_everywhere


@pytest.fixture
def parking(tmp_path: Path) -> Path:
    return tmp_path / "parked"


def park_batches(folder: Path, parking: Path, *batches: int) -> None:
    for batch in batches:
        park(batch_of(folder, batch, numbers(batch)), mark(batch), folder=str(parking))


def outcomes(results: list[Published]) -> list[Outcome]:
    return [r.outcome for r in results]


def test_nothing_is_parked_where_there_is_no_folder(parking: Path) -> None:
    assert parked(str(parking)) == []


def test_parked_batch_says_what_it_is(folder: Path, parking: Path) -> None:
    entry = batch_of(folder, 3, pa.table({"n": pa.array([1], pa.int32()), "day": ["x"]}))
    park(entry, mark(3), folder=str(parking), reason="the table is locked")
    [batch] = parked(str(parking))
    assert batch.entry == entry
    assert batch.mark == mark(3)
    assert (batch.table, batch.lane, batch.reason) == ("chess", "stream", "the table is locked")


def test_parked_files_survive_a_vacuum(folder: Path, parking: Path) -> None:
    park_batches(folder, parking, 0)
    shutil.rmtree(folder)
    results = resume(DirectPublisher(), folder=str(parking), table="chess")
    assert outcomes(results) == [Outcome.PUBLISHED]
    assert read_everywhere(str(folder)) == [{"n": 0}]


def test_batches_come_in_order_of_their_numbers(folder: Path, parking: Path) -> None:
    park_batches(folder, parking, 9, 10, 100)
    assert [p.mark.batch for p in parked(str(parking))] == [9, 10, 100]
    assert (
        outcomes(resume(DirectPublisher(), folder=str(parking), table="chess"))
        == [Outcome.PUBLISHED] * 3
    )
    assert sorted(r["n"] for r in read_everywhere(str(folder))) == [9, 10, 100]
    assert parked(str(parking)) == []
    assert not (parking / "chess").exists()


def test_old_life_goes_before_a_new_one(folder: Path, parking: Path) -> None:
    park_batches(folder, parking, 7, 8)
    new = app_id("games", "life2")
    entry = batch_of(folder, 77, numbers(77))
    park(entry, mark(7, app=new), folder=str(parking))
    order = [(p.mark.app_id, p.mark.batch) for p in parked(str(parking))]
    old = mark(7).app_id
    assert order == [(old, 7), (old, 8), (new, 7)]


def test_tables_are_listed_together_and_alone(tmp_path: Path, parking: Path) -> None:
    for name in ("go", "chess"):
        park_batches(tmp_path / name, parking, 0, 1)
    assert [p.table for p in parked(str(parking))] == ["chess", "chess", "go", "go"]
    assert [p.table for p in parked(str(parking), table="go")] == ["go", "go"]
    assert parked(str(parking), table="bridge") == []


def test_parking_twice_is_parking_once(folder: Path, parking: Path) -> None:
    entry = batch_of(folder, 0, numbers(1))
    park(entry, mark(0), folder=str(parking), reason="first")
    (folder / entry.files[0].path).unlink()
    park(entry, mark(0), folder=str(parking), reason="second")
    assert [p.reason for p in parked(str(parking))] == ["first"]


def test_file_that_is_gone_is_not_parked(folder: Path, parking: Path) -> None:
    entry = batch_of(folder, 0, numbers(1))
    (folder / entry.files[0].path).unlink()
    with pytest.raises(StagedFileError):
        park(entry, mark(0), folder=str(parking))
    assert parked(str(parking)) == []


def test_folder_that_cannot_be_written_is_the_lakes_fault(folder: Path, parking: Path) -> None:
    parking.write_text("in the way")
    with pytest.raises(LakeUnavailableError):
        park_batches(folder, parking, 0)


def test_damaged_entry_is_named(folder: Path, parking: Path) -> None:
    park_batches(folder, parking, 0)
    [entry] = parking.rglob("entry.json")
    entry.write_text(json.dumps({"format": 1}))
    with pytest.raises(PublishError) as damaged:
        parked(str(parking))
    assert damaged.value.code is ErrorCode.CHECKPOINT_INVALID


def test_resume_stops_at_the_first_that_fails(folder: Path, parking: Path) -> None:
    park_batches(folder, parking, 0, 1, 2)
    publisher = StubbornPublisher(refuses=1)
    results = resume(publisher, folder=str(parking), table="chess")
    assert outcomes(results) == [Outcome.PUBLISHED, Outcome.PARKED]
    assert results[-1].error.startswith(ErrorCode.COMMIT_FAILED)
    assert [p.mark.batch for p in parked(str(parking))] == [1, 2]
    publisher.refuses = -1
    assert (
        outcomes(resume(publisher, folder=str(parking), table="chess")) == [Outcome.PUBLISHED] * 2
    )
    assert read_everywhere(str(folder)) == [{"n": 0}, {"n": 1}, {"n": 2}]


class StubbornPublisher(DirectPublisher):
    def __init__(self, *, refuses: int) -> None:
        super().__init__()
        self.refuses = refuses

    def publish(self, entry: Any, mark: Mark) -> Published:
        if mark.batch == self.refuses:
            raise PublishError("cannot", where="here", evidence="a reason", next_step="wait")
        return super().publish(entry, mark)


def test_commit_that_had_landed_after_all_keeps_its_files(folder: Path, parking: Path) -> None:
    publisher, entry = DirectPublisher(), batch_of(folder, 0, numbers(1))
    publisher.publish(entry, mark(0))
    park(entry, mark(0), folder=str(parking), reason="the answer was lost")
    assert read_everywhere(str(folder)) == [{"n": 1}]
    results = resume(publisher, folder=str(parking), table="chess")
    assert outcomes(results) == [Outcome.SKIPPED]
    assert read_everywhere(str(folder)) == [{"n": 1}]
    assert parked(str(parking)) == []


def test_batch_that_was_jumped_over_is_kept(folder: Path, parking: Path) -> None:
    publisher = DirectPublisher()
    park_batches(folder, parking, 0)
    publisher.publish(batch_of(folder, 1, numbers(1)), mark(1))
    results = resume(publisher, folder=str(parking), table="chess")
    assert outcomes(results) == [Outcome.PARKED]
    assert results[0].error.startswith(ErrorCode.CHECKPOINT_DIVERGED)
    assert [p.mark.batch for p in parked(str(parking))] == [0]
    assert publisher.committed(str(folder), mark(0)) == CommittedMark(1, None)


def test_result_is_told_before_the_batch_is_forgotten(folder: Path, parking: Path) -> None:
    park_batches(folder, parking, 0)
    told: list[tuple[int, Outcome, int]] = []

    def hear(batch: ParkedBatch, result: Published) -> None:
        told.append((batch.mark.batch, result.outcome, len(parked(str(parking)))))

    resume(DirectPublisher(), folder=str(parking), table="chess", on_published=hear)
    assert told == [(0, Outcome.PUBLISHED, 1)]


REPLAY = app_id("games", "life1", "replay")


class BesideAReplay(DirectPublisher):
    """While it publishes, a replay in another process parks a batch of the same table."""

    def __init__(self, parking: Path, entry: TableEntry) -> None:
        super().__init__()
        self.parking, self.entry = parking, entry

    def publish(self, entry: Any, mark: Mark) -> Published:
        park(self.entry, Mark(REPLAY, 0, "letters"), folder=str(self.parking))
        return super().publish(entry, mark)


def test_what_a_replay_parks_meanwhile_goes_on_waiting(folder: Path, parking: Path) -> None:
    park_batches(folder, parking, 0)
    publisher = BesideAReplay(parking, batch_of(folder, 7, numbers(7)))
    assert outcomes(resume(publisher, folder=str(parking), table="chess")) == [Outcome.PUBLISHED]
    assert [(p.lane, p.mark.batch) for p in parked(str(parking))] == [("replay", 0)]
    resume(DirectPublisher(), folder=str(parking), table="chess")
    assert read_everywhere(str(folder)) == [{"n": 0}, {"n": 7}]
    assert not (parking / "chess").exists()


def test_what_a_replay_has_only_begun_to_park_is_not_swept_away(
    folder: Path, parking: Path
) -> None:
    park_batches(folder, parking, 0, 1)
    left = [parking / "chess" / f"{lane}-{9:020d}-abc" for lane in ("stream", "replay")]
    for place in left:
        place.mkdir()
        (place / "copy.parquet").write_bytes(b"half")
    resume(DirectPublisher(), folder=str(parking), table="chess")
    assert [place.exists() for place in left] == [False, True]


class Killed(BaseException):
    """The process is gone: nothing that would tidy up gets to run."""


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None], None]]:
    """Kill at the n-th moment: before and after each step that changes files, and amid copies."""
    left: list[int | None] = [None]

    def moment() -> None:
        if left[0] is not None:
            left[0] -= 1
            if left[0] < 0:
                left[0] = None
                raise Killed

    def surround(name: str) -> None:
        real = getattr(Disk, name)

        def step(self: Disk, *args: Any, **options: Any) -> Any:
            moment()
            result = real(self, *args, **options)
            moment()
            return result

        monkeypatch.setattr(Disk, name, step)

    def half(self: Disk, name: str, *, to: Disk) -> None:
        draft = to._ready_path(name, durable=True).with_suffix(".draft")
        draft.write_bytes(self.read(name)[:10])
        moment()
        real_copy(self, name, to=to)

    real_copy = Disk.copy
    monkeypatch.setattr(Disk, "copy", half)
    for name in ("copy", "write", "remove", "remove_folder"):
        surround(name)

    def arm(moments: int | None) -> None:
        left[0] = moments

    yield arm


def two_files(folder: Path) -> TableEntry:
    entry, other = batch_of(folder, 0, numbers(1)), batch_of(folder, 5, numbers(2))
    return replace(entry, files=(*entry.files, *other.files))


def test_parking_survives_a_kill_at_any_moment(
    tmp_path: Path, kill_at: Callable[[int | None], None]
) -> None:
    for moments in itertools.count():
        folder, parking = tmp_path / str(moments) / "chess", str(tmp_path / str(moments) / "parked")
        entry = two_files(folder)
        kill_at(moments)
        killed = False
        try:
            park(entry, mark(0), folder=parking)
        except Killed:
            killed = True
            # the batch is replayed, and cannot be committed again
            park(entry, mark(0), folder=parking)
        kill_at(None)
        resume(DirectPublisher(), folder=parking, table="chess")
        assert read_everywhere(str(folder)) == [{"n": 1}, {"n": 2}]
        assert not Path(parking, "chess").exists()
        if not killed:
            break
    assert moments == 8


def test_table_that_recovered_before_the_replay_needs_no_parking(
    folder: Path, parking: Path, kill_at: Callable[[int | None], None]
) -> None:
    entry = two_files(folder)
    kill_at(4)
    with pytest.raises(Killed):
        park(entry, mark(0), folder=str(parking))
    assert parked(str(parking)) == []
    assert DirectPublisher().publish(entry, mark(0)).outcome is Outcome.PUBLISHED
    assert resume(DirectPublisher(), folder=str(parking), table="chess") == []
    assert read_everywhere(str(folder)) == [{"n": 1}, {"n": 2}]
    assert not (parking / "chess").exists()


def test_resume_survives_a_kill_at_any_moment(
    tmp_path: Path, kill_at: Callable[[int | None], None]
) -> None:
    for moments in itertools.count():
        folder, parking = tmp_path / str(moments) / "chess", tmp_path / str(moments) / "parked"
        park_batches(folder, parking, 0, 1)
        shutil.rmtree(folder)
        kill_at(moments)
        killed = False
        try:
            resume(DirectPublisher(), folder=str(parking), table="chess")
        except Killed:
            killed = True
        kill_at(None)
        resume(DirectPublisher(), folder=str(parking), table="chess")
        assert read_everywhere(str(folder)) == [{"n": 0}, {"n": 1}]
        assert not (parking / "chess").exists()
        if not killed:
            break
    assert moments == 14


def test_unpark_and_forget_are_the_two_halves_of_resume(folder: Path, parking: Path) -> None:
    park_batches(folder, parking, 0)
    shutil.rmtree(folder)
    [batch] = parked(str(parking))
    unpark(batch)
    assert DirectPublisher().publish(batch.entry, batch.mark).outcome is Outcome.PUBLISHED
    forget(batch)
    forget(batch)
    assert parked(str(parking)) == []
