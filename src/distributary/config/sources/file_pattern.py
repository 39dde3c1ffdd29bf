"""The pattern of a source's files: it selects paths and names the type of their records."""

from __future__ import annotations

import re
from functools import cached_property

_PARTS = re.compile(r"\*\*/|\*\*|\*|\?|\{type\}|\{[^{}]*\}?|\}|[^*?{}]+")
_WILDCARDS = {
    # folders in any number, none included
    "**/": r"(?:[^/]+/)*",
    "**": r".*",
    "*": r"[^/]*",
    "?": r"[^/]",
    "{type}": r"(?P<type>[^/]+?)",
}


class PathPattern:
    """A path below a folder with wildcards, in which `{type}` may stand for the type."""

    def __init__(self, text: str) -> None:
        """Parse the pattern; raise ValueError if it is invalid."""
        parts = _PARTS.findall(text)
        if wrong := next((p for p in parts if p[0] in "{}" and p not in _WILDCARDS), None):
            raise ValueError(f"has {wrong!r}: the only part in brackets is {{type}}")
        if parts.count("{type}") > 1:
            raise ValueError("names {type} twice")
        if text.startswith("/") or ".." in text.split("/"):
            raise ValueError("must be a path below the folder")
        self._parts = parts

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        body = "".join(_WILDCARDS.get(part) or re.escape(part) for part in self._parts)
        return re.compile(body, re.DOTALL)

    @property
    def names_type(self) -> bool:
        """Return whether the path names the type."""
        return "{type}" in self._parts

    def matches(self, path: str) -> bool:
        """Return whether a path fits."""
        return self._expression.fullmatch(path) is not None

    def type_of(self, path: str) -> str | None:
        """Return the part of a path that names the type; None if it does not fit."""
        match = self._expression.fullmatch(path)
        return match["type"] if match is not None and self.names_type else None
