"""Suite `evolution`: how much longer the batch takes in which a new version appears."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.delta import FILES_PER_BATCH, delta_pipeline, source_of
from benchmarks.engine import ingested
from benchmarks.games import VERSIONS
from benchmarks.order import Order, Row, Suite, summarised
from distributary.registry.folder import FileRegistry
from distributary_lab.simulate.base import DeltaSink
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds

_STEADY = 3
"""Batches between those with something new."""


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """Batches as in `delta`, then one with a version that one game has never sent, then one with
    such versions of all games."""
    registry = FileRegistry(order.root / "schemas", durable=False)
    plan = GamesPlan(
        games=order.tables,
        versions=VERSIONS + 1,
        records=-(-order.records // (order.tables * VERSIONS)),
        seed=1,
    )
    *known, new = [
        pa.Table.from_batches(one.arrow()) for one in stream_rounds(plan, registry=registry)
    ]
    steady = _shuffled(pa.concat_tables(known)).slice(0, order.records)
    of_one = new.filter(pc.equal(new["type"], new["type"][0]))
    of_all = _shuffled(new).slice(0, order.records // (VERSIONS + 1))
    one = pa.concat_tables([steady.slice(of_one.num_rows), of_one])
    every = pa.concat_tables([steady.slice(of_all.num_rows), of_all])
    sink = DeltaSink(str(source_of(order)), records_per_file=-(-order.records // FILES_PER_BATCH))
    for batch in [steady] * (order.warm + _STEADY) + [one] * (1 + _STEADY) + [every]:
        sink.write_arrow(_shuffled(batch).to_batches())
    yield order


def _shuffled(messages: pa.Table) -> pa.Table:
    places = np.random.default_rng(1).permutation(messages.num_rows)
    return messages.take(pa.array(places)).combine_chunks()


def direct_case(order: Order) -> Row:
    """Our engine; the seconds beyond those of the batches around."""
    first = order.warm + _STEADY
    path = delta_pipeline(order, "direct")
    batches = ingested(path, trigger="continuous", batches=first + _STEADY + 2)
    steady = summarised(batches[:first], warm=order.warm)
    after = statistics.median(b["seconds"] for b in batches[first + 1 : -1])
    return {
        **steady,
        "extra_seconds_one_version": round(batches[first]["seconds"] - after, 2),
        "extra_seconds_every_version": round(batches[-1]["seconds"] - after, 2),
    }


def _derived(rows: Sequence[Row]) -> Mapping[str, float]:
    return {
        f"evolution_extra_stages_{row['tables']}": round(
            row["extra_seconds_one_version"] / row["stage_seconds"], 2
        )
        for row in rows
    }


SUITE = Suite(
    name="evolution",
    tables=(200,),
    prepared=prepared,
    cases={"direct": direct_case},
    derived=_derived,
)
