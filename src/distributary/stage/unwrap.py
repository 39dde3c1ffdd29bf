"""Hop one: what each record says about itself: its type, its schema id, its payload."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import Decoder
from distributary.decode.change.debezium.messages import (
    KINDS,
    Kind,
    connect_guid,
    look,
    split_connect,
)
from distributary.decode.formats import decoder_for
from distributary.decode.json.pattern import shape_in
from distributary.errors import ErrorCode
from distributary.model.change import ChangeSettings
from distributary.model.deadletter import FAULT_HEADER, REASON_HEADER
from distributary.model.plan import UNFRAMED, EnvelopePlan, Route, RouteKey
from distributary.model.record import RAW, Format, Shapes, WriterSchema
from distributary.registry.wire import REASONS, SplitFrames, payloads, split, split_v0
from distributary.stage.catalog import Catalog
from distributary.stage.envelopes import (
    Opened,
    joined,
    open_cloud_events,
    open_columns,
    open_json,
    taken,
    texts_in,
)
from distributary.stage.files import Letter
from distributary.stage.guard import GuardedDecoder

Rows = npt.NDArray[np.int64]


@dataclass(slots=True)
class Unwrapped:
    """The records of a raw batch that could be unwrapped, column-wise, and the others."""

    rows: Rows
    """Positions in the raw batch; all columns below have this length and order."""
    keys: dict[str, pa.Array]
    """What tells records apart, by the names of `RouteKey`; a column that none needs is left out.
    """
    payloads: pa.BinaryArray
    letters: list[Letter] = field(default_factory=list)
    skipped: int = 0
    """Records to pass over: tombstones, where a policy says so, and what is no change of a row."""
    familiar: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    """Positions in the raw batch of records that add nothing to the shape of their type."""
    carried: dict[str, str] = field(default_factory=dict)
    """Schemas that came with the records themselves, by GUID."""


def _only(unwrapped: Unwrapped, keep: Rows) -> Unwrapped:
    """The records at these ascending places; letters and counts stay."""
    return unwrapped if len(keep) == len(unwrapped.rows) else _taken(unwrapped, keep)


def _taken(unwrapped: Unwrapped, places: Rows) -> Unwrapped:
    chosen = pa.array(places)
    return replace(
        unwrapped,
        rows=unwrapped.rows[places],
        keys={name: column.take(chosen) for name, column in unwrapped.keys.items()},
        payloads=unwrapped.payloads.take(chosen),
    )


def _unframed(count: int) -> pa.Int64Array:
    return pa.array(np.full(count, UNFRAMED, dtype=np.int64))


def _coded(codes: npt.NDArray[Any], values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(values, type_))


def unwrap(raw: pa.RecordBatch, catalog: Catalog, *, guarded: bool = False) -> Unwrapped:
    """Split a raw batch into unwrapped columns and dead letters."""
    letters: list[Letter] = []
    rows = _with_value(raw, catalog, letters)
    silent: Rows = np.zeros(0, np.int64)
    if catalog.skip_tombstones and letters:
        letters, silent = _without_tombstones(raw, letters)
    if catalog.changes is not None:
        return _changes(raw, rows, letters, catalog, catalog.changes, silent)
    if catalog.envelope is None:
        unwrapped = _from_frame(raw, rows, letters, catalog)
    else:
        unwrapped = _from_envelope(raw, rows, letters, catalog, catalog.envelope, guarded=guarded)
    unwrapped.skipped += len(silent)
    return unwrapped


def _with_value(raw: pa.RecordBatch, catalog: Catalog, letters: list[Letter]) -> Rows:
    """Rows that have something to look at; the others are dead letters by their size."""
    values, limit = raw.column("value"), catalog.limits.max_payload_bytes
    sizes = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
    good = (sizes > 0) & (sizes <= limit)
    if good.all():
        return np.arange(len(values))
    if catalog.envelope is None and (sizes == 0).any():
        # where a header names the schema, the value is all payload, and may be empty
        frames = split(values, raw.column("headers"), protobuf=False)
        good |= (sizes == 0) & frames.framed & (frames.payload_start == 0)
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


def _without_tombstones(raw: pa.RecordBatch, letters: list[Letter]) -> tuple[list[Letter], Rows]:
    """A key without a value says that the key is gone; that is no fault."""
    keys = raw.column("key")
    silent = {x.row for x in letters if x.code is ErrorCode.NULL_VALUE and keys[x.row].is_valid}
    return [x for x in letters if x.row not in silent], np.array(sorted(silent), np.int64)


# Records with the registry's header, or without any wrapping.


def _from_frame(
    raw: pa.RecordBatch,
    rows: Rows,
    letters: list[Letter],
    catalog: Catalog,
    claims: pa.StringArray | None = None,
    values: pa.BinaryArray | None = None,
    *,
    inside: bool = False,
) -> Unwrapped:
    """Records whose schema the registry's header names; the topic makes the claim.

    Where something else does, the claims are given; and so are payloads that were `inside` of
    something, about which the headers of the record say nothing.
    """
    headers = None if inside else raw.column("headers")
    values = taken(raw.column("value"), rows) if values is None else values
    claims = taken(raw.column("topic"), rows) if claims is None else claims
    if catalog.payload_framing == "none":
        keys = {"claim": claims, "schema_id": _unframed(len(rows))}
        return Unwrapped(rows, keys, values, letters)
    protobuf = catalog.payload_format is Format.PROTOBUF
    named = None
    if headers is not None and headers.null_count < len(headers):
        named = taken(headers, rows)
    frames = split(values, named, protobuf=protobuf)
    keep = _well_framed(frames, catalog.payload_framing, rows, letters)
    keys = {"claim": claims, "schema_id": pa.array(frames.ids), **_keys_in(frames, protobuf)}
    return _only(Unwrapped(rows, keys, payloads(values, frames.payload_start), letters), keep)


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


_NO_SUCH_MESSAGE = 2**31 - 1
"""What stands for all larger numbers: no schema has so many messages."""


def _keys_in(frames: SplitFrames, protobuf: bool) -> dict[str, pa.Array]:
    """What frames say beside the schema's id: the path to the message, the GUID."""
    keys = {}
    if protobuf:
        paths = [[min(number, _NO_SUCH_MESSAGE) for number in path] for path in frames.paths]
        # a bare record has no path: which message it is follows from its name and its schema
        codes = np.where(frames.framed, frames.path_codes, len(paths))
        keys["message_index"] = _coded(codes, [*paths, []], pa.list_(pa.int32()))
    if frames.guids:
        codes = np.where(frames.guid_codes < 0, len(frames.guids), frames.guid_codes)
        keys["guid"] = _coded(codes, [*map(str, frames.guids), ""], pa.string())
    return keys


# Records in an envelope.

_KEPT_CODES = (
    ErrorCode.NESTING_TOO_DEEP,
    ErrorCode.PAYLOAD_TOO_LARGE,
    ErrorCode.PAYLOAD_EXPANDS,
    ErrorCode.CRASHED_DECODER,
)


def _from_envelope(
    raw: pa.RecordBatch,
    rows: Rows,
    letters: list[Letter],
    catalog: Catalog,
    envelope: EnvelopePlan,
    *,
    guarded: bool,
) -> Unwrapped:
    claims: pa.StringArray | None = None
    if envelope.type_field.startswith("{"):
        rows, claims = _named_outside(raw, rows, letters, envelope.type_field)
        if not envelope.schema_id_field and not envelope.payload_field:
            return _from_frame(raw, rows, letters, catalog, claims)
    depth = catalog.limits.max_depth
    if envelope.format == "cloudevents":
        opened = open_cloud_events(raw, rows, letters, max_depth=depth)
        return _from_frame(raw, opened.rows, letters, catalog, opened.claims, opened.payloads)
    values, ids = taken(raw.column("value"), rows), None
    inside = bool(envelope.payload_field)
    if envelope.framing != "none":
        read = split_v0 if inside else split
        frames = read(values, protobuf=envelope.format == "protobuf")
        keep = _well_framed(frames, envelope.framing, rows, letters)
        values, rows = taken(payloads(values, frames.payload_start), keep), rows[keep]
        ids = np.where(frames.framed, frames.ids, UNFRAMED)[keep]
        claims = None if claims is None else taken(claims, keep)
    if envelope.format == "json":
        shape = known_shapes(catalog)
        opened = open_json(values, rows, letters, envelope, claims, shape, max_depth=depth)
    else:
        portions = _by_schema(envelope, values, rows, ids, claims, letters)
        parts = [_decoded(*each, letters, catalog, envelope, guarded) for each in portions]
        opened = joined(parts) if parts else Opened.none()
    found = _complete(opened, envelope, letters)
    if opened.ids is None:
        # a message that is its own payload may have a header that names its schema
        contents = found.payloads if inside else None
        claims = found.keys["claim"]
        framed = _from_frame(raw, found.rows, letters, catalog, claims, contents, inside=inside)
        return replace(framed, familiar=opened.familiar)
    return found if catalog.payload_framing == "none" else _inner(found, catalog)


def known_shape(catalog: Catalog, key: RouteKey) -> Mapping[str, Any]:
    """The shape of records without a schema; one without anything where nobody knows."""
    route = catalog.routes.get(key)
    if isinstance(route, Route):
        return shape_in(catalog.schemas[route.schema_id].body)
    recalled = None if route is not None else catalog.recalled.get(key.claim)
    return shape_in(recalled) if recalled is not None else {}


def known_shapes(catalog: Catalog) -> Shapes:
    """The same, of records of which only the claim is known."""
    return lambda claim: known_shape(catalog, RouteKey(claim, UNFRAMED))


def _named_outside(
    raw: pa.RecordBatch, rows: Rows, letters: list[Letter], place: str
) -> tuple[Rows, pa.StringArray]:
    """The records whose key or header names their type."""
    claims = texts_in(place, raw, rows)
    named = claims.is_valid().to_numpy(zero_copy_only=False)
    if named.all():
        return rows, claims
    for row in rows[~named].tolist():
        text = f"{place.strip('{}')} is missing, or is not text"
        letters.append(Letter(row, ErrorCode.MISSING_TYPE, text, "unwrap"))
    return rows[named], claims.filter(pa.array(named))


_Portion = tuple[WriterSchema, pa.BinaryArray, Rows, pa.StringArray | None]


def _by_schema(
    envelope: EnvelopePlan,
    values: pa.BinaryArray,
    rows: Rows,
    ids: npt.NDArray[Any] | None,
    claims: pa.StringArray | None,
    letters: list[Letter],
) -> Iterator[_Portion]:
    """Envelopes with the schema that reads them: the newest, or of Avro, the one they name."""
    if envelope.schema is None:
        return
    if envelope.format != "avro" or ids is None:
        yield envelope.schema, values, rows, claims
        return
    for schema_id in np.unique(ids).tolist():
        places = np.flatnonzero(ids == schema_id)
        schema = envelope.schema if schema_id == UNFRAMED else envelope.schemas.get(schema_id)
        if schema is not None:
            named = None if claims is None else taken(claims, places)
            yield schema, taken(values, places), rows[places], named
            continue
        for row in rows[places].tolist():
            text = f"the envelope's schema {schema_id} is no version of its subject"
            letters.append(Letter(row, ErrorCode.UNKNOWN_SCHEMA_ID, text, "unwrap"))


def _decoded(
    schema: WriterSchema,
    values: pa.BinaryArray,
    rows: Rows,
    claims: pa.StringArray | None,
    letters: list[Letter],
    catalog: Catalog,
    envelope: EnvelopePlan,
    guarded: bool,
) -> Opened:
    """Type, schema id and payload of envelopes of one schema."""
    # of protobuf the newest schema is known, not the one that it was written with
    limits = replace(catalog.limits, drop_unknown_fields=True)
    message = envelope.message if schema.format is Format.PROTOBUF else schema.message
    build = partial(decoder_for, schema, message, limits)
    decoder: Decoder = GuardedDecoder(build) if guarded else build()
    parts: list[Opened] = []
    for part in decoder.expansion.slices(values, limit=limits.max_decoded_bytes):
        decoded, own = decoder.decode(values[part]), rows[part]
        for failure in decoded.failed:
            code = failure.code if failure.code in _KEPT_CODES else ErrorCode.NOT_AN_ENVELOPE
            row = int(own[failure.index])
            letters.append(Letter(row, code, failure.message, "unwrap", failure.position))
        named = None if claims is None else claims[part]
        if decoded.origin is not None:
            own = own[decoded.origin.to_numpy(zero_copy_only=False)]
            named = None if named is None else named.take(decoded.origin)
        parts.append(open_columns(decoded.ok, own, envelope, named))
    return joined(parts) if parts else Opened.none()


def _complete(opened: Opened, envelope: EnvelopePlan, letters: list[Letter]) -> Unwrapped:
    """The records of which all fields are set."""
    claims, ids = opened.claims, opened.ids
    keys = {"claim": claims} if ids is None else {"claim": claims, "schema_id": ids}
    unwrapped = Unwrapped(opened.rows, keys, opened.payloads, letters)
    needed = (
        (claims, ErrorCode.MISSING_TYPE, envelope.type_field),
        (ids, ErrorCode.MISSING_SCHEMA_ID, envelope.schema_id_field),
        (opened.payloads, ErrorCode.MISSING_PAYLOAD, envelope.payload_field),
    )
    if not any(array.null_count for array, _, _ in needed if array is not None):
        return unwrapped
    good = np.ones(len(unwrapped.rows), dtype=bool)
    for array, code, name in needed:
        if array is None:
            continue
        missing = array.is_null().to_numpy(zero_copy_only=False) & good
        good &= ~missing
        for i in np.flatnonzero(missing).tolist():
            row, text = int(unwrapped.rows[i]), f"the field {name} is not set, or cannot be used"
            claim, schema_id = claims[i].as_py(), None if ids is None else ids[i].as_py()
            letters.append(Letter(row, code, text, "unwrap", None, claim, schema_id))
    return _only(unwrapped, np.flatnonzero(good))


def _inner(unwrapped: Unwrapped, catalog: Catalog) -> Unwrapped:
    """Payloads that have the registry's header themselves, inside of the envelope."""
    protobuf = catalog.payload_format is Format.PROTOBUF
    frames = split_v0(unwrapped.payloads, protobuf=protobuf)
    claims, ids = unwrapped.keys.values()
    framed = frames.framed & (frames.ids == ids.to_numpy(zero_copy_only=False))
    if catalog.payload_framing == "confluent" and not framed.all():
        for i in np.flatnonzero(~framed).tolist():
            text = "the payload has no header of the registry with the envelope's schema id"
            row, claim, id_ = int(unwrapped.rows[i]), claims[i].as_py(), ids[i].as_py()
            letter = Letter(row, ErrorCode.BAD_MAGIC, text, "unwrap", 0, claim, id_)
            unwrapped.letters.append(letter)
        keep = np.flatnonzero(framed)
        rest = _only(unwrapped, keep)
        return _inner(rest, catalog) if len(keep) else rest
    starts = np.where(framed, frames.payload_start, 0).astype(np.int32)
    keys = unwrapped.keys
    if framed.any():
        keys |= _keys_in(replace(frames, framed=framed), protobuf)
    return replace(unwrapped, keys=keys, payloads=payloads(unwrapped.payloads, starts))


# Change events: not the topic but the source's table makes the claim.

_FRAMED = b"\x01"
"""What events of Avro begin with, in the place of their file's schema."""
_NAMELESS = "the event does not say which table it is about"
_CHANGE, _TOMBSTONE = KINDS.index(Kind.CHANGE), KINDS.index(Kind.TOMBSTONE)


def _changes(
    raw: pa.RecordBatch,
    rows: Rows,
    letters: list[Letter],
    catalog: Catalog,
    settings: ChangeSettings,
    silent: Rows,
) -> Unwrapped:
    if settings.format == "datastream":
        return _from_reader(raw, rows, letters, catalog)
    unwrapped = _from_frame(raw, rows, letters, catalog)
    deletes = settings.tombstones == "delete"
    if not deletes:
        unwrapped.skipped += len(silent)
    elif len(silent):
        unwrapped = _with_tombstones(unwrapped, raw, silent)
    if catalog.payload_format is Format.JSON:
        return _about_tables(unwrapped, tombstones=deletes)
    # which table it is says the schema, and only the driver has that
    keys = pc.fill_null(raw.column("key").take(pa.array(unwrapped.rows)), b"")
    frames = split_v0(keys, protobuf=False)
    unwrapped.keys["key_schema"] = pa.array(np.where(frames.framed, frames.ids, UNFRAMED))
    return unwrapped


def _from_reader(
    raw: pa.RecordBatch, rows: Rows, letters: list[Letter], catalog: Catalog
) -> Unwrapped:
    """Events of files: their reader has put the claim into the key, or said what is wrong."""
    faults = _faults(raw)
    letters = [letter for letter in letters if letter.row not in faults]
    letters += faults.values()
    rows = rows[~np.isin(rows, list(faults))] if faults else rows
    claims = raw.column("key").take(pa.array(rows)).cast(pa.string())
    known = claims.is_valid().to_numpy(zero_copy_only=False)
    for row in rows[~known].tolist():
        value = raw.column("value")[row].as_py() or b""
        if not value.startswith(_FRAMED) and not _is_json(value):
            letters.append(Letter(row, ErrorCode.NOT_JSON, "the event is not JSON", "unwrap"))
        else:
            letters.append(Letter(row, ErrorCode.NO_SOURCE_METADATA, _NAMELESS, "unwrap"))
    return _from_frame(raw, rows[known], letters, catalog, claims.filter(pa.array(known)))


def _faults(raw: pa.RecordBatch) -> dict[int, Letter]:
    """Records that their reader has given up on, each with the reader's own words."""
    headers = raw.column("headers")
    letters: dict[int, Letter] = {}
    for row in np.flatnonzero(headers.is_valid().to_numpy(zero_copy_only=False)).tolist():
        told = {each["key"]: each["value"] or b"" for each in headers[row].as_py()}
        if FAULT_HEADER in told:
            reason = told.get(REASON_HEADER, b"").decode(errors="replace")
            letters[row] = Letter(row, ErrorCode(told[FAULT_HEADER].decode()), reason, "read")
    return letters


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _with_tombstones(unwrapped: Unwrapped, raw: pa.RecordBatch, rows: Rows) -> Unwrapped:
    """Add records that have a key and no value: their payload has no bytes, and no schema."""
    count = len(rows)
    more = {
        "claim": raw.column("topic").take(pa.array(rows)),
        "schema_id": _unframed(count),
        "guid": pa.repeat(pa.scalar("", pa.string()), count),
    }
    keys = {
        name: pa.concat_arrays([column.cast(more[name].type), more[name]])
        for name, column in unwrapped.keys.items()
    }
    nothing = pa.repeat(pa.scalar(b"", unwrapped.payloads.type), count)
    both = np.concatenate([unwrapped.rows, rows])
    contents = pa.concat_arrays([unwrapped.payloads, nothing])
    together = replace(unwrapped, rows=both, keys=keys, payloads=contents)
    return _taken(together, np.argsort(both, kind="stable"))


def _about_tables(unwrapped: Unwrapped, *, tombstones: bool) -> Unwrapped:
    """Debezium's JSON: the table stands in the event, and so, maybe, does the schema.

    With `tombstones`, these are kept too: they may delete a row.
    """
    frames = split_connect(unwrapped.payloads)
    looked = look(unwrapped.keys["claim"], frames.payloads, by_topic=tombstones)
    silent = looked.kinds == _TOMBSTONE
    changes = looked.kinds == _CHANGE
    if tombstones:
        changes |= silent
    named = looked.claims.is_valid().to_numpy(zero_copy_only=False)
    for row in unwrapped.rows[changes & ~named].tolist():
        unwrapped.letters.append(Letter(row, ErrorCode.NO_SOURCE_METADATA, _NAMELESS, "unwrap"))
    guids = [str(UUID(bytes=connect_guid(text))) for text in frames.schemas]
    # JSON that somebody has framed is read by what it looks like, as all the other
    keys = {"claim": looked.claims, "schema_id": _unframed(len(silent))}
    if guids:
        codes = np.where((frames.codes < 0) | silent, len(guids), frames.codes)
        keys["guid"] = _coded(codes, [*guids, ""], pa.string())
    if silent.any():
        keys["tombstone"] = pa.array(silent)
    texts = [text.decode(errors="replace") for text in frames.schemas]
    found = replace(
        unwrapped,
        keys=keys,
        payloads=frames.payloads,
        skipped=unwrapped.skipped + int((~changes).sum()),
        carried=dict(zip(guids, texts, strict=True)),
    )
    return _only(found, np.flatnonzero(changes & named))


# The records of a batch that are this job's own, where a source marks them.

MINE = pa.field("mine", pa.bool_(), nullable=False)
MARKED = pa.schema([*RAW, MINE])
"""Raw records, and for each whether this job takes it; the others are another job's."""


class ShardFilter:
    """Passes on what is this job's own, and counts the rest."""

    def __init__(self) -> None:
        self.others = 0
        """Records of other jobs so far: read, and passed over."""

    def own(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raw records; batches without marks pass as they are."""
        for batch in batches:
            yield self._own(batch) if MINE.name in batch.schema.names else batch

    def _own(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mine = batch.column(MINE.name)
        raw = batch.select(RAW.names)
        others = batch.num_rows - (pc.sum(mine).as_py() or 0)
        self.others += others
        return raw.filter(mine) if others else raw
