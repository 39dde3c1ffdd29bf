"""What executors are told: pure data, decided by the driver before the records are touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from distributary.errors import ErrorCode
from distributary.model.change import ChangeSettings
from distributary.model.expectation import Rule
from distributary.model.record import Format, WriterSchema
from distributary.model.table import TablePlan

TOMBSTONE = "tombstone"
"""In place of a message's index: records that have a key and no value."""
UNFRAMED = -1
"""In place of a schema id where a record names none: the newest schema of its subject is meant."""


class RouteKey(NamedTuple):
    """What a record says about itself."""

    claim: str
    """The envelope's type; without an envelope, the topic."""
    schema_id: int
    message_index: str = ""
    """Protobuf message index of a framed payload, `0` for the first message; for Avro the branch
    of a schema that is a union; else empty."""
    guid: str = ""
    """The schema by GUID, where the record does not name it by id."""
    key_schema: str = ""
    """Of change data: the schema id of the record's own key, where that names one."""


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
    """How to get type, schema id and payload out of a wrapper."""

    schema: WriterSchema
    message: str
    framing: str
    type_field: str
    schema_id_field: str
    payload_field: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """The part of a plan that stays the same until a schema, a type or a table is new.

    Broadcast once per `version`, so that a quiet batch sends executors next to nothing.
    """

    version: int
    envelope: EnvelopePlan | None
    payload_format: Format
    payload_framing: str
    schemas: Mapping[int, WriterSchema] = field(default_factory=dict)
    routes: Mapping[RouteKey, Route | Rejected] = field(default_factory=dict)
    tables: Mapping[str, TablePlan] = field(default_factory=dict)
    unions: frozenset[RouteKey] = frozenset()
    """Keys whose Avro schema is a union of records: the branch must become part of them."""
    each: bool = True
    bronze: str = ""
    whole: bool = False
    """Bronze keeps whole records, because other jobs read them from there."""
    unified: str = ""
    unified_mode: str = "shared"
    dead_letters: str = "dead_letters"
    metadata: tuple[str, ...] = ()
    evolution: Mapping[str, object] = field(default_factory=dict)
    """The evolution policy, as the settings that differ from nothing: plain names and values."""
    max_payload_bytes: int = 16 * 1024 * 1024
    max_decoded_bytes: int = 128 * 1024 * 1024
    max_depth: int = 100
    recursion_depth: int = 3
    drop_unknown_fields: bool = False
    strict_names: bool = True
    changes: ChangeSettings | None = None
    """How to understand records that are changes of rows; None: they are not."""
    infer: bool = False
    """Records without a schema: what they look like is reported, and becomes their schema."""
    skip_tombstones: bool = False
    """Records with a key and no value are passed over and counted, not dead-lettered."""
    expectations: tuple[Rule, ...] = ()
    """Rules that rows of tables per type are held to."""


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
