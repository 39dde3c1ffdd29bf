"""References: how one schema names another, and how all that it needs is gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distributary.errors import InvalidSchemaError
from distributary.registry.bundled import is_bundled
from distributary.registry.hostile import printable
from distributary.registry.protobuf import MAX_FILES

LATEST = -1
"""A reference's version that stands for the newest one."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema of the registry under the name that another schema imports it by."""

    name: str
    subject: str
    version: int

    @classmethod
    def of(cls, given: Reference | Mapping[str, Any]) -> Reference:
        """From `{name, subject, version}`, as it stands in a registry's answers."""
        if isinstance(given, Reference):
            return given
        try:
            name, subject, version = given["name"], given["subject"], int(given["version"])
        except (KeyError, TypeError, ValueError):
            name, subject, version = None, None, 0
        if not isinstance(name, str) or not isinstance(subject, str):
            raise InvalidSchemaError(
                "a reference is not complete",
                where="references",
                evidence=printable(repr(given)),
                next_step="give each reference a name, a subject and a version",
            )
        return cls(name=name, subject=subject, version=version)

    def as_dict(self) -> dict[str, Any]:
        """The form that `of` reads."""
        return {"name": self.name, "subject": self.subject, "version": self.version}


Fetch = Callable[[Reference], tuple[str, Iterable[Reference]]]
"""A referenced schema's text, and the references it has itself."""


def gather(references: Iterable[Reference], *, fetch: Fetch) -> dict[str, str]:
    """The text of everything that a schema imports, directly or not, by import name.

    A name that is reached twice, in a diamond or a circle, is fetched once. Where the two ways
    lead to different versions, the first in reading order counts, as in Confluent's clients: a
    compiled schema has one file of each name.
    """
    found: dict[str, str] = {}
    waiting = list(references)[::-1]
    while waiting:
        reference = waiting.pop()
        if reference.name in found or is_bundled(reference.name):
            continue
        if len(found) == MAX_FILES:
            raise InvalidSchemaError(
                f"a schema pulls in more than {MAX_FILES} others",
                where=printable(reference.subject),
                next_step="reference fewer schemas",
            )
        text, further = fetch(reference)
        found[reference.name] = text
        waiting += list(further)[::-1]
    return found
