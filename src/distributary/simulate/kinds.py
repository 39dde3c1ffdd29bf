"""The kinds of bad record a simulator can send, and the code each must be dead-lettered with."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum

from distributary.errors import ConfigError, ErrorCode


class BadKind(StrEnum):
    """What is wrong with a record; `*_name` is about the name of its type."""

    NOT_A_WRAPPER = "not_a_wrapper"
    UNKNOWN_SCHEMA_ID = "unknown_schema_id"
    BROKEN_PAYLOAD = "broken_payload"
    NULL_VALUE = "null_value"
    EMPTY_VALUE = "empty_value"
    NO_TYPE = "no_type"
    NO_SCHEMA_ID = "no_schema_id"
    WRONG_SUBJECT = "wrong_subject"
    PATH_NAME = "path_name"
    SQL_NAME = "sql_name"
    MARKUP_NAME = "markup_name"
    RESERVED_NAME = "reserved_name"
    EMOJI_NAME = "emoji_name"
    LONG_NAME = "long_name"
    EMPTY_NAME = "empty_name"
    OVERSIZE_PAYLOAD = "oversize_payload"

    @property
    def code(self) -> ErrorCode:
        """The reason under which such a record must end in the dead letters."""
        return _CODES[self]


_CODES = {
    BadKind.NOT_A_WRAPPER: ErrorCode.NOT_AN_ENVELOPE,
    BadKind.UNKNOWN_SCHEMA_ID: ErrorCode.UNKNOWN_SCHEMA_ID,
    BadKind.BROKEN_PAYLOAD: ErrorCode.PAYLOAD_MISMATCH,
    BadKind.NULL_VALUE: ErrorCode.NULL_VALUE,
    BadKind.EMPTY_VALUE: ErrorCode.EMPTY_VALUE,
    BadKind.NO_TYPE: ErrorCode.MISSING_TYPE,
    BadKind.NO_SCHEMA_ID: ErrorCode.MISSING_SCHEMA_ID,
    BadKind.WRONG_SUBJECT: ErrorCode.WRONG_SUBJECT,
    BadKind.PATH_NAME: ErrorCode.TYPE_NAME_UNSAFE_PATH,
    BadKind.SQL_NAME: ErrorCode.TYPE_NAME_UNSAFE_TEXT,
    BadKind.MARKUP_NAME: ErrorCode.TYPE_NAME_UNSAFE_MARKUP,
    BadKind.RESERVED_NAME: ErrorCode.TYPE_NAME_RESERVED,
    BadKind.EMOJI_NAME: ErrorCode.TYPE_NAME_UNSAFE_SYMBOL,
    BadKind.LONG_NAME: ErrorCode.TYPE_NAME_TOO_LONG,
    BadKind.EMPTY_NAME: ErrorCode.TYPE_NAME_EMPTY,
    BadKind.OVERSIZE_PAYLOAD: ErrorCode.PAYLOAD_TOO_LARGE,
}

HOSTILE_NAMES = {
    BadKind.PATH_NAME: "../../etc/passwd",
    BadKind.SQL_NAME: "'; DROP TABLE x; --",
    BadKind.MARKUP_NAME: "<script>alert(1)</script>",
    BadKind.RESERVED_NAME: "CON",
    BadKind.EMOJI_NAME: "\N{VIDEO GAME}",
    BadKind.LONG_NAME: "a" * 10_000,
    BadKind.EMPTY_NAME: "",
}

DEFAULT_KINDS = tuple(kind for kind in BadKind if kind is not BadKind.OVERSIZE_PAYLOAD)
"""In the order in which they rotate; megabytes of payload only on request."""


def parse_kinds(names: Iterable[str]) -> tuple[BadKind, ...]:
    """Kinds by the names a person types, in their order; an unknown one is a ConfigError."""
    kinds = []
    for name in names:
        if name not in set(BadKind):
            near = get_close_matches(name, list(BadKind), n=1)
            raise ConfigError(
                "there is no such kind of bad record",
                where="bad kinds",
                evidence=repr(name)[:80],
                next_step=f"did you mean {near[0]}?" if near else f"one of: {', '.join(BadKind)}",
            )
        kinds.append(BadKind(name))
    return tuple(kinds)
