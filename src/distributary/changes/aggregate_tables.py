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
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.aggregate_statements import AggregateStatements, GroupSums
from distributary.changes.apply import replacing, rewrite, written
from distributary.changes.merge_order import MergeResult, merged_columns
from distributary.changes.merge_target import MergeTarget, Part
from distributary.config.rules.aggregates import AggregateConfig
from distributary.delta.column_merge import columns_of, fields_of
from distributary.delta.commit import Change, rewrite_files
from distributary.delta.difference import FileRows, TableDifference, difference, read_rows
from distributary.delta.log import FEATURES, MOST_TABLES, DataFile, Snapshot, load, snapshot_of
from distributary.delta.skipping import KeyRanges
from distributary.delta.tables import committing, until_not_overtaken
from distributary.errors import PublishError
from distributary.model.cache import Cache
from distributary.model.manifest import Mark, StagedFile
from distributary.model.names import printable
from distributary.model.rules.aggregate_rule import AggregateRule
from distributary.model.table import Column, Role
from distributary.shape.aggregate_columns import Aggregates, aggregates_of
from distributary.shape.evaluation import engine_words
from distributary.shape.resolve import ShapeError
from distributary.store.base import at

DEFINITION = "distributary.aggregate"
"""The table property with the definition by which an aggregate table is computed."""
RULE = "distributary.aggregate.rule"
"""The table property with the groups and columns as the pipeline file has them, in JSON."""
_VERSION = "distributary-aggregate/"
"""The application of the mark that holds the version of the source table; its id follows."""
_EXAMPLES = 5


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


# What an aggregate table is computed from.


@dataclass(frozen=True, slots=True)
class AggregateWork:
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


def open_work(order: AggregateOrder, version: int | None = None) -> AggregateWork | None:
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
            order.rule, _columns_of(source), skips_deleted=order.role is Role.MERGED
        )
    except ShapeError as error:
        raise PublishError(
            f"the rows of table {order.source} cannot be grouped for table {order.table}",
            where=order.source_path,
            evidence=str(error),
            next_step="change `aggregates` in the pipeline file",
        ) from error
    return AggregateWork(order, source, before, aggregates)


_COLUMNS: Cache[tuple[Column, ...]] = Cache(MOST_TABLES)


def _columns_of(source: Snapshot) -> tuple[Column, ...]:
    return _COLUMNS.of((source.fields,), lambda: columns_of(source.fields))


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
    work = open_work(order)
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


def _grouped(work: AggregateWork, files: Iterable[FileRows]) -> pa.Table:
    groups = GroupSums(work.aggregates)
    for rows in files:
        for piece in read_rows(work.source, rows, work.aggregates.inputs):
            groups.add(piece)
    return groups.result()


def _computed(work: AggregateWork) -> int:
    """Group all rows of the source table, and put the groups in place of the table's rows."""
    order, before = work.order, work.before
    parts = _grouped(work, map(FileRows, work.source.files.values()))
    if not parts.num_rows and before is None:
        return -1
    rows = AggregateStatements.of(work.aggregates).rows(parts)
    added = written([rows], folder=order.path, key=work.aggregates.keys)
    if before is not None:
        before.refuse_unusable(order.table)
    fields = fields_of(work.aggregates.columns)
    removed = list(before.files.values()) if before is not None else []
    change = change_of(work, len(rows), removed, added)
    same = before is not None and list(before.fields) == fields
    return _commit(work, replace(change, fields=None if same else fields))


def change_of(
    work: AggregateWork, groups: int, removed: Sequence[DataFile], added: Sequence[StagedFile]
) -> Change:
    """Return the change of an aggregate table by which `groups` of its groups have new rows."""
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


def _commit(work: AggregateWork, change: Change) -> int:
    return rewrite_files(work.order.path, work.before, change).version


# Only the rows that were added to the source table or removed from it.


def _added(work: AggregateWork, before: Snapshot, changes: TableDifference) -> int:
    """Add the source table's new rows to the groups, and subtract its removed rows."""
    before.refuse_unusable(work.order.table)
    columns = merged_columns(before.fields, work.aggregates.columns, system=(), evolution="none")
    target = MergeTarget(before, columns)
    parts, rows, groups = _changed(work, before, target, changes)
    if not groups:
        return _commit(work, change_of(work, 0, [], []))
    gone = np.ones(sum(len(part.known) for part in parts), np.bool_)
    made = replacing(parts, rows, gone=gone, key=work.aggregates.keys)
    done = rewrite(target, made, columns, folder=work.order.path, vectors=work.order.vectors)
    change = change_of(work, groups, done.removed, done.added)
    return _commit(work, replace(change, vectors=done.vectors))


_ChangedGroups = tuple[list[Part], pa.Table, int]
"""Where the rows of changed groups are, the groups' new rows, and the number of these groups."""


def _changed(
    work: AggregateWork, before: Snapshot, target: MergeTarget, changes: TableDifference
) -> _ChangedGroups:
    """Return the groups of all rows that were added or removed."""
    statements = AggregateStatements.of(work.aggregates)
    once = changes.commits <= 1
    came, left = _grouped(work, changes.came), _grouped(work, changes.left)
    net = statements.net(came, left, once=once)
    if not net.num_rows:
        return [], net, 0
    parts, old = _known(work, before, target, net.select(work.aggregates.keys))
    return parts, _new_rows(work, net, statements.states(old), once=once), net.num_rows


def _known(
    work: AggregateWork, before: Snapshot, target: MergeTarget, keys: pa.Table
) -> tuple[list[Part], pa.Table]:
    """Return where the rows of some groups are in the table, and these rows."""
    statements = AggregateStatements.of(work.aggregates)
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


def _new_rows(work: AggregateWork, net: pa.Table, old: pa.Table, *, once: bool) -> pa.Table:
    """Return the rows of the changed groups, without empty groups."""
    statements = AggregateStatements.of(work.aggregates)
    done = statements.finished(net, old, once=once)
    counts = done.column("_s0")
    _refuse_too_few(work, counts)
    there = pc.greater(counts, 0)
    if pc.any(pc.and_(done.column("_lost"), there)).as_py():
        groups = _with_bounds(work, statements.merged(net, old, once=once))
        return statements.rows(groups.filter(pc.greater(groups.column("_s0"), 0)))
    rows = done.drop_columns(["_s0", "_lost"])
    return rows if pc.all(there).as_py() else rows.filter(there)


def _refuse_too_few(work: AggregateWork, counts: pa.ChunkedArray) -> None:
    if pc.min(counts).as_py() < 0:
        raise PublishError(
            f"the groups of table {work.order.table} do not agree with table {work.order.source}",
            where=work.order.path,
            evidence="more rows were removed from a group than it had",
            next_step=f"`distributary rebuild {work.order.table}` computes them again",
        )


def _with_bounds(work: AggregateWork, groups: pa.Table) -> pa.Table:
    """Compute the groups again that lost a bound, from the files that can hold their rows."""
    lost = pc.and_(groups.column("_lost"), pc.greater(groups.column("_s0"), 0))
    rest = groups.filter(pc.invert(lost)).drop_columns(["_lost"])
    again = groups.filter(lost)
    keys = again.select(work.aggregates.keys)
    statements = AggregateStatements.of(work.aggregates)
    files = list(work.source.files.values())
    sums = GroupSums(work.aggregates)
    for file in _candidates(files, keys, _prunable(work)):
        for piece in read_rows(work.source, FileRows(file), work.aggregates.inputs):
            if piece.num_rows:
                sums.add_partial(statements.among(statements.partial(piece), keys))
    return pa.concat_tables([rest, sums.result()])


def _prunable(work: AggregateWork) -> dict[str, str]:
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
    work = open_work(order)
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
        work = open_work(order, since) or work
        if work.source.version != since:
            return AggregateCheck(order.table, since, newest, 0, behind=True)
    statements = AggregateStatements.of(work.aggregates)
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
