"""The metrics of all pipelines under one supervisor."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from distributary.config.pipeline import PipelineConfig
from distributary.errors import DistributaryError
from distributary.observe.ledger import Ledger
from distributary.observe.metrics import Metrics
from distributary.supervise.listening import Listening

_log = logging.getLogger(__name__)


@contextmanager
def counted(configs: Sequence[PipelineConfig]) -> Iterator[Listening]:
    """Counts for as long as the supervisor lives, however often pipelines are started anew."""
    metrics = Metrics()
    for config in configs:
        metrics.limit(config.name, max_tables=config.metrics.max_tables)
        _remember(metrics, config)
    yield Listening(metrics.listen, metrics.render)


def _remember(metrics: Metrics, config: PipelineConfig) -> None:
    try:
        ledger = Ledger(config.lake.address, storage_options=config.lake.options or None)
        metrics.remember(config.name, ledger.tables(config.name, schema_ids=False))
    except DistributaryError as error:
        # a lake that is away is the pipeline's matter, which will say so
        _log.warning("metrics of %s begin without its ledger: %s", config.name, error.code)
