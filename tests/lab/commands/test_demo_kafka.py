"""Demos that bring a broker and a registry of their own, up and down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Cli

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the services of a demo live, so that it can be seen what is left of them."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def left_running(folder: Path) -> list[int]:
    return [p.pid for p in psutil.process_iter(["cmdline"]) if str(folder) in str(p.info)]


def test_orders(cli: Cli, spark: SparkSession, own_temporary_folder: Path) -> None:
    result = cli("demo", "orders", "--records", 20, "--path", "lake", "--json")
    assert result.code == 0, result.err
    document = result.json
    assert document["exact"] is True
    assert [document[n] for n in ("read", "written", "dead_lettered", "parked")] == [44, 43, 1, 0]
    assert document["dead_letters"] == {"BAD_MAGIC": 1}
    (orders,) = (t for t in document["tables"] if t["role"] == "each")
    assert (orders["rows"], orders["columns_added"]) == (document["rows"], 1)
    table = DeltaTable(f"lake/{orders['name']}").to_pyarrow_table()
    assert table.num_rows == document["rows"] > 40
    assert {"order_id", "customer", "price", "products", "_raw"} <= set(table.column_names)
    assert any(not name.isascii() for name in table["customer"].to_pylist())
    (letter,) = DeltaTable("lake/dead_letters").to_pyarrow_table().to_pylist()
    # whole: the number of orders comes first, twice itself as Avro writes it
    assert letter["value"][0] in (2, 4, 6)
    for line in (
        "status",
        "dlq list",
        "trace dev.orders/0/0",
        f"dlq show {letter['id']}",
        "tables",
        "schema show dev_orders",
    ):
        shown = cli(*line.split(), "--lake", "lake")
        assert shown.code == 0, (line, shown.err)
    assert list(own_temporary_folder.iterdir()) == []
    assert left_running(own_temporary_folder) == []


def test_games_with_kafka(cli: Cli, spark: SparkSession, own_temporary_folder: Path) -> None:
    small = ("--games", 3, "--versions", 2, "--records", 10, "--bad", 2)
    result = cli("demo", "games", "--kafka", *small, "--path", "lake", "--json")
    assert result.code == 0, result.err
    document = result.json
    assert document["exact"] is True
    assert [document[n] for n in ("read", "written", "dead_lettered")] == [62, 60, 2]
    each = [t for t in document["tables"] if t["role"] == "each"]
    assert [(t["rows"], t["columns_added"]) for t in each] == [(20, 1)] * 3
    assert sum(document["dead_letters"].values()) == 2
    assert list(own_temporary_folder.iterdir()) == []
    assert left_running(own_temporary_folder) == []
