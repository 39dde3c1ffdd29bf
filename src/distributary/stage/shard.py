"""Rows of several databases in one table: a column tells them apart, as part of the key."""

from __future__ import annotations

import pyarrow as pa

from distributary.decode.base import HasColumns
from distributary.model.table import Column

SHARD = Column("_shard", pa.string(), "database that the row comes from")
_KEY = "_key"


def sharded_columns(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """A change decoder's columns, with the database in the end."""
    return (*columns, SHARD)


class _Sharded:
    def __init__(self, inner: HasColumns) -> None:
        self.inner = inner
        self.columns = sharded_columns(inner.columns)


_known: dict[int, _Sharded] = {}


def sharded(decoder: HasColumns) -> HasColumns:
    """What `with_shard` makes of a decoder's columns; the same object for the same decoder."""
    found = _known.get(id(decoder))
    if found is None or found.inner is not decoder:
        found = _known[id(decoder)] = _Sharded(decoder)
    return found


def with_shard(batch: pa.RecordBatch, shard: str) -> pa.RecordBatch:
    """Changes of one database; a row without a key stays without one."""
    keys = batch.column(_KEY)
    lists = [[SHARD.name, *key] if key else key for key in keys.to_pylist()]
    names = list(batch.schema.names)
    arrays = list(batch.columns)
    arrays[names.index(_KEY)] = pa.array(lists, keys.type)
    shards = pa.repeat(pa.scalar(shard, pa.string()), batch.num_rows)
    return pa.RecordBatch.from_arrays([*arrays, shards], names=[*names, SHARD.name])
