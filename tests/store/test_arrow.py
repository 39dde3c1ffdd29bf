from __future__ import annotations

import os

import pyarrow.fs as pa_fs
import pytest

from distributary.errors import ConfigError
from distributary.source.files.bytes import BucketFiles, LocalFiles
from distributary.source.files.source import files_at
from distributary.store.bucket import _Known, arrow_file_system, azure_arguments, s3_arguments


def test_an_address_is_a_folder_or_a_bucket() -> None:
    assert files_at("file:///data/in", {}) == LocalFiles("/data/in")
    assert files_at("/data/in", {}) == LocalFiles("/data/in")
    bucket = files_at("s3://bucket/in/", {"aws_region": "x", "aws_secret_access_key": "canary"})
    assert isinstance(bucket, BucketFiles)
    assert bucket.address == "s3://bucket/in"
    assert "canary" not in repr(bucket)


def test_settings_of_s3_come_from_the_file_or_the_environment() -> None:
    given = {"AWS_ACCESS_KEY_ID": "a", "secret_access_key": "b", "aws_region": "eu-central-1"}
    environ = {"AWS_REGION": "us-west-1", "AWS_SESSION_TOKEN": "t"}
    assert s3_arguments(_Known(given, environ)) == {
        "access_key": "a",
        "secret_key": "b",
        "session_token": "t",
        "region": "eu-central-1",
    }
    assert s3_arguments(_Known({}, {})) == {}
    server = {"aws_endpoint_url": "http://127.0.0.1:9000", "aws_skip_signature": "true"}
    assert s3_arguments(_Known(server, {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "1"})) == {
        "scheme": "http",
        "endpoint_override": "127.0.0.1:9000",
        "region": "us-east-1",
        "anonymous": True,
        "force_virtual_addressing": True,
    }


def test_settings_of_azure() -> None:
    given = {"azure_storage_account_key": "k", "tenant_id": "t"}
    assert azure_arguments(_Known(given, {}), "acc.dfs.core.windows.net") == {
        "account_name": "acc",
        "account_key": "k",
        "tenant_id": "t",
    }
    with pytest.raises(ConfigError):
        azure_arguments(_Known({}, {}), "")


def test_each_scheme_has_its_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    key = {"account_key": "a2V5", "account_name": "acc"}
    for address, options, kind, path in [
        ("s3://b/in/x/", {"region": "eu-west-1"}, pa_fs.S3FileSystem, "b/in/x"),
        ("s3a://b", {"region": "eu-west-1"}, pa_fs.S3FileSystem, "b"),
        ("gs://b/in", {"google_skip_signature": "true"}, pa_fs.GcsFileSystem, "b/in"),
        ("abfss://c@acc.dfs.core.windows.net/in", key, pa_fs.AzureFileSystem, "c/in"),
        ("abfss://c/in", key, pa_fs.AzureFileSystem, "c/in"),
    ]:
        system, inside = arrow_file_system(address, options, {})
        assert (type(system), inside) == (kind, path)


def test_googles_credentials_are_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "other.json")
    options = {"google_service_account_path": "key.json", "google_skip_signature": "yes"}
    arrow_file_system("gs://b", options, {})
    assert os.environ["GOOGLE_APPLICATION_CREDENTIALS"] == "key.json"
    with pytest.raises(ConfigError):
        arrow_file_system("gs://b", {"google_service_account_key": "{}"}, {})
