"""Rows of the first and the last file of a Delta table, for `init`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import pyarrow as pa
from pyarrow import types as kinds

from distributary.delta.tables import reaching_table
from distributary.errors import SourceUnavailableError
from distributary.observe.status.health import head
from distributary.publish.formats.table_format_entry import open_readable
from distributary.source.source_sample import (
    MOST_BYTES,
    MOST_RECORDS,
    Sample,
    SampledRecord,
    unclear,
)

_VALUE_NAMES = ("value", "wrapper", "payload", "message", "data", "body")


def sample_table(path: str) -> Sample:
    """Sample the first and the last file, and find the columns of value, key, headers and time."""
    found = open_readable(path)
    if found is None:
        raise SourceUnavailableError(
            "there is no Delta table here",
            where=path,
            next_step="name the folder that has _delta_log in it",
        )
    columns = _columns(found.schema)
    names = [column for name, column in columns.items() if name != "timestamp"]
    count = MOST_RECORDS // 2
    with reaching_table(path):
        files = found.files
        if files is None:
            rows = pa.Table.from_batches(islice(found.batches(names), 1)).slice(0, MOST_RECORDS)
        else:
            fragments = list(files.get_fragments())
            ends = [fragments[0], fragments[-1]] if len(fragments) > 1 else fragments
            heads = [head(each, files.schema, names, count) for each in ends]
            rows = pa.concat_tables(heads) if heads else files.schema.empty_table().select(names)
    topic = path.rstrip("/").rpartition("/")[2] or path
    what = f"{len(rows):,} rows of the Delta table {path}, its column {columns['value']}"
    return Sample(topic, tuple(_rows(rows, columns)), what, columns)


def _columns(schema: pa.Schema) -> dict[str, str]:
    """Return the source's settings for the columns. Raises an error if none holds bytes or text."""
    texts = [f.name for f in schema if kinds.is_string(f.type) or kinds.is_large_string(f.type)]
    binary = [f.name for f in schema if kinds.is_binary(f.type) or kinds.is_large_binary(f.type)]
    known = [name for name in _VALUE_NAMES if name in (*binary, *texts)]
    others = [name for name in binary if name != "key"]
    if not known and not others:
        raise unclear(
            "no column of this table holds records",
            looked_at="the columns of the Delta table",
            evidence=", ".join(f"{f.name} {f.type}" for f in schema)[:300],
            next_step="a source needs a column of bytes or text: name it with source.value",
        )
    found = {"value": (known or others)[0]}
    if "key" in (*binary, *texts) and found["value"] != "key":
        found["key"] = "key"
    moments = [f.name for f in schema if kinds.is_timestamp(f.type)]
    if time := next((n for n in ("timestamp", "_timestamp") if n in moments), None):
        found["timestamp"] = time
    return found


def _rows(rows: pa.Table, columns: Mapping[str, str]) -> Iterator[SampledRecord]:
    values = rows.column(columns["value"]).cast(pa.binary())
    keys = rows.column(columns["key"]).cast(pa.binary()) if "key" in columns else None
    taken = 0
    for number, value in enumerate(values):
        taken += len(value.as_py() or b"")
        yield SampledRecord(keys[number].as_py() if keys is not None else None, value.as_py())
        if taken > MOST_BYTES:
            return
