"""Texts that show a payload to a person: printable, and of a bounded length."""

from __future__ import annotations

VIEW_CHARACTERS = 200_000
"""The largest number of characters of a view; the rest is cut off."""
_TOLERATED = 1_000
"""Characters by which a view may be longer: the reason for unreadable bytes is kept whole."""


def view_of(text: str) -> str:
    """Return a text as a view: ended by a line break, and cut off if it is too long."""
    if len(text) > VIEW_CHARACTERS + _TOLERATED:
        text = f"{text[:VIEW_CHARACTERS]}\n# the rest is cut off"
    return printable_lines(f"{text}\n")


def view_of_bytes(payload: bytes, reason: str) -> str:
    """Return the view of a payload that cannot be read: its bytes, and the reason."""
    return view_of(f"{payload[: VIEW_CHARACTERS // 3].hex(' ')}\n# {reason}")


def printable_lines(text: str) -> str:
    """Escape every character of a text that is not printable, except line breaks."""
    return "".join(c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in text)
