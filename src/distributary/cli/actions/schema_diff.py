"""`schema diff`: what changes between two versions of a subject, or with a new one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from distributary.cli.actions.subjects import columns_of, message_of, schema_of
from distributary.cli.output import Paper, styled
from distributary.cli.registries import FoundRegistry
from distributary.cli.verb import Invocation
from distributary.cli.words import printable
from distributary.config.evolution import Evolution
from distributary.errors import ConfigError, ErrorCode
from distributary.evolve.merge import merge
from distributary.evolve.types import sql_name
from distributary.model.schema import Format, WriterSchema
from distributary.model.table import Change, ChangeKind, Column
from distributary.registry.compatibility import Level, Version, problems
from distributary.registry.compile import compile_schema
from distributary.registry.references import LATEST, Reference

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
