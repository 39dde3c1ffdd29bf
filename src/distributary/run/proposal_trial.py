"""Tries a proposed schema on records: what would break, and which values would be others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.cache import decoder_for
from distributary.model.decoded import Decoded, Failure
from distributary.model.plan import Route, RouteKey
from distributary.model.schema import WriterSchema
from distributary.model.table import Column
from distributary.run.proposal_rewrite import rewritten
from distributary.run.proposal_sample import Slice
from distributary.run.proposal_values import lost_and_changed

ROWS = "number of rows"
"""In place of a field: a payload that becomes more or fewer rows than it did."""


@dataclass(frozen=True, slots=True)
class Breakage:
    """Records that would be dead letters for one reason."""

    code: str
    records: int
    example: str
    """`wrapper/0/42`, the first of them."""
    message: str


@dataclass(frozen=True, slots=True)
class FieldLoss:
    """A field whose values would not come through as they do now."""

    field: str
    vanished: int
    """Rows that have a value now and would have none."""
    changed: int
    """Rows that would have another value."""
    example: str


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of the records."""

    records: int = 0
    decoded: int = 0
    broken_now: int = 0
    """Records that their own schema does not decode either."""
    untried: int = 0
    """Records that the proposed schema has no message for."""
    breakages: tuple[Breakage, ...] = ()
    losses: tuple[FieldLoss, ...] = ()

    @property
    def broken(self) -> int:
        """Records that would break and do not now."""
        return sum(breakage.records for breakage in self.breakages)


@dataclass(slots=True)
class _Tally:
    decoded: int = 0
    broken_now: int = 0
    untried: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    first: dict[str, tuple[str, str]] = field(default_factory=dict)
    vanished: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    seen: dict[str, str] = field(default_factory=dict)


def try_schema(
    slices: Sequence[Slice],
    schema: WriterSchema,
    routes: Mapping[RouteKey, Route],
    limits: DecodeLimits,
) -> Trial:
    """Decode records as if they had been written with a schema, by the routes of their keys."""
    tally = _Tally()
    for one in slices:
        route = routes.get(one.key)
        if route is None:
            tally.untried += len(one.rows)
            continue
        _try_slice(tally, one, schema, route, limits)
    losses = sorted(tally.seen, key=lambda name: -tally.vanished[name] - tally.changed[name])
    return Trial(
        records=sum(len(one.rows) for one in slices),
        decoded=tally.decoded,
        broken_now=tally.broken_now,
        untried=tally.untried,
        breakages=tuple(
            Breakage(code, count, *tally.first[code]) for code, count in tally.broken.most_common()
        ),
        losses=tuple(
            FieldLoss(name, tally.vanished[name], tally.changed[name], tally.seen[name])
            for name in losses
        ),
    )


def _try_slice(
    tally: _Tally, one: Slice, schema: WriterSchema, route: Route, limits: DecodeLimits
) -> None:
    old = _decoder(one.schema, one.route, limits)
    before = old.decode(one.payloads)
    bad = {failure.index for failure in before.failed}
    tally.broken_now += len(bad)
    good = np.array([i for i in range(len(one.payloads)) if i not in bad], np.int64)
    values, refused = rewritten(one.payloads.take(pa.array(good)), one.schema, schema)
    fitting = [i for i, value in enumerate(values) if value is not None]
    # a field that the schema no longer has is a loss, not a break
    new = _decoder(schema, route, replace(limits, drop_unknown_fields=True))
    after = new.decode(pa.array([values[i] for i in fitting], pa.binary()))
    failures = [*refused, *(replace(f, index=fitting[f.index]) for f in after.failed)]
    for failure in failures:
        _note_failure(tally, one, failure, int(good[failure.index]))
    tally.decoded += len(good) - len(failures)
    # places in the slice, of both: a payload may be several rows, or none
    places = (_origins(before), good[np.array(fitting, np.int64)][_origins(after)])
    _compare(tally, one, (before, after), (old.columns, new.columns), places)


def _decoder(schema: WriterSchema, route: Route, limits: DecodeLimits) -> Decoder:
    return decoder_for(schema, route.message, replace(limits, raw_bytes=route.raw_bytes))


def _note_failure(tally: _Tally, one: Slice, failure: Failure, index: int) -> None:
    code = str(failure.code)
    tally.broken[code] += 1
    if code not in tally.first:
        tally.first[code] = (one.place(index), failure.message)


def _origins(decoded: Decoded) -> npt.NDArray[np.int64]:
    if decoded.origin is None:
        return np.arange(decoded.ok.num_rows)
    found: npt.NDArray[np.int64] = decoded.origin.to_numpy(zero_copy_only=False)
    return found


def _compare(
    tally: _Tally,
    one: Slice,
    decoded: tuple[Decoded, Decoded],
    columns: tuple[tuple[Column, ...], tuple[Column, ...]],
    places: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> None:
    size = len(one.payloads)
    counts = [np.bincount(each, minlength=size) for each in places]
    tried = np.zeros(size, np.bool_)
    tried[places[1]] = True
    uneven = np.flatnonzero(tried & (counts[0] != counts[1]))
    if len(uneven):
        tally.changed[ROWS] += len(uneven)
        tally.seen.setdefault(ROWS, one.place(int(uneven[0])))
    even = tried & (counts[0] == counts[1])
    rows = [_rows_of(each, even) for each in places]
    before, after = (
        each.ok.take(pa.array(chosen)) for each, chosen in zip(decoded, rows, strict=True)
    )
    home = places[0][rows[0]]
    for at, column in enumerate(columns[0]):
        partner = _partner(column, columns[1])
        values = None if partner is None else after.column(partner)
        vanished, changed = lost_and_changed(before.column(at), values)
        tally.vanished[column.name] += len(vanished)
        tally.changed[column.name] += len(changed)
        if len(vanished) or len(changed):
            first = int(min([*vanished[:1], *changed[:1]]))
            tally.seen.setdefault(column.name, one.place(int(home[first])))


def _rows_of(places: npt.NDArray[np.int64], even: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    rows = np.flatnonzero(even[places])
    ordered: npt.NDArray[np.int64] = rows[np.argsort(places[rows], kind="stable")]
    return ordered


def _partner(column: Column, others: tuple[Column, ...]) -> int | None:
    """The column that holds the same field: by name, else by what makes it a rename."""
    by_name = {other.name: at for at, other in enumerate(others)}
    if column.name in by_name:
        return by_name[column.name]
    for at, other in enumerate(others):
        renamed = other.number is not None and other.number == column.number
        if renamed or column.name in other.aliases:
            return at
    return None
