"""Conditions on ledger rows as expressions: values from outside are never part of a text."""

from __future__ import annotations

from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.file_ranges import FINGERPRINT_BITS
from distributary.observe.rows import BatchKey


def text(column: str) -> pc.Expression:
    """A column of texts, to compare with.

    Merges and updates by deltalake write a newer kind of text into their files, which pyarrow
    compares with nothing: without the cast a filter fails on the first such file.
    """
    return pc.field(column).cast(pa.string())


def same(**values: str | int | None) -> pc.Expression | None:
    """Every named column holds its value; a column whose value is None does not matter."""
    tests = [
        (text(name) if isinstance(value, str) else pc.field(name)) == value
        for name, value in values.items()
        if value is not None
    ]
    return reduce(and_, tests) if tests else None


def same_batch(key: BatchKey) -> pc.Expression:
    """Rows of one batch."""
    pipeline, life, lane, batch = key
    return same(pipeline=pipeline, life=life, lane=lane, batch=batch)


def both(*tests: pc.Expression | None) -> pc.Expression | None:
    """All of the tests that there are."""
    present = [test for test in tests if test is not None]
    return reduce(and_, present) if present else None


def may_hold(offset: int) -> pc.Expression:
    """Rows of `tables` whose offsets include this one, or are not known."""
    first, last = pc.field("first_offset"), pc.field("last_offset")
    return first.is_null() | ((first <= offset) & (last >= offset))


def covering(batches: pa.Table, *, topic: str, partition: int, offset: int) -> pa.Table:
    """Rows of `batches` that read this record."""
    ranges = batches["ranges"].combine_chunks()
    flat = pa.Table.from_struct_array(pc.list_flatten(ranges))
    flat = flat.append_column("row", pc.list_parent_indices(ranges))
    hits = flat.filter(
        (pc.field("topic") == topic)
        & (pc.field("partition") == partition)
        & (pc.field("start") <= offset)
        & (pc.field("end") > offset)
    )
    if not len(hits):
        hits = flat.filter(_has_file(partition))
    return batches.take(pc.unique(hits["row"]))


def _has_file(number: int) -> pc.Expression:
    """Ranges of a files source: their topic is a folder, and a record's partition its file."""
    first = pc.shift_right(pc.field("start"), pc.scalar(FINGERPRINT_BITS))
    end = pc.shift_right(pc.field("end"), pc.scalar(FINGERPRINT_BITS))
    folder = pc.match_substring(pc.field("topic"), "/")
    return folder & (first <= number) & (end > number)
