"""Rows of a database as events of a log: reads that stand at the place of their snapshot.

A row that was read at a place wins over every change before it, right or wrong, and loses to every
change from there on. So it has the phase of changes, not that of the rows of an initial snapshot,
which lose to any change. A key that only the lake has becomes a delete at the same place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from distributary.changes.source.base import Moment
from distributary.changes.source.compare import Wrong
from distributary.decode.change.base import content_hashes
from distributary.delta.parquet import conform
from distributary.evolve.unified import rest_as_json
from distributary.model.change import CHANGE_COLUMNS, READ_TIE, SEQ
from distributary.model.incarnation import Incarnations


def events_of(
    wrong: Wrong,
    moment: Moment,
    *,
    key: Sequence[str],
    left_out: Sequence[str],
    incarnations: Incarnations,
    address: str,
) -> pa.Table:
    """Build the events of rows that differ; `left_out` are columns whose values stay as they are.

    The result has the columns of a change, then those of the rows.
    """
    reads, gone = wrong.rows, wrong.gone
    rows = pa.concat_tables([reads, conform(gone, reads.schema, rows=gone.num_rows, lenient=True)])
    size, removed = rows.num_rows, np.arange(rows.num_rows) >= reads.num_rows
    bodies = [
        rest_as_json(batch, rows.column_names) for batch in rows.combine_chunks().to_batches()
    ]
    texts = pa.concat_arrays([*bodies, pa.array([], pa.string())]).fill_null("")
    place = f"{moment.low}"
    payloads = pa.array([f"{place}{text}".encode() for text in texts.to_pylist()], pa.binary())
    envelope = {"read_from": address, "at": moment.text}
    values = {
        "_op": pa.array(np.where(removed, "delete", "read"), pa.string()),
        "_deleted": pa.array(removed),
        "_key": pa.array([[*key]] * size, pa.list_(pa.string())),
        "_seq": _places(moment, incarnations, size),
        "_source_ts": pa.array([moment.at_us] * size, pa.timestamp("us", "UTC")),
        "_backfill": pa.array([True] * size, pa.bool_()),
        "_uuid": pa.array([""] * size, pa.string()),
        "_hash": content_hashes(payloads),
        "_unchanged": pa.array([[*left_out]] * size, pa.list_(pa.string())),
        "_envelope": pa.array([json.dumps(envelope)] * size, pa.string()),
    }
    table = pa.table({column.name: values[column.name] for column in CHANGE_COLUMNS})
    for name in rows.column_names:
        table = table.append_column(rows.schema.field(name), rows.column(name))
    return table


def _places(moment: Moment, incarnations: Incarnations, size: int) -> pa.StructArray:
    """Return the place just before a snapshot's lower one, where no change can be."""
    a, b, c = moment.low
    a, b = (a, b - 1) if b else (a - 1, b)
    # if times distinguish the servers, the merge numbers these rows as well
    positional = any(start.topic is None for start in incarnations.starts)
    server = 0 if positional else max((start.number for start in incarnations.starts), default=0)
    place = {"phase": 2 * server + 1, "ts": 0, "a": a, "b": b, "c": c, "half": 1, "tie": READ_TIE}
    return pa.array([place] * size, SEQ)
