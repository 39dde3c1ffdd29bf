"""`schema show` and `schema history`: the columns of a table, and how it got them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches, unified_diff
from pathlib import Path
from typing import Any

import pyarrow as pa

from distributary.cli.lakes import (
    FoundRegistry,
    Lake,
    Whose,
    find_lake,
    find_registry,
    no_such_subject,
    open_pipeline,
)
from distributary.cli.output import (
    Paper,
    Words,
    clock,
    counted,
    number,
    printable,
    since,
    size,
    spelled,
    styled,
)
from distributary.cli.verb import Invocation
from distributary.config.lake import Evolution
from distributary.decode.base import DecodeLimits
from distributary.decode.formats import decoder_for
from distributary.engine.claim import refuse_owned
from distributary.engine.schemas import choose_envelope
from distributary.errors import (
    ConfigError,
    DecodeError,
    DistributaryError,
    ErrorCode,
    RegistryError,
    RegistryUnavailableError,
)
from distributary.evolve.merge import merge
from distributary.evolve.types import sql_name
from distributary.model import layout
from distributary.model.plan import Rejected
from distributary.model.record import Format, WriterSchema
from distributary.model.table import Change, ChangeKind, Column, Role
from distributary.observe.health import count_rows, open_readable, with_measures
from distributary.observe.ledger import Ledger
from distributary.observe.rows import SchemaInUse, SchemaRow, TableSummary, uses_of, with_rows
from distributary.registry.base import LATEST, Reference
from distributary.registry.compatibility.levels import Level, Version, problems
from distributary.registry.compile.formats import compile_schema
from distributary.registry.http.registry import HttpRegistry, Listed
from distributary.registry.messages import choose_message

# `schema forget`: what records without a schema look like is found out anew.


def forget_schema(call: Invocation, name: str, file: Path, *, dry_run: bool) -> None:
    """Forget one inferred schema of a pipeline that does not run."""
    # brings Spark with it, which the other commands of a schema do without
    from distributary.engine.parts import make_inferred

    pipeline = open_pipeline(call, file)
    inferred = make_inferred(pipeline.config)
    claims = () if inferred is None else inferred.claims()
    claim = _found(name, claims, where=str(file))
    data = {"pipeline": pipeline.config.name, "schema": spelled(claim), "dry_run": dry_run}
    if inferred is not None and not dry_run:
        refuse_owned(pipeline.checkpoint)
        inferred.forget(claim)
    words = f"{'would forget' if dry_run else 'forgot'} what records of {spelled(claim)} look like"
    call.out.show(data | {"forgotten": not dry_run}, lambda paper: paper.line(words))


def _found(name: str, claims: Sequence[str], *, where: str) -> str:
    """The claim that is called so, wholly or by the end of its name."""
    exact = [each for each in claims if name in (each, spelled(each))]
    meant = exact or [each for each in claims if spelled(each).endswith(f".{name}")]
    if len(meant) == 1:
        return meant[0]
    among = sorted(map(spelled, meant or claims))
    raise ConfigError(
        f"several inferred schemas are called {name}"
        if meant
        else f"there is no inferred schema of {name}",
        code=ErrorCode.NOT_FOUND,
        where=where,
        evidence=f"there are: {', '.join(among[:10])}" if among else "nothing was inferred",
        next_step="say the whole name" if among else "schemas of a registry are changed there",
    )


# `schema ids`: which schemas a table, or a topic, carries records of.

_BY_TYPE = (Role.EACH, Role.LOG)


def show_ids(call: Invocation, name: str, whose: Whose) -> None:
    """The schemas of one table, or of everything that came from one topic."""
    lake = find_lake(call, whose.lake, whose.file)
    ledger = Ledger(lake.path, storage_options=lake.options)
    every = ledger.tables(whose.pipeline or lake.pipeline, schema_ids=False)
    tables = [t for t in every if name and name in (t.table, t.type)]
    history = ledger.schema_history()
    if tables:
        kind, uses = "table", uses_of(ledger.schema_use(), _names(tables), history)
        uses = with_rows(uses, _count(lake, tables, None))
    else:
        topics = _topics(ledger, name, every)
        by_type = [t for t in every if t.role in _BY_TYPE]
        kind, uses = "topic", uses_of(ledger.schema_use(), _names(by_type), history)
        uses = _of_topic(uses, _count(lake, _fed_by(every), name), topics)
    uses = _with_homes(call, uses, whose)
    data = {"lake": lake.path, "name": name, "kind": kind, "ids": uses}
    call.out.show(data, lambda paper: _draw_ids(paper, kind, name, uses))


def _names(tables: Sequence[TableSummary]) -> list[tuple[str, str]]:
    return [(t.pipeline, t.table) for t in tables]


def _topics(ledger: Ledger, name: str, tables: Sequence[TableSummary]) -> set[str]:
    """All topics that were read, if the name is one of them."""
    topics = set(ledger.read_ranges()["topic"].to_pylist())
    if name in topics:
        return topics
    known = sorted(topics | {t.table for t in tables} | {t.type for t in tables if t.type})
    near = get_close_matches(name, known, n=3)
    raise ConfigError(
        "there is no such table, type or topic in this lake",
        code=ErrorCode.NOT_FOUND,
        evidence=repr(name[:100]),
        next_step=f"did you mean {', '.join(near)}?" if near else "distributary tables",
    )


def _fed_by(tables: Sequence[TableSummary]) -> list[TableSummary]:
    """The tables to count a topic's records in: bronze has them all, where there is one."""
    bronze = [t for t in tables if t.role == Role.BRONZE]
    covered = {t.pipeline for t in bronze}
    return bronze + [t for t in tables if t.role in _BY_TYPE and t.pipeline not in covered]


def _count(lake: Lake, tables: Sequence[TableSummary], topic: str | None) -> Counter[int] | None:
    """Rows by schema, as the tables themselves have them; None where their rows do not say it."""
    counts: Counter[int] = Counter()
    for table in tables:
        path = layout.place(lake.path, table.path)
        readable = open_readable(path, lake.options)
        found = None if readable is None else count_rows(readable, table.role, topic)
        if found is None:
            return None
        counts += found
    return counts


def _of_topic(
    uses: Sequence[SchemaInUse], counts: Counter[int] | None, topics: set[str]
) -> tuple[SchemaInUse, ...]:
    """Those that records of the topic were written with."""
    if counts is not None:
        return tuple(use for use in with_rows(uses, counts) if use.rows)
    if len(topics) > 1:
        raise ConfigError(
            "the tables do not say which topic a row came from",
            code=ErrorCode.NOT_FOUND,
            where="tables.metadata",
            evidence=f"{len(topics)} topics are read",
            next_step="ask for a table, or keep topic and schema_id in tables.metadata",
        )
    return tuple(uses)


def _with_homes(
    call: Invocation, uses: Sequence[SchemaInUse], whose: Whose
) -> tuple[SchemaInUse, ...]:
    """Subjects that the ledger does not know, from the registry, if it answers."""
    if all(use.subject for use in uses):
        return tuple(uses)
    homes: dict[int, tuple[str, int]] = {}
    try:
        registry = find_registry(call, whose).registry
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
    paper.table(
        (
            "ID",
            "SUBJECT",
            "VERSION",
            "ROWS",
            "FIRST BATCH",
            "LAST BATCH",
            "FIRST SEEN",
            "LAST SEEN",
        ),
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
        right=("ID", "ROWS", "FIRST BATCH", "LAST BATCH"),
    )


# `schema subjects` and `schema show SUBJECT`: what a registry has.

_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Subject:
    """One subject at its newest version."""

    subject: str
    versions: tuple[int, ...]
    id: int | None = None
    format: str = ""
    message: str = ""
    error: str = ""
    """Why its newest version cannot be used."""


def show_subjects(call: Invocation, whose: Whose, *, matching: str | None) -> None:
    """Every subject, with its versions and the newest of them."""
    found = find_registry(call, whose, option="`distributary schema subjects FILE`")
    subjects = _by_listing(found, matching or "") or _by_name(found, matching or "")
    data = {"registry": found.where, "subjects": subjects}
    call.out.show(data, lambda paper: _draw_subjects(paper, subjects))


def show_subject(call: Invocation, found: FoundRegistry, name: str, version: str | None) -> None:
    """One version of a subject: where it is, its text, and the columns it becomes."""
    found = found.of(name)
    schema, number_ = schema_of(found, name, version)
    message = message_of(found, schema, name)
    columns, reason = columns_of(found, schema, name)
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
            {"name": c.name, "type": sql_name(c.type), "comment": c.comment} for c in columns
        ],
        "error": reason,
        "schema": text,
    }

    def draw(paper: Paper) -> None:
        parts = (f"v{number_}", f"id {schema.id}", str(schema.format), message, str(level))
        about = f" {', '.join(filter(None, parts))}"
        paper.line(styled(name, "bold"), about)
        if reason:
            paper.line(styled(f"it becomes no columns: {reason}", "red"))
        paper.table(
            ("COLUMN", "TYPE", "ABOUT"),
            ((c.name, sql_name(c.type), styled(c.comment, "dim")) for c in columns),
        )
        paper.lines(text)

    call.out.show(data, draw)


def schema_of(found: FoundRegistry, name: str, version: str | None) -> tuple[WriterSchema, int]:
    """A version of a subject, with its number; the newest when none is said."""
    known = found.registry.versions(name)
    if not known:
        raise no_such_subject(found, name, found.registry.subjects())
    wanted = known[-1] if version in (None, "latest") else _number(version or "", known)
    return found.registry.version(name, wanted), wanted


def message_of(found: FoundRegistry, schema: WriterSchema, subject: str) -> str:
    """The message that a payload is which does not say so itself; empty if it could be several."""
    message = _message(found, schema, subject)
    return message if isinstance(message, str) else ""


def _message(found: FoundRegistry, schema: WriterSchema, subject: str) -> str | Rejected:
    config = found.config
    if config is not None and config.envelope is not None and subject == config.envelope.subject:
        return choose_envelope(config.envelope, schema)
    wanted = config.records.message if config is not None else None
    return choose_message(schema, wanted=wanted, names=(subject.removesuffix("-value"), subject))


def columns_of(
    found: FoundRegistry, schema: WriterSchema, subject: str
) -> tuple[tuple[Column, ...], str]:
    """The columns that a schema becomes, or why it becomes none."""
    message = _message(found, schema, subject)
    if isinstance(message, Rejected):
        return (), message.message
    try:
        return decoder_for(schema, message, DecodeLimits()).columns, ""
    except DecodeError as error:
        return (), error.what


def _number(version: str, known: Sequence[int]) -> int:
    plain = version.removeprefix("v")
    if plain.isdecimal() and int(plain) in known:
        return int(plain)
    raise ConfigError(
        "the subject has no such version",
        evidence=repr(version[:100]),
        next_step=f"take one of {', '.join(map(str, known[-10:]))}",
    )


def _by_listing(found: FoundRegistry, matching: str) -> list[Subject]:
    """Every subject with a question for a thousand versions; none where a registry has no list."""
    if not isinstance(found.registry, HttpRegistry):
        return []
    versions: dict[str, list[int]] = {}
    newest: dict[str, Listed] = {}
    for each in found.registry.schemas():
        if matching in each.subject:
            versions.setdefault(each.subject, []).append(each.version)
            last = newest.get(each.subject)
            newest[each.subject] = each if last is None or each.version > last.version else last
    return [
        _listed(found, found.registry, newest[name], tuple(sorted(versions[name])))
        for name in sorted(newest)
    ]


def _listed(
    found: FoundRegistry, registry: HttpRegistry, newest: Listed, versions: tuple[int, ...]
) -> Subject:
    try:
        schema = registry.compiled(newest)
    except RegistryUnavailableError:
        raise
    except RegistryError as error:
        return Subject(newest.subject, versions, newest.id, error=error.what)
    message = message_of(found, schema, newest.subject)
    return Subject(newest.subject, versions, newest.id, schema.format, message)


def _by_name(found: FoundRegistry, matching: str) -> list[Subject]:
    names = [name for name in found.registry.subjects() if matching in name]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda name: _subject(found, name), names))


def _subject(found: FoundRegistry, name: str) -> Subject:
    versions = found.registry.versions(name)
    try:
        newest = found.registry.latest(name)
    except RegistryUnavailableError:
        raise
    except RegistryError as error:
        return Subject(name, versions, error=error.what)
    return Subject(name, versions, newest.id, newest.format, message_of(found, newest, name))


def _draw_subjects(paper: Paper, subjects: Sequence[Subject]) -> None:
    paper.table(
        ("SUBJECT", "VERSIONS", "NEWEST", "ID", "FORMAT", "MESSAGE"),
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
        right=("VERSIONS", "ID"),
        indent=0,
    )
    paper.line(counted(len(subjects), "subject"))


_GUESS = "did you mean"


def show_schema(call: Invocation, name: str, version: str | None, whose: Whose) -> None:
    """A table, if there is one of this name or type and no version is said; else a subject."""
    no_table: ConfigError | None = None
    if version is None and whose.registry is None:
        try:
            show_columns(call, name, lake=whose.lake, file=whose.file)
            return
        except ConfigError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            no_table = error
    try:
        show_subject(call, find_registry(call, whose), name, version)
    except (ConfigError, RegistryError) as error:
        if no_table is None or _GUESS in error.next_step:
            raise
        # whoever meant a table wants to hear about tables
        raise no_table from error


def show_columns(
    call: Invocation, name: str, *, lake: str | None, file: Path | None = None
) -> None:
    """The columns of one table, named by itself or by the type of its records."""
    found = find_lake(call, lake, file)
    table = find_table(Ledger(found.path, storage_options=found.options).tables(), name)
    path = layout.place(found.path, table.path)
    readable = open_readable(path, found.options)
    if readable is None:
        raise DistributaryError(
            f"table {table.table} is in the ledger, but not in the lake",
            code=ErrorCode.NOT_FOUND,
            where=path,
            next_step="somebody removed it: distributary reset FILE --with-tables begins anew",
        )
    columns = [
        {"name": f.name, "type": sql_name(f.type), "nullable": f.nullable, "comment": _comment(f)}
        for f in readable.schema
    ]
    data = {
        "table": table.table,
        "type": table.type,
        "path": path,
        "table_version": readable.version,
        "schema_ids": table.schema_ids,
        "columns": columns,
    }
    call.out.show(data, lambda paper: _draw_columns(paper, table, columns))


def show_history(call: Invocation, name: str | None, *, lake: str | None, last: int) -> None:
    """The changes that schemas brought, oldest first."""
    found = find_lake(call, lake)
    ledger = Ledger(found.path, storage_options=found.options)
    history = ledger.schema_history(name)
    if not history and name is not None:
        find_table(ledger.tables(schema_ids=False), name)
    shown = history[-last:]
    data = {"lake": found.path, "total": len(history), "history": shown}
    call.out.show(data, lambda paper: _draw_history(paper, shown, total=len(history)))


def find_table(tables: Sequence[TableSummary], name: str) -> TableSummary:
    """The table with this name, or of this type."""
    for table in tables:
        if name in (table.table, table.type, spelled(table.type)) and name:
            return table
    known = sorted({t.table for t in tables} | {spelled(t.type) for t in tables if t.type})
    near = get_close_matches(name, known, n=3)
    raise ConfigError(
        "there is no such table or type",
        code=ErrorCode.NOT_FOUND,
        evidence=repr(name[:100]),
        next_step=f"did you mean {', '.join(near)}?" if near else "distributary tables",
    )


def _comment(field: pa.Field) -> str:
    found: dict[bytes, bytes] = field.metadata or {}
    return found.get(b"comment", b"").decode("utf-8", "replace")


def _draw_columns(paper: Paper, table: TableSummary, columns: Sequence[dict[str, object]]) -> None:
    of = f", type {spelled(table.type)}" if table.type else ""
    paper.line(styled(table.table, "bold"), f": {counted(len(columns), 'column')}{of}")
    paper.table(
        ("COLUMN", "TYPE", "ABOUT"),
        ((str(c["name"]), str(c["type"]), styled(str(c["comment"]), "dim")) for c in columns),
    )


def _draw_history(paper: Paper, history: Sequence[SchemaRow], *, total: int) -> None:
    paper.table(
        ("WHEN", "BATCH", "TYPE", "SCHEMA", "ID", "CHANGE", "ACTION"),
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
        right=("BATCH", "ID"),
        indent=0,
    )
    more = f", the newest of {total:,}" if total > len(history) else ""
    paper.line(f"{counted(len(history), 'change')}{more}")


# `schema diff`: what changes between two versions of a subject, or with a new one.

_FORMATS = {".proto": Format.PROTOBUF, ".avsc": Format.AVRO, ".json": Format.JSON}
_COLOURS = {"+": "green", "-": "red", "@": "dim", "~": "yellow", "!": "red"}
_UNREGISTERED = -1


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two."""

    name: str
    """`v3`, or the file's."""
    subject_version: int | None
    id: int | None
    format: str
    message: str


@dataclass(frozen=True, slots=True)
class Difference:
    """One column that is not the same."""

    kind: str
    column: str
    before: str
    after: str
    text: str
    """The same in one line."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the registry takes, or would take, the newer one after the older one."""

    level: Level
    compatible: bool
    problems: tuple[str, ...]


def diff_versions(
    call: Invocation, found: FoundRegistry, subject: str, before: str | None, after: str | None
) -> None:
    """Two registered versions; the last two when none is said."""
    found = found.of(subject)
    newer, newer_number = schema_of(found, subject, after)
    if before is None:
        known = [v for v in found.registry.versions(subject) if v < newer_number]
        before = str(known[-1]) if known else str(newer_number)
    older, older_number = schema_of(found, subject, before)
    level = found.registry.compatibility(subject)
    history = [Version(older_number, older.format, older.body)]
    reasons = problems(newer.body, format=newer.format, history=history, level=level)
    texts = [found.registry.text(each.id) for each in (older, newer)]
    sides = (_side(found, older, older_number, subject), _side(found, newer, newer_number, subject))
    verdict = Verdict(level, not reasons, tuple(reasons))
    _show(call, found, subject, sides, (older, newer), texts, verdict)


def diff_file(
    call: Invocation,
    found: FoundRegistry,
    subject: str,
    before: str | None,
    file: Path,
    references: Sequence[str],
) -> int:
    """A schema that is not registered against one that is; 1 when it would be refused."""
    text = _read(file)
    found = found.of(subject)
    named = [_reference(found, each) for each in references]
    known = found.registry.versions(subject)
    older, number = schema_of(found, subject, before) if known else (None, 0)
    format = older.format if older is not None else _FORMATS.get(file.suffix, Format.PROTOBUF)
    imports = {
        each.name: found.registry.text(found.registry.version(each.subject, each.version).id)
        for each in named
    }
    compiled = compile_schema(text, format=format, imports=imports)
    newer = WriterSchema(
        _UNREGISTERED, format, compiled.body, compiled.message, messages=compiled.messages
    )
    reasons = found.registry.check(subject, text, named, format=format)
    level = found.registry.compatibility(subject)
    after = Side(file.name, None, None, format, message_of(found, newer, subject))
    first = Side("nothing", None, None, format, "")
    sides = (_side(found, older, number, subject) if older is not None else first, after)
    old_text = found.registry.text(older.id) if older is not None else ""
    verdict = Verdict(level, not reasons, tuple(reasons))
    _show(call, found, subject, sides, (older, newer), [old_text, text], verdict)
    return 0 if verdict.compatible else 1


def _side(found: FoundRegistry, schema: WriterSchema, version: int, subject: str) -> Side:
    message = message_of(found, schema, subject)
    return Side(f"v{version}", version, schema.id, schema.format, message)


def _show(
    call: Invocation,
    found: FoundRegistry,
    subject: str,
    sides: tuple[Side, Side],
    schemas: tuple[WriterSchema | None, WriterSchema],
    texts: Sequence[str],
    verdict: Verdict,
) -> None:
    old, new = (() if each is None else columns_of(found, each, subject)[0] for each in schemas)
    changes = _changes(old, new)
    format = schemas[1].format
    lines = list(
        unified_diff(
            _lines(texts[0], format),
            _lines(texts[1], format),
            f"{subject} {sides[0].name}",
            f"{subject} {sides[1].name}",
            lineterm="",
        )
    )
    data: dict[str, Any] = {
        "subject": subject,
        "from": sides[0],
        "to": sides[1],
        "columns": changes,
        "text": lines,
        "compatibility": verdict.level,
        "compatible": verdict.compatible,
        "problems": verdict.problems,
    }
    call.out.show(data, lambda paper: _draw(paper, sides, changes, lines, verdict))


def _changes(old: tuple[Column, ...], new: tuple[Column, ...]) -> list[Difference]:
    """What a table with the older columns goes through when it meets the newer ones."""
    if not old:
        added = [Change(ChangeKind.COLUMN_ADDED, c.name, after=sql_name(c.type)) for c in new]
        return [_difference(change) for change in added]
    merged = merge(old, new, Evolution())
    changed = {change.column for change in merged.changes}
    kept = {column.name: column.type for column in new}
    found = [_difference(change) for change in merged.changes]
    for column in old:
        before = sql_name(column.type)
        if column.name not in kept:
            gone = Change(ChangeKind.COLUMN_MISSING, column.name, before, action="keep")
            found += [] if _is_renamed(column, new) else [_difference(gone)]
        elif column.name not in changed and sql_name(kept[column.name]) != before:
            after = sql_name(kept[column.name])
            text = f"  {column.name} {after} (fits the {before} that it was)"
            found.append(Difference("fits", column.name, before, after, text))
    return found


def _is_renamed(column: Column, new: tuple[Column, ...]) -> bool:
    return any(
        (each.number is not None and each.number == column.number) or column.name in each.aliases
        for each in new
    )


def _difference(change: Change) -> Difference:
    return Difference(
        str(change.kind), change.column, change.before, change.after, change.describe()
    )


def _lines(text: str, format: Format) -> list[str]:
    if format is not Format.PROTOBUF:
        try:
            # registries keep these on one line, which no diff can tell anything about
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except ValueError:
            pass
    return [printable(line) for line in text.splitlines()]


def _draw(
    paper: Paper,
    sides: tuple[Side, Side],
    changes: Sequence[Difference],
    lines: Sequence[str],
    verdict: Verdict,
) -> None:
    paper.line(styled(f"{sides[0].name} to {sides[1].name}", "bold"))
    for change in changes:
        paper.line("  ", styled(change.text, _COLOURS.get(change.text[0], "")))
    if not changes:
        paper.line("  no column changes")
    for line in lines:
        paper.line(styled(line, _COLOURS.get(line[:1], "")))
    if verdict.compatible:
        paper.line(styled(f"compatible at level {verdict.level}", "green"))
        return
    paper.line(styled(f"not compatible at level {verdict.level}:", "bold red"))
    for problem in verdict.problems:
        paper.line(f"  {problem}")


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the schema's file cannot be read",
            code=ErrorCode.CONFIG_UNREADABLE,
            where=str(file),
            evidence=getattr(error, "strerror", None) or "it is not UTF-8",
            next_step="check its path and rights",
        ) from None


def _reference(found: FoundRegistry, given: str) -> Reference:
    """From `common/user.proto=users:2`; without a version the newest is meant."""
    name, _, place = given.partition("=")
    subject, colon, version = place.rpartition(":")
    if not colon or not version.isdecimal():
        subject, version = place, str(LATEST)
    if not name or not subject:
        raise ConfigError(
            "a reference says which subject a name stands for",
            where="--reference",
            evidence=repr(given[:100]),
            next_step="write it as common/user.proto=users or common/user.proto=users:2",
        )
    number = int(version)
    if number == LATEST:
        number = schema_of(found, subject, None)[1]
    return Reference(name, subject, number)


# `tables`: what exists.


def show_tables(call: Invocation, *, lake: str | None, pipeline: str | None) -> None:
    """Every table of the lake, or of one pipeline."""
    found = find_lake(call, lake)
    known = Ledger(found.path, storage_options=found.options).tables(pipeline)
    tables = with_measures(found.path, known, storage_options=found.options)
    data = {"lake": found.path, "tables": tables}
    call.out.show(data, lambda paper: draw_tables(paper, tables))


def draw_tables(paper: Paper, tables: tuple[TableSummary, ...]) -> None:
    """One line per table."""
    now = datetime.now(UTC)
    several = len({table.pipeline for table in tables}) > 1
    headers = ["TABLE", "ROLE", "TYPE", "ROWS", "COLUMNS", "SIZE", "BATCHES", "LAST COMMIT"]
    paper.table(
        [*headers, "PIPELINE"] if several else headers,
        (
            [*_row_of_table(t, now), t.pipeline] if several else _row_of_table(t, now)
            for t in tables
        ),
        right=("ROWS", "COLUMNS", "SIZE", "BATCHES"),
        indent=0,
    )
    paper.line(
        f"{counted(len(tables), 'table')}, {counted(sum(t.rows or 0 for t in tables), 'row')}, "
        f"{size(sum(t.bytes for t in tables))}"
    )


def _row_of_table(table: TableSummary, now: datetime) -> list[Words]:
    commit: Words = since(table.last_commit, now=now)
    if table.parked_batches:
        commit = styled(f"parked: {counted(table.parked_records, 'record')} wait", "red")
    return [
        table.table,
        table.role,
        spelled(table.type),
        number(table.rows),
        number(table.columns),
        size(table.bytes),
        number(table.batches),
        commit,
    ]
