"""How a side column says whose values it holds: in its comment, which the table keeps."""

from __future__ import annotations

import json

_MARK = "side column of "


def side_comment(base: str, comment: str) -> str:
    """The comment of a side column: its mark, then where the values came from."""
    mark = _MARK + json.dumps(base)
    return f"{mark}; {comment}" if comment else mark


def side_base(comment: str) -> str:
    """The column a side column belongs to; empty when the comment carries no mark."""
    if not comment.startswith(_MARK):
        return ""
    try:
        base, _ = json.JSONDecoder().raw_decode(comment, len(_MARK))
    except ValueError:
        return ""
    return base if isinstance(base, str) else ""


def ordinary_comment(comment: str) -> str:
    """A writer's comment, unable to pass for a side column's."""
    return f"field: {comment}" if side_base(comment) else comment
