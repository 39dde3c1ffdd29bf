"""Hop one of a stage: unwrap, find the route of each record, send it to the task of its table."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from distributary.errors import ErrorCode
from distributary.model.plan import Catalog, Rejected, Route, RouteKey, StageOrder
from distributary.route.type_names import check_type_name
from distributary.stage.bronze import BronzeWriter
from distributary.stage.facts import file_fact
from distributary.stage.group import Groups, group, positions
from distributary.stage.letters import Letter, letters_batch
from distributary.stage.packets import DEAD, FACTS, ROWS, Packet, bucket_of, fact, to_batch
from distributary.stage.unwrap import Unwrapped, unwrap

_RAW = Route(table="", type="", schema_id=0, message="")
_ENCODABLE = (ErrorCode.TYPE_NAME_EMPTY, ErrorCode.TYPE_NAME_TOO_LONG)


def scatter(
    batches: Iterable[pa.RecordBatch], catalog: Catalog, order: StageOrder
) -> Iterator[pa.RecordBatch]:
    """Raw records in, packets out."""
    salt = uuid.uuid4().int
    bronze = BronzeWriter(catalog, order) if catalog.bronze and order.lane == "stream" else None
    seen = 0
    for raw in batches:
        if not raw.num_rows:
            continue
        seen += raw.num_rows
        salt += 1
        unwrapped = unwrap(raw, catalog, guarded=order.guarded)
        if bronze is not None:
            bronze.add(raw, unwrapped)
        packets = list(_packets(raw, unwrapped, catalog, order, salt))
        if packets:
            yield to_batch(packets)
    closing = [fact("seen", records=seen)]
    if bronze is not None and (staged := bronze.finish()) is not None:
        kind, body = file_fact(catalog.bronze, bronze.unwrapped, staged)
        closing.append(Packet(0, FACTS, kind, body.encode()))
    yield to_batch(closing)


def _packets(
    raw: pa.RecordBatch,
    unwrapped: Unwrapped,
    catalog: Catalog,
    order: StageOrder,
    salt: int,
) -> Iterator[Packet]:
    decoding = catalog.each or bool(catalog.unified)
    groups = group(unwrapped)
    # where only raw payloads are kept, nobody asks what they mean
    routes = [_route(key, catalog, order) if decoding else _RAW for key in groups.keys]
    unresolved = [i for i, route in enumerate(routes) if route is None]
    if unresolved:
        yield from _unresolved(raw, unwrapped, groups, unresolved[: order.most_unresolved])
    letters = unwrapped.letters + _rejections(unwrapped, groups, routes)
    if letters:
        body = letters_batch(raw, letters, order).serialize()
        yield Packet(bucket_of(DEAD, 0, buckets=order.buckets, spread=None), DEAD, "", body)
    if decoding:
        yield from _rows(raw, unwrapped, groups, routes, order, salt)


def _route(key: RouteKey, catalog: Catalog, order: StageOrder) -> Route | Rejected | None:
    route = catalog.routes.get(key)
    if route is not None:
        return route
    if catalog.envelope is not None:
        code = check_type_name(key.claim)
        if code is not None and (catalog.strict_names or code in _ENCODABLE):
            return Rejected(code, "the type's name cannot become the name of a table")
    if order.final:
        return Rejected(
            ErrorCode.TOO_MANY_TYPES,
            "more new types came in one batch than evolution.max_new_tables_per_batch allows",
        )
    return None


def _unresolved(
    raw: pa.RecordBatch, unwrapped: Unwrapped, groups: Groups, numbers: list[int]
) -> Iterator[Packet]:
    first = groups.first_rows()
    offsets = raw.column("offset")
    for number in numbers:
        key = groups.keys[number]
        offset = offsets[int(unwrapped.rows[first[number]])].as_py()
        yield fact("unresolved", key=list(key), offset=offset)


def _rejections(
    unwrapped: Unwrapped, groups: Groups, routes: list[Route | Rejected | None]
) -> list[Letter]:
    rejected = np.array([isinstance(route, Rejected) for route in routes], dtype=bool)
    if not rejected.any():
        return []
    letters = []
    for i in np.flatnonzero(rejected[groups.codes]).tolist():
        number = int(groups.codes[i])
        key, route = groups.keys[number], routes[number]
        if isinstance(route, Rejected):
            letters.append(
                Letter(
                    int(unwrapped.rows[i]),
                    route.code,
                    route.message,
                    "route",
                    type=key.claim,
                    schema_id=key.schema_id,
                )
            )
    return letters


def _rows(
    raw: pa.RecordBatch,
    unwrapped: Unwrapped,
    groups: Groups,
    routes: list[Route | Rejected | None],
    order: StageOrder,
    salt: int,
) -> Iterator[Packet]:
    """One packet per table: whole raw records, because a failure later must keep them whole."""
    names: dict[str, int] = {}
    of_group = np.array(
        [
            names.setdefault(r.table or f"type:{r.type}", len(names))
            if isinstance(r, Route)
            else -1
            for r in routes
        ],
        dtype=np.int64,
    )
    if not names:
        return
    tables = of_group[groups.codes]
    routed = np.flatnonzero(tables >= 0)
    for name, where in zip(names, positions(tables[routed], len(names)), strict=True):
        rows = raw.take(pa.array(unwrapped.rows[routed[where]]))
        spread = order.spread.get(name)
        bucket = bucket_of(name, salt, buckets=order.buckets, spread=spread)
        yield Packet(bucket, ROWS, name, rows.serialize())
