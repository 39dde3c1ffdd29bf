"""The planner's part for aggregate tables: their names and columns, from the tables they follow."""

from __future__ import annotations

from dataclasses import replace

from distributary.config.base import placeholders
from distributary.config.pipeline_config import PipelineConfig
from distributary.config.rules.aggregates import AggregateConfig
from distributary.engine.planning.table_book import TableBook, fixed_tables
from distributary.engine.planning.table_names import WantedName
from distributary.errors import ConfigError
from distributary.model.names import propose
from distributary.model.table import ChangeKind, Column, ColumnChange, Role, TablePlan
from distributary.shape.aggregate_columns import aggregates_of
from distributary.shape.resolve import ShapeError

SOURCES = (Role.EACH, Role.MERGED)
"""Tables whose rows are grouped."""


def entry_of(config: PipelineConfig, table: TablePlan) -> AggregateConfig | None:
    """Return the entry that an aggregate table comes from; None if the file no longer has it."""
    entries = (one for one in config.aggregates if one.name == table.aggregate)
    return next((one for one in entries if one.fits(table.source)), None)


class AggregatePlan:
    """Plans aggregate tables for the tables of types, whenever those get columns."""

    def __init__(self, config: PipelineConfig, book: TableBook) -> None:
        self._config = config
        self._book = book
        self._seen: dict[str, tuple[Column, ...]] = {}
        """The columns of each source table when its aggregate tables were planned last."""
        self._names: dict[tuple[str, str], str] = {}
        self._limits: dict[tuple[str, str], tuple[ColumnChange, ...]] = {}

    def follow(self) -> None:
        """Plan the aggregate tables of all tables that are new or have other columns."""
        if not self._config.aggregates:
            return
        for table in list(self._book.tables.values()):
            if table.role not in SOURCES:
                continue
            known = self._names.items()
            lost = any(s == table.name and n not in self._book.tables for (s, _), n in known)
            if lost or self._seen.get(table.name) is not table.columns:
                self._seen[table.name] = table.columns
                for entry in self._config.aggregates:
                    if entry.fits(table.name):
                        self._plan(table, entry)

    def _plan(self, source: TablePlan, entry: AggregateConfig) -> None:
        self._names.pop((source.name, entry.name), None)
        try:
            found = aggregates_of(
                entry.rule(), source.columns, skips_deleted=source.role is Role.MERGED
            )
        except ShapeError as error:
            change = _limited(entry.name, f"no table, {error}")
            self._note(source, entry, source.name, (change,))
            return
        name = self._name(source, entry)
        before = self._book.planned(name, Role.AGGREGATE, source.type)
        if before is not None and before.exists and not _is_aggregate(before):
            raise ConfigError(
                f"table {name} exists already, and is not an aggregate table",
                where="aggregates",
                evidence=f"{before.path} has no column _rows",
                next_step="give the aggregate another name",
            )
        self._book.follow(name, Role.AGGREGATE, source.type, found.columns)
        plan = self._book.tables[name]
        self._book.tables[name] = replace(
            plan,
            source=source.name,
            aggregate=entry.name,
            comment=f"aggregates of table {source.name}, pipeline {self._config.name}",
        )
        self._names[source.name, entry.name] = name
        limits = [
            _limited(f"{name}.{u.setting}", f"not computed, {u.why}") for u in found.unapplied
        ]
        self._note(source, entry, name, tuple(limits))

    def _note(
        self,
        source: TablePlan,
        entry: AggregateConfig,
        name: str,
        changes: tuple[ColumnChange, ...],
    ) -> None:
        """Report an aggregate that cannot be computed, once."""
        before = self._limits.get((source.name, entry.name))
        self._limits[source.name, entry.name] = changes
        there = self._book.tables[name].exists
        if changes != before and not (before is None and there):
            self._book.note(name, source.name, changes)

    def _name(self, source: TablePlan, entry: AggregateConfig) -> str:
        """Return the name of an aggregate table, which no other table gets."""
        prefix = self._config.tables.prefix
        plain = source.name.removeprefix(prefix)
        fields = {"table": plain, "type": _type_in(plain, self._config.tables.each or "")}
        if not placeholders(entry.name):
            return f"{prefix}{entry.name}"
        proposal = propose(entry.name, prefix=prefix, reserved=fixed_tables(self._config), **fields)
        owner = {"aggregate": entry.name, "table": source.name}
        return self._book.names.take(WantedName(source.type, owner, (proposal,)))


def _type_in(table: str, template: str) -> str:
    """Return the part of a table's name that the template takes from the type."""
    if not placeholders(template):
        return table
    before, after = template[: template.index("{")], template[template.rindex("}") + 1 :]
    inside = table.removeprefix(before).removesuffix(after)
    whole = table.startswith(before) and table.endswith(after) and inside
    return inside if whole else table


def _is_aggregate(table: TablePlan) -> bool:
    return any(column.name == "_rows" for column in table.columns)


def _limited(column: str, why: str) -> ColumnChange:
    return ColumnChange(ChangeKind.AGGREGATE_LIMITED, column, after=why, action="skip")
