"""The parts of a pipeline file that `install` needs, without knowing the file's secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from distributary.config.base import (
    PipelineName,
    Section,
    hide_credentials,
    is_sealed,
    is_secret_name,
    secrets_within,
)
from distributary.config.deploy import Deploy
from distributary.config.file.document import (
    KeyPath,
    Node,
    PipelineFileError,
    dotted,
    parse,
    read,
    refuse,
    to_yaml,
)
from distributary.config.file.variables import Variables
from distributary.config.lake import LakeConfig
from distributary.config.load import (
    ROOT,
    Layers,
    Loaded,
    Models,
    chosen,
    explain,
    is_free_form,
    is_secret,
    load_text,
    models_of,
    settings,
)
from distributary.config.runtime import AVAILABLE_NOW, Spark, TriggerSetting
from distributary.config.shard import Shard
from distributary.errors import ConfigError, ErrorCode
from distributary.model.names import printable

_ENV = re.compile(r"(?<!\$)\$\{env:([A-Za-z_][A-Za-z0-9_]*)(:-)?")
_REFERENCE = re.compile(
    r"(?<!\$)\$\{(?:env:\w+(?::-(?P<default>[^{}]*))?|(?:file|databricks):[^{}]*)\}"
    r"|\{\{secrets/[^{}]*\}\}"
)
_SECRET_KINDS = re.compile(r"(?<!\$)\$\{(file|databricks):")


_NEED_JVM = (("tables", "publisher", "spark"), ("lake", "database", ""))
"""Settings that need a JVM, each with its value, or with an empty text for any value."""


class _Part(Section):
    """The sections of a pipeline file that matter for installing it."""

    name: PipelineName
    """See `PipelineConfig`."""
    trigger: TriggerSetting = AVAILABLE_NOW
    """See `PipelineConfig`."""
    deploy: Deploy = Deploy()
    """See `PipelineConfig`."""
    spark: Spark = Spark()
    """See `PipelineConfig`."""
    shard: Shard | None = None
    """See `PipelineConfig`."""


@dataclass(frozen=True, slots=True)
class Installable:
    """A pipeline file with the settings for its deployment."""

    path: Path
    """Absolute."""
    name: str
    deploy: Deploy
    master: str
    ends: bool
    """Whether a run reads the available records and ends."""
    text: str = field(repr=False)
    """The text of the file: references stay references."""
    shared_text: str = field(repr=False)
    """The text for other readers: without comments, which may contain secrets."""
    variables: tuple[str, ...] = ()
    """Names of `${env:...}` without a default, which must be set where the pipeline runs."""
    clear_secrets: tuple[str, ...] = ()
    """Settings that hold a secret in clear."""
    unknown_here: tuple[str, ...] = ()
    """Values that could not be read on this machine; they become warnings."""
    lake: str = ""
    """The address of its tables; empty if it is known only where the pipeline runs."""
    checkpoint: str = ""
    """Likewise its progress."""
    connects: bool = False
    """Whether it runs on a Spark Connect server."""
    needs_jvm: tuple[str, ...] = ()
    """Settings for which a session of Spark Connect is not enough."""
    shard: Shard | None = None
    """The part of a pipeline that the file describes, if it is a shard."""
    loaded: Loaded | None = field(default=None, repr=False)
    """The whole configuration, if all of its values are known."""

    def refuse_clear_secrets(self, *, to: str) -> None:
        """Raise ConfigError if the file holds a secret in clear; for targets that copy the file."""
        if self.clear_secrets:
            raise ConfigError(
                f"the file contains a secret in clear text and would be copied to {to}",
                where=printable(str(self.path)),
                evidence=", ".join(self.clear_secrets),
                next_step="write ${env:NAME}, ${file:PATH} or ${databricks:SCOPE/KEY} instead",
            )


def read_for_install(
    path: Path, *, text: str | None = None, environ: Mapping[str, str] = os.environ
) -> Installable:
    """Read and check a file; values that are missing on this machine are allowed.

    With `text` the file need not exist yet.
    """
    text, file = read(path)[0] if text is None else text, printable(str(path))
    loaded, unknown = _checked(text, file, environ)
    tree, _ = parse(text, file=file)
    layers = Layers(tree)
    layers.add_variables(environ)
    part = _part(layers.root, file, environ)
    needed = (m[1] for _, value in _scalars(tree) for m in _ENV.finditer(value) if not m[2])

    def known(*key: str) -> str:
        return _known(layers.root, key, environ)

    lake = known("lake", "path")
    named = layers.root.has(("lake", "checkpoint"))
    return Installable(
        path=path.absolute(),
        name=part.name,
        deploy=part.deploy,
        master=part.spark.master,
        ends=part.trigger == AVAILABLE_NOW,
        text=text,
        shared_text=to_yaml(tree.plain()),
        variables=tuple(dict.fromkeys(needed)),
        clear_secrets=tuple(map(dotted, clear_secrets(tree))),
        unknown_here=unknown,
        lake=lake,
        checkpoint=known("lake", "checkpoint")
        if named
        else lake and LakeConfig.model_validate({"path": lake}).checkpoint,
        connects=layers.root.has(("spark", "remote")),
        needs_jvm=tuple(
            f"{section}.{key}"
            for section, key, value in _NEED_JVM
            if layers.root.has((section, key)) and value in ("", known(section, key))
        ),
        shard=part.shard,
        loaded=loaded,
    )


def clear_secrets(node: Node, models: Models = ROOT, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the settings with a secret value in the file itself."""
    for number, item in enumerate(node.items):
        yield from clear_secrets(item, models, (*path, number))
    known = settings(chosen(models, node))
    for key, below in node.entries.items():
        info, here = known.get(key), (*path, key)
        if info is None:
            continue
        if is_secret(info):
            yield from (where for where, _ in _in_clear(below, here))
        elif is_free_form(info):
            for name, option in below.entries.items():
                inside = _scalars(option, (*here, name))
                hidden = is_secret_name(name) or is_sealed(info.metadata, name)
                clear = _in_clear(option, (*here, name)) if hidden else ()
                held = (where for where, text in inside if any(secrets_within(_written(text))))
                yield from dict.fromkeys([*(where for where, _ in clear), *held])
        else:
            yield from clear_secrets(below, models_of(info), here)
            own = _in_clear(below, here) if not models_of(info) else ()
            yield from (where for where, text in own if hide_credentials(text) != text)


def _in_clear(node: Node, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Yield texts without a reference, or with a reference whose default is in the file."""
    for where, text in _scalars(node, path):
        references = list(_REFERENCE.finditer(text))
        if not references or any(match["default"] for match in references):
            yield where, text


def _written(text: str) -> str:
    """Return the text in the file itself, with references replaced by their defaults.

    The innermost references are replaced first.
    """
    before = ""
    while before != text:
        before, text = text, _REFERENCE.sub(lambda match: match["default"] or "", text)
    return text


def _scalars(node: Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(node.value, str):
        yield path, node.value
    for number, item in enumerate(node.items):
        yield from _scalars(item, (*path, number))
    for key, below in node.entries.items():
        yield from _scalars(below, (*path, key))


def _checked(
    text: str, file: str, environ: Mapping[str, str]
) -> tuple[Loaded | None, tuple[str, ...]]:
    try:
        return load_text(text, file=file, environ=environ), ()
    except PipelineFileError as error:
        missing = ErrorCode.CONFIG_MISSING_VARIABLE
        if any(problem.code is not missing for problem in error.problems):
            raise
        return None, tuple(f"{p.path} {p.message}" for p in error.problems)


def _part(root: Node, file: str, environ: Mapping[str, str]) -> _Part:
    kept = {key: root.entries[key] for key in _Part.model_fields if key in root.entries}
    if "spark" in kept:
        # its further settings may contain secrets, and are read where the pipeline runs
        kept["spark"] = kept["spark"].without(("conf",)) if kept["spark"].entries else kept["spark"]
    for key, text in _scalars(kept.get("deploy", Node({}, root.origin)), ("deploy",)):
        if _SECRET_KINDS.search(text):
            raise ConfigError(
                "the deploy section must not contain a secret, because install would write it in "
                "clear text",
                where=f"{file} {dotted(key)}",
                next_step="set the secret where the pipeline runs: {{secrets/SCOPE/KEY}}, a "
                "Kubernetes secret, or an environment file",
            )
    tree = Node(kept, root.origin).without_unset()
    try:
        return _Part.model_validate(_expanded(tree.plain(), environ))
    except ValidationError as error:
        raise refuse(file, explain(error, tree, ignore=())) from None


def _known(root: Node, key: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """Return a text of the file; empty if it is missing, or not known on this machine."""
    node = root.at(key) if root.has(key) else None
    if node is None or not isinstance(node.value, str):
        return ""
    expansion = Variables(environ).expand(node.value)
    return "" if expansion.unresolved else expansion.text


def _expanded(value: object, environ: Mapping[str, str]) -> object:
    if isinstance(value, dict):
        return {key: _expanded(item, environ) for key, item in value.items()}
    if isinstance(value, list):
        return [_expanded(item, environ) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    expansion = Variables(environ).expand(value)
    if expansion.unresolved:
        raise expansion.unresolved[0]
    return expansion.text
