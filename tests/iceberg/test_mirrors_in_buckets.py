"""Mirrors of tables in a bucket, read by pyiceberg from there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from distributary.catalog.iceberg_catalog import NAME
from distributary.catalog.mirror_catalog import MirrorCatalog
from distributary.config.lake import LakeConfig
from distributary.delta.column_merge import fields_of
from distributary.delta.commit import Change, rewrite_files, write_rows
from distributary.delta.log import load
from distributary.iceberg import mirror as mirrors
from distributary.iceberg.mirror import Mirror
from distributary.iceberg.pointer import VersionHint
from distributary.model.table import Column
from distributary.store import base
from distributary.store.base import at, introduce
from tests.iceberg.tables import sorted_rows
from tests.publish.staged import numbers
from tests.source.s3_server import BUCKET, S3Server, s3_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server() as found:
        monkeypatch.setattr(base, "_OPTIONS", {})
        introduce(f"s3://{BUCKET}", found.options)
        yield found


def as_pyiceberg(server: S3Server) -> dict[str, str]:
    """Return the settings with which pyiceberg reaches the bucket."""
    return {
        "s3.endpoint": server.options["AWS_ENDPOINT_URL"],
        "s3.access-key-id": server.options["aws_access_key_id"],
        "s3.secret-access-key": server.options["aws_secret_access_key"],
        "s3.region": "us-east-1",
    }


def test_a_mirror_in_a_bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "_EXPIRED_AT_ONCE", 4)
    monkeypatch.setattr(mirrors, "_SLACK_MS", -5000)
    address = f"s3://{BUCKET}/lake/chess"
    store = at(address)
    mirror = Mirror(store, VersionHint(store), keep=timedelta(0))
    state = None
    fields = fields_of([Column(f.name, f.type) for f in numbers(1).schema])
    for round_ in range(8):
        rows = numbers(round_, 100 + round_)
        change = Change("WRITE", name="chess", fields=fields, added=[write_rows(rows, address)])
        rewrite_files(address, state, change)
        state = load(store)
        assert state is not None
        synced = mirror.sync()
        assert synced is not None and not synced.again
    first = next(iter(state.files.values()))  # type: ignore[union-attr]
    rewrite_files(address, state, Change("DELETE", name="chess", removed=[first]))
    mirror.sync()
    table = StaticTable.from_metadata(f"{address}/_iceberg", properties=as_pyiceberg(server))
    after = load(store)
    assert after is not None
    assert sorted_rows(table.scan().to_arrow()) == sorted_rows(after.rows(numbers(1).schema))
    assert len(table.metadata.snapshots) < 8


def test_a_mirror_in_a_bucket_with_a_database(server: S3Server, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    lake = LakeConfig.model_validate(
        {"path": f"s3://{BUCKET}/lake", "iceberg": {"type": "sql", "uri": uri}}
    )
    address = f"{lake.address}/chess"
    store, catalog = at(address), MirrorCatalog(lake)
    mirror = Mirror(store, catalog.pointer("chess", store))
    fields = fields_of([Column(f.name, f.type) for f in numbers(1).schema])
    state = None
    for round_ in range(3):
        rows = numbers(round_, 100 + round_)
        change = Change("WRITE", name="chess", fields=fields, added=[write_rows(rows, address)])
        rewrite_files(address, state, change)
        state = load(store)
        synced = mirror.sync()
        assert synced is not None and not synced.again
    catalog.close()
    with load_catalog(NAME, type="sql", uri=uri, **as_pyiceberg(server)) as readers:
        table = readers.load_table(("default", "chess"))
        rows = sorted_rows(table.scan().to_arrow())
    assert state is not None
    assert rows == sorted_rows(state.rows(numbers(1).schema))
    assert len(table.metadata.snapshots) == 3
