"""Which lake and which pipeline a command is about, and how that was found out."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distributary.cli.command.output import spelled
from distributary.cli.command.verb import LAKE_VARIABLE, PLACES, Invocation
from distributary.errors import ConfigError, ErrorCode, LakeUnavailableError, missing
from distributary.model import layout

if TYPE_CHECKING:
    from distributary.config.load import Loaded
    from distributary.config.pipeline import PipelineConfig
    from distributary.config.registry import RegistryConfig as Settings
    from distributary.engine.pipeline import Pipeline
    from distributary.observe.cards import Registration
    from distributary.observe.ledger.ledger import Ledger
    from distributary.observe.ledger.rows import TableSummary
    from distributary.registry.folder import FileRegistry
    from distributary.registry.http.registry import HttpRegistry


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake that exists."""

    path: str
    found_by: str
    file: Path | None = None
    """The pipeline file that was given."""
    pipeline: str | None = None
    """The pipeline of that file, the only one that is meant."""
    checkpoint: str = ""
    """Where that pipeline keeps its progress."""

    @property
    def keeps_elsewhere(self) -> bool:
        """Return whether the checkpoint is known to be outside of the lake."""
        inside = self.checkpoint.startswith(f"{self.path.rstrip('/')}/")
        return bool(self.checkpoint) and not inside

    @property
    def flag(self) -> str:
        """Return the option with which a later command finds this lake; empty if it needs none."""
        by_itself = {f"variable {LAKE_VARIABLE}", *PLACES}
        return "" if self.found_by in by_itself else f" --lake {shlex.quote(self.path)}"

    def ledger(self) -> Ledger:
        """Return the ledger of this lake."""
        from distributary.observe.ledger.ledger import Ledger

        return Ledger(self.path)


def find_lake(
    call: Invocation, lake: str | None = None, file: Path | None = None, *, empty: bool = False
) -> Lake:
    """By `--lake`, by the pipeline file, by the environment, or in the usual places.

    With `empty` also one in which no pipeline has run yet.
    """
    from distributary.store.base import absolute

    try:
        found = _named_lake(call, lake, file) or _usual_lake()
    except ConfigError as error:
        if not empty or error.code is not ErrorCode.NOT_FOUND:
            raise
        found = Lake(absolute(PLACES[0]), "nothing else was found")
    call.out.step(f"lake {found.path} ({found.found_by})")
    if not empty:
        require_lake(found)
    return found


def require_lake(found: Lake) -> None:
    """Refuses a folder in which no pipeline has run, and one that a pipeline's lake has left."""
    from distributary.store.base import at, local_path

    home = local_path(layout.join(found.path, layout.HOME))
    if home is None or home.is_dir():
        return
    where = f"{found.path} ({found.found_by})"
    if found.keeps_elsewhere and at(found.checkpoint).exists():
        raise LakeUnavailableError(
            "the lake is not there (any more)",
            where=where,
            evidence=f"its pipeline {found.pipeline} has run: {found.checkpoint}",
            next_step="bring the folder back: is a disk not mounted?",
        )
    raise ConfigError(
        "no pipeline has ever run in this lake",
        code=ErrorCode.NOT_FOUND,
        where=where,
        next_step="run a pipeline first, or make one: distributary demo games",
    )


def load_file(call: Invocation, file: Path, *, needs: Collection[str] | None = None) -> Loaded:
    """Load a pipeline file; print its warnings, and mask its secrets from now on."""
    from distributary.config.load import load

    return _told(call, load(file, needs=needs))


def _told(call: Invocation, loaded: Loaded) -> Loaded:
    before = call.out.mask
    # a file may be loaded twice, each time for other secrets
    call.out.mask = lambda text: loaded.mask(before(text))
    call.out.dashboard = loaded.config.alerts.dashboard_url or ""
    for warning in loaded.warnings:
        call.out.warn(str(warning))
    return loaded


def read_text(file: Path, what: str, *, code: ErrorCode = ErrorCode.CONFIG_UNREADABLE) -> str:
    """A small file that the command line names; `what` it is."""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{what} cannot be read",
            code=code,
            where=str(file),
            evidence=getattr(error, "strerror", None) or "it is not UTF-8",
            next_step="check its path and rights",
        ) from None


def open_pipeline(call: Invocation, file: Path) -> Pipeline:
    """A pipeline that can be run."""
    # a file that is not there or wrong is said at once, and not after Spark was imported
    loaded = load_file(call, file)
    from distributary.engine.pipeline import Pipeline

    return Pipeline(loaded, log_file=call.log.path)


def pipeline_of(
    call: Invocation, lake: Lake, *, name: str | None = None, needs: Collection[str] | None = None
) -> Pipeline:
    """The pipeline of a lake, from the file given or from the card it left in the lake."""
    from distributary.engine.pipeline import Pipeline

    return Pipeline(loaded_of(call, lake, name=name, needs=needs), log_file=call.log.path)


def find_table(tables: Sequence[TableSummary], name: str) -> TableSummary:
    """The table with this name, or of this type."""
    for table in tables:
        if name in (table.table, table.type, spelled(table.type)) and name:
            return table
    known = {t.table for t in tables} | {spelled(t.type) for t in tables if t.type}
    what = "there is no such table or type"
    raise missing(what, name, known)


def loaded_of(
    call: Invocation,
    lake: Lake,
    *,
    name: str | None = None,
    needs: Collection[str] | None = None,
    option: str = "--file",
) -> Loaded:
    """The settings of a lake's pipeline; `option` is what the command has to name its file."""
    from distributary.observe.cards import load_trusted, registrations

    if lake.file is not None:
        return load_file(call, lake.file, needs=needs)
    card = choose(registrations(lake.path), lake, name)
    return _told(call, load_trusted(card, lake.path, needs=needs, option=option))


def choose(cards: tuple[Registration, ...], lake: Lake, name: str | None) -> Registration:
    """The one pipeline of a lake, or the one that is named."""
    fitting = [card for card in cards if name in (None, card.name)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(card.name for card in cards)
    raise ConfigError(
        "this lake has several pipelines" if fitting else "there is no such pipeline in this lake",
        code=ErrorCode.NOT_FOUND,
        where=lake.path,
        evidence=names,
        next_step="say which one with --pipeline, or name its file with --file",
    )


def _named_lake(call: Invocation, lake: str | None, file: Path | None) -> Lake | None:
    from distributary.store.base import absolute, introduce

    if file is not None:
        config = load_file(call, file, needs=("lake",)).config
        path, found_by = (lake, "--lake") if lake else (config.lake.path, str(file))
        introduce(absolute(path), config.lake.options)
        checkpoint = absolute(config.lake.checkpoint_of(config.name))
        return Lake(absolute(path), found_by, file, config.name, checkpoint)
    if lake is not None:
        return Lake(absolute(lake), "--lake")
    variable = os.environ.get(LAKE_VARIABLE)
    return Lake(absolute(variable), f"variable {LAKE_VARIABLE}") if variable else None


def _usual_lake() -> Lake:
    from distributary.store.base import absolute

    for place in PLACES:
        if Path(place, layout.HOME).is_dir():
            return Lake(absolute(place), place)
    raise ConfigError(
        "no lake was named and none was found",
        code=ErrorCode.NOT_FOUND,
        where=str(Path.cwd()),
        evidence=f"none of {', '.join(PLACES)} is a lake",
        next_step=f"name it with --lake or {LAKE_VARIABLE}, or make one: distributary demo games",
    )


# Which schema registry a command is about, and how that was found out.


@dataclass(frozen=True, slots=True)
class FoundRegistry:
    """A registry to ask; whether it answers is not known yet."""

    registry: FileRegistry | HttpRegistry
    where: str
    """Its folder or address, without anything secret."""
    config: PipelineConfig | None = None
    """The pipeline that it was found by, if it was."""

    def of(self, subject: str) -> FoundRegistry:
        """The same, asked about the context that a subject's name says: ids are those of one."""
        from distributary.registry.base import context_of
        from distributary.registry.http.registry import HttpRegistry

        context = context_of(subject)
        if context is None or not isinstance(self.registry, HttpRegistry):
            return self
        return replace(self, registry=self.registry.within(context))


def find_registry(
    call: Invocation,
    registry: str | None,
    file: Path | None,
    lake: str | None,
    pipeline: str | None,
    *,
    option: str = "--config",
) -> FoundRegistry:
    """By `--registry`, by a pipeline file, or by the card that a pipeline left in a lake."""
    from distributary.config.base import hide_credentials
    from distributary.observe.cards import DECODING

    config: PipelineConfig | None = None
    if registry is not None:
        settings, found_by = _named_registry(registry), "--registry"
    else:
        if file is not None:
            loaded, found_by = load_file(call, file, needs=DECODING), str(file)
        else:
            found = find_lake(call, lake)
            loaded = loaded_of(call, found, name=pipeline, needs=DECODING, option=option)
            found_by = loaded.file
        config = loaded.config
        if config.registry is None:
            raise ConfigError(
                "the pipeline has no registry",
                code=ErrorCode.NOT_FOUND,
                where="registry",
                next_step="name one with --registry",
            )
        settings = config.registry
    where = settings.path or ", ".join(map(hide_credentials, settings.places))
    call.out.step(f"registry {where} ({found_by})")
    if settings.path is not None and not Path(settings.path).is_dir():
        raise ConfigError(
            "there is no registry in this folder",
            code=ErrorCode.NOT_FOUND,
            where=f"{settings.path} ({found_by})",
            next_step="go to the folder that the pipeline runs in, or name it with --registry",
        )
    return FoundRegistry(open_registry(settings), where, config)


def open_registry(
    settings: Settings, *, attempts: int | None = None
) -> FileRegistry | HttpRegistry:
    """The folder or the server that is meant."""
    # each of them takes a while to import
    if settings.path is not None:
        from distributary.registry.folder import FileRegistry

        return FileRegistry(settings.path)
    from distributary.registry.http.registry import HttpRegistry

    return HttpRegistry(settings) if attempts is None else HttpRegistry(settings, attempts=attempts)


def _named_registry(given: str) -> Settings:
    from pydantic import ValidationError

    from distributary.config.base import hide_credentials
    from distributary.config.registry import RegistryConfig as Settings

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
