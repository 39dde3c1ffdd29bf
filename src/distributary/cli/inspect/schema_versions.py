"""Versions of a registered schema: their columns, and `schema diff`, which compares two of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distributary.cli.command.lakes import FoundRegistry, find_registry, read_text
from distributary.cli.command.output import Paper, styled
from distributary.cli.command.verb import (
    Invocation,
    LakeOption,
    PipelineName,
    argument,
    complete_subjects,
    option,
)
from distributary.errors import ConfigError, DecodeError, missing
from distributary.model.names import one_line

if TYPE_CHECKING:
    from distributary.model.record import WriterSchema
    from distributary.model.routing import Rejected
    from distributary.model.table import Column, ColumnChange
    from distributary.registry.base import Reference
    from distributary.registry.compatibility.levels import Level


RegistryOption = Annotated[
    str | None,
    option(
        "--registry",
        "Folder or address of the registry; the pipeline's registry by default.",
        metavar="PLACE",
    ),
]
FILE_HELP = "The pipeline file; needed if this user has not run the file since its last change."
_UNREGISTERED = -1
_COLOURS = {"+": "green", "-": "red", "@": "dim", "~": "yellow", "!": "red"}


def schema_of(found: FoundRegistry, name: str, version: str | None) -> tuple[WriterSchema, int]:
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


def message_of(found: FoundRegistry, schema: WriterSchema, subject: str) -> str:
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


def columns_of(
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


def diff(
    call: Invocation,
    subject: Annotated[
        str, argument("The subject.", metavar="SUBJECT", autocompletion=complete_subjects)
    ],
    before: Annotated[
        str | None,
        argument("The older version; by default the version before the newer one.", metavar="V1"),
    ] = None,
    after: Annotated[
        str | None, argument("The newer version; by default the newest.", metavar="V2")
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
            "The subject of an import in the file; may be repeated.",
            metavar="NAME=SUBJECT[:VERSION]",
        ),
    ] = None,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    config: Annotated[Path | None, option("--config", FILE_HELP, metavar="FILE")] = None,
    registry: RegistryOption = None,
) -> int:
    """Compare two versions of a schema: columns, text, and compatibility.

    With --file: exit code 1 if the registry would refuse the schema.
    """
    from distributary.registry.compatibility.levels import Version, problems

    found = find_registry(call, registry, config, lake, pipeline).of(subject)
    if file is not None:
        return _diff_file(call, found, subject, before, file, reference or ())
    newer, newer_number = schema_of(found, subject, after)
    if before is None:
        known = [v for v in found.registry.versions(subject) if v < newer_number]
        before = str(known[-1] if known else newer_number)
    older, older_number = schema_of(found, subject, before)
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
    older, number = schema_of(found, subject, before) if registry.versions(subject) else (None, 0)
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
    after = DiffSide(file.name, None, None, format, message_of(found, newer, subject))
    _show_diff(
        call, found, subject, (first, after), (older, newer), (old_text, text), level, reasons
    )
    return 1 if reasons else 0


def _side(found: FoundRegistry, schema: WriterSchema, version: int, subject: str) -> DiffSide:
    message = message_of(found, schema, subject)
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
    old, new = (() if each is None else columns_of(found, each, subject)[0] for each in schemas)
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
        number = schema_of(found, subject, None)[1]
    return Reference(name, subject, number)
