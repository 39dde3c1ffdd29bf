"""The documents of a JSON Schema: its own and those it refers to, resolved without a network.

A `$ref` is looked up among the documents that came with the schema and nowhere else: by the name
that the reference was registered under, taken as it is or against the `$id` around the `$ref`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import jsonschema_rs

HOME = "https://schema.invalid/"
"""Where a document without an absolute `$id` is said to live; nobody can ever be there."""
_DATA = {"enum", "const", "default", "examples", "example"}
_VALIDATORS: Mapping[int, tuple[int, type[jsonschema_rs.Validator]]] = {
    4: (jsonschema_rs.Draft4, jsonschema_rs.Draft4Validator),
    6: (jsonschema_rs.Draft6, jsonschema_rs.Draft6Validator),
    7: (jsonschema_rs.Draft7, jsonschema_rs.Draft7Validator),
    2019: (jsonschema_rs.Draft201909, jsonschema_rs.Draft201909Validator),
    2020: (jsonschema_rs.Draft202012, jsonschema_rs.Draft202012Validator),
}
PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)
"""Patterns without look-around and back-references take time by the length of a text; the others
give up after so many steps, a few milliseconds."""
DRAFTS = tuple(_VALIDATORS)
"""The drafts that are known, by number or year."""


@dataclass(frozen=True, slots=True)
class Node:
    """A schema somewhere in the documents."""

    content: Any
    base: str
    """What a `$ref` in it is relative to."""
    key: str
    """Where it is: a URI with a JSON pointer."""

    @property
    def keywords(self) -> Mapping[str, Any]:
        """Its keywords; none of a boolean."""
        return self.content if isinstance(self.content, dict) else {}


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of the validator, which is not an Exception."""
    return type(error).__name__ == "PanicException"


@contextmanager
def no_panic() -> Iterator[None]:
    """Makes an error of a panic of the validator, which is not an Exception otherwise."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ValueError("the validator panicked") from error


class Documents:
    """A schema with everything that it refers to."""

    def __init__(self, content: Any, *, draft: int, references: Mapping[str, Any]) -> None:
        self.draft = draft
        self.content = content
        self.references = references
        self._id = "id" if draft == 4 else "$id"
        self._places: dict[str, Node] = {}
        self._opened: dict[str, bool] = {}
        self._uri = urljoin(HOME, urldefrag(self._own_id(content)).url)
        self._open(self._uri, content)
        self.root = Node(content, self._uri, f"{self._uri}#")

    @classmethod
    def of(cls, body: bytes) -> Documents:
        """The inverse of `body`; ValueError, KeyError or TypeError when it is something else."""
        parts = json.loads(body)
        if not isinstance(parts["references"], dict) or parts["draft"] not in _VALIDATORS:
            raise ValueError("not a compiled JSON Schema")
        return cls(parts["schema"], draft=parts["draft"], references=parts["references"])

    @property
    def body(self) -> bytes:
        """Everything as one JSON text."""
        parts = {"draft": self.draft, "schema": self.content, "references": self.references}
        return json.dumps(parts, separators=(",", ":")).encode("ascii")

    @cached_property
    def validator(self) -> jsonschema_rs.Validator:
        """Says whether a value matches, formats aside; ValueError for what is no schema."""
        return self._validator(PATTERNS)

    @cached_property
    def looks_around(self) -> bool:
        """Whether a pattern needs more than one look at each character of a text."""
        try:
            self._validator(jsonschema_rs.RegexOptions())
        except ValueError:
            return True
        return False

    def _validator(
        self, patterns: jsonschema_rs.FancyRegexOptions | jsonschema_rs.RegexOptions
    ) -> jsonschema_rs.Validator:
        draft, validator = _VALIDATORS[self.draft]
        known = [(self._uri, self.content)]
        with no_panic():
            return validator(
                self.content,
                registry=jsonschema_rs.Registry(known, draft=draft, retriever=self._retrieve),
                base_uri=self._uri,
                validate_formats=False,
                pattern_options=patterns,
                offline=True,
            )

    def below(self, node: Node, *path: str | int) -> Node:
        """The schema at a place inside another."""
        content, base, key = node.content, node.base, node.key
        for step in path:
            content = content[step]
            key += f"/{str(step).replace('~', '~0').replace('/', '~1')}"
            if isinstance(content, dict):
                base = self._base(content, base)
        return Node(content, base, key)

    def target(self, node: Node) -> Node | None:
        """What a schema's `$ref` leads to; None when it has none or it leads nowhere known."""
        reference = node.keywords.get("$ref")
        if not isinstance(reference, str):
            return None
        document, fragment = urldefrag(urljoin(node.base, reference))
        if reference.startswith("#"):
            # not every scheme can be joined, a urn for one
            document, fragment = node.base, reference[1:]
        self._fetch(document)
        named = self._places.get(f"{document}#{fragment}")
        whole = self._places.get(f"{document}#")
        if named is not None or whole is None or not fragment.startswith("/"):
            return named
        return self._pointed(whole, fragment)

    def _pointed(self, node: Node, pointer: str) -> Node | None:
        try:
            for part in unquote(pointer)[1:].split("/"):
                step = part.replace("~1", "/").replace("~0", "~")
                node = self.below(node, int(step) if isinstance(node.content, list) else step)
        except (KeyError, IndexError, TypeError, ValueError):
            return None
        return node

    def _fetch(self, uri: str) -> None:
        if f"{uri}#" in self._places or uri in self._opened:
            return
        name = self._named(uri)
        self._opened[uri] = name is not None
        if name is not None:
            self._open(uri, self.references[name])

    def _named(self, uri: str) -> str | None:
        """The reference that a URI means: its very name, or the longest name it ends with."""
        fitting = [
            name
            for name in self.references
            if uri == urldefrag(name).url
            or (not urlsplit(name).scheme and uri.endswith("/" + name.removeprefix("./")))
        ]
        return max(fitting, key=len, default=None)

    def _retrieve(self, uri: str) -> Any:
        name = self._named(urldefrag(uri).url)
        if name is None:
            raise LookupError("it is not among the references of the schema")
        return self.references[name]

    def _open(self, uri: str, content: Any) -> None:
        """Note where the parts of a document are that have a name of their own."""
        base = self._base(content, uri) if isinstance(content, dict) else uri
        root = Node(content, base, f"{uri}#")
        self._places[root.key] = root
        for node in self._parts(root):
            keywords = node.keywords
            if isinstance(keywords.get(self._id), str):
                self._places.setdefault(f"{node.base}#", node)
                anchor = urldefrag(keywords[self._id]).fragment
                if anchor and self.draft <= 7:
                    self._places.setdefault(f"{node.base}#{anchor}", node)
            for name in ("$anchor", "$dynamicAnchor"):
                if isinstance(keywords.get(name), str):
                    self._places.setdefault(f"{node.base}#{keywords[name]}", node)

    def _parts(self, root: Node) -> Iterator[Node]:
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if isinstance(node.content, dict):
                yield node
                steps: Iterator[str | int] = iter(k for k in node.content if k not in _DATA)
            elif isinstance(node.content, list):
                steps = iter(range(len(node.content)))
            else:
                continue
            waiting += [self.below(node, step) for step in steps]

    def _own_id(self, content: Any) -> str:
        own = content.get(self._id) if isinstance(content, dict) else None
        return own if isinstance(own, str) else ""

    def _base(self, content: Mapping[str, Any], base: str) -> str:
        own = urldefrag(self._own_id(content)).url
        if not own or ("$ref" in content and self.draft <= 7):
            return base
        return urldefrag(urljoin(base, own)).url
