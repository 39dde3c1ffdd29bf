"""Mirrors show the rows of their Delta tables, whatever was committed and whoever was killed."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.delta.column_merge import ColumnConflictError
from distributary.delta.log import load
from distributary.errors import OutsideLakeError
from distributary.iceberg import mirror as mirrors
from distributary.iceberg.manifests import read_list, write_list
from distributary.iceberg.mirror import Mirror, UnmirroredError, mark_of
from distributary.iceberg.pointer import FOLDER, HINT, VersionHint
from distributary.store.disk import Disk
from tests.iceberg.tables import DeltaTable, iceberg_of, iceberg_rows, mirror_of, sorted_rows

STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 4)),
    st.tuples(st.just("remove"), st.integers(0, 9)),
    st.tuples(st.just("rewrite"), st.integers(0, 9), st.integers(0, 3)),
    st.tuples(st.just("compact")),
    st.tuples(st.just("delete_rows"), st.integers(0, 9), st.integers(0, 3)),
    st.tuples(st.just("add_column")),
    st.tuples(st.just("widen")),
    st.tuples(st.just("vacuum")),
    st.tuples(st.just("sync")),
)


@given(steps=st.lists(STEPS, max_size=14), partitioned=st.booleans())
def test_a_mirror_has_the_rows_of_its_table(
    steps: list[tuple[Any, ...]], partitioned: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = DeltaTable(Path(folder) / "t", partition_by=["a"] if partitioned else [])
        table.make(2)
        mirror = mirror_of(table)
        for name, *arguments in [*steps, ("sync",)]:
            if name == "sync":
                mirror.sync()
                assert iceberg_rows(table) == table.rows()
            elif not (partitioned and name in ("widen", "compact")):
                getattr(table, name)(*arguments)
        synced = mirror.sync()
        assert synced is not None and not synced.changed and not synced.again


def test_manifests_are_merged_and_old_snapshots_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "_SLACK_MS", 0)
    table = DeltaTable(tmp_path / "t")
    table.make(1)
    mirror = mirror_of(table, keep=timedelta(0))
    for _ in range(140):
        table.append(1)
        mirror.sync()
    assert iceberg_rows(table) == table.rows()
    metadata = iceberg_of(table).metadata
    assert len(metadata.snapshots) <= 18
    assert iceberg_of(table).inspect.manifests().num_rows <= 24
    assert len(metadata.metadata_log) == 10
    # of each kept snapshot a list, of each commit since the last sweep a few files
    assert len(os.listdir(f"{table.folder}/{FOLDER}")) < 120


def test_a_snapshot_names_what_it_shows(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.make(3)
    mirror = mirror_of(table)
    mirror.sync()
    table.append(2)
    table.compact()
    synced = mirror.sync()
    assert synced is not None and (synced.version, synced.commits) == (2, 2)
    snapshots = iceberg_of(table).metadata.snapshots
    summary = snapshots[-1].summary
    assert summary is not None
    mark = mark_of({"summary": summary.additional_properties})
    assert mark is not None and mark.version == 2
    assert summary.additional_properties["total-records"] == "5"


class Killed(BaseException):
    """The end of a process between two writes."""


class DyingDisk(Disk):
    """A folder whose process is killed at one of its changes."""

    left = 0

    def _step(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1

    def create(self, name: str, data: bytes, *, durable: bool = True) -> str | None:
        self._step()
        return super().create(name, data, durable=durable)

    def write(self, name: str, data: bytes, *, durable: bool = True) -> str:
        self._step()
        return super().write(name, data, durable=durable)

    def remove(self, name: str) -> None:
        self._step()
        super().remove(name)


def test_a_kill_between_any_two_writes_leaves_a_readable_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "_EXPIRED_AT_ONCE", 2)
    monkeypatch.setattr(mirrors, "_SLACK_MS", 0)
    table = DeltaTable(tmp_path / "t")
    table.make(2)
    mirror_of(table).sync()
    store = DyingDisk(table.folder)
    kills = 0
    for moment in range(12):
        before = [table.rows()]
        for _ in range(9):
            table.append(1)
        table.rewrite(moment, 2)
        table.delete_rows(1, moment)
        before.append(table.rows())
        store.left = moment
        try:
            mirror_of(table, store, keep=timedelta(0)).sync()
        except Killed:
            kills += 1
        assert iceberg_rows(table) in before
        newest = VersionHint(table.store).load()
        assert newest is not None
        mirror_of(table, keep=timedelta(0)).sync()
        assert iceberg_rows(table) == table.rows()
        # the hint is right again, and not only for readers that look further
        assert int(Path(table.folder, HINT).read_text()) >= newest.token
    assert kills >= 5


def test_an_edited_mirror_is_made_again(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.make(3)
    mirror = mirror_of(table)
    mirror.sync()
    hint = VersionHint(table.store)
    current = hint.load()
    assert current is not None
    document = current.metadata
    # a snapshot of another program, and a column that it has taken away
    foreign = {**document["snapshots"][-1], "snapshot-id": 7, "sequence-number": 2}
    foreign["summary"] = {"operation": "delete"}
    document["snapshots"].append(foreign)
    document["current-snapshot-id"], document["last-sequence-number"] = 7, 2
    document["refs"]["main"]["snapshot-id"] = 7
    Path(table.folder, FOLDER, "v2.metadata.json").write_bytes(orjson.dumps(document))
    synced = mirror.sync()
    assert synced is not None and synced.again
    assert iceberg_rows(table) == table.rows()
    assert iceberg_of(table).metadata.table_uuid.hex == document["table-uuid"].replace("-", "")


@pytest.mark.parametrize("kind", ["metadata", "manifest", "all", "hint"])
def test_a_damaged_mirror_is_made_again(tmp_path: Path, kind: str) -> None:
    table = DeltaTable(tmp_path / "t")
    table.make(3)
    mirror = mirror_of(table)
    mirror.sync()
    folder = Path(table.folder, FOLDER)
    for file in folder.iterdir():
        ending = {"metadata": ".json", "manifest": ".avro", "all": "", "hint": ".text"}[kind]
        if file.name.endswith(ending):
            file.write_bytes(b"\0\1garbage")
    table.rewrite(0, 2)
    synced = mirror.sync()
    assert synced is not None and bool(synced.again) is (kind != "hint")
    assert iceberg_rows(table) == table.rows()


@pytest.mark.parametrize("junk", [None, 5, [], [5], {"main": 5}])
def test_metadata_of_strangers_is_not_built_upon(tmp_path: Path, junk: Any) -> None:
    table = DeltaTable(tmp_path / "t")
    table.make(2)
    mirror = mirror_of(table)
    mirror.sync()
    pointer = VersionHint(table.store)
    current = pointer.load()
    assert current is not None
    for key in current.metadata:
        current = pointer.load()
        assert current is not None
        if current.metadata.get(key) == junk:
            continue
        changed = orjson.dumps({**current.metadata, key: junk})
        Path(current.location).write_bytes(changed)
        table.append(1)
        mirror.sync()
        assert iceberg_rows(table) == table.rows(), key


@pytest.mark.parametrize("via", ["list", "manifest"])
def test_a_mirror_that_names_files_outside_of_its_table_is_made_again(
    tmp_path: Path, via: str
) -> None:
    table = DeltaTable(tmp_path / "t")
    table.make(2)
    mirror = mirror_of(table)
    mirror.sync()
    current = VersionHint(table.store).load()
    assert current is not None
    (snapshot,) = current.metadata["snapshots"]
    other = tmp_path / "other"
    other.mkdir()
    named = f"{table.folder}/{FOLDER}/../../../other"
    inside = Path(snapshot["manifest-list"])
    if via == "list":
        outside = other / "list.avro"
        outside.write_bytes(inside.read_bytes())
        changed = orjson.dumps(
            {**current.metadata, "snapshots": [{**snapshot, "manifest-list": f"{named}/list.avro"}]}
        )
        Path(current.location).write_bytes(changed)
    else:
        records = read_list(inside.read_bytes())
        outside = other / "manifest.avro"
        outside.write_bytes(Path(records[0]["manifest_path"]).read_bytes())
        records[0]["manifest_path"] = f"{named}/manifest.avro"
        inside.write_bytes(write_list(records, 1, None, 1))
    before = outside.read_bytes()
    # a removal reads the manifests
    table.remove(0)
    synced = mirror.sync()
    assert synced is not None and synced.again
    assert iceberg_rows(table) == table.rows()
    assert [*other.iterdir()] == [outside] and outside.read_bytes() == before


def test_a_link_out_of_the_table_is_refused(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.make(2)
    (tmp_path / "elsewhere").mkdir()
    Path(table.folder, "_iceberg").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutsideLakeError):
        mirror_of(table).sync()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_table_that_was_made_again_gets_a_new_mirror(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.make(3)
    mirror = mirror_of(table)
    mirror.sync()
    for file in Path(table.folder, "_delta_log").iterdir():
        file.unlink()
    table.state, table.types = None, {"s": pa.date32(), "b": pa.bool_()}
    table.state = None
    other = DeltaTable(tmp_path / "t")
    other.make(1)
    synced = mirror.sync()
    assert synced is not None and synced.again
    assert iceberg_rows(other) == other.rows()


def test_commits_that_are_no_longer_in_the_log_are_not_needed(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.make(3)
    mirror = mirror_of(table)
    mirror.sync()
    table.append(2)
    state = load(table.store)
    assert state is not None
    from distributary.delta.log_checkpoint import write_checkpoint

    write_checkpoint(state)
    Path(table.folder, "_delta_log", f"{0:020d}.json").unlink()
    table.state = state
    table.append(1)
    synced = mirror.sync()
    assert synced is not None and synced.again
    assert iceberg_rows(table) == table.rows()


def test_a_lake_that_was_moved_gets_new_mirrors(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "before" / "t")
    table.make(3)
    mirror_of(table).sync()
    (tmp_path / "before").rename(tmp_path / "after")
    moved = DeltaTable(tmp_path / "after" / "t")
    synced = mirror_of(moved).sync()
    assert synced is not None and synced.again
    assert iceberg_rows(moved) == moved.rows()


def test_two_processes_at_once(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.make(3)
    mirror_of(table).sync()
    table.append(2)

    class Slow(VersionHint):
        """A pointer whose process is overtaken before its first commit."""

        done = False

        def commit(self, *arguments: Any) -> Any:
            if not self.done:
                self.done = True
                mirror_of(table).sync()
            return super().commit(*arguments)

    synced = Mirror(table.store, Slow(table.store)).sync()
    assert synced is not None and not synced.changed
    assert iceberg_rows(table) == table.rows()


def test_what_iceberg_cannot_show_is_refused(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.make(3)
    mirror = mirror_of(table)
    mirror.sync()
    table.types["a"] = pa.float64()
    table._commit(fields=table._fields())
    with pytest.raises(ColumnConflictError):
        mirror.sync()
    # the snapshot before stays, and a mirror that is made as new has the new type
    assert len(iceberg_rows(table)) == 3
    for number in range(2):
        table.remove(number)
    table.append(1)
    mirror.sync(again=True)
    assert iceberg_rows(table) == table.rows()
    with pytest.raises(UnmirroredError):
        mirrors.refuse_features({"minReaderVersion": 3, "readerFeatures": ["columnMapping"]})
    with pytest.raises(UnmirroredError):
        mirrors.refuse_features({"minReaderVersion": 2})


def test_no_table_no_mirror(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    assert mirror_of(table).sync() is None
    assert not Path(table.folder, FOLDER).exists()


def test_polars_reads_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # its own planner is a package more
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    table = DeltaTable(tmp_path / "t", partition_by=["a"])
    table.make(4)
    table.delete_rows(0, 0)
    mirror_of(table).sync()
    assert _polars(table) == table.rows()
    table.add_column()
    table.append(5)
    mirror_of(table).sync()
    assert _polars(table) == table.rows()


def _polars(table: DeltaTable) -> Any:
    newest = VersionHint(table.store).load()
    assert newest is not None
    return sorted_rows(pl.scan_iceberg(newest.location).collect().to_arrow())
