"""`cuts pin` and `cuts unpin`: cuts that stay readable for longer than files are kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from distributary.delta.removal.holds import remove_pin, write_pin
from distributary.errors import ConfigError, ErrorCode
from distributary.model.cut import CutPin, CutPoint
from distributary.observe.cuts import Cuts

_THREADS = 8


def pin_cut(cuts: Cuts, point: CutPoint, until: datetime) -> CutPin:
    """Keep a cut until a moment, or longer than before.

    Raises DistributaryError if a table has lost its version already: nothing is pinned then.
    """
    pin = CutPin(cuts.name(point), until, cuts.cut(point))
    there = pin.name in cuts.pins
    # written first, so that later deletions respect the pin
    write_pin(cuts.lake, pin)
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda table: cuts.refuse_lost(point, table), pin.cut.tables))
    except BaseException:
        if not there:
            remove_pin(cuts.lake, pin.name)
        raise
    return pin


def unpin_cut(cuts: Cuts, point: CutPoint) -> str:
    """Unpin a cut and return its name. Raises ConfigError for one that is not pinned."""
    name = cuts.name(point)
    if not remove_pin(cuts.lake, name):
        raise ConfigError(
            f"{name} is not pinned",
            code=ErrorCode.NOT_FOUND,
            where=cuts.lake,
            evidence=f"pinned: {', '.join(cuts.pins) or 'none'}",
            next_step="`distributary cuts` shows which cuts are",
        )
    return name
