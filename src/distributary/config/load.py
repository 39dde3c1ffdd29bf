"""A pipeline file, variables and flags to one frozen configuration."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from types import MappingProxyType

from pydantic import SecretStr, ValidationError

from distributary.config.base import Section
from distributary.config.document import parse, read
from distributary.config.explain import UnknownKeys, explain
from distributary.config.fields import holds_secret, is_free_form_option
from distributary.config.layers import DEPRECATIONS, Deprecation, Layers
from distributary.config.node import Node, Path, dotted, with_list_origin
from distributary.config.origin import DEFAULT, Origin
from distributary.config.pipeline import PipelineConfig
from distributary.config.problems import Problem, printable, problem_at, refuse
from distributary.config.secrets import is_sealed, mask, secrets_of
from distributary.config.variables import Variables

_NO_OVERRIDES: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Loaded:
    """The configuration, and what is known about how it came to be."""

    config: PipelineConfig = field(repr=False)
    file: str
    origins: Mapping[str, Origin] = field(repr=False)
    """By dotted key, for every value that is not a default."""
    warnings: tuple[Problem, ...] = ()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Every value that must not leave the process in clear."""
    sealed: frozenset[str] = frozenset()
    """Names of free-form options that were given by a reference: secret, whatever their names."""
    path: FilePath | None = field(default=None, repr=False)
    """The file as it was opened; `file` is its name as it can be shown, which may be shorter."""
    sha256: str = ""
    """Of the bytes of that file."""

    def origin(self, key: str) -> Origin:
        """Where a setting's value came from."""
        return self.origins.get(key, DEFAULT)

    def mask(self, text: str) -> str:
        """A text that is safe to show: each secret of this pipeline replaced by `***`."""
        return mask(text, self.secrets)


def load(
    path: str | FilePath,
    *,
    overrides: Mapping[str, object] = _NO_OVERRIDES,
    environ: Mapping[str, str] = os.environ,
    deprecations: Sequence[Deprecation] = DEPRECATIONS,
    needs: Collection[str] | None = None,
) -> Loaded:
    """Read a pipeline file; raises PipelineFileError with all that is wrong with it.

    `needs` names the sections whose secrets are wanted: those of others are neither asked for nor
    read, and what stands there is the reference. All are read when it is left out.
    """
    text, sha256 = read(path)
    loaded = load_text(
        text,
        file=printable(str(path)),
        overrides=overrides,
        environ=environ,
        deprecations=deprecations,
        needs=needs,
    )
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
    """The same for text that is already at hand; `file` is what problems call it."""
    tree, problems = parse(text, file=file)
    layers = Layers(tree, deprecations)
    layers.add_variables(environ)
    layers.add_flags(overrides)
    expander = _Expander(environ, needs)
    keys = UnknownKeys()
    # keys are checked first: a misspelt one is a mistake even where nothing is set
    root = keys.repair(expander.tree(layers.root)).without_unset()
    problems += [*layers.problems, *expander.problems, *keys.problems]
    try:
        config = PipelineConfig.model_validate(root.plain())
    except ValidationError as error:
        problems += explain(error, root, ignore=(*expander.broken, *keys.adopted))
    if problems:
        raise refuse(file, problems)
    secrets = {*expander.secrets, *secret_values(config)}
    warnings = tuple(layers.warnings)
    return Loaded(
        config,
        file,
        _origins(root),
        warnings,
        frozenset(filter(None, secrets)),
        frozenset(expander.sealed),
    )


class _Expander:
    """Replaces references in a tree."""

    def __init__(self, environ: Mapping[str, str], needs: Collection[str] | None) -> None:
        self._variables = Variables(environ)
        self._needs = needs
        self.problems: list[Problem] = []
        self.broken: set[Path] = set()
        """Values that are not known: nothing more can be said about them."""
        self.secrets: set[str] = set()
        self.sealed: set[str] = set()

    def tree(self, node: Node, path: Path = ()) -> Node:
        if isinstance(node.value, dict):
            below = {k: self.tree(n, (*path, k)) for k, n in node.entries.items()}
            return replace(node, value=below)
        if isinstance(node.value, tuple):
            items: list[Node] = []
            for item in node.items:
                expanded = self.tree(item, (*path, len(items)))
                items += [expanded] if expanded.value is not None else []
            return replace(node, value=tuple(items))
        if node.expand and isinstance(node.value, str) and "${" in node.value:
            if self._is_left(node.value, path):
                return node
            return self._scalar(node, node.value, path)
        return node

    def _is_left(self, text: str, path: Path) -> bool:
        """Whether a value is a secret that nobody needs."""
        if self._needs is None or path[0] in self._needs:
            return False
        return holds_secret(path) or any(kind in text for kind in ("${file:", "${databricks:"))

    def _scalar(self, node: Node, text: str, path: Path) -> Node:
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
                    path=dotted(path),
                    code=unresolved.code,
                    message=unresolved.what,
                    suggestion=unresolved.context.get("suggestion", ""),
                )
            )
        # the text as it was stands in for a value that is not known
        value = text if expansion.unresolved else expansion.text or None
        return replace(node, value=value, origin=origin)


def _origins(root: Node) -> dict[str, Origin]:
    return {dotted(path): with_list_origin(node) for path, node in root.leaves()}


def secret_values(section: Section) -> Iterator[str]:
    """Every secret that a section holds, in clear."""
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Section):
                yield from secret_values(inner)
        if isinstance(value, SecretStr):
            yield value.get_secret_value()
        elif isinstance(value, Mapping):
            # most free-form options are plain: hiding each `true` and `8` would garble every text
            for key, option in value.items():
                if isinstance(option, SecretStr) and is_sealed(info.metadata, key):
                    yield option.get_secret_value()
                elif isinstance(option, SecretStr):
                    yield from secrets_of(key, option.get_secret_value())
