"""Which columns an event says nothing about: `_unchanged` of model/change.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from distributary.decode.datastream_values import Mask
from distributary.decode.debezium_keys import Keys

_NAMES = pa.list_(pa.string())


def left_out(
    names: Sequence[str],
    masks: Sequence[Mask | None],
    *,
    deletes: Mask,
    keys: Keys,
    key_columns: Sequence[Sequence[str]],
) -> pa.Array:
    """Names of columns by row; null for most.

    Args:
        names: Of all columns.
        masks: For each column the rows in which its value was not sent.
        deletes: Rows of which nothing but the key is known for sure.
        keys: The key of each row.
        key_columns: The columns of each different key.
    """
    count = len(deletes)
    some = [(name, mask) for name, mask in zip(names, masks, strict=True) if mask is not None]
    if not some and not deletes.any():
        return pa.nulls(count, _NAMES)
    lists: list[list[str] | None] = [None]
    codes = np.zeros(count, np.int64)
    if some:
        matrix = np.stack([mask for _, mask in some], axis=1)
        kinds, inverse = np.unique(matrix, axis=0, return_inverse=True)
        lists = [[some[i][0] for i in np.flatnonzero(each)] or None for each in kinds]
        codes = inverse.reshape(-1).astype(np.int64)
    for code, columns in enumerate(key_columns):
        rows = deletes & (keys.codes == code)
        if columns and rows.any():
            codes[rows] = len(lists)
            lists.append([name for name in names if name not in columns] or None)
    return pa.array(lists, _NAMES).take(pa.array(codes))
