"""The documents of a JSON Schema, its own and its references, resolved without a network.

A `$ref` is looked up only among the documents that came with the schema: by the name under which
the reference was registered, as it is or relative to the `$id` around the `$ref`.
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
"""The base URI of a document without an absolute `$id`; the host can never exist."""
_DATA = {"enum", "const", "default", "examples", "example"}
_VALIDATORS: Mapping[int, tuple[int, type[jsonschema_rs.Validator]]] = {
    4: (jsonschema_rs.Draft4, jsonschema_rs.Draft4Validator),
    6: (jsonschema_rs.Draft6, jsonschema_rs.Draft6Validator),
    7: (jsonschema_rs.Draft7, jsonschema_rs.Draft7Validator),
    2019: (jsonschema_rs.Draft201909, jsonschema_rs.Draft201909Validator),
    2020: (jsonschema_rs.Draft202012, jsonschema_rs.Draft202012Validator),
}
PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)
"""Options of patterns. Matching time grows with the length of a text; a pattern with look-around or
back-references stops after this many steps, a few milliseconds."""
DRAFTS = tuple(_VALIDATORS)
"""The supported drafts, by number or year."""


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A schema at a place in the documents."""

    content: Any
    base: str
    """The URI to which a `$ref` in the schema is relative."""
    key: str
    """The place of the schema: a URI with a JSON pointer."""

    @property
    def keywords(self) -> Mapping[str, Any]:
        """Return the keywords; a boolean schema has none."""
        return self.content if isinstance(self.content, dict) else {}


def is_panic(error: BaseException) -> bool:
    """Return True if an error is a panic of the validator, which is no Exception."""
    return type(error).__name__ == "PanicException"


@contextmanager
def no_panic() -> Iterator[None]:
    """Convert a panic of the validator, which is no Exception, to a ValueError."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ValueError("the validator panicked") from error


class Documents:
    """A schema with all documents that it references."""

    def __init__(self, content: Any, *, draft: int, references: Mapping[str, Any]) -> None:
        self.draft = draft
        self.content = content
        self.references = references
        self._id = "id" if draft == 4 else "$id"
        self._places: dict[str, JsonNode] = {}
        self._opened: dict[str, bool] = {}
        self._uri = urljoin(HOME, urldefrag(self._own_id(content)).url)
        self._open(self._uri, content)
        self.root = JsonNode(content, self._uri, f"{self._uri}#")

    @classmethod
    def of(cls, body: bytes) -> Documents:
        """Read the result of `body`; raise ValueError, KeyError or TypeError for other content."""
        parts = json.loads(body)
        if not isinstance(parts["references"], dict) or parts["draft"] not in _VALIDATORS:
            raise ValueError("not a compiled JSON Schema")
        return cls(parts["schema"], draft=parts["draft"], references=parts["references"])

    @property
    def body(self) -> bytes:
        """Return the schema and its references as one JSON text."""
        parts = {"draft": self.draft, "schema": self.content, "references": self.references}
        return json.dumps(parts, separators=(",", ":")).encode("ascii")

    @cached_property
    def validator(self) -> jsonschema_rs.Validator:
        """Return the validator, which ignores formats; raise ValueError if this is no schema."""
        return self._validator(PATTERNS)

    @cached_property
    def looks_around(self) -> bool:
        """Return True if a pattern needs look-around or back-references."""
        try:
            self._validator(jsonschema_rs.RegexOptions())
        except ValueError:
            return True
        return False

    def _validator(
        self, patterns: jsonschema_rs.FancyRegexOptions | jsonschema_rs.RegexOptions
    ) -> jsonschema_rs.Validator:
        draft, validator = _VALIDATORS[self.draft]
        resources = [(self._uri, self.content)]
        with no_panic():
            return validator(
                self.content,
                registry=jsonschema_rs.Registry(resources, draft=draft, retriever=self._retrieve),
                base_uri=self._uri,
                validate_formats=False,
                pattern_options=patterns,
                offline=True,
            )

    def below(self, node: JsonNode, *path: str | int) -> JsonNode:
        """Return the schema at a place inside another."""
        content, base, key = node.content, node.base, node.key
        for step in path:
            content = content[step]
            key += f"/{str(step).replace('~', '~0').replace('/', '~1')}"
            if isinstance(content, dict):
                base = self._base(content, base)
        return JsonNode(content, base, key)

    def target(self, node: JsonNode) -> JsonNode | None:
        """Return the schema that a `$ref` refers to; None without `$ref` or without its target."""
        reference = node.keywords.get("$ref")
        if not isinstance(reference, str):
            return None
        document, fragment = urldefrag(urljoin(node.base, reference))
        if reference.startswith("#"):
            # some schemes, for instance urn, cannot be joined
            document, fragment = node.base, reference[1:]
        self._fetch(document)
        match = self._places.get(f"{document}#{fragment}")
        whole = self._places.get(f"{document}#")
        if match is not None or whole is None or not fragment.startswith("/"):
            return match
        return self._pointed(whole, fragment)

    def _pointed(self, node: JsonNode, pointer: str) -> JsonNode | None:
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
        """Return the reference whose name is a URI, or the longest name that the URI ends with."""
        matches = [
            name
            for name in self.references
            if uri == urldefrag(name).url
            or (not urlsplit(name).scheme and uri.endswith("/" + name.removeprefix("./")))
        ]
        return max(matches, key=len, default=None)

    def _retrieve(self, uri: str) -> Any:
        name = self._named(urldefrag(uri).url)
        if name is None:
            raise LookupError("the schema has no reference to this document")
        return self.references[name]

    def _open(self, uri: str, content: Any) -> None:
        """Register the parts of a document that have their own id or anchor."""
        base = self._base(content, uri) if isinstance(content, dict) else uri
        root = JsonNode(content, base, f"{uri}#")
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

    def _parts(self, root: JsonNode) -> Iterator[JsonNode]:
        pending = [root]
        while pending:
            node = pending.pop()
            if isinstance(node.content, dict):
                yield node
                steps: Iterator[str | int] = iter(
                    keyword for keyword in node.content if keyword not in _DATA
                )
            elif isinstance(node.content, list):
                steps = iter(range(len(node.content)))
            else:
                continue
            pending += [self.below(node, step) for step in steps]

    def _own_id(self, content: Any) -> str:
        schema_id = content.get(self._id) if isinstance(content, dict) else None
        return schema_id if isinstance(schema_id, str) else ""

    def _base(self, content: Mapping[str, Any], base: str) -> str:
        schema_id = urldefrag(self._own_id(content)).url
        if not schema_id or ("$ref" in content and self.draft <= 7):
            return base
        return urldefrag(urljoin(base, schema_id)).url
