"""The settings of a folder or bucket of change files as a source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, SecretStr

from distributary.config.base import Conflict, Duration, Moment, PositiveSize, Text, Texts
from distributary.config.cdc import Carrier
from distributary.config.message import PayloadConfig
from distributary.config.sources.base import SourceConfig
from distributary.model.dataset import Dataset, stored_dataset
from distributary.model.refusal import Refusal
from distributary.store.base import local_path

if TYPE_CHECKING:
    from distributary.config.pipeline import PipelineConfig


_BUCKET = re.compile(r"(gs|s3|s3a|abfs|abfss)://[^/\s]+(/.*)?")


class FilesSourceConfig(SourceConfig):
    """A source that reads change files which another system writes into a folder or a bucket."""

    # files arrive in any order, late, or several for the same minute
    in_order: ClassVar[bool] = False
    carrier: ClassVar[Carrier] = "files"
    batch_limit: ClassVar[tuple[str, int]] = ("max_files_per_batch", 50)
    trial_sections: ClassVar[Mapping[str, Any]] = {
        "cdc": {"format": "datastream"},
        "tables": {"each": "{table}"},
    }
    irrecoverable: ClassVar[Refusal | None] = Refusal(
        "the checkpoint of a pipeline of files also numbers them, which only it knew",
        "`distributary reset FILE` and run: all files are read again, and events that the logs "
        "have already are dropped",
    )
    no_flows: ClassVar[str] = "it is about change data"

    type: Literal["files"]
    """Kind of source."""
    layout: Literal["datastream", "dms"] = "datastream"
    """Arrangement of the folders: datastream `<object>/yyyy/mm/dd/hh/mm/<file>`, or dms
    `<schema>/<table>/<file>`, where names of folders are those of the table."""
    discovery: Literal["local-directory", "discovery-bucket"] = "local-directory"
    """Where the folders of tables are: in a local directory or in a bucket."""
    bucket: Text | None = Field(default=None, examples=["gs://my-bucket"])
    """Address of the bucket (gs://, s3:// or abfss://), for discovery-bucket."""
    path: Text | None = Field(default=None, examples=["./datastream"])
    """The local folder, or the folder inside the bucket."""
    format: Literal["avro", "json", "parquet", "csv"] = "avro"
    """Format of the files. JSON may be lines or an array; CSV has a first line with the names of
    the columns; gzip is detected."""
    csv_null: str = "NULL"
    """The text that stands for null in CSV."""
    include: Texts = Field(default=(), examples=[["shop_*", "crm_accounts"]])
    """Folders to read, of tables or for dms of schemas, with the wildcards `*` and `?`; all of them
    when left out."""
    exclude: Texts = Field(default=(), examples=[["shop_audit*"]])
    """Table folders to skip, even when `include` names them."""
    start_date: Moment | None = None
    """Skip the files in the folders of earlier minutes."""
    max_files_per_batch: int = Field(default=1000, ge=1)
    """The largest number of files in one batch."""
    max_bytes_per_batch: PositiveSize = 1 << 30
    """The most bytes of stored files in one batch. A larger file is a batch of its own."""
    max_unpacked_bytes: PositiveSize = 1 << 30
    """The most bytes that one file may unpack to. The limit is this value plus 512 bytes for each
    event, or 100 times the file's size if that is more. The rest of a larger file is dead-lettered
    as FILE_TOO_LARGE."""
    settle: Duration = timedelta(seconds=2)
    """How long a file of a local directory must stay unchanged before it is read, unless it was
    moved into its place. Objects of a bucket appear whole and need no wait."""
    storage_options: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"aws_region": "eu-central-1"}]
    )
    """Credentials and settings of the bucket, where they differ from the lake's."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a missing or wrong address of the bucket or folder."""
        if self.layout == "dms" and self.format not in ("parquet", "csv"):
            yield ("format",), "must be parquet or csv for layout dms"
        if self.layout != "dms" and self.format == "csv":
            yield ("format",), "can be csv for layout dms only"
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
        """Return the storage options in clear; they hold secrets."""
        return {name: value.get_secret_value() for name, value in self.storage_options.items()}

    @property
    def root(self) -> str:
        """Return the address of the folder that holds the folders of all tables."""
        if self.discovery == "local-directory":
            return self.path or ""
        inside = (self.path or "").strip("/").removeprefix("./").strip("/")
        base = (self.bucket or "").rstrip("/")
        return f"{base}/{inside}" if inside not in ("", ".") else base

    @property
    def address(self) -> str:
        """Return the address of the folder that holds the folders of all tables."""
        return self.root

    @property
    def own_payload(self) -> PayloadConfig | None:
        """Return the format of the events."""
        # the reader puts the fingerprint of the file's own schema in front of each Avro event
        avro = self.format == "avro"
        return (
            PayloadConfig(format="avro") if avro else PayloadConfig(format="json", framing="none")
        )

    @property
    def record_fields(self) -> Mapping[str, str]:
        """Return no field: an event of a file has no parts beside itself."""
        return {}

    def conflicts_in(self, config: PipelineConfig) -> Iterator[Conflict]:
        """Yield sections that a source of change files needs, or does not support."""
        if config.cdc is None:
            yield (), "needs cdc for a source of files, such as cdc: {format: datastream}"
        for name in ("envelope", "payload"):
            if getattr(config, name) is not None:
                yield (name,), "has no effect for a source of files: set source.format"

    def datasets(self, topics: Iterable[str]) -> dict[str, Dataset]:
        """Return the folder that holds the folders of all tables."""
        return {"": stored_dataset(self.root, "FILE")}
