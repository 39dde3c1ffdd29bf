"""What executors are told: decided by the driver before the records are touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distributary.config.lake import Evolution
from distributary.decode.base import DecodeLimits
from distributary.model.change import ChangeSettings
from distributary.model.expectation import Rule
from distributary.model.names import MAX_TYPE_NAME
from distributary.model.plan import EnvelopePlan, Rejected, Route, RouteKey
from distributary.model.record import Format, WriterSchema
from distributary.model.table import TablePlan


@dataclass(frozen=True, slots=True)
class Catalog:
    """The part of a plan that stays the same until a schema, a type or a table is new.

    Sent once, so that a quiet batch sends executors next to nothing.
    """

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
    dead_letters: str = "dead_letters"
    metadata: tuple[str, ...] = ()
    evolution: Evolution = field(default_factory=Evolution)
    limits: DecodeLimits = field(default_factory=DecodeLimits)
    strict_names: bool = True
    max_type_name: int = MAX_TYPE_NAME
    changes: ChangeSettings | None = None
    """How to understand records that are changes of rows; None: they are not."""
    infer: bool = False
    """Records without a schema: what they look like is reported, and becomes their schema."""
    recalled: Mapping[str, bytes] = field(default_factory=dict)
    """Schemas that records without any had in earlier runs, by claim: until routes are known."""
    skip_tombstones: bool = False
    """Records with a key and no value are passed over and counted, not dead-lettered."""
    expectations: tuple[Rule, ...] = ()
    """Rules that rows of tables per type are held to."""
