"""Names of datasets, by the naming rules of OpenLineage: topics, tables and folders."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from distributary.store.base import local_path

_SAME_STORE = {"s3a": "s3", "abfs": "abfss"}
_ACCOUNT_IN_NAME = ("abfss",)
"""Stores in whose addresses `container@account` is a name, not a login."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """The name of a topic, a table or a folder; it holds no credentials."""

    namespace: str
    name: str
    kind: str = "TABLE"
    """TABLE, TOPIC or FILE."""


def topic_dataset(servers: str, name: str) -> Dataset:
    """Return the name of a Kafka topic, by the first of its brokers."""
    first = servers.split(",")[0].strip()
    return Dataset(f"kafka://{first.rpartition('://')[2]}", name, "TOPIC")


def stored_dataset(address: str, kind: str = "TABLE") -> Dataset:
    """Return the name of a folder or table on a disk or in an object store."""
    local = local_path(address)
    if local is not None:
        return Dataset("file", str(local), kind)
    parts = urlsplit(address)
    scheme = _SAME_STORE.get(parts.scheme, parts.scheme)
    host = parts.netloc if scheme in _ACCOUNT_IN_NAME else parts.netloc.rpartition("@")[2]
    return Dataset(f"{scheme}://{host}", parts.path.strip("/") or "/", kind)
