"""Where records come from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from distributary.config.base import (
    Conflict,
    Duration,
    FieldName,
    FieldPath,
    Moment,
    PipelineName,
    PositiveSize,
    Section,
    SubjectRule,
    Text,
    Texts,
    TypePlace,
    placeholders,
)
from distributary.config.kafka import KafkaSource
from distributary.config.lake import Lake
from distributary.model.names import casefold_key
from distributary.store.base import local_path

if TYPE_CHECKING:
    from distributary.config.pipeline import PipelineConfig


_BUCKET = re.compile(r"(gs|s3|s3a|abfs|abfss)://[^/\s]+(/.*)?")


class DeltaSource(Section):
    """Rows of a Delta table, each one a record."""

    # as they were put into the topic that the table was filled from
    in_order: ClassVar[bool] = True

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
    storage_options: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"aws_region": "eu-central-1"}]
    )
    """Credentials and settings of the bucket, where they differ from those of the lake."""

    def conflicts(self) -> Iterator[Conflict]:
        """One way to say where to start."""
        if self.starting_version is not None and self.starting_timestamp is not None:
            yield ("starting_timestamp",), "cannot stand beside starting_version"

    @property
    def options(self) -> dict[str, str]:
        """The storage options in clear; holds secrets."""
        return {name: value.get_secret_value() for name, value in self.storage_options.items()}

    @property
    def reads_all(self) -> bool:
        """Whether it begins with the first row of the table."""
        return self.starting_version is None and self.starting_timestamp is None

    @property
    def topic_name(self) -> str:
        """The topic in a record's coordinates."""
        return self.topic or self.path.rstrip("/").rpartition("/")[2] or self.path


class FilesSource(Section):
    """Change files that another system writes into a folder or a bucket."""

    # files arrive in any order: late, or several for one minute
    in_order: ClassVar[bool] = False
    # a row of a file has no key beside its value
    tombstones: ClassVar[Literal["dead_letter", "skip"]] = "dead_letter"

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
    include: Texts = Field(default=(), examples=[["shop_*", "crm_accounts"]])
    """Table folders to read, with `*` and `?`; all of them when left out."""
    exclude: Texts = Field(default=(), examples=[["shop_audit*"]])
    """Table folders to leave out, also where `include` names them."""
    start_date: Moment | None = None
    """Files in the folders of earlier minutes are left out."""
    max_files_per_batch: int = Field(default=1000, ge=1)
    """Most files in one batch."""
    max_bytes_per_batch: PositiveSize = 1 << 30
    """Most bytes of files in one batch, as they are stored; a larger file is a batch of its own."""
    max_unpacked_bytes: PositiveSize = 1 << 30
    """What one file may unpack to, 512 bytes more for each event, or 100 times its size where that
    is more; the rest of a file that goes on is a dead letter, FILE_TOO_LARGE."""
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

_CREDENTIAL = re.compile(
    "key|secret|token|password|credential|account|client|tenant|sas|identity|role|profile|signature"
)


def storage_options_of(source: DeltaSource | FilesSource, lake: Lake) -> dict[str, str]:
    """How the bucket of a source is reached, in clear; holds secrets.

    What the source does not say is as it is for the lake. Credentials are one thing: a token of the
    lake beside a key of the source's own would let nobody in.
    """
    address = source.path if isinstance(source, DeltaSource) else source.root
    own = source.options
    # s3 and s3a, gs, abfs and az: the first letter tells the kinds of stores apart
    if not lake.is_local and urlsplit(lake.path).scheme[:1] != urlsplit(address).scheme[:1]:
        return own
    said = {name.lower() for name in own}
    own_login = any(_CREDENTIAL.search(name) for name in said)
    inherited = {
        name: value
        for name, value in lake.options.items()
        if name.lower() not in said and not (own_login and _CREDENTIAL.search(name.lower()))
    }
    return inherited | own


# Records that are changes of rows in a database.


class Cdc(Section):
    """How change events become a log of changes and a table of current rows."""

    format: Literal["datastream", "debezium"]
    """What the events look like."""
    source_type: Text | None = Field(default=None, examples=["postgresql"])
    """Kind of database that the changes come from (mysql, postgresql, oracle, sqlserver), where
    the events do not say it."""
    log: bool = True
    """Keep every event, as it is, in `<table>_log`; `rebuild` and `verify` need it."""
    deletes: Literal["hard", "soft"] = "hard"
    """hard: a deleted row is removed; soft: it stays, marked as deleted."""
    deletes_as: Literal["rewrite", "vectors"] = "rewrite"
    """How a row that was deleted, or became another, leaves a large file of the table of current
    rows. rewrite: the file is written again without it; vectors: it is named in a small file beside
    it, a deletion vector, which the table's readers have to know."""
    backfill: Literal["before_cdc", "by_timestamp"] = "before_cdc"
    """before_cdc: a backfilled row loses against any change of the same row; by_timestamp: the
    later one wins, so that a new backfill can fix lost rows."""
    evolution: Literal["mergeSchema", "overwriteSchema", "none"] = "mergeSchema"
    """When the columns of a source table change: add what is new, take the new columns only, or
    leave the table as it is."""
    keep_tombstones: Duration = Field(default=timedelta(days=7), examples=["7d"])
    """How long it is remembered that a row was deleted, so that an older change that comes late
    does not bring it back."""
    tombstones: Literal["skip", "delete"] = "skip"
    """What a Kafka message with a key and without a value means. delete: the row with that key is
    gone; for flattened Debezium events, which tell it in no other way by default, and which are
    then named after their topic. Behind events with an envelope it means nothing either way."""
    history: bool = False
    """Also keep every version of a row, with the times between which it was valid, in
    `<table>_history`."""


# What is inside a record: an envelope around a payload, or the payload alone.

Framing = Literal["none", "confluent", "auto"]


def _usual(name: str) -> Callable[[dict[str, Any]], str | None]:
    """The usual name of a field, in envelopes that are messages of their own."""

    def default(given: dict[str, Any]) -> str | None:
        message = given.get("format") in ("protobuf", "avro")
        return name if message and not str(given.get("type", "")).startswith("{") else None

    return default


class Envelope(Section):
    """Where a record says what type it is, and where its schema's id and its payload are."""

    format: Literal["protobuf", "avro", "json", "cloudevents"] = "protobuf"
    """Encoding of the envelope. cloudevents: the type is that of the event; the payload is its
    `data`, or in binary mode, with a header `ce_type`, the whole value."""
    framing: Framing = "auto"
    """Whether the registry's header stands before it: none, confluent, or auto for either."""
    subject: Text | None = Field(default=None, examples=["wrapper-value"])
    """Subject of the envelope's own schema, for protobuf and Avro; needed unless every record has a
    header."""
    type: TypePlace | None = Field(
        default=None, examples=["game_name", "event.name", "{header:event}", "{key}"]
    )
    """What names the type of the payload: a field, a path such as event.name, `{header:NAME}` or
    `{key}`."""
    schema_id: Annotated[
        FieldPath | None,
        AfterValidator(lambda value: None if value == "none" else value),
        Field(default_factory=_usual("schema_id")),
    ]
    """Field that holds the id of the payload's schema; `schema_id` in protobuf and Avro when left
    out. With none, or left out elsewhere, a payload says it itself, or means the newest schema of
    its type, or, JSON without a registry, has none."""
    payload: Annotated[FieldPath | None, Field(default_factory=_usual("payload"))]
    """Field that holds the payload: bytes, text, or JSON in its place; `payload` in protobuf and
    Avro when left out. Left out elsewhere, the payload is the whole value."""
    encoding: Literal["none", "base64"] = "none"
    """How the payload is written into its field: as it is, or as base64."""
    message: FieldName | None = None
    """Name of the envelope's message, with its package or without. When left out: the one that has
    the three fields, is named like the subject, or is a part of no other."""

    def conflicts(self) -> Iterator[Conflict]:
        """What an envelope of its format needs, and what means nothing there."""
        if self.format == "cloudevents":
            for name in ("subject", "type", "schema_id", "payload", "message"):
                if getattr(self, name) is not None:
                    yield (name,), "means nothing here: events say it in ways of their own"
            if self.encoding != "none":
                yield ("encoding",), "means nothing here: data_base64 says it"
            return
        if self.type is None:
            yield (), "needs type, such as type: event.name"
        if self.has_schema:
            if self.payload is None:
                yield (), "needs payload: an envelope of this format is not its own payload"
            if self.subject is None and (self.framing != "confluent" or self.format == "avro"):
                yield (), "needs subject, or framing: confluent"
        elif self.subject is not None or self.message is not None:
            name = "subject" if self.subject is not None else "message"
            yield (name,), "means nothing here: nothing of the envelope has a schema"
        if self.encoding != "none" and self.payload is None:
            yield ("encoding",), "needs payload, the field that is written so"
        fields = [name for name in (self.type, self.schema_id, self.payload) if name is not None]
        if len(set(fields)) != len(fields):
            yield (), "needs three different fields for type, schema_id and payload"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the message that are looked at."""
        named = None if self.type is None or self.type.startswith("{") else self.type
        return tuple(name for name in (named, self.schema_id, self.payload) if name is not None)

    @property
    def has_schema(self) -> bool:
        """Whether it takes the envelope's own schema to read it."""
        return self.format in ("protobuf", "avro") and bool(self.fields)


class Payload(Section):
    """The message itself."""

    format: Literal["protobuf", "avro", "json"]
    """Encoding of the payload."""
    framing: Framing = "confluent"
    """Whether the registry's header stands before it: none, confluent, or auto for either.
    When left out: none in a field of an envelope; for json, auto with a registry and none without
    one; otherwise confluent."""
    subject: SubjectRule = Field(default="auto", examples=["{topic}-value"])
    """Which subject a schema must belong to: auto (the type's own, `{type}-value` or `{type}`,
    where the registry has it), any, or a template with {topic}, {type} or {record}."""
    validation: Literal["registry", "none"] = Field(default="none", alias="validate")
    """registry: the id must belong to the subject, else the record is dead-lettered as
    WRONG_SUBJECT."""
    message: FieldName | None = None
    """Name of the message that a payload without a message index is, with its package or without,
    because that may differ by type. When left out: the one that is named like the type, or the only
    one of its file that is a part of no other; where that leaves several, records are dead-lettered
    as AMBIGUOUS_MESSAGE."""
    unknown_fields: Literal["dead_letter", "drop"] = "dead_letter"
    """Protobuf payloads with fields that their schema does not have, which therefore is not the one
    that they were written with: dead_letter as PAYLOAD_MISMATCH, or drop the fields and count the
    records."""


# Which part of a pipeline a job is, where several jobs share its types.

MOST_SHARDS = 256
Number = Annotated[int, Field(ge=0, lt=MOST_SHARDS)]
Part = Number | Literal["bronze", "unified"]


class Shard(Section):
    """Written by `install --shards`: a job that does a part of a pipeline's work."""

    of: PipelineName = Field(examples=["games"])
    """The pipeline whose types are spread."""
    part: Part = Field(examples=["bronze", 0])
    """bronze: lands every record, for the others to read; a number: keeps the tables of its share
    of the types; unified: keeps the one table of all types."""
    shards: int | None = Field(default=None, ge=1, le=MOST_SHARDS)
    """Over how many jobs the types are spread; stands in the file of the bronze job, which divides
    the stream again when it starts with another number."""

    def conflicts(self) -> Iterator[Conflict]:
        """The number belongs to the job that acts on it."""
        if (self.part == "bronze") != (self.shards is not None):
            yield ("shards",), "belongs to part: bronze, and to no other"

    @property
    def lands(self) -> bool:
        """Whether this job writes what the others read."""
        return self.part == "bronze"


def job_name(of: str, part: Part) -> str:
    """The name of the pipeline that does this part; the bronze job goes on where `of` was."""
    if part == "bronze":
        return of
    return f"{of}-{part}" if part == "unified" else f"{of}-shard-{part}"


def unspreadable(config: PipelineConfig) -> Iterator[Conflict]:
    """Why the types of a pipeline cannot be spread over jobs."""
    tables = config.tables
    if config.cdc is not None:
        yield ("cdc",), "cannot be spread: rows of several sources may share a table"
    if tables.bronze is None:
        yield ("tables", "bronze"), "is needed, such as bronze_events: shards read it"
    if tables.format != "delta":
        yield ("tables", "format"), "must be delta: shards read bronze commit by commit"
    wanted = "type" if config.envelope is not None else "topic"
    if tables.each is None:
        yield ("tables", "each"), "is needed: there is nothing to spread"
    elif wanted not in placeholders(tables.each):
        yield ("tables", "each"), f"needs {{{wanted}}}, so that no table has two writers"
    if tables.unified and config.expectations:
        yield ("expectations",), "cannot hold back rows from a unified table of another job"


def shard_conflicts(config: PipelineConfig, shard: Shard) -> Iterator[Conflict]:
    """What does not fit the part that a job has."""
    name, tables = job_name(shard.of, shard.part), config.tables
    if config.name != name:
        yield ("name",), f"must be {name}, by which the other jobs know this part"
    if shard.lands:
        if tables.bronze is None or tables.each or tables.unified:
            yield ("tables",), "must be bronze alone: other jobs keep the rest"
        return
    if tables.bronze is not None:
        yield ("tables", "bronze"), "is written by the job with part: bronze alone"
    if not isinstance(config.source, DeltaSource):
        yield ("source",), "must be the bronze table, of type delta"
    if shard.part == "unified":
        if tables.each or not tables.unified:
            yield ("tables",), "must be unified alone: other jobs keep the rest"
    elif tables.unified or not tables.each:
        yield ("tables",), "must be each alone: other jobs keep the rest"


# Which of several jobs keeps the table of a type: the same answer everywhere and for ever.

_MULTIPLIER = 2862933555777941757
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Move:
    """A type that changes its job."""

    type: str
    before: int
    after: int


def shard_of(type_name: str, shards: int) -> int:
    """The shard of a type, by jump consistent hashing (Lamping and Veach).

    One shard more takes an equal share from each of the others, and nothing else moves. Names that
    differ in case only stay together: to change that would move types.
    """
    folded = casefold_key(type_name).encode("utf-8", "surrogatepass")
    key = int.from_bytes(hashlib.sha256(folded).digest()[:8], "big")
    bucket, jump = -1, 0
    while jump < shards:
        bucket = jump
        key = (key * _MULTIPLIER + 1) & _MASK
        jump = int((bucket + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return bucket


def moves(types: Iterable[str], before: int, after: int) -> tuple[Move, ...]:
    """The types whose tables another job keeps when the number of shards changes."""
    pairs = ((name, shard_of(name, before), shard_of(name, after)) for name in sorted(types))
    return tuple(Move(*pair) for pair in pairs if pair[1] != pair[2])
