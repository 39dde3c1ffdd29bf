"""Whether dead letters would decode now; `status` asks, and never fails because of the answer."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distributary.cli.lakes import Lake, loaded_of
from distributary.cli.verb import Invocation
from distributary.config.load import Loaded
from distributary.config.registry import Registry as Settings
from distributary.errors import ErrorCode
from distributary.model.deadletter import MAY_HEAL
from distributary.observe.letter_tables import letter_tables
from distributary.observe.status import PipelineStatus
from distributary.observe.trust import DECODING

if TYPE_CHECKING:
    from distributary.registry.base import SchemaRegistry

_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Healable:
    """Open dead letters that a replay would bring into their tables."""

    count: int
    by_reason: Mapping[str, int] = field(default_factory=dict)
    command: str = ""


def find_healable(call: Invocation, lake: Lake, status: PipelineStatus) -> Healable | None:
    """How many would decode; None where that cannot be found out now."""
    waiting = {reason.code for reason in status.dead_letters.reasons}
    if not waiting & MAY_HEAL:
        return Healable(0)
    answers: list[Healable] = []

    def ask() -> None:
        try:
            answers.append(_ask(call, lake, status))
        except Exception as error:
            text = f"healing of {status.name} unknown: {error}"
            refused = getattr(error, "code", None) is ErrorCode.FILE_NOT_TRUSTED
            (call.out.warn if refused else call.out.step)(text)

    # a registry that does not answer must not hold up everything else that is known
    thread = threading.Thread(target=ask, name="healing", daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    return answers[0] if answers else None


def _ask(call: Invocation, lake: Lake, status: PipelineStatus) -> Healable:
    loaded = loaded_of(call, lake, name=status.name, needs=DECODING)
    if not _may_decode(lake, status, loaded):
        return Healable(0)
    from distributary.run.healing import healable
    from distributary.run.pipeline import Pipeline

    found = healable(Pipeline(loaded))
    reasons = list(found.by_reason)
    one = f" --reason {reasons[0]}" if len(reasons) == 1 else ""
    command = f"distributary dlq replay{one} --lake {shlex.quote(lake.path)}"
    return Healable(found.count, dict(found.by_reason), command)


def _may_decode(lake: Lake, status: PipelineStatus, loaded: Loaded) -> bool:
    """Whether a schema that letters wait for is there; else all that decodes need not be loaded."""
    settings = loaded.config.registry
    tables = letter_tables(lake.path, pipeline=status.name, storage_options=lake.options)
    letters = tables.get(status.name)
    if settings is None or letters is None:
        return True
    from distributary.registry.base import has_schema

    registry = _registry(settings)
    columns = [
        letters.select(reason=reason, pipeline=status.name, columns=("schema_id",))["schema_id"]
        for reason in sorted(MAY_HEAL)
    ]
    wanted = {id for column in columns for id in column.to_pylist() if id is not None}
    return any(has_schema(registry, id) for id in sorted(wanted))


def _registry(settings: Settings) -> SchemaRegistry:
    # each of them takes a while to import
    if settings.path is None:
        from distributary.registry.http import HttpRegistry

        # one that is away is away: `status` is not to wait for a second answer
        return HttpRegistry(settings, attempts=1)
    from distributary.registry.files import FileRegistry

    return FileRegistry(settings.path)
