"""Which credentials of the driver's environment tasks get."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distributary.store.environment import with_environment

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}


def test_the_variables_of_a_store_are_added() -> None:
    environ = {
        **KEYS,
        "AWS_REGION": "eu-central-1",
        "AZURE_STORAGE_ACCOUNT_KEY": "other",
        "HOME": "/",
    }
    assert with_environment({}, "s3://b/lake", "/progress", environ=environ) == {
        "aws_access_key_id": "a",
        "aws_secret_access_key": "s",
        "aws_session_token": "t",
        "aws_region": "eu-central-1",
    }
    assert with_environment({}, "abfss://c@a/lake", environ=environ) == {
        "azure_storage_account_key": "other"
    }
    assert with_environment({}, "/lake", environ=environ) == {}


@pytest.mark.parametrize("name", ["aws_access_key_id", "access_key_id", "AWS_SECRET_ACCESS_KEY"])
def test_credentials_of_the_file_are_never_mixed_with_others(name: str) -> None:
    environ = {**KEYS, "AWS_REGION": "eu-central-1"}
    assert with_environment({name: "own"}, "s3://b", environ=environ) == {
        name: "own",
        "aws_region": "eu-central-1",
    }


def test_a_setting_has_one_value_whatever_it_is_called() -> None:
    environ = {"AWS_ENDPOINT_URL": "http://one", "AWS_ENDPOINT": "http://two", "AWS_REGION": "here"}
    assert with_environment({"region": "there"}, "s3a://b", environ=environ) == {
        "region": "there",
        "aws_endpoint_url": "http://one",
    }


def test_the_key_of_a_service_account_travels_instead_of_its_path(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    key = json.dumps({"type": "service_account", "private_key": "p"})
    path.write_text(key)
    environ = {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}
    assert with_environment({}, "gs://b", environ=environ) == {"google_service_account_key": key}
    for text in ('{"type": "authorized_user"}', "[]", "no json"):
        path.write_text(text)
        assert with_environment({}, "gs://b", environ=environ) == {}
