"""A flipped bit in any document that decides something is noticed, wherever it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.checkpoint import Checkpoint, ManifestCopy, Manifests
from distributary.engine.progress.claim import Claim, current_owner
from distributary.engine.progress.removal import _read
from distributary.engine.shards.progress import StreamCuts
from distributary.errors import CheckpointError, DistributaryError, ErrorCode
from distributary.observe.cards import REMOVAL
from distributary.publish.parking import parked
from distributary.source.files.file_list import FileList, FoundFile
from distributary.store.base import at
from distributary.store.disk import Disk
from distributary.store.seal import seal, unseal
from distributary_lab.simulate.game_records import GamesPlan
from tests.engine.progress.test_checkpoint import manifest
from tests.lakes.games import Games
from tests.lakes.settled import SettledLake


class Dear(Disk):
    """A folder that is written as a bucket is."""

    asks_for_free = False


Read = Callable[[], Any]


def a_manifest(root: Path) -> tuple[Path, Read]:
    Manifests(at(root)).create(manifest(3))
    return root / f"{3:020d}.json", lambda: Manifests(at(root)).read(3)


def a_packed_manifest(root: Path) -> tuple[Path, Read]:
    Manifests(Dear(str(root))).create(manifest(3))
    return root / f"{3:020d}.json.zst", lambda: Manifests(Dear(str(root))).read(3)


def a_copy(root: Path) -> tuple[Path, Read]:
    copy = ManifestCopy(str(root), "games")
    copy.write(manifest(3).to_json().encode())
    return next(root.rglob("decided-stream.json")), copy.read


def a_life(root: Path) -> tuple[Path, Read]:
    Checkpoint.begin(at(root), pipeline="games", life="abc")
    Manifests(at(root / "manifests")).create(manifest(3))
    return root / "life.json", lambda: Checkpoint.find(at(root), pipeline="games")


def a_first_position(root: Path) -> tuple[Path, Read]:
    one = Checkpoint(at(root), "abc")
    one.first_position(lambda: {"offsets": {"games": {"0": 4711}}})
    return root / "first.json", one.known_first_position


def a_parked_batch(root: Path) -> tuple[Path, Read]:
    lake = SettledLake(root)
    lake.batch({"chess": 2}, parked=["silver_chess"])
    return next(root.rglob("entry.json")), lambda: parked(lake.parking)


def a_cut(root: Path) -> tuple[Path, Read]:
    StreamCuts(at(root)).divide(2, lambda: 16)
    return root / "000000.at.json", lambda: StreamCuts(at(root)).read()


def a_removal(root: Path) -> tuple[Path, Read]:
    text = f'[{{"kind": "table", "path": "{root}/x", "table": "x", "rows": 5}}]'
    at(root).write(REMOVAL, seal(text.encode()))
    return root / REMOVAL, lambda: [asdict(each) for each in _read(at(root))]


def a_list_of_files(root: Path) -> tuple[Path, Read]:
    FileList(root).append([FoundFile(f"a/{n}.json", 10 + n, 99 * n) for n in range(3)])
    return root / f"{0:020d}.jsonl", lambda: FileList(root).files(0, 3)


DOCUMENTS = [
    a_manifest,
    a_packed_manifest,
    a_copy,
    a_life,
    a_first_position,
    a_parked_batch,
    a_cut,
    a_removal,
    a_list_of_files,
]


def flipped(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def bits(data: bytes) -> list[int]:
    """All bits of the seal, and some hundred of the content."""
    end = max(0, 8 * (len(data) - 75))
    return [*range(0, end, 1 + 2 * (end // 500)), *range(end, 8 * len(data))]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_one_flipped_bit_is_refused_or_changes_nothing(
    tmp_path: Path, document: Callable[[Path], tuple[Path, Read]]
) -> None:
    file, read = document(tmp_path)
    data, content = file.read_bytes(), read()
    assert content is not None
    refused = 0
    for bit in bits(data):
        file.write_bytes(flipped(data, bit))
        try:
            assert read() == content, f"bit {bit} of {data!r}"
        except DistributaryError as error:
            refused += 1
            assert error.code is ErrorCode.CHECKPOINT_INVALID
            assert str(file) in error.where
            assert error.evidence and error.next_step
    # a damaged life is derived from the manifests, which are sealed too
    assert refused > 0.95 * len(bits(data)) or document is a_life


def test_one_flipped_bit_in_a_claim_makes_its_owner_unknown(tmp_path: Path) -> None:
    claim = Claim.take(at(tmp_path), lease=60)
    claim.release()
    file, owner = tmp_path / "claims" / f"{1:010d}.json", current_owner(at(tmp_path))
    data = file.read_bytes()
    assert owner is not None and owner.pid
    for bit in bits(data):
        file.write_bytes(flipped(data, bit))
        found = current_owner(at(tmp_path))
        assert found is not None and (found.epoch, found.pid, found.ended) == (1, 0, "")


@pytest.mark.parametrize("text", [b'{"a": 1}', b"[1]", b'{"a": 1}\n', b'{\n "a": [1]\n}\n'])
def test_a_document_of_the_version_before_is_accepted(text: bytes) -> None:
    assert unseal(text, where="x", next_step="y") == text
    assert unseal(seal(text), where="x", next_step="y") == text


@pytest.mark.parametrize("text", [b"", b"{", b'{"a": 1}\nsha256 ', b"nothing"])
def test_what_is_neither_is_refused(text: bytes) -> None:
    with pytest.raises(CheckpointError):
        unseal(text, where="x", next_step="y")


def test_a_manifest_under_the_name_of_another_batch_is_refused(tmp_path: Path) -> None:
    Manifests(at(tmp_path)).create(manifest(3))
    shutil.copy(tmp_path / f"{3:020d}.json", tmp_path / f"{4:020d}.json")
    with pytest.raises(CheckpointError):
        Manifests(at(tmp_path)).read(4)


def test_a_position_with_a_flipped_bit_loses_no_records(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=4, records=5), records_per_file=4)

    def pipeline() -> Pipeline:
        return games.pipeline(batch=8)

    games.send_round()
    pipeline().run(spark=tasks)
    folder = Path(pipeline().checkpoint.address) / "manifests"
    file = max(folder.glob("*.json"))
    data = file.read_bytes()
    at_version = data.index(b'"source_state":{"version":') + len(b'"source_state":{"version":')
    games.send_all()
    file.write_bytes(flipped(data, 8 * at_version + 1))
    with pytest.raises(CheckpointError) as caught:
        pipeline().run(spark=tasks)
    assert caught.value.code is ErrorCode.CHECKPOINT_INVALID
    assert str(file) in caught.value.where
    file.write_bytes(data)
    pipeline().run(spark=tasks)
    games.assert_each_record_once()


def test_documents_of_the_version_before_are_read_on(tmp_path: Path, tasks: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=3, records=5))
    games.send_round()
    games.pipeline().run(spark=tasks)
    folder = Path(games.pipeline().checkpoint.address)
    copies = [*folder.rglob("*.json"), *games.lake.glob("_distributary/pipelines/*/decided-*.json")]
    sealed = [file for file in copies if b"\nsha256 " in file.read_bytes()]
    assert len(sealed) >= 4
    for file in sealed:
        file.write_bytes(file.read_bytes().partition(b"\nsha256 ")[0])
    games.send_all()
    games.pipeline().run(spark=tasks)
    games.assert_each_record_once()
