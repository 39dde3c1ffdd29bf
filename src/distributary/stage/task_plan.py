"""The plan that tasks work by, decided by the driver before the records are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from distributary.config.lake import Evolution
from distributary.decode.base import DecodeLimits
from distributary.delta.removal.erased_records import ErasedPlan
from distributary.model.change import ChangeSettings
from distributary.model.names import MAX_TYPE_NAME
from distributary.model.record import WriterSchema
from distributary.model.routing import EnvelopePlan, Rejected, Route, RouteKey
from distributary.model.rules.expectation import Rule
from distributary.model.rules.key_rule import KeyRule
from distributary.model.rules.shape_rule import RawRecords
from distributary.model.table import TablePlan


@dataclass(frozen=True, slots=True)
class RecordsPlan:
    """The way from a record's bytes to its type and its payload."""

    format: str
    """The name of the payload format."""
    framing: str
    envelope: EnvelopePlan | None = None
    limits: DecodeLimits = field(default_factory=DecodeLimits)
    skip_tombstones: bool = False
    """True if records with a key and no value are skipped and counted, not dead-lettered."""
    from_files: bool = False
    """True if the reader of the source reports in headers which parts of files cannot be read."""
    keep_tombstones: bool = False
    """True if records with a key and no value go to the table of their topic."""
    strict_names: bool = True
    max_type_name: int = MAX_TYPE_NAME


@dataclass(frozen=True, slots=True)
class Routing:
    """The tables and schemas of the keys that are known so far."""

    schemas: Mapping[int, WriterSchema] = field(default_factory=dict)
    routes: Mapping[RouteKey, Route | Rejected] = field(default_factory=dict)
    unions: frozenset[RouteKey] = frozenset()
    """Keys whose Avro schema is a union of records: the branch becomes part of the key."""
    infer: bool = False
    """True if the shapes of records without a schema are reported and become their schemas."""
    recalled: Mapping[str, bytes] = field(default_factory=dict)
    """The inferred schemas of earlier runs, by claim, for records whose routes are not known
    yet."""


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """The tables that tasks write, and the rules for their rows."""

    tables: Mapping[str, TablePlan] = field(default_factory=dict)
    each: bool = True
    """True if types have tables of their own."""
    bronze: str = ""
    whole: bool = False
    """True if bronze keeps whole records, because other jobs read them from there."""
    unified: str = ""
    dead_letters: str = "dead_letters"
    raw_records: RawRecords = "keep"
    """The contents of records that bronze and the dead letters have."""
    metadata: tuple[str, ...] = ()
    evolution: Evolution = field(default_factory=Evolution)
    expectations: tuple[Rule, ...] = ()
    """The rules for rows of tables per type."""
    keys: Mapping[str, KeyRule] = field(default_factory=dict)
    """The keys of tables whose rows are merged by key, by the name of the log."""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The part of a plan that stays the same until a schema, a type or a table is new.

    It is sent once for many batches, so that most batches send almost nothing to tasks.
    """

    records: RecordsPlan
    routing: Routing = field(default_factory=Routing)
    output: OutputPlan = field(default_factory=OutputPlan)
    changes: ChangeSettings | None = None
    """The settings of change data; None if records are not changes of rows."""
    erased: ErasedPlan = field(default_factory=ErasedPlan)
    """The records and values that were erased from the lake."""

    def without_bronze(self) -> TaskPlan:
        """Return the plan for records that bronze has already."""
        return replace(self, output=replace(self.output, bronze=""))
