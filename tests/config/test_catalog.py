"""The catalog of a pipeline file: what it may be, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from distributary.config.catalog import HiveCatalogConfig
from distributary.config.file.document import Problem
from distributary.config.file.show import as_json
from distributary.config.load import Loaded

Load = Callable[..., Loaded]
Problems = Callable[..., list[Problem]]

UNITY = {"type": "unity", "url": "http://h:8080", "name": "main", "schema": "games"}
HIVE = {"type": "hive", "schema": "games"}
GLUE = {"type": "glue", "schema": "games"}
SPARK = {"type": "spark", "schema": "games"}
S3 = {"lake.path": "s3://bucket/lake"}
PARQUET = {"tables.format": "parquet"}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"lake.database": "games"}, ("games",)),
        ({"lake.catalog": SPARK}, ("games",)),
        ({"lake.catalog": SPARK | {"name": "main"}}, ("main", "games")),
        ({"lake.catalog": HIVE | {"uri": "thrift://a:9083,thrift://b"}}, ("games",)),
        ({"lake.catalog": UNITY}, ("main", "games")),
        ({"lake.catalog": GLUE, **S3}, ("games",)),
        ({"lake.catalog": SPARK, **PARQUET}, ("games",)),
        ({"lake.database": "games", "spark.remote": "sc://h"}, ("games",)),
    ],
)
def test_full_names(loaded: Load, changes: dict[str, Any], names: tuple[str, ...]) -> None:
    catalog = loaded(overrides=changes).config.lake.registered_in
    assert catalog is not None
    assert catalog.names == names


def test_without_one_there_is_none(loaded: Load) -> None:
    assert loaded().config.lake.registered_in is None


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"lake.catalog": SPARK, "lake.database": "x"}, "lake.database"),
        ({"lake.catalog": {"type": "nessie", "schema": "x"}}, "lake.catalog"),
        ({"lake.catalog": {"type": "spark"}}, "lake.catalog.schema"),
        ({"lake.catalog": SPARK | {"schema": "a.b"}}, "lake.catalog.schema"),
        ({"lake.catalog": SPARK | {"schema": "a-b"}}, "lake.catalog.schema"),
        ({"lake.catalog": HIVE | {"schema": "a@b"}}, "lake.catalog.schema"),
        ({"lake.catalog": HIVE | {"uri": "http://h"}}, "lake.catalog.uri"),
        ({"lake.catalog": HIVE, "spark.remote": "sc://h"}, "lake.catalog"),
        (
            {"lake.catalog": HIVE, "spark.conf": {"spark.sql.catalogImplementation": "in-memory"}},
            "spark.conf.spark.sql.catalogImplementation",
        ),
        ({"lake.catalog": HIVE | {"name": "main"}}, "lake.catalog.name"),
        ({"lake.catalog": UNITY | {"name": "a;b"}}, "lake.catalog.name"),
        ({"lake.catalog": UNITY | {"url": "ftp://h"}}, "lake.catalog.url"),
        ({"lake.catalog": UNITY | {"url": "http://u:p@h"}}, "lake.catalog.url"),
        ({"lake.catalog": UNITY | {"token": "two\nlines"}}, "lake.catalog.token"),
        ({"lake.catalog": UNITY, **PARQUET}, "tables.format"),
        ({"lake.catalog": SPARK | {"name": "main"}, **PARQUET}, "tables.format"),
        ({"lake.catalog": GLUE}, "lake.catalog"),
        ({"lake.catalog": GLUE | {"schema": "Games"}, **S3}, "lake.catalog.schema"),
        ({"lake.catalog": GLUE | {"catalog_id": "12"}, **S3}, "lake.catalog.catalog_id"),
        ({"lake.catalog": SPARK | {"scheme": "s3a://"}}, "lake.catalog.scheme"),
        (
            {
                "lake.catalog": UNITY,
                "deploy": {"databricks": {"serverless": True, "catalog": "other"}},
            },
            "deploy.databricks.catalog",
        ),
    ],
)
def test_what_cannot_work_is_refused(
    problems_of: Problems, minimal: str, changes: dict[str, Any], path: str
) -> None:
    found = [problem.path for problem in problems_of(minimal, overrides=changes)]
    assert any(each == path or each.startswith(f"{path}.") for each in found), found


def test_a_token_is_never_shown(loaded: Load) -> None:
    found = loaded(overrides={"lake.catalog": UNITY | {"token": "canary-unity"}})
    assert "canary-unity" not in json.dumps(as_json(found)) + repr(found.config)
    assert "canary-unity" not in found.mask("Bearer canary-unity")


def test_a_metastore_is_put_into_the_session() -> None:
    catalog = HiveCatalogConfig.model_validate(
        HIVE | {"uri": "thrift://a:1, thrift://b,thrift://[::1]:3"}
    )
    assert catalog.spark_conf["spark.sql.catalogImplementation"] == "hive"
    assert catalog.addresses == (("a", 1), ("b", 9083), ("::1", 3))
