"""A run that tells its lineage, where the pipeline file asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pyspark

from distributary.config.alerts import Lineage
from distributary.config.base import hide_credentials
from distributary.config.engine import Trigger, TriggerKind
from distributary.config.pipeline import PipelineConfig
from distributary.engine.parts import RunContext
from distributary.errors import DistributaryError, ErrorCode, SetupError
from distributary.observe.events import BatchSettled, Event

if TYPE_CHECKING:
    from distributary.observe.lineage import Dataset, LineageRun

Mask = Callable[[str], str]


@contextmanager
def told(context: RunContext, trigger: Trigger, *, mask: Mask) -> Iterator[None]:
    """Tell the beginning, the batches and the end of a run."""
    settings = context.config.lineage
    if settings is None:
        yield
        return

    def clean(text: str) -> str:
        return mask(hide_credentials(text))

    runs = _runs(context.config, settings, trigger, clean)
    known = _inputs(context.config, (), clean)
    for run in runs:
        run.start(known)

    def listen(event: Event) -> None:
        if isinstance(event, BatchSettled):
            _settled(context, event, runs, clean)

    detach = context.bus.subscribe(listen)
    # long enough for a server that answers, and no longer for one that does not
    patience = 2 * settings.timeout.total_seconds()
    state, error = "COMPLETE", ""
    try:
        yield
    except DistributaryError as failure:
        state, error = "FAIL", f"{failure.code}: {failure.what}"
        raise
    except BaseException as failure:
        state, error = "ABORT", type(failure).__name__
        raise
    finally:
        detach()
        for run in runs:
            run.end(state, error, patience=patience)


def _settled(context: RunContext, event: BatchSettled, runs: list[LineageRun], clean: Mask) -> None:
    book = context.planner.book
    if book.origins is None:
        return
    written = [w for w in event.written if w.outcome != "parked" and w.table in book.tables]
    tables = [
        (each, (table, book.origins.of(table.name, table.role)))
        for each in written
        for table in (book.tables[each.table],)
    ]
    known = _inputs(context.config, event.topics, clean)
    for run in runs:
        run.settled(event, known, tables)


def _inputs(config: PipelineConfig, topics: tuple[str, ...], clean: Mask) -> dict[str, Dataset]:
    # only here: its package is an extra, and a run without lineage does without it
    from distributary.observe.lineage import inputs

    found = inputs(config, topics)
    return {topic: replace(each, name=clean(each.name)) for topic, each in found.items()}


def _runs(
    config: PipelineConfig, settings: Lineage, trigger: Trigger, clean: Mask
) -> list[LineageRun]:
    try:
        from openlineage.client.uuid import generate_new_uuid

        from distributary.observe.lineage import LineageRun, RunFacts, sinks
    except ImportError as error:
        raise SetupError(
            "lineage needs a package that is not installed",
            code=ErrorCode.EXTRA_MISSING,
            where="lineage",
            evidence=str(error),
            next_step="pip install 'distributary[lineage]'",
        ) from error
    facts = RunFacts(
        run_id=str(generate_new_uuid()),
        namespace=settings.namespace,
        pipeline=config.name,
        streaming=trigger.kind is not TriggerKind.AVAILABLE_NOW,
        engine=pyspark.__version__,
        every_seconds=settings.every.total_seconds(),
        clean=clean,
    )
    every = settings.every.total_seconds()
    return [LineageRun(facts, sink, every=every) for sink in sinks(settings)]
