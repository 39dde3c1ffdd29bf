"""Whether a schema id belongs to the type that a record claims to be."""

from __future__ import annotations

from collections.abc import Callable, Collection

from distributary.errors import ErrorCode

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
    homes of other known types. In doubt it is right.
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
    foreign = {subject for known in known_types if known != type for subject in _homes(known)}
    if subjects_of_id and all(subject in foreign for subject in subjects_of_id):
        return ErrorCode.WRONG_SUBJECT
    return None


def _homes(type_: str) -> tuple[str, str]:
    return f"{type_}-value", type_
