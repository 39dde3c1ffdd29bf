"""A registry with contexts and pages, as Confluent's answers: ids start over in every context."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.registry.loopback import Asked, Says, no, says

NO_SUBJECT, NO_SCHEMA = no(404, 40401, "Subject not found."), no(404, 40403, "Schema not found")


def split(name: str) -> tuple[str, str]:
    """Context and name within it."""
    if not name.startswith(":."):
        return ".", name
    context, _, subject = name[1:].partition(":")
    return context, subject


@dataclass
class Contexted:
    """Called with a question, it answers."""

    subjects: dict[str, list[int]] = field(default_factory=dict)
    """Ids of the versions by qualified name."""
    schemas: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    most: int = 2**31
    """The longest page; who asks for more gets the usual one."""

    def add(self, name: str, text: str, **more: Any) -> int:
        context, _ = split(name)
        same = [i for (c, i), s in self.schemas.items() if c == context and s["schema"] == text]
        number = same[0] if same else 1 + sum(c == context for c, _ in self.schemas)
        self.schemas[context, number] = {"schema": text, "schemaType": "PROTOBUF", **more}
        self.subjects.setdefault(name, []).append(number)
        return number

    def __call__(self, asked: Asked) -> Says:
        parts = [unquote(part) for part in urlsplit(asked.path).path.strip("/").split("/")]
        if asked.method == "POST":
            body = json.loads(asked.body)
            return says({"id": self.add(parts[1], body["schema"])})
        match parts:
            case ["config", *_]:
                return says({"compatibilityLevel": "BACKWARD"})
            case ["schemas", "types"]:
                return says(["PROTOBUF"])
            case ["contexts"]:
                return self._page(asked, sorted({".", *(split(n)[0] for n in self.subjects)}))
            case ["subjects"]:
                return self._page(asked, self._names(asked.query.get("subjectPrefix", ":*:")))
            case ["schemas"]:
                names = self._names(asked.query.get("subjectPrefix", ""))
                every = [self._version(n, v) for n in names for v in self._numbers(n)]
                return self._page(asked, every)
            case ["schemas", "ids", number]:
                context, _ = split(asked.query.get("subject", ""))
                found = self.schemas.get((context, int(number)))
                return says(found) if found else NO_SCHEMA
            case ["schemas", "ids", number, "versions"]:
                context, _ = split(asked.query.get("subject", ""))
                return says(
                    [
                        {"subject": name, "version": v}
                        for name, ids in self.subjects.items()
                        for v, i in enumerate(ids, 1)
                        if (split(name)[0], i) == (context, int(number))
                    ]
                )
            case ["subjects", name, "versions"]:
                return (
                    self._page(asked, self._numbers(name)) if name in self.subjects else NO_SUBJECT
                )
            case ["subjects", name, "versions", version]:
                # a name without a context is looked for in all of them
                others = [n for n in self.subjects if split(n)[1] == name]
                name = next((n for n in (name, *others) if n in self.subjects), "")
                if not name:
                    return NO_SUBJECT
                number = self._numbers(name)[-1] if version == "latest" else int(version)
                return says(self._version(name, number))
        return no(404, 404, "HTTP 404 Not Found")

    def _names(self, prefix: str) -> list[str]:
        if prefix == ":*:":
            return sorted(self.subjects)
        context, start = split(prefix)
        inside = [n for n in self.subjects if split(n)[0] == context]
        return sorted(n for n in inside if split(n)[1].startswith(start))

    def _numbers(self, name: str) -> list[int]:
        return list(range(1, len(self.subjects[name]) + 1))

    def _version(self, name: str, version: int) -> dict[str, Any]:
        number = self.subjects[name][version - 1]
        found = self.schemas[split(name)[0], number]
        return {**found, "subject": name, "version": version, "id": number}

    def _page(self, asked: Asked, every: list[Any]) -> Says:
        offset, limit = (int(asked.query.get(name, "0")) for name in ("offset", "limit"))
        limit = limit if 0 < limit <= self.most else min(self.most, 1000)
        return says(every[offset : offset + limit])
