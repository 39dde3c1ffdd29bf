"""The whole way in a browser: a source went back in its log, and a click says why."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from playwright.sync_api import expect
from pyspark.sql import SparkSession

from distributary.engine.pipeline import Pipeline
from distributary.model.manifest import Counts
from distributary.operations.repair.resume_table import waiting
from tests.web.conftest import Look, Start

MOST_MILLISECONDS = 180_000
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
PIPELINE = """
name: shop
source: {{type: delta, path: {root}/events, key: key, timestamp: at, topic: shop.public.orders}}
payload: {{format: json}}
cdc: {{format: debezium}}
tables: {{each: "{{schema}}_{{table}}"}}
lake: {{path: {root}/lake}}
"""


def change(id: int, *, lsn: int, price: int, at: datetime) -> dict[str, Any]:
    """Build a message of a PostgreSQL connector."""
    milliseconds = int(at.timestamp() * 1000)
    names = {"connector": "postgresql", "db": "d", "schema": "public", "table": "orders"}
    event = {
        "op": "u",
        "after": {"id": id, "price": price},
        "source": {**names, "lsn": lsn, "ts_ms": milliseconds},
        "ts_ms": milliseconds,
    }
    return {
        "key": json.dumps({"id": id}).encode(),
        "value": json.dumps(event).encode(),
        "at": at,
    }


def send(root: Path, *events: dict[str, Any]) -> None:
    write_deltalake(str(root / "events"), pa.Table.from_pylist(list(events)), mode="append")


def prices(root: Path) -> dict[int, int]:
    rows = DeltaTable(str(root / "lake" / "public_orders")).to_pyarrow_table().to_pylist()
    return {row["id"]: row["price"] for row in rows}


def went_back(root: Path, spark: SparkSession) -> Pipeline:
    """Make a lake with a table that waits for an answer."""
    file = root / "shop.yaml"
    file.write_text(PIPELINE.format(root=root))
    pipeline = Pipeline.load(file)
    send(root, *(change(id, lsn=9_000 + id, price=1, at=NOON) for id in (1, 2, 3)))
    assert pipeline.run(trigger="available_now", spark=spark).counts.written == 3
    older = NOON - timedelta(hours=2)
    send(root, change(1, lsn=41, price=7, at=older), change(2, lsn=42, price=7, at=older))
    pipeline.run(trigger="available_now", spark=spark)
    send(root, change(3, lsn=43, price=8, at=NOON))
    pipeline.run(trigger="available_now", spark=spark)
    assert [each.table for each in waiting(pipeline)] == ["public_orders"] * 2
    assert prices(root) == {1: 1, 2: 1, 3: 1}
    return pipeline


@pytest.mark.slow
def test_a_click_says_why_a_source_went_back(
    tmp_path: Path, spark: SparkSession, start: Start, look: Look
) -> None:
    pipeline = went_back(tmp_path, spark)
    served = start(tmp_path / "lake")
    # a phone, too: it has room for the question and both answers
    small = look(phone=True)
    for address in ("", "/pipelines/shop", "/tables/public_orders"):
        small.open(f"{served.url}{address}")
        expect(small.page.get_by_role("button", name="Another server took over…")).to_be_visible()
        expect(small.page.get_by_role("button", name="Old events were sent again…")).to_be_visible()
        wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        assert small.page.evaluate(wide)
    small.shoot("went-back-phone")

    shown = look()
    shown.open(f"{served.url}/tables/public_orders")
    page = shown.page
    banner = page.locator("main .banner .went-back")
    # the evidence of the first batch, though a later one waits behind it
    expect(banner.locator("li").first).to_contain_text("shop.public.orders/0/3")
    expect(banner).to_contain_text("9001")
    expect(banner).to_contain_text("2026-07-01 10:00:00 UTC")
    expect(page.get_by_role("button", name="Resume…")).to_have_count(0)
    shown.shoot("went-back")
    page.get_by_role("button", name="Another server took over…").click()
    expect(page.locator("dialog")).to_contain_text("count as newer")
    expect(page.locator("dialog .verdict")).to_have_text(
        "2 batches with 3 records would be published.", timeout=MOST_MILLISECONDS
    )
    shown.shoot("went-back-confirm")
    page.locator("#confirm").click()
    expect(page.locator("dialog .verdict")).to_contain_text(
        "2 of 2 batches with 3 records published.", timeout=MOST_MILLISECONDS
    )
    page.get_by_role("button", name="Close").click()
    expect(page.locator("main .banner")).to_have_count(0)
    assert shown.errors + small.errors == []
    assert waiting(pipeline) == []
    assert prices(tmp_path) == {1: 7, 2: 7, 3: 8}
    assert pipeline.ledger().totals("shop") == Counts(read=6, written=6)
    (done,) = [job for job in served.get("/api/jobs")["jobs"] if not job["dry_run"]]
    assert done["wish"]["source_was"] == "replaced"
