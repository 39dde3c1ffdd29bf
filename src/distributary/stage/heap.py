"""What a worker keeps between tasks is put out of the garbage collector's sight.

PySpark collects all garbage after each task. With a thousand compiled decoders in the process, that
is a walk over a hundred thousand objects that will live as long as the worker.
"""

from __future__ import annotations

import gc

from distributary.decode.cache import built
from distributary.model.plan import Catalog

_frozen: tuple[Catalog | None, int] = (None, 0)


def settle(catalog: Catalog) -> None:
    """Freeze what a new catalog, or a table that was another worker's before, has brought."""
    global _frozen
    known, decoders = _frozen
    if catalog is not known or built() != decoders:
        _frozen = (catalog, built())
        gc.collect()
        gc.freeze()
