"""What pydantic found, in our words: path, place and the nearest right answer, never the value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from distributary.config.base import CONFLICT
from distributary.config.fields import (
    ROOT,
    Models,
    chosen,
    every_setting,
    is_free_form,
    is_list_of_sections,
    is_union,
    models_of,
    settings,
)
from distributary.config.near import nearest
from distributary.config.node import Node, Path, dotted
from distributary.config.problems import Problem, problem_at
from distributary.errors import ErrorCode

_MESSAGES = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "mapping_type": "must be a mapping",
    "float_parsing": "must be a number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "int_type": "must be a whole number",
    "model_attributes_type": "must be a mapping of settings",
    "model_type": "must be a mapping of settings",
    "string_type": "must be text",
    "tuple_type": "must be a list",
}
_BOUNDS = {
    "greater_than": ("must be more than", "gt"),
    "greater_than_equal": ("must be at least", "ge"),
    "less_than_equal": ("must be at most", "le"),
}
_QUOTED = re.compile(r"'([^']*)'")


class UnknownKeys:
    """Refuses keys that no model has, and goes on as if each was spelled right."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.adopted: set[Path] = set()
        """Settings whose value stands under a misspelt key: one mistake, one problem."""

    def repair(self, node: Node, models: Models = ROOT, path: Path = ()) -> Node:
        """The tree with known keys only."""
        if models and node.items:
            items = (self.repair(item, models, (*path, n)) for n, item in enumerate(node.items))
            return replace(node, value=tuple(items))
        if not models or not isinstance(node.value, dict):
            return node
        if is_union(models) and "type" not in node.entries:
            # first of all find out which model it is: the others have keys of their own
            node = self._respelled(node, settings(models), path, only="type")
        known = settings(chosen(models, node))
        node = self._respelled(node, known, path)
        entries = {
            key: below if is_free_form(known[key]) else self._below(below, known[key], (*path, key))
            for key, below in node.entries.items()
            if key in known
        }
        return replace(node, value=entries)

    def _below(self, node: Node, info: Any, path: Path) -> Node:
        return self.repair(node, models_of(info), path)

    def _respelled(
        self, node: Node, known: Mapping[str, Any], path: Path, *, only: str = ""
    ) -> Node:
        for key, below in list(node.entries.items()):
            meant = nearest(key, known)
            if key in known or (only and meant != only):
                continue
            self._refuse(key, below, meant, path)
            node = node.without((key,))
            if meant and meant not in node.entries:
                node = node.with_entry(meant, below)
                self.adopted.add((*path, meant))
        return node

    def _refuse(self, key: str, node: Node, meant: str, path: Path) -> None:
        # a key that is right elsewhere was most likely indented wrongly
        elsewhere = [".".join(p) for p in every_setting() if p[-1] == key]
        self.problems.append(
            problem_at(
                node.key_origin,
                path=dotted((*path, key)),
                code=ErrorCode.CONFIG_UNKNOWN_KEY,
                message="unknown key",
                suggestion=meant or (elsewhere[0] if len(elsewhere) == 1 else ""),
            )
        )


def explain(error: ValidationError, root: Node, *, ignore: Iterable[Path]) -> list[Problem]:
    """The problems of a validation error, but for those at or below the ignored paths."""
    ignored = tuple(ignore)
    problems = []
    for detail in error.errors(include_input=False, include_url=False, include_context=True):
        path = _path(detail)
        blamed = any(path[: len(other)] == other for other in ignored)
        if path and detail["type"] == CONFLICT:
            # what follows from a value that is not known is not one more mistake
            blamed = blamed or any(other[: len(path)] == path for other in ignored)
        if not blamed and detail["type"] != "default_factory_not_called":
            problems.append(_problem(detail, path, root))
    return problems


def _path(detail: Any) -> Path:
    """Pydantic's location without the tags of unions and the marks of keys."""
    path: list[str | int] = []
    models, skip = ROOT, False
    for part in detail["loc"]:
        if skip or part == "[key]":
            skip = False
            continue
        path.append(part)
        if isinstance(part, int):
            # an item is what the list is a list of
            skip = is_union(models)
            continue
        info = settings(models).get(str(part))
        models = models_of(info) if info is not None else ()
        skip = is_union(models) and not (info is not None and is_list_of_sections(info))
    if str(detail["type"]).startswith("union_tag"):
        path.append("type")
    return tuple(path)


def _problem(detail: Any, path: Path, root: Node) -> Problem:
    kind, context = str(detail["type"]), detail.get("ctx", {})
    code, suggestion = ErrorCode.CONFIG_INVALID, str(context.get("suggestion", ""))
    node = root.at(path)
    if kind in ("missing", "union_tag_not_found"):
        code, message = ErrorCode.CONFIG_MISSING_KEY, "is required"
    elif kind in ("literal_error", "union_tag_invalid"):
        allowed = _QUOTED.findall(str(context.get("expected") or context.get("expected_tags")))
        message = f"must be {_either(allowed)}"
        suggestion = nearest(str(node.value), allowed)
    elif kind in _BOUNDS:
        text, bound = _BOUNDS[kind]
        message = f"{text} {_plain_number(context.get(bound))}"
    elif kind in _MESSAGES:
        message = _MESSAGES[kind]
    elif "error" not in context and "_type" not in kind and "_parsing" not in kind:
        message = str(detail["msg"])
    else:
        message = f"is not valid ({kind})"
    origin = node.origin if root.has(path) and kind != CONFLICT else node.key_origin
    if origin.references:
        message = f"{message} (from {', '.join(origin.references)})"
    return problem_at(origin, path=dotted(path), code=code, message=message, suggestion=suggestion)


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _plain_number(bound: object) -> str:
    # pydantic gives the limit of a duration as Python's own notation
    return str(bound) if isinstance(bound, int | float) else "0s"
