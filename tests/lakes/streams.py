"""A pipeline from the real broker and the real registry to a lake of the test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from distributary.config.registry import RegistryConfig
from distributary.engine.pipeline import Pipeline
from distributary.registry.http.http_registry import HttpRegistry
from distributary_lab.services.services import Services
from tests.services.shared import unique
from tests.topics import Topics


@dataclass
class Stream:
    """One topic, one pipeline file."""

    services: Services
    root: Path
    payload: str
    tables: str = "{each: '{topic}'}"
    partitions: int = 1

    def __post_init__(self) -> None:
        self.topics = Topics(self.services.kafka)
        self.topic = self.topics.create(unique("t").replace("-", "_"), self.partitions)
        self.registry = HttpRegistry(RegistryConfig.model_validate({"url": self.services.registry}))

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    @property
    def subject(self) -> str:
        return f"{self.topic}-value"

    def pipeline(self, *, source: str = "", servers: str = "", extra: str = "") -> Pipeline:
        path = self.root / "pipeline.yaml"
        path.write_text(
            f"""
name: {self.topic}
source:
  type: kafka
  bootstrap_servers: {servers or self.services.kafka}
  topics: [{self.topic}]
{source}
registry: {{url: "{self.services.registry}", unknown_id_grace: 0s, timeout: 5s}}
payload: {self.payload}
tables: {self.tables}
lake: {{path: {self.lake}}}
{extra}
"""
        )
        return Pipeline.load(path)

    def table(self, name: str = "") -> pa.Table:
        return DeltaTable(str(self.lake / (name or self.topic))).to_pyarrow_table()

    def rows(self, name: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table(name).to_pylist()
        return found

    def letters(self) -> list[dict[str, Any]]:
        return self.rows("dead_letters") if (self.lake / "dead_letters").exists() else []
