"""Flag over variable over file: one tree out of three."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distributary.config.document import parse
from distributary.config.fields import ROOT, settings, split_key
from distributary.config.near import nearest
from distributary.config.node import Node, dotted, graft
from distributary.config.origin import Origin, OriginKind
from distributary.config.problems import PipelineFileError, Problem, problem_at
from distributary.errors import ErrorCode

PREFIX = "DISTRIBUTARY_"
LAKE_VARIABLE = f"{PREFIX}LAKE"
"""Also names the lake that commands look at: only a mapping is meant for the section."""


@dataclass(frozen=True, slots=True)
class Deprecation:
    """A key that still works for a while."""

    old: str
    new: str
    """What to write instead; empty when the setting has no effect any more."""
    removed_in: str
    """The version that refuses it."""


DEPRECATIONS: tuple[Deprecation, ...] = ()


class Layers:
    """A tree that grows by layers, and what went wrong on the way."""

    def __init__(self, root: Node, deprecations: Sequence[Deprecation] = DEPRECATIONS) -> None:
        self.root = root
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self._deprecated = {split_key(entry.old): entry for entry in deprecations}
        for path in self._deprecated:
            self._rename(path)

    def add_variables(self, environ: Mapping[str, str]) -> None:
        """`DISTRIBUTARY_LAKE__PATH=/lake` and the like; an empty one is not set."""
        for name in sorted(environ):
            parts = name.removeprefix(PREFIX).lower().split("__")
            if not name.startswith(PREFIX) or not environ[name]:
                continue
            if name == LAKE_VARIABLE and not environ[name].lstrip().startswith("{"):
                continue
            origin = Origin(OriginKind.VARIABLE, name)
            if parts[0] in settings(ROOT):
                self._set(tuple(parts), self._variable(environ[name], origin), origin)
            elif len(parts) > 1:
                # a name without `__` may well belong to something else
                self.warnings.append(
                    problem_at(
                        origin,
                        path=".".join(parts),
                        code=ErrorCode.CONFIG_UNKNOWN_KEY,
                        message="names no section of the pipeline file and is ignored",
                        suggestion=nearest(parts[0], settings(ROOT)),
                    )
                )

    def add_flags(self, overrides: Mapping[str, object]) -> None:
        """Values of the command line, by dotted key."""
        for key, value in overrides.items():
            origin = Origin(OriginKind.FLAG, key)
            self._set(split_key(key), graft(value, origin), origin)

    def _rename(self, path: tuple[str, ...]) -> None:
        """Move what the file has under a deprecated key to its new place."""
        if not self.root.has(path):
            return
        node = self.root.at(path)
        self.root = self.root.without(path)
        new = self._deprecated[path].new
        if new and self.root.has(split_key(new)):
            self._problem(node.key_origin, dotted(path), f"is the old name of {new}: keep one")
        else:
            self._set(path, node, node.key_origin)

    def _current(self, path: tuple[str, ...], origin: Origin) -> tuple[str, ...]:
        """The path to use in place of a deprecated one, with a warning; empty for none."""
        deprecation = self._deprecated.get(path)
        if deprecation is None:
            return path
        instead = f"use {deprecation.new}" if deprecation.new else "it has no effect: remove it"
        self.warnings.append(
            problem_at(
                origin,
                path=dotted(path),
                code=ErrorCode.CONFIG_DEPRECATED,
                message=f"is deprecated and refused from {deprecation.removed_in}: {instead}",
                suggestion=deprecation.new,
            )
        )
        return split_key(deprecation.new) if deprecation.new else ()

    def _variable(self, text: str, origin: Origin) -> Node:
        if text.lstrip()[:1] not in ("[", "{"):
            return graft(text, origin)
        try:
            # lists and mappings are written as they would be in the file
            tree, _ = parse(f"value: {text}", file=origin.name)
        except PipelineFileError:
            self._problem(origin, "", "is not a list or mapping in YAML")
            return graft(text, origin)
        return graft(tree.entries["value"].plain(), origin)

    def _set(self, path: tuple[str, ...], node: Node, origin: Origin) -> None:
        if current := self._current(path, origin):
            self.root = self._placed(self.root, current, 0, node, origin)

    def _placed(
        self, tree: Node, path: tuple[str, ...], depth: int, node: Node, origin: Origin
    ) -> Node:
        key = path[depth]
        if depth == len(path) - 1:
            return tree.with_entry(key, node)
        below = tree.entries.get(key) or Node({}, origin)
        if not isinstance(below.value, dict):
            if below.value is not None:
                self._problem(origin, dotted(path), f"needs {key} to be a mapping in the file")
                return tree
            below = Node({}, below.origin, below.key)
        return tree.with_entry(key, self._placed(below, path, depth + 1, node, origin))

    def _problem(self, origin: Origin, path: str, message: str) -> None:
        code = ErrorCode.CONFIG_INVALID
        self.problems.append(problem_at(origin, path=path, code=code, message=message))
