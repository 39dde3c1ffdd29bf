"""What a worker keeps between tasks is put out of the garbage collector's sight.

PySpark collects all garbage after each task. With a thousand compiled decoders in the process, that
is a walk over a hundred thousand objects that will live as long as the worker.
"""

from __future__ import annotations

import gc

from distributary.model.plan import Catalog

_frozen: Catalog | None = None


def settle(catalog: Catalog) -> None:
    """Freeze what a new catalog has brought, once the decoders for it are built."""
    global _frozen
    if catalog is not _frozen:
        _frozen = catalog
        gc.collect()
        gc.freeze()
