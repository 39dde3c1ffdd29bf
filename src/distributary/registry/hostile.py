"""Names and texts from outside, made fit for messages and for file names."""

from __future__ import annotations

import hashlib
import re

_PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_NOT_PLAIN = re.compile(r"[^a-z0-9._-]+")


def printable(text: str) -> str:
    """Text on one line, of bounded length, without anything that could move a cursor."""
    shown = text[:300] + ("..." if len(text) > 300 else "")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def folder_name(name: str) -> str:
    """A readable folder name for any text; two texts never share one, whatever the file system.

    A plain lower-case name is its own folder. Any other gets its readable part and, behind a `~`
    that no plain name has, a digest of the whole: upper and lower case stay apart where the file
    system cannot tell them apart, and no length is too long.
    """
    if _PLAIN.fullmatch(name):
        return name
    readable = _NOT_PLAIN.sub("_", name[:60].lower()).strip("._")
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{readable}~{digest}"
