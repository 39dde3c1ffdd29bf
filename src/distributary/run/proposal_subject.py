"""Which subject a proposed schema is for, and which records belong to that subject."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from distributary.config.pipeline import PipelineConfig
from distributary.errors import ConfigError, InvalidSchemaError, RegistryError
from distributary.model.plan import RouteKey
from distributary.model.schema import Format, WriterSchema
from distributary.registry.hostile import printable
from distributary.registry.messages import choose_message
from distributary.route.subjects import ANY, AUTO, own_subject, subject_verdict, topic_verdict
from distributary.run.proposal_registry import Judge, compile_proposed

_VALUE = "-value"
_MOST_ASKED = 100
"""Subjects whose newest version is looked at for its message's name."""
_MOST_LISTED = 10

Belongs = Callable[[RouteKey, WriterSchema], bool]


def choose_subject(
    registry: Judge, config: PipelineConfig, *, text: str, path: Path, type: str | None = None
) -> str:
    """The subject of a type; without one, the only subject that file or message are called after.

    Raises:
        ConfigError: When several are possible, or none.
    """
    if type is not None:
        return subject_of_type(registry, config, type)
    wrapper = config.envelope.subject if config.envelope else None
    subjects = [s for s in registry.subjects() if s != wrapper and not s.endswith("-key")]
    named = _named_after({path.stem, path.name}, subjects)
    found = named or _by_message(registry, config, text, subjects)
    if len(found) == 1:
        return found[0]
    shown = found or subjects
    more = f" and {len(shown) - _MOST_LISTED:,} more" if len(shown) > _MOST_LISTED else ""
    raise ConfigError(
        "which subject is the schema for?" if found else "the schema fits no subject by its name",
        where=str(path),
        evidence="; ".join(map(printable, shown[:_MOST_LISTED])) + more or "there are no subjects",
        next_step="say it with --subject, or say the type of record with --type",
    )


def subject_of_type(registry: Judge, config: PipelineConfig, type: str) -> str:
    """Where a type's schemas are registered, or would be."""
    usual = own_subject(type, rule=config.records.subject)
    homes = dict.fromkeys((usual, f"{type}{_VALUE}", type))
    return next((home for home in homes if registry.versions(home)), usual)


def types_of_subject(config: PipelineConfig, schema: WriterSchema, subject: str) -> tuple[str, ...]:
    """The claims that records of a subject make, guessed where no record is at hand."""
    rule = config.records.subject
    if config.envelope is None:
        topics = [t for t in config.topics if _by_topic(t, schema.messages, subject, rule)]
        return tuple(topics) or (subject.removesuffix(_VALUE),)
    if rule not in (AUTO, ANY):
        before, _, after = rule.partition("{type}")
        if subject.startswith(before) and subject.endswith(after):
            return (subject[len(before) : len(subject) - len(after)],)
    return (subject.removesuffix(_VALUE),)


def belonging(config: PipelineConfig, subject: str) -> Belongs:
    """Tells whether records with a key, written with a schema, would use this subject's next."""
    rule = config.records.subject

    def enveloped(key: RouteKey, schema: WriterSchema) -> bool:
        written = schema.version_in(subject) is not None
        if rule == ANY:
            return written
        home = subject_verdict(key.claim, (subject,), lambda _: True, rule=rule) is None
        places = [s.subject for s in schema.subjects]
        # two types may share a text and so an id: what is at home elsewhere is not meant
        elsewhere = subject_verdict(key.claim, places, lambda _: True, rule=rule) is None
        return home or (written and not elsewhere)

    def bare(key: RouteKey, schema: WriterSchema) -> bool:
        if rule == ANY:
            return schema.version_in(subject) is not None
        return _by_topic(key.claim, schema.messages, subject, rule)

    return bare if config.envelope is None else enveloped


def _by_topic(topic: str, messages: Collection[str], subject: str, rule: str) -> bool:
    if rule == ANY:
        return own_subject(topic) == subject
    return topic_verdict(topic, messages, (subject,), rule=rule) is None


def _named_after(names: Collection[str], subjects: Collection[str]) -> list[str]:
    folded = {name.casefold() for name in names}
    return [s for s in subjects if {s.casefold(), s.removesuffix(_VALUE).casefold()} & folded]


def _by_message(
    registry: Judge, config: PipelineConfig, text: str, subjects: Collection[str]
) -> list[str]:
    try:
        format = Format(config.records.format)
        schema = compile_proposed(registry, "", text, format).schema
    except InvalidSchemaError:
        # perhaps for lack of references, which only the subject knows
        return []
    message = _message_of(schema, config)
    if not message:
        return []
    short = message.rpartition(".")[2]
    named = _named_after({message, short}, subjects)
    named += [s for s in subjects if s.endswith(f"-{message}") and s not in named]
    if named or len(subjects) > _MOST_ASKED:
        return named
    return [s for s in subjects if _newest_message(registry, config, s) == message]


def _newest_message(registry: Judge, config: PipelineConfig, subject: str) -> str:
    try:
        return _message_of(registry.latest(subject), config)
    except RegistryError:
        return ""


def _message_of(schema: WriterSchema, config: PipelineConfig) -> str:
    found = choose_message(schema, wanted=config.records.message)
    return found if isinstance(found, str) else ""
