"""What records that come without any schema look like."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa

from distributary.decode.json_infer import infer
from distributary.decode.json_join import widened
from distributary.model.plan import UNFRAMED
from distributary.stage.group import Groups, positions
from distributary.stage.unwrapped import Unwrapped


def joined(found: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """One shape for each claim."""
    result: dict[str, dict[str, Any]] = {}
    for claim, shape in found:
        known = result.get(claim)
        result[claim] = shape if known is None else widened(known, shape)
    return result


def shapes(
    unwrapped: Unwrapped,
    groups: Groups,
    refused: Collection[int] = (),
    *,
    changes: bool,
    careful: bool = False,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A JSON Schema for each claim whose records name none, made of these records alone.

    With `careful` one record is looked at after the other, in memory that does not depend on what
    is in them.
    """
    for number, rows in enumerate(positions(groups.codes, len(groups.keys))):
        key = groups.keys[number]
        if key.schema_id != UNFRAMED or key.guid or number in refused:
            continue
        values = unwrapped.payloads.take(pa.array(rows))
        shape = infer(values, parts=changes, careful=careful)
        if shape is not None:
            yield key.claim, shape
