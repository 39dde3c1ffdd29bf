"""The orders of docker-compose.yml, by the same processes without containers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from ruamel.yaml import YAML

from distributary.engine.pipeline import Pipeline
from distributary.errors import ErrorCode
from tests.cli.conftest import Cli
from tests.services.shared import unique

if TYPE_CHECKING:
    from tests.services.secured import SecuredServices

pytestmark = pytest.mark.services

ROOT = Path(__file__).parents[3]


def test_both_producers_of_orders_end_in_one_lake(
    cli: Cli, services: SecuredServices, tasks: SparkSession, tmp_path: Path
) -> None:
    containers = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
    here = {
        "kafka:9094": services.kafka,
        "http://registry:8081/apis/ccompat/v7": services.registry,
        "dev.orders": unique("orders"),
        "/lake": str(tmp_path / "lake"),
        "continuous": "available_now",
    }

    def moved(text: str) -> str:
        for inside, outside in here.items():
            text = text.replace(inside, outside)
        return text

    sent: dict[str, dict[str, Any]] = {}
    for name in ("orders", "orders-unframed"):
        words = moved(containers[name]["command"]).split()
        pace = words.index("--rate")
        del words[pace : pace + 2]
        result = cli(*words, "--topic", here["dev.orders"], "--json")
        assert result.code == 0, result.err
        sent[name] = result.json
    assert (sent["orders"]["good"], sent["orders"]["messages"]) == (1020, 1020)
    assert (sent["orders-unframed"]["good"], sent["orders-unframed"]["messages"]) == (0, 20)

    file = tmp_path / "orders.yaml"
    file.write_text(moved((ROOT / "examples" / "compose" / "orders.yaml").read_text()))
    counts = Pipeline.load(file).run(spark=tasks).counts
    assert (counts.read, counts.written, counts.dead_lettered) == (1040, 1020, 20)
    (table,) = (tmp_path / "lake").glob("*orders*")
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == sent["orders"]["rows"]
    letters = DeltaTable(str(tmp_path / "lake" / "dead_letters")).to_pyarrow_table()
    assert set(letters["error_code"].to_pylist()) == {str(ErrorCode.BAD_MAGIC)}
