"""Where records go: what they say about themselves, and the driver's answer to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from distributary.errors import ErrorCode
from distributary.model.record import WriterSchema

UNFRAMED = -1
"""In place of a schema id where a record names none: the newest schema of its subject is meant."""


class RouteKey(NamedTuple):
    """What a record says about itself."""

    claim: str
    """The type that the record names; without an envelope, the topic."""
    schema_id: int
    message_index: tuple[int, ...] = ()
    """Path to the Protobuf message of a framed payload, `(0,)` for the first message; for Avro the
    branch of a schema that is a union; else empty."""
    guid: str = ""
    """The schema by GUID, where the record does not name it by id."""
    key_schema: int = UNFRAMED
    """Of change data: the schema id of the record's own key, where that names one."""
    tombstone: bool = False
    """Of change data: a key without a value, of a table that no schema is known for."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where records with one key go, and which schema decodes them."""

    table: str
    """Name of the table for the type; empty when there is no table per type."""
    type: str
    schema_id: int
    message: str
    shard: str = ""
    """Of change data: the database, where rows of several share a table."""
    key_schema_id: int = UNFRAMED
    """Of change data: the schema of the records' keys, where they have one of their own."""
    raw_bytes: bool = False
    """The payload is Avro's bytes and nothing else, which serializers write without a length."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Records with this key are dead letters."""

    code: ErrorCode
    message: str
    passed_over: bool = False
    """They are no dead letters either, but nothing that belongs in a table: only counted."""


@dataclass(frozen=True, slots=True)
class EnvelopePlan:
    """How to get type, schema id and payload out of a record."""

    format: str
    """`protobuf`, `avro`, `json` or `cloudevents`."""
    framing: str
    type_field: str = ""
    """A field or a path; `{key}` or `{header:NAME}`."""
    schema_id_field: str = ""
    """Empty where no field names schema ids."""
    payload_field: str = ""
    """Empty where the whole value is the payload."""
    base64: bool = False
    """Whether the payload stands in its field as base64."""
    schema: WriterSchema | None = None
    """The envelope's own, for protobuf and Avro: the newest."""
    message: str = ""
    schemas: Mapping[int, WriterSchema] = field(default_factory=dict)
    """Every version by its id, for Avro: only the one that it was written with reads a message."""


@dataclass(frozen=True, slots=True)
class StageOrder:
    """The part of a plan that belongs to one batch; small, sent with the task itself."""

    pipeline: str
    lane: str
    batch: int
    attempt: str
    """Part of every file's name, so that two tries never meet."""
    now_us: int
    """The batch's time, the same for all of its rows."""
    folder: str
    """Where sorted runs lie between the two hops; every worker sees it."""
    lake: str = ""
    """Where tables are; given where it takes a login to reach them."""
    checkpoint: str = ""
    """Where progress is, into which tasks write schemas that files bring; likewise."""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The login; secrets, and the reason why they are not in any address."""
    guarded: bool = False
    """Decode in a child process, because an earlier try killed its worker."""
    life: str = ""
    """The checkpoint's: tells records from those that an earlier life has read."""
    identities: Mapping[str, str] = field(default_factory=dict)
    """By topic: what tells it from another one that had its name before."""
    most_new_keys: int = 10_000
    """How many keys without a route one task may report; records of further ones are refused."""


class Exchange(NamedTuple):
    """How records get from one hop to the other, and why."""

    way: str
    """`disk` or `spark`."""
    why: str


def planned_exchange(wanted: str, *, local: bool) -> Exchange | None:
    """The answer that needs no look at the workers; None where they have to be asked."""
    if wanted != "auto":
        return Exchange(wanted, f"run.exchange is {wanted}: nobody is asked")
    if local:
        return Exchange("disk", "tasks are processes of this machine")
    return None
