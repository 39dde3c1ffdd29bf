"""The pipeline file of the connector that this replaces: what each of its variables does."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.config.sources.files import FilesSourceConfig
from distributary.engine.loop import RunSummary
from distributary.engine.pipeline import Pipeline
from distributary_lab.simulate.cdc.shapes import CHAOS, CdcFormat, CdcPlan
from tests.decode.datastream_samples import TS, event
from tests.lakes.changes import Feed, events_left, put, rows_of
from tests.source.change_files import MINUTE, avro, lines
from tests.source.s3_server import BUCKET, s3_server

FILE = """\
name: ${env:NAME:-datastream-deltalake-connector}

source:
  type: files
  layout: datastream
  discovery: ${env:DATASTREAM_TABLE_SOURCE_TYPE:-local-directory}
  bucket: ${env:BUCKET:-}
  path: ${env:SOURCE_PATH:-./datastream}
  format: ${env:READ_FORMAT:-avro}
  max_files_per_batch: ${env:FILE_READ_CONCURRENCY:-1000}

cdc:
  format: datastream
  log: ${env:GENERATE_LOG_TABLE:-true}
  deletes: hard
  backfill: before_cdc
  evolution: ${env:DELTA_SCHEMA_EVOLUTION_STRATEGY:-mergeSchema}

tables:
  each: "{database}_{table}"
  prefix: ${env:DELTA_TABLE_NAME_PREFIX:-}

lake:
  path: ${env:DELTA_TABLE_PATH:-./lake}
  checkpoint: ${env:CHECKPOINT_DIR:-./lake/_checkpoints}

trigger: every ${env:DELTA_MERGE_FREQUENCY_MINUTES:-1}m
"""
VARIABLES = (
    "NAME",
    "DATASTREAM_TABLE_SOURCE_TYPE",
    "BUCKET",
    "SOURCE_PATH",
    "READ_FORMAT",
    "FILE_READ_CONCURRENCY",
    "GENERATE_LOG_TABLE",
    "DELTA_SCHEMA_EVOLUTION_STRATEGY",
    "DELTA_TABLE_NAME_PREFIX",
    "DELTA_TABLE_PATH",
    "CHECKPOINT_DIR",
    "DELTA_MERGE_FREQUENCY_MINUTES",
)


def load(root: Path, variables: Mapping[str, str], **overrides: object) -> Pipeline:
    """The file as a process with these variables reads it."""
    file = root / "datastream.yaml"
    file.write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        return Pipeline.load(file, **overrides)


def tables_in(lake: Path) -> set[str]:
    return {path.parent.name for path in lake.glob("[!_]*/_delta_log")}


def test_without_any_variable_chaos_in_the_working_directory_ends_in_the_truth(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    feed = Feed(tmp_path, CdcPlan(tables=3, events=90, rows=3, features=CHAOS))
    feed.send_all()
    pipeline = load(tmp_path, {})
    assert pipeline.config.name == "datastream-deltalake-connector"
    assert pipeline.run(trigger="available_now", spark=tasks).batches == 1
    assert (tmp_path / "lake" / "_checkpoints" / pipeline.config.name / "manifests").is_dir()
    for claim, expected in feed.stream.model.truth().items():
        feed.assert_same_rows(claim, feed.rows(f"shop_{claim.table}"), expected)
        assert len(feed.rows(f"shop_{claim.table}_log")) == feed.stream.sent().per_table[claim.text]


@dataclass(frozen=True)
class Ran:
    """A run with nearly every variable set."""

    root: Path
    pipeline: Pipeline
    summary: RunSummary

    @property
    def lake(self) -> Path:
        return self.root / "elsewhere" / "tables"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, tasks: SparkSession) -> Ran:
    root = tmp_path_factory.mktemp("connector")
    files = root / "incoming" / "stream" / "shop_orders" / MINUTE
    first, later = event(1), event(2, source_timestamp=TS + 60_000)
    later["payload"]["size"] = 7
    put(files / "a.jsonl", lines([first]))
    put(files / "b.jsonl", lines([later]))
    put(files / "c.jsonl", lines([event(3, source_timestamp=TS + 120_000)]))
    # a name that ends in .avro is no file of a source of JSON
    put(root / "incoming" / "stream" / "other.avro", avro([]))
    pipeline = load(
        root,
        {
            "NAME": "my-connector",
            "DATASTREAM_TABLE_SOURCE_TYPE": "local-directory",
            "SOURCE_PATH": str(root / "incoming" / "stream"),
            "READ_FORMAT": "json",
            "FILE_READ_CONCURRENCY": "1",
            "GENERATE_LOG_TABLE": "false",
            "DELTA_SCHEMA_EVOLUTION_STRATEGY": "none",
            "DELTA_TABLE_NAME_PREFIX": "raw_",
            "DELTA_TABLE_PATH": str(root / "elsewhere" / "tables"),
            "CHECKPOINT_DIR": str(root / "progress"),
            "DELTA_MERGE_FREQUENCY_MINUTES": "5",
        },
    )
    return Ran(root, pipeline, pipeline.run(trigger="available_now", spark=tasks))


def test_name_is_the_pipelines_in_its_summary_ledger_and_checkpoint(ran: Ran) -> None:
    assert ran.summary.pipeline == "my-connector"
    assert ran.pipeline.ledger().pipelines() == ("my-connector",)
    assert (ran.root / "progress" / "my-connector" / "life.json").exists()


def test_checkpoint_dir_holds_the_progress_and_the_lake_none(ran: Ran) -> None:
    assert len(list((ran.root / "progress").glob("*/manifests/0*.json"))) == 3
    assert not (ran.lake / "_checkpoints").exists()


def test_source_path_and_read_format_say_what_is_read(ran: Ran) -> None:
    assert ran.summary.counts.read == ran.summary.counts.written == 3
    assert {row["id"] for row in rows_of(ran.lake / "raw_shop_orders")} == {1, 2, 3}


def test_file_read_concurrency_bounds_the_files_of_a_batch(ran: Ran) -> None:
    assert ran.summary.batches == 3


def test_generate_log_table_false_keeps_no_log(ran: Ran) -> None:
    assert tables_in(ran.lake) == {"raw_shop_orders"}
    assert events_left(ran.lake) == []


def test_delta_table_name_prefix_is_in_front_of_every_table(ran: Ran) -> None:
    assert all(name.startswith("raw_") for name in tables_in(ran.lake))


def test_delta_table_path_is_where_the_tables_are(ran: Ran) -> None:
    assert tables_in(ran.lake)
    assert not (ran.root / "lake").exists()


def test_delta_schema_evolution_strategy_none_leaves_the_columns_as_they_were(ran: Ran) -> None:
    fields = DeltaTable(str(ran.lake / "raw_shop_orders")).schema().fields
    assert {field.name for field in fields} == {"id", "val", "_seq", "_source_ts"}


def test_delta_merge_frequency_minutes_is_the_time_between_batches(ran: Ran) -> None:
    assert ran.pipeline.config.trigger.interval == timedelta(minutes=5)


def test_table_source_type_and_bucket_read_from_an_object_store(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path, CdcPlan(tables=2, events=30, rows=3, format=CdcFormat.AVRO, rounds=1))
    (one,) = feed.stream.rounds()
    variables = {
        "DATASTREAM_TABLE_SOURCE_TYPE": "discovery-bucket",
        "BUCKET": f"s3://{BUCKET}",
        "SOURCE_PATH": "inside/it",
        "DELTA_TABLE_PATH": str(feed.lake),
        "CHECKPOINT_DIR": str(tmp_path / "progress"),
    }
    with s3_server() as server:
        for file in one.files:
            server.put(f"inside/it/{file.path}", file.data)
        pipeline = load(tmp_path, variables, **{"source.storage_options": server.options})
        assert isinstance(pipeline.config.source, FilesSourceConfig)
        assert pipeline.config.source.root == f"s3://{BUCKET}/inside/it"
        counts = pipeline.run(trigger="available_now", spark=tasks).counts
    assert counts.read == counts.written == feed.stream.sent().events
    for claim, expected in feed.stream.model.truth().items():
        feed.assert_same_rows(claim, feed.rows(f"shop_{claim.table}"), expected)


@pytest.mark.parametrize("strategy", ["mergeSchema", "overwriteSchema", "none"])
def test_every_strategy_and_both_answers_about_the_log_are_understood(
    tmp_path: Path, strategy: str
) -> None:
    for answer in ("true", "false"):
        variables = {"DELTA_SCHEMA_EVOLUTION_STRATEGY": strategy, "GENERATE_LOG_TABLE": answer}
        cdc = load(tmp_path, variables).config.cdc
        assert cdc is not None
        assert (cdc.evolution, cdc.log) == (strategy, answer == "true")
