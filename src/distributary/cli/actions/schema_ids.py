"""`schema ids`: which schemas a table, or a topic, carries records of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from distributary.cli.lakes import Lake, find_lake
from distributary.cli.output import Paper, styled
from distributary.cli.registries import Whose, find_registry
from distributary.cli.verb import Invocation
from distributary.cli.words import clock, counted, number
from distributary.errors import ConfigError, DistributaryError, ErrorCode
from distributary.model.table import Role
from distributary.observe import layout
from distributary.observe.ledger import Ledger
from distributary.observe.readable import open_readable
from distributary.observe.rows import TableSummary
from distributary.observe.schema_use import SchemaInUse, count_rows, uses_of, with_rows

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
    call.out.show(data, lambda paper: _draw(paper, kind, name, uses))


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


def _draw(paper: Paper, kind: str, name: str, uses: Sequence[SchemaInUse]) -> None:
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
