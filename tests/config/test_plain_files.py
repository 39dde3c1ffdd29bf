"""Files of records: a source of files in a pipeline without change data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.file.document import Problem
from distributary.config.load import Loaded
from distributary.config.sources.file_pattern import PathPattern
from distributary.config.sources.files import FilesSourceConfig

Load = Callable[..., Loaded]
Problems = Callable[..., list[Problem]]

PIPELINE = """\
name: plain
source:
  type: files
  path: ./in
  format: csv
tables:
  each: "silver_{type}"
lake:
  path: ./lake
"""


def test_without_change_data_files_are_plain_and_name_the_type(loaded: Load) -> None:
    config = loaded(PIPELINE).config
    assert isinstance(config.source, FilesSourceConfig)
    assert (config.source.layout, config.source.null_text) == ("plain", "")
    assert config.envelope is not None
    assert (config.envelope.type, config.infers) == ("{key}", True)


@pytest.mark.parametrize(("format_", "payload"), [("parquet", "avro"), ("json", "json")])
def test_files_with_schemas_have_typed_records(loaded: Load, format_: str, payload: str) -> None:
    config = loaded(PIPELINE, overrides={"source.format": format_}).config
    assert config.records.format == payload


def test_a_field_may_name_the_type(loaded: Load) -> None:
    config = loaded(PIPELINE, overrides={"tables.each": "ev_{field:event}"}).config
    assert config.envelope is not None
    assert (config.envelope.type, config.tables.each) == ("event", "ev_{type}")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"source.layout": "datastream", "source.format": "json"}, "source"),
        ({"source.pattern": "{name}.csv"}, "source.pattern"),
        ({"source.pattern": "/abs/{type}.csv"}, "source.pattern"),
        ({"source.pattern": "../{type}.csv"}, "source.pattern"),
        ({"source.pattern": "{type}/{type}.csv"}, "source.pattern"),
        ({"source.csv_delimiter": ";;"}, "source.csv_delimiter"),
        ({"source.csv_delimiter": "\n"}, "source.csv_delimiter"),
        ({"source.csv_quote": ","}, "source.csv_quote"),
        ({"payload": {"format": "json"}}, "payload"),
        ({"source.format": "parquet", "envelope": {"format": "json", "type": "a"}}, "envelope"),
        ({"cdc": {"format": "datastream"}, "source.pattern": "*.csv"}, "source.pattern"),
        ({"cdc": {"format": "datastream"}, "source.layout": "plain"}, "source"),
    ],
)
def test_what_cannot_be_is_refused(
    problems_of: Problems, changes: dict[str, Any], path: str
) -> None:
    assert path in [problem.path for problem in problems_of(PIPELINE, overrides=changes)]


@pytest.mark.parametrize(
    ("pattern", "path", "type_"),
    [
        ("{type}/**/*.csv", "orders/a.csv", "orders"),
        ("{type}/**/*.csv", "orders/2026/11/a.csv", "orders"),
        ("{type}/*.csv", "orders/2026/a.csv", None),
        ("export_{type}_*.json", "export_orders_2026_1.json", "orders"),
        ("**/{type}.parquet", "x/y/users.parquet", "users"),
        ("*.csv", "a.csv", None),
        ("{type}.csv", "a.CSV", None),
        ("{type}.csv", "a\nb.csv", "a\nb"),
    ],
)
def test_a_pattern_names_the_type(pattern: str, path: str, type_: str | None) -> None:
    assert PathPattern(pattern).type_of(path) == type_


@given(st.text(st.characters(exclude_characters="/"), min_size=1))
def test_any_name_without_a_slash_is_a_type(name: str) -> None:
    assert PathPattern("in/{type}/*").type_of(f"in/{name}/x") == name
    assert PathPattern("**").matches(name)
