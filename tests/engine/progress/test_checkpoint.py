import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.engine.progress.checkpoint import Checkpoint, Manifests
from distributary.errors import CheckpointError, FencedError, LakeUnavailableError
from distributary.model.manifest import Counts, Manifest, SourceRange
from distributary.store.base import at
from distributary.store.disk import Disk


def manifest(batch: int, **changes: object) -> Manifest:
    settings: dict[str, object] = {
        "pipeline": "games",
        "life": "abc",
        "batch": batch,
        "epoch": 1,
        "ranges": (SourceRange("t", 0, batch * 10, batch * 10 + 10, 10),),
        "tables": (),
        "counts": Counts(read=10, written=10),
        "dead_letters": {},
        "schemas": (),
        "created_at": "2026-01-01T00:00:00+00:00",
    }
    return Manifest(**(settings | changes))  # type: ignore[arg-type]


def test_a_checkpoint_keeps_its_life_and_a_new_folder_is_a_new_life(tmp_path: Path) -> None:
    assert Checkpoint.find(at(tmp_path / "a"), pipeline="games") is None
    one = Checkpoint.begin(at(tmp_path / "a"), pipeline="games")
    assert Checkpoint.find(at(tmp_path / "a"), pipeline="games") == one
    assert Checkpoint.begin(at(tmp_path / "b"), pipeline="games").life != one.life


def test_another_pipeline_cannot_use_it(tmp_path: Path) -> None:
    Checkpoint.begin(at(tmp_path), pipeline="games")
    with pytest.raises(CheckpointError):
        Checkpoint.find(at(tmp_path), pipeline="orders")


@pytest.mark.parametrize("left", [None, "", "{", '{"life": "abc"}', "[]"])
def test_a_life_that_cannot_be_read_is_that_of_its_batches(
    tmp_path: Path, left: str | None
) -> None:
    Manifests(at(tmp_path / "manifests")).create(manifest(3))
    if left is not None:
        (tmp_path / "life.json").write_text(left)
    assert Checkpoint.find(at(tmp_path), pipeline="games") == Checkpoint(at(tmp_path), "abc")
    (tmp_path / "manifests" / f"{3:020d}.json").unlink()
    assert Checkpoint.find(at(tmp_path), pipeline="games") == Checkpoint(at(tmp_path), "abc")


def test_a_first_position_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    one = Checkpoint.begin(at(tmp_path), pipeline="games")
    (tmp_path / "first.json").write_text("")
    with pytest.raises(CheckpointError):
        one.first_position(dict)


def silence(patch: pytest.MonkeyPatch, *, lands: bool, reads: bool = True) -> None:
    """A store that does what it is asked for, or not, and does not answer."""
    create = Disk.create

    def silent(store: Disk, name: str, data: bytes, **options: Any) -> None:
        if lands:
            create(store, name, data, **options)
        raise OSError(errno.ETIMEDOUT, "no answer")

    def unread(store: Disk, name: str) -> None:
        raise OSError(errno.ETIMEDOUT, "no answer")

    patch.setattr(Disk, "create", silent)
    if not reads:
        patch.setattr(Disk, "read", unread)


def test_a_manifest_whose_answer_was_lost_is_decided_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = Manifests(at(tmp_path), owned=True)
    assert manifests.newest() == -1
    with monkeypatch.context() as patch:
        silence(patch, lands=True)
        manifests.create(manifest(0))
        assert manifests.newest() == 0
        # by somebody else
        with pytest.raises(FencedError):
            manifests.create(manifest(0, epoch=2))
    with monkeypatch.context() as patch:
        silence(patch, lands=False)
        with pytest.raises(LakeUnavailableError):
            manifests.create(manifest(1))
    assert not manifests.in_doubt and manifests.read(1) is None
    with monkeypatch.context() as patch:
        silence(patch, lands=True, reads=False)
        with pytest.raises(LakeUnavailableError):
            manifests.create(manifest(1))
    # nobody knows: whoever goes on has to look
    assert manifests.in_doubt
    assert manifests.newest() == 1
    assert manifests.read(1) == manifest(1)
    manifests.create(manifest(2))
    assert not manifests.in_doubt


def test_settled_only_goes_forward(tmp_path: Path) -> None:
    manifests = Manifests(at(tmp_path))
    (tmp_path / "settled").write_text("4")
    assert manifests.settled() == 4
    manifests.settle(7)
    manifests.settle(5)
    assert manifests.settled() == 7
    manifests.prune(keep=1)
    assert [p.name for p in tmp_path.glob("*.settled")] == [f"{7:020d}.settled"]
    (tmp_path / "settled").write_text("")
    assert manifests.settled() == 7


def test_a_batch_is_decided_once(tmp_path: Path) -> None:
    manifests = Manifests(at(tmp_path))
    assert manifests.read(0) is None
    manifests.create(manifest(0))
    assert manifests.read(0) == manifest(0)
    with pytest.raises(FencedError):
        manifests.create(manifest(0, epoch=2))
    assert manifests.read(0) == manifest(0)


def test_a_broken_manifest_is_named_and_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}.json").write_text('{"format": 1, "pipe')
    with pytest.raises(CheckpointError):
        Manifests(at(tmp_path)).read(0)


def test_only_settled_batches_are_pruned(tmp_path: Path) -> None:
    manifests = Manifests(at(tmp_path))
    for batch in range(5):
        manifests.create(manifest(batch))
    manifests.prune(keep=1)
    assert manifests.numbers() == [0, 1, 2, 3, 4]
    manifests.settle(3)
    manifests.prune(keep=2)
    assert manifests.numbers() == [2, 3, 4]
    assert (manifests.newest(), manifests.settled()) == (4, 3)


def test_a_batch_is_decided_anew_in_one_step_and_what_it_was_is_kept(tmp_path: Path) -> None:
    manifests = Manifests(at(tmp_path))
    manifests.create(manifest(0))
    for epoch in (2, 3):
        manifests.replace(manifest(0, epoch=epoch))
        found = manifests.read(0)
        assert found is not None and found.epoch == epoch
    assert manifests.numbers() == [0]
    assert len(list(tmp_path.glob("*.broken-*"))) == 2


names = st.text(max_size=20)


@given(
    topic=names,
    start=st.integers(0, 2**40),
    size=st.integers(0, 2**20),
    codes=st.dictionaries(names, st.integers(0, 100), max_size=3),
)
def test_a_manifest_survives_its_file(
    topic: str, start: int, size: int, codes: dict[str, int]
) -> None:
    ranges = (SourceRange(topic, 0, start, start + size, size),)
    one = manifest(7, ranges=ranges, dead_letters=codes)
    assert Manifest.from_json(one.to_json()) == one
    assert Manifest.from_json(one.to_json()).source_hash == one.source_hash
