"""Credentials of object stores in the driver's environment, for tasks on other machines.

The store's library reads them from the environment of its own process. Tasks run in processes that
have other variables, so they get them beside the settings of the pipeline file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

_S3 = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ALLOW_HTTP"),
)
_AZURE = (
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
    *("AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_TENANT_ID"),
    *("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"),
    *("AZURE_STORAGE_ENDPOINT", "AZURE_ALLOW_HTTP"),
)
_GOOGLE = ("GOOGLE_SERVICE_ACCOUNT_KEY",)
_GOOGLE_FILES = (
    *("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
    "GOOGLE_APPLICATION_CREDENTIALS",
)
# The first letter of the scheme identifies the kind of store: s3 and s3a, gs, abfs and az.
_KINDS = {"s": _S3, "g": _GOOGLE, "a": _AZURE}
_CREDENTIAL = re.compile("key|secret|token|sas|client|tenant|service_account|credential")
_PREFIX = re.compile("^(aws|google|azure_storage|azure)_")


def with_environment(
    options: Mapping[str, str], *addresses: str, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return settings of a store, completed by the variables that its library would read.

    Settings come before variables, and credentials are never mixed: if the settings have any, those
    of the environment are left out.
    """
    known = os.environ if environ is None else environ
    names = {_plain(name) for name in options}
    has_credentials = any(map(_CREDENTIAL.search, names))
    completed = dict(options)
    for kind in dict.fromkeys(urlsplit(address).scheme[:1] for address in addresses):
        for name, value in _variables(kind, known):
            plain = _plain(name)
            if plain not in names and not (has_credentials and _CREDENTIAL.search(plain)):
                names.add(plain)
                completed[name.lower()] = value
    return completed


def _variables(kind: str, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in _KINDS.get(kind, ()):
        if environ.get(name):
            yield name, environ[name]
    for name in _GOOGLE_FILES if kind == "g" else ():
        key = _service_account(environ.get(name, ""))
        if key:
            # The path leads to no file on another machine.
            yield _GOOGLE[0], key


def _service_account(path: str) -> str:
    """Return the content of a file with the key of a service account; empty for any other file."""
    try:
        text = Path(path).read_text("utf-8") if path else "null"
        document = json.loads(text)
    except (OSError, ValueError):
        return ""
    return text if isinstance(document, dict) and "private_key" in document else ""


def _plain(name: str) -> str:
    """Return a name without its prefix, because settings may have several names."""
    return _PREFIX.sub("", name.lower()).replace("endpoint_url", "endpoint")
