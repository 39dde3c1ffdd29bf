"""A JSON payload for human eyes, as far as it can be read."""

from __future__ import annotations

import json

from distributary.decode.json_text import RefusedTextError, parse

MAX_CHARACTERS = 200_000
"""A longer text is cut; a person reads the beginning."""
MAX_DEPTH = 100


def best_effort_text(body: bytes | None, message: str, payload: bytes) -> str:
    """The payload, one value a line, or up to the byte that is wrong.

    Args:
        body: The compiled schema; JSON can be read without it.
        message: What the payload is called.
        payload: The bytes, whatever they are.

    Returns:
        Printable text; everything else in it is escaped.
    """
    try:
        content = parse(payload, max_depth=MAX_DEPTH)
        text = json.dumps(content, indent=2, ensure_ascii=False, default=str)
    except RefusedTextError as refused:
        end = len(payload) if refused.position is None else refused.position
        read = payload[:end].decode("utf-8", "backslashreplace")
        where = "" if refused.position is None else f" at byte {refused.position}"
        text = f"{read[:MAX_CHARACTERS]}\n# stops to make sense{where}: {refused.reason}"
    if len(text) > MAX_CHARACTERS + 1_000:
        text = f"{text[:MAX_CHARACTERS]}\n# and more"
    shown = (c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in f"{text}\n")
    return "".join(shown)
