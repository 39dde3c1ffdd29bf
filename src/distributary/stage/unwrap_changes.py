"""Hop one for change events: which table of the source each is about, and what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.debezium_frames import split_connect
from distributary.decode.debezium_names import KINDS, Kind, connect_guid, look
from distributary.errors import ErrorCode
from distributary.model.plan import TOMBSTONE, UNFRAMED
from distributary.registry.wire_arrow import split_v0
from distributary.stage.letters import Letter
from distributary.stage.unwrapped import Rows, Unwrapped, only

FAULT, REASON = "distributary.fault", "distributary.reason"
"""Headers by which a reader of files says that a record is what it could not read."""
_FRAMED = b"\x01"
"""What events of Avro begin with, in the place of their file's schema."""
_NAMELESS = "the event does not say which table it is about"


def named_by_reader(
    raw: pa.RecordBatch, rows: Rows, letters: list[Letter]
) -> tuple[Rows, pa.StringArray, list[Letter]]:
    """Events of files: the reader has put the claim in the place of a key, or said what is wrong.

    Gives the rows that have a claim, their claims, and the dead letters by now.
    """
    faults = _faults(raw)
    letters = [letter for letter in letters if letter.row not in faults]
    letters += faults.values()
    rows = rows[~np.isin(rows, list(faults))] if faults else rows
    claims = raw.column("key").take(pa.array(rows)).cast(pa.string())
    known = claims.is_valid().to_numpy(zero_copy_only=False)
    letters += [_nameless(raw, row) for row in rows[~known].tolist()]
    return rows[known], claims.filter(pa.array(known)), letters


def _nameless(raw: pa.RecordBatch, row: int) -> Letter:
    value = raw.column("value")[row].as_py() or b""
    if not value.startswith(_FRAMED) and not _is_json(value):
        return Letter(row, ErrorCode.NOT_JSON, "the event is not JSON", "unwrap")
    return Letter(row, ErrorCode.NO_SOURCE_METADATA, _NAMELESS, "unwrap")


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


def with_tombstones(unwrapped: Unwrapped, raw: pa.RecordBatch, rows: Rows) -> Unwrapped:
    """Add records that have a key and no value: their payload has no bytes, and no schema."""
    if not len(rows):
        return unwrapped
    marks = unwrapped.marks
    if marks is not None:
        marks = pa.concat_arrays([marks, pa.repeat(pa.scalar("", marks.type), len(rows))])
    topics = raw.column("topic").take(pa.array(rows)).cast(unwrapped.claims.type)
    nothing = pa.repeat(pa.scalar(b"", unwrapped.payloads.type), len(rows))
    ids = pa.array(np.full(len(rows), UNFRAMED, dtype=np.int64))
    together = replace(
        unwrapped,
        rows=np.concatenate([unwrapped.rows, rows]),
        claims=pa.concat_arrays([unwrapped.claims, topics]),
        schema_ids=pa.concat_arrays([unwrapped.schema_ids, ids]),
        marks=marks,
        payloads=pa.concat_arrays([unwrapped.payloads, nothing]),
    )
    return only(together, np.argsort(together.rows, kind="stable"))


def about_tables(unwrapped: Unwrapped, *, tombstones: bool = False) -> Unwrapped:
    """Debezium's JSON: the table stands in the event, and so, maybe, does the schema.

    With `tombstones`, these are kept too: they may delete a row.
    """
    frames = split_connect(unwrapped.payloads)
    looked = look(unwrapped.claims, frames.payloads, by_topic=tombstones)
    changes = looked.kinds == KINDS.index(Kind.CHANGE)
    if tombstones:
        changes |= looked.kinds == KINDS.index(Kind.TOMBSTONE)
    named = looked.claims.is_valid().to_numpy(zero_copy_only=False)
    for row in unwrapped.rows[changes & ~named].tolist():
        unwrapped.letters.append(Letter(row, ErrorCode.NO_SOURCE_METADATA, _NAMELESS, "unwrap"))
    guids = [str(UUID(bytes=connect_guid(text))) for text in frames.schemas]
    codes = np.where(frames.codes < 0, len(guids), frames.codes)
    codes[looked.kinds == KINDS.index(Kind.TOMBSTONE)] = len(guids) + 1
    marks = pa.array([*(f"@{guid}" for guid in guids), "", TOMBSTONE]).take(pa.array(codes))
    # JSON that somebody has framed is read by what it looks like, as all the other
    ids = pa.array(np.full(len(unwrapped.rows), UNFRAMED, dtype=np.int64))
    found = replace(
        unwrapped,
        claims=looked.claims,
        schema_ids=ids,
        marks=marks if guids or codes.any() else None,
        payloads=frames.payloads,
        skipped=unwrapped.skipped + int((~changes).sum()),
        carried={
            guid: text.decode(errors="replace")
            for guid, text in zip(guids, frames.schemas, strict=True)
        },
    )
    wanted = changes & named
    return found if wanted.all() else only(found, np.flatnonzero(wanted))


def with_key_schemas(unwrapped: Unwrapped, raw: pa.RecordBatch) -> Unwrapped:
    """Debezium's Avro: the schema of a record's key belongs to what tells records apart."""
    keys = pc.fill_null(raw.column("key").take(pa.array(unwrapped.rows)), b"")
    frames = split_v0(keys, protobuf=False)
    ids = pa.array(np.where(frames.framed, frames.ids, UNFRAMED))
    texts = pc.if_else(pc.less(ids, 0), "", ids.cast(pa.string()))
    marks = unwrapped.marks
    if marks is None:
        marks = pa.repeat(pa.scalar("@", pa.string()), len(unwrapped.rows))
    else:
        whole = pc.binary_join_element_wise(marks, "", "@")
        marks = pc.if_else(pc.match_substring(marks, "@"), marks, whole)
    return replace(unwrapped, marks=pc.binary_join_element_wise(marks, texts, "@"))


def _faults(raw: pa.RecordBatch) -> dict[int, Letter]:
    """Records that their reader has given up on, each with the reader's own words."""
    headers = raw.column("headers")
    if headers.null_count == len(headers):
        return {}
    letters: dict[int, Letter] = {}
    for row in np.flatnonzero(headers.is_valid().to_numpy(zero_copy_only=False)).tolist():
        told = {each["key"]: each["value"] or b"" for each in headers[row].as_py()}
        if FAULT in told:
            reason = told.get(REASON, b"").decode(errors="replace")
            letters[row] = Letter(row, ErrorCode(told[FAULT].decode()), reason, "read")
    return letters
