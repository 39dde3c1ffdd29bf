"""Planning of tables with a key: a log for the records of a type, and the merged tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from distributary.changes.merge_order import SEQ_COLUMN
from distributary.config.pipeline_config import PipelineConfig
from distributary.config.rules.keys import KeyedTables, keyed_table
from distributary.engine.planning.table_book import (
    HISTORY,
    LOG,
    TableBook,
    derived_columns,
    source_columns,
)
from distributary.errors import ConfigError, ErrorCode
from distributary.evolve.types import fold, sql_name
from distributary.model.change import CHANGE_COLUMNS, CHANGE_NAMES
from distributary.model.record import WriterSchema
from distributary.model.routing import Rejected
from distributary.model.rules.key_rule import TIME_OF_RECORD, KeyRule
from distributary.model.table import Column, ColumnChange, Merged, Role, TablePlan
from distributary.shape.checks import checks_of
from distributary.stage.rows.keying import order_kind
from distributary.stage.task_outputs import DATE, WINDOW

_START_OVER = "`distributary reset FILE --with-tables` removes the tables and starts over"


class KeyPlan:
    """The planner of tables with a key: their logs, merged tables and histories."""

    def __init__(self, config: PipelineConfig, book: TableBook) -> None:
        self._config = config
        self._book = book
        self.rules: dict[str, KeyRule] = {}
        """The rules by the names of the logs."""

    def of(self, table: str) -> KeyedTables | None:
        """Return the key of a table; None for a table without a key."""
        return keyed_table(self._config.keys, table)

    def deletes_by_tombstones(self, table: str) -> bool:
        """Return whether a record with a key and no value deletes a row of a table."""
        keyed = self.of(table)
        return keyed is not None and keyed.rule.tombstones

    def place(
        self,
        table: str,
        type_name: str,
        schema: WriterSchema,
        columns: tuple[Column, ...],
        *,
        inferred: bool,
        notes: tuple[ColumnChange, ...] = (),
    ) -> tuple[str, Rejected | None]:
        """Add a schema's columns to a log; return the table to write to, or the reason for none."""
        keyed = self.of(table)
        if keyed is None:
            return table, self._place_appended(table, type_name, schema, columns, notes)
        log = table + LOG
        known = self._book.planned(log, Role.LOG, type_name)
        chosen = replace(keyed.rule, by_file=self._config.source.brings_files)
        self._refuse_other_use(table, type_name, known, chosen)
        check = partial(self._unfit, chosen, known, columns, inferred=inferred)
        window = (WINDOW,) if chosen.horizon else ()
        own = (*_change_columns(chosen), *window, *columns)
        refused = self._book.evolve(
            log, type_name, schema, own, role=Role.LOG, refuse=check, notes=notes
        )
        if refused is None:
            rule = self._spelled(chosen, log)
            self._describe_order(log, rule)
            self.rules[log] = rule
            self._follow(table, type_name, keyed)
        return log, refused

    def _place_appended(
        self,
        table: str,
        type_name: str,
        schema: WriterSchema,
        columns: tuple[Column, ...],
        notes: tuple[ColumnChange, ...],
    ) -> Rejected | None:
        if not table:
            return None
        refused = self._book.evolve(table, type_name, schema, columns, notes=notes)
        known = self._book.tables.get(table)
        if known is not None and _is_merged(known):
            raise ConfigError(
                f"the rows of table {table} were merged by key, but no entry of `keys` fits it now",
                where="keys",
                evidence=f"{known.path} has the column {SEQ_COLUMN.name}",
                next_step=f"put its entry back, or give the table another name; {_START_OVER}",
            )
        return refused

    def _refuse_other_use(
        self, table: str, type_name: str, log: TablePlan | None, rule: KeyRule
    ) -> None:
        """Raise ConfigError if existing rows were written with another rule, or without one."""
        known = self._book.planned(table, Role.MERGED, type_name)
        if known is not None and not _is_merged(known):
            self._book.tables.pop(table, None)
            raise ConfigError(
                f"records were appended to table {table}, but it has a key now",
                where="keys",
                evidence=f"{known.path} has no column {SEQ_COLUMN.name}",
                next_step=f"give the table another name, such as by tables.prefix; {_START_OVER}",
            )
        before = "" if log is None else _order_of(log).rpartition("; ")[0]
        if log is not None and before != rule.signature:
            raise ConfigError(
                f"the rows of table {table} have another key or order than `keys` says",
                where="keys",
                evidence=f"they are {before or 'of change data'}; now {rule.signature}",
                next_step=f"put the key and the order back; {_START_OVER}",
            )

    def _unfit(
        self,
        rule: KeyRule,
        log: TablePlan | None,
        writer: Sequence[Column],
        merged: Merged,
        *,
        inferred: bool,
    ) -> Rejected | None:
        """Return why records with these columns have no key or no order; empty if they have."""
        filled = {fill.target for fill in merged.fills} - {*CHANGE_NAMES}
        types = {fold(c.name): c.type for c in merged.columns if c.name in filled}
        for what, names in (("key", rule.key), ("order", rule.order)):
            for name in names:
                if fold(name) not in types and name != TIME_OF_RECORD:
                    reason = f"its schema has no value for column {name} of its {what}"
                    return Rejected(ErrorCode.KEY_NOT_IN_PAYLOAD, reason)
        kinds = []
        for number, name in enumerate(rule.order):
            type_ = types.get(fold(name))
            kinds.append("time" if type_ is None else order_kind(type_))
            last = number == len(rule.order) - 1 and not rule.keeps_first
            if not kinds[-1] or (kinds[-1] == "text" and not last):
                reason = f"column {name} of its order is {sql_name(type_)}" if type_ else ""
                return Rejected(ErrorCode.UNUSABLE_SCHEMA, f"{reason}, which has no order here")
        before = "" if log is None else _order_of(log).rpartition("; ")[2]
        if log is not None and before != ", ".join(kinds):
            reason = f"the order of its table is by {before}, and would be by {', '.join(kinds)}"
            return Rejected(ErrorCode.TYPE_CHANGE_REFUSED, reason)
        return _unfit_condition(rule, (*merged.columns, *self._book.metadata), inferred=inferred)

    def _spelled(self, rule: KeyRule, log: str) -> KeyRule:
        """Return the rule with the table's spelling of the columns."""
        spelling = {fold(column.name): column.name for column in self._book.tables[log].columns}
        key, order = (
            tuple(spelling.get(fold(name), name) for name in names)
            for names in (rule.key, rule.order)
        )
        return replace(rule, key=key, order=order)

    def _describe_order(self, log: str, rule: KeyRule) -> None:
        """Record the order in the comment of a new log, so that a changed rule is noticed."""
        table = self._book.tables[log]
        if table.exists:
            return
        types = {column.name: column.type for column in table.columns}
        kinds = [
            "time" if name == TIME_OF_RECORD else order_kind(types[name]) for name in rule.order
        ]
        comment = f"{rule.signature}; {', '.join(kinds)}"
        columns = tuple(
            replace(column, comment=comment) if column.name == SEQ_COLUMN.name else column
            for column in table.columns
        )
        self._book.tables[log] = replace(table, columns=columns)

    def _follow(self, table: str, type_name: str, keyed: KeyedTables) -> None:
        """Plan the tables that are merged from a log, with its columns."""
        metadata: Collection[str] = {column.name for column in (*self._book.metadata, DATE)}
        source = source_columns(self._book.tables[table + LOG].columns, metadata)
        for ending, role in (("", Role.MERGED), (HISTORY, Role.HISTORY)):
            if role is Role.MERGED or keyed.history:
                columns = derived_columns(source, table, role, keyed)
                self._book.follow(table + ending, role, type_name, columns)


def _change_columns(rule: KeyRule) -> tuple[Column, ...]:
    return tuple(
        replace(column, comment=f"{rule.signature}; ") if column.name == SEQ_COLUMN.name else column
        for column in CHANGE_COLUMNS
    )


def _is_merged(table: TablePlan) -> bool:
    return any(c.name == SEQ_COLUMN.name and c.type == SEQ_COLUMN.type for c in table.columns)


def _order_of(log: TablePlan) -> str:
    """Return the recorded order of a log: the rule, then the types."""
    return next((c.comment for c in log.columns if c.name == SEQ_COLUMN.name), "")


def _unfit_condition(
    rule: KeyRule, columns: Sequence[Column], *, inferred: bool
) -> Rejected | None:
    """Return why the condition of deletes cannot be evaluated over some columns."""
    if rule.delete is None:
        return None
    own = [column for column in columns if column.name not in CHANGE_NAMES]
    why = checks_of((rule.delete,), own).unfit.get(rule.delete.name, "")
    # an inferred schema has a field once a record has it; until then the condition is never true
    if not why or (inferred and why.startswith("no ")):
        return None
    return Rejected(ErrorCode.UNUSABLE_SCHEMA, f"delete_when: {why}")
