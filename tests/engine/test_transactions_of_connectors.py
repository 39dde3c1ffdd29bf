"""Real transactions of PostgreSQL over Debezium and Kafka: no batch has a part of one."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary import Lake
from distributary_lab.services.services import Services
from tests.lakes.debezium import Shop
from tests.services.debezium import Debezium, avro_events, json_events
from tests.services.postgres import Postgres

ENDS = {"provide.transaction.metadata": "true"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["json", "avro"])
def test_batches_while_a_database_is_written_have_whole_transactions(
    kind: str,
    services: Services,
    postgres: Postgres,
    debezium: Debezium,
    tmp_path: Path,
    tasks: SparkSession,
) -> None:
    is_avro = kind == "avro"
    payload = "{format: avro}" if is_avro else "{format: json}"
    cdc = ", transactions: {wait: 10m}"
    shop = Shop(services, postgres, debezium, tmp_path, payload=payload, cdc=cdc)
    shop.execute("insert into papers values (1, 'a', 500); insert into lines values (1, 1, 500)")
    settings = avro_events(services.registry) if is_avro else json_events(schemas=False)
    shop.follow(settings | ENDS)
    shop.arrived()

    def transfer() -> None:
        for n in range(30):
            shop.execute(
                f"begin; update papers set n = n - {n} where id = 1; "
                f"update lines set qty = qty + {n} where order_id = 1; commit"
            )

    writer = threading.Thread(target=transfer)
    writer.start()
    sums: list[int] = []
    pipeline = shop.pipeline()
    while writer.is_alive():
        pipeline.run(trigger="available_now", spark=tasks)
        sums.append(_sum(shop))
    writer.join()
    shop.arrived()
    while pipeline.run(trigger="available_now", spark=tasks).batches:
        sums.append(_sum(shop))
    assert set(sums) == {1_000}
    batches: dict[str, set[int]] = defaultdict(set)
    halves: Counter[str] = Counter()
    for table in ("papers_log", "lines_log"):
        path = shop.lake / f"{shop.schema}_{table}"
        for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist():
            block = json.loads(row["_envelope"]).get("transaction")
            if row["_op"] == "update" and block:
                number = block["id"].partition(":")[0]
                batches[number].add(row["_batch"])
                halves[number] += 1
    assert len(halves) == 30 and set(halves.values()) == {2}
    assert all(len(found) == 1 for found in batches.values())
    assert len({n for found in batches.values() for n in found}) > 1


def _sum(shop: Shop) -> int:
    papers, lines = (f"{shop.schema}_{name}" for name in ("papers", "lines"))
    query = f"select (select sum(n) from {papers}) + (select sum(qty) from {lines}) as total"
    (row,) = Lake(shop.lake).query(query).to_pylist()
    return int(row["total"])
