"""The pipeline file with the environment variables of the reference system: each is set."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from distributary.config.load import load
from distributary.config.pipeline_config import PipelineConfig
from distributary.config.sources.files import FilesSourceConfig
from tests.docs.pages import ROOT

FILE = ROOT / "examples" / "datastream" / "datastream.yaml"
BUCKET = {"DATASTREAM_TABLE_SOURCE_TYPE": "discovery-bucket", "BUCKET": "gs://changes"}


def source_of(config: PipelineConfig) -> FilesSourceConfig:
    assert isinstance(config.source, FilesSourceConfig)
    return config.source


@pytest.mark.parametrize(
    ("environ", "setting", "value"),
    [
        ({"NAME": "shop"}, lambda c: c.name, "shop"),
        (BUCKET, lambda c: source_of(c).discovery, "discovery-bucket"),
        (BUCKET, lambda c: source_of(c).root, "gs://changes/datastream"),
        ({"SOURCE_PATH": "/files"}, lambda c: source_of(c).root, "/files"),
        ({"READ_FORMAT": "json"}, lambda c: source_of(c).format, "json"),
        ({"FILE_READ_CONCURRENCY": "2"}, lambda c: source_of(c).max_files_per_table, 2),
        ({"GENERATE_LOG_TABLE": "false"}, lambda c: c.cdc.log, False),
        ({"DELTA_SCHEMA_EVOLUTION_STRATEGY": "none"}, lambda c: str(c.cdc.evolution), "none"),
        ({"DELTA_TABLE_NAME_PREFIX": "raw_"}, lambda c: c.tables.prefix, "raw_"),
        ({"DELTA_TABLE_PATH": "/delta"}, lambda c: c.lake.path, "/delta"),
        ({"CHECKPOINT_DIR": "/progress"}, lambda c: c.lake.checkpoint, "/progress"),
        ({"DELTA_MERGE_FREQUENCY_MINUTES": "5"}, lambda c: str(c.trigger), "every 5m"),
    ],
)
def test_each_variable_sets_what_it_is_named_after(
    environ: dict[str, str], setting: Callable[[PipelineConfig], object], value: object
) -> None:
    assert setting(load(FILE, environ={}).config) != value
    assert setting(load(FILE, environ=environ).config) == value


def test_no_variable_is_left_out_of_the_test() -> None:
    text = Path(__file__).read_text("utf-8")
    names = set(re.findall(r"\$\{env:([A-Z_]+)", FILE.read_text("utf-8")))
    assert len(names) == 12
    assert not {name for name in names if f'"{name}"' not in text}
