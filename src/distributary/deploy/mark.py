"""The mark on everything that `install` writes: whose it is, and what it was when it was written.

One line among the first of a text: a comment, or the `$comment` of a JSON object. It holds the
SHA-256 of all the rest, so that a later look tells our own text from one that somebody edited.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_LOOKED_AT = 4
_MARK = re.compile(
    r"made by distributary install: target=([a-z-]+) pipeline=([A-Za-z0-9._-]+)"
    r" sha256=([0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a text says of itself."""

    target: str
    pipeline: str
    digest: str
    intact: bool
    """Whether the text is still the one that was marked."""


def marked(body: str, *, target: str, pipeline: str) -> str:
    """The text with its mark: first of all, or after what must come first."""
    lines = body.splitlines(keepends=True)
    mark = f"made by distributary install: target={target} pipeline={pipeline} sha256="
    mark += digest(body)
    first = lines[0] if lines else ""
    if first == "{\n":
        return "".join([first, f'  "$comment": "{mark}",\n', *lines[1:]])
    before = 1 if first.startswith("#!") else 0
    return "".join([*lines[:before], f"# {mark}\n", *lines[before:]])


def read_mark(text: str) -> Mark | None:
    """The mark of a text; None for one that is not ours."""
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines[:_LOOKED_AT]):
        if found := _MARK.search(line):
            body = "".join(lines[:at] + lines[at + 1 :])
            return Mark(found[1], found[2], found[3], intact=digest(body) == found[3])
    return None


def digest(text: str) -> str:
    """A stable name for exactly this text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
