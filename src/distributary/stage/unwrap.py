"""Hop one: what each record says about itself: its type, its schema id, its payload."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.cache import decoder_for
from distributary.errors import ErrorCode
from distributary.model.plan import Catalog, EnvelopePlan
from distributary.model.schema import Format
from distributary.registry.wire_arrow import REASONS, SplitFrames, payloads, split_v0
from distributary.stage.guard import GuardedDecoder
from distributary.stage.letters import Letter

_KEPT_CODES = (
    ErrorCode.NESTING_TOO_DEEP,
    ErrorCode.PAYLOAD_TOO_LARGE,
    ErrorCode.CRASHED_DECODER,
)
Rows = npt.NDArray[np.int64]


@dataclass(slots=True)
class Unwrapped:
    """The records of a raw batch that could be unwrapped, column-wise, and the others."""

    rows: Rows
    """Positions in the raw batch; all columns below have this length and order."""
    claims: pa.StringArray
    schema_ids: pa.Int64Array
    indexes: pa.StringArray | None
    payloads: pa.BinaryArray
    letters: list[Letter] = field(default_factory=list)


def limits_of(catalog: Catalog) -> DecodeLimits:
    """The catalog's limits in the decoders' words."""
    return DecodeLimits(
        max_payload_bytes=catalog.max_payload_bytes,
        max_depth=catalog.max_depth,
        recursion_depth=catalog.recursion_depth,
    )


def unwrap(raw: pa.RecordBatch, catalog: Catalog, *, guarded: bool = False) -> Unwrapped:
    """Split a raw batch into unwrapped columns and dead letters."""
    letters: list[Letter] = []
    rows = _with_value(raw.column("value"), catalog.max_payload_bytes, letters)
    if catalog.envelope is not None:
        envelope, limits = catalog.envelope, limits_of(catalog)
        decoder: Decoder = decoder_for(envelope.schema, envelope.message, limits)
        if guarded:
            decoder = GuardedDecoder(decoder, envelope.schema, envelope.message, limits)
        return _from_envelope(raw, rows, letters, envelope, decoder)
    return _from_frame(raw, rows, letters, catalog)


def _with_value(values: pa.BinaryArray, limit: int, letters: list[Letter]) -> Rows:
    """Rows that have something to look at; the others are dead letters by their size."""
    sizes = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
    good = (sizes > 0) & (sizes <= limit)
    if good.all():
        return np.arange(len(values))
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
) -> Unwrapped:
    values = _take(raw.column("value"), rows)
    values, rows = _bare(values, rows, envelope.framing, letters)
    decoded = decoder.decode(values)
    for failure in decoded.failed:
        code = ErrorCode.NOT_AN_ENVELOPE
        if failure.code in _KEPT_CODES:
            code = failure.code
        letters.append(
            Letter(int(rows[failure.index]), code, failure.message, "unwrap", failure.position)
        )
    if decoded.origin is not None:
        rows = rows[decoded.origin.to_numpy(zero_copy_only=False)]
    claims = decoded.ok.column(envelope.type_field)
    ids = decoded.ok.column(envelope.schema_id_field).cast(pa.int64())
    contents = decoded.ok.column(envelope.payload_field)
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
    split = split_v0(values, protobuf=True)
    bad = ~split.framed
    if framing == "auto":
        # exact for protobuf: a bare message cannot begin with byte 0
        bad &= split.reasons != REASONS.index(ErrorCode.BAD_MAGIC)
    return _without(payloads(values, split.payload_start), rows, split, bad, letters)


def _without(
    values: pa.BinaryArray,
    rows: Rows,
    split: SplitFrames,
    bad: npt.NDArray[np.bool_],
    letters: list[Letter],
) -> tuple[pa.BinaryArray, Rows]:
    """Take out what is not framed as it should be."""
    if not bad.any():
        return values, rows
    letters += [_bad_frame(int(rows[i]), split, i) for i in np.flatnonzero(bad).tolist()]
    keep = np.flatnonzero(~bad)
    return values.take(pa.array(keep)), rows[keep]


def _bad_frame(row: int, split: SplitFrames, position: int) -> Letter:
    code = split.reason(position) or ErrorCode.BAD_MAGIC
    return Letter(row, code, "the registry's header is missing or broken", "unwrap", 0)


def _from_frame(
    raw: pa.RecordBatch, rows: Rows, letters: list[Letter], catalog: Catalog
) -> Unwrapped:
    """Without an envelope the registry's header names the schema, and the topic makes the claim."""
    values = _take(raw.column("value"), rows)
    protobuf = catalog.payload_format == Format.PROTOBUF
    split = split_v0(values, protobuf=protobuf)
    good = split.framed
    indexes = None
    if protobuf:
        names = pa.array([",".join(map(str, path)) for path in split.paths], pa.string())
        indexes = names.take(pa.array(split.path_codes[good]))
    contents, rows = _without(payloads(values, split.payload_start), rows, split, ~good, letters)
    return Unwrapped(
        rows,
        _take(raw.column("topic"), rows),
        pa.array(split.ids[good]),
        indexes,
        contents,
        letters,
    )
