"""The lake, the pipeline and the registry of a command, found by options or in usual places."""

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
    from distributary.config.pipeline_config import PipelineConfig
    from distributary.config.registry import RegistryConfig as Settings
    from distributary.engine.pipeline import Pipeline
    from distributary.observe.cards import Registration
    from distributary.observe.ledger.ledger import Ledger
    from distributary.observe.ledger.ledger_rows import TableSummary
    from distributary.registry.folder import FileRegistry
    from distributary.registry.http.http_registry import HttpRegistry


@dataclass(frozen=True, slots=True)
class FoundLake:
    """An existing lake, and how it was found."""

    path: str
    found_by: str
    file: Path | None = None
    """The pipeline file that was given."""
    pipeline: str | None = None
    """The pipeline of that file, to which the command is limited."""
    checkpoint: str = ""
    """The checkpoint of that pipeline."""

    @property
    def keeps_elsewhere(self) -> bool:
        """Return whether the checkpoint is known to be outside of the lake."""
        inside = self.checkpoint.startswith(f"{self.path.rstrip('/')}/")
        return bool(self.checkpoint) and not inside

    @property
    def flag(self) -> str:
        """Return the option by which a later command finds this lake; empty if not needed."""
        by_itself = {f"variable {LAKE_VARIABLE}", *PLACES}
        return "" if self.found_by in by_itself else f" --lake {shlex.quote(self.path)}"

    def ledger(self) -> Ledger:
        """Return the ledger of this lake."""
        from distributary.observe.ledger.ledger import Ledger

        return Ledger(self.path)


def find_lake(
    call: Invocation, lake: str | None = None, file: Path | None = None, *, empty: bool = False
) -> FoundLake:
    """Find the lake by `--lake`, the pipeline file, the environment, or in the usual places.

    With `empty`, a lake in which no pipeline has run is accepted.
    """
    from distributary.store.base import absolute

    try:
        found = _named_lake(call, lake, file) or _usual_lake()
    except ConfigError as error:
        if not empty or error.code is not ErrorCode.NOT_FOUND:
            raise
        found = FoundLake(absolute(PLACES[0]), "nothing else was found")
    call.out.step(f"lake {found.path} ({found.found_by})")
    if not empty:
        require_lake(found)
    return found


def require_lake(found: FoundLake) -> None:
    """Raise ConfigError for a folder without pipelines, or from which a lake was removed."""
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
            next_step="restore the folder, or mount its disk",
        )
    raise ConfigError(
        "no pipeline has ever run in this lake",
        code=ErrorCode.NOT_FOUND,
        where=where,
        next_step="run a pipeline first, or create a demo lake: distributary demo games",
    )


def load_file(call: Invocation, file: Path, *, needs: Collection[str] | None = None) -> Loaded:
    """Load a pipeline file; print its warnings, and mask its secrets from now on."""
    from distributary.config.load import load

    return _with_warnings(call, load(file, needs=needs))


def _with_warnings(call: Invocation, loaded: Loaded) -> Loaded:
    before = call.out.mask
    # a file may be loaded twice, for different secrets
    call.out.mask = lambda text: loaded.mask(before(text))
    call.out.dashboard = loaded.config.alerts.dashboard_url or ""
    for warning in loaded.warnings:
        call.out.warn(str(warning))
    return loaded


def read_text(file: Path, what: str, *, code: ErrorCode = ErrorCode.CONFIG_UNREADABLE) -> str:
    """Read a small file named on the command line; `what` describes it in errors."""
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
    """Open a pipeline for a run."""
    # mistakes in the file are reported before Spark is imported
    loaded = load_file(call, file)
    from distributary.engine.pipeline import Pipeline

    return Pipeline(loaded, log_file=call.log.path)


def pipeline_of(
    call: Invocation,
    lake: FoundLake,
    *,
    name: str | None = None,
    needs: Collection[str] | None = None,
) -> Pipeline:
    """Return the pipeline of a lake, from the given file or from its card in the lake."""
    from distributary.engine.pipeline import Pipeline

    return Pipeline(loaded_of(call, lake, name=name, needs=needs), log_file=call.log.path)


def find_table(tables: Sequence[TableSummary], name: str) -> TableSummary:
    """Return the table with a name, or of a type."""
    for table in tables:
        if name in (table.table, table.type, spelled(table.type)) and name:
            return table
    known = {t.table for t in tables} | {spelled(t.type) for t in tables if t.type}
    what = "there is no such table or type"
    raise missing(what, name, known)


def loaded_of(
    call: Invocation,
    lake: FoundLake,
    *,
    name: str | None = None,
    needs: Collection[str] | None = None,
    option: str = "--file",
) -> Loaded:
    """Return the settings of a lake's pipeline; `option` is the command's option for its file."""
    from distributary.observe.cards import load_trusted, registrations

    if lake.file is not None:
        return load_file(call, lake.file, needs=needs)
    card = choose(registrations(lake.path), lake, name)
    return _with_warnings(call, load_trusted(card, lake.path, needs=needs, option=option))


def choose(cards: tuple[Registration, ...], lake: FoundLake, name: str | None) -> Registration:
    """Return the only pipeline of a lake, or the named one."""
    fitting = [card for card in cards if name in (None, card.name)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(card.name for card in cards)
    raise ConfigError(
        "this lake has several pipelines" if fitting else "there is no such pipeline in this lake",
        code=ErrorCode.NOT_FOUND,
        where=lake.path,
        evidence=names,
        next_step="name the pipeline with --pipeline, or its file with --file",
    )


def _named_lake(call: Invocation, lake: str | None, file: Path | None) -> FoundLake | None:
    from distributary.store.base import absolute, introduce

    if file is not None:
        config = load_file(call, file, needs=("lake",)).config
        path, found_by = (lake, "--lake") if lake else (config.lake.path, str(file))
        introduce(absolute(path), config.lake.options)
        checkpoint = absolute(config.lake.checkpoint_of(config.name))
        return FoundLake(absolute(path), found_by, file, config.name, checkpoint)
    if lake is not None:
        return FoundLake(absolute(lake), "--lake")
    variable = os.environ.get(LAKE_VARIABLE)
    return FoundLake(absolute(variable), f"variable {LAKE_VARIABLE}") if variable else None


def _usual_lake() -> FoundLake:
    from distributary.store.base import absolute

    for place in PLACES:
        if Path(place, layout.HOME).is_dir():
            return FoundLake(absolute(place), place)
    raise ConfigError(
        "no lake was given, and none was found",
        code=ErrorCode.NOT_FOUND,
        where=str(Path.cwd()),
        evidence=f"none of {', '.join(PLACES)} is a lake",
        next_step=f"name the lake with --lake or {LAKE_VARIABLE}, or create a demo lake: "
        "distributary demo games",
    )


# The schema registry of a command.


@dataclass(frozen=True, slots=True)
class FoundRegistry:
    """A registry that was found, and not contacted yet."""

    registry: FileRegistry | HttpRegistry
    where: str
    """The folder or address of the registry, without secrets."""
    config: PipelineConfig | None = None
    """The pipeline that it was found by, if it was."""

    def of(self, subject: str) -> FoundRegistry:
        """Return the registry for the context in a subject's name; each context has its own ids."""
        from distributary.registry.base import context_of
        from distributary.registry.http.http_registry import HttpRegistry

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
    """Find the registry by `--registry`, a pipeline file, or a pipeline's card in a lake."""
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
                next_step="name a registry with --registry",
            )
        settings = config.registry
    where = settings.path or ", ".join(map(hide_credentials, settings.places))
    call.out.step(f"registry {where} ({found_by})")
    if settings.path is not None and not Path(settings.path).is_dir():
        raise ConfigError(
            "there is no registry in this folder",
            code=ErrorCode.NOT_FOUND,
            where=f"{settings.path} ({found_by})",
            next_step="change to the folder that the pipeline runs in, or name the registry with "
            "--registry",
        )
    return FoundRegistry(open_registry(settings), where, config)


def open_registry(
    settings: Settings, *, attempts: int | None = None
) -> FileRegistry | HttpRegistry:
    """Open the folder or connect to the server."""
    # imported here, because each takes a while to import
    if settings.path is not None:
        from distributary.registry.folder import FileRegistry

        return FileRegistry(settings.path)
    from distributary.registry.http.http_registry import HttpRegistry

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
