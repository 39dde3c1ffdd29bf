"""The tables of a pipeline in their state after the next commit, and their changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from distributary.changes.chosen_versions import UNTIL
from distributary.changes.history import HISTORY_COLUMNS
from distributary.changes.merge_order import DELETED_COLUMN, SEQ_COLUMN, TIME_COLUMN
from distributary.config.base import placeholders
from distributary.config.cdc import MergeConfig
from distributary.config.lake import Tables
from distributary.config.pipeline_config import PipelineConfig
from distributary.delta.log import DataFile, added_by, snapshot_of
from distributary.engine.planning.strategies import strategy_of
from distributary.engine.planning.table_names import NameEntry, Names, WantedName
from distributary.errors import ConfigError, ErrorCode, EvolutionError, PublishError
from distributary.evolve.merge import create, merge
from distributary.evolve.types import sql_name
from distributary.evolve.unified import REST, plan_unified
from distributary.model import layout
from distributary.model.change import CHANGE_NAMES
from distributary.model.deadletter import DEAD_LETTER_COLUMNS
from distributary.model.manifest import SchemaUse
from distributary.model.names import propose
from distributary.model.record import WriterSchema
from distributary.model.routing import Rejected
from distributary.model.table import (
    ChangeKind,
    Column,
    ColumnChange,
    Fill,
    Merged,
    Origin,
    Role,
    TablePlan,
)
from distributary.model.table_format import DELTA, stored_format
from distributary.publish.base import Publisher
from distributary.publish.formats.table_format_entry import format_at
from distributary.stage.bronze import BRONZE_COLUMNS, WHOLE
from distributary.stage.rows.partitions import can_partition, partition_columns
from distributary.stage.task_outputs import DATE, METADATA, TYPE, metadata_plan
from distributary.store.base import at

# The tables of a source's table: its log, the rows as they are now, and their history.

LOG, HISTORY = "_log", "_history"


@dataclass(frozen=True, slots=True)
class SourceTableRef:
    """The names in the lake for a table of the source."""

    wanted: WantedName
    """The wanted name; its type is the claim, without the database if databases share the table."""
    shard: str
    """The database, if a column and not the table's name distinguishes it."""


def source_table(tables: Tables, claim: str, *, reserved: frozenset[str]) -> SourceTableRef:
    """Return the names for a claim `["database","schema","table"]`.

    If the template has no {schema}, the schema becomes part of the database's name, so that tables
    of two schemas stay separate. If it has no {database}, the database becomes a column.
    """
    database, schema, table = json.loads(claim)
    template = tables.each or "{database}_{table}"
    asked = placeholders(template)
    shard = "" if "database" in asked else database
    outer = ".".join(name for name in (database, "" if "schema" in asked else schema) if name)
    fields = {"database": outer or "none", "schema": schema or "none", "table": table}
    choices = [fields]
    if shard and schema and "schema" not in asked:
        # tables of one name in two schemas, and the template has neither {schema} nor {database}
        choices.append(fields | {"table": f"{schema}.{table}"})
    proposals = tuple(
        propose(template, prefix=tables.prefix, reserved=reserved, endings=(LOG, HISTORY), **choice)
        for choice in choices
    )
    names = ["" if shard else database, schema, table]
    type_ = json.dumps(names, ensure_ascii=False, separators=(",", ":")) if shard else claim
    owner = dict(zip(("database", "schema", "table"), names, strict=True))
    return SourceTableRef(WantedName(type_, owner, proposals, ("", LOG, HISTORY)), shard)


def spoken(claim: str) -> str:
    """Return a claim for display: `database.schema.table`."""
    return ".".join(name for name in json.loads(claim) if name)


def log_of(name: str) -> str:
    """Return the log that a table is merged from; a log returns itself."""
    return name if name.endswith(LOG) else name.removesuffix(HISTORY) + LOG


def relatives(name: str) -> tuple[str, ...]:
    """Return a log and the tables merged from it, given any of their names; the log first."""
    log = log_of(name)
    table = log.removesuffix(LOG)
    return log, table, table + HISTORY


def merge_config(config: PipelineConfig, name: str) -> MergeConfig | None:
    """Return how a table is merged, by its name or that of its log or history."""
    return strategy_of(config).merging(log_of(name).removesuffix(LOG))


def own_columns(table: TablePlan) -> tuple[Column, ...]:
    """Return the source's columns of a merged table or history."""
    system = {
        SEQ_COLUMN.name,
        TIME_COLUMN.name,
        DELETED_COLUMN.name,
        *(c.name for c in HISTORY_COLUMNS),
    }
    own = tuple(column for column in table.columns if column.name not in system)
    if table.role is not Role.HISTORY:
        return own
    # a table of the source may have a column of this name, and of another type
    return tuple(c for c in own if (c.name, c.type) != (UNTIL.name, UNTIL.type))


def log_files(path: str, batch: int | None = None) -> list[str]:
    """Return the files of a log: all, or those that may hold rows of a batch."""
    log = snapshot_of(path)
    if log is None:
        return []
    places = zip(log.addresses(), log.files.values(), strict=True)
    return [place for place, file in places if batch is None or _may_hold(file, batch)]


def _may_hold(file: DataFile, batch: int) -> bool:
    low, high = file.bounds("_batch")
    return (low is None or low <= batch) and (high is None or high >= batch)


def files_of_commit(path: str, version: int) -> list[str]:
    """Return the files that a version of a log has added; empty if its commit was removed."""
    return [f"{path}/{name}" for name in added_by(at(path), version) or ()]


def source_columns(columns: Sequence[Column], metadata: Collection[str]) -> tuple[Column, ...]:
    """Return the columns of the source's table in its log."""
    return tuple(c for c in columns if c.name not in CHANGE_NAMES and c.name not in metadata)


def derived_columns(
    source: Sequence[Column], name: str, role: Role, merge: MergeConfig
) -> tuple[Column, ...]:
    """Return the columns of a table of this name that is merged from the log."""
    if role is Role.HISTORY:
        chosen = merge.begins_versions(name.removesuffix(HISTORY))
        return (*source, *HISTORY_COLUMNS, *((UNTIL,) if chosen else ()))
    deleted = (DELETED_COLUMN,) if merge.deletes == "soft" else ()
    return (*source, SEQ_COLUMN, TIME_COLUMN, *deleted)


# The origins of columns: their fields and topics, collected while tables are planned.

Fields = Mapping[str, tuple[Origin, ...]]
"""The fields of each column."""

_PARTS = {
    "key": "key",
    "headers": "headers",
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "timestamp": "timestamp",
    "raw": "value",
}
"""The part of a record in each metadata column."""
_BRONZE = {"payload": "value", "value": "value", "key": "key", "headers": "headers"}
_LETTERS = {name: name for name in _PARTS.values()}


class Origins:
    """The fields in the columns of all tables; grows with every new schema."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config
        self._parts = config.source.record_fields
        self._known: dict[str, dict[str, dict[Origin, None]]] = {}
        self._snapshots: dict[str, dict[Role, Fields]] = {}

    def note(self, table: str, fills: Iterable[Fill], columns: Iterable[Column]) -> None:
        """Note which columns of a table a writer's columns go to."""
        found = {column.name: column.origin for column in columns}
        known = self._known.setdefault(table, {})
        for fill in fills:
            origin = found.get(fill.source)
            if origin is not None and origin not in known.get(fill.target, ()):
                known.setdefault(fill.target, {})[origin] = None
                self._snapshots.pop(table, None)

    def of(self, table: str, role: Role) -> Fields:
        """Return the fields of a table's columns; the same object until they change.

        A merged table has the columns of its log, by name.
        """
        base = log_of(table) if role in (Role.MERGED, Role.HISTORY) else table
        snapshots = self._snapshots.setdefault(base, {})
        if role not in snapshots:
            own = {name: tuple(found) for name, found in self._known.get(base, {}).items()}
            snapshots[role] = {**self._record(role), **own}
        return snapshots[role]

    def _record(self, role: Role) -> dict[str, tuple[Origin, ...]]:
        """Return the origins of columns that hold a part of the record itself."""
        wanted = {
            column.name: _PARTS[name]
            for name, column in METADATA.items()
            if name in self._config.tables.metadata and name in _PARTS
        }
        wanted[DATE.name] = "timestamp"
        if role is Role.BRONZE:
            coordinates = {f"_{name}": name for name in ("topic", "partition", "offset")}
            wanted |= {**_BRONZE, **coordinates, "_timestamp": "timestamp"}
        elif role is Role.DEAD_LETTERS:
            wanted = dict(_LETTERS)
        return {
            column: (Origin(self._parts[part]),)
            for column, part in wanted.items()
            if part in self._parts
        }


def qualified(columns: Iterable[Column], *, topic: str = "", inside: str = "") -> list[Column]:
    """Return a writer's columns with the topic, and the type or table, of their fields."""
    return [
        column
        if column.origin is None
        else replace(column, origin=Origin(_inside(column.origin.field, inside), topic))
        for column in columns
    ]


def _inside(field: str, place: str) -> str:
    return field if not place or field.startswith(f"{place}.") else f"{place}.{field}"


def table_folder(config: PipelineConfig, name: str) -> str:
    """Return the absolute folder of a table: executors have other working directories."""
    lake = config.lake.address
    if config.hides_logs and name.endswith("_log"):
        return layout.hidden_log(lake, name)
    return layout.table(lake, name)


def format_for(config: PipelineConfig, role: str) -> str:
    """Return the format of tables with a role."""
    # dead letters need rows that change, for replay and discard
    return DELTA if role == Role.DEAD_LETTERS else stored_format(config.tables.format)


def fixed_tables(config: PipelineConfig) -> frozenset[str]:
    """Return the names that no table of a type may take."""
    return frozenset(config.tables.fixed_names().values())


def primary_role(config: PipelineConfig) -> Role:
    """Return the role of the tables in which a record counts as written."""
    if config.tables.each:
        return strategy_of(config).role
    return Role.UNIFIED if config.tables.unified else Role.BRONZE


@dataclass(slots=True)
class Pending:
    """Planned changes that are in no manifest yet."""

    changes: dict[str, list[ColumnChange]] = field(default_factory=dict)
    uses: list[SchemaUse] = field(default_factory=list)


_BY_TYPE = (Role.EACH, Role.LOG, Role.MERGED, Role.HISTORY, Role.AGGREGATE)
_WITH_METADATA = (Role.EACH, Role.LOG, Role.UNIFIED)


class TableBook:
    """The planned state of all tables; publishers apply it to the lake later."""

    def __init__(
        self, config: PipelineConfig, publisher: Publisher | None, *, names: Names
    ) -> None:
        """Create the book; without a publisher, as for Spark's own tables, no table exists yet."""
        self.names = names
        self._config = config
        self._publisher = publisher
        self.metadata = metadata_plan(config.tables.metadata)
        self._date = (DATE,) if DATE.name in config.tables.partition_by else ()
        self.origins = Origins(config) if config.lineage is not None else None
        """The origins of columns, if lineage needs them."""
        self._pending = Pending()
        self._new_tables = 0
        self._unread: set[str] = set()
        """Tables that could not be read, and are planned like new ones."""
        self.tables: dict[str, TablePlan] = {}
        self._open_fixed_tables()

    def begin_batch(self) -> set[str]:
        """Drop the state of the previous batch; return the tables to plan again."""
        self._new_tables = 0
        again, self._unread = self._unread, set()
        for name in again:
            # a table that was refused, or lost its name, has no plan
            self.tables.pop(name, None)
            self._pending.changes.pop(name, None)
        # what is merged from a log is planned with the log
        return again | {log_of(name) for name in again}

    def name(self, wanted: WantedName, *, ending: str = "") -> str | Rejected:
        """Return the name of a type's table; a new type takes a name, unless it is refused."""
        policy = self._config.evolution
        full = self._new_tables >= policy.max_new_tables_per_batch
        if (full or policy.new_type != "create") and self.names.held(wanted) is None:
            # a refused type must not take a name
            there = self._is_there(self.names.likely(wanted) + ending)
            refused = None if there else self._refuse_new_type(wanted.type)
            if refused is not None:
                return refused
        return self.names.take(wanted)

    def discard(self, overtaken: Iterable[NameEntry]) -> set[str]:
        """Drop the plans of tables whose names others have taken; return the names."""
        lost = {table for entry in overtaken for table in entry.tables}
        for name in lost & self.tables.keys():
            table = self.tables.pop(name)
            self._new_tables -= table.role in (Role.EACH, Role.LOG) and not table.exists
            self._pending.changes.pop(name, None)
        self._pending.uses = [use for use in self._pending.uses if use.table not in lost]
        return lost

    def take_pending(self) -> Pending:
        """Return and reset the changes for the next manifest."""
        taken, self._pending = self._pending, Pending()
        return taken

    def give_back(self, pending: Pending) -> None:
        """Give back the changes of a manifest that was not written."""
        for name, changes in pending.changes.items():
            self._pending.changes.setdefault(name, [])[:0] = changes
        self._pending.uses[:0] = pending.uses

    def committed(self, names: Iterable[str]) -> bool:
        """Note that tables were committed as planned; return True if that is new."""
        new = [name for name in names if not self.tables[name].exists]
        for name in new:
            self.tables[name] = replace(self.tables[name], exists=True)
        return bool(new)

    def reread(self, names: Iterable[str]) -> None:
        """Read tables again, and drop their plans."""
        for name in names:
            planned = self.tables.get(name)
            if planned is not None and self._on_disk(name, planned.role, planned.type) is not None:
                self._pending.changes.pop(name, None)

    def evolve(
        self,
        name: str,
        type_name: str,
        schema: WriterSchema,
        columns: tuple[Column, ...],
        *,
        role: Role = Role.EACH,
        refuse: Callable[[Merged], Rejected | None] = lambda merged: None,
        notes: tuple[ColumnChange, ...] = (),
    ) -> Rejected | None:
        """Add a schema's columns to a table, or return why its records become dead letters.

        `refuse` checks the columns that the table would have. `notes` are entries for the schema
        history that change no column.
        """
        table = self.planned(name, role, type_name)
        if table is None:
            # a table that cannot be read at the moment does not belong to a new type
            refused = None if name in self._unread else self._refuse_new_type(type_name)
            if refused is not None:
                return refused
            merged = create(columns)
            unfit = refuse(merged)
            if unfit is not None:
                return unfit
            merged = replace(merged, columns=(*merged.columns, *self.metadata, *self._date))
            self._new_tables += 1
            self._plan(name, role, type_name, merged.columns)
        else:
            merged = merge(table.columns, columns, self._config.evolution)
            if merged.refused is not None:
                return _refuse(merged, name, schema)
            unfit = _unfit_partition(table, merged) or refuse(merged)
            if unfit is not None:
                return unfit
            self.tables[name] = replace(table, columns=merged.columns)
        if self.origins is not None:
            self.origins.note(name, merged.fills, columns)
        self._note(name, merged.changes)
        changes = (*merged.changes, *notes)
        use = SchemaUse(type_name, name, schema.id, schema.label(), changes)
        self._pending.uses.append(use)
        return None

    def planned(self, name: str, role: Role, type_name: str) -> TablePlan | None:
        """Return the planned table, else the existing one; None without either."""
        return self.tables.get(name) or self._on_disk(name, role, type_name)

    def follow(self, name: str, role: Role, type_name: str, columns: tuple[Column, ...]) -> bool:
        """Plan a merged table with exactly these columns; return True if it changes."""
        table = self.planned(name, role, type_name)
        if table is None:
            self._plan(name, role, type_name, columns)
            self._note(name, (ColumnChange(ChangeKind.TABLE_CREATED, action="create"),))
            return True
        before = {c.name: c for c in table.columns}
        changes = _difference(before, columns)
        gone = before.keys() - {column.name for column in columns}
        if changes or gone:
            self.tables[name] = replace(table, columns=columns)
            self._note(name, changes)
        return bool(changes or gone)

    def note(self, name: str, source: str, changes: tuple[ColumnChange, ...]) -> None:
        """Add lines about a table that follows another one to the changes of both.

        Those of the source table are part of the newest schema that it got, if that is news.
        """
        self._note(name, changes)
        uses = self._pending.uses
        for number in reversed(range(len(uses))):
            if uses[number].table in (source, log_of(source)):
                every = (*uses[number].changes, *changes)
                uses[number] = replace(uses[number], changes=every)
                return

    def evolve_unified(self, types: Mapping[str, tuple[Column, ...]]) -> bool:
        """Add columns to the unified table; return True if it changes."""
        unified = self._config.tables.unified
        if unified is None:
            return False
        table = self.tables[unified.name]
        system = {c.name for c in (TYPE, DATE, *self.metadata)}
        own = tuple(c for c in table.columns if c.name not in system)
        plan = plan_unified(
            own,
            types,
            mode=unified.mode,
            max_columns=unified.max_columns,
            policy=type(self._config.evolution),
        )
        if self.origins is not None:
            for type_name, share in plan.shares.items():
                rest = (Fill(source, REST, pa.string()) for source in share.rest)
                self.origins.note(unified.name, (*share.fills, *rest), types[type_name])
        if plan.columns == own:
            return False
        before = {c.name: c for c in own}
        kept = tuple(c for c in table.columns if c.name in system)
        self.tables[unified.name] = replace(table, columns=(*plan.columns, *kept))
        self._note(unified.name, _difference(before, plan.columns))
        return True

    def _open_fixed_tables(self) -> None:
        tables = self._config.tables
        fixed = [(tables.dead_letters, Role.DEAD_LETTERS, DEAD_LETTER_COLUMNS)]
        if tables.bronze:
            types = (TYPE,) if TYPE.name in tables.partition_by else ()
            fixed.append((tables.bronze, Role.BRONZE, (*BRONZE_COLUMNS, *types, *self._date)))
        if tables.unified:
            shared = plan_unified((), {}, mode=tables.unified.mode).columns
            columns = (*shared, TYPE, *self.metadata, *self._date)
            fixed.append((tables.unified.name, Role.UNIFIED, columns))
        for name, role, columns in fixed:
            if self._on_disk(name, role, "") is None:
                self._plan(name, role, "", columns)
                self._note(name, (ColumnChange(ChangeKind.TABLE_CREATED, action="create"),))
        if tables.bronze and self._config.shard is not None and self._config.shard.lands:
            self._keep_whole(self.tables[tables.bronze])

    def _keep_whole(self, bronze: TablePlan) -> None:
        """Add the column of whole records to bronze, if other jobs read bronze."""
        if WHOLE.name not in {column.name for column in bronze.columns}:
            self.follow(bronze.name, bronze.role, "", (*bronze.columns, WHOLE))

    def _on_disk(self, name: str, role: Role, type_name: str) -> TablePlan | None:
        path = table_folder(self._config, name)
        self._refuse_other_format(name, role, path)
        if self._publisher is None:
            return None
        try:
            found = self._publisher.current_columns(path)
        except PublishError:
            # an error of one table must not stop the others: its commit fails later, and it is
            # parked
            if role not in _BY_TYPE:
                raise
            self._unread.add(name)
            return None
        if found is None:
            return None
        wanted = self._with_metadata(role, found.columns)
        self._plan(name, role, type_name, wanted, exists=True)
        self._note(name, _difference({c.name: c for c in found.columns}, wanted))
        # an existing table keeps its partitioning
        self.tables[name] = replace(self.tables[name], partition_by=found.partition_by)
        return self.tables[name]

    def _with_metadata(self, role: Role, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        """Return an existing table's columns with the missing metadata columns added."""
        if role not in _WITH_METADATA:
            return columns
        taken = {column.name.casefold() for column in columns}
        return (*columns, *(c for c in self.metadata if c.name.casefold() not in taken))

    def _is_there(self, name: str) -> bool:
        try:
            path = table_folder(self._config, name)
            return name in self.tables or (
                self._publisher is not None and self._publisher.current_columns(path) is not None
            )
        except PublishError:
            return True

    def _plan(
        self,
        name: str,
        role: Role,
        type_name: str,
        columns: tuple[Column, ...],
        *,
        exists: bool = False,
    ) -> TablePlan:
        what = f"records of type {type_name}" if type_name else f"{role} table"
        self.tables[name] = TablePlan(
            name=name,
            role=role,
            type=type_name,
            path=table_folder(self._config, name),
            columns=columns,
            exists=exists,
            partition_by=self._partition_by(role, columns),
            comment=f"{what}, pipeline {self._config.name}",
            format=format_for(self._config, role),
        )
        return self.tables[name]

    def _partition_by(self, role: Role, columns: tuple[Column, ...]) -> tuple[str, ...]:
        if role is Role.DEAD_LETTERS:
            return ()
        wanted = self._config.tables.partition_by
        if role is not Role.EACH:
            # these tables have every record, and must not refuse a record for its value
            derived = (DATE.name, TYPE.name) if role is Role.BRONZE else (DATE.name,)
            wanted = tuple(name for name in wanted if name in derived)
        return partition_columns(wanted, columns)

    def _refuse_other_format(self, name: str, role: Role, path: str) -> None:
        found, wanted = format_at(path), format_for(self._config, role)
        if found is None or found == wanted:
            return
        step = (
            "give the tables another prefix or the lake another path, or remove the old tables "
            "with `distributary clean`"
        )
        if stored_format(found) == wanted:
            # an earlier version wrote it: the publisher of this format goes on with it
            if found == self._config.tables.format:
                return
            step = f"set tables.format: {found}, which goes on with it"
        raise ConfigError(
            f"table {name} exists already, as {found}",
            where="tables.format",
            evidence=f"the pipeline file says {self._config.tables.format}; {path}",
            next_step=step,
        )

    def _note(self, name: str, changes: tuple[ColumnChange, ...]) -> None:
        if changes:
            self._pending.changes.setdefault(name, []).extend(changes)

    def _refuse_new_type(self, type_name: str) -> Rejected | None:
        policy = self._config.evolution
        if policy.new_type == "dead_letter":
            return Rejected(ErrorCode.NEW_TYPE_REFUSED, "evolution.new_type is dead_letter")
        if policy.new_type == "fail":
            raise EvolutionError(
                "a record of a new type arrived and evolution.new_type is fail",
                evidence=f"type {type_name!r}",
                next_step="set evolution.new_type to create or dead_letter",
            )
        limit = policy.max_new_tables_per_batch
        if self._new_tables >= limit:
            text = f"evolution.max_new_tables_per_batch is {limit}"
            return Rejected(ErrorCode.TOO_MANY_TYPES, text)
        return None


def _unfit_partition(table: TablePlan, merged: Merged) -> Rejected | None:
    """Return why a partition column cannot get a new type; None if it can."""
    before = {column.name: column.type for column in table.columns}
    for column in merged.columns:
        if column.name not in table.partition_by or column.type == before[column.name]:
            continue
        if not can_partition(column.type):
            text = f"{column.name} partitions the table and cannot become {sql_name(column.type)}"
            return Rejected(ErrorCode.TYPE_CHANGE_REFUSED, text)
    return None


def _refuse(merged: Merged, table: str, schema: WriterSchema) -> Rejected:
    if merged.fatal:
        raise EvolutionError(
            f"schema {schema.label()} changes table {table} in a way that is set to fail",
            evidence=merged.reason,
            next_step="change the `evolution` section of the pipeline file, or the schema",
        )
    return Rejected(merged.refused or ErrorCode.EVOLUTION_REFUSED, merged.reason)


def _difference(
    before: Mapping[str, Column], after: tuple[Column, ...]
) -> tuple[ColumnChange, ...]:
    changes = []
    for column in after:
        old = before.get(column.name)
        now = sql_name(column.type)
        if old is None:
            changes.append(
                ColumnChange(ChangeKind.COLUMN_ADDED, column.name, after=now, action="add")
            )
        elif old.type != column.type:
            then = sql_name(old.type)
            changes.append(ColumnChange(ChangeKind.COLUMN_WIDENED, column.name, then, now, "widen"))
    return tuple(changes)
