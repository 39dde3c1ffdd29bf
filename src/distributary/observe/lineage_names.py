"""What datasets are called, by the naming rules of OpenLineage. No name holds credentials."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from distributary.config.kafka import KafkaSource
from distributary.config.lake import local_path
from distributary.config.pipeline import PipelineConfig
from distributary.config.source import FilesSource

_SAME_STORE = {"s3a": "s3", "abfs": "abfss"}
_ACCOUNT_IN_NAME = ("abfss",)
"""Stores in whose addresses `container@account` is a name, not a login."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A topic, a table or a folder."""

    namespace: str
    name: str
    kind: str = "TABLE"
    """TABLE, TOPIC or FILE."""


def topic(servers: str, name: str) -> Dataset:
    """A Kafka topic, by the first of its brokers."""
    first = servers.split(",")[0].strip()
    return Dataset(f"kafka://{first.rpartition('://')[2]}", name, "TOPIC")


def place(address: str, kind: str = "TABLE") -> Dataset:
    """A folder, a table in it, or their like in an object store."""
    local = local_path(address)
    if local is not None:
        return Dataset("file", str(local), kind)
    parts = urlsplit(address)
    scheme = _SAME_STORE.get(parts.scheme, parts.scheme)
    host = parts.netloc if scheme in _ACCOUNT_IN_NAME else parts.netloc.rpartition("@")[2]
    return Dataset(f"{scheme}://{host}", parts.path.strip("/") or "/", kind)


def inputs(config: PipelineConfig, topics: tuple[str, ...] = ()) -> dict[str, Dataset]:
    """What a pipeline reads, by topic; `topics` are those that were seen.

    Of anything but Kafka there is one dataset, under the name of no topic.
    """
    source = config.source
    if isinstance(source, KafkaSource):
        known = dict.fromkeys((*source.topics, *topics))
        return {name: topic(source.bootstrap_servers, name) for name in known}
    if isinstance(source, FilesSource):
        return {"": place(source.root, "FILE")}
    return {"": place(source.path)}
