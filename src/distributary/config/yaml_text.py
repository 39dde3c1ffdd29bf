"""Plain data as YAML that readers of version 1.1 and 1.2 understand alike.

Kubernetes' tools read 1.1, where `yes`, `on`, `012` and `22:30` are not texts: whatever is not
plainly a word is quoted, and quoted texts are read in one way by both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_WORD = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_MEANINGS = frozenset("y n yes no on off true false null inf nan".split())
_INDENT = "  "


def to_yaml(value: object) -> str:
    """A mapping or a list as a document."""
    return "\n".join(_block(value)) + "\n"


def _block(value: object) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _entry(f"{_scalar(str(key))}:", item, nested=_INDENT)
    elif isinstance(value, list | tuple) and value:
        for item in value:
            lines = list(_block(item)) if _is_nested(item) else []
            if lines:
                yield f"- {lines[0]}"
                yield from (f"{_INDENT}{line}" if line else "" for line in lines[1:])
            else:
                yield from _entry("-", item, nested=_INDENT)
    else:
        yield _scalar(value)


def _entry(head: str, value: object, *, nested: str) -> Iterator[str]:
    if _is_nested(value):
        yield head
        yield from (f"{nested}{line}" if line else "" for line in _block(value))
    elif isinstance(value, str) and _is_clean_text(value):
        # the text ends with exactly one line end
        yield f"{head} |"
        yield from (f"{nested}{line}" if line else "" for line in value[:-1].split("\n"))
    else:
        yield f"{head} {_scalar(value)}"


def _is_nested(value: object) -> bool:
    return isinstance(value, dict | list | tuple) and bool(value)


def _is_clean_text(text: str) -> bool:
    lines = text.split("\n")
    return (
        len(lines) > 2
        and text.endswith("\n")
        and not text.endswith("\n\n")
        and lines[0][:1] not in ("", " ", "\t")
        and all(line.isascii() and line.isprintable() for line in lines)
        and not any(line.startswith(("---", "...")) for line in lines)
        # a line of spaces alone would be cut
        and all(line.strip() or not line for line in lines)
    )


def _scalar(value: object) -> str:
    if isinstance(value, str):
        plain = _WORD.fullmatch(value) and value.lower() not in _MEANINGS
        return value if plain else _quoted(value)
    if isinstance(value, dict | list | tuple):
        return "{}" if isinstance(value, dict) else "[]"
    return json.dumps(value)


def _quoted(text: str) -> str:
    # not as JSON has it: there a character beyond the first 65,536 is written as two halves
    return '"' + "".join(map(_character, text)) + '"'


def _character(c: str) -> str:
    if c in '"\\':
        return f"\\{c}"
    if c.isascii() and c.isprintable():
        return c
    return f"\\u{ord(c):04x}" if ord(c) <= 0xFFFF else f"\\U{ord(c):08x}"
