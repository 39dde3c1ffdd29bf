"""Chooses the message of a schema for payloads that do not name it themselves.

The message named by a setting comes first, then the message named like the type of record, then the
only message of the file that is no part of another. If several remain, the choice is ambiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from distributary.errors import ErrorCode
from distributary.model.names import casefold_key
from distributary.model.record import Format, WriterSchema
from distributary.model.routing import Rejected
from distributary.registry.compile.avro_schema import short_name

_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class _Messages:
    """The messages of a compiled schema."""

    top: dict[str, frozenset[str]]
    """The fields of the messages at the top of the schema's own file, by full name, in file
    order."""
    nested: tuple[str, ...]
    """The messages nested in the top messages."""
    imported: frozenset[str]
    """All messages of all other files."""
    parts: frozenset[str]
    """Messages that are types of fields in another message of the file."""


def choose_message(
    schema: WriterSchema,
    *,
    wanted: str | None = None,
    names: Iterable[str] = (),
    fields: Collection[str] = (),
    setting: str = "payload.message",
) -> str | Rejected:
    """Return the full name of the message of a schema's payloads, or the reason for none.

    It is the message `wanted` by the setting, with or without its package. Otherwise it is a
    message that has `fields`, if any has them, and is named like the records; `names` are tried in
    order.
    """
    if schema.format is not Format.PROTOBUF:
        return wanted or schema.message
    messages = _messages(schema.body)
    if wanted:
        return _wanted(wanted, messages, schema, setting)
    with_fields = [
        name for name, message_fields in messages.top.items() if message_fields.issuperset(fields)
    ]
    candidates = with_fields or list(messages.top)
    if not candidates:
        return Rejected(ErrorCode.UNUSABLE_SCHEMA, f"schema {schema.id} declares no message")
    if len(candidates) > 1:
        if match := next(filter(None, (_named_like(name, candidates) for name in names)), None):
            return match
        candidates = [name for name in candidates if name not in messages.parts] or candidates
    return candidates[0] if len(candidates) == 1 else _ambiguous(candidates, schema, setting)


def _wanted(wanted: str, messages: _Messages, schema: WriterSchema, setting: str) -> str | Rejected:
    declared = (*messages.top, *messages.nested)
    if wanted in declared or wanted in messages.imported:
        return wanted
    matches = [name for name in declared if name.endswith(f".{wanted}")]
    # a top message takes precedence over a nested one of the same name
    matches = [name for name in matches if name in messages.top] or matches
    if len(matches) > 1:
        return _ambiguous(matches, schema, setting)
    if matches:
        return matches[0]
    text = (
        f"schema {schema.id} has no message {wanted} ({setting}); "
        f"it has {_listed(list(messages.top))}"
    )
    return Rejected(ErrorCode.UNUSABLE_SCHEMA, text)


def _named_like(name: str, messages: Sequence[str]) -> str | None:
    """Return the only message of this name, spelled alike or else but for case and punctuation."""
    folded_names = (_folded(name), _folded(short_name(name)))
    for matches in (
        [message for message in messages if message == name],
        [message for message in messages if short_name(message) == name],
        [message for message in messages if _folded(message) == folded_names[0]],
        [message for message in messages if _folded(short_name(message)) in folded_names],
    ):
        if matches:
            return matches[0] if len(matches) == 1 else None
    return None


def _folded(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _ambiguous(candidates: Sequence[str], schema: WriterSchema, setting: str) -> Rejected:
    return Rejected(
        ErrorCode.AMBIGUOUS_MESSAGE,
        f"schema {schema.id} ({schema.label()}) has several messages that the payload could be: "
        f"{_listed(candidates)}; set {setting}",
    )


def _listed(messages: Sequence[str]) -> str:
    more = len(messages) - _MOST_LISTED
    return ", ".join(messages[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


@lru_cache(maxsize=4096)
def _messages(descriptor_set: bytes) -> _Messages:
    files = FileDescriptorSet.FromString(descriptor_set).file
    own_file = files[-1]
    top = {
        f"{_prefix(own_file)}{message.name}": frozenset(field.name for field in message.field)
        for message in own_file.message_type
    }
    nested = set(_names(_prefix(own_file), own_file.message_type)) - set(top)
    others = (name for file in files[:-1] for name in _names(_prefix(file), file.message_type))
    return _Messages(top, tuple(sorted(nested)), frozenset(others), frozenset(_parts(own_file)))


def _prefix(file: FileDescriptorProto) -> str:
    return f"{file.package}." if file.package else ""


def _names(prefix: str, messages: Iterable[DescriptorProto]) -> Iterator[str]:
    for message in messages:
        if not message.options.map_entry:
            yield f"{prefix}{message.name}"
        yield from _names(f"{prefix}{message.name}.", message.nested_type)


def _parts(file: FileDescriptorProto) -> Iterator[str]:
    """Yield the types of fields, except a message's own type: a tree is no part of itself."""
    extensions = list(file.extension)
    for message in file.message_type:
        name = f".{_prefix(file)}{message.name}"
        yield from (
            field.type_name[1:] for field in _fields(message, extensions) if field.type_name != name
        )
    yield from (field.type_name[1:] for field in extensions if field.type_name != field.extendee)


def _fields(
    message: DescriptorProto, extensions: list[FieldDescriptorProto]
) -> Iterator[FieldDescriptorProto]:
    """Yield the fields of a message and of its nested messages; collect extensions separately."""
    extensions += message.extension
    yield from message.field
    for nested in message.nested_type:
        yield from _fields(nested, extensions)


# Checks that a schema id belongs to the type, or the topic, of a record.

AUTO = "auto"
ANY = "any"


def subject_verdict(
    type: str,
    subjects_of_id: Collection[str],
    subject_exists: Callable[[str], bool],
    *,
    rule: str = AUTO,
    known_types: Collection[str] = (),
) -> ErrorCode | None:
    """Return WRONG_SUBJECT if a record of this type may not use a schema with these subjects.

    A template such as `{type}-value` names the one subject that the id must be in. With `auto` the
    id should be in the type's home subject, `{type}-value` or `{type}`. An id outside it is wrong
    if the registry has that home, or if all of the id's subjects are homes of other known types.
    """
    if rule == ANY:
        return None
    if rule != AUTO:
        wanted = rule.replace("{type}", type)
        return None if wanted in subjects_of_id else ErrorCode.WRONG_SUBJECT
    homes = (f"{type}-value", type)
    if any(subject in subjects_of_id for subject in homes):
        return None
    if any(map(subject_exists, homes)):
        return ErrorCode.WRONG_SUBJECT
    # a name that differs only by case may well mean the same schemas
    folded_type = casefold_key(type)
    owners = [
        [
            candidate
            for candidate in (subject, subject.removesuffix("-value"))
            if candidate in known_types
        ]
        for subject in subjects_of_id
    ]
    foreign = [
        any(casefold_key(known_type) != folded_type for known_type in types) for types in owners
    ]
    return ErrorCode.WRONG_SUBJECT if foreign and all(foreign) else None


def own_subject(topic: str, *, rule: str = AUTO) -> str:
    """Return the subject whose newest version applies to records of a topic that name no schema."""
    if rule in (AUTO, ANY) or "{record}" in rule:
        return f"{topic}-value"
    return rule.replace("{topic}", topic).replace("{type}", topic)


def topic_verdict(
    topic: str, records: Collection[str], subjects_of_id: Collection[str], *, rule: str = AUTO
) -> ErrorCode | None:
    """Return WRONG_SUBJECT if a record on this topic may not use a schema with these subjects.

    `auto` accepts the three strategies of Confluent's serializers. A template accepts its subject,
    for any of the schema's records.
    """
    if rule == ANY:
        return None
    templates = ("{topic}-value", "{record}", "{topic}-{record}") if rule == AUTO else (rule,)
    wanted = {
        template.replace("{topic}", topic).replace("{record}", name).replace("{type}", name)
        for template in templates
        for name in records or ("",)
    }
    return None if wanted & set(subjects_of_id) else ErrorCode.WRONG_SUBJECT
