"""Which message of a schema a payload is that does not say so itself.

In this order: the message that a setting names; the one that is named like the type of record; the
only one of its file that no other is made of. Where that leaves several, nobody knows.
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
from distributary.model.plan import Rejected
from distributary.model.record import Format, WriterSchema
from distributary.registry.compile.avro_schema import short_name

_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class _Messages:
    """What a compiled schema declares."""

    top: dict[str, frozenset[str]]
    """The messages of the schema's own file and their fields, by full name, in file order."""
    nested: tuple[str, ...]
    """The messages inside of these."""
    imported: frozenset[str]
    """All messages of all other files."""
    parts: frozenset[str]
    """Messages that another one of the file is made of."""


def choose_message(
    schema: WriterSchema,
    *,
    wanted: str | None = None,
    names: Iterable[str] = (),
    fields: Collection[str] = (),
    setting: str = "payload.message",
) -> str | Rejected:
    """The full name of the message that payloads of a schema are, or why they are none.

    It is the one `wanted` by the setting, with its package or without; else one that has these
    fields, as far as any has them, and is called like the records, the most telling name first.
    """
    if schema.format is not Format.PROTOBUF:
        return wanted or schema.message
    known = _messages(schema.body)
    if wanted:
        return _wanted(wanted, known, schema, setting)
    having = [name for name, own in known.top.items() if own.issuperset(fields)]
    candidates = having or list(known.top)
    if not candidates:
        return Rejected(ErrorCode.UNUSABLE_SCHEMA, f"schema {schema.id} declares no message")
    if len(candidates) > 1:
        if found := next(filter(None, (_named_like(name, candidates) for name in names)), None):
            return found
        candidates = [name for name in candidates if name not in known.parts] or candidates
    return candidates[0] if len(candidates) == 1 else _ambiguous(candidates, schema, setting)


def _wanted(wanted: str, known: _Messages, schema: WriterSchema, setting: str) -> str | Rejected:
    own = (*known.top, *known.nested)
    if wanted in own or wanted in known.imported:
        return wanted
    found = [name for name in own if name.endswith(f".{wanted}")]
    # `Event` is the message of the file before it is a part of another one
    found = [name for name in found if name in known.top] or found
    if len(found) > 1:
        return _ambiguous(found, schema, setting)
    if found:
        return found[0]
    text = f"schema {schema.id} has no message {wanted} ({setting}), but {_listed(list(known.top))}"
    return Rejected(ErrorCode.UNUSABLE_SCHEMA, text)


def _named_like(name: str, messages: Sequence[str]) -> str | None:
    """The only message of this name: as it is spelled, or else but for case and punctuation."""
    either = (_folded(name), _folded(short_name(name)))
    for same in (
        [m for m in messages if m == name],
        [m for m in messages if short_name(m) == name],
        [m for m in messages if _folded(m) == either[0]],
        [m for m in messages if _folded(short_name(m)) in either],
    ):
        if same:
            return same[0] if len(same) == 1 else None
    return None


def _folded(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _ambiguous(candidates: Sequence[str], schema: WriterSchema, setting: str) -> Rejected:
    return Rejected(
        ErrorCode.AMBIGUOUS_MESSAGE,
        f"schema {schema.id} ({schema.label()}) has several messages that it could be: "
        f"{_listed(candidates)}; set {setting}",
    )


def _listed(messages: Sequence[str]) -> str:
    more = len(messages) - _MOST_LISTED
    return ", ".join(messages[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


@lru_cache(maxsize=4096)
def _messages(descriptor_set: bytes) -> _Messages:
    files = FileDescriptorSet.FromString(descriptor_set).file
    own = files[-1]
    top = {
        f"{_prefix(own)}{message.name}": frozenset(field.name for field in message.field)
        for message in own.message_type
    }
    below = set(_names(_prefix(own), own.message_type)) - set(top)
    others = (name for file in files[:-1] for name in _names(_prefix(file), file.message_type))
    return _Messages(top, tuple(sorted(below)), frozenset(others), frozenset(_parts(own)))


def _prefix(file: FileDescriptorProto) -> str:
    return f"{file.package}." if file.package else ""


def _names(prefix: str, messages: Iterable[DescriptorProto]) -> Iterator[str]:
    for message in messages:
        if not message.options.map_entry:
            yield f"{prefix}{message.name}"
        yield from _names(f"{prefix}{message.name}.", message.nested_type)


def _parts(file: FileDescriptorProto) -> Iterator[str]:
    """Types of fields, less those of a message's own fields: a tree is not a part of itself."""
    extensions = list(file.extension)
    for message in file.message_type:
        name = f".{_prefix(file)}{message.name}"
        yield from (f.type_name[1:] for f in _fields(message, extensions) if f.type_name != name)
    yield from (f.type_name[1:] for f in extensions if f.type_name != f.extendee)


def _fields(
    message: DescriptorProto, extensions: list[FieldDescriptorProto]
) -> Iterator[FieldDescriptorProto]:
    """The fields of a message and of all that is declared in it; extensions belong to others."""
    extensions += message.extension
    yield from message.field
    for nested in message.nested_type:
        yield from _fields(nested, extensions)


# Whether a schema id belongs to the type, or the topic, that a record claims to be of.

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
    """WRONG_SUBJECT when a record of this type may not use a schema with these subjects.

    A template such as `{type}-value` names the one subject that the id must be in. `auto` asks for
    the type's home, `{type}-value` or `{type}`: an id that is not in it is wrong when the registry
    has that home, or when all of the id's subjects are homes of other known types.
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
    # a name that is only written in other letters may well mean the same schemas
    same = casefold_key(type)
    owners = [
        [t for t in (subject, subject.removesuffix("-value")) if t in known_types]
        for subject in subjects_of_id
    ]
    foreign = [any(casefold_key(known) != same for known in each) for each in owners]
    return ErrorCode.WRONG_SUBJECT if foreign and all(foreign) else None


def own_subject(topic: str, *, rule: str = AUTO) -> str:
    """The subject whose newest version a record of this topic means when it names no schema."""
    if rule in (AUTO, ANY) or "{record}" in rule:
        return f"{topic}-value"
    return rule.replace("{topic}", topic).replace("{type}", topic)


def topic_verdict(
    topic: str, records: Collection[str], subjects_of_id: Collection[str], *, rule: str = AUTO
) -> ErrorCode | None:
    """WRONG_SUBJECT when a record on this topic may not use a schema with these subjects.

    `auto` accepts the three strategies of Confluent's serializers; a template what it says, for
    any of the schema's records.
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
