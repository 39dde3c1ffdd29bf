"""A checkpoint of a log of which a bit has changed is refused by name, or differs from its commits.

Writers read a checkpoint instead of the commits before it: which batches a table has, which files
and which columns.
"""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from distributary.delta.damage import footer_damage
from distributary.delta.log import Snapshot, checkpoint_damage, load
from distributary.delta.log_checkpoint import write_checkpoint
from distributary.errors import DamagedFileError
from distributary.publish.direct import DirectPublisher
from distributary.store.base import at
from tests.publish.staged import batch_of, mark, numbers, read_everywhere

_FLIPS = 500
_BATCHES = 3


@pytest.fixture
def table(folder: Path) -> Path:
    publisher = DirectPublisher()
    for batch in range(_BATCHES):
        publisher.publish(batch_of(folder, batch, numbers(batch)), mark(batch))
    return folder


def newest(table: Path) -> Snapshot:
    state = load(at(table))
    assert state is not None
    return state


def own_checkpoint(table: Path) -> Path:
    write_checkpoint(newest(table))
    return checkpoint_of(table)


def foreign_checkpoint(table: Path) -> Path:
    DeltaTable(table).create_checkpoint()
    return checkpoint_of(table)


def checkpoint_of(table: Path) -> Path:
    (path,) = (table / "_delta_log").glob("*.checkpoint.parquet")
    return path


def without_commits(table: Path) -> None:
    """Remove the commits that the checkpoint stands for: it is all that there is."""
    for path in (table / "_delta_log").glob("*.json"):
        path.unlink()


def changed(data: bytes, place: int, bit: int) -> bytes:
    other = bytearray(data)
    other[place] ^= 1 << bit
    return bytes(other)


def test_every_bit_of_our_checkpoint_counts(table: Path) -> None:
    path = own_checkpoint(table)
    without_commits(table)
    before, data = newest(table), path.read_bytes()
    dice = random.Random(7)
    refused = 0
    for _ in range(_FLIPS):
        path.write_bytes(changed(data, dice.randrange(len(data)), dice.randrange(8)))
        try:
            # bits that carry nothing, such as statistics of pages, may be others
            assert newest(table) == before
        except DamagedFileError as error:
            assert error.where == str(path)
            refused += 1
    assert refused > _FLIPS / 2


def test_names_in_the_footer_count(table: Path) -> None:
    path = own_checkpoint(table)
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for name in (b"appId", b"version", b"deletionVector", b"tags"):
        path.write_bytes(changed(data, data.index(name, start) + 1, 1))
        with pytest.raises(DamagedFileError):
            load(at(table))


def test_a_damaged_checkpoint_does_not_get_into_the_next_one(table: Path) -> None:
    path = own_checkpoint(table)
    state = newest(table)
    DirectPublisher().publish(batch_of(table, _BATCHES, numbers(9)), mark(_BATCHES))
    newer = newest(table)
    data = path.read_bytes()
    path.write_bytes(changed(data, data.index(b"parquet", len(data) // 4), 0))
    assert newer.version == state.version + 1
    with pytest.raises(DamagedFileError):
        write_checkpoint(newer)


def test_others_read_our_checkpoint(table: Path) -> None:
    path = own_checkpoint(table)
    rows = read_everywhere(table)
    without_commits(table)
    assert DeltaTable(table).version() == _BATCHES - 1
    assert read_everywhere(table) == rows
    assert pq.read_table(path).num_rows > _BATCHES


def test_a_checkpoint_of_others_has_no_seal(table: Path) -> None:
    path = foreign_checkpoint(table)
    with at(table).open(f"_delta_log/{path.name}") as file:
        assert footer_damage(file) is None
    assert checkpoint_damage(at(table)) is None


@pytest.mark.parametrize("make", [own_checkpoint, foreign_checkpoint])
def test_a_checkpoint_agrees_with_its_commits(table: Path, make: object) -> None:
    assert callable(make)
    make(table)
    assert checkpoint_damage(at(table)) is None
    DirectPublisher().publish(batch_of(table, _BATCHES, numbers(9)), mark(_BATCHES))
    DeltaTable(table).delete("n = 3")
    DeltaTable(table).optimize.compact()
    assert checkpoint_damage(at(table)) is None
    DeltaTable(table).create_checkpoint()
    assert checkpoint_damage(at(table)) is None
    # from the older checkpoint on
    (table / "_delta_log" / f"{0:020d}.json").unlink()
    assert checkpoint_damage(at(table)) is None
    without_commits(table)
    assert checkpoint_damage(at(table)) is None


def test_a_checkpoint_of_others_is_compared_with_its_commits(table: Path) -> None:
    path = foreign_checkpoint(table)
    data, before = path.read_bytes(), facts(newest(table))
    dice = random.Random(7)
    noticed = 0
    for _ in range(_FLIPS):
        path.write_bytes(changed(data, dice.randrange(len(data)), dice.randrange(8)))
        try:
            difference = checkpoint_damage(at(table))
            same = facts(newest(table)) == before
        except Exception as error:
            assert type(error).__name__ in ("DamagedFileError", "BrokenLogError")
            continue
        assert same or difference is not None
        if difference is not None:
            assert difference[0] == f"_delta_log/{path.name}"
            noticed += 1
    assert noticed


def facts(table: Snapshot) -> object:
    """What a writer takes from a log."""
    files = {p: (f.size, f.rows, dict(f.values), f.vector) for p, f in table.files.items()}
    columns = list(table.fields)
    return files, columns, table.partition_columns, table.properties, dict(table.marks)
