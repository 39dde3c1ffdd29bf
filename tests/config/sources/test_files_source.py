from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from distributary.config.file.document import Problem
from distributary.config.load import Loaded
from distributary.config.sources.files import FilesSourceConfig

Load = Callable[..., Loaded]
Problems = Callable[..., list[Problem]]

PIPELINE = """\
name: replica
source:
  type: files
  path: ./in
cdc:
  format: datastream
tables:
  each: "{table}"
lake:
  path: ./lake
"""


def files(load: Load, **settings: object) -> FilesSourceConfig:
    config = load(PIPELINE, overrides={f"source.{k}": v for k, v in settings.items()}).config
    assert isinstance(config.source, FilesSourceConfig)
    return config.source


def test_defaults(loaded: Load) -> None:
    source = files(loaded)
    assert (source.include, source.exclude, source.start_date) == ((), (), None)
    assert (source.settle, source.max_bytes_per_batch) == (timedelta(seconds=2), 1 << 30)
    assert source.max_unpacked_bytes == 1 << 30
    assert source.storage_options == {}


def test_every_setting(loaded: Load) -> None:
    source = files(
        loaded,
        include="shop_*, crm_users",
        exclude=["shop_audit"],
        start_date="2024-01-31",
        settle="500ms",
        max_bytes_per_batch="64MiB",
        storage_options={"aws_region": "eu-central-1"},
    )
    assert source.include == ("shop_*", "crm_users")
    assert source.exclude == ("shop_audit",)
    assert source.start_date == datetime(2024, 1, 31, tzinfo=UTC)
    assert source.settle == timedelta(milliseconds=500)
    assert source.max_bytes_per_batch == 64 << 20
    told = {name: value.get_secret_value() for name, value in source.storage_options.items()}
    assert told == {"aws_region": "eu-central-1"}
    assert "eu-central-1" not in repr(source), "nobody knows which of them are secrets"


BUCKET = {"source.discovery": "discovery-bucket", "source.bucket": "gs://changes"}
QUEUE = {"bootstrap_servers": "broker:9092", "topic": "events"}
JAVA = {"protocol": "SASL_SSL", "mechanism": "AWS_MSK_IAM"}
AT = "source.notifications"


def test_new_files_are_announced_by_a_topic(loaded: Load) -> None:
    login = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "u", "password": "CANARY"}
    changes = BUCKET | {"source.notifications": QUEUE | {"security": login}}
    config = loaded(PIPELINE, overrides=changes).config
    assert isinstance(config.source, FilesSourceConfig)
    queue = config.source.notifications
    assert queue is not None and queue.list_every == timedelta(hours=1)
    assert queue.client_options()["sasl.password"] == "CANARY"
    assert "CANARY" not in repr(config)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"source.path": "s3://bucket/in"}, "source.path"),
        ({"source.path": None}, "source"),
        ({"source.discovery": "discovery-bucket"}, "source.discovery"),
        ({"source.start_date": "yesterday"}, "source.start_date"),
        ({"source.settle": "soon"}, "source.settle"),
        ({"source.max_bytes_per_batch": 0}, "source.max_bytes_per_batch"),
        ({"source.max_files_per_batch": 0}, "source.max_files_per_batch"),
        ({"source.max_unpacked_bytes": 0}, "source.max_unpacked_bytes"),
        ({"source.include": ["a\nb"]}, "source.include[0]"),
        ({"source.format": "csv"}, "source.format"),
        ({"source.notifications": QUEUE}, "source.notifications"),
        (BUCKET | {"source.notifications": QUEUE | {"list_every": "0s"}}, f"{AT}.list_every"),
        (BUCKET | {"source.notifications": {"topic": "events"}}, f"{AT}.bootstrap_servers"),
        (
            BUCKET | {"source.notifications": QUEUE | {"security": JAVA}},
            f"{AT}.security.mechanism",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    problems_of: Problems, changes: dict[str, Any], path: str
) -> None:
    assert path in [problem.path for problem in problems_of(PIPELINE, overrides=changes)]
