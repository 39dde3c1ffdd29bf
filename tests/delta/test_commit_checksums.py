"""A commit of ours of which bytes have changed is refused by name, whatever the bytes say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary.delta.commit import mend_lost_commit
from distributary.delta.damage import TAG, commit_damage
from distributary.delta.log import added_by, commits_back, follow, load
from distributary.delta.log_reading import BrokenLogError
from distributary.delta.tables import reaching_table
from distributary.errors import LakeUnavailableError, PublishError
from distributary.publish.direct import DirectPublisher
from distributary.store.base import at
from tests.lakes.commits import edit_commit
from tests.publish.staged import batch_of, mark, numbers, read_everywhere


@pytest.fixture
def commits(folder: Path) -> list[Path]:
    publisher = DirectPublisher()
    for batch in range(3):
        publisher.publish(batch_of(folder, batch, numbers(batch)), mark(batch))
    return sorted((folder / "_delta_log").glob("*.json"))


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x02
    path.write_bytes(data)


def test_every_bit_of_a_commit_counts(commits: list[Path]) -> None:
    for path in commits:
        data = path.read_bytes()
        assert commit_damage(data) is None
        for bit in range(len(data) * 8):
            other = bytearray(data)
            other[bit // 8] ^= 1 << bit % 8
            assert commit_damage(bytes(other)) is not None, bit
        for length in range(34, len(data)):
            assert commit_damage(data[:length]) is not None, length


@pytest.mark.parametrize("version", [0, 1, 2])
def test_whoever_reads_the_log_names_the_commit(
    folder: Path, commits: list[Path], version: int
) -> None:
    state = load(at(folder))
    before = load(at(folder), version=version - 1)
    assert state is not None
    flip(commits[version], commits[version].read_bytes().index(b'"txn"') + 1)
    name = f"{folder}/_delta_log/{version:020d}.json is damaged"
    reads: list[Callable[[], object]] = [
        lambda: load(at(folder)),
        lambda: load(at(folder), files=False),
        lambda: added_by(at(folder), version),
        lambda: list(commits_back(state)),
    ]
    if before is not None:
        reads.append(lambda: follow(before))
    for read in reads:
        with pytest.raises(BrokenLogError, match=name):
            read()
    with pytest.raises(LakeUnavailableError, match="verify") as caught, reaching_table(str(folder)):
        load(at(folder))
    assert name in caught.value.evidence


def test_nothing_is_committed_on_top_of_a_damaged_commit(folder: Path, commits: list[Path]) -> None:
    flip(commits[-1], 200)
    with pytest.raises(PublishError) as caught:
        DirectPublisher().publish(batch_of(folder, 3, numbers(3)), mark(3))
    assert commits[-1].name in caught.value.evidence
    assert len(list((folder / "_delta_log").glob("*.json"))) == 3


def test_a_commit_without_a_checksum_is_accepted(folder: Path, commits: list[Path]) -> None:
    for path in commits[:2]:
        edit_commit(path, lambda text: text.replace("Distributary", "Another"))
        assert TAG not in path.read_text().partition("\n")[0]
    DeltaTable(folder).alter.set_table_properties({"a.b": "c"}, raise_if_not_exists=False)
    for own in ("", '"distributary.app":"a",', '"distributary.batch":"1",'):
        edit_commit(commits[1], lambda text, own=own: text.replace('Info":{', f'Info":{{{own}', 1))
        state = load(at(folder))
        assert state is not None
        assert state.version == 3


def test_other_readers_read_the_commits(folder: Path, commits: list[Path]) -> None:
    assert commits[0].read_text().startswith(f'{{"commitInfo":{{"{TAG}":"')
    assert read_everywhere(str(folder)) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert DeltaTable(folder).history(1)[0]["engineInfo"] == "Distributary"


def test_the_commit_that_mends_a_log_has_a_checksum(folder: Path, commits: list[Path]) -> None:
    commits[-1].write_bytes(b"")
    mend_lost_commit(at(folder))
    assert load(at(folder)) is not None
    flip(commits[-1], 60)
    with pytest.raises(BrokenLogError):
        load(at(folder))
