"""Which schema registry a command is about, and how that was found out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import stamina
from pydantic import ValidationError

from distributary.cli.lakes import find_lake, load_file, loaded_of
from distributary.cli.logs import log_retry
from distributary.cli.verb import Invocation
from distributary.config.pipeline import PipelineConfig
from distributary.config.registry import Registry as Settings
from distributary.config.secrets import hide_credentials
from distributary.errors import ConfigError, ErrorCode
from distributary.observe.trust import DECODING
from distributary.registry.contexts import context_of
from distributary.registry.files import FileRegistry
from distributary.registry.http import HttpRegistry

Registry = FileRegistry | HttpRegistry


@dataclass(frozen=True, slots=True)
class FoundRegistry:
    """A registry to ask; whether it answers is not known yet."""

    registry: Registry
    where: str
    """Its folder or address, without anything secret."""
    found_by: str
    config: PipelineConfig | None = None
    """The pipeline that it was found by, if it was."""

    def of(self, subject: str) -> FoundRegistry:
        """The same, asked about the context that a subject's name says: ids are those of one."""
        context = context_of(subject)
        if context is None or not isinstance(self.registry, HttpRegistry):
            return self
        return replace(self, registry=self.registry.within(context))


@dataclass(frozen=True, slots=True)
class Whose:
    """What the command line says about which registry is meant."""

    registry: str | None = None
    """A folder, or an address."""
    file: Path | None = None
    lake: str | None = None
    pipeline: str | None = None


def find_registry(call: Invocation, whose: Whose) -> FoundRegistry:
    """By `--registry`, by a pipeline file, or by the card that a pipeline left in a lake."""
    stamina.instrumentation.set_on_retry_hooks([log_retry])
    config: PipelineConfig | None = None
    if whose.registry is not None:
        settings, found_by = _named(whose.registry), "--registry"
    elif whose.file is not None:
        config, found_by = load_file(call, whose.file, needs=DECODING).config, str(whose.file)
        settings = _needed(config.registry)
    else:
        lake = find_lake(call, whose.lake)
        loaded = loaded_of(call, lake, name=whose.pipeline, needs=DECODING, option="--config")
        config, found_by = loaded.config, loaded.file
        settings = _needed(config.registry)
    where = settings.path or ", ".join(map(hide_credentials, settings.places))
    call.out.step(f"registry {where} ({found_by})")
    if settings.path is None:
        return FoundRegistry(HttpRegistry(settings), where, found_by, config)
    if not Path(settings.path).is_dir():
        raise ConfigError(
            "there is no registry in this folder",
            code=ErrorCode.NOT_FOUND,
            where=f"{settings.path} ({found_by})",
            next_step="go to the folder that the pipeline runs in, or name it with --registry",
        )
    return FoundRegistry(FileRegistry(settings.path), where, found_by, config)


def no_such_subject(found: FoundRegistry, name: str, known: tuple[str, ...]) -> ConfigError:
    """The error for a subject that is not there, with those that are spelled alike."""
    near = get_close_matches(name, known, n=3)
    return ConfigError(
        "the registry has no such subject",
        code=ErrorCode.NOT_FOUND,
        where=found.where,
        evidence=repr(name[:100]),
        next_step=f"did you mean {', '.join(near)}?" if near else "distributary schema subjects",
    )


def _named(given: str) -> Settings:
    remote = given.startswith(("http://", "https://"))
    try:
        return Settings(url=given) if remote else Settings(path=given)
    except ValidationError:
        raise ConfigError(
            "this is neither a folder nor the address of a registry",
            where="--registry",
            evidence=hide_credentials(given),
            next_step="name a folder, or an address such as http://127.0.0.1:8081",
        ) from None


def _needed(settings: Settings | None) -> Settings:
    if settings is None:
        raise ConfigError(
            "the pipeline has no registry",
            code=ErrorCode.NOT_FOUND,
            where="registry",
            next_step="name one with --registry",
        )
    return settings
