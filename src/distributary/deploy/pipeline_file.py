"""What `install` must know of a pipeline file, on a machine that need not have its secrets."""

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
from distributary.config.document import (
    KeyPath,
    Node,
    PipelineFileError,
    dotted,
    parse,
    printable,
    read,
    refuse,
    to_yaml,
)
from distributary.config.engine import AVAILABLE_NOW, Spark, TriggerSetting
from distributary.config.lake import Lake
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
from distributary.config.source import Shard
from distributary.config.variables import Variables
from distributary.errors import ConfigError, ErrorCode

_ENV = re.compile(r"(?<!\$)\$\{env:([A-Za-z_][A-Za-z0-9_]*)(:-)?")
_REFERENCE = re.compile(
    r"(?<!\$)\$\{(?:env:\w+(?::-(?P<default>[^{}]*))?|(?:file|databricks):[^{}]*)\}"
    r"|\{\{secrets/[^{}]*\}\}"
)
_SECRET_KINDS = re.compile(r"(?<!\$)\$\{(file|databricks):")


_NEED_JVM = (("tables", "publisher", "spark"), ("lake", "database", ""))
"""Settings, and the value that it is about; any, where there is none."""


class _Part(Section):
    """The keys of a pipeline file that matter for installing it."""

    name: PipelineName
    """See `PipelineConfig`."""
    trigger: TriggerSetting = AVAILABLE_NOW
    """Likewise."""
    deploy: Deploy = Deploy()
    """Likewise."""
    spark: Spark = Spark()
    """Likewise."""
    shard: Shard | None = None
    """Likewise."""


@dataclass(frozen=True, slots=True)
class Installable:
    """A pipeline file and what it says about where it runs."""

    path: Path
    """Absolute."""
    name: str
    deploy: Deploy
    master: str
    ends: bool
    """Whether a run takes what is there and ends."""
    text: str = field(repr=False)
    """The file as it is: references stay references."""
    shared_text: str = field(repr=False)
    """The same for others to read: without comments, which may hold anything."""
    variables: tuple[str, ...] = ()
    """Names of `${env:...}` without a default, which must be set where it runs."""
    clear_secrets: tuple[str, ...] = ()
    """Settings that hold a secret in clear."""
    unknown_here: tuple[str, ...] = ()
    """What could not be looked up on this machine, told as warnings."""
    lake: str = ""
    """Where its tables are to be; empty where that is known only where it runs."""
    checkpoint: str = ""
    """Likewise its progress."""
    connects: bool = False
    """Whether it runs on a Spark Connect server, wherever that is."""
    needs_jvm: tuple[str, ...] = ()
    """Settings for which a session of Spark Connect is not enough."""
    shard: Shard | None = None
    """Which part of a pipeline it is, if it is one."""
    loaded: Loaded | None = field(default=None, repr=False)
    """The whole configuration, where everything is known."""

    def refuse_clear_secrets(self, *, to: str) -> None:
        """For targets that copy the file to where others read it."""
        if self.clear_secrets:
            raise ConfigError(
                f"the file holds a secret in clear and would be copied to {to}",
                where=printable(str(self.path)),
                evidence=", ".join(self.clear_secrets),
                next_step="write ${env:NAME}, ${file:PATH} or ${databricks:SCOPE/KEY} instead",
            )


def read_for_install(
    path: Path, *, text: str | None = None, environ: Mapping[str, str] = os.environ
) -> Installable:
    """Read and check a file; values that are missing here are no mistake, all others are.

    With `text` the file need not be there yet.
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
        else lake and Lake.model_validate({"path": lake}).checkpoint,
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
    """Settings whose secret value stands in the file itself."""
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
    """Texts without a reference, or with one whose default stands in the file."""
    for where, text in _scalars(node, path):
        found = list(_REFERENCE.finditer(text))
        if not found or any(each["default"] for each in found):
            yield where, text


def _written(text: str) -> str:
    """What stands in the file itself: references replaced by their defaults, innermost first."""
    before = ""
    while before != text:
        before, text = text, _REFERENCE.sub(lambda each: each["default"] or "", text)
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
        # its further settings may hold secrets, and are read where it runs
        kept["spark"] = kept["spark"].without(("conf",)) if kept["spark"].entries else kept["spark"]
    for key, text in _scalars(kept.get("deploy", Node({}, root.origin)), ("deploy",)):
        if _SECRET_KINDS.search(text):
            raise ConfigError(
                "a secret cannot stand in the deploy section: it would be written down in clear",
                where=f"{file} {dotted(key)}",
                next_step="name it where it runs: {{secrets/SCOPE/KEY}}, a Kubernetes secret, "
                "or an environment file",
            )
    tree = Node(kept, root.origin).without_unset()
    try:
        return _Part.model_validate(_expanded(tree.plain(), environ))
    except ValidationError as error:
        raise refuse(file, explain(error, tree, ignore=())) from None


def _known(root: Node, key: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """A text of the file as it is here; empty for one that is not there, or not known here."""
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
