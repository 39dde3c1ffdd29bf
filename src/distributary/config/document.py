"""YAML text to a tree with places, without building anything that the text asks for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from distributary.config.node import Node
from distributary.config.origin import Origin, OriginKind
from distributary.config.problems import Problem, printable, problem_at, refuse
from distributary.errors import ErrorCode

MAX_BYTES = 1 << 20
MAX_LINE = 1 << 14
MAX_DEPTH = 20
MAX_NODES = 10_000
"""Counted as if every alias was written out, so that aliases cannot multiply."""

_REASONS: dict[type[Exception], str] = {
    FileNotFoundError: "there is no such file",
    IsADirectoryError: "is a folder, not a file",
    PermissionError: "may not be read by this user",
}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_PLAIN_TAG = re.compile(r"tag:yaml\.org,2002:(str|int|float|bool|null|seq|map)")


def read(path: str | Path) -> tuple[str, str]:
    """The text of a pipeline file, and the SHA-256 of its bytes."""
    name = printable(str(path))
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(name, _REASONS.get(type(error), "cannot be read")) from None
    if len(content) > MAX_BYTES:
        raise _unreadable(name, f"is larger than {MAX_BYTES >> 20} MiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _unreadable(name, "is not UTF-8 text") from None
    if "\0" in text:
        raise _unreadable(name, "is not a text file")
    return text, hashlib.sha256(content).hexdigest()


def parse(text: str, *, file: str) -> tuple[Node, list[Problem]]:
    """The tree, and what is wrong with it that does not stop the reading (duplicate keys)."""
    builder = _Builder(file)
    long = next((n for n, line in enumerate(text.splitlines(), 1) if len(line) > MAX_LINE), 0)
    if long:
        raise builder.syntax(builder.place(long, 1), f"a line of more than {MAX_LINE} characters")
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            builder.take(event)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = builder.place(mark.line + 1, mark.column + 1) if mark else builder.place(1, 1)
        raise builder.syntax(at, _why(error)) from None
    except YAMLError:
        raise builder.syntax(builder.place(1, 1), "holds a character YAML does not allow") from None
    if builder.root is None or builder.root.value is None:
        raise _invalid(builder.place(1, 1), "the file is empty")
    if not isinstance(builder.root.value, dict):
        raise _invalid(builder.root.origin, "the file must be a mapping, starting with name:")
    return builder.root, builder.problems


def _unreadable(name: str, reason: str) -> Exception:
    code = ErrorCode.CONFIG_UNREADABLE
    return refuse(name, [Problem(name, 0, 0, "", code, reason)])


def _invalid(at: Origin, why: str) -> Exception:
    code = ErrorCode.CONFIG_INVALID
    return refuse(at.name, [problem_at(at, path="", code=code, message=why)])


def _why(error: MarkedYAMLError) -> str:
    problem = str(error.problem or error.context or "not YAML")
    if "'\\t'" in problem:
        return "a tab cannot indent YAML: use spaces"
    return printable(problem)


@dataclass(slots=True)
class _Open:
    """A list or mapping that has begun."""

    origin: Origin
    mapping: bool
    anchor: str | None
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)
    key: tuple[str, Origin] | None = None
    nodes: int = 1

    def close(self) -> Node:
        return Node(self.entries if self.mapping else tuple(self.items), self.origin)


class _Builder:
    """Takes the parser's events one by one: no recursion, and nothing is constructed from tags."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.root: Node | None = None
        self.problems: list[Problem] = []
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._documents = 0

    def place(self, line: int, column: int) -> Origin:
        return Origin(OriginKind.FILE, self.file, line, column)

    def syntax(self, at: Origin, why: str) -> Exception:
        code = ErrorCode.CONFIG_SYNTAX
        found = problem_at(at, path=self._path(), code=code, message=why)
        return refuse(self.file, [*self.problems, found])

    def take(self, event: Event) -> None:
        """One event of the parser."""
        at = self.place(event.start_mark.line + 1, event.start_mark.column + 1)
        self._refuse_tag(event, at)
        match event:
            case DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise self.syntax(at, "a second document: one file is one pipeline")
            case MappingStartEvent() | SequenceStartEvent():
                if len(self._open) >= MAX_DEPTH:
                    raise self.syntax(at, f"nested more than {MAX_DEPTH} deep")
                self._open.append(_Open(at, isinstance(event, MappingStartEvent), event.anchor))
            case MappingEndEvent() | SequenceEndEvent():
                done = self._open.pop()
                self._add(done.close(), done.nodes, done.anchor, at)
            case AliasEvent():
                # an anchor is known once its node is complete: an alias cannot contain itself
                if event.anchor not in self._anchors:
                    raise self.syntax(at, "an alias without an anchor before it")
                node, nodes = self._anchors[event.anchor]
                self._add(node, nodes, None, at)
            case ScalarEvent():
                empty = event.style is None and event.value in _NULLS
                value = None if empty and event.ctag is None else event.value
                self._add(Node(value, at, expand=True), 1, event.anchor, at)

    def _refuse_tag(self, event: Event, at: Origin) -> None:
        tag = getattr(event, "ctag", None)
        if tag is not None and not _PLAIN_TAG.fullmatch(str(tag)):
            raise self.syntax(at, "a tag: a pipeline file holds plain values only")

    def _add(self, node: Node, nodes: int, anchor: str | None, at: Origin) -> None:
        if anchor is not None:
            self._anchors[anchor] = (node, nodes)
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        parent.nodes += nodes
        if sum(frame.nodes for frame in self._open) > MAX_NODES:
            raise self.syntax(at, f"more than {MAX_NODES} values, counting each use of an alias")
        if not parent.mapping:
            parent.items.append(node)
        elif parent.key is None:
            parent.key = (self._key(node, at), at)
        else:
            self._enter(parent, *parent.key, node)
            parent.key = None

    def _key(self, node: Node, at: Origin) -> str:
        if not isinstance(node.value, str):
            raise self.syntax(at, "a key must be a word")
        return node.value

    def _enter(self, parent: _Open, key: str, at: Origin, node: Node) -> None:
        if key in parent.entries:
            message = f"given twice, first in line {parent.entries[key].key_origin.line}"
            code = ErrorCode.CONFIG_SYNTAX
            self.problems.append(problem_at(at, path=self._path(), code=code, message=message))
        # an empty value has no place of its own: the parser puts it at the next line
        origin = at if node.value is None else node.origin
        parent.entries[key] = replace(node, key=at, origin=origin)

    def _path(self) -> str:
        return ".".join(self._keys())

    def _keys(self) -> Iterator[str]:
        for frame in self._open:
            if frame.key is not None:
                yield frame.key[0]
