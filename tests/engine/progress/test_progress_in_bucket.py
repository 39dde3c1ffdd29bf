"""A checkpoint in a bucket: claims with a lease, manifests that are decided once, few requests."""

from __future__ import annotations

import json
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from distributary.engine.progress.checkpoint import Checkpoint, Manifests
from distributary.engine.progress.claim import Claim, Owner, claim_name, state_of
from distributary.errors import FencedError, LakeUnavailableError, OwnedError
from distributary.store import base
from distributary.store.base import REQUESTS, Store, at, introduce
from tests.engine.progress.test_checkpoint import manifest
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture
def place(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(base, "_OPTIONS", {})
    introduce(f"s3://{BUCKET}", server.options)
    return at(f"s3://{BUCKET}/{unique('checkpoint')}")


def test_a_claim_is_taken_kept_and_given_back(place: Store) -> None:
    claim = Claim.take(place, lease=5)
    assert state_of(place) == "running"
    with pytest.raises(OwnedError):
        Claim.take(place, lease=5)
    claim.check()
    claim.release()
    assert state_of(place) == "stopped"
    again = Claim.take(place, lease=5)
    assert again.epoch == 2
    again.release()


def test_before_a_commit_the_clock_is_asked_and_not_the_bucket(place: Store) -> None:
    claim = Claim.take(place, lease=600)
    time.sleep(0.5)
    REQUESTS.clear()
    for _ in range(1000):
        claim.check()
    assert REQUESTS.total() <= 1
    claim.release()


def test_a_paused_owner_is_fenced_at_its_first_beat(
    place: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = Claim.take(place, lease=1)
    paused._ended.set()
    paused._heart.join()
    monkeypatch.setattr(Owner, "is_here", False)
    time.sleep(1.5)
    taken = Claim.take(place, lease=1)
    assert taken.epoch == 2
    with pytest.raises(FencedError):
        paused.check()
    # even one that trusts a wrong clock decides nothing that was decided
    paused._beaten = time.monotonic() + 99
    paused.check()
    Checkpoint.begin(place, pipeline="games").manifests().create(manifest(0, epoch=2))
    with pytest.raises(FencedError):
        Manifests(place.below("manifests")).create(manifest(0, epoch=1))
    taken.release()


def test_a_claim_that_is_lost_asks_the_bucket_no_more(place: Store) -> None:
    claim = Claim.take(place, lease=1)
    other = replace(claim.owner, nonce="another", epoch=claim.epoch)
    place.write(claim_name(claim.epoch), json.dumps(asdict(other)).encode())
    claim._heart.join(timeout=30)
    assert not claim._heart.is_alive()
    with pytest.raises(FencedError):
        claim._beaten -= 99
        claim.check()


def test_an_owner_that_beats_is_not_taken_for_dead_because_of_a_clock(
    place: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = Claim.take(place, lease=2)
    monkeypatch.setattr(Owner, "is_here", False)
    real = time.time
    monkeypatch.setattr("distributary.engine.progress.claim.time.time", lambda: real() + 3600)
    with pytest.raises(OwnedError):
        for _ in range(20):
            Claim.take(place, lease=2)
    monkeypatch.setattr("distributary.engine.progress.claim.time.time", real)
    claim.check()
    claim.release()


def test_a_store_that_is_away_is_told(place: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Claim.take(place, lease=600)
    claim._ended.set()
    claim._heart.join()
    claim._beaten -= 500
    monkeypatch.setattr(type(place), "swap", _silent)
    with pytest.raises(LakeUnavailableError):
        claim.check()
    # nobody else can have it without fencing this one first, however long that takes
    claim._beaten -= 500
    with pytest.raises(LakeUnavailableError):
        claim.check()


def _silent(*args: object, **kwargs: object) -> None:
    raise OSError("no answer")


def test_a_batch_is_decided_once_in_few_requests(place: Store) -> None:
    manifests = Checkpoint.begin(place, pipeline="games").manifests(owned=True)
    assert (manifests.newest(), manifests.settled()) == (-1, -1)
    REQUESTS.clear()
    for batch in range(9):
        assert manifests.read(batch) is None
        manifests.create(manifest(batch))
        assert manifests.read(batch) == manifest(batch)
        manifests.settle(batch)
        manifests.prune(keep=2)
    # one to decide, one to settle; old ones go now and then
    assert REQUESTS.total() <= 2 * 9 + 5
    other = Manifests(place.below("manifests"))
    assert other.read(8) == manifest(8)
    assert (other.newest(), other.settled()) == (8, 8)
    with pytest.raises(FencedError):
        other.create(manifest(8, epoch=7))


def test_a_checkpoint_that_was_copied_from_a_disk_goes_on(place: Store) -> None:
    text = manifest(3).to_json().encode()
    place.below("manifests").write(f"{3:020d}.json", text)
    assert Manifests(place.below("manifests")).read(3) == manifest(3)
    found = Checkpoint.find(place, pipeline="games")
    assert found is not None and found.life == manifest(3).life


def test_claims_of_long_ago_are_forgotten(place: Store) -> None:
    for _ in range(6):
        Claim.take(place, lease=600).release()
    names = sorted(file.name for file in place.files("claims"))
    assert names == [claim_name(epoch) for epoch in (3, 4, 5, 6)]


def test_records_on_their_way_lie_in_a_folder_of_their_owner_and_leave_nothing(
    place: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    checkpoint = Checkpoint.begin(place, pipeline="games")
    folder = checkpoint.open_runs("stream")
    assert folder.is_relative_to(tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    sorted_now = folder / "attempt"
    sorted_now.mkdir()
    # somebody still reads them
    checkpoint.close_runs("stream")
    assert sorted_now.is_dir()
    sorted_now.rmdir()
    checkpoint.close_runs("stream")
    assert list(tmp_path.iterdir()) == []
