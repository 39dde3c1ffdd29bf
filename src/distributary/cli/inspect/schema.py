"""`schema` and `tables`: columns of tables, how they got them, and the schemas they came from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distributary.cli.command.lakes import (
    FoundLake,
    FoundRegistry,
    find_lake,
    find_registry,
    find_table,
    read_text,
)
from distributary.cli.command.output import (
    Paper,
    clock,
    counted,
    number,
    spelled,
    styled,
)
from distributary.cli.command.verb import (
    LOOK,
    CutOption,
    Invocation,
    LakeOption,
    OptionalFile,
    PipelineName,
    argument,
    complete_schemas,
    complete_subjects,
    complete_tables,
    group,
    option,
    verb,
)
from distributary.cli.inspect.inferred_columns import forget, retype
from distributary.errors import (
    ConfigError,
    DecodeError,
    DistributaryError,
    ErrorCode,
    RegistryError,
    RegistryUnavailableError,
    missing,
)
from distributary.model import layout
from distributary.model.names import one_line

if TYPE_CHECKING:
    from distributary.model.record import WriterSchema
    from distributary.model.routing import Rejected
    from distributary.model.table import Column, ColumnChange
    from distributary.observe.ledger.ledger import Ledger
    from distributary.observe.ledger.ledger_rows import SchemaInUse, SchemaRow, TableSummary
    from distributary.registry.base import Reference
    from distributary.registry.compatibility.levels import Level
    from distributary.registry.http.client import ListedShape


app = group("schema", "Columns of tables, and the schemas they came from.", panel=LOOK)

RegistryOption = Annotated[
    str | None,
    option(
        "--registry",
        "Folder or address of the registry; else the pipeline's registry.",
        metavar="PLACE",
    ),
]
_FILE_HELP = "The pipeline file; needed if this user has not run it in its current form."
PipelineFile = Annotated[Path | None, option("--file -f --config", _FILE_HELP, metavar="FILE")]

_AT_ONCE = 8
_GUESS = "did you mean"
_UNREGISTERED = -1
_COLOURS = {"+": "green", "-": "red", "@": "dim", "~": "yellow", "!": "red"}


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
        str | None, argument("Version of the subject; else the newest.", metavar="VERSION")
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
    from distributary.observe.health import open_listed
    from distributary.operations.query import Questions

    table = find_table(lake.ledger().tables(), name)
    path = layout.place(lake.path, table.path)
    step = "the table was removed: distributary reset FILE --with-tables starts over"
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

    schema, number_ = _schema_of(found, name, version)
    message = _message_of(found, schema, name)
    columns, reason = _columns_of(found, schema, name)
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
            paper.line(styled(f"it becomes no columns: {reason}", "red"))
        _draw_columns(paper, rows_shown)
        paper.lines(text)

    call.out.show(data, draw)


def _draw_columns(paper: Paper, columns: Sequence[tuple[str, str, str]]) -> None:
    paper.table(
        ("COLUMN", "TYPE", "ABOUT"),
        ((name, type, styled(comment, "dim")) for name, type, comment in columns),
    )


def _schema_of(found: FoundRegistry, name: str, version: str | None) -> tuple[WriterSchema, int]:
    """Return a version of a subject with its number; by default the newest."""
    known = found.registry.versions(name)
    if not known:
        raise missing(
            "the registry has no such subject",
            name,
            found.registry.subjects(),
            where=found.where,
            command="distributary schema subjects",
        )
    wanted = known[-1] if version in (None, "latest") else _number(version or "", known)
    return found.registry.version(name, wanted), wanted


def _number(version: str, known: Sequence[int]) -> int:
    plain = version.removeprefix("v")
    if plain.isdecimal() and int(plain) in known:
        return int(plain)
    raise ConfigError(
        "the subject has no such version",
        evidence=repr(version[:100]),
        next_step=f"take one of {', '.join(map(str, known[-10:]))}",
    )


def _message_of(found: FoundRegistry, schema: WriterSchema, subject: str) -> str:
    """Return the message of a payload without a message index; empty if several are possible."""
    message = _message(found, schema, subject)
    return message if isinstance(message, str) else ""


def _message(found: FoundRegistry, schema: WriterSchema, subject: str) -> str | Rejected:
    from distributary.engine.planning.schema_lookup import choose_envelope
    from distributary.registry.message_choice import choose_message

    config = found.config
    if config is not None and config.envelope is not None and subject == config.envelope.subject:
        return choose_envelope(config.envelope, schema)
    wanted = config.records.message if config is not None else None
    return choose_message(schema, wanted=wanted, names=(subject.removesuffix("-value"), subject))


def _columns_of(
    found: FoundRegistry, schema: WriterSchema, subject: str
) -> tuple[tuple[Column, ...], str]:
    """Return the columns of a schema, or the reason why it has none."""
    from distributary.decode.base import DecodeLimits
    from distributary.decode.formats import decoder_for
    from distributary.model.routing import Rejected

    message = _message(found, schema, subject)
    if isinstance(message, Rejected):
        return (), message.message
    try:
        return decoder_for(schema, message, DecodeLimits()).columns, ""
    except DecodeError as error:
        return (), error.what


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
    """Why its newest version cannot be used."""


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
        name, versions, schema.id, schema.format, _message_of(found, schema, name)
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


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One of the two."""

    name: str
    """`v3`, or the file's."""
    subject_version: int | None
    id: int | None
    format: str
    message: str


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    """One column that is not the same."""

    kind: str
    column: str
    before: str
    after: str
    text: str
    """The same in one line."""


@verb(app, "schema diff wrapper-value --lake distributary-demo")
def diff(
    call: Invocation,
    subject: Annotated[
        str, argument("The subject.", metavar="SUBJECT", autocompletion=complete_subjects)
    ],
    before: Annotated[
        str | None,
        argument("The older version; else the version before the newer one.", metavar="V1"),
    ] = None,
    after: Annotated[
        str | None, argument("The newer version; else the newest.", metavar="V2")
    ] = None,
    file: Annotated[
        Path | None,
        option(
            "--file -f",
            "File of an unregistered schema, instead of the newer version.",
            metavar="SCHEMA",
        ),
    ] = None,
    reference: Annotated[
        list[str] | None,
        option(
            "--reference",
            "The subject that an import of the file means; may be repeated.",
            metavar="NAME=SUBJECT[:VERSION]",
        ),
    ] = None,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    config: Annotated[Path | None, option("--config", _FILE_HELP, metavar="FILE")] = None,
    registry: RegistryOption = None,
) -> int:
    """Compare two versions of a schema: columns, text, and compatibility.

    With --file: exit code 1 if the registry would refuse the schema.
    """
    from distributary.registry.compatibility.levels import Version, problems

    found = find_registry(call, registry, config, lake, pipeline).of(subject)
    if file is not None:
        return _diff_file(call, found, subject, before, file, reference or ())
    newer, newer_number = _schema_of(found, subject, after)
    if before is None:
        known = [v for v in found.registry.versions(subject) if v < newer_number]
        before = str(known[-1] if known else newer_number)
    older, older_number = _schema_of(found, subject, before)
    level = found.registry.compatibility(subject)
    earlier = [Version(older_number, older.format, older.body)]
    reasons = problems(newer.body, format=newer.format, history=earlier, level=level)
    old_text, text = (found.registry.text(each.id) for each in (older, newer))
    sides = (_side(found, older, older_number, subject), _side(found, newer, newer_number, subject))
    _show_diff(call, found, subject, sides, (older, newer), (old_text, text), level, reasons)
    return 0


def _diff_file(
    call: Invocation,
    found: FoundRegistry,
    subject: str,
    before: str | None,
    file: Path,
    references: Sequence[str],
) -> int:
    """Compare a new schema with a registered one; return 1 if the registry would refuse it."""
    from distributary.decode.formats import language_of
    from distributary.model.record import WriterSchema
    from distributary.registry.compile import compile_schema

    text = read_text(file, "the schema's file")
    registry = found.registry
    named = [_reference(found, each) for each in references]
    older, number = _schema_of(found, subject, before) if registry.versions(subject) else (None, 0)
    format = older.format if older is not None else language_of(file.suffix)
    imports = {
        each.name: registry.text(registry.version(each.subject, each.version).id) for each in named
    }
    compiled = compile_schema(text, format=format, imports=imports)
    newer = WriterSchema(
        _UNREGISTERED, format, compiled.body, compiled.message, messages=compiled.messages
    )
    reasons = registry.check(subject, text, named, format=format)
    level = registry.compatibility(subject)
    first, old_text = DiffSide("nothing", None, None, format, ""), ""
    if older is not None:
        first, old_text = _side(found, older, number, subject), registry.text(older.id)
    after = DiffSide(file.name, None, None, format, _message_of(found, newer, subject))
    _show_diff(
        call, found, subject, (first, after), (older, newer), (old_text, text), level, reasons
    )
    return 1 if reasons else 0


def _side(found: FoundRegistry, schema: WriterSchema, version: int, subject: str) -> DiffSide:
    message = _message_of(found, schema, subject)
    return DiffSide(f"v{version}", version, schema.id, schema.format, message)


def _show_diff(
    call: Invocation,
    found: FoundRegistry,
    subject: str,
    sides: tuple[DiffSide, DiffSide],
    schemas: tuple[WriterSchema | None, WriterSchema],
    texts: tuple[str, str],
    level: Level,
    problems: Sequence[str],
) -> None:
    old, new = (() if each is None else _columns_of(found, each, subject)[0] for each in schemas)
    changes = _changes(old, new)
    before, after = (_lines(text) for text in texts)
    old_name, new_name = (f"{subject} {side.name}" for side in sides)
    lines = list(unified_diff(before, after, old_name, new_name, lineterm=""))
    data = {
        "subject": subject,
        "from": sides[0],
        "to": sides[1],
        "columns": changes,
        "text": lines,
        "compatibility": level,
        "compatible": not problems,
        "problems": problems,
    }

    def draw(paper: Paper) -> None:
        paper.line(styled(f"{sides[0].name} to {sides[1].name}", "bold"))
        for change in changes:
            paper.line("  ", styled(change.text, _COLOURS.get(change.text[0], "")))
        if not changes:
            paper.line("  no column changes")
        for line in lines:
            paper.line(styled(line, _COLOURS.get(line[:1], "")))
        draw_compatibility(paper, level, problems)

    call.out.show(data, draw)


def draw_compatibility(paper: Paper, level: Level, problems: Sequence[str]) -> None:
    """Print whether the registry accepts the newer schema after the older one."""
    if not problems:
        paper.line(styled(f"compatible at level {level}", "green"))
        return
    paper.line(styled(f"not compatible at level {level}:", "bold red"))
    for problem in problems:
        paper.line(f"  {problem}")


def _changes(old: tuple[Column, ...], new: tuple[Column, ...]) -> list[SchemaDifference]:
    """Return the changes that a table with the older columns needs for the newer ones."""
    from distributary.config.lake import Evolution
    from distributary.evolve.merge import merge
    from distributary.evolve.types import sql_name
    from distributary.model.table import ChangeKind, ColumnChange

    if not old:
        added = [ColumnChange(ChangeKind.COLUMN_ADDED, c.name, after=sql_name(c.type)) for c in new]
        return [_difference(change) for change in added]
    merged = merge(old, new, Evolution())
    changed = {change.column for change in merged.changes}
    # values of all other fields go to a side column, or are not stored
    fitting = {fill.target for fill in merged.fills if fill.source == fill.target}
    kept = {column.name: column.type for column in new}
    found = [_difference(change) for change in merged.changes]
    for column in old:
        before = sql_name(column.type)
        if column.name not in kept:
            gone = ColumnChange(ChangeKind.COLUMN_MISSING, column.name, before, action="keep")
            found.append(_difference(gone))
        elif column.name in fitting - changed and sql_name(kept[column.name]) != before:
            after = sql_name(kept[column.name])
            text = f"  {column.name} {after} (fits the {before} that it was)"
            found.append(SchemaDifference("fits", column.name, before, after, text))
    return found


def _difference(change: ColumnChange) -> SchemaDifference:
    return SchemaDifference(
        str(change.kind), change.column, change.before, change.after, change.describe()
    )


def _lines(text: str) -> list[str]:
    # registries keep a JSON schema on one line, in which a diff shows nothing
    with suppress(ValueError):
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return [one_line(line) for line in text.splitlines()]


def _reference(found: FoundRegistry, given: str) -> Reference:
    """Parse `common/user.proto=users:2`; the newest version if none is given."""
    from distributary.registry.base import LATEST, Reference

    name, _, place = given.partition("=")
    subject, colon, version = place.rpartition(":")
    if not colon or not version.isdecimal():
        subject, version = place, str(LATEST)
    if not name or not subject:
        raise ConfigError(
            "a reference is the name of an import and its subject",
            where="--reference",
            evidence=repr(given[:100]),
            next_step="write it as common/user.proto=users or common/user.proto=users:2",
        )
    number = int(version)
    if number == LATEST:
        number = _schema_of(found, subject, None)[1]
    return Reference(name, subject, number)


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
    from distributary.observe.health import count_rows
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
            "the tables have no column with the topic of a row",
            code=ErrorCode.NOT_FOUND,
            where="tables.metadata",
            evidence=f"{len(topics)} topics are read",
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
        call.out.step(f"some subjects stay unknown: {error.what}")
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
