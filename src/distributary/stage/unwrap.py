"""Hop one: what each record says about itself: its type, its schema id, its payload."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.change.debezium.messages import (
    KINDS,
    Kind,
    connect_guid,
    look,
    split_connect,
)
from distributary.decode.formats import decoder_for
from distributary.errors import ErrorCode
from distributary.model.change import ChangeSettings
from distributary.model.plan import TOMBSTONE, UNFRAMED, Catalog, EnvelopePlan
from distributary.model.record import RAW, Format
from distributary.registry.wire import REASONS, SplitFrames, payloads, split, split_v0
from distributary.stage.files import Letter
from distributary.stage.guard import GuardedDecoder

# What hop one has found out about a batch of raw records.

Rows = npt.NDArray[np.int64]


@dataclass(slots=True)
class Unwrapped:
    """The records of a raw batch that could be unwrapped, column-wise, and the others."""

    rows: Rows
    """Positions in the raw batch; all columns below have this length and order."""
    claims: pa.StringArray
    schema_ids: pa.Int64Array
    marks: pa.StringArray | None
    """What else tells records apart: `message_index@guid@key_schema`; parts may be missing."""
    payloads: pa.BinaryArray
    letters: list[Letter] = field(default_factory=list)
    skipped: int = 0
    """Records to pass over: tombstones, where a policy says so, and what is no change of a row."""
    carried: dict[str, str] = field(default_factory=dict)
    """Schemas that came with the records themselves, by GUID."""


def only(unwrapped: Unwrapped, keep: Rows) -> Unwrapped:
    """These records, by their places; letters and counts stay."""
    chosen = pa.array(keep)
    marks = unwrapped.marks
    return replace(
        unwrapped,
        rows=unwrapped.rows[keep],
        claims=unwrapped.claims.take(chosen),
        schema_ids=unwrapped.schema_ids.take(chosen),
        marks=None if marks is None else marks.take(chosen),
        payloads=unwrapped.payloads.take(chosen),
    )


# Hop one for change events: which table of the source each is about, and what is wrong with it.

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


_KEPT_CODES = (
    ErrorCode.NESTING_TOO_DEEP,
    ErrorCode.PAYLOAD_TOO_LARGE,
    ErrorCode.PAYLOAD_EXPANDS,
    ErrorCode.CRASHED_DECODER,
)


def limits_of(catalog: Catalog) -> DecodeLimits:
    """The catalog's limits in the decoders' words."""
    return DecodeLimits(
        max_payload_bytes=catalog.max_payload_bytes,
        max_decoded_bytes=catalog.max_decoded_bytes,
        max_depth=catalog.max_depth,
        recursion_depth=catalog.recursion_depth,
        drop_unknown_fields=catalog.drop_unknown_fields,
    )


def unwrap(raw: pa.RecordBatch, catalog: Catalog, *, guarded: bool = False) -> Unwrapped:
    """Split a raw batch into unwrapped columns and dead letters."""
    letters: list[Letter] = []
    rows = _with_value(raw, catalog, letters)
    silent: Rows = np.zeros(0, np.int64)
    if catalog.skip_tombstones and letters:
        letters, silent = _without_tombstones(raw, letters)
    if catalog.changes is not None:
        return _changes(raw, rows, letters, catalog, catalog.changes, silent)
    unwrapped = _unwrapped(raw, rows, letters, catalog, guarded=guarded)
    unwrapped.skipped += len(silent)
    return unwrapped


def _changes(
    raw: pa.RecordBatch,
    rows: Rows,
    letters: list[Letter],
    catalog: Catalog,
    settings: ChangeSettings,
    silent: Rows,
) -> Unwrapped:
    """Change events: not the topic but the source's table makes the claim."""
    if settings.format == "datastream":
        rows, claims, letters = named_by_reader(raw, rows, letters)
        return _from_frame(raw, rows, letters, catalog, claims)
    unwrapped = _from_frame(raw, rows, letters, catalog)
    deletes = settings.tombstones == "delete"
    if deletes:
        unwrapped = with_tombstones(unwrapped, raw, silent)
    else:
        unwrapped.skipped += len(silent)
    if catalog.payload_format is Format.JSON:
        return about_tables(unwrapped, tombstones=deletes)
    # which table it is says the schema, and only the driver has that
    return with_key_schemas(unwrapped, raw)


def _framed_by_header(raw: pa.RecordBatch, catalog: Catalog) -> npt.NDArray[np.bool_]:
    """Records whose schema is named in a header: the value is all payload, and may be empty."""
    if catalog.envelope is not None:
        return np.zeros(raw.num_rows, np.bool_)
    frames = split(raw.column("value"), raw.column("headers"), protobuf=False)
    by_header: npt.NDArray[np.bool_] = frames.framed & (frames.payload_start == 0)
    return by_header


def _without_tombstones(raw: pa.RecordBatch, letters: list[Letter]) -> tuple[list[Letter], Rows]:
    """A key without a value says that the key is gone; that is no fault."""
    keys = raw.column("key")
    kept = [
        letter
        for letter in letters
        if letter.code is not ErrorCode.NULL_VALUE or not keys[letter.row].is_valid
    ]
    others = {letter.row for letter in letters} - {letter.row for letter in kept}
    return kept, np.array(sorted(others), np.int64)


def _unwrapped(
    raw: pa.RecordBatch, rows: Rows, letters: list[Letter], catalog: Catalog, *, guarded: bool
) -> Unwrapped:
    if catalog.envelope is not None:
        # its newest schema is known, not the one that it was written with
        envelope, limits = catalog.envelope, replace(limits_of(catalog), drop_unknown_fields=True)
        decoder: Decoder = decoder_for(envelope.schema, envelope.message, limits)
        if guarded:
            decoder = GuardedDecoder(decoder, envelope.schema, envelope.message, limits)
        limit = catalog.max_decoded_bytes
        unwrapped = _from_envelope(raw, rows, letters, envelope, decoder, limit)
        return _inner(unwrapped, catalog) if catalog.payload_framing != "none" else unwrapped
    return _from_frame(raw, rows, letters, catalog)


def _with_value(raw: pa.RecordBatch, catalog: Catalog, letters: list[Letter]) -> Rows:
    """Rows that have something to look at; the others are dead letters by their size."""
    values, limit = raw.column("value"), catalog.max_payload_bytes
    sizes = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
    good = (sizes > 0) & (sizes <= limit)
    if good.all():
        return np.arange(len(values))
    if (sizes == 0).any():
        good |= (sizes == 0) & _framed_by_header(raw, catalog)
    for row in np.flatnonzero(~good).tolist():
        size = int(sizes[row])
        if size < 0:
            letters.append(Letter(row, ErrorCode.NULL_VALUE, "the value is null", "unwrap"))
        elif size == 0:
            letters.append(Letter(row, ErrorCode.EMPTY_VALUE, "the value has 0 bytes", "unwrap"))
        else:
            text = f"the value has {size} bytes; limits.max_payload_bytes is {limit}"
            letters.append(Letter(row, ErrorCode.PAYLOAD_TOO_LARGE, text, "unwrap"))
    return np.flatnonzero(good)


def _take(array: pa.Array, rows: Rows) -> pa.Array:
    return array if len(rows) == len(array) else array.take(pa.array(rows))


def _from_envelope(
    raw: pa.RecordBatch,
    rows: Rows,
    letters: list[Letter],
    envelope: EnvelopePlan,
    decoder: Decoder,
    limit: int,
) -> Unwrapped:
    values = _take(raw.column("value"), rows)
    values, rows = _bare(values, rows, envelope.framing, letters)
    wanted = [envelope.type_field, envelope.schema_id_field, envelope.payload_field]
    kept: list[Rows] = []
    found: list[pa.RecordBatch] = []
    for part in decoder.expansion.slices(values, limit=limit):
        decoded, own = decoder.decode(values[part]), rows[part]
        for failure in decoded.failed:
            code = failure.code if failure.code in _KEPT_CODES else ErrorCode.NOT_AN_ENVELOPE
            row = int(own[failure.index])
            letters.append(Letter(row, code, failure.message, "unwrap", failure.position))
        if decoded.origin is not None:
            own = own[decoded.origin.to_numpy(zero_copy_only=False)]
        kept.append(own)
        found.append(decoded.ok.select(wanted))
    rows = kept[0] if len(kept) == 1 else np.concatenate(kept)
    claims, ids, contents = (found[0] if len(found) == 1 else pa.concat_batches(found)).columns
    ids = ids.cast(pa.int64())
    present = _require(
        rows,
        letters,
        claims,
        ids,
        (claims, ErrorCode.MISSING_TYPE, f"the field {envelope.type_field} is not set"),
        (ids, ErrorCode.MISSING_SCHEMA_ID, f"the field {envelope.schema_id_field} is not set"),
        (contents, ErrorCode.MISSING_PAYLOAD, f"the field {envelope.payload_field} is not set"),
    )
    if present is not None:
        rows = rows[present]
        claims, ids, contents = (a.take(pa.array(present)) for a in (claims, ids, contents))
    return Unwrapped(rows, claims, ids, None, contents, letters)


def _inner(unwrapped: Unwrapped, catalog: Catalog) -> Unwrapped:
    """Payloads that have the registry's header themselves, inside of the envelope."""
    protobuf = catalog.payload_format is Format.PROTOBUF
    frames = split_v0(unwrapped.payloads, protobuf=protobuf)
    ids = unwrapped.schema_ids.to_numpy(zero_copy_only=False)
    framed = frames.framed & (frames.ids == ids)
    if catalog.payload_framing == "confluent" and not framed.all():
        for i in np.flatnonzero(~framed).tolist():
            text = "the payload has no header of the registry with the envelope's schema id"
            row, claim = int(unwrapped.rows[i]), unwrapped.claims[i].as_py()
            letters = Letter(row, ErrorCode.BAD_MAGIC, text, "unwrap", 0, claim, int(ids[i]))
            unwrapped.letters.append(letters)
        keep = np.flatnonzero(framed)
        return _inner(only(unwrapped, keep), catalog) if len(keep) else only(unwrapped, keep)
    unwrapped.payloads = payloads(
        unwrapped.payloads, np.where(framed, frames.payload_start, 0).astype(np.int32)
    )
    if framed.any():
        unwrapped.marks = _marks(replace(frames, framed=framed), protobuf=protobuf)
    return unwrapped


def _require(
    rows: Rows,
    letters: list[Letter],
    claims: pa.Array,
    ids: pa.Array,
    *needed: tuple[pa.Array, ErrorCode, str],
) -> Rows | None:
    """Positions at which all needed fields are set, or None where that is everywhere."""
    if not any(array.null_count for array, _, _ in needed):
        return None
    good = np.ones(len(rows), dtype=bool)
    for array, code, text in needed:
        missing = array.is_null().to_numpy(zero_copy_only=False) & good
        good &= ~missing
        for i in np.flatnonzero(missing).tolist():
            letters.append(
                Letter(
                    int(rows[i]),
                    code,
                    text,
                    "unwrap",
                    type=claims[i].as_py(),
                    schema_id=ids[i].as_py(),
                )
            )
    return np.flatnonzero(good)


def _bare(
    values: pa.BinaryArray, rows: Rows, framing: str, letters: list[Letter]
) -> tuple[pa.BinaryArray, Rows]:
    """Wrappers without the registry's header, whether or not they came with one."""
    if framing == "none":
        return values, rows
    frames = split_v0(values, protobuf=True)
    keep = _well_framed(frames, framing, rows, letters)
    return _take(payloads(values, frames.payload_start), keep), rows[keep]


def _well_framed(frames: SplitFrames, framing: str, rows: Rows, letters: list[Letter]) -> Rows:
    """Positions of what is framed as it should be; the others are dead letters."""
    bad = ~frames.framed
    if framing == "auto":
        # exact for protobuf: a bare message cannot begin with byte 0
        bad &= frames.reasons != REASONS.index(ErrorCode.BAD_MAGIC)
    for i in np.flatnonzero(bad).tolist():
        code = frames.reason(i) or ErrorCode.BAD_MAGIC
        text = "the registry's header is missing or broken"
        letters.append(Letter(int(rows[i]), code, text, "unwrap", 0))
    return np.flatnonzero(~bad)


def _from_frame(
    raw: pa.RecordBatch,
    rows: Rows,
    letters: list[Letter],
    catalog: Catalog,
    claims: pa.StringArray | None = None,
) -> Unwrapped:
    """Without an envelope the registry's header names the schema, and the topic makes the claim."""
    values = _take(raw.column("value"), rows)
    topics = _take(raw.column("topic"), rows) if claims is None else claims
    if catalog.payload_framing == "none":
        ids = pa.array(np.full(len(rows), UNFRAMED, dtype=np.int64))
        return Unwrapped(rows, topics, ids, None, values, letters)
    protobuf = catalog.payload_format == Format.PROTOBUF
    headers = raw.column("headers")
    named = _take(headers, rows) if headers.null_count < len(headers) else None
    frames = split(values, named, protobuf=protobuf)
    keep = _well_framed(frames, catalog.payload_framing, rows, letters)
    marks = _marks(frames, protobuf=protobuf)
    return Unwrapped(
        rows[keep],
        _take(topics, keep),
        pa.array(frames.ids[keep]),
        None if marks is None else _take(marks, keep),
        _take(payloads(values, frames.payload_start), keep),
        letters,
    )


def _marks(frames: SplitFrames, *, protobuf: bool) -> pa.StringArray | None:
    """What belongs to a key beside the schema's id: the path to the message, the GUID."""
    if not protobuf and not frames.guids:
        return None
    paths = [",".join(map(str, path)) if protobuf else "" for path in frames.paths]
    # a bare record has no path: which message it is follows from its name and its schema
    paths.append("")
    codes = np.where(frames.framed, frames.path_codes, len(paths) - 1).astype(np.int64)
    names = paths
    if frames.guids:
        names = [f"{path}@{guid}" for path in paths for guid in ("", *frames.guids)]
        names = [name.removesuffix("@") for name in names]
        codes = codes * (len(frames.guids) + 1) + frames.guid_codes + 1
    return pa.array(names, pa.string()).take(pa.array(codes))


# The records of a batch that are this job's own, where a source marks them.

MINE = pa.field("mine", pa.bool_(), nullable=False)
MARKED = pa.schema([*RAW, MINE])
"""Raw records, and for each whether this job takes it; the others are another job's."""


class Share:
    """Passes on what is this job's own, and counts the rest."""

    def __init__(self) -> None:
        self.others = 0
        """Records of other jobs so far: read, and passed over."""

    def own(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raw records; batches without marks pass as they are."""
        for batch in batches:
            yield self._own(batch) if batch.num_columns == len(MARKED) else batch

    def _own(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mine = batch.column(MINE.name)
        raw = batch.select(RAW.names)
        others = batch.num_rows - (pc.sum(mine).as_py() or 0)
        self.others += others
        return raw.filter(mine) if others else raw
