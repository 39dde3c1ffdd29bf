from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from distributary.config.load import load
from distributary.config.runtime import Trigger
from distributary.config.sources.delta import DeltaSourceConfig
from distributary.config.sources.files import FilesSourceConfig
from distributary.config.sources.kafka import KafkaSourceConfig

CASES = Path(__file__).parent / "cases"


def read(name: str, **environ: str) -> Any:
    return load(CASES / f"{name}.yaml", environ=environ).config


def test_every_case_loads_without_a_warning(case: Path, cloud: dict[str, str]) -> None:
    assert not load(case, environ=cloud).warnings


def test_games() -> None:
    config = read("games")
    assert isinstance(config.source, KafkaSourceConfig)
    assert config.source.topics == ("wrapper",)
    assert config.source.max_records_per_batch == 250_000
    assert config.registry.addresses == ("http://127.0.0.1:8081/apis/ccompat/v7",)
    assert (config.envelope.framing, config.envelope.type) == ("auto", "game_name")
    assert config.payload.framing == "none"
    assert config.tables.unified.name == "unified_gold"
    assert config.tables.metadata == (
        "topic",
        "partition",
        "offset",
        "timestamp",
        "schema_id",
        "batch",
    )
    assert config.checkpoint_path == "./lake/_checkpoints/games"
    assert config.trigger == Trigger.parse("available_now")
    assert config.limits.max_payload_bytes == 16 << 20


def test_games_delta() -> None:
    config = read("games-delta")
    assert isinstance(config.source, DeltaSourceConfig)
    assert (config.source.value, config.source.topic_name) == ("wrapper", "wrapper")
    assert config.topics == ("wrapper",)
    assert config.registry.path == "./schemas"
    assert config.lake.checkpoint == "./lake/_checkpoints"


def test_games_cloud(cloud: dict[str, str]) -> None:
    config = load(CASES / "games-cloud.yaml", environ=cloud).config
    assert isinstance(config.source, KafkaSourceConfig)
    options = config.source.spark_options()
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert 'password="canary-kafka-secret"' in options["kafka.sasl.jaas.config"]
    assert config.lake.database == "default"
    assert not config.lake.is_local
    assert config.lake.checkpoint == "s3://lake/games/_checkpoints"


def test_people_and_orders() -> None:
    people, orders = read("people", KAFKA_TOPIC="crowd"), read("orders")
    assert people.topics == ("crowd",)
    assert people.tables.fixed_names()["each"] == "unified_gold"
    assert str(people.trigger) == "continuous"
    assert orders.payload.validation == "registry"
    assert orders.tables.partition_by == ("_date",)
    assert orders.tables.metadata[-1] == "raw"
    assert orders.trigger.interval == timedelta(seconds=10)


def test_datastream() -> None:
    config = read("datastream")
    assert isinstance(config.source, FilesSourceConfig)
    assert config.source.bucket is None
    assert config.source.root == "./datastream"
    assert config.source.max_files_per_batch == 1000
    assert config.cdc.log is True
    assert config.tables.prefix == ""
    assert config.trigger.interval == timedelta(minutes=1)


def test_datastream_with_every_variable() -> None:
    config = read(
        "datastream",
        NAME="replica",
        DATASTREAM_TABLE_SOURCE_TYPE="discovery-bucket",
        BUCKET="gs://changes",
        SOURCE_PATH="/stream/",
        READ_FORMAT="json",
        FILE_READ_CONCURRENCY="10",
        GENERATE_LOG_TABLE="false",
        DELTA_SCHEMA_EVOLUTION_STRATEGY="none",
        DELTA_TABLE_NAME_PREFIX="ds_",
        DELTA_TABLE_PATH="/lake",
        CHECKPOINT_DIR="/checkpoints",
        DELTA_MERGE_FREQUENCY_MINUTES="5",
    )
    assert config.name == "replica"
    assert config.source.root == "gs://changes/stream"
    assert (config.source.format, config.source.max_files_per_batch) == ("json", 10)
    assert (config.cdc.log, config.cdc.evolution) == (False, "none")
    assert (config.tables.prefix, config.lake.path) == ("ds_", "/lake")
    assert config.checkpoint_path == "/checkpoints/replica"
    assert config.trigger.interval == timedelta(minutes=5)


def test_debezium() -> None:
    config = read("debezium")
    assert config.source.topic_pattern == r"shop\..*"
    assert config.topics == ()
    # json cannot start with the header's zero byte: bare or framed can be told apart
    assert config.payload.framing == "auto"


def test_loading_imports_nothing_heavy() -> None:
    code = (
        "import sys; from distributary.config import load;"
        "from distributary.config.file import show;"
        "heavy = {'pyspark', 'pyarrow', 'pandas', 'numpy', 'deltalake'} & set(sys.modules);"
        "print(*heavy, end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
