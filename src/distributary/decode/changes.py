"""What every decoder of change events has in common, whichever system wrote them.

A change event says which table of the source it belongs to, what happened, where in the source's
order it happened, and how the row looks. A change decoder turns each into one row of a log table:
the columns of model/change.py, then the columns of the source's table under their own names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Protocol

import numpy as np
import pyarrow as pa

from distributary.decode.expansion import Expansion
from distributary.decode.json_names import lake_names
from distributary.model.change import CHANGE_NAMES
from distributary.model.decoded import Decoded
from distributary.model.table import Column

ROW_ID = "_row_id"
"""The column that stands in for a key where the source has none but numbers its rows."""
METADATA_NAMES = (
    "_headers",
    "_topic",
    "_partition",
    "_offset",
    "_timestamp",
    "_schema_id",
    "_batch",
    "_raw",
    "_date",
)
"""Columns that the stage may put behind those of the decoder."""
_RESERVED = frozenset((*CHANGE_NAMES, *METADATA_NAMES, ROW_ID, "_old_key"))
"""The last one is a column of histories, and of a merge's own."""
_SUFFIX = "__source"


class ChangeDecoder(Protocol):
    """Decodes change events of one writer schema. Built once per schema and process."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of model/change.py, then those of the source's table."""
        ...

    @property
    def expansion(self) -> Expansion:
        """How large events become; what is decoded at once should be one of its slices."""
        ...

    def decode(self, payloads: pa.BinaryArray, raw: pa.Table) -> Decoded:
        """Decode events without nulls and framing. Never raises for what an event contains.

        Args:
            payloads: The events.
            raw: The source's records that they came in, one each and in the same order.
        """
        ...


def claim(source_metadata: Mapping[str, object]) -> str | None:
    """The source table's names as compact JSON, `["shop","","orders"]`; None if it has no name.

    The three are database, schema and table; empty is what the source does not have.
    """
    table = _name(source_metadata, "table") or _name(source_metadata, "collection")
    if not table:
        return None
    names = [_name(source_metadata, "database"), _name(source_metadata, "schema"), table]
    text = json.dumps(names, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        # half of a surrogate pair is legal in JSON and in no UTF-8: such a name stays escaped
        return json.dumps(names, separators=(",", ":"))
    return text


def _name(source_metadata: Mapping[str, object], part: str) -> str:
    name = source_metadata.get(part)
    return name if isinstance(name, str) else ""


def column_names(names: Iterable[str]) -> dict[str, str]:
    """What the columns of a source's table are called in its log.

    They keep their names, but for characters that lakes refuse and for names that differ by case
    only; one that is called like a column of the log itself ends in `__source`.
    """
    given = lake_names(names, top=False)
    taken = {name.casefold() for name in given.values()} | _RESERVED
    for name, column in given.items():
        if column.casefold() in _RESERVED:
            column += _SUFFIX
            while column.casefold() in taken:
                column += "_"
            taken.add(column.casefold())
            given[name] = column
    return given


def content_hashes(payloads: pa.BinaryArray) -> pa.Int64Array:
    """64 bits of each event's bytes, the same in every process and release."""
    # one digest of 8 bytes after the other, read as numbers at once
    digests = b"".join([blake2b(data, digest_size=8).digest() for data in payloads.to_pylist()])
    return pa.array(np.frombuffer(digests, "<i8"))
