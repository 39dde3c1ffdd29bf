"""Which type names are accepted. They come from outside, and end up in paths, SQL and pages.

The rule is what the name may hold, not what it may not: letters, marks and digits of any script,
dashes, connectors, dots, spaces and a few signs. The codes say what kind of trouble a name is.
"""

from __future__ import annotations

import re
import unicodedata

from distributary.errors import ErrorCode

MAX_TYPE_NAME = 200

_NOT_ENCODABLE = (ErrorCode.TYPE_NAME_EMPTY, ErrorCode.TYPE_NAME_TOO_LONG)
_MARKUP = re.compile(r"[<>&]")
_PATH = re.compile(r"[/\\\x00]|\.\.")
# the line separators of Unicode end a line as much as a newline does
_TEXT = re.compile("[\"'`;\x01-\x1f\x7f-\x9f\u2028\u2029]|--")
_SAFE = re.compile(r"[A-Za-z0-9_.:@$#+ -]+", re.ASCII)
_SIGNS = frozenset(". :@$#+")
_CATEGORIES = frozenset(["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd", "Nl", "Pc", "Pd"])
# letters and marks by category, but invisible: two names would look alike
_INVISIBLE = frozenset(
    chr(code)
    for first, last in (
        (0x034F, 0x034F),
        (0x115F, 0x1160),
        (0x17B4, 0x17B5),
        (0x180B, 0x180F),
        (0x3164, 0x3164),
        (0xFE00, 0xFE0F),
        (0xFFA0, 0xFFA0),
        (0xE0100, 0xE01EF),
    )
    for code in range(first, last + 1)
)
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$", "clock$"]
    + [f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789¹²³"]
)


def check_type_name(name: str) -> ErrorCode | None:
    """The reason to dead-letter a record of this type name; None for a name that is fine."""
    if not name.strip():
        return ErrorCode.TYPE_NAME_EMPTY
    if len(name) > MAX_TYPE_NAME:
        return ErrorCode.TYPE_NAME_TOO_LONG
    # markup before path: the slash of a closing tag does not make it a path
    if _MARKUP.search(name):
        return ErrorCode.TYPE_NAME_UNSAFE_MARKUP
    if _PATH.search(name):
        return ErrorCode.TYPE_NAME_UNSAFE_PATH
    if _TEXT.search(name):
        return ErrorCode.TYPE_NAME_UNSAFE_TEXT
    if not name.strip(". ") or is_device(name):
        return ErrorCode.TYPE_NAME_RESERVED
    if not _SAFE.fullmatch(name) and not all(_is_harmless(character) for character in name):
        return ErrorCode.TYPE_NAME_UNSAFE_SYMBOL
    return None


def refused_type_name(name: str, *, strict: bool) -> ErrorCode | None:
    """The same where names are encoded instead of refused: then only two kinds have no encoding."""
    code = check_type_name(name)
    return code if strict or code in _NOT_ENCODABLE else None


def casefold_key(name: str) -> str:
    """Equal for names that some file system, catalog or reader takes for one and the same."""
    folded = unicodedata.normalize("NFKC", name).upper().casefold()
    # Java takes the dotted capital I for an i, too
    return unicodedata.normalize("NFKC", folded).replace("i\u0307", "i")


def is_device(name: str) -> bool:
    """Whether Windows takes the name for a device, with or without an extension."""
    return name.partition(".")[0].strip(" ").lower() in _DEVICES


def _is_harmless(character: str) -> bool:
    if character in _SIGNS:
        return True
    return unicodedata.category(character) in _CATEGORIES and character not in _INVISIBLE
