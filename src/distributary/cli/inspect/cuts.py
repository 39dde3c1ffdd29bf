"""`cuts`: the moments of a lake at which all tables have the same batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from distributary.cli.command.lakes import FoundLake, find_lake
from distributary.cli.command.output import Paper, counted, number
from distributary.cli.command.verb import (
    LOOK,
    FileOption,
    Invocation,
    LakeOption,
    ListingGroup,
    PipelineName,
    argument,
    complete_tables,
    group,
    option,
    verb,
)
from distributary.cli.inspect.query import (
    Csv,
    RowShape,
    Width,
    row_shape,
    row_values,
    show_rows,
)
from distributary.model.names import one_line

if TYPE_CHECKING:
    from distributary.model.cut import Cut, CutPoint
    from distributary.observe.cuts import Cuts, ListedCut
    from distributary.operations.cut_changes import TableChanges


app = group("cuts", "Cuts: versions of all tables that have the same batches.", panel=LOOK)
app.info.cls = ListingGroup

_MOST = 10_000

CutArgument = Annotated[
    str | None,
    argument("A batch (41, games:41) or a time; by default the newest.", metavar="CUT"),
]


@verb(app, "cuts list --lake distributary-demo", "cuts list -n 100 --json", name="list")
def list_cuts(
    call: Invocation,
    last: Annotated[
        int,
        option("--last -n", "Number of cuts, the newest first.", metavar="CUTS", min=1, max=_MOST),
    ] = 20,
    before: Annotated[
        int | None,
        option(
            "--before", "List cuts before this batch, for the next page.", metavar="BATCH", min=0
        ),
    ] = None,
    pipeline: PipelineName = None,
    lake: LakeOption = None,
    file: FileOption = None,
) -> None:
    """List the newest cuts: batch, time, tables and rows. `distributary cuts` does the same."""
    from distributary.observe.cuts import Cuts

    found = find_lake(call, lake, file)
    cuts = Cuts(found.path)
    listed = cuts.listed(last, pipeline=pipeline or found.pipeline, before=before)
    several = len(cuts.pipelines) > 1
    document = {"lake": found.path, "cuts": listed}
    call.out.show(document, lambda paper: _draw_list(paper, listed, several=several))


def _draw_list(paper: Paper, cuts: Sequence[ListedCut], *, several: bool) -> None:
    if not cuts:
        paper.line("no batch has been settled yet")
        return
    pinned = any(cut.pinned_until for cut in cuts)
    headers = ["CUT>", "SETTLED (UTC)", "TABLES>", "ROWS>", *(["PIPELINE"] if several else [])]
    headers += ["PINNED UNTIL"] if pinned else []
    rows = [
        [
            f"{cut.batch} (a sum)" if cut.batches > 1 else str(cut.batch),
            _utc(cut.settled_at),
            number(cut.tables),
            number(cut.rows),
            *([one_line(cut.pipeline)] if several else []),
            *([_utc(cut.pinned_until) if cut.pinned_until else ""] if pinned else []),
        ]
        for cut in cuts
    ]
    paper.table(headers, rows, indent=0)


@verb(app, "cuts show --lake distributary-demo", "cuts show 0 --json")
def show(
    call: Invocation,
    cut: CutArgument = None,
    sql: Annotated[
        str | None,
        option("--sql", "Print views of the cut for spark, duckdb or trino.", metavar="ENGINE"),
    ] = None,
    schema: Annotated[
        str,
        option("--schema", "Schema of the views; for Trino also of the tables.", metavar="NAME"),
    ] = "",
    pipeline: PipelineName = None,
    lake: LakeOption = None,
    file: FileOption = None,
) -> None:
    """Show the tables of a cut with their versions; --json prints `cut.json`."""
    found = find_lake(call, lake, file)
    cuts, point = _found(found, cut, pipeline)
    whole = cuts.cut(point)
    if sql is not None:
        _print_views(call, whole, sql, schema)
        return
    document = cuts.with_snapshots(whole).as_dict()
    call.out.show(document, lambda paper: _draw_cut(paper, whole, point))


def _found(found: FoundLake, cut: str | None, pipeline: str | None) -> tuple[Cuts, CutPoint]:
    from distributary.observe.cuts import Cuts

    cuts = Cuts(found.path)
    return cuts, cuts.find(cut, pipeline=pipeline or found.pipeline)


def _print_views(call: Invocation, cut: Cut, engine: str, schema: str) -> None:
    from distributary.observe.cut_views import ENGINES, views

    if engine not in ENGINES:
        raise call.usage(f"--sql {engine!r} is not one of {', '.join(ENGINES)}.")
    statements = views(cut, engine, schema=schema)

    def draw(paper: Paper) -> None:
        for statement in statements:
            paper.line(one_line(statement))

    call.out.show({**cut.as_dict(), "sql": statements}, draw)


def _draw_cut(paper: Paper, cut: Cut, point: CutPoint) -> None:
    for batch in cut.batches:
        paper.line(
            f"{one_line(batch.pipeline)}: batch {batch.batch}, settled {_utc(batch.settled_at)} UTC"
        )
    rows = [
        [
            one_line(table.table),
            table.role,
            "" if table.version is None else str(table.version),
            _remark(table.version, table.behind),
        ]
        for table in cut.tables
    ]
    paper.table(["TABLE", "ROLE", "VERSION>", ""], rows, indent=0)
    if point.at is None:
        paper.line(f"{counted(len(rows), 'table')}; the newest cut, with what came since")


def _utc(moment: datetime) -> str:
    """Return a time as `--as-of` takes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _remark(version: int | None, behind: int | None) -> str:
    if behind is not None:
        return f"behind: parked since batch {behind}"
    return "has no versions: read at its newest state" if version is None else ""


@verb(app, "cuts diff 0 0 --lake distributary-demo", "cuts diff 0 0 bronze_events --json")
def diff(
    call: Invocation,
    since: Annotated[str, argument("The earlier cut.", metavar="CUT")],
    until: Annotated[str, argument("The later cut.", metavar="CUT")],
    table: Annotated[
        str | None,
        argument(
            "A table, to print its changed rows.",
            metavar="TABLE",
            autocompletion=complete_tables,
        ),
    ] = None,
    limit: Annotated[
        int,
        option(
            "--limit -n", "The largest number of rows to print; 0 for all.", metavar="ROWS", min=0
        ),
    ] = 1000,
    as_csv: Csv = False,
    width: Width = None,
    pipeline: PipelineName = None,
    lake: LakeOption = None,
    file: FileOption = None,
) -> None:
    """Show the rows added, changed and removed between two cuts, by table or for one table."""
    from distributary.observe.cuts import Cuts
    from distributary.operations.cut_changes import changes_between

    shape = row_shape(call, as_csv, width)
    found = find_lake(call, lake, file)
    cuts = Cuts(found.path)
    first, last = (cuts.find(c, pipeline=pipeline or found.pipeline) for c in (since, until))
    changed = changes_between(cuts, first, last, None if table is None else [table])
    if table is not None:
        _show_changes(call, table, changed, limit, shape)
        return
    counted_rows = [
        {
            "table": name,
            "before": changes.before.version if changes.before else None,
            "after": changes.table.version,
            **changes.counts(),
        }
        for name, changes in changed.items()
    ]
    shown = [row for row in counted_rows if row["inserted"] or row["updated"] or row["deleted"]]
    document = {"lake": found.path, "tables": shown}
    call.out.show(document, lambda paper: _draw_diff(paper, shown))


def _show_changes(
    call: Invocation, table: str, changed: Mapping[str, TableChanges], limit: int, shape: RowShape
) -> None:
    from distributary.operations.query import ResultColumn

    (changes,) = changed.values() if changed else (None,)
    if changes is None:
        call.out.show({"table": table, "columns": [], "rows": []}, lambda paper: None)
        call.out.note(f"nothing in {table} changed between these cuts")
        return
    rows = changes.rows
    some = rows.slice(0, limit or None)
    columns = tuple(ResultColumn(field.name, str(field.type)) for field in rows.schema)
    about = {"table": changes.table.table, "total": rows.num_rows}
    show_rows(call, columns, row_values(some.to_pydict().values()), shape, about)
    if some.num_rows < rows.num_rows and not call.out.is_json:
        call.out.note(f"only {some.num_rows:,} of {counted(rows.num_rows, 'row')}: --limit")


def _draw_diff(paper: Paper, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        paper.line("the rows of all tables are the same")
        return
    cells = [
        [
            one_line(row["table"]),
            f"{'-' if row['before'] is None else row['before']} to {row['after']}",
            *(number(row[kind]) for kind in ("inserted", "updated", "deleted")),
        ]
        for row in rows
    ]
    paper.table(["TABLE", "VERSION", "INSERTED>", "UPDATED>", "DELETED>"], cells, indent=0)


CutName = Annotated[str, argument("A batch (41, games:41) or a time.", metavar="CUT")]


@verb(app, "cuts pin 0 --until 2099-12-01 --lake distributary-demo")
def pin(
    call: Invocation,
    cut: CutName,
    until: Annotated[
        str,
        option("--until", "The end of the pin; UTC without an offset.", metavar="TIME"),
    ],
    pipeline: PipelineName = None,
    lake: LakeOption = None,
    file: FileOption = None,
) -> None:
    """Keep a cut readable until a moment, whatever maintenance and merges delete."""
    from pydantic_core import PydanticCustomError

    from distributary.config.base import parse_moment
    from distributary.operations.pins import pin_cut

    try:
        moment = parse_moment(until).astimezone(UTC)
    except PydanticCustomError:
        raise call.usage(f"--until {until[:50]!r} is not a time such as 2026-12-01.") from None
    if moment <= datetime.now(UTC):
        raise call.usage(f"--until {until[:50]!r} is in the past.")
    found = find_lake(call, lake, file)
    cuts, point = _found(found, cut, pipeline)
    done = pin_cut(cuts, point, moment)

    def draw(paper: Paper) -> None:
        words = f"{one_line(done.name)} is kept until {_utc(done.until)} UTC"
        paper.line(f"{words}: {counted(len(done.cut.tables), 'table')}")

    call.out.show(done.as_dict(), draw)


@verb(app, "cuts unpin 0 --lake distributary-demo")
def unpin(
    call: Invocation,
    cut: CutName,
    pipeline: PipelineName = None,
    lake: LakeOption = None,
    file: FileOption = None,
) -> None:
    """Release a pinned cut: maintenance may delete the files that it needs."""
    from distributary.operations.pins import unpin_cut

    found = find_lake(call, lake, file)
    cuts, point = _found(found, cut, pipeline)
    name = unpin_cut(cuts, point)
    call.out.show(
        {"unpinned": name}, lambda paper: paper.line(f"{one_line(name)} is no longer pinned")
    )
