"""Parses YAML into a tree with the place of every value, safely, and writes YAML."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

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

from distributary.errors import ConfigError, ErrorCode
from distributary.model.names import printable

# Origins of values.


class OriginKind(StrEnum):
    """The kinds of origins, in descending order of precedence."""

    FLAG = "flag"
    VARIABLE = "variable"
    FILE = "file"
    ARGUMENT = "argument"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """The origin of a value; `str()` returns `pipeline.yaml:14`, `variable NAME` or `flag KEY`."""

    kind: OriginKind
    name: str = ""
    """The name of the file, variable, flag or argument."""
    line: int = 0
    """The line, counted from 1; 0 outside a file."""
    column: int = 0
    references: tuple[str, ...] = ()
    """The references in the value, such as `env:KAFKA_SERVER`."""
    secret: bool = False
    """Whether the value must never be shown, whatever its setting is."""

    def __str__(self) -> str:
        if self.kind is OriginKind.DEFAULT:
            return "default"
        place = f"{self.name}:{self.line}" if self.line else f"{self.kind} {self.name}"
        return f"{place} ({', '.join(self.references)})" if self.references else place

    def as_dict(self) -> dict[str, object]:
        """Return the origin for `--json`."""
        return {
            "kind": str(self.kind),
            "name": self.name,
            "line": self.line or None,
            "column": self.column or None,
            "references": list(self.references),
        }


DEFAULT = SettingOrigin(OriginKind.DEFAULT)


# The tree of a pipeline file.

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar, a list or a mapping, with its origin.

    Scalars of a file are text, or None where no value is written. The models convert them, so that
    `${env:PORT}` and `9092` are read alike.
    """

    value: object | tuple[Node, ...] | Mapping[str, Node]
    origin: SettingOrigin
    key: SettingOrigin | None = None
    """The origin of the key in front of the value."""
    expand: bool = False
    """Whether `${...}` in the value is replaced: not in flags and variables."""

    @property
    def entries(self) -> Mapping[str, Node]:
        """Return the entries of a mapping; empty for anything else."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> tuple[Node, ...]:
        """Return the items of a list; empty for anything else."""
        return self.value if isinstance(self.value, tuple) else ()

    @property
    def key_origin(self) -> SettingOrigin:
        """Return the origin for problems that concern the setting as a whole."""
        return self.key or self.origin

    def at(self, path: KeyPath) -> Node:
        """Return the node at a path, or the deepest one on the way to it."""
        below = self.child(path[0]) if path else None
        return below.at(path[1:]) if below else self

    def child(self, part: str | int) -> Node | None:
        """Return the node one step down; None when there is none."""
        if isinstance(part, int):
            return self.items[part] if part < len(self.items) else None
        return self.entries.get(part)

    def has(self, path: KeyPath) -> bool:
        """Return true when there is a node at the path."""
        below = self.child(path[0]) if path else None
        return below.has(path[1:]) if below else not path

    def with_entry(self, key: str, node: Node) -> Node:
        """Return a copy with one entry added or replaced."""
        return replace(self, value={**self.entries, key: node})

    def without(self, path: KeyPath) -> Node:
        """Return a copy without the path, and without mappings that become empty by this."""
        head, *rest = path
        kept = dict(self.entries)
        below = kept.pop(str(head), None)
        if below is not None and rest and (left := below.without(tuple(rest))).value:
            kept[str(head)] = left
        return replace(self, value=kept)

    def without_unset(self) -> Node:
        """Return a copy without entries that have no value: their defaults apply."""
        if self.items:
            return replace(self, value=tuple(item.without_unset() for item in self.items))
        if not isinstance(self.value, dict):
            return self
        kept = {key: node.without_unset() for key, node in self.entries.items()}
        return replace(self, value={k: n for k, n in kept.items() if n.value is not None})

    def leaves(self, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Node]]:
        """Yield scalars and lists with their paths; a list of scalars is yielded as one leaf."""
        if isinstance(self.value, dict):
            for key, node in self.entries.items():
                yield from node.leaves((*path, key))
        elif any(item.entries for item in self.items):
            for index, item in enumerate(self.items):
                yield from item.leaves((*path, index))
        else:
            yield path, self

    def plain(self) -> object:
        """Return the tree as dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.entries.items()}
        return [node.plain() for node in self.items] if self.items else self.value


def graft(value: object, origin: SettingOrigin, *, expand: bool = False) -> Node:
    """Build a tree from the value of a flag, a variable or an argument."""
    if isinstance(value, Mapping):
        entries = {str(key): graft(item, origin, expand=expand) for key, item in value.items()}
        return Node(entries, origin)
    if isinstance(value, list | tuple):
        return Node(tuple(graft(item, origin, expand=expand) for item in value), origin)
    plain = os.fspath(value) if isinstance(value, os.PathLike) else value
    return Node(plain, origin, expand=expand)


def with_list_origin(node: Node) -> SettingOrigin:
    """Return the origin of a list, with the references and secrecy of its items."""
    references = dict.fromkeys(r for item in node.items for r in item.origin.references)
    return replace(
        node.origin,
        references=(*node.origin.references, *references),
        secret=node.origin.secret or any(item.origin.secret for item in node.items),
    )


def dotted(path: KeyPath) -> str:
    """Format a path as `source.topics[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


# Problems of a pipeline file: all of them at once, each with its place.

_LONGEST_NAME = 120
_LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake or warning; it never holds a value from the file."""

    file: str
    line: int
    """The line, counted from 1; 0 when the problem has no line: a flag, a variable, the whole
    file."""
    column: int
    path: str
    """The setting, such as `source.topics[0]`; empty for the whole file."""
    code: ErrorCode
    message: str
    suggestion: str = ""
    """The key, literal or variable that was probably meant."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        meant = f", did you mean {self.suggestion}?" if self.suggestion else ""
        parts = (place, self.code, self.path, f"{self.message}{meant}")
        return "  ".join(part for part in parts if part)

    def as_dict(self) -> dict[str, Any]:
        """Return the problem for `--json`."""
        return asdict(self) | {"code": str(self.code)}


class PipelineFileError(ConfigError):
    """A pipeline file with problems."""

    def __init__(self, what: str, *, problems: Iterable[Problem] = (), **parts: Any) -> None:
        super().__init__(what, **parts)
        self.problems: tuple[Problem, ...] = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems)) or super().__str__()

    def as_dict(self) -> dict[str, Any]:
        """Return the parts of the error, and the problems."""
        return super().as_dict() | {"problems": [p.as_dict() for p in self.problems]}


def refuse(file: str, problems: Iterable[Problem]) -> PipelineFileError:
    """Build the error for these problems, without duplicates, in the order of the file."""
    ordered = sorted(dict.fromkeys(problems), key=lambda p: (p.file != file, p.line, p.column))
    codes = {problem.code for problem in ordered}
    count = len(ordered)
    # problems without line and path mean that the file could not be read
    fix = "fix the lines above" if any(p.line or p.path for p in ordered) else "check the path"
    return PipelineFileError(
        f"{file} has {count} problem{'s' if count != 1 else ''}",
        problems=ordered,
        code=codes.pop() if len(codes) == 1 else ErrorCode.CONFIG_INVALID,
        where=str(ordered[0]).split("  ")[0],
        evidence="; ".join(f"{p.path}: {p.message}" for p in ordered[:3]),
        next_step=f"{fix}, then run `distributary validate` again",
    )


def problem_at(
    origin: SettingOrigin,
    message: str,
    *,
    path: str = "",
    code: ErrorCode = ErrorCode.CONFIG_INVALID,
    suggestion: str = "",
) -> Problem:
    """Build a problem at the origin of a value."""
    return Problem(
        file=printable(origin.name if origin.line else str(origin), longest=_LONGEST_NAME),
        line=origin.line,
        column=origin.column,
        path=printable(path, longest=_LONGEST_NAME),
        code=code,
        message=printable(message, longest=_LONGEST_MESSAGE),
        suggestion=printable(suggestion, longest=_LONGEST_NAME),
    )


MAX_BYTES = 1 << 20
MAX_LINE = 1 << 14
MAX_DEPTH = 20
MAX_NODES = 10_000
"""The largest number of nodes, with each use of an alias counted in full: aliases cannot
multiply."""

_REASONS: dict[type[Exception], str] = {
    FileNotFoundError: "there is no such file",
    IsADirectoryError: "is a folder, not a file",
    PermissionError: "may not be read by this user",
}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_PLAIN_TAG = re.compile(r"tag:yaml\.org,2002:(str|int|float|bool|null|seq|map)")


def read(path: str | Path) -> tuple[str, str]:
    """Return the text of a pipeline file and the SHA-256 of its bytes."""
    name = printable(str(path), longest=_LONGEST_NAME)
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
    """Parse YAML; return the tree, and problems that do not stop the parsing (duplicate keys)."""
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
        why = printable(str(error.problem or error.context or "not YAML"))
        tab = "a tab cannot indent YAML: use spaces" if r"'\t'" in why else ""
        raise builder.syntax(at, tab or why) from None
    except YAMLError:
        raise builder.syntax(builder.place(1, 1), "holds a character YAML does not allow") from None
    if builder.root is None or builder.root.value is None:
        raise refuse(file, [problem_at(builder.place(1, 1), "the file is empty")])
    if not isinstance(builder.root.value, dict):
        why = "the file must be a mapping, starting with name:"
        raise refuse(file, [problem_at(builder.root.origin, why)])
    return builder.root, builder.problems


def _unreadable(name: str, reason: str) -> Exception:
    return refuse(name, [Problem(name, 0, 0, "", ErrorCode.CONFIG_UNREADABLE, reason)])


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end the parser has not reached."""

    origin: SettingOrigin
    mapping: bool
    anchor: str | None
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)
    key: tuple[str, SettingOrigin] | None = None
    nodes: int = 1

    def close(self) -> Node:
        return Node(self.entries if self.mapping else tuple(self.items), self.origin)


class _Builder:
    """A builder of the tree from the parser's events, without recursion or objects from tags."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.root: Node | None = None
        self.problems: list[Problem] = []
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._documents = 0

    def place(self, line: int, column: int) -> SettingOrigin:
        return SettingOrigin(OriginKind.FILE, self.file, line, column)

    def syntax(self, at: SettingOrigin, why: str) -> Exception:
        self._note(at, why)
        return refuse(self.file, self.problems)

    def _note(self, at: SettingOrigin, why: str) -> None:
        path = ".".join(frame.key[0] for frame in self._open if frame.key is not None)
        self.problems.append(problem_at(at, why, path=path, code=ErrorCode.CONFIG_SYNTAX))

    def take(self, event: Event) -> None:
        """Process one event of the parser."""
        at = self.place(event.start_mark.line + 1, event.start_mark.column + 1)
        tag = getattr(event, "ctag", None)
        if tag is not None and not _PLAIN_TAG.fullmatch(str(tag)):
            raise self.syntax(at, "a tag: a pipeline file holds plain values only")
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
                frame = self._open.pop()
                self._add(frame.close(), frame.nodes, frame.anchor, at)
            case AliasEvent():
                # an anchor is recorded when its node is complete, so an alias cannot contain itself
                if event.anchor not in self._anchors:
                    raise self.syntax(at, "an alias without an anchor before it")
                node, nodes = self._anchors[event.anchor]
                self._add(node, nodes, None, at)
            case ScalarEvent():
                empty = event.style is None and event.value in _NULLS
                value = None if empty and event.ctag is None else event.value
                self._add(Node(value, at, expand=True), 1, event.anchor, at)

    def _add(self, node: Node, nodes: int, anchor: str | None, at: SettingOrigin) -> None:
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
        elif parent.key is not None:
            self._enter(parent, *parent.key, node)
            parent.key = None
        elif isinstance(node.value, str):
            parent.key = (node.value, at)
        else:
            raise self.syntax(at, "a key must be a word")

    def _enter(self, parent: _Open, key: str, at: SettingOrigin, node: Node) -> None:
        if key in parent.entries:
            self._note(at, f"given twice, first in line {parent.entries[key].key_origin.line}")
        # the parser places an empty value at the next line: use the place of its key
        origin = at if node.value is None else node.origin
        parent.entries[key] = replace(node, key=at, origin=origin)


# Writing YAML that readers of versions 1.1 and 1.2 read alike. Kubernetes' tools use 1.1, where
# `yes`, `on`, `012` and `22:30` are not texts. So every text that is not plainly a word is quoted.

_WORD = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_MEANINGS = frozenset("y n yes no on off true false null inf nan".split())
_INDENT = "  "


def to_yaml(value: object) -> str:
    """Return a mapping or a list as a YAML document."""
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
        # a literal block ends with exactly one line break, and so does the text
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
        # a reader would cut a line of spaces alone
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
    # JSON would write a character beyond the first 65,536 as two halves
    return '"' + "".join(map(_character, text)) + '"'


def _character(c: str) -> str:
    if c in '"\\':
        return f"\\{c}"
    if c.isascii() and c.isprintable():
        return c
    return f"\\u{ord(c):04x}" if ord(c) <= 0xFFFF else f"\\U{ord(c):08x}"
