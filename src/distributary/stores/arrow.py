"""The settings of an object store, by the names that `deltalake` knows, in Arrow's words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs as pa_fs

from distributary.errors import ConfigError

_S3 = {
    "access_key": ("aws_access_key_id", "access_key_id"),
    "secret_key": ("aws_secret_access_key", "secret_access_key"),
    "session_token": ("aws_session_token", "aws_token", "session_token", "token"),
    "region": ("aws_region", "region", "aws_default_region", "default_region"),
}
_S3_ENDPOINT = ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint", "endpoint")
_S3_ANONYMOUS = ("aws_skip_signature", "skip_signature")
_S3_VIRTUAL = ("aws_virtual_hosted_style_request", "virtual_hosted_style_request")
_GCS_CREDENTIALS = (
    "google_service_account",
    "google_service_account_path",
    "service_account_path",
    "service_account",
    "google_application_credentials",
    "application_credentials",
)
_GCS_KEY = ("google_service_account_key", "service_account_key")
_GCS_ANONYMOUS = ("google_skip_signature", "skip_signature")
_AZURE_ACCOUNT = ("azure_storage_account_name", "account_name")
_AZURE = {
    "account_key": (
        "azure_storage_account_key",
        "azure_storage_access_key",
        "account_key",
        "access_key",
    ),
    "sas_token": ("azure_storage_sas_token", "azure_storage_sas_key", "sas_token", "sas_key"),
    "client_id": ("azure_storage_client_id", "azure_client_id", "client_id"),
    "client_secret": ("azure_storage_client_secret", "azure_client_secret", "client_secret"),
    "tenant_id": ("azure_storage_tenant_id", "azure_tenant_id", "tenant_id", "authority_id"),
}
_TRUE = ("true", "1", "yes", "on", "t", "y")


def arrow_file_system(
    address: str, options: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[Any, str]:
    """Arrow's file system for an address, and the path of the address in it."""
    parts = urlsplit(address)
    known = _Known(options, environ)
    inside = parts.path.strip("/")
    bucket = parts.netloc
    match parts.scheme:
        case "s3" | "s3a":
            system = pa_fs.S3FileSystem(**s3_arguments(known))
        case "gs":
            system = pa_fs.GcsFileSystem(anonymous=_gcs_anonymous(known))
        case "abfs" | "abfss" | "az" | "azure" | "adl":
            bucket, _, host = bucket.rpartition("@") if "@" in bucket else (bucket, "", "")
            system = pa_fs.AzureFileSystem(**azure_arguments(known, host))
        case scheme:
            raise ConfigError(
                f"no object store has addresses with {scheme}://",
                evidence=address,
                next_step="s3://, gs:// and abfss:// are known, and folders",
            )
    return system, f"{bucket}/{inside}" if inside else bucket


class _Known:
    """Settings by name, in any case; what the pipeline file says comes before the environment."""

    def __init__(self, options: Mapping[str, str], environ: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._environ = environ

    def __call__(self, names: tuple[str, ...]) -> str | None:
        for name in names:
            if self._options.get(name):
                return self._options[name]
        return next((self._environ[n.upper()] for n in names if self._environ.get(n.upper())), None)

    def flag(self, names: tuple[str, ...]) -> bool:
        return (self(names) or "").lower() in _TRUE


def s3_arguments(known: _Known) -> dict[str, Any]:
    """What Arrow's S3 file system is told."""
    given: dict[str, Any] = {argument: known(names) for argument, names in _S3.items()}
    if known.flag(_S3_ANONYMOUS):
        given["anonymous"] = True
    if known.flag(_S3_VIRTUAL):
        given["force_virtual_addressing"] = True
    endpoint = known(_S3_ENDPOINT)
    if endpoint:
        parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        given |= {"scheme": parts.scheme, "endpoint_override": parts.netloc}
        # a server of one's own has no regions, and Arrow would ask Amazon for the bucket's
        given["region"] = given["region"] or "us-east-1"
    return {name: value for name, value in given.items() if value is not None}


def azure_arguments(known: _Known, host: str) -> dict[str, Any]:
    """What Arrow's Azure file system is told."""
    account = known(_AZURE_ACCOUNT) or host.partition(".")[0]
    if not account:
        raise ConfigError(
            "the address of the container does not name its account",
            where="source.bucket",
            next_step="write abfss://<container>@<account>.dfs.core.windows.net, or set "
            "azure_storage_account_name in source.storage_options",
        )
    given = {argument: known(names) for argument, names in _AZURE.items()}
    return {"account_name": account} | {name: v for name, v in given.items() if v is not None}


def _gcs_anonymous(known: _Known) -> bool:
    if known(_GCS_KEY):
        raise ConfigError(
            "the key of a Google service account can be given as a file only",
            where="source.storage_options",
            next_step="put the key into a file, and its path into google_service_account_path",
        )
    credentials = known(_GCS_CREDENTIALS)
    if credentials:
        # the only way to tell Google's library
        os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = credentials
    return known.flag(_GCS_ANONYMOUS)
