"""Hop two's reading half: the records of a table as decoded parts, one per writer schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from distributary.config.evolution import Evolution
from distributary.decode.base import Decoder, HasColumns
from distributary.decode.cache import CAPACITY, change_decoder_for, decoder_for
from distributary.decode.together import decode_together
from distributary.evolve.merge import merge
from distributary.model.change_settings import ChangeSettings
from distributary.model.decoded import Decoded, Failure
from distributary.model.expectation import RuleCount
from distributary.model.identity import ByIdentity
from distributary.model.plan import Catalog, Rejected, Route, RouteKey, StageOrder
from distributary.model.record import RAW
from distributary.model.table import Fill, TablePlan
from distributary.stage.expectations import count_dropped
from distributary.stage.guard import GuardedChanges, GuardedDecoder
from distributary.stage.letters import Letter, letters_batch
from distributary.stage.loads import Share, Slice
from distributary.stage.runs import open_run
from distributary.stage.shard import sharded, with_shard
from distributary.stage.unwrap import limits_of

_BYTES_PER_DECODE = 64 * 1024 * 1024
_MOST_SHAPES = 50_000


@dataclass(frozen=True, slots=True)
class Part:
    """Decoded records of one schema: columns, and the raw rows they came from."""

    route: Route
    batch: pa.RecordBatch
    fills: tuple[Fill, ...]
    raw: pa.Table
    """The raw record of each row of `batch`."""
    records: int
    dropped: RuleCount | None = None
    """Records of which something is in no row, where that is allowed."""


@dataclass(frozen=True, slots=True)
class _Portion:
    """Records of one key, as many as are decoded at once."""

    key: RouteKey
    raw: pa.Table
    payloads: pa.BinaryArray


class Runs:
    """The runs of a stage, opened at their first use."""

    def __init__(self) -> None:
        self._opened: dict[str, tuple[pa.RecordBatch, pa.BinaryArray]] = {}

    def slice(self, one: Slice) -> tuple[pa.RecordBatch, pa.BinaryArray]:
        """Raw records and their payloads."""
        found = self._opened.get(one.path)
        if found is None:
            batch = open_run(one.path)
            found = batch.select(RAW.names), batch.column("payload")
            self._opened[one.path] = found
        return found[0].slice(one.start, one.rows), found[1].slice(one.start, one.rows)


def decode_shares(
    shares: Sequence[Share], runs: Runs, catalog: Catalog, order: StageOrder
) -> tuple[list[Part], list[pa.RecordBatch]]:
    """The records of a table's shares as parts, and the rows for the dead-letter table.

    Records of keys that are to be passed over are in neither.
    """
    parts: list[Part] = []
    dead: list[pa.RecordBatch] = []
    together: list[_Portion] = []
    size = 0
    for share in shares:
        for portion in _portions(share, runs):
            weight = portion.payloads.nbytes
            if together and size + weight > _BYTES_PER_DECODE:
                _decode(together, catalog, order, parts, dead)
                together, size = [], 0
            together.append(portion)
            size += weight
    _decode(together, catalog, order, parts, dead)
    return parts, dead


def passed_over(shares: Sequence[Share], catalog: Catalog) -> int:
    """How many records of these shares are only counted."""
    routes = [(catalog.routes[share.key], share) for share in shares]
    silent = [s for route, s in routes if isinstance(route, Rejected) and route.passed_over]
    return sum(one.rows for share in silent for one in share.slices)


def _portions(share: Share, runs: Runs) -> Iterator[_Portion]:
    """Slices put together, up to a size at which a decoder gains nothing from more."""
    raws: list[pa.RecordBatch] = []
    payloads: list[pa.BinaryArray] = []
    size = 0
    for one in share.slices:
        raw, payload = runs.slice(one)
        if raws and size + payload.nbytes > _BYTES_PER_DECODE:
            yield _portion(share.key, raws, payloads)
            raws, payloads, size = [], [], 0
        raws.append(raw)
        payloads.append(payload)
        size += payload.nbytes
    yield _portion(share.key, raws, payloads)


def _portion(key: RouteKey, raws: list[pa.RecordBatch], payloads: list[pa.BinaryArray]) -> _Portion:
    joined = payloads[0] if len(payloads) == 1 else pa.concat_arrays(payloads)
    return _Portion(key, pa.Table.from_batches(raws, RAW), joined)


def _decode(
    portions: Sequence[_Portion],
    catalog: Catalog,
    order: StageOrder,
    parts: list[Part],
    dead: list[pa.RecordBatch],
) -> None:
    """Decode portions of one table, and put what comes out of it to the parts and dead letters."""
    routed: list[tuple[_Portion, Route]] = []
    for portion in portions:
        route = catalog.routes[portion.key]
        if isinstance(route, Route):
            routed.append((portion, route))
        elif not route.passed_over:
            letters = _refused(portion.raw.num_rows, portion.key, route)
            dead.append(letters_batch(portion.raw, letters, order))
    if catalog.changes is not None:
        for portion, route in routed:
            _decode_changes(portion, route, catalog, catalog.changes, order, parts, dead)
        return
    decoders = [_decoder_of(route, catalog, guarded=order.guarded) for _, route in routed]
    decoded: Sequence[Decoded | None] | None = None
    if len(routed) > 1:
        decoded = decode_together(tuple(decoders), [portion.payloads for portion, _ in routed])
    for (portion, route), decoder, known in zip(
        routed, decoders, decoded or [None] * len(routed), strict=True
    ):
        found = decoder.decode(portion.payloads) if known is None else known
        parts.append(_part(portion.raw, found, route, decoder, catalog))
        if found.failed:
            letters = [_failed(failure, route) for failure in found.failed]
            dead.append(letters_batch(portion.raw, letters, order))


def failures(payloads: pa.BinaryArray, raw: pa.Table, route: Route, catalog: Catalog) -> int:
    """How many of some records of one key cannot be decoded."""
    if catalog.changes is not None:
        settings = catalog.changes
        return len(_changes(payloads, raw, route, catalog, settings, guarded=False)[0].failed)
    return len(_decoder(route, catalog, guarded=False).decode(payloads).failed)


def _decode_changes(
    portion: _Portion,
    route: Route,
    catalog: Catalog,
    settings: ChangeSettings,
    order: StageOrder,
    parts: list[Part],
    dead: list[pa.RecordBatch],
) -> None:
    found, shape = _changes(
        portion.payloads, portion.raw, route, catalog, settings, guarded=order.guarded
    )
    parts.append(_part(portion.raw, found, route, shape, catalog))
    if found.failed:
        letters = [_failed(failure, route) for failure in found.failed]
        dead.append(letters_batch(portion.raw, letters, order))


def _changes(
    payloads: pa.BinaryArray,
    raw: pa.Table,
    route: Route,
    catalog: Catalog,
    settings: ChangeSettings,
    *,
    guarded: bool,
) -> tuple[Decoded, HasColumns]:
    keys = catalog.schemas.get(route.key_schema_id)
    schema, limits = catalog.schemas[route.schema_id], limits_of(catalog)
    decoder = change_decoder_for(schema, settings, limits, keys=keys)
    if guarded:
        found = GuardedChanges(decoder, schema, settings, limits, keys).decode(payloads, raw)
    else:
        found = decoder.decode(payloads, raw)
    if not route.shard:
        return found, decoder
    return replace(found, ok=with_shard(found.ok, route.shard)), sharded(decoder)


_ROUTED: ByIdentity[Decoder] = ByIdentity(CAPACITY)
_ROUTED_BY: list[Catalog] = []


def _decoder_of(route: Route, catalog: Catalog, *, guarded: bool) -> Decoder:
    """The same as `_decoder`, found again by the route itself as long as the catalog stays."""
    if guarded:
        return _decoder(route, catalog, guarded=True)
    if not _ROUTED_BY or _ROUTED_BY[0] is not catalog:
        _ROUTED_BY[:] = [catalog]
        _ROUTED.clear()
    return _ROUTED.get((route,), lambda: _decoder(route, catalog, guarded=False))


def _decoder(route: Route, catalog: Catalog, *, guarded: bool) -> Decoder:
    schema = catalog.schemas[route.schema_id]
    limits = replace(limits_of(catalog), raw_bytes=route.raw_bytes)
    decoder = decoder_for(schema, route.message, limits)
    return GuardedDecoder(decoder, schema, route.message, limits) if guarded else decoder


def _part(
    raw: pa.Table, decoded: Decoded, route: Route, decoder: HasColumns, catalog: Catalog
) -> Part:
    records = raw.num_rows - len(decoded.failed)
    dropped = count_dropped(raw, decoded) if catalog.drop_unknown_fields else None
    if decoded.origin is not None:
        raw = raw.take(decoded.origin)
    table = catalog.tables.get(route.table)
    fills = fills_for(table, decoder, catalog) if table is not None else ()
    return Part(route, decoded.ok, fills, raw, records, dropped)


def _refused(count: int, key: RouteKey, why: Rejected) -> list[Letter]:
    return [
        Letter(row, why.code, why.message, "route", type=key.claim, schema_id=key.schema_id)
        for row in range(count)
    ]


def _failed(failure: Failure, route: Route) -> Letter:
    return Letter(
        failure.index,
        failure.code,
        failure.message,
        "decode",
        failure.position,
        type=route.type,
        schema_id=route.schema_id,
    )


_FILLS: ByIdentity[tuple[Fill, ...]] = ByIdentity(_MOST_SHAPES)


def fills_for(table: TablePlan, decoder: HasColumns, catalog: Catalog) -> tuple[Fill, ...]:
    """How a schema's columns reach the table; kept between tasks for the same two objects.

    The driver has evolved the table already, so the same pure merge finds a place for everything.
    """

    def merged() -> tuple[Fill, ...]:
        policy = Evolution.model_validate(dict(catalog.evolution))
        return merge(table.columns, decoder.columns, policy).fills

    return _FILLS.get((table, decoder), merged)
