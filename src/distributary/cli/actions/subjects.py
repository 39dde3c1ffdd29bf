"""`schema subjects` and `schema show SUBJECT`: what a registry has."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from distributary.cli.output import Paper, styled
from distributary.cli.registries import FoundRegistry, Whose, find_registry, no_such_subject
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, number
from distributary.decode.base import DecodeLimits
from distributary.decode.cache import decoder_for
from distributary.errors import ConfigError, DecodeError, RegistryError, RegistryUnavailableError
from distributary.evolve.types import sql_name
from distributary.model.plan import Rejected
from distributary.model.schema import WriterSchema
from distributary.model.table import Column
from distributary.registry.http import HttpRegistry
from distributary.registry.http_reader import Listed
from distributary.registry.messages import choose_message
from distributary.run.schema_lookup import choose_envelope

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
    found = find_registry(call, whose)
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
