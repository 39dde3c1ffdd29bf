"""How long records took from their producer to a reader, record by record, after the run.

A record can be read from the moment at which the commit that holds its file is in its table's log.
On a file system that is the modification time of the commit's file: it is written in one go and
never touched again. Each commit carries the number of its batch as the version of its transaction
mark, and each row carries it in `_batch`; so every row finds its commit. The row's `_timestamp` is
the record's time in Kafka, which the producer has set when it sent it. One machine, one clock: the
difference is the delay. Kafka's times are whole milliseconds, which is the error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from numpy.typing import NDArray

_MICROS = 1e6


class Delays(NamedTuple):
    """One place per row of the lake, in no order; seconds since 1970."""

    produced: NDArray[np.float64]
    readable: NDArray[np.float64]


def delays_in(lake: Path) -> Delays:
    """Of all tables per type."""
    produced, readable = [], []
    for log in sorted(lake.glob("silver_*/_delta_log")):
        rows = DeltaTable(str(log.parent)).to_pyarrow_table(columns=["_batch", "_timestamp"])
        micros = rows["_timestamp"].cast(pa.int64()).to_numpy()
        commits = _commits(log)
        batches, places = np.unique(rows["_batch"].to_numpy(), return_inverse=True)
        produced.append(micros / _MICROS)
        readable.append(np.array([commits[int(batch)] for batch in batches])[places])
    return Delays(np.concatenate(produced), np.concatenate(readable))


def _commits(log: Path) -> dict[int, float]:
    """When a table got each batch."""
    found = {}
    for file in log.glob("[0-9]*.json"):
        for line in file.read_text().splitlines():
            mark = json.loads(line).get("txn")
            if mark is not None:
                found[mark["version"]] = file.stat().st_mtime
    return found
