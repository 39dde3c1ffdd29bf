"""Aggregate tables: a row for each group of another table's rows, brought up to date by its log.

An aggregate table remembers which version of its source table it is computed from. The rows that
were added to the source table since then, and the rows that were removed, are grouped, then added
to the groups' rows and subtracted from them, in one commit with the new version and the mark of the
batch. So a second attempt finds nothing to do, and rows count once, however they got into the
source table: by a batch, a replay, a merge or a repair. Where the difference is not known any more,
all rows are grouped again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.apply import replacing, rewrite, written
from distributary.changes.log_events import combined
from distributary.changes.merge_order import MergeResult, merged_columns
from distributary.changes.merge_target import MergeTarget, Part
from distributary.config.rules.aggregates import AggregateConfig
from distributary.delta.column_merge import columns_of, fields_of
from distributary.delta.commit import Change, rewrite_files
from distributary.delta.difference import FileRows, TableDifference, difference, read_rows
from distributary.delta.log import FEATURES, DataFile, Snapshot, load, snapshot_of
from distributary.delta.skipping import KeyRanges
from distributary.delta.tables import committing, until_not_overtaken
from distributary.errors import PublishError
from distributary.model.cache import Cache
from distributary.model.manifest import Mark, StagedFile
from distributary.model.names import printable
from distributary.model.rules.aggregate_rule import AggregateRule
from distributary.model.table import Role
from distributary.shape.aggregate_columns import Aggregates, aggregates_of
from distributary.shape.evaluation import PreparedStatement, engine_words
from distributary.shape.resolve import ShapeError
from distributary.store.base import at

DEFINITION = "distributary.aggregate"
"""The table property with the definition by which an aggregate table is computed."""
RULE = "distributary.aggregate.rule"
"""The table property with the groups and columns as the pipeline file has them, in JSON."""
_VERSION = "distributary-aggregate/"
"""The application of the mark that holds the version of the source table; its id follows."""
_MOST_GROUPED_AT_ONCE = 20_000
"""Groups of a small table, to which new rows are added by one statement."""
_MOST_WAITING = 500_000
"""Rows of partial results that are put together at once."""
_EXAMPLES = 5
_MOST_STATEMENTS = 500


@dataclass(frozen=True, slots=True)
class AggregateOrder:
    """Bring an aggregate table up to date with its source table."""

    table: str
    path: str
    source: str
    """The name of the source table."""
    source_path: str
    role: Role
    """The role of the source table."""
    rule: AggregateRule
    mark: Mark | None = None
    comment: str = ""
    vectors: bool = False
    """Whether rows leave large files by deletion vectors."""
    whole: bool = False
    """Whether all rows are grouped again."""


class GroupSums:
    """Adds up the rows of a table, group by group."""

    def __init__(self, aggregates: Aggregates) -> None:
        self._statements = _Statements.of(aggregates)
        self._waiting: list[pa.Table] = []
        self._size = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows with the columns that the aggregates read."""
        if rows.num_rows:
            self.add_partial(self._statements.partial(rows))

    def add_partial(self, part: pa.Table) -> None:
        """Add partial results."""
        self._waiting.append(part)
        self._size += part.num_rows
        if self._size > _MOST_WAITING and len(self._waiting) > 1:
            self._waiting = [self.result()]
            self._size = self._waiting[0].num_rows

    def result(self) -> pa.Table:
        """Return one partial result for each group."""
        if len(self._waiting) == 1:
            return self._waiting[0]
        if not self._waiting:
            return self._statements.parts.empty_table()
        return self._statements.combined(pa.concat_tables(self._waiting))


class _Statements:
    """The prepared statements of aggregates."""

    def __init__(self, aggregates: Aggregates) -> None:
        keys = [pa.field(group.name, group.type) for group, _ in aggregates.groups]
        states = [pa.field(f"_s{n}", state.type) for n, state in enumerate(aggregates.states)]
        self.keys = pa.schema(keys)
        """The columns of the group."""
        self.parts = pa.schema([*keys, *states])
        """The columns of partial results."""
        self.sided = self.parts.append(pa.field("_kind", pa.int8()))
        sides = [pa.field(f"_{side}{f.name[2:]}", f.type) for side in "pm" for f in states]
        self.net_schema = pa.schema([*keys, *sides])
        self._merged_schema = self.parts.append(pa.field("_lost", pa.bool_()))
        self._rows_schema = aggregates.schema
        self._partial = PreparedStatement(aggregates.partial, aggregates.inputs)
        self._combined = PreparedStatement(aggregates.combined, self.parts)
        self._rows = PreparedStatement(aggregates.rows, self.parts)
        self._stored = [*aggregates.keys, *(state.column for state in aggregates.states)]
        once = (True, False)
        self._net = {
            o: PreparedStatement(partial(aggregates.net, once=o), self.sided) for o in once
        }
        self._merged = {
            o: PreparedStatement(partial(aggregates.merged, once=o), self.net_schema, self.parts)
            for o in once
        }
        self._finished = {
            o: PreparedStatement(partial(aggregates.finished, once=o), self.net_schema, self.parts)
            for o in once
        }
        self._finished_schema = aggregates.schema.append(self.parts.field("_s0")).append(
            self._merged_schema.field("_lost")
        )
        self._appended = PreparedStatement(aggregates.appended, aggregates.inputs, self.parts)
        placed = self.keys.append(pa.field("_at", pa.int64()))
        self._places = PreparedStatement(partial(aggregates.among, "o._at"), placed, self.keys)
        self._among = PreparedStatement(partial(aggregates.among, "o.*"), self.parts, self.keys)
        self._compared = PreparedStatement(
            aggregates.compared, aggregates.schema, aggregates.schema
        )

    @classmethod
    def of(cls, aggregates: Aggregates) -> _Statements:
        """Return the statements of aggregates; tables that agree share them."""
        return _KNOWN.get(aggregates.text, lambda: cls(aggregates))

    def partial(self, rows: pa.Table) -> pa.Table:
        """Return partial results of rows of the source table."""
        return self._partial(rows).cast(self.parts)

    def combined(self, parts: pa.Table) -> pa.Table:
        """Return one partial result for each group of several."""
        return self._combined(parts).cast(self.parts)

    def rows(self, parts: pa.Table) -> pa.Table:
        """Return the rows of the aggregate table."""
        return self._rows(parts).cast(self._rows_schema)

    def states(self, rows: pa.Table) -> pa.Table:
        """Return partial results from rows of the aggregate table."""
        columns = [rows.column(name) for name in self._stored]
        return pa.Table.from_arrays(columns, schema=self.parts)

    def net(self, came: pa.Table, left: pa.Table, *, once: bool) -> pa.Table:
        """Return the partial results of added and of removed rows, side by side."""
        if not left.num_rows:
            gone = [
                pa.nulls(came.num_rows, f.type) for f in self.parts if f.name not in self.keys.names
            ]
            return pa.Table.from_arrays([*came.columns, *gone], schema=self.net_schema)
        sides = [
            table.append_column(self.sided.field("_kind"), pa.repeat(pa.scalar(k, pa.int8()), n))
            for table, k in ((came, 1), (left, -1))
            for n in [table.num_rows]
        ]
        return self._net[once](pa.concat_tables(sides)).cast(self.net_schema)

    def merged(self, net: pa.Table, old: pa.Table, *, once: bool) -> pa.Table:
        """Return the new state of the groups in `net`, and whether it lost a bound."""
        return self._merged[once](net, old).cast(self._merged_schema)

    def finished(self, net: pa.Table, old: pa.Table, *, once: bool) -> pa.Table:
        """Return the new rows of the groups in `net`, with `_s0` and `_lost` behind them."""
        return self._finished[once](net, old).cast(self._finished_schema)

    def appended(self, rows: pa.Table, old: pa.Table) -> pa.Table:
        """Return the new rows of the groups of `rows` of the source table, where no row left."""
        done = self._appended(rows, old).cast(self._finished_schema)
        return done.drop_columns(["_s0", "_lost"])

    def places(self, rows: pa.Table, keys: pa.Table) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows whose groups are in `keys`."""
        if len(self.keys) == 1:
            # null is a group, and groups are never floating numbers
            among = pc.is_in(rows.column(self.keys.names[0]), value_set=combined(keys.column(0)))
            return np.flatnonzero(among.to_numpy())
        numbers = pa.array(np.arange(rows.num_rows))
        found = self._places(rows.append_column("_at", numbers), keys)
        places: npt.NDArray[np.int64] = np.sort(found.column(0).to_numpy())
        return places

    def among(self, parts: pa.Table, keys: pa.Table) -> pa.Table:
        """Return the partial results whose groups are in `keys`."""
        return self._among(parts, keys).cast(self.parts)

    def compared(self, found: pa.Table, expected: pa.Table) -> pa.Table:
        """Return the groups in which two tables differ, with the differences."""
        return self._compared(found, expected)


_KNOWN: Cache[_Statements] = Cache(_MOST_STATEMENTS)


# What an aggregate table is computed from.


@dataclass(frozen=True, slots=True)
class _Work:
    """An aggregate table and its source table, each at one version."""

    order: AggregateOrder
    source: Snapshot
    before: Snapshot | None
    aggregates: Aggregates

    @property
    def app(self) -> str:
        """Return the application of the mark with the version of the source table."""
        return f"{_VERSION}{self.source.metadata.get('id', '')}"

    @property
    def definition(self) -> str:
        """Return the text of the table property with the definition of the aggregate."""
        rule = self.order.rule
        parts = [self.order.source, rule.name, *self.aggregates.signature]
        return json.dumps(parts, ensure_ascii=False)

    @property
    def since(self) -> int | None:
        """Return the version of the source table that the rows agree with; None if unknown."""
        if self.before is None or self.before.property(DEFINITION) != self.definition:
            return None
        version = self.before.marks.get(self.app)
        return None if version is None or version > self.source.version else version


def origin_of(path: str) -> tuple[str, str] | None:
    """Return the source table of an aggregate table and the name of its entry; None: none."""
    table = snapshot_of(path)
    try:
        source, entry, *_ = json.loads((table and table.property(DEFINITION)) or "[]")
    except ValueError:
        return None
    return str(source), str(entry)


def recorded_rule(path: str) -> AggregateRule | None:
    """Return the rule by which an aggregate table was computed; None if it is not recorded.

    It is not recorded in tables that an earlier release wrote last.
    """
    table = snapshot_of(path)
    text = None if table is None else table.property(RULE)
    if text is None:
        return None
    recorded = json.loads(text)
    # whether the name fits other tables was settled when the table was made
    entry = AggregateConfig.model_validate(recorded | {"name": "{table}"})
    return replace(entry.rule(), name=recorded["name"])


def _rule_text(rule: AggregateRule) -> str:
    """Return a rule as a table property; `recorded_rule` reads it."""
    groups = {name: expression.text for name, expression in rule.group_by}
    columns = {column.name: column.text for column in rule.columns}
    return json.dumps(
        {"name": rule.name, "group_by": groups, "columns": columns}, ensure_ascii=False
    )


def _opened(order: AggregateOrder, version: int | None = None) -> _Work | None:
    """Open both tables, the source table last; None if it is not there.

    Raise PublishError if one of them cannot be used.
    """
    before = snapshot_of(order.path)
    if before is not None and before.property(DEFINITION) is None:
        raise PublishError(
            f"table {order.table} is not an aggregate table",
            where=order.path,
            evidence=f"it has no property {DEFINITION}",
            next_step="another program or an earlier pipeline created it: move it away, or give "
            "the aggregate another name",
        )
    source = (
        snapshot_of(order.source_path)
        if version is None
        else load(at(order.source_path), version=version)
    )
    if source is None:
        return None
    unknown = {*(source.protocol.get("readerFeatures") or ())} - FEATURES
    if unknown:
        raise PublishError(
            f"table {order.source} has features that only another engine can read",
            where=order.source_path,
            evidence=", ".join(sorted(unknown)),
            next_step="remove the feature from the table, or the table from `aggregates`",
        )
    try:
        aggregates = aggregates_of(
            order.rule, columns_of(source.fields), skips_deleted=order.role is Role.MERGED
        )
    except ShapeError as error:
        raise PublishError(
            f"the rows of table {order.source} cannot be grouped for table {order.table}",
            where=order.source_path,
            evidence=str(error),
            next_step="change `aggregates` in the pipeline file",
        ) from error
    return _Work(order, source, before, aggregates)


def merge_aggregates(order: AggregateOrder) -> MergeResult:
    """Bring an aggregate table up to date with its source table. Raises PublishError."""
    import duckdb

    try:
        with committing(order.path, doing="merge into an aggregate table"):
            return until_not_overtaken(lambda: _attempt(order))
    except PublishError as error:
        if isinstance(error.__cause__, duckdb.Error):
            raise PublishError(
                f"the groups of table {order.table} cannot be computed",
                where=order.path,
                evidence=engine_words(error.__cause__),
                next_step="a sum that is too large needs a cast to a type with fewer digits after "
                "the point; then `distributary resume` the table",
            ) from error
        raise


def _attempt(order: AggregateOrder) -> MergeResult:
    work = _opened(order)
    if work is None:
        return MergeResult(order.table, -1)
    since = work.since
    if since is not None and work.before is not None and not order.whole:
        if since == work.source.version:
            return MergeResult(order.table, work.before.version, skipped=True)
        try:
            changes = difference(work.source, since)
            if changes is not None:
                return MergeResult(order.table, _added(work, work.before, changes))
        except FileNotFoundError:
            # a file that was compacted since, and removed
            pass
    return MergeResult(order.table, _computed(work))


# All rows of the source table.


def _grouped(work: _Work, files: Iterable[FileRows]) -> pa.Table:
    groups = GroupSums(work.aggregates)
    for rows in files:
        for piece in read_rows(work.source, rows, work.aggregates.inputs):
            groups.add(piece)
    return groups.result()


def _computed(work: _Work) -> int:
    """Group all rows of the source table, and put the groups in place of the table's rows."""
    order, before = work.order, work.before
    parts = _grouped(work, map(FileRows, work.source.files.values()))
    if not parts.num_rows and before is None:
        return -1
    rows = _Statements.of(work.aggregates).rows(parts)
    added = written([rows], folder=order.path, key=work.aggregates.keys)
    if before is not None:
        before.refuse_unusable(order.table)
    fields = fields_of(work.aggregates.columns)
    removed = list(before.files.values()) if before is not None else []
    change = _change(work, len(rows), removed, added)
    same = before is not None and list(before.fields) == fields
    return _commit(work, replace(change, fields=None if same else fields))


def _change(
    work: _Work, groups: int, removed: Sequence[DataFile], added: Sequence[StagedFile]
) -> Change:
    properties = {DEFINITION: work.definition, RULE: _rule_text(work.order.rule)}
    before = {} if work.before is None else {n: work.before.property(n) for n in properties}
    return Change(
        "MERGE",
        work.order.table,
        comment=work.order.comment,
        properties={} if before == properties else properties,
        removed=removed,
        added=added,
        mark=work.order.mark,
        marks={work.app: work.source.version},
        metrics={
            "numSourceRows": groups,
            "numTargetFilesAdded": len(added),
            "numTargetFilesRemoved": len(removed),
        },
    )


def _commit(work: _Work, change: Change) -> int:
    return rewrite_files(work.order.path, work.before, change).version


# Only the rows that were added to the source table or removed from it.


def _added(work: _Work, before: Snapshot, changes: TableDifference) -> int:
    """Add the source table's new rows to the groups, and subtract its removed rows."""
    before.refuse_unusable(work.order.table)
    columns = merged_columns(before.fields, work.aggregates.columns, system=(), evolution="none")
    target = MergeTarget(before, columns)
    found = _appended(work, before, target, changes)
    if found is None:
        found = _changed(work, before, target, changes)
    parts, rows, groups = found
    if not groups:
        return _commit(work, _change(work, 0, [], []))
    gone = np.ones(sum(len(part.known) for part in parts), np.bool_)
    made = replacing(parts, rows, gone=gone, key=work.aggregates.keys)
    done = rewrite(target, made, columns, folder=work.order.path, vectors=work.order.vectors)
    change = _change(work, groups, done.removed, done.added)
    return _commit(work, replace(change, vectors=done.vectors))


_ChangedGroups = tuple[list[Part], pa.Table, int]
"""Where the rows of changed groups are, the groups' new rows, and the number of these groups."""


def _appended(
    work: _Work, before: Snapshot, target: MergeTarget, changes: TableDifference
) -> _ChangedGroups | None:
    """Return the groups of one piece of new rows, added to a small table by one statement.

    Return None if there is more to do. Most batches of most tables are that small, and statements
    are most of what they cost.
    """
    (file, *others) = before.files.values() or (None,)
    small = file is not None and file.rows is not None and file.rows <= _MOST_GROUPED_AT_ONCE
    if file is None or not small or others or changes.left or len(changes.came) != 1:
        return None
    pieces = list(islice(read_rows(work.source, changes.came[0], work.aggregates.inputs), 2))
    if len(pieces) != 1:
        return None
    statements = _Statements.of(work.aggregates)
    old = target.columns(file, work.aggregates.schema)
    rows = statements.appended(pieces[0], statements.states(old))
    keys = work.aggregates.keys
    places = statements.places(old.select(keys), rows.select(keys))
    return [Part(file, np.arange(len(places)), places)], rows, rows.num_rows


def _changed(
    work: _Work, before: Snapshot, target: MergeTarget, changes: TableDifference
) -> _ChangedGroups:
    """Return the groups of all rows that were added or removed."""
    statements = _Statements.of(work.aggregates)
    once = changes.commits <= 1
    came, left = _grouped(work, changes.came), _grouped(work, changes.left)
    net = statements.net(came, left, once=once)
    if not net.num_rows:
        return [], net, 0
    parts, old = _known(work, before, target, net.select(work.aggregates.keys))
    return parts, _new_rows(work, net, statements.states(old), once=once), net.num_rows


def _known(
    work: _Work, before: Snapshot, target: MergeTarget, keys: pa.Table
) -> tuple[list[Part], pa.Table]:
    """Return where the rows of some groups are in the table, and these rows."""
    statements = _Statements.of(work.aggregates)
    files = list(before.files.values())
    may = {file.path for file in _candidates(files, keys, {k: k for k in keys.column_names})}

    def look(file: DataFile) -> tuple[npt.NDArray[np.int64], pa.Table | None]:
        if file.path not in may:
            return np.zeros(0, np.int64), None
        found = statements.places(target.columns(file, statements.keys), keys)
        rows = target.columns(file, work.aggregates.schema) if len(found) else None
        return found, None if rows is None else rows.take(pa.array(found))

    parts, tables, count = [], [work.aggregates.schema.empty_table()], 0
    for file in files:
        places, rows = look(file)
        parts.append(Part(file, count + np.arange(len(places)), places))
        tables += [rows] if rows is not None else []
        count += len(places)
    return parts, pa.concat_tables(tables)


def _candidates(
    files: Sequence[DataFile], keys: pa.Table, columns: Mapping[str, str]
) -> Sequence[DataFile]:
    """Return the files that can hold rows of some groups; `columns` has the files' names."""
    if len(files) < 2 or not columns:
        return files
    wanted = keys.select(list(columns)).rename_columns(list(columns.values()))
    ranges = KeyRanges(wanted, wanted.column_names)
    return [file for file in files if ranges.may_be_in(file)]


def _new_rows(work: _Work, net: pa.Table, old: pa.Table, *, once: bool) -> pa.Table:
    """Return the rows of the changed groups, without empty groups."""
    statements = _Statements.of(work.aggregates)
    done = statements.finished(net, old, once=once)
    counts = done.column("_s0")
    _refuse_too_few(work, counts)
    there = pc.greater(counts, 0)
    if pc.any(pc.and_(done.column("_lost"), there)).as_py():
        groups = _with_bounds(work, statements.merged(net, old, once=once))
        return statements.rows(groups.filter(pc.greater(groups.column("_s0"), 0)))
    rows = done.drop_columns(["_s0", "_lost"])
    return rows if pc.all(there).as_py() else rows.filter(there)


def _refuse_too_few(work: _Work, counts: pa.ChunkedArray) -> None:
    if pc.min(counts).as_py() < 0:
        raise PublishError(
            f"the groups of table {work.order.table} do not agree with table {work.order.source}",
            where=work.order.path,
            evidence="more rows were removed from a group than it had",
            next_step=f"`distributary rebuild {work.order.table}` computes them again",
        )


def _with_bounds(work: _Work, groups: pa.Table) -> pa.Table:
    """Compute the groups again that lost a bound, from the files that can hold their rows."""
    lost = pc.and_(groups.column("_lost"), pc.greater(groups.column("_s0"), 0))
    rest = groups.filter(pc.invert(lost)).drop_columns(["_lost"])
    again = groups.filter(lost)
    keys = again.select(work.aggregates.keys)
    statements = _Statements.of(work.aggregates)
    files = list(work.source.files.values())
    sums = GroupSums(work.aggregates)
    for file in _candidates(files, keys, _prunable(work)):
        for piece in read_rows(work.source, FileRows(file), work.aggregates.inputs):
            if piece.num_rows:
                sums.add_partial(statements.among(statements.partial(piece), keys))
    return pa.concat_tables([rest, sums.result()])


def _prunable(work: _Work) -> dict[str, str]:
    """Return the groups that are a column in the files of the source table, with that column."""
    apart = set(work.source.partition_columns)
    types = {column.name: column.type for column in columns_of(work.source.fields)}
    own = {group.name: group.type for group, _ in work.aggregates.groups}
    return {
        name: column
        for name, column in work.aggregates.plain.items()
        if column not in apart and own[name] == types[column]
    }


# The comparison of an aggregate table with its source table.


@dataclass(frozen=True, slots=True)
class AggregateCheck:
    """An aggregate table, and the groups of its source table at the version it agrees with."""

    table: str
    version: int | None
    """The version of the source table; None if the table does not know it."""
    newest: int
    """The newest version of the source table."""
    groups: int
    """The groups of the source table."""
    wrong: int = 0
    """The groups that differ, or are missing on one side."""
    examples: tuple[str, ...] = ()
    behind: bool = False
    """Whether rows came into the source table, or left it, that the table does not count."""

    @property
    def agrees(self) -> bool:
        """Return whether the table has the groups of the current source table."""
        return not self.wrong and not self.behind


def verify_aggregates(order: AggregateOrder) -> AggregateCheck | None:
    """Group the rows of the source table again and compare; None if there is no table."""
    work = _opened(order)
    before = None if work is None else work.before
    if work is None or before is None:
        return None
    newest, since = work.source.version, work.since
    if since is None:
        return AggregateCheck(order.table, None, newest, 0, behind=True)
    behind = False
    if since < newest:
        changes = difference(work.source, since)
        behind = changes is None or bool(changes.came or changes.left)
    if behind:
        work = _opened(order, since) or work
        if work.source.version != since:
            return AggregateCheck(order.table, since, newest, 0, behind=True)
    statements = _Statements.of(work.aggregates)
    expected = statements.rows(_grouped(work, map(FileRows, work.source.files.values())))
    found = (
        [work.before.read(f, work.aggregates.schema) for f in work.before.files.values()]
        if work.before
        else []
    )
    have = pa.concat_tables([work.aggregates.schema.empty_table(), *found])
    wrong = statements.compared(have, expected)
    examples = tuple(map(_example, wrong.slice(0, _EXAMPLES).to_pylist()))
    return AggregateCheck(
        order.table, since, newest, expected.num_rows, wrong.num_rows, examples, behind
    )


def _example(row: dict[str, Any]) -> str:
    what = row.pop("_what")
    keys = ", ".join(f"{name}={value}" for name, value in row.items())
    return printable(f"{what}: {keys}", longest=200)
