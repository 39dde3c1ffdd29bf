"""Whole runs on a store with faults, and on a real S3 server: every record once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from distributary.store import base
from distributary_lab.simulate.game_records import GamesPlan
from tests.engine.test_object_store import Store, server
from tests.lakes.games import Games
from tests.services.faulty_store import faulty_store
from tests.services.shared import unique
from tests.services.stores import versitygw
from tests.source.s3_server import BUCKET, S3Server
from tests.store.test_faults import quick_retries

__all__ = ["quick_retries", "server"]
pytestmark = [pytest.mark.spark, pytest.mark.slow]
PLAN = GamesPlan(games=2, versions=2, records=8, bad=3)
EACH = "{each: 'silver_{type}'}"
PATIENT = "run: {batch_attempts: 8, publish_attempts: 8}"

KINDS: dict[str, dict[str, Any]] = {
    "slow": {"slow": 0.1},
    "slow down": {"slow_down": 0.15},
    "lost answers": {"lost": 0.1},
    "our own put refuses us": {"own_412": 0.3},
    # in the middle of the first batches: long enough that a batch fails, and is done again
    "an old token": {"expired": (60, 68)},
}


@pytest.fixture(autouse=True)
def _strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_OPTIONS", {})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "tables", [EACH, f"{EACH[:-1]}, format: parquet}}"], ids=["delta", "plain"]
)
def test_a_run_on_a_store_with_faults_is_exact(
    server: S3Server, spark: SparkSession, tmp_path: Path, kind: str, tables: str
) -> None:
    games = Games(tmp_path, PLAN, records_per_file=6)
    store = Store(games, server, f"s3://{BUCKET}/{unique('faults')}")
    games.send_all()
    with faulty_store(server.port, **KINDS[kind]) as proxy:
        endpoint = proxy.before({})
        pipeline = store.pipeline(tables=tables, extra=PATIENT, batch=12, **endpoint)
        assert pipeline.run(spark=spark).batches > 1
        met = proxy.met()
        assert met.total() > met["good"], met
    # asked without the proxy
    store.pipeline(tables=tables)
    store.assert_each_record_once()


def test_a_run_on_a_real_server_is_exact(spark: SparkSession, tmp_path: Path) -> None:
    with versitygw(tmp_path) as real:
        there = S3Server(real.port)
        assert there.options == real.options
        games = Games(tmp_path, PLAN, records_per_file=6)
        store = Store(games, there, f"s3://{BUCKET}/lake")
        while games.send_round() is not None:
            assert store.pipeline(batch=12).run(spark=spark).batches > 1
        store.assert_each_record_once()
