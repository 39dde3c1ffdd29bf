"""JSON of which a batch writes and reads thousands of documents: quick, and without spaces."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson

# as strict as `json`: what that does not know is for `default`
_AS_JSON = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def compact(
    document: object, *, escaped: bool = True, default: Callable[[Any], Any] | None = None
) -> str:
    """The text of a document; its characters stay what they are.

    Args:
        document: What `json` could write.
        escaped: Whether what is not UTF-8 (file names may hold it) is escaped. Else it stays, and
            whoever encodes the text has to do something about it.
        default: What becomes of anything else, which is a TypeError without it.
    """
    try:
        return orjson.dumps(document, default=default, option=_AS_JSON).decode()
    except TypeError:
        # numbers beyond 64 bits, keys that are no text, characters that are not UTF-8
        return json.dumps(document, separators=(",", ":"), default=default, ensure_ascii=escaped)


def parsed(text: str) -> Any:
    """The inverse of `compact`, except for whole numbers beyond 64 bits: these come as floats."""
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)
