"""The settings of a folder or bucket of files as a source: change files, or files of records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, SecretStr, StringConstraints

from distributary.config.base import (
    Conflict,
    Duration,
    Moment,
    PositiveDuration,
    PositiveSize,
    Section,
    Text,
    Texts,
)
from distributary.config.cdc import Carrier
from distributary.config.message import PayloadConfig
from distributary.config.sources.base import SourceConfig
from distributary.config.sources.file_pattern import PathPattern
from distributary.config.sources.kafka import BootstrapServers, KafkaSecurity
from distributary.model.dataset import Dataset, stored_dataset
from distributary.model.refusal import Refusal
from distributary.store.base import local_path

if TYPE_CHECKING:
    from distributary.config.pipeline_config import PipelineConfig


_PLAIN_ONLY = ("pattern", "csv_header", "csv_delimiter", "csv_quote", "csv_types")
TYPE_OF_FILE = "{key}"
"""The place of a record's type where its file names it: the reader gives it as the record's key."""
Sign = Annotated[str, StringConstraints(pattern=r"^[^\r\n]$")]


def _checked(pattern: str) -> str:
    PathPattern(pattern)
    return pattern


PathPatternText = Annotated[Text, AfterValidator(_checked)]
_BUCKET = re.compile(r"(gs|s3|s3a|abfs|abfss)://[^/\s]+(/.*)?")


class FileNotifications(Section):
    """A topic with a message for each new object of the bucket, in place of listing all of it."""

    bootstrap_servers: BootstrapServers = Field(examples=["127.0.0.1:9092"])
    """Brokers to connect to first, as `host:port`, several separated by commas."""
    topic: Text = Field(examples=["bucket-events"])
    """Topic with the notifications of S3, Google Cloud Storage or Azure, as these services write
    them."""
    list_every: PositiveDuration = Field(default=timedelta(hours=1), examples=["1h"])
    """How often the whole bucket is listed nevertheless: it finds the files of messages that never
    came."""
    security: KafkaSecurity = Field(default_factory=KafkaSecurity)
    """The protocol, credentials and certificates of the connection."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield settings that only a Java client understands."""
        for place, why in self.security.only_for_java():
            yield ("security", *place), f"cannot be used for notifications: {why}"

    def client_options(self) -> dict[str, str]:
        """Return the properties of librdkafka for these brokers; they hold secrets."""
        servers = {"bootstrap.servers": self.bootstrap_servers}
        return servers | self.security.client_options()


class FilesSourceConfig(SourceConfig):
    """A source that reads files which another system writes into a folder or a bucket."""

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
    no_flows: ClassVar[str] = "it numbers files in its checkpoint"

    type: Literal["files"]
    """Kind of source."""
    layout: Literal["datastream", "dms", "plain"] = "datastream"
    """Arrangement of the folders. Change files: datastream `<object>/yyyy/mm/dd/hh/mm/<file>`, or
    dms `<schema>/<table>/<file>`, where the folders are named after the schema and the table.
    plain, and the default without the section `cdc`: each line or row of a file is a record."""
    pattern: PathPatternText | None = Field(
        default=None, examples=["{type}/**/*.csv", "export_{type}_*.json.gz"]
    )
    """The files to read, and the type of their records, for layout plain. It is a path below the
    folder with the wildcards `*` and `?` (not across folders) and `**` (across folders); the part
    `{type}` names the type. When left out: all files with a suffix of the format, hidden ones
    excepted, and the type is the first folder, or the name of `path` for files that are directly in
    it."""
    discovery: Literal["local-directory", "discovery-bucket"] = "local-directory"
    """Where the folders of tables are: in a local directory or in a bucket."""
    bucket: Text | None = Field(default=None, examples=["gs://my-bucket"])
    """Address of the bucket (gs://, s3:// or abfss://), for discovery-bucket."""
    path: Text | None = Field(default=None, examples=["./datastream"])
    """The local folder, or the folder inside the bucket."""
    format: Literal["avro", "json", "parquet", "csv"] = "avro"
    """Format of the files. JSON may be lines or an array; gzip is detected."""
    csv_null: str | None = None
    """The text that stands for null in CSV: `NULL` for dms when left out, and no text at all for
    plain."""
    csv_header: bool = True
    """Whether the first line of a CSV file names the columns. Without it they are column_1,
    column_2 and so on. For layout plain."""
    csv_delimiter: Sign = ","
    """The character between two values of CSV, for layout plain."""
    csv_quote: Sign = '"'
    """The character around values of CSV that hold delimiters or line breaks, for layout plain."""
    csv_types: Literal["infer", "text"] = "infer"
    """Types of the columns of CSV, for layout plain. infer: if most of a column's first values in a
    file are numbers, or true and false, such values are read as such; a column with
    leading zeros is text. text: all columns are text."""
    include: Texts = Field(default=(), examples=[["shop_*", "crm_accounts"]])
    """Folders to read, of tables or for dms of schemas, with the wildcards `*` and `?`; for plain,
    types to read. All of them when left out."""
    exclude: Texts = Field(default=(), examples=[["shop_audit*"]])
    """Table folders or types to skip, even when `include` names them."""
    start_date: Moment | None = None
    """Skip the files in folders of earlier minutes; for layout plain, files that were last changed
    before this time."""
    max_files_per_batch: int = Field(default=1000, ge=1)
    """The largest number of files in one batch."""
    max_files_per_table: int | None = Field(default=None, ge=1, examples=[100])
    """The largest number of files of one table or type in one batch, so that a busy one does not
    fill the batch; no such limit when left out."""
    max_bytes_per_batch: PositiveSize = 1 << 30
    """The largest number of bytes of stored files in one batch. A larger file is a batch of its
    own."""
    max_unpacked_bytes: PositiveSize = 1 << 30
    """The largest number of bytes that one file may unpack to. The limit is this value plus 512
    bytes for each event, or 100 times the file's size if that is more. The rest of a larger file is
    dead-lettered as FILE_TOO_LARGE."""
    settle: Duration = timedelta(seconds=2)
    """How long a file of a local directory must stay unchanged before it is read, unless it was
    moved into its place. Objects of a bucket appear whole and need no wait."""
    notifications: FileNotifications | None = None
    """The topic whose messages name new files of a bucket; the bucket is listed for each batch when
    left out."""
    storage_options: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"aws_region": "eu-central-1"}]
    )
    """Credentials and settings of the bucket, where they differ from the lake's."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a missing or wrong address of the bucket or folder."""
        if self.layout == "dms" and self.format not in ("parquet", "csv"):
            yield ("format",), "must be parquet or csv for layout dms"
        if self.layout == "datastream" and self.format == "csv":
            yield ("format",), "can be csv for layout dms, and without cdc"
        for name in _PLAIN_ONLY if self.layout != "plain" else ():
            if name in self.model_fields_set:
                yield (name,), "is for layout plain, which a pipeline without cdc has"
        if self.csv_delimiter == self.csv_quote:
            yield ("csv_quote",), "must differ from csv_delimiter"
        if self.discovery == "local-directory":
            if self.notifications is not None:
                yield ("notifications",), "needs discovery-bucket: a folder sends no messages"
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
        """Return the format of the records."""
        # the reader puts the fingerprint of the file's own schema in front of each Avro record
        if self.has_schemas:
            return PayloadConfig(format="avro", subject="any" if self.is_plain else "auto")
        return PayloadConfig(format="json", framing="none")

    @property
    def is_plain(self) -> bool:
        """Return whether each line or row of a file is a record, and no change event."""
        return self.layout == "plain"

    @property
    def has_schemas(self) -> bool:
        """Return whether records come with a schema: that of their file."""
        return self.format == "avro" or (self.is_plain and self.format == "parquet")

    @property
    def folders_of_table(self) -> int:
        """Return the number of folders that name a table: its schema has a folder, too, for dms."""
        return 2 if self.layout == "dms" else 1

    @property
    def has_column_types(self) -> bool:
        """Return whether the reader writes the types of columns into change events."""
        return self.layout == "dms"

    @property
    def null_text(self) -> str:
        """Return the text that stands for null in CSV."""
        return ("" if self.is_plain else "NULL") if self.csv_null is None else self.csv_null

    @property
    def record_fields(self) -> Mapping[str, str]:
        """Return no field: a record of a file has no parts beside itself."""
        return {}

    def conflicts_in(self, config: PipelineConfig) -> Iterator[Conflict]:
        """Yield sections that do not fit the layout of the files."""
        if config.payload is not None:
            yield ("payload",), "has no effect for a source of files: set source.format"
        if not self.is_plain:
            if config.cdc is None:
                yield ("source", "layout"), "needs cdc, such as cdc: {format: datastream}"
            if config.envelope is not None:
                yield ("envelope",), "has no effect for change files"
            return
        if config.cdc is not None:
            yield ("source", "layout"), "cannot be plain with cdc: name the writer's layout"
        envelope = config.envelope
        if envelope is None or envelope.type == TYPE_OF_FILE:
            return
        if self.has_schemas:
            yield ("envelope",), f"can be used with JSON and CSV only: {self.format} is no envelope"
        elif envelope.format != "json" or envelope.schema_id or envelope.payload:
            yield ("envelope",), "can name only the field with the type: {format: json, type: ...}"

    def datasets(self, topics: Iterable[str]) -> dict[str, Dataset]:
        """Return the folder that holds the folders of all tables."""
        return {"": stored_dataset(self.root, "FILE")}


def files_of(source: SourceConfig) -> FilesSourceConfig | None:
    """Return the settings of a source of files, for tools that write files; else None."""
    return source if isinstance(source, FilesSourceConfig) else None
