"""The fields of a JSON message that is an envelope.

JSON is parsed no further than needed: unused members are skipped, and a payload inside of a message
is taken as its exact text, so that no number changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

import orjson

from distributary.decode.base import RefusedError
from distributary.decode.json.json_text import parse
from distributary.decode.message_fields import ENCODED, PAYLOAD, Found
from distributary.errors import ErrorCode


@dataclass(slots=True)
class _Node:
    """A member of an object: the field it holds, and the members below it that are searched for."""

    target: int | None = None
    members: dict[str, _Node] = field(default_factory=dict)


def _tree(paths: Mapping[int, str]) -> _Node:
    root = _Node()
    for kind, path in paths.items():
        node = root
        for name in path.split("."):
            node = node.members.setdefault(name, _Node())
        node.target = kind
    return root


# Numbers are only skipped: `len` parses none of them, however many digits they have.
_PASS: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder(
    parse_int=len, parse_float=len, parse_constant=len
).scan_once  # type: ignore[attr-defined]
_BLANK = re.compile(r"[ \t\n\r]*")
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_MEMBER = re.compile(r'[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*').match
_AFTER = re.compile(r"[ \t\n\r]*([,}])").match
_EMPTY = re.compile(r"[ \t\n\r]*}").match


class JsonMessages:
    """A parser that finds the fields of a plan in JSON messages."""

    def __init__(self, paths: Mapping[int, str], max_depth: int) -> None:
        self._paths = paths
        self._max_depth = max_depth
        self._tree = _tree(paths)
        whole = PAYLOAD not in paths and ENCODED not in paths
        self._whole = whole
        """True if the message is its own payload: then positions in its text are not needed."""

    def read(self, message: bytes) -> Found:
        """Find the fields in a message; raise RefusedError if it is no JSON object."""
        try:
            return self._walked(message) if self._whole else self._scanned(message)
        except (ValueError, StopIteration, RecursionError, IndexError) as error:
            # Parse again to find the exact error.
            parse(message, max_depth=self._max_depth)
            raise RefusedError(ErrorCode.NOT_JSON, "the message is not JSON") from error

    def _walked(self, message: bytes) -> Found:
        document = orjson.loads(message)
        if not isinstance(document, dict):
            raise RefusedError(ErrorCode.NOT_AN_ENVELOPE, "the message is not a JSON object", 0)
        fields: Found = {}
        for kind, path in self._paths.items():
            value: Any = document
            for name in path.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                fields[kind] = value, str(value)
        return fields

    def _scanned(self, message: bytes) -> Found:
        text = message.decode()
        start = _after(_BLANK, text, 0)
        if text[start : start + 1] != "{":
            parse(message, max_depth=self._max_depth)
            raise RefusedError(ErrorCode.NOT_AN_ENVELOPE, "the message is not a JSON object", 0)
        fields: Found = {}
        end = _scan(text, start, self._tree, fields)
        if _after(_BLANK, text, end) != len(text):
            raise ValueError("there is more text after the object")
        return fields


def _scan(text: str, start: int, node: _Node, fields: Found) -> int:
    """Skip an object, collect the searched fields, and return the position behind it."""
    place = start + 1
    members = node.members
    empty = _EMPTY(text, place)
    if empty is not None:
        return empty.end()
    while True:
        named = _MEMBER(text, place)
        name, place = (named[1], named.end()) if named is not None else _name(text, place)
        member = members.get(name)
        if member is None:
            _, end = _PASS(text, place)
        else:
            value: Any = None
            if member.members and text[place] == "{":
                end = _scan(text, place, member, fields)
                value = {}
            else:
                value, end = _PASS(text, place)
            if member.target is not None:
                if member.target in fields:
                    raise RefusedError(ErrorCode.DUPLICATE_KEY, f"{name} stands twice")
                if value is not None:
                    fields[member.target] = value, text[place:end]
        after = _AFTER(text, end)
        if after is None:
            raise ValueError("a comma or an end was expected")
        place = after.end()
        if after[1] == "}":
            return place


def _name(text: str, place: int) -> tuple[str, int]:
    """Return a member's name that contains escapes, and the position of its value."""
    place = _after(_BLANK, text, place)
    if text[place] != '"':
        raise ValueError("a name was expected")
    name, end = scanstring(text, place + 1, True)
    colon = _COLON.match(text, end)
    if colon is None:
        raise ValueError("a colon was expected")
    return name, colon.end()


def _after(blank: re.Pattern[str], text: str, place: int) -> int:
    matched = blank.match(text, place)
    return place if matched is None else matched.end()
