"""Records with the same key, found for a whole batch at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from distributary.model.plan import RouteKey
from distributary.stage.branches import branches
from distributary.stage.unwrapped import Rows, Unwrapped


@dataclass(frozen=True, slots=True)
class Groups:
    """The distinct keys of a batch, and for each record the number of its key."""

    keys: list[RouteKey]
    codes: Rows

    def counts(self) -> list[int]:
        """Records per key."""
        return [int(n) for n in np.bincount(self.codes, minlength=len(self.keys))]

    def first_rows(self) -> list[int]:
        """The first record of each key."""
        _, first = np.unique(self.codes, return_index=True)
        return [int(row) for row in first]


def group(unwrapped: Unwrapped, unions: Collection[RouteKey] = ()) -> Groups:
    """Keys by dictionary codes, so that no Python object is made per record.

    Records of a key in `unions` are told apart once more, by their branch of the union.
    """
    columns = [unwrapped.claims, unwrapped.schema_ids]
    if unwrapped.marks is not None:
        columns.append(unwrapped.marks)
    combined = np.zeros(len(unwrapped.rows), dtype=np.int64)
    dictionaries: list[list[object]] = []
    for column in columns:
        encoded = column.dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        dictionaries.append(encoded.dictionary.to_pylist())
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        combined = combined * max(1, len(dictionaries[-1])) + codes
    distinct, codes = np.unique(combined, return_inverse=True)
    groups = Groups([_key(int(value), dictionaries) for value in distinct], codes)
    return _by_branch(groups, unwrapped.payloads, unions) if unions else groups


def _by_branch(groups: Groups, payloads: pa.BinaryArray, unions: Collection[RouteKey]) -> Groups:
    keys: dict[RouteKey, int] = {}
    codes = np.empty_like(groups.codes)
    for key, rows in zip(groups.keys, positions(groups.codes, len(groups.keys)), strict=True):
        if key not in unions:
            codes[rows] = keys.setdefault(key, len(keys))
            continue
        found = branches(payloads.take(pa.array(rows)))
        of_branch = [key._replace(message_index=branch) for branch in found]
        codes[rows] = [keys.setdefault(one, len(keys)) for one in of_branch]
    return Groups(list(keys), codes)


def _key(value: int, dictionaries: list[list[object]]) -> RouteKey:
    parts: list[object] = []
    for dictionary in reversed(dictionaries):
        value, code = divmod(value, len(dictionary))
        parts.append(dictionary[code])
    claim, schema_id, *mark = reversed(parts)
    index, guid, key_schema = [*(str(mark[0]).split("@") if mark else ()), "", "", ""][:3]
    return RouteKey(str(claim), int(str(schema_id)), index, guid, key_schema)


def positions(codes: Rows, number: int) -> list[Rows]:
    """For each code 0..number-1 the records that have it, in their order."""
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=number))
    return np.split(order, ends[:-1]) if number else []
