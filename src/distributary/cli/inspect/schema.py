"""`schema`: columns of tables and their changes, and the schemas of a registry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distributary.cli.command.lakes import (
    FoundLake,
    FoundRegistry,
    find_lake,
    find_registry,
    find_table,
)
from distributary.cli.command.output import Paper, clock, counted, number, spelled, styled
from distributary.cli.command.verb import (
    LOOK,
    CutOption,
    Invocation,
    LakeOption,
    OptionalFile,
    PipelineName,
    argument,
    complete_schemas,
    complete_tables,
    group,
    option,
    verb,
)
from distributary.cli.inspect.inferred_columns import forget, retype
from distributary.cli.inspect.schema_versions import (
    FILE_HELP,
    RegistryOption,
    columns_of,
    diff,
    message_of,
    schema_of,
)
from distributary.errors import (
    ConfigError,
    DistributaryError,
    ErrorCode,
    RegistryError,
    RegistryUnavailableError,
    missing,
)
from distributary.model import layout

if TYPE_CHECKING:
    from distributary.model.record import WriterSchema
    from distributary.observe.ledger.ledger import Ledger
    from distributary.observe.ledger.ledger_rows import SchemaInUse, SchemaRow, TableSummary
    from distributary.registry.http.client import ListedShape


app = group("schema", "Columns of tables and their changes; schemas of the registry.", panel=LOOK)

PipelineFile = Annotated[Path | None, option("--file -f --config", FILE_HELP, metavar="FILE")]

_AT_ONCE = 8
_GUESS = "did you mean"


@verb(
    app,
    "schema show bronze_events --lake distributary-demo",
    "schema show wrapper-value 1 --lake distributary-demo",
)
def show(
    call: Invocation,
    name: Annotated[
        str,
        argument(
            "The name of a table, of a type of record, or of a subject.",
            metavar="NAME",
            autocompletion=complete_schemas,
        ),
    ],
    version: Annotated[
        str | None, argument("Version of the subject; the newest by default.", metavar="VERSION")
    ] = None,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    file: PipelineFile = None,
    registry: RegistryOption = None,
    as_of: CutOption = None,
) -> None:
    """Show the columns of a table with their origins, or one version of a subject."""
    no_table: ConfigError | None = None
    if version is None and registry is None:
        try:
            _show_table(call, name, find_lake(call, lake, file), as_of)
            return
        except ConfigError as error:
            if error.code is not ErrorCode.NOT_FOUND or as_of is not None:
                raise
            no_table = error
    try:
        found = find_registry(call, registry, file, lake, pipeline)
        _show_subject(call, found.of(name), name, version)
    except (ConfigError, RegistryError) as error:
        if no_table is None or _GUESS in error.next_step:
            raise
        # the argument may have been meant as a table, so the error about tables is shown
        raise no_table from error


def _show_table(call: Invocation, name: str, lake: FoundLake, as_of: str | None) -> None:
    from distributary.observe.status.health import open_listed
    from distributary.operations.query import Questions

    table = find_table(lake.ledger().tables(), name)
    path = layout.place(lake.path, table.path)
    step = "the table was removed: to start over, distributary reset FILE --with-tables"
    if as_of is None:
        readable = open_listed(table.table, path, next_step=step)
    else:
        readable = Questions(lake.path, as_of=as_of).open(table.table.casefold())
    columns = readable.columns
    data = {
        "table": table.table,
        "type": table.type,
        "path": path,
        "table_version": readable.version,
        "schema_ids": table.schema_ids,
        "columns": columns,
    }

    def draw(paper: Paper) -> None:
        of = f", type {spelled(table.type)}" if table.type else ""
        paper.line(styled(table.table, "bold"), f": {counted(len(columns), 'column')}{of}")
        _draw_columns(paper, [(c["name"], c["type"], c["comment"]) for c in columns])

    call.out.show(data, draw)


def _show_subject(call: Invocation, found: FoundRegistry, name: str, version: str | None) -> None:
    from distributary.evolve.types import sql_name

    schema, number_ = schema_of(found, name, version)
    message = message_of(found, schema, name)
    columns, reason = columns_of(found, schema, name)
    rows_shown = [(c.name, sql_name(c.type), c.comment) for c in columns]
    text = found.registry.text(schema.id)
    level = found.registry.compatibility(name)
    data = {
        "registry": found.where,
        "subject": name,
        "subject_version": number_,
        "versions": found.registry.versions(name),
        "id": schema.id,
        "format": schema.format,
        "message": message,
        "messages": schema.messages,
        "compatibility": level,
        "columns": [
            dict(zip(("name", "type", "comment"), each, strict=True)) for each in rows_shown
        ],
        "error": reason,
        "schema": text,
    }

    def draw(paper: Paper) -> None:
        parts = (f"v{number_}", f"id {schema.id}", str(schema.format), message, str(level))
        paper.line(styled(name, "bold"), f" {', '.join(filter(None, parts))}")
        if reason:
            paper.line(styled(f"its columns cannot be derived: {reason}", "red"))
        _draw_columns(paper, rows_shown)
        paper.lines(text)

    call.out.show(data, draw)


def _draw_columns(paper: Paper, columns: Sequence[tuple[str, str, str]]) -> None:
    paper.table(
        ("COLUMN", "TYPE", "ABOUT"),
        ((name, type, styled(comment, "dim")) for name, type, comment in columns),
    )


@verb(app, "schema history --lake distributary-demo")
def history(
    call: Invocation,
    name: Annotated[
        str | None,
        argument(
            "The name of a table, or of a type of record.",
            metavar="NAME",
            autocompletion=complete_tables,
        ),
    ] = None,
    lake: LakeOption = None,
    last: Annotated[int, option("--last", "Number of changes, the newest first.", min=1)] = 50,
) -> None:
    """List schema changes: time, batch, id, and the action."""
    found = find_lake(call, lake)
    ledger = found.ledger()
    every = ledger.schema_history(name)
    if not every and name is not None:
        find_table(ledger.tables(schema_ids=False), name)
    shown = every[-last:]
    data = {"lake": found.path, "total": len(every), "history": shown}
    call.out.show(data, lambda paper: _draw_history(paper, shown, total=len(every)))


def _draw_history(paper: Paper, history: Sequence[SchemaRow], *, total: int) -> None:
    paper.table(
        ("WHEN", "BATCH>", "TYPE", "SCHEMA", "ID>", "CHANGE", "ACTION"),
        (
            (
                clock(row.at),
                number(row.batch),
                spelled(row.type),
                row.schema,
                str(row.schema_id),
                row.text,
                row.action,
            )
            for row in history
        ),
        indent=0,
    )
    more = f", the newest of {total:,}" if total > len(history) else ""
    paper.line(f"{counted(len(history), 'change')}{more}")


@dataclass(frozen=True, slots=True)
class SubjectVersions:
    """One subject at its newest version."""

    subject: str
    versions: Sequence[int]
    id: int | None = None
    format: str = ""
    message: str = ""
    error: str = ""
    """The reason why the newest version cannot be used; empty if it can."""


@verb(
    app,
    "schema subjects distributary-demo/games.yaml",
    "schema subjects --registry distributary-demo/schemas",
)
def subjects(
    call: Invocation,
    file: OptionalFile = None,
    matching: Annotated[
        str | None,
        option("--matching", "Only subjects with this text in their names.", metavar="TEXT"),
    ] = None,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    registry: RegistryOption = None,
) -> None:
    """List the subjects of the registry with their versions."""
    option = "`distributary schema subjects FILE`"
    found = find_registry(call, registry, file, lake, pipeline, option=option)
    every = _by_listing(found, matching or "") or _by_name(found, matching or "")
    data = {"registry": found.where, "subjects": every}
    call.out.show(data, lambda paper: _draw_subjects(paper, every))


def _by_listing(found: FoundRegistry, matching: str) -> list[SubjectVersions]:
    """Return all subjects, by few requests; empty if the registry cannot list them."""
    from distributary.registry.http.http_registry import HttpRegistry

    registry = found.registry
    if not isinstance(registry, HttpRegistry):
        return []
    versions: dict[str, dict[int, ListedShape]] = {}
    for each in registry.schemas():
        if matching in each.subject:
            versions.setdefault(each.subject, {})[each.version] = each
    return [
        _subject(found, name, sorted(known), partial(registry.compiled, newest), newest.id)
        for name, known in sorted(versions.items())
        for newest in [known[max(known)]]
    ]


def _by_name(found: FoundRegistry, matching: str) -> list[SubjectVersions]:
    from concurrent.futures import ThreadPoolExecutor

    registry = found.registry
    names = [name for name in registry.subjects() if matching in name]

    def ask(name: str) -> SubjectVersions:
        return _subject(found, name, registry.versions(name), partial(registry.latest, name))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(ask, names))


def _subject(
    found: FoundRegistry,
    name: str,
    versions: Sequence[int],
    newest: Callable[[], WriterSchema],
    id: int | None = None,
) -> SubjectVersions:
    try:
        schema = newest()
    except RegistryUnavailableError:
        raise
    except RegistryError as error:
        return SubjectVersions(name, versions, id, error=error.what)
    return SubjectVersions(
        name, versions, schema.id, schema.format, message_of(found, schema, name)
    )


def _draw_subjects(paper: Paper, subjects: Sequence[SubjectVersions]) -> None:
    paper.table(
        ("SUBJECT", "VERSIONS>", "NEWEST", "ID>", "FORMAT", "MESSAGE"),
        (
            (
                s.subject,
                number(len(s.versions)),
                f"v{s.versions[-1]}" if s.versions else "-",
                "-" if s.id is None else str(s.id),
                s.format,
                styled(s.error, "red") if s.error else s.message,
            )
            for s in subjects
        ),
        indent=0,
    )
    paper.line(counted(len(subjects), "subject"))


verb(app, "schema diff wrapper-value --lake distributary-demo")(diff)


@verb(app, "schema ids bronze_events --lake distributary-demo")
def ids(
    call: Invocation,
    name: Annotated[
        str,
        argument(
            "The name of a table, of a type of record, or of a topic.",
            metavar="NAME",
            autocompletion=complete_tables,
        ),
    ],
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    file: PipelineFile = None,
    registry: RegistryOption = None,
) -> None:
    """List the schemas that records were written with: subjects, versions, rows and batches."""
    from distributary.model.table import Role
    from distributary.observe.ledger.ledger_rows import uses_of, with_rows

    found = find_lake(call, lake, file)
    ledger = found.ledger()
    every = ledger.tables(pipeline or found.pipeline, schema_ids=False)
    by_type = [t for t in every if t.role in (Role.EACH, Role.LOG)]
    tables = [t for t in every if name and name in (t.table, t.type)]
    topics = set() if tables else _topics(ledger, name, every)
    named = [(t.pipeline, t.table) for t in tables or by_type]
    uses = uses_of(ledger.schema_use(), named, ledger.schema_history())
    if tables:
        uses = with_rows(uses, _count(found, tables, None))
    else:
        # a bronze table has all records of its pipeline
        bronze = [t for t in every if t.role == Role.BRONZE]
        covered = {t.pipeline for t in bronze}
        fed = bronze + [t for t in by_type if t.pipeline not in covered]
        uses = _of_topic(uses, _count(found, fed, name), topics)
    uses = _with_homes(call, uses, lambda: find_registry(call, registry, file, lake, pipeline))
    kind = "table" if tables else "topic"
    data = {"lake": found.path, "name": name, "kind": kind, "ids": uses}
    call.out.show(data, lambda paper: _draw_ids(paper, kind, name, uses))


def _topics(ledger: Ledger, name: str, tables: Sequence[TableSummary]) -> set[str]:
    """Return all topics that were read if the name is one of them."""
    topics = set(ledger.read_ranges()["topic"].to_pylist())
    if name in topics:
        return topics
    known = topics | {t.table for t in tables} | {t.type for t in tables if t.type}
    what = "there is no such table, type or topic in this lake"
    raise missing(what, name, known)


def _count(
    lake: FoundLake, tables: Sequence[TableSummary], topic: str | None
) -> Counter[int] | None:
    """Count the tables' rows by schema; None if the rows do not name their schemas."""
    from distributary.observe.status.health import count_rows
    from distributary.publish.formats.table_format_entry import open_readable

    counts: Counter[int] = Counter()
    for table in tables:
        path = layout.place(lake.path, table.path)
        readable = open_readable(path)
        found = None if readable is None else count_rows(readable, table.role, topic)
        if found is None:
            return None
        counts += found
    return counts


def _of_topic(
    uses: Sequence[SchemaInUse], counts: Counter[int] | None, topics: set[str]
) -> tuple[SchemaInUse, ...]:
    """Return the schemas of the topic's records."""
    from distributary.observe.ledger.ledger_rows import with_rows

    if counts is not None:
        return tuple(use for use in with_rows(uses, counts) if use.rows)
    if len(topics) > 1:
        raise ConfigError(
            "the schemas of one topic are unknown, because no table has a column with the topic",
            code=ErrorCode.NOT_FOUND,
            where="tables.metadata",
            evidence=f"the pipeline reads {len(topics)} topics",
            next_step="ask for a table, or keep topic and schema_id in tables.metadata",
        )
    return tuple(uses)


def _with_homes(
    call: Invocation, uses: Sequence[SchemaInUse], find: Callable[[], FoundRegistry]
) -> tuple[SchemaInUse, ...]:
    """Add the subjects that the ledger lacks, from the registry, if it answers."""
    if all(use.subject for use in uses):
        return tuple(uses)
    homes: dict[int, tuple[str, int]] = {}
    try:
        registry = find().registry
        for use in uses:
            if use.subject is None:
                for place in registry.by_id(use.id).subjects[:1]:
                    homes[use.id] = place.subject, place.version
    except DistributaryError as error:
        call.out.step(f"some subjects could not be determined: {error.what}")
    return tuple(
        replace(use, subject=homes[use.id][0], subject_version=homes[use.id][1])
        if use.id in homes
        else use
        for use in uses
    )


def _draw_ids(paper: Paper, kind: str, name: str, uses: Sequence[SchemaInUse]) -> None:
    paper.line(f"{kind} ", styled(name, "bold"), f": {counted(len(uses), 'schema')}")
    batches, seen = ("FIRST BATCH>", "LAST BATCH>"), ("FIRST SEEN", "LAST SEEN")
    paper.table(
        ("ID>", "SUBJECT", "VERSION", "ROWS>", *batches, *seen),
        (
            (
                str(use.id),
                use.subject or "-",
                "-" if use.subject_version is None else f"v{use.subject_version}",
                number(use.rows),
                number(use.first_batch),
                number(use.last_batch),
                clock(use.first_seen),
                clock(use.last_seen),
            )
            for use in uses
        ),
    )


verb(app, "schema forget events events.yaml --dry-run")(forget)
verb(app, "schema retype events status string events.yaml --dry-run")(retype)
