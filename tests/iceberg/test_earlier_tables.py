"""Tables of an earlier version get a Delta log, and readers of Iceberg see no break."""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaLake
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from distributary.catalog.iceberg_catalog import open_catalog
from distributary.catalog.mirror_catalog import MirrorCatalog
from distributary.config.lake import LakeConfig
from distributary.delta import commit as commits
from distributary.delta.commit import Change, commit, write_rows
from distributary.delta.log import load
from distributary.errors import LakeUnavailableError, OutsideLakeError, PublishError
from distributary.iceberg import mirror as mirrors
from distributary.iceberg.earlier_tables import EarlierTable, is_earlier
from distributary.iceberg.mirror import Mirror, Synced
from distributary.model.manifest import Mark
from distributary.publish.direct import DirectPublisher
from distributary.publish.formats.table_format_entry import format_at, open_readable, open_written
from tests.iceberg.earlier import as_earlier
from tests.iceberg.tables import DeltaTable, Rows, sorted_rows
from tests.services.iceberg import rest_catalog

STREAM, REPLAY = (Mark(f"distributary/games/life/{lane}", 0, "") for lane in ("stream", "replay"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_catalog(tmp_path_factory.mktemp("iceberg")) as address:
        yield address


@pytest.fixture(params=["sql", pytest.param("rest", marks=[pytest.mark.services])])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeConfig:
    settings: dict[str, Any] = {"type": request.param, "namespace": f"n{uuid.uuid4().hex[:8]}"}
    if request.param == "rest":
        settings["uri"] = request.getfixturevalue("server")
    return LakeConfig.model_validate({"path": str(tmp_path), "iceberg": settings})


@pytest.fixture
def own(tmp_path: Path) -> LakeConfig:
    """A lake whose catalog is inside of it."""
    return LakeConfig.model_validate({"path": str(tmp_path), "iceberg": {"type": "sql"}})


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """A table with two batches of a stream and one of a replay, each with its own mark."""
    made = DeltaTable(tmp_path / "chess")
    made.types["inner"] = pa.struct([("x", pa.list_(pa.date32()))])
    for batch, mark in enumerate((STREAM, STREAM, REPLAY)):
        fields = made._fields()
        marked = Mark(mark.app_id, batch, f"source-{batch}")
        made._commit(added=made._files(3), fields=fields, mark=marked, appends=True)
    return made


class Site:
    """A table, the pointer of its mirror, and its entry in the catalog."""

    def __init__(self, table: DeltaTable, lake: LakeConfig) -> None:
        self.table, self.lake = table, lake
        self.catalog = MirrorCatalog(lake)
        self.pointer = self.catalog.pointer("chess", table.store)

    def adopt(self) -> None:
        EarlierTable.of(self.table.store, self.pointer).adopt()
        self.table.state = load(self.table.store)

    def sync(self, **settings: Any) -> Synced:
        synced = Mirror(self.table.store, self.pointer, **settings).sync()
        assert synced is not None
        return synced

    def change(self, change: Callable[[Table, Catalog], object]) -> None:
        """Change the Iceberg table as another program would."""
        with open_catalog(self.lake) as opened:
            change(opened.load_table((self.lake.iceberg_catalog.namespace, "chess")), opened)

    def seen(self) -> Table:
        """Return the Iceberg table as readers find it."""
        with open_catalog(self.lake) as opened:
            return opened.load_table((self.lake.iceberg_catalog.namespace, "chess"))

    def rows(self) -> Rows:
        return sorted_rows(self.seen().scan().to_arrow())


def test_a_table_of_an_earlier_version_goes_on(table: DeltaTable, lake: LakeConfig) -> None:
    rows, files = table.rows(), dict(table.state.files if table.state else {})
    version = as_earlier(table.folder, lake)
    site = Site(table, lake)
    reader = site.seen()
    before = reader.metadata
    assert format_at(table.folder) == "iceberg"
    assert site.rows() == rows
    site.adopt()
    # the log has files, columns, marks and the version, and no data was written
    state = load(table.store)
    assert state is not None
    assert format_at(table.folder) == "delta"
    assert state.version == version == 3
    assert state.marks == {STREAM.app_id: 1, REPLAY.app_id: 2}
    known = {path: (f.size, f.checksum, f.written, f.bounds("a")) for path, f in files.items()}
    assert known == {
        path: (f.size, f.checksum, f.written, f.bounds("a")) for path, f in state.files.items()
    }
    assert sorted_rows(DeltaLake(table.folder).to_pyarrow_table()) == rows
    assert not [name for name in os.listdir(table.folder) if name.startswith(".")]
    # again, as a second run does
    site.adopt()
    assert load(table.store) == state
    # Iceberg's readers see what they saw, before and after the mirror goes on
    assert site.rows() == rows
    assert site.sync().again == ""
    after = site.seen().metadata
    assert site.rows() == rows
    assert after.table_uuid == before.table_uuid
    assert after.schema().as_struct() == before.schema().as_struct()
    assert after.schema().find_field("inner.x.element").field_id == before.last_column_id
    assert {s.snapshot_id for s in before.snapshots} < {s.snapshot_id for s in after.snapshots}
    table.append(2)
    table.add_column()
    table.append(1)
    synced = site.sync()
    assert (synced.again, synced.commits, synced.version) == ("", 3, version + 3)
    assert site.rows() == table.rows()
    grown = site.seen().schema()
    assert grown.find_field("a").field_id == before.schema().find_field("a").field_id
    assert grown.fields[-1].field_id > before.last_column_id
    # a reader that has opened the table before all this still reads what it has opened
    assert sorted_rows(reader.scan().to_arrow()) == rows


def test_a_batch_that_was_committed_before_is_not_committed_again(
    table: DeltaTable, own: LakeConfig
) -> None:
    as_earlier(table.folder, own)
    Site(table, own).adopt()
    publisher = DirectPublisher()
    newest = publisher.committed(table.folder, Mark(REPLAY.app_id, 2, "source-2"))
    assert newest is not None
    assert (newest.batch, newest.source_hash) == (2, "source-2")
    older = publisher.committed(table.folder, Mark(STREAM.app_id, 1, "source-1"))
    assert older is not None
    assert older.batch == 1


def test_marks_outlive_their_snapshots(table: DeltaTable, own: LakeConfig) -> None:
    as_earlier(table.folder, own)
    site = Site(table, own)

    def expire(seen: Table, catalog: Catalog) -> None:
        old = [snapshot.snapshot_id for snapshot in seen.metadata.snapshots[:-1]]
        seen.maintenance.expire_snapshots().by_ids(old).commit()

    site.change(expire)
    site.adopt()
    state = load(table.store)
    assert state is not None
    assert state.marks == {STREAM.app_id: 1, REPLAY.app_id: 2}


def test_a_killed_run_has_changed_nothing(
    table: DeltaTable, own: LakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table.rows()
    as_earlier(table.folder, own)
    site = Site(table, own)
    with monkeypatch.context() as patch:

        def fail(*names: str) -> None:
            raise OSError(errno.EIO, "killed")

        patch.setattr(os, "rename", fail)
        patch.setattr(type(table.store), "remove_folder", lambda *_: None)
        with pytest.raises(OSError):
            site.adopt()
    assert [name for name in os.listdir(table.folder) if name.startswith(commits._NEW_LOG)]
    assert format_at(table.folder) == "iceberg"
    assert site.rows() == rows
    site.adopt()
    assert format_at(table.folder) == "delta"
    assert not [name for name in os.listdir(table.folder) if name.startswith(".")]
    # a run that is killed now has a log and no mirror: the next one goes on from there
    site.sync()
    assert site.rows() == table.rows() == rows


def test_a_log_that_another_process_made_stays(table: DeltaTable, own: LakeConfig) -> None:
    as_earlier(table.folder, own)
    site = Site(table, own)
    late = EarlierTable.of(table.store, site.pointer)
    site.adopt()
    table.append(2)
    late.adopt()
    state = load(table.store)
    assert state is not None
    assert state.version == 4


def test_what_another_program_writes_afterwards_is_named(
    table: DeltaTable, own: LakeConfig
) -> None:
    as_earlier(table.folder, own)
    site = Site(table, own)
    site.adopt()
    site.change(lambda seen, _: seen.append(seen.scan().to_arrow()))
    assert site.sync().again == mirrors._FOREIGN
    assert site.rows() == table.rows()


def test_metadata_of_the_earlier_version_is_removed_in_time(
    table: DeltaTable, own: LakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "_EXPIRED_AT_ONCE", 2)
    monkeypatch.setattr(mirrors, "_SLACK_MS", -60_000)
    as_earlier(table.folder, own)
    site = Site(table, own)
    site.adopt()
    for _ in range(14):
        table.append(1)
        assert site.sync(keep=timedelta(0)).again == ""
        assert site.rows() == table.rows()
    assert os.listdir(f"{table.folder}/metadata") == []


# Tables that Delta would read otherwise than Iceberg.


def _partition(seen: Table, catalog: Catalog) -> None:
    with seen.update_spec() as update:
        update.add_identity("a")


def _rename(seen: Table, catalog: Catalog) -> None:
    with seen.update_schema() as update:
        update.rename_column("s", "title")


def _drop(seen: Table, catalog: Catalog) -> None:
    with seen.update_schema() as update:
        update.delete_column("s")


def _elsewhere(seen: Table, catalog: Catalog) -> None:
    outside = Path(seen.location()).parent / "outside.parquet"
    (copied,) = list(seen.scan().plan_files())[:1]
    shutil.copy(copied.file.file_path, outside)
    seen.add_files([str(outside)])


def _unknown_type(seen: Table, catalog: Catalog) -> None:
    from pyiceberg.types import UUIDType

    with seen.update_schema() as update:
        update.add_column("id", UUIDType())


@pytest.mark.parametrize("harm", [_partition, _rename, _drop, _elsewhere, _unknown_type])
def test_what_delta_reads_otherwise_is_refused(
    table: DeltaTable, own: LakeConfig, harm: Callable[[Table, Catalog], None]
) -> None:
    as_earlier(table.folder, own)
    site = Site(table, own)
    site.change(harm)
    kind = OutsideLakeError if harm is _elsewhere else PublishError
    with pytest.raises(kind) as refused:
        site.adopt()
    assert type(refused.value) is kind
    assert refused.value.next_step
    assert format_at(table.folder) == "iceberg"
    assert os.listdir(table.folder).count("_delta_log") == 0


@pytest.mark.parametrize("kind", ["manifest-list", "manifest"])
def test_lists_of_files_elsewhere_are_not_read(
    table: DeltaTable, own: LakeConfig, tmp_path: Path, kind: str
) -> None:
    as_earlier(table.folder, own)
    site = Site(table, own)
    stolen = tmp_path / "stolen.avro"
    current = site.pointer.load()
    assert current is not None
    (snapshot,) = (
        s
        for s in current.metadata["snapshots"]
        if s["snapshot-id"] == current.metadata["current-snapshot-id"]
    )
    document = Path(current.location)
    list_ = Path(snapshot["manifest-list"])
    if kind == "manifest-list":
        shutil.copy(list_, stolen)
        document.write_text(document.read_text().replace(str(list_), str(stolen)))
    else:
        from distributary.iceberg.manifests import read_list, write_list

        records = read_list(list_.read_bytes())
        shutil.copy(records[0]["manifest_path"], stolen)
        records[0]["manifest_path"] = str(stolen)
        list_.write_bytes(write_list(records, snapshot["snapshot-id"], None, 3))
    with pytest.raises(OutsideLakeError):
        site.adopt()


def test_a_table_that_the_catalog_does_not_have_is_refused(
    table: DeltaTable, own: LakeConfig
) -> None:
    as_earlier(table.folder, own)
    other = LakeConfig.model_validate(
        {"path": own.path, "iceberg": {"type": "sql", "namespace": "other"}}
    )
    with pytest.raises(PublishError) as refused:
        Site(table, other).adopt()
    assert "lake.iceberg" in refused.value.next_step


def test_readers_of_a_table_without_a_log_are_refused_by_name(
    table: DeltaTable, own: LakeConfig
) -> None:
    as_earlier(table.folder, own)
    assert is_earlier(table.folder)
    for open_ in (open_readable, open_written):
        with pytest.raises(LakeUnavailableError) as refused:
            open_(table.folder)
        assert "tables.format: iceberg" in refused.value.next_step


def test_columns_keep_what_iceberg_has_no_place_for(tmp_path: Path, own: LakeConfig) -> None:
    made = DeltaTable(tmp_path / "chess")
    fields = made._fields()
    fields[0]["metadata"] |= {"distributary.number": "7"}
    rows = pa.table({"a": pa.array([1], pa.int32()), "s": ["x"]})
    change = Change("WRITE", name="t", fields=fields, added=[write_rows(rows, made.folder)])
    made.state = commit(made.store, None, change)
    as_earlier(made.folder, own)
    site = Site(made, own)
    site.adopt()
    state = load(made.store)
    assert state is not None
    assert [json.dumps(f, sort_keys=True) for f in state.fields] == [
        json.dumps(f, sort_keys=True) for f in fields
    ]
