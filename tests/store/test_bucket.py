"""Addresses, and how to log in to what is below them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from distributary.errors import ConfigError
from distributary.store import base
from distributary.store.base import (
    TransferError,
    Uploads,
    at,
    introduce,
    is_remote,
    without_secrets,
)
from distributary.store.bucket import Bucket, connected

SECRET = "canary-secret"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_OPTIONS", {})


@pytest.mark.parametrize(
    ("address", "remote"),
    [
        ("/lake", False),
        ("lake", False),
        ("file:///lake", False),
        ("file:/lake", False),
        ("s3://bucket/lake", True),
        ("gs://bucket", True),
        ("abfss://c@a.dfs.core.windows.net/lake", True),
    ],
)
def test_what_is_elsewhere(address: str, remote: bool) -> None:
    assert is_remote(address) is remote


def test_the_nearest_introduction_holds_and_only_below_it() -> None:
    introduce("s3://bucket/lake", {"aws_secret_access_key": SECRET})
    introduce("s3://bucket/lake/inner/", {"aws_secret_access_key": "inner-secret"})
    introduce("/folder", {"aws_secret_access_key": "nobody"})
    said = f"{SECRET} inner-secret"
    assert without_secrets(said, "s3://bucket/lake/chess") == "*** inner-secret"
    assert without_secrets(said, "s3://bucket/lake/inner/chess") == f"{SECRET} ***"
    assert without_secrets(said, "s3://bucket/lakes") == said
    assert without_secrets(said, "s3://other/lake") == said
    assert "/folder" not in base._OPTIONS


def test_an_address_of_nothing_known_is_refused() -> None:
    with pytest.raises(ConfigError):
        at("ftp://host/lake")


@pytest.mark.parametrize(
    ("address", "options", "kind"),
    [
        ("s3://b/in/x/", {"region": "eu-west-1", "of_another_library": "x"}, "S3Store"),
        ("s3a://b", {"AWS_REGION": "eu-west-1"}, "S3Store"),
        ("gs://b/in", {"google_skip_signature": "true"}, "GCSStore"),
        ("abfss://c@acc.dfs.core.windows.net/in", {"account_key": "a2V5"}, "AzureStore"),
        ("abfss://c/in", {"account_key": "a2V5", "account_name": "acc"}, "AzureStore"),
    ],
)
def test_each_scheme_has_its_store(address: str, options: dict[str, str], kind: str) -> None:
    assert type(Bucket(address, options).connection).__name__ == kind


def test_a_server_of_ones_own_may_be_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    connected.cache_clear()
    try:
        assert connected("s3", "b", ()).client_options == {"allow_http": "true"}
    finally:
        connected.cache_clear()


def test_settings_that_make_no_sense_are_told_without_secrets() -> None:
    options = {"aws_secret_access_key": SECRET, "aws_allow_http": SECRET}
    with pytest.raises(ConfigError) as told:
        Bucket("s3://b", options)
    assert SECRET not in str(told.value)


def test_many_files_at_once_and_a_failure_is_told_by_name(tmp_path: Path) -> None:
    uploads = Uploads()
    for number in range(200):
        uploads.put(f"{tmp_path}/{number}", pa.py_buffer(b"x" * number))
    uploads.finish()
    sizes = sorted(info.size for info in at(tmp_path).files())
    assert sizes == list(range(200))
    (tmp_path / "file").write_bytes(b"")
    uploads.put(f"{tmp_path}/file/x", pa.py_buffer(b"x"))
    with pytest.raises(TransferError, match="file/x: "):
        uploads.finish()
    for _ in range(3):
        uploads.put(f"{tmp_path}/file/x", pa.py_buffer(b"x"))
    uploads.forget()
    # the next task begins with nothing
    uploads.finish()
