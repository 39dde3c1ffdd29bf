"""Routing: the keys that records carry, and the routes that the driver assigns to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from distributary.errors import ErrorCode
from distributary.model.record import WriterSchema
from distributary.model.rules.shape_plan import ShapePlan

UNFRAMED = -1
"""The schema id of records that name none: the newest schema of the subject applies."""


class RouteKey(NamedTuple):
    """The type and schema that a record names."""

    claim: str
    """The type that the record names; without an envelope, the topic."""
    schema_id: int
    message_index: tuple[int, ...] = ()
    """Path to the protobuf message of a framed payload, `(0,)` for the first message; for Avro, the
    branch of a union; else empty."""
    guid: str = ""
    """The GUID of the schema, where the record does not name it by id."""
    key_schema: int = UNFRAMED
    """For change data, the schema id of the record's key, if the key names one."""
    tombstone: bool = False
    """True for a key without a value: of change data, if its table has no known schema; of other
    records, if some tables delete by it."""


@dataclass(frozen=True, slots=True)
class Route:
    """The table of records with one key, and the schema that decodes them."""

    table: str
    """Name of the table for the type; empty when there is no table per type."""
    type: str
    schema_id: int
    message: str
    shard: str = ""
    """For change data, the database, where rows of several databases share a table."""
    key_schema_id: int = UNFRAMED
    """For change data, the schema of the records' keys, where keys have their own schema."""
    raw_bytes: bool = False
    """Whether the payload is an Avro `bytes` value alone, which serializers write without a
    length."""
    shapes: tuple[ShapePlan, ...] = ()
    """The shapes that are applied to the decoded columns before they reach the table, in order."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The reason why records with this key become dead letters."""

    code: ErrorCode
    message: str
    passed_over: bool = False
    """Whether the records are only counted, and are neither rows nor dead letters."""
    heartbeat: bool = False
    """Whether the records are heartbeats, whose time shows that their connector is alive."""


@dataclass(frozen=True, slots=True)
class EnvelopePlan:
    """The plan to read type, schema id and payload from a record."""

    format: str
    """`protobuf`, `avro`, `json` or `cloudevents`."""
    framing: str
    type_field: str = ""
    """A field, a path, `{key}` or `{header:NAME}`."""
    schema_id_field: str = ""
    """The field with the schema id; empty when there is none."""
    payload_field: str = ""
    """The field with the payload; empty when the whole value is the payload."""
    base64: bool = False
    """Whether the payload in its field is base64."""
    schema: WriterSchema | None = None
    """The newest schema of the envelope, for protobuf and Avro."""
    message: str = ""
    schemas: Mapping[int, WriterSchema] = field(default_factory=dict)
    """All versions of the schema by id, for Avro: a message is read with the schema that wrote
    it."""


@dataclass(frozen=True, slots=True)
class StageOrder:
    """The part of a plan that belongs to one batch; it is small and sent with each task."""

    pipeline: str
    lane: str
    batch: int
    attempt: str
    """Part of every file's name, so that two attempts never write the same file."""
    now_us: int
    """Time of the batch in microseconds, the same for all of its rows."""
    folder: str
    """Folder of the sorted runs between the two hops; every worker sees it."""
    lake: str = ""
    """Address of the lake; set where credentials are needed to reach it."""
    checkpoint: str = ""
    """Address of the checkpoint, where tasks write schemas from files; set likewise."""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Credentials of the stores; they are passed here because addresses must not hold them."""
    mask_key: bytes = field(default=b"", repr=False)
    """The key of masks; it is passed here because plans are written to the lake."""
    guarded: bool = False
    """Decode in a child process, because an earlier attempt killed its worker."""
    life: str = ""
    """The life of the checkpoint: distinguishes records from those of an earlier life."""
    identities: Mapping[str, str] = field(default_factory=dict)
    """The identity of each topic: distinguishes it from an earlier topic of the same name."""
    last_records: bool = False
    """Whether tasks report the last record that they read of each partition."""
    most_new_keys: int = 10_000
    """The largest number of keys without a route that a task reports; further keys are refused."""


class Exchange(NamedTuple):
    """The way from the first hop to the second, and the reason for it."""

    way: str
    """`disk` or `spark`."""
    why: str


def planned_exchange(wanted: str, *, local: bool) -> Exchange | None:
    """Return the exchange if it can be decided without asking the workers; else None."""
    if wanted != "auto":
        return Exchange(wanted, f"run.exchange is {wanted}")
    if local:
        return Exchange("disk", "tasks are processes of this machine")
    return None
