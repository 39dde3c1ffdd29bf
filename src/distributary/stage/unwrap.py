"""Hop one, unwrapping: the type, schema id and payload of each record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import Decoder
from distributary.decode.change.base import CHANGE, HEARTBEAT, TOMBSTONE, Records
from distributary.decode.change.change_formats import CHANGE_FORMATS
from distributary.decode.formats import FORMATS, decoder_for
from distributary.decode.json.pattern import shape_in
from distributary.errors import ErrorCode
from distributary.model.change import ChangeSettings
from distributary.model.deadletter import FAULT_HEADER, REASON_HEADER
from distributary.model.record import RAW, Format, Shapes, WriterSchema
from distributary.model.routing import UNFRAMED, EnvelopePlan, Route, RouteKey
from distributary.registry.frames import REASONS, SplitFrames, payloads, split, split_v0
from distributary.registry.record_schemas import guid_of
from distributary.stage.envelopes import (
    OpenedEnvelopes,
    joined,
    open_cloud_events,
    open_columns,
    open_messages,
    taken,
    texts_in,
)
from distributary.stage.guard import GuardedDecoder
from distributary.stage.task_outputs import Letter
from distributary.stage.task_plan import TaskPlan

Rows = npt.NDArray[np.int64]


@dataclass(slots=True)
class Unwrapped:
    """The records of a raw batch that could be unwrapped, as columns, and the dead letters."""

    rows: Rows
    """Positions in the raw batch; all columns below have this length and order."""
    keys: dict[str, pa.Array]
    """The columns that form the key of a record, by the names of `RouteKey`; unused ones are left
    out."""
    payloads: pa.BinaryArray
    letters: list[Letter] = field(default_factory=list)
    skipped: int = 0
    """Records that are skipped: tombstones, if the policy says so, and messages that are no row
    change."""
    familiar: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    """Positions in the raw batch of records that add nothing to the known shape of their type."""
    carried: dict[str, str] = field(default_factory=dict)
    """Schemas that the records themselves carried, by GUID."""
    heartbeats: dict[str, int] = field(default_factory=dict)
    """The time of the newest heartbeat of a connector, by topic, in microseconds since 1970."""


def _only(unwrapped: Unwrapped, keep: Rows) -> Unwrapped:
    """Return the records at these ascending positions; letters and counts stay."""
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


def unwrap(raw: pa.RecordBatch, plan: TaskPlan, *, guarded: bool = False) -> Unwrapped:
    """Split a raw batch into unwrapped columns and dead letters."""
    letters: list[Letter] = []
    rows = _with_value(raw, plan, letters)
    silent: Rows = np.zeros(0, np.int64)
    if (plan.records.skip_tombstones or plan.records.keep_tombstones) and letters:
        letters, silent = _without_tombstones(raw, letters)
    if plan.records.from_files:
        rows, letters = _without_faults(raw, rows, letters)
    if plan.changes is not None:
        return _changes(raw, rows, letters, plan, plan.changes, silent)
    if plan.records.envelope is None:
        unwrapped = _from_frame(raw, rows, letters, plan)
    else:
        unwrapped = _from_envelope(raw, rows, letters, plan, plan.records.envelope, guarded=guarded)
    if not plan.records.keep_tombstones:
        unwrapped.skipped += len(silent)
    elif len(silent):
        unwrapped = _with_tombstones(unwrapped, raw, silent, marked=True)
    return unwrapped


def decodable(unwrapped: Unwrapped, plan: TaskPlan) -> Unwrapped:
    """Return records with payloads in the form that decoders take; the others become letters."""
    as_json = FORMATS[plan.records.format].as_json
    if as_json is None or not len(unwrapped.rows):
        return unwrapped
    texts, failures = as_json(unwrapped.payloads, plan.records.limits.max_depth)
    unwrapped = replace(unwrapped, payloads=texts)
    if not failures:
        return unwrapped
    letters = [
        Letter(
            int(unwrapped.rows[failure.index]),
            failure.code,
            failure.message,
            "decode",
            failure.position,
            unwrapped.keys["claim"][failure.index].as_py(),
        )
        for failure in failures
    ]
    unwrapped = replace(unwrapped, letters=unwrapped.letters + letters)
    return _only(unwrapped, np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False)))


def _with_value(raw: pa.RecordBatch, plan: TaskPlan, letters: list[Letter]) -> Rows:
    """Return the rows with a usable value; empty, null and too large values become dead letters."""
    values, limit = raw.column("value"), plan.records.limits.max_payload_bytes
    sizes = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
    good = (sizes > 0) & (sizes <= limit)
    if good.all():
        return np.arange(len(values))
    if plan.records.envelope is None and (sizes == 0).any():
        # If a header names the schema, the whole value is payload, and may be empty.
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
    """Separate tombstones from the letters: a key without a value is no fault."""
    keys = raw.column("key")
    silent = {x.row for x in letters if x.code is ErrorCode.NULL_VALUE and keys[x.row].is_valid}
    return [x for x in letters if x.row not in silent], np.array(sorted(silent), np.int64)


# Records with the registry's header, or without any framing.


def _from_frame(
    raw: pa.RecordBatch,
    rows: Rows,
    letters: list[Letter],
    plan: TaskPlan,
    claims: pa.StringArray | None = None,
    values: pa.BinaryArray | None = None,
    *,
    inside: bool = False,
) -> Unwrapped:
    """Unwrap records whose schema the registry's header names; by default the claim is the topic.

    `claims` are given if something else names the type. `values` are payloads from inside of an
    envelope; with `inside`, the headers of the record do not describe them.
    """
    headers = None if inside else raw.column("headers")
    values = taken(raw.column("value"), rows) if values is None else values
    claims = taken(raw.column("topic"), rows) if claims is None else claims
    if plan.records.framing == "none":
        keys = {"claim": claims, "schema_id": _unframed(len(rows))}
        return Unwrapped(rows, keys, values, letters)
    protobuf = FORMATS[plan.records.format].many_messages
    named = None
    if headers is not None and headers.null_count < len(headers):
        named = taken(headers, rows)
    frames = split(values, named, protobuf=protobuf)
    keep = _well_framed(frames, plan.records.framing, rows, letters)
    keys = {"claim": claims, "schema_id": pa.array(frames.ids), **_keys_in(frames, protobuf)}
    return _only(Unwrapped(rows, keys, payloads(values, frames.payload_start), letters), keep)


def _well_framed(frames: SplitFrames, framing: str, rows: Rows, letters: list[Letter]) -> Rows:
    """Return the positions of well-framed payloads; the others become dead letters."""
    bad = ~frames.framed
    if framing == "auto":
        # This is exact for protobuf: a bare message cannot begin with byte 0.
        bad &= frames.reasons != REASONS.index(ErrorCode.BAD_MAGIC)
    for i in np.flatnonzero(bad).tolist():
        code = frames.reason(i) or ErrorCode.BAD_MAGIC
        text = "the registry's header is missing or broken"
        letters.append(Letter(int(rows[i]), code, text, "unwrap", 0))
    return np.flatnonzero(~bad)


_NO_SUCH_MESSAGE = 2**31 - 1
"""The largest index that is kept; it stands for all larger ones, which no schema has."""


def _keys_in(frames: SplitFrames, protobuf: bool) -> dict[str, pa.Array]:
    """Return the parts of the key that frames add to the schema id: message path and GUID."""
    keys = {}
    if protobuf:
        paths = [[min(number, _NO_SUCH_MESSAGE) for number in path] for path in frames.paths]
        # A bare record has no path: its message follows from its name and its schema.
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
    plan: TaskPlan,
    envelope: EnvelopePlan,
    *,
    guarded: bool,
) -> Unwrapped:
    claims: pa.StringArray | None = None
    if envelope.type_field.startswith("{"):
        rows, claims = _named_outside(raw, rows, letters, envelope.type_field)
        if not envelope.schema_id_field and not envelope.payload_field:
            return _from_frame(raw, rows, letters, plan, claims)
    depth = plan.records.limits.max_depth
    if envelope.format == "cloudevents":
        opened = open_cloud_events(raw, rows, letters, max_depth=depth)
        return _from_frame(raw, opened.rows, letters, plan, opened.claims, opened.payloads)
    format = FORMATS[envelope.format]
    values, ids = taken(raw.column("value"), rows), None
    inside = bool(envelope.payload_field)
    if envelope.framing != "none":
        read = split_v0 if inside else split
        frames = read(values, protobuf=format.many_messages)
        keep = _well_framed(frames, envelope.framing, rows, letters)
        values, rows = taken(payloads(values, frames.payload_start), keep), rows[keep]
        ids = np.where(frames.framed, frames.ids, UNFRAMED)[keep]
        claims = None if claims is None else taken(claims, keep)
    if format.messages is not None:
        shape = known_shapes(plan) if format.as_json is None else None
        opened = open_messages(values, rows, letters, envelope, claims, shape, max_depth=depth)
    else:
        portions = _by_schema(envelope, values, rows, ids, claims, letters)
        parts = [_decoded(*portion, letters, plan, envelope, guarded) for portion in portions]
        opened = joined(parts) if parts else OpenedEnvelopes.none()
    complete = _complete(opened, envelope, letters)
    if opened.ids is None:
        # A message that is its own payload may have a header that names its schema.
        contents = complete.payloads if inside else None
        claims = complete.keys["claim"]
        framed = _from_frame(raw, complete.rows, letters, plan, claims, contents, inside=inside)
        return replace(framed, familiar=opened.familiar)
    return complete if plan.records.framing == "none" else _inner(complete, plan)


def known_shape(plan: TaskPlan, key: RouteKey) -> Mapping[str, Any]:
    """Return the shape of records without a schema; empty if it is unknown."""
    route = plan.routing.routes.get(key)
    if isinstance(route, Route):
        return shape_in(plan.routing.schemas[route.schema_id].body)
    recalled = None if route is not None else plan.routing.recalled.get(key.claim)
    return shape_in(recalled) if recalled is not None else {}


def known_shapes(plan: TaskPlan) -> Shapes:
    """Return a function from a claim to the shape of records without a schema."""
    return lambda claim: known_shape(plan, RouteKey(claim, UNFRAMED))


def _named_outside(
    raw: pa.RecordBatch, rows: Rows, letters: list[Letter], place: str
) -> tuple[Rows, pa.StringArray]:
    """Return the records whose key or header names their type, and the types."""
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
    """Yield envelopes by the schema that reads them: the newest, or in Avro the one they name."""
    if envelope.schema is None:
        return
    if not FORMATS[envelope.format].needs_writer or ids is None:
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
    plan: TaskPlan,
    envelope: EnvelopePlan,
    guarded: bool,
) -> OpenedEnvelopes:
    """Decode envelopes of one schema to type, schema id and payload."""
    # For protobuf the newest schema is used, which may not be the writer's schema.
    limits = replace(plan.records.limits, drop_unknown_fields=True)
    many = FORMATS[schema.format].many_messages
    message = envelope.message if many else schema.message
    build = partial(decoder_for, schema, message, limits)
    decoder: Decoder = GuardedDecoder(build) if guarded else build()
    parts: list[OpenedEnvelopes] = []
    for part in decoder.expansion.slices(values, limit=limits.max_decoded_bytes):
        decoded, part_rows = decoder.decode(values[part]), rows[part]
        for failure in decoded.failed:
            code = failure.code if failure.code in _KEPT_CODES else ErrorCode.NOT_AN_ENVELOPE
            row = int(part_rows[failure.index])
            letters.append(Letter(row, code, failure.message, "unwrap", failure.position))
        named = None if claims is None else claims[part]
        if decoded.origin is not None:
            part_rows = part_rows[decoded.origin.to_numpy(zero_copy_only=False)]
            named = None if named is None else named.take(decoded.origin)
        parts.append(open_columns(decoded.ok, part_rows, envelope, named))
    return joined(parts) if parts else OpenedEnvelopes.none()


def _complete(opened: OpenedEnvelopes, envelope: EnvelopePlan, letters: list[Letter]) -> Unwrapped:
    """Return the records with all needed fields; the others become dead letters."""
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


def _inner(unwrapped: Unwrapped, plan: TaskPlan) -> Unwrapped:
    """Remove the registry's header from payloads that have one inside of the envelope."""
    protobuf = FORMATS[plan.records.format].many_messages
    frames = split_v0(unwrapped.payloads, protobuf=protobuf)
    claims, ids = unwrapped.keys.values()
    framed = frames.framed & (frames.ids == ids.to_numpy(zero_copy_only=False))
    if plan.records.framing == "confluent" and not framed.all():
        for i in np.flatnonzero(~framed).tolist():
            text = "the payload has no header of the registry with the envelope's schema id"
            row, claim, id_ = int(unwrapped.rows[i]), claims[i].as_py(), ids[i].as_py()
            letter = Letter(row, ErrorCode.BAD_MAGIC, text, "unwrap", 0, claim, id_)
            unwrapped.letters.append(letter)
        keep = np.flatnonzero(framed)
        rest = _only(unwrapped, keep)
        return _inner(rest, plan) if len(keep) else rest
    starts = np.where(framed, frames.payload_start, 0).astype(np.int32)
    keys = unwrapped.keys
    if framed.any():
        keys |= _keys_in(replace(frames, framed=framed), protobuf)
    return replace(unwrapped, keys=keys, payloads=payloads(unwrapped.payloads, starts))


# Change events: the claim is the source's table, not the topic.

_NAMELESS = "the event does not say which table it is about"
_NOT_JSON = "the event is not JSON"


def _changes(
    raw: pa.RecordBatch,
    rows: Rows,
    letters: list[Letter],
    plan: TaskPlan,
    settings: ChangeSettings,
    silent: Rows,
) -> Unwrapped:
    format_ = CHANGE_FORMATS[settings.format]
    unwrapped = _from_frame(raw, rows, letters, plan)
    deletes = settings.tombstones == "delete" and format_.tombstones_may_delete
    if not deletes:
        unwrapped.skipped += len(silent)
    elif len(silent):
        unwrapped = _with_tombstones(unwrapped, raw, silent)
    if format_.names_in_records(Format(plan.records.format)):
        return _about_tables(unwrapped, raw, plan, settings)
    # The schema names the table, and only the driver has the schema.
    keys = pc.fill_null(raw.column("key").take(pa.array(unwrapped.rows)), b"")
    frames = split_v0(keys, protobuf=False)
    unwrapped.keys["key_schema"] = pa.array(np.where(frames.framed, frames.ids, UNFRAMED))
    return unwrapped


def _without_faults(
    raw: pa.RecordBatch, rows: Rows, letters: list[Letter]
) -> tuple[Rows, list[Letter]]:
    """Replace records by the dead letters that readers of files reported in their headers."""
    faults = _faults(raw)
    if not faults:
        return rows, letters
    others = [letter for letter in letters if letter.row not in faults]
    return rows[~np.isin(rows, list(faults))], [*others, *faults.values()]


def _faults(raw: pa.RecordBatch) -> dict[int, Letter]:
    """Return the dead letters that readers reported in headers, by row."""
    headers = raw.column("headers")
    letters: dict[int, Letter] = {}
    for row in np.flatnonzero(headers.is_valid().to_numpy(zero_copy_only=False)).tolist():
        report = {header["key"]: header["value"] or b"" for header in headers[row].as_py()}
        if FAULT_HEADER in report:
            reason = report.get(REASON_HEADER, b"").decode(errors="replace")
            letters[row] = Letter(row, ErrorCode(report[FAULT_HEADER].decode()), reason, "read")
    return letters


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


_NIL = b"\xc0"


def _with_tombstones(
    unwrapped: Unwrapped, raw: pa.RecordBatch, rows: Rows, *, marked: bool = False
) -> Unwrapped:
    """Add records with a key and without a value, with an empty payload and no schema."""
    count = len(rows)
    before = dict(unwrapped.keys)
    more = {
        "claim": raw.column("topic").take(pa.array(rows)),
        "schema_id": _unframed(count),
        "guid": pa.repeat(pa.scalar("", pa.string()), count),
    }
    if marked:
        before["tombstone"] = pa.array(np.zeros(len(unwrapped.rows), np.bool_))
        more["tombstone"] = pa.array(np.ones(count, np.bool_))
    paths = before.pop("message_index", None)
    keys = {
        name: pa.concat_arrays([column.cast(more[name].type), more[name]])
        for name, column in before.items()
    }
    if paths is not None:
        # the last entry stands for records without a path
        none = pa.array(np.full(count, len(paths.dictionary) - 1), paths.indices.type)
        codes = pa.concat_arrays([paths.indices, none])
        keys["message_index"] = pa.DictionaryArray.from_arrays(codes, paths.dictionary)
    # formats that become JSON before decoding need a null in their own encoding
    nothing = pa.repeat(pa.scalar(_NIL if marked else b"", unwrapped.payloads.type), count)
    both = np.concatenate([unwrapped.rows, rows])
    contents = pa.concat_arrays([unwrapped.payloads, nothing])
    together = replace(unwrapped, rows=both, keys=keys, payloads=contents)
    return _taken(together, np.argsort(both, kind="stable"))


def _about_tables(
    unwrapped: Unwrapped, raw: pa.RecordBatch, plan: TaskPlan, settings: ChangeSettings
) -> Unwrapped:
    """Ask the format for the table of each record, and for the schema that it carries."""
    keys_of_records = raw.column("key").take(pa.array(unwrapped.rows))
    records = Records(unwrapped.keys["claim"], keys_of_records, unwrapped.payloads)
    named = CHANGE_FORMATS[settings.format].name_tables(records, settings)
    silent = named.kinds == TOMBSTONE
    changes = named.kinds == CHANGE
    if settings.tombstones == "delete":
        changes |= silent
    is_named = named.claims.is_valid().to_numpy(zero_copy_only=False)
    # of the formats that change data comes in, only JSON carries no schema of its own
    is_json = not FORMATS[plan.records.format].needs_schema
    nameless = np.flatnonzero(changes & ~is_named)
    unwrapped.letters.extend(_nameless(unwrapped, nameless, is_json=is_json))
    guids = [str(guid_of(text)) for text in named.schemas]
    # the shape of framed JSON is inferred as that of all other JSON
    ids = {"schema_id": _unframed(len(silent))} if is_json else unwrapped.keys
    keys = {"claim": named.claims} | {name: ids[name] for name in ids if name != "claim"}
    if guids and named.codes is not None:
        codes = np.where((named.codes < 0) | silent, len(guids), named.codes)
        keys["guid"] = _coded(codes, [*guids, ""], pa.string())
    if silent.any():
        keys["tombstone"] = pa.array(silent)
    texts = [text.decode(errors="replace") for text in named.schemas]
    about_tables = replace(
        unwrapped,
        keys=keys,
        payloads=named.payloads,
        skipped=unwrapped.skipped + int((~changes).sum()),
        carried=dict(zip(guids, texts, strict=True)),
        heartbeats=_newest_by_topic(raw, unwrapped.rows[named.kinds == HEARTBEAT]),
    )
    return _only(about_tables, np.flatnonzero(changes & is_named))


def _nameless(unwrapped: Unwrapped, places: Rows, *, is_json: bool) -> Iterator[Letter]:
    """Yield the dead letters of records that name no table."""
    for place in places.tolist():
        row = int(unwrapped.rows[place])
        if not is_json or _is_json(unwrapped.payloads[place].as_py() or b"null"):
            yield Letter(row, ErrorCode.NO_SOURCE_METADATA, _NAMELESS, "unwrap")
        else:
            yield Letter(row, ErrorCode.NOT_JSON, _NOT_JSON, "unwrap")


def _newest_by_topic(raw: pa.RecordBatch, rows: Rows) -> dict[str, int]:
    """Return the time of the newest of some records by topic, without records that have no time."""
    if not len(rows):
        return {}
    some = pa.table(
        {name: raw.column(name).take(pa.array(rows)) for name in ("topic", "timestamp")}
    )
    newest = some.group_by("topic").aggregate([("timestamp", "max")]).to_pydict()
    times = pa.array(newest["timestamp_max"], some["timestamp"].type).cast(pa.int64()).to_pylist()
    return {topic: time for topic, time in zip(newest["topic"], times, strict=True) if time}


# The records of a batch that belong to this job, if several jobs share a source.

MINE = pa.field("mine", pa.bool_(), nullable=False)
MARKED = pa.schema([*RAW, MINE])
"""The schema of raw records with a mark: true if this job takes the record."""


class ShardFilter:
    """A filter that passes this job's records on and counts the others."""

    def __init__(self) -> None:
        self.others = 0
        """The number of other jobs' records so far, which were read and skipped."""

    def own(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield this job's records; batches without marks pass unchanged."""
        for batch in batches:
            yield self._own(batch) if MINE.name in batch.schema.names else batch

    def _own(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mine = batch.column(MINE.name)
        raw = batch.select(RAW.names)
        others = batch.num_rows - (pc.sum(mine).as_py() or 0)
        self.others += others
        return raw.filter(mine) if others else raw
