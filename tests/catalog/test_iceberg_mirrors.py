"""Mirrors in catalogs: a database, and a server of Iceberg's own project."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from distributary.catalog.iceberg_catalog import open_catalog
from distributary.catalog.mirror_catalog import MirrorCatalog
from distributary.config.lake import LakeConfig
from distributary.errors import CatalogError, CatalogUnavailableError
from distributary.iceberg.mirror import Mirror
from distributary.store.base import at
from tests.iceberg.tables import DeltaTable, Rows, sorted_rows
from tests.services.iceberg import rest_catalog

WAYS = ["sql", pytest.param("rest", marks=[pytest.mark.spark, pytest.mark.services])]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_catalog(tmp_path_factory.mktemp("iceberg")) as address:
        yield address


@pytest.fixture(params=WAYS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeConfig:
    settings: dict[str, Any] = {"type": request.param}
    if request.param == "rest":
        settings["uri"] = request.getfixturevalue("server")
    settings["namespace"] = f"n{uuid.uuid4().hex[:8]}"
    return LakeConfig.model_validate({"path": str(tmp_path), "iceberg": settings})


@pytest.fixture
def catalog(lake: LakeConfig) -> Iterator[MirrorCatalog]:
    opened = MirrorCatalog(lake)
    yield opened
    opened.close()


def rows_in(lake: LakeConfig, name: str) -> Rows:
    """Return the rows of a table as pyiceberg finds them by the catalog."""
    with open_catalog(lake) as opened:
        table = opened.load_table((lake.iceberg_catalog.namespace, name))
        return sorted_rows(table.scan().to_arrow())


def test_a_mirror_in_a_catalog(lake: LakeConfig, catalog: MirrorCatalog, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t", partition_by=["a"])
    table.make(4)
    mirror = Mirror(table.store, catalog.pointer("t", table.store))
    mirror.sync()
    assert rows_in(lake, "t") == table.rows()
    table.append(3)
    table.add_column()
    table.append(2)
    table.rewrite(1, 2)
    table.delete_rows(0, 1)
    synced = mirror.sync()
    assert synced is not None and synced.commits == 5 and not synced.again
    assert rows_in(lake, "t") == table.rows()
    synced = mirror.sync()
    assert synced is not None and not synced.changed


def test_many_snapshots_in_a_catalog(
    lake: LakeConfig, catalog: MirrorCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import timedelta

    from distributary.iceberg import mirror as mirrors

    monkeypatch.setattr(mirrors, "_EXPIRED_AT_ONCE", 3)
    monkeypatch.setattr(mirrors, "_SLACK_MS", 0)
    table = DeltaTable(tmp_path / "t")
    table.make(1)
    mirror = Mirror(table.store, catalog.pointer("t", table.store), keep=timedelta(0))
    for _ in range(12):
        table.append(1)
        synced = mirror.sync()
        assert synced is not None and not synced.again
    assert rows_in(lake, "t") == table.rows()
    with open_catalog(lake) as opened:
        found = opened.load_table((lake.iceberg_catalog.namespace, "t"))
        assert len(found.metadata.snapshots) <= 5


def test_an_overtaken_commit_is_made_again(
    lake: LakeConfig, catalog: MirrorCatalog, tmp_path: Path
) -> None:
    table = DeltaTable(tmp_path / "t")
    table.make(2)
    pointer = catalog.pointer("t", table.store)
    Mirror(table.store, pointer).sync()
    stale = pointer.load()
    table.append(1)
    Mirror(table.store, pointer).sync()
    table.append(1)
    loads = iter([stale])
    genuine = type(pointer).load

    def load() -> Any:
        return next(loads, None) or genuine(pointer)

    pointer.load = load  # type: ignore[method-assign]
    Mirror(table.store, pointer).sync()
    assert rows_in(lake, "t") == table.rows()


def test_a_dropped_entry_is_made_again(
    lake: LakeConfig, catalog: MirrorCatalog, tmp_path: Path
) -> None:
    table = DeltaTable(tmp_path / "t")
    table.make(2)
    mirror = Mirror(table.store, catalog.pointer("t", table.store))
    mirror.sync()
    catalog.pointer("t", table.store).forget()
    mirror.sync()
    assert rows_in(lake, "t") == table.rows()
    mirror.sync(again=True)
    assert rows_in(lake, "t") == table.rows()


def test_a_name_of_another_table_is_refused(
    lake: LakeConfig, catalog: MirrorCatalog, tmp_path: Path
) -> None:
    one, other = DeltaTable(tmp_path / "t"), DeltaTable(tmp_path / "other" / "t")
    one.make(2)
    other.make(3)
    Mirror(one.store, catalog.pointer("t", one.store)).sync()
    for action in (
        lambda: Mirror(other.store, catalog.pointer("t", other.store)).sync(),
        lambda: catalog.pointer("t", other.store).forget(),
    ):
        with pytest.raises(CatalogError):
            action()
    assert rows_in(lake, "t") == one.rows()


def test_processes_may_create_a_catalog_at_the_same_time(tmp_path: Path) -> None:
    lake = LakeConfig.model_validate({"path": str(tmp_path), "iceberg": {"type": "sql"}})
    barrier = threading.Barrier(4)

    def open_one(number: int) -> None:
        catalog = MirrorCatalog(lake)
        barrier.wait()
        catalog.pointer("t", at(f"{tmp_path}/t"))
        catalog.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(open_one, range(4)))


def test_a_server_that_is_away(tmp_path: Path) -> None:
    iceberg = {"type": "rest", "uri": "http://127.0.0.1:1"}
    lake = LakeConfig.model_validate({"path": str(tmp_path), "iceberg": iceberg})
    table = DeltaTable(tmp_path / "t")
    with pytest.raises(CatalogUnavailableError):
        MirrorCatalog(lake).pointer("t", table.store)
