"""Whether a schema id belongs to the type, or the topic, that a record claims to be of."""

from __future__ import annotations

from collections.abc import Callable, Collection

from distributary.errors import ErrorCode
from distributary.route.type_names import casefold_key

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

    `any` accepts every id. A template such as `{type}-value` names the one subject that the id must
    be in. `auto` asks for the type's home, `{type}-value` or `{type}`: an id in it is right; an id
    that is not in it is wrong when the registry has that home, or when all of the id's subjects are
    homes of other known types, not counting one in other letters. In doubt it is right.
    """
    if rule == ANY:
        return None
    if rule != AUTO:
        wanted = rule.replace("{type}", type)
        return None if wanted in subjects_of_id else ErrorCode.WRONG_SUBJECT
    own = _homes(type)
    if any(subject in subjects_of_id for subject in own):
        return None
    if any(subject_exists(subject) for subject in own):
        return ErrorCode.WRONG_SUBJECT
    # a name that is only written in other letters may well mean the same schemas
    same = casefold_key(type)
    owners = [
        [t for t in (subject, subject.removesuffix("-value")) if t in known_types]
        for subject in subjects_of_id
    ]
    foreign = [any(casefold_key(known) != same for known in each) for each in owners]
    return ErrorCode.WRONG_SUBJECT if foreign and all(foreign) else None


def _homes(type_: str) -> tuple[str, str]:
    return f"{type_}-value", type_


def own_subject(topic: str, *, rule: str = AUTO) -> str:
    """The subject whose newest version a record of this topic means when it names no schema."""
    if rule in (AUTO, ANY) or "{record}" in rule:
        return f"{topic}-value"
    return rule.replace("{topic}", topic).replace("{type}", topic)


def topic_verdict(
    topic: str, records: Collection[str], subjects_of_id: Collection[str], *, rule: str = AUTO
) -> ErrorCode | None:
    """WRONG_SUBJECT when a record on this topic may not use a schema with these subjects.

    `auto` accepts the three strategies of Confluent's serializers: `<topic>-value`, the record's
    full name, and `<topic>-<record>`. A template accepts what it says, for any of the schema's
    records.
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
