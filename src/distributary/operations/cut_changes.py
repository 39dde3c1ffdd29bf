"""The rows that a table got, changed or lost between two cuts.

If rows were only added, the files that commits have added are read. Otherwise the files that only
one of the two versions has are compared, so that rows which were only moved, as by compaction, do
not count. The cost depends on the files that were written between the cuts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from distributary.changes.events.log_events import PROPERTY, from_text
from distributary.delta.column_merge import columns_of
from distributary.delta.log import DataFile, Snapshot, data_file, file_key, load
from distributary.delta.log_reading import BrokenLogError, actions_in, commit_name
from distributary.delta.tables import reaching_table
from distributary.errors import ConfigError, LakeUnavailableError
from distributary.model.cut import CutPoint, CutTable
from distributary.model.names import quoted
from distributary.model.table import Role
from distributary.observe.cuts import Cuts
from distributary.store.base import at

CHANGE_TYPE = "_change_type"
"""The column with the kind of a row's change, with the values of Delta's change data feed."""
INSERT, DELETE = "insert", "delete"
BEFORE, AFTER = "update_preimage", "update_postimage"


@dataclass(frozen=True)
class TableChanges:
    """The changes of a table between two cuts; the rows are read on request."""

    table: CutTable
    """The table at the later cut."""
    before: CutTable | None
    """The table at the earlier cut; None if it was not there."""
    cuts: Cuts
    since: CutPoint
    until: CutPoint

    @cached_property
    def rows(self) -> pa.Table:
        """Return the changed rows with the column `_change_type`.

        A table of current rows has `update_preimage` and `update_postimage` for a row of the same
        key; any other table `insert` and `delete`. Raises DistributaryError if files are gone.
        """
        with self._reading():
            old, new = self._versions()
            schema = _schema(new)
            added = [] if old is None else _appended(old, new)
            if old is None:
                return _typed(_read(new, list(new.files.values()), schema), INSERT)
            if added is not None:
                return _typed(_read(new, added, schema), INSERT)
            had, has = ({_key(f): f for f in state.files.values()} for state in (old, new))
            gone = [file for key, file in had.items() if key not in has]
            came = [file for key, file in has.items() if key not in had]
            keys = _keys(new, schema) if self.table.role == Role.MERGED else ()
            return compared(_read(old, gone, schema), _read(new, came, schema), keys)

    def counts(self) -> Mapping[str, int]:
        """Return how many rows were inserted, updated and deleted."""
        with self._reading():
            old, new = self._versions()
            added = list(new.files.values()) if old is None else _appended(old, new)
        known = [file.rows for file in added or ()]
        if added is not None and None not in known:
            return {"inserted": sum(n or 0 for n in known), "updated": 0, "deleted": 0}
        kinds = self.rows[CHANGE_TYPE].to_pylist()
        return {
            "inserted": kinds.count(INSERT),
            "updated": kinds.count(AFTER),
            "deleted": kinds.count(DELETE),
        }

    def _versions(self) -> tuple[Snapshot | None, Snapshot]:
        store = at(self.table.path)
        new = load(store, version=self.table.version)
        old = None if self.before is None else load(store, version=self.before.version)
        for wanted, found in ((self.table, new), (self.before, old)):
            if wanted is not None and (found is None or found.version != wanted.version):
                raise BrokenLogError(f"there is no version {wanted.version}")
        if new is None:
            raise BrokenLogError("there is no table")
        return old, new

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Name the version that was lost if a block cannot read the table."""
        try:
            with reaching_table(self.table.path):
                yield
        except LakeUnavailableError as failure:
            self.cuts.refuse_lost(self.until, self.table, cause=failure)
            if self.before is not None:
                self.cuts.refuse_lost(self.since, self.before, cause=failure)
            raise


def changes_between(
    cuts: Cuts, since: CutPoint, until: CutPoint, names: Sequence[str] | None = None
) -> dict[str, TableChanges]:
    """Return the tables that have other versions at the later cut, by name.

    Raises ConfigError if the first cut is the later one, or for a format without versions.
    """
    wanted = list(names or [table.table for table in cuts.cut(until).tables])
    if names is not None:
        for name in names:
            cuts.table(until, name)
    earlier = {table.table: table for table in cuts.tables(since, wanted)}
    changed: dict[str, TableChanges] = {}
    for table in cuts.tables(until, wanted):
        before = earlier.get(table.table)
        if table.version is None:
            if names is None:
                continue
            raise ConfigError(
                f"the changes of table {table.table} are not known",
                where=table.path,
                evidence="its format keeps no versions",
            )
        if before is not None and (before.version or 0) > table.version:
            raise ConfigError(
                f"{since.describe()} is later than {until.describe()}",
                where=table.path,
                evidence=f"versions {before.version} and {table.version} of {table.table}",
                next_step="name the earlier cut first",
            )
        if before is None or before.version != table.version:
            changed[table.table] = TableChanges(table, before, cuts, since, until)
    return changed


def compared(old: pa.Table, new: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the rows that differ, each as often as it does; rows of one key are an update."""
    import duckdb

    same = " AND ".join(f"a.{quoted(n)} IS NOT DISTINCT FROM b.{quoted(n)}" for n in key)
    same = same or "false"
    parts = [
        (DELETE, "gone", f"NOT EXISTS (FROM came b WHERE {same})"),
        (BEFORE, "gone", f"EXISTS (FROM came b WHERE {same})"),
        (AFTER, "came", f"EXISTS (FROM gone b WHERE {same})"),
        (INSERT, "came", f"NOT EXISTS (FROM gone b WHERE {same})"),
    ]
    schema = old.schema.append(pa.field(CHANGE_TYPE, pa.string()))
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("old", old)
        engine.register("new", new)
        engine.execute("CREATE TABLE gone AS FROM old EXCEPT ALL FROM new")
        engine.execute("CREATE TABLE came AS FROM new EXCEPT ALL FROM old")
        found = [
            engine.sql(
                f"SELECT *, '{kind}' AS {CHANGE_TYPE} FROM {rows} a WHERE {where}"  # noqa: S608
            ).to_arrow_table()
            for kind, rows, where in parts
        ]
    return pa.concat_tables([part.cast(schema) for part in found])


def _appended(old: Snapshot, new: Snapshot) -> list[DataFile] | None:
    """Return the files with rows that were added between two versions.

    None if rows were changed or removed as well, if the log no longer has the commits, or if a file
    is gone that was compacted since.
    """
    added: list[DataFile] = []
    for version in range(old.version + 1, new.version + 1):
        try:
            data = new.store.read(commit_name(version))
        except FileNotFoundError:
            return None
        for action in actions_in(data, last=version == new.version):
            changed = [a for a in ("add", "remove") if action.get(a, {}).get("dataChange", False)]
            if "remove" in changed or (changed and action["add"].get("deletionVector")):
                return None
            if changed:
                added.append(data_file(action["add"]))
    moved = (file for file in added if file.path not in new.files)
    return None if any(new.store.look(file.path) is None for file in moved) else added


def _key(file: DataFile) -> str:
    return file_key(file.path, file.vector)


def _schema(state: Snapshot) -> pa.Schema:
    return pa.schema([pa.field(c.name, c.type) for c in columns_of(state.fields)])


def _keys(state: Snapshot, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns of the key of a table of current rows, as far as it has them."""
    spans = from_text(state.property(PROPERTY))
    key = tuple(spans[-1].key) if spans else ()
    return key if set(key) <= set(schema.names) else ()


def _read(state: Snapshot, files: Sequence[DataFile], schema: pa.Schema) -> pa.Table:
    """Read the rows of some files with all columns of `schema`."""
    apart = set(state.partition_columns) & set(schema.names)
    inside = pa.schema([field for field in schema if field.name not in apart])
    parts = [schema.empty_table()]
    for file in files:
        rows = state.read(file, inside, checked=False)
        for name in sorted(apart):
            field = schema.field(name)
            value = pa.scalar(file.values.get(name), pa.string()).cast(field.type)
            rows = rows.append_column(field, pa.repeat(value, rows.num_rows))
        parts.append(rows.select(schema.names).cast(schema))
    return pa.concat_tables(parts)


def _typed(rows: pa.Table, kind: str) -> pa.Table:
    return rows.append_column(CHANGE_TYPE, pa.repeat(pa.scalar(kind), rows.num_rows))
