"""Loads a pipeline file, environment variables and flags into one frozen configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path as FilePath
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import PlainSerializer, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from distributary.config.base import CONFLICT, Section, is_sealed, mask, nearest, secrets_of
from distributary.config.file.document import (
    DEFAULT,
    KeyPath,
    Node,
    OriginKind,
    PipelineFileError,
    Problem,
    SettingOrigin,
    dotted,
    graft,
    parse,
    problem_at,
    read,
    refuse,
    with_list_origin,
)
from distributary.config.file.variables import Variables
from distributary.config.pipeline_config import PipelineConfig
from distributary.errors import ErrorCode
from distributary.model.names import printable

# Metadata of settings, read from the models: section, default, secrecy.

Models = tuple[type[Section], ...]
"""The models that may describe a mapping: several for a source, one elsewhere, none for a
scalar."""

ROOT: Models = (PipelineConfig,)


def settings(models: Models) -> dict[str, FieldInfo]:
    """Return the fields of the models by the keys that the file uses."""
    return {
        info.alias or name: info for model in models for name, info in model.model_fields.items()
    }


def models_of(info: FieldInfo) -> Models:
    """Return the models of a setting's value, or of the items of its list."""
    parts = (*alternatives(info.annotation), *_items(info))
    return tuple(part for part in parts if _is_section(part))


def is_list_of_sections(info: FieldInfo) -> bool:
    """Return true when the setting is a list of mappings of settings, such as `alerts.to`."""
    return any(map(_is_section, _items(info)))


def is_free_form(info: FieldInfo) -> bool:
    """Return true when users choose the keys below the setting, as in `spark.conf`."""
    return any(get_origin(part) is Mapping for part in alternatives(info.annotation))


def _along(path: KeyPath) -> Iterator[FieldInfo]:
    """Yield the fields along a path, the setting's own field last."""
    models = ROOT
    for part in path:
        info = settings(models).get(part) if isinstance(part, str) else None
        if info is not None:
            yield info
            models = models_of(info)


def is_free_form_option(path: KeyPath) -> bool:
    """Return true when a path is an option whose name does not show if its value is secret."""
    parts = (part for info in _along(path) for part in alternatives(info.annotation))
    return any(get_origin(part) is Mapping and get_args(part)[1] is SecretStr for part in parts)


def is_secret(info: FieldInfo) -> bool:
    """Return true when the value of a setting is a secret."""
    return any(part is SecretStr for part in alternatives(info.annotation))


def default_of(info: FieldInfo) -> Any:
    """Return the default as it is written in a file; None when there is no default."""
    default = None if info.default is PydanticUndefined else info.default
    serializer = next((m.func for m in info.metadata if isinstance(m, PlainSerializer)), None)
    # the functions of our own types take the value alone
    return default if default is None or serializer is None else serializer(default)  # type: ignore[call-arg]


def every_model(models: Models = ROOT) -> Iterator[type[Section]]:
    """Yield all models of the file, outer ones first."""
    for model in models:
        yield model
        for info in settings((model,)).values():
            yield from every_model(models_of(info))


def chosen(models: Models, node: Node) -> Models:
    """Return the model that the `type` of the node names; all models when it names none."""
    named = node.entries.get("type")
    if not is_union(models) or named is None:
        return models
    return tuple(model for model in models if tag_of(model) == str(named.value)) or models


def tag_of(model: type[Section]) -> str:
    """Return the `type` that selects a model."""
    return str(get_args(model.model_fields["type"].annotation)[0])


def split_key(key: str) -> tuple[str, ...]:
    """Split a dotted key into its path.

    Below a free-form setting, dots belong to the key: `spark.conf.spark.sql.x` has three parts.
    """
    models, path, rest = ROOT, list[str](), key.split(".")
    while rest:
        path.append(rest.pop(0))
        info = settings(models).get(path[-1])
        if info is None or not rest:
            continue
        if is_free_form(info):
            return (*path, ".".join(rest))
        models = models_of(info)
    return tuple(path)


def every_setting(models: Models = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all settings."""
    for key, info in settings(models).items():
        yield (*path, key)
        yield from every_setting(models_of(info), (*path, key))


def is_union(models: Models) -> bool:
    """Return true when pydantic puts the tag of the chosen model into its error paths."""
    return len(models) > 1


def _items(info: FieldInfo) -> Iterator[Any]:
    for part in alternatives(info.annotation):
        if get_origin(part) is tuple:
            yield from alternatives(get_args(part)[0])


def _is_section(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, Section)


def alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union, or the type itself; lists and mappings are not opened."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from alternatives(part)
    else:
        yield annotation


# Layers of settings: a flag wins over a variable, a variable over the file.

PREFIX = "DISTRIBUTARY_"
LAKE_VARIABLE = f"{PREFIX}LAKE"
"""A variable with two uses: a mapping sets the section `lake`, any other text names the lake of
commands."""


@dataclass(frozen=True, slots=True)
class Deprecation:
    """A key that was renamed or removed, and still works until a given version."""

    old: str
    new: str
    """The key to use instead; empty when the setting has no effect any more."""
    removed_in: str
    """The first version that refuses the old key."""


DEPRECATIONS: tuple[Deprecation, ...] = ()


class Layers:
    """The tree of settings, built layer by layer, with the problems found on the way."""

    def __init__(self, root: Node, deprecations: Sequence[Deprecation] = DEPRECATIONS) -> None:
        self.root = root
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self._deprecated = {split_key(entry.old): entry for entry in deprecations}
        for path in self._deprecated:
            self._rename(path)

    def add_variables(self, environ: Mapping[str, str]) -> None:
        """Set values from variables such as `DISTRIBUTARY_LAKE__PATH`; empty ones are ignored."""
        for name in sorted(environ):
            parts = name.removeprefix(PREFIX).lower().split("__")
            if not name.startswith(PREFIX) or not environ[name]:
                continue
            if name == LAKE_VARIABLE and not environ[name].lstrip().startswith("{"):
                continue
            origin = SettingOrigin(OriginKind.VARIABLE, name)
            if parts[0] in settings(ROOT):
                self._set(tuple(parts), self._variable(environ[name], origin), origin)
            elif len(parts) > 1:
                # a variable without `__` may belong to another program
                self.warnings.append(
                    problem_at(
                        origin,
                        "names no section of the pipeline file and is ignored",
                        path=".".join(parts),
                        code=ErrorCode.CONFIG_UNKNOWN_KEY,
                        suggestion=nearest(parts[0], settings(ROOT)),
                    )
                )

    def add_flags(self, overrides: Mapping[str, object]) -> None:
        """Set values of the command line, by dotted key."""
        for key, value in overrides.items():
            origin = SettingOrigin(OriginKind.FLAG, key)
            self._set(split_key(key), graft(value, origin), origin)

    def _rename(self, path: tuple[str, ...]) -> None:
        """Move the value of a deprecated key in the file to its new key."""
        if not self.root.has(path):
            return
        node = self.root.at(path)
        self.root = self.root.without(path)
        new = self._deprecated[path].new
        if new and self.root.has(split_key(new)):
            why = f"is the old name of {new}: keep one"
            self.problems.append(problem_at(node.key_origin, why, path=dotted(path)))
        else:
            self._set(path, node, node.key_origin)

    def _current(self, path: tuple[str, ...], origin: SettingOrigin) -> tuple[str, ...]:
        """Return the path that replaces a deprecated one, and add a warning; empty if none does."""
        deprecation = self._deprecated.get(path)
        if deprecation is None:
            return path
        instead = f"use {deprecation.new}" if deprecation.new else "it has no effect: remove it"
        why = f"is deprecated and refused from {deprecation.removed_in}: {instead}"
        code, new = ErrorCode.CONFIG_DEPRECATED, deprecation.new
        self.warnings.append(problem_at(origin, why, path=dotted(path), code=code, suggestion=new))
        return split_key(deprecation.new) if deprecation.new else ()

    def _variable(self, text: str, origin: SettingOrigin) -> Node:
        if text.lstrip()[:1] not in ("[", "{"):
            return graft(text, origin)
        try:
            # variables hold lists and mappings in the same YAML as the file
            tree, _ = parse(f"value: {text}", file=origin.name)
        except PipelineFileError:
            self.problems.append(problem_at(origin, "is not a list or mapping in YAML"))
            return graft(text, origin)
        return graft(tree.entries["value"].plain(), origin)

    def _set(self, path: tuple[str, ...], node: Node, origin: SettingOrigin) -> None:
        """Set the value at a path; a deprecated path is replaced by its new one."""
        if current := self._current(path, origin):
            self.root = self._placed(self.root, current, 0, node, origin)

    def _placed(
        self, tree: Node, path: tuple[str, ...], depth: int, node: Node, origin: SettingOrigin
    ) -> Node:
        """Return a copy of the tree with the node set at the path."""
        key = path[depth]
        if depth == len(path) - 1:
            return tree.with_entry(key, node)
        below = tree.entries.get(key) or Node({}, origin)
        if below.value is None:
            below = Node({}, below.origin, below.key)
        elif not isinstance(below.value, dict):
            why = f"needs {key} to be a mapping in the file"
            self.problems.append(problem_at(origin, why, path=dotted(path)))
            return tree
        return tree.with_entry(key, self._placed(below, path, depth + 1, node, origin))


# Errors of pydantic become problems with path, line and suggestion, and never with the value.

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
    """A check that reports unknown keys and replaces each by the key that was probably meant."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.adopted: set[KeyPath] = set()
        """Settings whose value comes from a misspelt key: they are reported once only."""

    def repair(self, node: Node, models: Models = ROOT, path: KeyPath = ()) -> Node:
        """Return the tree with known keys only."""
        if models and node.items:
            items = (self.repair(item, models, (*path, n)) for n, item in enumerate(node.items))
            return replace(node, value=tuple(items))
        if not models or not isinstance(node.value, dict):
            return node
        if is_union(models) and "type" not in node.entries:
            # the type must be known first, because each model has keys of its own
            node = self._respelled(node, settings(models), path, only="type")
        known = settings(chosen(models, node))
        node = self._respelled(node, known, path)
        entries = {
            key: self.repair(below, models_of(known[key]), (*path, key))
            for key, below in node.entries.items()
            if key in known
        }
        return replace(node, value=entries)

    def _respelled(
        self, node: Node, known: Mapping[str, Any], path: KeyPath, *, only: str = ""
    ) -> Node:
        """Report the unknown keys of a mapping and replace each by the nearest known key."""
        for key, below in list(node.entries.items()):
            if key in known:
                continue
            meant = nearest(key, known)
            if only and meant != only:
                continue
            # a key that exists in another section is probably indented wrongly
            elsewhere = [".".join(p) for p in every_setting() if p[-1] == key]
            self.problems.append(
                problem_at(
                    below.key_origin,
                    "unknown key",
                    path=dotted((*path, key)),
                    code=ErrorCode.CONFIG_UNKNOWN_KEY,
                    suggestion=meant or (elsewhere[0] if len(elsewhere) == 1 else ""),
                )
            )
            node = node.without((key,))
            if meant and meant not in node.entries:
                node = node.with_entry(meant, below)
                self.adopted.add((*path, meant))
        return node


def explain(error: ValidationError, root: Node, *, ignore: Iterable[KeyPath]) -> list[Problem]:
    """Return the problems of a validation error, except for those at or below ignored paths."""
    ignored = tuple(ignore)
    problems = []
    for detail in error.errors(include_input=False, include_url=False, include_context=True):
        path = _path(detail)
        blamed = any(path[: len(other)] == other for other in ignored)
        if path and detail["type"] == CONFLICT:
            # a conflict that follows from an unknown value is not a mistake of its own
            blamed = blamed or any(other[: len(path)] == path for other in ignored)
        if not blamed and detail["type"] != "default_factory_not_called":
            problems.append(_problem(detail, path, root))
    return problems


def _path(detail: Any) -> KeyPath:
    """Return pydantic's location without the tags of unions and the marks of keys."""
    path: list[str | int] = []
    models, skip = ROOT, False
    for part in detail["loc"]:
        if skip or part == "[key]":
            skip = False
            continue
        path.append(part)
        if isinstance(part, int):
            # an item of a list has the models of the list
            skip = is_union(models)
            continue
        info = settings(models).get(str(part))
        models = models_of(info) if info is not None else ()
        skip = is_union(models) and not (info is not None and is_list_of_sections(info))
    if str(detail["type"]).startswith("union_tag"):
        path.append("type")
    return tuple(path)


def _problem(detail: Any, path: KeyPath, root: Node) -> Problem:
    """Build a problem from one error detail of pydantic."""
    kind, context = str(detail["type"]), detail.get("ctx", {})
    code, suggestion = ErrorCode.CONFIG_INVALID, str(context.get("suggestion", ""))
    node = root.at(path)
    if kind in ("missing", "union_tag_not_found"):
        code, message = ErrorCode.CONFIG_MISSING_KEY, "is required"
    elif kind in ("literal_error", "union_tag_invalid"):
        allowed = _QUOTED.findall(str(context.get("expected") or context.get("expected_tags")))
        message = "must be " + " or ".join(filter(None, [", ".join(allowed[:-1]), *allowed[-1:]]))
        suggestion = nearest(str(node.value), allowed)
    elif kind in _BOUNDS:
        text, name = _BOUNDS[kind]
        bound = context.get(name)
        # pydantic gives the limit of a duration in Python's notation, which users do not write
        message = f"{text} {bound if isinstance(bound, int | float) else '0s'}"
    elif kind in _MESSAGES:
        message = _MESSAGES[kind]
    elif "error" not in context and "_type" not in kind and "_parsing" not in kind:
        message = str(detail["msg"])
    else:
        message = f"is not valid ({kind})"
    origin = node.origin if root.has(path) and kind != CONFLICT else node.key_origin
    if origin.references:
        message = f"{message} (from {', '.join(origin.references)})"
    return problem_at(origin, message, path=dotted(path), code=code, suggestion=suggestion)


_NO_OVERRIDES: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Loaded:
    """The configuration, with the origin of each value and the secrets to mask."""

    config: PipelineConfig = field(repr=False)
    file: str
    origins: Mapping[str, SettingOrigin] = field(repr=False)
    """The origin of every value that is not a default, by dotted key."""
    warnings: tuple[Problem, ...] = ()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Every value that must be masked in any output."""
    sealed: frozenset[str] = frozenset()
    """Names of free-form options that were set by a reference: secret, whatever their names."""
    path: FilePath | None = field(default=None, repr=False)
    """The path under which the file was opened; `file` is the printable name, which may be
    shorter."""
    sha256: str = ""
    """The SHA-256 of the file's bytes."""

    def origin(self, key: str) -> SettingOrigin:
        """Return the origin of a setting's value."""
        return self.origins.get(key, DEFAULT)

    def mask(self, text: str) -> str:
        """Return the text with each secret of this pipeline replaced by `***`."""
        return mask(text, self.secrets)


def load(
    path: str | FilePath,
    *,
    overrides: Mapping[str, object] = _NO_OVERRIDES,
    environ: Mapping[str, str] = os.environ,
    needs: Collection[str] | None = None,
) -> Loaded:
    """Read a pipeline file; raise PipelineFileError with all its problems.

    `needs` names the sections whose secrets are read. Secrets of other sections stay references
    such as `${file:PATH}`. All secrets are read when `needs` is left out.
    """
    text, sha256 = read(path)
    file = printable(str(path))
    loaded = load_text(text, file=file, overrides=overrides, environ=environ, needs=needs)
    return replace(loaded, path=FilePath(path), sha256=sha256)


def load_text(
    text: str,
    *,
    file: str = "pipeline.yaml",
    overrides: Mapping[str, object] = _NO_OVERRIDES,
    environ: Mapping[str, str] = os.environ,
    deprecations: Sequence[Deprecation] = DEPRECATIONS,
    needs: Collection[str] | None = None,
) -> Loaded:
    """Load the text of a pipeline file; problems name it as `file`."""
    tree, problems = _parsed(text, file)
    return _loaded(
        tree,
        [*problems],
        file=file,
        overrides=overrides,
        environ=environ,
        deprecations=deprecations,
        needs=needs,
    )


@lru_cache(maxsize=16)
def _parsed(text: str, file: str) -> tuple[Node, tuple[Problem, ...]]:
    """Parse a text once: `up` and the page load the same files again and again."""
    tree, problems = parse(text, file=file)
    return tree, tuple(problems)


def load_settings(
    settings: Mapping[str, object],
    *,
    overrides: Mapping[str, object] = _NO_OVERRIDES,
    environ: Mapping[str, str] = os.environ,
) -> Loaded:
    """Load the settings of a pipeline from a mapping that is laid out as a pipeline file."""
    origin = SettingOrigin(OriginKind.ARGUMENT, "settings")
    return _loaded(
        graft(settings, origin, expand=True),
        [],
        file=str(origin),
        overrides=overrides,
        environ=environ,
    )


def _loaded(
    tree: Node,
    problems: list[Problem],
    *,
    file: str,
    overrides: Mapping[str, object],
    environ: Mapping[str, str],
    deprecations: Sequence[Deprecation] = DEPRECATIONS,
    needs: Collection[str] | None = None,
) -> Loaded:
    """Put variables and flags over a tree of settings, and build the configuration."""
    layers = Layers(tree, deprecations)
    layers.add_variables(environ)
    layers.add_flags(overrides)
    expander = _Expander(environ, needs)
    keys = UnknownKeys()
    # unknown keys are reported before empty values are removed: a misspelt key without a value is a
    # mistake too
    root = keys.repair(expander.tree(layers.root)).without_unset()
    problems += [*layers.problems, *expander.problems, *keys.problems]
    try:
        config = PipelineConfig.model_validate(root.plain())
    except ValidationError as error:
        problems += explain(error, root, ignore=(*expander.broken, *keys.adopted))
    if problems:
        raise refuse(file, problems)
    return Loaded(
        config,
        file,
        {dotted(path): with_list_origin(node) for path, node in root.leaves()},
        tuple(layers.warnings),
        frozenset(filter(None, (*expander.secrets, *secret_values(config)))),
        frozenset(expander.sealed),
    )


class _Expander:
    """The step that replaces references such as `${env:NAME}` in the tree of settings."""

    def __init__(self, environ: Mapping[str, str], needs: Collection[str] | None) -> None:
        self._variables = Variables(environ)
        self._needs = needs
        self.problems: list[Problem] = []
        self.broken: set[KeyPath] = set()
        """Paths whose references have no value: nothing else is reported about them."""
        self.secrets: set[str] = set()
        self.sealed: set[str] = set()

    def tree(self, node: Node, path: KeyPath = ()) -> Node:
        """Return the tree with all references replaced."""
        if isinstance(node.value, dict):
            below = {k: self.tree(n, (*path, k)) for k, n in node.entries.items()}
            return replace(node, value=below)
        if isinstance(node.value, tuple):
            items: list[Node] = []
            for item in node.items:
                expanded = self.tree(item, (*path, len(items)))
                items += [expanded] if expanded.value is not None else []
            return replace(node, value=tuple(items))
        text = node.value
        if not node.expand or not isinstance(text, str) or "${" not in text:
            return node
        return node if self._stays_reference(text, path) else self._scalar(node, text, path)

    def _stays_reference(self, text: str, path: KeyPath) -> bool:
        """Return true when a value is a secret of a section that is not needed."""
        if self._needs is None or path[0] in self._needs:
            return False
        hidden = any(map(is_secret, _along(path))) or is_free_form_option(path)
        return hidden or "${file:" in text or "${databricks:" in text

    def _scalar(self, node: Node, text: str, path: KeyPath) -> Node:
        """Replace the references of one value; record its secrets and problems."""
        expansion = self._variables.expand(text)
        secrets = [*expansion.secrets]
        if is_free_form_option(path):
            secrets += expansion.variables
            self.sealed.update([str(path[-1])] if secrets else [])
        origin = replace(
            node.origin,
            references=tuple(dict.fromkeys(expansion.references)),
            secret=bool(secrets),
        )
        self.secrets.update(secrets)
        for unresolved in expansion.unresolved:
            self.broken.add(path)
            self.problems.append(
                problem_at(
                    origin,
                    unresolved.what,
                    path=dotted(path),
                    code=unresolved.code,
                    suggestion=unresolved.context.get("suggestion", ""),
                )
            )
        # an unresolved value keeps its original text, so that the models can go on
        value = text if expansion.unresolved else expansion.text or None
        return replace(node, value=value, origin=origin)


def secret_values(section: Section) -> Iterator[str]:
    """Yield every secret of a section, in clear."""
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Section):
                yield from secret_values(inner)
        if isinstance(value, SecretStr):
            yield value.get_secret_value()
        elif isinstance(value, Mapping):
            # most free-form options are plain: masking each `true` and `8` would garble every text
            for key, option in value.items():
                if isinstance(option, SecretStr) and is_sealed(info.metadata, key):
                    yield option.get_secret_value()
                elif isinstance(option, SecretStr):
                    yield from secrets_of(key, option.get_secret_value())
