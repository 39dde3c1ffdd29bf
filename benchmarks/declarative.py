"""Suite `declarative`: orders of 20 types into a table each, by Spark Declarative Pipelines.

Both sides are commands, timed from their start to their end, on one topic that is full: an update
of a project with a streaming table for each type, which reads the topic, takes its own records and
decodes them with `from_json`; and `distributary run --available-now`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pyspark

from benchmarks.baseline import expect_rows
from benchmarks.engine import DRIVER_MEMORY, MASTER, kafka_pipeline
from benchmarks.json_orders import ORDER_COLUMNS, order_types, own_field, prepared
from benchmarks.order import Order, Pair, Row, Suite
from benchmarks.topic import PARTITIONS
from benchmarks.usage import cpu_seconds
from distributary.spark.jars import ensure_connectors

_PATIENCE_SECONDS = 900
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # a table that names its format cannot be updated a second time with Delta
    "spark.sql.sources.default": "delta",
}
_TABLES = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


def define(name, schema):
    @dp.table(name=name)
    def flow():
        text = F.col("value").cast("string")
        raw = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", {servers!r})
            .option("subscribe", {topic!r})
            .option("startingOffsets", "earliest")
            .load()
        )
        mine = raw.filter(F.get_json_object(text, "$.event") == name)
        return mine.select(
            F.from_json(text, schema).alias("record"), "topic", "partition", "offset", "timestamp"
        ).select("record.*", "topic", "partition", "offset", "timestamp")


for name, schema in {schemas!r}.items():
    define(name, schema)
"""


def direct_case(order: Order) -> Row:
    """Our engine as a command, until the topic is read to its end."""
    path = kafka_pipeline(
        order,
        name="direct",
        message="payload: {format: json}",
        tables='{each: "{field:event}"}',
        schemas=False,
    )
    command = [sys.executable, "-m", "distributary", "run", str(path), "--available-now", "-q"]
    return _timed(order, command, cwd=order.root, lake=order.root / "direct")


def declarative_case(order: Order) -> Row:
    """One update by Spark's own program."""
    project = order.root / "project"
    _write(project, order)
    program = Path(sysconfig.get_path("scripts"), "spark-pipelines")
    return _timed(
        order,
        [str(program), "--remote", MASTER, "run"],
        cwd=project,
        lake=project / "spark-warehouse",
        # Spark's script looks for both with the `python3` of the path
        environment={
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(project / "conf"),
        },
    )


def _write(project: Path, order: Order) -> None:
    for folder in ("flows", "conf"):
        (project / folder).mkdir(parents=True)
    settings = {
        **_DELTA,
        # two JVMs begin one after the other, and both need them
        "spark.driver.extraClassPath": ":".join(str(jar) for jar in ensure_connectors()),
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.sql.shuffle.partitions": str(PARTITIONS),
    }
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    (project / "conf" / "spark-defaults.conf").write_text(lines)
    (project / "spark-pipeline.yml").write_text(
        f"name: orders\nstorage: {project.as_uri()}/storage\n"
        "libraries:\n  - glob: {include: flows/**}\n"
    )
    schemas = {
        name: f"event string, {ORDER_COLUMNS}, {own_field(name)} string"
        for name in order_types(order)
    }
    (project / "flows" / "orders.py").write_text(
        _TABLES.format(servers=order.servers, topic=order.topic, schemas=schemas)
    )


def _timed(
    order: Order,
    command: Sequence[str],
    *,
    cwd: Path,
    lake: Path,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Row:
    records = order.records * order.all_batches
    spent, began = cpu_seconds(), time.monotonic()
    subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        timeout=_PATIENCE_SECONDS,
        check=True,
    )
    seconds = time.monotonic() - began
    spent = cpu_seconds() - spent
    expect_rows(lake, records)
    return {
        "rows_per_second": round(records / seconds),
        "seconds_per_batch": round(seconds, 2),
        "cpu_seconds": round(spent, 1),
        "batches": 1,
    }


SUITE = Suite(
    name="declarative",
    tables=(20,),
    prepared=prepared,
    cases={"direct": direct_case, "spark-pipelines": declarative_case},
    pairs=(Pair("direct_vs_declarative", "direct", "spark-pipelines"),),
)
