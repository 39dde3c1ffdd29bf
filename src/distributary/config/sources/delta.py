"""The settings of a Delta table as a source."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, SecretStr

from distributary.config.base import Conflict, FieldName, Moment, Text
from distributary.config.sources.base import SourceConfig
from distributary.model.dataset import Dataset, stored_dataset
from distributary.store.base import absolute, local_path

if TYPE_CHECKING:
    from distributary.config.pipeline_config import PipelineConfig


class DeltaSourceConfig(SourceConfig):
    """A source that reads the rows of a Delta table, each row as one record."""

    # rows keep the order of the topic that the table was filled from
    in_order: ClassVar[bool] = True
    task_module: ClassVar[str] = "distributary.source.delta.source"
    # Spark's stream of a Delta table does not state where a row stood
    unknown_in_flows: ClassVar[frozenset[str]] = frozenset({"partition", "offset"})

    type: Literal["delta"]
    """Kind of source."""
    path: Text = Field(examples=["./lake/wrapper"])
    """Folder or address of the table."""
    value: FieldName = "value"
    """Column with the bytes of the record."""
    key: FieldName | None = None
    """Column with the key of the record."""
    headers: FieldName | None = None
    """Column with the headers of the record."""
    timestamp: FieldName | None = None
    """Column with the time of the record."""
    topic: Text | None = None
    """Topic name in the coordinates of records; the last part of the path when left out."""
    starting_version: int | None = Field(default=None, ge=0)
    """Version of the table at which a first run starts; set this or `starting_timestamp`."""
    starting_timestamp: Moment | None = None
    """Time at which a first run starts."""
    max_records_per_batch: int = Field(default=250_000, ge=1)
    """The largest number of records in one batch, as far as whole files allow."""
    on_replaced: Literal["stop", "read"] = "stop"
    """What to do when another table has taken the place of this one. stop: stop the run; read: read
    the new table from its beginning. Rows of the old table that were not read are lost."""
    tombstones: Literal["dead_letter", "skip"] = "dead_letter"
    """What to do with records that have a key and no value."""
    storage_options: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"aws_region": "eu-central-1"}]
    )
    """Credentials and settings of the bucket, where they differ from the lake's."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a second starting point."""
        if self.starting_version is not None and self.starting_timestamp is not None:
            yield ("starting_timestamp",), "cannot be combined with starting_version"

    @property
    def options(self) -> dict[str, str]:
        """Return the storage options in clear; they hold secrets."""
        return {name: value.get_secret_value() for name, value in self.storage_options.items()}

    @property
    def reads_all(self) -> bool:
        """Return true when the first run begins with the first row of the table."""
        return self.starting_version is None and self.starting_timestamp is None

    @property
    def topic_name(self) -> str:
        """Return the topic name in the coordinates of records."""
        return self.topic or self.path.rstrip("/").rpartition("/")[2] or self.path

    @property
    def address(self) -> str:
        """Return the folder or the address of the table."""
        return self.path

    @property
    def known_topics(self) -> tuple[str, ...]:
        """Return the topic name in the coordinates of records."""
        return (self.topic_name,)

    @property
    def skips_tombstones(self) -> bool:
        """Return true when records with a key and no value are skipped."""
        return self.tombstones == "skip"

    @property
    def table_folder(self) -> str | None:
        """Return the local folder of the table; None if it is in a bucket."""
        folder = local_path(self.path)
        return None if folder is None else os.path.realpath(folder)

    @property
    def record_fields(self) -> Mapping[str, str]:
        """Return the columns that hold the parts of a record."""
        columns = {name: getattr(self, name) for name in ("key", "headers", "timestamp", "value")}
        return {name: column for name, column in columns.items() if column is not None}

    def conflicts_in(self, config: PipelineConfig) -> Iterator[Conflict]:
        """Yield settings that need a column which the source does not name."""
        type_place = None if config.envelope is None else config.envelope.type
        for start, column in (("{key}", "key"), ("{header:", "headers")):
            if type_place is not None and type_place.startswith(start):
                if getattr(self, column) is None:
                    yield ("source",), f"needs {column}: envelope.type reads this column"
        if self.timestamp is None and "_date" in config.tables.partition_by:
            yield ("tables", "partition_by"), "needs source.timestamp for _date"

    def datasets(self, topics: Iterable[str]) -> dict[str, Dataset]:
        """Return the table."""
        return {"": stored_dataset(self.path)}

    def absolute(self) -> Self:
        """Return the settings with an absolute path; its last part keeps naming the topic."""
        return self.model_copy(update={"path": absolute(self.path), "topic": self.topic_name})
