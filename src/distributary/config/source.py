"""Where records come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from distributary.config.base import Conflict, Section
from distributary.config.kafka import KafkaSource
from distributary.config.lake import local_path
from distributary.config.moment import Moment
from distributary.config.quantity import Duration, PositiveSize
from distributary.config.text import FieldName, Listed, Text

_BUCKET = re.compile(r"(gs|s3|s3a|abfs|abfss)://[^/\s]+(/.*)?")
_Patterns = Annotated[tuple[Text, ...], Listed]


class DeltaSource(Section):
    """Rows of a Delta table, each one a record."""

    type: Literal["delta"]
    """Kind of source."""
    path: Text = Field(examples=["./lake/wrapper"])
    """The table's folder or address."""
    value: FieldName = "value"
    """Column that holds the record's bytes."""
    key: FieldName | None = None
    """Column that holds the record's key."""
    headers: FieldName | None = None
    """Column that holds the record's headers."""
    timestamp: FieldName | None = None
    """Column that holds the record's time."""
    topic: Text | None = None
    """Name of the topic in a record's coordinates; the last part of the path when left out."""
    starting_version: int | None = Field(default=None, ge=0)
    """Version of the table at which a first run starts; give this or `starting_timestamp`."""
    starting_timestamp: Moment | None = None
    """Moment at which a first run starts."""
    max_records_per_batch: int = Field(default=250_000, ge=1)
    """Most records in one batch, as near as whole files allow."""
    on_replaced: Literal["stop", "read"] = "stop"
    """What to do when another table is in this one's place: stop, or read the new one from its
    beginning; what was not read of the old one is lost."""
    tombstones: Literal["dead_letter", "skip"] = "dead_letter"
    """What becomes of a record with a key and without a value."""

    def conflicts(self) -> Iterator[Conflict]:
        """One way to say where to start."""
        if self.starting_version is not None and self.starting_timestamp is not None:
            yield ("starting_timestamp",), "cannot stand beside starting_version"

    @property
    def topic_name(self) -> str:
        """The topic in a record's coordinates."""
        return self.topic or self.path.rstrip("/").rpartition("/")[2] or self.path


class FilesSource(Section):
    """Change files that another system writes into a folder or a bucket."""

    type: Literal["files"]
    """Kind of source."""
    layout: Literal["datastream"] = "datastream"
    """How folders are arranged: `<object>/yyyy/mm/dd/hh/mm/<file>` for datastream."""
    discovery: Literal["local-directory", "discovery-bucket"] = "local-directory"
    """Where table folders are looked for."""
    bucket: Text | None = Field(default=None, examples=["gs://my-bucket"])
    """Address of the bucket (gs://, s3:// or abfss://), for discovery-bucket."""
    path: Text | None = Field(default=None, examples=["./datastream"])
    """The folder, or the folder inside the bucket."""
    format: Literal["avro", "json", "parquet"] = "avro"
    """Format of the files; JSON may be lines or an array, and gzip is noticed by itself."""
    include: _Patterns = Field(default=(), examples=[["shop_*", "crm_accounts"]])
    """Table folders to read, with `*` and `?`; all of them when left out."""
    exclude: _Patterns = Field(default=(), examples=[["shop_audit*"]])
    """Table folders to leave out, also where `include` names them."""
    start_date: Moment | None = None
    """Files in the folders of earlier minutes are left out."""
    max_files_per_batch: int = Field(default=1000, ge=1)
    """Most files in one batch."""
    max_bytes_per_batch: PositiveSize = 1 << 30
    """Most bytes of files in one batch, as they are stored; a larger file is a batch of its own."""
    max_unpacked_bytes: PositiveSize = 1 << 30
    """What one file may unpack to, or 100 times its size where that is more; the rest of a file
    that goes on is a dead letter, FILE_TOO_LARGE."""
    settle: Duration = timedelta(seconds=2)
    """How long a file of a local directory must stay the same before it is read, unless it was
    moved into its place. An object of a bucket is there whole or not at all."""
    storage_options: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"aws_region": "eu-central-1"}]
    )
    """Credentials and settings of the bucket, where they differ from those of the lake."""

    def conflicts(self) -> Iterator[Conflict]:
        """A bucket needs an address, a local directory a path."""
        if self.discovery == "local-directory":
            if self.path is None:
                yield (), "needs path for discovery local-directory"
            elif local_path(self.path) is None:
                yield ("path",), "is not a folder: for a bucket set bucket and discovery-bucket"
        elif self.bucket is None:
            yield ("discovery",), "needs bucket, such as gs://my-bucket"
        elif not _BUCKET.fullmatch(self.bucket):
            yield ("bucket",), "must be an address such as gs://my-bucket"

    @property
    def options(self) -> dict[str, str]:
        """The storage options in clear; holds secrets."""
        return {name: value.get_secret_value() for name, value in self.storage_options.items()}

    @property
    def root(self) -> str:
        """The folder under which each table has its own."""
        if self.discovery == "local-directory":
            return self.path or ""
        inside = (self.path or "").strip("/").removeprefix("./").strip("/")
        base = (self.bucket or "").rstrip("/")
        return f"{base}/{inside}" if inside not in ("", ".") else base


Source = Annotated[KafkaSource | DeltaSource | FilesSource, Field(discriminator="type")]
